//! What a machine decides about the times of a schedule that it keeps by itself, from the lines that the
//! unit's gate wrote, and what it reports of them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use kat_plan::{ON_TIME, Schedule, ScheduleError, start_of_run};
use kat_types::{
    api::{BoundReport, BoundRun, MOST_BOUND_RUNS},
    assignment::BoundSchedule,
    backoff::RUN_PAUSES,
    machine::bound_runs::{
        GateEnd, GateRun, INTERRUPTED, MissedTime, RunLine, RunTable, TableTime, file_time,
        gate_runs,
    },
    reason::Reason,
    resource::CatchUp,
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
/// Seconds until the first start by the timer, of an attempt that is due.
const SOON: i64 = 2;
/// An attempt that has not begun for so many seconds after its start by the timer gets another start.
const START_LOST: i64 = 10;
/// Most missed times that are made up for.
const MOST_MADE_UP: usize = 100;
/// Most times that one pass decides, and that one report counts.
const MOST_DECIDED: usize = 500;
/// Seconds to come whose runs the last report has. A clock that was set wrong by a time zone is ahead by less.
const LONGEST_AHEAD: i64 = 24 * 3600;

/// The times of one instance's schedule.
#[derive(Debug)]
pub(crate) struct BoundTimes<'b> {
    bound: &'b BoundSchedule,
    /// Identity of the workload, which the delays follow from.
    uid: &'b str,
    schedule: Schedule,
    /// Seconds until a start by the timer, of an attempt that is due.
    start_pause: i64,
}

impl<'b> BoundTimes<'b> {
    pub(crate) fn new(bound: &'b BoundSchedule, uid: &'b str) -> Result<Self, ScheduleError> {
        let schedule = Schedule::parse(&bound.schedule, &bound.time_zone)?;
        Ok(Self {
            bound,
            uid,
            schedule,
            start_pause: SOON,
        })
    }

    /// The same times, where so many starts by the timer have begun nothing.
    pub(crate) fn after_lost_starts(self, lost: LostStarts) -> Self {
        Self {
            start_pause: lost.pause(),
            ..self
        }
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
        let missed = self.made_up(handled, present, lines, now);
        let mut kept = scheduled_times(&missed);
        if begins == Begins::ByTimer {
            // The gate may begin what the present table has, until it is replaced.
            kept.extend(present.map_or_else(BTreeSet::new, |table| scheduled_times(&table.missed)));
        }
        let handled = self.decided_until(handled, lines, seconds, begins, &kept);
        let mut table = self.table_without_times(handled);
        table.missed = missed;
        table.extra_start = self.extra_start(&table, present, lines, seconds);
        table.times = times;
        table
    }

    fn table_without_times(&self, handled: i64) -> RunTable {
        let retries = self.bound.backoff_limit;
        RunTable {
            handled,
            late: self.late(),
            retries,
            deadline: self.bound.deadline_seconds.filter(|_| retries > 0),
            extra_start: None,
            waits: self.bound.catch_up == Some(CatchUp::All),
            missed: Vec::new(),
            times: Vec::new(),
        }
    }

    /// The missed times that are made up for, oldest first: those that the timer did not begin and that are
    /// not too long ago, of `Last` the newest time alone.
    fn made_up(
        &self,
        handled: i64,
        present: Option<&RunTable>,
        lines: &[RunLine],
        now: Timestamp,
    ) -> Vec<MissedTime> {
        let is_last = match self.bound.catch_up {
            None | Some(CatchUp::None) => return Vec::new(),
            Some(CatchUp::Last) => true,
            Some(CatchUp::All) => false,
        };
        let seconds = now.as_second();
        let usable = present.filter(|table| self.is_usable(table, seconds));
        let has_begun = present.is_some() || !lines.is_empty();
        if usable.is_none() && has_begun {
            // Without what the table had as decided, a time whose lines are removed could run twice.
            return Vec::new();
        }
        let runs = gate_runs(lines);
        let mut found = Vec::new();
        let mut from = now.checked_add(SignedDuration::from_secs(1)).unwrap_or(now);
        for _ in 0..MOST_MADE_UP {
            let before = self.schedule.before(from);
            let Some(before) = before.filter(|before| before.as_second() > handled) else {
                break;
            };
            from = before;
            let start = self.start(before);
            if start > seconds {
                continue;
            }
            let is_missed = seconds.saturating_sub(start) > self.late() + MARGIN;
            // The gate skips a time that came during a run.
            if is_missed && !(is_last && came_during(&runs, start)) {
                let deadline = self.bound.starting_deadline_seconds.map(i64::from);
                found.push(MissedTime {
                    scheduled: before.as_second(),
                    until: deadline.map_or(i64::MAX, |deadline| start.saturating_add(deadline)),
                });
            }
            if is_last {
                break;
            }
        }
        found.reverse();
        if !is_last {
            // Those that wait already stay: newer ones are missed while there are many.
            let mut waiting = usable.map_or_else(Vec::new, |table| table.missed.clone());
            let known = scheduled_times(&waiting);
            waiting.extend(
                found
                    .into_iter()
                    .filter(|one| !known.contains(&one.scheduled)),
            );
            found = waiting;
        }
        let with_line = times_with_lines(lines);
        found.retain(|one| {
            let is_open = one.scheduled > handled && !with_line.contains(&one.scheduled);
            is_open && one.scheduled <= seconds && seconds <= one.until
        });
        found.sort_unstable_by_key(|one| one.scheduled);
        found.truncate(MOST_MADE_UP);
        found
    }

    /// When the timer starts the unit for a further attempt or a missed time. systemd starts nothing for a
    /// line of a timer that has passed, so that a start that was lost is followed by another one.
    fn extra_start(
        &self,
        table: &RunTable,
        present: Option<&RunTable>,
        lines: &[RunLine],
        now: i64,
    ) -> Option<i64> {
        if self.bound.closed {
            return None;
        }
        let runs = gate_runs(lines);
        let is_busy = runs.iter().any(|run| run.end.is_none());
        match table.next_attempt(&runs, now) {
            Some(next) if next.from > now => return Some(next.from),
            None if is_busy || table.missed.is_empty() => return None,
            Some(_) | None => {}
        }
        let ended = newest_end(&runs, now);
        let planned = present.and_then(|table| table.extra_start);
        let most_ahead = self.start_pause.max(START_LOST);
        let is_to_come = |planned: &i64| {
            let is_near = !is_lost(*planned, now) && planned.saturating_sub(now) <= most_ahead;
            is_near && ended.is_none_or(|ended| *planned > ended)
        };
        Some(
            planned
                .filter(is_to_come)
                .unwrap_or(now.saturating_add(self.start_pause)),
        )
    }

    /// The scheduled time of the run whose next attempt the gate may still let begin.
    fn awaited(&self, handled: i64, runs: &[GateRun], now: i64) -> Option<i64> {
        let table = self.table_without_times(handled);
        // The gate's clock may have been set back a little.
        let next = table.next_attempt(runs, now.saturating_sub(MARGIN))?;
        Some(next.scheduled)
    }

    /// Seconds until the deadline of a run of which a further attempt is active: systemd's limit counts from
    /// the start of each.
    pub(crate) fn seconds_left(&self, lines: &[RunLine], now: Timestamp) -> Option<i64> {
        let deadline = i64::from(self.bound.deadline_seconds?);
        let runs = gate_runs(lines);
        let run = runs.last().filter(|run| run.end.is_none())?;
        let is_further = !run.earlier.is_empty();
        let at = run.began.saturating_add(deadline);
        is_further.then(|| at.saturating_sub(now.as_second()).max(0))
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
        let missed = self.made_up(handled, present, lines, now);
        let kept = scheduled_times(&missed);
        self.decided_until(handled, lines, seconds, Begins::Never, &kept)
    }

    /// What a table with a file of runs that is lost has as decided: times until now may have had a run.
    pub(crate) fn without_runs(&self, present: Option<&RunTable>, now: Timestamp) -> RunTable {
        let seconds = now.as_second();
        let handled = self.handled(present, seconds).max(seconds);
        RunTable {
            times: present.map_or_else(Vec::new, |table| table.times.clone()),
            ..self.table_without_times(handled)
        }
    }

    /// The later one of what the table and the assignment have as decided. A table of a clock that was far
    /// ahead counts for nothing.
    pub(crate) fn handled(&self, present: Option<&RunTable>, now: i64) -> i64 {
        let assigned = self.bound.handled.as_second();
        let present = present.filter(|table| self.is_usable(table, now));
        present.map_or(assigned, |table| table.handled.max(assigned))
    }

    /// Whether what a table has as decided counts: a clock that was far ahead wrote a later time. A clock that
    /// is behind what the leader has taken says nothing about that, as that of a machine without a battery
    /// at its boot.
    fn is_usable(&self, table: &RunTable, now: i64) -> bool {
        let latest = now.saturating_add(MOST_HANDLED_AHEAD);
        table.handled <= latest || self.bound.handled.as_second() > latest
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
    /// the newest run are decided as well, and a run that failed is over.
    /// Missed times in `kept` may still have a run, of the machine or of the leader.
    fn decided_until(
        &self,
        handled: i64,
        lines: &[RunLine],
        now: i64,
        begins: Begins,
        kept: &BTreeSet<i64>,
    ) -> i64 {
        let runs = gate_runs(lines);
        let awaited = match begins {
            Begins::Never => None,
            Begins::ByTimer => self.awaited(handled, &runs, now),
        };
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
                Some(run) => run.end.is_some() && awaited != Some(scheduled),
                None => {
                    let late = now.saturating_sub(self.start(next));
                    let is_missed = late > self.late() + MARGIN && !kept.contains(&scheduled);
                    skipped.contains(&scheduled)
                        || is_missed
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
        let seconds = now.as_second();
        let awaited = self.awaited(decided, &runs, seconds);
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
                Some(run) if ends(&report.runs) + run.earlier.len() + 1 >= MOST_BOUND_RUNS => break,
                Some(run) => report
                    .runs
                    .extend(self.reported(run, AfterFailure::Nothing)),
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
        let later = runs.values().filter(|run| run.scheduled > at);
        let later = later.filter(|run| run.scheduled <= seconds);
        let later = self.with_times(later.copied());
        let is_active = |run: &&&GateRun| run.end.is_none() || awaited == Some(run.scheduled);
        let active = later.iter().find(is_active);
        let active = active.and_then(|run| self.reported(run, AfterFailure::Retry));
        // It is over once it has no further attempt.
        report.runs.extend(active.map(paused));
        // The leader would begin the time of a run that it does not know of.
        report.idle = idle && is_whole && later.is_empty();
        if report.idle {
            let ahead = self.runs_ahead(&runs, seconds);
            if ends(&report.runs) + ends(&ahead) <= MOST_BOUND_RUNS {
                report.runs.extend(ahead);
            } else {
                // The next report has room: the leader takes those that are decided first.
                report.idle = false;
            }
        }
        report
    }

    /// The next runs of times to come, as many as a report has: the clock was ahead when they began, and the
    /// leader would begin these times again. They decide nothing, so that lines of the user's own concern
    /// these times alone.
    fn runs_ahead(&self, runs: &BTreeMap<i64, &GateRun>, now: i64) -> Vec<BoundRun> {
        let taken = self.bound.handled.as_second().max(now);
        let until = now.saturating_add(LONGEST_AHEAD);
        let ahead = runs.values().copied();
        let ahead = ahead.filter(|run| run.scheduled > taken && run.scheduled <= until);
        let ahead = self.with_times(ahead.filter(|run| run.end.is_some()));
        let ahead = ahead.into_iter();
        let ahead = ahead.filter_map(|run| self.reported(run, AfterFailure::Nothing));
        let mut count = 0;
        let has_place = |run: &BoundRun| {
            count += run.failed.len() + 1;
            count <= MOST_BOUND_RUNS
        };
        ahead.take_while(has_place).collect()
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

    /// A run of the file as it is reported, with what follows its last attempt; `None` where its times are
    /// none.
    fn reported(&self, run: &GateRun, next: AfterFailure) -> Option<BoundRun> {
        let earlier = run.earlier.iter();
        let earlier = earlier.map(|one| attempt_end(&one.end, AfterFailure::Retry));
        let end = match &run.end {
            Some(end) => Some(self.last_end(run, attempt_end(end, next)?)),
            None => None,
        };
        Some(BoundRun {
            scheduled: file_time(run.scheduled)?,
            started: file_time(run.began)?,
            failed: earlier.collect::<Option<_>>()?,
            paused: false,
            end,
        })
    }

    /// The end of a run's last attempt: the agent stops a further one at the deadline of the run, whatever
    /// its program makes of that.
    fn last_end(&self, run: &GateRun, end: AttemptEnd) -> AttemptEnd {
        let deadline = self.bound.deadline_seconds.map(i64::from);
        let deadline = deadline.map(|seconds| run.began.saturating_add(seconds));
        let is_late = deadline.is_some_and(|deadline| end.at.as_second() >= deadline);
        match is_late && !run.earlier.is_empty() {
            true => AttemptEnd {
                succeeded: false,
                reason: Reason::DeadlineExceeded.into(),
                message: "it was ended at the deadline of its run".to_owned(),
                ..end
            },
            false => end,
        }
    }

    /// Those of these runs, which have the order of their times, that are at times of the schedule.
    fn with_times<'r>(&self, runs: impl Iterator<Item = &'r GateRun>) -> Vec<&'r GateRun> {
        self.schedule
            .with_times(runs, |run| file_time(run.scheduled))
    }

    /// Why a time has no run that nothing began.
    fn missed_in_words(&self) -> String {
        let late = self.late();
        let why = match self.bound.catch_up {
            None | Some(CatchUp::None) => "catchUp is None",
            Some(CatchUp::Last) => "catchUp: Last makes up for the newest time alone",
            Some(CatchUp::All) => {
                "it was too long ago for startingDeadlineSeconds, or one of more than 100"
            }
        };
        format!("its machine did not begin it within {late} s, and {why}")
    }

    fn skip(&self, scheduled: Timestamp, overlapped: bool) -> SkippedRun {
        let (reason, message) = match overlapped {
            true => (
                Reason::RunOverlapped,
                "another run was active, and concurrencyPolicy is Forbid".to_owned(),
            ),
            false => (Reason::RunMissed, self.missed_in_words()),
        };
        SkippedRun {
            scheduled,
            reason: reason.into(),
            message,
        }
    }
}

/// Starts by the timer apart from its times that began nothing, one after the other. Each one that follows
/// is a reload of the manager: a gate that can never begin gets them after growing pauses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LostStarts {
    count: u32,
    /// The last one that is counted.
    last: Option<i64>,
}

impl LostStarts {
    /// Counts the start of the present table if it began nothing. The count ends where none is planned, and
    /// with a begin.
    pub(crate) fn note(&mut self, present: Option<&RunTable>, lines: &[RunLine], now: Timestamp) {
        let now = now.as_second();
        let runs = gate_runs(lines);
        let has_begun = |start: i64| {
            let is_busy = runs.iter().any(|run| run.end.is_none());
            is_busy || newest_end(&runs, now).is_some_and(|ended| ended >= start)
        };
        match present.and_then(|table| table.extra_start) {
            None => *self = Self::default(),
            Some(start) if has_begun(start) => *self = Self::default(),
            Some(start) if is_lost(start, now) && self.last != Some(start) => {
                self.count = self.count.saturating_add(1);
                self.last = Some(start);
            }
            Some(_) => {}
        }
    }

    /// Seconds until the next start. One that was lost may be that of a clock that was set.
    fn pause(self) -> i64 {
        let Some(earlier) = self.count.checked_sub(2) else {
            return SOON;
        };
        i64::try_from(RUN_PAUSES.after(earlier).as_secs()).unwrap_or(i64::MAX)
    }
}

/// Whether a start by the timer is so long ago that it begins nothing any more.
const fn is_lost(start: i64, now: i64) -> bool {
    now.saturating_sub(start) > START_LOST
}

/// When the last run ended. An end that is still to come was written by another clock.
fn newest_end(runs: &[GateRun], now: i64) -> Option<i64> {
    let ended = runs.last().and_then(|run| run.end.as_ref());
    ended.map(|end| end.at).filter(|at| *at <= now)
}

/// What follows an attempt that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterFailure {
    /// Another attempt of its run.
    Retry,
    /// Nothing: its run is over.
    Nothing,
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

/// Whether a run was active then.
fn came_during(runs: &[GateRun], start: i64) -> bool {
    runs.iter().any(|run| {
        let end = run.end.as_ref().map(|end| end.at);
        run.began <= start && end.is_none_or(|end| start < end)
    })
}

fn scheduled_times(missed: &[MissedTime]) -> BTreeSet<i64> {
    missed.iter().map(|one| one.scheduled).collect()
}

/// The scheduled times that had a run, or were skipped.
fn times_with_lines(lines: &[RunLine]) -> BTreeSet<i64> {
    let times = lines.iter().filter_map(|line| match line {
        RunLine::Begin { scheduled, .. } | RunLine::Skip { scheduled, .. } => Some(*scheduled),
        RunLine::Again { .. } | RunLine::End { .. } => None,
    });
    times.collect()
}

fn skipped_times(lines: &[RunLine]) -> BTreeSet<i64> {
    let skipped = lines.iter().filter_map(|line| match line {
        RunLine::Skip { scheduled, .. } => Some(*scheduled),
        RunLine::Begin { .. } | RunLine::Again { .. } | RunLine::End { .. } => None,
    });
    skipped.collect()
}

/// Number of the attempts of runs in a report.
fn ends(runs: &[BoundRun]) -> usize {
    runs.iter().map(|run| run.failed.len() + 1).sum()
}

/// A run that is not over, between two of its attempts.
fn paused(mut run: BoundRun) -> BoundRun {
    if let Some(end) = run.end.take() {
        run.failed.push(end);
        run.paused = true;
    }
    run
}

fn attempt_end(end: &GateEnd, next: AfterFailure) -> Option<AttemptEnd> {
    let exit_code: Option<i32> = match end.code.as_str() {
        "exited" => end.status.parse().ok(),
        _ => None,
    };
    let succeeded = end.is_success();
    let (reason, message) = match (end.result.as_str(), exit_code) {
        _ if succeeded => (None, String::new()),
        (INTERRUPTED, _) => (Some(Reason::Interrupted), interrupted_in_words(next)),
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

fn interrupted_in_words(next: AfterFailure) -> String {
    let next = match next {
        AfterFailure::Retry => "; its machine tries the run again",
        AfterFailure::Nothing => ", and its machine does not try the run again",
    };
    format!("it was stopped before its program ended, as by a power cut{next}")
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
            ..RunTable::default()
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
    fn runs_of_a_clock_that_was_ahead_are_in_the_last_report_and_decide_nothing() {
        let bound = bound();
        let times = BoundTimes::new(&bound, "u").unwrap();
        let now = at("2026-11-30T12:01:30Z");
        let ahead =
            |hour: i64, minute: i64| second("2026-11-30T00:00:00Z") + hour * 3600 + minute * 60;
        let line = |scheduled: i64| {
            format!(
                "begin {scheduled} {scheduled} f{scheduled}\nend f{scheduled} {scheduled} success exited 0\n"
            )
        };
        let mut text: String = (0..30).map(|minute| line(ahead(14, minute))).collect();
        // The user's own: none of the times, and one that is years ahead.
        text.push_str(&line(ahead(13, 0) + 7));
        text.push_str(&line(second("2036-11-30T12:00:00Z")));
        let lines = run_lines(&text);
        let handled = bound.handled.as_second();
        assert!(times.report(handled, &lines, now, false).runs.is_empty());
        let report = times.report(handled, &lines, now, true);
        assert!(report.idle);
        assert_eq!(report.handled, bound.handled);
        let found: Vec<_> = report
            .runs
            .iter()
            .map(|run| run.scheduled.as_second())
            .collect();
        let first: Vec<_> = (0..20).map(|minute| ahead(14, minute)).collect();
        assert_eq!(found, first);
        // A run that is decided goes first.
        text.push_str(&run("2026-11-30T12:01:00Z", 5, "success exited 0"));
        let lines = run_lines(&text);
        let decided = second("2026-11-30T12:01:00Z");
        let report = times.report(decided, &lines, now, true);
        assert_eq!((report.runs.len(), report.idle), (1, false));
        let rest = BoundSchedule {
            handled: report.handled,
            ..bound.clone()
        };
        let rest = BoundTimes::new(&rest, "u").unwrap();
        let report = rest.report(decided, &lines, now, true);
        assert_eq!((report.runs.len(), report.idle), (20, true));
    }

    #[test]
    fn lines_about_times_that_the_schedule_does_not_have_are_left_out() {
        let rare = BoundSchedule {
            schedule: "0 0 29 2 *".to_owned(),
            ..bound()
        };
        let times = BoundTimes::new(&rare, "u").unwrap();
        let own = [
            i64::MIN,
            second("2026-12-01T00:00:07Z"),
            second("2026-12-01T00:00:08Z"),
            second("2028-02-29T00:00:00Z"),
            second("2028-02-29T00:00:01Z"),
            i64::MAX,
        ];
        let text: String = own
            .iter()
            .enumerate()
            .map(|(index, one)| format!("begin {one} 1 a{index}\n"))
            .collect();
        let runs = gate_runs(&run_lines(&text));
        let found = times.with_times(runs.iter());
        let found: Vec<_> = found.iter().map(|run| run.scheduled).collect();
        assert_eq!(found, [own[3]]);
    }

    #[test]
    fn a_clock_that_is_behind_what_the_leader_has_taken_forgets_nothing_that_is_decided() {
        let bound = BoundSchedule {
            catch_up: Some(CatchUp::All),
            ..bound()
        };
        let times = BoundTimes::new(&bound, "u").unwrap();
        let decided = second("2026-12-02T12:00:00Z");
        let table = RunTable {
            handled: decided,
            ..times.table(None, &[], at("2026-11-30T12:00:30Z"))
        };
        let at_boot = times.table(Some(&table), &[], at("1970-01-01T00:00:10Z"));
        assert_eq!(at_boot.handled, decided);
        assert!(at_boot.missed.is_empty());
        let later = times.table(Some(&at_boot), &[], at("2026-12-02T12:00:30Z"));
        assert_eq!(later.handled, decided);
        assert!(later.missed.is_empty());
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

    /// A schedule each hour, and its table after the run of 12:00, which was the last one.
    fn with_catch_up(catch_up: CatchUp) -> (BoundSchedule, RunTable) {
        let bound = BoundSchedule {
            schedule: "0 * * * *".to_owned(),
            catch_up: Some(catch_up),
            ..bound()
        };
        let table =
            BoundTimes::new(&bound, "u")
                .unwrap()
                .table(None, &[], at("2026-11-30T12:00:30Z"));
        (bound, table)
    }

    fn missed(table: &RunTable) -> Vec<String> {
        let times = table.missed.iter();
        let times = times.filter_map(|one| file_time(one.scheduled));
        times
            .map(|time| time.strftime("%H:%M").to_string())
            .collect()
    }

    #[test]
    fn of_the_missed_times_the_newest_is_made_up_for_and_the_others_are_decided() {
        let (bound, table) = with_catch_up(CatchUp::Last);
        let times = BoundTimes::new(&bound, "u").unwrap();
        assert!(!table.waits);
        // The machine was off for three hours and a half.
        let now = at("2026-11-30T15:30:00Z");
        let off = times.table(Some(&table), &[], now);
        assert_eq!(missed(&off), ["15:00"]);
        assert_eq!(off.handled, second("2026-11-30T14:00:00Z"));
        assert_eq!(off.extra_start, Some(now.as_second() + SOON));
        let report = times.report(off.handled, &[], now, true);
        assert_eq!((report.skips, report.idle), (2, true));
        let message = report.skipped.unwrap().message;
        assert!(message.contains("catchUp: Last"), "{message}");
        let begun = second("2026-11-30T15:00:00Z");
        let active = run_lines(&format!("begin {begun} {} a\n", now.as_second() + 2));
        let busy = times.table(Some(&off), &active, at("2026-11-30T15:30:03Z"));
        assert_eq!((missed(&busy).len(), busy.extra_start), (0, None));
        assert_eq!(busy.handled, off.handled);
        let mut over = active;
        over.extend(run_lines(&ended(
            "2026-11-30T15:30:05Z",
            "a",
            "success exited 0",
        )));
        let over = times.table(Some(&busy), &over, at("2026-11-30T15:30:06Z"));
        assert_eq!((over.handled, over.extra_start), (begun, None));
    }

    #[test]
    fn a_missed_time_is_decided_only_once_the_gate_does_not_have_it_any_more() {
        let (bound, table) = with_catch_up(CatchUp::Last);
        let times = BoundTimes::new(&bound, "u").unwrap();
        let off = times.table(Some(&table), &[], at("2026-11-30T13:30:00Z"));
        assert_eq!(missed(&off), ["13:00"]);
        // It did not begin for an hour, as without its image.
        let now = at("2026-11-30T14:30:00Z");
        let later = times.table(Some(&off), &[], now);
        assert_eq!(missed(&later), ["14:00"]);
        assert_eq!(later.handled, second("2026-11-30T12:00:00Z"));
        let next = times.table(Some(&later), &[], now);
        assert_eq!(next.handled, second("2026-11-30T13:00:00Z"));
    }

    #[test]
    fn a_time_that_may_still_begin_or_has_begun_makes_up_for_those_before_it() {
        let (bound, table) = with_catch_up(CatchUp::Last);
        let times = BoundTimes::new(&bound, "u").unwrap();
        let early = times.table(Some(&table), &[], at("2026-11-30T15:01:00Z"));
        assert_eq!(missed(&early), Vec::<String>::new());
        assert_eq!(early.handled, second("2026-11-30T14:00:00Z"));
        let had = run_lines(&run("2026-11-30T15:00:00Z", 5, "success exited 0"));
        let had = times.table(Some(&table), &had, at("2026-11-30T15:30:00Z"));
        assert_eq!(missed(&had), Vec::<String>::new());
        assert_eq!(had.handled, second("2026-11-30T15:00:00Z"));
    }

    #[test]
    fn a_time_that_came_during_a_run_is_made_up_for_only_where_times_wait() {
        let text = run("2026-11-30T13:00:00Z", 4000, "success exited 0");
        let lines = run_lines(&text);
        let now = at("2026-11-30T14:30:00Z");
        for (catch_up, expected) in [(CatchUp::Last, vec![]), (CatchUp::All, vec!["14:00"])] {
            let (bound, table) = with_catch_up(catch_up);
            let times = BoundTimes::new(&bound, "u").unwrap();
            let after = times.table(Some(&table), &lines, now);
            assert_eq!(missed(&after), expected, "{catch_up:?}");
        }
    }

    #[test]
    fn all_missed_times_are_made_up_for_unless_they_are_too_old_or_too_many() {
        let (bound, table) = with_catch_up(CatchUp::All);
        let times = BoundTimes::new(&bound, "u").unwrap();
        let now = at("2026-11-30T15:30:00Z");
        let off = times.table(Some(&table), &[], now);
        assert_eq!(missed(&off), ["13:00", "14:00", "15:00"]);
        assert_eq!((off.handled, off.waits), (table.handled, true));
        let young = BoundSchedule {
            starting_deadline_seconds: Some(7200),
            ..bound.clone()
        };
        let young = BoundTimes::new(&young, "u").unwrap();
        let young = young.table(Some(&table), &[], now);
        assert_eq!(missed(&young), ["14:00", "15:00"]);
        assert_eq!(young.handled, second("2026-11-30T13:00:00Z"));
        assert_eq!(young.missed[0].until, second("2026-11-30T16:00:00Z"));
        // After a year the newest hundred; those stay while newer ones are missed.
        let year = times.table(Some(&table), &[], at("2027-11-30T15:30:00Z"));
        assert_eq!(year.missed.len(), MOST_MADE_UP);
        let later = times.table(Some(&year), &[], at("2027-11-30T16:30:00Z"));
        assert_eq!(later.missed, year.missed);
    }

    #[test]
    fn nothing_is_made_up_for_with_a_lost_table_or_one_of_a_clock_that_was_ahead() {
        let (bound, table) = with_catch_up(CatchUp::All);
        let times = BoundTimes::new(&bound, "u").unwrap();
        let now = at("2026-11-30T15:30:00Z");
        let ahead = RunTable {
            handled: second("2026-12-24T00:00:00Z"),
            ..table
        };
        let lines = run_lines(&run("2026-11-30T13:00:00Z", 5, "success exited 0"));
        for present in [None, Some(&ahead)] {
            let lost = times.table(present, &lines, now);
            assert_eq!(missed(&lost), Vec::<String>::new());
            assert_eq!(lost.handled, second("2026-11-30T15:00:00Z"));
        }
        // Nothing has begun yet.
        let first = times.table(None, &[], now);
        assert_eq!(missed(&first), ["13:00", "14:00", "15:00"]);
    }

    #[test]
    fn a_missed_time_is_left_to_the_leader_that_takes_the_schedule_back() {
        let (mut bound, table) = with_catch_up(CatchUp::Last);
        bound.closed = true;
        let times = BoundTimes::new(&bound, "u").unwrap();
        let now = at("2026-11-30T15:30:00Z");
        let cleared = RunTable {
            times: Vec::new(),
            ..table
        };
        let closed = times.table(Some(&cleared), &[], now);
        assert_eq!(closed.handled, second("2026-11-30T14:00:00Z"));
        assert_eq!((closed.extra_start, closed.times.len()), (None, 0));
        assert!(times.report(closed.handled, &[], now, true).idle);
        let gone = times.decided_without_unit(Some(&cleared), &[], now);
        assert_eq!(gone, closed.handled);
    }

    /// A run of 12:01 that has failed after 5 s, of a Job with two retries within five minutes.
    fn with_retries() -> (BoundSchedule, String) {
        let bound = BoundSchedule {
            schedule: "0,1 * * * *".to_owned(),
            backoff_limit: 2,
            deadline_seconds: Some(300),
            ..bound()
        };
        let text = run("2026-11-30T12:01:00Z", 5, "exit-code exited 3");
        (bound, text)
    }

    fn again(at: &str, id: &str) -> String {
        let scheduled = second("2026-11-30T12:01:00Z");
        format!("again {scheduled} {} {id}\n", second(at))
    }

    fn ended(at: &str, id: &str, end: &str) -> String {
        format!("end {id} {} {end}\n", second(at))
    }

    #[test]
    fn a_run_that_failed_is_not_decided_and_the_timer_starts_it_again_after_a_pause() {
        let (bound, mut text) = with_retries();
        let times = BoundTimes::new(&bound, "u").unwrap();
        let now = at("2026-11-30T12:01:06Z");
        let lines = run_lines(&text);
        let table = times.table(None, &lines, now);
        assert_eq!(table.handled, second("2026-11-30T12:00:00Z"));
        assert_eq!((table.retries, table.deadline), (2, Some(300)));
        assert_eq!(table.extra_start, Some(second("2026-11-30T12:01:15Z")));
        let report = times.report(table.handled, &lines, now, true);
        assert!(!report.idle);
        let first = &report.runs[0];
        assert_eq!((first.failed.len(), first.paused), (1, true));
        assert_eq!(first.end, None);
        // The attempt is active: nothing more is planned.
        text.push_str(&again("2026-11-30T12:01:15Z", "b"));
        let lines = run_lines(&text);
        let now = at("2026-11-30T12:01:16Z");
        let active = times.table(Some(&table), &lines, now);
        assert_eq!((active.handled, active.extra_start), (table.handled, None));
        let report = times.report(table.handled, &lines, now, false);
        assert!(!report.runs[0].paused && report.runs[0].end.is_none());
        text.push_str(&ended("2026-11-30T12:01:20Z", "b", "success exited 0"));
        let lines = run_lines(&text);
        let over = times.table(Some(&active), &lines, at("2026-11-30T12:01:21Z"));
        assert_eq!(over.handled, second("2026-11-30T12:01:00Z"));
        let report = times.report(over.handled, &lines, now, true);
        let first = &report.runs[0];
        assert_eq!((first.failed.len(), report.idle), (1, true));
        assert!(first.end.as_ref().is_some_and(|end| end.succeeded));
    }

    #[test]
    fn a_start_of_an_attempt_that_was_lost_is_followed_by_another_one() {
        let (bound, text) = with_retries();
        let times = BoundTimes::new(&bound, "u").unwrap();
        let lines = run_lines(&text);
        let planned = times.table(None, &lines, at("2026-11-30T12:01:10Z"));
        let due = times.table(Some(&planned), &lines, at("2026-11-30T12:01:20Z"));
        assert_eq!(due.extra_start, planned.extra_start);
        let lost = times.table(Some(&due), &lines, at("2026-11-30T12:01:40Z"));
        assert_eq!(lost.extra_start, Some(second("2026-11-30T12:01:42Z")));
    }

    #[test]
    fn starts_that_begin_nothing_have_growing_pauses_until_a_run_begins() {
        let (bound, mut present) = with_catch_up(CatchUp::Last);
        let first = at("2026-11-30T15:30:00Z");
        let mut lost = LostStarts::default();
        let mut starts = Vec::new();
        // A pass each 20 s, of a machine that was off at 15:00.
        for pass in 0..87 {
            let now = first + SignedDuration::from_secs(20 * pass);
            lost.note(Some(&present), &[], now);
            let times = BoundTimes::new(&bound, "u").unwrap();
            let times = times.after_lost_starts(lost);
            present = times.table(Some(&present), &[], now);
            starts.push(present.extra_start.unwrap() - first.as_second());
        }
        starts.dedup();
        assert_eq!(
            starts,
            [2, 22, 50, 100, 160, 260, 440, 780, 1160, 1540, 1920]
        );
        // The gate begins the run, which is active or over at the next pass.
        let begun = first.as_second() + 1920;
        let scheduled = second("2026-11-30T15:00:00Z");
        let active = format!("begin {scheduled} {begun} a\n");
        let over = format!("{active}end a {} success exited 0\n", begun + 5);
        for text in [active, over] {
            let mut after = lost;
            let now = first + SignedDuration::from_secs(1940);
            after.note(Some(&present), &run_lines(&text), now);
            assert_eq!(after, LostStarts::default(), "{text}");
        }
    }

    #[test]
    fn a_start_of_a_clock_that_was_ahead_is_replaced_by_one_after_the_present_pause() {
        let (bound, table) = with_catch_up(CatchUp::Last);
        let now = at("2026-11-30T15:30:00Z");
        for (count, pause) in [(0, 2), (1, 2), (2, 10), (4, 40), (u32::MAX, 360)] {
            let lost = LostStarts { count, last: None };
            let start_in = |ahead: i64| {
                let times = BoundTimes::new(&bound, "u").unwrap();
                let present = RunTable {
                    extra_start: Some(now.as_second() + ahead),
                    ..table.clone()
                };
                let times = times.after_lost_starts(lost);
                let next = times.table(Some(&present), &[], now).extra_start;
                next.unwrap() - now.as_second()
            };
            assert_eq!((start_in(400), start_in(pause)), (pause, pause), "{count}");
            // One that is near stays.
            assert_eq!(start_in(9), 9, "{count}");
        }
    }

    #[test]
    fn an_interrupted_attempt_says_whether_another_one_follows() {
        let (bound, _) = with_retries();
        let text = run("2026-11-30T12:01:00Z", 5, "interrupted - -");
        let lines = run_lines(&text);
        let now = at("2026-11-30T12:01:06Z");
        let cut = "it was stopped before its program ended, as by a power cut";
        let times = BoundTimes::new(&bound, "u").unwrap();
        let table = times.table(None, &lines, now);
        let report = times.report(table.handled, &lines, now, true);
        let first = &report.runs[0];
        assert!(first.paused && first.end.is_none());
        assert_eq!(
            first.failed[0].message,
            format!("{cut}; its machine tries the run again")
        );
        // Without retries, the run is over.
        let once = BoundSchedule {
            backoff_limit: 0,
            ..bound.clone()
        };
        let times = BoundTimes::new(&once, "u").unwrap();
        let table = times.table(None, &lines, now);
        let report = times.report(table.handled, &lines, now, true);
        let end = report.runs[0].end.as_ref().unwrap();
        assert_eq!(
            end.message,
            format!("{cut}, and its machine does not try the run again")
        );
    }

    #[test]
    fn a_run_is_over_where_no_attempt_may_follow() {
        let (bound, text) = with_retries();
        let decided = |change: &dyn Fn(&mut BoundSchedule), more: &str, now: &str| {
            let mut changed = bound.clone();
            change(&mut changed);
            let times = BoundTimes::new(&changed, "u").unwrap();
            let lines = run_lines(&format!("{text}{more}"));
            let cleared = times.table_without_times(second("2026-11-30T12:00:00Z"));
            let table = times.table(Some(&cleared), &lines, at(now));
            (
                table.handled == second("2026-11-30T12:01:00Z"),
                table.extra_start,
            )
        };
        let soon = "2026-11-30T12:01:06Z";
        assert!(!decided(&|_| {}, "", soon).0);
        assert_eq!(
            decided(&|bound| bound.closed = true, "", soon),
            (true, None)
        );
        let short = |bound: &mut BoundSchedule| bound.deadline_seconds = Some(10);
        assert_eq!(decided(&short, "", soon), (false, None));
        assert_eq!(decided(&short, "", "2026-11-30T12:01:15Z"), (true, None));
        // The deadline has passed, and the gate's clock too.
        assert!(!decided(&|_| {}, "", "2026-11-30T12:06:05Z").0);
        assert_eq!(decided(&|_| {}, "", "2026-11-30T12:06:10Z"), (true, None));
        let later = run("2026-11-30T13:00:00Z", 5, "success exited 0");
        assert!(decided(&|_| {}, &later, "2026-11-30T13:00:30Z").1.is_none());
    }

    #[test]
    fn a_further_attempt_ends_at_the_deadline_of_its_run() {
        let (bound, mut text) = with_retries();
        let times = BoundTimes::new(&bound, "u").unwrap();
        let left = |text: &str, now: &str| times.seconds_left(&run_lines(text), at(now));
        assert_eq!(left(&text, "2026-11-30T12:01:06Z"), None);
        text.push_str(&again("2026-11-30T12:01:15Z", "b"));
        assert_eq!(left(&text, "2026-11-30T12:01:16Z"), Some(284));
        assert_eq!(left(&text, "2026-11-30T12:07:00Z"), Some(0));
        text.push_str(&ended("2026-11-30T12:06:01Z", "b", "success exited 0"));
        let lines = run_lines(&text);
        let now = at("2026-11-30T12:06:02Z");
        let report = times.report(second("2026-11-30T12:01:00Z"), &lines, now, false);
        let end = report.runs[0].end.as_ref().unwrap();
        assert_eq!(
            (end.succeeded, end.reason.as_str()),
            (false, "DeadlineExceeded")
        );
    }

    #[test]
    fn a_report_has_a_bounded_number_of_attempts() {
        let (bound, _) = with_retries();
        let bound = BoundSchedule {
            schedule: "* * * * *".to_owned(),
            ..bound
        };
        let times = BoundTimes::new(&bound, "u").unwrap();
        let text: String = (1..20)
            .map(|minute| {
                let scheduled = second(&format!("2026-11-30T12:{minute:02}:00Z"));
                let lines = (0..3).map(|one| {
                    let word = match one {
                        0 => "begin",
                        _ => "again",
                    };
                    let id = format!("i{minute}-{one}");
                    format!("{word} {scheduled} {scheduled} {id}\nend {id} {scheduled} exit-code exited 3\n")
                });
                lines.collect::<String>()
            })
            .collect();
        let lines = run_lines(&text);
        let now = at("2026-11-30T12:20:00Z");
        let report = times.report(second("2026-11-30T12:19:00Z"), &lines, now, true);
        assert_eq!((report.runs.len(), ends(&report.runs)), (6, 18));
        assert_eq!(report.handled, at("2026-11-30T12:06:00Z"));
        assert!(!report.idle);
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
            let last = runs[0].end.as_ref().unwrap();
            let found = attempt_end(last, AfterFailure::Nothing).unwrap();
            assert_eq!(
                (found.succeeded, found.reason.as_str()),
                (succeeded, reason),
                "{end}"
            );
        }
    }
}
