//! One workload user's worker: user, unit files, pulls, starts, stops, reports.
//!
//! Passes are serial, slow work is not: pulls, starts and stops run as jobs, each instance has at
//! most one, and every finished job makes a new pass.

pub mod accounts;
mod containers;
mod draining;
mod health;
mod jobs;
pub mod judge;
pub(crate) mod limits;
pub(crate) mod links;
pub(crate) mod log_tail;
mod logins;
pub mod machine_options;
pub(crate) mod network_holder;
mod options;
mod reporting;
pub(crate) mod restarts;
pub(crate) mod saved_state;
pub(crate) mod sidecars;
pub(crate) mod start_backoff;
pub(crate) mod statuses;
pub(crate) mod unit_files;
mod units;
mod user;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    ops::ControlFlow,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use self::{
    containers::Words,
    jobs::{JobKey, JobOutcome},
};
use super::{
    Statuses,
    health::{Means, Probes, probe::Network, progress::Progress},
    secrets::Secrets,
    volumes::Volumes,
};
use crate::worker::accounts::UserAccounts;
use crate::{
    images::unused::ImageCare,
    volumes::carried_files::CarriedError,
    worker::{
        judge::Fault,
        machine_options::MachineOptions,
        restarts::RestartCounts,
        saved_state::Notes,
        start_backoff::RetryDelay,
        unit_files::{FilesError, UnitFolder},
    },
};
use crate::{network::host_ports::HostListeners, service::paths::UserFolders};
use kat_daemon::watchdog::{Pulse, Pulses};
use kat_host::{files::FileError, users::UserError};
use kat_render::{RenderError, RenderSettings, Renderer};
use kat_systemd::{LogSource, ManagerSource, SystemdError, UnitEvents, UnitManager, UserSessions};
use kat_types::images::KeptOfUser;
use kat_types::{
    api::ContainerStatus,
    assignment::{Assignment, Wanted, WorkloadUser},
    reason::Reason,
};

/// A pass at least this often, even when nothing says that anything changed.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// Longest wait for a user's manager.
const USER_LIMIT: Duration = Duration::from_secs(30);
/// Longest time from the agent's stop to the end of the pass that goes on then; one that takes longer is left half done,
/// as by a crash.
const LAST_PASS: Duration = Duration::from_secs(1);
/// From the end of a unit's own timeouts to the end of the agent's patience.
const JOB_MARGIN: Duration = Duration::from_secs(15);

/// What a worker works with; the same for all workers of a machine.
pub struct Tools {
    /// Managers of the system and of users.
    pub managers: Arc<dyn ManagerSource>,
    /// logind.
    pub sessions: Arc<dyn UserSessions>,
    /// Host users.
    pub accounts: Arc<dyn UserAccounts>,
    /// Templates.
    pub renderer: Arc<Renderer>,
    /// The journal.
    pub logs: Arc<dyn LogSource>,
    /// What is the same for every instance.
    pub settings: RenderSettings,
    /// Suffix of the cluster's names.
    pub domain: String,
    /// This machine's address on the overlay, where its DNS answers.
    pub overlay_address: Ipv4Addr,
    /// `/` on a real machine.
    pub root: PathBuf,
    /// Microseconds of the monotonic clock, as systemd counts them.
    pub monotonic: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The machine enforces limits (cgroup v2 with its controllers).
    pub limits_enforced: bool,
    /// The way of probes to instances.
    pub network: Arc<dyn Network>,
    /// What instances mount.
    pub volumes: Arc<Volumes>,
    /// What instances use of secrets.
    pub secrets: Secrets,
    /// Who else listens on ports of the machine.
    pub listeners: Arc<dyn HostListeners>,
    /// What else instances may have of the machine.
    pub options: MachineOptions,
    /// Which images stay that no instance uses.
    pub images: Arc<ImageCare>,
}

/// A worker's part of the desired list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserDesired {
    /// The list comes from the store. Nothing is removed against a list that does not.
    pub confirmed: bool,
    /// By instance.
    pub assignments: BTreeMap<String, Assignment>,
    /// Those of them that must not run now: the machine reaches no leader, or has reached none yet.
    pub fenced: BTreeSet<String>,
    /// Those of them that must not run now because a disk of the machine runs full, with why.
    pub evicted: BTreeMap<String, String>,
    /// The images of its workload that stay here for a while when it has left; of a workload that is gone, none.
    pub kept: Option<KeptOfUser>,
}

impl UserDesired {
    /// What is to run here now, and is understood.
    fn to_run(&self) -> impl Iterator<Item = &Assignment> {
        let assignments = self.assignments.values();
        assignments.filter(|one| one.is_run() && !self.is_held(&one.instance))
    }

    /// It is wanted, and must not run now.
    fn is_held(&self, instance: &str) -> bool {
        self.fenced.contains(instance) || self.evicted.contains_key(instance)
    }

    /// It must not run.
    fn is_to_stop(&self, assignment: &Assignment) -> bool {
        assignment.wanted == Wanted::Stopped || self.is_held(&assignment.instance)
    }
}

/// What a worker could not do.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The user can't be made or removed.
    #[error(transparent)]
    User(#[from] UserError),
    /// systemd or logind refuses.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// A file can't be written or removed.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file of the worker's own can't be.
    #[error(transparent)]
    File(#[from] FileError),
    /// A unit can't be rendered.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// What its containers mounted of the workload's folder can't be removed.
    #[error(transparent)]
    Carried(#[from] CarriedError),
}

/// What is remembered of an instance from pass to pass. Everything can be found out again.
#[derive(Debug, Default)]
struct Memory {
    starts: RetryDelay,
    reloads: RetryDelay,
    ended: bool,
    /// Images that were pulled for it.
    pulled: BTreeSet<String>,
    judged_exit: Option<u64>,
    /// What ended the last run, if that was not the program.
    fault: Option<Fault>,
    trouble: String,
    start_error: Option<String>,
    /// Why what it mounts of the machine was not bound at the last try.
    not_bound: Option<String>,
    /// Binds of that beside its starts.
    binds: RetryDelay,
    /// It was last told to be where it can be sent to; nothing before it was judged.
    serves: Option<bool>,
    /// Since when its container runs without its link.
    unlinked: Option<tokio::time::Instant>,
    /// Restarts because it was unhealthy, until it is healthy.
    heals: RetryDelay,
    /// Why it was last restarted so.
    healed: Option<String>,
    /// Its containers, where it has several, as they were last reported.
    containers: Vec<ContainerStatus>,
    /// What those beside the main one said last, by their units.
    words: BTreeMap<String, Words>,
    /// Their starts by the agent, by their units.
    others: BTreeMap<String, RetryDelay>,
}

/// What the next process of the agent has to know of an instance.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Note {
    /// Since when it is to stop; microseconds of the monotonic clock, as the other one.
    drains_since: Option<u64>,
    /// Begin of the container whose health this is.
    run: u64,
    health: Progress,
}

/// What is remembered of an image.
#[derive(Debug, Default)]
struct ImageMemory {
    present: bool,
    failure: Option<String>,
    attempts: RetryDelay,
}

/// Keeps one user's instances as they should be.
pub struct Worker {
    tools: Arc<Tools>,
    user: WorkloadUser,
    manager: Arc<dyn UnitManager>,
    folder: UnitFolder,
    desired: watch::Receiver<UserDesired>,
    statuses: Statuses,
    ready: bool,
    /// Its workload has left; its account and its images are what is left of it.
    parked: bool,
    /// What an earlier process of the agent left was asked to end.
    cleared: bool,
    readiness: RetryDelay,
    /// Its user was seen to be in no group but its own, as nothing asks for one.
    has_no_groups: bool,
    events: Option<UnitEvents>,
    jobs: JoinSet<(JobKey, JobOutcome)>,
    busy: BTreeSet<JobKey>,
    memories: BTreeMap<String, Memory>,
    images: BTreeMap<String, ImageMemory>,
    /// Its pulls name the file with credentials for registries.
    has_logins: bool,
    /// Why those of an instance could not be opened.
    sealed_logins: BTreeMap<String, String>,
    restarts: RestartCounts,
    notes: Notes<Note>,
    probes: Probes,
    /// Instances of which something was reported.
    reported: BTreeSet<String>,
    /// Why the last pass was cut short.
    trouble: Option<(Reason, String)>,
    wake: Duration,
    /// Where the loop is seen by the watchdog.
    pub pulses: Pulses,
}

impl Worker {
    /// A worker for `user`; nothing happens until [`Worker::run`].
    pub fn new(
        tools: Arc<Tools>,
        user: WorkloadUser,
        desired: watch::Receiver<UserDesired>,
        statuses: Statuses,
    ) -> Self {
        let manager = tools.managers.user(user.uid);
        let restarts = RestartCounts::read(&tools.root, user.uid);
        let notes = Notes::read(&tools.root, "instances", user.uid);
        let probes = Probes::new(Means {
            network: Arc::clone(&tools.network),
            manager: Arc::clone(&manager),
            root: tools.root.clone(),
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
            has_no_groups: false,
            events: None,
            jobs: JoinSet::new(),
            busy: BTreeSet::new(),
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
            pulses: Pulses::default(),
        }
    }

    /// Works until nothing of the user is wanted or left, or until `cancel`, which leaves
    /// everything as it is.
    pub async fn run(mut self, cancel: CancellationToken) {
        self.statuses.set_user(self.user.index, true);
        let pulse = self.pulses.watch("the worker of a workload's user");
        loop {
            self.wake = LONGEST_SLEEP;
            let desired = self.desired.borrow_and_update().clone();
            let passed = tokio::select! {
                biased;
                passed = self.pass(&desired, &pulse) => Some(passed),
                // Nobody waits for a manager that does not answer.
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
                    Some(done) = self.jobs.join_next() => ControlFlow::Continue(Some(done)),
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
            while let Some(done) = self.jobs.try_join_next() {
                self.finish_job(done);
            }
        }
        self.tools.managers.forget_user(self.user.uid);
        self.statuses.set_user(self.user.index, false);
    }

    /// One pass. True when nothing of the user is left.
    async fn pass(&mut self, desired: &UserDesired, pulse: &Pulse) -> Result<bool, WorkerError> {
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
        self.remove_binds(desired).await?;
        self.write_logins(desired)?;
        self.write_units(desired).await?;
        self.remove_logins()?;
        for assignment in desired.to_run() {
            // A long list is no hanging loop.
            pulse.beat();
            self.converge(assignment).await?;
        }
        self.report_not_understood(desired).await?;
        self.trouble = None;
        Ok(false)
    }
}

/// Until the pass that goes on at `cancel` has had its time.
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
