//! `katcall exec`.

use std::{
    convert::Infallible,
    io::{self, IsTerminal, Read, Write},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time::sleep,
};

use crate::{
    CliSession,
    args::ExecArgs,
    errors::CliError,
    references::{self, INSTANCES},
    target,
    target::InstanceRef,
    terminal::{RawMode, size},
};
use kat_client::{ApiRefusal, ClientError, SessionInput, SessionOutput};
use kat_types::{
    api::ExecRequest,
    encoding::frames::{InputFrame, MOST, OutputFrame, PassedSignal},
};

/// Pieces of stdin that are buffered.
const BUFFER: usize = 4;

/// Time from a SIGTERM or SIGHUP that was passed on to the exit of katcall.
const PATIENCE: Duration = Duration::from_secs(10);

/// Signals that katcall receives.
struct ReceivedSignals {
    /// As [`PassedSignal::ALL`]; `None` for signals that katcall ignores.
    heard: [Option<Signal>; PassedSignal::ALL.len()],
    /// The signal that was passed to the command.
    passed: Option<PassedSignal>,
}

impl ReceivedSignals {
    /// From now on none of these signals ends katcall. Signals that were ignored at the start, as
    /// with `nohup` and background jobs of shells, stay ignored.
    fn listen() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::listen_but_to(ignored(&status))
    }

    fn listen_but_to(ignored: u64) -> io::Result<Self> {
        let [hangup, interrupt, quit, terminate] = PassedSignal::ALL.map(|one| {
            let number = one.number();
            let heard = ignored & (1 << (number - 1)) == 0;
            heard
                .then(|| signal(SignalKind::from_raw(number.into())))
                .transpose()
        });
        Ok(Self {
            heard: [hangup?, interrupt?, quit?, terminate?],
            passed: None,
        })
    }

    async fn next(&mut self) -> PassedSignal {
        let [hangup, interrupt, quit, terminate] = &mut self.heard;
        tokio::select! {
            () = wait_for_signal(hangup) => PassedSignal::Hangup,
            () = wait_for_signal(interrupt) => PassedSignal::Interrupt,
            () = wait_for_signal(quit) => PassedSignal::Quit,
            () = wait_for_signal(terminate) => PassedSignal::Terminate,
        }
    }

    /// Waits for the signal that ends katcall after the first one, which was passed on. After a
    /// signal that requests the end, and not an interruption, katcall also ends if the command
    /// ignores it.
    async fn last(&mut self, first: PassedSignal) -> PassedSignal {
        let ends = matches!(first, PassedSignal::Terminate | PassedSignal::Hangup);
        tokio::select! {
            second = self.next() => second,
            () = sleep(PATIENCE), if ends => first,
        }
    }
}

async fn wait_for_signal(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Signals that the process with this status ignores, with the lowest bit for signal 1
/// (proc_pid_status(5)).
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .unwrap_or_default()
}

/// The exit code that shells use for the end by a signal.
fn code_of(signal: PassedSignal) -> u8 {
    128 + signal.number()
}

/// Runs the command; returns its exit code, or that of the signal that ended katcall.
pub(crate) async fn run(session: &CliSession<'_>, arguments: &ExecArgs) -> Result<u8, CliError> {
    let mut signals = ReceivedSignals::listen()?;
    // Before the terminal's size is read: a change after that is sent once the session is open.
    let resized = arguments
        .tty
        .then(|| signal(SignalKind::window_change()))
        .transpose()?;
    let (sending, receiving) = tokio::select! {
        opened = begin(session, arguments) => opened?,
        signal = signals.next() => return Ok(code_of(signal)),
    };
    attend(arguments, &sending, receiving, resized, &mut signals).await
}

/// Opens the session.
async fn begin(
    session: &CliSession<'_>,
    arguments: &ExecArgs,
) -> Result<(SessionInput, SessionOutput), CliError> {
    let object = references::one(&arguments.name, INSTANCES, &arguments.namespace)?;
    let target = target::find(session, &object).await?;
    if arguments.tty && !io::stdin().is_terminal() {
        return Err(CliError::usage("--tty needs a terminal, and stdin is none")
            .hinted("without -t the command reads what is piped into katcall, with -i"));
    }
    let terminal = if arguments.tty { size() } else { None };
    let request = ExecRequest {
        command: arguments.command.clone(),
        stdin: arguments.interactive,
        terminal,
        term: term(arguments.tty),
        container: arguments.container.clone(),
    };
    let InstanceRef {
        namespace,
        workload,
        id,
    } = &target;
    let opened = session.client.exec(namespace, workload, id, &request);
    Ok(opened.await?)
}

/// Relays input and output until the end.
async fn attend(
    arguments: &ExecArgs,
    sending: &SessionInput,
    receiving: SessionOutput,
    resized: Option<Signal>,
    signals: &mut ReceivedSignals,
) -> Result<u8, CliError> {
    // From here on every key goes to the command, including Ctrl-C.
    let keys_are_its = arguments.tty && arguments.interactive;
    let _raw = keys_are_its.then(RawMode::begin).transpose()?;
    let typed = arguments.interactive.then(read_stdin);
    let outcome = tokio::select! {
        outcome = show(receiving) => outcome,
        never = send(sending, typed, resized) => match never {},
        signal = pass_on(sending, signals, !keys_are_its) => Ok(code_of(signal)),
    };
    exit_code(outcome, signals.passed)
}

/// The exit code of the session. An agent of an earlier version, which does not support signals,
/// takes a passed signal for the end of its caller and ends the session: then the code is the
/// signal's.
fn exit_code(outcome: Result<u8, CliError>, passed: Option<PassedSignal>) -> Result<u8, CliError> {
    match (outcome, passed) {
        (Err(CliError::Client(error)), Some(signal)) if broke_off(&error) => Ok(code_of(signal)),
        (outcome, _) => outcome,
    }
}

fn broke_off(error: &ClientError) -> bool {
    matches!(error, ClientError::Interrupted { .. }) || error.is_machine_away()
}

/// Passes the first signal on; returns the one that ends katcall. With a raw terminal no signal is
/// passed on, since the user's keys go to the command directly.
async fn pass_on(
    sending: &SessionInput,
    signals: &mut ReceivedSignals,
    passes: bool,
) -> PassedSignal {
    let first = signals.next().await;
    if !passes {
        return first;
    }
    signals.passed = Some(first);
    let passing = async {
        sending.send(&InputFrame::Signal(first)).await;
        std::future::pending().await
    };
    tokio::select! {
        last = signals.last(first) => last,
        never = passing => never,
    }
}

/// Sends the input and changes of the terminal's size as long as possible.
async fn send(
    sending: &SessionInput,
    mut typed: Option<mpsc::Receiver<Bytes>>,
    mut resized: Option<Signal>,
) -> Infallible {
    loop {
        let key = async {
            match &mut typed {
                Some(typed) => typed.recv().await,
                None => std::future::pending().await,
            }
        };
        let change = async {
            match &mut resized {
                Some(resized) => resized.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            piece = key => match piece {
                Some(data) => {
                    sending.send(&InputFrame::Data(data)).await;
                }
                None => {
                    sending.send(&InputFrame::End).await;
                    typed = None;
                }
            },
            _ = change => if let Some(size) = size() {
                sending.send(&InputFrame::Resize(size)).await;
            },
        }
    }
}

/// Reads stdin on a thread of its own, since a terminal can't be read asynchronously. The thread
/// ends with the process.
fn read_stdin() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(BUFFER);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; MOST];
        while let Ok(length) = stdin.read(&mut buffer) {
            let piece = buffer.get(..length).filter(|piece| !piece.is_empty());
            let Some(piece) = piece else { return };
            if sender.blocking_send(Bytes::copy_from_slice(piece)).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The type of the terminal, for programs that draw.
fn term(wanted: bool) -> String {
    let term = std::env::var("TERM").ok().filter(|_| wanted);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
    term.filter(|term| term.len() <= 64 && term.bytes().all(plain))
        .unwrap_or_default()
}

/// Prints the output until the end.
pub(crate) async fn show(mut receiving: SessionOutput) -> Result<u8, CliError> {
    loop {
        match receiving.next().await? {
            OutputFrame::Data(data) => write(io::stdout(), &data)?,
            OutputFrame::Error(data) => write(io::stderr(), &data)?,
            OutputFrame::Exit(code) => return Ok(code),
            OutputFrame::Failed(body) => {
                let refusal = ApiRefusal::of_stream(*body);
                return Err(ClientError::Refused(Box::new(refusal)).into());
            }
        }
    }
}

fn write(mut to: impl Write, data: &[u8]) -> io::Result<()> {
    to.write_all(data)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::api::ErrorBody;

    #[test]
    fn what_was_ignored_is_told_by_bits() {
        let status =
            "Name:\tkatcall\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001005\nSigCgt:\t2\n";
        let ignored = ignored(status);
        let found = PassedSignal::ALL.map(|one| ignored & (1 << (one.number() - 1)) != 0);
        assert_eq!(found, [true, false, true, false]);
        assert_eq!(super::ignored("Name:\tkatcall\n"), 0);
    }

    /// `nohup`, for example, starts programs with an ignored signal.
    #[tokio::test]
    async fn an_ignored_signal_stays_ignored() {
        let signals = ReceivedSignals::listen_but_to(0b111).unwrap();
        let heard = signals.heard.each_ref().map(Option::is_some);
        assert_eq!(heard, [false, false, false, true]);
        let signals = ReceivedSignals::listen_but_to(1 << 14).unwrap();
        let heard = signals.heard.each_ref().map(Option::is_some);
        assert_eq!(heard, [true, true, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn sigterm_and_sighup_end_the_session_after_a_delay() {
        let mut signals = ReceivedSignals::listen_but_to(u64::MAX).unwrap();
        for signal in PassedSignal::ALL {
            let began = tokio::time::Instant::now();
            let last = tokio::time::timeout(PATIENCE * 60, signals.last(signal)).await;
            match signal {
                PassedSignal::Terminate | PassedSignal::Hangup => {
                    assert_eq!(last, Ok(signal));
                    assert!(began.elapsed() >= PATIENCE);
                }
                PassedSignal::Interrupt | PassedSignal::Quit => assert!(last.is_err()),
            }
        }
    }

    #[test]
    fn an_end_without_a_word_after_a_signal_is_the_signals() {
        let interrupted = || {
            Err(CliError::from(ClientError::Interrupted {
                endpoint: "n1".to_owned(),
                reason: "the session has no end".to_owned(),
            }))
        };
        let refused = |word: &str| {
            Err(CliError::from(ClientError::Refused(Box::new(
                ApiRefusal::of_stream(ErrorBody {
                    error: word.to_owned(),
                    ..ErrorBody::default()
                }),
            ))))
        };
        let passed = Some(PassedSignal::Interrupt);
        assert_eq!(exit_code(interrupted(), passed).ok(), Some(130));
        assert_eq!(exit_code(refused("MachineAway"), passed).ok(), Some(130));
        assert_eq!(exit_code(Ok(7), passed).ok(), Some(7));
        assert!(exit_code(refused("Unavailable"), passed).is_err());
        assert!(exit_code(interrupted(), None).is_err());
    }
}
