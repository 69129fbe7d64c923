//! Earlier snapshots, so that a watch can continue from a resourceVersion that a client has seen.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use kat_plan::Snapshot;

/// Maximum number of kept snapshots.
const MOST: usize = 64;
/// Maximum number of objects in all kept snapshots together, which bounds their memory: some 200
/// bytes for each.
const MOST_OBJECTS: usize = 20_000;
/// A snapshot is kept for this time after the next one has arrived: a client whose connection broke
/// is back within seconds, and one that comes later lists anew.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Snapshots by revision. Unchanged objects are shared between them where the snapshot shares them.
#[derive(Default)]
pub(super) struct SnapshotHistory {
    snapshots: Mutex<BTreeMap<i64, KeptSnapshot>>,
}

struct KeptSnapshot {
    snapshot: Arc<Snapshot>,
    /// When it arrived.
    at: Instant,
}

impl SnapshotHistory {
    /// Keeps a snapshot, because a client may name its revision, and drops the oldest.
    pub(super) fn remember(&self, snapshot: &Arc<Snapshot>) {
        let mut snapshots = self.snapshots.lock();
        // A store that was restored from a backup starts again at an earlier revision.
        snapshots.split_off(&snapshot.revision.saturating_add(1));
        snapshots
            .entry(snapshot.revision)
            .or_insert_with(|| KeptSnapshot {
                snapshot: Arc::clone(snapshot),
                at: Instant::now(),
            });
        let mut objects: usize = snapshots.values().map(weight).sum();
        while snapshots.len() > MOST || (objects > MOST_OBJECTS && snapshots.len() > 1) {
            let Some((_, oldest)) = snapshots.pop_first() else {
                break;
            };
            objects = objects.saturating_sub(weight(&oldest));
        }
        forget(&mut snapshots);
    }

    /// Drops the snapshots that are too old, also while nothing changes.
    pub(super) fn forget_old(&self) {
        forget(&mut self.snapshots.lock());
    }

    /// The newest kept snapshot that shows nothing after `revision`.
    pub(super) fn at(&self, revision: i64) -> Option<Arc<Snapshot>> {
        let snapshots = self.snapshots.lock();
        snapshots
            .range(..=revision)
            .next_back()
            .map(|(_, kept)| Arc::clone(&kept.snapshot))
    }
}

/// Drops each snapshot whose successor arrived more than [`KEPT_FOR`] ago.
fn forget(snapshots: &mut BTreeMap<i64, KeptSnapshot>) {
    while let Some(next) = snapshots.values().nth(1)
        && next.at.elapsed() > KEPT_FOR
    {
        snapshots.pop_first();
    }
}

fn weight(KeptSnapshot { snapshot, .. }: &KeptSnapshot) -> usize {
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

    #[tokio::test(start_paused = true)]
    async fn forgets_what_was_replaced_a_minute_ago_and_never_the_newest() {
        let history = SnapshotHistory::default();
        history.remember(&snapshot(1));
        tokio::time::advance(10 * KEPT_FOR).await;
        history.forget_old();
        assert!(history.at(1).is_some(), "nothing newer has arrived");
        history.remember(&snapshot(2));
        // Seen again, which makes it no younger.
        tokio::time::advance(KEPT_FOR).await;
        history.remember(&snapshot(2));
        assert_eq!(history.at(1).unwrap().revision, 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        history.forget_old();
        assert!(history.at(1).is_none());
        assert_eq!(history.at(2).unwrap().revision, 2);
    }

    #[test]
    fn forgets_a_future_that_a_restore_undid() {
        let history = SnapshotHistory::default();
        history.remember(&snapshot(50));
        history.remember(&snapshot(20));
        assert_eq!(history.at(60).unwrap().revision, 20);
    }
}
