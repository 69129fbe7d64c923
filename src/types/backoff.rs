//! Pauses between attempts, each twice as long as the one before. Pure computation: the caller has
//! the clock and the randomness, so that a simulation with a seed is reproducible.

use std::time::Duration;

/// How pauses grow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub most: Duration,
    /// The maximum part of a pause, from 0 to 1, that a random number may take away, so that many
    /// callers do not retry at the same time.
    pub jitter: f64,
}

/// Pauses between the attempts of a Job's run, of the leader and of a machine that begins its runs by itself.
pub const RUN_PAUSES: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(360));

impl Backoff {
    /// Doubles from `first` to `most`, without jitter.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            jitter: 0.0,
        }
    }

    /// The same pauses with jitter.
    #[must_use]
    pub const fn with_jitter(self, jitter: f64) -> Self {
        Self { jitter, ..self }
    }

    /// The full pause after a failure, with `earlier` failures before it.
    pub fn after(&self, earlier: u32) -> Duration {
        let times = 1_u32.checked_shl(earlier).unwrap_or(u32::MAX);
        self.first.saturating_mul(times).min(self.most)
    }

    /// The sequence of pauses, starting with the first.
    pub const fn pauses(self) -> Pauses {
        Pauses {
            backoff: self,
            failures: 0,
        }
    }
}

/// The sequence of pauses of one caller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pauses {
    backoff: Backoff,
    failures: u32,
}

impl Pauses {
    /// The next pause without jitter.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.backoff.after(self.failures);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// The next pause, shortened by `chance` times the jitter. `chance` is a random number from 0
    /// to 1.
    pub fn next_jittered(&mut self, chance: f64) -> Duration {
        let taken = (self.backoff.jitter * chance).clamp(0.0, 1.0);
        self.next_pause().mul_f64(1.0 - taken)
    }

    /// Called after a success: the next pause is the first again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again() {
        let mut pauses = BACKOFF.pauses();
        let first: Vec<_> = (0..4).map(|_| pauses.next_pause().as_millis()).collect();
        assert_eq!(first, [100, 200, 350, 350]);
        pauses.reset();
        assert_eq!(pauses.next_pause().as_millis(), 100);
    }

    #[test]
    fn chance_shortens_a_pause_by_the_jitter_at_most() {
        let mut pauses = BACKOFF.with_jitter(0.25).pauses();
        assert_eq!(pauses.next_jittered(0.0), Duration::from_millis(100));
        assert_eq!(pauses.next_jittered(1.0), Duration::from_millis(150));
        assert_eq!(pauses.next_pause(), Duration::from_millis(350));
        let mut whole = BACKOFF.pauses();
        assert_eq!(whole.next_jittered(1.0), Duration::from_millis(100));
    }

    #[test]
    fn any_number_of_failures_gives_the_longest_pause_at_most() {
        for earlier in [2, 16, 31, 32, u32::MAX] {
            assert_eq!(BACKOFF.after(earlier), BACKOFF.most);
        }
        let endless = Backoff::new(Duration::from_secs(1), Duration::MAX);
        assert_eq!(endless.after(40), Duration::from_secs(u32::MAX.into()));
    }
}
