//! Values of secrets and credentials for registries, sealed for one instance on its machine.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::{
    recovery_key::SealError,
    secret_sealing::{DataKey, open_delivery},
};
use kat_types::{
    registry::Credentials,
    resource::secret::SecretValues,
    secrets::{AssignedSecrets, SecretVersion},
};

/// Key of a registry's user name among the values of its credentials.
pub const USERNAME: &str = "username";
/// Key of a registry's password among the values of its credentials.
pub const PASSWORD: &str = "password";

/// Why a secret can't be opened or sealed. No message contains a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealingError {
    /// The machine has no recovery key.
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

/// The use of an instance's sealed values. Values sealed for one purpose do not open for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealingPurpose {
    /// Values of secrets, for variables and files.
    Secrets,
    /// Credentials of registries, for pulls.
    Logins,
    /// Certificates and passwords of a workload's routes; the workload stands for the instance.
    Routes,
}

impl SealingPurpose {
    fn word(self) -> &'static str {
        match self {
            Self::Secrets => "delivery",
            Self::Logins => "delivery of credentials",
            Self::Routes => "delivery of certificates",
        }
    }

    fn of(self, instance: &str) -> String {
        match self {
            Self::Secrets => format!("the secrets of {instance}"),
            Self::Logins => format!("the credentials for {instance}'s images"),
            Self::Routes => format!("the certificates of {instance}'s routes"),
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
pub fn framed<'p>(parts: impl Iterator<Item = &'p [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        // No part is nearly that long.
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
        bytes.extend(length.to_be_bytes());
        bytes.extend(part);
    }
    bytes
}

/// The parts of [`framed`] bytes; `None` if they are cut off.
pub fn unframed(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
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

/// Opens an assignment's credentials on its machine: credentials by the key in Podman's file.
///
/// # Errors
/// [`SealingError`].
pub fn open_logins(
    logins: &AssignedSecrets,
    private_key: &[u8; 32],
    node: &str,
    instance: &str,
) -> Result<BTreeMap<String, Credentials>, SealingError> {
    let opened = open_assigned(logins, SealingPurpose::Logins, private_key, node, instance)?;
    let opened = opened.into_iter().map(|(key, mut values)| {
        let mut text = |name: &str| {
            let value = values.0.remove(name)?;
            String::from_utf8(value).ok()
        };
        match (text(USERNAME), text(PASSWORD)) {
            (Some(username), Some(password)) => Ok((key, Credentials { username, password })),
            _ => Err(SealingError::Malformed(format!(
                "the credentials for {key}"
            ))),
        }
    });
    opened.collect()
}
