//! How the cluster is: `GET /v1alpha1/health`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiTime;
use crate::api::*;

/// The answer of `/healthz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthView {
    /// `ok`; otherwise the answer is an error with status 503.
    pub status: String,
    /// This machine leads.
    pub leader: bool,
    /// What is shown is what was known last: nobody leads that this machine can reach.
    #[serde(default)]
    pub stale: bool,
    /// What became of backups; only machines that hold the store know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupView>,
    /// How often the store was begun anew, as the others that hold it need to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_epoch: Option<StoreEpoch>,
    /// What is wrong with the store, although it answers: it is full, or nearly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Why the leader decides nothing, or cannot write some of it: one sentence for each object. Where this machine leads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planning: Vec<String>,
    /// What the store weighs; where this machine leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreView>,
}

/// What became of the leader's backups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupView {
    /// RFC 3339, UTC: when the last one was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<ApiTime>,
    /// The machine on which it lies.
    pub node: String,
    /// The leader fails to make the next one; an event says why.
    pub failing: bool,
}

/// What the store weighs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreView {
    /// The largest file of a machine, bytes.
    pub file_bytes: u64,
    /// The most that is in use of one, bytes.
    pub used_bytes: u64,
    /// At this size of a file the store takes no more, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
}
