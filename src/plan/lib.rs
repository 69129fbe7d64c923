//! The leader's decisions: a snapshot, the agents' reports, a time and a seed in, a list of changes
//! out.
//!
//! Where to begin:
//! - `lib.rs`: [`plan()`], whose body calls the parts of a plan in their order.
//! - `snapshot.rs`: [`Snapshot`], the input. `draft.rs`: [`ClusterPlan`], the output, and `Draft`,
//!   the state while a plan is made.
//! - `service.rs`: the plan of one workload.
//! - `rollout/converge.rs`: the three steps of a rollout: classify, decide, apply.
//! - `scheduling/schedule.rs`: the choice of a machine.
//!
//! Modules:
//! - `service`, `status`, `rollout`: a workload, its slots, updates and status.
//! - `instances`, `scheduling`: id, address and user of a new instance, and its machine.
//! - `jobs`: schedules and runs of Jobs.
//! - `start_order`: what a workload waits for before it starts.
//! - `nodes`: admission, loss, drain, deletion and status of machines.
//! - `services`: service addresses, DNS records, and which instances serve.
//! - `volumes`, `secrets`, `logins`, `images`: data, and what an instance needs on its machine.
//! - `ingress`: who has which host, what ingress machines serve, and certificates.
//! - `etcd`: members, upkeep, replacement of authorities, and the store's epoch.
//! - `quota`, `event`, `unwritable_objects`: bounds of what is written.
//!
//! Rules:
//! - No input or output, no clock, no `async`, no random number: the same input gives the same
//!   changes (invariant 1). Ties are broken by the seed and by ordered maps.
//! - A plan never sees a store. It only returns operations, in groups of which each is safe alone.
//! - Nothing is remembered between plans but what is stored and reported, so that a new leader
//!   continues from there.
//! - Two writers never share data (invariant 11).
//! - Every state that a user can wait in has a reason from `kat_types::reason` (invariant 7).
//! - A machine with a forged report harms only itself
//!   (`src/plan/tests/machines/forged_reports.rs`).
//! - `kat-pki` is used for sealing and for verifiers of the store's epoch, not for connections.
//!
//! Tests: `src/plan/tests` simulates a cluster and checks its `invariants.rs` between all changes.
//! `tests/simulation` runs plans with the real leader and agents.

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod draft;
mod etcd;
mod event;
mod images;
mod ingress;
mod instances;
mod jobs;
mod logins;
mod nodes;
mod quota;
mod rollout;
mod scheduling;
mod secrets;
mod service;
mod services;
mod snapshot;
mod start_order;
mod status;
mod unwritable_objects;
mod volumes;

use jiff::Timestamp;

use kat_types::store::snapshot::ObservedReports;

pub use crate::{
    etcd::{members::*, readers::*, rotation::*, store_epoch::*, upkeep::*},
    instances::{
        address::*,
        identifier::*,
        measure::{MAX_ASSIGNMENT, largest_assignment},
        user_index::*,
    },
    nodes::{
        admission::*,
        endpoints::*,
        loss_timeout::{AwaitedLossTimeout, awaited_loss_timeout, too_slow_for},
    },
    scheduling::{
        host_ports::{HOST_PORT_DATA_PATH, SOURCES_DATA_PATH, has_allowed_sources, reserved_ports},
        schedule::*,
    },
    services::{
        aliases::{NameConflict, NameUse, aliases_of, name_conflict},
        service_addresses::BALANCING_DATA_PATH,
        virtual_addresses::{HolderFitness, address_holding_machines, choose_holder},
    },
    unwritable_objects::{NotWritable, NotWritableCause, WrittenObject},
    volumes::moves::{
        is_used_meanwhile, moves_together, receiver_phase, stopped_move, why_it_does_not_fit,
        without_move,
    },
};
pub use draft::{ClusterPlan, PlannedTransaction, RefusedPlace, SchedulingOutcome};
pub use event::*;
pub use ingress::{
    AcmeAccount, AcmeFailure, AcmeFailureKind, AcmeOrders, AcmeQuestion, AcmeReply, AcmeRequest,
    AcmeStep, CertificateStep, CheckedName, ClaimConflict, DnsAccess, DnsKey, EabAccount,
    INGRESS_GRACE_SECONDS, IssuingError, PlannedRoute, ProofKind, RecordCheck, RouteIssuer,
    RouteTrouble, TsigHash, WorkloadClaims, auth_target, claim_conflict, claims_of_stored,
    ingress_machines, internal_domains, next_certificate, order_in_words, outside_target,
    planned_routes, serving_conflict, uses_acme, uses_own_authority,
};
pub use jobs::{ON_TIME, Schedule, ScheduleError, new_run, start_of_run};
pub use logins::logins_for;
pub use quota::*;
pub use rollout::slots::{DaemonMachine, machines_of_daemon};
pub use rollout::{in_words as rollout_in_words, kept_generations::outdated_generations};
pub use secrets::{
    ResealingError, ResealingStep, SnapshotSealing, another_data_key, behind_secret, lacks_secret,
    recovery_key_unchanged, reseal_batch, reseal_for_recovery_key, unsealed_by_present_key,
    users_of_secret,
};
pub use snapshot::*;
pub use start_order::{StartOrder, start_order_warnings};
pub use volumes::{VolumePlacement, is_forgotten, is_missing, users_of};

/// The seed of every leader's plans and of previews: a preview shows what the leader then does.
pub const SEED: u64 = 0;

/// Decides what to write now.
///
/// The same snapshot, reports, time and seed give the same plan. The caller commits the changes in
/// their order, each with the leader's fence, and plans again only when a snapshot shows them.
///
/// A change that does not fit into one transaction is left out: its object is left as it is, and
/// the plan is repeated without the change.
pub fn plan(
    snapshot: &Snapshot,
    observed: &ObservedReports,
    now: Timestamp,
    seed: u64,
) -> ClusterPlan {
    let mut frozen = crate::unwritable_objects::FrozenObjects::default();
    loop {
        let mut plan = plan_without(snapshot, observed, (now, seed), &frozen);
        // Each iteration leaves out at least one more object.
        if frozen.extend(&plan.frozen) {
            continue;
        }
        if !plan.frozen.is_empty() {
            plan.changes = crate::unwritable_objects::without_the_unwritable(plan.changes);
        }
        plan.frozen = frozen.into_list();
        return plan;
    }
}

/// One plan that leaves the `frozen` objects as they are; the plan's `frozen` lists those that have
/// to be left as well.
fn plan_without(
    snapshot: &Snapshot,
    observed: &ObservedReports,
    (now, seed): (Timestamp, u64),
    frozen: &crate::unwritable_objects::FrozenObjects,
) -> ClusterPlan {
    let mut draft = draft::Draft::new(snapshot, now, seed);
    draft.frozen = frozen.clone();
    if crate::nodes::leaving::plan_leaving(&mut draft) {
        return draft.finish();
    }
    let heard = crate::nodes::node_loss::last_reports(snapshot, observed, now);
    let losses = crate::nodes::node_loss::LostMachines::of(snapshot, &heard, now);
    if let Some(left) = losses.settles_in {
        draft.wake(left);
    }
    let statuses = crate::nodes::status::plan_nodes(&mut draft, &heard, &losses);
    let services = crate::services::service_addresses::give_addresses(&mut draft, &statuses);
    let host_ports = crate::scheduling::host_ports::give_numbers(&mut draft);
    let confirmed = crate::services::isolation::confirmed_rules(snapshot, &statuses, &heard);
    let mut machines = crate::scheduling::machines::Machines::new(&draft, &statuses);
    let around = service::ClusterView {
        statuses: &statuses,
        losses: &losses,
        leading_for: observed.leading_for,
        services: &services,
        host_ports: &host_ports,
        confirmed: confirmed.as_ref(),
    };
    let workloads = draft.count();
    for (key, entry) in &snapshot.workloads {
        service::plan_workload(&mut draft, &mut machines, key, entry, around);
    }
    let callers = draft.count();
    crate::services::service_addresses::plan_balance(&mut draft, &statuses, &services, &host_ports);
    crate::services::dns::plan_dns(&mut draft, &statuses, &services);
    // These changes may need several transactions, and the leader may die between two: instances
    // being stopped have lost their callers by then.
    draft.put_before(workloads, callers);
    crate::volumes::moves::plan_moves(&mut draft, &statuses);
    crate::volumes::removals::plan_removals(&mut draft, &statuses);
    images::plan_images(&mut draft, &statuses);
    ingress::plan_routes(&mut draft);
    crate::services::virtual_addresses::plan_virtual_addresses(&mut draft, &statuses, &heard);
    crate::nodes::endpoints::plan_reach(&mut draft, &heard);
    crate::nodes::endpoints::plan_endpoints(&mut draft);
    crate::nodes::loss_timeout::plan_loss_timeout(&mut draft, &heard);
    crate::services::isolation::plan_access(&mut draft);
    crate::services::isolation::plan_released(&mut draft, confirmed.as_ref());
    plan_namespaces(&mut draft);
    event::plan_expiry(&mut draft);
    draft.finish()
}

/// Deletes a namespace that is being deleted once its last workload is gone.
fn plan_namespaces(draft: &mut draft::Draft<'_>) {
    let snapshot = draft.snapshot;
    for (name, stored) in snapshot
        .namespaces
        .iter()
        .filter(|(_, stored)| stored.value.deleting)
    {
        if snapshot.workloads.keys().any(|key| key.namespace == *name) {
            continue;
        }
        let key = kat_types::store::keys::namespace(name);
        let secrets = kat_types::store::keys::secret(&format!("{name}/"));
        let unchanged =
            kat_types::store::transaction::Compare::ModRevision(key.clone(), stored.revision);
        let mut group = draft::OperationGroup::default();
        group.delete(key);
        group.delete_prefix(secrets);
        group.delete_prefix(kat_types::store::keys::logins(name));
        draft.commit(group, format!("namespace {name} is gone"), vec![unchanged]);
    }
}
