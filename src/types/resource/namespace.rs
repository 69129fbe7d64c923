//! `namespace.kat` (RFC001-KAT 3.7).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    /// Name and labels.
    pub metadata: NamespaceMetadata,
}

/// Name and labels of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceMetadata {
    /// DNS-1123 label of at most 40 characters; no top-level domain such as `dev`, and no word for a
    /// kind of object such as `node` or `volume`.
    pub name: String,
    /// Labels, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}
