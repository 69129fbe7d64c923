//! Handlers of the routes, one file for each kind of object.

pub(crate) mod config;
pub(crate) mod events;
pub(crate) mod instances;
pub(crate) mod joining;
pub(crate) mod logins;
pub(crate) mod membership;
pub(crate) mod metrics;
pub(crate) mod namespaces;
pub(crate) mod node_settings;
pub(crate) mod nodes;
pub(crate) mod registries;
pub(crate) mod rollouts;
pub(crate) mod secrets;
pub(crate) mod sessions;
pub(crate) mod tokens;
pub mod usage;
pub(crate) mod volume_copies;
pub(crate) mod volume_moves;
pub(crate) mod volumes;
pub(crate) mod workloads;
