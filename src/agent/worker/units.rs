//! A worker's units: stopped and removed, written, judged.

use tokio::time::Instant;

use super::{UserDesired, Worker, WorkerError, ignore_missing, jobs::JobKey};
use crate::{
    agent::{
        backoff::Backoff,
        judge::{Action, CONDITION, Circumstances, judge},
        log_tail,
    },
    api::types::InstancePhase,
    plan::{Assignment, Wanted},
    render::UnitFile,
    systemd::UnitStatus,
};

impl Worker {
    /// Stops what should not run and takes its files away once it has stopped.
    pub(super) async fn stop_unwanted(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        let mut removed = false;
        for (unit, instance) in self.folder.instances()? {
            let assignment = desired
                .assignments
                .values()
                .find(|assignment| assignment.unit() == unit);
            let unwanted = match assignment {
                Some(assignment) => assignment.wanted == Wanted::Stopped,
                None => desired.confirmed,
            };
            if !unwanted || self.busy.contains(&JobKey::Instance(instance.clone())) {
                continue;
            }
            let status = self.manager.status(&unit).await?;
            if self.folder.is_over(&status) {
                if status.active_state == "failed" {
                    ignore_missing(self.manager.reset_failed(&unit).await)?;
                }
                self.folder.remove(&unit)?;
                removed = true;
            } else {
                if let Some(assignment) = assignment {
                    self.report(
                        assignment,
                        &status,
                        InstancePhase::Stopping,
                        "",
                        String::new(),
                    );
                }
                self.spawn_stop(instance, unit, assignment);
            }
        }
        if removed {
            self.manager.reload().await?;
        }
        self.report_stopped(desired);
        Ok(())
    }

    /// Confirms what is to be stopped and has no files any more. True when anything else is wanted.
    pub(super) fn report_stopped(&mut self, desired: &UserDesired) -> bool {
        let mut more = false;
        for assignment in desired.assignments.values() {
            if assignment.wanted == Wanted::Running || self.folder.has(&assignment.unit()) {
                more = true;
                continue;
            }
            let status = UnitStatus::default();
            self.report(
                assignment,
                &status,
                InstancePhase::Stopped,
                "",
                String::new(),
            );
        }
        more
    }

    /// Writes the unit files of everything that should run, and reloads once if any changed.
    pub(super) async fn write_units(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        let mut files: Vec<UnitFile> = Vec::new();
        for assignment in desired
            .assignments
            .values()
            .filter(|assignment| assignment.wanted == Wanted::Running)
        {
            files.extend(
                self.tools
                    .renderer
                    .instance(assignment, &self.tools.settings)?,
            );
            files.extend(
                self.tools
                    .renderer
                    .image(assignment, &self.tools.settings)?,
            );
            let resolv = self.tools.renderer.resolv_conf(
                &assignment.namespace,
                &self.tools.domain,
                self.tools.overlay_address,
                &self.tools.settings,
            )?;
            self.folder.write_resolv(&self.tools.root, &resolv)?;
        }
        if self.folder.write(&files, desired.confirmed)? {
            self.manager.reload().await?;
        }
        Ok(())
    }

    /// Judges one instance that should run, and does what the verdict says.
    pub(super) async fn converge(&mut self, assignment: &Assignment) -> Result<(), WorkerError> {
        let unit = assignment.unit();
        let key = JobKey::Instance(assignment.instance.clone());
        let mut status = self.manager.status(&unit).await?;
        if status.load_state == "not-found" && self.may_reload(&assignment.instance) {
            self.manager.reload().await?;
            status = self.manager.status(&unit).await?;
        }
        self.look_at_exit(assignment, &unit, &status).await;
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        let circumstances = Circumstances {
            fault_is_ours: memory.fault_is_ours,
            ended: memory.ended,
            now: (self.tools.monotonic)(),
        };
        let verdict = judge(assignment, &status, circumstances);
        if let Some(again) = verdict.again {
            self.wake = self.wake.min(again);
        }
        if verdict.phase == InstancePhase::Running {
            memory.starts = Backoff::default();
            memory.start_error = None;
            memory.fault_is_ours = false;
        }
        if self.busy.contains(&key) || verdict.action == Action::Leave {
            self.report_verdict(assignment, &status, &verdict);
            return Ok(());
        }
        if let Some(wait) = memory.starts.remaining(Instant::now()) {
            self.wake = self.wake.min(wait);
            self.report_verdict(assignment, &status, &verdict);
            return Ok(());
        }
        if !self.image_ready(assignment, &status) {
            return Ok(());
        }
        self.report_verdict(assignment, &status, &verdict);
        if status.result == CONDITION {
            // Such a start ends at once and well, so nothing else would slow the next one.
            let memory = self
                .memories
                .entry(assignment.instance.clone())
                .or_default();
            memory.starts.failed(Instant::now());
        }
        self.spawn_start(assignment, unit, verdict.action == Action::StartUncounted);
        Ok(())
    }

    /// Whether to reload for a missing unit: each reload makes another pass, so not every time.
    fn may_reload(&mut self, instance: &str) -> bool {
        let memory = self.memories.entry(instance.to_owned()).or_default();
        let now = Instant::now();
        if let Some(wait) = memory.reloads.remaining(now) {
            self.wake = self.wake.min(wait);
            return false;
        }
        memory.reloads.failed(now);
        true
    }

    /// After a new end of the program: whose fault it was, and what it said last.
    pub(super) async fn look_at_exit(
        &mut self,
        assignment: &Assignment,
        unit: &str,
        status: &UnitStatus,
    ) {
        let exit = status.exec_main_exit_monotonic;
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        if exit == 0 || memory.judged_exit == Some(exit) {
            return;
        }
        let clean = status.active_state == "inactive" && status.result == "success";
        let started = status.exec_main_start_monotonic;
        let tail = log_tail::read(self.tools.logs.as_ref(), self.user.uid, unit, started).await;
        memory.judged_exit = Some(exit);
        memory.ended = clean;
        memory.fault_is_ours = tail.hook_error.is_some();
        memory.trouble = tail.hook_error.unwrap_or(tail.lines);
        memory.restarts = memory.restarts.max(status.restarts);
        if !memory.fault_is_ours && status.active_state == "activating" {
            memory.restarts = memory.restarts.saturating_add(1);
        }
        if memory.fault_is_ours && status.active_state == "activating" {
            // The refused start must not spend the program's budget of restarts.
            if let Err(error) = ignore_missing(self.manager.reset_failed(unit).await) {
                tracing::warn!(unit, %error, "the count of restarts can't be reset");
            }
        }
    }
}
