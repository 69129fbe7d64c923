//! Detects that the store which a machine holds has been replaced.
//!
//! `recover` and `restore` create the store anew on one machine, and increase the store's epoch. A
//! member that was away meanwhile has data of the earlier epoch, and two such members could even
//! form a quorum. So every member requests the epoch from the others' API ports, before it starts
//! etcd and then periodically; a member that finds a later epoch ends its membership. An epoch is
//! only accepted if it is proved with the recovery key, so that no other machine or stranger can
//! take members down.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::{cluster_cache::ClusterCache, identity::MachineIdentity, keys::MachineKeys};
use kat_client::{Client, ClientError, ClientOptions};
use kat_pki::{
    ApiServers, PkiError, RecoveryKeys,
    epoch_proof::{EpochVerifiers, epoch_verifier, is_epoch_sealed, seal_epoch, sign_epoch},
    recovery_key::RecoveryKey,
};
use kat_types::api::{EarlierEpoch, HealthView, StoreEpoch};

/// How many earlier epochs are kept with an epoch, and looked at.
const MAX_EARLIER: usize = 8;
/// Longest wait for one machine's response.
const ANSWER_LIMIT: Duration = Duration::from_millis(1500);
/// Longest wait for all responses before etcd starts.
const START_LIMIT: Duration = Duration::from_secs(3);
/// Pause before a machine that did not respond is asked again.
const AGAIN: Duration = Duration::from_millis(300);

/// Makes a statement of an epoch, sealed for the members and signed for the other machines. Those
/// that came `before` it stay with it.
pub(super) fn prove(
    key: &RecoveryKey,
    cluster_uid: &str,
    epoch: u64,
    before: &StoreEpoch,
) -> Result<StoreEpoch, PkiError> {
    let last = EarlierEpoch {
        epoch: before.epoch,
        proof: before.proof.clone(),
        signature: before.signature.clone(),
    };
    let earlier = std::iter::once(last).chain(before.earlier.iter().cloned());
    let earlier = earlier.filter(|one| one.epoch < epoch && !one.proof.is_empty());
    let verifiers = match before.verifiers.is_empty() {
        true => vec![epoch_verifier(key)?],
        // The leader brings them up to date, with the endorsements.
        false => before.verifiers.clone(),
    };
    Ok(StoreEpoch {
        schema: 1,
        epoch,
        proof: seal_epoch(key, cluster_uid, epoch)?,
        earlier: earlier.take(MAX_EARLIER).collect(),
        signature: sign_epoch(key, cluster_uid, epoch)?,
        verifiers,
        endorsements: before.endorsements.clone(),
    })
}

/// Whether a holder of one of the recovery keys, or of one that took the place of one of them, has
/// made a statement of an epoch later than `own`.
fn is_later(stated: &StoreEpoch, own: u64, keys: &RecoveryKeys, cluster_uid: &str) -> bool {
    let earlier = stated.earlier.iter().map(|one| (one.epoch, &one.proof));
    let mut all = std::iter::once((stated.epoch, &stated.proof)).chain(earlier.take(MAX_EARLIER));
    let is_sealed = all.any(|(epoch, proof)| {
        let mut keys = keys.all();
        epoch > own && keys.any(|key| is_epoch_sealed(key, cluster_uid, epoch, proof))
    });
    let verifiers = EpochVerifiers::of_keys(cluster_uid, keys.all());
    is_sealed || verifiers.is_ok_and(|known| known.is_later(stated, own))
}

/// Whether a machine that holds etcd proves a later store epoch than this machine knows. With
/// `patient`, machines that do not respond are asked again for a while.
pub(crate) async fn is_outdated(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
    patient: bool,
) -> bool {
    let Ok(recovery) = keys.recovery_keys() else {
        return false;
    };
    let others = match members(identity, keys, known) {
        Ok(others) => others,
        Err(error) => {
            tracing::warn!("the other members can't be asked about their store: {error:#}");
            return false;
        }
    };
    let until = Instant::now() + if patient { START_LIMIT } else { ANSWER_LIMIT };
    let own = known.store_epoch.epoch;
    let asked = others.iter().map(|member| {
        let ask = move || async move {
            let health = member.healthz().await;
            health.map(|health| health.store_epoch)
        };
        answer_in_time(until, patient, ask)
    });
    let heard = join_all(asked).await;
    let later = heard
        .into_iter()
        .flatten()
        .find(|stated| is_later(stated, own, &recovery, &identity.cluster_uid));
    if let Some(stated) = &later {
        tracing::warn!(
            own,
            later = stated.epoch,
            "the cluster's store was begun anew on another machine while this one was away"
        );
    }
    later.is_some()
}

/// Whether a machine that held etcd reports that the cluster has a leader. It may have a certificate
/// of an authority that replaced the one which is known here: a backup can be from before that.
///
/// # Errors
/// This machine's keys can't be used.
pub(super) async fn is_led(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
) -> anyhow::Result<bool> {
    let others = members(identity, keys, known)?;
    let until = Instant::now() + START_LIMIT;
    let asked = others.iter().map(|member| {
        let ask = move || async move {
            let health = member.healthz().await;
            health.map(|health| (health.leader && !health.stale).then_some(()))
        };
        answer_in_time(until, true, ask)
    });
    let heard = join_all(asked).await;
    Ok(heard.into_iter().flatten().next().is_some())
}

/// One machine's response; `None` where it does not respond in time.
async fn answer_in_time<T, Asked>(
    until: Instant,
    patient: bool,
    ask: impl Fn() -> Asked,
) -> Option<T>
where
    Asked: Future<Output = Result<Option<T>, ClientError>>,
{
    loop {
        let answer = timeout(ANSWER_LIMIT, ask()).await;
        match answer {
            Ok(Ok(stated)) => return stated,
            // The machine is reachable but has no answer yet.
            Ok(Err(error)) if error.status().is_some() => return None,
            _ if !patient || Instant::now() + AGAIN >= until => return None,
            _ => sleep(AGAIN).await,
        }
    }
}

/// Another member at one of its addresses.
struct OtherMember {
    /// By the authorities that this machine trusts.
    known: Client,
    /// By an authority that replaced one of them while this machine was away.
    successor: Client,
}

impl OtherMember {
    async fn healthz(&self) -> Result<HealthView, ClientError> {
        match self.known.healthz().await {
            Err(error) if error.is_foreign() => self.successor.healthz().await,
            answered => answered,
        }
    }
}

/// Each other machine that holds etcd, once for each known address.
fn members(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
) -> anyhow::Result<Vec<OtherMember>> {
    let leaf = keys.leaf("node")?;
    let pem = format!("{}{}", leaf.certificate_pem, leaf.key_pem);
    let authority = keys.cluster_authority()?;
    let port = identity.cluster.spec.api_port;
    let options = ClientOptions {
        connect_timeout: ANSWER_LIMIT,
        request_timeout: ANSWER_LIMIT,
        retry_for: Duration::ZERO,
        unreachable_for: Duration::ZERO,
        ..ClientOptions::default()
    };
    let servers = ApiServers::Known(known.servers());
    let mut members = Vec::new();
    for (name, machine) in &known.endpoints.machines {
        if *name == identity.node || !machine.etcd {
            continue;
        }
        let overlay = machine.overlay.map(|address| format!("{address}:{port}"));
        let uid = &identity.cluster_uid;
        // One client for each address: a silent address must not use up the time of the others.
        for endpoint in machine.api.iter().cloned().chain(overlay) {
            let successor = Client::of_successor(&endpoint, &authority, options)?;
            let endpoints = [endpoint];
            let known =
                Client::of_machine(&endpoints, uid, &authority, Some(&pem), &servers, options)?;
            members.push(OtherMember { known, successor });
        }
    }
    Ok(members)
}

/// Interval of the checks by a running member.
pub(crate) const LOOKOUT_INTERVAL: Duration = Duration::from_secs(15);

/// The periodic check of a running member.
#[derive(Clone)]
pub(crate) struct EpochCheck {
    pub identity: Arc<MachineIdentity>,
    pub keys: MachineKeys,
}

impl EpochCheck {
    /// See [`is_outdated`].
    pub(crate) async fn is_outdated(&self, known: &ClusterCache) -> bool {
        self.identity.etcd && is_outdated(&self.identity, &self.keys, known, false).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_a_recovery_key_can_count_an_epoch_up() {
        let [key, other] = [(); 2].map(|()| RecoveryKey::generate().unwrap());
        let stated = prove(&key, "3f0c", 7, &StoreEpoch::default()).unwrap();
        assert_eq!(stated.earlier, []);
        // While the key is replaced, both prove.
        let both = RecoveryKeys::new(other.clone(), [key.clone()]);
        assert!(is_later(&stated, 6, &both, "3f0c"));
        let (key, other) = (RecoveryKeys::from(key), RecoveryKeys::from(other));
        assert!(is_later(&stated, 6, &key, "3f0c"));
        assert!(!is_later(&stated, 7, &key, "3f0c"));
        assert!(!is_later(&stated, 6, &key, "another cluster"));
        assert!(!is_later(&stated, 6, &other, "3f0c"));
        let higher = StoreEpoch {
            epoch: 8,
            ..stated.clone()
        };
        assert!(!is_later(&higher, 6, &key, "3f0c"));
        let nothing = StoreEpoch {
            epoch: 9,
            ..StoreEpoch::default()
        };
        assert!(!is_later(&nothing, 6, &key, "3f0c"));
        // One of an earlier version is sealed alone.
        let sealed = StoreEpoch {
            signature: String::new(),
            ..stated
        };
        assert!(is_later(&sealed, 6, &key, "3f0c") && !is_later(&sealed, 6, &other, "3f0c"));
    }

    /// A member that was taken out in epoch 9, and away while the recovery key was replaced before.
    #[test]
    fn a_machine_with_an_earlier_recovery_key_believes_the_key_that_took_its_place() {
        let [old, new] = [(); 2].map(|()| RecoveryKey::generate().unwrap());
        let publish = |record: &StoreEpoch, current: &RecoveryKey, other: &[&RecoveryKey]| {
            let replaced = current.fingerprint();
            let next = other.first().map(|key| key.fingerprint());
            let replacement = next
                .as_deref()
                .map(|next| kat_pki::epoch_proof::KeyReplacement {
                    replaced: &replaced,
                    next,
                });
            let others = other.iter().map(|key| (*key).clone());
            let keys = RecoveryKeys::new(current.clone(), others);
            kat_pki::epoch_proof::with_verifiers(record, "3f0c", &keys, replacement).unwrap()
        };
        let record = prove(&old, "3f0c", 5, &StoreEpoch::default()).unwrap();
        let record = publish(&record, &old, &[&new]);
        let record = publish(&record, &new, &[]);
        let stated = prove(&new, "3f0c", 9, &record).unwrap();
        let old = RecoveryKeys::from(old);
        assert!(is_later(&stated, 5, &old, "3f0c") && !is_later(&stated, 9, &old, "3f0c"));
        assert_eq!(stated.earlier[0].signature, record.signature);
        let without = StoreEpoch {
            endorsements: Vec::new(),
            ..stated
        };
        assert!(!is_later(&without, 5, &old, "3f0c"));
    }

    /// A member that was taken out in epoch 5, and away until the recovery key was replaced and the
    /// store created anew once more.
    #[test]
    fn a_machine_with_an_earlier_recovery_key_believes_the_epoch_of_that_time() {
        let [old, new] = [(); 2].map(|()| RecoveryKey::generate().unwrap());
        let first = prove(&old, "3f0c", 5, &StoreEpoch::default()).unwrap();
        let second = prove(&new, "3f0c", 9, &first).unwrap();
        let (old, present) = (RecoveryKeys::from(old), RecoveryKeys::from(new.clone()));
        assert!(is_later(&second, 4, &old, "3f0c") && is_later(&second, 4, &present, "3f0c"));
        // It was there in epoch 5, and nothing later is known to it.
        assert!(!is_later(&second, 5, &old, "3f0c"));
        // The same command once more changes nothing, and the list has an end.
        assert_eq!(
            prove(&new, "3f0c", 9, &second).unwrap().earlier,
            second.earlier
        );
        let mut last = second;
        for epoch in 10..40 {
            last = prove(&new, "3f0c", epoch, &last).unwrap();
        }
        assert_eq!(last.earlier.len(), MAX_EARLIER);
        assert_eq!(last.earlier[0].epoch, 38);
    }
}
