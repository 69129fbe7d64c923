//! What `kat-net` needs of the agent: its files, host ports, and the overlay.

pub(crate) mod files;
pub(crate) mod host_ports;
pub(crate) mod overlay;
