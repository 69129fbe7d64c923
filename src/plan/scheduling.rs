//! Choice of a machine for an instance, and what of each machine is in use.

pub(crate) mod gpus;
pub(crate) mod host_ports;
pub(crate) mod ingress_ports;
pub(crate) mod machines;
pub(crate) mod schedule;
pub(crate) mod spread;
