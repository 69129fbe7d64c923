//! The request that creates a namespace.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::resource::{
    Amounts, Bytes, MilliCpu, Namespace, NamespaceDefaults, NamespaceIsolation, NamespaceMetadata,
    QuotaResource, ResourceList,
};

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
    /// Its settings. If absent, they stay as they are; a new namespace is private.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<NamespaceAccessRequest>,
}

/// Settings of a namespace: `spec` of `namespace.kat`.
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
    /// All quotas of the namespace; if absent, the present ones stay.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "known_quotas"
    )]
    pub quota: Option<Amounts>,
    /// All values for workloads that do not have them; if absent, the present ones stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defaults: Option<NamespaceDefaultsRequest>,
}

/// Values for workloads that do not have them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NamespaceDefaultsRequest {
    /// Requests of each container that has neither a request nor a limit.
    pub requests: DefaultRequests,
}

/// Requests of each container that has neither a request nor a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DefaultRequests {
    /// CPU, such as `100m` or `1.5`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<MilliCpu>,
    /// Memory, such as `64Mi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
}

impl From<NamespaceDefaults> for NamespaceDefaultsRequest {
    fn from(defaults: NamespaceDefaults) -> Self {
        let ResourceList { cpu, memory, .. } = defaults.requests;
        Self {
            requests: DefaultRequests { cpu, memory },
        }
    }
}

impl From<NamespaceDefaultsRequest> for NamespaceDefaults {
    fn from(request: NamespaceDefaultsRequest) -> Self {
        let DefaultRequests { cpu, memory } = request.requests;
        Self {
            requests: ResourceList {
                cpu,
                memory,
                storage: None,
            },
        }
    }
}

/// Quotas of a request: unlike those of a stored object, an unknown one is an error.
fn known_quotas<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Amounts>, D::Error> {
    let Some(quotas) =
        Option::<serde_json::Map<String, serde_json::Value>>::deserialize(deserializer)?
    else {
        return Ok(None);
    };
    let unknown = quotas
        .keys()
        .find(|word| QuotaResource::of_word(word).is_none());
    if let Some(unknown) = unknown {
        let unknown: String = unknown.chars().take(60).collect();
        return Err(D::Error::custom(format!("`{unknown}` is no quota")));
    }
    serde_json::from_value(quotas.into())
        .map(Some)
        .map_err(D::Error::custom)
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
                quota: spec.quota,
                defaults: spec.defaults.map(NamespaceDefaultsRequest::from),
            }),
        }
    }
}
