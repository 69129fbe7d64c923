//! Settings of registries, and the image of a workload, in the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistryView {
    /// Host of the registry, with the port if it is not 443.
    pub host: String,
    /// The registry's certificate is not checked, and HTTP without TLS is allowed.
    pub insecure: bool,
    /// Mirrors that are tried before the registry, in this order: hosts, optionally with a path.
    pub mirrors: Vec<String>,
}

/// Request that replaces the settings of one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RegistryRequest {
    /// The registry's certificate is not checked, and HTTP without TLS is allowed.
    pub insecure: bool,
    /// Mirrors that are tried before the registry, in this order: hosts, optionally with a path.
    pub mirrors: Vec<String>,
}

/// Request that changes the image of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageRequest {
    /// The image, as written in `spec.source.image`.
    pub image: String,
}
