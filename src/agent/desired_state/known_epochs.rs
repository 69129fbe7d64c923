//! Which epochs of the store this machine accepts: it keeps the verifiers of the recovery keys that it
//! has seen, and a later epoch has to be signed by one of them.
//!
//! A machine that knows no verifier yet, since no leader has published one, accepts every later epoch
//! of a server that it knows, and the first verifiers that it sees.

use crate::commands::recovery::replaced_text;
use kat_pki::epoch_proof::{EpochVerifiers, LearnedVerifiers};
use kat_store::EpochProofs;
use kat_types::api::{StoreEpoch, StoreServer};
use parking_lot::Mutex;
use tokio::sync::watch;

/// The way out that a person has, as the journal says it.
const WAY_OUT: &str = "if the cluster was restored from a backup that only an earlier recovery key opens, stop kat-agent on this machine, remove /var/lib/kat/position.json, and start it";

/// What a machine says about a later epoch that it refuses, in a line.
pub(crate) fn refused_epoch_text(epoch: u64) -> String {
    format!(
        "a store of epoch {epoch} is refused, since nothing that this machine knows proves it; `journalctl -u kat-agent` says more"
    )
}

/// What this machine knows about the epochs of the store.
pub struct KnownEpochs {
    /// Name of this machine; empty if it does not matter.
    node: String,
    known: Mutex<Known>,
    refused: watch::Sender<Option<u64>>,
    replaced: watch::Sender<bool>,
}

struct Known {
    verifiers: EpochVerifiers,
    /// The epoch of the last accepted state; `None` before the first one.
    epoch: Option<u64>,
    /// What was last said in the journal.
    said: String,
}

impl Known {
    /// Says something once.
    fn warn(&mut self, news: String) {
        if self.said != news {
            tracing::error!("{news}");
            self.said = news;
        }
    }
}

impl KnownEpochs {
    /// From what an earlier process kept.
    pub(crate) fn new(cluster_uid: &str, verifiers: Vec<String>, epoch: Option<u64>) -> Self {
        Self {
            node: String::new(),
            known: Mutex::new(Known {
                verifiers: EpochVerifiers::new(cluster_uid, verifiers),
                epoch,
                said: String::new(),
            }),
            refused: watch::Sender::new(None),
            replaced: watch::Sender::new(false),
        }
    }

    /// For the machine with this name: it follows no store that a restore began under this name.
    pub(crate) fn of_machine(self, node: &str) -> Self {
        Self {
            node: node.to_owned(),
            ..self
        }
    }

    /// Whether a server has proved that another machine was restored under this machine's name since
    /// the epoch that this machine has seen.
    pub(crate) fn replaced(&self) -> watch::Receiver<bool> {
        self.replaced.subscribe()
    }

    /// The verifiers, for the disk.
    pub fn verifiers(&self) -> Vec<String> {
        self.known.lock().verifiers.known().to_vec()
    }

    /// The later epoch that was refused last; `None` once a state is confirmed again.
    pub(crate) fn refused(&self) -> watch::Receiver<Option<u64>> {
        self.refused.subscribe()
    }

    /// Whether an unknown server may be asked at all: its answer can be checked.
    pub(crate) fn can_check(&self) -> bool {
        let known = self.known.lock();
        known.epoch.is_some() && !known.verifiers.is_empty()
    }

    /// Whether a server that this machine does not know has the store of a later epoch: both the
    /// epoch and the server's key are signed.
    pub(crate) fn is_server_of_later_epoch(
        &self,
        stated: &StoreEpoch,
        server: &StoreServer,
    ) -> bool {
        let known = self.known.lock();
        let verifiers = &known.verifiers;
        known.epoch.is_some_and(|own| {
            stated.epoch > own
                && verifiers.is_later(stated, own)
                && verifiers.is_server(stated, server)
        })
    }
}

impl EpochProofs for KnownEpochs {
    fn check(&self, own: u64, offered: u64, record: Option<&StoreEpoch>) -> Result<(), String> {
        let mut known = self.known.lock();
        if known.verifiers.is_empty() {
            return Ok(());
        }
        let stated = record.filter(|record| record.epoch == offered);
        let proved = stated.filter(|record| known.verifiers.is_later(record, own));
        if let Some(record) = proved {
            if !known.verifiers.is_restored_as(record, own, &self.node) {
                return Ok(());
            }
            self.replaced.send_replace(true);
            return Err(replaced_text(&self.node));
        }
        self.refused.send_replace(Some(offered));
        let news = format!(
            "a server has a store of epoch {offered}, and this machine has seen epoch {own}: no recovery key that this machine knows has signed it, so nothing of it is applied; {WAY_OUT}"
        );
        known.warn(news.clone());
        Err(news)
    }

    fn accepted(&self, epoch: u64, record: Option<&StoreEpoch>) {
        let mut known = self.known.lock();
        known.epoch = Some(epoch);
        let Some(record) = record.filter(|record| record.epoch == epoch) else {
            return;
        };
        match known.verifiers.learn(record) {
            LearnedVerifiers::Same => {}
            LearnedVerifiers::Changed(verifiers) => known.verifiers = verifiers,
            LearnedVerifiers::NotEndorsed(verifiers) => {
                known.verifiers = verifiers;
                known.warn(format!(
                    "the cluster names a recovery key that none which this machine knows has endorsed: a later epoch of the store that this key signs will be refused here; {WAY_OUT}"
                ));
            }
        }
    }

    fn confirmed(&self) {
        self.refused
            .send_if_modified(|refused| refused.take().is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_pki::{
        RecoveryKeys,
        epoch_proof::{KeyReplacement, sign_epoch, sign_server, with_verifiers},
        recovery_key::RecoveryKey,
    };
    use kat_types::api::EarlierEpoch;

    const UID: &str = "3f0c";

    fn keys<const N: usize>() -> [RecoveryKey; N] {
        std::array::from_fn(|_| RecoveryKey::generate().unwrap())
    }

    fn published(record: &StoreEpoch, current: &RecoveryKey, other: &[&RecoveryKey]) -> StoreEpoch {
        let replaced = current.fingerprint();
        let next = other.first().map(|key| key.fingerprint());
        let replacement = next.as_deref().map(|next| KeyReplacement {
            replaced: &replaced,
            next,
        });
        let others = other.iter().map(|key| (*key).clone());
        let keys = RecoveryKeys::new(current.clone(), others);
        with_verifiers(record, UID, &keys, replacement).unwrap()
    }

    fn signed(key: &RecoveryKey, epoch: u64, before: &StoreEpoch) -> StoreEpoch {
        StoreEpoch {
            epoch,
            signature: sign_epoch(key, UID, epoch).unwrap(),
            ..before.clone()
        }
    }

    #[test]
    fn a_machine_without_verifiers_accepts_an_epoch_and_learns_and_then_wants_proofs() {
        let [key, other] = keys();
        let known = KnownEpochs::new(UID, Vec::new(), None);
        assert!(!known.can_check());
        known.accepted(0, None);
        known.check(0, 5, None).unwrap();
        let record = published(&signed(&key, 5, &StoreEpoch::default()), &key, &[]);
        known.accepted(5, Some(&record));
        assert_eq!(known.verifiers(), record.verifiers);
        assert!(known.can_check());

        known.check(5, 6, None).unwrap_err();
        assert_eq!(*known.refused().borrow(), Some(6));
        known.confirmed();
        assert_eq!(*known.refused().borrow(), None);
        let error = known
            .check(5, 6, Some(&signed(&other, 6, &record)))
            .unwrap_err();
        assert!(error.contains("position.json"), "{error}");
        // A number beside the signed one.
        known
            .check(5, 7, Some(&signed(&key, 6, &record)))
            .unwrap_err();
        known.check(5, 6, Some(&signed(&key, 6, &record))).unwrap();
        // An earlier version writes the record anew at this epoch.
        known.accepted(
            5,
            Some(&StoreEpoch {
                epoch: 5,
                ..StoreEpoch::default()
            }),
        );
        known.check(5, 6, None).unwrap_err();

        // As the next process reads it.
        let known = KnownEpochs::new(UID, known.verifiers(), Some(5));
        known
            .check(5, 6, Some(&signed(&other, 6, &record)))
            .unwrap_err();
        known.check(5, 6, Some(&signed(&key, 6, &record))).unwrap();
    }

    #[test]
    fn a_hostile_member_does_not_replace_the_verifier_and_an_endorsement_does() {
        let [key, next, hostile] = keys();
        let known = KnownEpochs::new(UID, Vec::new(), None);
        let record = published(&StoreEpoch::default(), &key, &[]);
        known.accepted(0, Some(&record));
        let own = known.verifiers();
        known.accepted(0, Some(&published(&StoreEpoch::default(), &hostile, &[])));
        assert_eq!(known.verifiers(), own);
        known
            .check(0, 6, Some(&signed(&hostile, 6, &record)))
            .unwrap_err();
        // A record of an epoch that was not accepted teaches nothing.
        let both = published(&record, &key, &[&next]);
        known.accepted(0, Some(&signed(&next, 9, &both)));
        assert_eq!(known.verifiers(), own);
        // Signed by the key that took its place while this machine was away.
        let replaced = published(&both, &next, &[]);
        known
            .check(0, 6, Some(&signed(&next, 6, &replaced)))
            .unwrap();
        known.accepted(0, Some(&replaced));
        assert_eq!(known.verifiers(), replaced.verifiers);
        known
            .check(0, 6, Some(&signed(&key, 6, &replaced)))
            .unwrap_err();
    }

    #[test]
    fn a_machine_follows_no_store_that_a_restore_began_under_its_own_name() {
        let [key] = keys();
        let record = published(&signed(&key, 5, &StoreEpoch::default()), &key, &[]);
        let restored = StoreEpoch {
            restored: Some(sign_server(&key, UID, 9, ("n1", "ab")).unwrap()),
            ..signed(&key, 9, &record)
        };
        for (node, is_replaced) in [("n1", true), ("n2", false)] {
            let known = KnownEpochs::new(UID, Vec::new(), None).of_machine(node);
            known.accepted(5, Some(&record));
            let replaced = known.replaced();
            assert_eq!(known.check(5, 9, Some(&restored)).is_err(), is_replaced);
            assert_eq!(*replaced.borrow(), is_replaced);
            assert_eq!(*known.refused().borrow(), None);
            // The store was created anew once more since. The restored machine has begun epoch 9.
            let earlier = EarlierEpoch {
                epoch: 9,
                restored: restored.restored.clone(),
                ..EarlierEpoch::default()
            };
            let later = StoreEpoch {
                restored: None,
                earlier: vec![earlier],
                ..signed(&key, 11, &restored)
            };
            assert_eq!(known.check(5, 11, Some(&later)).is_err(), is_replaced);
            known.check(9, 11, Some(&later)).unwrap();
        }
    }

    #[test]
    fn an_unknown_server_counts_with_a_signed_key_and_a_later_signed_epoch_alone() {
        let [key, hostile] = keys();
        let record = published(&signed(&key, 5, &StoreEpoch::default()), &key, &[]);
        let known = KnownEpochs::new(UID, Vec::new(), None);
        known.accepted(5, Some(&record));
        let server = |key, epoch| sign_server(key, UID, epoch, ("n1", "ab")).unwrap();
        let later = signed(&key, 9, &record);
        assert!(known.is_server_of_later_epoch(&later, &server(&key, 9)));
        // It repeats what the cluster has published, for a key of its own.
        assert!(!known.is_server_of_later_epoch(&later, &server(&hostile, 9)));
        assert!(!known.is_server_of_later_epoch(&later, &server(&key, 5)));
        // A member that was removed in this epoch.
        assert!(!known.is_server_of_later_epoch(&record, &server(&key, 5)));
        assert!(!known.is_server_of_later_epoch(&signed(&hostile, 9, &record), &server(&key, 9)));
        let nothing = KnownEpochs::new(UID, Vec::new(), Some(5));
        assert!(!nothing.is_server_of_later_epoch(&later, &server(&key, 9)));
    }
}
