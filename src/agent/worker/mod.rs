//! The worker of one workload user: its account, unit files, pulls, starts, stops and reports.
//!
//! Passes are serial, slow operations are not: pulls, starts and stops run as jobs, as does the
//! preparation of what an instance mounts of file systems that may hang. An instance has at most one
//! of them, and beside it at most one stop that cannot wait (`JobKey::Fence`). Every finished job
//! triggers a new pass.

pub(crate) mod reports;
pub(crate) mod running;
pub(crate) mod unit_state;
pub(crate) mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Statuses,
    health::{ProbeTools, Probes, probe::ProbeNetwork, progress::HealthProgress},
    secrets::Secrets,
    volumes::Volumes,
};
use crate::{
    images::unused::ImageCare,
    network::host_ports::HostListeners,
    service::paths::UserFolders,
    volumes::carried_files::CarriedError,
    worker::{
        running::{
            jobs::{FailedJob, FinishedJob, Jobs},
            preparation::MountPreparation,
            pulls::ImageMemory,
            restarts::RestartCounts,
            saved_state::SavedNotes,
            start_backoff::RetryDelay,
        },
        unit_state::{
            containers::LastLogLines,
            instance_phase::RunFault,
            unit_files::{FilesError, UnitFolder},
        },
        users::{accounts::UserAccounts, machine_options::MachineOptions},
    },
};
use kat_daemon::watchdog::{LoopPulse, LoopPulses};
use kat_host::{files::FileError, users::UserError};
use kat_render::{RenderError, RenderSettings, Renderer};
use kat_systemd::{
    JobResult, LogSource, ManagerSource, SystemdError, UnitEvents, UnitManager, UserSessions,
};
use kat_types::{
    api::ContainerStatus,
    assignment::{Assignment, DesiredRun, WorkloadUser},
    images::KeptUserImages,
    machine::root::Root,
    reason::Reason,
};

/// Longest time between two passes, even when no event arrives.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
const USER_LIMIT: Duration = Duration::from_secs(30);
/// Time that a running pass has to finish after the agent was told to stop. A longer pass is
/// aborted and leaves the same state as a crash.
const LAST_PASS: Duration = Duration::from_secs(1);
/// Time that the agent waits for a job beyond the unit's own timeouts.
const JOB_MARGIN: Duration = Duration::from_secs(15);

/// What all workers of a machine share.
pub struct WorkerTools {
    pub managers: Arc<dyn ManagerSource>,
    pub sessions: Arc<dyn UserSessions>,
    pub accounts: Arc<dyn UserAccounts>,
    pub renderer: Arc<Renderer>,
    pub logs: Arc<dyn LogSource>,
    /// Render settings, the same for every instance.
    pub settings: RenderSettings,
    /// Domain suffix of the cluster's DNS names.
    pub domain: String,
    /// This machine's overlay address, at which its DNS server answers.
    pub overlay_address: Ipv4Addr,
    /// `/` on a real machine.
    pub root: Root,
    /// Microseconds of the monotonic clock, as systemd counts them.
    pub monotonic: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Whether the machine enforces limits (cgroup v2 with its controllers).
    pub limits_enforced: bool,
    /// Connects probes to instances.
    pub network: Arc<dyn ProbeNetwork>,
    pub volumes: Arc<Volumes>,
    pub secrets: Secrets,
    /// Other listeners on ports of the machine.
    pub listeners: Arc<dyn HostListeners>,
    /// Devices, groups and networks of the machine that instances may use.
    pub options: MachineOptions,
    /// Decides which unused images are kept.
    pub images: Arc<ImageCare>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UserDesired {
    /// The list comes from the store. Nothing is removed because of an unconfirmed list.
    pub confirmed: bool,
    /// By instance.
    pub assignments: BTreeMap<String, Assignment>,
    /// Instances of the list that must not run now, because the machine reaches no leader, or
    /// because the store has not confirmed the list since the boot.
    pub fenced: BTreeSet<String>,
    /// Instances of the list that must not run now because a disk is nearly full, with the message.
    pub evicted: BTreeMap<String, String>,
    /// The images that are kept for a while after the workload has left; `None` for a workload that
    /// was deleted.
    pub kept: Option<KeptUserImages>,
}

impl UserDesired {
    /// The assignments to run here now that this version understands.
    fn to_run(&self) -> impl Iterator<Item = &Assignment> {
        let assignments = self.assignments.values();
        assignments.filter(|one| one.is_run() && !self.is_held(&one.instance))
    }

    /// The assignments to prepare here that this version understands.
    fn to_prepare(&self) -> impl Iterator<Item = &Assignment> {
        let assignments = self.assignments.values();
        assignments.filter(|one| one.wanted == DesiredRun::Prepared && one.will_run())
    }

    /// Whether the instance is assigned here but fenced or evicted.
    fn is_held(&self, instance: &str) -> bool {
        self.fenced.contains(instance) || self.evicted.contains_key(instance)
    }

    /// Whether the instance must not run.
    fn is_to_stop(&self, assignment: &Assignment) -> bool {
        assignment.wanted != DesiredRun::Running || self.is_held(&assignment.instance)
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    /// The user can't be created or removed.
    #[error(transparent)]
    User(#[from] UserError),
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file of the worker's own can't be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The copied files that its containers mounted can't be removed.
    #[error(transparent)]
    Carried(#[from] CarriedError),
}

/// What the worker remembers of an instance between passes. All of it can be recomputed.
#[derive(Debug, Default)]
struct InstanceMemory {
    starts: RetryDelay,
    reloads: RetryDelay,
    ended: bool,
    /// Images that were pulled for the instance.
    pulled: BTreeSet<String>,
    judged_exit: Option<u64>,
    /// The cause of the last run's end, if it was not the program.
    fault: Option<RunFault>,
    trouble: String,
    start_error: Option<String>,
    /// Why the host paths that the instance mounts could not be bound at the last try.
    not_bound: Option<String>,
    preparation: MountPreparation,
    /// Backoff of binds that are renewed while the instance runs.
    binds: RetryDelay,
    /// Whether the last report let traffic go to the instance; `None` before the first judgement.
    serves: Option<bool>,
    /// Since when the container runs without its network link.
    unlinked: Option<tokio::time::Instant>,
    /// Backoff of restarts because of failed health checks, until the instance is healthy.
    heals: RetryDelay,
    /// Message of the last such restart.
    healed: Option<String>,
    /// The containers as last reported, where the instance has several.
    containers: Vec<ContainerStatus>,
    /// Last log lines of each container beside the main one, by unit.
    words: BTreeMap<String, LastLogLines>,
    /// Start backoff of each container beside the main one, by unit.
    others: BTreeMap<String, RetryDelay>,
}

/// What the next process of the agent needs to know of an instance.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InstanceNote {
    /// Since when the instance is to be stopped, microseconds of the monotonic clock.
    drains_since: Option<u64>,
    /// Start of the container that `health` belongs to, microseconds of the monotonic clock.
    run: u64,
    health: HealthProgress,
}

/// Makes one user's instances match the desired list.
pub(crate) struct Worker {
    tools: Arc<WorkerTools>,
    user: WorkloadUser,
    manager: Arc<dyn UnitManager>,
    folder: UnitFolder,
    desired: watch::Receiver<UserDesired>,
    statuses: Statuses,
    ready: bool,
    /// The user's workload has left; only its account and its images remain.
    parked: bool,
    /// Commands and probes that an earlier process of the agent left have been told to stop.
    cleared: bool,
    readiness: RetryDelay,
    /// When the account was last seen after it was made.
    account_seen: Option<tokio::time::Instant>,
    /// The user was seen to be a member of no group but its own, as desired.
    has_no_groups: bool,
    events: Option<UnitEvents>,
    jobs: Jobs,
    memories: BTreeMap<String, InstanceMemory>,
    images: BTreeMap<String, ImageMemory>,
    /// The units' pulls name the file with registry credentials.
    has_logins: bool,
    /// Why the credentials of an instance could not be opened, by instance.
    sealed_logins: BTreeMap<String, String>,
    restarts: RestartCounts,
    notes: SavedNotes<InstanceNote>,
    probes: Probes,
    /// Instances that have been reported.
    reported: BTreeSet<String>,
    /// Why the last pass was aborted.
    trouble: Option<(Reason, String)>,
    wake: Duration,
    /// Reports the loop's liveness to the watchdog.
    pub pulses: LoopPulses,
}

impl Worker {
    /// Makes a worker for `user`; it does nothing until [`Worker::run`].
    pub(crate) fn new(
        tools: Arc<WorkerTools>,
        user: WorkloadUser,
        desired: watch::Receiver<UserDesired>,
        statuses: Statuses,
    ) -> Self {
        let manager = tools.managers.user(user.uid);
        let restarts = RestartCounts::read(tools.root.path(), user.uid);
        let notes = SavedNotes::read(tools.root.path(), "instances", user.uid);
        let probes = Probes::new(ProbeTools {
            network: Arc::clone(&tools.network),
            manager: Arc::clone(&manager),
            root: tools.root.path().to_owned(),
            monotonic: Arc::clone(&tools.monotonic),
        });
        let folder = UnitFolder::new(UserFolders::new(&tools.root, user.uid), user.uid);
        Self {
            manager,
            folder,
            tools,
            user,
            desired,
            statuses,
            ready: false,
            parked: false,
            cleared: false,
            readiness: RetryDelay::default(),
            account_seen: None,
            has_no_groups: false,
            events: None,
            jobs: Jobs::default(),
            memories: BTreeMap::new(),
            images: BTreeMap::new(),
            has_logins: false,
            sealed_logins: BTreeMap::new(),
            restarts,
            notes,
            probes,
            reported: BTreeSet::new(),
            trouble: None,
            wake: LONGEST_SLEEP,
            pulses: LoopPulses::default(),
        }
    }

    /// Runs until nothing of the user is assigned or left, or until `cancel`, which leaves
    /// everything as it is.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        self.statuses.set_user(self.user.index, true);
        let pulse = self.pulses.watch("a workload user's worker");
        loop {
            self.wake = LONGEST_SLEEP;
            let desired = self.desired.borrow_and_update().clone();
            let passed = tokio::select! {
                biased;
                passed = self.pass(&desired, &pulse) => Some(passed),
                // The agent's stop does not wait for a manager that does not answer.
                () = long_cancelled(&cancel) => None,
            };
            if let Err(error) = self.restarts.store() {
                tracing::warn!(
                    user = self.user.name,
                    "counts of restarts can't be kept: {error:#}"
                );
            }
            if let Err(error) = self.notes.store() {
                tracing::warn!(
                    user = self.user.name,
                    "what is known of instances can't be kept: {error:#}"
                );
            }
            match passed {
                Some(Ok(true)) => break,
                Some(Ok(false)) => {}
                Some(Err(error)) => self.report_trouble(&desired, &error),
                None => return,
            }
            let news = async {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => ControlFlow::Break(()),
                    changed = self.desired.changed() => match changed {
                        Ok(()) => ControlFlow::Continue(None),
                        Err(_) => ControlFlow::Break(()),
                    },
                    Some(done) = self.jobs.next() => ControlFlow::Continue(Some(done)),
                    () = next_event(&mut self.events) => ControlFlow::Continue(None),
                    () = self.probes.changed() => ControlFlow::Continue(None),
                    () = tokio::time::sleep(self.wake) => ControlFlow::Continue(None),
                }
            };
            match pulse.wait(news).await {
                ControlFlow::Break(()) => return,
                ControlFlow::Continue(Some(done)) => self.finish_job(done),
                ControlFlow::Continue(None) => {}
            }
            while let Some(done) = self.jobs.try_next() {
                self.finish_job(done);
            }
        }
        self.tools.managers.forget_user(self.user.uid);
        self.statuses.set_user(self.user.index, false);
    }

    fn finish_job(&mut self, done: Result<FinishedJob, FailedJob>) {
        match done {
            Ok(FinishedJob::Instance { instance, outcome }) => {
                self.record_outcome(&instance, outcome);
            }
            Ok(FinishedJob::Pulled { image, result }) => {
                if self.record_pull(&image, result) {
                    let desired = self.desired.borrow();
                    let all = desired.assignments.values();
                    for assignment in all.filter(|one| one.images().any(|name| name == image)) {
                        self.memories
                            .entry(assignment.instance.clone())
                            .or_default()
                            .pulled
                            .insert(image.clone());
                    }
                }
            }
            Ok(FinishedJob::Prepared {
                instance,
                preparation,
            }) => {
                // An instance that has left meanwhile has no memory.
                if let Some(memory) = self.memories.get_mut(&instance) {
                    memory.preparation.ended(preparation);
                }
            }
            Ok(FinishedJob::Unbound(Ok(()))) => {}
            Ok(FinishedJob::Unbound(Err(error))) => tracing::warn!(
                user = self.user.name,
                "binds of instances that are gone can't be removed: {error:#}"
            ),
            Ok(FinishedJob::SidecarStarted {
                result: Ok(JobResult::Done),
                ..
            }) => {}
            Ok(FinishedJob::SidecarStarted { unit, result }) => {
                tracing::warn!(unit, ?result, "a sidecar did not start");
            }
            Err(FailedJob { key, error }) => tracing::error!(
                user = self.user.name,
                job = ?key,
                "a job of the agent ended early: {error:#}"
            ),
        }
    }

    /// Runs one pass; true when nothing of the user is left.
    async fn pass(
        &mut self,
        desired: &UserDesired,
        pulse: &LoopPulse,
    ) -> Result<bool, WorkerError> {
        if desired.confirmed && desired.assignments.is_empty() {
            return self.leave(desired).await;
        }
        if !desired.assignments.is_empty() && std::mem::take(&mut self.parked) {
            self.tools.images.forget(self.user.uid);
        }
        if !self.report_stopped(desired) && self.folder.instances()?.is_empty() {
            return Ok(false);
        }
        if !self.make_ready(desired).await? {
            return Ok(false);
        }
        self.forget_all_but(&desired.assignments);
        self.stop_unwanted(desired).await?;
        if !self.settle_groups(desired).await? {
            return Ok(false);
        }
        self.remove_secrets(desired)?;
        self.remove_binds(desired)?;
        self.write_logins(desired)?;
        self.write_units(desired).await?;
        self.remove_logins()?;
        for assignment in desired.to_run() {
            // The watchdog must not take a long list for a hanging loop.
            pulse.beat();
            self.converge(assignment).await?;
        }
        for assignment in desired.to_prepare() {
            pulse.beat();
            self.prepare(assignment)?;
        }
        self.report_not_understood(desired).await?;
        self.trouble = None;
        Ok(false)
    }
}

/// Ends [`LAST_PASS`] after `cancel`.
async fn long_cancelled(cancel: &CancellationToken) {
    cancel.cancelled().await;
    tokio::time::sleep(LAST_PASS).await;
}

async fn next_event(events: &mut Option<UnitEvents>) {
    match events {
        Some(stream) => {
            if stream.next().await.is_none() {
                *events = None;
            }
        }
        None => std::future::pending().await,
    }
}

fn ignore_missing(result: Result<(), SystemdError>) -> Result<(), SystemdError> {
    match result {
        Err(SystemdError::NoSuchUnit(_)) => Ok(()),
        other => other,
    }
}
