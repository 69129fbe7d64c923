//! Registries, as the API shows and takes what is set about them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How one registry is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistryView {
    /// Its host, with the port where that is another than 443.
    pub host: String,
    /// Its certificate is not checked, and HTTP without TLS will do.
    pub insecure: bool,
    /// Asked before it, in this order.
    pub mirrors: Vec<String>,
}

/// How one registry is to be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RegistryRequest {
    /// Its certificate is not checked, and HTTP without TLS will do.
    pub insecure: bool,
    /// Asked before it, in this order: hosts, with a path where they have one.
    pub mirrors: Vec<String>,
}

/// Which image a workload is to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageRequest {
    /// As `spec.source.image` has it.
    pub image: String,
}
