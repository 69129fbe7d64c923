//! Handlers of nodes: reports, settings and usage.

pub(crate) mod node_settings;
pub(crate) mod nodes;
pub mod usage;
