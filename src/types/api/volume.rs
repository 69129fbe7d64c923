//! Volumes as they are shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiTime, newer};
use crate::resource::ReclaimPolicy;

/// What a volume is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    /// Its workload, which may be gone. The volume's own name is unique only together with it.
    pub workload: String,
    /// Its name in `workload.kat`.
    pub volume: String,
    /// The slot, where each replica has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// What becomes of the data when the workload is deleted.
    #[serde(deserialize_with = "newer::word")]
    pub reclaim: ReclaimPolicy,
    /// Of a path of the machine: the path. KAT never removes what lies there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
}

/// Phases of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumePhase {
    /// It has a place, and nothing has run with it yet.
    #[default]
    Pending,
    /// Its workload has it.
    Bound,
    /// Its workload is gone, and the data is kept.
    Released,
    /// The data is being removed.
    Removing,
    /// The data is on its way to another machine.
    Moving,
}

/// What became of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeStatus {
    /// In one word.
    #[serde(deserialize_with = "newer::word")]
    pub phase: VolumePhase,
    /// The machine that holds the data; nothing where machines share it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The data lies on storage that machines share.
    pub shared: bool,
    /// Where it lies on a machine.
    pub path: String,
    /// Instances that have it, or may still have it.
    pub used_by: Vec<String>,
    /// On its way to another machine.
    #[serde(rename = "move", skip_serializing_if = "Option::is_none")]
    pub moving: Option<VolumeMoveStatus>,
    /// Copies that are left where it was before it moved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptCopyView>,
}

/// A volume on its way to another machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMoveStatus {
    /// The same for all volumes that move together, and for no other move.
    pub id: String,
    /// The machine that has had it.
    pub from: String,
    /// The machine that gets it.
    pub to: String,
    /// RFC 3339, UTC: when it was asked for.
    pub since: ApiTime,
    /// `Stopping`, `Waiting`, `Copying`, `Verifying`, `Copied` or `Placing`.
    pub phase: String,
    /// Why it waits, or why the last try failed; empty where neither is so.
    pub message: String,
    /// Files and links that have arrived, or have been compared while it verifies.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// All files and links; 0 while that is not known.
    pub total_files: u64,
    /// Their bytes, about.
    pub total_bytes: u64,
}

/// A copy of before a move.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KeptCopyView {
    /// The machine.
    pub node: String,
    /// RFC 3339, UTC: when it goes.
    pub until: ApiTime,
}

/// Where the data of a volume is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeMoveRequest {
    /// The machine.
    pub to: String,
}
