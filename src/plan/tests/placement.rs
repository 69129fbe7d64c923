//! Placement of instances, service addresses and host ports.

mod candidates;
mod default_requests;
mod host_ports;
mod ingress_ports;
mod machine_choice;
mod names;
pub(crate) mod service_addresses;
pub(crate) mod spread_and_affinity;

use super::*;
