//! How secrets are stored, sealed and opened.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;

use crate::Snapshot;
use kat_pki::{
    RecoveryKeys,
    delivery::{SealingError, framed, unframed},
    secret_sealing::DataKey,
};
use kat_types::{
    resource::secret::{SecretValues, is_text},
    secrets::{SealingKeyRecord, SecretKey, SecretKeyRecord, SecretRecord},
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
    /// With the recovery keys of this machine, which open the data keys.
    With(Arc<RecoveryKeys>),
}

impl SnapshotSealing {
    /// With these recovery keys.
    pub fn with(keys: impl Into<RecoveryKeys>) -> Self {
        Self::With(Arc::new(keys.into()))
    }

    /// The recovery keys of this machine.
    pub(crate) fn recovery_keys(&self) -> Option<&RecoveryKeys> {
        self.recovery().ok()
    }

    fn recovery(&self) -> Result<&RecoveryKeys, SealingError> {
        match self {
            Self::With(keys) => Ok(keys),
            Self::None | Self::Rehearsed => Err(SealingError::NoKey),
        }
    }

    /// Fingerprint of the recovery key that seals new data keys.
    pub fn recovery_fingerprint(&self) -> Option<String> {
        let keys = self.recovery().ok()?;
        Some(keys.current().fingerprint())
    }

    /// Whether the present recovery key alone opens a data key.
    pub fn is_sealed_with_present_key(&self, number: u64, record: &SealingKeyRecord) -> bool {
        let alone = self.recovery().map(|keys| keys.current().clone());
        alone.is_ok_and(|alone| Self::with(alone).data_key(number, record).is_ok())
    }

    /// Generates a data key, sealed with the present recovery key. It is written under the condition
    /// of [`recovery_key_unchanged`].
    pub fn new_key(&self, number: u64, now: Timestamp) -> Result<SealingKeyRecord, SealingError> {
        let failed = |error| SealingError::Seal(format!("data key {number}"), error);
        let key = DataKey::generate().map_err(failed)?;
        let recovery = self.recovery()?.current();
        let sealed = key.sealed_with(recovery, number).map_err(failed)?;
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
