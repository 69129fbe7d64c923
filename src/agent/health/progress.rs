//! Derives an instance's health from the results of its probes. Pure.

use serde::{Deserialize, Serialize};

use kat_types::{
    api::{Health, newer},
    resource::HealthCheck,
};

/// The health of an instance since its container started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HealthProgress {
    #[serde(deserialize_with = "newer::word")]
    pub health: Health,
    /// The error of the last probe; empty after a success.
    #[serde(default)]
    pub error: String,
    /// Successes in succession.
    #[serde(skip)]
    successes: u32,
    /// Counted failures in succession.
    #[serde(skip)]
    failures: u32,
}

impl Default for HealthProgress {
    fn default() -> Self {
        Self {
            health: Health::PendingCheck,
            error: String::new(),
            successes: 0,
            failures: 0,
        }
    }
}

impl HealthProgress {
    /// Records the result of a probe. The failure of an early probe, which was made before it was
    /// due, only sets the error and does not count.
    pub(crate) fn record(
        &mut self,
        check: &HealthCheck,
        result: Result<(), String>,
        in_turn: bool,
    ) {
        match result {
            Ok(()) => {
                self.failures = 0;
                self.error.clear();
                self.successes = self.successes.saturating_add(1);
                if self.successes >= check.success_threshold {
                    self.health = Health::Healthy;
                }
            }
            Err(error) => {
                self.successes = 0;
                self.error = error;
                self.failures = self.failures.saturating_add(u32::from(in_turn));
                if self.failures >= check.failure_threshold {
                    self.health = Health::Unhealthy;
                }
            }
        }
    }

    /// The health and the error without the counts: for reports, and for the next process of the
    /// agent.
    pub(crate) fn without_counts(&self) -> Self {
        Self {
            health: self.health,
            error: self.error.clone(),
            ..Self::default()
        }
    }

    /// Whether the instance has not been healthy since its start and the last probe failed: then
    /// probes are made early.
    pub(crate) fn is_starting(&self) -> bool {
        self.health == Health::PendingCheck && !self.error.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(success_threshold: u32, failure_threshold: u32) -> HealthCheck {
        HealthCheck {
            success_threshold,
            failure_threshold,
            ..HealthCheck::default()
        }
    }

    /// The health after each result: `+` is a success, `-` a failure, `e` a failure before the
    /// period has passed.
    fn course(check: &HealthCheck, results: &str) -> String {
        let mut progress = HealthProgress::default();
        let mut word = |result: char| {
            let outcome = if result == '+' {
                Ok(())
            } else {
                Err("no".to_owned())
            };
            progress.record(check, outcome, result != 'e');
            match progress.health {
                Health::Healthy => 'H',
                Health::Unhealthy => 'U',
                Health::PendingCheck => '.',
                Health::NotApplicable => '?',
            }
        };
        results.chars().map(&mut word).collect()
    }

    #[test]
    fn health_changes_only_at_the_threshold_of_consecutive_results() {
        for (thresholds, results, expected) in [
            ((1, 3), "+", "H"),
            ((1, 3), "--+--+---+", "..HHHHHHUH"),
            ((2, 1), "+-+", ".U"),
            ((3, 2), "++-+++-+--+++", ".....HHHHUUUH"),
            ((1, 1), "-+-", "UHU"),
        ] {
            let check = check(thresholds.0, thresholds.1);
            let course = course(&check, results);
            assert!(course.starts_with(expected), "{results}: {course}");
        }
    }

    #[test]
    fn a_failure_before_its_turn_counts_for_nothing() {
        assert_eq!(course(&check(1, 2), "-eeee-"), ".....U");
        assert_eq!(course(&check(2, 3), "e+e++"), "....H");
    }

    #[test]
    fn the_last_error_is_kept_until_a_success() {
        let mut progress = HealthProgress::default();
        let check = check(2, 9);
        progress.record(&check, Err("http 503".to_owned()), true);
        assert_eq!(progress.error, "http 503");
        assert!(progress.is_starting());
        progress.record(&check, Ok(()), true);
        assert_eq!(progress.error, "");
        assert!(!progress.is_starting(), "pending, and on its way");
        assert_eq!(progress.health, Health::PendingCheck);
    }
}
