//! The journal, read by `journalctl -o json` (its format is systemd.journal-fields(7) and the
//! "Journal Export Formats" page; journald has no interface for reading on D-Bus).

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

pub use self::entry::{LogEntry, LogStream};
use self::lines::{Line, Lines};
use kat_types::plain::last_words;

/// Longest line of JSON that is read, in bytes.
pub const LINE_LIMIT: usize = 1024 * 1024;
/// Time for the child to end after its output did.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of the child's own words that are kept.
const WORDS_LIMIT: u64 = 4096;

/// Which entries are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Uid of the workload's user.
    pub uid: u32,
    /// Unit in that user's manager, with `.service`.
    pub unit: String,
    /// Entries from this time on.
    pub since: Option<SystemTime>,
    /// Only those of the present boot, whose monotonic times can be compared.
    pub this_boot: bool,
    /// The last so many of them; all when there is none.
    pub tail: Option<u64>,
    /// Entries after this one, by its cursor; then `since` is not looked at.
    pub after_cursor: Option<String>,
    /// Go on with new entries for ever.
    pub follow: bool,
    /// The newest first.
    pub newest_first: bool,
    /// Only what this container wrote, by its identity: one run of the program.
    pub container: Option<String>,
    /// Only what the program wrote; else also what systemd, Podman and the hook say about it.
    pub program_output_only: bool,
}

/// Why there are no entries, or no more.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// journalctl could not be run.
    #[error("{}: can't be run: {error}", program.display())]
    Start {
        /// journalctl.
        program: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// journalctl ended with an error.
    #[error("{}: {status}: {words}", program.display())]
    Failed {
        /// journalctl.
        program: PathBuf,
        /// How it ended.
        status: String,
        /// What it wrote to standard error.
        words: String,
    },
    /// Its output could not be read.
    #[error("the journal can't be read: {0}")]
    Read(#[from] std::io::Error),
    /// One entry is too long; the next ones follow.
    #[error("an entry of more than {LINE_LIMIT} bytes was left out")]
    TooLong,
    /// One entry is not what journalctl writes; the next ones follow.
    #[error("an entry was left out: {0}")]
    Malformed(String),
}

impl LogError {
    /// Whether the stream goes on after this error.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::TooLong | Self::Malformed(_))
    }
}

/// Entries in the order of the journal. After an error that is not passing there are none.
pub type LogEntries = Pin<Box<dyn Stream<Item = Result<LogEntry, LogError>> + Send>>;

/// Where logs come from.
pub trait LogSource: Send + Sync {
    /// The entries that are wanted. Dropping the stream ends the reading.
    fn entries(&self, query: &LogQuery) -> LogEntries;
}

/// The machine's journal. Its reader must be root or in the group `systemd-journal`.
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
    /// This machine's.
    pub fn new() -> Self {
        Self::default()
    }

    /// Another program that takes journalctl's arguments.
    pub fn with_program(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
        }
    }
}

impl LogSource for Journal {
    fn entries(&self, query: &LogQuery) -> LogEntries {
        let reader = Reader {
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

struct Reader {
    program: PathBuf,
    query: LogQuery,
    child: Option<Running>,
    ended: bool,
}

struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    stderr: Option<ChildStderr>,
}

impl Reader {
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
                Ok(Line::Text(text)) => match LogEntry::parse(text) {
                    Ok(entry) if self.wants(&entry) => return Some(Ok(entry)),
                    Ok(_) => {}
                    Err(reason) => return Some(Err(LogError::Malformed(reason))),
                },
                Ok(Line::TooLong) => return Some(Err(LogError::TooLong)),
                Ok(Line::End) => return self.end().await.map(Err),
                Err(error) => return Some(Err(LogError::Read(error))),
            }
        }
    }

    fn wants(&self, entry: &LogEntry) -> bool {
        !entry.podman_event && (!self.query.program_output_only || entry.from_program)
    }

    fn start(&self) -> Result<Running, LogError> {
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
        Ok(Running {
            child,
            lines: Lines::new(BufReader::new(stdout), LINE_LIMIT),
            stderr,
        })
    }

    /// The child closed its output: it has failed, or it is done.
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
fn arguments(query: &LogQuery) -> Vec<String> {
    let mut arguments = vec![
        "--output=json".to_owned(),
        // Without it, fields of more than 4 KiB are null.
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
        // A follower shows 10 lines otherwise.
        None => arguments.push("--no-tail".to_owned()),
    }
    if let Some(cursor) = &query.after_cursor {
        arguments.push(format!("--after-cursor={cursor}"));
    } else if let Some(since) = query.since {
        let since = since
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        arguments.push(format!(
            "--since=@{}.{:06}",
            since.as_secs(),
            since.subsec_micros()
        ));
    }
    arguments.extend(matches(query));
    arguments
}

/// Fields that an entry must have: those of one field are alternatives, `+` begins another set.
///
/// The program's output comes from conmon, which names the container. Podman calls a quadlet's
/// container `systemd-NAME` unless the quadlet says otherwise. To it belong, of the user's units
/// only, what runs in the unit, and what the user's manager says about it.
fn matches(query: &LogQuery) -> Vec<String> {
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
            uid,
            format!("USER_UNIT={}", query.unit),
        ]);
    }
    sets
}

#[cfg(test)]
mod tests;
