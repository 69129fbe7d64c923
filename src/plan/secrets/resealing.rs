//! Another data key: everything that is stored is sealed with it, in batches, and then the earlier
//! data keys are deleted.
//!
//! A write with an earlier key came before the last key was created ([`kat_types::secrets`]), so a
//! snapshot that shows the last key shows that write too.

use std::sync::Arc;

use jiff::Timestamp;

use crate::Snapshot;
use kat_pki::delivery::SealingError;
use kat_types::{
    encoding::json::{self, NotEncoded},
    registry::{LoginPlace, LoginRecord},
    secrets::{SecretKey, SecretRecord},
    store::{
        authorities::ReplaceableKey,
        keys,
        revisions::Stored,
        transaction::{Compare, WriteOperation},
    },
};

/// Maximum number of secrets, and of their stored bytes, that are sealed again in one transaction.
const BATCH: usize = 32;
const BATCH_BYTES: usize = 512 << 10;

/// Why something can't be sealed again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResealingError {
    /// A data key, a secret or credentials do not open.
    #[error(transparent)]
    Sealing(#[from] SealingError),
    /// A record can't be written.
    #[error(transparent)]
    NotEncoded(#[from] NotEncoded),
}

/// A write that takes the sealing with another data key further. Nothing is left to do if it has
/// no operations and `left` is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResealingStep {
    /// The state that the step was decided from.
    pub conditions: Vec<Compare>,
    /// What is written.
    pub operations: Vec<WriteOperation>,
    /// Number of the data key that seals.
    pub key: u64,
    /// Number of secrets and credentials that are sealed with an earlier key after this step, or
    /// that this version can't read.
    pub left: usize,
    /// Why one of those that are left does not open.
    pub failed: Option<SealingError>,
}

/// The condition of each write of a data key. A key that was sealed before the replacement of the
/// recovery key went on is not written after that: nobody would be left who opens it.
pub fn recovery_key_unchanged(snapshot: &Snapshot) -> Compare {
    let name = ReplaceableKey::Recovery.name();
    let stored = snapshot.authorities.get(name);
    let revision = stored.map_or(0, |stored| stored.revision);
    Compare::ModRevision(keys::authority(name), revision)
}

/// The write of another data key, sealed with the present recovery key.
///
/// # Errors
/// [`ResealingError`].
pub fn another_data_key(
    snapshot: &Snapshot,
    now: Timestamp,
) -> Result<ResealingStep, ResealingError> {
    let last = snapshot.sealing_keys.last_key_value();
    let next = last.map_or(0, |(number, _)| *number).saturating_add(1);
    let key = snapshot.sealing.new_key(next, now)?;
    let mut conditions = vec![
        Compare::ModRevision(keys::sealing_key(next), 0),
        recovery_key_unchanged(snapshot),
    ];
    conditions.extend(
        last.map(|(number, stored)| {
            Compare::ModRevision(keys::sealing_key(*number), stored.revision)
        }),
    );
    Ok(ResealingStep {
        conditions,
        operations: vec![put(keys::sealing_key(next), &key)?],
        key: next,
        left: snapshot.secrets.len() + snapshot.logins.values().map(|one| one.len()).sum::<usize>(),
        failed: None,
    })
}

/// Secrets that are not sealed with the last key.
fn outdated_secrets(snapshot: &Snapshot) -> Vec<(&SecretKey, &Stored<Arc<SecretRecord>>)> {
    let last = snapshot.sealing_keys.keys().next_back().copied();
    let secrets = snapshot.secrets.iter();
    secrets
        .filter(|(_, stored)| Some(stored.value.key_id) != last)
        .collect()
}

/// Credentials for registries that are not sealed with the last key.
fn outdated_logins(snapshot: &Snapshot) -> Vec<(&String, &LoginPlace, &Stored<LoginRecord>)> {
    let last = snapshot.sealing_keys.keys().next_back().copied();
    let logins = snapshot.logins.iter();
    let logins = logins.flat_map(|(namespace, logins)| {
        let logins = logins.iter();
        logins.map(move |(place, stored)| (namespace, place, stored))
    });
    logins
        .filter(|(.., stored)| Some(stored.value.key_id) != last)
        .collect()
}

/// Seals one batch with the last data key; when nothing is left, deletes earlier keys. What does not
/// open stays as it is, and so do the earlier keys then.
///
/// # Errors
/// [`ResealingError`], where the last data key does not open.
pub fn reseal_batch(snapshot: &Snapshot) -> Result<ResealingStep, ResealingError> {
    let Some((last, sealing_key)) = snapshot.sealing_keys.last_key_value() else {
        return Ok(ResealingStep {
            left: snapshot.unread_secrets,
            ..ResealingStep::default()
        });
    };
    let key = (*last, &sealing_key.value);
    let (secrets, logins) = (outdated_secrets(snapshot), outdated_logins(snapshot));
    let mut step = ResealingStep {
        conditions: vec![
            Compare::ModRevision(keys::sealing_key(*last), sealing_key.revision),
            Compare::ModRevision(keys::sealing_key(last.saturating_add(1)), 0),
        ],
        key: *last,
        // This version does not know with which key unreadable records are sealed.
        left: secrets.len() + logins.len() + snapshot.unread_secrets,
        ..ResealingStep::default()
    };
    let mut bytes = 0;
    for (place, stored) in secrets {
        if step.operations.len() >= BATCH || bytes >= BATCH_BYTES {
            break;
        }
        let values = match snapshot.sealing.open(snapshot, place, &stored.value) {
            Ok(values) => values,
            Err(error) => {
                step.failed = Some(error);
                continue;
            }
        };
        let record = SecretRecord::clone(&stored.value);
        let record = snapshot.sealing.seal(key, place, &values, record)?;
        bytes += record.sealed.len();
        step.replace(keys::secret(&place.to_string()), stored.revision, &record)?;
    }
    for (namespace, place, stored) in logins {
        if step.operations.len() >= BATCH || bytes >= BATCH_BYTES {
            break;
        }
        let login = (namespace.as_str(), place);
        let credentials = match snapshot.sealing.open_login(snapshot, login, &stored.value) {
            Ok(credentials) => credentials,
            Err(error) => {
                step.failed = Some(error);
                continue;
            }
        };
        let record = LoginRecord::clone(&stored.value);
        let record = snapshot
            .sealing
            .seal_login(key, login, &credentials, record)?;
        bytes += record.sealed.len();
        let name = keys::login(namespace, &place.to_string());
        step.replace(name, stored.revision, &record)?;
    }
    if step.operations.is_empty() && step.left == 0 {
        let earlier = snapshot.sealing_keys.range(..*last).take(BATCH);
        for (number, stored) in earlier {
            let name = keys::sealing_key(*number);
            step.conditions
                .push(Compare::ModRevision(name.clone(), stored.revision));
            step.operations.push(WriteOperation::Delete(name));
        }
    }
    Ok(step)
}

impl ResealingStep {
    /// Writes a record that was sealed again.
    fn replace<T: serde::Serialize>(
        &mut self,
        name: String,
        revision: i64,
        record: &T,
    ) -> Result<(), NotEncoded> {
        self.conditions
            .push(Compare::ModRevision(name.clone(), revision));
        self.operations.push(put(name, record)?);
        self.left -= 1;
        Ok(())
    }
}

/// Data keys that the present recovery key alone does not open.
pub fn unsealed_by_present_key(snapshot: &Snapshot) -> Vec<u64> {
    let keys = snapshot.sealing_keys.iter();
    let sealing = &snapshot.sealing;
    let others = keys
        .filter(|(number, stored)| !sealing.is_sealed_with_present_key(**number, &stored.value));
    others.map(|(number, _)| *number).collect()
}

/// The next write after which no data key is sealed with an earlier recovery key: first another data
/// key, if the last one is not sealed with the present recovery key, then the batches. `None` if
/// all are.
///
/// # Errors
/// [`ResealingError`].
pub fn reseal_for_recovery_key(
    snapshot: &Snapshot,
    now: Timestamp,
) -> Result<Option<ResealingStep>, ResealingError> {
    let others = unsealed_by_present_key(snapshot);
    if others.is_empty() && snapshot.unread_secrets == 0 {
        return Ok(None);
    }
    let last = snapshot.sealing_keys.keys().next_back();
    match last.is_some_and(|last| others.contains(last)) {
        true => another_data_key(snapshot, now).map(Some),
        false => reseal_batch(snapshot).map(Some),
    }
}

fn put<T: serde::Serialize>(key: String, value: &T) -> Result<WriteOperation, NotEncoded> {
    let value = json::bytes(&key, value)?;
    Ok(WriteOperation::Put(key, value))
}
