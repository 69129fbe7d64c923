//! The request that creates a namespace.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resource::{Namespace, NamespaceIsolation, NamespaceMetadata};

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
    /// Who may reach its workloads. If absent, that stays as it is; a new namespace is private.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<NamespaceAccessRequest>,
}

/// Which other namespaces may reach the workloads of a namespace, and which hosts it may have: `spec`
/// of `namespace.kat`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NamespaceAccessRequest {
    /// Whether all of them may.
    pub isolation: NamespaceIsolation,
    /// Namespaces that may; `*` for all.
    pub allow_namespaces: Vec<String>,
    /// Hosts that its routes may have, exact or with `*.` for one label; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_hosts: Option<Vec<String>>,
}

impl From<&Namespace> for NamespaceRequest {
    fn from(namespace: &Namespace) -> Self {
        Self {
            api_version: None,
            kind: None,
            metadata: namespace.metadata.clone(),
            spec: namespace.spec.as_ref().map(|spec| NamespaceAccessRequest {
                isolation: spec.isolation,
                allow_namespaces: spec.allow_namespaces.clone(),
                ingress_hosts: spec.ingress_hosts.clone(),
            }),
        }
    }
}
