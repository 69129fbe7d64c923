//! The functions of a systemd manager that KAT uses, for the system manager and user managers.

use std::{os::fd::OwnedFd, pin::Pin, time::Duration};

use async_trait::async_trait;
use futures_util::Stream;

use crate::{ActiveState, LoadState, ServiceResult, SubState};

/// The result of a job (org.freedesktop.systemd1(5), JobRemoved).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobResult {
    /// `done`.
    Done,
    /// `canceled`.
    Canceled,
    /// `timeout`.
    Timeout,
    /// `failed`.
    Failed,
    /// `dependency`.
    Dependency,
    /// `skipped`.
    Skipped,
    /// A result that this version does not know.
    Other,
}

impl JobResult {
    /// Parses systemd's name of a result.
    pub fn from_word(word: &str) -> Self {
        match word {
            "done" => Self::Done,
            "canceled" => Self::Canceled,
            "timeout" => Self::Timeout,
            "failed" => Self::Failed,
            "dependency" => Self::Dependency,
            "skipped" => Self::Skipped,
            _ => Self::Other,
        }
    }
}

/// A transient unit that runs one command to its end and leaves nothing behind.
///
/// Its start job ends with the command: [`JobResult::Done`] after exit status 0, otherwise
/// [`JobResult::Failed`] (or [`JobResult::Timeout`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TransientUnit {
    /// Name, with `.service`; no unit with this name may exist.
    pub name: String,
    pub description: String,
    /// Environment of the command, as `NAME=value`.
    pub environment: Vec<String>,
    /// Absolute path of the program, then its arguments.
    pub command: Vec<String>,
    /// A command that runs after `command` has ended, whatever its result is; its own result is
    /// ignored. Empty for none.
    pub afterwards: Vec<String>,
    /// Time after which systemd stops the command.
    pub limit: Duration,
    /// The command has the rights of its manager where this is `None`.
    pub confinement: Option<Confinement>,
}

/// A command runs as a user of its own that exists while it runs, without capabilities, devices and
/// homes, with a read-only file system and a temporary folder of its own (systemd.exec(5),
/// `DynamicUser=`). For the system's manager alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Confinement {
    /// Paths that the command does not see; those that are missing are left out.
    pub hidden: Vec<String>,
    /// Files that the manager reads and that the command has in `$CREDENTIALS_DIRECTORY`, each with its
    /// name there.
    pub credentials: Vec<(String, String)>,
    /// Most memory, in bytes.
    pub memory: u64,
    /// Most processes and threads.
    pub tasks: u64,
}

/// How a transient unit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransientEnd {
    /// Result of its job.
    pub result: JobResult,
    /// Exit status of the command, if it exited by itself and not with 0.
    pub exit_status: Option<i32>,
}

/// Standard streams of a command in a transient unit, as files of the caller.
#[derive(Debug)]
pub struct CommandStreams {
    /// Standard input; `None` is `/dev/null`.
    pub stdin: Option<OwnedFd>,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It exited with this code.
    Code(i32),
    /// It was ended by this signal.
    Signal(i32),
    /// It was stopped, or its time limit was over.
    Stopped,
}

/// The state of a unit and the properties of a service that KAT decides by.
///
/// systemd unloads an inactive unit that no other unit references, together with the state of its
/// last process: the fields of the main process are 0 then. Failed units stay loaded, as do units
/// that `default.target` wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitStatus {
    /// `LoadState`.
    pub load_state: LoadState,
    /// `ActiveState`.
    pub active_state: ActiveState,
    /// `SubState`.
    pub sub_state: SubState,
    /// `Result`.
    pub result: ServiceResult,
    /// Main process, 0 if none.
    pub main_pid: u32,
    /// Exit status, or number of the signal, of the last main process.
    pub exec_main_status: i32,
    /// How the last main process ended: `CLD_EXITED` 1, `CLD_KILLED` 2, `CLD_DUMPED` 3; 0 while
    /// none has ended.
    pub exec_main_code: i32,
    /// Start of the main process, microseconds of the monotonic clock.
    pub exec_main_start_monotonic: u64,
    /// End of the main process, microseconds of the monotonic clock.
    pub exec_main_exit_monotonic: u64,
    /// Automatic restarts since the last manual start or reset.
    pub restarts: u32,
    /// Control group, from the root of the hierarchy.
    pub control_group: String,
}

/// The resource usage of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnitUsage {
    /// Present memory in bytes, if counted.
    pub memory: Option<u64>,
    /// Processor time so far in nanoseconds, if counted.
    pub cpu: Option<u64>,
}

impl UnitStatus {
    /// Whether the last run ended otherwise than with success; false before the first one.
    pub fn has_failed(&self) -> bool {
        !matches!(&self.result, ServiceResult::Success)
            && !matches!(&self.result, ServiceResult::Other(word) if word.is_empty())
    }

    /// Whether the program has ended and is restarted after a delay. That restart is not counted
    /// yet.
    pub fn is_between_runs(&self) -> bool {
        self.sub_state == SubState::AutoRestart
    }
}

/// A change of units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnitEvent {
    /// Properties of this unit changed.
    Changed(String),
    /// Any unit may have changed, for example after a reconnection: read all again.
    All,
}

/// A stream of changes; ends when the manager or its bus is lost.
pub type UnitEvents = Pin<Box<dyn Stream<Item = UnitEvent> + Send>>;

/// Why a call to a manager failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SystemdError {
    /// The manager's bus can't be reached.
    #[error("the manager of {manager} is not reachable: {reason}")]
    Unreachable {
        /// `the system` or `user UID`.
        manager: String,
        /// The error of the connection.
        reason: String,
    },
    /// There is no such unit.
    #[error("unit {0} does not exist")]
    NoSuchUnit(String),
    /// The unit is masked.
    #[error("unit {0} is masked")]
    Masked(String),
    /// A refusal with systemd's message.
    #[error("{unit}: {message} ({name})")]
    Refused {
        /// The unit or the call.
        unit: String,
        /// D-Bus error name.
        name: String,
        message: String,
    },
    #[error("{unit}: the job did not end within {} s", limit.as_secs())]
    JobTimeout {
        unit: String,
        /// The time limit that was exceeded.
        limit: Duration,
    },
}

/// A systemd manager: the system manager or a user manager. The real one uses D-Bus; a fake
/// replaces it in unit tests and in the simulation.
#[async_trait]
pub trait UnitManager: Send + Sync {
    /// Reads all unit files again and runs the generators.
    async fn reload(&self) -> Result<(), SystemdError>;

    /// Starts a unit (mode `replace`) and waits for the job's result, at most `limit`.
    async fn start(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError>;

    /// Stops a unit and waits for the job's result, at most `limit`. The result is
    /// [`JobResult::Done`] for a unit that does not run, and [`SystemdError::NoSuchUnit`] for one
    /// that is not loaded.
    async fn stop(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError>;

    /// Restarts a unit and waits for the job's result, at most `limit`.
    async fn restart(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError>;

    /// Resets a unit's failed state and its count of starts. [`SystemdError::NoSuchUnit`] when the
    /// unit is not loaded.
    async fn reset_failed(&self, unit: &str) -> Result<(), SystemdError>;

    /// The unit's state; `load_state` is [`LoadState::NotFound`] when the unit does not exist. A
    /// change during the call makes an event after it.
    async fn status(&self, unit: &str) -> Result<UnitStatus, SystemdError>;

    /// The `active_state` of [`Self::status`] alone, which is cheaper.
    async fn active_state(&self, unit: &str) -> Result<ActiveState, SystemdError> {
        Ok(self.status(unit).await?.active_state)
    }

    /// The resource usage of a service. systemd reads files of the control group for it.
    async fn usage(&self, unit: &str) -> Result<UnitUsage, SystemdError>;

    /// Id of the unit's present invocation, 32 hexadecimal digits; empty if it has none.
    async fn invocation_id(&self, unit: &str) -> Result<String, SystemdError>;

    /// Whether the unit's file is newer than the loaded unit.
    async fn needs_reload(&self, unit: &str) -> Result<bool, SystemdError>;

    /// Names of loaded units that match a pattern such as `kat-*.service`.
    async fn list(&self, pattern: &str) -> Result<Vec<String>, SystemdError>;

    /// Runs a command in a transient unit and waits for its end, at most `limit`. The command
    /// continues when the caller is dropped, and leaves nothing behind then either.
    async fn run_transient(
        &self,
        unit: &TransientUnit,
        limit: Duration,
    ) -> Result<TransientEnd, SystemdError>;

    /// Runs a command with these standard streams in a transient unit, and waits for its end.
    /// systemd stops it after the unit's own limit. It leaves nothing behind.
    async fn run_with(
        &self,
        unit: &TransientUnit,
        streams: CommandStreams,
    ) -> Result<ProcessEnd, SystemdError>;

    /// Sends the signal with this number to all processes of a unit.
    async fn kill(&self, unit: &str, signal: i32) -> Result<(), SystemdError>;

    /// Enables a unit as its `[Install]` section says. No reload.
    async fn enable(&self, unit: &str) -> Result<(), SystemdError>;

    /// Disables a unit. No reload.
    async fn disable(&self, unit: &str) -> Result<(), SystemdError>;

    /// Changes of units with the prefix `kat-`. The first event is [`UnitEvent::All`], so that the
    /// listener reads all units once. Unread events of one unit are merged.
    async fn events(&self) -> Result<UnitEvents, SystemdError>;
}
