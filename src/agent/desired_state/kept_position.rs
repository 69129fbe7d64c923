//! `/var/lib/kat/position.json`: the epoch and revision of the last state of the cluster that was
//! confirmed here, and the verifiers of later epochs. After a restart of the agent, a member that is
//! behind it or was restored from old data cannot send this machine back.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{known_epochs::KnownEpochs, watched_writes::WatchedWrites};
use kat_daemon::watchdog::LoopPulses;
use kat_host::files::{self, FileAccess, FileError};
use kat_store::{EpochProofs, KnownState};
use kat_types::encoding::state_frames::StatePosition;

/// Largest file in bytes.
const LIMIT: u64 = 4096;
/// Shortest time between two writes. A position that is lost with the machine only lets an
/// older state be accepted, by what changed in this time.
const BETWEEN_WRITES: Duration = Duration::from_secs(5);

/// Content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptPosition {
    /// Version of this object's schema, now 1.
    schema: u32,
    /// The cluster that the revisions belong to.
    cluster_uid: String,
    #[serde(flatten)]
    position: StatePosition,
    /// The verifiers of the recovery keys, base64; an earlier version keeps none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    verifiers: Vec<String>,
}

/// What an earlier process kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecalledState {
    pub position: StatePosition,
    pub verifiers: Vec<String>,
}

/// The file, for one cluster.
#[derive(Debug, Clone)]
pub struct PositionFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The cluster that the positions belong to.
    pub cluster_uid: String,
}

impl PositionFile {
    /// What an earlier process kept. A file that is missing, can't be read or belongs to another
    /// cluster is no position: then any state is accepted.
    pub(crate) fn recall(&self) -> Option<RecalledState> {
        let read = files::read_bounded(&self.path, LIMIT);
        let content = match read {
            Ok(content) => content,
            Err(error) if error.is_not_found() => return None,
            Err(error) => {
                tracing::error!(
                    "which state of the cluster was last confirmed here is unknown, so an older one may be accepted: {error:#}"
                );
                return None;
            }
        };
        match serde_json::from_slice::<KeptPosition>(&content) {
            Ok(kept) if kept.cluster_uid == self.cluster_uid => Some(RecalledState {
                position: kept.position,
                verifiers: kept.verifiers,
            }),
            Ok(kept) => {
                tracing::info!(
                    path = %self.path.display(),
                    "the position is of another cluster, {}, and does not count",
                    kept.cluster_uid
                );
                None
            }
            Err(error) => {
                tracing::error!(
                    path = %self.path.display(),
                    "which state of the cluster was last confirmed here is unknown, so an older one may be accepted: {error:#}"
                );
                None
            }
        }
    }

    /// What this machine, `node`, knows at the start of this process.
    pub fn known(&self, node: &str) -> (KnownState, Arc<KnownEpochs>) {
        let recalled = self.recall();
        let lowest = recalled.as_ref().map(|recalled| recalled.position);
        let verifiers = recalled.map_or_else(Vec::new, |recalled| recalled.verifiers);
        let epoch = lowest.map(|lowest| lowest.epoch);
        let epochs = KnownEpochs::new(&self.cluster_uid, verifiers, epoch).of_machine(node);
        let epochs = Arc::new(epochs);
        let proofs = Arc::clone(&epochs) as Arc<dyn EpochProofs>;
        (KnownState { lowest, proofs }, epochs)
    }

    /// Keeps each confirmed position, at most one of an epoch in [`BETWEEN_WRITES`], until `cancel`.
    pub(crate) async fn follow(
        self,
        mut confirmed: watch::Receiver<Option<StatePosition>>,
        epochs: Arc<KnownEpochs>,
        writes: WatchedWrites,
        pulses: LoopPulses,
        cancel: CancellationToken,
    ) {
        let pulse = pulses.watch("the position that is kept on the disk");
        loop {
            let changed = cancel.run_until_cancelled(confirmed.changed());
            if !matches!(pulse.wait(changed).await, Some(Ok(()))) {
                // This task ends with the agent alone.
                pulse.wait(cancel.cancelled()).await;
                return;
            }
            let Some(position) = *confirmed.borrow_and_update() else {
                continue;
            };
            // At least those of this position.
            let verifiers = epochs.verifiers();
            let (file, writes) = (self.clone(), writes.clone());
            let write = move || {
                let path = file.path.clone();
                // A failed write is retried and reported by `writes`.
                let _tried_again =
                    writes.write(&path, move || Ok(file.keep(position, &verifiers)?));
            };
            if let Err(error) = pulse.wait(tokio::task::spawn_blocking(write)).await {
                tracing::error!("the position is not kept: {error}");
            }
            // Another epoch is kept at once: an agent that restarts may not return to the one before.
            let mut later = confirmed.clone();
            let other = later.wait_for(|now| now.is_some_and(|now| now.epoch != position.epoch));
            let pause = async {
                let _ = timeout(BETWEEN_WRITES, other).await;
            };
            pulse.wait(cancel.run_until_cancelled(pause)).await;
        }
    }

    /// Writes that this machine has begun an epoch of the store, and by which verifiers it knows a
    /// later one.
    pub(crate) fn begin_epoch(&self, epoch: u64, verifiers: &[String]) -> Result<(), FileError> {
        self.keep(StatePosition { epoch, revision: 0 }, verifiers)
    }

    /// Writes a position that was confirmed, and the verifiers that were known with it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, position: StatePosition, verifiers: &[String]) -> Result<(), FileError> {
        let kept = KeptPosition {
            schema: 1,
            cluster_uid: self.cluster_uid.clone(),
            position,
            verifiers: verifiers.to_vec(),
        };
        let path: &Path = &self.path;
        let content = files::json_of(path, &kept)?;
        files::write_if_changed(path, &content, FileAccess::mode(0o600)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::time::sleep;

    use super::*;
    use crate::Statuses;
    use kat_pki::{
        RecoveryKeys,
        epoch_proof::{KeyReplacement, epoch_verifier, sign_epoch, with_verifiers},
        recovery_key::RecoveryKey,
    };
    use kat_store::{LocalStateSource, StateStore, follow_source_from};
    use kat_testing::{
        MemoryStore,
        state_stream::{ServingStore, wait_for},
    };
    use kat_types::{
        api::StoreEpoch,
        store::{keys, transaction::WriteOperation},
    };

    fn file(folder: &Path, cluster_uid: &str) -> PositionFile {
        PositionFile {
            path: folder.join("position.json"),
            cluster_uid: cluster_uid.to_owned(),
        }
    }

    fn kept(file: &PositionFile) -> Option<StatePosition> {
        Some(file.recall()?.position)
    }

    fn position(epoch: u64, revision: i64) -> StatePosition {
        StatePosition { epoch, revision }
    }

    #[test]
    fn what_is_not_a_position_of_this_cluster_is_nothing_known() {
        let folder = tempfile::tempdir().unwrap();
        let own = file(folder.path(), "3f0c");
        assert_eq!(own.recall(), None, "there is no file");
        own.keep(position(2, 77), &["QUJD".to_owned()]).unwrap();
        let recalled = own.recall().unwrap();
        assert_eq!(recalled.position, position(2, 77));
        assert_eq!(recalled.verifiers, ["QUJD"]);
        assert_eq!(file(folder.path(), "9a1b").recall(), None);
        for damaged in [
            &b""[..],
            b"{",
            br#"{"schema":1,"clusterUid":"3f0c","epoch":2}"#,
            &[b' '; 5000],
        ] {
            fs::write(&own.path, damaged).unwrap();
            assert_eq!(own.recall(), None, "{damaged:?}");
        }
        fs::remove_file(&own.path).unwrap();
        fs::create_dir(&own.path).unwrap();
        assert_eq!(own.recall(), None, "a folder is in its place");
    }

    #[tokio::test(start_paused = true)]
    async fn positions_are_kept_at_most_every_five_seconds_and_the_last_one_always() {
        let folder = tempfile::tempdir().unwrap();
        let own = file(folder.path(), "3f0c");
        let (now, confirmed) = watch::channel(None);
        let cancel = CancellationToken::new();
        let task = tokio::spawn(own.clone().follow(
            confirmed,
            Arc::new(KnownEpochs::new("3f0c", Vec::new(), None)),
            WatchedWrites::new(Statuses::default()),
            LoopPulses::default(),
            cancel.clone(),
        ));
        let mut seen = Vec::new();
        for revision in 1..=120 {
            now.send_replace(Some(position(0, revision)));
            sleep(Duration::from_millis(100)).await;
            let found = own.recall().map(|found| found.position.revision);
            if seen.last() != Some(&found) {
                seen.push(found);
            }
        }
        // 12 seconds: at the first change, and twice more.
        let seen: Vec<_> = seen.into_iter().flatten().collect();
        assert!(seen.len() >= 2 && seen.len() <= 4, "{seen:?}");
        sleep(BETWEEN_WRITES * 2).await;
        assert_eq!(kept(&own), Some(position(0, 120)));
        cancel.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_position_of_a_later_epoch_is_kept_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let own = file(folder.path(), "3f0c");
        let (now, confirmed) = watch::channel(None);
        let cancel = CancellationToken::new();
        let task = tokio::spawn(own.clone().follow(
            confirmed,
            Arc::new(KnownEpochs::new("3f0c", Vec::new(), None)),
            WatchedWrites::new(Statuses::default()),
            LoopPulses::default(),
            cancel.clone(),
        ));
        for (confirmed, on_disk) in [
            (position(0, 70), position(0, 70)),
            (position(0, 71), position(0, 70)),
            (position(1, 5), position(1, 5)),
            (position(1, 6), position(1, 5)),
        ] {
            now.send_replace(Some(confirmed));
            sleep(Duration::from_millis(100)).await;
            assert_eq!(kept(&own), Some(on_disk), "after {confirmed:?}");
        }
        cancel.cancel();
        task.await.unwrap();
    }

    /// A process of the agent: it follows `serving`, and keeps the positions. The state is shown
    /// after `until` is confirmed, or after half a minute.
    async fn run_agent(
        own: &PositionFile,
        serving: &ServingStore,
        until: impl Fn(&kat_store::MirrorState) -> bool,
    ) -> Option<Arc<kat_store::MirrorState>> {
        let cancel = CancellationToken::new();
        let source = LocalStateSource::new(serving.feed.clone(), "n1");
        let (known, epochs) = own.known("n1");
        let followed = follow_source_from(Arc::new(source), known, cancel.clone());
        let keeping = tokio::spawn(own.clone().follow(
            followed.confirmed,
            epochs,
            WatchedWrites::new(Statuses::default()),
            LoopPulses::default(),
            cancel.clone(),
        ));
        let shown = wait_for(&followed.mirror, |state| state.confirmed && until(state));
        let shown = tokio::time::timeout(Duration::from_secs(30), shown).await;
        sleep(BETWEEN_WRITES * 2).await;
        cancel.cancel();
        keeping.await.unwrap();
        shown.ok()
    }

    async fn store(writes: usize, epoch: Option<u64>) -> MemoryStore {
        let store = MemoryStore::new();
        let put = |key: &str, value: String| WriteOperation::Put(key.to_owned(), value.into());
        for number in 0..writes {
            let list = put(&keys::desired_meta("n1"), number.to_string());
            store.transact(&[], &[list]).await.unwrap();
        }
        if let Some(epoch) = epoch {
            let stated = format!(r#"{{"schema":1,"epoch":{epoch},"proof":""}}"#);
            let stated = put(keys::STORE_EPOCH, stated);
            store.transact(&[], &[stated]).await.unwrap();
        }
        store
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_restart_an_older_store_is_refused_and_one_of_a_later_epoch_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let own = file(folder.path(), "3f0c");
        let first = store(20, None).await;
        let serving = ServingStore::start(&first);
        let shown = run_agent(&own, &serving, |_| true).await.unwrap();
        assert_eq!(kept(&own), Some(position(0, shown.revision)));

        // A member with old data, such as one that was restored: its list never shows.
        let old = ServingStore::start(&store(5, None).await);
        let shown = run_agent(&own, &old, |_| true).await;
        assert!(shown.is_none(), "an older state is taken: {shown:?}");
        // The same store is the first choice of a machine that knows nothing.
        let new = file(tempfile::tempdir().unwrap().path(), "3f0c");
        assert!(run_agent(&new, &old, |_| true).await.is_some());

        // The store itself is accepted, with what was written meanwhile.
        let list = WriteOperation::Put(keys::desired_meta("n1"), b"later".to_vec());
        first.transact(&[], &[list]).await.unwrap();
        let is_later = |state: &kat_store::MirrorState| {
            let list = state.get(&keys::desired_meta("n1"));
            list.is_some_and(|list| list.value == b"later")
        };
        let shown = run_agent(&own, &serving, is_later).await.unwrap();
        assert_eq!(kept(&own), Some(position(0, shown.revision)));

        // A cluster that was restored from a backup: fewer revisions, and a later epoch.
        let restored = ServingStore::start(&store(3, Some(1)).await);
        let shown = run_agent(&own, &restored, |_| true).await.unwrap();
        assert_eq!(kept(&own), Some(position(1, shown.revision)));
        // From now on the store of before is the older one.
        assert!(run_agent(&own, &serving, |_| true).await.is_none());
    }

    /// A store whose record of the epoch has these fields.
    async fn stating(writes: usize, stated: &StoreEpoch) -> MemoryStore {
        let store = store(writes, None).await;
        let value = serde_json::to_vec(stated).unwrap();
        let put = WriteOperation::Put(keys::STORE_EPOCH.to_owned(), value);
        store.transact(&[], &[put]).await.unwrap();
        store
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_restart_a_later_epoch_needs_a_signature_that_leads_to_a_kept_verifier() {
        let folder = tempfile::tempdir().unwrap();
        let own = file(folder.path(), "3f0c");
        let [key, next, hostile] = [(); 3].map(|()| RecoveryKey::generate().unwrap());
        let publish = |record: &StoreEpoch, current: &RecoveryKey, others: &[&RecoveryKey]| {
            let replaced = current.fingerprint();
            let next = others.first().map(|key| key.fingerprint());
            let replacement = next.as_deref().map(|next| KeyReplacement {
                replaced: &replaced,
                next,
            });
            let others = others.iter().map(|key| (*key).clone());
            let keys = RecoveryKeys::new(current.clone(), others);
            with_verifiers(record, "3f0c", &keys, replacement).unwrap()
        };
        let signed = |key, epoch, record: &StoreEpoch| StoreEpoch {
            epoch,
            signature: sign_epoch(key, "3f0c", epoch).unwrap(),
            ..record.clone()
        };
        let follow = async |writes, stated: &StoreEpoch| {
            let serving = ServingStore::start(&stating(writes, stated).await);
            run_agent(&own, &serving, |_| true).await.is_some()
        };
        // An upgraded machine: nothing is known yet, and a later epoch counts without a proof.
        own.keep(position(1, 1), &[]).unwrap();
        let unsigned = unsigned_at(2);
        assert!(follow(20, &publish(&unsigned, &key, &[])).await);
        let recalled = own.recall().unwrap();
        assert_eq!(recalled.position.epoch, 2);
        let first = publish(&unsigned, &key, &[]);
        assert_eq!(recalled.verifiers, first.verifiers);

        // A member's key without the recovery key.
        assert!(!follow(3, &unsigned_at(3)).await);
        assert!(!follow(3, &signed(&hostile, 3, &first)).await);
        let mut named = publish(&unsigned_at(2), &hostile, &[]);
        assert!(follow(40, &named).await, "the same epoch goes on");
        assert_eq!(own.recall().unwrap().verifiers, first.verifiers);
        named = signed(&hostile, 3, &named);
        assert!(!follow(3, &named).await);

        // Restored after the recovery key was replaced, while this machine was away.
        let replaced = publish(&publish(&first, &key, &[&next]), &next, &[]);
        assert!(follow(3, &signed(&next, 4, &replaced)).await);
        let recalled = own.recall().unwrap();
        assert_eq!(recalled.position.epoch, 4);
        assert_eq!(recalled.verifiers, replaced.verifiers);
        assert!(
            !follow(3, &signed(&key, 5, &replaced)).await,
            "the old key is out"
        );
        assert!(follow(3, &signed(&next, 5, &replaced)).await);
    }

    /// The machine on which `recover` or `restore` ran, with an earlier version's record of the epoch.
    #[tokio::test(start_paused = true)]
    async fn the_machine_that_began_an_epoch_accepts_its_own_store_and_no_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let own = file(folder.path(), "3f0c");
        let [earlier, key] = [(); 2].map(|()| RecoveryKey::generate().unwrap());
        let known = vec![epoch_verifier(&earlier).unwrap()];
        own.keep(position(2, 500), &known).unwrap();
        let verifiers = vec![epoch_verifier(&key).unwrap()];
        own.begin_epoch(3, &verifiers).unwrap();
        let old = ServingStore::start(&stating(600, &unsigned_at(2)).await);
        assert!(run_agent(&own, &old, |_| true).await.is_none());
        let new = ServingStore::start(&stating(3, &unsigned_at(3)).await);
        assert!(run_agent(&own, &new, |_| true).await.is_some());
        let recalled = own.recall().unwrap();
        assert_eq!(
            (recalled.position.epoch, recalled.verifiers),
            (3, verifiers)
        );
    }

    fn unsigned_at(epoch: u64) -> StoreEpoch {
        StoreEpoch {
            epoch,
            ..StoreEpoch::default()
        }
    }
}
