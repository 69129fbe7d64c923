//! A worker's units: stopped and removed, written, judged.

use std::{borrow::Cow, time::Duration};

use tokio::time::Instant;

use super::{UserDesired, Worker, WorkerError, ignore_missing, jobs::JobKey};
use crate::{
    agent::{
        backoff::Backoff,
        carried,
        files::FilesError,
        holder, host_ports,
        judge::{Action, CONDITION, Circumstances, judge},
        log_tail::{self, Runs},
        restarts::News,
        volumes::VolumeTrouble,
    },
    api::types::{HOST_PORT_IN_USE, InstancePhase},
    plan::{Assignment, Wanted},
    render::UnitFile,
    resource::OnPartition,
    systemd::UnitStatus,
};

/// Pause until volumes are looked at again that were not as they should be.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Why an instance is stopped that a cut-off machine must not run.
const CUT_OFF: &str = "CutOff";
const CUT_OFF_MEANS: &str = "stopped, as its file asks: its machine reaches no leader, which may replace it; it starts again when that is over";
/// Why an instance is not started yet that has data of its own.
const UNCONFIRMED: &str = "Unconfirmed";
const UNCONFIRMED_MEANS: &str =
    "it writes data: since its machine started no leader has confirmed that it belongs there";

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
                Some(assignment) => desired.is_to_stop(assignment),
                None => desired.confirmed,
            };
            // What a cut-off machine must not run does not wait until it has started.
            // Nor does what waits for its other containers.
            let hurries =
                assignment.is_some_and(|one| one.wanted == Wanted::Running || one.has_others());
            let key = match hurries {
                true => JobKey::Fence(instance.clone()),
                false => JobKey::Instance(instance.clone()),
            };
            if !unwanted || self.busy.contains(&key) {
                continue;
            }
            self.probes.end(&instance);
            let status = self.manager.status(&unit).await?;
            let starting = self.busy.contains(&JobKey::Instance(instance.clone()));
            if self.folder.is_over(&status) && self.others_are_over(&unit).await? {
                // The start may be about to begin: its file is needed until it has ended.
                if starting {
                    continue;
                }
                if status.active_state == "failed" {
                    ignore_missing(self.manager.reset_failed(&unit).await)?;
                }
                for other in self.folder.others(&unit)? {
                    ignore_missing(self.manager.reset_failed(&other).await)?;
                }
                self.folder.remove(&unit)?;
                removed = true;
            } else {
                if let Some(assignment) = assignment {
                    let at_once = desired.fenced.contains(&instance);
                    if !at_once && self.drains(assignment, &status) {
                        continue;
                    }
                    self.report(
                        assignment,
                        &status,
                        InstancePhase::Stopping,
                        "",
                        String::new(),
                    );
                }
                self.spawn_stop(key, unit, assignment)?;
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
            if !desired.is_to_stop(assignment) || self.folder.has(&assignment.unit()) {
                more = true;
                continue;
            }
            let status = UnitStatus::default();
            // One that may start again has not stopped for good, which would give its address back.
            let (phase, reason, message) = match assignment.wanted {
                Wanted::Stopped => (InstancePhase::Stopped, "", ""),
                Wanted::Running if assignment.on_partition == OnPartition::Keep => {
                    (InstancePhase::Scheduled, UNCONFIRMED, UNCONFIRMED_MEANS)
                }
                Wanted::Running => (InstancePhase::Scheduled, CUT_OFF, CUT_OFF_MEANS),
            };
            self.report(assignment, &status, phase, reason, message.to_owned());
        }
        more
    }

    /// Writes the unit files of everything that should run, and reloads once if any changed.
    pub(super) async fn write_units(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        let mut files: Vec<UnitFile> = Vec::new();
        let mut whole = true;
        for assignment in desired.to_run() {
            let Some(rendered) = self.render(assignment)? else {
                // What is there of it stays as it is.
                whole = false;
                continue;
            };
            files.extend(rendered);
            files.extend(self.tools.renderer.images(
                assignment,
                &self.tools.settings,
                self.has_logins,
            )?);
            if assignment.network_unit().is_some() {
                holder::prepare(&self.tools.root)?;
            }
            let resolv = self.tools.renderer.resolv_conf(
                &assignment.namespace,
                &self.tools.domain,
                self.tools.overlay_address,
                &self.tools.settings,
            )?;
            self.folder.write_resolv(&self.tools.root, &resolv)?;
        }
        // Images of what is not understood are not known.
        let all = desired.assignments.values();
        let tidy =
            desired.confirmed && whole && all.into_iter().all(|one| one.not_understood.is_none());
        if self.folder.write(&files, tidy)? {
            self.manager.reload().await?;
        }
        if tidy {
            let all = desired.assignments.values();
            carried::tidy(&self.tools.root, self.user.uid, all);
        }
        Ok(())
    }

    /// Says how it is with what a newer version assigned and this one does not understand: what runs
    /// of it runs on, and nothing of it is started.
    pub(super) async fn report_not_understood(
        &mut self,
        desired: &UserDesired,
    ) -> Result<(), WorkerError> {
        for assignment in desired.assignments.values() {
            let Some(why) = assignment.not_understood.as_ref() else {
                continue;
            };
            if desired.is_to_stop(assignment) {
                continue;
            }
            let status = self.manager.status(&assignment.unit()).await?;
            let phase = match status.active_state.as_str() {
                "active" | "reloading" | "refreshing" => InstancePhase::Running,
                "activating" => InstancePhase::Starting,
                "failed" => InstancePhase::Failed,
                _ => InstancePhase::Scheduled,
            };
            let message = format!("this machine's KAT is too old for it: {why}");
            self.report(assignment, &status, phase, "NotUnderstood", message);
        }
        Ok(())
    }

    /// The files of an instance; none where its secrets are not ready. What its program spent of MaxCount before systemd's count last
    /// began anew is taken off.
    fn render(&self, assignment: &Assignment) -> Result<Option<Vec<UnitFile>>, WorkerError> {
        let now = (self.tools.monotonic)();
        let spent = self
            .restarts
            .spent(&assignment.instance, now, window(assignment));
        let mut assignment = match self.tools.secrets.prepare(assignment) {
            Ok(filled) => filled.map_or(Cow::Borrowed(assignment), Cow::Owned),
            // Its state says it, when it is to start.
            Err(_) => return Ok(None),
        };
        if spent > 0 {
            let policy = &mut assignment.to_mut().restart_policy;
            policy.max_restarts = policy.max_restarts.saturating_sub(spent);
        }
        let (renderer, settings) = (&self.tools.renderer, &self.tools.settings);
        Ok(Some(renderer.instance(&assignment, settings)?))
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
        if !self.busy.contains(&key) {
            self.look_at_runs(assignment, &unit, &status).await?;
        }
        let restarts = self.restarts.own(&assignment.instance);
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        let circumstances = Circumstances {
            fault_is_ours: memory.fault_is_ours,
            ended: memory.ended,
            restarts,
            now: (self.tools.monotonic)(),
        };
        let verdict = judge(assignment, &status, circumstances);
        let beside = self.look_beside(assignment, &status).await?;
        let verdict = match &beside {
            Some(beside) => beside.judge(assignment, &status, verdict, circumstances.now),
            None => verdict,
        };
        self.watch_health(assignment, &status);
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
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
            if !self.busy.contains(&key) {
                if let Some(beside) = &beside {
                    self.converge_beside(assignment, beside, &verdict)?;
                }
                self.heal(assignment, &status, unit);
            }
            return Ok(());
        }
        if let Some(wait) = memory.starts.remaining(Instant::now()) {
            self.wake = self.wake.min(wait);
            self.report_verdict(assignment, &status, &verdict);
            return Ok(());
        }
        if !self.secrets_ready(assignment, &status) {
            return Ok(());
        }
        if !self.images_ready(assignment, &status)
            || !self.volumes_ready(assignment, &status)
            || !self.options_ready(assignment, &status)?
            || !self.host_ports_free(assignment, &status)
        {
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

    /// Whether all is there that an instance mounts; makes what may be made.
    fn volumes_ready(&mut self, assignment: &Assignment, status: &UnitStatus) -> bool {
        let carried =
            carried::prepare(&self.tools.root, assignment).map_err(|error| VolumeTrouble {
                reason: "FilesFailed",
                message: format!("the files of its workload's folder can't be laid out: {error}"),
            });
        let Err(trouble) = carried.and_then(|()| self.tools.volumes.prepare(assignment)) else {
            return true;
        };
        let phase = InstancePhase::Starting;
        self.report(assignment, status, phase, trouble.reason, trouble.message);
        self.wake = self.wake.min(LOOK_AGAIN);
        false
    }

    /// Whether its secrets are there, for variables and mounts.
    fn secrets_ready(&mut self, assignment: &Assignment, status: &UnitStatus) -> bool {
        let Err(trouble) = self.tools.secrets.prepare(assignment) else {
            return true;
        };
        let phase = InstancePhase::Starting;
        self.report(assignment, status, phase, trouble.reason, trouble.message);
        self.wake = self.wake.min(LOOK_AGAIN);
        false
    }

    /// Whether nobody else listens on the ports of the machine that lead to an instance.
    fn host_ports_free(&mut self, assignment: &Assignment, status: &UnitStatus) -> bool {
        let listeners = self.tools.listeners.as_ref();
        let Some(message) = host_ports::in_use(assignment, listeners) else {
            return true;
        };
        let message = format!("{message}; it starts when that ends");
        let phase = InstancePhase::Starting;
        self.report(assignment, status, phase, HOST_PORT_IN_USE, message);
        self.wake = self.wake.min(LOOK_AGAIN);
        false
    }

    /// Removes the files of secrets that no instance has any more.
    pub(super) fn remove_secrets(&self, desired: &UserDesired) -> Result<(), WorkerError> {
        if !desired.confirmed {
            return Ok(());
        }
        let units = self.folder.instances()?;
        let assigned = desired.assignments.keys();
        let kept = assigned.chain(units.values()).map(String::as_str);
        let removed = self.tools.secrets.keep_only(&self.user, &kept.collect());
        Ok(removed.map_err(FilesError::from)?)
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

    /// After a new end of the program, or restarts that nobody saw: whose fault they were, and what
    /// was said last.
    async fn look_at_runs(
        &mut self,
        assignment: &Assignment,
        unit: &str,
        status: &UnitStatus,
    ) -> Result<(), WorkerError> {
        if status.active_state == "deactivating" {
            // What follows the end is not decided yet.
            return Ok(());
        }
        let ended = status.exec_main_exit_monotonic;
        let count = self.restarts.of(&assignment.instance);
        let runs = Runs {
            started: status.exec_main_start_monotonic,
            judged: count.judged(),
            missed: count.missed(status),
        };
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        let has_ended = ended != 0 && memory.judged_exit != Some(ended);
        if !has_ended && runs.missed == 0 {
            return Ok(());
        }
        let tail = log_tail::read(self.tools.logs.as_ref(), self.user.uid, unit, runs).await;
        let news = News {
            status,
            is_ours: has_ended && tail.hook_error.is_some(),
            hook_failures: tail.hook_failures,
            now: (self.tools.monotonic)(),
            window: window(assignment),
        };
        if has_ended {
            memory.judged_exit = Some(ended);
            memory.ended = status.active_state == "inactive" && status.result == "success";
            memory.fault_is_ours = news.is_ours;
            memory.trouble = tail.hook_error.unwrap_or(tail.lines);
        }
        if count.count(news) {
            self.make_good(assignment, unit, status).await?;
        }
        Ok(())
    }

    /// A start that failed by KAT's fault must not spend the program's budget of restarts: systemd
    /// forgets it, and the unit keeps what the program itself spent.
    async fn make_good(
        &mut self,
        assignment: &Assignment,
        unit: &str,
        status: &UnitStatus,
    ) -> Result<(), WorkerError> {
        let files = self.render(assignment)?.unwrap_or_default();
        if self.folder.write(&files, false)? {
            self.manager.reload().await?;
        }
        if status.active_state == "failed" {
            // The start that follows makes systemd forget.
            return Ok(());
        }
        match ignore_missing(self.manager.reset_failed(unit).await) {
            Ok(()) => {
                let count = self.restarts.of(&assignment.instance);
                count.begun_anew(status.is_between_runs());
            }
            Err(error) => tracing::warn!(unit, %error, "the count of restarts can't be reset"),
        }
        Ok(())
    }
}

/// The time in which restarts are limited, in microseconds, as the unit has it.
pub(super) fn window(assignment: &Assignment) -> u64 {
    u64::from(assignment.restart_policy.reset_seconds.max(1)) * 1_000_000
}
