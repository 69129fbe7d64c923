//! Metrics of the cluster and of machines, as Prometheus reads them.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use serde_json::json;

use super::{
    metrics_parser::{Samples, parse},
    support::{Server, assignment, put, registration, with_instance},
};
use kat_types::{
    api::{
        IngressMeasurements, InstanceMeasurements, MachineMeasurements, NetworkMeasurements,
        NodeMeasurements, PeerMeasurements, ProbeMeasurements, ServiceMeasurements,
    },
    store::{keys, records::NodeRegistration, transaction::WriteOperation},
};

const NODE: &str = "/v1alpha1/nodes/n1/metrics";
const TARGETS: &str = "/v1alpha1/metrics/targets";
const WEB: [(&str, &str); 4] = [
    ("namespace", "shop"),
    ("workload", "web"),
    ("instance_id", "web-abcde"),
    ("node", "n1"),
];

/// A metric, labels of one of its samples, and its value.
type Expected<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);

/// The text of these metrics, and its samples.
async fn scrape(server: &Server, path: &str) -> (String, Samples) {
    let path = format!("{path}?format=prometheus");
    let (status, text) = server.get(&server.read, &path).await;
    assert_eq!(status, 200, "{text}");
    let text = text.as_str().unwrap().to_owned();
    let samples = parse(&text);
    (text, samples)
}

fn instance(id: &str) -> InstanceMeasurements {
    InstanceMeasurements {
        instance: id.to_owned(),
        memory: Some(3 << 20),
        cpu: Some(1_500_000_000),
        restarts: Some(4),
        probes: Some(ProbeMeasurements {
            succeeded: 7,
            failed: 2,
            last_seconds: 0.25,
        }),
    }
}

#[tokio::test]
async fn metrics_are_for_callers_who_read_the_whole_cluster() {
    let server = Server::start().await;
    for path in ["/metrics", NODE, TARGETS] {
        let status = async |token: &str| server.get(token, path).await.0.as_u16();
        assert_eq!(status("").await, 401, "{path}");
        assert_eq!(status(&server.deploy).await, 403, "{path}");
        assert_eq!(status(&server.read).await, 200, "{path}");
    }
    let node = server.client(Some(&server.node_leaf("n1")));
    let own = node.get(server.url(NODE)).send().await.unwrap();
    assert_eq!(own.status(), 200, "a machine reads itself");
    let cluster = node.get(server.url("/metrics")).send().await.unwrap();
    assert_eq!(cluster.status(), 403);
}

#[tokio::test]
async fn the_leader_shows_workloads_instances_machines_and_its_plans() {
    let server = Server::start().await;
    with_instance(&server).await;
    let members =
        json!({"schema": 1, "members": {"n1": {"id": "1", "voting": true, "healthy": true}}});
    let backup = json!({"schema": 1, "node": "n1", "last": "2026-11-22T03:40:00Z", "failure": ""});
    server
        .write(&[
            put(keys::MEMBERS.to_owned(), &members),
            put(keys::BACKUP.to_owned(), &backup),
        ])
        .await;
    let (_, samples) = scrape(&server, "/metrics").await;
    let [namespace, workload, ..] = WEB;
    let web = [namespace, workload];
    let pending = [namespace, workload, ("phase", "Pending")];
    let calls = [
        ("method", "PUT"),
        ("route", "/v1alpha1/n/{namespace}/workloads/{workload}"),
        ("status", "201"),
    ];
    let expected: [Expected<'_>; 10] = [
        ("kat_leader", &[], 1.0),
        ("kat_workload_replicas", &web, 1.0),
        ("kat_workload_replicas_ready", &web, 0.0),
        ("kat_workload_phase", &pending, 1.0),
        ("kat_instance_restarts_total", &WEB, 0.0),
        ("kat_node_ready", &[("node", "n1")], 0.0),
        ("kat_etcd_member_healthy", &[("node", "n1")], 1.0),
        ("kat_backup_failing", &[], 0.0),
        ("kat_scheduler_placements_total", &[], 0.0),
        ("kat_api_request_duration_seconds_count", &calls, 1.0),
    ];
    for (name, labels, value) in expected {
        assert_eq!(samples.value(name, labels), Some(value), "{name}");
    }
    let made = samples.value("kat_backup_last_success_timestamp_seconds", &[]);
    assert_eq!(made, Some(1_795_318_800.0));
    assert_eq!(samples.types["kat_plan_duration_seconds"], "histogram");

    server.leaderships.send_replace(None);
    let (text, samples) = scrape(&server, "/metrics").await;
    assert_eq!(samples.value("kat_leader", &[]), Some(0.0));
    assert!(!text.contains("kat_plan_"), "only a leader plans");
}

#[tokio::test]
async fn a_machine_says_nothing_of_what_is_not_its_own() {
    let server = Server::start().await;
    with_instance(&server).await;
    let other = NodeRegistration {
        uid: "node-uid-2".to_owned(),
        ..registration()
    };
    let mut own = assignment();
    own["instance"] = json!("web-fffff");
    let meta = json!({"schema": 1, "revision": 1, "count": 1});
    server
        .write(&[
            put(keys::registration("n2"), &other),
            put(keys::desired_instance("n2", "web-fffff"), &own),
            put(keys::desired_meta("n2"), &meta),
        ])
        .await;
    let peer = |name: &str| PeerMeasurements {
        name: name.to_owned(),
        received: 9,
        unanswered_seconds: Some(31),
        ..PeerMeasurements::default()
    };
    let unit = |unit: &str| ServiceMeasurements {
        unit: unit.to_owned(),
        memory: Some(1),
        cpu: None,
    };
    *server.echo.measurements.lock() = NodeMeasurements {
        version: "0.2\"} 1\nkat_leader 1".to_owned(),
        instances: ["web-fffff", "web-fffff", "web-abcde", "\"} 1\nkat_leader 1"]
            .map(instance)
            .to_vec(),
        machine: MachineMeasurements {
            load1: Some(0.5),
            disk_free: Some(5),
            ..MachineMeasurements::default()
        },
        services: ["kat-net.service", "kat-net.service", "sshd.service"]
            .map(unit)
            .to_vec(),
        network: NetworkMeasurements {
            answers: Some(true),
            peers: ["n1", "n1", "n2", "elsewhere\n"].map(peer).to_vec(),
        },
        leader_contact_age_seconds: Some(1.5),
        ..NodeMeasurements::default()
    };
    let (text, samples) = scrape(&server, "/v1alpha1/nodes/n2/metrics").await;
    let [namespace, workload, ..] = WEB;
    let (id, node) = (("instance_id", "web-fffff"), ("node", "n2"));
    let own = [namespace, workload, id, node];
    let failed = [namespace, workload, id, node, ("result", "failure")];
    let to_n1 = [node, ("peer", "n1")];
    let expected: [Expected<'_>; 9] = [
        ("kat_node_build_info", &[node, ("version", "")], 1.0),
        ("kat_node_instance_memory_bytes", &own, f64::from(3 << 20)),
        ("kat_node_instance_cpu_seconds_total", &own, 1.5),
        ("kat_node_instance_probes_total", &failed, 2.0),
        ("kat_node_instance_probe_last_duration_seconds", &own, 0.25),
        ("kat_node_load1", &[node], 0.5),
        ("kat_node_data_path_up", &[node], 1.0),
        ("kat_node_peer_unanswered_seconds", &to_n1, 31.0),
        ("kat_node_leader_contact_age_seconds", &[node], 1.5),
    ];
    for (name, labels, value) in expected {
        assert_eq!(
            samples.value(name, labels),
            Some(value),
            "{name} in\n{text}"
        );
    }
    for (name, count) in [
        ("kat_node_instance_memory_bytes", 1),
        ("kat_node_peer_received_bytes_total", 1),
        ("kat_node_service_memory_bytes", 1),
        ("kat_node_load5", 0),
    ] {
        assert_eq!(samples.count(name), count, "{name} in\n{text}");
    }
    let (_, body) = server.get(&server.read, "/v1alpha1/nodes/n2/metrics").await;
    assert_eq!(
        body["instances"].as_array().map(Vec::len),
        Some(1),
        "{body}"
    );
    assert_eq!(body["version"], "");
}

#[tokio::test]
async fn a_machine_that_is_away_costs_a_scrape_no_wait_once_it_is_not_ready() {
    let server = Server::start().await;
    let away = "/v1alpha1/nodes/n2/metrics";
    assert_eq!(server.get(&server.read, away).await.0, 404);
    let lost = json!({"schema": 1, "phase": "NotReady", "reason": "NoHeartbeat"});
    server
        .write(&[
            put(keys::registration("n2"), &registration()),
            put(keys::node_status("n2"), &lost),
        ])
        .await;
    let (status, body) = server.get(&server.read, away).await;
    assert_eq!(
        (status.as_u16(), &body["error"]),
        (502, &json!("MachineAway"))
    );
    assert_eq!(
        server.echo.measured.load(Ordering::SeqCst),
        0,
        "it was not asked"
    );
    *server.echo.away.lock() = Some("can't be reached".to_owned());
    let (status, body) = server.get(&server.read, NODE).await;
    assert_eq!(status, 502, "{body}");
    assert_eq!(
        server
            .get(&server.read, &format!("{NODE}?format=xml"))
            .await
            .0,
        400
    );
}

/// Names of metrics in a text, without the suffixes of histograms.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let names = words.filter(|word| word.starts_with("kat_"));
    let family = |name: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        let cut = ends.iter().find_map(|end| name.strip_suffix(end));
        cut.unwrap_or(name).to_owned()
    };
    names.map(family).collect()
}

#[tokio::test]
async fn rules_dashboard_and_guide_name_only_metrics_that_there_are_and_the_guide_all() {
    let server = Server::start().await;
    server.echo.measurements.lock().ingress = Some(IngressMeasurements::default());
    let (_, of_cluster) = scrape(&server, "/metrics").await;
    let (_, of_node) = scrape(&server, NODE).await;
    let there = of_cluster.types.keys().chain(of_node.types.keys());
    let there: BTreeSet<String> = there.cloned().collect();
    let rules = names_in(include_str!("../../contrib/prometheus/kat-rules.yml"));
    let dashboard = names_in(include_str!("../../contrib/prometheus/kat-dashboard.json"));
    assert!(rules.len() > 10 && dashboard.len() > 10);
    let unknown: Vec<_> = rules
        .union(&dashboard)
        .filter(|name| !there.contains(*name))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert_eq!(names_in(include_str!("../../docs/guide/metrics.md")), there);
}

#[tokio::test]
async fn prometheus_is_told_what_to_scrape() {
    let server = Server::start().await;
    let at = |address: &str| {
        let mut registration = registration();
        registration.advertise = vec![address.parse().unwrap()];
        registration
    };
    let text = |key: &str, value: &str| WriteOperation::Put(key.to_owned(), value.into());
    let register = |name: &str, address: &str| put(keys::registration(name), &at(address));
    server
        .write(&[
            put(keys::registration("n0"), &registration()),
            register("n1", "192.0.2.11"),
            register("n2", "2001:db8::12"),
        ])
        .await;
    server
        .write(&[
            text(keys::LEADER_ENDPOINT, "192.0.2.9:9115"),
            text(keys::LEADER_NAME, "n2"),
        ])
        .await;
    let (status, body) = server.get(&server.read, TARGETS).await;
    assert_eq!(status, 200, "{body}");
    let groups = body.as_array().unwrap();
    let groups: Vec<_> = groups
        .iter()
        .map(|group| {
            let labels = &group["labels"];
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            [
                text(&group["targets"][0]),
                text(&labels["job"]),
                text(&labels["instance"]),
                text(&labels["__metrics_path__"]),
            ]
        })
        .collect();
    let expected = [
        ["[2001:db8::12]:9115", "kat-cluster", "", "/metrics"],
        // It has no address of its own: the leader is asked at once.
        [
            "[2001:db8::12]:9115",
            "kat-node",
            "n0",
            "/v1alpha1/nodes/n0/metrics",
        ],
        [
            "192.0.2.11:9115",
            "kat-node",
            "n1",
            "/v1alpha1/nodes/n1/metrics",
        ],
        [
            "[2001:db8::12]:9115",
            "kat-node",
            "n2",
            "/v1alpha1/nodes/n2/metrics",
        ],
    ];
    for (found, wanted) in groups.iter().zip(expected) {
        let [target, job, instance, path] = wanted;
        assert_eq!([&found[0], &found[1], &found[3]], [target, job, path]);
        assert!(instance.is_empty() || found[2] == instance, "{found:?}");
    }
    assert_eq!(groups.len(), 4, "{body}");
}
