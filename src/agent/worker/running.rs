//! Instances while they run: starts, restarts, health and draining.

pub(crate) mod draining;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod preparation;
pub(crate) mod pulls;
pub(crate) mod restarts;
pub(crate) mod saved_state;
pub(crate) mod start_backoff;
pub(crate) mod starts;
pub(crate) mod stops;
