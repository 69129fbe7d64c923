//! The leader's decisions. Pure: a snapshot and a time in, a list of changes out.
//!
//! Architecture invariant: no input or output, no clock, no await (ARCHITECTURE.md, invariant 1).

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod draft;
mod etcd;
mod event;
mod images;
mod instances;
mod logins;
mod nodes;
mod quota;
mod rollout;
mod scheduling;
mod secrets;
mod service;
mod services;
mod snapshot;
mod status;
mod unwritable_objects;
mod volumes;

use jiff::Timestamp;

use kat_types::store::snapshot::ObservedReports;

pub use crate::{
    etcd::{members::*, rotation::*, store_epoch::*, upkeep::*},
    instances::{
        address::*,
        identifier::*,
        measure::{MAX_ASSIGNMENT, largest_assignment},
        user_index::*,
    },
    nodes::{admission::*, endpoints::*},
    scheduling::{
        host_ports::{HOST_PORT_DATA_PATH, reserved_ports},
        schedule::*,
    },
    services::service_addresses::BALANCING_DATA_PATH,
    unwritable_objects::{NotWritable, NotWritableCause, WrittenObject},
    volumes::moves::{
        is_used_meanwhile, moves_together, receiver_phase, stopped_move, why_it_does_not_fit,
        without_move,
    },
};
pub use draft::{ClusterPlan, PlannedTransaction};
pub use event::*;
pub use logins::logins_for;
pub use quota::*;
pub use rollout::{in_words as rollout_in_words, kept_generations::outdated_generations};
pub use secrets::{
    ResealingError, ResealingStep, SnapshotSealing, another_data_key, behind_secret, lacks_secret,
    recovery_key_unchanged, reseal_batch, reseal_for_recovery_key, unsealed_by_present_key,
    users_of_secret,
};
pub use snapshot::*;
pub use volumes::{VolumePlacement, users_of};

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
    draft.services = crate::services::service_addresses::give_addresses(&mut draft, &statuses);
    draft.host_ports = crate::scheduling::host_ports::give_numbers(&mut draft);
    let mut machines = crate::scheduling::machines::Machines::new(&draft, &statuses);
    let around = service::ClusterView {
        statuses: &statuses,
        losses: &losses,
        leading_for: observed.leading_for,
    };
    let workloads = draft.count();
    for (key, entry) in &snapshot.workloads {
        service::plan_workload(&mut draft, &mut machines, key, entry, around);
    }
    let services = std::mem::take(&mut draft.services);
    let callers = draft.count();
    crate::services::service_addresses::plan_balance(&mut draft, &statuses, &services);
    crate::services::dns::plan_dns(&mut draft, &statuses, &services);
    // These changes may need several transactions, and the leader may die between two: instances
    // being stopped have lost their callers by then.
    draft.put_before(workloads, callers);
    crate::volumes::moves::plan_moves(&mut draft, &statuses);
    crate::volumes::removals::plan_removals(&mut draft, &statuses);
    images::plan_images(&mut draft, &statuses);
    crate::nodes::endpoints::plan_reach(&mut draft, &heard);
    crate::nodes::endpoints::plan_endpoints(&mut draft);
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
