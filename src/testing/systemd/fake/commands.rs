//! Transient units with streams of their caller's. They are real processes, because their output
//! matters.

use std::{
    collections::BTreeMap,
    io,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use kat_systemd::{CommandStreams, ProcessEnd, SystemdError, TransientUnit, error};

/// How long a command has to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(5);

/// Running commands by unit.
#[derive(Default)]
pub(super) struct FakeCommands {
    running: Mutex<BTreeMap<String, RunningFakeCommand>>,
}

#[derive(Clone)]
struct RunningFakeCommand {
    group: Option<Pid>,
    stopping: CancellationToken,
    ended: CancellationToken,
    lost: CancellationToken,
}

impl FakeCommands {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<String, RunningFakeCommand>) -> T) -> T {
        change(&mut self.running.lock())
    }

    fn find(&self, unit: &str) -> Option<RunningFakeCommand> {
        let there = |running: &RunningFakeCommand| !running.ended.is_cancelled();
        self.with(|running| running.get(unit).cloned().filter(there))
    }

    /// Runs a command until it ends or is stopped.
    pub(super) async fn run(
        &self,
        unit: &TransientUnit,
        streams: CommandStreams,
    ) -> Result<ProcessEnd, SystemdError> {
        let refused = |name: &str, message: String| SystemdError::Refused {
            unit: unit.name.clone(),
            name: name.to_owned(),
            message,
        };
        let Some((program, arguments)) = unit.command.split_first() else {
            let message = "a transient unit needs a program to run";
            return Err(refused("no command", message.to_owned()));
        };
        if self.find(&unit.name).is_some() {
            return Err(refused("unit exists", "there is one already".to_owned()));
        }
        // Closes this process' copies of the command's streams once the command is started.
        let variables = unit.environment.iter();
        let child = Command::new(program)
            .args(arguments)
            .envs(variables.filter_map(|variable| variable.split_once('=')))
            .stdin(streams.stdin.map_or_else(Stdio::null, Stdio::from))
            .stdout(streams.stdout)
            .stderr(streams.stderr)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| refused("spawn", error.to_string()))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let running = RunningFakeCommand {
            group: group.and_then(Pid::from_raw),
            stopping: CancellationToken::new(),
            ended: CancellationToken::new(),
            lost: CancellationToken::new(),
        };
        let lost = running.lost.clone();
        self.with(|all| all.insert(unit.name.clone(), running.clone()));
        // As with systemd, the command continues and can be stopped even if its caller is gone.
        let attending = tokio::spawn(attend(child, running, unit.clone()));
        let status = tokio::select! {
            status = attending => status,
            () = lost.cancelled() => {
                return Err(error::unreachable("fake", "the connection ended"));
            }
        };
        self.with(|all| all.remove(&unit.name));
        let status = status.map_err(|error| refused("wait", error.to_string()))?;
        let Some(status) = status else {
            return Ok(ProcessEnd::Stopped);
        };
        let status = status.map_err(|error| refused("wait", error.to_string()))?;
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => ProcessEnd::Code(code),
            (None, Some(signal)) => ProcessEnd::Signal(signal),
            (None, None) => ProcessEnd::Stopped,
        })
    }

    /// Callers are told that the connection ended; the commands continue.
    pub(super) fn lose(&self) {
        self.with(|all| all.values().for_each(|running| running.lost.cancel()));
    }

    /// Stops a command and waits for its end; false if it does not run.
    pub(super) async fn stop(&self, unit: &str) -> bool {
        let Some(running) = self.find(unit) else {
            return false;
        };
        running.stopping.cancel();
        running.ended.cancelled().await;
        true
    }

    /// Sends a signal to all processes of a command; false if it does not run.
    pub(super) fn kill(&self, unit: &str, signal: i32) -> bool {
        let Some(running) = self.find(unit) else {
            return false;
        };
        let signal = Signal::from_named_raw(signal);
        signal.is_some_and(|signal| running.signal(signal))
    }
}

impl RunningFakeCommand {
    /// Sends a signal to the process group; false if there is none.
    fn signal(&self, signal: Signal) -> bool {
        self.group
            .is_some_and(|group| kill_process_group(group, signal).is_ok())
    }
}

/// Waits for a command's end, or ends it, and runs its `afterwards`. `None` if the command was
/// stopped or exceeded its limit.
async fn attend(
    mut child: Child,
    running: RunningFakeCommand,
    unit: TransientUnit,
) -> Option<io::Result<ExitStatus>> {
    let _ended = running.ended.clone().drop_guard();
    let status = tokio::select! {
        status = child.wait() => Some(status),
        () = running.stopping.cancelled() => None,
        () = sleep(unit.limit) => None,
    };
    if status.is_none() {
        running.signal(Signal::TERM);
        if timeout(PATIENCE, child.wait()).await.is_err() {
            running.signal(Signal::KILL);
            let _ = child.wait().await;
        }
    }
    if let Some((program, arguments)) = unit.afterwards.split_first() {
        let mut afterwards = Command::new(program);
        let afterwards = afterwards.args(arguments).kill_on_drop(true);
        let afterwards = afterwards.stdin(Stdio::null()).stdout(Stdio::null());
        let _ = timeout(PATIENCE, afterwards.status()).await;
    }
    status
}
