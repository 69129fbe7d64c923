//! Preview of an apply (`?dryRun=true`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{RouteItem, newer};
use crate::resource::ResourceList;

/// Preview of an apply, from the leader's own plan on a copy of the store. Values of environment
/// variables are replaced by `***`.
///
/// The preview assumes that nothing else changes, and that started instances become healthy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Preview {
    /// The stored generation; null for a new workload.
    pub present_generation: Option<u64>,
    /// Whether the content of instances changes, so that they are replaced.
    pub template_changed: bool,
    /// How instances are replaced, in words; empty if none is replaced.
    pub rollout: String,
    /// Changed fields, by file and path.
    pub fields: Vec<FieldChange>,
    /// Changed files of the workload's folder that volumes mount, by path.
    pub files: Vec<CarriedFileChange>,
    /// Effect on each instance, by slot.
    pub instances: Vec<InstanceChange>,
    /// Changed unit files. A change that is the same for several instances is listed once.
    pub units: Vec<UnitChange>,
    /// What new instances request from its namespace's defaults, where a container has neither a
    /// request nor a limit; null if the namespace has none, or no container gets them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_requests: Option<ResourceList>,
    /// Routes of the workload as they would be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteItem>,
    /// Why not all changes can be completed now; empty if they can.
    pub blocked: String,
    /// Whether the preview is complete. If not, further changes would follow.
    pub complete: bool,
}

/// A changed field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FieldChange {
    /// `workload.kat` or `VirtualLoadBalancer.kat`.
    pub file: String,
    /// Path of the field, such as `spec.replicas` or `spec.container.env[KEY].value`.
    pub path: String,
    /// Present value; null if the field is new.
    pub before: Option<serde_json::Value>,
    /// New value; null if the field is removed.
    pub after: Option<serde_json::Value>,
}

/// A changed file of the workload's folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CarriedFileChange {
    /// Path within the folder, such as `conf/nginx.conf`.
    pub path: String,
    /// Unified diff for a text file, otherwise a sentence.
    pub diff: String,
}

/// Effect of the apply on an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InstanceAction {
    /// The instance stays as it is.
    #[default]
    Keep,
    /// A new instance is created.
    Create,
    /// The instance is replaced on the same machine.
    Restart,
    /// The instance is replaced on another machine.
    Move,
    /// The instance is stopped and not replaced.
    Stop,
    /// An instance is missing and cannot be placed.
    Wait,
}

/// Effect of the apply on one instance, or on a slot without an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceChange {
    /// Effect on the instance. In an object of a newer version, an unknown effect is read as
    /// `Restart`.
    #[serde(deserialize_with = "newer::word")]
    pub action: InstanceAction,
    /// Index of the replica, from 0.
    pub slot: u32,
    /// Id of the present instance; null if there is none.
    pub instance: Option<String>,
    /// Name of the machine of the present instance.
    pub node: Option<String>,
    /// Id of the new instance; null if there is none, or if the id is not known yet.
    pub successor: Option<String>,
    /// Name of the machine of the new instance.
    pub successor_node: Option<String>,
    /// Reason for the effect, in a few words.
    pub reason: String,
}

/// A changed unit file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnitChange {
    /// Name of the unit file.
    pub name: String,
    /// Number of instances with this change.
    pub instances: u32,
    /// Unified diff of the file.
    pub diff: String,
}
