//! A cluster whose store was made anew, and members that return with the store of before: agents
//! follow the later epoch, and none goes back.
//!
//! The new store is the one of the run, which gets a later epoch as by `recover`. The old store is a
//! copy of it from before, to which more was written, and one member serves it to other machines.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use tokio::{sync::watch, time::timeout};

use crate::{
    faults::{disabled_safeguards::Without, machine_faults::small_disk},
    random::Random,
    run::{Repair, Scenario},
    world::{MEMBERS, World},
};
use kat_agent::{KnownEpochs, PositionFile, prove_epoch};
use kat_pki::{
    RecoveryKeys,
    epoch_proof::{sign_epoch, with_verifiers},
    recovery_key::RecoveryKey,
};
use kat_store::{AnyEpoch, KnownState, MirrorState};
use kat_testing::{MemoryStore, state_stream::ServingStore};
use kat_types::{
    api::StoreEpoch,
    encoding::state_frames::StatePosition,
    store::{keys, transaction::WriteOperation},
};

/// The uid of the cluster of a run.
const CLUSTER: &str = "cluster";
/// Shortest time between two writes of a position, as in the agent.
const BETWEEN_WRITES: Duration = Duration::from_secs(5);
/// How many more revisions the old store has than the new one.
const AHEAD: i64 = 500;
/// The old store is served for so many milliseconds.
const RETURNED: (u64, u64) = (5_000, 40_000);

/// The cluster's recovery key, and one of somebody else. Nothing in a run depends on their bytes.
static KEYS: LazyLock<[RecoveryKey; 2]> =
    LazyLock::new(|| [(); 2].map(|()| RecoveryKey::generate().unwrap()));

/// What an agent knows of the epochs that it has followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EpochRules {
    /// The position of an earlier process counts, and a later epoch has to be proved.
    Kept,
    /// An agent that starts knows nothing of before.
    Forgotten,
    /// Every later epoch is believed.
    Unproved,
}

impl EpochRules {
    /// Runs without another safeguard keep no position, so that they find the same violations as
    /// before.
    pub(crate) fn of(without: Without) -> Self {
        match without {
            Without::Nothing => Self::Kept,
            Without::EpochProofs => Self::Unproved,
            _ => Self::Forgotten,
        }
    }

    /// What a process knows when it starts, and what it keeps.
    pub(crate) fn known(
        self,
        file: &PositionFile,
        node: &str,
    ) -> (KnownState, Option<Arc<KnownEpochs>>) {
        let (known, epochs) = file.known(node);
        match self {
            Self::Kept => (known, Some(epochs)),
            Self::Forgotten => (KnownState::default(), None),
            Self::Unproved => {
                let proofs = Arc::new(AnyEpoch);
                (KnownState { proofs, ..known }, Some(epochs))
            }
        }
    }
}

/// Keeps the positions of a process. The agent's own loop writes on another thread, whose time is
/// not that of a run.
pub(crate) async fn keep_positions(
    file: PositionFile,
    epochs: Arc<KnownEpochs>,
    mut confirmed: watch::Receiver<Option<StatePosition>>,
) {
    while confirmed.changed().await.is_ok() {
        let Some(position) = *confirmed.borrow_and_update() else {
            continue;
        };
        // The next one is tried where the disk is full.
        let _ = file.keep(position, &epochs.verifiers());
        let mut later = confirmed.clone();
        let other = later.wait_for(|now| now.is_some_and(|now| now.epoch != position.epoch));
        let _ = timeout(BETWEEN_WRITES, other).await;
    }
}

/// The epochs that the machines have followed.
#[derive(Default)]
pub(crate) struct FollowedEpochs {
    /// What each machine showed at the last check. Its file has it at the next one.
    shown: BTreeMap<String, u64>,
    followed: BTreeMap<String, u64>,
}

/// The store that is made anew in a run.
pub(crate) struct ReturnSteps {
    random: Random,
    /// The step at which it is made anew.
    begins_at: u64,
    step: u64,
    old: Option<MemoryStore>,
}

impl ReturnSteps {
    /// `None` for seeds in which the store stays. The steps have a generator of their own, so that
    /// the other steps of a seed stay as they are.
    pub(crate) fn of_seed(seed: u64, without: Without) -> Option<Self> {
        let mut random = Random::new(seed ^ 0x0072_6574_7572_6e73);
        let begins_at = 3 + random.below(12);
        let returns = seed % 10 == 8 && small_disk(seed).is_none();
        (returns && without == Without::Nothing).then_some(Self {
            random,
            begins_at,
            step: 0,
            old: None,
        })
    }
}

impl Scenario {
    /// Makes the store anew at one step, and lets a member return with the old one at a later step.
    pub(crate) fn step_of_the_returns(&mut self) {
        let Some(steps) = &mut self.returns else {
            return;
        };
        steps.step += 1;
        if steps.step == 1 {
            self.world.publish_verifier();
        }
        if steps.step == steps.begins_at {
            let record = self.world.store_epoch();
            steps.old = Some(self.world.old_store(&record));
            self.world.begin_epoch();
            return;
        }
        // A machine that has not seen the new store yet would follow the old one.
        if !self.world.all_follow_the_epoch() {
            return;
        }
        if let Some(old) = steps.old.take() {
            let member = steps.random.index(MEMBERS);
            let (least, most) = RETURNED;
            let after = steps.random.milliseconds(least, most);
            self.world.return_with(member, &old);
            self.repair_after(after, Repair::OldStore(member));
        }
    }
}

impl World {
    /// The record of the epoch in the store of the run.
    pub(crate) fn store_epoch(&self) -> StoreEpoch {
        let found = self.store.peek(keys::STORE_EPOCH).items.into_iter().next();
        found.map_or_else(StoreEpoch::default, |item| {
            serde_json::from_slice(&item.value).unwrap()
        })
    }

    /// The leader publishes the verifier of the recovery key.
    pub(crate) fn publish_verifier(&self) {
        let [key, _] = &*KEYS;
        let keys = RecoveryKeys::from(key.clone());
        let record = with_verifiers(&self.store_epoch(), CLUSTER, &keys, None).unwrap();
        self.store.write_now(&[put_epoch(&record)]);
    }

    /// The store is made anew, as by `recover`: it has what it had, and a later epoch.
    pub(crate) fn begin_epoch(&self) {
        let [key, _] = &*KEYS;
        let before = self.store_epoch();
        let mut record = prove_epoch(key, CLUSTER, before.epoch + 1, &before).unwrap();
        // Sealed with a random number, so that no run would be the same; agents do not open it.
        record.proof.clear();
        self.store.write_now(&[put_epoch(&record)]);
        self.monitor
            .note(&format!("the store is made anew: epoch {}", record.epoch));
    }

    /// A store with what the store of the run has now, and with this record of the epoch. More was
    /// written to it than to the store of the run.
    pub(crate) fn old_store(&self, record: &StoreEpoch) -> MemoryStore {
        let old = MemoryStore::new();
        let items = self.store.peek(keys::ROOT).items.into_iter();
        let copied: Vec<WriteOperation> = items
            .map(|item| WriteOperation::Put(item.key, item.value))
            .collect();
        old.write_now(&copied);
        while old.revision() < self.store.revision() + AHEAD {
            old.write_now(&[put_epoch(record)]);
        }
        old
    }

    /// A record of a later epoch that another key than the cluster's recovery key has signed.
    pub(crate) fn forged_epoch(&self) -> StoreEpoch {
        let [_, other] = &*KEYS;
        let before = self.store_epoch();
        let epoch = before.epoch + 1;
        StoreEpoch {
            epoch,
            signature: sign_epoch(other, CLUSTER, epoch).unwrap(),
            ..before
        }
    }

    /// A member serves an old store to other machines. Streams from it break.
    pub(crate) fn return_with(&mut self, number: usize, old: &MemoryStore) {
        let name = self.machines[number].name.clone();
        self.monitor
            .note(&format!("{name} returns with an old store"));
        self.net.serve_old(&name, Some(ServingStore::start(old)));
        self.change_way(number, |way| way.streams_broken += 1);
    }

    /// The member has found the later epoch, and serves the store of the run again.
    pub(crate) fn end_return(&mut self, number: usize) {
        let name = self.machines[number].name.clone();
        self.net.serve_old(&name, None);
    }

    /// The epoch that a machine's agent follows, where its copy is confirmed.
    pub(crate) fn followed_epoch(&self, number: usize) -> Option<u64> {
        let process = self.machines[number].process.as_ref()?;
        let copy = process.copy();
        copy.confirmed.then(|| epoch_of(&copy))
    }

    /// Every machine of the cluster has followed the epoch of the store.
    fn all_follow_the_epoch(&self) -> bool {
        let epoch = self.store_epoch().epoch;
        let followed = &self.epochs.followed;
        self.joined()
            .all(|machine| followed.get(&machine.name) == Some(&epoch))
    }

    /// No machine goes below an epoch that it has followed, or follows one that nothing proves.
    pub(crate) fn check_epochs(&mut self) {
        let proved = self.store_epoch().epoch;
        for number in 0..self.machines.len() {
            let Some(epoch) = self.followed_epoch(number) else {
                continue;
            };
            let name = self.machines[number].name.clone();
            let epochs = &mut self.epochs;
            let before = epochs.followed.get(&name).copied().unwrap_or(0);
            let shown = epochs.shown.insert(name.clone(), epoch);
            if shown == Some(epoch) {
                epochs.followed.insert(name.clone(), epoch.max(before));
            }
            if epoch < before {
                self.monitor.violated(format!(
                    "{name} follows epoch {epoch} of the store, and has followed epoch {before}"
                ));
            }
            if epoch > proved {
                self.monitor.violated(format!(
                    "{name} follows epoch {epoch} of the store, which no recovery key has signed"
                ));
            }
        }
    }
}

fn put_epoch(record: &StoreEpoch) -> WriteOperation {
    let value = serde_json::to_vec(record).unwrap();
    WriteOperation::Put(keys::STORE_EPOCH.to_owned(), value)
}

fn epoch_of(copy: &MirrorState) -> u64 {
    copy.get(keys::STORE_EPOCH).map_or(0, |item| {
        let record: StoreEpoch = serde_json::from_slice(&item.value).unwrap();
        record.epoch
    })
}
