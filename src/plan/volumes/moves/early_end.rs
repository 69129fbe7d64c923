//! Moves that end before the data has moved.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use crate::{Snapshot, draft::Draft, users_of};
use kat_types::{
    api::{VolumeMovePhase as Phase, VolumeMoveReport},
    store::records::{NodeStatusRecord, VolumeRecord},
    volumes::{KeptCopy, VolumeKey, VolumeMove},
};

/// How long a copy stays where the data was.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The record of a volume whose move is given up: the data is where it was. `taker` is the status
/// of the receiving machine.
pub fn stopped_move(
    key: &VolumeKey,
    record: &VolumeRecord,
    taker: Option<&NodeStatusRecord>,
    now: Timestamp,
) -> VolumeRecord {
    let Some(moving) = record.moving.clone() else {
        return record.clone();
    };
    let mut record = without_move(record);
    if moving.placing {
        // No instance has run with the copy.
        record.node = Some(moving.from.clone());
        record.kept.retain(|copy| copy.node != moving.from);
        let placed = receiver_phase(taker, key, &moving) == Some(Phase::Placed);
        add_kept_copy(&mut record, &moving.to, now);
        if let Some(copy) = record.kept.last_mut().filter(|_| !placed) {
            copy.unsure = true;
            if let Some(before) = moving.replaced {
                *copy = before;
            }
        }
    }
    record
}

/// The record of a volume whose move is over: the data is where the record says.
pub fn without_move(record: &VolumeRecord) -> VolumeRecord {
    VolumeRecord {
        moving: None,
        ..record.clone()
    }
}

/// Phase last reported by the receiving machine.
pub fn receiver_phase(
    taker: Option<&NodeStatusRecord>,
    key: &VolumeKey,
    moving: &VolumeMove,
) -> Option<Phase> {
    let name = key.to_string();
    let its = |report: &&VolumeMoveReport| report.volume == name && report.id == moving.id;
    let report = taker?.volume_moves.iter().find(its);
    report.map(|report| report.phase)
}

/// An instance has the volume although its data is being copied, which is requested only when no
/// instance has it any more: a leader of a version without moves placed the instance.
pub fn is_used_meanwhile(snapshot: &Snapshot, key: &VolumeKey, moving: &VolumeMove) -> bool {
    let desired_move = snapshot.moves.get(&moving.to).and_then(|all| all.get(key));
    desired_move.is_some_and(|desired_move| desired_move.id == moving.id)
        && users_of(snapshot, key).next().is_some()
}

pub(crate) fn add_kept_copy(record: &mut VolumeRecord, node: &str, now: Timestamp) {
    record.kept.retain(|copy| copy.node != node);
    let until = now.checked_add(KEPT).unwrap_or(now);
    record.kept.push(KeptCopy {
        node: node.to_owned(),
        until,
        unsure: false,
    });
}

/// Whether the data on `node` is certainly a kept copy.
pub(crate) fn has_kept(record: &VolumeRecord, node: &str) -> bool {
    let mut kept = record.kept.iter();
    kept.any(|copy| copy.node == node && !copy.unsure)
}

/// Why nothing can end a move: the copy is the data, and both machines have left the cluster.
pub(crate) fn nothing_left(snapshot: &Snapshot, moving: &VolumeMove) -> Option<String> {
    let VolumeMove { from, to, .. } = moving;
    let gone = |node: &String| !snapshot.nodes.contains_key(node);
    (moving.placing && gone(from) && gone(to)).then(|| {
        format!(
            "was copied to {to}, and neither {to} nor {from} is a machine of the cluster any more"
        )
    })
}

/// Why a move is given up; `None` if it continues.
pub(crate) fn given_up(
    draft: &Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    volumes: &[(VolumeKey, VolumeMove)],
    moving: &VolumeMove,
) -> Option<String> {
    let nodes = &draft.snapshot.nodes;
    let VolumeMove { from, to, .. } = moving;
    if !nodes.contains_key(to) {
        // If the source machine has left too, there is nothing to return to.
        let back = !moving.placing || nodes.contains_key(from);
        return back.then(|| format!("{to} is no machine of the cluster any more"));
    }
    let drained = |node: &str| {
        nodes
            .get(node)
            .is_some_and(|one| one.registration.value.draining)
    };
    if moving.placing {
        // No instance has run on the receiving machine yet, and none could.
        let back = drained(to) && nodes.contains_key(from) && !drained(from);
        return back.then(|| format!("{to} is being drained"));
    }
    let mut records = volumes.iter().filter_map(|(key, _)| draft.volume(key));
    let shared = |node: &str| statuses.get(node).is_some_and(|one| one.volume_shared);
    if records.any(|record| record.deleting) {
        Some("its data is to be removed".to_owned())
    } else if !nodes.contains_key(from) {
        Some(format!(
            "{from}, which has its data, is no machine of the cluster any more"
        ))
    } else if drained(to) {
        Some(format!("{to} is being drained"))
    } else if shared(from) || shared(to) {
        Some("its data lies on storage that machines share".to_owned())
    } else {
        None
    }
}
