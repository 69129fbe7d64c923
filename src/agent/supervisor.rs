//! Hands the desired list to one worker for each workload user, and the network's files to `kat-net`.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    Statuses,
    desired::Desired,
    files::{self, UnitFolder},
    network_files::{NetworkFiles, instances},
    paths::UserFolders,
    worker::{Tools, UserDesired, Worker},
};
use crate::{
    plan::{KeptOfUser, USER_BASE, WorkloadUser},
    pulse::Pulses,
};

/// Pause after the network's files could not be written.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Runs until `cancel`, which leaves everything as it is.
pub struct Supervisor {
    /// What the workers work with.
    pub tools: Arc<Tools>,
    /// Where workers report to.
    pub statuses: Statuses,
    /// `kat-net`'s files.
    pub network: NetworkFiles,
    /// Where its loop is seen by the watchdog.
    pub pulses: Pulses,
    workers: BTreeMap<u32, watch::Sender<UserDesired>>,
    tasks: JoinSet<u32>,
    users: BTreeMap<u32, WorkloadUser>,
}

impl Supervisor {
    /// No worker yet.
    pub fn new(tools: Arc<Tools>, statuses: Statuses, network: NetworkFiles) -> Self {
        Self {
            tools,
            statuses,
            network,
            pulses: Pulses::default(),
            workers: BTreeMap::new(),
            tasks: JoinSet::new(),
            users: BTreeMap::new(),
        }
    }

    /// Follows the desired list.
    pub async fn run(mut self, mut lists: watch::Receiver<Listed>, cancel: CancellationToken) {
        let pulse = self.pulses.watch("the supervisor of the workers");
        loop {
            let listed = lists.borrow_and_update().clone();
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
                    () = tokio::time::sleep(again) => ControlFlow::Continue(None),
                    Some(ended) = self.tasks.join_next() => ControlFlow::Continue(Some(ended)),
                }
            };
            match pulse.wait(news).await {
                ControlFlow::Break(()) => break,
                ControlFlow::Continue(None) => {}
                ControlFlow::Continue(Some(Ok(uid))) => {
                    // Its successor may stand there already.
                    if self.workers.get(&uid).is_some_and(watch::Sender::is_closed) {
                        self.workers.remove(&uid);
                    }
                }
                ControlFlow::Continue(Some(Err(error))) => {
                    // A worker that panicked is made anew by the next dispatch.
                    tracing::error!(%error, "a worker ended early");
                    self.workers.retain(|_, sender| !sender.is_closed());
                }
            }
        }
        drop(pulse);
        while self.tasks.join_next().await.is_some() {}
    }

    /// False when it has to be tried again.
    fn dispatch(&mut self, listed: &Listed, cancel: &CancellationToken) -> bool {
        if !listed.known {
            return true;
        }
        if let Err(error) = self.network.write_instances(&instances(&listed.desired)) {
            tracing::error!(%error, "the network's list of instances can't be written; nothing new is started");
            return false;
        }
        let mut by_user: BTreeMap<u32, UserDesired> = BTreeMap::new();
        for assignment in listed.desired.assignments.values() {
            self.users
                .insert(assignment.user.uid, assignment.user.clone());
            let desired = by_user.entry(assignment.user.uid).or_default();
            desired.confirmed = listed.confirmed;
            if listed.fenced.contains(&assignment.instance) {
                desired.fenced.insert(assignment.instance.clone());
            }
            desired
                .assignments
                .insert(assignment.instance.clone(), assignment.clone());
        }
        if listed.confirmed {
            let left: Vec<u32> = self
                .workers
                .keys()
                .copied()
                .chain(self.leftovers())
                .collect();
            for uid in left {
                by_user.entry(uid).or_insert(UserDesired {
                    confirmed: true,
                    ..UserDesired::default()
                });
            }
        }
        for (uid, mut desired) in by_user {
            desired.kept = Self::kept(&listed.desired, uid);
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
        if listed.confirmed {
            self.statuses.set_acted(listed.desired.revision);
        }
        true
    }

    /// The images of a user's workload that are kept when it leaves.
    fn kept(desired: &Desired, uid: u32) -> Option<KeptOfUser> {
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
        // At once, so that no report goes out that says that nothing of the user is left.
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
            worker.run(cancel).await;
            uid
        });
        self.workers.insert(uid, sender);
    }

    /// Users of KAT's range that have unit files or an account, from before a restart of the agent.
    fn leftovers(&self) -> Vec<u32> {
        let root = &self.tools.root;
        let mut uids = files::users(root);
        uids.retain(|uid| {
            *uid >= USER_BASE && UnitFolder::new(UserFolders::new(root, *uid), *uid).has_any()
        });
        uids.extend(self.tools.accounts.all());
        uids.sort_unstable();
        uids.dedup();
        uids
    }
}

/// The desired list as the supervisor gets it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// There is a list; without one nothing is done.
    pub known: bool,
    /// It comes from the store, not from the disk.
    pub confirmed: bool,
    /// The store is followed now: what it says is not missed.
    pub current: bool,
    /// The list.
    pub desired: Arc<Desired>,
    /// Instances that must not run now, because the machine reaches no leader (`fence.rs`).
    pub fenced: Arc<BTreeSet<String>>,
}

impl Listed {
    /// The list of before the last stop, if there is one.
    pub fn stored(path: &Path) -> Self {
        Desired::stored(path).map_or_else(Self::default, |desired| Self {
            known: true,
            desired: Arc::new(desired),
            ..Self::default()
        })
    }
}
