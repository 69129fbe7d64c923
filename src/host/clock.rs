//! Time, as the machine's or a test's.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

/// Two clocks: one that people read and that can be set, one that only goes forward.
pub trait Clock: Send + Sync {
    /// Time of day.
    fn now(&self) -> SystemTime;

    /// Time since some fixed point; stands still for no setting of the clock.
    fn monotonic(&self) -> Duration;
}

/// The machine's clock. Its monotonic side follows tokio's time, which tests pause.
#[derive(Debug, Clone)]
pub struct SystemClock {
    begin: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            begin: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn monotonic(&self) -> Duration {
        self.begin.elapsed()
    }
}

/// A clock that stands until it is moved.
#[derive(Debug)]
pub struct FakeClock {
    state: Mutex<(SystemTime, Duration)>,
}

impl FakeClock {
    /// It shows `now`, and zero on the monotonic side.
    pub fn new(now: SystemTime) -> Self {
        Self {
            state: Mutex::new((now, Duration::ZERO)),
        }
    }

    /// Both sides go on.
    pub fn advance(&self, time: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += time;
        state.1 += time;
    }

    /// Somebody sets the time of day.
    pub fn set(&self, now: SystemTime) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = now;
    }
}

impl Clock for FakeClock {
    fn now(&self) -> SystemTime {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn monotonic(&self) -> Duration {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_the_clock_leaves_the_monotonic_side() {
        let clock = FakeClock::new(SystemTime::UNIX_EPOCH);
        clock.advance(Duration::from_secs(5));
        clock.set(SystemTime::UNIX_EPOCH);
        assert_eq!(clock.now(), SystemTime::UNIX_EPOCH);
        assert_eq!(clock.monotonic(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn the_machines_clock_follows_paused_time() {
        let clock = SystemClock::default();
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(clock.monotonic(), Duration::from_secs(7));
    }
}
