//! Support for tests: fakes, suites that a fake and the real component both pass, and the JSON
//! Schema of `*.kat` files.
//!
//! Where to begin:
//! - `memory/mod.rs`: [`MemoryStore`], a store with etcd's rules and with faults for each client.
//! - `systemd/fake/mod.rs`: [`systemd::fake::FakeManager`], a systemd manager in memory.
//! - `systemd/conformance.rs`: [`systemd::conformance::run`], what every manager has to do.
//! - `state_stream.rs`: [`state_stream::conforms`], what every source of the state stream has to
//!   do.
//! - `kat_files.rs`: [`json_schema`], compared with `contrib/schema`.
//!
//! `systemd/introspection.rs` reads D-Bus introspection XML, to compare code, contract and systemd.
//!
//! Rules:
//! - No program links this crate: other crates have it in `[dev-dependencies]` only.
//! - A fake behaves as its suite demands, and the real component passes the same suite. So a new
//!   behaviour of a fake is a new requirement of the suite.
//! - Waits use tokio's clock, so that tests and the simulation can pause it (invariant 9).
//!
//! Tests: `memory/tests.rs`, `systemd/tests.rs`, `tests/store_conformance` and
//! `tests/systemd_real.rs`.

mod kat_files;
mod memory;
pub mod state_stream;
pub mod systemd;

pub use kat_files::json_schema;
pub use memory::{CALL_TIMEOUT, MemoryStore, WATCH_TIMEOUT};
