//! Machines as they are shown.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiTime, Condition, OverlayPeer, newer};
use crate::{
    reason::Reason,
    resource::{ResourceList, TaintEffect},
};

/// Type of the condition of a machine that holds etcd, or is about to.
pub const ETCD_CONDITION: &str = "EtcdMember";

/// Type of the condition of a machine whose member of etcd has lost its data.
pub const DATA_LOST_CONDITION: &str = "EtcdDataLost";

/// Type of the condition of a machine whose disk space runs short: nothing new is placed on it.
pub const DISK_PRESSURE: &str = "DiskPressure";

/// Type of the condition of a machine on which files that follow the store cannot be written.
pub const FILES_WRITTEN: &str = "FilesWritten";

/// The reason of [`DATA_LOST_CONDITION`] names the member, by etcd's id: a machine that becomes a member anew
/// has another one.
pub fn data_lost_reason(member: &str) -> String {
    format!("{}{member}", Reason::Member)
}

/// What was decided about a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// Taints.
    pub taints: Vec<Taint>,
    /// It is being drained.
    pub draining: bool,
    /// While it is drained, what no other machine takes is stopped too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub drain_forced: bool,
}

/// All labels of a machine, in a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeLabels {
    /// The labels; those that say what the machine is stay as they are.
    pub labels: BTreeMap<String, String>,
}

/// All taints of a machine, in a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeTaints {
    /// The taints; a key may have each effect once.
    pub taints: Vec<Taint>,
}

/// A taint (RFC001-KAT 1.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    #[serde(default)]
    pub value: String,
    /// What it does.
    pub effect: TaintEffect,
}

/// Phases of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NodePhase {
    /// It has not reported yet.
    #[default]
    Joining,
    /// It reports.
    Ready,
    /// It does not report.
    NotReady,
    /// Its instances are on their way elsewhere.
    Draining,
    /// Nothing is left on it.
    Drained,
    /// It leads itself.
    Detached,
}

/// What a machine is for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum NodeRole {
    /// It leads.
    Leader,
    /// It holds etcd.
    Etcd,
    /// It runs workloads.
    Worker,
    /// It lets the outside in.
    Ingress,
}

/// What became of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// In one word.
    #[serde(deserialize_with = "newer::word")]
    pub phase: NodePhase,
    /// One word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// Roles.
    #[serde(deserialize_with = "newer::roles")]
    pub roles: Vec<NodeRole>,
    /// Addresses of its links.
    pub addresses: Vec<String>,
    /// `host:port` of its WireGuard.
    pub endpoints: Vec<String>,
    /// Address on the overlay.
    pub overlay_address: String,
    /// Its part of the overlay.
    pub subnet: String,
    /// KAT's version.
    pub version: String,
    /// `amd64`, `arm64` ...
    pub architecture: String,
    /// All that it has.
    pub capacity: ResourceList,
    /// What workloads may use.
    pub allocatable: ResourceList,
    /// RFC 3339, UTC: last report.
    pub last_heartbeat: Option<ApiTime>,
    /// Instances on it.
    pub instances: u32,
    /// Conditions such as `MemoryControllerMissing`.
    pub conditions: Vec<Condition>,
    /// The other machines, as its WireGuard has them; of a single machine alone, not in lists, and
    /// none where its last report is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<OverlayPeer>,
}
