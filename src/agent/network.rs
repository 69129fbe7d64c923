//! What `kat-net` needs of the agent: its files, host ports, isolation, and the overlay; and whether it
//! answers.

pub(crate) mod files;
pub(crate) mod host_ports;
pub(crate) mod ingress_ports;
pub(crate) mod isolation;
pub(crate) mod kat_net_probe;
pub(crate) mod overlay;
pub(crate) mod virtual_addresses;
