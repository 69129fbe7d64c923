//! Checks that the loops of a service still run, for its watchdog.
//!
//! A service whose watchdog is fed by a task of its own looks alive while all other tasks hang.
//! Here each essential loop has a [`LoopPulse`], which it updates in each round and periodically while
//! it waits for events, which may take any time. The watchdog is fed only while every pulse is
//! recent.

use std::{collections::BTreeMap, future::Future, pin::pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

/// A loop without an update for this time hangs. One round takes far less: apart from waiting for
/// events, everything in it has its own time limit, the longest of which is 60 s (a round of
/// `kat-net`).
pub const STALLED: Duration = Duration::from_secs(120);
/// Interval of the updates while a loop waits.
const INTERVAL: Duration = Duration::from_secs(10);

/// The last update of each loop.
#[derive(Debug, Clone)]
pub struct LoopPulses {
    seen: Arc<Mutex<WatchedLoops>>,
    /// The loops that wait are updated whole intervals after this time, all at once: each of them for
    /// itself would wake the process up several times in a second.
    start: Instant,
    /// A loop without an update for this time hangs.
    stalled_after: Duration,
}

impl Default for LoopPulses {
    /// With the limit [`STALLED`].
    fn default() -> Self {
        Self::stalled_after(STALLED)
    }
}

#[derive(Debug, Default)]
struct WatchedLoops {
    next: u64,
    loops: BTreeMap<u64, (&'static str, Instant)>,
}

impl LoopPulses {
    /// For loops whose rounds take much less than `limit`, instead of [`STALLED`].
    pub fn stalled_after(limit: Duration) -> Self {
        Self {
            seen: Arc::default(),
            start: Instant::now(),
            stalled_after: limit,
        }
    }

    /// Watches a loop until its pulse is dropped.
    pub fn watch(&self, name: &'static str) -> LoopPulse {
        let mut seen = self.seen.lock();
        seen.next += 1;
        let number = seen.next;
        seen.loops.insert(number, (name, Instant::now()));
        drop(seen);
        LoopPulse {
            pulses: self.clone(),
            name,
            number,
        }
    }

    /// The next time at which the loops that wait are updated.
    fn next_update(&self) -> Instant {
        let interval = INTERVAL.min(self.stalled_after / 4);
        let now = Instant::now();
        let since = now.saturating_duration_since(self.start).as_nanos();
        let into = since.checked_rem(interval.as_nanos()).unwrap_or(0);
        let into = Duration::from_nanos(u64::try_from(into).unwrap_or(0));
        now + interval.saturating_sub(into)
    }

    /// A loop without an update for the limit, if there is one.
    pub fn stalled(&self) -> Option<&'static str> {
        let seen = self.seen.lock();
        let mut loops = seen.loops.values();
        loops
            .find(|(_, at)| at.elapsed() >= self.stalled_after)
            .map(|(name, _)| *name)
    }

    /// Names of the watched loops.
    pub fn watched(&self) -> Vec<&'static str> {
        self.seen
            .lock()
            .loops
            .values()
            .map(|(name, _)| *name)
            .collect()
    }
}

/// The pulse of one loop. A loop that panics stays watched, and is found stalled.
#[derive(Debug)]
pub struct LoopPulse {
    pulses: LoopPulses,
    name: &'static str,
    number: u64,
}

impl LoopPulse {
    /// Records that the loop runs.
    pub fn beat(&self) {
        let now = (self.name, Instant::now());
        self.pulses.seen.lock().loops.insert(self.number, now);
    }

    /// Waits for events for any time, and keeps updating the pulse.
    pub async fn wait<F: Future>(&self, news: F) -> F::Output {
        let mut news = pin!(news);
        loop {
            self.beat();
            if let Ok(told) = timeout_at(self.pulses.next_update(), news.as_mut()).await {
                self.beat();
                return told;
            }
        }
    }

    /// Waits for the next round of a loop that follows a watched value: until it changes, or for
    /// `pause`. False when the loop has to end, because of `end` or because the value's sender is
    /// gone.
    pub async fn next_round<E>(
        &self,
        end: impl Future<Output = ()>,
        changed: impl Future<Output = Result<(), E>>,
        pause: Duration,
    ) -> bool {
        self.wait(async {
            tokio::select! {
                biased;
                () = end => false,
                changed = changed => changed.is_ok(),
                () = sleep(pause) => true,
            }
        })
        .await
    }
}

impl Drop for LoopPulse {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.pulses.seen.lock().loops.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_round_follows_a_change_or_a_pause_and_none_follows_the_end() {
        let (sender, mut receiver) = watch::channel(1);
        let pulse = LoopPulses::default().watch("rounds");
        let (never, pause) = (std::future::pending::<()>, 10 * STALLED);
        sender.send_replace(2);
        assert!(pulse.next_round(never(), receiver.changed(), pause).await);
        let began = Instant::now();
        assert!(pulse.next_round(never(), receiver.changed(), pause).await);
        assert_eq!(began.elapsed(), pause);
        let ended = async {};
        assert!(!pulse.next_round(ended, receiver.changed(), pause).await);
        drop(sender);
        assert!(!pulse.next_round(never(), receiver.changed(), pause).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_hangs_is_named_and_one_that_waits_is_not() {
        let pulses = LoopPulses::default();
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
    async fn a_shorter_limit_finds_a_loop_sooner_and_none_that_waits() {
        let limit = Duration::from_secs(8);
        let pulses = LoopPulses::stalled_after(limit);
        let waits = pulses.watch("the one that waits");
        let hangs = pulses.watch("the one that hangs");
        let waiting = tokio::spawn(async move { waits.wait(std::future::pending::<()>()).await });
        sleep(limit - Duration::from_millis(1)).await;
        assert_eq!(pulses.stalled(), None);
        sleep(Duration::from_millis(1)).await;
        assert_eq!(pulses.stalled(), Some("the one that hangs"));
        drop(hangs);
        sleep(10 * limit).await;
        assert_eq!(pulses.stalled(), None);
        waiting.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn loops_that_wait_are_updated_at_once_whenever_they_began() {
        let pulses = LoopPulses::default();
        let mut waiting = Vec::new();
        for pause in [0, 1_700, 4_900, 13_300] {
            sleep(Duration::from_millis(pause)).await;
            let pulse = pulses.watch("one of them");
            let waits = async move { pulse.wait(std::future::pending::<()>()).await };
            waiting.push(tokio::spawn(waits));
        }
        for _ in 0..3 {
            sleep(INTERVAL).await;
            let seen = pulses.seen.lock();
            let times: Vec<_> = seen.loops.values().map(|(_, at)| *at).collect();
            assert_eq!(times.len(), 4);
            assert!(times.iter().all(|at| *at == times[0]), "{times:?}");
            assert!(times[0].elapsed() <= INTERVAL);
        }
        waiting.iter().for_each(|one| one.abort());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_broke_counts_as_stalled() {
        let pulses = LoopPulses::default();
        let pulse = pulses.watch("the one that broke");
        let broken = tokio::spawn(async move {
            pulse.wait(async { panic!("as a test") }).await;
        });
        assert!(broken.await.is_err());
        sleep(STALLED).await;
        assert_eq!(pulses.stalled(), Some("the one that broke"));
    }
}
