//! The store of a machine that does not hold it.

use std::{future::pending, time::Duration};

use async_trait::async_trait;

use super::{Leadership, Listing, StateStore, StoreError, TransactionResult, WatchStream};
use kat_types::store::transaction::{Compare, KeyValue, WriteOperation};

/// A store that is not on this machine: every read and write fails, and nobody is elected.
#[derive(Debug, Clone, Copy, Default)]
pub struct AbsentStore;

fn absent<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable(
        "this machine does not hold the cluster's store".to_owned(),
    ))
}

#[async_trait]
impl StateStore for AbsentStore {
    async fn get(&self, _: &str) -> Result<Option<KeyValue>, StoreError> {
        absent()
    }

    async fn list(&self, _: &str) -> Result<Listing, StoreError> {
        absent()
    }

    async fn watch(&self, _: &str, _: i64) -> Result<WatchStream, StoreError> {
        absent()
    }

    async fn transact(
        &self,
        _: &[Compare],
        _: &[WriteOperation],
    ) -> Result<TransactionResult, StoreError> {
        absent()
    }

    async fn campaign(&self, _: &str, _: Duration) -> Result<Leadership, StoreError> {
        pending().await
    }

    async fn resign(&self, _: &Leadership) -> Result<(), StoreError> {
        absent()
    }

    async fn leader(&self) -> Result<Option<String>, StoreError> {
        absent()
    }
}
