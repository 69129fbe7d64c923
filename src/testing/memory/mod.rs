//! A [`StateStore`] in memory, with etcd's rules, for tests and simulations.
//!
//! All handles of one [`MemoryStore`] share one state. Each handle from [`MemoryStore::client`] is
//! a client of its own, which can be partitioned, delayed or given lost answers (see `faults`).
//! Leases, time limits and delays use tokio's clock, so they run in virtual time if it is paused.
//! It is not for a real cluster: nothing is written to disk, and the history grows until
//! [`MemoryStore::compact`] is called.

mod core;
mod faults;
mod watch;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use self::{core::StoreCore, faults::MemoryStoreState};
use kat_store::{
    Leadership, Listing, StateStore, StoreError, TransactionResult, WatchStream,
    election::{self, Lease, Leases},
    limits,
};
use kat_types::store::transaction::{Compare, KeyValue, WriteOperation};

/// Time after which a call of a partitioned client fails, as in [`kat_store::EtcdStore`].
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which a watch of a partitioned client fails, as with the HTTP/2 keepalive of
/// [`kat_store::EtcdStore`].
pub const WATCH_TIMEOUT: Duration = Duration::from_secs(4);

/// State shared by all handles.
#[derive(Debug)]
struct SharedStoreState {
    state: Mutex<MemoryStoreState>,
    /// Notified after every change of the state. It wakes waiters in the order of their waits, so
    /// that the same run is reproducible.
    changed: Notify,
}

impl SharedStoreState {
    fn lock(&self) -> MutexGuard<'_, MemoryStoreState> {
        // A panic of another test task leaves the state consistent: every change is one call.
        self.state.lock()
    }
}

/// A client of a store in memory. Clones are the same client.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    shared: Arc<SharedStoreState>,
    client: usize,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store at revision 1, and its first client.
    pub fn new() -> Self {
        Self {
            shared: Arc::new(SharedStoreState {
                state: Mutex::new(MemoryStoreState::new(StoreCore::new())),
                changed: Notify::new(),
            }),
            client: 0,
        }
    }

    /// A new client of the same store, without faults.
    pub fn client(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            client: self.shared.lock().add_client(),
        }
    }

    /// The store's revision, regardless of this client's faults.
    pub fn revision(&self) -> i64 {
        self.shared.lock().core.revision
    }

    /// All keys with the prefix, regardless of this client's faults: for a test's own checks.
    pub fn peek(&self, prefix: &str) -> Listing {
        self.shared.lock().core.list(prefix)
    }

    /// Writes at once, regardless of this client's faults: for a test's own changes.
    pub fn write_now(&self, operations: &[WriteOperation]) {
        self.shared.lock().core.transact(&[], operations);
        self.shared.changed.notify_waiters();
    }

    /// Compacts the history below `revision`, as etcd does.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a revision in the future, [`StoreError::Compacted`] for one that
    /// is already compacted.
    pub fn compact(&self, revision: i64) -> Result<(), StoreError> {
        self.shared.lock().core.compact(revision)
    }

    /// One call: waits according to the client's faults, applies, and may lose the answer.
    async fn call<T>(
        &self,
        access: StoreAccess<'_>,
        apply: impl FnOnce(&mut StoreCore) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        // A real call also lets other tasks run.
        tokio::task::yield_now().await;
        let delay = self.shared.lock().client(self.client).delay;
        if !delay.is_zero() {
            sleep(delay.min(CALL_TIMEOUT)).await;
            if delay >= CALL_TIMEOUT {
                return Err(no_answer());
            }
        }
        let cut_off = self.shared.lock().client(self.client).partitioned;
        if cut_off {
            sleep(CALL_TIMEOUT).await;
            return Err(no_answer());
        }
        let mut state = self.shared.lock();
        state.admit(self.client, &access)?;
        let outcome = apply(&mut state.core)?;
        if matches!(access, StoreAccess::Write) {
            state.lose_answer(self.client)?;
        }
        Ok(outcome)
    }

    /// Like [`Self::call`], for changes of the store: wakes the watches, even when the answer is
    /// lost.
    async fn change<T>(
        &self,
        apply: impl FnOnce(&mut StoreCore) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        let outcome = self.call(StoreAccess::Write, apply).await;
        self.shared.changed.notify_waiters();
        outcome
    }
}

/// The access that a call needs.
#[derive(Debug, Clone, Copy)]
enum StoreAccess<'a> {
    /// Read a key or a prefix.
    Read(&'a str),
    /// Change keys or leases.
    Write,
}

fn no_answer() -> StoreError {
    StoreError::Unavailable(format!("no answer within {CALL_TIMEOUT:?}"))
}

#[async_trait]
impl StateStore for MemoryStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        if key.is_empty() {
            return Err(StoreError::Invalid("the key is empty".into()));
        }
        self.call(StoreAccess::Read(key), |core| Ok(core.get(key)))
            .await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        self.call(StoreAccess::Read(prefix), |core| Ok(core.list(prefix)))
            .await
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<WatchStream, StoreError> {
        if from_revision < 1 {
            return Err(StoreError::Invalid(format!(
                "a watch from revision {from_revision}: it must be at least 1"
            )));
        }
        self.call(StoreAccess::Read(prefix), |_| Ok(())).await?;
        Ok(watch::stream(self.clone(), prefix, from_revision))
    }

    fn request_progress(&self) {
        self.shared.lock().client(self.client).progress += 1;
        self.shared.changed.notify_waiters();
    }

    async fn transact(
        &self,
        conditions: &[Compare],
        operations: &[WriteOperation],
    ) -> Result<TransactionResult, StoreError> {
        limits::check(conditions, operations)?;
        self.change(|core| Ok(core.transact(conditions, operations)))
            .await
    }

    async fn campaign(&self, candidate: &str, lease: Duration) -> Result<Leadership, StoreError> {
        election::campaign(self, candidate, lease).await
    }

    async fn resign(&self, leadership: &Leadership) -> Result<(), StoreError> {
        election::resign(self, leadership).await
    }

    async fn leader(&self) -> Result<Option<String>, StoreError> {
        election::leader(self).await
    }
}

#[async_trait]
impl Leases for MemoryStore {
    async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        let id = self.change(|core| Ok(core.grant(ttl))).await?;
        tokio::spawn(expire(Arc::downgrade(&self.shared), id));
        Ok(Lease { id, ttl })
    }

    async fn renew(&self, lease: i64) -> Result<bool, StoreError> {
        self.change(|core| Ok(core.renew(lease))).await
    }

    async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        self.change(|core| {
            core.revoke(lease);
            Ok(())
        })
        .await
    }

    async fn create_leased(&self, key: &str, value: &str, lease: i64) -> Result<i64, StoreError> {
        self.change(|core| core.create_leased(key, value, lease))
            .await
    }
}

/// Revokes a lease when it expires. Time does not count while the store is down.
async fn expire(shared: Weak<SharedStoreState>, lease: i64) {
    loop {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let changed = shared.changed.notified();
        let (deadline, up) = {
            let mut state = shared.lock();
            let Some(record) = state.core.leases.get(&lease) else {
                return;
            };
            let (deadline, up) = (record.deadline, state.available);
            if up && deadline <= Instant::now() {
                state.core.revoke(lease);
                drop(state);
                shared.changed.notify_waiters();
                return;
            }
            (deadline, up)
        };
        if up {
            // The store may be dropped before its leases.
            drop(changed);
            drop(shared);
            sleep_until(deadline).await;
        } else {
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests;
