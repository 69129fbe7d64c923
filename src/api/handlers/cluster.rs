//! Handlers of the cluster itself: members, tokens, registries, isolation and metrics.

pub(crate) mod authorities;
pub(crate) mod config;
pub(crate) mod configuration;
pub(crate) mod events;
pub(crate) mod exposed_values;
mod ingress_authority;
pub(crate) mod isolation;
pub(crate) mod joining;
pub(crate) mod membership;
pub(crate) mod metrics;
pub(crate) mod overview;
pub(crate) mod registries;
pub(crate) mod tokens;
pub(crate) mod virtual_addresses;
