//! Credentials for registries in the API. Passwords are accepted and never returned.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiTime;

/// Credentials of a namespace for a registry, without the password.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistryLoginView {
    /// The registry, `host[:port]`, or a path of it, `host[:port]/path`.
    pub registry: String,
    /// The namespace that uses the credentials.
    pub namespace: String,
    /// User name; absent for callers who may not change the credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Number of the version: 1 when created, increased by each change.
    pub version: u64,
    /// When the credentials last changed; RFC 3339, UTC.
    pub updated: ApiTime,
    /// Revision of the store at which the credentials were last written.
    pub resource_version: String,
}

/// Request to store a user name and a password for a registry.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RegistryLoginRequest {
    /// User name.
    pub username: String,
    /// The password, or a token in its place.
    pub password: String,
    /// Store the credentials without checking them with the registry.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_check: bool,
}

/// Does not show the password.
impl fmt::Debug for RegistryLoginRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RegistryLoginRequest")
            .field("no_check", &self.no_check)
            .finish_non_exhaustive()
    }
}

/// Result of storing credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistryLoginResult {
    /// `created`, `updated` or `unchanged`.
    pub outcome: String,
    /// Result of the check: `accepted`, `notAsked` if the registry responds without credentials, or
    /// `notChecked`.
    pub check: String,
    /// The stored credentials.
    pub login: RegistryLoginView,
}
