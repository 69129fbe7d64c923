//! The files by which a unit's gate and the agent agree about the runs of a schedule that is bound to a
//! machine.
//!
//! The agent writes the table of times; the gate, which runs as the workload's user, appends a line for
//! each begin and end to the file of runs. That user can write any line into it, so that whoever reads
//! it bounds it, and takes a line that is not exactly of this form for none.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use jiff::Timestamp;

use crate::backoff::RUN_PAUSES;

/// Largest table of times, in bytes.
pub const TABLE_LIMIT: u64 = 64 << 10;
/// Largest file of runs, in bytes: some 500 runs. The agent removes what the leader has, and over half of
/// it older runs as well.
pub const RUNS_LIMIT: u64 = 64 << 10;
/// Largest file of runs in which a run may begin, in bytes: the rest is left for its end.
pub const BEGIN_LIMIT: u64 = RUNS_LIMIT - (1 << 10);
/// Most further attempts of a run that failed.
pub const MOST_BOUND_RETRIES: usize = 10;
/// A further attempt that is late by more seconds than this holds no scheduled time up.
const OVERDUE: i64 = 120;
/// Most characters of a word in a line.
const LONGEST_WORD: usize = 64;
/// Word in the place of an empty one.
const NONE: &str = "-";

/// The result of a run that was cut, as by a power cut. systemd has no such word.
pub const INTERRUPTED: &str = "interrupted";

/// Until when everything is decided, and the next times. All are seconds since 1970-01-01 UTC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunTable {
    /// No scheduled time until this one gets a run.
    pub handled: i64,
    /// A run that would begin more seconds than this after its start does not begin.
    pub late: i64,
    /// Further attempts of a run that failed.
    pub retries: u32,
    /// Seconds from the begin of a run after which no further attempt begins.
    pub deadline: Option<u32>,
    /// When the timer starts the unit apart from the times: for a further attempt, or a missed time. The gate
    /// decides what begins.
    pub extra_start: Option<i64>,
    /// A time that comes during a run waits for its end, where it is skipped otherwise.
    pub waits: bool,
    /// Missed times that still get a run, oldest first.
    pub missed: Vec<MissedTime>,
    /// The times in their order. Without any, the gate begins nothing.
    pub times: Vec<TableTime>,
}

/// A time that was missed and is made up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissedTime {
    /// The scheduled time.
    pub scheduled: i64,
    /// Its run does not begin later.
    pub until: i64,
}

/// An attempt that follows one that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextAttempt {
    /// The scheduled time of its run.
    pub scheduled: i64,
    /// It does not begin before.
    pub from: i64,
}

/// One time of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableTime {
    /// When the run begins: the scheduled time with its delay.
    pub start: i64,
    /// The scheduled time.
    pub scheduled: i64,
}

impl RunTable {
    /// The text of the table's file.
    pub fn text(&self) -> String {
        let mut text = format!("handled {}\nlate {}\n", self.handled, self.late);
        // Left out where they say nothing: an earlier gate refuses a table with a line that it does not know.
        if self.retries > 0 {
            let _ = writeln!(text, "retries {}", self.retries);
        }
        if let Some(deadline) = self.deadline {
            let _ = writeln!(text, "deadline {deadline}");
        }
        if let Some(start) = self.extra_start {
            let _ = writeln!(text, "start {start}");
        }
        if self.waits {
            text.push_str("waits\n");
        }
        for MissedTime { scheduled, until } in &self.missed {
            let _ = writeln!(text, "missed {scheduled} {until}");
        }
        for TableTime { start, scheduled } in &self.times {
            let _ = writeln!(text, "time {start} {scheduled}");
        }
        text
    }

    /// Reads a table; `None` if any line is not of a table.
    pub fn parse(text: &str) -> Option<Self> {
        let mut table = Self::default();
        let (mut has_handled, mut has_late) = (false, false);
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["handled", at] => {
                    table.handled = at.parse().ok()?;
                    has_handled = true;
                }
                ["late", seconds] => {
                    table.late = seconds.parse().ok()?;
                    has_late = true;
                }
                ["retries", count] => table.retries = count.parse().ok()?,
                ["deadline", seconds] => table.deadline = Some(seconds.parse().ok()?),
                ["start", at] => table.extra_start = Some(at.parse().ok()?),
                ["waits"] => table.waits = true,
                ["missed", scheduled, until] => table.missed.push(MissedTime {
                    scheduled: scheduled.parse().ok()?,
                    until: until.parse().ok()?,
                }),
                ["time", start, scheduled] => table.times.push(TableTime {
                    start: start.parse().ok()?,
                    scheduled: scheduled.parse().ok()?,
                }),
                _ => return None,
            }
        }
        (has_handled && has_late).then_some(table)
    }

    /// The attempt that follows the last run, if that has failed and may be tried again. An earlier run of
    /// the file has no further attempt: another one began after it.
    pub fn next_attempt(&self, runs: &[GateRun], now: i64) -> Option<NextAttempt> {
        let run = runs.last().filter(|run| run.scheduled > self.handled)?;
        let end = run.end.as_ref().filter(|end| !end.is_success())?;
        let earlier = u32::try_from(run.earlier.len()).ok()?;
        if earlier >= self.retries || run.earlier.len() >= MOST_BOUND_RETRIES {
            return None;
        }
        let pause = RUN_PAUSES.after(earlier).as_secs();
        let pause = i64::try_from(pause).ok()?;
        let from = end.at.saturating_add(pause);
        // An end that is still to come was written by another clock.
        let from = match from.saturating_sub(now) > pause {
            true => now,
            false => from,
        };
        let deadline = self.deadline.map(i64::from);
        let deadline = deadline.map(|seconds| run.began.saturating_add(seconds));
        let is_within = deadline.is_none_or(|deadline| from.max(now) < deadline);
        is_within.then_some(NextAttempt {
            scheduled: run.scheduled,
            from,
        })
    }
}

impl RunTable {
    /// The oldest missed time whose run may begin now.
    fn missed_time(&self, lines: &[RunLine], now: i64) -> Option<i64> {
        let may_begin = |missed: &&MissedTime| {
            let MissedTime { scheduled, until } = **missed;
            let is_open = scheduled > self.handled && !has_line(lines, scheduled);
            // The clock may have been set back.
            is_open && scheduled <= now && now <= until
        };
        let missed = self.missed.iter().find(may_begin)?;
        Some(missed.scheduled)
    }
}

/// A line of the file of runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunLine {
    /// A run began.
    Begin {
        /// Its scheduled time.
        scheduled: i64,
        /// When it began.
        at: i64,
        /// systemd's id of this start of the unit.
        invocation: String,
    },
    /// A further attempt of a run began.
    Again {
        /// The scheduled time of the run.
        scheduled: i64,
        /// When the attempt began.
        at: i64,
        /// systemd's id of this start of the unit.
        invocation: String,
    },
    /// An attempt of a run ended.
    End {
        /// The id of its begin.
        invocation: String,
        /// When it ended.
        at: i64,
        /// `$SERVICE_RESULT` of systemd.exec(5), or [`INTERRUPTED`].
        result: String,
        /// `$EXIT_CODE`, or empty.
        code: String,
        /// `$EXIT_STATUS`, or empty.
        status: String,
    },
    /// A time came during a run, and has none of its own.
    Skip {
        /// The scheduled time.
        scheduled: i64,
        /// When that was decided.
        at: i64,
    },
}

impl RunLine {
    /// The line, with its end.
    pub fn text(&self) -> String {
        match self {
            Self::Begin {
                scheduled,
                at,
                invocation,
            } => format!("begin {scheduled} {at} {}\n", word(invocation)),
            Self::Again {
                scheduled,
                at,
                invocation,
            } => format!("again {scheduled} {at} {}\n", word(invocation)),
            Self::End {
                invocation,
                at,
                result,
                code,
                status,
            } => format!(
                "end {} {at} {} {} {}\n",
                word(invocation),
                word(result),
                word(code),
                word(status)
            ),
            Self::Skip { scheduled, at } => format!("skip {scheduled} {at}\n"),
        }
    }

    /// Reads a line without its end; `None` for one of another form.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["begin", scheduled, at, invocation] => Some(Self::Begin {
                scheduled: scheduled.parse().ok()?,
                at: at.parse().ok()?,
                invocation: read_word(invocation)?,
            }),
            ["again", scheduled, at, invocation] => Some(Self::Again {
                scheduled: scheduled.parse().ok()?,
                at: at.parse().ok()?,
                invocation: read_word(invocation)?,
            }),
            ["end", invocation, at, result, code, status] => Some(Self::End {
                invocation: read_word(invocation)?,
                at: at.parse().ok()?,
                result: read_word(result)?,
                code: read_word(code)?,
                status: read_word(status)?,
            }),
            ["skip", scheduled, at] => Some(Self::Skip {
                scheduled: scheduled.parse().ok()?,
                at: at.parse().ok()?,
            }),
            _ => None,
        }
    }
}

/// A word of a line: what a line cannot have is left out.
fn word(text: &str) -> String {
    let kept: String = text
        .chars()
        .filter(|one| is_plain(*one))
        .take(LONGEST_WORD)
        .collect();
    match kept.is_empty() {
        true => NONE.to_owned(),
        false => kept,
    }
}

fn read_word(word: &str) -> Option<String> {
    if word == NONE {
        return Some(String::new());
    }
    let is_word = !word.is_empty() && word.len() <= LONGEST_WORD && word.chars().all(is_plain);
    is_word.then(|| word.to_owned())
}

fn is_plain(one: char) -> bool {
    one.is_ascii_alphanumeric() || one == '-' || one == '_'
}

/// The lines of a file of runs. A line that a power cut has cut short is none.
pub fn run_lines(text: &str) -> Vec<RunLine> {
    text.lines().filter_map(RunLine::parse).collect()
}

/// A run in the file of runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRun {
    /// Its scheduled time.
    pub scheduled: i64,
    /// When its first attempt began.
    pub began: i64,
    /// Its attempts before the last one, each of which failed. At most [`MOST_BOUND_RETRIES`].
    pub earlier: Vec<GateAttempt>,
    /// systemd's id of the start of the last attempt.
    pub invocation: String,
    /// How the last attempt ended; `None` if that is in no line.
    pub end: Option<GateEnd>,
}

/// An attempt of a run that another one followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateAttempt {
    /// systemd's id of the start.
    pub invocation: String,
    /// How it ended.
    pub end: GateEnd,
}

/// The end of an attempt in the file of runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateEnd {
    /// When it ended.
    pub at: i64,
    /// `$SERVICE_RESULT`, or [`INTERRUPTED`].
    pub result: String,
    /// `$EXIT_CODE`.
    pub code: String,
    /// `$EXIT_STATUS`.
    pub status: String,
}

impl GateEnd {
    /// Whether the program ended with exit code 0.
    pub fn is_success(&self) -> bool {
        self.result == "success" && self.code == "exited" && self.status.parse::<i32>() == Ok(0)
    }
}

/// The runs of these lines, each attempt with its first end. Of several begins of one time, or of one start
/// of the unit, the first counts. A further attempt is one of the run before it, after that one's end.
pub fn gate_runs(lines: &[RunLine]) -> Vec<GateRun> {
    let mut runs: Vec<GateRun> = Vec::new();
    let mut times = BTreeSet::new();
    let mut starts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lines {
        match line {
            RunLine::Begin {
                scheduled,
                at,
                invocation,
            } => {
                if starts.contains_key(invocation.as_str()) || !times.insert(*scheduled) {
                    continue;
                }
                starts.insert(invocation, runs.len());
                runs.push(GateRun {
                    scheduled: *scheduled,
                    began: *at,
                    earlier: Vec::new(),
                    invocation: invocation.clone(),
                    end: None,
                });
            }
            RunLine::Again {
                scheduled,
                invocation,
                ..
            } => {
                let Some(last) = runs.len().checked_sub(1) else {
                    continue;
                };
                let run = runs.last_mut().filter(|run| {
                    run.scheduled == *scheduled && run.earlier.len() < MOST_BOUND_RETRIES
                });
                if starts.contains_key(invocation.as_str()) {
                    continue;
                }
                if let Some(run) = run
                    && let Some(end) = run.end.take()
                {
                    let invocation_before =
                        std::mem::replace(&mut run.invocation, invocation.clone());
                    run.earlier.push(GateAttempt {
                        invocation: invocation_before,
                        end,
                    });
                    starts.insert(invocation, last);
                }
            }
            RunLine::End {
                invocation,
                at,
                result,
                code,
                status,
            } => {
                let index = starts.get(invocation.as_str()).copied();
                let run = index.and_then(|index| runs.get_mut(index));
                let is_open =
                    |run: &&mut GateRun| run.end.is_none() && run.invocation == *invocation;
                if let Some(run) = run.filter(is_open) {
                    run.end = Some(GateEnd {
                        at: *at,
                        result: result.clone(),
                        code: code.clone(),
                        status: status.clone(),
                    });
                }
            }
            RunLine::Skip { .. } => {}
        }
    }
    runs
}

/// What the gate does at a start of its unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateVerdict {
    /// The run of this scheduled time begins.
    Begin(i64),
    /// A further attempt of the run of this scheduled time begins.
    Again(i64),
    /// This scheduled time gets no run: another one ran.
    Skip(i64),
    /// Nothing begins, and nothing is written.
    Refuse(&'static str),
}

/// Decides about a start of the unit at `now`, whoever starts it. Pure.
pub fn gate_verdict(table: &RunTable, lines: &[RunLine], now: i64) -> GateVerdict {
    let runs = gate_runs(lines);
    let next = table.next_attempt(&runs, now);
    let verdict = verdict_of_time(table, lines, (&runs, next), now);
    let is_busy = runs.iter().any(|run| run.end.is_none());
    let may_begin = !is_busy && !table.times.is_empty();
    let missed = table.missed_time(lines, now);
    let missed = missed.filter(|_| may_begin && next.is_none());
    match verdict {
        GateVerdict::Begin(_) if table.waits => missed.map_or(verdict, GateVerdict::Begin),
        GateVerdict::Refuse(_) => match next.filter(|next| may_begin && next.from <= now) {
            Some(next) => GateVerdict::Again(next.scheduled),
            None => missed.map_or(verdict, GateVerdict::Begin),
        },
        GateVerdict::Begin(_) | GateVerdict::Again(_) | GateVerdict::Skip(_) => verdict,
    }
}

/// Whether a scheduled time has had its run, or was skipped.
fn has_line(lines: &[RunLine], scheduled: i64) -> bool {
    lines.iter().any(|line| match line {
        RunLine::Begin { scheduled: one, .. } | RunLine::Skip { scheduled: one, .. } => {
            *one == scheduled
        }
        RunLine::Again { .. } | RunLine::End { .. } => false,
    })
}

/// Decides about the newest scheduled time that has come. `next` is the attempt that the last run awaits.
fn verdict_of_time(
    table: &RunTable,
    lines: &[RunLine],
    (runs, next): (&[GateRun], Option<NextAttempt>),
    now: i64,
) -> GateVerdict {
    let come = table.times.iter().filter(|time| time.start <= now);
    let Some(TableTime { start, scheduled }) = come.max_by_key(|time| time.start).copied() else {
        return GateVerdict::Refuse("no scheduled time has come");
    };
    if scheduled <= table.handled {
        return GateVerdict::Refuse("the scheduled time is decided");
    }
    if has_line(lines, scheduled) {
        return GateVerdict::Refuse("the scheduled time has had its run, or was skipped");
    }
    if table.waits {
        if next.is_some() || runs.iter().any(|run| run.end.is_none()) {
            return GateVerdict::Refuse("another run is active, and the scheduled time waits");
        }
    } else {
        // An end that is still to come was written by another clock.
        let is_over = |end: &GateEnd| end.at <= start || end.at > now;
        let overlaps = runs
            .iter()
            .any(|run| !run.end.as_ref().is_some_and(is_over));
        // The run goes on, unless nobody has tried it again for long.
        let is_awaited = next.is_some_and(|next| now <= next.from.saturating_add(OVERDUE));
        if overlaps || is_awaited {
            return GateVerdict::Skip(scheduled);
        }
    }
    if now.saturating_sub(start) > table.late {
        return GateVerdict::Refuse("the scheduled time is too long ago");
    }
    GateVerdict::Begin(scheduled)
}

/// A time of these files; `None` for one that is no time.
pub fn file_time(seconds: i64) -> Option<Timestamp> {
    Timestamp::from_second(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(handled: i64, starts: &[i64]) -> RunTable {
        RunTable {
            handled,
            late: 120,
            times: starts
                .iter()
                .map(|start| TableTime {
                    start: *start,
                    scheduled: *start,
                })
                .collect(),
            ..RunTable::default()
        }
    }

    /// Such a table of a Job with retries.
    fn with_retries(starts: &[i64]) -> RunTable {
        RunTable {
            retries: 2,
            ..table(0, starts)
        }
    }

    fn begin(scheduled: i64, invocation: &str) -> RunLine {
        RunLine::Begin {
            scheduled,
            at: scheduled,
            invocation: invocation.to_owned(),
        }
    }

    fn end(invocation: &str, at: i64) -> RunLine {
        RunLine::End {
            invocation: invocation.to_owned(),
            at,
            result: "success".to_owned(),
            code: "exited".to_owned(),
            status: "0".to_owned(),
        }
    }

    fn again(scheduled: i64, at: i64, invocation: &str) -> RunLine {
        RunLine::Again {
            scheduled,
            at,
            invocation: invocation.to_owned(),
        }
    }

    fn failed(invocation: &str, at: i64) -> RunLine {
        RunLine::End {
            invocation: invocation.to_owned(),
            at,
            result: "exit-code".to_owned(),
            code: "exited".to_owned(),
            status: "3".to_owned(),
        }
    }

    #[test]
    fn files_that_were_written_are_read_again() {
        let retried = RunTable {
            deadline: Some(600),
            extra_start: Some(30),
            waits: true,
            missed: vec![MissedTime {
                scheduled: 7,
                until: 90,
            }],
            ..with_retries(&[10])
        };
        assert_eq!(RunTable::parse(&retried.text()), Some(retried));
        let table = table(5, &[10, 20]);
        // A gate of an earlier version knows these lines alone.
        assert_eq!(
            table.text(),
            "handled 5\nlate 120\ntime 10 10\ntime 20 20\n"
        );
        assert_eq!(RunTable::parse(&table.text()), Some(table));
        let lines = [
            begin(10, "a1"),
            end("a1", 12),
            RunLine::Skip {
                scheduled: 20,
                at: 21,
            },
            again(10, 22, "b1"),
        ];
        let text: String = lines.iter().map(RunLine::text).collect();
        assert_eq!(run_lines(&text), lines);
        let odd = RunLine::End {
            invocation: "a b\nbegin 1 1 x".to_owned(),
            at: 1,
            result: String::new(),
            code: String::new(),
            status: "9".to_owned(),
        };
        assert_eq!(odd.text(), "end abbegin11x 1 - - 9\n");
    }

    #[test]
    fn lines_of_another_form_are_none() {
        for line in [
            "",
            "begin 10 10",
            "again 10 10",
            "begin ten 10 a",
            "begin 10 10 a b",
            "begin 10 10 a/b",
            "end a 1 success exited",
            "skip 10",
            "Begin 10 10 a",
            "begin 10 10 ",
        ] {
            assert_eq!(RunLine::parse(line), None, "{line}");
        }
        assert_eq!(
            RunLine::parse(&format!("begin 1 1 {}", "a".repeat(65))),
            None
        );
        for text in [
            "",
            "late 120\n",
            "handled 1\nlate 2\nelse\n",
            "handled x\nlate 1\n",
        ] {
            assert_eq!(RunTable::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_time_begins_once_and_late_ones_and_decided_ones_never() {
        let table = table(5, &[5, 10, 70]);
        let refused = |verdict| matches!(verdict, GateVerdict::Refuse(_));
        assert!(refused(gate_verdict(&table, &[], 4)));
        assert!(refused(gate_verdict(&table, &[], 9)));
        assert_eq!(gate_verdict(&table, &[], 10), GateVerdict::Begin(10));
        let lines = [begin(10, "a"), end("a", 12)];
        assert!(refused(gate_verdict(&table, &lines, 13)));
        assert_eq!(gate_verdict(&table, &lines, 71), GateVerdict::Begin(70));
        assert!(refused(gate_verdict(&table, &lines, 191)));
        let skipped = RunLine::Skip {
            scheduled: 70,
            at: 71,
        };
        assert!(refused(gate_verdict(&table, &[skipped], 72)));
    }

    #[test]
    fn a_time_that_comes_during_a_run_is_skipped() {
        let table = table(0, &[10, 70]);
        let open = [begin(10, "a")];
        assert_eq!(gate_verdict(&table, &open, 70), GateVerdict::Skip(70));
        // The timer fires as soon as the run has ended.
        let over = [begin(10, "a"), end("a", 80)];
        assert_eq!(gate_verdict(&table, &over, 80), GateVerdict::Skip(70));
    }

    #[test]
    fn an_end_belongs_to_its_begin_and_the_first_one_counts() {
        let lines = [begin(10, "a"), end("b", 11), end("a", 12), end("a", 13)];
        let runs = gate_runs(&lines);
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].end.as_ref().map(|end| end.at), Some(12));
        let twice = [begin(10, "a"), begin(10, "b")];
        assert_eq!(gate_runs(&twice).len(), 1);
        let one_start = [begin(10, "a"), end("a", 12), begin(70, "a")];
        assert_eq!(gate_runs(&one_start).len(), 1);
    }

    #[test]
    fn an_end_by_a_clock_that_was_ahead_holds_no_later_time_up() {
        let table = table(0, &[10, 70]);
        let lines = [begin(10, "a"), end("a", 90_000)];
        assert_eq!(gate_verdict(&table, &lines, 71), GateVerdict::Begin(70));
    }

    #[test]
    fn a_run_that_failed_is_tried_again_after_growing_pauses_until_there_are_too_many() {
        let table = with_retries(&[10, 1000]);
        let refused = |verdict| matches!(verdict, GateVerdict::Refuse(_));
        let mut lines = vec![begin(10, "a"), failed("a", 20)];
        assert!(refused(gate_verdict(&table, &lines, 29)));
        assert_eq!(gate_verdict(&table, &lines, 30), GateVerdict::Again(10));
        lines.push(again(10, 30, "b"));
        assert!(refused(gate_verdict(&table, &lines, 31)));
        lines.push(failed("b", 40));
        assert!(refused(gate_verdict(&table, &lines, 59)));
        assert_eq!(gate_verdict(&table, &lines, 60), GateVerdict::Again(10));
        lines.extend([again(10, 60, "c"), failed("c", 70)]);
        assert!(refused(gate_verdict(&table, &lines, 900)));
        let runs = gate_runs(&lines);
        assert_eq!((runs.len(), runs[0].began), (1, 10));
        let ends: Vec<_> = runs[0].earlier.iter().map(|one| one.end.at).collect();
        assert_eq!(ends, [20, 40]);
        assert_eq!(runs[0].end.as_ref().map(|end| end.at), Some(70));
    }

    #[test]
    fn nothing_is_tried_again_after_a_success_at_the_deadline_or_while_the_table_has_no_times() {
        let table = with_retries(&[10]);
        let refused = |verdict| matches!(verdict, GateVerdict::Refuse(_));
        let lines = [begin(10, "a"), failed("a", 20)];
        let done = [begin(10, "a"), end("a", 20)];
        assert!(refused(gate_verdict(&table, &done, 60)));
        let open = [begin(10, "a")];
        assert!(refused(gate_verdict(&table, &open, 60)));
        let with = |change: fn(&mut RunTable)| {
            let mut changed = table.clone();
            change(&mut changed);
            gate_verdict(&changed, &lines, 60)
        };
        assert_eq!(with(|_| {}), GateVerdict::Again(10));
        assert_eq!(
            with(|table| table.deadline = Some(51)),
            GateVerdict::Again(10)
        );
        assert!(refused(with(|table| table.deadline = Some(50))));
        assert!(refused(with(|table| table.handled = 10)));
        assert!(refused(with(|table| table.retries = 0)));
        assert!(refused(with(|table| table.times.clear())));
    }

    #[test]
    fn a_time_that_comes_before_the_next_attempt_is_skipped_unless_that_is_overdue() {
        let table = with_retries(&[10, 25, 400]);
        let mut lines = vec![begin(10, "a"), failed("a", 20)];
        assert_eq!(gate_verdict(&table, &lines, 25), GateVerdict::Skip(25));
        lines.push(RunLine::Skip {
            scheduled: 25,
            at: 25,
        });
        assert_eq!(gate_verdict(&table, &lines, 300), GateVerdict::Again(10));
        // Nobody started it: the schedule continues, and that run has no further attempt.
        assert_eq!(gate_verdict(&table, &lines, 400), GateVerdict::Begin(400));
        lines.extend([begin(400, "b"), end("b", 401)]);
        let refused = gate_verdict(&table, &lines, 402);
        assert!(matches!(refused, GateVerdict::Refuse(_)), "{refused:?}");
    }

    #[test]
    fn an_attempt_follows_the_end_of_the_one_before_it_and_belongs_to_the_last_run() {
        let early = [begin(10, "a"), again(10, 11, "b"), failed("a", 12)];
        assert!(gate_runs(&early)[0].earlier.is_empty());
        let of_another = [
            begin(10, "a"),
            failed("a", 12),
            begin(70, "b"),
            again(10, 80, "c"),
        ];
        assert!(
            gate_runs(&of_another)
                .iter()
                .all(|run| run.earlier.is_empty())
        );
        let one_start = [begin(10, "a"), failed("a", 12), again(10, 22, "a")];
        assert!(gate_runs(&one_start)[0].earlier.is_empty());
        // The late end of an attempt that another one followed.
        let late = [
            begin(10, "a"),
            failed("a", 12),
            again(10, 22, "b"),
            end("a", 23),
        ];
        assert_eq!(gate_runs(&late)[0].end, None);
        let many: Vec<RunLine> = (0..40)
            .flat_map(|one| {
                let id = format!("i{one}");
                let start = match one {
                    0 => begin(10, &id),
                    _ => again(10, 10 + one, &id),
                };
                [start, failed(&id, 10 + one)]
            })
            .collect();
        assert_eq!(gate_runs(&many)[0].earlier.len(), MOST_BOUND_RETRIES);
    }

    #[test]
    fn a_missed_time_begins_once_when_nothing_else_does_and_not_after_its_deadline() {
        let mut table = with_retries(&[1000, 2000]);
        table.missed = [(100, 1500), (200, 1900)]
            .map(|(scheduled, until)| MissedTime { scheduled, until })
            .to_vec();
        let refused = |verdict| matches!(verdict, GateVerdict::Refuse(_));
        // The time that has come is first.
        assert_eq!(gate_verdict(&table, &[], 1001), GateVerdict::Begin(1000));
        let mut lines = vec![begin(1000, "a")];
        assert!(refused(gate_verdict(&table, &lines, 1002)));
        lines.push(failed("a", 1003));
        assert!(refused(gate_verdict(&table, &lines, 1004)));
        assert_eq!(gate_verdict(&table, &lines, 1013), GateVerdict::Again(1000));
        lines.extend([again(1000, 1013, "b"), end("b", 1014)]);
        assert_eq!(gate_verdict(&table, &lines, 1015), GateVerdict::Begin(100));
        assert_eq!(gate_verdict(&table, &lines, 1501), GateVerdict::Begin(200));
        lines.extend([begin(100, "c"), end("c", 1016)]);
        assert_eq!(gate_verdict(&table, &lines, 1017), GateVerdict::Begin(200));
        assert!(refused(gate_verdict(&table, &lines, 1901)));
        assert!(refused(gate_verdict(&table, &lines, 150)));
        table.handled = 200;
        assert!(refused(gate_verdict(&table, &lines, 1017)));
        table.handled = 0;
        table.times.clear();
        assert!(refused(gate_verdict(&table, &lines, 1017)));
    }

    #[test]
    fn a_time_that_waits_begins_after_the_run_before_it_and_after_missed_ones() {
        let mut table = with_retries(&[1000, 1060]);
        table.waits = true;
        let refused = |verdict| matches!(verdict, GateVerdict::Refuse(_));
        let mut lines = vec![begin(1000, "a")];
        assert!(refused(gate_verdict(&table, &lines, 1060)));
        lines.push(failed("a", 1070));
        assert!(refused(gate_verdict(&table, &lines, 1071)));
        // However late the attempt is.
        assert_eq!(gate_verdict(&table, &lines, 1400), GateVerdict::Again(1000));
        lines.extend([again(1000, 1080, "b"), end("b", 1090)]);
        assert_eq!(gate_verdict(&table, &lines, 1091), GateVerdict::Begin(1060));
        table.missed = vec![MissedTime {
            scheduled: 900,
            until: i64::MAX,
        }];
        assert_eq!(gate_verdict(&table, &lines, 1091), GateVerdict::Begin(900));
        lines.extend([begin(900, "c"), end("c", 1092)]);
        assert_eq!(gate_verdict(&table, &lines, 1093), GateVerdict::Begin(1060));
    }

    #[test]
    fn a_failure_by_a_clock_that_was_ahead_is_tried_again_at_once() {
        let table = with_retries(&[10]);
        let lines = [begin(10, "a"), failed("a", 90_000)];
        assert_eq!(gate_verdict(&table, &lines, 60), GateVerdict::Again(10));
    }

    /// Numbers that differ from step to step, the same for each seed.
    fn next(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    #[test]
    fn whatever_fires_and_whatever_is_cut_no_time_has_two_begins_and_no_runs_overlap() {
        for seed in 0..500 {
            let mut random = seed;
            let mut table = table(0, &(1..40).map(|one| one * 60).collect::<Vec<_>>());
            let (mut now, mut lines, mut runs): (i64, Vec<RunLine>, Option<String>) =
                (0, Vec::new(), None);
            for step in 0..200 {
                // The clock goes back as well.
                now += i64::try_from(next(&mut random) % 40).unwrap() - 5;
                match next(&mut random) % 5 {
                    0 => {
                        if let Some(invocation) = runs.take() {
                            lines.push(end(&invocation, now));
                        }
                    }
                    // A power cut: the run has no end until the agent writes one.
                    1 => {
                        if let Some(invocation) = runs.take().filter(|_| step % 2 == 0) {
                            lines.push(end(&invocation, now));
                        }
                    }
                    2 => table.handled = table.handled.max(now - 300),
                    _ if runs.is_none() => match gate_verdict(&table, &lines, now) {
                        GateVerdict::Again(_) => panic!("seed {seed}: there are no retries"),
                        GateVerdict::Begin(scheduled) => {
                            let invocation = format!("{step}");
                            let again = lines.iter().any(|line| {
                                matches!(line, RunLine::Begin { scheduled: one, .. } if *one == scheduled)
                            });
                            assert!(!again, "seed {seed}: {scheduled} begins twice");
                            assert!(scheduled > table.handled, "seed {seed}");
                            let open = gate_runs(&lines).iter().any(|run| run.end.is_none());
                            assert!(!open, "seed {seed}: two runs at once");
                            lines.push(begin(scheduled, &invocation));
                            runs = Some(invocation);
                        }
                        GateVerdict::Skip(scheduled) => {
                            lines.push(RunLine::Skip { scheduled, at: now });
                        }
                        GateVerdict::Refuse(_) => {}
                    },
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn whatever_fires_and_whatever_is_cut_a_run_has_no_attempt_too_many_and_none_beside_another() {
        for seed in 0..500 {
            let mut random = seed;
            let mut table = with_retries(&(1..40).map(|one| one * 60).collect::<Vec<_>>());
            table.deadline = (seed % 2 == 0).then_some(90);
            table.waits = seed % 3 == 0;
            table.missed = (1..20)
                .map(|one| MissedTime {
                    scheduled: one * 60,
                    until: i64::MAX,
                })
                .collect();
            let (mut now, mut lines, mut runs): (i64, Vec<RunLine>, Option<String>) =
                (0, Vec::new(), None);
            let mut cut = None;
            for step in 0..300 {
                now += i64::try_from(next(&mut random) % 20).unwrap() - 3;
                let chance = next(&mut random) % 8;
                match chance {
                    0 | 1 => {
                        if let Some(invocation) = runs.take() {
                            lines.push(match chance {
                                0 => end(&invocation, now),
                                _ => failed(&invocation, now),
                            });
                        }
                    }
                    // A power cut: the attempt has no end until the agent writes one.
                    2 => cut = runs.take().or(cut),
                    3 => {
                        if let Some(invocation) = cut.take() {
                            lines.push(failed(&invocation, now));
                        }
                    }
                    4 => table.handled = table.handled.max(now - 300),
                    _ if runs.is_none() => {
                        let invocation = format!("{step}");
                        let is_open = gate_runs(&lines).iter().any(|run| run.end.is_none());
                        match gate_verdict(&table, &lines, now) {
                            GateVerdict::Begin(scheduled) => {
                                assert!(!is_open, "seed {seed}: two runs at once");
                                let is_new = !has_line(&lines, scheduled);
                                assert!(is_new, "seed {seed}: {scheduled} begins twice");
                                assert!(scheduled > table.handled, "seed {seed}");
                                lines.push(begin(scheduled, &invocation));
                            }
                            GateVerdict::Again(scheduled) => {
                                assert!(!is_open, "seed {seed}: two attempts at once");
                                assert!(scheduled > table.handled, "seed {seed}");
                                lines.push(again(scheduled, now, &invocation));
                            }
                            GateVerdict::Skip(scheduled) => {
                                lines.push(RunLine::Skip { scheduled, at: now });
                                continue;
                            }
                            GateVerdict::Refuse(_) => continue,
                        }
                        runs = Some(invocation);
                    }
                    _ => {}
                }
            }
            let found = gate_runs(&lines);
            let counted: usize = found.iter().map(|run| 1 + run.earlier.len()).sum();
            let starts = lines
                .iter()
                .filter(|line| matches!(line, RunLine::Begin { .. } | RunLine::Again { .. }));
            assert_eq!(counted, starts.count(), "seed {seed}: each start counts");
            for run in found {
                assert!(run.earlier.len() <= 2, "seed {seed}: {run:?}");
                let failures = run.earlier.iter().all(|one| !one.end.is_success());
                assert!(failures, "seed {seed}: {run:?}");
            }
        }
    }
}
