//! Limits concurrent expensive requests, in total and for each caller or namespace. A caller with
//! many requests waits for its own, so that another caller waits for at most one request of each
//! other caller.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// A semaphore with a limit in all and a limit for each key.
#[derive(Debug)]
pub(crate) struct SharedTurns {
    each: usize,
    all: Semaphore,
    /// Keys that have a turn or wait for one.
    shares: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

/// One turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct TurnPermit<'a> {
    _own: Option<OwnedSemaphorePermit>,
    _shared: Option<SemaphorePermit<'a>>,
}

impl SharedTurns {
    /// At most `all` turns at once, `each` of one key.
    pub(crate) fn new(each: usize, all: usize) -> Self {
        Self {
            each,
            all: Semaphore::new(all),
            shares: Mutex::default(),
        }
    }

    /// Waits for a turn of this key.
    pub(crate) async fn take(&self, key: &str) -> TurnPermit<'_> {
        let share = {
            let mut shares = self.shares.lock();
            shares.retain(|_, share| Arc::strong_count(share) > 1);
            let share = shares.entry(key.to_owned());
            Arc::clone(share.or_insert_with(|| Arc::new(Semaphore::new(self.each))))
        };
        // Neither semaphore is ever closed.
        TurnPermit {
            _own: share.acquire_owned().await.ok(),
            _shared: self.all.acquire().await.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_key_with_many_waits_for_its_own_turns() {
        let turns = SharedTurns::new(2, 3);
        let loud = [turns.take("loud").await, turns.take("loud").await];
        let mut third = Box::pin(turns.take("loud"));
        assert!(third.as_mut().now_or_never().is_none());
        // A key at its limit does not take the last turn.
        let quiet = turns.take("quiet").now_or_never();
        assert!(quiet.is_some());
        assert!(turns.take("other").now_or_never().is_none(), "all are out");
        drop(loud);
        assert!(third.now_or_never().is_some());
        drop(quiet);
        drop(turns.take("other").await);
        assert_eq!(turns.shares.lock().len(), 1, "the quiet are forgotten");
    }
}
