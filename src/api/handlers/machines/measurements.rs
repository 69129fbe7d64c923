//! `/v1alpha1/nodes/{node}/metrics`: what a machine measures of itself. The leader asks the machine's
//! agent, so that no token of the API goes to a machine without the store.
//!
//! What the machine says is bounded here: the leader takes instances that the machine has by its own
//! list, with their namespaces and workloads, machines of the cluster as peers, and KAT's own units.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use axum::{
    Extension, Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};

use crate::{
    access::authentication::Caller,
    context::Api,
    errors::ApiError,
    extract::{PathParameters, QueryParameters},
    metrics::{FormatQuery, MetricFamily, MetricsFormat, Scrape},
    view::shown_version,
};
use kat_plan::Snapshot;
use kat_types::{
    api::{
        IngressMeasurements, InstanceMeasurements, MachineMeasurements, NetworkMeasurements,
        NodeMeasurements, NodePhase, PeerMeasurements, RouteMeasurements, ServiceMeasurements,
    },
    store::ingress::OutsideRoute,
};

/// KAT's own units, of which a machine measures those that it has.
pub const MEASURED_UNITS: [&str; 4] = [
    "kat-agent.service",
    "kat-etcd.service",
    "kat-net.service",
    "kat-wg.service",
];

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    PathParameters(node): PathParameters<String>,
    QueryParameters(query): QueryParameters<FormatQuery>,
) -> Result<Response, ApiError> {
    let format = MetricsFormat::of(&headers, &query)?;
    let snapshot = api.snapshot()?;
    let here = node == api.config.node_name;
    let unseen = caller.sees_only_this_machine() && !here;
    let entry = snapshot.nodes.get(&node).filter(|_| !unseen);
    let entry = entry.ok_or_else(|| ApiError::not_found("node", &node))?;
    let status = entry.status.as_ref();
    if !here && status.is_some_and(|status| status.value.phase == NodePhase::NotReady) {
        // It would only hold up the answers about other machines.
        return Err(ApiError::MachineAway(format!(
            "the machine `{node}` is NotReady, so it was not asked"
        )));
    }
    let asking = api.config.sessions.measurements(&node);
    let measured = api.measurement_turns.wait(asking).await?;
    let measured = bounded(measured, (&node, here), &snapshot);
    if format == MetricsFormat::Json {
        return Ok(Json(measured).into_response());
    }
    let families = of_node(&node, &measured, &snapshot);
    Scrape(families).response(format)
}

/// The measurements without what the machine can't know, each thing once. What is measured `here` has
/// peers that a machine without the store may not know otherwise.
fn bounded(
    measured: NodeMeasurements,
    (node, here): (&str, bool),
    snapshot: &Snapshot,
) -> NodeMeasurements {
    let NodeMeasurements {
        version,
        instances,
        machine,
        services,
        agent,
        network,
        leader_contact_age_seconds,
        ingress,
    } = measured;
    let is_here = |one: &InstanceMeasurements| {
        let entry = snapshot.instances.get(&one.instance);
        entry.is_some_and(|entry| entry.node == node)
    };
    let is_peer = |one: &PeerMeasurements| {
        one.name != node && (here || snapshot.nodes.contains_key(&one.name))
    };
    let is_unit = |one: &ServiceMeasurements| MEASURED_UNITS.contains(&one.unit.as_str());
    NodeMeasurements {
        version: shown_version(&version),
        instances: once(instances, is_here, |one| &one.instance),
        machine,
        services: once(services, is_unit, |one| &one.unit),
        agent,
        network: NetworkMeasurements {
            answers: network.answers,
            peers: once(network.peers, is_peer, |one| &one.name),
        },
        leader_contact_age_seconds,
        ingress: ingress.map(|measured| known_routes(measured, node, snapshot)),
    }
}

/// Classes of the status of an answer.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The counts of routes that the machine was given, each once.
fn known_routes(
    mut measured: IngressMeasurements,
    node: &str,
    snapshot: &Snapshot,
) -> IngressMeasurements {
    let given = snapshot.routes.get(node).into_iter().flatten();
    let mut given: BTreeSet<String> = given
        .flat_map(|(key, stored)| {
            let routes = stored.value.routes.iter();
            routes.map(move |route| {
                let name = OutsideRoute::name(&route.host, &route.path);
                format!("{key}/{name}")
            })
        })
        .collect();
    measured.routes.retain(|one| {
        let RouteMeasurements {
            namespace,
            workload,
            host,
            path,
            ..
        } = one;
        given.remove(&format!("{namespace}/{workload}/{host}{path}"))
    });
    for route in &mut measured.routes {
        route
            .responses
            .retain(|class, _| CLASSES.contains(&class.as_str()));
    }
    measured
}

/// Those that `keep` accepts, the first of each name.
fn once<T>(all: Vec<T>, keep: impl Fn(&T) -> bool, name: impl Fn(&T) -> &String) -> Vec<T> {
    let mut seen = BTreeSet::new();
    let kept = all.into_iter().filter(keep);
    kept.filter(|one| seen.insert(name(one).clone())).collect()
}

fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

/// The families of bounded measurements.
fn of_node(node: &str, measured: &NodeMeasurements, snapshot: &Snapshot) -> Vec<MetricFamily> {
    let mut build = MetricFamily::gauge("kat_node_build_info", "Version of KAT on the machine.");
    build.add([("node", node), ("version", &measured.version)], 1_u64);
    let mut contact = MetricFamily::gauge(
        "kat_node_leader_contact_age_seconds",
        "Seconds since a leader last took a report of the machine.",
    );
    contact.add_known([("node", node)], measured.leader_contact_age_seconds);
    let mut families = vec![build, contact];
    families.extend(of_machine(node, &measured.machine));
    families.extend(of_programs(node, measured));
    families.extend(of_network(node, &measured.network));
    families.extend(of_instances(node, &measured.instances, snapshot));
    if let Some(ingress) = &measured.ingress {
        families.extend(of_ingress(node, ingress));
    }
    families
}

fn of_machine(node: &str, machine: &MachineMeasurements) -> Vec<MetricFamily> {
    let bytes = [
        (
            "kat_node_memory_bytes",
            "Memory of the machine.",
            machine.memory,
        ),
        (
            "kat_node_memory_available_bytes",
            "Memory of the machine that programs can still get without swapping.",
            machine.memory_available,
        ),
        (
            "kat_node_disk_bytes",
            "Size of the file system of /var/lib/kat.",
            machine.disk,
        ),
        (
            "kat_node_disk_free_bytes",
            "Free bytes of the file system of /var/lib/kat.",
            machine.disk_free,
        ),
    ];
    let loads = [
        (
            "kat_node_load1",
            "Mean number of processes that run or wait for the disk, over 1 minute.",
            machine.load1,
        ),
        (
            "kat_node_load5",
            "Mean number of processes that run or wait for the disk, over 5 minutes.",
            machine.load5,
        ),
        (
            "kat_node_load15",
            "Mean number of processes that run or wait for the disk, over 15 minutes.",
            machine.load15,
        ),
    ];
    let mut families = Vec::new();
    for (name, help, value) in bytes {
        let mut family = MetricFamily::gauge(name, help);
        family.add_known([("node", node)], value);
        families.push(family);
    }
    for (name, help, value) in loads {
        let mut family = MetricFamily::gauge(name, help);
        family.add_known([("node", node)], value);
        families.push(family);
    }
    families
}

fn of_programs(node: &str, measured: &NodeMeasurements) -> Vec<MetricFamily> {
    let mut resident = MetricFamily::gauge(
        "kat_node_agent_resident_bytes",
        "Resident memory of the process of kat-agent.",
    );
    resident.add_known([("node", node)], measured.agent.resident);
    let mut agent_cpu = MetricFamily::counter(
        "kat_node_agent_cpu_seconds",
        "Processor time of the process of kat-agent.",
    );
    agent_cpu.add([("node", node)], seconds(measured.agent.cpu));
    let mut memory = MetricFamily::gauge(
        "kat_node_service_memory_bytes",
        "Memory in use by one of KAT's services.",
    );
    let mut cpu = MetricFamily::counter(
        "kat_node_service_cpu_seconds",
        "Processor time of one of KAT's services since its start.",
    );
    for one in &measured.services {
        let labels = [("node", node), ("unit", one.unit.as_str())];
        memory.add_known(labels, one.memory);
        cpu.add_known(labels, one.cpu.map(seconds));
    }
    vec![resident, agent_cpu, memory, cpu]
}

fn of_network(node: &str, network: &NetworkMeasurements) -> Vec<MetricFamily> {
    let mut answers = MetricFamily::gauge(
        "kat_node_data_path_up",
        "1 while kat-net of the machine runs and answers.",
    );
    answers.add_known([("node", node)], network.answers);
    let mut connected = MetricFamily::gauge(
        "kat_node_peer_connected",
        "1 while there is a WireGuard session with another machine; without traffic there may be none.",
    );
    let mut unanswered = MetricFamily::gauge(
        "kat_node_peer_unanswered_seconds",
        "Seconds for which another machine has not answered over the overlay; 0 where it answers.",
    );
    let mut sent = MetricFamily::counter(
        "kat_node_peer_sent_bytes",
        "Bytes sent to another machine over the overlay.",
    );
    let mut received = MetricFamily::counter(
        "kat_node_peer_received_bytes",
        "Bytes received from another machine over the overlay.",
    );
    for peer in &network.peers {
        let labels = [("node", node), ("peer", peer.name.as_str())];
        connected.add(labels, peer.connected);
        unanswered.add(labels, peer.unanswered_seconds.unwrap_or(0));
        sent.add(labels, peer.sent);
        received.add(labels, peer.received);
    }
    vec![answers, connected, unanswered, sent, received]
}

fn of_ingress(node: &str, ingress: &IngressMeasurements) -> Vec<MetricFamily> {
    let own = [("node", node)];
    let mut connections = MetricFamily::gauge(
        "kat_ingress_connections",
        "Open connections of clients to the routes of a machine.",
    );
    connections.add(own, ingress.connections);
    let mut accepted = MetricFamily::counter(
        "kat_ingress_accepted",
        "Connections of clients to the routes of a machine.",
    );
    accepted.add(own, ingress.accepted);
    let mut limited = MetricFamily::counter(
        "kat_ingress_limited",
        "Connections and requests that a limit of kat-ingress refused or ended.",
    );
    limited.add(own, ingress.limited);
    let mut requests = MetricFamily::counter(
        "kat_route_requests",
        "Answers of a route by the first digit of their status.",
    );
    let mut seconds = MetricFamily::counter(
        "kat_route_response_seconds",
        "Sum of the times to the head of the answer.",
    );
    let mut active = MetricFamily::gauge("kat_route_active_requests", "Requests under way.");
    let mut failures = MetricFamily::counter(
        "kat_route_upstream_failures",
        "Answers that kat-ingress made because no instance could.",
    );
    let mut retries = MetricFamily::counter(
        "kat_route_retries",
        "Requests that were sent to a second instance.",
    );
    let mut received = MetricFamily::counter(
        "kat_route_received_bytes",
        "Bytes of the bodies of a route's requests.",
    );
    let mut sent = MetricFamily::counter(
        "kat_route_sent_bytes",
        "Bytes of the bodies of a route's answers.",
    );
    for route in &ingress.routes {
        let labels = [
            ("namespace", route.namespace.as_str()),
            ("host", route.host.as_str()),
            ("path", route.path.as_str()),
            ("node", node),
        ];
        let [namespace, host, path, node] = labels;
        for (class, count) in &route.responses {
            let labels = [namespace, host, path, node, ("status", class.as_str())];
            requests.add(labels, *count);
        }
        seconds.add(labels, route.head_seconds);
        active.add(labels, route.active);
        failures.add(labels, route.upstream_failures);
        retries.add(labels, route.retries);
        received.add(labels, route.received);
        sent.add(labels, route.sent);
    }
    vec![
        connections,
        accepted,
        limited,
        requests,
        seconds,
        active,
        failures,
        retries,
        received,
        sent,
    ]
}

fn of_instances(
    node: &str,
    instances: &[InstanceMeasurements],
    snapshot: &Snapshot,
) -> Vec<MetricFamily> {
    let mut memory = MetricFamily::gauge(
        "kat_node_instance_memory_bytes",
        "Memory in use by an instance, with its sidecars.",
    );
    let mut cpu = MetricFamily::counter(
        "kat_node_instance_cpu_seconds",
        "Processor time of an instance's present containers.",
    );
    let mut restarts = MetricFamily::counter(
        "kat_node_instance_restarts",
        "Restarts of an instance's program.",
    );
    let mut probes = MetricFamily::counter(
        "kat_node_instance_probes",
        "Probes of an instance's health check since the agent started.",
    );
    let mut durations = MetricFamily::gauge(
        "kat_node_instance_probe_last_duration_seconds",
        "Duration of the last probe of an instance.",
    );
    let entries: BTreeMap<_, _> = instances
        .iter()
        .filter_map(|one| Some((one, snapshot.instances.get(&one.instance)?)))
        .map(|(one, entry)| (&one.instance, (one, &entry.assignment.value)))
        .collect();
    for (id, (one, assignment)) in entries {
        let own = [
            ("namespace", assignment.namespace.as_str()),
            ("workload", assignment.workload.as_str()),
            ("instance_id", id.as_str()),
            ("node", node),
        ];
        memory.add_known(own, one.memory);
        cpu.add_known(own, one.cpu.map(seconds));
        restarts.add_known(own, one.restarts);
        let Some(found) = one.probes else { continue };
        let [namespace, workload, id, node] = own;
        for (result, count) in [("success", found.succeeded), ("failure", found.failed)] {
            let labels = [namespace, workload, id, node, ("result", result)];
            probes.add(labels, count);
        }
        durations.add(own, found.last_seconds);
    }
    vec![memory, cpu, restarts, probes, durations]
}
