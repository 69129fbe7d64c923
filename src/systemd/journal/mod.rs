//! The journal, read with `journalctl -o json` (its format is in systemd.journal-fields(7) and on
//! the page "Journal Export Formats"; journald has no D-Bus interface for reading).

mod entry;
mod lines;

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    process::Stdio,
    time::{Duration, SystemTime},
};

use futures_util::{Stream, stream};
use tokio::{
    io::{AsyncReadExt, BufReader},
    process::{Child, ChildStderr, ChildStdout, Command},
    time::timeout,
};

use self::lines::{InputLine, LineReader};
use kat_types::{
    encoding::plain::last_words,
    machine::network::{FENCED_JOURNAL_VALUE, HOOK_JOURNAL_FIELD},
};

pub use self::entry::{LogEntry, ProgramStream};

/// Longest JSON line in bytes.
pub const LINE_LIMIT: usize = 1024 * 1024;
/// Longest wait for journalctl's end after the end of its output.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of journalctl's standard error that are kept.
const WORDS_LIMIT: u64 = 4096;

/// Selects journal entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalQuery {
    /// Uid of the workload's user.
    pub uid: u32,
    /// Unit in that user's manager, with `.service`.
    pub unit: String,
    /// Entries from this time on.
    pub since: Option<SystemTime>,
    /// Entries up to this time.
    pub until: Option<SystemTime>,
    /// Only entries of the present boot, whose monotonic times can be compared.
    pub this_boot: bool,
    /// Only the last entries; `None` for all.
    pub tail: Option<u64>,
    /// Only entries after this cursor; `since` is ignored then.
    pub after_cursor: Option<String>,
    /// Continue with new entries without end.
    pub follow: bool,
    /// Newest entries first.
    pub newest_first: bool,
    /// Only output of the container with this id: one run of the program.
    pub container: Option<String>,
    /// Only output of the program; otherwise also entries of systemd, Podman and the hook about it.
    pub program_output_only: bool,
}

/// Why reading the journal failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("{}: can't be run: {error}", program.display())]
    Start {
        program: PathBuf,
        error: std::io::Error,
    },
    /// journalctl ended with an error.
    #[error("{}: {status}: {words}", program.display())]
    Failed {
        program: PathBuf,
        /// Such as its exit status.
        status: String,
        words: String,
    },
    /// Its output could not be read.
    #[error("the journal can't be read: {0}")]
    Read(#[from] std::io::Error),
    /// One entry is too long; the next ones can be read.
    #[error("an entry of more than {LINE_LIMIT} bytes was left out")]
    TooLong,
    /// One entry is malformed; the next ones can be read.
    #[error("an entry was left out: {0}")]
    Malformed(String),
}

impl LogError {
    /// Whether the stream continues after this error.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::TooLong | Self::Malformed(_))
    }
}

/// Entries in the order of the journal. The stream ends after an error that is not passing.
pub type LogEntries = Pin<Box<dyn Stream<Item = Result<LogEntry, LogError>> + Send>>;

/// A source of logs.
pub trait LogSource: Send + Sync {
    /// The selected entries. Dropping the stream ends the reading.
    fn entries(&self, query: &JournalQuery) -> LogEntries;
}

/// The machine's journal. The process has to be root or in the group `systemd-journal`.
#[derive(Debug, Clone)]
pub struct Journal {
    program: PathBuf,
}

impl Default for Journal {
    fn default() -> Self {
        Self::with_program(Path::new("journalctl"))
    }
}

impl Journal {
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses another program with journalctl's arguments.
    pub fn with_program(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
        }
    }
}

impl LogSource for Journal {
    fn entries(&self, query: &JournalQuery) -> LogEntries {
        let reader = JournalReader {
            program: self.program.clone(),
            query: query.clone(),
            child: None,
            ended: false,
        };
        Box::pin(stream::unfold(reader, |mut reader| async move {
            let item = reader.next().await?;
            reader.ended = matches!(&item, Err(error) if !error.is_passing());
            Some((item, reader))
        }))
    }
}

struct JournalReader {
    program: PathBuf,
    query: JournalQuery,
    child: Option<JournalProcess>,
    ended: bool,
}

struct JournalProcess {
    child: Child,
    lines: LineReader<BufReader<ChildStdout>>,
    stderr: Option<ChildStderr>,
}

impl JournalReader {
    async fn next(&mut self) -> Option<Result<LogEntry, LogError>> {
        if self.ended {
            return None;
        }
        if self.child.is_none() {
            match self.start() {
                Ok(child) => self.child = Some(child),
                Err(error) => return Some(Err(error)),
            }
        }
        loop {
            let running = self.child.as_mut()?;
            match running.lines.next().await {
                Ok(InputLine::Text(text)) => match LogEntry::parse(text) {
                    Ok(entry) if self.wants(&entry) => return Some(Ok(entry)),
                    Ok(_) => {}
                    Err(reason) => return Some(Err(LogError::Malformed(reason))),
                },
                Ok(InputLine::TooLong) => return Some(Err(LogError::TooLong)),
                Ok(InputLine::End) => return self.end().await.map(Err),
                Err(error) => return Some(Err(LogError::Read(error))),
            }
        }
    }

    fn wants(&self, entry: &LogEntry) -> bool {
        !entry.podman_event && (!self.query.program_output_only || entry.from_program)
    }

    fn start(&self) -> Result<JournalProcess, LogError> {
        let failed = |error| LogError::Start {
            program: self.program.clone(),
            error,
        };
        let mut child = Command::new(&self.program)
            .args(arguments(&self.query))
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| failed(std::io::Error::other("its output was not given")))?;
        let stderr = child.stderr.take();
        Ok(JournalProcess {
            child,
            lines: LineReader::new(BufReader::new(stdout), LINE_LIMIT),
            stderr,
        })
    }

    /// Called at the end of the output: journalctl has failed or is done.
    async fn end(&mut self) -> Option<LogError> {
        let mut running = self.child.take()?;
        let mut words = Vec::new();
        let ending = async {
            if let Some(stderr) = running.stderr.take() {
                stderr.take(WORDS_LIMIT).read_to_end(&mut words).await?;
            }
            running.child.wait().await
        };
        self.ended = true;
        let status = match timeout(END_LIMIT, ending).await {
            Ok(Ok(status)) if status.success() => return None,
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => return Some(LogError::Read(error)),
            Err(_) => "closed its output and did not end".to_owned(),
        };
        Some(LogError::Failed {
            program: self.program.clone(),
            status,
            words: last_words(&words),
        })
    }
}

/// journalctl's arguments for a query.
fn arguments(query: &JournalQuery) -> Vec<String> {
    let mut arguments = vec![
        "--output=json".to_owned(),
        // Without `--all`, fields of more than 4 KiB are null.
        "--all".to_owned(),
        "--quiet".to_owned(),
        "--no-pager".to_owned(),
        format!("--output-fields={}", entry::FIELDS.join(",")),
    ];
    if query.this_boot {
        arguments.push("--boot".to_owned());
    }
    if query.follow {
        arguments.push("--follow".to_owned());
    }
    if query.newest_first {
        arguments.push("--reverse".to_owned());
    }
    match query.tail {
        Some(number) => arguments.push(format!("--lines={number}")),
        // With `--follow` alone journalctl shows only 10 earlier lines.
        None => arguments.push("--no-tail".to_owned()),
    }
    if let Some(cursor) = &query.after_cursor {
        arguments.push(format!("--after-cursor={cursor}"));
    } else if let Some(since) = query.since {
        arguments.push(format!("--since={}", since_the_epoch(since)));
    }
    if let Some(until) = query.until {
        arguments.push(format!("--until={}", since_the_epoch(until)));
    }
    arguments.extend(matches(query));
    arguments
}

/// A time in the words of journalctl: `@SECONDS.MICROSECONDS`.
fn since_the_epoch(time: SystemTime) -> String {
    let time = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    format!("@{}.{:06}", time.as_secs(), time.subsec_micros())
}

/// journalctl's matches for the entries: those of one field are alternatives, `+` begins another
/// set.
///
/// The program's output comes from conmon, which names the container. Podman calls a quadlet's
/// container `systemd-NAME` unless the quadlet sets another name. Of the user's units, the entries
/// of the unit itself and those of the user manager about it are selected, and those of `kat-net`,
/// which runs as root.
///
/// journald finds the unit of a line by its writer's control group, which is gone where the writer
/// ended before journald read the line (systemd's issue 2913), as Podman does after its error. The
/// identifier, which the generator of Podman sets to the unit's name, comes with the stream.
fn matches(query: &JournalQuery) -> Vec<String> {
    let uid = format!("_UID={}", query.uid);
    let name = query.unit.strip_suffix(".service").unwrap_or(&query.unit);
    let mut sets = vec![
        uid.clone(),
        format!("CONTAINER_NAME={name}"),
        format!("CONTAINER_NAME=systemd-{name}"),
    ];
    if let Some(container) = &query.container {
        sets.push(format!("CONTAINER_ID_FULL={container}"));
        return sets;
    }
    if !query.program_output_only {
        sets.extend([
            "+".to_owned(),
            uid.clone(),
            format!("_SYSTEMD_USER_UNIT={}", query.unit),
            "+".to_owned(),
            uid.clone(),
            "_TRANSPORT=stdout".to_owned(),
            format!("SYSLOG_IDENTIFIER={name}"),
            "+".to_owned(),
            uid,
            format!("USER_UNIT={}", query.unit),
            "+".to_owned(),
            "_UID=0".to_owned(),
            format!("{HOOK_JOURNAL_FIELD}={FENCED_JOURNAL_VALUE}"),
            format!("USER_UNIT={}", query.unit),
        ]);
    }
    sets
}

#[cfg(test)]
mod tests;
