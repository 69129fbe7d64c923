//! Sessions with this machine's instances: commands in their containers, and connections to their
//! ports.
//!
//! A command runs in a unit of its own in the user manager of the workload, as every process does
//! (ARCHITECTURE.md, invariant 6). The unit gets pipes or a terminal whose other ends the agent
//! holds; `podman exec` passes them into the container. When the caller disconnects, the unit is
//! stopped, and the command's processes in the container end with the unit
//! ([`crate::exec::cgroup`]).

pub(crate) mod cgroup;
mod ending;
pub(crate) mod sessions;
mod terminal;
mod unit;

use std::{
    io,
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, unix::pipe},
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{exec::cgroup::CommandCgroup, metrics::MachineMeasurer};
use kat_api::{
    ApiError, InputFrames, InstanceSessions, OpenStreams, OutputFrames, SessionError,
    SessionRequest,
};
use kat_systemd::{
    ActiveState, CommandStreams, JobResult, ManagerSource, ProcessEnd, SystemdError, TransientUnit,
    UnitManager,
};
use kat_types::{
    api::{ExecRequest, InstanceUsage, NodeMeasurements, NodeUsage},
    encoding::frames::{InputFrame, MOST, OutputFrame, PassedSignal, TerminalSize},
    store::snapshot::InstanceEntry,
};
use terminal::Terminal;

pub(super) use unit::{PREFIX, without_caller};

/// Most concurrent sessions on one machine.
const MOST_SESSIONS: usize = 128;
/// Most concurrent sessions of one caller. A command counts until it has ended, also after its
/// caller has disconnected.
const MOST_OF_ONE: usize = 64;
/// Longest session.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Outputs that are buffered for the caller; the command blocks when the buffer is full.
const BUFFER: usize = 16;
/// After a command has ended, its output is closed when nothing arrived for this time: its child
/// processes may keep the output open.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Longest time to connect to a port of an instance of this machine.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for a user manager's resource usage of an instance.
const COUNT: Duration = Duration::from_secs(2);
/// Most instances whose usage is read at once.
const COUNTED_AT_ONCE: usize = 64;
/// Longest time to pass a signal on.
const SIGNAL: Duration = Duration::from_secs(5);
/// The signal for a changed window size.
const SIGWINCH: i32 = 28;
/// Time between two such signals. Podman hands each size on to conmon, which before its version 2.2.0
/// loses the second of two sizes that it reads together.
const BETWEEN_SIZES: Duration = Duration::from_millis(300);
/// Time after which the last size is told once more, since conmon may have been slow. A size that the
/// command has already is no news to it.
const SIZE_AGAIN: Duration = Duration::from_secs(1);

/// Sessions with this machine's instances.
pub(crate) struct LocalSessions {
    managers: Arc<dyn ManagerSource>,
    /// `/` on a real machine.
    root: PathBuf,
    open: Arc<OpenStreams>,
    next: AtomicU64,
    measurer: Option<MachineMeasurer>,
}

impl LocalSessions {
    pub(crate) fn new(managers: Arc<dyn ManagerSource>, root: PathBuf) -> Self {
        Self {
            managers,
            root,
            open: OpenStreams::new(MOST_SESSIONS, MOST_OF_ONE),
            next: AtomicU64::new(0),
            measurer: None,
        }
    }

    /// Measures the machine as well.
    pub(crate) fn measured_by(mut self, measurer: MachineMeasurer) -> Self {
        self.measurer = Some(measurer);
        self
    }

    /// The resource usage of these instances; those that do not run are left out.
    async fn count_all(&self, instances: &[InstanceEntry]) -> NodeUsage {
        let counted: Vec<_> = instances
            .iter()
            .map(|entry| self.count(entry).boxed())
            .collect();
        let counted = stream::iter(counted).buffered(COUNTED_AT_ONCE);
        NodeUsage {
            instances: counted.filter_map(std::future::ready).collect().await,
        }
    }
}

impl LocalSessions {
    /// The resource usage of one instance. `None` where the instance does not run or its manager
    /// does not answer in time: a hanging manager must not make the machine look unreachable.
    async fn count(&self, entry: &InstanceEntry) -> Option<InstanceUsage> {
        let assignment = &entry.assignment.value;
        let instance = assignment.instance.clone();
        let manager = self.managers.user(assignment.user.uid);
        let unit = assignment.unit();
        let counting = async {
            match manager.active_state(&unit).await? {
                ActiveState::Active => manager.usage(&unit).await.map(Some),
                _ => Ok(None),
            }
        };
        let counted = match timeout(COUNT, counting).await {
            Ok(Ok(counted)) => counted?,
            Ok(Err(error)) => {
                tracing::debug!(instance, "not counted: {error:#}");
                return None;
            }
            Err(_) => {
                tracing::warn!(
                    instance,
                    "the manager of its user does not answer: not counted"
                );
                return None;
            }
        };
        let mut usage = InstanceUsage {
            instance,
            at: Timestamp::now().into(),
            cpu: counted.cpu,
            memory: counted.memory,
        };
        let others = assignment.others();
        let units = others.map(|(kind, one)| assignment.other_unit(kind, one));
        for unit in units.chain(assignment.network_unit()) {
            // Units that do not answer in time are left out of the sum.
            let Ok(Ok(counted)) = timeout(COUNT, manager.usage(&unit)).await else {
                continue;
            };
            usage.cpu = sum(usage.cpu, counted.cpu);
            usage.memory = sum(usage.memory, counted.memory);
        }
        Some(usage)
    }
}

/// The sum of the known values.
pub(super) fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}

#[async_trait]
impl InstanceSessions for LocalSessions {
    async fn begin(
        &self,
        caller: Option<&str>,
        instance: &InstanceEntry,
        request: SessionRequest,
        inputs: InputFrames,
    ) -> Result<OutputFrames, SessionError> {
        let held = self
            .open
            .open(caller)
            .map_err(|full| SessionError::TooMany {
                message: format!("on the machine `{}`: {full}", instance.node),
                hint: Some(full.hint().to_owned()),
            })?;
        let assignment = &instance.assignment.value;
        let (sender, receiver) = mpsc::channel(BUFFER);
        match request {
            SessionRequest::Exec(request) => {
                let manager = self.managers.user(assignment.user.uid);
                let (unit, group) = self.unit(manager.as_ref(), assignment, &request).await?;
                let (console, streams) = CommandConsole::open(&request).map_err(|error| {
                    SessionError::Unavailable(format!("no way to the command: {error}"))
                })?;
                let command = RunningCommand {
                    unit,
                    group,
                    manager,
                    sender,
                    over: CancellationToken::new(),
                };
                tokio::spawn(async move {
                    command.run(console, streams, inputs).await;
                    drop(held);
                });
            }
            SessionRequest::Forward(port) => {
                let address = (assignment.address, port);
                let refused = |reason: String| {
                    SessionError::Conflict(format!(
                        "nothing answers on port {port} of `{}`: {reason}",
                        assignment.instance
                    ))
                };
                let connecting = timeout(CONNECT, TcpStream::connect(address)).await;
                let stream = connecting
                    .map_err(|_| refused("no answer in time".to_owned()))?
                    .map_err(|error| refused(error.kind().to_string()))?;
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move {
                    if timeout(LONGEST, forward(stream, inputs, &sender))
                        .await
                        .is_err()
                    {
                        let last = sender.send(failed("the connection was open for a whole day"));
                        let _ = timeout(LAST_WORDS, last).await;
                    }
                    drop(held);
                });
            }
        }
        Ok(Box::pin(stream::unfold(
            receiver,
            |mut receiver| async move {
                let output = receiver.recv().await?;
                Some((output, receiver))
            },
        )))
    }

    async fn usage(
        &self,
        _node: &str,
        instances: &[InstanceEntry],
    ) -> Result<NodeUsage, SessionError> {
        Ok(self.count_all(instances).await)
    }

    async fn measurements(&self, node: &str) -> Result<NodeMeasurements, SessionError> {
        let measurer = self.measurer.as_ref().ok_or_else(|| {
            SessionError::Unavailable(format!("the machine `{node}` is not measured now"))
        })?;
        let usage = |instances: Vec<InstanceEntry>| async move { self.count_all(&instances).await };
        Ok(measurer.measure(usage).await)
    }
}

/// The agent's ends of a command's input and output.
enum CommandConsole {
    Pipes {
        stdin: Option<pipe::Sender>,
        stdout: pipe::Receiver,
        stderr: pipe::Receiver,
    },
    Terminal(Terminal),
}

impl CommandConsole {
    /// Opens the agent's ends and the command's ends.
    fn open(request: &ExecRequest) -> io::Result<(Self, CommandStreams)> {
        if let Some(size) = request.terminal {
            let (terminal, end) = Terminal::open(size)?;
            let streams = CommandStreams {
                stdin: Some(end.try_clone()?),
                stdout: end.try_clone()?,
                stderr: end,
            };
            return Ok((Self::Terminal(terminal), streams));
        }
        let (stdin, their_stdin) = if request.stdin {
            let (sender, receiver) = pipe::pipe()?;
            (Some(sender), Some(receiver.into_blocking_fd()?))
        } else {
            (None, None)
        };
        let (their_stdout, stdout) = pipe::pipe()?;
        let (their_stderr, stderr) = pipe::pipe()?;
        let console = Self::Pipes {
            stdin,
            stdout,
            stderr,
        };
        let streams = CommandStreams {
            stdin: their_stdin,
            stdout: their_stdout.into_blocking_fd()?,
            stderr: their_stderr.into_blocking_fd()?,
        };
        Ok((console, streams))
    }
}

struct RunningCommand {
    unit: TransientUnit,
    group: CommandCgroup,
    manager: Arc<dyn UnitManager>,
    sender: mpsc::Sender<OutputFrame>,
    /// Cancelled when the command has ended.
    over: CancellationToken,
}

impl RunningCommand {
    async fn run(self, console: CommandConsole, streams: CommandStreams, inputs: InputFrames) {
        let ended = match console {
            CommandConsole::Pipes {
                stdin,
                stdout,
                stderr,
            } => {
                let out = pump(stdout, &self.sender, OutputFrame::Data, &self.over);
                let err = pump(stderr, &self.sender, OutputFrame::Error, &self.over);
                let both = async { tokio::join!(out, err) };
                let typed = feed(stdin, inputs, self.reins(None));
                self.attend(streams, both, typed).await
            }
            CommandConsole::Terminal(terminal) => {
                let out = pump(
                    terminal.clone(),
                    &self.sender,
                    OutputFrame::Data,
                    &self.over,
                );
                let reins = self.reins(Some(terminal.clone()));
                let typed = feed(Some(terminal), inputs, reins);
                self.attend(streams, out, typed).await
            }
        };
        let last = match ended {
            None => return,
            Some(Ok(ProcessEnd::Code(code))) => {
                OutputFrame::Exit(u8::try_from(code).unwrap_or(u8::MAX))
            }
            Some(Ok(ProcessEnd::Signal(signal))) => {
                OutputFrame::Exit(u8::try_from(128 + signal).unwrap_or(u8::MAX))
            }
            Some(Ok(ProcessEnd::Stopped)) => {
                failed("the command was ended on its machine, or ran for a whole day")
            }
            Some(Err(error)) => failed(&error.to_string()),
        };
        let _ = self.sender.send(last).await;
    }

    fn reins(&self, terminal: Option<Terminal>) -> CommandControl {
        CommandControl {
            terminal,
            manager: Arc::clone(&self.manager),
            unit: self.unit.name.clone(),
            group: self.group.clone(),
            signals: 0,
            window: WindowSize::Known,
        }
    }

    /// Runs the command while its caller is connected; `None` when the caller disconnected.
    async fn attend<T>(
        &self,
        streams: CommandStreams,
        outputs: impl Future<Output = T>,
        caller_gone: impl Future<Output = ()>,
    ) -> Option<Result<ProcessEnd, SystemdError>> {
        let mut outputs = std::pin::pin!(outputs);
        let mut outputs_ended = false;
        let mut caller_gone = std::pin::pin!(caller_gone);
        if self.sender.is_closed() || caller_gone.as_mut().now_or_never().is_some() {
            return None;
        }
        let running = self.manager.run_with(&self.unit, streams);
        let mut running = std::pin::pin!(running);
        let ended = loop {
            tokio::select! {
                ended = running.as_mut() => break Some(ended),
                _ = outputs.as_mut(), if !outputs_ended => outputs_ended = true,
                () = caller_gone.as_mut() => break None,
                () = self.sender.closed() => break None,
            }
        };
        match &ended {
            None => self.stop(running).await,
            Some(Ok(_)) => {}
            Some(Err(_)) => self.stop_lost().await,
        }
        if ended.is_some() && !outputs_ended {
            self.over.cancel();
            tokio::select! {
                _ = outputs => {}
                () = caller_gone => {}
            }
        }
        ended
    }
}

fn failed(message: &str) -> OutputFrame {
    OutputFrame::Failed(Box::new(ApiError::Unavailable(message.to_owned()).body()))
}

/// Reads until the end of the input or until the receiver is gone. After `over` is cancelled, it
/// also ends when nothing arrived for [`LAST_WORDS`]; the time that the receiver takes does not
/// count.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    to: &mpsc::Sender<OutputFrame>,
    as_output: impl Fn(Bytes) -> OutputFrame,
    over: &CancellationToken,
) {
    let mut buffer = vec![0; MOST];
    loop {
        let silent = async {
            over.cancelled().await;
            sleep(LAST_WORDS).await;
        };
        // Reading a terminal whose other end was closed fails: that is the end of its output.
        let length = tokio::select! {
            length = from.read(&mut buffer) => length.unwrap_or(0),
            () = silent => return,
        };
        let Some(piece) = buffer.get(..length).filter(|piece| !piece.is_empty()) else {
            return;
        };
        let output = as_output(Bytes::copy_from_slice(piece));
        if to.send(output).await.is_err() {
            return;
        }
    }
}

/// Writes the caller's input to the command, and returns when the caller disconnects. A command
/// that has stopped reading does not end this function.
async fn feed<W: AsyncWrite + Unpin>(
    mut to: Option<W>,
    mut inputs: InputFrames,
    mut reins: CommandControl,
) {
    loop {
        let input = tokio::select! {
            input = inputs.next() => input,
            () = reins.window.is_due() => {
                reins.tell_size().await;
                continue;
            }
        };
        let Some(input) = input else { return };
        match input {
            InputFrame::Data(data) => {
                if let Some(writer) = &mut to
                    && writer.write_all(&data).await.is_err()
                {
                    to = None;
                }
            }
            InputFrame::End => to = None,
            InputFrame::Resize(size) => reins.resize(size),
            InputFrame::Signal(signal) => reins.signal(signal).await,
        }
    }
}

/// Controls a running command: its window size and signals.
struct CommandControl {
    terminal: Option<Terminal>,
    manager: Arc<dyn UnitManager>,
    unit: String,
    group: CommandCgroup,
    /// Number of signals sent.
    signals: u64,
    window: WindowSize,
}

/// What Podman knows of the window's size.
#[derive(Debug, Clone, Copy)]
enum WindowSize {
    /// The last change.
    Known,
    /// It is to be told of a change at this time.
    Changed(Instant),
    /// It was told at this time, and is to be told again.
    Told(Instant),
}

impl WindowSize {
    /// Returns when Podman is to be told of the size; never if there is nothing to tell.
    async fn is_due(self) {
        match self {
            Self::Known => std::future::pending().await,
            Self::Changed(at) => sleep_until(at).await,
            Self::Told(at) => sleep_until(at + SIZE_AGAIN).await,
        }
    }
}

impl CommandControl {
    fn resize(&mut self, size: TerminalSize) {
        let Some(terminal) = &self.terminal else {
            return;
        };
        if terminal.resize(size).is_err() {
            return;
        }
        let now = Instant::now();
        self.window = match self.window {
            WindowSize::Known => WindowSize::Changed(now),
            WindowSize::Changed(at) => WindowSize::Changed(at),
            WindowSize::Told(at) => WindowSize::Changed(now.max(at + BETWEEN_SIZES)),
        };
    }

    /// Tells Podman that the window has another size. It reads the size of its terminal then, and gets
    /// no signal from the kernel, since the terminal is not its controlling one.
    async fn tell_size(&mut self) {
        let told = timeout(SIGNAL, self.manager.kill(&self.unit, SIGWINCH)).await;
        if !matches!(told, Ok(Ok(()))) {
            tracing::debug!(unit = self.unit, ?told, "a size did not reach a command");
        }
        self.window = match self.window {
            WindowSize::Changed(_) => WindowSize::Told(Instant::now()),
            WindowSize::Known | WindowSize::Told(_) => WindowSize::Known,
        };
    }

    async fn signal(&mut self, signal: PassedSignal) {
        self.signals += 1;
        let mut unit = self.group.signal(signal, self.signals);
        unit.limit = SIGNAL;
        match self.manager.run_transient(&unit, SIGNAL * 2).await {
            Ok(end) if end.result == JobResult::Done => {}
            ended => {
                tracing::debug!(unit = self.unit, ?ended, "a signal did not reach a command");
            }
        }
    }
}

/// Forwards both directions of a connection; each direction ends by itself.
async fn forward(stream: TcpStream, inputs: InputFrames, sender: &mpsc::Sender<OutputFrame>) {
    let (from, mut to) = stream.into_split();
    let mut inputs = inputs;
    let sending = async {
        while let Some(input) = inputs.next().await {
            match input {
                InputFrame::Data(data) => {
                    if to.write_all(&data).await.is_err() {
                        // The instance has closed its other direction too, or will do so.
                        std::future::pending::<()>().await;
                    }
                }
                InputFrame::End => {
                    let _ = to.shutdown().await;
                }
                InputFrame::Resize(_) | InputFrame::Signal(_) => {}
            }
        }
    };
    let open = CancellationToken::new();
    tokio::select! {
        () = pump(from, sender, OutputFrame::Data, &open) => {
            let _ = sender.send(OutputFrame::Exit(0)).await;
        }
        // The caller disconnected.
        () = sending => {}
        () = sender.closed() => {}
    }
}

#[cfg(test)]
mod tests;
