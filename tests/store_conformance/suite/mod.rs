//! The suite that every store must pass.

mod elections;
mod keys;
mod watches;

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::StreamExt;

use kat_store::{StateStore, TransactionResult, WatchBatch, WatchEvent, WatchStream};
use kat_types::store::transaction::WriteOperation;

pub(crate) use self::{elections::*, keys::*, watches::*};

#[async_trait]
pub(crate) trait Backend: Sync {
    /// A new client.
    async fn client(&self) -> Arc<dyn StateStore>;
    /// Compacts the history below `revision`.
    async fn compact(&self, revision: i64);
}

/// Fails the test when `work` takes more than 20 s, which is generous for slow machines.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(20), work).await {
        Ok(done) => done,
        Err(_) => panic!("{what} took more than 20 s"),
    }
}

pub(crate) fn put(key: &str, value: &str) -> WriteOperation {
    WriteOperation::Put(key.into(), value.into())
}

/// Writes without conditions and returns the revision.
pub(crate) async fn write(store: &dyn StateStore, operations: &[WriteOperation]) -> i64 {
    match store.transact(&[], operations).await.expect("written") {
        TransactionResult::Yes(revision) => revision,
        TransactionResult::No => panic!("a write without conditions was refused"),
    }
}

async fn next(changes: &mut WatchStream) -> WatchBatch {
    let batch = soon("a change", async {
        loop {
            let batch = changes.next().await.expect("a batch").expect("no error");
            if !batch.events.is_empty() {
                return batch;
            }
        }
    });
    batch.await
}

/// The events of a batch as `+key=value` and `-key`.
fn shown(batch: &WatchBatch) -> Vec<String> {
    let event = |event: &WatchEvent| match event {
        WatchEvent::Put(item) => {
            assert_eq!(item.mod_revision, batch.revision);
            format!("+{}={}", item.key, String::from_utf8_lossy(&item.value))
        }
        WatchEvent::Delete { key, mod_revision } => {
            assert_eq!(*mod_revision, batch.revision);
            format!("-{key}")
        }
    };
    batch.events.iter().map(event).collect()
}

pub(crate) async fn names(store: &dyn StateStore, prefix: &str) -> Vec<String> {
    let listing = store.list(prefix).await.expect("listed");
    listing.items.into_iter().map(|item| item.key).collect()
}
