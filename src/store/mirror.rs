//! A copy of a prefix of the store that is kept up to date: list, then watch, and list again when
//! the watch fails.
//!
//! The states are *empty* (nothing listed yet), *confirmed* (a complete list, and a watch that
//! continues from it) and *stale* (the watch broke, and the last content is kept). A list replaces
//! everything at once, so readers never see a part of it, and keys that the list lacks are gone.
//!
//! A snapshot is cheap: it shares the map's nodes, keys and values with the copy. A change copies
//! the nodes on the way to what changed, not the map.

use std::{ops::Bound, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    ChangeLog, Listing, StateStore, StoreError, WatchBatch, WatchEvent, WatchStream,
    ordered_watch::{OrderedReceiver, OrderedSender, ordered_watch},
};
use kat_types::{backoff::Backoff, store::transaction::KeyValue};

/// Keys and their values. A clone shares everything.
pub type MirrorEntries = imbl::OrdMap<Arc<str>, Arc<KeyValue>>;

/// Maximum number of revisions that are applied before readers see them, so that a long catch-up
/// wakes readers once and not for each revision.
const MOST_BATCHES: usize = 256;

/// All keys with the prefix at one revision.
#[derive(Debug, Clone, Default)]
pub struct MirrorState {
    /// Every key with the prefix.
    pub entries: MirrorEntries,
    /// The revision of the entries; 0 before the first list.
    pub revision: i64,
    /// Whether a watch follows the store now. Unconfirmed entries may be stale, and empty ones mean
    /// nothing.
    pub confirmed: bool,
    /// When the entries last matched the store: at a list, a change or a progress notification; in a
    /// copy that follows a [`super::StateSource`], at the read from a quorum of which the last beat
    /// tells.
    pub synced_at: Option<Instant>,
}

impl MirrorState {
    /// The value of one key.
    pub fn get(&self, key: &str) -> Option<&KeyValue> {
        self.entries.get(key).map(AsRef::as_ref)
    }

    /// The keys with a prefix, in order.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a KeyValue> {
        self.entries
            .range::<_, str>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(_, value)| value.as_ref())
    }

    /// Whether the keys with this prefix are the same, with the same values, as in `other`, which has
    /// to be an earlier or later state of the same copy.
    pub fn same_below(&self, other: &Self, prefix: &str) -> bool {
        let range = (Bound::Included(prefix), Bound::Unbounded);
        if self.entries.ptr_eq(&other.entries) {
            return true;
        }
        let items = |state: &Self| {
            let below = state.entries.range::<_, str>(range);
            let below = below.take_while(|(key, _)| key.starts_with(prefix));
            below.map(|(_, item)| Arc::clone(item)).collect::<Vec<_>>()
        };
        let (own, others) = (items(self), items(other));
        let same = |(one, other)| Arc::ptr_eq(one, other);
        own.len() == others.len() && own.iter().zip(&others).all(same)
    }

    /// Takes a whole list. Returns what it changes, as one revision; `None` for the first list, and
    /// for a list of an earlier revision than this state's.
    fn replace(&mut self, listing: Listing) -> Option<WatchBatch> {
        let before = self.synced_at.map(|_| self.entries.clone());
        let before = before.filter(|_| listing.revision >= self.revision);
        self.entries = listing
            .items
            .into_iter()
            .map(|item| (Arc::from(item.key.as_str()), Arc::new(item)))
            .collect();
        self.revision = listing.revision;
        self.confirmed = true;
        self.synced_at = Some(Instant::now());
        before.map(|before| WatchBatch {
            revision: self.revision,
            events: differences(&before, &self.entries, self.revision),
        })
    }

    /// Applies one revision. A revision that the list already included changes nothing.
    pub(crate) fn apply(&mut self, batch: WatchBatch) {
        if batch.revision <= self.revision {
            return;
        }
        self.revision = batch.revision;
        if batch.events.is_empty() {
            return;
        }
        for event in batch.events {
            match event {
                WatchEvent::Put(item) => {
                    self.entries
                        .insert(Arc::from(item.key.as_str()), Arc::new(item));
                }
                WatchEvent::Delete { key, .. } => {
                    self.entries.remove(key.as_str());
                }
            }
        }
    }
}

/// The changes that lead from one state to a later one.
fn differences(before: &MirrorEntries, after: &MirrorEntries, revision: i64) -> Vec<WatchEvent> {
    let written = after.iter().filter(|(key, item)| {
        let earlier = before.get(key.as_ref());
        earlier.is_none_or(|earlier| earlier.mod_revision != item.mod_revision)
    });
    let written = written.map(|(_, item)| WatchEvent::Put(item.as_ref().clone()));
    let deleted = before
        .keys()
        .filter(|key| !after.contains_key(key.as_ref()));
    let deleted = deleted.map(|key| WatchEvent::Delete {
        key: key.to_string(),
        mod_revision: revision,
    });
    written.chain(deleted).collect()
}

/// Why a wait for the mirror failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    /// The time limit has passed.
    #[error("the copy of {prefix} did not reach revision {wanted} in time; it shows {shown}")]
    TimedOut {
        /// The prefix.
        prefix: String,
        /// The requested revision; 0 for any confirmed one.
        wanted: i64,
        /// The revision of the mirror.
        shown: i64,
    },
    /// The mirror was stopped.
    #[error("the copy of {0} is no longer kept")]
    Stopped(String),
}

/// A running mirror. Clones see the same copy.
#[derive(Debug, Clone)]
pub struct Mirror {
    prefix: Arc<str>,
    state: OrderedReceiver<Arc<MirrorState>>,
    /// The revision that has to be shown; a watch that is behind ends.
    wanted: Arc<watch::Sender<i64>>,
}

impl Mirror {
    /// Follows a prefix until `cancel`. After errors of the store it retries with growing pauses
    /// (100 ms to 5 s), and the state is not confirmed meanwhile.
    pub fn start(store: Arc<dyn StateStore>, prefix: &str, cancel: CancellationToken) -> Self {
        Self::start_logged(store, prefix, ChangeLog::default(), cancel)
    }

    /// [`Self::start`], and writes every change into `log`. The log is never behind what readers of
    /// the mirror see.
    pub fn start_logged(
        store: Arc<dyn StateStore>,
        prefix: &str,
        log: ChangeLog,
        cancel: CancellationToken,
    ) -> Self {
        let (sender, state) = ordered_watch(Arc::default());
        let prefix: Arc<str> = Arc::from(prefix);
        let wanted = Arc::new(watch::Sender::new(0));
        let follower = Follower {
            store,
            prefix: prefix.clone(),
            wanted: Arc::clone(&wanted),
            state: MirrorState::default(),
            sender,
            log,
        };
        tokio::spawn(async move {
            cancel.run_until_cancelled(follower.run()).await;
        });
        Self {
            prefix,
            state,
            wanted,
        }
    }

    /// A mirror that somebody else keeps up to date. `name` is for errors.
    pub(crate) fn of_state(name: &str, state: OrderedReceiver<Arc<MirrorState>>) -> Self {
        Self {
            prefix: Arc::from(name),
            state,
            wanted: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Ends the watch where it has not shown `revision`, which a quorum has: everything is listed
    /// again, and a new watch is opened. A list that is being read goes on, as it will have it.
    /// Without effect on a copy that [`Self::start`] does not keep.
    ///
    /// A member of etcd that was removed may hang while it stops. It still answers on connections
    /// that are open, and ends no watch for its lack of a leader.
    pub(crate) fn list_again(&self, revision: i64) {
        self.wanted.send_replace(revision);
    }

    /// The present content.
    pub fn snapshot(&self) -> Arc<MirrorState> {
        self.state.get()
    }

    /// Waits until the content or its confirmation has changed since this handle last waited, and
    /// returns it. The first call returns at once if there is any content.
    ///
    /// # Errors
    /// [`MirrorError::Stopped`].
    pub async fn changed(&mut self) -> Result<Arc<MirrorState>, MirrorError> {
        let changed = self.state.changed().await;
        changed.map_err(|_| MirrorError::Stopped(self.prefix.to_string()))
    }

    /// Waits until the mirror is confirmed and shows `revision` or a later one, so that a writer
    /// sees its own write. A revision that changed nothing below the prefix shows only with a later
    /// change, a progress notification or a list.
    ///
    /// # Errors
    /// [`MirrorError::TimedOut`] after `limit`, [`MirrorError::Stopped`].
    pub async fn wait_for_revision(
        &self,
        revision: i64,
        limit: Duration,
    ) -> Result<Arc<MirrorState>, MirrorError> {
        let mut state = self.state.clone();
        let reached = state.wait_for(|state| state.confirmed && state.revision >= revision);
        match timeout_at(Instant::now() + limit, reached).await {
            Ok(Ok(state)) => Ok(state),
            Ok(Err(_)) => Err(MirrorError::Stopped(self.prefix.to_string())),
            Err(_) => Err(MirrorError::TimedOut {
                prefix: self.prefix.to_string(),
                wanted: revision,
                shown: self.snapshot().revision,
            }),
        }
    }

    /// Waits until a complete list was read and a watch follows it.
    ///
    /// # Errors
    /// As [`Self::wait_for_revision`].
    pub async fn wait_confirmed(&self, limit: Duration) -> Result<Arc<MirrorState>, MirrorError> {
        self.wait_for_revision(0, limit).await
    }
}

struct Follower {
    store: Arc<dyn StateStore>,
    prefix: Arc<str>,
    wanted: Arc<watch::Sender<i64>>,
    state: MirrorState,
    sender: OrderedSender<Arc<MirrorState>>,
    log: ChangeLog,
}

impl Follower {
    async fn run(mut self) {
        let mut pauses = Backoff::new(Duration::from_millis(100), Duration::from_secs(5)).pauses();
        loop {
            let error = match self.open().await {
                Ok(changes) => {
                    pauses.reset();
                    self.follow(changes).await
                }
                Err(error) => error,
            };
            if error.is_passing() {
                tracing::debug!(prefix = %self.prefix, "the copy is stale: {error:#}");
            } else {
                tracing::warn!(prefix = %self.prefix, "the copy is stale: {error:#}");
            }
            if self.state.confirmed {
                self.state.confirmed = false;
                self.show();
            }
            sleep(pauses.next_pause()).await;
        }
    }

    /// Lists, opens the watch, and only then publishes the list: a confirmed copy receives all
    /// later changes.
    async fn open(&mut self) -> Result<WatchStream, StoreError> {
        let listing = self.store.list(&self.prefix).await?;
        let changes = self.store.watch(&self.prefix, listing.revision + 1).await?;
        let shown = self.state.revision;
        let difference = self.state.replace(listing);
        match difference {
            Some(batch) if batch.revision > shown || batch.events.is_empty() => {
                self.log.push_difference(&batch);
                self.show();
            }
            // A difference at a revision that was passed already, by a notification of progress that
            // overtook it, has no place in the log. The list is shown before the log begins anew, so
            // that no reader takes the new log with the list of before.
            Some(_) | None => {
                self.show();
                self.log.restart(self.state.revision);
            }
        }
        Ok(changes)
    }

    /// Applies changes until the watch ends.
    async fn follow(&mut self, mut changes: WatchStream) -> StoreError {
        let ended = || StoreError::Unavailable("the watch ended".into());
        let mut wanted = self.wanted.subscribe();
        loop {
            let next = tokio::select! {
                biased;
                next = changes.next() => next,
                // The sender lives as long as this.
                _ = wanted.changed() => {
                    if *wanted.borrow_and_update() <= self.state.revision {
                        continue;
                    }
                    let error = "the watch shows less than a quorum has";
                    return StoreError::Unavailable(error.into());
                }
            };
            match next {
                Some(Ok(batch)) => {
                    if let Err(error) = self.apply(batch) {
                        return error;
                    }
                }
                Some(Err(error)) => return error,
                None => return ended(),
            }
            // Further revisions that have already arrived are published together.
            let mut failed = None;
            for _ in 0..MOST_BATCHES {
                match changes.next().now_or_never() {
                    None => break,
                    Some(Some(Ok(batch))) => {
                        if let Err(error) = self.apply(batch) {
                            failed = Some(error);
                            break;
                        }
                    }
                    Some(Some(Err(error))) => {
                        failed = Some(error);
                        break;
                    }
                    Some(None) => {
                        failed = Some(ended());
                        break;
                    }
                }
            }
            self.show();
            if let Some(error) = failed {
                return error;
            }
        }
    }

    /// Applies the changes of one revision. Changes of a revision that was passed already are an
    /// error, after which the list is read again: before etcd 3.5.8 a requested notification of
    /// progress may overtake changes (etcd issue 15220).
    fn apply(&mut self, batch: WatchBatch) -> Result<(), StoreError> {
        if !batch.events.is_empty() && batch.revision <= self.state.revision {
            return Err(StoreError::Unavailable(format!(
                "the watch shows changes of revision {} after revision {}",
                batch.revision, self.state.revision
            )));
        }
        self.log.push(&batch);
        self.state.synced_at = Some(Instant::now());
        self.state.apply(batch);
        Ok(())
    }

    fn show(&self) {
        self.sender.send(Arc::new(self.state.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::store::transaction::KeyValue;

    #[test]
    fn what_is_older_than_the_list_changes_nothing() {
        let mut state = MirrorState::default();
        let item = |value: &str, revision| KeyValue {
            key: "/t/a".into(),
            value: value.into(),
            mod_revision: revision,
            create_revision: 1,
        };
        state.replace(Listing {
            items: vec![item("new", 7)],
            revision: 9,
        });
        let batch = |revision, events| WatchBatch { revision, events };
        state.apply(batch(7, vec![WatchEvent::Put(item("old", 7))]));
        state.apply(batch(3, Vec::new()));
        assert_eq!(
            (
                state.revision,
                state.get("/t/a").expect("there").value.as_slice()
            ),
            (9, b"new".as_slice())
        );
        // A progress notification raises the revision.
        state.apply(batch(12, Vec::new()));
        assert_eq!(state.revision, 12);
    }
}
