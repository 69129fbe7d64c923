//! The request that creates a namespace.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resource::NamespaceMetadata;

/// The request that creates a namespace: `namespace.kat` as JSON.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamespaceRequest {
    /// `kat.dws.rip/v1alpha1` if it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `Namespace` if it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name and labels.
    pub metadata: NamespaceMetadata,
}
