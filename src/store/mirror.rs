//! A copy of a prefix of the store that follows it: list, then watch, and again from the list when
//! the watch fails.
//!
//! The states are: *empty* (nothing listed yet), *confirmed* (a whole list, and a watch that goes
//! on from it) and *stale* (the watch broke; what was known is kept). A list replaces everything at
//! once, so nobody ever sees a part of one, and what the list lacks is gone.
//!
//! A snapshot is cheap: it shares keys and values with the copy. While a snapshot is held, the
//! next change copies the map's nodes, not the values.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt};
use tokio::{
    sync::watch as signal,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{Listing, StateStore, StoreError, WatchBatch, WatchEvent, WatchStream};
use kat_types::{backoff::Backoff, transaction::KeyValue};

/// Keys and their values.
pub type Entries = BTreeMap<Arc<str>, Arc<KeyValue>>;

/// Most revisions that are applied before they are shown, so that a long catch-up wakes readers
/// once and not once for each revision.
const MOST_BATCHES: usize = 256;

/// The prefix as it was at one revision.
#[derive(Debug, Clone, Default)]
pub struct MirrorState {
    /// Every key with the prefix.
    pub entries: Arc<Entries>,
    /// The revision that the entries show; 0 before the first list.
    pub revision: i64,
    /// Whether a watch follows the store now. A list that is not confirmed may be stale, and an
    /// empty one means nothing.
    pub confirmed: bool,
    /// When the entries were last known to be the store's: a list, a change or a progress note.
    pub synced_at: Option<Instant>,
}

impl MirrorState {
    /// One key.
    pub fn get(&self, key: &str) -> Option<&KeyValue> {
        self.entries.get(key).map(AsRef::as_ref)
    }

    /// The keys with a prefix, in order.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a KeyValue> {
        self.entries
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(_, value)| value.as_ref())
    }

    fn replace(&mut self, listing: Listing) {
        let entries = listing
            .items
            .into_iter()
            .map(|item| (Arc::from(item.key.as_str()), Arc::new(item)))
            .collect();
        self.entries = Arc::new(entries);
        self.revision = listing.revision;
        self.confirmed = true;
        self.synced_at = Some(Instant::now());
    }

    /// Applies one revision. A revision that is shown already (the list was newer) changes nothing.
    fn apply(&mut self, batch: WatchBatch) {
        self.synced_at = Some(Instant::now());
        if batch.revision <= self.revision {
            return;
        }
        self.revision = batch.revision;
        if batch.events.is_empty() {
            return;
        }
        let entries = Arc::make_mut(&mut self.entries);
        for event in batch.events {
            match event {
                WatchEvent::Put(item) => {
                    entries.insert(Arc::from(item.key.as_str()), Arc::new(item));
                }
                WatchEvent::Delete { key, .. } => {
                    entries.remove(key.as_str());
                }
            }
        }
    }
}

/// Why a wait for the mirror ended without it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    /// The time is over.
    #[error("the copy of {prefix} did not reach revision {wanted} in time; it shows {shown}")]
    TimedOut {
        /// The prefix.
        prefix: String,
        /// The revision that was waited for; 0 for any confirmed one.
        wanted: i64,
        /// The revision that is shown.
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
    state: signal::Receiver<Arc<MirrorState>>,
}

impl Mirror {
    /// Starts to follow a prefix, until `cancel`. Errors of the store are tried again with a
    /// growing pause (100 ms to 5 s) and show as a state that is not confirmed.
    pub fn start(store: Arc<dyn StateStore>, prefix: &str, cancel: CancellationToken) -> Self {
        let (sender, state) = signal::channel(Arc::default());
        let prefix: Arc<str> = Arc::from(prefix);
        let follower = Follower {
            store,
            prefix: prefix.clone(),
            state: MirrorState::default(),
            sender,
        };
        tokio::spawn(async move {
            cancel.run_until_cancelled(follower.run()).await;
        });
        Self { prefix, state }
    }

    /// The copy as it is now.
    pub fn snapshot(&self) -> Arc<MirrorState> {
        self.state.borrow().clone()
    }

    /// Waits until the copy or its confirmation changed since this handle last waited, and returns
    /// it. The first call returns at once if there is anything.
    ///
    /// # Errors
    /// [`MirrorError::Stopped`].
    pub async fn changed(&mut self) -> Result<Arc<MirrorState>, MirrorError> {
        match self.state.changed().await {
            Ok(()) => Ok(self.state.borrow_and_update().clone()),
            Err(_) => Err(MirrorError::Stopped(self.prefix.to_string())),
        }
    }

    /// Waits until the copy is confirmed and shows `revision` or a later one: a writer sees its
    /// own write here. A revision that touched nothing below the prefix shows only with a later
    /// change, a progress note or a list.
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
            Ok(Ok(state)) => Ok(state.clone()),
            Ok(Err(_)) => Err(MirrorError::Stopped(self.prefix.to_string())),
            Err(_) => Err(MirrorError::TimedOut {
                prefix: self.prefix.to_string(),
                wanted: revision,
                shown: self.snapshot().revision,
            }),
        }
    }

    /// Waits until a whole list was read and a watch follows it.
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
    state: MirrorState,
    sender: signal::Sender<Arc<MirrorState>>,
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

    /// Lists, opens the watch, and only then shows the list: a confirmed copy is one that will be
    /// told of changes.
    async fn open(&mut self) -> Result<WatchStream, StoreError> {
        let listing = self.store.list(&self.prefix).await?;
        let changes = self.store.watch(&self.prefix, listing.revision + 1).await?;
        self.state.replace(listing);
        self.show();
        Ok(changes)
    }

    /// Applies changes until the watch ends.
    async fn follow(&mut self, mut changes: WatchStream) -> StoreError {
        let ended = || StoreError::Unavailable("the watch ended".into());
        loop {
            match changes.next().await {
                Some(Ok(batch)) => self.state.apply(batch),
                Some(Err(error)) => return error,
                None => return ended(),
            }
            // What else is there already is shown together.
            let mut failed = None;
            for _ in 0..MOST_BATCHES {
                match changes.next().now_or_never() {
                    None => break,
                    Some(Some(Ok(batch))) => self.state.apply(batch),
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

    fn show(&self) {
        self.sender.send_replace(Arc::new(self.state.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::transaction::KeyValue;

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
        // A progress note moves the revision on.
        state.apply(batch(12, Vec::new()));
        assert_eq!(state.revision, 12);
    }
}
