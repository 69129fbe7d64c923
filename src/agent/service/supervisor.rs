//! Passes the desired list to one worker for each workload user, and writes the network's files for
//! `kat-net`.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::blocking::may_block;
use crate::{
    Statuses,
    desired_state::{desired::DesiredState, watched_writes::WatchedWrites},
    disk::eviction::EvictedInstances,
    network::files::{NetworkFiles, instances},
    worker::{
        UserDesired, Worker, WorkerTools,
        unit_state::{unit_files as files, unit_files::UnitFolder},
    },
};
use kat_daemon::watchdog::LoopPulses;
use kat_types::{
    api::{Health, InstancePhase, InstanceReport, MainContainerState},
    assignment::{Assignment, USER_BASE, WorkloadUser},
    images::KeptUserImages,
    machine::network::{INSTANCES_FILE, Instances},
    reason::Reason,
};

/// Pause after a failed write of the network's files.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Runs the workers until `cancel`, which leaves all workloads running.
pub struct Supervisor {
    /// Shared by all workers.
    pub tools: Arc<WorkerTools>,
    /// Receiver of the workers' reports.
    pub statuses: Statuses,
    pub network: NetworkFiles,
    /// Reports the loop's liveness to the watchdog.
    pub pulses: LoopPulses,
    pub writes: WatchedWrites,
    /// Instances that must not run now because a disk is nearly full.
    pub evicted: watch::Receiver<EvictedInstances>,
    workers: BTreeMap<u32, watch::Sender<UserDesired>>,
    tasks: JoinSet<u32>,
    users: BTreeMap<u32, WorkloadUser>,
    /// Instances that were reported to wait for `kat-net`'s list, until they leave the desired
    /// list.
    held: BTreeSet<String>,
    /// `kat-net`'s list as last written.
    in_force: Option<Instances>,
}

impl Supervisor {
    pub fn new(tools: Arc<WorkerTools>, statuses: Statuses, network: NetworkFiles) -> Self {
        Self {
            tools,
            writes: WatchedWrites::new(statuses.clone()),
            statuses,
            network,
            pulses: LoopPulses::default(),
            evicted: watch::Sender::new(EvictedInstances::default()).subscribe(),
            workers: BTreeMap::new(),
            tasks: JoinSet::new(),
            users: BTreeMap::new(),
            held: BTreeSet::new(),
            in_force: None,
        }
    }

    /// Follows the desired list until `cancel`.
    pub async fn run(mut self, mut lists: watch::Receiver<DesiredList>, cancel: CancellationToken) {
        let pulse = self.pulses.watch("supervisor of the workers");
        loop {
            let listed = lists.borrow_and_update().clone();
            // Where the sender of the evictions is gone, the last evictions stay in force.
            let follows_disks = self.evicted.has_changed().is_ok();
            self.evicted.mark_unchanged();
            let again = if self.dispatch(&listed, &cancel) {
                Duration::MAX
            } else {
                AFTER_FAILURE
            };
            let news = async {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => ControlFlow::Break(()),
                    changed = lists.changed() => match changed {
                        Ok(()) => ControlFlow::Continue(None),
                        Err(_) => ControlFlow::Break(()),
                    },
                    Ok(()) = self.evicted.changed(), if follows_disks => ControlFlow::Continue(None),
                    () = tokio::time::sleep(again) => ControlFlow::Continue(None),
                    Some(ended) = self.tasks.join_next() => ControlFlow::Continue(Some(ended)),
                }
            };
            match pulse.wait(news).await {
                ControlFlow::Break(()) => break,
                ControlFlow::Continue(None) => {}
                ControlFlow::Continue(Some(Ok(uid))) => {
                    // The worker's successor may already be in the map.
                    if self.workers.get(&uid).is_some_and(watch::Sender::is_closed) {
                        self.workers.remove(&uid);
                    }
                }
                ControlFlow::Continue(Some(Err(error))) => {
                    // The next dispatch replaces a worker that panicked.
                    tracing::error!("a worker ended early: {error:#}");
                    self.workers.retain(|_, sender| !sender.is_closed());
                }
            }
        }
        drop(pulse);
        while self.tasks.join_next().await.is_some() {}
    }

    /// Passes the list on; false when that has to be retried.
    fn dispatch(&mut self, listed: &DesiredList, cancel: &CancellationToken) -> bool {
        if !listed.known {
            return true;
        }
        let wanted = instances(&listed.desired, &self.tools.options);
        let written = self.write_instances(&wanted);
        self.report_held(listed, &wanted, written.as_ref().err());
        if written.is_ok() {
            self.in_force = Some(wanted.clone());
        }
        let network = &self.network;
        let in_force = self
            .in_force
            .get_or_insert_with(|| network.written_instances())
            .clone();
        let mut by_user: BTreeMap<u32, UserDesired> = BTreeMap::new();
        let mut waiting = BTreeSet::new();
        let evicted = EvictedInstances::clone(&self.evicted.borrow());
        for assignment in listed.desired.assignments.values() {
            self.users
                .insert(assignment.user.uid, assignment.user.clone());
            // A container starts with the network and the fence that `kat-net` knows for it. Until
            // those are written, the worker keeps the previous assignment.
            let is_new = {
                let id = &assignment.instance;
                let (network, fence) = (wanted.instances.get(id), wanted.fenced.get(id));
                (network.is_some() && in_force.instances.get(id) != network)
                    || (fence.is_some() && in_force.fenced.get(id) != fence)
            };
            let present = match is_new {
                true => self.present(assignment),
                false => Some(assignment.clone()),
            };
            let Some(assignment) = present else {
                waiting.insert(assignment.user.uid);
                continue;
            };
            let desired = by_user.entry(assignment.user.uid).or_default();
            desired.confirmed = listed.confirmed;
            if listed.fenced.contains(&assignment.instance) {
                desired.fenced.insert(assignment.instance.clone());
            }
            if let Some(why) = evicted.get(&assignment.instance) {
                let instance = assignment.instance.clone();
                desired.evicted.insert(instance, why.clone());
            }
            desired
                .assignments
                .insert(assignment.instance.clone(), assignment);
        }
        if listed.confirmed {
            let left: Vec<u32> = self
                .workers
                .keys()
                .copied()
                .chain(self.leftovers())
                .filter(|uid| !waiting.contains(uid))
                .collect();
            for uid in left {
                by_user.entry(uid).or_insert(UserDesired {
                    confirmed: true,
                    ..UserDesired::default()
                });
            }
            // Nothing of the others is left on the machine.
            self.users
                .retain(|uid, _| by_user.contains_key(uid) || waiting.contains(uid));
        }
        for (uid, mut desired) in by_user {
            desired.kept = Self::kept_images(&listed.desired, uid);
            match self.workers.get(&uid).filter(|sender| !sender.is_closed()) {
                Some(sender) => {
                    sender.send_if_modified(|present| {
                        let differs = *present != desired;
                        *present = desired;
                        differs
                    });
                }
                None => self.begin(uid, desired, cancel),
            }
        }
        if listed.confirmed && written.is_ok() {
            self.statuses.set_acted(listed.desired.revision);
        }
        written.is_ok()
    }

    fn write_instances(&self, wanted: &Instances) -> Result<(), String> {
        let (network, wanted) = (self.network.clone(), wanted.clone());
        self.writes
            .write(&self.network.path(INSTANCES_FILE), move || {
                Ok(network.write_instances(&wanted).map(drop)?)
            })
    }

    /// The assignment of an instance that its worker has at present.
    fn present(&self, assignment: &Assignment) -> Option<Assignment> {
        let worker = self.workers.get(&assignment.user.uid)?;
        let present = worker.borrow();
        present.assignments.get(&assignment.instance).cloned()
    }

    /// Reports instances without a report that are not started because `kat-net`'s list of them
    /// could not be written.
    fn report_held(&mut self, listed: &DesiredList, wanted: &Instances, error: Option<&String>) {
        let assignments = &listed.desired.assignments;
        let gone: BTreeSet<String> = self
            .held
            .extract_if(.., |instance| !assignments.contains_key(instance))
            .collect();
        if !gone.is_empty() {
            self.statuses
                .retain(|report| !gone.contains(&report.instance_id));
        }
        let Some(error) = error else {
            return;
        };
        let (reports, _) = self.statuses.all();
        let known: BTreeSet<String> = reports.into_iter().map(|one| one.instance_id).collect();
        let new = assignments.values().filter(|one| {
            one.is_run()
                && (wanted.instances.contains_key(&one.instance)
                    || wanted.fenced.contains_key(&one.instance))
                && (self.held.contains(&one.instance) || !known.contains(&one.instance))
                && self.present(one).is_none()
        });
        let new: Vec<&Assignment> = new.collect();
        for assignment in new {
            self.held.insert(assignment.instance.clone());
            self.statuses.set(InstanceReport {
                workload_name: assignment.workload.clone(),
                namespace: assignment.namespace.clone(),
                instance_id: assignment.instance.clone(),
                state: MainContainerState::Unknown,
                phase: InstancePhase::Starting,
                reason: Reason::FilesNotWritten.into(),
                message: error.clone(),
                health_status: match assignment.health_check {
                    Some(_) => Health::PendingCheck,
                    None => Health::NotApplicable,
                },
                template_hash: assignment.template_hash.clone(),
                ..InstanceReport::default()
            });
        }
    }

    /// The images of a user's workload that are kept after the workload has left.
    fn kept_images(desired: &DesiredState, uid: u32) -> Option<KeptUserImages> {
        let index = uid.checked_sub(USER_BASE)?;
        desired.images.as_ref()?.users.get(&index).cloned()
    }

    fn begin(&mut self, uid: u32, desired: UserDesired, cancel: &CancellationToken) {
        let user = self
            .users
            .get(&uid)
            .cloned()
            .or_else(|| self.tools.accounts.find(uid));
        let Some(user) = user else {
            tracing::warn!(uid, "unit files of an unknown user are left alone");
            return;
        };
        // Set before the worker starts, so that no report says that nothing of the user is left.
        self.statuses.set_user(user.index, true);
        let (sender, receiver) = watch::channel(desired);
        let mut worker = Worker::new(
            Arc::clone(&self.tools),
            user,
            receiver,
            self.statuses.clone(),
        );
        worker.pulses = self.pulses.clone();
        let cancel = cancel.clone();
        self.tasks.spawn(async move {
            may_block(worker.run(cancel)).await;
            uid
        });
        self.workers.insert(uid, sender);
    }

    /// Users of KAT's uid range with unit files or an account from before a restart of the agent.
    fn leftovers(&self) -> Vec<u32> {
        let root = &self.tools.root;
        let mut uids = files::users(root);
        uids.retain(|uid| *uid >= USER_BASE && UnitFolder::new(root, *uid).has_any());
        uids.extend(self.tools.accounts.all());
        uids.sort_unstable();
        uids.dedup();
        uids
    }
}

/// The desired list and its state, as the supervisor gets it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredList {
    /// There is a list; without one the workers do nothing.
    pub known: bool,
    /// It comes from the store, not from the disk.
    pub confirmed: bool,
    /// The store is being watched, so that changes are not missed.
    pub current: bool,
    /// When a quorum of the store was read last before the list was passed on: the list has every
    /// change of before.
    pub read_at: Option<Instant>,
    /// The list.
    pub desired: Arc<DesiredState>,
    /// Instances that must not run now because the machine reaches no leader, or the store has
    /// not confirmed the list since the boot (`desired_state/fence.rs`).
    pub fenced: Arc<BTreeSet<String>>,
}

impl DesiredList {
    /// Reads the list that was stored before the agent last stopped, if there is one.
    pub fn stored(path: &Path) -> Self {
        DesiredState::stored(path).map_or_else(Self::default, |desired| Self {
            known: true,
            desired: Arc::new(desired),
            ..Self::default()
        })
    }
}
