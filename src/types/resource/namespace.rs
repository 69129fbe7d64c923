//! `namespace.kat` (RFC001-KAT 3.7).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Amounts, ResourceList, workload::is_default};
use crate::api::newer;

/// The namespace of KAT itself, in which only administrators write.
pub const CORE_NAMESPACE: &str = "kat-core";

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    /// Name and labels.
    pub metadata: NamespaceMetadata,
    /// Settings of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<NamespaceSpec>,
}

/// Settings of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceSpec {
    /// Who may reach its workloads.
    pub isolation: NamespaceIsolation,
    /// Namespaces that may reach its workloads; `*` for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_namespaces: Vec<String>,
    /// Hosts that its routes may have; all if absent. A wildcard covers one label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_hosts: Option<Vec<String>>,
    /// Quotas, in place of all present ones; these stay if it is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Amounts>,
    /// Values for workloads that do not have them; the present ones stay if it is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defaults: Option<NamespaceDefaults>,
}

/// Who may reach the workloads of a namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NamespaceIsolation {
    /// Workloads of the same namespace, and those of allowed namespaces.
    #[default]
    Private,
    /// All workloads.
    Shared,
}

/// An unknown word opens nothing.
impl newer::ExtensibleEnum for NamespaceIsolation {
    const NEWER: Self = Self::Private;
}

/// Which other namespaces may reach the workloads of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceAccess {
    /// Whether all of them may. In an object of a newer version, an unknown word is read as
    /// `Private`.
    #[serde(deserialize_with = "newer::word", skip_serializing_if = "is_default")]
    pub isolation: NamespaceIsolation,
    /// Namespaces that may; `*` for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_namespaces: Vec<String>,
}

impl NamespaceAccess {
    /// Whether no other namespace may reach its workloads.
    pub fn is_closed(&self) -> bool {
        *self == Self::default()
    }
}

impl From<&NamespaceSpec> for NamespaceAccess {
    fn from(spec: &NamespaceSpec) -> Self {
        Self {
            isolation: spec.isolation,
            allow_namespaces: spec.allow_namespaces.clone(),
        }
    }
}

/// Values for workloads that do not have them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceDefaults {
    /// Requested resources.
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub requests: ResourceList,
}

impl NamespaceDefaults {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
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
