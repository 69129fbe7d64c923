//! Another data key: everything that is stored is sealed with it, in batches, and then the earlier
//! data keys are deleted.
//!
//! A write with an earlier key came before the last key was created ([`kat_types::secrets`]), so a
//! snapshot that shows the last key shows that write too.

use std::sync::Arc;

use jiff::Timestamp;

use crate::{
    Snapshot,
    ingress::{
        acme::{account_place, order_place},
        certificates::{authority_place, certificate_place, sticky_place},
    },
};
use kat_pki::delivery::SealingError;
use kat_types::{
    encoding::json::{self, NotEncoded},
    registry::{LoginPlace, LoginRecord},
    secrets::{SealingKeyRecord, SecretKey, SecretRecord},
    store::{
        acme::{AcmeAccountRecord, AcmeOrderRecord, AcmeOrderState},
        authorities::ReplaceableKey,
        ingress::{IngressAuthorityRecord, IngressCertificateRecord, IngressStickyRecord},
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
        left: snapshot.secrets.len()
            + snapshot.logins.values().map(|one| one.len()).sum::<usize>()
            + snapshot.ingress_certificates.len()
            + snapshot.acme_accounts.len()
            + keys_of_orders(snapshot).count()
            + usize::from(snapshot.ingress_authority.is_some())
            + usize::from(snapshot.ingress_sticky.is_some()),
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

/// Certificates of KAT's own authority that are not sealed with the last key.
fn outdated_certificates(
    snapshot: &Snapshot,
) -> Vec<(&String, &Stored<Arc<IngressCertificateRecord>>)> {
    let last = snapshot.sealing_keys.keys().next_back().copied();
    let certificates = snapshot.ingress_certificates.iter();
    certificates
        .filter(|(_, stored)| Some(stored.value.key.key_id) != last)
        .collect()
}

/// Orders of ACME that hold a key, with that key.
fn keys_of_orders(
    snapshot: &Snapshot,
) -> impl Iterator<Item = (&String, &Stored<Arc<AcmeOrderRecord>>, &str, &SecretRecord)> {
    let orders = snapshot.acme_orders.iter();
    orders.filter_map(|(host, stored)| match &stored.value.state {
        AcmeOrderState::Issuing { url, key } => Some((host, stored, url.as_str(), key)),
        _ => None,
    })
}

/// KAT's own authority for ingress, if it is not sealed with the last key.
fn outdated_authority(snapshot: &Snapshot) -> Option<&Stored<Arc<IngressAuthorityRecord>>> {
    let last = snapshot.sealing_keys.keys().next_back().copied();
    let stored = snapshot.ingress_authority.as_ref();
    stored.filter(|stored| Some(stored.value.key.key_id) != last)
}

/// The key of the cookies of sticky routes, if it is not sealed with the last key.
fn outdated_sticky(snapshot: &Snapshot) -> Option<&Stored<Arc<IngressStickyRecord>>> {
    let last = snapshot.sealing_keys.keys().next_back().copied();
    let stored = snapshot.ingress_sticky.as_ref();
    stored.filter(|stored| Some(stored.value.key.key_id) != last)
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
    let certificates = outdated_certificates(snapshot);
    let authority = outdated_authority(snapshot);
    let sticky = outdated_sticky(snapshot);
    let is_outdated = |key: &SecretRecord| key.key_id != *last;
    let accounts = snapshot.acme_accounts.iter();
    let accounts: Vec<_> = accounts
        .filter(|(_, stored)| is_outdated(&stored.value.key))
        .collect();
    let orders = keys_of_orders(snapshot);
    let orders: Vec<_> = orders.filter(|(.., key)| is_outdated(key)).collect();
    let of_ingress = certificates.len()
        + accounts.len()
        + orders.len()
        + usize::from(authority.is_some())
        + usize::from(sticky.is_some());
    let mut step = ResealingStep {
        conditions: vec![
            Compare::ModRevision(keys::sealing_key(*last), sealing_key.revision),
            Compare::ModRevision(keys::sealing_key(last.saturating_add(1)), 0),
        ],
        key: *last,
        // This version does not know with which key unreadable records are sealed.
        left: secrets.len() + logins.len() + of_ingress + snapshot.unread_secrets,
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
    if let Some(stored) = authority {
        match resealed(snapshot, key, &authority_place(), &stored.value.key) {
            Ok(key) => {
                bytes += key.sealed.len();
                let record = IngressAuthorityRecord {
                    key,
                    ..IngressAuthorityRecord::clone(&stored.value)
                };
                let name = keys::INGRESS_AUTHORITY.to_owned();
                step.replace(name, stored.revision, &record)?;
            }
            Err(error) => step.failed = Some(error),
        }
    }
    if let Some(stored) = sticky {
        match resealed(snapshot, key, &sticky_place(), &stored.value.key) {
            Ok(key) => {
                bytes += key.sealed.len();
                let record = IngressStickyRecord {
                    key,
                    ..IngressStickyRecord::clone(&stored.value)
                };
                let name = keys::INGRESS_STICKY.to_owned();
                step.replace(name, stored.revision, &record)?;
            }
            Err(error) => step.failed = Some(error),
        }
    }
    for (host, stored) in certificates {
        if step.operations.len() >= BATCH || bytes >= BATCH_BYTES {
            break;
        }
        match resealed(snapshot, key, &certificate_place(host), &stored.value.key) {
            Ok(key) => {
                bytes += key.sealed.len();
                let record = IngressCertificateRecord {
                    key,
                    ..IngressCertificateRecord::clone(&stored.value)
                };
                let name = keys::ingress_certificate(host);
                step.replace(name, stored.revision, &record)?;
            }
            Err(error) => step.failed = Some(error),
        }
    }
    for (id, stored) in accounts {
        if step.operations.len() >= BATCH || bytes >= BATCH_BYTES {
            break;
        }
        match resealed(snapshot, key, &account_place(id), &stored.value.key) {
            Ok(key) => {
                bytes += key.sealed.len();
                let record = AcmeAccountRecord {
                    key,
                    ..AcmeAccountRecord::clone(&stored.value)
                };
                step.replace(keys::acme_account(id), stored.revision, &record)?;
            }
            Err(error) => step.failed = Some(error),
        }
    }
    for (host, stored, url, sealed) in orders {
        if step.operations.len() >= BATCH || bytes >= BATCH_BYTES {
            break;
        }
        match resealed(snapshot, key, &order_place(host), sealed) {
            Ok(key) => {
                bytes += key.sealed.len();
                let url = url.to_owned();
                let record = AcmeOrderRecord {
                    state: AcmeOrderState::Issuing { url, key },
                    ..AcmeOrderRecord::clone(&stored.value)
                };
                step.replace(keys::acme_order(host), stored.revision, &record)?;
            }
            Err(error) => step.failed = Some(error),
        }
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

/// A record sealed with another data key; identity and version stay.
fn resealed(
    snapshot: &Snapshot,
    key: (u64, &SealingKeyRecord),
    place: &SecretKey,
    record: &SecretRecord,
) -> Result<SecretRecord, SealingError> {
    let values = snapshot.sealing.open(snapshot, place, record)?;
    snapshot.sealing.seal(key, place, &values, record.clone())
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
