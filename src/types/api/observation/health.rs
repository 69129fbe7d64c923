//! Health of the cluster: `GET /v1alpha1/health`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{ApiTime, *};

/// Response of `/healthz` and `/v1alpha1/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthView {
    /// Always `ok`: otherwise the response is an error with status 503.
    pub status: String,
    /// Whether the responding machine is the leader.
    pub leader: bool,
    /// Whether the responding machine reaches no leader, so that it shows the last state that it
    /// received.
    #[serde(default)]
    pub stale: bool,
    /// Status of the backups; present only if the responding machine holds the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupView>,
    /// Epoch of the store, with which other machines that hold the store detect that it was
    /// replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_epoch: Option<StoreEpoch>,
    /// Proof that the responding machine holds the store of this epoch, for machines that do not
    /// know its key. Absent while the store was never created anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_server: Option<StoreServer>,
    /// Problem of a store that still works, such as little free space, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Why the leader makes no plans, or cannot write some of its changes: a sentence for each
    /// object. Empty if the responding machine is not the leader.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planning: Vec<String>,
    /// Size of the store; present only if the responding machine is the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreView>,
}

impl HealthView {
    /// Of a machine that knows no state of the cluster, and why.
    pub fn without_state(planning: Vec<String>) -> Self {
        Self {
            status: "ok".to_owned(),
            leader: false,
            stale: true,
            backup: None,
            store_epoch: None,
            store_server: None,
            trouble: None,
            planning,
            store: None,
        }
    }
}

/// Status of the leader's backups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupView {
    /// When the last backup was made; RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<ApiTime>,
    /// Name of the machine that holds the last backup.
    pub node: String,
    /// Whether backups have failed since; an event has the reason.
    pub failing: bool,
    /// Whether the last backup is older than three intervals.
    pub overdue: bool,
}

/// Size of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreView {
    /// Size of the largest database file among the members, bytes.
    pub file_bytes: u64,
    /// Largest number of bytes in use in one of these files.
    pub used_bytes: u64,
    /// File size at which the store refuses writes, bytes; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Version of etcd on each machine whose member answers, by machine; empty for callers that may
    /// not read the cluster.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
}
