//! The leader: the election, the loop that feeds `kat-plan` and commits its changes, the care for
//! etcd, and the API's access to all of that.
//!
//! Where to begin:
//! - `run.rs`: [`start`] and the loop: campaign, plan, commit, wait until the snapshot shows it.
//! - `snapshot_builder.rs`: [`SnapshotBuilder`], from keys of the store to a `kat_plan::Snapshot`.
//! - `handle.rs`: [`LeaderHandle`], which the API and the other loops hold, and [`AgentReports`].
//! - `rehearsal.rs`: [`Rehearsal`], which simulates a change for a preview.
//!
//! Modules:
//! - `run`, `planning`: the loop, and whether it makes plans and can write them.
//! - `snapshot_builder`, `handle`, `rehearsal`: the input of plans, and the API's access.
//! - `report_order`: which of a machine's reports is newer.
//! - `members`, `member_events`, `clients`, `etcd_status`, `upkeep`: etcd's members and their
//!   files.
//! - `rotation`: the replacement of authorities and of the recovery key, step by step.
//! - `acme`: certificates by ACME: the loop around `kat_plan::AcmeOrders`, the questions to the server
//!   and the check of names.
//! - `backup`: scheduled backups. `takeover`: a lost leader is deposed before its lease ends.
//!
//! Rules:
//! - Each transaction of the leader compares its election key, and a plan also compares and writes
//!   `planned` (invariant 2). Plans are written with `kat_store::fenced`.
//! - What no transaction can fence, such as a step of etcd's members, is safe to do twice and on
//!   two machines.
//! - Decisions are made in `kat-plan`, and this crate only carries them out.
//! - Reports stay in memory, and heartbeats do not reach etcd (invariant 3).
//! - A stored object that cannot be read is left out of the snapshot and hides no other one.
//! - Waits use tokio's clock; the wall clock is passed in (invariant 9).
//! - The crate calls no agent and knows neither systemd nor keys of authorities: [`Backups`] and
//!   [`AuthorityMaker`] are traits that the agent implements.
//!
//! Tests are beside the code, with the store in memory. `snapshot_builder/stored.rs` reads
//! `tests/stored`. `tests/members` uses real etcds, and `tests/simulation` the whole loop; targets
//! `acme-answer` and `acme-dns` of `contrib/fuzz`.

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod acme;
mod backup;
mod clients;
mod etcd_status;
mod handle;
mod member_events;
mod members;
mod planning;
mod rehearsal;
mod report_order;
mod rotation;
mod run;
mod snapshot_builder;
mod takeover;
mod upkeep;

#[cfg(any(test, fuzzing))]
pub use acme::fuzz;

pub use crate::snapshot_builder::*;
pub use acme::{
    AcmeServer, DnsHooks, HookChange, HookFailure, InstantAcme, LONGEST_HOOK,
    OrderedCertificatesConfig, keep_certificates,
};
pub use backup::{Backups, BackupsConfig, keep_backups};
pub use clients::{MemberClients, MemberOptions};
pub use handle::*;
pub use members::{EtcdMembers, MembersConfig, keep_members};
pub use planning::{PlanningCounts, PlanningHealth, PlanningReport};
pub use rehearsal::{Rehearsal, RehearsalResult};
pub use rotation::{AuthorityMaker, NewAuthority, RotationConfig, keep_authorities};
pub use run::{LeaderConfig, Planner, start, start_with};
pub use takeover::{TakeoverConfig, watch_over};
pub use upkeep::{EtcdUpkeep, StoreHealth, StoreReport};
