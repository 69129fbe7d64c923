//! KAT's nftables tables: containers' outgoing traffic and protection, service addresses, host
//! ports and isolation; and other firewalls.

pub(crate) mod conntrack;
pub mod firewall;
pub mod host_ports;
pub mod isolation;
pub(crate) mod netfilter;
pub mod other_firewalls;
pub mod rule_changes;
pub mod service_addresses;
pub(crate) mod table;
