//! Pauses between attempts.

use std::time::Duration;

use kat_types::backoff::{Backoff, Pauses};

/// Maximum part of a pause that a random number takes away.
const JITTER: f64 = 0.25;

/// Doubling pauses, each shortened by up to a quarter at random, so that many clients do not retry
/// at the same time.
#[derive(Debug, Clone)]
pub struct RetryPauses(Pauses);

impl RetryPauses {
    /// Pauses from `first` to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self(Backoff::new(first, most).with_jitter(JITTER).pauses())
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        self.0.next_jittered(rand::random())
    }

    /// Starts again with the first pause.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_at_most_a_quarter_shorter_than_its_doubled_length() {
        let mut pauses = RetryPauses::new(Duration::from_millis(100), Duration::from_millis(350));
        for full in [100, 200, 350, 350] {
            let pause = pauses.pause();
            assert!(pause <= Duration::from_millis(full), "{pause:?} for {full}");
            assert!(
                pause >= Duration::from_millis(full * 3 / 4),
                "{pause:?} for {full}"
            );
        }
        pauses.reset();
        assert!(pauses.pause() <= Duration::from_millis(100));
    }
}
