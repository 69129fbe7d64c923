//! Machines in the API.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiTime, Condition, OverlayPeer, newer};
use crate::{
    reason::Reason,
    resource::{Bytes, ResourceList, TaintEffect},
};

/// Type of a machine's condition: state of its etcd member, if the machine holds etcd or is about
/// to.
pub const ETCD_CONDITION: &str = "EtcdMember";
/// Type of the condition of a machine whose version of KAT does not read the files of every
/// workload. It is absent where the machine reads them.
pub const READS_FILES: &str = "ReadsFiles";

/// Type of a machine's condition: its etcd member has lost its data.
pub const DATA_LOST_CONDITION: &str = "EtcdDataLost";

/// Type of a machine's condition: disk space is short, and no new instances are placed on the
/// machine.
pub const DISK_PRESSURE: &str = "DiskPressure";

/// Type of a machine's condition: false if a file system that its instances use does not answer.
pub const DISKS_ANSWER: &str = "DisksAnswer";

/// Type of a machine's condition: false if files derived from the store cannot be written.
pub const FILES_WRITTEN: &str = "FilesWritten";

/// Type of a machine's condition: false if its `kat-net` does not run.
pub const DATA_PATH_RUNS: &str = "DataPathRuns";

/// Type of a machine's condition: false if it does not serve the routes that it was given.
pub const ROUTES_SERVED: &str = "RoutesServed";

/// Type of a machine's condition: false if a host port is not open on it that it is to have because it
/// serves routes.
pub const INGRESS_PORTS_OPEN: &str = "IngressPortsOpen";

/// Type of a machine's condition: false if a CDI spec of the machine cannot be used.
pub const GPU_SPECS_READ: &str = "GpuSpecsRead";

/// Type of a machine's condition: false if it is to hold a virtual address and can't.
pub const VIRTUAL_ADDRESSES_HELD: &str = "VirtualAddressesHeld";

/// Type of a machine's condition, which the leader judges: false if the machine reports and has not
/// acted on a change of its list of assignments for a minute.
pub const ASSIGNMENTS_APPLIED: &str = "AssignmentsApplied";
/// Type of a machine's condition: false if the cluster isolates namespaces and the machine does not.
pub const ISOLATION_ENFORCED: &str = "IsolationEnforced";

/// Type of a machine's condition: it refuses a later epoch of the store that nothing proves to it,
/// and follows the cluster no more.
pub const STORE_EPOCH_REFUSED: &str = "StoreEpochRefused";

/// Reason of [`DATA_LOST_CONDITION`] for a member of etcd with this id. A machine that becomes a
/// member again has another id.
pub fn data_lost_reason(member: &str) -> String {
    format!("{}{member}", Reason::Member)
}

/// Settings of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// Taints of the machine.
    pub taints: Vec<Taint>,
    /// Whether the machine is being drained, or stays drained.
    pub draining: bool,
    /// Whether the drain also stops instances that no other machine can take.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub drain_forced: bool,
}

/// Request that replaces the labels of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeLabels {
    /// The new labels. Labels that describe the machine itself are not changed.
    pub labels: BTreeMap<String, String>,
}

/// Request that replaces the taints of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeTaints {
    /// The new taints. A key may have each effect at most once.
    pub taints: Vec<Taint>,
}

/// A taint of a machine (RFC001-KAT 1.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// Key of the taint.
    pub key: String,
    /// Value of the taint; may be empty.
    #[serde(default)]
    pub value: String,
    /// Effect on workloads that do not tolerate the taint.
    pub effect: TaintEffect,
}

impl Taint {
    /// The key of the taint that `katcall cordon` sets and `katcall uncordon` removes.
    pub const CORDON_KEY: &'static str = "kat.dws.rip/cordoned";
}

/// Phase of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NodePhase {
    /// The machine has not reported yet.
    #[default]
    Joining,
    /// The machine reports.
    Ready,
    /// The machine has not reported for `nodeLossTimeoutSeconds`.
    NotReady,
    /// The machine is being drained, and still has instances.
    Draining,
    /// The machine is drained, and has no instances left.
    Drained,
    /// The machine leads a cluster of its own.
    Detached,
}

/// Role of a machine.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum NodeRole {
    /// The machine is the leader.
    Leader,
    /// The machine is a member of etcd.
    Etcd,
    /// The machine runs workloads.
    Worker,
    /// The machine is labelled for ingress, or serves routes and holds the keys of their certificates.
    Ingress,
}

/// Observed state of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Phase of the machine. In an object of a newer version, an unknown phase is read as
    /// `Joining`.
    #[serde(deserialize_with = "newer::word")]
    pub phase: NodePhase,
    /// Reason of the phase, one word for programs.
    pub reason: String,
    /// Reason of the phase for users, in a sentence.
    pub message: String,
    /// Roles of the machine. Unknown roles of a newer version are left out.
    #[serde(deserialize_with = "newer::roles")]
    pub roles: Vec<NodeRole>,
    /// Addresses of the machine's network interfaces.
    pub addresses: Vec<String>,
    /// `host:port` of the machine's WireGuard.
    pub endpoints: Vec<String>,
    /// Overlay address of the machine.
    pub overlay_address: String,
    /// The machine's subnet of the overlay, in CIDR notation.
    pub subnet: String,
    /// Version of KAT on the machine.
    pub version: String,
    /// Architecture of the machine: `amd64`, `arm64` ...
    pub architecture: String,
    /// All resources of the machine.
    pub capacity: ResourceList,
    /// Resources that workloads may use.
    pub allocatable: ResourceList,
    /// Sum of the requests of the instances on the machine. Left out by earlier versions, and where only
    /// an overview of the machine is known.
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub requested: ResourceList,
    /// When the machine last reported; RFC 3339, UTC.
    pub last_heartbeat: Option<ApiTime>,
    /// Number of instances on the machine.
    pub instances: u32,
    /// Conditions of the machine, such as `MemoryControllerMissing`.
    pub conditions: Vec<Condition>,
    /// The other machines as the machine's WireGuard sees them; in lists only those that do not
    /// answer over the overlay. Left out if the last report is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<OverlayPeer>,
    /// GPUs of the machine. Left out where there are none, and by earlier versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<NodeGpu>,
}

/// A GPU of a machine, and its use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeGpu {
    /// Its CDI name, such as `nvidia.com/gpu=0`.
    pub name: String,
    /// Its memory; null if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Whether an instance has it.
    pub used: bool,
}
