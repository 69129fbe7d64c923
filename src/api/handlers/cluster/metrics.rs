//! `/metrics` (RFC001-KAT 9.2): JSON by default, text for Prometheus on request, which has more.

mod families;
pub(crate) mod targets;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;

use crate::{
    context::Api,
    errors::ApiError,
    extract::QueryParameters,
    metrics::{FormatQuery, MetricsFormat, Scrape},
};
use kat_daemon::durations::DurationCounts;
use kat_plan::Snapshot;
use kat_types::api::{CallMetrics, InstanceItem, Item, Metrics, NodeItem, WorkloadPhase};

/// Method, route and status of calls.
type CallKind = (&'static str, &'static str, u16);

/// Counts calls by method, route and status. Routes come from the table, so their number is fixed.
#[derive(Default)]
pub(crate) struct Counters {
    calls: Mutex<BTreeMap<CallKind, DurationCounts>>,
}

impl Counters {
    /// Counts one call.
    pub(crate) fn count(
        &self,
        method: &'static str,
        route: &'static str,
        status: u16,
        duration: Duration,
    ) {
        let mut calls = self.calls.lock();
        let counts = calls.entry((method, route, status)).or_default();
        counts.count(duration);
    }

    fn all(&self) -> BTreeMap<CallKind, DurationCounts> {
        self.calls.lock().clone()
    }
}

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    QueryParameters(query): QueryParameters<FormatQuery>,
) -> Result<Response, ApiError> {
    let format = MetricsFormat::of(&headers, &query)?;
    let (metrics, objects) = measure(&api);
    if format == MetricsFormat::Json {
        return Ok(Json(metrics).into_response());
    }
    Scrape(families::of_cluster(&api, &metrics, objects.as_ref())).response(format)
}

/// The objects that both forms of the metrics are made of, listed once.
struct MeasuredObjects {
    snapshot: Arc<Snapshot>,
    instances: Vec<InstanceItem>,
    nodes: Vec<NodeItem>,
}

/// The metrics of the JSON, and what they are made of, once there is a snapshot.
fn measure(api: &Api) -> (Metrics, Option<MeasuredObjects>) {
    let observed = api.observed();
    let open = api.streams.count();
    let mut metrics = Metrics {
        version: kat_types::VERSION.to_owned(),
        node: api.config.node_name.clone(),
        leader: api.leads(),
        streams: u64::try_from(open).unwrap_or(u64::MAX),
        ..Metrics::default()
    };
    for (node, reported) in &observed.reports {
        let age = reported.age.as_secs_f64();
        metrics.heartbeat_age_seconds.insert(node.clone(), age);
    }
    for ((method, route, status), latency) in api.counters.all() {
        metrics.calls.push(CallMetrics {
            method: method.to_owned(),
            route: route.to_owned(),
            status,
            count: latency.count,
            seconds: latency.seconds,
        });
    }
    let Some(snapshot) = api.newest() else {
        return (metrics, None);
    };
    metrics.revision = snapshot.revision;
    metrics.events = u64::try_from(snapshot.events.len()).unwrap_or(u64::MAX);
    let view = api.view(&snapshot, &observed);
    let (instances, nodes) = (view.instances(|_| true), view.nodes());
    let objects = MeasuredObjects {
        snapshot,
        instances,
        nodes,
    };
    count_phases(&objects, &mut metrics);
    (metrics, Some(objects))
}

fn count_phases(objects: &MeasuredObjects, metrics: &mut Metrics) {
    for entry in objects.snapshot.workloads.values() {
        let status = entry
            .status
            .as_ref()
            .map(|stored| stored.value.status.phase);
        let phase = if entry.meta.value.deleting {
            WorkloadPhase::Deleting
        } else {
            status.unwrap_or_default()
        };
        *metrics.workloads.entry(format!("{phase:?}")).or_default() += 1;
    }
    for Item { status, .. } in &objects.instances {
        *metrics
            .instances
            .entry(format!("{:?}", status.phase))
            .or_default() += 1;
    }
    for Item { status, .. } in &objects.nodes {
        *metrics
            .nodes
            .entry(format!("{:?}", status.phase))
            .or_default() += 1;
    }
}
