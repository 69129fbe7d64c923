//! `/metrics` (RFC001-KAT 9.2): JSON by default, Prometheus text on request.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use serde::Deserialize;

use crate::{context::Api, errors::ApiError, extract::QueryParameters, view::ApiView};
use kat_types::api::{CallMetrics, Item, Metrics, WorkloadPhase};

/// Upper bounds of the latency buckets, seconds.
const BUCKETS: [f64; 9] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Counts calls by method, route and status. Routes come from the table, so their number is fixed.
#[derive(Default)]
pub(crate) struct Counters {
    calls: Mutex<BTreeMap<(&'static str, &'static str, u16), Latency>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Latency {
    count: u64,
    seconds: f64,
    buckets: [u64; BUCKETS.len()],
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
        let seconds = duration.as_secs_f64();
        let mut calls = self.calls.lock();
        let latency = calls.entry((method, route, status)).or_default();
        latency.count += 1;
        latency.seconds += seconds;
        for (bucket, bound) in latency.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= bound);
        }
    }

    fn all(&self) -> BTreeMap<(&'static str, &'static str, u16), Latency> {
        self.calls.lock().clone()
    }
}

/// Query parameters of `/metrics`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct FormatQuery {
    format: Option<String>,
}

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    QueryParameters(query): QueryParameters<FormatQuery>,
) -> Result<Response, ApiError> {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok());
    let accepts_text = accept.is_some_and(|accept| {
        !accept.contains("json")
            && (accept.contains("text/plain") || accept.contains("application/openmetrics-text"))
    });
    let prometheus = match query.format.as_deref() {
        Some("prometheus") => true,
        Some("json") => false,
        None => accepts_text,
        Some(other) => {
            let other: String = other.chars().take(40).collect();
            return Err(ApiError::invalid(format!(
                "format is `{other}`, expected `json` or `prometheus`"
            )));
        }
    };
    let metrics = measure(&api);
    if !prometheus {
        return Ok(Json(metrics).into_response());
    }
    let text = prometheus_text(&metrics, &api.counters.all());
    let headers = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    Ok((headers, text).into_response())
}

fn measure(api: &Api) -> Metrics {
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
    if let Some(snapshot) = api.newest() {
        metrics.revision = snapshot.revision;
        metrics.events = u64::try_from(snapshot.events.len()).unwrap_or(u64::MAX);
        let view = api.view(&snapshot, &observed);
        count_phases(&view, &mut metrics);
    }
    metrics
}

fn count_phases(view: &ApiView<'_>, metrics: &mut Metrics) {
    for entry in view.snapshot.workloads.values() {
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
    for Item { status, .. } in view.instances(|_| true) {
        *metrics
            .instances
            .entry(format!("{:?}", status.phase))
            .or_default() += 1;
    }
    for Item { status, .. } in view.nodes() {
        *metrics
            .nodes
            .entry(format!("{:?}", status.phase))
            .or_default() += 1;
    }
}

/// Prometheus' text format 0.0.4.
fn prometheus_text(
    metrics: &Metrics,
    calls: &BTreeMap<(&'static str, &'static str, u16), Latency>,
) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, String)>| {
        // Writing to a string can't fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let one = |value: String| vec![(String::new(), value)];
    let by_phase = |counts: &BTreeMap<String, u64>| {
        let counts = counts.iter();
        counts
            .map(|(phase, count)| (format!("{{phase=\"{phase}\"}}"), count.to_string()))
            .collect()
    };
    let build = format!("{{version=\"{}\"}}", escape(&metrics.version));
    family(
        "kat_build_info",
        "gauge",
        "Version of KAT.",
        vec![(build, "1".to_owned())],
    );
    family(
        "kat_leader",
        "gauge",
        "1 while this machine leads.",
        one(u8::from(metrics.leader).to_string()),
    );
    family(
        "kat_store_revision",
        "gauge",
        "Revision of the store that is shown.",
        one(metrics.revision.to_string()),
    );
    family(
        "kat_workloads",
        "gauge",
        "Workloads by phase.",
        by_phase(&metrics.workloads),
    );
    family(
        "kat_instances",
        "gauge",
        "Instances by phase.",
        by_phase(&metrics.instances),
    );
    family(
        "kat_nodes",
        "gauge",
        "Machines by phase.",
        by_phase(&metrics.nodes),
    );
    let ages = metrics.heartbeat_age_seconds.iter();
    let ages = ages.map(|(node, age)| (format!("{{node=\"{}\"}}", escape(node)), age.to_string()));
    family(
        "kat_heartbeat_age_seconds",
        "gauge",
        "Seconds since a machine's last report.",
        ages.collect(),
    );
    family(
        "kat_events",
        "gauge",
        "Events kept.",
        one(metrics.events.to_string()),
    );
    family(
        "kat_api_streams",
        "gauge",
        "Open watches and log streams.",
        one(metrics.streams.to_string()),
    );
    let name = "kat_api_request_duration_seconds";
    let _ = writeln!(
        text,
        "# HELP {name} Seconds to the head of an answer.\n# TYPE {name} histogram"
    );
    for ((method, route, status), latency) in calls {
        let labels = format!(
            "method=\"{method}\",route=\"{}\",status=\"{status}\"",
            escape(route)
        );
        for (count, bound) in latency.buckets.iter().zip(BUCKETS) {
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(
            text,
            "{name}_bucket{{{labels},le=\"+Inf\"}} {}",
            latency.count
        );
        let _ = writeln!(text, "{name}_sum{{{labels}}} {}", latency.seconds);
        let _ = writeln!(text, "{name}_count{{{labels}}} {}", latency.count);
    }
    text
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_counts_cumulatively() {
        let counters = Counters::default();
        for milliseconds in [1, 20, 700] {
            counters.count("GET", "/version", 200, Duration::from_millis(milliseconds));
        }
        let metrics = Metrics {
            heartbeat_age_seconds: BTreeMap::from([("n1".to_owned(), 1.5)]),
            ..Metrics::default()
        };
        let text = prometheus_text(&metrics, &counters.all());
        let line = |bound: &str, count: u32| {
            let wanted = format!(
                "kat_api_request_duration_seconds_bucket{{method=\"GET\",route=\"/version\",status=\"200\",le=\"{bound}\"}} {count}\n"
            );
            assert!(text.contains(&wanted), "{wanted} is missing in\n{text}");
        };
        line("0.001", 1);
        line("0.05", 2);
        line("1", 3);
        line("+Inf", 3);
        assert!(text.contains("kat_heartbeat_age_seconds{node=\"n1\"} 1.5\n"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
