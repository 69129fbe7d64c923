//! What tests and measurements stand on: fakes, suites that a fake and the real part both pass, and the schema of
//! `*.kat` files. No program links it.

mod kat_files;
mod memory;
pub mod systemd;

pub use kat_files::json_schema;
pub use memory::{CALL_TIMEOUT, MemoryStore, WATCH_TIMEOUT};
