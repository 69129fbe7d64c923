//! Instances of a workload that are gone: their machines remember them for a while, since the leader
//! deletes an assignment once its instance has ended.
//!
//! What is shown is of the workload with the present one's uid. A workload that was deleted and
//! created again, perhaps by another owner of the namespace, is another one.

use std::{collections::BTreeSet, sync::Arc};

use axum::{Json, extract::State};

use crate::{
    context::Api,
    errors::ApiError,
    extract::PathParameters,
    handlers::workloads::{
        instances::{LogStream, LoggedWorkload},
        workload_objects::missing,
    },
};
use kat_plan::Snapshot;
use kat_types::{
    api::{GoneInstances, LogQuery},
    store::revisions::WorkloadKey,
};

/// Maximum number of instances that are listed, the newest ones.
const MOST: usize = 20;

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name)): PathParameters<(String, String)>,
) -> Result<Json<GoneInstances>, ApiError> {
    let snapshot = api.snapshot()?;
    let workload = present(&snapshot, &namespace, &name)?;
    let nodes: Vec<String> = snapshot.nodes.keys().cloned().collect();
    let asking = api.config.logs.gone(&workload, &nodes);
    let mut found = api.turns.wait(asking).await;
    let there: BTreeSet<&String> = snapshot.instances.keys().collect();
    found.items.retain(|one| !there.contains(&one.instance));
    found
        .items
        .sort_by(|left, right| (right.until, &right.instance).cmp(&(left.until, &left.instance)));
    found.items.truncate(MOST);
    Ok(Json(found))
}

/// Opens the log of an instance that was on the machine `node`.
///
/// # Errors
/// Where there is no such workload, machine, or memory of the instance, or where more is wanted than
/// a journal has of what is gone.
pub(super) async fn open(
    api: &Api,
    snapshot: &Snapshot,
    (namespace, name, id): (&str, &str, &str),
    node: &str,
    query: LogQuery,
) -> Result<LogStream, ApiError> {
    let workload = present(snapshot, namespace, name)?;
    if !snapshot.nodes.contains_key(node) {
        return Err(ApiError::not_found("node", node));
    }
    let query = readable(query, id)?;
    let lines = api
        .config
        .logs
        .open_gone(&workload, node, id, query)
        .await?;
    lines.ok_or_else(|| ApiError::not_found("instance", id))
}

/// The query of a log that has ended.
///
/// # Errors
/// [`ApiError::Invalid`] for the run before the last one, which no machine remembers.
pub(crate) fn readable(query: LogQuery, id: &str) -> Result<LogQuery, ApiError> {
    if query.previous {
        return Err(ApiError::invalid(format!(
            "`previous` can't be asked for of `{id}`, which is gone: its log has all of its runs"
        )));
    }
    Ok(LogQuery {
        follow: false,
        node: None,
        gone_of: None,
        ..query
    })
}

fn present(snapshot: &Snapshot, namespace: &str, name: &str) -> Result<LoggedWorkload, ApiError> {
    let key = WorkloadKey::new(namespace, name);
    let Some(entry) = snapshot.workloads.get(&key) else {
        return Err(missing(snapshot, &key));
    };
    Ok(LoggedWorkload {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: entry.meta.value.uid.clone(),
    })
}
