//! The leader's decisions. Pure: a snapshot and a time in, a list of changes out.
//!
//! Architecture invariant: no input or output, no clock, no await (ARCHITECTURE.md, invariant 1).

mod address;
mod admission;
mod assignment;
mod assignment_words;
mod balance;
mod bound_paths;
mod containers;
mod converge;
mod create;
mod devices;
mod dns;
mod draft;
mod drain;
mod endpoints;
mod event;
mod frozen;
mod host_ports;
mod identifier;
mod image_record;
mod images;
mod index;
mod leaving;
mod logins;
mod loss;
mod machines;
mod measure;
mod members;
mod moves;
mod node;
mod quota;
mod records;
mod removals;
mod rollback;
mod rollout;
mod schedule;
mod secrets;
mod service;
mod serving;
mod slot;
mod snapshot;
mod spread;
mod status;
#[cfg(test)]
mod tests;
mod turn;
mod upkeep;
mod volumes;

use jiff::Timestamp;

pub use address::*;
pub use admission::*;
pub use assignment::*;
pub use assignment_words::*;
pub use balance::{BALANCING_DATA_PATH, ServiceAddress, ServiceBalance, ServiceEntry, ServicePort};
pub use bound_paths::*;
pub use containers::main_unit;
pub use draft::{Change, Plan};
pub use endpoints::*;
pub use event::*;
pub use frozen::{NotWritable, NotWritableCause, WrittenObject};
pub use host_ports::{
    HOST_PORT_DATA_PATH, HostPortNumber, HostPortNumbers, host_port_statuses, reserved_ports,
};
pub use identifier::*;
pub use images::{KeptByMachine, KeptImages, KeptOfUser};
pub use index::*;
pub use logins::{LoginRecord, logins_for, open_logins};
pub use loss::fence_after;
pub use measure::{MAX_ASSIGNMENT, largest_assignment};
pub use members::*;
pub use moves::{
    KeptCopy, MoveRecord, VolumeMove, is_assigned, is_used_meanwhile, moves_together, stays_moved,
    stopped_move, taker_says, why_it_does_not_fit,
};
pub use node::reported_status;
pub use quota::*;
pub use records::*;
pub use removals::{RemovalRecord, removal_id};
pub use rollout::in_words as rollout_in_words;
pub use schedule::*;
pub use secrets::{
    AssignedSecrets, Purpose, Sealing, SealingError, SealingKeyRecord, SecretKey, SecretKeyRecord,
    SecretRecord, SecretUse, SecretVersion, behind_secret, lacks_secret, secret_uses, secrets_of,
    users_of_secret,
};
pub use serving::{Part, Parts};
pub use snapshot::*;
pub use upkeep::*;
pub use volumes::{Held, VolumeKey, users_of};

/// What every leader seeds its plans with, and who looks ahead: so what is shown is what then comes.
pub const SEED: u64 = 0;

/// Decides what to write now.
///
/// The same snapshot, reports, time and seed give the same plan. The changes are to be committed
/// in their order, each with the leader's fence; after that the caller waits until a snapshot
/// shows them before it plans again.
///
/// What does not fit into one transaction is not among the changes: its object is left as it is, and the plan is
/// made anew without it.
pub fn plan(snapshot: &Snapshot, observed: &Observed, now: Timestamp, seed: u64) -> Plan {
    let mut frozen = frozen::Frozen::default();
    loop {
        let mut plan = plan_without(snapshot, observed, (now, seed), &frozen);
        // Each time it goes round there is one object more to leave out.
        if frozen.extend(&plan.frozen) {
            continue;
        }
        if !plan.frozen.is_empty() {
            plan.changes = frozen::without_the_unwritable(plan.changes);
        }
        plan.frozen = frozen.into_list();
        return plan;
    }
}

/// One plan that leaves these objects as they are; in its `frozen` stand those that have to be left besides.
fn plan_without(
    snapshot: &Snapshot,
    observed: &Observed,
    (now, seed): (Timestamp, u64),
    frozen: &frozen::Frozen,
) -> Plan {
    let mut draft = draft::Draft::new(snapshot, now, seed);
    draft.frozen = frozen.clone();
    if leaving::plan_leaving(&mut draft) {
        return draft.finish();
    }
    let heard = loss::heard(snapshot, observed, now);
    let losses = loss::Losses::of(snapshot, &heard, now);
    let statuses = node::plan_nodes(&mut draft, &heard, &losses);
    draft.services = balance::give_addresses(&mut draft, &statuses);
    draft.host_ports = host_ports::give_numbers(&mut draft);
    let mut machines = machines::Machines::new(&draft, &statuses);
    let around = service::Around {
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
    balance::plan_balance(&mut draft, &statuses, &services);
    dns::plan_dns(&mut draft, &statuses, &services);
    // Not all may fit into one transaction, and the leader may die between two: what is to stop has lost
    // its callers by then.
    draft.put_before(workloads, callers);
    moves::plan_moves(&mut draft, &statuses);
    removals::plan_removals(&mut draft, &statuses);
    images::plan_images(&mut draft, &statuses);
    endpoints::plan_reach(&mut draft, &heard);
    endpoints::plan_endpoints(&mut draft);
    plan_namespaces(&mut draft);
    event::plan_expiry(&mut draft);
    draft.finish()
}

/// A namespace that is to go goes when its last workload is gone.
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
        let key = crate::store::keys::namespace(name);
        let secrets = crate::store::keys::secret(&format!("{name}/"));
        let unchanged = crate::store::Compare::ModRevision(key.clone(), stored.revision);
        let mut group = draft::Group::default();
        group.delete(key);
        group.delete_prefix(secrets);
        group.delete_prefix(crate::store::keys::logins(name));
        draft.commit(group, format!("namespace {name} is gone"), vec![unchanged]);
    }
}
