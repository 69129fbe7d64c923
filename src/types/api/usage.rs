//! What instances take of their machine, counted when it is asked for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiTime;

/// Of the instances of one machine that run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeUsage {
    /// One for each.
    pub instances: Vec<InstanceUsage>,
}

/// Of the instances of one namespace that run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceUsage {
    /// One for each that could be counted.
    pub instances: Vec<InstanceUsage>,
    /// Machines with instances of it that could not be asked.
    pub away: Vec<MachineAway>,
}

/// A machine that could not be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineAway {
    /// Its name.
    pub node: String,
    /// Why not, with its name.
    pub message: String,
}

/// What one instance has taken. Two of them give what it takes in between.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceUsage {
    /// Its id.
    pub instance: String,
    /// When this was counted, by the clock of its machine.
    pub at: ApiTime,
    /// Processor time since it was started last, nanoseconds; none where it is not counted.
    pub cpu: Option<u64>,
    /// Memory now, bytes; none where it is not counted.
    pub memory: Option<u64>,
}
