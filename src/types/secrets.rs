//! Stored secrets, and the secrets in assignments. The planner seals and opens them.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::resource::{Container, Volume, WorkloadSpec};

/// Namespace and name of a secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl SecretKey {
    /// Joins both.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Reads what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        let whole = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
        whole.then(|| Self::new(namespace, name))
    }
}

impl fmt::Display for SecretKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// `/kat/secrets/{ns}/{name}`: a secret, its values sealed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Generated when the secret is created.
    pub uid: String,
    /// Counts changes of the content, from 1.
    pub version: u64,
    /// When the secret was created.
    pub created: Timestamp,
    /// When its content last changed.
    pub updated: Timestamp,
    /// The public facts of its keys.
    pub keys: BTreeMap<String, SecretKeyRecord>,
    /// Number of the data key that sealed it.
    pub key_id: u64,
    /// The values, sealed, in base64.
    pub sealed: String,
}

/// The sealed values are left out: they are long and not readable.
impl fmt::Debug for SecretRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SecretRecord")
            .field("uid", &self.uid)
            .field("version", &self.version)
            .field("keys", &self.keys)
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

/// The public facts of one key of a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretKeyRecord {
    /// Bytes of its value.
    pub size: usize,
    /// The value is text, so that an environment variable can have it.
    pub text: bool,
}

/// `/kat/sealing/{number}`: a data key. New values are sealed with the one of the highest number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SealingKeyRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// When the key was created.
    pub created: Timestamp,
    /// The key, sealed with the recovery key, in base64.
    pub sealed: String,
}

/// Values of secrets that an instance uses, or its credentials for registries, sealed for its
/// machine.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedSecrets {
    /// The version of each that it was given, by name.
    pub versions: BTreeMap<String, SecretVersion>,
    /// The used values, sealed, in base64.
    pub sealed: String,
}

impl fmt::Debug for AssignedSecrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AssignedSecrets")
            .field("versions", &self.versions)
            .finish_non_exhaustive()
    }
}

/// A version of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretVersion {
    /// Uid of the secret: a secret that was created anew is another one.
    pub uid: String,
    /// Its version.
    pub version: u64,
}

impl SecretVersion {
    /// The present version of a stored secret.
    pub fn of(record: &SecretRecord) -> Self {
        Self {
            uid: record.uid.clone(),
            version: record.version,
        }
    }
}

/// The keys of one secret that are used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretUse {
    /// The used keys; `true` if an environment variable has the value.
    pub keys: BTreeMap<String, bool>,
    /// All of its keys.
    pub whole: bool,
}

/// The uses of secrets by containers, by the secrets' names.
pub fn secret_uses<'c>(
    containers: impl IntoIterator<Item = &'c Container>,
    volumes: &[Volume],
) -> BTreeMap<String, SecretUse> {
    let mut uses: BTreeMap<String, SecretUse> = BTreeMap::new();
    for container in containers {
        let sources = container
            .env
            .iter()
            .filter_map(|one| one.value_from.as_ref());
        for source in sources {
            let used = uses.entry(source.secret.name.clone()).or_default();
            used.keys.insert(source.secret.key.clone(), true);
        }
        for mount in &container.volume_mounts {
            let volume = volumes.iter().find(|volume| volume.name == mount.name);
            let Some(secret) = volume.and_then(|volume| volume.secret.as_ref()) else {
                continue;
            };
            let used = uses.entry(secret.name.clone()).or_default();
            match &mount.sub_path {
                None => used.whole = true,
                Some(key) => drop(used.keys.entry(key.clone()).or_insert(false)),
            }
        }
    }
    uses
}

/// The uses of secrets by a workload.
pub fn secrets_of(spec: &WorkloadSpec) -> BTreeMap<String, SecretUse> {
    let others = spec.init_containers.iter().chain(&spec.sidecars);
    secret_uses(
        std::iter::once(&spec.container).chain(others),
        &spec.volumes,
    )
}
