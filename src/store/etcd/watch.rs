//! Watches.
//!
//! Properties of etcd's watches that this handles:
//!
//! - A watch from a compacted revision is created, then cancelled with an empty reason, then
//!   silent.
//! - A refused watch is created and cancelled in one message.
//! - The revision in an answer's header may be ahead of its events, so it only counts in a progress
//!   notification. A requested notification is not sent while changes are still to be read for the
//!   watch.
//! - Fragments are not requested: the client does not report which message ends a revision, and the
//!   changes of a revision must not be split. A message larger than [`MOST_BYTES`] ends the watch
//!   instead, and the caller lists again.

use std::collections::VecDeque;

use etcd_client::{Event, EventType, WatchOptions, WatchResponse};
use futures_util::stream;
use tokio::sync::watch as signal;

use super::{EtcdStore, error, read};
use crate::{StoreError, WatchBatch, WatchEvent, WatchStream};

/// Maximum bytes of a watch's message.
const MOST_BYTES: usize = 64 << 20;

struct EtcdWatcher {
    stream: etcd_client::WatchStream,
    /// Changes when somebody asks for the progress of this watch.
    progress: signal::Receiver<u64>,
    from_revision: i64,
    ready: VecDeque<WatchBatch>,
    ended: bool,
}

/// Opens a watch; etcd has created it when this returns.
pub(super) async fn open(
    store: &EtcdStore,
    prefix: &str,
    from_revision: i64,
) -> Result<WatchStream, StoreError> {
    if from_revision < 1 {
        return Err(StoreError::Invalid(format!(
            "a watch from revision {from_revision}: it must be at least 1"
        )));
    }
    let options = WatchOptions::new()
        .with_prefix()
        .with_start_revision(from_revision)
        .with_progress_notify();
    let (stream, first) = store
        .call(true, |client| {
            let options = options.clone();
            async move {
                let mut stream = client
                    .watch_client()
                    .max_decoding_message_size(MOST_BYTES)
                    .watch(prefix, Some(options))
                    .await?;
                let first = stream.message().await?;
                Ok((stream, first))
            }
        })
        .await?;
    let mut watcher = EtcdWatcher {
        stream,
        progress: store.progress.subscribe(),
        from_revision,
        ready: VecDeque::new(),
        ended: false,
    };
    watcher.process_message(first)?;
    Ok(Box::pin(stream::unfold(
        watcher,
        |mut watcher| async move {
            if watcher.ended {
                return None;
            }
            let item = watcher.next().await;
            watcher.ended = item.is_err();
            Some((item, watcher))
        },
    )))
}

impl EtcdWatcher {
    async fn next(&mut self) -> Result<WatchBatch, StoreError> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(batch);
            }
            let message = tokio::select! {
                biased;
                message = self.stream.message() => message,
                Ok(()) = self.progress.changed() => match self.stream.request_progress().await {
                    Ok(()) => continue,
                    Err(failure) => Err(failure),
                },
            };
            let message = message.map_err(|failure| self.failed(&failure))?;
            self.process_message(message)?;
        }
    }

    /// Converts an error of the stream. A broken stream can always be opened again.
    fn failed(&self, failure: &etcd_client::Error) -> StoreError {
        match error::store_error(failure, self.from_revision) {
            StoreError::Invalid(message) => StoreError::Unavailable(message),
            other => other,
        }
    }

    /// Processes one message.
    fn process_message(&mut self, message: Option<WatchResponse>) -> Result<(), StoreError> {
        let message =
            message.ok_or_else(|| StoreError::Unavailable("etcd ended the watch".into()))?;
        if message.canceled() {
            return Err(self.cancelled(&message));
        }
        if message.created() {
            return Ok(());
        }
        if message.events().is_empty() {
            self.ready.push_back(WatchBatch {
                revision: error::revision(message.header())?,
                events: Vec::new(),
            });
            return Ok(());
        }
        self.ready.extend(batches(message.events())?);
        Ok(())
    }

    fn cancelled(&self, message: &WatchResponse) -> StoreError {
        if message.compact_revision() > 0 {
            return StoreError::Compacted(self.from_revision);
        }
        let reason = message.cancel_reason();
        if reason.contains("permission denied") {
            return StoreError::Denied(reason.to_owned());
        }
        StoreError::Unavailable(format!("etcd cancelled the watch: {reason}"))
    }
}

/// Groups events by their revision.
fn batches(events: &[Event]) -> Result<Vec<WatchBatch>, StoreError> {
    let mut batches: Vec<WatchBatch> = Vec::new();
    for event in events {
        let Some(item) = event.kv() else { continue };
        let revision = item.mod_revision();
        let event = match event.event_type() {
            EventType::Put => WatchEvent::Put(read::key_value(item)?),
            EventType::Delete => WatchEvent::Delete {
                key: read::key_of(item)?,
                mod_revision: revision,
            },
        };
        match batches.last_mut() {
            Some(last) if last.revision == revision => last.events.push(event),
            _ => batches.push(WatchBatch {
                revision,
                events: vec![event],
            }),
        }
    }
    Ok(batches)
}
