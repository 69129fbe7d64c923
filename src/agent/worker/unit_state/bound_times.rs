//! What a machine decides about the times of a schedule that it keeps by itself, from the lines that the
//! unit's gate wrote, and what it reports of them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use kat_plan::{ON_TIME, Schedule, ScheduleError, start_of_run};
use kat_types::{
    api::{BoundReport, BoundRun, MOST_BOUND_RUNS},
    assignment::BoundSchedule,
    machine::bound_runs::{
        GateEnd, GateRun, INTERRUPTED, RunLine, RunTable, TableTime, file_time, gate_runs,
    },
    reason::Reason,
    store::jobs::{AttemptEnd, SkippedRun},
};

/// Times of a new table that are still to come.
const MOST_AHEAD: usize = 64;
/// A table with fewer times to come is written anew.
const FEWEST_AHEAD: usize = 32;
/// Seconds beyond which a time counts as missed that the gate has not decided. The gate refuses earlier.
const MARGIN: i64 = 10;
/// Seconds by which the `handled` of a table may be ahead of the clock: a wrong clock wrote a later one.
const MOST_HANDLED_AHEAD: i64 = 3600;
/// Most times that one pass decides, and that one report counts.
const MOST_DECIDED: usize = 500;

/// The times of one instance's schedule.
#[derive(Debug)]
pub(crate) struct BoundTimes<'b> {
    bound: &'b BoundSchedule,
    /// Identity of the workload, which the delays follow from.
    uid: &'b str,
    schedule: Schedule,
}

impl<'b> BoundTimes<'b> {
    pub(crate) fn new(bound: &'b BoundSchedule, uid: &'b str) -> Result<Self, ScheduleError> {
        let schedule = Schedule::parse(&bound.schedule, &bound.time_zone)?;
        Ok(Self {
            bound,
            uid,
            schedule,
        })
    }

    /// The table from `now` on: the present one with another `handled`, or a new one where too few of its
    /// times are left, or the clock has been set. That of a schedule that is taken back has no times.
    pub(crate) fn table(
        &self,
        present: Option<&RunTable>,
        lines: &[RunLine],
        now: Timestamp,
    ) -> RunTable {
        let seconds = now.as_second();
        let next = self.schedule.after(now).map(Timestamp::as_second);
        let is_good = |table: &&RunTable| {
            let ahead = table.times.iter().map(|time| time.scheduled);
            let ahead: Vec<i64> = ahead.filter(|scheduled| *scheduled > seconds).collect();
            ahead.len() >= FEWEST_AHEAD && ahead.iter().min().copied() == next
        };
        let times = match present.filter(is_good) {
            _ if self.bound.closed => Vec::new(),
            Some(table) => table.times.clone(),
            None => self.new_times(now),
        };
        // The lines were read after that table was written: no run without a line begins any more.
        let begins = match present.is_some_and(|table| table.times.is_empty()) {
            true if self.bound.closed => Begins::Never,
            _ => Begins::ByTimer,
        };
        let handled = self.handled(present, seconds);
        RunTable {
            handled: self.decided_until(handled, lines, seconds, begins),
            late: self.late(),
            times,
        }
    }

    /// The time until which everything is decided, of an instance whose unit is gone.
    pub(crate) fn decided_without_unit(
        &self,
        present: Option<&RunTable>,
        lines: &[RunLine],
        now: Timestamp,
    ) -> i64 {
        let seconds = now.as_second();
        let handled = self.handled(present, seconds);
        self.decided_until(handled, lines, seconds, Begins::Never)
    }

    /// What a table with a file of runs that is lost has as decided: times until now may have had a run.
    pub(crate) fn without_runs(&self, present: Option<&RunTable>, now: Timestamp) -> RunTable {
        let seconds = now.as_second();
        RunTable {
            handled: self.handled(present, seconds).max(seconds),
            late: self.late(),
            times: present.map_or_else(Vec::new, |table| table.times.clone()),
        }
    }

    /// The later one of what the table and the assignment have as decided. A table of a clock that was far
    /// ahead counts for nothing.
    pub(crate) fn handled(&self, present: Option<&RunTable>, now: i64) -> i64 {
        let latest = now.saturating_add(MOST_HANDLED_AHEAD);
        let present = present.map(|table| table.handled);
        let present = present.filter(|handled| *handled <= latest);
        let assigned = self.bound.handled.as_second();
        present.map_or(assigned, |handled| handled.max(assigned))
    }

    /// The next time, for people.
    pub(crate) fn next(&self, now: Timestamp) -> Option<Timestamp> {
        self.schedule.after(now)
    }

    fn late(&self) -> i64 {
        let most = ON_TIME.as_secs();
        let own = self.bound.starting_deadline_seconds;
        own.map_or(most, |seconds| most.min(i64::from(seconds)))
    }

    fn start(&self, scheduled: Timestamp) -> i64 {
        start_of_run(scheduled, self.uid, self.bound.jitter_seconds).as_second()
    }

    /// Times that may still begin, and those to come. A time that passes while the manager reads the
    /// timer fires late instead of never.
    fn new_times(&self, now: Timestamp) -> Vec<TableTime> {
        let recent = ON_TIME.as_secs() + i64::from(self.bound.jitter_seconds);
        let recent = SignedDuration::from_secs(recent);
        let mut at = now.checked_sub(recent).unwrap_or(now);
        let mut times = Vec::new();
        let mut ahead = 0;
        while ahead < MOST_AHEAD {
            let Some(next) = self.schedule.after(at) else {
                break;
            };
            ahead += usize::from(next > now);
            at = next;
            times.push(TableTime {
                start: self.start(next),
                scheduled: next.as_second(),
            });
        }
        times
    }

    /// The time after `handled` until which everything is decided: each time has a run that is over, was
    /// skipped, or is so long ago that the gate refuses it. Where nothing begins any more, times before
    /// the newest run are decided as well.
    fn decided_until(&self, handled: i64, lines: &[RunLine], now: i64, begins: Begins) -> i64 {
        let runs = gate_runs(lines);
        let runs = by_time(&runs);
        let skipped = skipped_times(lines);
        let newest = match begins {
            Begins::Never => runs.range(..=now).map(|(time, _)| *time).next_back(),
            Begins::ByTimer => None,
        };
        let mut decided = handled;
        for _ in 0..MOST_DECIDED {
            let Some(next) = self.after(decided) else {
                break;
            };
            let scheduled = next.as_second();
            // Lines about times to come are of a wrong clock, or the user's own.
            if scheduled > now {
                break;
            }
            let is_decided = match runs.get(&scheduled) {
                Some(run) => run.end.is_some(),
                None => {
                    let late = now.saturating_sub(self.start(next));
                    skipped.contains(&scheduled)
                        || late > self.late() + MARGIN
                        || newest.is_some_and(|newest| scheduled < newest)
                }
            };
            if !is_decided {
                break;
            }
            decided = scheduled;
        }
        decided
    }

    fn after(&self, seconds: i64) -> Option<Timestamp> {
        self.schedule.after(file_time(seconds)?)
    }

    /// What the leader has to know. `decided` is the table's `handled`; `idle` says that nothing runs or
    /// begins any more.
    pub(crate) fn report(
        &self,
        decided: i64,
        lines: &[RunLine],
        now: Timestamp,
        idle: bool,
    ) -> BoundReport {
        let runs = gate_runs(lines);
        let runs = by_time(&runs);
        let skipped = skipped_times(lines);
        let mut report = self.empty_report();
        let mut at = self.bound.handled.as_second();
        let mut is_whole = false;
        for _ in 0..MOST_DECIDED {
            let next = self.after(at).filter(|next| next.as_second() <= decided);
            let Some(next) = next else {
                is_whole = true;
                break;
            };
            let scheduled = next.as_second();
            match runs.get(&scheduled).filter(|run| run.end.is_some()) {
                // One place is left for the run that is active.
                Some(_) if report.runs.len() + 1 >= MOST_BOUND_RUNS => break,
                Some(run) => report.runs.extend(reported(run)),
                None => {
                    report.skips += 1;
                    report.skipped = Some(self.skip(next, skipped.contains(&scheduled)));
                }
            }
            report.handled = next;
            at = scheduled;
        }
        // Those that are to come are of a wrong clock, or the user's own. Whether one of them is active is
        // known from the unit.
        let now = now.as_second();
        let later = runs.values().filter(|run| run.scheduled > at);
        let later = later.filter(|run| run.scheduled <= now && self.has_time(run.scheduled));
        let later: Vec<&GateRun> = later.copied().collect();
        let active = later.iter().find(|run| run.end.is_none());
        report.runs.extend(active.and_then(|run| reported(run)));
        // The leader would begin the time of a run that it does not know of.
        report.idle = idle && is_whole && later.is_empty();
        report
    }

    /// A report that decides nothing.
    pub(crate) fn empty_report(&self) -> BoundReport {
        BoundReport {
            from: self.bound.handled,
            handled: self.bound.handled,
            ..BoundReport::default()
        }
    }

    /// The last report of an instance whose unit is gone and whose file of runs is lost: times until now
    /// may have had a run.
    pub(crate) fn lost_report(&self, now: Timestamp) -> BoundReport {
        let handled = now.max(self.bound.handled);
        BoundReport {
            handled,
            skips: 1,
            skipped: Some(SkippedRun {
                scheduled: handled,
                reason: Reason::RunMissed.into(),
                message: "the file in which its machine wrote its runs is too large to be read: \
                    whether earlier times had a run is not known"
                    .to_owned(),
            }),
            idle: true,
            ..self.empty_report()
        }
    }

    fn has_time(&self, scheduled: i64) -> bool {
        let next = scheduled.checked_sub(1).and_then(|at| self.after(at));
        next.is_some_and(|next| next.as_second() == scheduled)
    }

    fn skip(&self, scheduled: Timestamp, overlapped: bool) -> SkippedRun {
        let (reason, message) = match overlapped {
            true => (
                Reason::RunOverlapped,
                "another run was active, and concurrencyPolicy is Forbid".to_owned(),
            ),
            false => (
                Reason::RunMissed,
                format!(
                    "its machine did not begin it within {} s, and catchUp is None",
                    self.late()
                ),
            ),
        };
        SkippedRun {
            scheduled,
            reason: reason.into(),
            message,
        }
    }
}

/// Whether the gate may still let a run begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begins {
    ByTimer,
    Never,
}

fn by_time(runs: &[GateRun]) -> BTreeMap<i64, &GateRun> {
    runs.iter().map(|run| (run.scheduled, run)).collect()
}

fn skipped_times(lines: &[RunLine]) -> BTreeSet<i64> {
    let skipped = lines.iter().filter_map(|line| match line {
        RunLine::Skip { scheduled, .. } => Some(*scheduled),
        RunLine::Begin { .. } | RunLine::End { .. } => None,
    });
    skipped.collect()
}

/// A run of the file as it is reported; `None` where its times are none.
fn reported(run: &GateRun) -> Option<BoundRun> {
    let end = match &run.end {
        Some(end) => Some(attempt_end(end)?),
        None => None,
    };
    Some(BoundRun {
        scheduled: file_time(run.scheduled)?,
        started: file_time(run.began)?,
        end,
    })
}

fn attempt_end(end: &GateEnd) -> Option<AttemptEnd> {
    let exit_code: Option<i32> = match end.code.as_str() {
        "exited" => end.status.parse().ok(),
        _ => None,
    };
    let succeeded = end.result == "success" && exit_code == Some(0);
    let (reason, message) = match (end.result.as_str(), exit_code) {
        _ if succeeded => (None, String::new()),
        (INTERRUPTED, _) => (
            Some(Reason::Interrupted),
            "it was stopped before its program ended, as by a power cut, and is not started again"
                .to_owned(),
        ),
        ("timeout", _) => (
            Some(Reason::DeadlineExceeded),
            "it was ended at the deadline of its run, or did not start within its time".to_owned(),
        ),
        ("oom-kill", _) => (
            Some(Reason::ProgramFailed),
            "the kernel ended the program: it used more memory than its limit".to_owned(),
        ),
        (_, Some(code)) if code > 128 => (
            Some(Reason::ProgramFailed),
            format!("the program was ended by signal {}", code - 128),
        ),
        (_, Some(code)) => (
            Some(Reason::ProgramFailed),
            format!("the program ended with exit code {code}"),
        ),
        (result, None) => (
            Some(Reason::ProgramFailed),
            format!("the unit ended with result {result}"),
        ),
    };
    Some(AttemptEnd {
        at: file_time(end.at)?,
        succeeded,
        exit_code,
        reason: Reason::word_or_empty(reason).to_owned(),
        message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::machine::bound_runs::run_lines;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn second(text: &str) -> i64 {
        at(text).as_second()
    }

    fn bound() -> BoundSchedule {
        BoundSchedule {
            schedule: "* * * * *".to_owned(),
            time_zone: "UTC".to_owned(),
            handled: at("2026-11-30T12:00:00.5Z"),
            ..BoundSchedule::default()
        }
    }

    fn run(scheduled: &str, seconds: i64, end: &str) -> String {
        let begin = second(scheduled);
        let id = begin - second("2026-11-30T12:00:00Z");
        format!(
            "begin {begin} {begin} i{id}\nend i{id} {} {end}\n",
            begin + seconds
        )
    }

    #[test]
    fn a_table_keeps_its_times_until_few_are_left_or_the_clock_is_set() {
        let bound = bound();
        let times = BoundTimes::new(&bound, "u").unwrap();
        let now = at("2026-11-30T12:00:30Z");
        let first = times.table(None, &[], now);
        assert_eq!(
            (first.handled, first.late),
            (second("2026-11-30T12:00:00Z"), 120)
        );
        // Those of the last two minutes as well.
        assert_eq!(first.times[0].scheduled, second("2026-11-30T11:59:00Z"));
        assert_eq!(first.times.len(), 66);
        let half = times.table(Some(&first), &[], at("2026-11-30T12:32:30Z"));
        assert_eq!(half.times, first.times);
        let later = times.table(Some(&first), &[], at("2026-11-30T12:33:30Z"));
        assert_eq!(later.times[0].scheduled, second("2026-11-30T12:32:00Z"));
        let back = times.table(Some(&first), &[], at("2026-11-30T10:00:00Z"));
        assert_eq!(back.times[1].scheduled, second("2026-11-30T10:00:00Z"));
        assert_eq!(back.handled, first.handled);
    }

    #[test]
    fn times_are_decided_in_their_order_and_an_active_run_holds_the_later_ones_up() {
        let bound = bound();
        let times = BoundTimes::new(&bound, "u").unwrap();
        let now = at("2026-11-30T12:03:30Z");
        let mut text = run("2026-11-30T12:01:00Z", 5, "success exited 0");
        text.push_str(&format!(
            "begin {0} {0} x\n",
            second("2026-11-30T12:02:00Z")
        ));
        let lines = run_lines(&text);
        let table = times.table(None, &lines, now);
        assert_eq!(table.handled, second("2026-11-30T12:01:00Z"));
        let report = times.report(table.handled, &lines, now, false);
        assert_eq!(report.handled, at("2026-11-30T12:01:00Z"));
        assert_eq!(report.from, bound.handled);
        let ends: Vec<_> = report.runs.iter().map(|run| run.end.is_some()).collect();
        assert_eq!(ends, [true, false]);
        // It is not idle as long as that one has no end.
        assert!(!times.report(table.handled, &lines, now, true).idle);
    }

    #[test]
    fn times_that_nothing_began_are_missed_once_the_gate_refuses_them() {
        let bound = bound();
        let times = BoundTimes::new(&bound, "u").unwrap();
        let skip = format!("skip {} 1\n", second("2026-11-30T12:02:00Z"));
        let lines = run_lines(&skip);
        // 12:01 may still begin.
        let early = times.table(None, &lines, at("2026-11-30T12:03:05Z"));
        assert_eq!(early.handled, second("2026-11-30T12:00:00Z"));
        let now = at("2026-11-30T12:03:11Z");
        let table = times.table(None, &lines, now);
        assert_eq!(table.handled, second("2026-11-30T12:02:00Z"));
        let report = times.report(table.handled, &lines, now, true);
        assert_eq!((report.skips, report.idle), (2, true));
        let skipped = report.skipped.unwrap();
        assert_eq!(skipped.reason, "RunOverlapped");
        // Set back, the clock opens no time again.
        let back = times.table(Some(&table), &[], at("2026-11-30T12:01:00Z"));
        assert_eq!(back.handled, table.handled);
    }

    #[test]
    fn a_report_has_a_bounded_number_of_runs_and_is_not_idle_before_the_last() {
        let bound = bound();
        let times = BoundTimes::new(&bound, "u").unwrap();
        let text: String = (1..30)
            .map(|minute| {
                run(
                    &format!("2026-11-30T12:{minute:02}:00Z"),
                    1,
                    "exit-code exited 3",
                )
            })
            .collect();
        let lines = run_lines(&text);
        let now = at("2026-11-30T12:29:30Z");
        let table = times.table(None, &lines, now);
        let report = times.report(table.handled, &lines, now, true);
        assert_eq!(report.runs.len(), MOST_BOUND_RUNS - 1);
        assert_eq!(report.handled, at("2026-11-30T12:19:00Z"));
        assert!(!report.idle);
        let end = report.runs[0].end.as_ref().unwrap();
        assert_eq!(
            (end.exit_code, end.reason.as_str()),
            (Some(3), "ProgramFailed")
        );
        let rest = BoundSchedule {
            handled: report.handled,
            ..bound.clone()
        };
        let rest = BoundTimes::new(&rest, "u").unwrap();
        let report = rest.report(table.handled, &lines, now, true);
        assert_eq!((report.runs.len(), report.idle), (10, true));
    }

    /// 12:01 is undecided: nothing began it, and it is not two minutes ago. 12:02 has had its run.
    fn with_a_gap() -> (Vec<RunLine>, Timestamp) {
        let lines = run_lines(&run("2026-11-30T12:02:00Z", 5, "success exited 0"));
        (lines, at("2026-11-30T12:02:30Z"))
    }

    #[test]
    fn a_run_after_a_time_that_is_undecided_keeps_a_schedule_from_being_idle() {
        let bound = bound();
        let times = BoundTimes::new(&bound, "u").unwrap();
        let (lines, now) = with_a_gap();
        let table = times.table(None, &lines, now);
        assert_eq!(table.handled, second("2026-11-30T12:00:00Z"));
        let report = times.report(table.handled, &lines, now, true);
        assert!(!report.idle);
        assert!(report.runs.is_empty());
    }

    #[test]
    fn once_nothing_begins_any_more_times_before_the_newest_run_are_decided() {
        let bound = BoundSchedule {
            closed: true,
            ..bound()
        };
        let times = BoundTimes::new(&bound, "u").unwrap();
        let (lines, now) = with_a_gap();
        // The gate may have begun 12:01 by the table that has it.
        let full = RunTable {
            handled: second("2026-11-30T12:00:00Z"),
            late: 120,
            times: vec![TableTime {
                start: second("2026-11-30T12:01:00Z"),
                scheduled: second("2026-11-30T12:01:00Z"),
            }],
        };
        let cleared = times.table(Some(&full), &lines, now);
        assert_eq!((cleared.handled, cleared.times.len()), (full.handled, 0));
        let table = times.table(Some(&cleared), &lines, now);
        assert_eq!(table.handled, second("2026-11-30T12:02:00Z"));
        assert_eq!(times.decided_without_unit(None, &lines, now), table.handled);
        let report = times.report(table.handled, &lines, now, true);
        assert_eq!((report.runs.len(), report.skips, report.idle), (1, 1, true));
        assert_eq!(report.handled, at("2026-11-30T12:02:00Z"));
    }

    #[test]
    fn lines_and_a_table_of_a_clock_that_was_ahead_decide_nothing_and_hold_nothing_up() {
        let bound = bound();
        let times = BoundTimes::new(&bound, "u").unwrap();
        let now = at("2026-11-30T12:00:30Z");
        let lines = run_lines(&run("2026-11-30T12:01:00Z", 1, "success exited 0"));
        let table = times.table(None, &lines, now);
        assert_eq!(table.handled, second("2026-11-30T12:00:00Z"));
        assert!(times.report(table.handled, &lines, now, true).idle);
        let ahead = RunTable {
            handled: second("2026-12-24T00:00:00Z"),
            ..table.clone()
        };
        assert_eq!(times.table(Some(&ahead), &[], now), table);
    }

    #[test]
    fn a_file_of_runs_that_is_lost_decides_all_times_until_now() {
        let bound = bound();
        let times = BoundTimes::new(&bound, "u").unwrap();
        let now = at("2026-11-30T12:05:30Z");
        let table = times.without_runs(None, now);
        assert_eq!(times.table(Some(&table), &[], now).handled, now.as_second());
        let report = times.lost_report(now);
        assert_eq!((report.from, report.handled), (bound.handled, now));
        assert!(report.idle);
    }

    #[test]
    fn only_a_program_that_ended_with_0_has_succeeded() {
        for (end, succeeded, reason) in [
            ("success exited 0", true, ""),
            ("success killed TERM", false, "ProgramFailed"),
            ("success - -", false, "ProgramFailed"),
            ("timeout killed KILL", false, "DeadlineExceeded"),
            ("interrupted - -", false, "Interrupted"),
            ("exit-code exited 137", false, "ProgramFailed"),
        ] {
            let lines = run_lines(&run("2026-11-30T12:01:00Z", 1, end));
            let runs = gate_runs(&lines);
            let found = attempt_end(runs[0].end.as_ref().unwrap()).unwrap();
            assert_eq!(
                (found.succeeded, found.reason.as_str()),
                (succeeded, reason),
                "{end}"
            );
        }
    }
}
