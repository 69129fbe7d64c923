//! The program `kat-agent`: makes this machine match its desired list, reports its state to the
//! leader, and starts the leader's loops and the API. Also `init`, `join`, `reset` and the other
//! commands for administrators.
//!
//! Where to begin:
//! - `service/run.rs`: what `kat-agent run` starts, in order. `service/loops.rs`: the table of
//!   loops.
//! - `desired_state/desired.rs`: [`DesiredState`], the desired list, and when a list is complete.
//! - `service/supervisor.rs`: [`Supervisor`], which passes each workload user's part to its worker.
//! - `worker/mod.rs`: `Worker::pass`, the steps for one workload user.
//! - `worker/instance/converging.rs`: the steps for one instance.
//!
//! Modules:
//! - `service`: command line, loops, paths, status line and bus objects of the service.
//! - `desired_state`: the list that is followed, confirmed and kept, and the fence of a partition.
//! - `worker`, `health`: workload users with their units and instances, and probes of instances.
//! - `volumes`, `secrets`, `images`: prepared on the machine before an instance starts.
//! - `disk`: pressure, eviction, and work on file systems that may hang.
//! - `network`: the files that `kat-net` reads. `reporter`: reports to the leader.
//! - `cluster`: identity, keys, and connections to other machines.
//! - `etcd`: parts that run only on machines with etcd; `member.rs` starts the leader's loops.
//! - `metrics`: what the machine measures of itself. `gpus`: the GPUs that its CDI specs name.
//! - `local_api`, `exec`: the API's listeners on this machine, logs and sessions.
//! - `commands`: `init`, `join`, `check`, `trust`, `reset`, backup and recovery.
//!
//! Rules (ARCHITECTURE.md, The rooms and Invariants):
//! - Nothing is removed because of a list that the store has not confirmed (invariant 4).
//! - Stopping or killing the agent restarts no container (invariant 5).
//! - Every process runs in a unit, and files, users and links without KAT's mark are not touched
//!   (invariant 6).
//! - A worker's pass does not wait for slow operations: they are jobs (`worker/running/jobs.rs`).
//! - Work on file systems that may hang runs in a child process (`disk/foreign_disks.rs`).
//! - No container is started with `podman`: starts, stops and pulls are jobs of systemd.
//! - The leader decides what runs where. `kat-render` has the texts of units.
//!
//! Tests: `src/agent/tests` runs the supervisor and its workers on a fake machine, as root.
//! `tests/simulation` runs the agents of a cluster in virtual time, and `tests/lab` the package on
//! machines.

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod cluster;
mod commands;
mod desired_state;
mod disk;
mod etcd;
mod exec;
mod gpus;
mod health;
mod images;
mod ingress;
mod local_api;
mod metrics;
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
    commands::recovery::prove_epoch,
    desired_state::{
        desired::{self, DesiredState},
        fence::{FenceMemory, LIST_AGE, PartitionFence},
        job_starts::JobStarts,
        kept_position::PositionFile,
        known_epochs::KnownEpochs,
        settings::FollowedSettings,
        store_watch::follow_desired,
        watched_writes::WatchedWrites,
    },
    gpus::ReportedGpus,
    health::probe::ProbeNetwork,
    images::unused::ImageCare,
    ingress::{
        content::{IngressContent, content as ingress_content},
        follow::needs_new_files,
    },
    network::{
        files::NetworkFiles, host_ports::HostListeners, virtual_addresses::grants as address_grants,
    },
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
        unit_state::early_units::{GeneratorError, UnitGenerator},
        users::{accounts::UserAccounts, machine_options::MachineOptions},
    },
};
