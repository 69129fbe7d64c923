//! Generations of a workload, and what is asked of its rollouts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiTime;

/// One kept generation of a workload. Values of environment variables are not part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GenerationView {
    /// Its number.
    pub generation: u64,
    /// RFC 3339, UTC: when it was written; empty where an earlier version kept it.
    pub applied: String,
    /// Who asked for it; nobody where the workload went back by itself.
    pub by: String,
    /// `Applied`, `RolledBack`, `RolledBackItself`, `Scaled` or `Restarted`; empty where an
    /// earlier version kept it.
    pub origin: String,
    /// The generation whose content it has again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// Why the workload went back by itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Its image.
    pub image: String,
    /// Its replicas.
    pub replicas: u32,
    /// It was wholly healthy once.
    pub good: bool,
    /// It is the one that is wanted now.
    pub current: bool,
}

/// Which generation to go back to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RollbackRequest {
    /// Its number; the newest one before the present one that was wholly healthy without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

/// How many replicas a workload is to have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScaleRequest {
    /// 0 to 1000.
    pub replicas: u32,
}

/// That instances are to begin anew.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestartRequest {
    /// RFC 3339: when this was asked for. A request that is repeated names the same time.
    pub restarted_at: ApiTime,
}
