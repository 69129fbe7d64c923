//! Rehearsal of a change: runs the leader's own plan on a copy of the store, with simulated
//! machines that follow their assignments. Nothing is written and no machine is called.
//!
//! A machine that answers starts its assigned instances at once, and they are healthy. A machine
//! that does not answer does nothing, and failed instances stay failed. Time stands still: steps
//! that wait for a delay are not seen.

use std::{collections::BTreeSet, ops::Bound, sync::Arc, time::Duration};

use jiff::Timestamp;

use super::SnapshotBuilder;
use kat_plan as plan;
use kat_plan::{Snapshot, SnapshotSealing};
use kat_store::{Listing, mirror::MirrorEntries};
use kat_types::{
    api::{Health, InstancePhase, InstanceReport, NodeReport},
    assignment::DesiredRun,
    store::{
        snapshot::ObservedReports,
        transaction::{KeyValue, WriteOperation},
    },
};

/// Maximum number of plans in a row. A replacement takes two or three.
const ROUNDS: usize = 256;

/// A copy of the store on which changes are tried.
pub struct Rehearsal {
    entries: MirrorEntries,
    revision: i64,
    builder: SnapshotBuilder,
}

/// How a rehearsal ended.
pub struct RehearsalResult {
    /// The state after all changes.
    pub snapshot: Snapshot,
    /// True if nothing was left to do; false if there were more plans than `ROUNDS`.
    pub complete: bool,
}

impl Rehearsal {
    /// Starts from everything below [`kat_types::store::keys::ROOT`].
    pub fn new(listing: Listing) -> Self {
        let entries = listing.items.into_iter();
        Self {
            entries: entries
                .map(|item| (Arc::from(item.key.as_str()), Arc::new(item)))
                .collect(),
            revision: listing.revision,
            builder: SnapshotBuilder::with_sealing(SnapshotSealing::Rehearsed),
        }
    }

    /// The present state of the copy.
    pub fn snapshot(&mut self) -> Snapshot {
        self.builder.build(&self.entries, self.revision)
    }

    /// Applies a transaction's operations at the next revision.
    pub fn write(&mut self, operations: &[WriteOperation]) {
        self.revision += 1;
        for operation in operations {
            match operation {
                WriteOperation::Put(key, value) => self.put(key, value),
                WriteOperation::Delete(key) => drop(self.entries.remove(key.as_str())),
                WriteOperation::DeletePrefix(prefix) => self.delete_below(prefix),
            }
        }
    }

    fn put(&mut self, key: &str, value: &[u8]) {
        let before = self.entries.get(key);
        let entry = KeyValue {
            key: key.to_owned(),
            value: value.to_vec(),
            mod_revision: self.revision,
            create_revision: before.map_or(self.revision, |before| before.create_revision),
        };
        self.entries.insert(Arc::from(key), Arc::new(entry));
    }

    fn delete_below(&mut self, prefix: &str) {
        let bounds = (Bound::Included(prefix), Bound::Unbounded);
        let keys = self.entries.range::<_, str>(bounds).map(|(key, _)| key);
        let keys = keys.take_while(|key| key.starts_with(prefix)).cloned();
        for key in keys.collect::<Vec<_>>() {
            self.entries.remove(&key);
        }
    }

    /// Plans, and lets the machines follow, until nothing is left to do.
    pub fn play(self, observed: ObservedReports, now: Timestamp) -> RehearsalResult {
        self.play_within(ROUNDS, observed, now)
    }

    fn play_within(
        mut self,
        rounds: usize,
        mut observed: ObservedReports,
        now: Timestamp,
    ) -> RehearsalResult {
        let mut snapshot = self.snapshot();
        for _ in 0..rounds {
            let planned = plan::plan(&snapshot, &observed, now, plan::SEED);
            for change in &planned.changes {
                self.write(&change.operations);
            }
            snapshot = self.snapshot();
            if !obey(&snapshot, &mut observed) && planned.changes.is_empty() {
                return RehearsalResult {
                    snapshot,
                    complete: true,
                };
            }
        }
        RehearsalResult {
            snapshot,
            complete: false,
        }
    }
}

/// Every machine that answers follows its list of assignments. Returns true if a report changed.
fn obey(snapshot: &Snapshot, observed: &mut ObservedReports) -> bool {
    let mut changed = false;
    let timeout = snapshot.cluster.spec.node_loss_timeout_seconds;
    let timeout = Duration::from_secs(timeout.into());
    for (node, reported) in &mut observed.reports {
        if reported.age >= timeout {
            continue;
        }
        let mut report = NodeReport::clone(&reported.report);
        follow(snapshot, node, &mut report);
        if report != *reported.report {
            reported.report = Arc::new(report);
            changed = true;
        }
    }
    changed
}

fn follow(snapshot: &Snapshot, node: &str, report: &mut NodeReport) {
    let list = snapshot.instances.iter();
    let list: Vec<_> = list.filter(|(_, entry)| entry.node == node).collect();
    let listed: BTreeSet<&str> = list.iter().map(|(id, _)| id.as_str()).collect();
    let instances = &mut report.workload_instances;
    instances.retain(|instance| listed.contains(instance.instance_id.as_str()));
    for (id, entry) in list {
        let assignment = &entry.assignment.value;
        let place = instances
            .iter()
            .position(|instance| instance.instance_id == *id);
        let place = place.unwrap_or_else(|| {
            instances.push(InstanceReport {
                workload_name: assignment.workload.clone(),
                namespace: assignment.namespace.clone(),
                instance_id: id.clone(),
                ..InstanceReport::default()
            });
            instances.len() - 1
        });
        if let Some(instance) = instances.get_mut(place) {
            do_as_told(assignment.wanted, instance);
        }
    }
}

/// Instances that are starting then run, instances being prepared are ready to start, and instances
/// being stopped have stopped. Failed instances do not change.
fn do_as_told(wanted: DesiredRun, instance: &mut InstanceReport) {
    let arrives = matches!(
        instance.phase,
        InstancePhase::Pending
            | InstancePhase::Scheduled
            | InstancePhase::Pulling
            | InstancePhase::Building
            | InstancePhase::Prepared
            | InstancePhase::Starting
            | InstancePhase::Running
    );
    match wanted {
        DesiredRun::Stopped => instance.phase = InstancePhase::Stopped,
        DesiredRun::Prepared if arrives && instance.reason.is_empty() => {
            instance.phase = InstancePhase::Prepared;
        }
        // A pull that keeps failing has a reason, and so has a failing probe.
        DesiredRun::Running if arrives && instance.reason.is_empty() => {
            instance.phase = InstancePhase::Running;
            // No time passes in which an instance without a health check could settle.
            if instance.health_status != Health::Unhealthy {
                instance.health_status = Health::Healthy;
            }
        }
        DesiredRun::Running | DesiredRun::Prepared => {}
    }
}

#[cfg(test)]
mod tests;
