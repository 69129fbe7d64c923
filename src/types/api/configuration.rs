//! Changes of the cluster's configuration in the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiTime;
use crate::resource::ClusterConfiguration;

/// Answer to a change of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationChange {
    /// Number of the configuration, or the one that it would have; unchanged, the present number.
    pub number: u64,
    /// Nothing was written.
    pub dry_run: bool,
    /// The settings that differ from before; empty if nothing does.
    pub changes: Vec<SettingChange>,
}

/// One setting with another value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SettingChange {
    /// Name of the setting in `spec` of `cluster.kat`.
    pub setting: String,
    /// The value before, as in `cluster.kat`.
    pub before: String,
    /// The value after.
    pub after: String,
    /// What the change does, in a sentence.
    pub effect: String,
}

/// The configurations of the cluster that are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationHistory {
    /// For `If-Match` of a change.
    pub resource_version: String,
    /// The kept configurations, oldest first; the last one is the present one.
    pub revisions: Vec<ConfigurationRevision>,
    /// The lower `nodeLossTimeoutSeconds` that leaders do not go by yet; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<LossTimeoutWait>,
}

/// One configuration of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationRevision {
    /// Number; 1 is the configuration of init.
    pub number: u64,
    /// When it was made; absent for that of init.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_at: Option<ApiTime>,
    /// The caller that made it.
    pub made_by: String,
    /// What it changed; empty for the oldest that is kept.
    #[serde(default)]
    pub changes: Vec<SettingChange>,
    /// The whole configuration.
    pub configuration: ClusterConfiguration,
}

/// Leaders still count with a longer `nodeLossTimeoutSeconds` than the configuration has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LossTimeoutWait {
    /// The seconds by which leaders go.
    pub leaders_seconds: u32,
    /// Machines that have not confirmed the lower value.
    pub machines: Vec<String>,
    /// Workloads with `onPartition: stop`, as `NAMESPACE/NAME`, whose programs may not end within it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<String>,
}
