//! Choice of a machine for an instance, and what of each machine is in use.

pub(crate) mod devices;
pub(crate) mod host_ports;
pub(crate) mod machines;
pub(crate) mod schedule;
pub(crate) mod spread;
