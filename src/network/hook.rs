//! The OCI hook: the program that the container runtime calls before a container's process starts.
//!
//! The hook has the stage `createRuntime` (runtime-spec, config.md): it reads the container's state
//! from its standard input, sends pid and instance to `kat-net`'s socket and waits for the answer.
//! A failure stops the container. The runtime discards the hook's output, so errors are sent to
//! journald's own socket. All calls are blocking with a deadline, without an async runtime: the
//! hook is part of every start.

pub(crate) mod journal;

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};
use serde::Deserialize;

use crate::containers::hook_server as server;
use journal::report;
use kat_types::{
    backoff::Backoff,
    encoding::json::{self, NotEncoded},
    machine::network::{ANNOTATION, HOOK_SOCKET, HookAnswer, HookRequest},
};

pub use journal::journal_entry;

/// Largest state in bytes.
const MAXIMUM_STATE: u64 = 1 << 20;
/// Largest answer in bytes.
const MAXIMUM_ANSWER: u64 = 16 << 10;
/// journald's native socket (systemd's "Native Journal Protocol").
pub(crate) const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";
/// Variable with the seconds that the hook may take; the hook's JSON sets it
/// (`unit-templates/hook.json`), two seconds below the runtime's limit.
const TIMEOUT_VARIABLE: &str = "KAT_HOOK_TIMEOUT";
/// How long the call is retried while no process listens: either `kat-net.socket` is being
/// restarted, or it was stopped, and then the error must be reported.
const UNHEARD_LIMIT: Duration = Duration::from_secs(5);
/// Pauses between two calls.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("can't read the container's state: {0}")]
    Input(#[source] io::Error),
    #[error("the container's state is larger than {MAXIMUM_STATE} bytes")]
    TooLarge,
    /// The state does not conform to runtime-spec.
    #[error("the container's state is malformed: {0}")]
    Malformed(#[source] serde_json::Error),
    /// The request can't be encoded.
    #[error(transparent)]
    NotEncoded(#[from] NotEncoded),
    /// The container has no annotation of KAT's.
    #[error("the container has no annotation {ANNOTATION}")]
    NoAnnotation,
    #[error("the container's state has pid {0}; expected a running process")]
    BadPid(i32),
    #[error("annotation {ANNOTATION}: {0}")]
    BadInstance(server::RequestError),
    /// `kat-net` can't be reached or does not answer.
    #[error("{socket}: {source}; is kat-net.socket active?")]
    Unreachable {
        /// Path of the socket.
        socket: PathBuf,
        source: io::Error,
    },
    #[error("kat-net did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("kat-net's answer is malformed: {0}")]
    BadAnswer(#[source] serde_json::Error),
    /// `kat-net` refused the request.
    #[error("{0}")]
    Refused(String),
}

/// Paths that the hook uses, and its time limit.
#[derive(Debug, Clone)]
pub struct HookOptions {
    /// Path of `kat-net`'s socket.
    pub socket: PathBuf,
    /// Path of journald's socket.
    pub journal: PathBuf,
    /// File with the hook's own control group (cgroups(7)).
    pub cgroup: PathBuf,
    /// Time limit of the whole hook.
    pub timeout: Duration,
}

impl Default for HookOptions {
    fn default() -> Self {
        let seconds = std::env::var(TIMEOUT_VARIABLE)
            .ok()
            .and_then(|text| text.parse().ok())
            .filter(|seconds| (1..=3600).contains(seconds))
            .unwrap_or(90);
        Self {
            socket: HOOK_SOCKET.into(),
            journal: JOURNAL_SOCKET.into(),
            cgroup: "/proc/self/cgroup".into(),
            timeout: Duration::from_secs(seconds),
        }
    }
}

/// The whole program: reads the state from `input`. Succeeds when the network is in place;
/// otherwise the error is in the journal.
pub fn main(input: impl Read) -> ExitCode {
    match run(input, &HookOptions::default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Like [`main`], with explicit options.
///
/// # Errors
/// See [`HookError`]; it was already written to the journal.
pub fn run(input: impl Read, options: &HookOptions) -> Result<(), HookError> {
    let start = Instant::now();
    let mut instance = None;
    let outcome = read_state(input).and_then(|request| {
        instance = Some(request.instance.clone());
        ask(&request, options, start)
    });
    if let Err(error) = &outcome {
        let cgroup = std::fs::read_to_string(&options.cgroup).unwrap_or_default();
        let entry = journal_entry(&error.to_string(), instance.as_deref(), unit_of(&cgroup));
        report(&options.journal, &entry);
    }
    outcome
}

fn read_state(input: impl Read) -> Result<HookRequest, HookError> {
    let mut bytes = Vec::new();
    input
        .take(MAXIMUM_STATE + 1)
        .read_to_end(&mut bytes)
        .map_err(HookError::Input)?;
    parse_state(&bytes)
}

/// The part of runtime-spec's state that the hook reads; unknown fields are ignored.
#[derive(Deserialize)]
struct OciState {
    #[serde(default)]
    pid: i32,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Makes the request from the container's state (runtime-spec, "State").
///
/// # Errors
/// The state is too large, malformed, or without annotation or process.
pub fn parse_state(bytes: &[u8]) -> Result<HookRequest, HookError> {
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAXIMUM_STATE {
        return Err(HookError::TooLarge);
    }
    let mut state: OciState = serde_json::from_slice(bytes).map_err(HookError::Malformed)?;
    let instance = state
        .annotations
        .remove(ANNOTATION)
        .ok_or(HookError::NoAnnotation)?;
    server::check_instance(&instance).map_err(HookError::BadInstance)?;
    if state.pid <= 1 {
        return Err(HookError::BadPid(state.pid));
    }
    Ok(HookRequest {
        instance,
        pid: state.pid,
    })
}

/// Sends the request until there is an answer. If `kat-net` is restarted during a call, the
/// connection ends without an answer, and the same call is repeated. Repeating is safe, since an
/// incomplete link of an earlier call is replaced.
fn ask(request: &HookRequest, options: &HookOptions, start: Instant) -> Result<(), HookError> {
    let mut pauses = PAUSES.pauses();
    let mut unheard_since = None;
    loop {
        let asked_at = Instant::now();
        let (socket, source) = match call(request, options, start) {
            Err(HookError::Unreachable { socket, source }) => (socket, source),
            outcome => return outcome,
        };
        let again = match source.kind() {
            io::ErrorKind::ConnectionRefused => {
                unheard_since.get_or_insert(asked_at).elapsed() < UNHEARD_LIMIT
            }
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => {
                unheard_since = None;
                true
            }
            _ => false,
        };
        let pause = pauses.next_pause();
        if !again || start.elapsed() + pause >= options.timeout {
            return Err(HookError::Unreachable { socket, source });
        }
        std::thread::sleep(pause);
    }
}

/// Makes one connection and reads one answer.
fn call(request: &HookRequest, options: &HookOptions, start: Instant) -> Result<(), HookError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => HookError::Timeout(options.timeout),
        _ => HookError::Unreachable {
            socket: options.socket.clone(),
            source,
        },
    };
    let left = || {
        let left = options.timeout.checked_sub(start.elapsed());
        left.filter(|left| !left.is_zero())
            .ok_or(HookError::Timeout(options.timeout))
    };
    let mut stream = connect(&options.socket, left()?).map_err(failed)?;
    let mut line = json::bytes("the request to kat-net", request)?;
    line.push(b'\n');
    match stream.write_all(&line) {
        // The server answered before reading the request; the answer has the reason.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written.map_err(failed)?,
    }
    stream.set_read_timeout(Some(left()?)).map_err(failed)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(MAXIMUM_ANSWER))
        .read_until(b'\n', &mut answer)
        .map_err(failed)?;
    if answer.last() != Some(&b'\n')
        && u64::try_from(answer.len()).is_ok_and(|length| length < MAXIMUM_ANSWER)
    {
        let reason = "the connection ended before the answer";
        return Err(failed(io::Error::new(io::ErrorKind::UnexpectedEof, reason)));
    }
    let answer: HookAnswer = serde_json::from_slice(&answer).map_err(HookError::BadAnswer)?;
    match answer.error {
        None => Ok(()),
        Some(reason) => Err(HookError::Refused(reason)),
    }
}

/// Connects within `limit`, which also applies to writing: where the socket's backlog is full,
/// connecting blocks (unix(7)).
fn connect(socket: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let descriptor = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&descriptor, Timeout::Send, Some(limit))?;
    rustix::net::connect(&descriptor, &address)?;
    Ok(UnixStream::from(descriptor))
}

/// The unit of an instance in a control group's path.
fn unit_of(cgroup: &str) -> Option<&str> {
    cgroup
        .trim_end()
        .rsplit('/')
        .find(|part| part.starts_with("kat-") && part.ends_with(".service"))
}

#[cfg(test)]
mod tests;
