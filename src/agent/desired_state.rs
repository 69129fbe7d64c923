//! The list of assignments of this machine: followed, confirmed, kept on disk, and what may run while it is not confirmed.

pub mod desired;
pub(crate) mod fence;
pub(crate) mod instance_history;
pub(crate) mod job_starts;
pub(crate) mod kept_position;
pub(crate) mod known_epochs;
pub(crate) mod settings;
pub(crate) mod store_watch;
pub(crate) mod watched_writes;
