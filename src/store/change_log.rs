//! The latest changes of the store in memory, for the machines that follow it: one log, filled by one
//! mirror, and a position in it for each reader. A reader that is too slow falls out of the log and
//! lists anew, so no reader has a queue of its own.
//!
//! Who sees a change is found once, when it is logged: the log has some hundred readers. What no
//! machine sees is not kept, and wakes no reader.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    WatchBatch, WatchEvent,
    ordered_watch::{OrderedReceiver, OrderedSender, ordered_watch},
};
use kat_types::store::visibility::{KeyViewers, viewers_of};

/// Largest size of the log in bytes, keys and values together.
const MOST_BYTES: usize = 64 << 20;
/// Age at which changes may be forgotten even if the log is small.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Largest number of revisions that a reader takes at once.
const MOST_AT_ONCE: usize = 256;

/// A reader's position is no longer in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the changes after revision {0} are no longer in the log")]
pub(crate) struct FellOut(pub(crate) i64);

/// The log. Clones share it.
#[derive(Debug, Clone)]
pub struct ChangeLog {
    kept: Arc<Mutex<KeptChanges>>,
    latest: Arc<OrderedSender<i64>>,
}

#[derive(Debug, Default)]
struct KeptChanges {
    batches: VecDeque<KeptBatch>,
    bytes: usize,
    /// The log holds every change after this revision.
    after: i64,
    /// The log holds every change up to this revision.
    until: i64,
    /// How often the log was started anew.
    start: u64,
}

#[derive(Debug)]
struct KeptBatch {
    batch: Arc<VisibleBatch>,
    /// The revision from which the batch leads, if it is the difference to a whole list: what was
    /// both written and deleted in between is not in it.
    from: Option<i64>,
    bytes: usize,
    at: Instant,
}

/// The changes of one revision that machines see.
#[derive(Debug, Clone)]
pub(crate) struct VisibleBatch {
    pub(crate) revision: i64,
    changes: Vec<VisibleChange>,
}

#[derive(Debug, Clone)]
struct VisibleChange {
    /// The machine that sees the change; `None` for every machine.
    viewer: Option<Box<str>>,
    event: WatchEvent,
}

impl VisibleBatch {
    fn of(batch: &WatchBatch) -> Self {
        let changes = batch.events.iter().filter_map(|event| {
            let viewer = match viewers_of(key_of(event)) {
                KeyViewers::None => return None,
                KeyViewers::All => None,
                KeyViewers::One(node) => Some(node.into()),
            };
            let event = event.clone();
            Some(VisibleChange { viewer, event })
        });
        Self {
            revision: batch.revision,
            changes: changes.collect(),
        }
    }

    /// The changes that every machine sees.
    pub(crate) fn shared(&self) -> impl Iterator<Item = &WatchEvent> {
        let shared = self.changes.iter().filter(|one| one.viewer.is_none());
        shared.map(|one| &one.event)
    }

    /// The changes that the machine `node` sees.
    pub(crate) fn seen_by(&self, node: &str) -> impl Iterator<Item = &WatchEvent> {
        let is_seen =
            move |one: &&VisibleChange| one.viewer.as_deref().is_none_or(|own| own == node);
        self.changes.iter().filter(is_seen).map(|one| &one.event)
    }
}

/// Changes in the order of their revisions.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoggedChanges {
    /// The changes; each batch is one revision.
    pub(crate) batches: Vec<Arc<VisibleBatch>>,
    /// The reader's next position: there are no other changes up to this revision.
    pub(crate) until: i64,
}

impl Default for ChangeLog {
    fn default() -> Self {
        Self {
            kept: Arc::default(),
            latest: Arc::new(ordered_watch(0).0),
        }
    }
}

impl ChangeLog {
    /// Starts the log anew after a list of this revision: what changed before it is not known.
    pub(crate) fn restart(&self, revision: i64) {
        let mut kept = self.kept.lock();
        *kept = KeptChanges {
            after: revision,
            until: revision,
            start: kept.start + 1,
            ..KeptChanges::default()
        };
        drop(kept);
        self.latest.send(revision);
    }

    /// Adds the changes of one revision. A batch without changes that any machine sees, such as a
    /// progress notification, only moves the end of the log.
    pub(crate) fn push(&self, batch: &WatchBatch) {
        self.add(batch, false);
    }

    /// Adds the difference from the end of the log to a whole list. A reader whose position lies
    /// between the two has to list anew.
    pub(crate) fn push_difference(&self, batch: &WatchBatch) {
        self.add(batch, true);
    }

    fn add(&self, batch: &WatchBatch, is_difference: bool) {
        let mut kept = self.kept.lock();
        kept.forget();
        if batch.revision <= kept.until {
            return;
        }
        let before = std::mem::replace(&mut kept.until, batch.revision);
        let visible = VisibleBatch::of(batch);
        let is_seen = !visible.changes.is_empty();
        if is_difference || is_seen {
            let events = visible.changes.iter().map(|one| &one.event);
            let bytes = events.map(event_bytes).sum();
            kept.bytes += bytes;
            kept.batches.push_back(KeptBatch {
                batch: Arc::new(visible),
                from: is_difference.then_some(before),
                bytes,
                at: Instant::now(),
            });
        }
        kept.forget();
        drop(kept);
        if is_seen {
            self.latest.send(batch.revision);
        } else {
            // Readers find the end of the log with their next beat.
            self.latest.send_unnoticed(batch.revision);
        }
    }

    /// The number of times that the log was started anew. Positions of before mean nothing after a
    /// new start.
    pub(crate) fn start(&self) -> u64 {
        self.kept.lock().start
    }

    /// The changes after `revision`, at most [`MOST_AT_ONCE`] revisions.
    ///
    /// # Errors
    /// [`FellOut`] if the log does not reach back to `revision` or has not reached it, does not know
    /// the changes after it one by one, or was started anew since `start`.
    pub(crate) fn after(&self, start: u64, revision: i64) -> Result<LoggedChanges, FellOut> {
        let mut kept = self.kept.lock();
        // Readers come each second, also while nothing is written.
        kept.forget();
        if start != kept.start || revision < kept.after || revision > kept.until {
            return Err(FellOut(revision));
        }
        let from = kept
            .batches
            .partition_point(|kept| kept.batch.revision <= revision);
        let first = kept.batches.get(from);
        if first.is_some_and(|first| first.from.is_some_and(|from| revision > from)) {
            return Err(FellOut(revision));
        }
        let mut batches = kept
            .batches
            .range(from..)
            .map(|kept| Arc::clone(&kept.batch));
        let found: Vec<_> = batches.by_ref().take(MOST_AT_ONCE).collect();
        let until = match (batches.next(), found.last()) {
            (Some(_), Some(last)) => last.revision,
            _ => kept.until,
        };
        Ok(LoggedChanges {
            batches: found,
            until,
        })
    }

    /// The revision of the end of the log, as a channel that changes with it.
    pub(crate) fn latest(&self) -> OrderedReceiver<i64> {
        self.latest.subscribe()
    }
}

impl KeptChanges {
    /// Forgets changes from the front while the log is too large or they are too old.
    fn forget(&mut self) {
        while let Some(first) = self.batches.front() {
            if self.bytes <= MOST_BYTES && first.at.elapsed() <= KEPT_FOR {
                return;
            }
            self.bytes -= first.bytes;
            self.after = first.batch.revision;
            self.batches.pop_front();
        }
        self.batches.shrink_to_fit();
    }
}

fn key_of(event: &WatchEvent) -> &str {
    match event {
        WatchEvent::Put(item) => &item.key,
        WatchEvent::Delete { key, .. } => key,
    }
}

fn event_bytes(event: &WatchEvent) -> usize {
    match event {
        WatchEvent::Put(item) => item.key.len() + item.value.len(),
        WatchEvent::Delete { key, .. } => key.len(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use kat_types::store::{keys, transaction::KeyValue};

    fn batch(revision: i64, size: usize) -> WatchBatch {
        batch_of(keys::CLUSTER, revision, size)
    }

    fn batch_of(key: &str, revision: i64, size: usize) -> WatchBatch {
        let item = KeyValue {
            key: key.to_owned(),
            value: vec![0; size],
            mod_revision: revision,
            create_revision: 1,
        };
        WatchBatch {
            revision,
            events: vec![WatchEvent::Put(item)],
        }
    }

    fn revisions(log: &ChangeLog, after: i64) -> Result<(Vec<i64>, i64), FellOut> {
        let found = log.after(log.start(), after)?;
        let revisions = found.batches.iter().map(|one| one.revision).collect();
        Ok((revisions, found.until))
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_finds_every_change_after_its_position() {
        let log = ChangeLog::default();
        log.restart(5);
        assert_eq!(revisions(&log, 4), Err(FellOut(4)));
        assert_eq!(revisions(&log, 5), Ok((vec![], 5)));
        for revision in [7, 8, 12] {
            log.push(&batch(revision, 1));
        }
        // A batch that the list already included.
        log.push(&batch(6, 1));
        assert_eq!(revisions(&log, 5), Ok((vec![7, 8, 12], 12)));
        assert_eq!(revisions(&log, 8), Ok((vec![12], 12)));
        let progress = WatchBatch {
            revision: 20,
            events: Vec::new(),
        };
        log.push(&progress);
        assert_eq!(revisions(&log, 12), Ok((vec![], 20)));
        assert_eq!(log.latest().get(), 20);
        // Another store, whose revisions begin anew.
        let start = log.start();
        log.restart(3);
        assert!(log.after(start, 20).is_err());
        assert_eq!(revisions(&log, 3), Ok((vec![], 3)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_gets_what_its_machine_sees_and_wakes_for_nothing_that_no_machine_sees() {
        let log = ChangeLog::default();
        log.restart(0);
        let mut latest = log.latest();
        let desired = |node: &str| keys::desired_instance(node, "web-aaaaa");
        log.push(&batch_of(&desired("n1"), 1, 1));
        assert_eq!(latest.get_and_mark_seen(), 1);
        log.push(&batch_of(&keys::node_status("n1"), 2, MOST_BYTES));
        assert!(latest.changed().now_or_never().is_none());
        assert_eq!(latest.get(), 2);
        log.push(&batch(3, 1));
        assert_eq!(latest.changed().await, Ok(3));
        let LoggedChanges { batches, until } = log.after(log.start(), 0).unwrap();
        assert_eq!(until, 3);
        let seen = |node: &str| {
            let all = batches.iter().flat_map(|batch| batch.seen_by(node));
            all.map(|event| key_of(event).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(seen("n1"), [desired("n1"), keys::CLUSTER.to_owned()]);
        assert_eq!(seen("n2"), [keys::CLUSTER]);
        let shared = batches.iter().flat_map(|batch| batch.shared());
        assert_eq!(shared.map(key_of).collect::<Vec<_>>(), [keys::CLUSTER]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_position_between_the_log_and_a_whole_list_is_not_continued() {
        for without_changes in [false, true] {
            let log = ChangeLog::default();
            log.restart(5);
            log.push(&batch(7, 1));
            let mut difference = batch(20, 1);
            if without_changes {
                difference.events.clear();
            }
            log.push_difference(&difference);
            // Something may have been written at 9 and deleted at 15.
            assert_eq!(revisions(&log, 8), Err(FellOut(8)));
            assert_eq!(revisions(&log, 19), Err(FellOut(19)));
            assert_eq!(revisions(&log, 5), Ok((vec![7, 20], 20)));
            assert_eq!(revisions(&log, 7), Ok((vec![20], 20)));
            assert_eq!(revisions(&log, 20), Ok((vec![], 20)));
            log.push(&batch(21, 1));
            assert_eq!(revisions(&log, 19), Err(FellOut(19)));
            assert_eq!(revisions(&log, 20), Ok((vec![21], 21)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_log_is_read_in_parts_without_a_gap() {
        let log = ChangeLog::default();
        log.restart(0);
        let all: Vec<i64> = (1..=1000).collect();
        for revision in &all {
            log.push(&batch(*revision, 1));
        }
        let (mut position, mut found) = (0, Vec::new());
        while position < 1000 {
            let (part, until) = revisions(&log, position).unwrap();
            assert!(part.len() <= MOST_AT_ONCE && until > position);
            found.extend(part);
            position = until;
        }
        assert_eq!(found, all);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_forgotten_by_size_and_by_age() {
        let log = ChangeLog::default();
        log.restart(0);
        for revision in 1..=5 {
            log.push(&batch(revision, MOST_BYTES / 3));
        }
        assert_eq!(revisions(&log, 2), Err(FellOut(2)));
        assert_eq!(revisions(&log, 3).unwrap().0, [4, 5]);
        tokio::time::advance(KEPT_FOR + Duration::from_secs(1)).await;
        log.push(&batch(6, 1));
        assert_eq!(revisions(&log, 4), Err(FellOut(4)));
        assert_eq!(revisions(&log, 5).unwrap().0, [6]);
    }

    #[tokio::test(start_paused = true)]
    async fn old_changes_take_no_memory_while_nothing_is_written() {
        let progress = WatchBatch {
            revision: 5,
            events: Vec::new(),
        };
        let looks: [fn(&ChangeLog, &WatchBatch); 2] = [
            |log, _| assert_eq!(revisions(log, 5), Ok((vec![], 5))),
            |log, progress| log.push(progress),
        ];
        for look in looks {
            let log = ChangeLog::default();
            log.restart(0);
            for revision in 1..=5 {
                log.push(&batch(revision, 1_000));
            }
            let kept = || log.kept.lock().bytes;
            tokio::time::advance(KEPT_FOR).await;
            look(&log, &progress);
            assert!(kept() >= 5_000, "a reader may still continue");
            tokio::time::advance(Duration::from_secs(1)).await;
            look(&log, &progress);
            assert_eq!(kept(), 0);
            assert_eq!(revisions(&log, 4), Err(FellOut(4)));
            assert_eq!(revisions(&log, 5), Ok((vec![], 5)));
        }
    }
}
