//! The cluster's configuration, the version, health, and the API's own description.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    access::{self, Access, Target},
    caller::Caller,
    context::Api,
    errors::ApiError,
    joining::may_look,
    openapi,
    types::{ServerVersion, StoreEpoch},
};
use crate::{leader::PlanningReport, plan::BackupRecord, resource::ClusterConfiguration};

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
    pub last: Option<String>,
    /// The machine on which it lies.
    pub node: String,
    /// The leader fails to make the next one; an event says why.
    pub failing: bool,
}

impl BackupView {
    /// Anyone may ask for it, so it says that there is a failure, and the event says which.
    fn of(record: Option<&BackupRecord>) -> Self {
        record.map_or_else(Self::default, |record| Self {
            last: record.last.map(|last| last.to_string()),
            node: record.node.clone(),
            failing: !record.failure.is_empty(),
        })
    }
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

/// Most objects that are named.
const NAMED: usize = 20;

/// What is wrong with the leader's plans. Callers that may not read the cluster learn how much, not of what.
fn planning_troubles(report: Option<PlanningReport>, names: bool) -> Vec<String> {
    let PlanningReport { frozen, trouble } = report.unwrap_or_default();
    let mut troubles: Vec<String> = trouble.into_iter().collect();
    if !names {
        if !troubles.is_empty() {
            troubles = vec!["the leader cannot write its decisions".to_owned()];
        }
        if !frozen.is_empty() {
            troubles.push(format!("{} objects cannot be written", frozen.len()));
        }
        return troubles;
    }
    let named = frozen.iter().take(NAMED);
    troubles
        .extend(named.map(|one| format!("NotWritable: {} is left as it is: {one}", one.object)));
    if let more @ 1.. = frozen.len().saturating_sub(NAMED) {
        troubles.push(format!("{more} more objects cannot be written"));
    }
    troubles
}

pub(super) async fn health(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<HealthView>, ApiError> {
    let snapshot = api.snapshot()?;
    let names = access::check(Access::ReadCluster, &caller, Target::default()).is_ok();
    let record = snapshot.backup.as_ref().map(|stored| &stored.value);
    let backup = api.config.joining.is_some().then(|| BackupView::of(record));
    let report = api.store_report();
    let store = report.as_ref().map(|report| StoreView {
        file_bytes: report.weight.file,
        used_bytes: report.weight.used,
        quota_bytes: report.weight.quota,
    });
    Ok(Json(HealthView {
        status: "ok".to_owned(),
        leader: api.leads(),
        stale: api.is_stale(),
        backup,
        store_epoch: snapshot
            .store_epoch
            .as_ref()
            .map(|stored| stored.value.clone()),
        trouble: report.and_then(|report| report.trouble),
        planning: planning_troubles(api.planning_report(), names),
        store,
    }))
}

pub(super) async fn version() -> Json<ServerVersion> {
    Json(ServerVersion {
        version: crate::VERSION.to_owned(),
    })
}

pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi::TEXT).into_response()
}

/// Nothing in it is secret: keys and tokens are stored elsewhere.
pub(super) async fn cluster(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<ClusterConfiguration>, ApiError> {
    let snapshot = api.snapshot()?;
    may_look(&caller, &snapshot)?;
    Ok(Json(snapshot.cluster.clone()))
}
