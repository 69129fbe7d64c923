//! Support for tests and benchmarks: fakes, conformance suites that a fake and the real component
//! both pass, and the JSON Schema of `*.kat` files. No shipped program links this crate.

mod kat_files;
mod memory;
pub mod state_stream;
pub mod systemd;

pub use kat_files::json_schema;
pub use memory::{CALL_TIMEOUT, MemoryStore, WATCH_TIMEOUT};
