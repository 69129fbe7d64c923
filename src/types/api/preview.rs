//! What an apply would come to (`?dryRun=true`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::newer;

/// What an apply would come to, by the leader's own plan on a copy of the store. Values of environment
/// variables are `***`.
///
/// It holds while nothing else changes, and where what starts becomes healthy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Preview {
    /// The generation that is stored now; nothing for a workload that is new.
    pub present_generation: Option<u64>,
    /// What its instances are made of changes, so that they are replaced.
    pub template_changed: bool,
    /// How instances are replaced, in words; empty where none is.
    pub rollout: String,
    /// Fields that change, by file and path.
    pub fields: Vec<FieldChange>,
    /// How files change that volumes mount from the workload's folder, by path.
    pub files: Vec<CarriedFileChange>,
    /// What becomes of each instance, by slot.
    pub instances: Vec<InstanceChange>,
    /// How the texts of units change; the same for all instances of a version, and told once.
    pub units: Vec<UnitChange>,
    /// Why not all of it can come about now; empty where it can.
    pub blocked: String,
    /// All of it was looked at; else there are more changes than these.
    pub complete: bool,
}

/// A field that changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FieldChange {
    /// `workload.kat` or `VirtualLoadBalancer.kat`.
    pub file: String,
    /// Such as `spec.replicas` or `spec.container.env[KEY].value`.
    pub path: String,
    /// As it is; nothing where the field is new.
    pub before: Option<serde_json::Value>,
    /// As it would be; nothing where the field goes.
    pub after: Option<serde_json::Value>,
}

/// A file of the workload's folder that changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CarriedFileChange {
    /// Within the folder, such as `conf/nginx.conf`.
    pub path: String,
    /// A unified diff of texts; a sentence for anything else.
    pub diff: String,
}

/// What becomes of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InstanceAction {
    /// It stays as it is.
    #[default]
    Keep,
    /// A new one.
    Create,
    /// Another takes its place on the same machine.
    Restart,
    /// Another takes its place on another machine.
    Move,
    /// It stops, and none takes its place.
    Stop,
    /// It is wanted, and can't be placed.
    Wait,
}

/// What becomes of one instance, or of one place among the replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceChange {
    /// In one word.
    #[serde(deserialize_with = "newer::word")]
    pub action: InstanceAction,
    /// Its place among the replicas.
    pub slot: u32,
    /// The present instance; nothing where there is none.
    pub instance: Option<String>,
    /// Its machine.
    pub node: Option<String>,
    /// The new instance; nothing where there is none, or where its name is not known yet.
    pub successor: Option<String>,
    /// The machine of the new one.
    pub successor_node: Option<String>,
    /// Why, in a few words.
    pub reason: String,
}

/// How the text of a unit changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnitChange {
    /// Name of the file.
    pub name: String,
    /// How many instances it changes for in the same way.
    pub instances: u32,
    /// A unified diff.
    pub diff: String,
}
