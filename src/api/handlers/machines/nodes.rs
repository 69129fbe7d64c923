//! Machines: list, read, and the reports of their agents (RFC001-KAT 4.1.3).

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;

use crate::{
    access::authentication::Caller,
    context::Api,
    errors::ApiError,
    extract::{PathParameters, QueryParameters, read_json},
    handlers::{
        cluster::{
            joining::{MAX_ADDRESSES, is_endpoint, reachable},
            overview::OverviewRelay,
        },
        workloads::workload_objects::item,
    },
    server::limits::MAX_REPORT,
    view::ApiView,
    watch::{ListQuery, answer},
};
use kat_leader::LeaderHandle;
use kat_types::{
    api::{ClusterOverview, MemberKeys, NodeReport, STALE_HEADER, UNSURE_HEADER},
    resource::ClusterSpec,
};

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    let Some(relay) = relay(&api, &caller) else {
        let node = caller
            .sees_only_this_machine()
            .then(|| api.config.node_name.clone());
        let select = Arc::new(move |view: &ApiView<'_>| match &node {
            Some(node) => view.node(node).into_iter().collect(),
            None => view.nodes(),
        });
        return answer(&api, &caller, &query, select).await;
    };
    // This machine's snapshot has the machines of the overview.
    let overview = relay.read().await;
    let followed = query.watch.then(|| relay.follow());
    let select = Arc::new(|view: &ApiView<'_>| view.nodes());
    let listed = answer(&api, &caller, &query, select).await?;
    let listed = mark_stale(listed, &overview);
    let Some(followed) = followed else {
        return Ok(listed);
    };
    Ok(listed.map(|lines| {
        let lines = lines.into_data_stream().map(move |line| {
            let _ = &followed;
            line
        });
        Body::from_stream(lines)
    }))
}

/// The relay of the overview, for a local user of a machine without the store.
fn relay<'a>(api: &'a Api, caller: &Caller) -> Option<&'a Arc<dyn OverviewRelay>> {
    let relay = api.config.relay.as_ref();
    relay.filter(|_| caller.sees_only_this_machine())
}

/// Marks a response with machines of an overview that no leader confirms. While no machine answers
/// at all the machines themselves say so.
fn mark_stale(mut response: Response, overview: &ClusterOverview) -> Response {
    let relay = overview.relay.as_ref();
    if overview.stale && relay.is_some_and(|relay| relay.silent_since.is_none()) {
        let stale = HeaderValue::from_static("true");
        response.headers_mut().insert(STALE_HEADER, stale);
    }
    response
}

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(name): PathParameters<String>,
) -> Result<Response, ApiError> {
    let relay = relay(&api, &caller);
    let overview = match relay {
        Some(relay) => Some(relay.read().await),
        None => None,
    };
    let own = name == api.config.node_name;
    let unseen = caller.sees_only_this_machine() && relay.is_none() && !own;
    let snapshot = api.snapshot()?;
    let observed = api.observed();
    let found = api
        .view(&snapshot, &observed)
        .node(&name)
        .filter(|_| !unseen);
    let found = found.ok_or_else(|| ApiError::not_found("node", &name))?;
    let found = item(&found, &found.metadata.resource_version);
    Ok(match &overview {
        Some(overview) => mark_stale(found, overview),
        None => found,
    })
}

/// Accepts a report. The gate has checked that the certificate is that of the machine in the path.
pub(crate) async fn report(
    State(api): State<Arc<Api>>,
    PathParameters(name): PathParameters<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let leadership = api.leadership()?;
    let mut report: NodeReport = read_json(&api, request, MAX_REPORT).await?;
    if report.node_name != name {
        return Err(ApiError::Forbidden {
            message: format!(
                "the report is about `{}`, not about `{name}`",
                printable(&report.node_name)
            ),
            hint: None,
        });
    }
    let snapshot = api.snapshot()?;
    let node = snapshot
        .nodes
        .get(&name)
        .ok_or_else(|| ApiError::not_found("node", &name))?;
    let uid = &node.registration.value.uid;
    if report.node_uid != *uid {
        return Err(ApiError::Forbidden {
            message: format!(
                "the machine `{name}` is registered with another identity than the report's"
            ),
            hint: Some(
                "two machines with one name? `katcall describe node` shows the one that is known"
                    .to_owned(),
            ),
        });
    }
    bound(&mut report, &snapshot.cluster.spec)?;
    let tick = tick(&snapshot.cluster.spec);
    let age = api.config.handle.reports.accept(&name, report, tick);
    // Measured after the report was accepted: a late answer must not look younger.
    let unsure = leadership.unsure_for().max(age).as_millis() + 1;
    Ok((
        StatusCode::NO_CONTENT,
        [(UNSURE_HEADER, unsure.to_string())],
    )
        .into_response())
}

/// Takes the report of the machine that leads about itself, without a connection: under load a
/// connection to itself may be late, and a leader must not count its own machine as lost. Returns the
/// time for which the leader has not been sure that no other machine leads; `None` where this machine
/// does not lead, or the cluster does not know it, so that the report has to be sent as all others.
pub fn take_own_report(handle: &LeaderHandle, report: &NodeReport) -> Option<Duration> {
    let leadership = handle.leadership.borrow().clone();
    let leadership = leadership.filter(|leadership| !leadership.lost.is_cancelled())?;
    let snapshot = handle.snapshot.borrow().clone()?;
    let registration = &snapshot.nodes.get(&report.node_name)?.registration.value;
    if registration.deleting || registration.uid != report.node_uid {
        return None;
    }
    let mut report = report.clone();
    bound(&mut report, &snapshot.cluster.spec).ok()?;
    let name = report.node_name.clone();
    let tick = tick(&snapshot.cluster.spec);
    let age = handle.reports.accept(&name, report, tick);
    // Measured after the report was accepted.
    Some(leadership.unsure_for().max(age) + Duration::from_millis(1))
}

/// Longest time between two reports of a machine.
fn tick(settings: &ClusterSpec) -> Duration {
    Duration::from_secs(u64::from(settings.agent_tick_seconds))
}

fn printable(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .take(64)
        .collect()
}

/// Bounds the contents of a report: one machine must not fill the store.
fn bound(report: &mut NodeReport, spec: &ClusterSpec) -> Result<(), ApiError> {
    let bounded = report.keep_bounds();
    bounded.map_err(|error| ApiError::invalid(error.to_string()))?;
    // Unusable addresses are not passed to the other machines.
    report.advertise.retain(|address| reachable(address, spec));
    report.endpoints.retain(|endpoint| is_endpoint(endpoint));
    if !report.member_keys.is_complete() {
        report.member_keys = MemberKeys::default();
    }
    report.advertise.truncate(MAX_ADDRESSES);
    report.endpoints.truncate(MAX_ADDRESSES);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::api::{
        InstanceReport,
        report_bounds::{MAX_ENTRIES, MAX_SENTENCE, MAX_WORD},
    };

    #[test]
    fn a_report_is_cut_to_measure() {
        let mut report = NodeReport {
            version: "v".repeat(10_000),
            workload_instances: vec![InstanceReport {
                message: "ü".repeat(10_000),
                ..InstanceReport::default()
            }],
            ..NodeReport::default()
        };
        let spec = ClusterSpec::default();
        assert_eq!(bound(&mut report, &spec), Ok(()));
        assert_eq!(report.version.len(), MAX_WORD);
        assert_eq!(report.workload_instances[0].message.len(), MAX_SENTENCE);
        report.workload_instances = vec![InstanceReport::default(); MAX_ENTRIES + 1];
        let refused = bound(&mut report, &spec);
        assert!(matches!(refused, Err(ApiError::Invalid { .. })));
    }

    #[test]
    fn endpoints_that_lead_nowhere_are_left_out() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let mut report = NodeReport {
            advertise: [
                "127.0.0.1",
                "10.100.0.1",
                "0.0.0.0",
                "192.0.2.1",
                "2001:db8::1",
            ]
            .map(|text| text.parse().unwrap())
            .to_vec(),
            endpoints: texts(&[
                "192.0.2.1:51820",
                "192.0.2.1",
                "a b:1",
                "[2001:db8::1]:0",
                "h.example:7",
            ]),
            ..NodeReport::default()
        };
        assert_eq!(bound(&mut report, &ClusterSpec::default()), Ok(()));
        let expected: Vec<std::net::IpAddr> =
            vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        assert_eq!(report.advertise, expected);
        assert_eq!(report.endpoints, ["192.0.2.1:51820", "h.example:7"]);
    }
}
