//! Volumes as they are shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::newer;
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
}
