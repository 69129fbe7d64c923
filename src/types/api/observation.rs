//! Observation: events, health, measurements, use, and what a caller selects of logs and events.

pub(crate) mod event;
pub(crate) mod gone;
pub(crate) mod health;
pub(crate) mod measurements;
pub(crate) mod metrics;
pub(crate) mod overview;
pub(crate) mod query;
pub(crate) mod usage;
