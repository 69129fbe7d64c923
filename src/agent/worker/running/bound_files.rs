//! The files about the runs that an instance's machine begins by itself: the table of times, which the
//! agent writes, and the file of runs, which the unit's gate writes as the workload's user
//! ([`kat_types::machine::bound_runs`]).
//!
//! The folder of the file of runs is root's, so that its user can put nothing else in its place; what is
//! in it may be anything.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    iter,
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use rustix::fs::{FlockOperation, OFlags};

use crate::worker::unit_state::unit_files::{FilesError, make_folder};
use kat_host::files::{self, FileAccess};
use kat_types::machine::bound_runs::{
    BEGIN_LIMIT, GateRun, INTERRUPTED, RUNS_LIMIT, RunLine, RunTable, TABLE_LIMIT, gate_runs,
    run_lines,
};

/// The lines that the leader has are removed once there are so many.
const MOST_TAKEN: usize = 40;
/// Attempts of runs that are kept for the leader where it has not taken them for long: fewer than half of the
/// limit.
const MOST_KEPT: usize = 200;

/// The files of one instance.
#[derive(Debug)]
pub(crate) struct BoundFiles {
    pub table: PathBuf,
    pub runs: PathBuf,
    pub uid: u32,
}

impl BoundFiles {
    /// Makes the file of runs if there is none.
    pub(crate) fn make_runs(&self) -> Result<(), FilesError> {
        if self.runs.exists() {
            return Ok(());
        }
        if let Some(folder) = self.runs.parent() {
            make_folder(folder, FileAccess::owned(0o750, 0, self.uid))?;
        }
        Ok(files::write_atomic(&self.runs, b"", self.access())?)
    }

    fn access(&self) -> FileAccess {
        FileAccess::owned(0o660, 0, self.uid)
    }

    /// The table; `None` where it is missing or can't be read.
    pub(crate) fn table(&self) -> Option<RunTable> {
        let text = files::read_text(&self.table, TABLE_LIMIT).ok()?;
        RunTable::parse(&text)
    }

    /// Writes the table if it differs. A gate reads it and writes its line under one lock: one that has
    /// read the table before has written its line when this returns.
    pub(crate) fn write_table(&self, table: &RunTable) -> io::Result<()> {
        if self.table().as_ref() == Some(table) {
            return Ok(());
        }
        let access = FileAccess::owned(0o640, 0, self.uid);
        let _lock = self.open_to_write()?;
        files::write_atomic(&self.table, table.text().as_bytes(), access).map_err(io::Error::other)
    }

    /// Takes the times out of the table: the gate begins nothing any more. Without a table it does not
    /// either.
    pub(crate) fn clear_table(&self) -> io::Result<()> {
        let Some(table) = self.table() else {
            return Ok(());
        };
        let times = Vec::new();
        self.write_table(&RunTable { times, ..table })
    }

    /// The lines of the file of runs; none where it is missing.
    pub(crate) fn lines(&self) -> io::Result<Vec<RunLine>> {
        Ok(run_lines(&self.text()?))
    }

    fn text(&self) -> io::Result<String> {
        match files::open_plain(&self.runs) {
            Ok(mut file) => read(&mut file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// The starts of runs without an end.
    pub(crate) fn open_runs(&self) -> Vec<String> {
        let lines = self.lines().unwrap_or_default();
        let runs = gate_runs(&lines).into_iter();
        runs.filter(|run| run.end.is_none())
            .map(|run| run.invocation)
            .collect()
    }

    /// Writes that these runs were cut, as far as they still have no end. Their unit must be down.
    pub(crate) fn close(&self, cut: &[String], now: i64) -> io::Result<()> {
        if cut.is_empty() {
            return Ok(());
        }
        let mut file = self.open_to_write()?;
        let text = read(&mut file)?;
        let open = gate_runs(&run_lines(&text)).into_iter();
        let open = open.filter(|run| run.end.is_none() && cut.contains(&run.invocation));
        let mut added = match text.is_empty() || text.ends_with('\n') {
            true => String::new(),
            false => "\n".to_owned(),
        };
        for run in open {
            added.push_str(&cut_end(run, now).text());
        }
        file.write_all(added.as_bytes())?;
        file.sync_all()
    }

    /// Removes the lines about times until `handled`, which the leader has, once there are many; of a file
    /// that is half full also older ones of times until `decided`. The table must have that `decided`
    /// already, so that the gate refuses all of them, and the unit must be down.
    pub(crate) fn remove_taken(&self, handled: i64, decided: i64) -> Result<(), FilesError> {
        let Ok(text) = self.text() else {
            return Ok(());
        };
        let lines = run_lines(&text);
        let until = removed_until(&lines, text.len(), (handled, decided));
        let kept = without_taken(&lines, until);
        let taken = lines.len() - kept.len();
        // Lines of another form are none that the gate wrote.
        let is_smaller = || text_of(&kept).len() < text.len();
        if taken < MOST_TAKEN && !(is_half_full(text.len()) && is_smaller()) {
            return Ok(());
        }
        // A gate that holds the lock is writing: a later pass removes them.
        let Ok(mut file) = self.open_to_write() else {
            return Ok(());
        };
        let Ok(text) = read(&mut file) else {
            return Ok(());
        };
        let lines = run_lines(&text);
        let kept = text_of(&without_taken(&lines, until));
        // The lock is held until the new file is in place.
        Ok(files::write_atomic(
            &self.runs,
            kept.as_bytes(),
            self.access(),
        )?)
    }

    /// Whether no run begins any more, since the file is full.
    pub(crate) fn is_full(&self) -> bool {
        let is_over = |length: usize| u64::try_from(length).is_ok_and(|one| one > BEGIN_LIMIT);
        self.text().is_ok_and(|text| is_over(text.len()))
    }

    /// Puts an empty file in the place of one that is too large: its gate begins and ends nothing any
    /// more. The table must have all times until now as decided, and the unit must be down.
    pub(crate) fn start_over(&self) -> Result<(), FilesError> {
        Ok(files::write_atomic(&self.runs, b"", self.access())?)
    }

    /// Opens the file of runs with a lock. Its user may hold the lock for ever: there is no wait for it.
    fn open_to_write(&self) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::options()
            .read(true)
            .append(true)
            .custom_flags(flags.bits().cast_signed())
            .open(&self.runs)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    }
}

/// The end of a run that was cut.
fn cut_end(run: GateRun, now: i64) -> RunLine {
    RunLine::End {
        invocation: run.invocation,
        at: now,
        result: INTERRUPTED.to_owned(),
        code: String::new(),
        status: String::new(),
    }
}

/// These lines, with an end for each run that has none. The unit must be gone.
pub(crate) fn with_cut_ends(mut lines: Vec<RunLine>, now: i64) -> Vec<RunLine> {
    let open = gate_runs(&lines).into_iter();
    let open = open.filter(|run| run.end.is_none());
    let ends: Vec<RunLine> = open.map(|run| cut_end(run, now)).collect();
    lines.extend(ends);
    lines
}

/// The time until which lines are removed: the leader's, and for a file that is half full the time of the
/// newest decided run that is not kept.
fn removed_until(lines: &[RunLine], length: usize, (handled, decided): (i64, i64)) -> i64 {
    if !is_half_full(length) {
        return handled;
    }
    let runs = gate_runs(lines);
    let attempts = |run: &GateRun| iter::repeat_n(run.scheduled, 1 + run.earlier.len());
    let mut times: Vec<i64> = runs.iter().flat_map(attempts).collect();
    times.sort_unstable();
    let surplus = times.len().saturating_sub(MOST_KEPT);
    let dropped = times.into_iter().take(surplus);
    let last = dropped.filter(|time| *time <= decided).max();
    last.map_or(handled, |last| last.max(handled))
}

fn is_half_full(length: usize) -> bool {
    u64::try_from(length).is_ok_and(|length| length > RUNS_LIMIT / 2)
}

fn text_of(lines: &[&RunLine]) -> String {
    lines.iter().copied().map(RunLine::text).collect()
}

/// The lines about times after `until`.
fn without_taken(lines: &[RunLine], until: i64) -> Vec<&RunLine> {
    let runs = gate_runs(lines).into_iter();
    let later = runs.filter(|run| run.scheduled > until);
    let later: BTreeSet<String> = later.flat_map(invocations).collect();
    let is_later = |line: &&RunLine| match line {
        RunLine::Begin { scheduled, .. }
        | RunLine::Again { scheduled, .. }
        | RunLine::Skip { scheduled, .. } => *scheduled > until,
        RunLine::End { invocation, .. } => later.contains(invocation),
    };
    lines.iter().filter(is_later).collect()
}

/// The starts of a run's attempts.
fn invocations(run: GateRun) -> impl Iterator<Item = String> {
    let earlier = run.earlier.into_iter().map(|one| one.invocation);
    earlier.chain(iter::once(run.invocation))
}

/// Reads a file of runs from its beginning.
fn read(file: &mut File) -> io::Result<String> {
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(RUNS_LIMIT + 1).read_to_end(&mut content)?;
    if u64::try_from(content.len()).is_ok_and(|length| length <= RUNS_LIMIT) {
        // A line that is no text is none.
        return Ok(String::from_utf8_lossy(&content).into_owned());
    }
    Err(io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("it is larger than {RUNS_LIMIT} bytes"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &tempfile::TempDir) -> BoundFiles {
        BoundFiles {
            table: folder.path().join("times"),
            runs: folder.path().join("runs"),
            uid: rustix::process::getuid().as_raw(),
        }
    }

    #[test]
    fn a_run_that_was_cut_gets_one_end_and_an_end_that_was_written_stays() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(&folder);
        std::fs::write(
            &files.runs,
            "begin 60 60 a\nend a 61 success exited 0\nbegin 120 120 b\nskip 1",
        )
        .unwrap();
        assert_eq!(files.open_runs(), ["b"]);
        let cut = ["a".to_owned(), "b".to_owned()];
        files.close(&cut, 130).unwrap();
        files.close(&cut, 131).unwrap();
        assert!(files.open_runs().is_empty());
        let runs = gate_runs(&files.lines().unwrap());
        let ends: Vec<_> = runs
            .iter()
            .filter_map(|run| run.end.as_ref())
            .map(|end| (end.at, end.result.as_str()))
            .collect();
        assert_eq!(ends, [(61, "success"), (130, INTERRUPTED)]);
    }

    #[test]
    fn lines_that_the_leader_has_are_left_out_and_later_ones_stay() {
        let text = "begin 60 60 a\nend a 61 success exited 0\nskip 120 121\nbegin 180 180 b\nend b 181 success exited 0\nend c 9 x x x\n";
        let lines = run_lines(text);
        let kept = without_taken(&lines, 120);
        let kept: String = kept.into_iter().map(RunLine::text).collect();
        assert_eq!(kept, "begin 180 180 b\nend b 181 success exited 0\n");
    }

    #[test]
    fn lines_of_a_run_with_several_attempts_stay_or_go_together() {
        let attempts = "begin 180 180 a\nend a 181 exit-code exited 3\nagain 180 191 b\nend b 192 success exited 0\n";
        let lines = run_lines(attempts);
        let kept = without_taken(&lines, 120);
        let kept: String = kept.into_iter().map(RunLine::text).collect();
        assert_eq!(kept, attempts);
        assert!(without_taken(&lines, 180).is_empty());
    }

    #[test]
    fn of_a_file_that_is_half_full_with_runs_of_several_attempts_fewer_runs_stay() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(&folder);
        let id = "a".repeat(40);
        let text: String = (1..150)
            .map(|one| {
                format!(
                    "begin {one} {one} {id}{one}\nend {id}{one} {one} exit-code exited 3\nagain {one} {one} {id}b{one}\nend {id}b{one} {one} success exited 0\n"
                )
            })
            .collect();
        std::fs::write(&files.runs, &text).unwrap();
        assert!(is_half_full(text.len()));
        files.remove_taken(0, 149).unwrap();
        let runs = gate_runs(&files.lines().unwrap());
        assert_eq!(runs.len(), MOST_KEPT / 2);
        assert!(runs.iter().all(|run| run.earlier.len() == 1));
        let length = std::fs::metadata(&files.runs).unwrap().len();
        assert!(length < RUNS_LIMIT / 2, "{length}");
    }

    #[test]
    fn lines_of_another_form_leave_a_file_that_is_half_full() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(&folder);
        let run = "begin 60 60 a\nend a 61 success exited 0\n";
        let length = usize::try_from(BEGIN_LIMIT).unwrap();
        std::fs::write(&files.runs, format!("{run}{}", "\n".repeat(length))).unwrap();
        assert!(files.is_full());
        files.remove_taken(0, 0).unwrap();
        assert_eq!(std::fs::read_to_string(&files.runs).unwrap(), run);
        assert!(!files.is_full());
    }

    #[test]
    fn of_a_file_that_is_half_full_the_newest_runs_stay_and_undecided_ones_do() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(&folder);
        let id = "a".repeat(40);
        let text: String = (1..400)
            .map(|one| {
                format!(
                    "begin {one} {one} {id}{one}\nend {id}{one} {one} success exited 0\nskip {one} 1\n"
                )
            })
            .collect();
        std::fs::write(&files.runs, &text).unwrap();
        assert!(is_half_full(text.len()));
        files.remove_taken(10, 150).unwrap();
        let first = |files: &BoundFiles| gate_runs(&files.lines().unwrap())[0].scheduled;
        assert_eq!(first(&files), 151);
        files.remove_taken(10, 399).unwrap();
        let runs = gate_runs(&files.lines().unwrap());
        assert_eq!((runs.len(), runs[0].scheduled), (MOST_KEPT, 200));
        assert!(runs.iter().all(|run| run.end.is_some()));
        let length = std::fs::metadata(&files.runs).unwrap().len();
        assert!(length < RUNS_LIMIT / 2, "{length}");
    }

    #[test]
    fn runs_of_a_unit_that_is_gone_are_over_whatever_the_file_has() {
        let lines = run_lines("begin 60 60 a\nend a 61 success exited 0\nbegin 120 120 b\n");
        let runs = gate_runs(&with_cut_ends(lines, 130));
        let ends = runs.iter().filter_map(|run| run.end.as_ref());
        let ends: Vec<_> = ends.map(|end| (end.at, end.result.as_str())).collect();
        assert_eq!(ends, [(61, "success"), (130, INTERRUPTED)]);
    }

    #[test]
    fn a_file_of_runs_that_is_a_link_or_too_large_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(&folder);
        assert!(files.lines().unwrap().is_empty());
        std::os::unix::fs::symlink("/etc/passwd", &files.runs).unwrap();
        assert!(files.lines().is_err());
        assert!(files.close(&["a".to_owned()], 1).is_err());
        std::fs::remove_file(&files.runs).unwrap();
        let length = usize::try_from(RUNS_LIMIT).unwrap() + 1;
        std::fs::write(&files.runs, vec![b'\n'; length]).unwrap();
        let error = files.lines().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        files.start_over().unwrap();
        assert!(files.lines().unwrap().is_empty());
    }
}
