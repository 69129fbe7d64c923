//! The loop that makes the machine match its desired list (ARCHITECTURE.md, invariant 4).
//!
//! Level-triggered: every pass compares what should be with what is. One worker for each workload
//! user does the work, so a slow pull of one holds up no other.

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod cluster;
mod commands;
pub mod desired_state;
mod disk;
mod etcd;
mod exec;
pub mod health;
pub mod images;
mod local_api;
pub mod network;
mod reporter;
pub mod secrets;
pub mod service;
#[cfg(test)]
mod tests;
pub mod volumes;
pub mod worker;

pub use crate::{
    desired_state::{store_watch::follow_desired, watched_writes::WatchedWrites},
    network::files::NetworkFiles,
    worker::reports::statuses::Statuses,
};
pub use reporter::{MachineFacts, ReportSink, Reporter};
