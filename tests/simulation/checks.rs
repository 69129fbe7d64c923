//! Checks of what must never happen.

pub(crate) mod copies;
pub(crate) mod false_claims;
pub(crate) mod fault_isolation;
pub(crate) mod invariants;
pub(crate) mod jobs;
pub(crate) mod kept_schedules;
pub(crate) mod monitor;
pub(crate) mod orders;
pub(crate) mod outside_routes;
pub(crate) mod routes;
pub(crate) mod virtual_addresses;
