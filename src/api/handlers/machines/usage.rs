//! Present resource usage of instances, as their machines measure it.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Extension, Json, extract::State};
use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::{
    access::authentication::Caller, context::Api, errors::ApiError, extract::PathParameters,
    handlers::workloads::workload_objects::check_namespace_exists,
};
use kat_types::{
    api::{MachineAway, NamespaceUsage, NodeUsage},
    store::snapshot::InstanceEntry,
};

/// Maximum number of calls whose machines are queried at once; further ones wait. Each query has
/// its own connection to a machine, which accepts only a limited number, for logs and commands too.
const AT_ONCE: usize = 8;

/// Semaphore of calls that query machines.
pub(crate) struct UsageQueryTurns(Semaphore);

impl Default for UsageQueryTurns {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }
}

impl UsageQueryTurns {
    /// Runs `asking` when it gets a turn.
    pub(crate) async fn wait<T>(&self, asking: impl Future<Output = T>) -> T {
        // The semaphore is never closed.
        let _turn = self.0.acquire().await.ok();
        asking.await
    }
}

pub(crate) async fn of_node(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(node): PathParameters<String>,
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
    let asking = api.config.sessions.usage(&node, &here);
    Ok(Json(api.turns.wait(asking).await?))
}

/// Queries all machines with an instance of the namespace concurrently.
pub(crate) async fn of_namespace(
    State(api): State<Arc<Api>>,
    PathParameters(namespace): PathParameters<String>,
) -> Result<Json<NamespaceUsage>, ApiError> {
    check_namespace_exists(&api, &namespace)?;
    let snapshot = api.snapshot()?;
    let mut by_node: BTreeMap<&str, Vec<InstanceEntry>> = BTreeMap::new();
    for entry in snapshot.instances.values() {
        if entry.assignment.value.namespace == namespace {
            let here = by_node.entry(&entry.node).or_default();
            here.push(entry.clone());
        }
    }
    let asked = by_node
        .iter()
        .map(|(node, here)| api.config.sessions.usage(node, here));
    let answers = api.turns.wait(join_all(asked)).await;
    let mut usage = NamespaceUsage::default();
    for ((node, here), answer) in by_node.iter().zip(answers) {
        match answer {
            // A machine reports all of its instances; those of other namespaces are not for this
            // caller.
            Ok(mut found) => {
                found.instances.retain(|one| {
                    let same =
                        |entry: &InstanceEntry| entry.assignment.value.instance == one.instance;
                    here.iter().any(same)
                });
                usage.instances.append(&mut found.instances);
            }
            Err(error) => usage.away.push(MachineAway {
                node: (*node).to_owned(),
                message: error.to_string(),
            }),
        }
    }
    Ok(Json(usage))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn only_so_many_calls_ask_at_once_and_all_have_their_turn() {
        let turns = UsageQueryTurns::default();
        let (asking, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ask = async || {
            most.fetch_max(asking.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            asking.fetch_sub(1, Ordering::SeqCst)
        };
        let calls = (0..AT_ONCE * 4).map(|_| turns.wait(ask()));
        assert_eq!(join_all(calls).await.len(), AT_ONCE * 4);
        assert_eq!(most.into_inner(), AT_ONCE);
    }
}
