//! The program that the container runtime calls before a container's process starts.
//!
//! An OCI hook of stage `createRuntime` (runtime-spec, config.md): it reads the container's state
//! from its standard input, hands pid and instance to `kat-net`'s socket and waits for the answer.
//! A failure stops the container. The runtime throws the hook's output away, so that the reason
//! goes to journald's own socket. Plain blocking calls, each with a deadline: it is on the way of
//! every start.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::{UnixDatagram, UnixStream},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};
use serde::Deserialize;

use super::{
    server,
    state::{ANNOTATION, HOOK_JOURNAL_FIELD, HOOK_SOCKET, HookAnswer, HookRequest},
};

/// Most bytes of state that are read.
const MAXIMUM_STATE: u64 = 1 << 20;
/// Most bytes of answer that are read.
const MAXIMUM_ANSWER: u64 = 16 << 10;
/// Most characters of a value in the journal.
const MAXIMUM_VALUE: usize = 1000;
/// journald's native socket (systemd's "Native Journal Protocol").
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";
/// Variable with the seconds that the hook may take; the hook's JSON sets it
/// (`unit-templates/hook.json`), two seconds below the runtime's limit.
const TIMEOUT_VARIABLE: &str = "KAT_HOOK_TIMEOUT";
/// While nobody listens, the call is tried again for so long: `kat-net.socket` is on its way back,
/// or it was stopped, and then the reason must show.
const UNHEARD_LIMIT: Duration = Duration::from_secs(5);
/// Before a call is made again for the first time; the pause doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause before a call is made again.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Why the container must not start.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The state can't be read.
    #[error("can't read the container's state: {0}")]
    Input(#[source] io::Error),
    /// The state is too large.
    #[error("the container's state is larger than {MAXIMUM_STATE} bytes")]
    TooLarge,
    /// The state is not what runtime-spec says.
    #[error("the container's state is malformed: {0}")]
    Malformed(#[source] serde_json::Error),
    /// The container has no annotation of KAT's.
    #[error("the container has no annotation {ANNOTATION}")]
    NoAnnotation,
    /// The state names no process.
    #[error("the container's state has pid {0}; expected a running process")]
    BadPid(i32),
    /// The annotation is not an instance's id.
    #[error("annotation {ANNOTATION}: {0}")]
    BadInstance(server::RequestError),
    /// `kat-net` can't be reached or does not answer.
    #[error("{socket}: {source}; is kat-net.socket active?")]
    Unreachable {
        /// Its socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No answer in time.
    #[error("kat-net did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The answer is malformed.
    #[error("kat-net's answer is malformed: {0}")]
    BadAnswer(#[source] serde_json::Error),
    /// `kat-net` refused.
    #[error("{0}")]
    Refused(String),
}

/// Where the hook finds what it speaks to, and how long it may take.
#[derive(Debug, Clone)]
pub struct Options {
    /// `kat-net`'s socket.
    pub socket: PathBuf,
    /// journald's socket.
    pub journal: PathBuf,
    /// Where its own control group stands (cgroups(7)).
    pub cgroup: PathBuf,
    /// For everything.
    pub timeout: Duration,
}

impl Default for Options {
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

/// The whole program: reads the state from `input`. Zero when the network is in place; otherwise
/// the reason is in the journal.
pub fn main(input: impl Read) -> ExitCode {
    match run(input, &Options::default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// As [`main`], with everything said.
///
/// # Errors
/// See [`HookError`]; it was written to the journal already.
pub fn run(input: impl Read, options: &Options) -> Result<(), HookError> {
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

/// What the hook reads of runtime-spec's state; unknown fields are ignored.
#[derive(Deserialize)]
struct State {
    #[serde(default)]
    pid: i32,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Takes the request out of the container's state (runtime-spec, "State").
///
/// # Errors
/// Too large, malformed, no annotation, no process.
pub fn parse_state(bytes: &[u8]) -> Result<HookRequest, HookError> {
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAXIMUM_STATE {
        return Err(HookError::TooLarge);
    }
    let mut state: State = serde_json::from_slice(bytes).map_err(HookError::Malformed)?;
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

/// Asks until there is an answer. `kat-net` may be started again in the middle of a call: then the
/// connection ends without one, and the same call is made again. It may be repeated: what an
/// earlier one left half made is replaced.
fn ask(request: &HookRequest, options: &Options, start: Instant) -> Result<(), HookError> {
    let mut pause = FIRST_PAUSE;
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
        if !again || start.elapsed() + pause >= options.timeout {
            return Err(HookError::Unreachable { socket, source });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// One connection, one answer.
fn call(request: &HookRequest, options: &Options, start: Instant) -> Result<(), HookError> {
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
    let mut line = serde_json::to_vec(request).map_err(HookError::Malformed)?;
    line.push(b'\n');
    match stream.write_all(&line) {
        // It answered before it read: the answer says why.
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

/// Connects within `limit`, which holds for the writing, too: where the socket's queue is full,
/// connecting waits (unix(7)).
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

/// The unit of an instance that a control group belongs to.
fn unit_of(cgroup: &str) -> Option<&str> {
    cgroup
        .trim_end()
        .rsplit('/')
        .find(|part| part.starts_with("kat-") && part.ends_with(".service"))
}

/// One journal entry in the native protocol; every value is one line, and cut where it is longer than
/// a sentence can be: what does not fit a datagram would be lost. It names the unit as the user's
/// manager does: journald, which would add it, may come to look when the hook is gone.
pub fn journal_entry(message: &str, instance: Option<&str>, unit: Option<&str>) -> String {
    let one_line = |text: &str| -> String {
        text.chars()
            .take(MAXIMUM_VALUE)
            .map(|letter| match letter {
                '\n' | '\r' | '\0' => ' ',
                other => other,
            })
            .collect()
    };
    let mut entry = format!(
        "MESSAGE=network of the container: {}\nPRIORITY=3\nSYSLOG_IDENTIFIER=kat-hook\n{HOOK_JOURNAL_FIELD}=1\n",
        one_line(message)
    );
    for (field, value) in [("KAT_INSTANCE", instance), ("USER_UNIT", unit)] {
        if let Some(value) = value {
            entry.push_str(&format!("{field}={}\n", one_line(value)));
        }
    }
    entry
}

/// Best effort: where there is no journal, there is nobody to tell.
fn report(journal: &Path, entry: &str) {
    if let Ok(socket) = UnixDatagram::unbound() {
        let _ = socket.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = socket.send_to(entry.as_bytes(), journal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    const STATE: &str = r#"{"ociVersion":"1.0.2","id":"f00","status":"created","pid":4711,
        "bundle":"/x","annotations":{"rip.dws.kat.instance":"web-ab12c","other":"1"},"new":[1]}"#;

    #[test]
    fn state_gives_instance_and_pid() {
        let request = parse_state(STATE.as_bytes()).unwrap();
        assert_eq!(
            (request.instance.as_str(), request.pid),
            ("web-ab12c", 4711)
        );
    }

    #[test]
    fn bad_states_are_named() {
        for (text, expected) in [
            ("", "malformed"),
            ("[]", "no annotation"),
            ("7", "malformed"),
            ("{}", "no annotation"),
            (&STATE.replace("4711", "0"), "pid 0"),
            (&STATE.replace("4711", "-4"), "pid -4"),
            (&STATE.replace("4711", "99999999999"), "malformed"),
            (&STATE.replace("web-ab12c", "../etc"), "instance"),
            (&STATE.replace("\"web-ab12c\"", "7"), "malformed"),
        ] {
            let error = parse_state(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let large = vec![b' '; (1 << 20) + 1];
        assert!(matches!(parse_state(&large), Err(HookError::TooLarge)));
    }

    fn options(folder: &Path) -> Options {
        Options {
            socket: folder.join("net.sock"),
            journal: folder.join("journal.sock"),
            cgroup: folder.join("cgroup"),
            timeout: Duration::from_millis(400),
        }
    }

    #[test]
    fn a_refusal_reaches_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        let cgroup = "0::/user.slice/user-20001.slice/user@20001.service/app.slice/kat-default-web-ab12c.service/runtime\n";
        std::fs::write(&options.cgroup, cgroup).unwrap();
        let journal = UnixDatagram::bind(&options.journal).unwrap();
        let listener = UnixListener::bind(&options.socket).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            (&stream)
                .write_all(b"{\"error\":\"no\\nKAT_FORGED=1\"}\n")
                .unwrap();
            line
        });
        let error = run(STATE.as_bytes(), &options).unwrap_err();
        assert!(matches!(error, HookError::Refused(_)));
        assert_eq!(
            server.join().unwrap(),
            "{\"instance\":\"web-ab12c\",\"pid\":4711}\n"
        );
        let mut buffer = [0; 1024];
        let length = journal.recv(&mut buffer).unwrap();
        let entry = std::str::from_utf8(&buffer[..length]).unwrap();
        let lines: Vec<&str> = entry.lines().collect();
        assert!(lines.contains(&"PRIORITY=3"));
        assert!(lines.contains(&"KAT_HOOK_ERROR=1"));
        assert!(lines.contains(&"KAT_INSTANCE=web-ab12c"));
        assert!(lines.contains(&"USER_UNIT=kat-default-web-ab12c.service"));
        assert!(!lines.iter().any(|line| line.starts_with("KAT_FORGED")));
    }

    #[test]
    fn a_reason_of_any_length_reaches_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        let journal = UnixDatagram::bind(&options.journal).unwrap();
        journal
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let state = format!("{{\"pid\":\"{}\"}}", "x".repeat(900_000));
        run(state.as_bytes(), &options).unwrap_err();
        let mut buffer = [0; 4096];
        let length = journal.recv(&mut buffer).expect("nothing in the journal");
        let entry = std::str::from_utf8(&buffer[..length]).unwrap();
        let message = entry.lines().next().unwrap();
        assert!(
            message.contains("the container's state is malformed"),
            "{message}"
        );
        assert!(entry.contains("\nKAT_HOOK_ERROR=1\n"), "{entry}");
    }

    #[test]
    fn silence_ends_at_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        let _listener = UnixListener::bind(&options.socket).unwrap();
        let start = Instant::now();
        let error = run(STATE.as_bytes(), &options).unwrap_err();
        assert!(matches!(error, HookError::Timeout(_)), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    /// Takes `lost` calls and answers none of them, then answers one.
    fn forgetful(listener: UnixListener, lost: usize) -> std::thread::JoinHandle<Vec<String>> {
        std::thread::spawn(move || {
            let mut lines = Vec::new();
            for number in 0..=lost {
                let (stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                lines.push(line);
                let answer: &[u8] = if number < lost { b"{\"err" } else { b"{}\n" };
                (&stream).write_all(answer).unwrap();
            }
            lines
        })
    }

    #[test]
    fn a_call_that_was_cut_off_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            timeout: Duration::from_secs(10),
            ..options(folder.path())
        };
        let server = forgetful(UnixListener::bind(&options.socket).unwrap(), 3);
        run(STATE.as_bytes(), &options).unwrap();
        let lines = server.join().unwrap();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|line| *line == lines[0]));
    }

    #[test]
    fn a_socket_that_nobody_listens_on_is_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            timeout: Duration::from_secs(10),
            ..options(folder.path())
        };
        drop(UnixListener::bind(&options.socket).unwrap());
        let (socket, next) = (options.socket.clone(), folder.path().join("next.sock"));
        let server = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            let listener = UnixListener::bind(&next).unwrap();
            std::fs::rename(next, socket).unwrap();
            forgetful(listener, 0).join().unwrap()
        });
        run(STATE.as_bytes(), &options).unwrap();
        assert_eq!(server.join().unwrap().len(), 1);
    }

    #[test]
    fn calls_that_are_always_cut_off_end_at_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        let _server = forgetful(UnixListener::bind(&options.socket).unwrap(), 10_000);
        let start = Instant::now();
        let error = run(STATE.as_bytes(), &options).unwrap_err().to_string();
        assert!(error.contains("ended before the answer"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_full_queue_ends_at_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        let listener = UnixListener::bind(&options.socket).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _waits = UnixStream::connect(&options.socket).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(run(STATE.as_bytes(), &options)));
        let outcome = receiver.recv_timeout(Duration::from_secs(5));
        assert!(
            matches!(outcome, Ok(Err(HookError::Timeout(_)))),
            "{outcome:?}"
        );
    }

    #[test]
    fn no_socket_says_what_to_look_at() {
        let folder = tempfile::tempdir().unwrap();
        let error = run(STATE.as_bytes(), &options(folder.path())).unwrap_err();
        assert!(error.to_string().contains("kat-net.socket"), "{error}");
    }
}
