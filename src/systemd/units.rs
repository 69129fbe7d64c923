//! What KAT asks of a systemd manager, the system's or a user's.

use std::{fmt, os::fd::OwnedFd, pin::Pin, time::Duration};

use async_trait::async_trait;
use futures_util::Stream;

/// What became of a job (org.freedesktop.systemd1(5), JobRemoved).
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
    /// Anything newer.
    Other,
}

impl JobResult {
    /// The result that systemd's word stands for.
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

/// A unit's `ActiveState` (org.freedesktop.systemd1(5)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ActiveState {
    /// `active`.
    Active,
    /// `reloading`: it runs and reads its configuration again.
    Reloading,
    /// `refreshing`: it runs and gets newer extension images (systemd 257).
    Refreshing,
    /// `activating`: it starts, or waits for its automatic restart.
    Activating,
    /// `deactivating`.
    Deactivating,
    /// `inactive`.
    Inactive,
    /// `failed`.
    Failed,
    /// `maintenance`.
    Maintenance,
    /// A word of a newer systemd, or none.
    #[default]
    Unknown,
}

impl ActiveState {
    /// The state that systemd's word stands for.
    pub fn from_word(word: &str) -> Self {
        match word {
            "active" => Self::Active,
            "reloading" => Self::Reloading,
            "refreshing" => Self::Refreshing,
            "activating" => Self::Activating,
            "deactivating" => Self::Deactivating,
            "inactive" => Self::Inactive,
            "failed" => Self::Failed,
            "maintenance" => Self::Maintenance,
            _ => Self::Unknown,
        }
    }

    /// The unit has started: its main process runs, or has ended as a oneshot unit's may.
    pub fn is_up(self) -> bool {
        matches!(self, Self::Active | Self::Reloading | Self::Refreshing)
    }

    /// Nothing of the unit runs, and systemd does not start it again by itself.
    pub fn is_down(self) -> bool {
        matches!(self, Self::Inactive | Self::Failed)
    }
}

impl fmt::Display for ActiveState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Active => "active",
            Self::Reloading => "reloading",
            Self::Refreshing => "refreshing",
            Self::Activating => "activating",
            Self::Deactivating => "deactivating",
            Self::Inactive => "inactive",
            Self::Failed => "failed",
            Self::Maintenance => "maintenance",
            Self::Unknown => "in a state that KAT does not know",
        })
    }
}

/// A unit without a file that runs one command to its end and leaves nothing behind.
///
/// Its start job ends when the command does: [`JobResult::Done`] after status 0, else
/// [`JobResult::Failed`] (or [`JobResult::Timeout`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TransientUnit {
    /// Name, with `.service`; no unit of that name may exist.
    pub name: String,
    /// Description.
    pub description: String,
    /// Variables of the command, `NAME=value` each.
    pub environment: Vec<String>,
    /// Absolute path of the program, then its arguments.
    pub command: Vec<String>,
    /// A command as that one, which runs when that has ended, however it ended; how this one ends says
    /// nothing. None where it is empty.
    pub afterwards: Vec<String>,
    /// Time after which systemd ends the command.
    pub limit: Duration,
}

/// How a transient unit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransientEnd {
    /// What became of its job.
    pub result: JobResult,
    /// Status with which the command ended, where it ended by itself and not with 0.
    pub exit_status: Option<i32>,
}

/// Where a command in a unit of its own reads and writes: files of whoever starts it. What is not given
/// is `/dev/null` for standard input.
#[derive(Debug)]
pub struct Streams {
    /// Standard input.
    pub stdin: Option<OwnedFd>,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// It was stopped, or its time was over.
    Stopped,
}

/// The properties of a service that KAT reads.
///
/// systemd forgets an inactive unit that no other unit needs, and what its last process did: then
/// the fields of the main process are 0. Failed units stay, and units that `default.target` wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitStatus {
    /// `loaded`, `not-found`, `bad-setting`, `masked` ...
    pub load_state: String,
    /// `ActiveState`.
    pub active_state: ActiveState,
    /// `running`, `start`, `auto-restart`, `exited`, `dead` ...
    pub sub_state: String,
    /// `success`, `exit-code`, `signal`, `timeout`, `oom-kill`, `start-limit-hit` ...
    pub result: String,
    /// Main process, 0 if none.
    pub main_pid: u32,
    /// Exit status, or number of the signal, of the last main process.
    pub exec_main_status: i32,
    /// How it ended: `CLD_EXITED` 1, `CLD_KILLED` 2, `CLD_DUMPED` 3; 0 while none ended.
    pub exec_main_code: i32,
    /// Start of the main process, microseconds of the monotonic clock.
    pub exec_main_start_monotonic: u64,
    /// End of the main process, microseconds of the monotonic clock.
    pub exec_main_exit_monotonic: u64,
    /// Automatic restarts since the last start by hand or reset.
    pub restarts: u32,
    /// Last change of the state, microseconds since the epoch.
    pub state_changed: u64,
    /// Control group, from the root of the hierarchy.
    pub control_group: String,
    /// Memory now, bytes, if counted.
    pub memory_current: Option<u64>,
    /// Processor time so far, nanoseconds, if counted.
    pub cpu_usage: Option<u64>,
    /// Start of the present invocation, 32 hexadecimal digits.
    pub invocation_id: String,
    /// The unit file's text on disk is newer than what the manager loaded.
    pub need_daemon_reload: bool,
}

impl UnitStatus {
    /// The program ended and is started again after a delay. The restart is not counted yet.
    pub fn is_between_runs(&self) -> bool {
        self.sub_state == "auto-restart"
    }
}

/// A unit of the manager that changed, or everything (after a reconnection).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnitEvent {
    /// Properties of this unit changed.
    Changed(String),
    /// Anything may have changed: read everything again.
    All,
}

/// Changes as they come; ends when the manager or its bus goes away.
pub type UnitEvents = Pin<Box<dyn Stream<Item = UnitEvent> + Send>>;

/// Why a manager did not do as asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SystemdError {
    /// The manager's bus can't be reached.
    #[error("the manager of {manager} is not reachable: {reason}")]
    Unreachable {
        /// `the system` or `user UID`.
        manager: String,
        /// What the connection said.
        reason: String,
    },
    /// There is no such unit.
    #[error("unit {0} does not exist")]
    NoSuchUnit(String),
    /// The unit is masked.
    #[error("unit {0} is masked")]
    Masked(String),
    /// A refusal, with systemd's own words.
    #[error("{unit}: {message} ({name})")]
    Refused {
        /// Unit or call.
        unit: String,
        /// D-Bus error name.
        name: String,
        /// systemd's words.
        message: String,
    },
    /// The job did not end in time.
    #[error("{unit}: the job did not end within {} s", limit.as_secs())]
    JobTimeout {
        /// The unit.
        unit: String,
        /// The time it had.
        limit: Duration,
    },
}

/// A systemd manager: the system's or one user's. The real one speaks D-Bus; a fake stands in
/// unit tests and in the simulation.
#[async_trait]
pub trait UnitManager: Send + Sync {
    /// Reads all unit files again and runs the generators.
    async fn reload(&self) -> Result<(), SystemdError>;

    /// Starts a unit (mode `replace`) and waits for the job's result, at most `limit`.
    async fn start(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError>;

    /// Stops a unit and waits for the job's result, at most `limit`. A unit that does not run is
    /// [`JobResult::Done`], one that is not loaded [`SystemdError::NoSuchUnit`].
    async fn stop(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError>;

    /// Restarts a unit and waits for the job's result, at most `limit`.
    async fn restart(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError>;

    /// Forgets a failed state and the start limit's count. [`SystemdError::NoSuchUnit`] when the
    /// unit is not loaded.
    async fn reset_failed(&self, unit: &str) -> Result<(), SystemdError>;

    /// The unit's properties; `load_state` is `not-found` when there is none.
    async fn status(&self, unit: &str) -> Result<UnitStatus, SystemdError>;

    /// Names of loaded units that match a pattern such as `kat-*.service`.
    async fn list(&self, pattern: &str) -> Result<Vec<String>, SystemdError>;

    /// Runs a command in a unit of its own and waits for its end, at most `limit`. It runs on where nobody
    /// waits any more, and leaves nothing behind all the same.
    async fn run_transient(
        &self,
        unit: &TransientUnit,
        limit: Duration,
    ) -> Result<TransientEnd, SystemdError>;

    /// Runs a command in a unit of its own that reads and writes these files, and waits for its end.
    /// systemd ends it after the unit's own limit. It leaves nothing behind either.
    async fn run_with(&self, unit: &TransientUnit, streams: Streams)
    -> Result<Ended, SystemdError>;

    /// Sends a signal, by its number, to all processes of a unit.
    async fn kill(&self, unit: &str, signal: i32) -> Result<(), SystemdError>;

    /// Enables a unit, so that it is started as its `[Install]` section says. No reload.
    async fn enable(&self, unit: &str) -> Result<(), SystemdError>;

    /// Disables a unit. No reload.
    async fn disable(&self, unit: &str) -> Result<(), SystemdError>;

    /// Changes of units whose names begin with `kat-`. The first event is [`UnitEvent::All`]:
    /// who listens reads everything once. Events of one unit that were not read yet are one.
    async fn events(&self) -> Result<UnitEvents, SystemdError>;
}
