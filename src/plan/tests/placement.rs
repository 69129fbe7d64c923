//! Placement of instances, service addresses and host ports.

mod candidates;
mod host_ports;
mod machine_choice;
pub(crate) mod service_addresses;
pub(crate) mod spread_and_affinity;

use super::*;
