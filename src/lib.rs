//! KAT, a systemd-native container orchestrator.
//!
//! The rooms of the library and what may depend on what are described in `ARCHITECTURE.md`. The fuzz
//! targets (`contrib/fuzz`) are built with those alone that read what strangers send.

// Tests make JSON in places; the build without them is what keeps `serde_json::to_vec` and its like away.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

#[cfg(not(fuzzing))]
pub mod agent;
#[cfg(not(fuzzing))]
pub mod api;
/// What goes over sessions.
#[cfg(fuzzing)]
pub mod api {
    pub mod frames;
    pub mod types;
}
pub mod bundle;
#[cfg(not(fuzzing))]
pub mod cli;
#[cfg(not(fuzzing))]
pub mod host;
pub mod json;
#[cfg(not(fuzzing))]
pub mod leader;
pub mod network;
pub mod pki;
pub mod plain;
#[cfg(not(fuzzing))]
pub mod plan;
pub mod pulse;
#[cfg(not(fuzzing))]
pub mod registry;
#[cfg(not(fuzzing))]
pub mod render;
pub mod resource;
#[cfg(not(fuzzing))]
pub mod store;
#[cfg(not(fuzzing))]
pub mod systemd;
pub mod top_level_domains;

/// The version of the program, as `katcall version` and the node's status print it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
