//! What the worker reports of its instances.

pub(crate) mod log_tail;
pub(crate) mod reporting;
pub(crate) mod statuses;
