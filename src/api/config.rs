//! The cluster's configuration, the version, health, and the API's own description.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{context::Api, errors::ApiError, openapi, types::ServerVersion};
use crate::resource::ClusterConfiguration;

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
}

pub(super) async fn health(State(api): State<Arc<Api>>) -> Result<Json<HealthView>, ApiError> {
    api.snapshot()?;
    Ok(Json(HealthView {
        status: "ok".to_owned(),
        leader: api.leads(),
        stale: api.is_stale(),
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
) -> Result<Json<ClusterConfiguration>, ApiError> {
    Ok(Json(api.snapshot()?.cluster.clone()))
}
