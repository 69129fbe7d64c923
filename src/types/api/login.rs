//! Credentials for registries as they are written and shown: passwords go in, and never come out.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiTime;

/// That a namespace has credentials for a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistryLoginView {
    /// The registry, `host[:port]`, or what is below a path of it, `host[:port]/path`.
    pub registry: String,
    /// The namespace.
    pub namespace: String,
    /// The name; only for who may change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Counts changes, from 1.
    pub version: u64,
    /// When it was last changed; RFC 3339, UTC.
    pub updated: ApiTime,
    /// Revision of the store at which it was last written.
    pub resource_version: String,
}

/// A name and a password for a registry that are to be kept.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RegistryLoginRequest {
    /// The name.
    pub username: String,
    /// The password, or a token that stands for one.
    pub password: String,
    /// Keep them without asking the registry whether it takes them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_check: bool,
}

/// The password is left out.
impl fmt::Debug for RegistryLoginRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RegistryLoginRequest")
            .field("no_check", &self.no_check)
            .finish_non_exhaustive()
    }
}

/// What became of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistryLoginResult {
    /// `created`, `updated` or `unchanged`.
    pub outcome: String,
    /// What the registry said: `accepted`, `notAsked` where it answers without credentials, `notChecked`.
    pub check: String,
    /// What is there now.
    pub login: RegistryLoginView,
}
