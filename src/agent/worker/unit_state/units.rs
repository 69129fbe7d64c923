//! A worker's units: written, judged, stopped and removed.

use std::{borrow::Cow, collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use crate::{
    images::pull as image,
    network::host_ports,
    volumes::{PreparedMounts, VolumeTrouble, carried_files as carried, host_binds},
    worker::{
        UserDesired, Worker, WorkerError, ignore_missing,
        reports::{log_tail, log_tail::UnitRuns, reporting::phase_before_start},
        running::{
            jobs::{JobKey, StopUrgency},
            restarts::RestartEvidence,
            start_backoff::RetryDelay,
            stops::InstanceStop,
        },
        unit_state::{
            instance_phase::{
                JudgementInput, PODMANS, RunFault, StartAction, exit_code, judge_instance,
            },
            network_holder as holder,
            unit_files::FilesError,
        },
    },
};
use kat_host::bound_paths::PathBind;
use kat_render::{RenderError, UnitFile};
use kat_systemd::{ActiveState, LoadState, ServiceResult, UnitStatus};
use kat_types::{
    api::InstancePhase,
    assignment::{Assignment, DesiredRun},
    reason::Reason,
    resource::{OnPartition, RestartCondition},
};

/// Pause until volumes that were not as required are checked again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// A program that has run for this long without an end begins the pauses between its restarts anew.
const RAN_WELL: Duration = Duration::from_secs(600);
/// Message of an instance that is stopped because its machine is cut off.
const CUT_OFF_MEANS: &str = "stopped, as its file asks: its machine reaches no leader, which may replace it; it starts again when that is over";
/// Message of an instance with data of its own that is not started before the list is confirmed.
const UNCONFIRMED_MEANS: &str =
    "it writes data: since its machine started no leader has confirmed that it belongs there";

impl Worker {
    /// Stops unwanted instances, and removes their files once they have stopped.
    pub(crate) async fn stop_unwanted(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
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
            // A fenced or evicted instance is stopped even while it starts. So is an instance whose
            // start waits for its other containers.
            let hurries =
                assignment.is_some_and(|one| one.wanted == DesiredRun::Running || one.has_others());
            let urgency = match hurries {
                true => StopUrgency::Hurried,
                false => StopUrgency::InTurn,
            };
            if !unwanted || self.jobs.is_running(&urgency.key(&instance)) {
                continue;
            }
            self.probes.end(&instance);
            let status = self.manager.status(&unit).await?;
            let starting = self.jobs.is_busy(&instance);
            if self.folder.is_over(&status) && self.others_are_over(&unit).await? {
                // A running start job may be about to start the unit: the file stays until the job
                // has ended.
                if starting {
                    continue;
                }
                if status.active_state == ActiveState::Failed {
                    ignore_missing(self.manager.reset_failed(&unit).await)?;
                }
                for other in self.folder.other_units(&unit)? {
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
                self.begin_stop(InstanceStop {
                    instance: &instance,
                    unit,
                    assignment,
                    urgency,
                    evicted,
                })?;
            }
        }
        if removed {
            self.manager.reload().await?;
        }
        self.report_stopped(desired);
        Ok(())
    }

    /// Reports the instances that must not run and have no files any more. True when the list has any
    /// other instance.
    pub(crate) fn report_stopped(&mut self, desired: &UserDesired) -> bool {
        let mut more = false;
        for assignment in desired.assignments.values() {
            let is_prepared = assignment.wanted == DesiredRun::Prepared;
            let stops = desired.is_to_stop(assignment) && !is_prepared;
            if !stops || self.folder.has(&assignment.unit()) {
                more = true;
                continue;
            }
            let status = UnitStatus::default();
            // An instance that may start again must not be reported as Stopped: that would release
            // its address.
            let evicted = desired.evicted.get(&assignment.instance);
            let (phase, reason, message) = match (assignment.wanted, evicted) {
                (DesiredRun::Stopped, _) => (InstancePhase::Stopped, None, ""),
                (_, Some(why)) => (
                    InstancePhase::Scheduled,
                    Some(Reason::Evicted),
                    why.as_str(),
                ),
                (_, None) if assignment.on_partition == OnPartition::Keep => (
                    InstancePhase::Scheduled,
                    Some(Reason::Unconfirmed),
                    UNCONFIRMED_MEANS,
                ),
                (_, None) => (
                    InstancePhase::Scheduled,
                    Some(Reason::CutOff),
                    CUT_OFF_MEANS,
                ),
            };
            self.report(assignment, &status, phase, reason, message.to_owned());
        }
        more
    }

    /// Writes the unit files of all instances to run, and those of the images of instances to prepare;
    /// reloads the manager once if any file changed.
    pub(crate) async fn write_units(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        let mut files: Vec<UnitFile> = Vec::new();
        let mut whole = true;
        for assignment in desired.to_run() {
            let Some(rendered) = self.render(assignment)? else {
                // The instance's existing files stay as they are.
                whole = false;
                continue;
            };
            files.extend(rendered);
            files.extend(self.render_images(assignment)?);
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
        for assignment in desired.to_prepare() {
            // An image that can't be rendered is reported with the instance.
            files.extend(self.render_images(assignment).unwrap_or_default());
        }
        // The images of assignments that are not understood are not known.
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

    /// Reports the instances that a newer version assigned and this version does not understand:
    /// running ones continue, and none is started.
    pub(crate) async fn report_not_understood(
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

    /// The unit files of an instance; `None` where its secrets are not ready. MaxCount is reduced
    /// by the restarts that its program spent before systemd's count was last reset.
    fn render(&self, assignment: &Assignment) -> Result<Option<Vec<UnitFile>>, WorkerError> {
        let now = (self.tools.monotonic)();
        let spent = self
            .restarts
            .spent(&assignment.instance, now, window(assignment));
        let mut assignment = match self.tools.secrets.prepare(assignment) {
            Ok(filled) => filled.map_or(Cow::Borrowed(assignment), Cow::Owned),
            // The start of the instance reports the reason.
            Err(_) => return Ok(None),
        };
        if spent > 0 {
            let policy = &mut assignment.to_mut().restart_policy;
            policy.max_restarts = policy.max_restarts.saturating_sub(spent);
        }
        let (renderer, settings) = (&self.tools.renderer, &self.tools.settings);
        Ok(Some(renderer.instance(&assignment, settings)?))
    }

    fn render_images(&self, assignment: &Assignment) -> Result<Vec<UnitFile>, RenderError> {
        let (renderer, settings) = (&self.tools.renderer, &self.tools.settings);
        renderer.images(assignment, settings, self.has_logins)
    }

    /// Makes sure that an instance can start once its predecessor has ended: its units can be
    /// written, its secrets opened and its images pulled, and its machine has and allows what it
    /// mounts and uses. Starts nothing, and changes nothing that the predecessor uses.
    pub(crate) fn prepare(&mut self, assignment: &Assignment) -> Result<(), WorkerError> {
        // An instance that runs is stopped first.
        if self.folder.has(&assignment.unit()) {
            return Ok(());
        }
        let status = UnitStatus::default();
        if !self.secrets_ready(assignment, &status) {
            return Ok(());
        }
        let rendered = self.render(assignment).map(drop);
        let rendered = rendered.and_then(|()| Ok(self.render_images(assignment).map(drop)?));
        if let Err(error) = rendered {
            let phase = phase_before_start(assignment);
            let reason = Reason::NotRenderable;
            self.report(assignment, &status, phase, reason, error.to_string());
            return Ok(());
        }
        let is_ready = self.images_ready(assignment, &status)
            && self
                .volumes_ready(assignment, &status, PreparedMounts::BesidePredecessor)
                .is_some()
            && self.options_ready(assignment, &status)?;
        if is_ready {
            let phase = InstancePhase::Prepared;
            self.report(assignment, &status, phase, None, String::new());
        }
        Ok(())
    }

    /// Judges one instance that should run, and does what the verdict requires.
    pub(crate) async fn converge(&mut self, assignment: &Assignment) -> Result<(), WorkerError> {
        let unit = assignment.unit();
        let mut status = self.manager.status(&unit).await?;
        if status.load_state == LoadState::NotFound && self.may_reload(&assignment.instance) {
            self.manager.reload().await?;
            status = self.manager.status(&unit).await?;
        }
        if !self.jobs.is_busy(&assignment.instance) {
            self.look_at_runs(assignment, &unit, &status).await?;
        }
        let restarts = self.restarts.own(&assignment.instance);
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        let circumstances = JudgementInput {
            fault: memory.fault,
            ended: memory.ended,
            restarts,
            now: (self.tools.monotonic)(),
        };
        let verdict = judge_instance(assignment, &status, circumstances);
        let beside = self.look_beside(assignment, &status).await?;
        let verdict = match &beside {
            Some(beside) => beside.adjust_verdict(assignment, &status, verdict, circumstances.now),
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
            let serves = memory.serves == Some(true);
            if serves && ran_well(assignment, &status, circumstances.now) {
                self.forgive(assignment, &unit).await;
            }
        }
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        let lost_image = memory.fault == Some(RunFault::LostImage);
        let starts = memory.starts.remaining(Instant::now());
        if let Some(beside) = &beside {
            self.pull_lost(assignment, beside);
        }
        if lost_image
            && !self.jobs.is_busy(&assignment.instance)
            && self.replace_image(assignment, &status, &unit)
        {
            return Ok(());
        }
        if self.jobs.is_busy(&assignment.instance) || verdict.action == StartAction::Leave {
            self.report_verdict(assignment, &status, &verdict);
            if !self.jobs.is_busy(&assignment.instance) {
                if let Some(beside) = &beside {
                    self.converge_beside(assignment, beside, &verdict)?;
                }
                self.heal(assignment, &status, unit);
            }
            if !self.jobs.is_busy(&assignment.instance) {
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
        let Some(binds) = self.volumes_ready(assignment, &status, PreparedMounts::All) else {
            return Ok(());
        };
        if !self.options_ready(assignment, &status)? || !self.host_ports_free(assignment, &status) {
            return Ok(());
        }
        let binding = host_binds::write(&self.tools.root, assignment, binds)?;
        self.report_verdict(assignment, &status, &verdict);
        if status.result == ServiceResult::ExecCondition {
            // Such a start ends at once and successfully, so only this backoff delays the next one.
            let memory = self
                .memories
                .entry(assignment.instance.clone())
                .or_default();
            memory.starts.failed(Instant::now());
        }
        let uncounted = verdict.action == StartAction::StartUncounted;
        self.spawn_start(assignment, unit, uncounted, binding);
        Ok(())
    }

    /// Pulls the missing image of a main container that systemd keeps restarting, and restarts the
    /// unit once the image is there. False where nothing has to be done.
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
        // systemd's own restart delay may have grown to a minute.
        memory.starts.failed(Instant::now());
        self.spawn_restart(assignment, unit.to_owned());
        true
    }

    /// Makes the volumes of an instance ready, and returns the paths to bind; `None` where one is
    /// not ready.
    fn volumes_ready(
        &mut self,
        assignment: &Assignment,
        status: &UnitStatus,
        what: PreparedMounts,
    ) -> Option<Vec<PathBind>> {
        let carried =
            carried::prepare(&self.tools.root, assignment).map_err(|error| VolumeTrouble {
                reason: Reason::FilesFailed,
                message: format!("the files of its workload's folder can't be laid out: {error}"),
            });
        let ready = match carried {
            Ok(()) => self.mounts_ready(assignment, what),
            Err(trouble) => Some(Err(trouble)),
        };
        let phase = phase_before_start(assignment);
        match ready {
            Some(Ok(binds)) => return Some(binds),
            Some(Err(trouble)) => {
                self.report(assignment, status, phase, trouble.reason, trouble.message);
            }
            None => {
                let silence = self.tools.volumes.silence(assignment);
                // Most file systems answer at once: until one does not, the last report stays.
                if silence.is_some() || !self.reported.contains(&assignment.instance) {
                    let reason = silence.as_ref().map(|_| Reason::DiskNotAnswering);
                    self.report(
                        assignment,
                        status,
                        phase,
                        reason,
                        silence.unwrap_or_default(),
                    );
                }
            }
        }
        self.wake = self.wake.min(LOOK_AGAIN);
        None
    }

    /// Prepares what an instance mounts: at once where that lies on KAT's own disks, otherwise in a
    /// job, whose result the next pass gets. `None` until then.
    fn mounts_ready(
        &mut self,
        assignment: &Assignment,
        what: PreparedMounts,
    ) -> Option<Result<Vec<PathBind>, VolumeTrouble>> {
        let volumes = &self.tools.volumes;
        if !volumes.are_foreign(assignment) {
            return Some(match what {
                PreparedMounts::All => volumes.prepare(assignment),
                PreparedMounts::HostPaths => volumes.prepare_host_paths(assignment),
                PreparedMounts::BesidePredecessor => volumes.prepare_beside(assignment),
            });
        }
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        let result = memory.preparation.take_result(assignment, what);
        let key = JobKey::Prepare(assignment.instance.clone());
        if result.is_none() && !self.jobs.is_running(&key) {
            self.spawn_prepare(assignment, what);
        }
        result
    }

    /// Binds the host paths of a running instance where nothing is bound, as an earlier version did
    /// not bind them, or where something else now lies at a path. The next start by systemd then
    /// uses the new binds.
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
        // A path that the instance may no longer have is reported at its next start by the agent.
        let prepared = self.mounts_ready(assignment, PreparedMounts::HostPaths);
        let Some(Ok(binds)) = prepared else {
            return;
        };
        let root = &self.tools.root;
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
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

    /// Removes the binds of instances that are no longer here, in a job: the unit that binds them may
    /// hang on its file system.
    pub(crate) fn remove_binds(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        if !desired.confirmed || self.jobs.is_running(&JobKey::Binds) {
            return Ok(());
        }
        let units = self.folder.instances()?;
        let assigned = desired.assignments.keys();
        let kept: BTreeSet<String> = assigned.chain(units.values()).cloned().collect();
        if host_binds::has_other(&self.tools.root, self.user.uid, &kept) {
            self.begin_unbind(kept);
        }
        Ok(())
    }

    fn begin_unbind(&mut self, kept: BTreeSet<String>) {
        let system = self.tools.managers.system();
        let (root, uid) = (self.tools.root.clone(), self.user.uid);
        self.jobs.begin_unbind(async move {
            let kept = kept.iter().map(String::as_str).collect();
            host_binds::keep_only(system.as_ref(), &root, uid, &kept).await
        });
    }

    pub(crate) async fn keep_binds(&mut self, kept: &BTreeSet<&str>) -> Result<(), WorkerError> {
        let system = self.tools.managers.system();
        let root = &self.tools.root;
        Ok(host_binds::keep_only(system.as_ref(), root, self.user.uid, kept).await?)
    }

    /// Whether the secrets for the instance's variables and mounts are ready.
    fn secrets_ready(&mut self, assignment: &Assignment, status: &UnitStatus) -> bool {
        let Err(trouble) = self.tools.secrets.prepare(assignment) else {
            return true;
        };
        let phase = phase_before_start(assignment);
        self.report(assignment, status, phase, trouble.reason, trouble.message);
        self.wake = self.wake.min(LOOK_AGAIN);
        false
    }

    /// Whether no other program listens on the host ports of an instance.
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

    /// Removes the secret files of instances that are no longer here.
    pub(crate) fn remove_secrets(&self, desired: &UserDesired) -> Result<(), WorkerError> {
        if !desired.confirmed {
            return Ok(());
        }
        let units = self.folder.instances()?;
        let assigned = desired.assignments.keys();
        let kept = assigned.chain(units.values()).map(String::as_str);
        let removed = self.tools.secrets.keep_only(&self.user, &kept.collect());
        Ok(removed.map_err(FilesError::from)?)
    }

    /// Whether to reload because of a missing unit. Each reload triggers another pass, so reloads
    /// are delayed.
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

    /// After a new end of the program, or restarts that were not judged yet: determines their
    /// cause, and reads the last log lines.
    async fn look_at_runs(
        &mut self,
        assignment: &Assignment,
        unit: &str,
        status: &UnitStatus,
    ) -> Result<(), WorkerError> {
        if status.active_state == ActiveState::Deactivating {
            // systemd has not decided yet what follows the end.
            return Ok(());
        }
        let ended = status.exec_main_exit_monotonic;
        let count = self.restarts.of(&assignment.instance);
        let runs = UnitRuns {
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
        let fault = match (&tail.hook_error, &status.result) {
            _ if !has_ended => None,
            (Some(_), _) => Some(RunFault::Hook),
            (None, ServiceResult::Protocol) => Some(RunFault::LostStart),
            (None, _) if tail.podman_error.is_none() || !ended_by_podman(status) => None,
            (None, _) => {
                let only = assignment.only(&assignment.container);
                match image::is_lost(&self.tools.accounts.home(&self.user), &only) {
                    true => Some(RunFault::LostImage),
                    false => Some(RunFault::CannotStart),
                }
            }
        };
        let lost = fault == Some(RunFault::LostStart);
        let told_by_state = lost || fault == Some(RunFault::LostImage);
        let news = RestartEvidence {
            status,
            is_ours: fault.is_some_and(RunFault::is_excused),
            lost,
            excused: tail.excused.saturating_add(u32::from(told_by_state)),
            now: (self.tools.monotonic)(),
            window: window(assignment),
        };
        if fault == Some(RunFault::LostImage)
            && let Some(image) = self.images.get_mut(&assignment.image)
        {
            image.present = false;
        }
        if has_ended {
            memory.judged_exit = Some(ended);
            memory.ended = status.active_state == ActiveState::Inactive
                && status.result == ServiceResult::Success;
            memory.fault = fault;
            memory.trouble = match fault {
                // The program's output before that is not the cause.
                Some(RunFault::LostStart) => String::new(),
                Some(RunFault::LostImage | RunFault::CannotStart) => {
                    not_started(&tail.podman_error.unwrap_or_default())
                }
                Some(RunFault::Hook) | None => tail.hook_error.unwrap_or(tail.lines),
            };
        }
        if count.count(news) {
            self.make_good(assignment, unit, status).await?;
        }
        Ok(())
    }

    /// Resets systemd's count of restarts, which decides the length of the pause before the next
    /// one. The number of restarts that users see stays.
    async fn forgive(&mut self, assignment: &Assignment, unit: &str) {
        match ignore_missing(self.manager.reset_failed(unit).await) {
            Ok(()) => self.restarts.of(&assignment.instance).begun_anew(false),
            // The next pass tries again.
            Err(error) => tracing::debug!(unit, "the count of restarts can't be reset: {error:#}"),
        }
    }

    /// A start that failed by KAT's fault must not spend the program's restart budget: systemd's
    /// count is reset, and the unit is written with the budget that the program has left.
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
            // The start that follows resets systemd's count.
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

/// Whether a program that may always be restarted has run for so long that its earlier ends no
/// longer lengthen the pause before its next start.
fn ran_well(assignment: &Assignment, status: &UnitStatus, now: u64) -> bool {
    let started = status.exec_main_start_monotonic;
    let ran = Duration::from_micros(now.saturating_sub(started));
    assignment.restart_policy.condition == RestartCondition::Always
        && status.restarts > 0
        && status.active_state == ActiveState::Active
        && started != 0
        && ran >= RAN_WELL
}

/// Whether the unit ended with one of Podman's own exit codes.
pub(crate) fn ended_by_podman(status: &UnitStatus) -> bool {
    exit_code(status).is_some_and(|code| PODMANS.contains(&code))
}

/// The message of a container that Podman did not start.
pub(crate) fn not_started(words: &str) -> String {
    format!("Podman can't start its container: {words}")
}

/// The window in which restarts are limited, in microseconds, as in the unit.
pub(crate) fn window(assignment: &Assignment) -> u64 {
    u64::from(assignment.restart_policy.reset_seconds.max(1)) * 1_000_000
}
