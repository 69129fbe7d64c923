//! Derives an instance's phase and the next action from its unit's state. Pure.

use std::{ops::RangeInclusive, time::Duration};

use kat_systemd::{ActiveState, ServiceResult, SubState, UnitStatus};
use kat_types::{
    api::InstancePhase, assignment::Assignment, reason::Reason, resource::RestartCondition,
};

/// A program that crashed at least [`OFTEN`] times counts as running only after this time without a
/// crash.
pub(crate) const SETTLE: Duration = Duration::from_secs(10);
/// Number of restarts from which [`SETTLE`] applies.
pub(crate) const OFTEN: u32 = 3;

/// What the agent does about an instance that should run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartAction {
    /// Nothing: systemd manages the unit.
    Leave,
    /// Start the unit.
    Start,
    /// Reset the failure, which was KAT's, and start the unit.
    StartUncounted,
}

/// Exit codes of Podman's own where it did not start a container (podman-run(1)). A program may use
/// the same codes.
pub(crate) const PODMANS: RangeInclusive<i32> = 125..=127;

/// A cause of a run's end other than the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunFault {
    /// The container hook failed: it could not make the network.
    Hook,
    /// `kat-net` killed the instance at its deadline: the agent did not run, or reached no leader.
    Fenced,
    /// Podman lost the container during its start.
    LostStart,
    /// Podman did not find the image, although it had been pulled.
    LostImage,
    /// Podman could not start the container.
    CannotStart,
}

impl RunFault {
    /// Whether the fault is neither the program's nor its configuration's, and does not count as a
    /// restart.
    pub(crate) fn is_excused(self) -> bool {
        match self {
            Self::Hook | Self::Fenced | Self::LostStart | Self::LostImage => true,
            Self::CannotStart => false,
        }
    }

    fn reason(self) -> Reason {
        match self {
            Self::Hook => Reason::NetworkNotReady,
            Self::Fenced => Reason::CutOff,
            Self::LostStart => Reason::StartInterrupted,
            Self::LostImage => Reason::ImageLost,
            Self::CannotStart => Reason::CannotStart,
        }
    }

    /// The message about the fault; empty where the journal has it.
    fn message(self) -> String {
        match self {
            Self::Hook | Self::Fenced | Self::LostImage | Self::CannotStart => String::new(),
            Self::LostStart => {
                "Podman lost the container while it started it; it is started again".to_owned()
            }
        }
    }
}

/// The judged state of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InstanceVerdict {
    pub phase: InstancePhase,
    /// `None` while the instance has no problem.
    pub reason: Option<Reason>,
    /// A sentence for users; the worker adds the last log lines to a failure.
    pub message: String,
    /// Restarts that the program itself caused.
    pub restarts: u32,
    /// Exit code of the program's last end; 128 plus the signal number when a signal killed it.
    pub exit_code: Option<i32>,
    pub action: StartAction,
    /// Judge again after this time.
    pub again: Option<Duration>,
    /// Why the instance is degraded although its main program runs; the message says more.
    pub beside: Option<Reason>,
}

/// An end of a unit's main process in systemd's log. Codes are those of waitid(2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoggedEnd {
    /// Why it ended: `CLD_EXITED`, `CLD_KILLED` or `CLD_DUMPED`.
    pub code: i32,
    /// Exit code, or the number of the signal.
    pub status: i32,
    pub result: ServiceResult,
}

/// How a run ended, as its verdict said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunEnd {
    /// [`InstanceVerdict::message`].
    pub message: String,
    /// [`InstanceVerdict::exit_code`].
    pub exit_code: Option<i32>,
}

impl RunEnd {
    /// The end that a unit's state shows.
    pub(crate) fn of(status: &UnitStatus) -> Self {
        let exit_code = exit_code(status);
        Self {
            message: ended(status, exit_code),
            exit_code,
        }
    }

    /// The end that systemd logged.
    pub(crate) fn logged(end: &LoggedEnd) -> Self {
        Self::of(&UnitStatus {
            exec_main_code: end.code,
            exec_main_status: end.status,
            result: end.result.clone(),
            ..UnitStatus::default()
        })
    }
}

/// What the judgement needs beside the unit's state.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct JudgementInput<'a> {
    /// The cause of the last run's end, if it was not the program.
    pub fault: Option<RunFault>,
    /// How the last run ended, if the agent saw it.
    pub end: Option<&'a RunEnd>,
    /// The unit ended successfully since its last start.
    pub ended: bool,
    /// Restarts that the agent counted, including the one that systemd refused when it gave up.
    pub restarts: u32,
    /// An instance of a Job has been started before, and no start of it failed or runs.
    pub begun: bool,
    /// Monotonic clock, microseconds.
    pub now: u64,
}

/// Judges an instance that should run from its unit's state.
pub(crate) fn judge_instance(
    assignment: &Assignment,
    status: &UnitStatus,
    circumstances: JudgementInput<'_>,
) -> InstanceVerdict {
    use ActiveState::{Activating, Active, Deactivating, Failed, Inactive, Refreshing, Reloading};
    let judgement = Judgement::of(assignment, status, circumstances);
    let calm = |phase, action| judgement.verdict(phase, None, String::new(), action);
    match (
        status.active_state,
        &status.sub_state,
        circumstances.fault.filter(|fault| fault.is_excused()),
    ) {
        (Active, SubState::Exited, _) if assignment.runs_once() => judgement.program_ended(),
        (Active | Reloading | Refreshing, ..) => judgement.running(),
        (Activating, _, Some(fault)) => judgement.excused(fault, StartAction::Leave),
        (Activating, SubState::AutoRestart | SubState::AutoRestartQueued, None) => {
            judgement.restarting()
        }
        (Activating, ..) if status.restarts > 0 => judgement.restarting(),
        (Activating, ..) => calm(InstancePhase::Starting, StartAction::Leave),
        (Deactivating, ..) => calm(InstancePhase::Restarting, StartAction::Leave),
        (Failed, _, fault) => judgement.failed(fault),
        (Inactive, ..) if status.result == ServiceResult::ExecCondition => judgement.not_ready(),
        _ if circumstances.begun && assignment.runs_once() => judgement.verdict(
            InstancePhase::Failed,
            Some(Reason::Interrupted),
            "it was stopped before its program ended, as by a power cut; this instance is not started again"
                .to_owned(),
            StartAction::Leave,
        ),
        _ if circumstances.ended
            && assignment.restart_policy.condition != RestartCondition::Always
            && !assignment.runs_once() =>
        {
            judgement.program_ended()
        }
        _ => calm(InstancePhase::Starting, StartAction::Start),
    }
}

/// What the verdicts about one state of a unit have in common.
struct Judgement<'a> {
    assignment: &'a Assignment,
    status: &'a UnitStatus,
    circumstances: JudgementInput<'a>,
    /// Podman could not start the container, so that the program never ran.
    not_started: bool,
    /// [`InstanceVerdict::exit_code`].
    exit_code: Option<i32>,
    /// [`InstanceVerdict::restarts`].
    restarts: u32,
}

impl<'a> Judgement<'a> {
    fn of(
        assignment: &'a Assignment,
        status: &'a UnitStatus,
        circumstances: JudgementInput<'a>,
    ) -> Self {
        let not_started = circumstances.fault == Some(RunFault::CannotStart);
        let gave_up = status.active_state == ActiveState::Failed
            && assignment.restart_policy.condition == RestartCondition::MaxCount
            && !circumstances.fault.is_some_and(RunFault::is_excused);
        Self {
            assignment,
            status,
            circumstances,
            not_started,
            // A program that never ran has no exit code.
            exit_code: exit_code(status).filter(|_| !not_started),
            restarts: circumstances.restarts.saturating_sub(u32::from(gave_up)),
        }
    }

    fn verdict(
        &self,
        phase: InstancePhase,
        reason: Option<Reason>,
        message: String,
        action: StartAction,
    ) -> InstanceVerdict {
        InstanceVerdict {
            phase,
            reason,
            message,
            restarts: self.restarts,
            exit_code: self.exit_code,
            action,
            again: None,
            beside: None,
        }
    }

    fn excused(&self, fault: RunFault, action: StartAction) -> InstanceVerdict {
        self.verdict(
            InstancePhase::Starting,
            Some(fault.reason()),
            fault.message(),
            action,
        )
    }

    fn program_ended(&self) -> InstanceVerdict {
        self.verdict(
            InstancePhase::Succeeded,
            Some(Reason::ProgramEnded),
            ended(self.status, self.exit_code),
            StartAction::Leave,
        )
    }

    fn running(&self) -> InstanceVerdict {
        let up = Duration::from_micros(
            self.circumstances
                .now
                .saturating_sub(self.status.exec_main_start_monotonic),
        );
        // Neither restarts that were KAT's fault count here, nor those before a start by hand.
        let lately = self.status.restarts.min(self.circumstances.restarts);
        if lately >= OFTEN && up < SETTLE {
            let end = self.circumstances.end;
            let message = match end {
                Some(end) => format!("{}; started again {lately} times", end.message),
                None => format!("started again {lately} times"),
            };
            let mut verdict = self.verdict(
                InstancePhase::Restarting,
                Some(Reason::CrashLoop),
                message,
                StartAction::Leave,
            );
            verdict.exit_code = end.and_then(|end| end.exit_code);
            verdict.again = Some(SETTLE - up);
            return verdict;
        }
        self.verdict(
            InstancePhase::Running,
            None,
            String::new(),
            StartAction::Leave,
        )
    }

    /// systemd starts the unit again after a failure.
    fn restarting(&self) -> InstanceVerdict {
        let reason = if self.not_started {
            Reason::CannotStart
        } else {
            Reason::CrashLoop
        };
        let mut verdict = self.verdict(
            InstancePhase::Restarting,
            Some(reason),
            self.failure_message(),
            StartAction::Leave,
        );
        // With the next start systemd forgets how the last run ended.
        let is_forgotten = self.status.result == ServiceResult::Success && self.exit_code.is_none();
        if is_forgotten && !self.not_started {
            match self.circumstances.end {
                Some(end) => {
                    verdict.message.clone_from(&end.message);
                    verdict.exit_code = end.exit_code;
                }
                None => {
                    "it starts again; how it ended was not seen".clone_into(&mut verdict.message);
                }
            }
        }
        verdict
    }

    /// How the program ended; empty where it never ran, since the journal has Podman's error.
    fn failure_message(&self) -> String {
        if self.not_started {
            return String::new();
        }
        ended(self.status, self.exit_code)
    }

    /// The unit failed. `fault` is an excused cause.
    fn failed(&self, fault: Option<RunFault>) -> InstanceVerdict {
        let runs_once = self.assignment.runs_once();
        match fault {
            // Its program had begun, and runs once.
            Some(RunFault::Fenced) if runs_once => self.verdict(
                InstancePhase::Failed,
                Some(Reason::Interrupted),
                "the machine reached no leader, and has stopped it".to_owned(),
                StartAction::Leave,
            ),
            _ if self.status.result == ServiceResult::Timeout && runs_once => self.verdict(
                InstancePhase::Failed,
                Some(Reason::DeadlineExceeded),
                "it was ended at the deadline of its run, or did not start within its time"
                    .to_owned(),
                StartAction::Leave,
            ),
            Some(fault) => self.excused(fault, StartAction::StartUncounted),
            None => {
                let condition = self.assignment.restart_policy.condition;
                let reason = match condition {
                    RestartCondition::MaxCount => Reason::RestartsExhausted,
                    RestartCondition::Never | RestartCondition::Always if self.not_started => {
                        Reason::CannotStart
                    }
                    RestartCondition::Never => Reason::ProgramFailed,
                    RestartCondition::Always => Reason::Failed,
                };
                let action = match condition {
                    RestartCondition::Always => StartAction::StartUncounted,
                    RestartCondition::MaxCount | RestartCondition::Never => StartAction::Leave,
                };
                self.verdict(
                    InstancePhase::Failed,
                    Some(reason),
                    self.failure_message(),
                    action,
                )
            }
        }
    }

    /// A condition of the unit did not hold: its user can't reach something that the instance needs,
    /// or a file of KAT's is missing.
    fn not_ready(&self) -> InstanceVerdict {
        let user = &self.assignment.user.name;
        let (reason, message) = if !self.assignment.container.devices.is_empty() {
            (
                Reason::DeviceNotOpen,
                format!(
                    "its user {user} can't open its devices or reach what it mounts, or a file of KAT's is missing"
                ),
            )
        } else if !self.assignment.volumes.is_empty() {
            (
                Reason::MountsNotReachable,
                format!(
                    "its user {user} can't reach what it mounts, or a file of KAT's is missing"
                ),
            )
        } else {
            (
                Reason::NetworkFilesMissing,
                "a file of KAT's that the container's network needs is missing; the agent puts it back when it starts"
                    .to_owned(),
            )
        };
        self.verdict(
            InstancePhase::Starting,
            Some(reason),
            message,
            StartAction::Start,
        )
    }
}

/// `CLD_EXITED` of waitid(2).
pub(crate) const EXITED: i32 = 1;
/// `CLD_KILLED` of waitid(2).
pub(crate) const KILLED: i32 = 2;
/// `CLD_DUMPED` of waitid(2).
pub(crate) const DUMPED: i32 = 3;

pub(crate) fn exit_code(status: &UnitStatus) -> Option<i32> {
    match status.exec_main_code {
        0 => None,
        EXITED => Some(status.exec_main_status),
        _ => Some(128 + status.exec_main_status),
    }
}

pub(crate) fn ended(status: &UnitStatus, exit_code: Option<i32>) -> String {
    match (&status.result, exit_code) {
        (ServiceResult::OomKill, _) => {
            "the kernel ended the program: it used more memory than its limit".to_owned()
        }
        (ServiceResult::Timeout, _) => "the program did not start within its time".to_owned(),
        (ServiceResult::Watchdog, _) => "the program's watchdog ended it".to_owned(),
        (ServiceResult::Resources, _) => "the machine lacked the resources to start it".to_owned(),
        (_, Some(code)) if code > 128 => format!("the program was ended by signal {}", code - 128),
        (_, Some(code)) => format!("the program ended with exit code {code}"),
        (result, None) => format!("the unit ended with result {result}"),
    }
}
