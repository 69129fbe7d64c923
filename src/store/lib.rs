//! The state store: the interface of RFC001-KAT 5.1, etcd behind it, copies of it in memory, and
//! the stream by which machines without the store follow it.
//!
//! Where to begin:
//! - `lib.rs`: [`StateStore`], [`Leadership`] and [`StoreError`].
//! - `mirror.rs`: [`Mirror`], a copy of a prefix that is kept up to date.
//! - `fenced.rs`: [`fenced::commit_in_turn`], how a plan is written.
//! - `state_feed.rs`, `state_view.rs`: the two ends of the state stream.
//! - `etcd/mod.rs`: [`EtcdStore`].
//!
//! Modules:
//! - `etcd`: reads, watches, transactions; users, members, maintenance and snapshots of etcd.
//! - `election`, `fenced`, `limits`: leadership, the leader's commits, bounds of a transaction.
//! - `mirror`, `change_log`, `ordered_watch`: the copy, its latest changes, and a channel for its
//!   waiters.
//! - `state_feed`, `state_view`, `prefix_source`, `absent`: what a machine may see, from its own
//!   store, from another machine, or from a server without the stream.
//!
//! Rules:
//! - Each transaction of the leader has [`Leadership::fence`] (invariant 2).
//! - An error says whether a write may have taken effect. A write of unknown outcome is not retried
//!   here, and is [`StoreError::Unavailable`].
//! - A list replaces a mirror's content as a whole, and the changes of one revision are never
//!   split.
//! - A machine without the store sees a key only by `kat_types::store::visibility`.
//! - No buffer for a slow reader: the reader falls out of the log and lists anew.
//! - Every store has the same limits and rules, so that a test with the store in memory refuses
//!   what etcd would refuse. Timers use tokio's clock (invariant 9).
//! - Keys come from `kat_types::store::keys`. Only `election` appends to one: the candidate's
//!   lease.
//!
//! Tests: `src/store/tests` with the store in memory; `tests/store_conformance` for it and a real
//! etcd (`KAT_ETCD`); `kat_testing::state_stream` for sources of the stream.

#![warn(missing_docs)]

mod absent;
mod change_log;
pub mod election;
pub mod etcd;
pub mod fenced;
pub mod limits;
pub mod mirror;
mod ordered_watch;
mod prefix_source;
mod state_feed;
mod state_view;

use std::{pin::Pin, time::Duration};

use async_trait::async_trait;
use futures_util::Stream;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use kat_types::store::transaction::*;

pub use self::{
    absent::AbsentStore,
    change_log::ChangeLog,
    etcd::{EtcdOptions, EtcdStore, EtcdTls, admin as etcd_admin, maintenance as etcd_maintenance},
    mirror::{Mirror, MirrorState},
    ordered_watch::{Closed, OrderedReceiver, OrderedSender, ordered_watch},
    prefix_source::PrefixStateSource,
    state_feed::{LocalStateSource, OpenedFrames, StateFeed, TooManyOpens},
    state_view::{
        AnyEpoch, Chances, EpochProofs, FollowedState, KnownState, SILENCE, SURE_FOR, StateFrames,
        StateSource, StateSourceError, follow_source, follow_source_from, follow_source_with,
    },
};

/// All keys with a prefix at one revision of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The keys, in their order.
    pub items: Vec<KeyValue>,
    /// The revision of the list; a watch continues from the next one.
    pub revision: i64,
}

/// A read of the present state that a quorum of the store answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuorumRead {
    /// Time before the read was sent.
    pub sent: Instant,
    /// Revision of the store in the answer.
    pub revision: i64,
}

/// One change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// The key was written.
    Put(KeyValue),
    /// The key was deleted.
    Delete {
        /// The whole key.
        key: String,
        /// Revision of the deletion.
        mod_revision: i64,
    },
}

/// The changes of one revision; the changes of a transaction are never split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchBatch {
    /// Revision of the store after these changes.
    pub revision: i64,
    /// The changes; empty for a progress notification.
    pub events: Vec<WatchEvent>,
}

/// A stream of changes. It ends with an error; the caller then lists and watches again.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchBatch, StoreError>> + Send>>;

/// Result of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionResult {
    /// Every condition held; the writes are at this revision.
    Yes(i64),
    /// A condition did not hold; nothing was written.
    No,
}

/// Why the store did not carry out a call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// No answer, or an answer that the store can't serve now. Whether a write took effect is
    /// unknown.
    #[error("the state store is not reachable: {0}")]
    Unavailable(String),
    /// The requested revision is compacted; list again.
    #[error("revision {0} of the state store is compacted")]
    Compacted(i64),
    /// The store refuses this caller.
    #[error("the state store refuses: {0}")]
    Denied(String),
    /// The store takes no writes until it has room again; this write was not made.
    #[error("the state store is full, so nothing can be changed: {0}")]
    Full(String),
    /// The key or the request can't be served, and a retry will not help.
    #[error("the state store refuses the request: {0}")]
    Invalid(String),
}

impl StoreError {
    /// Whether the same request may succeed later: the store could not serve it or had no room, or
    /// the requested history is compacted and a new list helps.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_) | Self::Compacted(_) | Self::Full(_)
        )
    }
}

/// A won election (RFC001-KAT 5.3). The leadership lasts until `lost` is cancelled.
#[derive(Debug, Clone)]
pub struct Leadership {
    /// The election key that this leader owns.
    pub key: String,
    /// Its create revision: every write of the leader compares it ([`Leadership::fence`]).
    pub create_revision: i64,
    /// A revision at which no other candidate was ahead: no earlier leader wrote anything after it.
    pub won_revision: i64,
    /// When the election was won.
    pub since: Instant,
    /// Cancelled when leadership is lost or resigned, and, by the local monotonic clock, before
    /// the lease can have run out.
    pub lost: CancellationToken,
    /// When the store was last queried for the key and had it: no other candidate led before that
    /// time. The store is queried five times in the life of a lease.
    pub sure: watch::Receiver<Instant>,
}

impl Leadership {
    /// Time since it was last sure that no other candidate leads.
    pub fn unsure_for(&self) -> Duration {
        self.sure.borrow().elapsed()
    }

    /// The condition that every transaction of this leader contains (ARCHITECTURE.md, invariant 2).
    pub fn fence(&self) -> Compare {
        Compare::CreateRevision(self.key.clone(), self.create_revision)
    }
}

/// The interface of RFC001-KAT 5.1, with lists and watches that fit together.
#[async_trait]
pub trait StateStore: Send + Sync + 'static {
    /// One key, if it exists.
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError>;

    /// Every key with the prefix, all at one revision, however many there are.
    async fn list(&self, prefix: &str) -> Result<Listing, StoreError>;

    /// Changes of keys with the prefix from `from_revision` (at least 1) on (inclusive).
    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<WatchStream, StoreError>;

    /// Asks the open watches of this client for the store's revision: each soon yields a batch, with
    /// or without changes, of the revision at this call or a later one. A request may get lost, so
    /// the caller repeats it. A store without this request, as by default, tells its revision by
    /// changes alone.
    fn request_progress(&self) {}

    /// The newest read of this client that a quorum answered, whatever it was of; `None` where the
    /// store does not tell, as by default.
    fn quorum_reads(&self) -> Option<watch::Receiver<Option<QuorumRead>>> {
        None
    }

    /// Writes `operations` if every one of `conditions` holds. At most [`MAX_OPERATIONS`] of each
    /// and [`MAX_BYTES`] together; no key twice, and none below a prefix that the same transaction
    /// deletes. Writes that change nothing leave the store's revision as it is.
    async fn transact(
        &self,
        conditions: &[Compare],
        operations: &[WriteOperation],
    ) -> Result<TransactionResult, StoreError>;

    /// Waits until this candidate is elected, whatever the store does meanwhile; fails only if a
    /// retry will not help. The store keeps the lease (whole seconds, at least 1) alive until the
    /// leadership is lost or resigned. Dropping the future withdraws the candidate.
    async fn campaign(&self, candidate: &str, lease: Duration) -> Result<Leadership, StoreError>;

    /// Resigns the leadership; the next candidate wins at once.
    async fn resign(&self, leadership: &Leadership) -> Result<(), StoreError>;

    /// The candidate that leads now.
    async fn leader(&self) -> Result<Option<String>, StoreError>;
}
