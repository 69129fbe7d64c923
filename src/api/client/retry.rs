//! Pauses between attempts.

use std::time::Duration;

use rand::Rng;

/// Pauses that double from `first` to `limit`, each shortened by up to a quarter at random, so that
/// many clients don't come back in step.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    limit: Duration,
}

impl Backoff {
    /// Pauses from `first` to `limit`.
    pub fn new(first: Duration, limit: Duration) -> Self {
        Self {
            first: first.min(limit),
            next: first.min(limit),
            limit,
        }
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.limit);
        pause.mul_f64(rand::rng().random_range(0.75..=1.0))
    }

    /// Begins again with the first pause.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_begin_again() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        for full in [100, 200, 350, 350] {
            let pause = backoff.pause();
            assert!(pause <= Duration::from_millis(full), "{pause:?} for {full}");
            assert!(
                pause >= Duration::from_millis(full * 3 / 4),
                "{pause:?} for {full}"
            );
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(100));
    }
}
