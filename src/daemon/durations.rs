//! Counts of durations in buckets, as a histogram of Prometheus has them.

use std::time::Duration;

/// Upper bounds of the buckets, seconds. Longer durations are in no bucket, and counted all the same.
pub const BOUNDS: [f64; 9] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// How often something took how long.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DurationCounts {
    /// Number of durations.
    pub count: u64,
    /// Sum of the durations, seconds.
    pub seconds: f64,
    /// For each of [`BOUNDS`], the durations up to it that are in no earlier bucket.
    pub buckets: [u64; BOUNDS.len()],
}

impl DurationCounts {
    /// Counts one duration.
    pub fn count(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.count = self.count.saturating_add(1);
        self.seconds += seconds;
        let mut buckets = self.buckets.iter_mut().zip(BOUNDS);
        if let Some((bucket, _)) = buckets.find(|(_, bound)| seconds <= *bound) {
            *bucket = bucket.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_holds_it_or_in_none() {
        let mut counts = DurationCounts::default();
        for milliseconds in [1, 20, 700, 60_000] {
            counts.count(Duration::from_millis(milliseconds));
        }
        assert_eq!(counts.buckets, [1, 0, 0, 1, 0, 0, 1, 0, 0]);
        assert_eq!(counts.count, 4);
        assert!((counts.seconds - 60.721).abs() < 1e-9, "{}", counts.seconds);
    }
}
