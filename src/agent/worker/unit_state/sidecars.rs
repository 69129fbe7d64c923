//! Derives an instance's state from the units of its init containers and sidecars. Pure.

use std::time::Duration;

use crate::worker::unit_state::instance_phase::{
    InstanceVerdict, OFTEN, SETTLE, StartAction, ended, exit_code,
};
use kat_systemd::{ActiveState, ServiceResult, SubState, UnitStatus};
use kat_types::{
    api::{ContainerState, ContainerStatus, InstancePhase},
    assignment::Assignment,
    reason::Reason,
    resource::{OtherKind, RestartCondition},
};

/// Time that a sidecar has to run after its first failures to count as started, as a new version's
/// program has to.
const AFTER_A_FAILURE: Duration = Duration::from_secs(3);

/// A container beside the main one, with its unit's state.
#[derive(Debug, Clone)]
pub(crate) struct SidecarContainer {
    pub kind: OtherKind,
    pub name: String,
    pub image: String,
    pub unit: String,
    pub status: UnitStatus,
    /// Its last log lines, where it has ended.
    pub words: String,
    /// Podman did not start the container; `words` has Podman's error.
    pub not_started: bool,
}

/// The containers of an instance beside its main one.
#[derive(Debug, Clone, Default)]
pub(crate) struct InstanceSidecars {
    /// Init containers in their order, then sidecars.
    pub others: Vec<SidecarContainer>,
    /// The unit that holds the network: its state, and the hook's error where the hook failed.
    pub network: Option<(UnitStatus, String)>,
}

impl SidecarContainer {
    /// Whether an init container has ended successfully, or a sidecar runs.
    pub(crate) fn is_well(&self) -> bool {
        let active = is_active(&self.status);
        match self.kind {
            OtherKind::Init => active && self.status.sub_state == SubState::Exited,
            OtherKind::Sidecar => active,
        }
    }

    /// Whether the unit has ended and systemd will not restart it.
    pub(crate) fn is_down(&self) -> bool {
        self.status.active_state.is_down()
    }

    /// Remaining time that a failed sidecar has to run to count as started: longer where it fails
    /// often.
    fn unsettled(&self, now: u64) -> Option<Duration> {
        let began = self.status.exec_main_start_monotonic;
        let up = Duration::from_micros(now.saturating_sub(began));
        let needed = match self.status.restarts {
            0 => return None,
            few if few < OFTEN => AFTER_A_FAILURE,
            _ => SETTLE,
        };
        needed.checked_sub(up)
    }

    fn state(&self) -> ContainerState {
        use ActiveState::{
            Activating, Active, Deactivating, Failed, Inactive, Maintenance, Refreshing, Reloading,
            Unknown,
        };
        match (self.status.active_state, &self.status.sub_state) {
            (Active | Reloading | Refreshing, SubState::Exited) => ContainerState::Ended,
            (Active | Reloading | Refreshing, _) => ContainerState::Running,
            (Activating, SubState::AutoRestart | SubState::AutoRestartQueued)
            | (Deactivating, _) => ContainerState::Restarting,
            // systemd calls an init container "activating" as long as it runs.
            (Activating, _) if self.kind == OtherKind::Init => ContainerState::Running,
            (Activating, _) => ContainerState::Starting,
            (Failed, _) => ContainerState::Failed,
            (Inactive | Maintenance | Unknown, _) => ContainerState::Waiting,
        }
    }

    pub(crate) fn report(&self) -> ContainerStatus {
        ContainerStatus {
            name: self.name.clone(),
            kind: self.kind,
            state: self.state(),
            restarts: self.status.restarts,
            exit_code: exit_code(&self.status).filter(|_| !self.not_started),
            image: self.image.clone(),
            unit: self.unit.clone(),
        }
    }

    /// `sidecar proxy: the program ended with exit code 1; last lines: ...`
    fn problem_in_words(&self) -> String {
        let Self {
            kind, name, words, ..
        } = self;
        if self.not_started {
            return format!("{kind} {name}: {words}");
        }
        let how = match exit_code(&self.status) {
            None if self.status.result == ServiceResult::Success => "it does not run".to_owned(),
            code => ended(&self.status, code),
        };
        match words.is_empty() {
            true => format!("{kind} {name}: {how}"),
            false => format!("{kind} {name}: {how}; last lines: {words}"),
        }
    }
}

fn is_active(status: &UnitStatus) -> bool {
    status.active_state.is_up()
}

impl InstanceSidecars {
    /// The verdict of the main container, changed by the state of the others.
    pub(crate) fn adjust_verdict(
        &self,
        assignment: &Assignment,
        main: &UnitStatus,
        verdict: InstanceVerdict,
        now: u64,
    ) -> InstanceVerdict {
        if is_active(main) {
            return self.judge_sidecars(verdict, now);
        }
        // A main container that has run once had its network and its init containers.
        let waits = matches!(
            (verdict.phase, &main.sub_state),
            (InstancePhase::Starting, _)
                | (
                    InstancePhase::Restarting,
                    SubState::Start | SubState::StartPre
                )
        );
        if !waits {
            return verdict;
        }
        self.judge_network(&verdict)
            .or_else(|| self.judge_inits(assignment, &verdict))
            .or_else(|| self.judge_first_starts(&verdict))
            .unwrap_or(verdict)
    }

    /// A verdict where a sidecar does not start before the main container has run.
    fn judge_first_starts(&self, verdict: &InstanceVerdict) -> Option<InstanceVerdict> {
        let mut sidecars = self.others.iter();
        let one = sidecars.find(|one| {
            one.kind == OtherKind::Sidecar
                && matches!(
                    one.state(),
                    ContainerState::Restarting | ContainerState::Failed
                )
        })?;
        Some(InstanceVerdict {
            reason: Some(Reason::SidecarNotRunning),
            message: one.problem_in_words(),
            ..verdict.clone()
        })
    }

    fn judge_sidecars(&self, verdict: InstanceVerdict, now: u64) -> InstanceVerdict {
        let mut sidecars = self.others.iter();
        let troubled = sidecars.find(|one| {
            one.kind == OtherKind::Sidecar && (!one.is_well() || one.unsettled(now).is_some())
        });
        let Some(one) = troubled.filter(|_| verdict.phase == InstancePhase::Running) else {
            return verdict;
        };
        let message = match one.is_well() {
            true => format!(
                "{} {}: started again {} times",
                one.kind, one.name, one.status.restarts
            ),
            false => one.problem_in_words(),
        };
        InstanceVerdict {
            beside: Some(Reason::SidecarNotRunning),
            message,
            again: verdict.again.or_else(|| one.unsettled(now)),
            ..verdict
        }
    }

    fn judge_network(&self, verdict: &InstanceVerdict) -> Option<InstanceVerdict> {
        let (status, words) = self.network.as_ref()?;
        let told = |reason, message: String| InstanceVerdict {
            phase: InstancePhase::Starting,
            reason: Some(reason),
            message,
            ..verdict.clone()
        };
        if status.result == ServiceResult::ExecCondition {
            let message = "a file of KAT's that its network needs is missing; the agent puts it back when it starts";
            return Some(told(Reason::NetworkFilesMissing, message.to_owned()));
        }
        let failed = status.has_failed();
        (!is_active(status) && failed).then(|| {
            let message = match words.is_empty() {
                true => "what holds the network of its containers does not start".to_owned(),
                false => words.clone(),
            };
            told(Reason::NetworkNotReady, message)
        })
    }

    fn judge_inits(
        &self,
        assignment: &Assignment,
        verdict: &InstanceVerdict,
    ) -> Option<InstanceVerdict> {
        let mut inits = self.others.iter();
        // Waiting init containers are skipped: a later one may have failed for good, and decides.
        let matters =
            |one: &&SidecarContainer| !one.is_well() && one.state() != ContainerState::Waiting;
        let one = inits.find(|one| one.kind == OtherKind::Init && matters(one))?;
        let policy = assignment.restart_policy.condition;
        let told = |phase, reason, message, action| InstanceVerdict {
            phase,
            reason: Some(reason),
            message,
            action,
            exit_code: exit_code(&one.status).or(verdict.exit_code),
            ..verdict.clone()
        };
        match one.state() {
            ContainerState::Failed => {
                let action = match policy {
                    RestartCondition::Always => StartAction::StartUncounted,
                    RestartCondition::MaxCount | RestartCondition::Never => StartAction::Leave,
                };
                Some(told(
                    InstancePhase::Failed,
                    Reason::InitContainerFailed,
                    one.problem_in_words(),
                    action,
                ))
            }
            ContainerState::Restarting => {
                let message = format!("{}; it is started again", one.problem_in_words());
                Some(told(
                    InstancePhase::Restarting,
                    Reason::InitContainerFailed,
                    message,
                    verdict.action,
                ))
            }
            ContainerState::Running if one.status.restarts > 0 => {
                let message = format!(
                    "init container {} runs again, after {} failures",
                    one.name, one.status.restarts
                );
                Some(told(
                    InstancePhase::Restarting,
                    Reason::InitContainerFailed,
                    message,
                    verdict.action,
                ))
            }
            ContainerState::Running => {
                let message = format!("init container {} runs", one.name);
                Some(told(
                    InstancePhase::Starting,
                    Reason::InitContainerRunning,
                    message,
                    verdict.action,
                ))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
