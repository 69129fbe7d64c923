//! Secrets as they are written and shown: values go in, and never come out.

use std::{collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiTime;

/// What a secret is; its version is the metadata's generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretSpec {
    /// Its keys, by name.
    pub keys: Vec<SecretKeyView>,
}

/// One key of a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretKeyView {
    /// Its name.
    pub name: String,
    /// Bytes of its value.
    pub size: u64,
}

/// What became of a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretStatus {
    /// When its content last changed; RFC 3339, UTC.
    pub updated: ApiTime,
    /// Workloads that use it.
    pub used_by: Vec<String>,
    /// Those of them whose rollout with its present version has not begun.
    pub behind: Vec<String>,
}

/// The content of a secret that is to be written.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SecretRequest {
    /// Values by key, in base64.
    pub values: BTreeMap<String, String>,
    /// Keep the keys that are not named; without it the secret has only what is sent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub merge: bool,
    /// Keys to take out; only with `merge`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// The values are left out.
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

/// How far a rotation of the key is that seals secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SealingRotation {
    /// Number of the key that seals from now on.
    pub key: u64,
    /// Secrets that are sealed with an earlier one; with none left, earlier keys are gone.
    pub left: u64,
}
