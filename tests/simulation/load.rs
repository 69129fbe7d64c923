//! Users of the cluster: what they apply, change and store.

pub(crate) mod added;
pub(crate) mod daemons;
pub(crate) mod jobs;
pub(crate) mod kept;
pub(crate) mod orders;
pub(crate) mod outside_routes;
pub(crate) mod random_steps;
pub(crate) mod rollouts;
pub(crate) mod routes;
pub(crate) mod secrets;
pub(crate) mod start_order;
pub(crate) mod user;
pub(crate) mod virtual_addresses;
pub(crate) mod volume_data;
