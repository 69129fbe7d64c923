//! A worker's slow operations, which run as jobs: pulls, starts, stops, and the preparation of what
//! instances mount of file systems that may hang.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    disk::eviction,
    images::pull as image,
    service::blocking::may_block,
    volumes::{PreparedMounts, VolumeTrouble, host_binds},
    worker::{
        ImageMemory, JOB_MARGIN, Worker, ignore_missing,
        unit_state::{containers, unit_files::FilesError},
    },
};
use kat_host::bound_paths::PathBind;
use kat_systemd::{JobResult, SystemdError, TransientUnit, UnitManager, UnitStatus};
use kat_types::{
    api::{InstancePhase, other_image_message},
    assignment::Assignment,
    machine::root::Root,
    reason::Reason,
    resource::ImagePullPolicy,
};

/// Grace of an evicted instance: its programs are killed after this time, whatever stop time its
/// file sets.
const EVICTED_PATIENCE: Duration = Duration::from_secs(5);
/// Longest run of a `podman` command on the containers of an evicted instance.
const COMMAND: Duration = Duration::from_secs(30);
/// Shell script that kills the programs in the containers of these units, but not Podman's
/// processes, which clean up after them. It uses the kernel's `cgroup.kill` (cgroups(7)), so
/// nothing is written to the disk.
const KILL: &str = r#"for unit; do
    group=$(systemctl --user show --property=ControlGroup --value -- "$unit")
    [ -n "$group" ] || continue
    for kill in /sys/fs/cgroup"$group"/libpod-payload-*/cgroup.kill; do
        [ ! -e "$kill" ] || echo 1 >"$kill"
    done
done"#;

/// The subject of a job; at most one job runs for each key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JobKey {
    Instance(String),
    /// A stop that may run beside the instance's start: that of a fenced or evicted instance, or of
    /// one with several containers.
    Fence(String),
    Pull(String),
    /// The preparation of what an instance mounts of file systems that may hang. It delays no stop.
    Prepare(String),
    /// The removal of binds of instances that are gone.
    Binds,
    /// The start of a container beside the main one, by its unit.
    Other(String),
}

/// The result of a job.
#[derive(Debug)]
pub(crate) enum JobOutcome {
    Started(Result<JobResult, SystemdError>),
    /// The host paths that the instance mounts were bound, or why binding failed; the instance was
    /// not started.
    Bound(Result<(), String>),
    Stopped(Result<JobResult, SystemdError>),
    Pulled(Result<(), String>),
    /// `None` where the preparation was ended early.
    Prepared(Option<Box<PreparedInstance>>),
    /// Binds that nothing needs were removed.
    Unbound(Result<(), SystemdError>),
}

/// What an instance mounts, as a job has prepared it.
#[derive(Debug)]
pub(crate) struct PreparedInstance {
    assignment: Assignment,
    what: PreparedMounts,
    result: Result<Vec<PathBind>, VolumeTrouble>,
}

impl PreparedInstance {
    /// The result, if it is for this assignment as it is now.
    pub(crate) fn into_result(
        self,
        assignment: &Assignment,
        what: PreparedMounts,
    ) -> Option<Result<Vec<PathBind>, VolumeTrouble>> {
        (self.what == what && self.assignment == *assignment).then_some(self.result)
    }
}

/// The message about an image; it names the container where that is not the main one's.
fn of_container(whole: &Assignment, only: &Assignment, message: String) -> String {
    if message.is_empty() || only.image == whole.image {
        return message;
    }
    let mut others = whole.others();
    match others.find(|(_, one)| one.image.as_deref() == Some(&only.image)) {
        Some((kind, one)) => {
            let name = one.name.as_deref().unwrap_or_default();
            other_image_message(kind, name, &only.image, &message)
        }
        None => message,
    }
}

impl Worker {
    /// Whether the images of all containers are on the machine; starts a pull of a missing one.
    pub(crate) fn images_ready(&mut self, assignment: &Assignment, status: &UnitStatus) -> bool {
        let each = assignment.each();
        each.iter()
            .all(|one| self.image_ready(one, (assignment, status)))
    }

    /// Whether one container's image is on the machine. `assignment` has this container only;
    /// reports are made for the `whole` instance.
    fn image_ready(
        &mut self,
        assignment: &Assignment,
        (whole, status): (&Assignment, &UnitStatus),
    ) -> bool {
        let policy = kat_render::pull_policy(assignment);
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        let pulled = memory.pulled.contains(&assignment.image);
        let image = self.images.entry(assignment.image.clone()).or_default();
        let known = image.present
            || image::is_present(&self.tools.accounts.home(&self.user), &assignment.image);
        let ready = match policy {
            ImagePullPolicy::Never => true,
            ImagePullPolicy::IfNotPresent => known,
            ImagePullPolicy::Always => pulled && known,
        };
        if ready {
            return true;
        }
        let key = JobKey::Pull(assignment.image.clone());
        let failure = image.failure.clone();
        let wait = image.attempts.remaining(Instant::now());
        if let Some(wait) = wait {
            self.wake = self.wake.min(wait);
        }
        let sealed = self.sealed_logins.get(&assignment.instance);
        let (reason, message) = match (sealed, &failure) {
            // Without its credentials the pull would fail.
            (Some(why), _) => (Some(Reason::CredentialsUnreadable), why.clone()),
            (None, Some(words)) => {
                let (reason, message) = self.pull_failure(assignment, words);
                (Some(reason), message)
            }
            (None, None) => (None, String::new()),
        };
        let message = of_container(whole, assignment, message);
        let waits = sealed.is_some();
        self.report(whole, status, InstancePhase::Pulling, reason, message);
        if waits {
            return false;
        }
        if wait.is_none() && !self.busy.contains(&key) {
            self.spawn_pull(assignment);
        }
        false
    }

    /// Starts an instance. Where it mounts host paths, the unit that binds them runs first.
    pub(crate) fn spawn_start(
        &mut self,
        assignment: &Assignment,
        unit: String,
        uncounted: bool,
        binding: Option<String>,
    ) {
        let manager = Arc::clone(&self.manager);
        let system = self.tools.managers.system();
        let limit = self.start_limit();
        let key = JobKey::Instance(assignment.instance.clone());
        self.busy.insert(key.clone());
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        memory.ended = false;
        if uncounted {
            self.restarts.of(&assignment.instance).begun_anew(false);
        }
        self.jobs.spawn(async move {
            if let Some(binding) = binding
                && let Err(why) = host_binds::bind(system.as_ref(), &binding).await
            {
                return (key, JobOutcome::Bound(Err(why)));
            }
            if uncounted && let Err(error) = ignore_missing(manager.reset_failed(&unit).await) {
                return (key, JobOutcome::Started(Err(error)));
            }
            let result = manager.start(&unit, limit).await;
            (key, JobOutcome::Started(result))
        });
    }

    /// Binds again the host paths that an instance mounts; its next start uses them.
    pub(crate) fn spawn_bind(&mut self, assignment: &Assignment, binding: String) {
        let system = self.tools.managers.system();
        let key = JobKey::Instance(assignment.instance.clone());
        self.busy.insert(key.clone());
        self.jobs.spawn(async move {
            let bound = host_binds::bind(system.as_ref(), &binding).await;
            (key, JobOutcome::Bound(bound))
        });
    }

    /// Prepares what an instance mounts where some of it lies on a file system that may hang.
    pub(crate) fn spawn_prepare(&mut self, assignment: &Assignment, what: PreparedMounts) {
        let volumes = Arc::clone(&self.tools.volumes);
        let key = JobKey::Prepare(assignment.instance.clone());
        self.busy.insert(key.clone());
        let until = CancellationToken::new();
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        memory.preparing = Some(until.clone().drop_guard());
        let assignment = assignment.clone();
        self.jobs.spawn(async move {
            let prepared = may_block(volumes.prepare_apart(&assignment, what));
            let result = until.run_until_cancelled(prepared).await;
            let prepared = result.map(|result| {
                Box::new(PreparedInstance {
                    assignment,
                    what,
                    result,
                })
            });
            (key, JobOutcome::Prepared(prepared))
        });
    }

    /// Removes the binds of the user's instances that are not in `kept`.
    pub(crate) fn spawn_unbind(&mut self, kept: BTreeSet<String>) {
        let system = self.tools.managers.system();
        let (root, uid) = (self.tools.root.clone(), self.user.uid);
        self.busy.insert(JobKey::Binds);
        self.jobs.spawn(async move {
            let kept = kept.iter().map(String::as_str).collect();
            let removed = host_binds::keep_only(system.as_ref(), &root, uid, &kept);
            (JobKey::Binds, JobOutcome::Unbound(removed.await))
        });
    }

    /// Restarts a running unit.
    pub(crate) fn spawn_restart(&mut self, assignment: &Assignment, unit: String) {
        let manager = Arc::clone(&self.manager);
        let limit = self.start_limit() + stop_limit(Some(assignment));
        let key = JobKey::Instance(assignment.instance.clone());
        self.busy.insert(key.clone());
        self.jobs.spawn(async move {
            let result = manager.restart(&unit, limit).await;
            (key, JobOutcome::Started(result))
        });
    }

    pub(crate) fn start_limit(&self) -> Duration {
        Duration::from_secs(u64::from(self.tools.settings.hold_seconds) + 30) + JOB_MARGIN
    }

    /// Stops a unit and the instance's other containers. An `evicted` instance's containers are
    /// removed, and its programs killed after a short grace.
    pub(crate) fn spawn_stop(
        &mut self,
        key: JobKey,
        unit: String,
        assignment: Option<&Assignment>,
        evicted: bool,
    ) -> Result<(), FilesError> {
        let manager = Arc::clone(&self.manager);
        let limit = stop_limit(assignment);
        let others = self.folder.other_units(&unit)?;
        let root = self.tools.root.clone();
        self.busy.insert(key.clone());
        self.jobs.spawn(async move {
            let units: Vec<String> = std::iter::once(&unit).chain(&others).cloned().collect();
            let stop = async {
                let main = manager.stop(&unit, limit).await;
                containers::stop(manager.as_ref(), main, others, limit).await
            };
            let result = match evicted {
                false => stop.await,
                true => stop_for_room(manager.as_ref(), &units, &root, stop).await,
            };
            (key, JobOutcome::Stopped(result))
        });
        Ok(())
    }

    pub(crate) fn spawn_pull(&mut self, assignment: &Assignment) {
        let (renderer, settings) = (&self.tools.renderer, &self.tools.settings);
        let Ok(Some(file)) = renderer.image(assignment, settings, self.has_logins) else {
            return;
        };
        let Some(unit) = file.service() else { return };
        let manager = Arc::clone(&self.manager);
        let logs = Arc::clone(&self.tools.logs);
        let uid = self.user.uid;
        let limit = Duration::from_secs(u64::from(self.tools.settings.pull_seconds)) + JOB_MARGIN;
        let key = JobKey::Pull(assignment.image.clone());
        self.busy.insert(key.clone());
        self.jobs.spawn(async move {
            let result = image::pull(manager.as_ref(), logs.as_ref(), uid, &unit, limit).await;
            (key, JobOutcome::Pulled(result))
        });
    }

    pub(crate) fn finish_job(
        &mut self,
        done: Result<(JobKey, JobOutcome), tokio::task::JoinError>,
    ) {
        let (key, outcome) = match done {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(
                    user = self.user.name,
                    "a job of the agent ended early: {error:#}"
                );
                self.busy.clear();
                return;
            }
        };
        self.busy.remove(&key);
        let now = Instant::now();
        match (key, outcome) {
            (JobKey::Instance(instance), JobOutcome::Started(result)) => {
                let memory = self.memories.entry(instance.clone()).or_default();
                if let Ok(JobResult::Done) = result {
                    return;
                }
                // The image may have been removed by hand: the next start looks for it on the disk.
                if let Some(assignment) = self.desired.borrow().assignments.get(&instance) {
                    for image in assignment.images() {
                        if let Some(image) = self.images.get_mut(image) {
                            image.present = false;
                        }
                    }
                }
                let delay = memory.starts.failed(now);
                memory.start_error = result.as_ref().err().map(ToString::to_string);
                tracing::warn!(
                    instance,
                    ?result,
                    retry_s = delay.as_secs(),
                    "an instance did not start"
                );
            }
            (JobKey::Instance(instance), JobOutcome::Bound(bound)) => {
                let memory = self.memories.entry(instance.clone()).or_default();
                let Err(why) = bound else {
                    memory.not_bound = None;
                    return;
                };
                let delay = memory.starts.failed(now);
                tracing::warn!(
                    instance,
                    why,
                    retry_s = delay.as_secs(),
                    "host paths are not bound"
                );
                memory.not_bound = Some(why);
            }
            (JobKey::Instance(instance) | JobKey::Fence(instance), JobOutcome::Stopped(result)) => {
                if !matches!(
                    result,
                    Ok(JobResult::Done) | Err(SystemdError::NoSuchUnit(_))
                ) {
                    tracing::warn!(instance, ?result, "an instance did not stop");
                }
            }
            (JobKey::Pull(reference), JobOutcome::Pulled(result)) => {
                let image = self.images.entry(reference.clone()).or_default();
                match result {
                    Ok(()) => {
                        *image = ImageMemory {
                            present: true,
                            ..ImageMemory::default()
                        };
                        let desired = self.desired.borrow();
                        for assignment in desired
                            .assignments
                            .values()
                            .filter(|one| one.images().any(|image| image == reference))
                        {
                            self.memories
                                .entry(assignment.instance.clone())
                                .or_default()
                                .pulled
                                .insert(reference.clone());
                        }
                    }
                    Err(words) => {
                        let delay = image.attempts.failed(now);
                        tracing::warn!(
                            image = reference,
                            words,
                            retry_s = delay.as_secs(),
                            "a pull failed"
                        );
                        image.failure = Some(words);
                    }
                }
            }
            (JobKey::Prepare(instance), JobOutcome::Prepared(prepared)) => {
                // An instance that has left meanwhile has no memory.
                if let Some(memory) = self.memories.get_mut(&instance) {
                    memory.preparing = None;
                    memory.prepared = prepared.map(|prepared| *prepared);
                }
            }
            (JobKey::Binds, JobOutcome::Unbound(removed)) => {
                if let Err(error) = removed {
                    tracing::warn!(
                        user = self.user.name,
                        "binds of instances that are gone can't be removed: {error:#}"
                    );
                }
            }
            (JobKey::Other(unit), outcome) => self.other_was_started(&unit, &outcome),
            (key, outcome) => tracing::error!(?key, ?outcome, "a job ended as another kind"),
        }
    }
}

/// Waits for a stop, and removes the containers of these units with the data that they wrote.
async fn stop_for_room(
    manager: &dyn UnitManager,
    units: &[String],
    root: &Root,
    stop: impl Future<Output = Result<JobResult, SystemdError>>,
) -> Result<JobResult, SystemdError> {
    tokio::pin!(stop);
    let result = match tokio::time::timeout(EVICTED_PATIENCE, &mut stop).await {
        Ok(result) => result,
        Err(_) => {
            let kill = ["/bin/sh", "-c", KILL, "sh"].map(str::to_owned);
            run(manager, kill.into_iter().chain(units.iter().cloned())).await;
            stop.await
        }
    };
    // Podman needs some room to remove containers. The programs that filled the disk have ended.
    eviction::give_up_reserve(root);
    let remove = [
        "/usr/bin/podman",
        "rm",
        "--force",
        "--volumes",
        "--ignore",
        "--time=0",
        "--",
    ];
    let names = units
        .iter()
        .map(|unit| unit.trim_end_matches(".service").to_owned());
    run(manager, remove.map(str::to_owned).into_iter().chain(names)).await;
    result
}

async fn run(manager: &dyn UnitManager, command: impl Iterator<Item = String>) {
    let unit = TransientUnit {
        name: format!("evict-kat-{:016x}.service", rand::random::<u64>()),
        description: "KAT makes room on a full disk".to_owned(),
        command: command.collect(),
        limit: COMMAND,
        ..TransientUnit::default()
    };
    match manager.run_transient(&unit, COMMAND + JOB_MARGIN).await {
        Ok(end) if end.result == JobResult::Done => {}
        Ok(end) => {
            tracing::warn!(command = ?unit.command, ?end, "an evicted instance's containers may be left")
        }
        Err(error) => {
            tracing::warn!(command = ?unit.command, "an evicted instance's containers may be left: {error:#}")
        }
    }
}

fn stop_limit(assignment: Option<&Assignment>) -> Duration {
    let grace = assignment.map_or(60, Assignment::stop_seconds);
    Duration::from_secs(u64::from(grace) + 10) + JOB_MARGIN
}
