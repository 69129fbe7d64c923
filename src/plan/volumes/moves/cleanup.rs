//! Cleanup after moves: desired moves that no record asks for any more, and kept copies.

use std::{collections::BTreeMap, time::Duration};

use super::{answers, object_of};
use crate::{
    draft::{Draft, OperationGroup},
    volumes::removals::is_removed_from,
};
use kat_types::{
    api::EventKind,
    reason::EventReason,
    store::{keys, records::NodeStatusRecord},
    volumes::VolumeKey,
};

/// Deletes desired moves that no record asks for any more. A machine that received a copy then
/// removes it, since that copy is not the data.
pub(crate) fn plan_needless(draft: &mut Draft<'_>) {
    let snapshot = draft.snapshot;
    for (node, all) in &snapshot.moves {
        for (key, desired_move) in all {
            let moving = draft.volume(key).and_then(|record| record.moving.as_ref());
            let meant = moving.is_some_and(|moving| {
                let takes = moving.to == *node;
                moving.id == desired_move.id && (takes || (moving.from == *node && !moving.placing))
            });
            // A move that ended in this plan has deleted its desired moves.
            let stored = snapshot.volumes.get(key).map(|stored| &stored.value);
            let unchanged = stored.is_none_or(|stored| draft.volume(key) == Some(stored));
            if meant || !unchanged || draft.keeps(&key.workload) {
                continue;
            }
            let mut group = OperationGroup::default();
            group.delete(keys::desired_move(node, &key.to_string()));
            draft.commit(group, format!("volume {key} does not move"), Vec::new());
        }
    }
}

/// Has copies removed that were kept long enough, if the data that replaced them is in its place.
pub(crate) fn plan_kept(draft: &mut Draft<'_>, statuses: &BTreeMap<String, NodeStatusRecord>) {
    let snapshot = draft.snapshot;
    for (key, stored) in &snapshot.volumes {
        let before = &stored.value;
        if draft.keeps(&key.workload) {
            continue;
        }
        let Some(record) = draft.volume(key).cloned() else {
            continue;
        };
        if record.kept.is_empty() || record.deleting || record.moving.is_some() || *before != record
        {
            continue;
        }
        let name = key.to_string();
        let known_good = record.node.as_ref().is_some_and(|node| {
            let status = statuses.get(node);
            status.is_some_and(|status| answers(status) && status.made_volumes.contains(&name))
        });
        let mut group = OperationGroup::default();
        let mut left = record.clone();
        for copy in &record.kept {
            let here = snapshot.nodes.contains_key(&copy.node);
            let asked = snapshot.removals.get(&copy.node);
            let asked = asked.is_some_and(|all| all.contains_key(key));
            if here && !asked && copy.until > draft.now {
                let wait = copy.until.duration_since(draft.now);
                draft.wake(Duration::try_from(wait).unwrap_or_default());
                continue;
            }
            let gone = match here {
                // The machine has left the cluster, so its copy is out of reach.
                false => true,
                true if asked || known_good => {
                    is_removed_from(draft, statuses, (key, &record), &copy.node)
                }
                true => false,
            };
            if gone {
                left.kept.retain(|other| other.node != copy.node);
                left.forgotten.remove(&copy.node);
                group.delete(keys::desired_removal(&copy.node, &name));
            }
        }
        if left != record {
            draft.put_volume(&mut group, key, left);
            let reason = format!("the old copy of volume {key} is gone");
            draft.commit(group, reason, Vec::new());
        }
    }
}

/// Writes an event for each new failure of a move.
pub(crate) fn move_events(
    draft: &mut Draft<'_>,
    group: &mut OperationGroup,
    node: &str,
    (before, now): (&NodeStatusRecord, &NodeStatusRecord),
) {
    for report in &now.volume_moves {
        let mut earlier = before.volume_moves.iter();
        let earlier = earlier.find(|one| one.volume == report.volume && one.id == report.id);
        let same = earlier.is_some_and(|earlier| earlier.message == report.message);
        let Some(key) = VolumeKey::parse(&report.volume) else {
            continue;
        };
        // A report counts only for volumes that the machine has a desired move for.
        let desired_moves = draft.snapshot.moves.get(node);
        let takes = desired_moves.is_some_and(|all| all.contains_key(&key));
        if same || report.message.is_empty() || !takes {
            continue;
        }
        let object = object_of(draft, &key);
        let told = format!(
            "volume {} has not come to {node}: {}; it is tried again",
            key.volume, report.message
        );
        let reason = EventReason::VolumeMoveFailed;
        draft.event(group, EventKind::Warning, reason, object, told);
    }
}
