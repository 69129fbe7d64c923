//! How registries are reached and by whose name, and how names of images are read.

mod logins;
mod reference;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use logins::{LoginPlace, LoginRecord, Logins, login_host, needed};
pub use reference::Reference;

/// `/kat/config/registries`: how registries are reached, by their hosts (`registry.example`, `registry.lab:5000`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistrySettings {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Those about which something is said.
    pub registries: BTreeMap<String, RegistrySetting>,
}

/// How one registry is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistrySetting {
    /// Its certificate is not checked, and HTTP without TLS will do.
    pub insecure: bool,
    /// Hosts, with paths where they have one, that are asked before it, in this order.
    pub mirrors: Vec<String>,
}

/// Name and password for a registry. Debug does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name.
    pub username: String,
    /// The password, or a token that stands for one.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Credentials(..)")
    }
}
