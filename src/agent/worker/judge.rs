//! What a unit's state means for its instance. Pure.

use std::{ops::RangeInclusive, time::Duration};

use kat_systemd::{ActiveState, UnitStatus};
use kat_types::{
    api::InstancePhase, assignment::Assignment, reason::Reason, resource::RestartCondition,
};

/// A program that crashed often counts as running only after so long without a crash.
pub(crate) const SETTLE: Duration = Duration::from_secs(10);
/// From so many restarts on, [`SETTLE`] applies.
pub(crate) const OFTEN: u32 = 3;

/// systemd's result of a start that the unit's own conditions refused (systemd.exec(5)).
pub const CONDITION: &str = "exec-condition";

/// What the agent is to do about an instance that should run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing: systemd has it.
    Leave,
    /// Start its unit.
    Start,
    /// Forget the failure, which was KAT's, and start its unit.
    StartUncounted,
}

/// systemd's result of a start whose first process ended well before it had said that the program runs
/// (systemd.exec(5)). Podman says that itself, and no program in a container can end a start so.
pub const PROTOCOL: &str = "protocol";

/// Exit codes of Podman's own where it did not start a container (podman-run(1)); a program may have them, too.
pub const PODMANS: RangeInclusive<i32> = 125..=127;

/// What ended a run other than its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The container hook: the network could not be made.
    Hook,
    /// Podman lost the container while it started it.
    LostStart,
    /// Podman did not find the image, which was there once.
    LostImage,
    /// Podman could not start the container.
    CannotStart,
}

impl Fault {
    /// It says nothing of the program or of how it was asked for, and does not count as a restart.
    pub fn is_excused(self) -> bool {
        match self {
            Self::Hook | Self::LostStart | Self::LostImage => true,
            Self::CannotStart => false,
        }
    }

    fn reason(self) -> Reason {
        match self {
            Self::Hook => Reason::NetworkNotReady,
            Self::LostStart => Reason::StartInterrupted,
            Self::LostImage => Reason::ImageLost,
            Self::CannotStart => Reason::CannotStart,
        }
    }

    /// What is told of it; nothing where that stands in the journal.
    fn message(self) -> String {
        match self {
            Self::Hook | Self::LostImage | Self::CannotStart => String::new(),
            Self::LostStart => {
                "Podman lost the container while it started it; it is started again".to_owned()
            }
        }
    }
}

/// What is told about an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Phase.
    pub phase: InstancePhase,
    /// `None` when all is well.
    pub reason: Option<Reason>,
    /// A sentence for people; the worker adds the last lines of the log to a failure.
    pub message: String,
    /// Times that the program was started again because of what it did itself.
    pub restarts: u32,
    /// Exit code of the program's last end; 128 and the signal when one killed it.
    pub exit_code: Option<i32>,
    /// What to do.
    pub action: Action,
    /// Judge again after this time.
    pub again: Option<Duration>,
    /// The reason why it is not whole although its main program runs; the message says more.
    pub beside: Option<Reason>,
}

/// What is known beside the unit's state.
#[derive(Debug, Clone, Copy, Default)]
pub struct Circumstances {
    /// What ended the last run, if that was not the program.
    pub fault: Option<Fault>,
    /// The unit ended well since it was last started.
    pub ended: bool,
    /// Restarts that the agent counted, the one that systemd refused when it gave up included.
    pub restarts: u32,
    /// Monotonic clock, microseconds.
    pub now: u64,
}

/// Judges an instance that should run by its unit's state.
pub fn judge(
    assignment: &Assignment,
    status: &UnitStatus,
    circumstances: Circumstances,
) -> Verdict {
    let not_started = circumstances.fault == Some(Fault::CannotStart);
    // It has none where it never ran.
    let exit_code = exit_code(status).filter(|_| !not_started);
    let policy = &assignment.restart_policy;
    let gave_up = status.active_state == ActiveState::Failed
        && policy.condition == RestartCondition::MaxCount
        && !circumstances.fault.is_some_and(Fault::is_excused);
    let restarts = circumstances.restarts.saturating_sub(u32::from(gave_up));
    let verdict = |phase, reason, message: String, action| Verdict {
        phase,
        reason,
        message,
        restarts,
        exit_code,
        action,
        again: None,
        beside: None,
    };
    let excused = |fault: Fault, action| {
        verdict(
            InstancePhase::Starting,
            Some(fault.reason()),
            fault.message(),
            action,
        )
    };
    // What Podman said of it stands in the journal.
    let (loops, words) = match not_started {
        true => (Reason::CannotStart, String::new()),
        false => (Reason::CrashLoop, ended(status, exit_code)),
    };
    use ActiveState::{Activating, Active, Deactivating, Failed, Inactive, Refreshing, Reloading};
    match (
        status.active_state,
        status.sub_state.as_str(),
        circumstances.fault.filter(|fault| fault.is_excused()),
    ) {
        (Active | Reloading | Refreshing, ..) => running(status, circumstances, verdict),
        (Activating, _, Some(fault)) => excused(fault, Action::Leave),
        (Activating, "auto-restart" | "auto-restart-queued", None) => {
            verdict(InstancePhase::Restarting, Some(loops), words, Action::Leave)
        }
        (Activating, ..) if status.restarts > 0 => {
            verdict(InstancePhase::Restarting, Some(loops), words, Action::Leave)
        }
        (Activating, ..) => verdict(InstancePhase::Starting, None, String::new(), Action::Leave),
        (Deactivating, ..) => verdict(InstancePhase::Restarting, None, String::new(), Action::Leave),
        (Failed, _, Some(fault)) => excused(fault, Action::StartUncounted),
        (Failed, ..) => {
            let reason = match policy.condition {
                RestartCondition::MaxCount => Reason::RestartsExhausted,
                RestartCondition::Never | RestartCondition::Always if not_started => Reason::CannotStart,
                RestartCondition::Never => Reason::ProgramFailed,
                RestartCondition::Always => Reason::Failed,
            };
            let action = match policy.condition {
                RestartCondition::Always => Action::StartUncounted,
                RestartCondition::MaxCount | RestartCondition::Never => Action::Leave,
            };
            verdict(InstancePhase::Failed, Some(reason), words, action)
        }
        (Inactive, ..) if status.result == CONDITION && !assignment.container.devices.is_empty() => verdict(
            InstancePhase::Starting,
            Some(Reason::DeviceNotOpen),
            format!(
                "its user {} can't open its devices or reach what it mounts, or a file of KAT's is missing",
                assignment.user.name
            ),
            Action::Start,
        ),
        (Inactive, ..) if status.result == CONDITION && !assignment.volumes.is_empty() => verdict(
            InstancePhase::Starting,
            Some(Reason::MountsNotReachable),
            format!(
                "its user {} can't reach what it mounts, or a file of KAT's is missing",
                assignment.user.name
            ),
            Action::Start,
        ),
        (Inactive, ..) if status.result == CONDITION => verdict(
            InstancePhase::Starting,
            Some(Reason::NetworkFilesMissing),
            "a file of KAT's that the container's network needs is missing; the agent puts it back when it starts"
                .to_owned(),
            Action::Start,
        ),
        _ if circumstances.ended && policy.condition != RestartCondition::Always => verdict(
            InstancePhase::Succeeded,
            Some(Reason::ProgramEnded),
            ended(status, exit_code),
            Action::Leave,
        ),
        _ => verdict(InstancePhase::Starting, None, String::new(), Action::Start),
    }
}

fn running(
    status: &UnitStatus,
    circumstances: Circumstances,
    verdict: impl Fn(InstancePhase, Option<Reason>, String, Action) -> Verdict,
) -> Verdict {
    let up = Duration::from_micros(
        circumstances
            .now
            .saturating_sub(status.exec_main_start_monotonic),
    );
    // Neither those that were KAT's fault count, nor those before a start by hand.
    let lately = status.restarts.min(circumstances.restarts);
    if lately >= OFTEN && up < SETTLE {
        let message = format!("started again {lately} times");
        let mut verdict = verdict(
            InstancePhase::Restarting,
            Some(Reason::CrashLoop),
            message,
            Action::Leave,
        );
        verdict.again = Some(SETTLE - up);
        return verdict;
    }
    verdict(InstancePhase::Running, None, String::new(), Action::Leave)
}

/// `CLD_EXITED` of waitid(2).
const EXITED: i32 = 1;

pub(crate) fn exit_code(status: &UnitStatus) -> Option<i32> {
    match status.exec_main_code {
        0 => None,
        EXITED => Some(status.exec_main_status),
        _ => Some(128 + status.exec_main_status),
    }
}

pub(crate) fn ended(status: &UnitStatus, exit_code: Option<i32>) -> String {
    match (status.result.as_str(), exit_code) {
        ("oom-kill", _) => {
            "the kernel ended the program: it used more memory than its limit".to_owned()
        }
        ("timeout", _) => "the program did not start within its time".to_owned(),
        ("watchdog", _) => "the program's watchdog ended it".to_owned(),
        ("resources", _) => "the machine lacked the resources to start it".to_owned(),
        (_, Some(code)) if code > 128 => format!("the program was ended by signal {}", code - 128),
        (_, Some(code)) => format!("the program ended with exit code {code}"),
        (result, None) => format!("the unit ended with result {result}"),
    }
}
