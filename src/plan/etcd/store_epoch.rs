//! The record of the store's epoch: by which verifiers the machines without the recovery key check a
//! later one.

use crate::Snapshot;
use kat_pki::{
    PkiError,
    epoch_proof::{KeyReplacement, epoch_verifier, with_verifiers},
    recovery_key::RecoveryKey,
};
use kat_types::{api::StoreEpoch, store::authorities::ReplaceableKey};

/// The record that the leader writes because the stored one lacks something: the verifiers of its
/// recovery keys, an endorsement, or the signature of an epoch that an earlier version began. `None`
/// where nothing is to write.
///
/// # Errors
/// Nothing can be derived from a recovery key.
pub fn epoch_to_publish(snapshot: &Snapshot) -> Result<Option<StoreEpoch>, PkiError> {
    let Some(keys) = snapshot.sealing.recovery_keys() else {
        return Ok(None);
    };
    let stored = snapshot.store_epoch.as_ref();
    let record = stored.map(|stored| StoreEpoch::clone(&stored.value));
    let record = record.unwrap_or_default();
    let of_key = snapshot.authorities.get(ReplaceableKey::Recovery.name());
    let replacement = of_key.and_then(|stored| {
        let rotation = stored.value.rotation.as_ref()?;
        Some(KeyReplacement {
            replaced: &stored.value.current,
            next: &rotation.next,
        })
    });
    let changed = with_verifiers(&record, &snapshot.cluster_uid, keys, replacement)?;
    Ok((changed != record).then_some(changed))
}

/// Whether the machines can know the verifier of the recovery key with this fingerprint, and nothing
/// of the record is left to write.
pub(super) fn is_verifier_published(snapshot: &Snapshot, fingerprint: &str) -> bool {
    let keys = snapshot.sealing.recovery_keys();
    let key: Option<&RecoveryKey> = keys.and_then(|keys| keys.with_fingerprint(fingerprint));
    let verifier = key.and_then(|key| epoch_verifier(key).ok());
    let record = snapshot.store_epoch.as_ref();
    let is_recorded = verifier.is_some_and(|verifier| {
        record.is_some_and(|record| record.value.verifiers.contains(&verifier))
    });
    is_recorded && matches!(epoch_to_publish(snapshot), Ok(None))
}
