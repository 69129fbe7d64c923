//! The steps of a pass for an instance that should run.

use tokio::time::Instant;

use crate::worker::{
    WorkerError,
    context::UserContext,
    instance::{Instance, starting::StartTrouble},
    unit_state::{
        instance_phase::{InstanceVerdict, JudgementInput, RunFault, StartAction, judge_instance},
        sidecars::InstanceSidecars,
    },
};
use kat_systemd::{LoadState, UnitStatus};
use kat_types::{api::InstancePhase, assignment::Assignment};

impl Instance {
    /// Judges an instance that should run, and does what the verdict requires.
    pub(crate) async fn converge(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
    ) -> Result<(), WorkerError> {
        if let Some(bound) = &assignment.bound {
            return self.converge_bound(context, assignment, bound).await;
        }
        let status = self.load(context, assignment).await?;
        self.read_usage(context, &assignment.unit(), &status)
            .await?;
        // Nothing is done about an end whose cause is not known yet.
        let has_job = context.jobs.is_busy(&assignment.instance);
        let is_known = has_job || self.look_at_runs(context, assignment, &status).await?;
        let is_busy = has_job || !is_known;
        let (verdict, beside) = self.judge(context, assignment, &status).await?;
        if let Some(beside) = &beside {
            self.pull_lost(context, assignment, beside);
        }
        let lost_image = self.last_run.fault == Some(RunFault::LostImage);
        if lost_image && !is_busy && self.replace_image(context, assignment, &status) {
            return Ok(());
        }
        if is_busy {
            // The leader takes the end of an instance of a Job as it is told first.
            if is_known || !assignment.runs_once() {
                self.report_verdict(context, assignment, &status, &verdict);
            }
            return Ok(());
        }
        if verdict.action == StartAction::Leave {
            self.report_verdict(context, assignment, &status, &verdict);
            if let Some(beside) = &beside {
                self.converge_beside(context, assignment, beside, &verdict)?;
            }
            self.heal(context, assignment, &status);
            // At most one job of an instance runs at a time.
            if !context.jobs.is_busy(&assignment.instance) {
                self.renew_binds(context, assignment, &status);
                self.record_rest(assignment, status, verdict, beside);
            }
            return Ok(());
        }
        if let Some(wait) = self.start.backoff.remaining(Instant::now()) {
            context.wake_within(wait);
            self.report_verdict(context, assignment, &status, &verdict);
            return Ok(());
        }
        // Processes of its last run may still write to its data.
        if self.outlives(context, &assignment.unit(), &status).await? {
            self.report_outlived(context, assignment, &status);
            return Ok(());
        }
        self.start_if_ready(context, assignment, &status, &verdict)
    }

    /// The state of the instance's unit. A manager that does not know the unit is reloaded.
    pub(super) async fn load(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
    ) -> Result<UnitStatus, WorkerError> {
        let unit = assignment.unit();
        let status = context.manager.status(&unit).await?;
        if status.load_state != LoadState::NotFound || !self.may_reload(context) {
            return Ok(status);
        }
        context.reload().await?;
        Ok(context.manager.status(&unit).await?)
    }

    /// Whether to reload because of a missing unit. Each reload triggers another pass, so reloads
    /// are delayed.
    fn may_reload(&mut self, context: &mut UserContext) -> bool {
        let now = Instant::now();
        if let Some(wait) = self.reloads.remaining(now) {
            context.wake_within(wait);
            return false;
        }
        self.reloads.failed(now);
        true
    }

    /// Judges the instance from its units, and records what the verdict means for its probes, its
    /// earlier failures and its next judgement.
    async fn judge(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> Result<(InstanceVerdict, Option<InstanceSidecars>), WorkerError> {
        let now = context.now();
        let circumstances = JudgementInput {
            fault: self.last_run.fault,
            end: self.last_run.end.as_ref(),
            ended: self.last_run.ended,
            restarts: context.restarts.own(&assignment.instance),
            begun: !self.start.failed
                && !context.jobs.is_busy(&assignment.instance)
                && context
                    .begun
                    .get(&assignment.instance)
                    .is_some_and(|note| note.begun),
            now,
        };
        let verdict = judge_instance(assignment, status, circumstances);
        let beside = self.look_beside(context, assignment, status).await?;
        let verdict = match &beside {
            Some(beside) => beside.adjust_verdict(assignment, status, verdict, now),
            None => verdict,
        };
        self.watch_health(context, assignment, status);
        if let Some(again) = verdict.again {
            context.wake_within(again);
        }
        if verdict.phase == InstancePhase::Running {
            self.start = StartTrouble::default();
            self.forget_stop();
            self.last_run.fault = None;
            self.last_run.end = None;
            self.forgive(context, assignment, status, now).await;
        }
        Ok((verdict, beside))
    }
}
