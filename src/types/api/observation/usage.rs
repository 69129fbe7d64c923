//! CPU time and memory used by instances, measured at the time of the request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::ApiTime;

/// Usage of the running instances of one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeUsage {
    /// Usage of each running instance.
    pub instances: Vec<InstanceUsage>,
}

/// Usage of the running instances of one namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceUsage {
    /// Usage of each running instance that could be measured.
    pub instances: Vec<InstanceUsage>,
    /// Machines with instances of the namespace that could not be reached.
    pub away: Vec<MachineAway>,
}

/// A machine that could not be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineAway {
    /// Name of the machine.
    pub node: String,
    /// Why the machine could not be reached, in a sentence with the machine's name.
    pub message: String,
}

/// Usage of one instance at one time. The difference of two measurements is the usage between them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceUsage {
    /// Id of the instance.
    pub instance: String,
    /// When the usage was measured, by the machine's clock; RFC 3339, UTC.
    pub at: ApiTime,
    /// CPU time used since the last start, nanoseconds; null if not measured.
    pub cpu: Option<u64>,
    /// Memory in use, bytes; null if not measured.
    pub memory: Option<u64>,
}
