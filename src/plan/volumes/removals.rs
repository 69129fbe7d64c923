//! Removal of volumes' data: its machine is asked to remove it, and its record is deleted when the
//! machine confirms.

use std::collections::BTreeMap;

use crate::{
    Snapshot,
    draft::{Draft, OperationGroup},
    users_of,
};
use kat_types::{
    api::{EventKind, NodePhase, ObjectKind, ObjectReference},
    reason::EventReason,
    store::{
        keys,
        records::{NodeStatusRecord, VolumeRecord},
        revisions::Stored,
        transaction::Compare,
    },
    volumes::{RemovalRecord, VolumeKey, removal_id},
};

/// Has data removed that is marked for deletion, by the machine that holds it, and deletes its
/// record when the machine confirms.
pub(crate) fn plan_removals(draft: &mut Draft<'_>, statuses: &BTreeMap<String, NodeStatusRecord>) {
    let snapshot = draft.snapshot;
    let mut gone = Vec::new();
    for (key, stored) in &snapshot.volumes {
        let record = &stored.value;
        // A move ends first, with the data on either machine.
        if !record.deleting || record.moving.is_some() || draft.keeps(&key.workload) {
            continue;
        }
        let mut group = OperationGroup::default();
        if users_of(snapshot, key).next().is_some() {
            // The removal was requested too late: an instance has the volume.
            continue;
        }
        // Copies kept by a move are removed first: only the record knows of them.
        let kept = record.kept.iter().map(|copy| copy.node.as_str());
        let kept = kept.filter(|node| snapshot.nodes.contains_key(*node));
        let mut left = false;
        for node in kept {
            left |= !is_removed_from(draft, statuses, (key, record), node);
        }
        let Some(node) = remover(snapshot, statuses, key, record) else {
            // Data at a path of the machine belongs to its owner, and data on a machine that has
            // left the cluster is out of reach: only the record is deleted. Shared data waits for a
            // machine that shares it.
            if record.node.is_some() && !left {
                let conditions = forget(draft, &mut group, key, stored, &mut gone);
                draft.commit(group, format!("volume {key} is forgotten"), conditions);
            }
            continue;
        };
        if is_removed_from(draft, statuses, (key, record), node) && !left {
            let object = ObjectReference {
                kind: ObjectKind::Workload,
                name: key.workload.name.clone(),
                namespace: key.workload.namespace.clone(),
                uid: String::new(),
            };
            let told = match record.forgotten.is_empty() {
                true => format!("the data of volume {} is gone from {node}", key.volume),
                false => {
                    let nodes: Vec<&str> = record.forgotten.keys().map(String::as_str).collect();
                    format!(
                        "volume {} is gone from the cluster's records; its data on {} was given up if its disk was still missing",
                        key.volume,
                        nodes.join(", ")
                    )
                }
            };
            draft.event(
                &mut group,
                EventKind::Normal,
                EventReason::VolumeDeleted,
                object,
                told,
            );
            let conditions = forget(draft, &mut group, key, stored, &mut gone);
            draft.commit(group, format!("volume {key} is gone"), conditions);
        }
    }
    plan_needless(draft);
}

/// Whether a machine has confirmed that it removed the data. Asks the machine to, if it was not
/// asked yet.
pub(crate) fn is_removed_from(
    draft: &mut Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    (key, record): (&VolumeKey, &VolumeRecord),
    node: &str,
) -> bool {
    let volume = key.to_string();
    let desired_removal = draft.snapshot.removals.get(node);
    let Some(desired_removal) = desired_removal.and_then(|all| all.get(key)) else {
        let mut kept = record.kept.iter();
        let copy = kept.find(|copy| copy.node == node && record.node.as_deref() != Some(node));
        let desired_removal = RemovalRecord {
            schema: 1,
            asked: draft.now,
            index: record.index,
            made: record.made,
            copy: copy.is_some(),
            unsure: copy.is_some_and(|copy| copy.unsure),
            forget: false,
        };
        let mut group = OperationGroup::default();
        group.put(keys::desired_removal(node, &volume), &desired_removal);
        let reason = format!("volume {key} is to be removed from {node}");
        draft.commit(group, reason, Vec::new());
        return false;
    };
    if is_forgotten(record, node, desired_removal) && !desired_removal.forget {
        let desired_removal = RemovalRecord {
            forget: true,
            ..*desired_removal
        };
        let mut group = OperationGroup::default();
        group.put(keys::desired_removal(node, &volume), &desired_removal);
        let reason = format!("the data of volume {key} on {node} is given up");
        draft.commit(group, reason, Vec::new());
        return false;
    }
    let id = removal_id(&volume, desired_removal.asked);
    let status = statuses.get(node);
    status.is_some_and(|status| status.removed_volumes.contains(&id))
}

/// Whether a person has given up the data of exactly this removal, and of no earlier one.
pub fn is_forgotten(record: &VolumeRecord, node: &str, removal: &RemovalRecord) -> bool {
    record.forgotten.get(node) == Some(&removal.asked)
}

/// Whether a machine reports that it does not find the data that it is to remove.
pub fn is_missing(status: &NodeStatusRecord, key: &VolumeKey, removal: &RemovalRecord) -> bool {
    let id = removal_id(&key.to_string(), removal.asked);
    status.missing_volumes.contains(&id)
}

/// The machine that is to remove the data, if there is one.
fn remover<'s>(
    snapshot: &'s Snapshot,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    key: &VolumeKey,
    record: &VolumeRecord,
) -> Option<&'s str> {
    if record.host_path.is_some() {
        return None;
    }
    if let Some(node) = &record.node {
        return snapshot
            .nodes
            .get_key_value(node)
            .map(|(name, _)| name.as_str());
    }
    let mut asked = snapshot.removals.iter();
    let asked =
        asked.find(|(node, all)| all.contains_key(key) && snapshot.nodes.contains_key(*node));
    let mut sharing = snapshot.nodes.keys().filter(|node| {
        let status = statuses.get(node.as_str());
        status.is_some_and(|status| status.volume_shared && status.phase == NodePhase::Ready)
    });
    let asked = asked.map(|(node, _)| node);
    asked.or_else(|| sharing.next()).map(String::as_str)
}

/// Deletes a volume's record, and the user index if nothing else has it. Returns what must not have
/// changed: an apply may be about to create a workload with that index.
fn forget<'s>(
    draft: &Draft<'s>,
    group: &mut OperationGroup,
    key: &'s VolumeKey,
    stored: &Stored<VolumeRecord>,
    gone: &mut Vec<&'s VolumeKey>,
) -> Vec<Compare> {
    let record = &stored.value;
    gone.push(key);
    let name = keys::volume(&key.to_string());
    let mut conditions = vec![Compare::ModRevision(name.clone(), stored.revision)];
    group.delete(name);
    let snapshot = draft.snapshot;
    for (node, _) in snapshot
        .removals
        .iter()
        .filter(|(_, all)| all.contains_key(key))
    {
        group.delete(keys::desired_removal(node, &key.to_string()));
    }
    let mut others = snapshot.volumes.iter();
    let kept =
        others.any(|(other, stored)| stored.value.index == record.index && !gone.contains(&other));
    let mut workloads = snapshot.workloads.values();
    let used = workloads.any(|entry| entry.meta.value.index == record.index);
    let index = snapshot.indexes.get(&record.index);
    if let Some(index) = index.filter(|_| !kept && !used) {
        let name = keys::index(record.index);
        conditions.push(Compare::ModRevision(name.clone(), index.revision));
        group.delete(name);
    }
    conditions
}

/// Deletes desired removals of volumes that are unknown or are not to be removed.
fn plan_needless(draft: &mut Draft<'_>) {
    let snapshot = draft.snapshot;
    for (node, all) in &snapshot.removals {
        for key in all.keys() {
            let record = snapshot.volumes.get(key);
            let goes = |record: &VolumeRecord| {
                record.deleting || record.kept.iter().any(|copy| copy.node == *node)
            };
            if record.is_some_and(|stored| goes(&stored.value)) || draft.keeps(&key.workload) {
                continue;
            }
            let mut group = OperationGroup::default();
            group.delete(keys::desired_removal(node, &key.to_string()));
            draft.commit(
                group,
                format!("volume {key} is not to be removed"),
                Vec::new(),
            );
        }
    }
}
