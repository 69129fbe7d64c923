//! Commands that connect to an instance: logs, shells, copies and forwarded ports.

pub(crate) mod cp;
pub(crate) mod exec;
pub(crate) mod logs;
pub(crate) mod port_forward;
