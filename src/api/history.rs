//! Earlier snapshots, so that a watch can continue from a resourceVersion that a client has seen.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use kat_plan::Snapshot;

/// Maximum number of kept snapshots.
const MOST: usize = 64;
/// Maximum number of objects in all kept snapshots together, which bounds their memory.
const MOST_OBJECTS: usize = 100_000;

/// Snapshots by revision. Unchanged objects are shared between them where the snapshot shares them.
#[derive(Default)]
pub(super) struct SnapshotHistory {
    snapshots: Mutex<BTreeMap<i64, Arc<Snapshot>>>,
}

impl SnapshotHistory {
    /// Keeps a snapshot, because a client may name its revision, and drops the oldest.
    pub(super) fn remember(&self, snapshot: &Arc<Snapshot>) {
        let mut snapshots = self.snapshots.lock();
        // A store that was restored from a backup starts again at an earlier revision.
        snapshots.split_off(&snapshot.revision.saturating_add(1));
        snapshots.insert(snapshot.revision, Arc::clone(snapshot));
        let mut objects: usize = snapshots.values().map(|snapshot| weight(snapshot)).sum();
        while snapshots.len() > MOST || (objects > MOST_OBJECTS && snapshots.len() > 1) {
            let Some((_, oldest)) = snapshots.pop_first() else {
                break;
            };
            objects = objects.saturating_sub(weight(&oldest));
        }
    }

    /// The newest kept snapshot that shows nothing after `revision`.
    pub(super) fn at(&self, revision: i64) -> Option<Arc<Snapshot>> {
        let snapshots = self.snapshots.lock();
        snapshots
            .range(..=revision)
            .next_back()
            .map(|(_, snapshot)| Arc::clone(snapshot))
    }
}

fn weight(snapshot: &Snapshot) -> usize {
    1 + snapshot.nodes.len()
        + snapshot.workloads.len()
        + snapshot.instances.len()
        + snapshot.allocations.len()
        + snapshot.services.len()
        + snapshot.dns.len()
        + snapshot.tokens.len()
        + snapshot.events.len()
}

#[cfg(test)]
mod tests {
    use kat_types::store::snapshot::StoredState;

    use super::*;

    fn snapshot(revision: i64) -> Arc<Snapshot> {
        Arc::new(Snapshot::from(StoredState {
            revision,
            ..StoredState::default()
        }))
    }

    #[test]
    fn answers_with_the_newest_that_is_not_newer() {
        let history = SnapshotHistory::default();
        for revision in [5, 9] {
            history.remember(&snapshot(revision));
        }
        assert!(history.at(4).is_none());
        assert_eq!(history.at(5).unwrap().revision, 5);
        assert_eq!(history.at(8).unwrap().revision, 5);
        assert_eq!(history.at(100).unwrap().revision, 9);
    }

    #[test]
    fn drops_the_oldest() {
        let history = SnapshotHistory::default();
        for revision in 1..=100 {
            history.remember(&snapshot(revision));
        }
        assert!(history.at(36).is_none());
        assert_eq!(history.at(37).unwrap().revision, 37);
    }

    #[test]
    fn forgets_a_future_that_a_restore_undid() {
        let history = SnapshotHistory::default();
        history.remember(&snapshot(50));
        history.remember(&snapshot(20));
        assert_eq!(history.at(60).unwrap().revision, 20);
    }
}
