//! The gate of a schedule that a machine keeps by itself: `kat-net run-gate`, which the unit of an
//! instance calls before each run and after it.
//!
//! It runs as the workload's user. Before a run it writes the scheduled time to the disk, so that no time
//! runs twice whatever is cut; what it can't write down does not run. An exit status of 1 makes systemd
//! skip the start without a failure (systemd.service(5), `ExecCondition=`).

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::fs::FlockOperation;

use kat_types::machine::bound_runs::{
    BEGIN_LIMIT, GateVerdict, RUNS_LIMIT, RunLine, RunTable, TABLE_LIMIT, gate_verdict, run_lines,
};

/// How often the file of runs is opened again because the agent has replaced it.
const ATTEMPTS: u32 = 8;

/// Why a gate can't decide, or can't write down what it decided.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error("can't read the scheduled times: {0}")]
    Table(io::Error),
    #[error("the scheduled times are malformed")]
    Malformed,
    #[error("can't use the file of runs: {0}")]
    Runs(io::Error),
    #[error("systemd gave no {0}")]
    Missing(&'static str),
}

/// What systemd says of a unit's start and end (systemd.exec(5)).
#[derive(Debug, Clone, Default)]
pub struct UnitWords {
    /// `$INVOCATION_ID`.
    pub invocation: String,
    /// `$SERVICE_RESULT`.
    pub result: String,
    /// `$EXIT_CODE`.
    pub code: String,
    /// `$EXIT_STATUS`.
    pub status: String,
}

impl UnitWords {
    fn of_process() -> Self {
        let read = |name| std::env::var(name).unwrap_or_default();
        Self {
            invocation: read("INVOCATION_ID"),
            result: read("SERVICE_RESULT"),
            code: read("EXIT_CODE"),
            status: read("EXIT_STATUS"),
        }
    }
}

/// Before a run: succeeds where it may begin, and has written that it does.
pub fn begin(times: &Path, runs: &Path) -> ExitCode {
    match try_begin(times, runs, &UnitWords::of_process(), seconds_now()) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(why)) => {
            anstream::eprintln!("no run begins: {why}");
            ExitCode::FAILURE
        }
        Err(error) => {
            anstream::eprintln!("no run begins: {error}");
            ExitCode::FAILURE
        }
    }
}

/// After a run: writes how it ended.
pub fn end(runs: &Path) -> ExitCode {
    match try_end(runs, &UnitWords::of_process(), seconds_now()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("the end of the run is not written down: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Seconds since 1970-01-01 UTC, by the machine's clock.
fn seconds_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // A clock before 1970 is at no scheduled time.
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

/// [`begin`] with the words and the time of the caller. An inner error says why nothing begins.
pub fn try_begin(
    times: &Path,
    runs: &Path,
    words: &UnitWords,
    now: i64,
) -> Result<Result<(), &'static str>, GateError> {
    if words.invocation.is_empty() {
        return Err(GateError::Missing("INVOCATION_ID"));
    }
    let mut file = open_locked(runs).map_err(GateError::Runs)?;
    let mut text = read_text(&mut file, BEGIN_LIMIT).map_err(GateError::Runs)?;
    // Read after the lock: the agent writes the table before it removes lines.
    let table = File::open(times).and_then(|mut file| read_text(&mut file, TABLE_LIMIT));
    let table = table.map_err(GateError::Table)?;
    let table = RunTable::parse(&table).ok_or(GateError::Malformed)?;
    let mut lines = run_lines(&text);
    let mut verdict = gate_verdict(&table, &lines, now);
    let mut refusal = None;
    if let GateVerdict::Skip(scheduled) = verdict {
        refusal = Some("another run was active at its time");
        let line = RunLine::Skip { scheduled, at: now };
        // During a long run the agent removes nothing. A time without a line counts as missed.
        if u64::try_from(text.len()).is_ok_and(|length| length <= RUNS_LIMIT / 2) {
            append(&mut file, &text, &line).map_err(GateError::Runs)?;
            text.push('\n');
        }
        lines.push(line);
        // The next attempt of that other run may be due.
        verdict = gate_verdict(&table, &lines, now);
    }
    let invocation = words.invocation.clone();
    let line = match verdict {
        GateVerdict::Begin(scheduled) => RunLine::Begin {
            scheduled,
            at: now,
            invocation,
        },
        GateVerdict::Again(scheduled) => RunLine::Again {
            scheduled,
            at: now,
            invocation,
        },
        GateVerdict::Skip(_) => return Ok(Err("another run was active at its time")),
        GateVerdict::Refuse(why) => return Ok(Err(refusal.unwrap_or(why))),
    };
    append(&mut file, &text, &line).map_err(GateError::Runs)?;
    Ok(Ok(()))
}

/// [`end`] with the words and the time of the caller.
pub fn try_end(runs: &Path, words: &UnitWords, now: i64) -> Result<(), GateError> {
    let mut file = open_locked(runs).map_err(GateError::Runs)?;
    let text = read_text(&mut file, RUNS_LIMIT).map_err(GateError::Runs)?;
    let began = run_lines(&text).iter().any(|line| match line {
        RunLine::Begin { invocation, .. } | RunLine::Again { invocation, .. } => {
            *invocation == words.invocation
        }
        RunLine::End { .. } | RunLine::Skip { .. } => false,
    });
    // After a start that was refused there is nothing to write.
    if !began || words.invocation.is_empty() {
        return Ok(());
    }
    let line = RunLine::End {
        invocation: words.invocation.clone(),
        at: now,
        result: words.result.clone(),
        code: words.code.clone(),
        status: words.status.clone(),
    };
    append(&mut file, &text, &line).map_err(GateError::Runs)
}

/// Opens the file of runs, which only the agent makes, with a lock. The agent replaces it: a line in the
/// file before would be lost.
fn open_locked(path: &Path) -> io::Result<File> {
    for _ in 0..ATTEMPTS {
        let file = File::options().read(true).append(true).open(path)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        let (opened, present) = (file.metadata()?, std::fs::metadata(path)?);
        if (opened.dev(), opened.ino()) == (present.dev(), present.ino()) {
            return Ok(file);
        }
    }
    Err(io::Error::other("it is replaced again and again"))
}

fn read_text(file: &mut File, limit: u64) -> io::Result<String> {
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(limit + 1).read_to_end(&mut content)?;
    if u64::try_from(content.len()).is_ok_and(|length| length <= limit) {
        // A line that is no text is none.
        return Ok(String::from_utf8_lossy(&content).into_owned());
    }
    Err(io::Error::other(format!("larger than {limit} bytes")))
}

/// Adds a line after `text`, whose last line a power cut may have cut short, and brings it to the disk.
fn append(file: &mut File, text: &str, line: &RunLine) -> io::Result<()> {
    let mut added = String::new();
    if !text.is_empty() && !text.ends_with('\n') {
        added.push('\n');
    }
    added.push_str(&line.text());
    file.write_all(added.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::machine::bound_runs::{GateEnd, TableTime, gate_runs};

    fn words(invocation: &str) -> UnitWords {
        UnitWords {
            invocation: invocation.to_owned(),
            result: "success".to_owned(),
            code: "exited".to_owned(),
            status: "0".to_owned(),
        }
    }

    #[test]
    fn a_begin_is_written_once_and_its_end_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (times, runs) = (folder.path().join("times"), folder.path().join("runs"));
        let begin = |invocation, now| try_begin(&times, &runs, &words(invocation), now);
        // Nothing runs where it can't be written down, or where the times are not known.
        assert!(matches!(begin("a", 60), Err(GateError::Runs(_))));
        std::fs::write(&runs, "").unwrap();
        assert!(matches!(begin("a", 60), Err(GateError::Table(_))));
        std::fs::write(&times, "else").unwrap();
        assert!(matches!(begin("a", 60), Err(GateError::Malformed)));
        let table = RunTable {
            handled: 0,
            late: 120,
            times: [60, 120]
                .map(|at| TableTime {
                    start: at,
                    scheduled: at,
                })
                .to_vec(),
            ..RunTable::default()
        };
        std::fs::write(&times, table.text()).unwrap();
        assert!(matches!(begin("", 60), Err(GateError::Missing(_))));
        assert_eq!(begin("a", 60).unwrap(), Ok(()));
        assert!(begin("b", 61).unwrap().is_err());
        try_end(&runs, &words("b"), 62).unwrap();
        try_end(&runs, &words("a"), 63).unwrap();
        // A power cut has cut the last line short.
        let mut cut = File::options().append(true).open(&runs).unwrap();
        cut.write_all(b"begin 1").unwrap();
        assert_eq!(begin("c", 120).unwrap(), Ok(()));
        let text = std::fs::read_to_string(&runs).unwrap();
        let found = gate_runs(&run_lines(&text));
        let found: Vec<_> = found
            .iter()
            .map(|run| (run.scheduled, run.end.as_ref().map(|end| end.at)))
            .collect();
        assert_eq!(found, [(60, Some(63)), (120, None)]);
    }

    #[test]
    fn a_long_run_whose_times_are_skipped_leaves_room_for_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let (times, runs) = (folder.path().join("times"), folder.path().join("runs"));
        std::fs::write(&times, "handled 0\nlate 120\ntime 60 60\ntime 120 120\n").unwrap();
        let length = usize::try_from(RUNS_LIMIT / 2).unwrap();
        let text = format!("begin 60 60 a\n{}", "\n".repeat(length));
        std::fs::write(&runs, &text).unwrap();
        assert!(try_begin(&times, &runs, &words("b"), 120).unwrap().is_err());
        assert_eq!(std::fs::read_to_string(&runs).unwrap(), text);
        try_end(&runs, &words("a"), 121).unwrap();
        assert!(std::fs::read_to_string(&runs).unwrap().contains("end a "));
    }

    #[test]
    fn a_run_that_failed_begins_again_at_a_start_after_its_pause_also_where_a_time_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let (times, runs) = (folder.path().join("times"), folder.path().join("runs"));
        let begin = |invocation, now| try_begin(&times, &runs, &words(invocation), now);
        std::fs::write(
            &times,
            "handled 0\nlate 120\nretries 1\ntime 60 60\ntime 75 75\n",
        )
        .unwrap();
        std::fs::write(&runs, "").unwrap();
        assert_eq!(begin("a", 60).unwrap(), Ok(()));
        let failed = UnitWords {
            status: "3".to_owned(),
            ..words("a")
        };
        try_end(&runs, &failed, 64).unwrap();
        assert!(begin("b", 70).unwrap().is_err());
        // The timer of the next time begins the attempt that is due.
        assert_eq!(begin("c", 75).unwrap(), Ok(()));
        try_end(&runs, &words("c"), 77).unwrap();
        assert!(begin("d", 200).unwrap().is_err());
        let text = std::fs::read_to_string(&runs).unwrap();
        assert!(text.contains("skip 75 75\nagain 60 75 c\nend c "), "{text}");
        let found = gate_runs(&run_lines(&text));
        assert_eq!((found.len(), found[0].earlier.len()), (1, 1));
        assert!(found[0].end.as_ref().is_some_and(GateEnd::is_success));
    }

    #[test]
    fn a_file_of_runs_that_its_user_has_filled_begins_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (times, runs) = (folder.path().join("times"), folder.path().join("runs"));
        std::fs::write(&times, "handled 0\nlate 120\ntime 60 60\n").unwrap();
        let length = usize::try_from(RUNS_LIMIT).unwrap() + 1;
        std::fs::write(&runs, vec![b'\n'; length]).unwrap();
        let refused = try_begin(&times, &runs, &words("a"), 60);
        assert!(matches!(refused, Err(GateError::Runs(_))));
    }
}
