//! Instances that are on no machine's list any more, and whose lines may still be in a journal.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{ApiTime, MachineAway};

/// The instances of a workload that are gone, newest first, as far as their machines remember them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GoneInstances {
    /// The instances.
    pub items: Vec<GoneInstance>,
    /// Machines that could not be reached.
    pub away: Vec<MachineAway>,
}

/// An instance that is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GoneInstance {
    /// Id of the instance.
    pub instance: String,
    /// The machine that it was on.
    pub node: String,
    /// Generation of the workload that it was of.
    pub generation: u64,
    /// When its machine first had it, by the machine's clock; RFC 3339, UTC.
    pub since: ApiTime,
    /// When it left the machine's list, by the machine's clock; RFC 3339, UTC.
    pub until: ApiTime,
}
