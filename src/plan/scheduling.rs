//! Where an instance goes, and what of a machine is taken.

pub(crate) mod devices;
pub(crate) mod host_ports;
pub(crate) mod machines;
pub(crate) mod schedule;
pub(crate) mod spread;
