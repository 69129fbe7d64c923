//! Whether the loops of a service still come round, for its watchdog.
//!
//! A service that is told alive by a task of its own looks alive while all others hang. Here each
//! loop that must go on has a [`Pulse`]: it notes each round, and on the way while it waits for
//! news, which may be for ever. The watchdog is fed while every pulse is fresh.

use std::{collections::BTreeMap, future::Future, pin::pin, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};

/// A loop that was not seen for so long hangs. One round takes far less: what it awaits beside news
/// has limits of its own, the longest of them 60 s (a round of `kat-net`).
pub const STALLED: Duration = Duration::from_secs(120);
/// While a loop waits it is noted this often.
const INTERVAL: Duration = Duration::from_secs(10);

/// When each loop was last seen.
#[derive(Debug, Clone, Default)]
pub struct Pulses {
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    next: u64,
    loops: BTreeMap<u64, (&'static str, Instant)>,
}

impl Pulses {
    /// Watches a loop from now on, until its pulse is dropped.
    pub fn watch(&self, name: &'static str) -> Pulse {
        let mut seen = self.lock();
        seen.next += 1;
        let number = seen.next;
        seen.loops.insert(number, (name, Instant::now()));
        drop(seen);
        Pulse {
            pulses: self.clone(),
            name,
            number,
        }
    }

    /// A loop that was not seen for [`STALLED`], if there is one.
    pub fn stalled(&self) -> Option<&'static str> {
        let seen = self.lock();
        let mut loops = seen.loops.values();
        loops
            .find(|(_, at)| at.elapsed() >= STALLED)
            .map(|(name, _)| *name)
    }

    /// The loops that are watched.
    pub fn watched(&self) -> Vec<&'static str> {
        self.lock().loops.values().map(|(name, _)| *name).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }
}

/// One loop. Where it ends by a panic it stays watched, and is found stalled.
#[derive(Debug)]
pub struct Pulse {
    pulses: Pulses,
    name: &'static str,
    number: u64,
}

impl Pulse {
    /// The loop came round.
    pub fn beat(&self) {
        let now = (self.name, Instant::now());
        self.pulses.lock().loops.insert(self.number, now);
    }

    /// Waits for news, however long there are none.
    pub async fn wait<F: Future>(&self, news: F) -> F::Output {
        let mut news = pin!(news);
        loop {
            self.beat();
            if let Ok(told) = timeout(INTERVAL, news.as_mut()).await {
                self.beat();
                return told;
            }
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.pulses.lock().loops.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_hangs_is_named_and_one_that_waits_is_not() {
        let pulses = Pulses::default();
        assert_eq!(pulses.stalled(), None);
        let waits = pulses.watch("the one that waits");
        let hangs = pulses.watch("the one that hangs");
        let waiting = tokio::spawn(async move { waits.wait(std::future::pending::<()>()).await });
        let hanging = tokio::spawn(async move {
            hangs.beat();
            sleep(Duration::from_secs(1000)).await;
            hangs.wait(std::future::pending::<()>()).await;
        });
        sleep(STALLED - Duration::from_millis(1)).await;
        assert_eq!(pulses.stalled(), None);
        sleep(Duration::from_millis(1)).await;
        assert_eq!(pulses.stalled(), Some("the one that hangs"));
        sleep(Duration::from_secs(900)).await;
        assert_eq!(pulses.stalled(), None, "it went on");
        hanging.abort();
        assert!(hanging.await.is_err());
        assert_eq!(pulses.watched(), ["the one that waits"]);
        waiting.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_broke_counts_as_stalled() {
        let pulses = Pulses::default();
        let pulse = pulses.watch("the one that broke");
        let broken = tokio::spawn(async move {
            pulse.wait(async { panic!("as a test") }).await;
        });
        assert!(broken.await.is_err());
        sleep(STALLED).await;
        assert_eq!(pulses.stalled(), Some("the one that broke"));
    }
}
