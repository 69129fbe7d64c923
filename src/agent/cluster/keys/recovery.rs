//! The files of the recovery key while it is replaced.

use super::{KeysError, MachineKeys, no_key};
use kat_pki as pki;
use kat_pki::{PkiError, recovery_key::RecoveryKey};
use kat_types::api::MembershipAnswer;

impl MachineKeys {
    /// Makes the recovery key that will replace the present one; returns its fingerprint.
    pub(crate) fn make_next_recovery_key(&self) -> Result<String, KeysError> {
        let made = RecoveryKey::generate().map_err(no_key)?;
        pki::store_next_recovery_key(&self.folder, &made)?;
        Ok(made.fingerprint())
    }

    /// Fingerprint of the recovery key that will replace the present one; empty if there is none.
    pub(crate) fn next_recovery_fingerprint(&self) -> Result<String, KeysError> {
        let next = pki::next_recovery_key(&self.folder)?;
        Ok(next.map_or_else(String::new, |next| next.fingerprint()))
    }

    /// Stores a recovery key as the next one.
    pub(crate) fn store_next_recovery_key(&self, next: &RecoveryKey) -> Result<(), KeysError> {
        Ok(pki::store_next_recovery_key(&self.folder, next)?)
    }

    /// Seals with the next recovery key from now on; the one of before goes on opening.
    pub(crate) fn promote_recovery_key(&self) -> Result<(), KeysError> {
        Ok(pki::promote_recovery_key(&self.folder)?)
    }

    /// Forgets all recovery keys but the present one. Nothing in the store may be sealed with
    /// another one. Returns whether there was one.
    pub(crate) fn forget_other_recovery_keys(&self) -> Result<bool, KeysError> {
        Ok(pki::forget_other_recovery_keys(&self.folder)?)
    }
}

/// The recovery key with this fingerprint among those that the leader handed over.
pub(crate) fn given_recovery_key(
    given: &MembershipAnswer,
    fingerprint: &str,
) -> Result<RecoveryKey, KeysError> {
    let texts = std::iter::once(&given.recovery_key).chain(&given.other_recovery_keys);
    let mut keys = texts.filter_map(|text| RecoveryKey::parse(text).ok());
    let found = keys.find(|key| key.fingerprint() == fingerprint);
    let missing = || {
        PkiError::Key(format!(
            "the leader does not have the recovery key {fingerprint}"
        ))
    };
    Ok(found.ok_or_else(missing)?)
}
