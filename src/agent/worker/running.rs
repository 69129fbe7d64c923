//! Jobs of the worker, and what is counted and saved of runs.

pub(crate) mod bound_files;
pub(crate) mod jobs;
pub(crate) mod preparation;
pub(crate) mod pulls;
pub(crate) mod restarts;
pub(crate) mod saved_state;
pub(crate) mod start_backoff;
pub(crate) mod stops;
