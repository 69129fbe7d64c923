//! Dry runs of an apply: what they answer, and that they write nothing.

use std::{sync::Arc, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};

use super::support::{NODE_UID, Server, put, read, registration, web};
use kat_plan::Snapshot;
use kat_types::{
    api::{Health, InstancePhase, InstanceReport, NodeReport, NodeResources},
    assignment::{ASSIGNMENT_SCHEMA, DesiredRun, PREPARED_SCHEMA},
    resource::{Bytes, MilliCpu, ResourceList},
    store::{keys, records::NodeRegistration},
};

const WEB: &str = "/v1alpha1/n/shop/workloads/web";
const NODES: [(&str, &str); 2] = [("n1", NODE_UID), ("n2", "node-uid-2")];

/// Two machines that report, and a leader that plans only when asked to.
pub(super) async fn cluster() -> Server {
    let server = Server::start().await;
    ready(&server).await;
    server
}

/// Adds the second machine and makes both Ready.
pub(super) async fn ready(server: &Server) {
    let second = NodeRegistration {
        uid: "node-uid-2".to_owned(),
        ..registration()
    };
    let subnet = |node: &str, subnet: &str| {
        kat_types::store::transaction::WriteOperation::Put(
            keys::network_node(node, "subnet"),
            subnet.into(),
        )
    };
    let list = json!({"schema": 1, "revision": 1, "count": 0});
    server
        .write(&[
            put(keys::registration("n2"), &second),
            subnet("n1", "10.100.2.0/23"),
            subnet("n2", "10.100.4.0/23"),
            put(keys::desired_meta("n1"), &list),
            put(keys::desired_meta("n2"), &list),
        ])
        .await;
    settle(server).await;
}

fn newest(server: &Server) -> Arc<Snapshot> {
    server.handle.snapshot.borrow().clone().unwrap()
}

/// Reports for both machines that all assigned instances are as they are wanted.
fn report(server: &Server) {
    report_as(server, ASSIGNMENT_SCHEMA);
}

/// The same from agents that understand assignments up to `schema`.
fn report_as(server: &Server, schema: u32) {
    let snapshot = newest(server);
    for (name, uid) in NODES {
        let resources = ResourceList {
            cpu: Some(MilliCpu(2000)),
            memory: Some(Bytes(4 << 30)),
            storage: None,
        };
        let instances = snapshot.instances.iter();
        let instances = instances.filter(|(_, entry)| entry.node == name);
        let instances = instances.map(|(id, entry)| InstanceReport {
            instance_id: id.clone(),
            phase: match entry.assignment.value.wanted {
                DesiredRun::Running => InstancePhase::Running,
                DesiredRun::Prepared => InstancePhase::Prepared,
                DesiredRun::Stopped => InstancePhase::Stopped,
            },
            health_status: Health::Healthy,
            ..InstanceReport::default()
        });
        let report = NodeReport {
            node_name: name.to_owned(),
            node_uid: uid.to_owned(),
            resources: NodeResources {
                capacity: resources,
                allocatable: resources,
            },
            workload_instances: instances.collect(),
            desired_revision: 1,
            assignment_schema: schema,
            ..NodeReport::default()
        };
        server
            .handle
            .reports
            .accept(name, report, Duration::from_secs(15));
    }
}

/// Plans and writes until a plan is empty.
pub(super) async fn settle(server: &Server) {
    for _ in 0..50 {
        report(server);
        let snapshot = newest(server);
        let observed = server
            .handle
            .reports
            .observed(std::time::Duration::from_secs(60));
        let plan = kat_plan::plan(&snapshot, &observed, jiff::Timestamp::now(), kat_plan::SEED);
        if plan.changes.is_empty() {
            return;
        }
        for change in plan.changes {
            server.write(&change.operations).await;
        }
    }
    panic!("the plan never ends");
}

/// The answer of a dry run, after checks that nothing was written and that it contains no secret
/// values.
async fn ask(server: &Server, files: &[(&str, &str)]) -> Value {
    ask_at(server, WEB, files).await
}

async fn ask_at(server: &Server, path: &str, files: &[(&str, &str)]) -> Value {
    let (stored, revision) = (server.stored(), server.store.revision());
    let path = format!("{path}?dryRun=true");
    let response = server.send(&server.admin, Method::PUT, &path, files, &[]);
    let (status, body) = read(response.await).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(server.store.revision(), revision, "nothing is written");
    assert_eq!(server.stored(), stored);
    let text = body.to_string();
    for secret in ["correct-horse", "battery-staple"] {
        assert!(!text.contains(secret), "{text}");
    }
    body
}

fn actions(body: &Value) -> Vec<&str> {
    let instances = body["preview"]["instances"].as_array().unwrap().iter();
    instances
        .map(|one| one["action"].as_str().unwrap())
        .collect()
}

/// `workload.kat` with another image and another value.
fn changed(replicas: u32) -> String {
    web("shop", "web", replicas)
        .replace("web:1", "web:2")
        .replace("correct-horse", "battery-staple")
}

#[tokio::test]
async fn a_new_workload_is_placed_and_its_unit_is_told() {
    let server = cluster().await;
    let body = ask(&server, &[("workload.kat", &web("shop", "web", 2))]).await;
    assert_eq!(body["outcome"], "created");
    assert_eq!(body["metadata"]["generation"], 1);
    let preview = &body["preview"];
    assert_eq!(preview["presentGeneration"], Value::Null);
    assert_eq!(actions(&body), ["Create", "Create"]);
    let mut nodes: Vec<_> = preview["instances"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["successorNode"].as_str().unwrap())
        .collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["n1", "n2"], "they spread");
    assert_eq!(
        preview["instances"][0]["successor"],
        Value::Null,
        "its name follows from an identity that it does not have yet"
    );
    let units = preview["units"].as_array().unwrap();
    let container = units
        .iter()
        .find(|unit| unit["name"].as_str().unwrap().ends_with(".container"))
        .unwrap();
    let diff = container["diff"].as_str().unwrap();
    assert!(
        diff.starts_with("--- /dev/null\n+++ kat-shop-web-"),
        "{diff}"
    );
    assert!(
        diff.contains("\n+Image=registry.lab:5000/web:1\n"),
        "{diff}"
    );
    assert_eq!(container["instances"], 2);
    let variables = units
        .iter()
        .find(|unit| unit["name"].as_str().unwrap().ends_with(".env"))
        .unwrap();
    let diff = variables["diff"].as_str().unwrap();
    assert!(diff.contains("\n+PASSWORD=***\n"), "{diff}");
    server.stop().await;
}

#[tokio::test]
async fn a_preview_shows_what_the_apply_then_does() {
    let server = cluster().await;
    server
        .put("shop", "web", &[("workload.kat", &web("shop", "web", 2))])
        .await;
    settle(&server).await;
    let before = newest(&server);
    assert_eq!(before.instances.len(), 2);

    let body = ask(&server, &[("workload.kat", &changed(3))]).await;
    assert_eq!(body["outcome"], "updated");
    let preview = &body["preview"];
    assert_eq!(preview["presentGeneration"], 1);
    assert_eq!(preview["templateChanged"], true);
    assert_eq!(preview["complete"], true);
    let how = "at most 1 at a time, each stops when its successor is healthy";
    assert_eq!(preview["rollout"], how);
    assert_eq!(preview["blocked"], "");
    let fields = json!([
        {"file": "workload.kat", "path": "spec.container.env[PASSWORD].value", "before": "***", "after": "***"},
        {"file": "workload.kat", "path": "spec.replicas", "before": 2, "after": 3},
        {"file": "workload.kat", "path": "spec.source.image",
            "before": "registry.lab:5000/web:1", "after": "registry.lab:5000/web:2"},
    ]);
    let mut found = preview["fields"].as_array().unwrap().clone();
    found.sort_by_key(|field| field["path"].as_str().unwrap().to_owned());
    assert_eq!(Value::Array(found), fields);
    let replaced = actions(&body);
    assert_eq!(replaced.len(), 3, "{body}");
    assert_eq!(replaced[2], "Create");
    assert!(
        replaced[..2]
            .iter()
            .all(|action| ["Restart", "Move"].contains(action)),
        "{body}"
    );
    let units = preview["units"].as_array().unwrap();
    let diff = |end: &str| {
        let mut found = units
            .iter()
            .filter(|unit| unit["name"].as_str().unwrap().ends_with(end));
        found.next().unwrap()["diff"].as_str().unwrap().to_owned()
    };
    let container = diff(".container");
    for line in [
        "\n-Image=registry.lab:5000/web:1\n",
        "\n+Image=registry.lab:5000/web:2\n",
        "\n-Generation=1\n",
        "\n+Generation=2\n",
    ] {
        assert!(container.contains(line), "{container}");
    }
    assert!(!container.contains("-Instance="), "{container}");
    let variables = diff(".env");
    assert!(
        variables.contains("-PASSWORD=***\n+PASSWORD=*** (changed)\n"),
        "{variables}"
    );

    server
        .put("shop", "web", &[("workload.kat", &changed(3))])
        .await;
    settle(&server).await;
    let after = newest(&server);
    for one in preview["instances"].as_array().unwrap() {
        let successor = one["successor"].as_str().unwrap();
        let entry = &after.instances[successor];
        assert_eq!(one["successorNode"], entry.node.as_str(), "{successor}");
        assert_eq!(one["slot"], entry.assignment.value.slot);
    }
    let same = ask(&server, &[("workload.kat", &changed(3))]).await;
    assert_eq!(same["outcome"], "unchanged");
    assert_eq!(same.get("preview"), None);
    server.stop().await;
}

#[tokio::test]
async fn what_need_not_restart_stays_and_what_is_not_wanted_stops() {
    let server = cluster().await;
    server
        .put("shop", "web", &[("workload.kat", &web("shop", "web", 2))])
        .await;
    settle(&server).await;
    let body = ask(&server, &[("workload.kat", &web("shop", "web", 1))]).await;
    assert_eq!(actions(&body), ["Keep", "Stop"]);
    let instances = &body["preview"]["instances"];
    assert_eq!(instances[0]["reason"], "nothing that it is made of changes");
    assert_eq!(instances[1]["reason"], "fewer replicas are wanted");
    assert_eq!(body["preview"]["templateChanged"], false);
    assert_eq!(body["preview"]["units"], json!([]));
    let commented = format!("# a comment\n{}", web("shop", "web", 2));
    let body = ask(&server, &[("workload.kat", &commented)]).await;
    assert_eq!(body["outcome"], "updated");
    assert_eq!(body["preview"]["presentGeneration"], 1);
    assert_eq!(body["metadata"]["generation"], 1);
    assert_eq!(body["preview"]["fields"], json!([]));
    assert_eq!(actions(&body), ["Keep", "Keep"]);
    server.stop().await;
}

#[tokio::test]
async fn each_strategy_is_told_and_what_is_paused_stays() {
    let server = cluster().await;
    server
        .put("shop", "web", &[("workload.kat", &web("shop", "web", 2))])
        .await;
    settle(&server).await;
    let with = |strategy: &str| {
        let strategy = format!("  replicas: 2\n  updateStrategy: {strategy}\n");
        changed(2).replace("  replicas: 2\n", &strategy)
    };
    for (strategy, how) in [
        (
            "{rolling: {maxSurge: 0}}",
            "one after the other, each stops before its successor starts",
        ),
        (
            "{type: Simultaneous}",
            "all old ones stop before any new one starts",
        ),
        (
            "{rolling: {maxSurge: 70%}, progressDeadlineSeconds: 60, autoRollback: true}",
            "at most 2 at a time, each stops when its successor is healthy; after 60 s without progress the last good generation is taken again",
        ),
    ] {
        let body = ask(&server, &[("workload.kat", &with(strategy))]).await;
        assert_eq!(body["preview"]["rollout"], how);
        assert_eq!(body["preview"]["blocked"], "");
        let replaced = actions(&body);
        assert_eq!(replaced.len(), 2, "{body}");
        let away = |action: &&str| ["Restart", "Move"].contains(action);
        assert!(replaced.iter().all(away), "{strategy}: {body}");
    }
    let path = format!("{WEB}/pause");
    let paused = server.send(&server.admin, Method::PUT, &path, &[], &[]);
    assert_eq!(paused.await.status(), 200);
    settle(&server).await;
    let body = ask(&server, &[("workload.kat", &with("{}"))]).await;
    assert_eq!(actions(&body), ["Keep", "Keep"]);
    let why = "the rollout is paused: 0 of 2 instances of this generation are healthy";
    assert_eq!(body["preview"]["blocked"], why);
    assert_eq!(body["preview"]["instances"][1]["reason"], why);
    assert_eq!(body["preview"]["rollout"], "");
    server.stop().await;
}

#[tokio::test]
async fn a_plan_names_the_machines_that_are_too_old_to_prepare_a_successor() {
    let server = cluster().await;
    server
        .put("shop", "web", &[("workload.kat", &web("shop", "web", 2))])
        .await;
    settle(&server).await;
    let strategy = "  replicas: 2\n  updateStrategy: {rolling: {maxSurge: 0}}\n";
    let files = changed(2).replace("  replicas: 2\n", strategy);
    report_as(&server, PREPARED_SCHEMA - 1);
    let body = ask(&server, &[("workload.kat", &files)]).await;
    let how = body["preview"]["rollout"].as_str().unwrap();
    assert_eq!(
        how,
        "one after the other, each stops before its successor starts; the KAT of n1, n2 is too old to prepare a successor before that"
    );
    server.stop().await;
}

#[tokio::test]
async fn what_finds_no_place_is_said_with_the_reason() {
    let server = cluster().await;
    server
        .put("shop", "web", &[("workload.kat", &web("shop", "web", 1))])
        .await;
    settle(&server).await;
    let selected = web("shop", "web", 2).replace(
        "  replicas: 2\n",
        "  replicas: 2\n  nodeSelector: {disk: ssd}\n",
    );
    let body = ask(&server, &[("workload.kat", &selected)]).await;
    assert_eq!(actions(&body), ["Keep", "Wait"]);
    let why = "0 of 2 machines fit: 2 without the labels of nodeSelector";
    assert_eq!(body["preview"]["blocked"], why);
    assert_eq!(body["preview"]["instances"][1]["reason"], why);
    server.stop().await;
}

/// `workload.kat` of a DaemonService.
fn daemon(image: &str, more: &str) -> String {
    format!(
        "apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata: {{name: web, namespace: shop}}\nspec:\n  type: DaemonService\n  source: {{image: registry.example/{image}}}\n{more}"
    )
}

#[tokio::test]
async fn a_plan_of_a_daemon_names_the_machines_and_those_that_wait() {
    let server = cluster().await;
    // A machine that does not answer, and one that does not match.
    for (name, taints) in [
        ("n3", json!([])),
        ("n4", json!([{"key": "gpu", "effect": "NoSchedule"}])),
    ] {
        let mut registration = serde_json::to_value(registration()).unwrap();
        registration["uid"] = json!(format!("uid of {name}"));
        registration["taints"] = taints;
        let subnet = match name {
            "n3" => "10.100.6.0/23",
            _ => "10.100.8.0/23",
        };
        server
            .write(&[
                put(keys::registration(name), &registration),
                kat_types::store::transaction::WriteOperation::Put(
                    keys::network_node(name, "subnet"),
                    subnet.into(),
                ),
                put(
                    keys::desired_meta(name),
                    &json!({"schema": 1, "revision": 1, "count": 0}),
                ),
            ])
            .await;
    }
    settle(&server).await;
    let body = ask(&server, &[("workload.kat", &daemon("web:1", ""))]).await;
    assert_eq!(actions(&body), ["Create", "Create", "Wait"]);
    let instances = &body["preview"]["instances"];
    assert_eq!(instances[0]["successorNode"], "n1");
    assert_eq!(instances[1]["successorNode"], "n2");
    assert_eq!(instances[2]["node"], "n3");
    assert_eq!(instances[2]["reason"], "when the machine answers again");

    let (status, body) = server
        .put("shop", "web", &[("workload.kat", &daemon("web:1", ""))])
        .await;
    assert_eq!(status, 201, "{body}");
    settle(&server).await;
    let body = ask(&server, &[("workload.kat", &daemon("web:2", ""))]).await;
    assert_eq!(actions(&body), ["Restart", "Restart", "Wait"]);
    let how = "one machine at a time, where the old one stops before its successor starts";
    assert_eq!(body["preview"]["rollout"], how);
    let selected = daemon("web:1", "  nodeSelector: {disk: ssd}\n");
    let body = ask(&server, &[("workload.kat", &selected)]).await;
    assert_eq!(actions(&body), ["Stop", "Stop"]);
    let why = "its machine does not match the workload";
    assert_eq!(body["preview"]["instances"][0]["reason"], why);
    server.stop().await;
}

#[tokio::test]
async fn a_plan_of_a_job_on_each_machine_says_where_it_begins_and_which_machine_waits() {
    let server = cluster().await;
    let workload = daemon("web:1", "").replace("DaemonService", "Job");
    let job =
        "apiVersion: kat.dws.rip/v1alpha1\nkind: JobDefinition\nspec: {completions: PerNode}\n";
    let files = [("workload.kat", workload.as_str()), ("job.kat", job)];
    let body = ask(&server, &files).await;
    assert_eq!(actions(&body), ["Create", "Wait"]);
    let instances = &body["preview"]["instances"];
    assert_eq!(instances[0]["successorNode"], "n1");
    assert_eq!(instances[1]["node"], "n2");
    let reason = instances[1]["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("run 1: 0 of 2 machines succeeded"),
        "{reason}"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_daemon_is_neither_scaled_nor_stopped_and_counts_on_each_machine() {
    let server = cluster().await;
    let files = daemon("web:1", "");
    let (status, body) = server.put("shop", "web", &[("workload.kat", &files)]).await;
    assert_eq!(status, 201, "{body}");
    for (method, action, body) in [
        (Method::PUT, "replicas", json!({"replicas": 3})),
        (Method::PUT, "stop", json!({})),
        (Method::DELETE, "stop", json!({})),
    ] {
        let path = format!("{WEB}/{action}");
        let (status, body) = server.send_json(&server.admin, method, &path, &body).await;
        assert_eq!(status, 409, "{action}: {body}");
        let message = body["message"].as_str().unwrap();
        assert!(
            message.contains("one instance on each machine"),
            "{message}"
        );
    }
    settle(&server).await;
    let snapshot = newest(&server);
    assert_eq!(
        kat_plan::used_by_namespace(&snapshot, "shop").instances,
        Some(2)
    );
    server.stop().await;
}

#[tokio::test]
async fn a_namespace_that_comes_with_the_folder_need_not_be_there_yet() {
    let server = cluster().await;
    let path = "/v1alpha1/n/our-team/workloads/web";
    let namespace =
        "apiVersion: kat.dws.rip/v1alpha1\nkind: Namespace\nmetadata: {name: our-team}\n";
    let workload = web("our-team", "web", 1);
    let both = [
        ("workload.kat", workload.as_str()),
        ("namespace.kat", namespace),
    ];
    let body = ask_at(&server, path, &both).await;
    assert_eq!(actions(&body), ["Create"]);
    assert_eq!(body["preview"]["defaultRequests"], Value::Null);
    // Its container has no requests of its own, and gets those of the namespace to come.
    let with_defaults = format!("{namespace}spec: {{defaults: {{requests: {{cpu: 100m}}}}}}\n");
    let filled = [
        ("workload.kat", workload.as_str()),
        ("namespace.kat", with_defaults.as_str()),
    ];
    let body = ask_at(&server, path, &filled).await;
    assert_eq!(body["preview"]["defaultRequests"]["cpu"], "100m");
    let alone = [("workload.kat", workload.as_str())];
    let path = format!("{path}?dryRun=true");
    let response = server.send(&server.admin, Method::PUT, &path, &alone, &[]);
    assert_eq!(response.await.status(), 404);
    // The apply would refuse this name, because it is a top-level domain of the Internet.
    let (namespace, workload) = [namespace, &workload]
        .map(|text| text.replace("our-team", "team"))
        .into();
    let both = [
        ("workload.kat", workload.as_str()),
        ("namespace.kat", &namespace),
    ];
    let path = path.replace("our-team", "team");
    let response = server.send(&server.admin, Method::PUT, &path, &both, &[]);
    let (status, body) = read(response.await).await;
    assert_eq!(status, 400, "{body}");
    assert!(body.to_string().contains("top-level domain"), "{body}");
    server.stop().await;
}
