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

/// Orders of ACME that hold a key, with that key.
fn keys_of_orders(snapshot: &Snapshot) -> impl Iterator<Item = OrderKey<'_>> {
    let orders = snapshot.acme_orders.iter();
    orders.filter_map(|(host, stored)| match &stored.value.state {
        AcmeOrderState::Issuing { url, key } => Some(OrderKey {
            host,
            stored,
            url,
            key,
        }),
        _ => None,
    })
}

/// The key of a certificate that is being issued.
struct OrderKey<'a> {
    host: &'a str,
    stored: &'a Stored<Arc<AcmeOrderRecord>>,
    /// URL of the order.
    url: &'a str,
    key: &'a SecretRecord,
}

/// What is not sealed with the last data key.
struct OutdatedRecords<'a> {
    secrets: Vec<(&'a SecretKey, &'a Stored<Arc<SecretRecord>>)>,
    /// KAT's own authority for ingress.
    authority: Option<&'a Stored<Arc<IngressAuthorityRecord>>>,
    /// The key of the cookies of sticky routes.
    sticky: Option<&'a Stored<Arc<IngressStickyRecord>>>,
    /// Certificates of KAT's own authority, by host.
    certificates: Vec<(&'a String, &'a Stored<Arc<IngressCertificateRecord>>)>,
    accounts: Vec<(&'a String, &'a Stored<Arc<AcmeAccountRecord>>)>,
    orders: Vec<OrderKey<'a>>,
    /// Credentials for registries, with their namespaces.
    logins: Vec<(&'a String, &'a LoginPlace, &'a Stored<LoginRecord>)>,
}

impl<'a> OutdatedRecords<'a> {
    fn of(snapshot: &'a Snapshot, last: u64) -> Self {
        let is_outdated = |key: &SecretRecord| key.key_id != last;
        let secrets = snapshot.secrets.iter();
        let authority = snapshot.ingress_authority.as_ref();
        let sticky = snapshot.ingress_sticky.as_ref();
        let certificates = snapshot.ingress_certificates.iter();
        let accounts = snapshot.acme_accounts.iter();
        let logins = snapshot.logins.iter();
        let logins = logins.flat_map(|(namespace, logins)| {
            let logins = logins.iter();
            logins.map(move |(place, stored)| (namespace, place, stored))
        });
        Self {
            secrets: secrets
                .filter(|(_, stored)| is_outdated(&stored.value))
                .collect(),
            authority: authority.filter(|stored| {
                let next = stored.value.next.as_ref();
                is_outdated(&stored.value.key) || next.is_some_and(|next| is_outdated(&next.key))
            }),
            sticky: sticky.filter(|stored| is_outdated(&stored.value.key)),
            certificates: certificates
                .filter(|(_, stored)| is_outdated(&stored.value.key))
                .collect(),
            accounts: accounts
                .filter(|(_, stored)| is_outdated(&stored.value.key))
                .collect(),
            orders: keys_of_orders(snapshot)
                .filter(|order| is_outdated(order.key))
                .collect(),
            logins: logins
                .filter(|(.., stored)| stored.value.key_id != last)
                .collect(),
        }
    }

    fn count(&self) -> usize {
        self.secrets.len()
            + usize::from(self.authority.is_some())
            + usize::from(self.sticky.is_some())
            + self.certificates.len()
            + self.accounts.len()
            + self.orders.len()
            + self.logins.len()
    }
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
    let outdated = OutdatedRecords::of(snapshot, *last);
    let step = ResealingStep {
        conditions: vec![
            Compare::ModRevision(keys::sealing_key(*last), sealing_key.revision),
            Compare::ModRevision(keys::sealing_key(last.saturating_add(1)), 0),
        ],
        key: *last,
        // This version does not know with which key unreadable records are sealed.
        left: outdated.count() + snapshot.unread_secrets,
        ..ResealingStep::default()
    };
    let mut batch = ResealingBatch {
        snapshot,
        key: (*last, &sealing_key.value),
        step,
        bytes: 0,
    };
    batch.secrets(&outdated)?;
    batch.keys_of_ingress(&outdated)?;
    batch.keys_of_acme(&outdated)?;
    batch.logins(&outdated)?;
    let mut step = batch.step;
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

/// A batch while it is sealed.
struct ResealingBatch<'a> {
    snapshot: &'a Snapshot,
    /// Number and record of the last data key.
    key: (u64, &'a SealingKeyRecord),
    step: ResealingStep,
    /// Of what was sealed so far.
    bytes: usize,
}

impl ResealingBatch<'_> {
    fn is_full(&self) -> bool {
        self.step.operations.len() >= BATCH || self.bytes >= BATCH_BYTES
    }

    fn secrets(&mut self, outdated: &OutdatedRecords<'_>) -> Result<(), ResealingError> {
        let sealing = &self.snapshot.sealing;
        for (place, stored) in &outdated.secrets {
            if self.is_full() {
                break;
            }
            let values = match sealing.open(self.snapshot, place, &stored.value) {
                Ok(values) => values,
                Err(error) => {
                    self.step.failed = Some(error);
                    continue;
                }
            };
            let record = SecretRecord::clone(&stored.value);
            let record = sealing.seal(self.key, place, &values, record)?;
            self.bytes += record.sealed.len();
            let name = keys::secret(&place.to_string());
            self.step.replace(name, stored.revision, &record)?;
        }
        Ok(())
    }

    /// The keys of the authority, of sticky routes, and of certificates. The first two are sealed in
    /// each batch.
    fn keys_of_ingress(&mut self, outdated: &OutdatedRecords<'_>) -> Result<(), ResealingError> {
        if let Some(stored) = outdated.authority {
            let mut record = IngressAuthorityRecord::clone(&stored.value);
            let own = [
                Some(&mut record.key),
                record.next.as_mut().map(|next| &mut next.key),
            ];
            let mut changed = false;
            for sealed in own.into_iter().flatten() {
                let is_outdated = sealed.key_id != self.key.0;
                if is_outdated && let Some(key) = self.resealed(&authority_place(), sealed) {
                    *sealed = key;
                    changed = true;
                }
            }
            if changed {
                let name = keys::INGRESS_AUTHORITY.to_owned();
                self.step.replace(name, stored.revision, &record)?;
            }
        }
        if let Some(stored) = outdated.sticky
            && let Some(key) = self.resealed(&sticky_place(), &stored.value.key)
        {
            let record = IngressStickyRecord {
                key,
                ..IngressStickyRecord::clone(&stored.value)
            };
            let name = keys::INGRESS_STICKY.to_owned();
            self.step.replace(name, stored.revision, &record)?;
        }
        for (host, stored) in &outdated.certificates {
            if self.is_full() {
                break;
            }
            if let Some(key) = self.resealed(&certificate_place(host), &stored.value.key) {
                let record = IngressCertificateRecord {
                    key,
                    ..IngressCertificateRecord::clone(&stored.value)
                };
                let name = keys::ingress_certificate(host);
                self.step.replace(name, stored.revision, &record)?;
            }
        }
        Ok(())
    }

    /// The keys of accounts, and of certificates that are being issued.
    fn keys_of_acme(&mut self, outdated: &OutdatedRecords<'_>) -> Result<(), ResealingError> {
        for (id, stored) in &outdated.accounts {
            if self.is_full() {
                break;
            }
            if let Some(key) = self.resealed(&account_place(id), &stored.value.key) {
                let record = AcmeAccountRecord {
                    key,
                    ..AcmeAccountRecord::clone(&stored.value)
                };
                let name = keys::acme_account(id);
                self.step.replace(name, stored.revision, &record)?;
            }
        }
        for order in &outdated.orders {
            if self.is_full() {
                break;
            }
            if let Some(key) = self.resealed(&order_place(order.host), order.key) {
                let url = order.url.to_owned();
                let record = AcmeOrderRecord {
                    state: AcmeOrderState::Issuing { url, key },
                    ..AcmeOrderRecord::clone(&order.stored.value)
                };
                let name = keys::acme_order(order.host);
                self.step.replace(name, order.stored.revision, &record)?;
            }
        }
        Ok(())
    }

    fn logins(&mut self, outdated: &OutdatedRecords<'_>) -> Result<(), ResealingError> {
        let sealing = &self.snapshot.sealing;
        for (namespace, place, stored) in &outdated.logins {
            if self.is_full() {
                break;
            }
            let login = (namespace.as_str(), *place);
            let credentials = match sealing.open_login(self.snapshot, login, &stored.value) {
                Ok(credentials) => credentials,
                Err(error) => {
                    self.step.failed = Some(error);
                    continue;
                }
            };
            let record = LoginRecord::clone(&stored.value);
            let record = sealing.seal_login(self.key, login, &credentials, record)?;
            self.bytes += record.sealed.len();
            let name = keys::login(namespace, &place.to_string());
            self.step.replace(name, stored.revision, &record)?;
        }
        Ok(())
    }

    /// A key sealed with the last data key; `None` if that failed, which the step then says.
    fn resealed(&mut self, place: &SecretKey, record: &SecretRecord) -> Option<SecretRecord> {
        match resealed(self.snapshot, self.key, place, record) {
            Ok(key) => {
                self.bytes += key.sealed.len();
                Some(key)
            }
            Err(error) => {
                self.step.failed = Some(error);
                None
            }
        }
    }
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
