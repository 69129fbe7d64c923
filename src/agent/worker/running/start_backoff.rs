//! A growing delay before a failed operation is retried.

use std::time::Duration;

use tokio::time::Instant;

use kat_types::backoff::Backoff;

const DELAYS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

/// The time of the next try, by this process's clock. The delay doubles from 1 s to 5 min.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RetryDelay {
    failures: u32,
    until: Option<Instant>,
}

impl RetryDelay {
    /// Records a failure and returns the delay before the next try.
    pub(crate) fn failed(&mut self, now: Instant) -> Duration {
        let delay = DELAYS.after(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.until = Some(now + delay);
        delay
    }

    /// The remaining delay, if any.
    pub(crate) fn remaining(&self, now: Instant) -> Option<Duration> {
        self.until
            .map(|until| until.saturating_duration_since(now))
            .filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn grows_to_five_minutes_and_ends() {
        let mut delay = RetryDelay::default();
        assert_eq!(delay.remaining(Instant::now()), None);
        let delays: Vec<_> = (0..11)
            .map(|_| delay.failed(Instant::now()).as_secs())
            .collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        tokio::time::advance(Duration::from_secs(299)).await;
        assert_eq!(
            delay.remaining(Instant::now()),
            Some(Duration::from_secs(1))
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(delay.remaining(Instant::now()), None);
    }
}
