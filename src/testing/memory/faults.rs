//! Faults of a [`MemoryStore`], for each client.

use std::time::Duration;

use super::{MemoryStore, StoreAccess, core::StoreCore};
use kat_store::StoreError;

/// The faults of one client.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) partitioned: bool,
    pub(super) delay: Duration,
    /// Number of successful writes whose answers get lost.
    lose_answers: u32,
    /// Number of calls that fail before they reach the store.
    refuse: u32,
    /// Prefixes that this client may read; `None` for the leader's client, which may do everything.
    readable: Option<Vec<String>>,
    /// Watches of an earlier epoch end.
    pub(super) watch_epoch: u64,
    /// Watches that were opened before this client had so many hangs show nothing more.
    pub(super) hangs: u64,
    /// Number of requests for the progress of watches.
    pub(super) progress: u64,
}

/// The store, whether it is up, and its clients.
#[derive(Debug)]
pub(super) struct MemoryStoreState {
    pub(super) core: StoreCore,
    pub(super) available: bool,
    clients: Vec<Faults>,
    /// Used for a client that does not exist, which can't happen.
    nobody: Faults,
}

impl MemoryStoreState {
    pub(super) fn new(core: StoreCore) -> Self {
        Self {
            core,
            available: true,
            clients: vec![Faults::default()],
            nobody: Faults::default(),
        }
    }

    pub(super) fn add_client(&mut self) -> usize {
        self.clients.push(Faults::default());
        self.clients.len() - 1
    }

    pub(super) fn client(&mut self, client: usize) -> &mut Faults {
        self.clients.get_mut(client).unwrap_or(&mut self.nobody)
    }

    /// Whether a call reaches the store and has the right to its access.
    pub(super) fn admit(
        &mut self,
        client: usize,
        access: &StoreAccess<'_>,
    ) -> Result<(), StoreError> {
        if !self.available {
            return Err(StoreError::Unavailable("connection refused".into()));
        }
        let faults = self.client(client);
        if faults.refuse > 0 {
            faults.refuse -= 1;
            return Err(StoreError::Unavailable("connection reset".into()));
        }
        let Some(readable) = &faults.readable else {
            return Ok(());
        };
        match access {
            StoreAccess::Write => Err(StoreError::Denied("permission denied".into())),
            StoreAccess::Read(key) if readable.iter().any(|prefix| key.starts_with(prefix)) => {
                Ok(())
            }
            StoreAccess::Read(key) => Err(StoreError::Denied(format!("permission denied: {key}"))),
        }
    }

    /// Loses the answer to a write if that was requested.
    pub(super) fn lose_answer(&mut self, client: usize) -> Result<(), StoreError> {
        let faults = self.client(client);
        if faults.lose_answers > 0 {
            faults.lose_answers -= 1;
            return Err(StoreError::Unavailable("the answer was lost".into()));
        }
        Ok(())
    }
}

impl MemoryStore {
    fn fault(&self, change: impl FnOnce(&mut MemoryStoreState)) {
        change(&mut self.shared.lock());
        self.shared.changed.notify_waiters();
    }

    /// Stops the whole store, or starts it again. While it is down every call and watch fails at
    /// once and no lease expires; afterwards every lease has its full time, as after a raft
    /// election.
    pub fn set_available(&self, available: bool) {
        self.fault(|state| {
            if available && !state.available {
                state.core.renew_all();
            }
            state.available = available;
        });
    }

    /// Whether the store is up.
    pub fn is_available(&self) -> bool {
        self.shared.lock().available
    }

    /// Partitions this client, or ends the partition. Calls fail after [`super::CALL_TIMEOUT`]
    /// without an effect; watches go silent, and fail after [`super::WATCH_TIMEOUT`].
    pub fn set_partitioned(&self, partitioned: bool) {
        self.fault(|state| state.client(self.client).partitioned = partitioned);
    }

    /// Delays every call of this client before it takes effect.
    pub fn set_delay(&self, delay: Duration) {
        self.fault(|state| state.client(self.client).delay = delay);
    }

    /// The next `count` writes of this client (lease calls too) take effect, but the client gets
    /// the error that the store was not reachable.
    pub fn lose_answers(&self, count: u32) {
        self.fault(|state| state.client(self.client).lose_answers = count);
    }

    /// The next `count` calls of this client fail without an effect.
    pub fn refuse_calls(&self, count: u32) {
        self.fault(|state| state.client(self.client).refuse = count);
    }

    /// Ends every open watch of this client with [`StoreError::Unavailable`].
    pub fn drop_watches(&self) {
        self.fault(|state| state.client(self.client).watch_epoch += 1);
    }

    /// Every open watch of this client shows nothing more and does not end, while calls are answered
    /// and later watches work: as on a member of etcd that hangs while it stops.
    pub fn hang_watches(&self) {
        self.fault(|state| state.client(self.client).hangs += 1);
    }

    /// Restricts this client to reading these prefixes, as a node's etcd role does.
    pub fn restrict(&self, prefixes: &[&str]) {
        let prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        self.fault(|state| state.client(self.client).readable = Some(prefixes));
    }

    /// Revokes every lease at once, as if all had expired.
    pub fn expire_leases(&self) {
        self.fault(|state| {
            let leases: Vec<_> = state.core.leases.keys().copied().collect();
            for lease in leases {
                state.core.revoke(lease);
            }
        });
    }
}
