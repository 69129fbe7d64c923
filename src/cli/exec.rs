//! `katcall exec`.

use std::{
    convert::Infallible,
    io::{self, IsTerminal, Read, Write},
};

use bytes::Bytes;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use super::{
    Session,
    args::Exec,
    errors::CliError,
    target::{self, Target},
    terminal::{Raw, size},
};
use crate::api::{
    ExecRequest,
    client::{ClientError, Receiving, Refusal, Sending},
    frames::{Input, MOST, Output, PassedSignal},
};

/// Pieces of stdin that wait to be sent.
const BUFFER: usize = 4;

/// Signals that this program was sent.
struct Signals([Signal; PassedSignal::ALL.len()]);

impl Signals {
    /// From now on none of them ends the program.
    fn listen() -> io::Result<Self> {
        let [hangup, interrupt, quit, terminate] =
            PassedSignal::ALL.map(|one| signal(SignalKind::from_raw(one.number().into())));
        Ok(Self([hangup?, interrupt?, quit?, terminate?]))
    }

    async fn next(&mut self) -> PassedSignal {
        let Self([hangup, interrupt, quit, terminate]) = self;
        tokio::select! {
            _ = hangup.recv() => PassedSignal::Hangup,
            _ = interrupt.recv() => PassedSignal::Interrupt,
            _ = quit.recv() => PassedSignal::Quit,
            _ = terminate.recv() => PassedSignal::Terminate,
        }
    }
}

/// As shells number the end by a signal.
fn code_of(signal: PassedSignal) -> u8 {
    128 + signal.number()
}

/// Gives back the command's exit code, or a signal's that ended this program.
pub(super) async fn run(session: &Session<'_>, arguments: &Exec) -> Result<u8, CliError> {
    let mut signals = Signals::listen()?;
    let (sending, receiving) = tokio::select! {
        opened = begin(session, arguments) => opened?,
        signal = signals.next() => return Ok(code_of(signal)),
    };
    attend(arguments, &sending, receiving, &mut signals).await
}

/// Opens the session.
async fn begin(session: &Session<'_>, arguments: &Exec) -> Result<(Sending, Receiving), CliError> {
    let target = target::find(session, &arguments.namespace.namespace, &arguments.name).await?;
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
    };
    let Target {
        namespace,
        workload,
        id,
    } = &target;
    let opened = session.client.exec(namespace, workload, id, &request);
    Ok(opened.await?)
}

/// Carries everything to and fro until the end.
async fn attend(
    arguments: &Exec,
    sending: &Sending,
    receiving: Receiving,
    signals: &mut Signals,
) -> Result<u8, CliError> {
    // From here on every key is the command's, Ctrl-C too.
    let keys_are_its = arguments.tty && arguments.interactive;
    let _raw = keys_are_its.then(Raw::begin).transpose()?;
    let typed = arguments.interactive.then(read_stdin);
    tokio::select! {
        outcome = show(receiving) => outcome,
        never = send(sending, typed, arguments.tty) => match never {},
        signal = pass_on(sending, signals, !keys_are_its) => Ok(code_of(signal)),
    }
}

/// Passes the first signal on; gives back the one that ends this program. A person whose keys are the
/// command's has its keys for that.
async fn pass_on(sending: &Sending, signals: &mut Signals, passes: bool) -> PassedSignal {
    let first = signals.next().await;
    if !passes {
        return first;
    }
    let passing = async {
        sending.send(&Input::Signal(first)).await;
        std::future::pending().await
    };
    tokio::select! {
        second = signals.next() => second,
        never = passing => never,
    }
}

/// Sends what is typed, and how large the terminal is, for as long as it may.
async fn send(
    sending: &Sending,
    mut typed: Option<mpsc::Receiver<Bytes>>,
    sized: bool,
) -> Infallible {
    let mut resized = signal(SignalKind::window_change()).ok().filter(|_| sized);
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
                    sending.send(&Input::Data(data)).await;
                }
                None => {
                    sending.send(&Input::End).await;
                    typed = None;
                }
            },
            _ = change => if let Some(size) = size() {
                sending.send(&Input::Resize(size)).await;
            },
        }
    }
}

/// Reads stdin on a thread of its own, for a terminal can't be read otherwise. It ends with the program.
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

/// The terminal's kind, for programs that draw.
fn term(wanted: bool) -> String {
    let term = std::env::var("TERM").ok().filter(|_| wanted);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
    term.filter(|term| term.len() <= 64 && term.bytes().all(plain))
        .unwrap_or_default()
}

/// Prints until the end.
pub(super) async fn show(mut receiving: Receiving) -> Result<u8, CliError> {
    loop {
        match receiving.next().await? {
            Output::Data(data) => write(io::stdout(), &data)?,
            Output::Error(data) => write(io::stderr(), &data)?,
            Output::Exit(code) => return Ok(code),
            Output::Failed(body) => {
                let refusal = Refusal::of_stream(*body);
                return Err(ClientError::Refused(Box::new(refusal)).into());
            }
        }
    }
}

fn write(mut to: impl Write, data: &[u8]) -> io::Result<()> {
    to.write_all(data)?;
    to.flush()
}
