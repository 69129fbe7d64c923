//! How secrets are stored, sealed and opened.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;

use crate::Snapshot;
use kat_pki::{
    recovery_key::{RecoveryKey, SealError},
    secret_sealing::{DataKey, open_delivery},
};
use kat_types::{
    resource::secret::{SecretValues, is_text},
    secrets::{
        AssignedSecrets, SealingKeyRecord, SecretKey, SecretKeyRecord, SecretRecord, SecretVersion,
    },
};

/// What is sealed for the place of one version of one secret opens nowhere else.
fn secret_context(place: &SecretKey, uid: &str, version: u64) -> Vec<u8> {
    let version = version.to_string();
    let parts = ["secret", &place.namespace, &place.name, uid, &version];
    framed(parts.iter().map(|part| part.as_bytes()))
}

/// How the reader of a [`Snapshot`] opens and seals secrets.
#[derive(Debug, Clone, Default)]
pub enum SnapshotSealing {
    /// Without a key.
    #[default]
    None,
    /// Rehearsal: nothing is opened, and sealed values are a fixed word.
    Rehearsed,
    /// With the recovery key, which opens the data keys.
    With(RecoveryKey),
}

/// Why a secret can't be opened or sealed. No message contains a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealingError {
    /// The sealing is [`SnapshotSealing::None`].
    #[error("this machine has no key for secrets")]
    NoKey,
    /// The data key with this number is not in the store.
    #[error("the data key {0} is not in the store")]
    NoDataKey(u64),
    /// The key does not fit.
    #[error("{0}: {1}")]
    Seal(String, SealError),
    /// The opened content does not have the expected form.
    #[error("{0}: what is sealed can't be read")]
    Malformed(String),
    /// The values have more bytes than an instance can have.
    #[error("{0} have {1} bytes; an instance can have {2} at most")]
    TooMuch(String, usize, usize),
    /// The machine has no usable WireGuard key to seal for.
    #[error("machine {0} has no WireGuard key that can be sealed for")]
    Machine(String),
}

impl SnapshotSealing {
    fn recovery(&self) -> Result<&RecoveryKey, SealingError> {
        match self {
            Self::With(key) => Ok(key),
            Self::None | Self::Rehearsed => Err(SealingError::NoKey),
        }
    }

    /// Generates a data key, sealed with the recovery key.
    ///
    /// # Errors
    /// [`SealingError`].
    pub fn new_key(&self, number: u64, now: Timestamp) -> Result<SealingKeyRecord, SealingError> {
        let failed = |error| SealingError::Seal(format!("data key {number}"), error);
        let key = DataKey::generate().map_err(failed)?;
        let sealed = key.sealed_with(self.recovery()?, number).map_err(failed)?;
        Ok(SealingKeyRecord {
            schema: 1,
            created: now,
            sealed: BASE64_STANDARD.encode(sealed),
        })
    }

    pub(crate) fn data_key(
        &self,
        number: u64,
        record: &SealingKeyRecord,
    ) -> Result<DataKey, SealingError> {
        let name = || format!("data key {number}");
        let sealed = BASE64_STANDARD.decode(&record.sealed);
        let sealed = sealed.map_err(|_| SealingError::Malformed(name()))?;
        DataKey::open_with(self.recovery()?, &sealed, number)
            .map_err(|error| SealingError::Seal(name(), error))
    }

    /// Seals values into `record`, whose other fields say what they are the values of.
    ///
    /// # Errors
    /// [`SealingError`].
    pub fn seal(
        &self,
        (number, key): (u64, &SealingKeyRecord),
        place: &SecretKey,
        values: &SecretValues,
        record: SecretRecord,
    ) -> Result<SecretRecord, SealingError> {
        let parts = values.0.iter();
        let plain = framed(parts.flat_map(|(key, value)| [key.as_bytes(), value]));
        let sealed = self.seal_bytes(
            (number, key),
            &plain,
            &secret_context(place, &record.uid, record.version),
            &format!("secret {place}"),
        )?;
        let keys = values.0.iter().map(|(key, value)| {
            let known = SecretKeyRecord {
                size: value.len(),
                text: is_text(value),
            };
            (key.clone(), known)
        });
        Ok(SecretRecord {
            keys: keys.collect(),
            key_id: number,
            sealed,
            ..record
        })
    }

    /// Seals bytes with a data key, in base64; `name` names them in errors.
    pub(crate) fn seal_bytes(
        &self,
        (number, key): (u64, &SealingKeyRecord),
        plain: &[u8],
        context: &[u8],
        name: &str,
    ) -> Result<String, SealingError> {
        let sealed = self.data_key(number, key)?.seal(plain, context);
        let sealed = sealed.map_err(|error| SealingError::Seal(name.to_owned(), error))?;
        Ok(BASE64_STANDARD.encode(sealed))
    }

    /// Opens what [`Self::seal_bytes`] sealed with the data key of this number.
    pub(crate) fn open_bytes(
        &self,
        snapshot: &Snapshot,
        (number, sealed): (u64, &str),
        context: &[u8],
        name: &str,
    ) -> Result<Vec<u8>, SealingError> {
        let key = snapshot.sealing_keys.get(&number);
        let key = key.ok_or(SealingError::NoDataKey(number))?;
        let key = self.data_key(number, &key.value)?;
        let sealed = BASE64_STANDARD.decode(sealed);
        let sealed = sealed.map_err(|_| SealingError::Malformed(name.to_owned()))?;
        key.open(&sealed, context)
            .map_err(|error| SealingError::Seal(name.to_owned(), error))
    }

    /// Opens the values of a record.
    ///
    /// # Errors
    /// [`SealingError`].
    pub fn open(
        &self,
        snapshot: &Snapshot,
        place: &SecretKey,
        record: &SecretRecord,
    ) -> Result<SecretValues, SealingError> {
        let name = || format!("secret {place}");
        let plain = self.open_bytes(
            snapshot,
            (record.key_id, &record.sealed),
            &secret_context(place, &record.uid, record.version),
            &name(),
        )?;
        let parts = unframed(&plain).ok_or_else(|| SealingError::Malformed(name()))?;
        let mut values = SecretValues::default();
        for pair in parts.chunks(2) {
            let [key, value] = pair else {
                return Err(SealingError::Malformed(name()));
            };
            let key = std::str::from_utf8(key).map_err(|_| SealingError::Malformed(name()))?;
            values.0.insert(key.to_owned(), (*value).to_vec());
        }
        Ok(values)
    }
}

/// The use of an instance's sealed values. Values sealed for one purpose do not open for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealingPurpose {
    /// Values of secrets, for variables and files.
    Secrets,
    /// Credentials of registries, for pulls.
    Logins,
}

impl SealingPurpose {
    fn word(self) -> &'static str {
        match self {
            Self::Secrets => "delivery",
            Self::Logins => "delivery of credentials",
        }
    }

    fn of(self, instance: &str) -> String {
        match self {
            Self::Secrets => format!("the secrets of {instance}"),
            Self::Logins => format!("the credentials for {instance}'s images"),
        }
    }
}

/// The context of sealing: values sealed for one instance on one machine do not open for another.
fn delivery_context(
    purpose: SealingPurpose,
    versions: &BTreeMap<String, SecretVersion>,
    (node, instance): (&str, &str),
) -> Vec<u8> {
    let numbers: Vec<String> = versions
        .values()
        .map(|one| one.version.to_string())
        .collect();
    let mut parts = vec![purpose.word(), node, instance];
    for ((name, version), number) in versions.iter().zip(&numbers) {
        parts.extend([name.as_str(), &version.uid, number]);
    }
    framed(parts.iter().map(|part| part.as_bytes()))
}

/// Seals values, by secret, for an instance on a machine, which is given by its name and X25519
/// public key.
///
/// # Errors
/// [`SealingError::Seal`].
pub fn seal_for(
    purpose: SealingPurpose,
    key: &DataKey,
    (node, public_key): (&str, &[u8; 32]),
    instance: &str,
    versions: BTreeMap<String, SecretVersion>,
    values: &BTreeMap<String, SecretValues>,
) -> Result<AssignedSecrets, SealingError> {
    let parts = values.iter().flat_map(|(name, values)| {
        values.0.iter().flat_map(move |(key, value)| {
            let parts: [&[u8]; 3] = [name.as_bytes(), key.as_bytes(), value];
            parts
        })
    });
    let plain = framed(parts);
    let context = delivery_context(purpose, &versions, (node, instance));
    let sealed = key
        .deliver(public_key, &plain, &context)
        .map_err(|error| SealingError::Seal(format!("machine {node}"), error))?;
    Ok(AssignedSecrets {
        versions,
        sealed: BASE64_STANDARD.encode(sealed),
    })
}

/// Opens the values, by secret, on the machine that they are sealed for.
///
/// # Errors
/// [`SealingError`].
pub fn open_assigned(
    assigned: &AssignedSecrets,
    purpose: SealingPurpose,
    private_key: &[u8; 32],
    node: &str,
    instance: &str,
) -> Result<BTreeMap<String, SecretValues>, SealingError> {
    let name = || purpose.of(instance);
    let sealed = BASE64_STANDARD.decode(&assigned.sealed);
    let sealed = sealed.map_err(|_| SealingError::Malformed(name()))?;
    let context = delivery_context(purpose, &assigned.versions, (node, instance));
    let plain = open_delivery(private_key, &sealed, &context)
        .map_err(|error| SealingError::Seal(name(), error))?;
    let parts = unframed(&plain).ok_or_else(|| SealingError::Malformed(name()))?;
    let mut all: BTreeMap<String, SecretValues> = BTreeMap::new();
    for part in parts.chunks(3) {
        let [secret, key, value] = part else {
            return Err(SealingError::Malformed(name()));
        };
        let text = |part: &[u8]| String::from_utf8(part.to_vec());
        let (Ok(secret), Ok(key)) = (text(secret), text(key)) else {
            return Err(SealingError::Malformed(name()));
        };
        let values = all.entry(secret).or_default();
        values.0.insert(key, (*value).to_vec());
    }
    Ok(all)
}

/// The parts, each preceded by its length as four bytes, big-endian.
pub(crate) fn framed<'p>(parts: impl Iterator<Item = &'p [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        // No part is nearly that long.
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
        bytes.extend(length.to_be_bytes());
        bytes.extend(part);
    }
    bytes
}

pub(crate) fn unframed(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (part, rest) = rest.split_at_checked(length)?;
        parts.push(part);
        bytes = rest;
    }
    Some(parts)
}
