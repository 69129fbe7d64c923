//! KAT's tables of nftables: the way out and in, service addresses, ports of the machine; and other firewalls.

pub(crate) mod conntrack;
pub mod firewall;
pub mod host_ports;
pub mod other_firewalls;
pub mod service_addresses;
pub(crate) mod table;
