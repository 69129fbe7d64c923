//! What is stored and assigned of secrets. How they are sealed and opened is the planner's.

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
    /// Generated when the secret is made.
    pub uid: String,
    /// Counts changes of the content, from 1.
    pub version: u64,
    /// When it was made.
    pub created: Timestamp,
    /// When its content last changed.
    pub updated: Timestamp,
    /// What may be told of its keys.
    pub keys: BTreeMap<String, SecretKeyRecord>,
    /// Number of the data key that sealed it.
    pub key_id: u64,
    /// The values, sealed, in base64.
    pub sealed: String,
}

/// The sealed values are left out: they are long, and tell nothing.
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

/// What may be told of one key of a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretKeyRecord {
    /// Bytes of its value.
    pub size: usize,
    /// A variable can have it.
    pub text: bool,
}

/// `/kat/sealing/{number}`: a data key. New things are sealed with the one of the highest number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SealingKeyRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// When it was made.
    pub created: Timestamp,
    /// The key, sealed with the recovery key, in base64.
    pub sealed: String,
}

/// What an instance uses of secrets, or of credentials of registries, sealed for its machine.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedSecrets {
    /// By name, which version of each it was given.
    pub versions: BTreeMap<String, SecretVersion>,
    /// The values that it uses, sealed, in base64.
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
    /// Of which secret: one that was made anew is another.
    pub uid: String,
    /// Its version.
    pub version: u64,
}

impl SecretVersion {
    /// The version of a secret as it is stored.
    pub fn of(record: &SecretRecord) -> Self {
        Self {
            uid: record.uid.clone(),
            version: record.version,
        }
    }
}

/// What of one secret is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretUse {
    /// These keys; true where a variable has the value.
    pub keys: BTreeMap<String, bool>,
    /// All of its keys.
    pub whole: bool,
}

/// What containers use of secrets, by the names of these.
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

/// What a workload uses of secrets.
pub fn secrets_of(spec: &WorkloadSpec) -> BTreeMap<String, SecretUse> {
    let others = spec.init_containers.iter().chain(&spec.sidecars);
    secret_uses(
        std::iter::once(&spec.container).chain(others),
        &spec.volumes,
    )
}
