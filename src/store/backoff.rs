//! Waiting times between attempts.

use std::time::Duration;

/// Doubles from `first` to `most`. No jitter: the same run waits the same times, which a
/// simulation with a seed needs, and a cluster of a hundred machines does not hurt etcd.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// Starts at `first`.
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
        }
    }

    /// How long to wait before the next attempt.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = self.next.saturating_mul(2).min(self.most);
        wait
    }

    /// Something worked: the next failure waits the first time again.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_its_cap_and_starts_again() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        let waits: Vec<_> = (0..4).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(waits, [100, 200, 350, 350]);
        backoff.reset();
        assert_eq!(backoff.next().as_millis(), 100);
    }
}
