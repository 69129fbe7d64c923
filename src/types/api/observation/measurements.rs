//! What a machine measures of itself: `GET /v1alpha1/nodes/{node}/metrics`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Measurements of a machine by its agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeMeasurements {
    /// Version of KAT on the machine.
    pub version: String,
    /// The instances that the machine has to run.
    pub instances: Vec<InstanceMeasurements>,
    /// The machine itself.
    pub machine: MachineMeasurements,
    /// KAT's services on the machine.
    pub services: Vec<ServiceMeasurements>,
    /// The process of the agent.
    pub agent: ProcessMeasurements,
    /// The data path.
    pub network: NetworkMeasurements,
    /// Seconds since a leader last took a report of the machine; null before the first.
    pub leader_contact_age_seconds: Option<f64>,
    /// Requests from outside; null on a machine that serves no routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<IngressMeasurements>,
}

/// What `kat-ingress` counts since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressMeasurements {
    /// Open connections of clients.
    pub connections: u64,
    /// Connections of clients so far.
    pub accepted: u64,
    /// Connections and requests that a limit refused or ended.
    pub limited: u64,
    /// The routes that the machine serves.
    pub routes: Vec<RouteMeasurements>,
}

/// Counts of one route since the start of `kat-ingress`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteMeasurements {
    /// Namespace of the route.
    pub namespace: String,
    /// Its workload; for a route to something outside KAT a name that no workload has.
    pub workload: String,
    /// Its host.
    pub host: String,
    /// Its path.
    pub path: String,
    /// Answers by the class of their status, `1xx` to `5xx`.
    pub responses: BTreeMap<String, u64>,
    /// Answers that `kat-ingress` made because no instance could.
    pub upstream_failures: u64,
    /// Requests that were sent to a second instance.
    pub retries: u64,
    /// Requests under way.
    pub active: u64,
    /// Bytes of request bodies.
    pub received: u64,
    /// Bytes of response bodies.
    pub sent: u64,
    /// Sum of the times to the head of the response, in seconds.
    pub head_seconds: f64,
}

/// Measurements of one instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceMeasurements {
    /// Id of the instance.
    pub instance: String,
    /// Memory in use by all its containers, bytes; null if not measured.
    pub memory: Option<u64>,
    /// CPU time used by its present containers, nanoseconds; null if not measured.
    pub cpu: Option<u64>,
    /// Number of restarts of its program; null before the agent has looked at it.
    pub restarts: Option<u32>,
    /// Probes of its health check since the agent started; null before the first.
    pub probes: Option<ProbeMeasurements>,
}

/// Probes of one instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProbeMeasurements {
    /// Number of successful probes.
    pub succeeded: u64,
    /// Number of failed probes.
    pub failed: u64,
    /// Duration of the last probe, seconds.
    pub last_seconds: f64,
}

/// Measurements of the machine itself. Null is what could not be measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineMeasurements {
    /// All memory, bytes.
    pub memory: Option<u64>,
    /// Memory that programs can still get without swapping, bytes.
    pub memory_available: Option<u64>,
    /// Mean number of processes that run or wait for the disk, over one minute.
    pub load1: Option<f64>,
    /// The same over five minutes.
    pub load5: Option<f64>,
    /// The same over fifteen minutes.
    pub load15: Option<f64>,
    /// Size of the file system of `/var/lib/kat`, bytes.
    pub disk: Option<u64>,
    /// Bytes of it that are free.
    pub disk_free: Option<u64>,
}

/// Measurements of one of KAT's services.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceMeasurements {
    /// Unit of the service, such as `kat-net.service`.
    pub unit: String,
    /// Memory in use, bytes; null if not measured.
    pub memory: Option<u64>,
    /// CPU time used since its start, nanoseconds; null if not measured.
    pub cpu: Option<u64>,
}

/// Measurements of one process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessMeasurements {
    /// Resident memory, bytes; null if not measured.
    pub resident: Option<u64>,
    /// CPU time used since its start, nanoseconds.
    pub cpu: u64,
}

/// Measurements of the data path, as the agent knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkMeasurements {
    /// Whether `kat-net` runs and answers; null if unknown.
    pub answers: Option<bool>,
    /// The other machines as the machine's WireGuard sees them.
    pub peers: Vec<PeerMeasurements>,
}

/// Another machine of the overlay, as one machine's WireGuard sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerMeasurements {
    /// Name of the other machine.
    pub name: String,
    /// Whether there is a WireGuard session with it. Without traffic there may be none.
    pub connected: bool,
    /// Bytes sent to it since the interface was created.
    pub sent: u64,
    /// Bytes received from it since the interface was created.
    pub received: u64,
    /// Seconds since it was first asked in vain whether it answers over the overlay; null if it
    /// answered the last question, or was asked none.
    pub unanswered_seconds: Option<u32>,
}
