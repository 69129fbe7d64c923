//! A worker's units: stopped and removed, written, judged.

use std::{borrow::Cow, collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use super::{UserDesired, Worker, WorkerError, ignore_missing, jobs::JobKey};
use crate::{
    images::pull as image,
    network::host_ports,
    volumes::{VolumeTrouble, carried_files as carried, host_binds},
    worker::{
        judge::{Action, CONDITION, Circumstances, Fault, PODMANS, PROTOCOL, exit_code, judge},
        log_tail,
        log_tail::Runs,
        network_holder as holder,
        restarts::News,
        start_backoff::RetryDelay,
        unit_files::FilesError,
    },
};
use kat_host::bound_paths::Bind;
use kat_render::UnitFile;
use kat_systemd::{ActiveState, UnitStatus};
use kat_types::{
    api::InstancePhase,
    assignment::{Assignment, Wanted},
    reason::Reason,
    resource::OnPartition,
};

/// Pause until volumes are looked at again that were not as they should be.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Why an instance is stopped that a cut-off machine must not run.
const CUT_OFF_MEANS: &str = "stopped, as its file asks: its machine reaches no leader, which may replace it; it starts again when that is over";
/// Why an instance is not started yet that has data of its own.
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
                if status.active_state == ActiveState::Failed {
                    ignore_missing(self.manager.reset_failed(&unit).await)?;
                }
                for other in self.folder.others(&unit)? {
                    ignore_missing(self.manager.reset_failed(&other).await)?;
                }
                self.folder.remove(&unit)?;
                removed = true;
            } else {
                if let Some(assignment) = assignment {
                    let at_once = desired.is_held(&instance);
                    if !at_once && self.drains(assignment, &status) {
                        continue;
                    }
                    self.report(
                        assignment,
                        &status,
                        InstancePhase::Stopping,
                        None,
                        String::new(),
                    );
                }
                let evicted = desired.evicted.contains_key(&instance);
                self.spawn_stop(key, unit, assignment, evicted)?;
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
            let evicted = desired.evicted.get(&assignment.instance);
            let (phase, reason, message) = match (assignment.wanted, evicted) {
                (Wanted::Stopped, _) => (InstancePhase::Stopped, None, ""),
                (Wanted::Running, Some(why)) => (
                    InstancePhase::Scheduled,
                    Some(Reason::Evicted),
                    why.as_str(),
                ),
                (Wanted::Running, None) if assignment.on_partition == OnPartition::Keep => (
                    InstancePhase::Scheduled,
                    Some(Reason::Unconfirmed),
                    UNCONFIRMED_MEANS,
                ),
                (Wanted::Running, None) => (
                    InstancePhase::Scheduled,
                    Some(Reason::CutOff),
                    CUT_OFF_MEANS,
                ),
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
            let phase = match status.active_state {
                state if state.is_up() => InstancePhase::Running,
                ActiveState::Activating => InstancePhase::Starting,
                ActiveState::Failed => InstancePhase::Failed,
                _ => InstancePhase::Scheduled,
            };
            let message = format!("this machine's KAT is too old for it: {why}");
            self.report(assignment, &status, phase, Reason::NotUnderstood, message);
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
            fault: memory.fault,
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
            memory.starts = RetryDelay::default();
            memory.start_error = None;
            memory.not_bound = None;
            memory.fault = None;
        }
        let lost_image = memory.fault == Some(Fault::LostImage);
        let starts = memory.starts.remaining(Instant::now());
        if let Some(beside) = &beside {
            self.pull_lost(assignment, beside);
        }
        if lost_image && !self.busy.contains(&key) && self.replace_image(assignment, &status, &unit)
        {
            return Ok(());
        }
        if self.busy.contains(&key) || verdict.action == Action::Leave {
            self.report_verdict(assignment, &status, &verdict);
            if !self.busy.contains(&key) {
                if let Some(beside) = &beside {
                    self.converge_beside(assignment, beside, &verdict)?;
                }
                self.heal(assignment, &status, unit);
                self.renew_binds(assignment, &status);
            }
            return Ok(());
        }
        if let Some(wait) = starts {
            self.wake = self.wake.min(wait);
            self.report_verdict(assignment, &status, &verdict);
            return Ok(());
        }
        if !self.secrets_ready(assignment, &status) {
            return Ok(());
        }
        if !self.images_ready(assignment, &status) {
            return Ok(());
        }
        let Some(binds) = self.volumes_ready(assignment, &status) else {
            return Ok(());
        };
        if !self.options_ready(assignment, &status)? || !self.host_ports_free(assignment, &status) {
            return Ok(());
        }
        let binding = host_binds::write(&self.tools.root, assignment, binds)?;
        self.report_verdict(assignment, &status, &verdict);
        if status.result == CONDITION {
            // Such a start ends at once and well, so nothing else would slow the next one.
            let memory = self
                .memories
                .entry(assignment.instance.clone())
                .or_default();
            memory.starts.failed(Instant::now());
        }
        let uncounted = verdict.action == Action::StartUncounted;
        self.spawn_start(assignment, unit, uncounted, binding);
        Ok(())
    }

    /// Pulls the image of a main container that systemd is starting again and Podman does not find, and starts that when it is
    /// there. False where nothing of this is to be done.
    fn replace_image(&mut self, assignment: &Assignment, status: &UnitStatus, unit: &str) -> bool {
        if !self.images_ready(assignment, status) {
            return true;
        }
        if !status.is_between_runs() {
            return false;
        }
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        if let Some(wait) = memory.starts.remaining(Instant::now()) {
            self.wake = self.wake.min(wait);
            return false;
        }
        // systemd's own pause may be a minute by now.
        memory.starts.failed(Instant::now());
        self.spawn_restart(assignment, unit.to_owned());
        true
    }

    /// Whether all is there that an instance mounts, and what is to be bound of it; makes what may be made.
    fn volumes_ready(&mut self, assignment: &Assignment, status: &UnitStatus) -> Option<Vec<Bind>> {
        let carried =
            carried::prepare(&self.tools.root, assignment).map_err(|error| VolumeTrouble {
                reason: Reason::FilesFailed,
                message: format!("the files of its workload's folder can't be laid out: {error}"),
            });
        let trouble = match carried.and_then(|()| self.tools.volumes.prepare(assignment)) {
            Ok(binds) => return Some(binds),
            Err(trouble) => trouble,
        };
        let phase = InstancePhase::Starting;
        self.report(assignment, status, phase, trouble.reason, trouble.message);
        self.wake = self.wake.min(LOOK_AGAIN);
        None
    }

    /// Has bound what an instance mounts of the machine where nothing of it is, as one that an earlier version started runs on; and
    /// something else where that has taken its place, before systemd starts the instance again.
    fn renew_binds(&mut self, assignment: &Assignment, status: &UnitStatus) {
        let bound = assignment.bound_paths();
        let root = &self.tools.root;
        if bound.is_empty() {
            return;
        }
        if host_binds::is_bound(root, assignment) && !status.is_between_runs() {
            let memory = self.memories.get_mut(&assignment.instance);
            if let Some(memory) = memory {
                memory.binds = RetryDelay::default();
            }
            return;
        }
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        if let Some(wait) = memory.binds.remaining(Instant::now()) {
            self.wake = self.wake.min(wait);
            return;
        }
        // What it may not have any more is told at its next start by the agent.
        let Ok(binds) = self.tools.volumes.prepare_host_paths(assignment) else {
            return;
        };
        if host_binds::is_bound(root, assignment) && !host_binds::differs(root, assignment, &binds)
        {
            return;
        }
        memory.binds.failed(Instant::now());
        match host_binds::write(root, assignment, binds) {
            Ok(Some(binding)) => self.spawn_bind(assignment, binding),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(
                    instance = assignment.instance,
                    "host paths can't be bound: {error:#}"
                );
            }
        }
    }

    /// Takes away what is bound for instances that are here no more.
    pub(super) async fn remove_binds(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        if !desired.confirmed {
            return Ok(());
        }
        let units = self.folder.instances()?;
        let assigned = desired.assignments.keys();
        let kept = assigned.chain(units.values()).map(String::as_str);
        self.keep_binds(&kept.collect()).await
    }

    pub(super) async fn keep_binds(&mut self, kept: &BTreeSet<&str>) -> Result<(), WorkerError> {
        let system = self.tools.managers.system();
        let root = &self.tools.root;
        Ok(host_binds::keep_only(system.as_ref(), root, self.user.uid, kept).await?)
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
        self.report(assignment, status, phase, Reason::HostPortInUse, message);
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
        if status.active_state == ActiveState::Deactivating {
            // What follows the end is not decided yet.
            return Ok(());
        }
        let ended = status.exec_main_exit_monotonic;
        let count = self.restarts.of(&assignment.instance);
        let runs = Runs {
            started: status.exec_main_start_monotonic,
            ended: status.exec_main_exit_monotonic,
            judged: count.judged(),
            judged_lost: count.judged_lost(),
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
        let fault = match (&tail.hook_error, status.result.as_str()) {
            _ if !has_ended => None,
            (Some(_), _) => Some(Fault::Hook),
            (None, PROTOCOL) => Some(Fault::LostStart),
            (None, _) if tail.podman_error.is_none() || !ended_by_podman(status) => None,
            (None, _) => {
                let only = assignment.only(&assignment.container);
                match image::is_lost(&self.tools.accounts.home(&self.user), &only) {
                    true => Some(Fault::LostImage),
                    false => Some(Fault::CannotStart),
                }
            }
        };
        let lost = fault == Some(Fault::LostStart);
        let told_by_state = lost || fault == Some(Fault::LostImage);
        let news = News {
            status,
            is_ours: fault.is_some_and(Fault::is_excused),
            lost,
            excused: tail.excused.saturating_add(u32::from(told_by_state)),
            now: (self.tools.monotonic)(),
            window: window(assignment),
        };
        if fault == Some(Fault::LostImage)
            && let Some(image) = self.images.get_mut(&assignment.image)
        {
            image.present = false;
        }
        if has_ended {
            memory.judged_exit = Some(ended);
            memory.ended =
                status.active_state == ActiveState::Inactive && status.result == "success";
            memory.fault = fault;
            memory.trouble = match fault {
                // What the program said meanwhile is no reason.
                Some(Fault::LostStart) => String::new(),
                Some(Fault::LostImage | Fault::CannotStart) => {
                    not_started(&tail.podman_error.unwrap_or_default())
                }
                Some(Fault::Hook) | None => tail.hook_error.unwrap_or(tail.lines),
            };
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
        if status.active_state == ActiveState::Failed {
            // The start that follows makes systemd forget.
            return Ok(());
        }
        match ignore_missing(self.manager.reset_failed(unit).await) {
            Ok(()) => {
                let count = self.restarts.of(&assignment.instance);
                count.begun_anew(status.is_between_runs());
            }
            Err(error) => tracing::warn!(unit, "the count of restarts can't be reset: {error:#}"),
        }
        Ok(())
    }
}

/// It ended with an exit code of Podman's own.
pub(super) fn ended_by_podman(status: &UnitStatus) -> bool {
    exit_code(status).is_some_and(|code| PODMANS.contains(&code))
}

/// What is told of a container that Podman did not start.
pub(super) fn not_started(words: &str) -> String {
    format!("Podman can't start its container: {words}")
}

/// The time in which restarts are limited, in microseconds, as the unit has it.
pub(super) fn window(assignment: &Assignment) -> u64 {
    u64::from(assignment.restart_policy.reset_seconds.max(1)) * 1_000_000
}
