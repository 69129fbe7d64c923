//! The measurements of `GET /v1alpha1/metrics`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Measurements of the leader, and counts of what the store holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Metrics {
    /// Version of KAT.
    pub version: String,
    /// Name of this machine.
    pub node: String,
    /// Whether this machine leads.
    pub leader: bool,
    /// Revision of the store that the counts show.
    pub revision: i64,
    /// Workloads by phase.
    pub workloads: BTreeMap<String, u64>,
    /// Instances by phase.
    pub instances: BTreeMap<String, u64>,
    /// Machines by phase.
    pub nodes: BTreeMap<String, u64>,
    /// Seconds since each machine's last report.
    pub heartbeat_age_seconds: BTreeMap<String, f64>,
    /// Number of stored events.
    pub events: u64,
    /// Number of open watches and log streams.
    pub streams: u64,
    /// Calls of the API since this program started, by route and outcome.
    pub calls: Vec<CallMetrics>,
}

/// Calls of one route with one outcome.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CallMetrics {
    /// HTTP method.
    pub method: String,
    /// Path of the route, with the names of its parameters.
    pub route: String,
    /// HTTP status.
    pub status: u16,
    /// Number of calls.
    pub count: u64,
    /// Sum of the seconds until the head of the answer.
    pub seconds: f64,
}
