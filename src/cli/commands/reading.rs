//! Commands that only read: lists, details, status and reasons.

pub(crate) mod describe;
pub(crate) mod explain;
pub(crate) mod get;
pub(crate) mod guess;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod version;
pub(crate) mod why;
