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

/// Largest table of times, in bytes.
pub const TABLE_LIMIT: u64 = 64 << 10;
/// Largest file of runs, in bytes: some 500 runs. The agent removes what the leader has, and over half of
/// it older runs as well.
pub const RUNS_LIMIT: u64 = 64 << 10;
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
    /// The times in their order.
    pub times: Vec<TableTime>,
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
                ["time", start, scheduled] => table.times.push(TableTime {
                    start: start.parse().ok()?,
                    scheduled: scheduled.parse().ok()?,
                }),
                _ => return None,
            }
        }
        (has_handled && has_late).then_some(table)
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
    /// A run ended.
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
    /// When it began.
    pub began: i64,
    /// systemd's id of the start.
    pub invocation: String,
    /// How it ended; `None` if that is in no line.
    pub end: Option<GateEnd>,
}

/// The end of a run in the file of runs.
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

/// The runs of these lines, each with its first end. Of several begins of one time, or of one start of the
/// unit, the first counts.
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
                    invocation: invocation.clone(),
                    end: None,
                });
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
                if let Some(run) = run.filter(|run| run.end.is_none()) {
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
    /// This scheduled time gets no run: another one ran.
    Skip(i64),
    /// Nothing begins, and nothing is written.
    Refuse(&'static str),
}

/// Decides about a start of the unit at `now`. Pure.
pub fn gate_verdict(table: &RunTable, lines: &[RunLine], now: i64) -> GateVerdict {
    let come = table.times.iter().filter(|time| time.start <= now);
    let Some(TableTime { start, scheduled }) = come.max_by_key(|time| time.start).copied() else {
        return GateVerdict::Refuse("no scheduled time has come");
    };
    if scheduled <= table.handled {
        return GateVerdict::Refuse("the scheduled time is decided");
    }
    let has_line = lines.iter().any(|line| match line {
        RunLine::Begin { scheduled: one, .. } | RunLine::Skip { scheduled: one, .. } => {
            *one == scheduled
        }
        RunLine::End { .. } => false,
    });
    if has_line {
        return GateVerdict::Refuse("the scheduled time has had its run, or was skipped");
    }
    let runs = gate_runs(lines);
    // An end that is still to come was written by another clock.
    let is_over = |end: &GateEnd| end.at <= start || end.at > now;
    let overlaps = runs
        .iter()
        .any(|run| !run.end.as_ref().is_some_and(is_over));
    if overlaps {
        return GateVerdict::Skip(scheduled);
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

    #[test]
    fn files_that_were_written_are_read_again() {
        let table = table(5, &[10, 20]);
        assert_eq!(RunTable::parse(&table.text()), Some(table));
        let lines = [
            begin(10, "a1"),
            end("a1", 12),
            RunLine::Skip {
                scheduled: 20,
                at: 21,
            },
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
}
