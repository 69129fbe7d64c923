//! Settings of registries, credentials for them, and parsing of image names.

mod logins;
mod reference;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use logins::{LoginPlace, LoginRecord, Logins, login_host, needed};
pub use reference::Reference;

/// `/kat/config/registries`: settings of registries by host (`registry.example`,
/// `registry.lab:5000`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistrySettings {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Registries with settings, by host.
    pub registries: BTreeMap<String, RegistrySetting>,
}

/// Settings of one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistrySetting {
    /// Its certificate is not checked, and HTTP without TLS is allowed.
    pub insecure: bool,
    /// Hosts, optionally with a path, that are queried before the registry, in this order.
    pub mirrors: Vec<String>,
}

/// Name and password for a registry. `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user name.
    pub username: String,
    /// The password, or a token in its place.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Credentials(..)")
    }
}
