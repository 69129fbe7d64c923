//! Which scheduled times of a Job get a run now. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::schedule::Schedule;
use kat_types::{encoding::digest::sha256_hex, resource::CatchUp};

/// A run that is made later than this after its time was missed: a change of the leader takes less.
pub const ON_TIME: SignedDuration = SignedDuration::from_secs(120);
/// Most missed times that are made up for.
const MOST: usize = 100;
/// The clock was set back by mistake if the last handled time is further ahead than this.
const CLOCK_SET_BACK: SignedDuration = SignedDuration::from_hours(1);

/// The rules of a Job's schedule.
pub(super) struct DueRules<'r> {
    pub(super) schedule: &'r Schedule,
    pub(super) catch_up: CatchUp,
    pub(super) starting_deadline: Option<u32>,
    pub(super) jitter_seconds: u32,
    /// Identity of the workload: each has delays of its own.
    pub(super) uid: &'r str,
}

/// The scheduled times since the last handled one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DueTimes {
    /// The times that get a run, oldest first.
    pub(super) runs: Vec<Timestamp>,
    /// The newest time before now that gets none.
    pub(super) missed: Option<Timestamp>,
    /// Number of the times that get none; at most about [`MOST`] are counted.
    pub(super) misses: u64,
    /// The next scheduled time that is not due yet, and when its run starts.
    pub(super) next: Option<(Timestamp, Timestamp)>,
}

/// The time until which everything is decided; `now` if a clock that was ahead wrote it.
pub(super) fn without_wrong_clock(handled: Timestamp, now: Timestamp) -> Timestamp {
    match handled.duration_since(now) > CLOCK_SET_BACK {
        true => now,
        false => handled,
    }
}

impl DueRules<'_> {
    /// The times after `handled` until `now`.
    pub(super) fn due(&self, handled: Timestamp, now: Timestamp) -> DueTimes {
        let mut due = DueTimes::default();
        let handled = without_wrong_clock(handled, now);
        // A leader that was away for a year must not count its minutes.
        let mut from = now.checked_add(SignedDuration::from_secs(1)).unwrap_or(now);
        for _ in 0..=MOST {
            match self.schedule.before(from) {
                Some(before) if before > handled => from = before,
                _ => break,
            }
        }
        let mut at = match from > now {
            true => handled,
            false => from
                .checked_sub(SignedDuration::from_secs(1))
                .unwrap_or(from),
        };
        at = at.max(handled);
        let mut missed = Vec::new();
        while let Some(time) = self.schedule.after(at) {
            let start = self.start_of(time);
            if start > now {
                due.next = Some((time, start));
                break;
            }
            at = time;
            let late = now.duration_since(start);
            let too_late = self
                .starting_deadline
                .is_some_and(|most| late > SignedDuration::from_secs(i64::from(most)));
            match (too_late, late > ON_TIME) {
                (true, _) => due.missed(time),
                (false, true) => missed.push(time),
                (false, false) => due.runs.push(time),
            }
        }
        self.make_up(&mut due, missed);
        due
    }

    /// Adds the missed times that are made up for.
    fn make_up(&self, due: &mut DueTimes, mut missed: Vec<Timestamp>) {
        let kept = match self.catch_up {
            CatchUp::None => 0,
            CatchUp::Last => usize::from(due.runs.is_empty()),
            CatchUp::All => MOST,
        };
        let made_up = missed.split_off(missed.len().saturating_sub(kept));
        for time in missed {
            due.missed(time);
        }
        due.runs.splice(0..0, made_up);
    }

    /// When the run of a time starts: up to `jitterSeconds` later, the same for each leader.
    pub(super) fn start_of(&self, time: Timestamp) -> Timestamp {
        start_of_run(time, self.uid, self.jitter_seconds)
    }
}

/// When the run of a scheduled time of the workload with this uid starts, with the delay of
/// `jitterSeconds`: the same on each machine.
pub fn start_of_run(time: Timestamp, uid: &str, jitter_seconds: u32) -> Timestamp {
    let most = u64::from(jitter_seconds);
    if most == 0 {
        return time;
    }
    let digest = sha256_hex(format!("{uid} {time}").as_bytes());
    let number = u64::from_str_radix(digest.get(..15).unwrap_or_default(), 16);
    let delay = number.map_or(0, |number| number % (most + 1));
    time.checked_add(Duration::from_secs(delay)).unwrap_or(time)
}

impl DueTimes {
    fn missed(&mut self, time: Timestamp) {
        self.misses += 1;
        self.missed = self.missed.max(Some(time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn due(
        expression: &str,
        change: impl Fn(&mut DueRules<'_>),
        handled: &str,
        now: &str,
    ) -> DueTimes {
        let schedule = Schedule::parse(expression, "UTC").unwrap();
        let mut rules = DueRules {
            schedule: &schedule,
            catch_up: CatchUp::Last,
            starting_deadline: None,
            jitter_seconds: 0,
            uid: "u",
        };
        change(&mut rules);
        rules.due(at(handled), at(now))
    }

    #[test]
    fn a_time_has_its_run_when_it_comes_and_not_before() {
        let before = due(
            "0 * * * *",
            |_| {},
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:59:59Z",
        );
        assert_eq!(before.runs, []);
        let next = at("2026-01-01T01:00:00Z");
        assert_eq!(before.next, Some((next, next)));
        let then = due(
            "0 * * * *",
            |_| {},
            "2026-01-01T00:00:00Z",
            "2026-01-01T01:00:00Z",
        );
        assert_eq!((then.runs, then.misses), (vec![next], 0));
    }

    #[test]
    fn of_a_week_of_missed_minutes_the_last_one_is_made_up_for() {
        let of = |catch_up| {
            let change = |rules: &mut DueRules<'_>| rules.catch_up = catch_up;
            due(
                "* * * * *",
                change,
                "2026-01-01T00:00:00Z",
                "2026-01-08T00:02:30Z",
            )
        };
        // Two of them are still on time.
        let last = of(CatchUp::Last);
        assert_eq!(
            last.runs,
            [at("2026-01-08T00:01:00Z"), at("2026-01-08T00:02:00Z")]
        );
        assert_eq!(last.missed, Some(at("2026-01-08T00:00:00Z")));
        let all = of(CatchUp::All);
        assert!(
            (100..=MOST + 2).contains(&all.runs.len()),
            "{}",
            all.runs.len()
        );
        assert!(all.runs.is_sorted());
        assert_eq!(of(CatchUp::None).runs.len(), 2);
    }

    #[test]
    fn a_missed_night_is_made_up_for_unless_it_is_too_old() {
        let (handled, now) = ("2026-01-01T02:00:00Z", "2026-01-04T14:00:00Z");
        let last = due("0 2 * * *", |_| {}, handled, now);
        assert_eq!(
            (last.runs, last.misses),
            (vec![at("2026-01-04T02:00:00Z")], 2)
        );
        let young = |rules: &mut DueRules<'_>| rules.starting_deadline = Some(3600);
        let none = due("0 2 * * *", young, handled, now);
        assert_eq!((none.runs, none.misses), (vec![], 3));
        assert_eq!(none.missed, Some(at("2026-01-04T02:00:00Z")));
    }

    #[test]
    fn a_delay_is_the_same_for_each_leader_and_within_its_bound() {
        let schedule = Schedule::parse("* * * * *", "UTC").unwrap();
        let rules = DueRules {
            schedule: &schedule,
            catch_up: CatchUp::Last,
            starting_deadline: None,
            jitter_seconds: 30,
            uid: "u",
        };
        let mut time = at("2026-01-01T00:00:00Z");
        let mut delays = std::collections::BTreeSet::new();
        for _ in 0..200 {
            time = schedule.after(time).unwrap();
            let start = rules.start_of(time);
            assert_eq!(start, rules.start_of(time));
            let delay = start.duration_since(time).as_secs();
            assert!((0..=30).contains(&delay), "{delay}");
            delays.insert(delay);
        }
        assert!(delays.len() > 20, "{delays:?}");
    }

    #[test]
    fn a_clock_that_goes_back_a_little_repeats_no_time() {
        let repeated = due(
            "* * * * *",
            |_| {},
            "2026-01-01T00:10:00Z",
            "2026-01-01T00:07:30Z",
        );
        assert_eq!(repeated.runs, []);
        assert_eq!(
            repeated.next.map(|(time, _)| time),
            Some(at("2026-01-01T00:11:00Z"))
        );
        // After years the schedule does not wait for the wrong time.
        let years = due(
            "* * * * *",
            |_| {},
            "2031-01-01T00:10:00Z",
            "2026-01-01T00:07:30Z",
        );
        assert_eq!(
            years.next.map(|(time, _)| time),
            Some(at("2026-01-01T00:08:00Z"))
        );
    }
}
