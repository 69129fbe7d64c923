//! `/v1alpha1/metrics/targets`: what Prometheus scrapes, for its `http_sd_configs`.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Json, extract::State};
use serde::Serialize;

use crate::{context::Api, errors::ApiError};
use kat_plan::{Snapshot, cluster_endpoints};
use kat_types::api::MachineEndpoints;

/// One group of targets with its labels.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TargetGroup {
    targets: [String; 1],
    labels: BTreeMap<&'static str, String>,
}

/// A target for the cluster, and one for each machine. The label `instance` is a name, so that series
/// continue when another machine leads, or a machine gets another address.
pub(crate) async fn list(State(api): State<Arc<Api>>) -> Result<Json<Vec<TargetGroup>>, ApiError> {
    let snapshot = api.snapshot()?;
    Ok(Json(targets(&snapshot)))
}

fn targets(snapshot: &Snapshot) -> Vec<TargetGroup> {
    let endpoints = cluster_endpoints(snapshot).machines;
    let outside = |machine: &MachineEndpoints| {
        let first = machine.api.first().cloned();
        first.filter(|_| !machine.is_hidden())
    };
    // Every machine passes callers to the leader.
    let leader = snapshot.leader_name.as_ref();
    let leader = leader.and_then(|name| endpoints.get(name));
    let any = leader
        .into_iter()
        .chain(endpoints.values())
        .find_map(outside);
    let Some(any) = any else {
        return Vec::new();
    };
    let group = |target: String, job: &str, instance: &str, path: String| TargetGroup {
        targets: [target],
        labels: BTreeMap::from([
            ("job", job.to_owned()),
            ("instance", instance.to_owned()),
            ("__metrics_path__", path),
        ]),
    };
    let name = &snapshot.cluster.metadata.name;
    let cluster = group(any.clone(), "kat-cluster", name, "/metrics".to_owned());
    // One without an address of its own is asked through another.
    let nodes = snapshot.nodes.keys().map(|node| {
        let own = endpoints.get(node).and_then(outside);
        let target = own.unwrap_or_else(|| any.clone());
        let path = format!("/v1alpha1/nodes/{node}/metrics");
        group(target, "kat-node", node, path)
    });
    std::iter::once(cluster).chain(nodes).collect()
}
