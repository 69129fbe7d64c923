//! The loop that makes the machine match its desired list (ARCHITECTURE.md, invariant 4).
//!
//! Level-triggered: every pass compares what should be with what is. One worker for each workload
//! user does the work, so a slow pull of one holds up no other.

pub mod accounts;
mod agents;
mod backoff;
mod beside;
mod bootstrap;
mod bus;
mod carried;
mod copies;
pub mod desired;
mod disks;
mod exec;
pub mod fence;
mod files;
mod follow;
mod forwarding;
pub mod health;
mod holder;
mod host_files;
pub mod host_ports;
pub mod identity;
mod image;
pub mod image_care;
mod image_collector;
mod init;
pub mod inside;
mod join;
pub mod judge;
mod keys;
mod known;
mod limits;
mod listeners;
mod local;
mod log_tail;
mod logins;
mod logs;
mod look;
mod machine;
mod member;
mod membership;
pub mod moves;
mod network_files;
mod notes;
pub mod options;
mod overlay;
pub mod paths;
pub mod program;
pub mod reach;
mod recovery;
mod registries;
pub mod removals;
mod renewal;
mod reporter;
mod reset;
mod restarts;
mod run;
pub mod secrets;
mod service_status;
mod sessions;
mod setup;
mod statuses;
mod stores;
pub mod supervisor;
#[cfg(test)]
mod tests;
pub mod volumes;
pub mod worker;

pub use follow::follow_desired;
pub use network_files::NetworkFiles;
pub use reporter::{MachineFacts, ReportSink, Reporter};
pub use statuses::Statuses;
