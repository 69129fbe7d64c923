//! Secrets in the API. Values are accepted and never returned.

use std::{collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiTime;

/// Content of a secret, without values. The version of a secret is `metadata.generation`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretSpec {
    /// Keys of the secret, sorted by name.
    pub keys: Vec<SecretKeyView>,
}

/// One key of a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretKeyView {
    /// Name of the key.
    pub name: String,
    /// Size of the value, bytes.
    pub size: u64,
}

/// Observed state of a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretStatus {
    /// When the content last changed; RFC 3339, UTC.
    pub updated: ApiTime,
    /// Names of the workloads that use the secret.
    pub used_by: Vec<String>,
    /// Names of the workloads whose rollout with the current version of the secret has not started.
    pub behind: Vec<String>,
}

/// Request to write a secret.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SecretRequest {
    /// Values by key, base64.
    pub values: BTreeMap<String, String>,
    /// Keep keys that the request does not name. Otherwise they are removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub merge: bool,
    /// Keys to remove; only with `merge`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// Does not show the values.
impl fmt::Debug for SecretRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SecretRequest")
            .field("keys", &self.values.keys().collect::<Vec<_>>())
            .field("merge", &self.merge)
            .field("remove", &self.remove)
            .finish()
    }
}

/// Progress of a rotation of the key that seals secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SealingRotation {
    /// Number of the key that seals secrets now.
    pub key: u64,
    /// Number of secrets still sealed with an earlier key. When it reaches 0, the earlier keys are
    /// deleted.
    pub left: u64,
}
