//! The loop that makes the machine match its desired list (ARCHITECTURE.md, invariant 4).
//!
//! Level-triggered: every pass compares what should be with what is. One worker for each workload
//! user does the work, so a slow pull of one holds up no other.

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod cluster;
mod commands;
mod desired_state;
mod disk;
mod etcd;
mod exec;
mod health;
mod images;
mod local_api;
mod network;
mod reporter;
mod secrets;
mod service;
#[cfg(test)]
mod tests;
mod volumes;
mod worker;

pub use crate::{
    cluster::{
        abilities::MachineAbilities,
        identity::MachineIdentity,
        state_stream::{MemberStateSource, StateServers},
    },
    desired_state::{
        desired::{self, DesiredState},
        fence::{FenceMemory, LIST_AGE, PartitionFence},
        store_watch::follow_desired,
        watched_writes::WatchedWrites,
    },
    health::probe::ProbeNetwork,
    images::unused::ImageCare,
    network::{files::NetworkFiles, host_ports::HostListeners},
    reporter::{MachineFacts, ReportSink, Reporter},
    secrets::Secrets,
    service::{
        program,
        supervisor::{DesiredList, Supervisor},
    },
    volumes::{
        Volumes,
        moves::{CopySource, IncomingPieces, OwnVolumes, VolumeMoves},
        removals::VolumeRemovals,
    },
    worker::{
        WorkerTools,
        reports::statuses::Statuses,
        users::{accounts::UserAccounts, machine_options::MachineOptions},
    },
};
