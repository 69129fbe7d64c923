//! The journal, read with `journalctl -o json` (its format is in systemd.journal-fields(7) and on
//! the page "Journal Export Formats"; journald has no D-Bus interface for reading).

mod entry;
mod lines;

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use async_trait::async_trait;
use futures_util::{Stream, stream};
use tokio::{
    io::{AsyncReadExt, BufReader},
    process::{Child, ChildStderr, ChildStdout, Command},
    sync::Mutex,
    task::JoinError,
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
/// Longest wait for journalctl's end after the end of its output, and for journald to be read up to now.
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
#[async_trait]
pub trait LogSource: Send + Sync {
    /// The selected entries. Dropping the stream ends the reading.
    fn entries(&self, query: &JournalQuery) -> LogEntries;

    /// Waits until all that was logged before the call can be read.
    async fn synchronize(&self) -> Result<(), LogError>;
}

/// The machine's journal. The process has to be root or in the group `systemd-journal`.
#[derive(Debug, Clone)]
pub struct Journal {
    program: PathBuf,
    last_sync: Arc<Mutex<Option<JournalSync>>>,
}

/// The last call of `journalctl --sync`.
#[derive(Debug)]
struct JournalSync {
    began: Instant,
    /// Why it failed.
    failed: Option<String>,
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
            last_sync: Arc::default(),
        }
    }
}

#[async_trait]
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

    /// journald answers after it has read what its sockets held (`--sync`, journalctl(1)), and writes to disk
    /// before.
    async fn synchronize(&self) -> Result<(), LogError> {
        let (journal, called) = (self.clone(), Instant::now());
        // A caller whose reader takes no lines is not polled: it must not keep the others waiting.
        let asked = tokio::spawn(async move { journal.synchronize_since(called).await });
        let stopped = |error: JoinError| Err(LogError::Read(std::io::Error::other(error)));
        asked.await.unwrap_or_else(stopped)
    }
}

impl Journal {
    /// Asks journald once for all callers that wait: many readers of a log delay no other log.
    async fn synchronize_since(&self, called: Instant) -> Result<(), LogError> {
        let mut last = self.last_sync.lock().await;
        if let Some(newer) = last.as_ref().filter(|sync| sync.began > called) {
            return match &newer.failed {
                None => Ok(()),
                Some(why) => Err(LogError::Read(std::io::Error::other(why.clone()))),
            };
        }
        let began = Instant::now();
        let result = match start(&self.program, &["--sync".to_owned()]) {
            Ok(process) => end(&self.program, process).await.map_or(Ok(()), Err),
            Err(error) => Err(error),
        };
        let failed = result.as_ref().err().map(ToString::to_string);
        *last = Some(JournalSync { began, failed });
        result
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
            match start(&self.program, &arguments(&self.query)) {
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
                Ok(InputLine::End) => {
                    self.ended = true;
                    return end(&self.program, self.child.take()?).await.map(Err);
                }
                Err(error) => return Some(Err(LogError::Read(error))),
            }
        }
    }

    fn wants(&self, entry: &LogEntry) -> bool {
        !entry.podman_event && (!self.query.program_output_only || entry.from_program)
    }
}

fn start(program: &Path, arguments: &[String]) -> Result<JournalProcess, LogError> {
    let failed = |error| LogError::Start {
        program: program.to_owned(),
        error,
    };
    let mut child = Command::new(program)
        .args(arguments)
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

/// Waits for journalctl, which has failed or is done.
async fn end(program: &Path, mut process: JournalProcess) -> Option<LogError> {
    let mut words = Vec::new();
    let ending = async {
        if let Some(stderr) = process.stderr.take() {
            stderr.take(WORDS_LIMIT).read_to_end(&mut words).await?;
        }
        process.child.wait().await
    };
    let status = match timeout(END_LIMIT, ending).await {
        Ok(Ok(status)) if status.success() => return None,
        Ok(Ok(status)) => status.to_string(),
        Ok(Err(error)) => return Some(LogError::Read(error)),
        Err(_) => format!("did not end within {} s", END_LIMIT.as_secs()),
    };
    Some(LogError::Failed {
        program: program.to_owned(),
        status,
        words: last_words(&words),
    })
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
