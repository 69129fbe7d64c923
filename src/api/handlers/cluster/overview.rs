//! The overview of the cluster, and how a machine without the store shows it to its local users.

use std::sync::Arc;

use async_trait::async_trait;
use axum::{Extension, Json, extract::State};

use crate::{
    access::authentication::Caller, access::authorization::no_store_error, context::Api,
    errors::ApiError,
};
use kat_types::api::ClusterOverview;

/// Reads the overview from the machines that hold the store, on a machine that does not.
#[async_trait]
pub trait OverviewRelay: Send + Sync + 'static {
    /// The newest overview, or the last known one if no machine answers; with
    /// [`ClusterOverview::relay`]. Waits for a few seconds at most. This machine's snapshot shows
    /// what was read when this returns.
    async fn read(&self) -> ClusterOverview;

    /// Reads the overview again and again until the returned value is dropped.
    fn follow(&self) -> Box<dyn Send + Sync>;
}

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<ClusterOverview>, ApiError> {
    if caller.sees_only_this_machine() {
        let relay = api.config.relay.as_ref();
        let relay = relay.ok_or_else(|| no_store_error(None))?;
        return Ok(Json(relay.read().await));
    }
    let snapshot = api.snapshot()?;
    let observed = api.observed();
    let overview = api.view(&snapshot, &observed).overview(api.is_stale());
    Ok(Json(overview))
}

/// The error for a caller whose call was refused. On a machine without the store it says where to
/// ask instead, and who was asked.
pub(crate) async fn explained_refusal(api: &Api, caller: &Caller, error: ApiError) -> ApiError {
    match (&error, &api.config.relay) {
        (ApiError::Forbidden { .. }, Some(relay)) if caller.sees_only_this_machine() => {
            no_store_error(Some(&relay.read().await))
        }
        _ => error,
    }
}
