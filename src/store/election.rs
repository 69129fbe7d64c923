//! The election of RFC001-KAT 5.3, the same for every store: each candidate has a lease and its own
//! key below [`keys::ELECTION`], and the key with the lowest create revision leads. The layout is
//! that of etcd's `concurrency` package, so `etcdctl elect` shows it too. etcd's blocking RPC is
//! not used, because a time limit of the connection would end it and its answer lacks the fence.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::StreamExt;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Leadership, StateStore, StoreError, TransactionResult, WatchEvent};
use kat_types::{
    backoff::Backoff,
    store::{
        keys,
        transaction::{Compare, WriteOperation},
    },
};

/// A granted lease.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    /// Its id.
    pub id: i64,
    /// How long it lives after each renewal.
    pub ttl: Duration,
}

/// Operations that an election needs besides the [`StateStore`].
#[async_trait]
pub trait Leases: StateStore + Clone {
    /// Grants a new lease of about `ttl`.
    async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError>;
    /// Renews a lease; returns `false` if it does not exist.
    async fn renew(&self, lease: i64) -> Result<bool, StoreError>;
    /// Revokes a lease and deletes its keys; no error if it does not exist.
    async fn revoke(&self, lease: i64) -> Result<(), StoreError>;
    /// Creates a key with the lease, unless the key exists; returns its create revision.
    async fn create_leased(&self, key: &str, value: &str, lease: i64) -> Result<i64, StoreError>;
}

/// How many keys one transaction deletes.
const DISMISSED_AT_ONCE: usize = 100;

/// Key of the candidate with this lease.
fn election_key(lease: i64) -> String {
    format!("{}{lease:x}", keys::ELECTION)
}

/// The lease of a candidate's key.
fn lease_of(key: &str) -> Option<i64> {
    let hex = key.strip_prefix(keys::ELECTION)?;
    // Leases have 63 bits in etcd; `{:x}` of a negative one would still be parsed as itself.
    u64::from_str_radix(hex, 16).ok().map(u64::cast_signed)
}

/// [`StateStore::campaign`] for a store with leases.
pub async fn campaign<S: Leases>(
    store: &S,
    candidate: &str,
    ttl: Duration,
) -> Result<Leadership, StoreError> {
    if candidate.is_empty() {
        return Err(StoreError::Invalid("the candidate's name is empty".into()));
    }
    if ttl < Duration::from_secs(1) || ttl.subsec_nanos() != 0 {
        return Err(StoreError::Invalid(format!(
            "a lease of {ttl:?}: it must be whole seconds, at least 1"
        )));
    }
    let mut pauses = Backoff::new(Duration::from_millis(100), Duration::from_secs(2)).pauses();
    loop {
        match stand(store, candidate, ttl).await {
            Ok(leadership) => return Ok(leadership),
            Err(error) if error.is_passing() => {
                tracing::debug!(candidate, "the election is tried again: {error:#}");
                sleep(pauses.next_pause()).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits for the leadership for as long as one lease lives.
async fn stand<S: Leases>(
    store: &S,
    candidate: &str,
    ttl: Duration,
) -> Result<Leadership, StoreError> {
    let asked = Instant::now();
    let lease = store.grant(ttl).await?;
    let lost = CancellationToken::new();
    // Until the election is won, dropping this future withdraws the candidate.
    let withdraw = lost.clone().drop_guard();
    let created = Arc::new(OnceLock::new());
    let (sure_now, sure) = watch::channel(asked);
    let keeper = LeaseKeeper {
        store: store.clone(),
        lease,
        key: election_key(lease.id),
        created: created.clone(),
        sure: sure_now.clone(),
        lost: lost.clone(),
    };
    tokio::spawn(keeper.run(asked));
    let key = election_key(lease.id);
    let won = async {
        let create_revision = store.create_leased(&key, candidate, lease.id).await?;
        let _ = created.set(create_revision);
        let turn = wait_for_turn(store, &key, create_revision).await?;
        sure_now.send_replace(turn.asked);
        Ok((create_revision, turn.revision))
    };
    let (create_revision, won_revision) = tokio::select! {
        biased;
        () = lost.cancelled() => {
            Err(StoreError::Unavailable("the lease ran out before the election was won".into()))
        }
        won = won => won,
    }?;
    withdraw.disarm();
    Ok(Leadership {
        key,
        create_revision,
        won_revision,
        since: Instant::now(),
        lost,
        sure,
    })
}

/// A query that found no candidate ahead.
struct Turn {
    asked: Instant,
    /// The revision of the store that it saw.
    revision: i64,
}

/// Waits until no candidate is ahead. Passing errors are retried: the place in the queue is kept as
/// long as the lease lives.
async fn wait_for_turn<S: Leases>(
    store: &S,
    key: &str,
    create_revision: i64,
) -> Result<Turn, StoreError> {
    let mut pauses = Backoff::new(Duration::from_millis(50), Duration::from_secs(1)).pauses();
    loop {
        let asked = Instant::now();
        match is_turn(store, key, create_revision).await {
            Ok(Some(revision)) => return Ok(Turn { asked, revision }),
            Ok(None) => pauses.reset(),
            Err(ElectionWaitError::Again(error)) if error.is_passing() => {
                sleep(pauses.next_pause()).await
            }
            Err(ElectionWaitError::Again(error) | ElectionWaitError::Gone(error)) => {
                return Err(error);
            }
        }
    }
}

enum ElectionWaitError {
    /// The store did not answer.
    Again(StoreError),
    /// The candidate's own key is gone.
    Gone(StoreError),
}

/// The revision at which no candidate is ahead; otherwise `None`, after the key of the candidate ahead
/// was deleted.
async fn is_turn<S: Leases>(
    store: &S,
    key: &str,
    create_revision: i64,
) -> Result<Option<i64>, ElectionWaitError> {
    let listing = store
        .list(keys::ELECTION)
        .await
        .map_err(ElectionWaitError::Again)?;
    if !listing
        .items
        .iter()
        .any(|item| item.key == key && item.create_revision == create_revision)
    {
        return Err(ElectionWaitError::Gone(StoreError::Unavailable(format!(
            "the election key {key} is gone"
        ))));
    }
    let ahead = listing
        .items
        .iter()
        .filter(|item| item.create_revision < create_revision)
        .max_by_key(|item| item.create_revision);
    let Some(ahead) = ahead else {
        return Ok(Some(listing.revision));
    };
    let mut changes = store
        .watch(&ahead.key, listing.revision + 1)
        .await
        .map_err(ElectionWaitError::Again)?;
    while let Some(batch) = changes.next().await {
        let batch = batch.map_err(ElectionWaitError::Again)?;
        let went = batch
            .events
            .iter()
            .any(|event| matches!(event, WatchEvent::Delete { key, .. } if *key == ahead.key));
        if went {
            return Ok(None);
        }
    }
    Err(ElectionWaitError::Again(StoreError::Unavailable(
        "the watch of the candidate ahead ended".into(),
    )))
}

/// Keeps a lease alive.
struct LeaseKeeper<S> {
    store: S,
    lease: Lease,
    key: String,
    /// The key's create revision, once it is there.
    created: Arc<OnceLock<i64>>,
    /// When the store was last queried for the key and had it.
    sure: watch::Sender<Instant>,
    lost: CancellationToken,
}

impl<S: Leases> LeaseKeeper<S> {
    /// Keeps the lease alive until `lost` is cancelled, and revokes it at the end. Cancels `lost`
    /// when the lease or the key is gone, or when nine tenths of the lease have passed since the
    /// last successful renewal was *sent*. The store counts from a later moment, so by this clock
    /// (`CLOCK_MONOTONIC`) the lease can't have expired yet.
    async fn run(self, asked: Instant) {
        let ttl = self.lease.ttl;
        let limit = ttl - ttl / 10;
        let pause = (ttl / 20).clamp(Duration::from_millis(50), Duration::from_secs(1));
        let key = &self.key;
        let mut renewed = asked;
        let mut next = asked + ttl / 5;
        loop {
            let deadline = renewed + limit;
            let renewal = async {
                sleep_until(next).await;
                let sent = Instant::now();
                let answer = timeout(ttl / 3, self.store.renew(self.lease.id)).await;
                (sent, answer)
            };
            let (sent, answer) = tokio::select! {
                biased;
                () = self.lost.cancelled() => break,
                () = sleep_until(deadline) => {
                    tracing::warn!(key, "the lease could not be renewed in time");
                    break;
                }
                outcome = renewal => outcome,
            };
            match answer {
                Ok(Ok(true)) => {
                    renewed = sent;
                    next = sent + ttl / 5;
                    if self.key_is_gone().await {
                        tracing::warn!(key, "the election key is gone");
                        break;
                    }
                }
                Ok(Ok(false)) => {
                    tracing::warn!(key, "the lease has run out");
                    break;
                }
                Ok(Err(error)) => {
                    tracing::debug!(key, "a renewal failed: {error:#}");
                    next = Instant::now() + pause;
                }
                Err(_) => next = Instant::now(),
            }
        }
        self.lost.cancel();
        // Best effort, so that the next candidate need not wait for the lease to expire.
        if let Err(error) = self.store.revoke(self.lease.id).await {
            tracing::debug!(key, "the lease was left to run out: {error:#}");
        }
    }

    /// Whether the key is known to be gone; no answer means that it is not known.
    async fn key_is_gone(&self) -> bool {
        let Some(created) = self.created.get() else {
            return false;
        };
        let asked = Instant::now();
        match timeout(self.lease.ttl / 3, self.store.get(&self.key)).await {
            Ok(Ok(Some(item))) if item.create_revision == *created => {
                self.sure.send_replace(asked);
                false
            }
            // Whoever may not read the election can't lead. etcd renews a lease for anybody, so the
            // key would stay in the way of the others.
            Ok(Ok(_) | Err(StoreError::Denied(_))) => true,
            Ok(Err(_)) | Err(_) => false,
        }
    }
}

/// [`StateStore::resign`] for a store with leases.
pub async fn resign<S: Leases>(store: &S, leadership: &Leadership) -> Result<(), StoreError> {
    let lease = lease_of(&leadership.key)
        .ok_or_else(|| StoreError::Invalid(format!("{} is not an election key", leadership.key)))?;
    // Cancelled first: this leader must decide nothing once the next candidate can win.
    leadership.lost.cancel();
    store.revoke(lease).await
}

/// Takes all candidates but the one that leads out of the queue; those that may do so stand again at
/// once. Called when a machine may lead no more: with its old place it would be the next leader, and
/// etcd renews a lease for whoever asks, whatever rights are left.
///
/// # Errors
/// [`StateStore::list`] and [`StateStore::transact`]; [`StoreError::Unavailable`] if the leader
/// changed meanwhile.
pub async fn dismiss_candidates(store: &dyn StateStore) -> Result<(), StoreError> {
    let mut candidates = store.list(keys::ELECTION).await?.items;
    candidates.sort_by_key(|item| item.create_revision);
    let Some((leading, waiting)) = candidates.split_first() else {
        return Ok(());
    };
    let still_leads = Compare::CreateRevision(leading.key.clone(), leading.create_revision);
    // A former member may have left any number of keys.
    for some in waiting.chunks(DISMISSED_AT_ONCE) {
        let keys = some.iter().map(|item| item.key.clone());
        let operations: Vec<_> = keys.map(WriteOperation::Delete).collect();
        let conditions = std::slice::from_ref(&still_leads);
        if store.transact(conditions, &operations).await? == TransactionResult::No {
            return Err(StoreError::Unavailable(
                "the leader changed while candidates were dismissed".into(),
            ));
        }
    }
    Ok(())
}

/// [`StateStore::leader`] for a store with leases.
pub async fn leader<S: Leases>(store: &S) -> Result<Option<String>, StoreError> {
    let listing = store.list(keys::ELECTION).await?;
    let first = listing
        .items
        .into_iter()
        .min_by_key(|item| item.create_revision);
    Ok(first.map(|item| String::from_utf8_lossy(&item.value).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::{election_key, lease_of};

    #[test]
    fn keys_carry_the_lease() {
        assert_eq!(election_key(0x1f), "/kat/leader_election/1f");
        assert_eq!(lease_of("/kat/leader_election/1f"), Some(0x1f));
        assert_eq!(lease_of(&election_key(-2)), Some(-2));
        assert_eq!(lease_of("/kat/other/1f"), None);
    }
}
