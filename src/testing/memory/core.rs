//! The state of a [`super::MemoryStore`]: etcd's rules, without waiting.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use kat_store::{Listing, StoreError, TransactionResult, WatchBatch, WatchEvent};
use kat_types::store::transaction::{Compare, KeyValue, WriteOperation};

/// A lease and its deadline.
#[derive(Debug)]
pub(super) struct LeaseRecord {
    pub(super) ttl: Duration,
    pub(super) deadline: Instant,
}

/// Keys, history and leases.
#[derive(Debug)]
pub(super) struct StoreCore {
    pub(super) revision: i64,
    entries: BTreeMap<String, KeyValue>,
    /// Every revision since the compaction, oldest first.
    history: VecDeque<WatchBatch>,
    /// Watches from a revision below this one are refused.
    compacted: i64,
    pub(super) leases: BTreeMap<i64, LeaseRecord>,
    /// The lease of each key that has one.
    leased: BTreeMap<String, i64>,
    next_lease: i64,
}

impl StoreCore {
    pub(super) fn new() -> Self {
        Self {
            // An empty etcd is at revision 1.
            revision: 1,
            entries: BTreeMap::new(),
            history: VecDeque::new(),
            compacted: 0,
            leases: BTreeMap::new(),
            leased: BTreeMap::new(),
            next_lease: 0x1000,
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<KeyValue> {
        self.entries.get(key).cloned()
    }

    pub(super) fn list(&self, prefix: &str) -> Listing {
        let items = self.below(prefix).map(|(_, value)| value.clone()).collect();
        Listing {
            items,
            revision: self.revision,
        }
    }

    fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a KeyValue)> {
        self.entries
            .range(prefix.to_owned()..)
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// Applies a transaction that has passed [`kat_store::limits::check`].
    pub(super) fn transact(
        &mut self,
        conditions: &[Compare],
        operations: &[WriteOperation],
    ) -> TransactionResult {
        if !conditions.iter().all(|condition| self.holds(condition)) {
            return TransactionResult::No;
        }
        self.write(operations, None);
        TransactionResult::Yes(self.revision)
    }

    fn holds(&self, condition: &Compare) -> bool {
        match condition {
            Compare::ModRevision(key, revision) => {
                self.entries.get(key).map_or(0, |entry| entry.mod_revision) == *revision
            }
            Compare::CreateRevision(key, revision) => {
                self.entries
                    .get(key)
                    .map_or(0, |entry| entry.create_revision)
                    == *revision
            }
        }
    }

    /// Creates a key with a lease unless it exists; returns its create revision.
    pub(super) fn create_leased(
        &mut self,
        key: &str,
        value: &str,
        lease: i64,
    ) -> Result<i64, StoreError> {
        if let Some(entry) = self.entries.get(key) {
            return Ok(entry.create_revision);
        }
        if !self.leases.contains_key(&lease) {
            return Err(StoreError::Unavailable(format!("lease {lease:x} is gone")));
        }
        let put = WriteOperation::Put(key.to_owned(), value.as_bytes().to_vec());
        self.write(&[put], Some(lease));
        Ok(self.revision)
    }

    /// Writes at the next revision; if nothing changes, the revision stays.
    fn write(&mut self, operations: &[WriteOperation], lease: Option<i64>) {
        let revision = self.revision + 1;
        let mut events = Vec::new();
        for operation in operations {
            match operation {
                WriteOperation::Put(key, value) => {
                    let create_revision = self
                        .entries
                        .get(key)
                        .map_or(revision, |entry| entry.create_revision);
                    let entry = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        mod_revision: revision,
                        create_revision,
                    };
                    match lease {
                        Some(lease) => self.leased.insert(key.clone(), lease),
                        None => self.leased.remove(key),
                    };
                    self.entries.insert(key.clone(), entry.clone());
                    events.push(WatchEvent::Put(entry));
                }
                WriteOperation::Delete(key) => self.delete(key, revision, &mut events),
                WriteOperation::DeletePrefix(prefix) => {
                    let keys: Vec<_> = self.below(prefix).map(|(key, _)| key.clone()).collect();
                    for key in keys {
                        self.delete(&key, revision, &mut events);
                    }
                }
            }
        }
        if !events.is_empty() {
            self.revision = revision;
            self.history.push_back(WatchBatch { revision, events });
        }
    }

    fn delete(&mut self, key: &str, revision: i64, events: &mut Vec<WatchEvent>) {
        self.leased.remove(key);
        if self.entries.remove(key).is_some() {
            events.push(WatchEvent::Delete {
                key: key.to_owned(),
                mod_revision: revision,
            });
        }
    }

    /// The next revision from `from` on that changes a key with the prefix.
    pub(super) fn next_batch(
        &self,
        prefix: &str,
        from: i64,
    ) -> Result<Option<WatchBatch>, StoreError> {
        if from < self.compacted {
            return Err(StoreError::Compacted(from));
        }
        let start = self.history.partition_point(|batch| batch.revision < from);
        let found = self.history.range(start..).find_map(|batch| {
            let events: Vec<_> = batch
                .events
                .iter()
                .filter(|event| event_key(event).starts_with(prefix))
                .cloned()
                .collect();
            (!events.is_empty()).then_some(WatchBatch {
                revision: batch.revision,
                events,
            })
        });
        Ok(found)
    }

    /// Compacts the history below `revision`.
    pub(super) fn compact(&mut self, revision: i64) -> Result<(), StoreError> {
        if revision > self.revision {
            return Err(StoreError::Invalid(format!(
                "revision {revision} is in the future; the store is at {}",
                self.revision
            )));
        }
        if revision <= self.compacted {
            return Err(StoreError::Compacted(revision));
        }
        self.compacted = revision;
        self.history.retain(|batch| batch.revision >= revision);
        Ok(())
    }

    pub(super) fn grant(&mut self, ttl: Duration) -> i64 {
        self.next_lease += 1;
        let record = LeaseRecord {
            ttl,
            deadline: Instant::now() + ttl,
        };
        self.leases.insert(self.next_lease, record);
        self.next_lease
    }

    /// Renews a lease; returns false if it does not exist.
    pub(super) fn renew(&mut self, lease: i64) -> bool {
        let record = self.leases.get_mut(&lease);
        record.is_some_and(|record| {
            record.deadline = Instant::now() + record.ttl;
            true
        })
    }

    /// Gives every lease its full time again, as a new raft leader does.
    pub(super) fn renew_all(&mut self) {
        let now = Instant::now();
        for record in self.leases.values_mut() {
            record.deadline = now + record.ttl;
        }
    }

    /// Revokes a lease and deletes its keys at one revision.
    pub(super) fn revoke(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let deletes: Vec<_> = self
            .leased
            .iter()
            .filter(|(_, owner)| **owner == lease)
            .map(|(key, _)| WriteOperation::Delete(key.clone()))
            .collect();
        self.write(&deletes, None);
    }
}

fn event_key(event: &WatchEvent) -> &str {
    match event {
        WatchEvent::Put(entry) => &entry.key,
        WatchEvent::Delete { key, .. } => key,
    }
}
