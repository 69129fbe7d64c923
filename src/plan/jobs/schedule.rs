//! The times of a schedule: a cron expression in a time zone.
//!
//! At a change of the clocks, a time that does not exist is the next one that does, and one that exists
//! twice is the first of both; a schedule with `*` or a step for minutes or hours follows the hours
//! that pass instead. Time zones are compiled in, so that every leader has the same.

use std::sync::LazyLock;

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::{
    SignedDuration, Timestamp, Zoned,
    tz::{TimeZone, TimeZoneDatabase},
};

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The times at which a Job is due.
#[derive(Debug, Clone)]
pub struct Schedule {
    cron: Cron,
    zone: TimeZone,
}

/// Why a schedule has no times.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The expression is not one of crontab(5).
    #[error("schedule `{expression}` is no cron expression: {reason}")]
    Expression {
        /// The expression.
        expression: String,
        /// What the parser says.
        reason: String,
    },
    /// No time zone has this name.
    #[error("time zone `{0}` does not exist")]
    TimeZone(String),
    /// The expression has no time, such as 30 February.
    #[error("schedule `{0}` never comes")]
    Never(String),
}

impl Schedule {
    /// Reads an expression of five fields, or a name such as `@daily`.
    ///
    /// # Errors
    /// [`ScheduleError::Expression`] and [`ScheduleError::TimeZone`].
    pub fn parse(expression: &str, time_zone: &str) -> Result<Self, ScheduleError> {
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let cron = parser
            .parse(expression)
            .map_err(|error| ScheduleError::Expression {
                expression: expression.to_owned(),
                reason: error.to_string(),
            })?;
        let zone = ZONES
            .get(time_zone)
            .map_err(|_| ScheduleError::TimeZone(time_zone.to_owned()))?;
        Ok(Self { cron, zone })
    }

    /// As [`Self::parse`], and refuses an expression that never comes after `now`.
    ///
    /// # Errors
    /// [`ScheduleError`].
    pub fn check(expression: &str, time_zone: &str, now: Timestamp) -> Result<(), ScheduleError> {
        let schedule = Self::parse(expression, time_zone)?;
        match schedule.after(now) {
            Some(_) => Ok(()),
            None => Err(ScheduleError::Never(expression.to_owned())),
        }
    }

    /// The first time later than `at`.
    pub fn after(&self, at: Timestamp) -> Option<Timestamp> {
        let from = self.zoned(at);
        let found = self.cron.find_next_occurrence(&from, false).ok()?;
        Some(found.timestamp()).filter(|found| *found > at)
    }

    /// The last time earlier than `at`.
    pub fn before(&self, at: Timestamp) -> Option<Timestamp> {
        let from = self.zoned(at);
        let found = self.cron.find_previous_occurrence(&from, false).ok()?;
        Some(found.timestamp()).filter(|found| *found < at)
    }

    /// Those of these entries, in the order of their times, that are at a time of the schedule. A rare
    /// schedule takes long to compute: its next time is computed once for all entries before it.
    pub fn with_times<T>(
        &self,
        entries: impl IntoIterator<Item = T>,
        time_of: impl Fn(&T) -> Option<Timestamp>,
    ) -> Vec<T> {
        let mut found = Vec::new();
        let mut next: Option<Timestamp> = None;
        for entry in entries {
            let Some(at) = time_of(&entry) else {
                continue;
            };
            if next.is_none_or(|next| next < at) {
                let Ok(before) = at.checked_sub(SignedDuration::from_secs(1)) else {
                    continue;
                };
                let Some(time) = self.after(before) else {
                    break;
                };
                next = Some(time);
            }
            if next == Some(at) {
                found.push(entry);
            }
        }
        found
    }

    fn zoned(&self, at: Timestamp) -> Zoned {
        at.to_zoned(self.zone.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(expression: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let schedule = Schedule::parse(expression, zone).unwrap();
        let mut at: Timestamp = from.parse().unwrap();
        let mut found = Vec::new();
        for _ in 0..count {
            at = schedule.after(at).unwrap();
            found.push(at.to_string());
        }
        found
    }

    #[test]
    fn a_time_that_does_not_exist_is_the_next_one_that_does() {
        // In Berlin the clocks go from 2 to 3 on 29 March 2026.
        assert_eq!(
            times("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3),
            [
                "2026-03-28T01:30:00Z",
                "2026-03-29T01:00:00Z",
                "2026-03-30T00:30:00Z"
            ]
        );
    }

    #[test]
    fn a_time_that_exists_twice_comes_once() {
        // In Berlin the clocks go from 3 to 2 on 25 October 2026.
        assert_eq!(
            times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
    }

    #[test]
    fn every_half_hour_is_every_half_hour_while_the_clocks_change() {
        assert_eq!(
            times("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", 4),
            [
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:00:00Z",
                "2026-10-25T01:30:00Z",
                "2026-10-25T02:00:00Z"
            ]
        );
    }

    #[test]
    fn the_times_of_a_schedule_are_found_among_others_also_where_the_clocks_change() {
        let of_weeks = [
            ("2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"),
            ("2026-10-15T00:00:00Z", "2026-11-05T00:00:00Z"),
        ];
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let second = SignedDuration::from_secs(1);
        for expression in ["30 2 * * *", "0 3 * * *", "*/30 * * * *", "15,45 0-3 * * *"] {
            for zone in ["UTC", "Europe/Berlin", "America/New_York"] {
                let schedule = Schedule::parse(expression, zone).unwrap();
                for (from, until) in of_weeks {
                    let (mut last, until) = (at(from), at(until));
                    let (mut times, mut entries) = (Vec::new(), Vec::new());
                    while let Some(next) = schedule.after(last).filter(|next| *next < until) {
                        times.push(next);
                        entries.extend([next, next.checked_add(second).unwrap()]);
                        last = next;
                    }
                    assert!(times.len() > 20, "{expression} in {zone}");
                    let found = schedule.with_times(entries, |entry| Some(*entry));
                    assert_eq!(found, times, "{expression} in {zone}");
                }
            }
        }
    }

    #[test]
    fn of_two_day_fields_either_is_enough() {
        // The first of the month, and each Monday.
        assert_eq!(
            times("0 0 1 * mon", "UTC", "2026-08-28T00:00:00Z", 3),
            [
                "2026-08-31T00:00:00Z",
                "2026-09-01T00:00:00Z",
                "2026-09-07T00:00:00Z"
            ]
        );
    }

    #[test]
    fn a_leap_day_comes_every_four_years() {
        assert_eq!(
            times("0 12 29 2 *", "UTC", "2026-01-01T00:00:00Z", 2),
            ["2028-02-29T12:00:00Z", "2032-02-29T12:00:00Z"]
        );
    }

    #[test]
    fn what_is_no_schedule_is_refused_with_its_reason() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(
            Schedule::check("0 0 30 2 *", "UTC", now)
                .unwrap_err()
                .to_string(),
            "schedule `0 0 30 2 *` never comes"
        );
        assert_eq!(
            Schedule::check("@daily", "Europe/Atlantis", now)
                .unwrap_err()
                .to_string(),
            "time zone `Europe/Atlantis` does not exist"
        );
        for wrong in ["* * * * * *", "@reboot", "61 * * * *", ""] {
            assert!(Schedule::check(wrong, "UTC", now).is_err(), "{wrong}");
        }
        assert_eq!(Schedule::check("@daily", "Europe/Berlin", now), Ok(()));
    }
}
