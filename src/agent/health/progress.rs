//! What the results of probes make of an instance's health. Pure.

use serde::{Deserialize, Serialize};

use kat_types::{
    api::{Health, newer},
    resource::HealthCheck,
};

/// Where an instance stands with its health check since its container started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Healthy, unhealthy, or not known yet.
    #[serde(deserialize_with = "newer::word")]
    pub health: Health,
    /// What the last probe that failed said; empty after one that succeeded.
    #[serde(default)]
    pub error: String,
    /// Successes in a row.
    #[serde(skip)]
    successes: u32,
    /// Failures in a row that count.
    #[serde(skip)]
    failures: u32,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            health: Health::PendingCheck,
            error: String::new(),
            successes: 0,
            failures: 0,
        }
    }
}

impl Progress {
    /// Takes the result of a probe in. A failure of one that was made before its turn says why the
    /// instance is not healthy yet, and counts for nothing.
    pub fn record(&mut self, check: &HealthCheck, result: Result<(), String>, in_turn: bool) {
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

    /// Without its counts: what is told, and what the next process of the agent has to know.
    pub fn told(&self) -> Self {
        Self {
            health: self.health,
            error: self.error.clone(),
            ..Self::default()
        }
    }

    /// It has not been healthy since its start, and the last probe failed: worth asking again soon.
    pub fn is_starting(&self) -> bool {
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

    /// The health after each result: `+` succeeds, `-` fails, `e` fails before its turn.
    fn course(check: &HealthCheck, results: &str) -> String {
        let mut progress = Progress::default();
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
    fn so_many_in_a_row_change_it_and_no_fewer() {
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
        let mut progress = Progress::default();
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
