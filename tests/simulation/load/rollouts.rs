//! Checks that a plan stops no serving instance too many, and that it starts nothing new during a
//! pause.

use std::collections::{BTreeMap, BTreeSet};

use kat_plan::{ClusterPlan, Snapshot};
use kat_types::{
    api::{Health, InstancePhase, NodePhase},
    assignment::{Assignment, DesiredRun},
    resource::{MaxSurge, UpdateStrategyType, WorkloadType},
    store::{
        keys, records::NodeStatusRecord, snapshot::WorkloadEntry, transaction::WriteOperation,
    },
};

/// A workload's instances, according to the statuses that the plan uses.
#[derive(Debug, Default)]
struct Counts {
    /// Slots with a healthy instance.
    serving: BTreeSet<u32>,
    /// Slots with an instance of the current version, also one that is stopping.
    new: BTreeSet<u32>,
    old: usize,
}

/// Why a plan is wrong; `None` if it is not.
pub(crate) fn wrong(snapshot: &Snapshot, plan: &ClusterPlan) -> Option<String> {
    let operations = || plan.changes.iter().flat_map(|change| &change.operations);
    let mut statuses: BTreeMap<String, NodeStatusRecord> = snapshot
        .nodes
        .iter()
        .filter_map(|(name, node)| Some((name.clone(), node.status.as_ref()?.value.clone())))
        .collect();
    let mut after: BTreeMap<String, (String, Assignment)> = assigned(snapshot);
    for operation in operations() {
        match operation {
            WriteOperation::Put(key, value) => {
                if let Some(node) = key.strip_prefix(keys::NODE_STATUS) {
                    let status = serde_json::from_slice(value).unwrap();
                    statuses.insert(node.to_owned(), status);
                } else if let Some((node, id)) = instance(key) {
                    let assignment = serde_json::from_slice(value).unwrap();
                    after.insert(id.to_owned(), (node.to_owned(), assignment));
                }
            }
            WriteOperation::Delete(key) => {
                if let Some((_, id)) = instance(key) {
                    after.remove(id);
                }
            }
            WriteOperation::DeletePrefix(_) => {}
        }
    }
    let before = assigned(snapshot);
    for (key, entry) in &snapshot.workloads {
        let Ok(parsed) = &entry.parsed else { continue };
        // Runs end, and the instances of a DaemonService follow the machines.
        let is_service = parsed.workload.spec.kind == WorkloadType::Service;
        if entry.meta.value.deleting || !is_service {
            continue;
        }
        let of = |all: &BTreeMap<String, (String, Assignment)>| {
            let own: Vec<_> = all
                .iter()
                .filter(|(_, (_, one))| one.namespace == key.namespace && one.workload == key.name)
                .map(|(id, (node, one))| (id.clone(), node.clone(), one.clone()))
                .collect();
            count(&own, entry, &statuses)
        };
        let (was, is) = (of(&before), of(&after));
        let strategy = &parsed.workload.spec.update_strategy;
        let replicas = parsed.workload.spec.replicas.unwrap_or(1) as usize;
        // The data of a slot has one writer at a time.
        let writes = !parsed.workload.spec.volumes.is_empty();
        let kept = match (strategy.kind, strategy.rolling.max_surge) {
            (UpdateStrategyType::Simultaneous, _) => 0,
            _ if writes => replicas.saturating_sub(1),
            (_, MaxSurge::Count(0) | MaxSurge::Percent(0)) => replicas.saturating_sub(1),
            _ => replicas,
        };
        // Instances are stopped while their data moves.
        let mut volumes = snapshot.volumes.iter();
        let moves = volumes
            .any(|(volume, record)| volume.workload == *key && record.value.moving.is_some());
        if !moves && is.serving.len() < kept.min(was.serving.len()) {
            return Some(format!(
                "{key} with {replicas} replicas had {was:?} and is left {is:?}: what serves is stopped"
            ));
        }
        if entry.meta.value.paused && was.old > 0 && !is.new.is_subset(&was.new) {
            return Some(format!(
                "{key} is paused, had {was:?} and gets {is:?}: something new takes over"
            ));
        }
    }
    None
}

fn count(
    own: &[(String, String, Assignment)],
    entry: &WorkloadEntry,
    statuses: &BTreeMap<String, NodeStatusRecord>,
) -> Counts {
    let mut counts = Counts::default();
    for (id, node, one) in own {
        let current = one.template_hash == entry.meta.value.template_hash;
        if current {
            counts.new.insert(one.slot);
        }
        if one.wanted != DesiredRun::Running {
            continue;
        }
        counts.old += usize::from(!current);
        let status = statuses.get(node);
        let record = status
            .filter(|status| status.phase != NodePhase::NotReady)
            .and_then(|status| status.instances.get(id));
        let serves = record.is_some_and(|record| {
            record.phase == InstancePhase::Running
                && matches!(record.health, Health::Healthy | Health::NotApplicable)
        });
        if serves {
            counts.serving.insert(one.slot);
        }
    }
    counts
}

fn assigned(snapshot: &Snapshot) -> BTreeMap<String, (String, Assignment)> {
    let entries = snapshot.instances.iter();
    entries
        .map(|(id, entry)| {
            let assignment = Assignment::clone(&entry.assignment.value);
            (id.clone(), (entry.node.clone(), assignment))
        })
        .collect()
}

/// Machine and instance of an assignment's key.
fn instance(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(keys::NODE_DESIRED)?
        .split_once("/instances/")
}

/// Workloads whose rollouts are paused, or may be.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    pub perhaps: BTreeSet<String>,
    pub busy: BTreeSet<String>,
}
