//! Generations of a workload, and requests for rollbacks, scaling and restarts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiTime;

/// A kept generation of a workload, without values of environment variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GenerationView {
    /// Number of the generation.
    pub generation: u64,
    /// When the generation was written; RFC 3339, UTC; empty if an older version of KAT wrote it.
    pub applied: String,
    /// The caller who requested the generation; empty for an automatic rollback.
    pub by: String,
    /// Origin of the generation: `Applied`, `RolledBack`, `RolledBackItself` (by `autoRollback`),
    /// `Scaled`, `Restarted`, `ImageSet` or `SecretChanged`; empty if an older version of KAT wrote
    /// it.
    pub origin: String,
    /// The generation whose content a rollback restored; absent for other origins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// Why `autoRollback` made the generation; absent for other origins.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The image as written in `workload.kat`.
    pub image: String,
    /// Number of replicas.
    pub replicas: u32,
    /// Whether all instances of the generation were healthy at the same time.
    pub good: bool,
    /// Whether the generation is the current one.
    pub current: bool,
}

/// Request to restore an earlier generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RollbackRequest {
    /// Number of the generation. If absent, the newest earlier generation of which all instances
    /// were healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

/// Request that changes the number of replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScaleRequest {
    /// New number of replicas, 0 to 1000.
    pub replicas: u32,
}

/// Request to replace all instances by new ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestartRequest {
    /// When the restart was requested; RFC 3339. A repeated request with the same time has no
    /// further effect.
    pub restarted_at: ApiTime,
}
