//! Placement of instances, service addresses and host ports.

pub(crate) mod balance;
mod host_ports;
mod placement;
mod scheduling;
pub(crate) mod spreading;

use super::*;
