//! Choice of the user index of a new workload.

use std::collections::BTreeSet;

use crate::Snapshot;
use kat_types::assignment::INDEX_LIMIT;

/// The next index after the last assigned one, wrapping around once, that no workload owns and of
/// which no machine has, or may have, anything. `None` if there is none.
///
/// Wrapping around keeps a freed index unused for as long as possible: logind holds a user for a
/// while after its end (`UserStopDelaySec=`, logind.conf(5)), and a new user of the same uid would
/// wait for that.
///
/// Reports of a machine alone never make all indexes unusable.
pub fn next_index(snapshot: &Snapshot) -> Option<u32> {
    let statuses = snapshot.nodes.values();
    let statuses = statuses.filter_map(|node| Some(&node.status.as_ref()?.value));
    let (mut left, mut unexplained) = (BTreeSet::new(), BTreeSet::new());
    for status in statuses {
        left.extend(status.user_indexes.iter().copied());
        unexplained.extend(status.unexplained_indexes.iter().copied());
        unexplained.extend(status.foreign_indexes.iter().copied());
    }
    let start = snapshot
        .last_index
        .as_ref()
        .and_then(|last| last.value.index.checked_add(1))
        .filter(|next| *next < INDEX_LIMIT)
        .unwrap_or(0);
    let free = |index: &u32| !snapshot.indexes.contains_key(index) && !left.contains(index);
    let mut around = (start..INDEX_LIMIT).chain(0..start);
    // An index that a machine reports without an explanation, or whose ids it has given to another
    // account, is used only if there is no other.
    around
        .clone()
        .find(|index| free(index) && !unexplained.contains(index))
        .or_else(|| around.find(free))
}
