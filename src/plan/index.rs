//! Which index a new workload gets.

use std::collections::BTreeSet;

use super::{INDEX_LIMIT, Snapshot};

/// The next index after the last one that was handed out, going round once, that no workload owns
/// and no machine has, or may have, anything of. `None` when there is none.
///
/// Going round keeps a freed index unused for as long as possible: logind holds a user for a while
/// after its end (`UserStopDelaySec=`, logind.conf(5)), and a new user of the same uid would
/// wait for that.
pub fn next_index(snapshot: &Snapshot) -> Option<u32> {
    let statuses = snapshot
        .nodes
        .values()
        .filter_map(|node| node.status.as_ref());
    let left: BTreeSet<u32> = statuses
        .flat_map(|status| status.value.user_indexes.iter().copied())
        .collect();
    let start = snapshot
        .last_index
        .as_ref()
        .and_then(|last| last.value.index.checked_add(1))
        .filter(|next| *next < INDEX_LIMIT)
        .unwrap_or(0);
    (start..INDEX_LIMIT)
        .chain(0..start)
        .find(|index| !snapshot.indexes.contains_key(index) && !left.contains(index))
}
