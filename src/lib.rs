//! KAT, a systemd-native container orchestrator.
//!
//! The rooms of the library and what may depend on what are described in `ARCHITECTURE.md`.

pub mod agent;
pub mod api;
pub mod bundle;
pub mod cli;
pub mod host;
pub mod leader;
pub mod network;
pub mod pki;
pub mod plan;
pub mod pulse;
pub mod render;
pub mod resource;
pub mod store;
pub mod systemd;

/// The version of the program, as `katcall version` and the node's status print it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
