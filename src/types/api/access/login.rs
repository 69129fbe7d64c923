//! Credentials for registries in the API. Passwords are accepted and never returned.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{ApiTime, WriteOutcome, newer};

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

/// Result of the check of credentials with their registry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LoginCheck {
    /// The registry accepts the credentials.
    Accepted,
    /// The registry responds without credentials, so that they could not be checked.
    NotAsked,
    /// The registry was not queried.
    #[default]
    NotChecked,
}

/// An unknown result does not count as accepted.
impl newer::ExtensibleEnum for LoginCheck {
    const NEWER: Self = Self::NotChecked;
}

/// Result of storing credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistryLoginResult {
    /// `created`, `updated` or `unchanged`. In an object of a newer version, an unknown outcome is
    /// read as `updated`.
    #[serde(deserialize_with = "newer::word")]
    pub outcome: WriteOutcome,
    /// Result of the check. In an object of a newer version, an unknown result is read as
    /// `notChecked`.
    #[serde(deserialize_with = "newer::word")]
    pub check: LoginCheck,
    /// The stored credentials.
    pub login: RegistryLoginView,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_check_is_written_as_its_word_and_an_unknown_one_is_no_check() {
        for (check, word) in [
            (LoginCheck::Accepted, "accepted"),
            (LoginCheck::NotAsked, "notAsked"),
            (LoginCheck::NotChecked, "notChecked"),
        ] {
            assert_eq!(json!(check), json!(word));
        }
        let result = json!({"outcome": "created", "check": "half"});
        let result: RegistryLoginResult = serde_json::from_value(result).unwrap();
        assert_eq!(result.outcome, WriteOutcome::Created);
        assert_eq!(result.check, LoginCheck::NotChecked);
    }
}
