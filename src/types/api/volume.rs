//! Volumes in the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiTime, newer};
use crate::resource::ReclaimPolicy;

/// Definition of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    /// Name of the workload, which may be deleted. The volume's name is unique within the workload.
    pub workload: String,
    /// Name of the volume in `workload.kat`.
    pub volume: String,
    /// Slot of the replica; absent if all replicas share the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// What happens to the data when the workload is deleted. In an object of a newer version, an
    /// unknown policy is read as `Retain`.
    #[serde(deserialize_with = "newer::word")]
    pub reclaim: ReclaimPolicy,
    /// Path on the machine, for a host path; absent for other volumes. KAT never removes the data
    /// of a host path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
}

/// Phase of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumePhase {
    /// The volume is placed, and no instance has used it yet.
    #[default]
    Pending,
    /// The volume belongs to a workload.
    Bound,
    /// The workload is deleted, and the data is kept.
    Released,
    /// The data is being removed.
    Removing,
    /// The data is being moved to another machine.
    Moving,
}

/// Observed state of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeStatus {
    /// Phase of the volume. In an object of a newer version, an unknown phase is read as `Bound`.
    #[serde(deserialize_with = "newer::word")]
    pub phase: VolumePhase,
    /// Name of the machine with the data; absent for storage that machines share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether the data lies on storage that machines share.
    pub shared: bool,
    /// Path of the data on the machine.
    pub path: String,
    /// Ids of the instances that use the volume, or may still use it.
    pub used_by: Vec<String>,
    /// Progress of the move to another machine; absent if there is none.
    #[serde(rename = "move", skip_serializing_if = "Option::is_none")]
    pub moving: Option<VolumeMoveStatus>,
    /// Copies kept on machines that had the data before a move.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptCopyView>,
    /// Removals of the volume's data and of its kept copies that no machine has confirmed yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removals: Vec<VolumeRemovalView>,
}

/// State of a removal of a volume's data on one machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeRemovalState {
    /// The machine was asked to remove the data.
    #[default]
    Requested,
    /// The machine does not find the data: its disk may be missing.
    Missing,
    /// A person has given the data up, and the machine has yet to record that.
    Forgetting,
}

impl newer::ExtensibleEnum for VolumeRemovalState {
    const NEWER: Self = Self::Requested;
}

/// A removal of a volume's data, or of a kept copy, on one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeRemovalView {
    /// Name of the machine.
    pub node: String,
    /// When the removal was requested; RFC 3339, UTC.
    pub since: ApiTime,
    /// State of the removal. In an object of a newer version, an unknown state is read as
    /// `Requested`.
    #[serde(deserialize_with = "newer::word")]
    pub state: VolumeRemovalState,
    /// What the removal waits for; empty if unknown.
    pub message: String,
}

/// Step of a volume's move to another machine, in their order.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum VolumeMoveStep {
    /// Instances that use the volume are being stopped.
    Stopping,
    /// The transfer is starting, or waits for a retry.
    #[default]
    Waiting,
    /// The receiving machine is reading the data.
    Copying,
    /// All data has arrived, and is being compared.
    Verifying,
    /// The copy is complete, next to the volume's place.
    Copied,
    /// The copy is being put in the volume's place.
    Placing,
}

impl newer::ExtensibleEnum for VolumeMoveStep {
    const NEWER: Self = Self::Waiting;
}

/// Progress of a volume's move to another machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMoveStatus {
    /// Id of the move, shared by all volumes that move together.
    pub id: String,
    /// Name of the machine that sends the data.
    pub from: String,
    /// Name of the machine that receives the data.
    pub to: String,
    /// When the move was requested; RFC 3339, UTC.
    pub since: ApiTime,
    /// Step of the move. In an object of a newer version, an unknown step is read as `Waiting`.
    #[serde(deserialize_with = "newer::word")]
    pub phase: VolumeMoveStep,
    /// Why the move waits, or why the last attempt failed; empty otherwise.
    pub message: String,
    /// Number of files and links received so far; while verifying, number of those compared.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Number of all files and links; 0 while unknown.
    pub total_files: u64,
    /// Approximate bytes of all files.
    pub total_bytes: u64,
}

/// A copy kept after a move, on a machine that had the data before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KeptCopyView {
    /// Name of the machine with the copy.
    pub node: String,
    /// When the copy is removed; RFC 3339, UTC.
    pub until: ApiTime,
}

/// Request to move a volume to another machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeMoveRequest {
    /// Name of the receiving machine.
    pub to: String,
}

/// Request to give up data of a volume that its machine does not find.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeForgetRequest {
    /// Name of the machine on which the data is missing.
    pub node: String,
}
