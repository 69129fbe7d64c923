//! This machine's part in the replacement of the recovery key.
//!
//! In Trust it takes the new key, in Issue it seals with it, and in Retire it forgets the old one.
//! It forgets a key only when the store that it sees has no data key that needs it: a record alone,
//! such as one from a backup, takes no key away.

use super::{AuthorityKeeper, AuthorityRecord, ReplaceableKey, Rotation, RotationPhase};
use crate::cluster::keys::recovery::given_recovery_key;
use kat_pki::recovery_key::RecoveryKey;
use kat_plan::{SnapshotSealing, unsealed_by_present_key};
use kat_types::api::{ApiTime, AuthorityReport};

impl AuthorityKeeper {
    /// Makes the files of the recovery key what its record says, and uses them.
    pub(super) async fn converge_recovery_key(
        &self,
        record: Option<&AuthorityRecord>,
    ) -> anyhow::Result<()> {
        match record {
            None => {}
            Some(AuthorityRecord {
                rotation: Some(rotation),
                ..
            }) => self.take_part_with_recovery_key(rotation).await?,
            // The leader may have made the new key just now.
            Some(record) if record.due.is_some() || record.current.is_empty() => {}
            Some(record) => self.settle_recovery_key(&record.current).await?,
        }
        // An agent that ended in between, or the leader's making of the key, leaves files that are not
        // in use yet.
        if self.signing.recovery_keys() != Some(self.keys.recovery_keys()?) {
            self.use_files()?;
        }
        Ok(())
    }

    async fn take_part_with_recovery_key(&self, rotation: &Rotation) -> anyhow::Result<()> {
        let next = &rotation.next;
        let seals = self.keys.recovery_key()?.fingerprint() == *next;
        let mut is_next = self.keys.next_recovery_fingerprint()? == *next;
        if !seals && !is_next {
            let key = self.find_recovery_key(next).await?;
            self.keys.store_next_recovery_key(&key)?;
            tracing::info!(key = next, "the new recovery key is taken");
            is_next = true;
        }
        // Also where the change was interrupted.
        if rotation.phase >= RotationPhase::Issue && is_next {
            self.keys.promote_recovery_key()?;
            tracing::info!(key = next, "the new recovery key seals");
        }
        if rotation.phase >= RotationPhase::Retire {
            self.forget_other_recovery_keys()?;
        }
        Ok(())
    }

    /// No replacement is under way. A machine that was away until its end takes the key now.
    async fn settle_recovery_key(&self, current: &str) -> anyhow::Result<()> {
        if self.keys.recovery_key()?.fingerprint() != current {
            let key = self.find_recovery_key(current).await?;
            self.keys.store_next_recovery_key(&key)?;
            self.keys.promote_recovery_key()?;
            tracing::info!(key = current, "the new recovery key seals");
        }
        self.forget_other_recovery_keys()
    }

    /// The key with this fingerprint: one that this machine holds, or else from the leader.
    async fn find_recovery_key(&self, fingerprint: &str) -> anyhow::Result<RecoveryKey> {
        let held = self.keys.recovery_keys()?;
        if let Some(key) = held.with_fingerprint(fingerprint) {
            return Ok(key.clone());
        }
        let given = self.ask_leader().await?;
        Ok(given_recovery_key(&given, fingerprint)?)
    }

    fn forget_other_recovery_keys(&self) -> anyhow::Result<()> {
        let held = self.keys.recovery_keys()?;
        if held.others().is_empty() {
            return Ok(());
        }
        let Some(seen) = self.snapshot.borrow().clone() else {
            return Ok(());
        };
        // The keys in use may be those of before the last change.
        let mut seen = kat_plan::Snapshot::clone(&seen);
        seen.sealing = SnapshotSealing::with(held.current().clone());
        let needed = unsealed_by_present_key(&seen);
        if !needed.is_empty() || seen.unread_secrets > 0 {
            anyhow::bail!(
                "earlier recovery keys are kept: the store has {} data keys, and {} objects that can't be read, which may need them",
                needed.len(),
                seen.unread_secrets
            );
        }
        if self.keys.forget_other_recovery_keys()? {
            tracing::info!("the replaced recovery key is forgotten");
        }
        Ok(())
    }

    /// The recovery keys in use, by their fingerprints.
    pub(super) fn recovery_report(&self) -> anyhow::Result<AuthorityReport> {
        let held = self.signing.recovery_keys();
        let accepted = held.map_or_else(Vec::new, |held| held.fingerprints());
        let next = self.keys.next_recovery_fingerprint()?;
        Ok(AuthorityReport {
            name: ReplaceableKey::Recovery.name().to_owned(),
            issues: accepted.first().cloned().unwrap_or_default(),
            holds_next: match accepted.contains(&next) {
                true => next,
                false => String::new(),
            },
            accepted,
            refused: Vec::new(),
            expires: ApiTime::UNKNOWN,
            successor_signature: None,
        })
    }
}
