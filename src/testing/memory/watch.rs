//! Watches of a [`MemoryStore`]: each reads the history at its own pace, so nothing is buffered.

use std::sync::Arc;

use futures_util::stream;
use tokio::time::{Instant, sleep_until};

use super::{MemoryStore, WATCH_TIMEOUT};
use kat_store::{StoreError, WatchBatch, WatchStream};

struct MemoryWatcher {
    store: MemoryStore,
    prefix: String,
    next: i64,
    epoch: u64,
    /// Number of times that the client's watches hung before this one was opened.
    hangs: u64,
    /// Number of requests for progress that were answered.
    progress: u64,
    ended: bool,
    /// When a silent watch fails.
    silent_until: Option<Instant>,
}

enum MemoryWatchStep {
    Batch(WatchBatch),
    Fail(StoreError),
    /// No change yet.
    Wait,
    /// The client is partitioned.
    Silent,
    /// Nothing comes any more.
    Hang,
}

pub(super) fn stream(store: MemoryStore, prefix: &str, from_revision: i64) -> WatchStream {
    let (epoch, hangs, progress) = {
        let mut state = store.shared.lock();
        let client = state.client(store.client);
        (client.watch_epoch, client.hangs, client.progress)
    };
    let watcher = MemoryWatcher {
        store,
        prefix: prefix.to_owned(),
        next: from_revision,
        epoch,
        hangs,
        progress,
        ended: false,
        silent_until: None,
    };
    Box::pin(stream::unfold(watcher, |mut watcher| async move {
        if watcher.ended {
            return None;
        }
        let item = watcher.next().await;
        watcher.ended = item.is_err();
        Some((item, watcher))
    }))
}

impl MemoryWatcher {
    async fn next(&mut self) -> Result<WatchBatch, StoreError> {
        let shared = Arc::clone(&self.store.shared);
        loop {
            // The wait is registered before the check, so that a change after the check wakes it.
            let changed = shared.changed.notified();
            match self.step() {
                MemoryWatchStep::Batch(batch) => return Ok(batch),
                MemoryWatchStep::Fail(error) => return Err(error),
                MemoryWatchStep::Wait => {
                    self.silent_until = None;
                    changed.await;
                }
                MemoryWatchStep::Hang => std::future::pending().await,
                MemoryWatchStep::Silent => {
                    let until = *self
                        .silent_until
                        .get_or_insert_with(|| Instant::now() + WATCH_TIMEOUT);
                    if until <= Instant::now() {
                        return Err(StoreError::Unavailable("the watch went silent".into()));
                    }
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = sleep_until(until) => {}
                    }
                }
            }
        }
    }

    fn step(&mut self) -> MemoryWatchStep {
        let mut state = self.store.shared.lock();
        if !state.available {
            return MemoryWatchStep::Fail(StoreError::Unavailable("connection refused".into()));
        }
        let faults = state.client(self.store.client);
        if faults.watch_epoch != self.epoch {
            return MemoryWatchStep::Fail(StoreError::Unavailable("the watch was dropped".into()));
        }
        if faults.hangs != self.hangs {
            return MemoryWatchStep::Hang;
        }
        if faults.partitioned {
            return MemoryWatchStep::Silent;
        }
        let requests = faults.progress;
        match state.core.next_batch(&self.prefix, self.next) {
            Err(error) => MemoryWatchStep::Fail(error),
            Ok(Some(batch)) => {
                self.next = batch.revision + 1;
                MemoryWatchStep::Batch(batch)
            }
            Ok(None) if requests != self.progress => {
                self.progress = requests;
                MemoryWatchStep::Batch(WatchBatch {
                    revision: state.core.revision,
                    events: Vec::new(),
                })
            }
            Ok(None) => {
                // A compaction of revisions that did not concern this watch must not end it.
                self.next = self.next.max(state.core.revision + 1);
                MemoryWatchStep::Wait
            }
        }
    }
}
