//! What the instances of a machine take now, as that machine counts it.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};

use super::{caller::Caller, context::Api, errors::ApiError, extract::At, types::NodeUsage};
use crate::plan::InstanceEntry;

pub(super) async fn get(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    At(node): At<String>,
) -> Result<Json<NodeUsage>, ApiError> {
    let snapshot = api.snapshot()?;
    let unseen = caller.sees_only_this_machine() && node != api.config.node_name;
    if unseen || !snapshot.nodes.contains_key(&node) {
        return Err(ApiError::not_found("node", &node));
    }
    let here = snapshot.instances.values().filter(|one| one.node == node);
    let here: Vec<InstanceEntry> = here.cloned().collect();
    if here.is_empty() {
        return Ok(Json(NodeUsage::default()));
    }
    Ok(Json(api.config.sessions.usage(&node, &here).await?))
}
