//! Safeguards that a run can disable, to verify that the checks find their absence.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::{
    load::{routes::CERTIFICATE, user::NAMESPACE},
    machines::agent_process::OrderRules,
};
use kat_leader::LeaderHandle;
use kat_plan::{ClusterPlan, Snapshot};
use kat_types::{
    assignment::DesiredRun,
    machine::node_labels::{INGRESS_ROLE, ROLE_LABEL},
    resource::{ConcurrencyPolicy, Container, UpdateStrategyType},
    secrets::{SecretKey, SecretRecord},
    store::{
        keys,
        revisions::Stored,
        snapshot::{ObservedReports, WorkloadEntry},
        transaction::{Compare, WriteOperation},
    },
};

/// A safeguard to disable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Without {
    Nothing,
    /// Transactions do not compare the leader's election key.
    Fence,
    /// A new leader does not wait before it calls a machine lost that has not reported to it yet.
    FullTimeout,
    /// An address is released when its instance is asked to stop, not when it has stopped.
    AddressHold,
    /// A machine that is cut off stops nothing.
    Partition,
    /// The planner ignores drains.
    Drain,
    /// Every rollout stops all old instances before any new one starts.
    Surge,
    /// The planner ignores pauses.
    Pause,
    /// Instances that write data count as instances that only read it.
    OneWriter,
    /// The leader believes a machine's claims about instances of other machines.
    OwnInstances,
    /// The planner drops objects that cannot be written.
    Freezing,
    /// A beat counts as if it had been sent when it arrived.
    RequestTime,
    /// A commit confirms as a beat does.
    BeatsAlone,
    /// The fence trusts a list for as long as a beat counts, whatever the age of the server's read.
    SecondHop,
    /// The leader believes that every machine has reported just now.
    Silence,
    /// The leader does not hear which machines do not answer over the overlay.
    OverlayWitnesses,
    /// A file that could not be written is not written again.
    RetriedWrites,
    /// Nobody starts a user's manager that has ended.
    ManagerStart,
    /// Reports do not say their order, so the leader believes the one that arrives last.
    ReportOrder,
    /// An agent that starts does not know which epoch of the store it has followed.
    KeptEpoch,
    /// Agents believe every later epoch of the store.
    EpochProofs,
    /// Every second plan sees the runs of Jobs as the plan before did. That is no safeguard: the
    /// transactions compare what they write.
    FreshRuns,
    /// As [`Self::FreshRuns`], and the transactions do not compare the state and the runs of Jobs.
    RunCompare,
    /// Runs of a Job begin whatever other run is active.
    Forbid,
    /// The planner ignores `startAfter`.
    StartOrder,
    /// The planner leaves routes where they are no longer served.
    RouteWithdrawal,
    /// Every second plan sees the certificate of routes as it was before its last change.
    NewestCertificate,
    /// Transactions compare nothing of accounts, orders and certificates by ACME.
    OrderCompare,
    /// As [`Self::OrderCompare`], and the leader does not see the certificates when it orders others.
    LaterCertificate,
    /// The leader does not see records of DNS that no order needs any more.
    RecordRemoval,
    /// The removal of a record of DNS takes all records of the name.
    OwnRecord,
    /// The gate of a schedule that a machine keeps looks at nothing that is written of earlier runs.
    RunGate,
    /// A leader takes such a schedule back without the machine's last report.
    GiveBack,
    /// It forgets which times machines have decided that gave back schedules of their own.
    Positions,
    /// Packets about virtual addresses have no number.
    AddressNumbers,
    /// The planner takes every machine for an ingress machine.
    IngressHolders,
}

impl Without {
    /// Whether runs have faults of single machines ([`crate::faults::machine_faults`]). Runs without
    /// another safeguard have none, so that they find the same violations as before.
    pub(crate) fn has_machine_faults(self) -> bool {
        matches!(
            self,
            Self::Nothing
                | Self::Silence
                | Self::OverlayWitnesses
                | Self::RetriedWrites
                | Self::ManagerStart
        )
    }

    /// Whether every seed has Jobs, daemons and start order ([`crate::load::added`]).
    pub(crate) fn is_about_the_added_load(self) -> bool {
        matches!(
            self,
            Self::FreshRuns | Self::RunCompare | Self::Forbid | Self::StartOrder
        )
    }
}

impl Without {
    /// Whether every seed has workloads with routes ([`crate::load::routes`]).
    pub(crate) fn is_about_routes(self) -> bool {
        matches!(self, Self::RouteWithdrawal | Self::NewestCertificate)
    }

    /// Whether every seed has virtual addresses ([`crate::load::virtual_addresses`]).
    pub(crate) fn is_about_virtual_addresses(self) -> bool {
        matches!(self, Self::AddressNumbers | Self::IngressHolders)
    }
}

/// All machines have the label for ingress.
pub(crate) fn label_all(snapshot: &mut Snapshot) {
    for node in snapshot.nodes.values_mut() {
        let labels = &mut node.registration.value.labels;
        labels.insert(ROLE_LABEL.to_owned(), INGRESS_ROLE.to_owned());
    }
}

/// A plan deletes no routes of machines.
pub(crate) fn withdraw_no_routes(plan: &mut ClusterPlan) {
    let is_kept = |operation: &WriteOperation| match operation {
        WriteOperation::Delete(key) => {
            !(key.starts_with(keys::NODE_DESIRED) && key.contains("/routes/"))
        }
        WriteOperation::Put(..) | WriteOperation::DeletePrefix(_) => true,
    };
    for change in &mut plan.changes {
        change.operations.retain(is_kept);
    }
    plan.changes.retain(|change| !change.operations.is_empty());
}

/// The certificate of routes, as earlier plans saw it.
#[derive(Default)]
pub(crate) struct EarlierCertificate {
    newest: Option<Stored<Arc<SecretRecord>>>,
    before: Option<Stored<Arc<SecretRecord>>>,
    /// The last plan saw the earlier one.
    was_shown: bool,
}

impl EarlierCertificate {
    /// Shows every second plan the certificate before its last change.
    pub(crate) fn show(&mut self, snapshot: &mut Snapshot) {
        let key = SecretKey::new(NAMESPACE, CERTIFICATE);
        let Some(stored) = snapshot.secrets.get(&key).cloned() else {
            return;
        };
        let known = self.newest.as_ref().map(|newest| newest.revision);
        if known != Some(stored.revision) {
            self.before = self.newest.replace(stored);
        }
        self.was_shown = !self.was_shown;
        if let (true, Some(before)) = (self.was_shown, &self.before) {
            snapshot.secrets.insert(key, before.clone());
        }
    }
}

/// A leader's handle whose snapshots have no accounts by ACME while these are hidden, and the certificates for
/// ingress and the records of no order only if the leader sees them.
pub(crate) fn seen_by_orders(
    handle: &LeaderHandle,
    mut hides_accounts: watch::Receiver<bool>,
    rules: OrderRules,
) -> LeaderHandle {
    let (shown, snapshot) = watch::channel(None);
    let mut newest = handle.snapshot.clone();
    tokio::spawn(async move {
        loop {
            let seen = newest.borrow_and_update().clone();
            let hides = *hides_accounts.borrow_and_update();
            let without = seen.map(|seen| {
                let mut seen = Snapshot::clone(&seen);
                if hides {
                    seen.acme_accounts.clear();
                }
                if !rules.sees_certificates {
                    seen.ingress_certificates.clear();
                }
                if !rules.sees_old_records {
                    hide_old_records(&mut seen);
                }
                Arc::new(seen)
            });
            shown.send_replace(without);
            let changed = tokio::select! {
                changed = newest.changed() => changed,
                changed = hides_accounts.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    });
    LeaderHandle {
        snapshot,
        ..handle.clone()
    }
}

/// The snapshot has the records of DNS that orders need, and no others.
fn hide_old_records(snapshot: &mut Snapshot) {
    let orders = snapshot.acme_orders.values();
    let needed = orders.filter_map(|order| order.value.state.record_value().map(str::to_owned));
    let needed: BTreeSet<String> = needed.collect();
    snapshot.acme_dns.retain(|text, _| needed.contains(text));
}

/// The transactions of a plan compare nothing of Jobs.
pub(crate) fn compare_no_runs(plan: &mut ClusterPlan) {
    for change in &mut plan.changes {
        change.conditions.retain(|condition| {
            let (Compare::ModRevision(key, _) | Compare::CreateRevision(key, _)) = condition;
            !key.starts_with(keys::JOBS)
        });
    }
}

/// Every Job allows runs beside each other.
pub(crate) fn overlap_runs(snapshot: &mut Snapshot) {
    for entry in snapshot.workloads.values_mut() {
        if let Ok(parsed) = &mut Arc::make_mut(entry).parsed
            && let Some(job) = &mut Arc::make_mut(parsed).job
        {
            job.concurrency_policy = ConcurrencyPolicy::Allow;
        }
    }
}

/// Machines that give a schedule back seem to have done so.
pub(crate) fn take_back_at_once(snapshot: &mut Snapshot) {
    snapshot.instances.retain(|_, entry| {
        let bound = entry.assignment.value.bound.as_ref();
        bound.is_none_or(|bound| !bound.closed)
    });
}

/// Once no machine keeps a schedule of its own, it is forgotten which times such machines have decided.
pub(crate) fn forget_positions(snapshot: &mut Snapshot) {
    for entry in snapshot.jobs.values_mut() {
        let Some(state) = &mut entry.state else {
            continue;
        };
        if state.value.keepers.is_empty() {
            state.value.positions.clear();
            entry
                .runs
                .retain(|_, run| !run.value.is_by_machines() || run.value.is_active());
        }
    }
}

/// No workload starts after another one.
pub(crate) fn start_at_once(snapshot: &mut Snapshot) {
    for entry in snapshot.workloads.values_mut() {
        if let Ok(parsed) = &mut Arc::make_mut(entry).parsed {
            Arc::make_mut(parsed).workload.spec.start_after.clear();
        }
    }
}

/// The reports of every machine seem to have arrived just now.
pub(crate) fn hear_all(observed: &mut ObservedReports) {
    for reported in observed.reports.values_mut() {
        reported.age = Duration::ZERO;
    }
}

/// No report says which machines do not answer over the overlay.
pub(crate) fn hear_no_witness(observed: &mut ObservedReports) {
    for reported in observed.reports.values_mut() {
        let report = Arc::make_mut(&mut reported.report);
        report.overlay_network.peers.clear();
    }
}

pub(crate) fn only_reads(container: &mut Container) {
    for mount in &mut container.volume_mounts {
        mount.read_only = true;
    }
}

pub(crate) fn roll_out_badly(entry: &mut WorkloadEntry, without: Without) {
    if without == Without::Pause {
        entry.meta.value.paused = false;
    } else if let Ok(parsed) = &mut entry.parsed {
        let strategy = &mut Arc::make_mut(parsed).workload.spec.update_strategy;
        strategy.kind = UpdateStrategyType::Simultaneous;
    }
}

/// Releases the address of an instance as soon as the instance is asked to stop.
pub(crate) fn give_back_early(plan: &mut ClusterPlan) {
    for change in &mut plan.changes {
        let stopping = change.operations.iter().filter_map(|operation| {
            let WriteOperation::Put(key, value) = operation else {
                return None;
            };
            key.starts_with(keys::NODE_DESIRED).then_some(())?;
            let assignment: kat_types::assignment::Assignment =
                serde_json::from_slice(value).ok()?;
            (assignment.wanted == DesiredRun::Stopped).then_some(assignment.instance)
        });
        let early: Vec<_> = stopping
            .map(|instance| WriteOperation::Delete(keys::allocation(&instance)))
            .collect();
        change.operations.extend(early);
    }
}
