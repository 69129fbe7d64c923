//! Events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something that happened (RFC001-KAT 9.3).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    /// Sorts by time; unique.
    pub id: String,
    /// RFC 3339, UTC: the last time.
    pub timestamp: String,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: String,
    /// One word for programs.
    pub reason: String,
    /// What it is about.
    pub involved_object: ObjectReference,
    /// A sentence for people.
    pub message: String,
    /// How often it happened.
    pub count: u32,
    /// RFC 3339, UTC: the first time.
    pub first_timestamp: String,
}

/// What an event is about.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// `Workload`, `Instance`, `Node`, `Namespace`, `Cluster`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its namespace, if it has one.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
}
