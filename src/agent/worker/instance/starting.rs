//! Starts of an instance: what has to be ready before, and the jobs that start, restart and bind it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    network::host_ports,
    volumes::{PreparedMounts, host_binds},
    worker::{
        WorkerError,
        context::UserContext,
        ignore_missing,
        instance::Instance,
        running::{jobs::InstanceOutcome, start_backoff::RetryDelay, stops::stop_limit},
        unit_state::instance_phase::{InstanceVerdict, StartAction},
    },
};
use kat_systemd::{ActiveState, JobResult, ServiceResult, UnitStatus};
use kat_types::{
    api::InstancePhase, assignment::Assignment, reason::Reason, services::host_port_statuses,
};

/// Pause until it is checked again whether instances of Jobs may be started.
const LOOK_AT_CONTACT: Duration = Duration::from_secs(1);
/// Message of an instance of a Job that waits for a leader.
const RUN_UNCONFIRMED_MEANS: &str = "its machine has not heard from a leader lately that its run continues, so it does not start: the run may be over";
/// Pause until something that was not as required is checked again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// What failed at the last starts, until the instance runs.
#[derive(Debug, Default)]
pub(super) struct StartTrouble {
    pub backoff: RetryDelay,
    pub error: Option<String>,
    /// The last try did not start the unit.
    pub failed: bool,
    /// Why the host paths that the instance mounts could not be bound at the last try.
    pub not_bound: Option<String>,
}

/// Whether a run of a schedule that the machine keeps may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunReadiness {
    Ready,
    NotReady,
    /// The disk of its data has been asked, and may still answer in time.
    NotKnown,
}

impl Instance {
    /// Makes sure that an instance can start once its predecessor has ended: its units can be
    /// written, its secrets opened and its images pulled, and its machine has and allows what it
    /// mounts and uses. Starts nothing, and changes nothing that the predecessor uses.
    pub(crate) fn prepare(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
    ) -> Result<(), WorkerError> {
        // An instance that runs is stopped first.
        if context.folder.has(&assignment.unit()) {
            return Ok(());
        }
        let status = UnitStatus::default();
        let rendered = self.render(context, assignment);
        if !self.secrets_ready(context, assignment, &status) {
            return Ok(());
        }
        let rendered = rendered.and_then(|_| context.render_images(assignment));
        if let Err(error) = rendered {
            let reason = Reason::NotRenderable;
            self.report_waiting(context, assignment, &status, reason, error.to_string());
            return Ok(());
        }
        let is_ready = self.images_ready(context, assignment, &status)
            && self
                .volumes_ready(
                    context,
                    assignment,
                    &status,
                    PreparedMounts::BesidePredecessor,
                )
                .is_some()
            && self.options_ready(context, assignment, &status)?;
        if is_ready {
            let phase = InstancePhase::Prepared;
            self.report(context, assignment, &status, phase, None, String::new());
        }
        Ok(())
    }

    /// Begins the start of an instance if all that it needs is ready; reports what is not.
    pub(super) fn start_if_ready(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
        verdict: &InstanceVerdict,
    ) -> Result<(), WorkerError> {
        if !self.secrets_ready(context, assignment, status)
            || !self.images_ready(context, assignment, status)
        {
            return Ok(());
        }
        let what = PreparedMounts::All;
        let Some(binds) = self.volumes_ready(context, assignment, status, what) else {
            return Ok(());
        };
        if !self.options_ready(context, assignment, status)?
            || !self.host_ports_free(context, assignment, status)
            || !self.run_continues(context, assignment, status)
        {
            return Ok(());
        }
        let binding = host_binds::write(&context.tools.root, assignment, binds)?;
        self.report_verdict(context, assignment, status, verdict);
        if status.result == ServiceResult::ExecCondition {
            // Such a start ends at once and successfully, so only this backoff delays the next one.
            self.start.backoff.failed(Instant::now());
        }
        if assignment.runs_once() {
            // Written before the start: after a power cut it counts as begun.
            context.begun.of(&assignment.instance).begun = true;
            context.begun.store()?;
        }
        self.begin_start(context, assignment, verdict.action, binding);
        Ok(())
    }

    /// Whether all is ready that a run of a schedule needs; reports what is not.
    pub(super) fn readiness_of_run(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> Result<RunReadiness, WorkerError> {
        if !self.secrets_ready(context, assignment, status)
            || !self.images_ready(context, assignment, status)
        {
            return Ok(RunReadiness::NotReady);
        }
        let what = PreparedMounts::All;
        if self
            .volumes_ready(context, assignment, status, what)
            .is_none()
        {
            let is_silent = context.tools.volumes.silence(assignment).is_some();
            return Ok(match self.preparation.is_running() && !is_silent {
                true => RunReadiness::NotKnown,
                false => RunReadiness::NotReady,
            });
        }
        let is_ready = self.options_ready(context, assignment, status)?
            && self.host_ports_free(context, assignment, status);
        Ok(match is_ready {
            true => RunReadiness::Ready,
            false => RunReadiness::NotReady,
        })
    }

    /// Whether the secrets for the instance's variables and mounts were ready when its units were
    /// rendered in this pass.
    fn secrets_ready(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> bool {
        let Some(trouble) = self.secret_trouble.clone() else {
            return true;
        };
        let (reason, message) = (trouble.reason, trouble.message);
        self.report_waiting(context, assignment, status, reason, message);
        context.wake_within(LOOK_AGAIN);
        false
    }

    /// Whether the machine allows what the instance asks for, and all of it exists.
    fn options_ready(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> Result<bool, WorkerError> {
        let asks_owner = !assignment.security_wants().is_empty();
        let asks_owner = asks_owner || !host_port_statuses(&assignment.ports).is_empty();
        let asks_owner = asks_owner || !assignment.machine_access.is_empty();
        if !asks_owner && !assignment.together().has_machine_things() {
            return Ok(true);
        }
        let groups = context.tools.accounts.groups(&context.user)?;
        let Err(trouble) = context.tools.options.check(assignment, &groups) else {
            return Ok(true);
        };
        let (reason, message) = (trouble.reason, trouble.message);
        self.report_waiting(context, assignment, status, reason, message);
        context.wake_within(LOOK_AGAIN);
        Ok(false)
    }

    /// Whether no other program listens on the host ports of an instance.
    fn host_ports_free(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> bool {
        let listeners = context.tools.listeners.as_ref();
        let Some(message) = host_ports::in_use(assignment, listeners) else {
            return true;
        };
        let message = format!("{message}; it starts when the port is free");
        let phase = InstancePhase::Starting;
        let reason = Reason::HostPortInUse;
        self.report(context, assignment, status, phase, reason, message);
        context.wake_within(LOOK_AGAIN);
        false
    }

    /// Whether an instance of a Job may be started now: its run is not over ([`JobStarts`]).
    ///
    /// [`JobStarts`]: crate::desired_state::job_starts::JobStarts
    fn run_continues(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> bool {
        if !assignment.runs_once() || context.tools.job_starts.are_allowed() {
            return true;
        }
        let phase = InstancePhase::Scheduled;
        let message = RUN_UNCONFIRMED_MEANS.to_owned();
        self.report(
            context,
            assignment,
            status,
            phase,
            Reason::Unconfirmed,
            message,
        );
        context.wake_within(LOOK_AT_CONTACT);
        false
    }

    /// Where the instance mounts host paths, the unit that binds them, `binding`, runs first.
    fn begin_start(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        action: StartAction,
        binding: Option<String>,
    ) {
        let manager = Arc::clone(&context.manager);
        let system = context.tools.managers.system();
        let limit = context.start_limit();
        let unit = assignment.unit();
        let runs_once = assignment.runs_once();
        let job_starts = context.tools.job_starts.clone();
        let uncounted = action == StartAction::StartUncounted;
        self.last_run.ended = false;
        self.start.failed = false;
        if uncounted {
            let count = context.restarts.of(&assignment.instance);
            count.begun_anew(false);
        }
        let start = async move {
            if let Some(binding) = binding
                && let Err(why) = host_binds::bind(system.as_ref(), &binding).await
            {
                return InstanceOutcome::Bound(Err(why));
            }
            if uncounted && let Err(error) = ignore_missing(manager.reset_failed(&unit).await) {
                return InstanceOutcome::Started(Err(error));
            }
            if runs_once && !job_starts.are_allowed() {
                // A disk or the manager took long since the last look.
                return InstanceOutcome::Started(Ok(JobResult::Skipped));
            }
            let started = manager.start(&unit, limit).await;
            if runs_once
                && matches!(started, Ok(JobResult::Done))
                && matches!(manager.active_state(&unit).await, Ok(ActiveState::Inactive))
            {
                // A condition did not hold, and systemd has forgotten the unit. A program that has
                // begun leaves it active or failed.
                return InstanceOutcome::Started(Ok(JobResult::Skipped));
            }
            InstanceOutcome::Started(started)
        };
        context.jobs.begin_for_instance(&assignment.instance, start);
    }

    /// Records the end of the instance's job.
    pub(crate) fn record_outcome(&mut self, instance: &str, outcome: InstanceOutcome) {
        match outcome {
            InstanceOutcome::Started(Ok(JobResult::Done)) => {}
            InstanceOutcome::Started(result) => {
                let delay = self.start.backoff.failed(Instant::now());
                self.start.failed = true;
                self.start.error = result.as_ref().err().map(ToString::to_string);
                tracing::warn!(
                    instance,
                    ?result,
                    retry_s = delay.as_secs(),
                    "an instance did not start"
                );
            }
            InstanceOutcome::Bound(Ok(())) => self.start.not_bound = None,
            InstanceOutcome::Bound(Err(why)) => {
                let delay = self.start.backoff.failed(Instant::now());
                tracing::warn!(
                    instance,
                    why,
                    retry_s = delay.as_secs(),
                    "host paths are not bound"
                );
                self.start.failed = true;
                self.start.not_bound = Some(why);
            }
            InstanceOutcome::Stopped(result) => self.record_stop(instance, result),
        }
    }
}

/// Begins a restart of the instance's running unit.
pub(super) fn begin_restart(context: &mut UserContext, assignment: &Assignment) {
    let manager = Arc::clone(&context.manager);
    let limit = context.start_limit() + stop_limit(Some(assignment));
    let unit = assignment.unit();
    let restart = async move { InstanceOutcome::Started(manager.restart(&unit, limit).await) };
    context
        .jobs
        .begin_for_instance(&assignment.instance, restart);
}
