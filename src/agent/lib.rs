//! The loop that makes the machine match its desired list (ARCHITECTURE.md, invariant 4).
//!
//! Level-triggered: every pass compares what should be with what is. One worker for each workload
//! user does the work, so a slow pull of one holds up no other.

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod bus;
pub mod cluster;
mod commands;
pub mod desired;
mod disk;
mod etcd;
mod exec;
pub mod fence;
pub mod health;
pub mod host_ports;
pub mod images;
mod listeners;
mod logs;
mod network_files;
mod overlay;
pub mod paths;
pub mod program;
mod reporter;
mod run;
pub mod secrets;
mod service_status;
mod standalone_api;
mod store_watch;
pub mod supervisor;
#[cfg(test)]
mod tests;
pub mod volumes;
mod watched_writes;
pub mod worker;

pub use crate::store_watch::follow_desired;
pub use crate::worker::statuses::Statuses;
pub use network_files::NetworkFiles;
pub use reporter::{MachineFacts, ReportSink, Reporter};
pub use watched_writes::WatchedWrites;
