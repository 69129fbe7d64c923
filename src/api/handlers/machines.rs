//! Handlers of nodes: reports, the state stream, settings and usage.

pub mod measurements;
pub(crate) mod node_settings;
pub(crate) mod nodes;
pub(crate) mod state_stream;
pub mod usage;
