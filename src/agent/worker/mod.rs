//! The worker of one workload user: its account, unit files, pulls, starts, stops and reports.
//!
//! Passes are serial, slow operations are not: pulls, starts and stops run as [jobs], as does the
//! preparation of what an instance mounts of file systems that may hang. Every finished job triggers
//! a new pass.
//!
//! The [`Worker`] has the steps of a pass; an [`Instance`] does those that are about it alone. What
//! they share is the [`UserContext`].
//!
//! [jobs]: running::jobs

pub(crate) mod context;
pub(crate) mod instance;
pub(crate) mod reports;
mod resting;
pub(crate) mod running;
pub(crate) mod unit_state;
pub(crate) mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Statuses, health::probe::ProbeNetwork, secrets::Secrets, volumes::Volumes};
use crate::{
    desired_state::{job_starts::JobStarts, settings::FollowedSettings},
    images::unused::ImageCare,
    network::host_ports::HostListeners,
    volumes::carried_files::CarriedError,
    worker::{
        context::UserContext,
        instance::Instance,
        resting::Rest,
        running::jobs::{FailedJob, FinishedJob, InstanceOutcome},
        unit_state::{early_units::UnitGenerator, unit_files::FilesError},
        users::{accounts::UserAccounts, machine_options::MachineOptions, user::AccountState},
    },
};
use kat_daemon::watchdog::{LoopPulse, LoopPulses};
use kat_host::{files::FileError, users::UserError};
use kat_render::{RenderError, RenderSettings, Renderer};
use kat_systemd::{JobResult, LogSource, ManagerSource, SystemdError, UnitEvents, UserSessions};
use kat_types::{
    assignment::{Assignment, DesiredRun, WorkloadUser},
    images::KeptUserImages,
    machine::root::Root,
    reason::Reason,
};

/// Longest time between two looks at the instances, even when no event arrives. Those that run and
/// need nothing are looked at more briefly than by a pass ([`resting`]).
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// Longest time until the next pass where anything is due later. It differs from [`LONGEST_SLEEP`],
/// after which nothing is due.
const LONGEST_DUE: Duration = Duration::from_millis(29_999);
/// Pause between an event and its pass while an instance starts. A manager serves calls before it
/// goes on with its jobs, and each start makes several events: passes at once would delay it. The
/// end of a job is not waited for.
const SETTLE: Duration = Duration::from_millis(100);
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
    pub generator: Arc<dyn UnitGenerator>,
    pub logs: Arc<dyn LogSource>,
    /// Render settings, the same for every instance.
    pub settings: RenderSettings,
    /// Domain suffix of the cluster's DNS names.
    pub domain: String,
    /// Settings of the cluster, which may change.
    pub cluster_settings: FollowedSettings,
    /// This machine's overlay address, at which its DNS server answers.
    pub overlay_address: Ipv4Addr,
    /// `/` on a real machine.
    pub root: Root,
    /// Microseconds of the monotonic clock, as systemd counts them.
    pub monotonic: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
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
    /// Whether instances of Jobs may be started now.
    pub job_starts: JobStarts,
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

/// Makes one user's instances match the desired list.
pub(crate) struct Worker {
    context: UserContext,
    desired: watch::Receiver<UserDesired>,
    account: AccountState,
    events: Option<UnitEvents>,
    /// By name; those of the list, and until the next pass those that a job ended for.
    instances: BTreeMap<String, Instance>,
    /// Why the last pass was aborted.
    trouble: Option<(Reason, String)>,
    rest: Option<Rest>,
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
        Self {
            context: UserContext::new(tools, user, statuses),
            desired,
            account: AccountState::default(),
            events: None,
            instances: BTreeMap::new(),
            trouble: None,
            rest: None,
            pulses: LoopPulses::default(),
        }
    }

    /// An instance, and what it shares with the others.
    fn instance(&mut self, name: &str) -> (&mut Instance, &mut UserContext) {
        let instance = self.instances.entry(name.to_owned()).or_default();
        (instance, &mut self.context)
    }

    /// Runs until nothing of the user is assigned or left, or until `cancel`, which leaves
    /// everything as it is.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        self.context
            .statuses
            .set_user(self.context.user.index, true);
        let pulse = self.pulses.watch("a workload user's worker");
        // Nothing but time went by since the last look.
        let mut is_periodic = false;
        loop {
            self.context.wake = LONGEST_SLEEP;
            let (desired, is_changed) = {
                let desired = self.desired.borrow_and_update();
                (desired.clone(), desired.has_changed())
            };
            let passed = tokio::select! {
                biased;
                passed = self.look(&desired, is_periodic && !is_changed, &pulse) => Some(passed),
                // The agent's stop does not wait for a manager that does not answer.
                () = long_cancelled(&cancel) => None,
            };
            self.context.store();
            match passed {
                Some(Ok(true)) => break,
                Some(Ok(false)) => {}
                Some(Err(error)) => self.report_trouble(&desired, &error),
                None => return,
            }
            let settles = match self.context.jobs.is_starting() {
                true => SETTLE,
                false => Duration::ZERO,
            };
            let news = async {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => WorkerNews::End,
                    changed = self.desired.changed() => match changed {
                        Ok(()) => WorkerNews::Change,
                        Err(_) => WorkerNews::End,
                    },
                    Some(done) = self.context.jobs.next() => WorkerNews::Job(done),
                    () = settled_event(&mut self.events, settles) => WorkerNews::Change,
                    () = self.context.probes.changed() => WorkerNews::Change,
                    () = tokio::time::sleep(self.context.wake) => WorkerNews::Time,
                }
            };
            let news = pulse.wait(news).await;
            is_periodic = matches!(news, WorkerNews::Time);
            match news {
                WorkerNews::End => return,
                WorkerNews::Job(done) => self.finish_job(done),
                WorkerNews::Change | WorkerNews::Time => {}
            }
            while let Some(done) = self.context.jobs.try_next() {
                is_periodic = false;
                self.finish_job(done);
            }
        }
        self.context
            .tools
            .managers
            .forget_user(self.context.user.uid);
        self.context
            .statuses
            .set_user(self.context.user.index, false);
    }

    fn finish_job(&mut self, finished: Result<FinishedJob, FailedJob>) {
        match finished {
            Ok(FinishedJob::Instance { instance, outcome }) => {
                if matches!(&outcome, InstanceOutcome::Started(result) if !is_done(result)) {
                    self.doubt_images(&instance);
                }
                let (one, _) = self.instance(&instance);
                one.record_outcome(&instance, outcome);
            }
            Ok(FinishedJob::Pulled { image, result }) => {
                if self.context.record_pull(&image, result) {
                    self.record_pulled(&image);
                }
            }
            Ok(FinishedJob::Prepared {
                instance,
                preparation,
            }) => {
                // The instance may have left meanwhile.
                if let Some(instance) = self.instances.get_mut(&instance) {
                    instance.record_preparation(preparation);
                }
            }
            Ok(FinishedJob::Unbound(result)) => {
                if let Err(error) = result {
                    tracing::warn!(
                        user = self.context.user.name,
                        "binds of instances that are gone can't be removed: {error:#}"
                    );
                }
            }
            Ok(FinishedJob::SidecarStarted { unit, result }) => {
                if !is_done(&result) {
                    tracing::warn!(unit, ?result, "a sidecar did not start");
                }
            }
            Err(FailedJob { key, error }) => tracing::error!(
                user = self.context.user.name,
                job = ?key,
                "a job of the agent ended early: {error:#}"
            ),
        }
    }

    /// After a start that failed: an image may have been removed by hand, so the next start looks
    /// for it on the disk.
    fn doubt_images(&mut self, instance: &str) {
        let desired = self.desired.borrow();
        let assignment = desired.assignments.get(instance);
        for image in assignment.into_iter().flat_map(Assignment::images) {
            if let Some(image) = self.context.images.get_mut(image) {
                image.present = false;
            }
        }
    }

    fn record_pulled(&mut self, image: &str) {
        let desired = self.desired.borrow();
        let all = desired.assignments.values();
        for assignment in all.filter(|one| one.images().any(|name| name == image)) {
            let instance = self.instances.entry(assignment.instance.clone());
            instance.or_default().record_pull(image.to_owned());
        }
    }

    /// Looks at the instances: briefly where that is enough, otherwise with a pass. True when nothing
    /// of the user is left.
    async fn look(
        &mut self,
        desired: &UserDesired,
        is_periodic: bool,
        pulse: &LoopPulse,
    ) -> Result<bool, WorkerError> {
        if is_periodic && self.look_at_rest(desired, pulse).await? {
            return Ok(false);
        }
        // Only what this pass finds at rest is: it may be cut short, or leave an instance out.
        self.rest = None;
        self.instances.values_mut().for_each(Instance::wake);
        drop_unread_events(&mut self.events);
        let gone = self.pass(desired, pulse).await?;
        self.record_rest(desired);
        Ok(gone)
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
        if !desired.assignments.is_empty() && std::mem::take(&mut self.account.parked) {
            self.context.tools.images.forget(self.context.user.uid);
        }
        if !self.report_stopped(desired) && self.context.folder.instances()?.is_empty() {
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
        self.remove_runs(desired)?;
        self.remove_binds(desired)?;
        self.write_logins(desired)?;
        let added = self.write_units(desired).await?;
        self.remove_logins()?;
        // New instances come last: while a manager answers questions about the others, it starts none.
        let is_new = |one: &&Assignment| added.contains(&one.unit());
        let (new, others): (Vec<_>, Vec<_>) = desired.to_run().partition(is_new);
        for assignment in others.into_iter().chain(new) {
            // The watchdog must not take a long list for a hanging loop.
            pulse.beat();
            let (instance, context) = self.instance(&assignment.instance);
            instance.converge(context, assignment).await?;
        }
        for assignment in desired.to_prepare() {
            pulse.beat();
            let (instance, context) = self.instance(&assignment.instance);
            instance.prepare(context, assignment)?;
        }
        self.report_not_understood(desired).await?;
        self.trouble = None;
        Ok(false)
    }
}

/// Why a worker looks at its instances again.
enum WorkerNews {
    /// It has to end.
    End,
    /// The list, a unit or a health changed.
    Change,
    Job(Result<FinishedJob, FailedJob>),
    /// It is time.
    Time,
}

/// Ends [`LAST_PASS`] after `cancel`.
async fn long_cancelled(cancel: &CancellationToken) {
    cancel.cancelled().await;
    tokio::time::sleep(LAST_PASS).await;
}

/// An event, and then a pause. A dropped event needs no memory: what comes instead makes a pass, too.
async fn settled_event(events: &mut Option<UnitEvents>, pause: Duration) {
    next_event(events).await;
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
}

/// Drops the events that are unread before a pass: the pass reads all units after these changes.
fn drop_unread_events(events: &mut Option<UnitEvents>) {
    while let Some(stream) = events {
        match stream.next().now_or_never() {
            Some(Some(_)) => {}
            Some(None) => *events = None,
            None => return,
        }
    }
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

fn is_done(result: &Result<JobResult, SystemdError>) -> bool {
    matches!(result, Ok(JobResult::Done))
}

fn ignore_missing(result: Result<(), SystemdError>) -> Result<(), SystemdError> {
    match result {
        Err(SystemdError::NoSuchUnit(_)) => Ok(()),
        other => other,
    }
}
