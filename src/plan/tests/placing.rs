//! Where instances go, and what has a number of its own there.

pub(crate) mod balance;
mod host_ports;
mod placement;
mod scheduling;
pub(crate) mod spreading;

use super::*;
