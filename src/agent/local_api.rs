//! The API on this machine's own sockets: listeners, answers without a leader, and logs.

pub(crate) mod listeners;
pub(crate) mod logs;
pub(crate) mod standalone;
