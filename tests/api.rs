//! The API over real sockets: answers, stored objects and permissions.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[path = "api/agent_port.rs"]
mod agent_port;
#[path = "api/apply.rs"]
mod apply;
#[path = "api/authentication.rs"]
mod authentication;
#[path = "api/authorities.rs"]
mod authorities;
#[path = "api/configuration.rs"]
mod configuration;
#[path = "api/workload_files.rs"]
mod files_of_folder;
#[path = "api/images.rs"]
mod images;
#[path = "api/ingress_ports.rs"]
mod ingress_ports;
#[path = "api/isolation.rs"]
mod isolation;
#[path = "api/jobs.rs"]
mod jobs;
#[path = "api/logs.rs"]
mod logs;
#[path = "api/metrics.rs"]
mod metrics;
#[path = "../src/api/metrics/parser.rs"]
mod metrics_parser;
#[path = "api/names.rs"]
mod names;
#[path = "api/nodes.rs"]
mod nodes;
#[path = "api/overview.rs"]
mod overview;
#[path = "api/preview.rs"]
mod preview;
#[path = "api/registry_credentials.rs"]
mod registry_credentials;
#[path = "api/rollouts.rs"]
mod rollouts;
#[path = "api/routes.rs"]
mod routes;
#[path = "api/secrets.rs"]
mod secrets;
#[path = "api/sessions.rs"]
mod sessions;
#[path = "api/state_stream.rs"]
mod state_stream;
#[path = "support/api.rs"]
mod support;
#[path = "api/volume_forgets.rs"]
mod volume_forgets;
#[path = "api/volume_moves.rs"]
mod volume_moves;
#[path = "api/volumes.rs"]
mod volumes;
#[path = "api/watches.rs"]
mod watches;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

use kat_api::ApiLimits;
use kat_client::{Client, ClientOptions, Deletion, ListChange, RequestPath};
use kat_pki::{ApiServers, LeafKind, ServerMemory};
use kat_types::{
    api::{
        Connection, Event, EventFilter, NodeReport, ObjectKind, ObjectReference, WorkloadItem,
        WriteOutcome,
    },
    store::{
        keys,
        records::{LastIndex, NodeStatusRecord, WorkloadMeta},
        transaction::WriteOperation,
    },
};
use support::{
    CLUSTER_UID, DEADLINE, LinesOf, NODE_UID, Server, archive, put, read, web, with_instance,
};

const SHOP: &str = "/v1alpha1/n/shop/workloads";
const WEB: &str = "/v1alpha1/n/shop/workloads/web";

fn files(text: &str) -> [(&str, &str); 1] {
    [("workload.kat", text)]
}

#[tokio::test]
async fn a_namespaces_events_have_those_of_machines_but_for_deploy_tokens() {
    let server = Server::start().await;
    let event = |id: &str, kind: ObjectKind, name: &str, namespace: &str| {
        let involved_object = ObjectReference {
            kind,
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            uid: String::new(),
        };
        let event = Event {
            id: id.to_owned(),
            involved_object,
            ..Event::default()
        };
        put(keys::event(id), &event)
    };
    server
        .write(&[
            event("test-1", ObjectKind::Node, "n9", ""),
            event("test-2", ObjectKind::Workload, "web", "shop"),
            event("test-3", ObjectKind::Workload, "web", "other"),
            event("test-4", ObjectKind::Namespace, "shop", ""),
            event("test-5", ObjectKind::Namespace, "other", ""),
        ])
        .await;
    for (token, expected) in [
        (&server.read, vec!["test-1", "test-2", "test-4"]),
        (&server.deploy, vec!["test-2", "test-4"]),
    ] {
        let (status, found) = server.get(token, "/v1alpha1/events?namespace=shop").await;
        assert_eq!(status, 200, "{found}");
        let ids: Vec<_> = found["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|event| event["id"].as_str())
            .filter(|id| id.starts_with("test-"))
            .collect();
        assert_eq!(ids, expected);
    }
}

#[tokio::test]
async fn namespaces_come_and_go() {
    let server = Server::start().await;
    let list = "/v1alpha1/namespaces";
    let body = json!({"apiVersion": "kat.dws.rip/v1alpha1", "kind": "Namespace", "metadata": {"name": "crew"}});
    let (status, created) = server
        .send_json(&server.admin, Method::POST, list, &body)
        .await;
    assert_eq!(
        (status.as_u16(), &created["outcome"]),
        (201, &json!("created")),
        "{created}"
    );
    let (status, again) = server
        .send_json(&server.admin, Method::POST, list, &body)
        .await;
    assert_eq!(
        (status.as_u16(), &again["outcome"]),
        (200, &json!("unchanged"))
    );
    let labelled = json!({"metadata": {"name": "crew", "labels": {"a": "b"}}});
    let (_, labelled) = server
        .send_json(&server.admin, Method::POST, list, &labelled)
        .await;
    assert_eq!(labelled["outcome"], "updated");
    assert_eq!(labelled["metadata"]["uid"], created["metadata"]["uid"]);

    for name in ["web", "db"] {
        let (status, body) = server
            .put("crew", name, &files(&web("crew", name, 1)))
            .await;
        assert_eq!(status, 201, "{body}");
    }
    let delete =
        async |path: &str| read(server.call(&server.admin, Method::DELETE, path).await).await;
    let (status, body) = delete("/v1alpha1/namespaces/crew").await;
    assert_eq!(status, 409, "{body}");
    assert!(body["hint"].as_str().unwrap().contains("cascade"), "{body}");
    let (status, body) = delete("/v1alpha1/namespaces/crew?cascade=true").await;
    assert_eq!(
        (status.as_u16(), &body["outcome"]),
        (200, &json!("deleting")),
        "{body}"
    );
    let (_, workloads) = server
        .get(&server.admin, "/v1alpha1/n/crew/workloads")
        .await;
    for item in workloads["items"].as_array().unwrap() {
        assert_eq!(item["status"]["phase"], "Deleting");
    }
    let (status, _) = server
        .put("crew", "new", &files(&web("crew", "new", 1)))
        .await;
    assert_eq!(status, 409, "nothing comes into a namespace that goes");
    for name in ["default", "kat-core"] {
        assert_eq!(
            delete(&format!("/v1alpha1/namespaces/{name}?cascade=true"))
                .await
                .0,
            403
        );
    }
}

#[tokio::test]
async fn values_of_variables_are_seen_by_those_alone_who_may_write_them() {
    let server = Server::start().await;
    server
        .put("shop", "web", &files(&web("shop", "web", 1)))
        .await;
    let file = format!("{WEB}/files/workload.kat");
    for path in [
        WEB,
        SHOP,
        "/v1alpha1/workloads",
        "/v1alpha1/events",
        &format!("{WEB}/files"),
    ] {
        let (status, body) = server.get(&server.read, path).await;
        assert_eq!(status, 200, "{path}: {body}");
        assert!(
            !body.to_string().contains("correct-horse"),
            "{path}: {body}"
        );
    }
    let (_, item) = server.get(&server.read, WEB).await;
    assert_eq!(
        item["spec"]["container"]["env"][0],
        json!({"name": "PASSWORD", "value": "***"})
    );
    let (_, names) = server.get(&server.read, &format!("{WEB}/files")).await;
    assert_eq!(names["items"], json!(["workload.kat"]));
    assert_eq!(server.get(&server.read, &file).await.0, 403);
    let (status, text) = server.get(&server.deploy, &file).await;
    assert_eq!(status, 200);
    assert_eq!(text.as_str().unwrap(), web("shop", "web", 1));
    assert_eq!(
        server
            .get(&server.deploy, &format!("{WEB}/files/none.kat"))
            .await
            .0,
        404
    );
}

#[tokio::test]
async fn kats_own_namespace_is_changed_by_administrators_alone() {
    let server = Server::start().await;
    let request = json!({"scope": {"kind": "deploy", "namespace": "kat-core"}, "name": "core"});
    let (status, token) = server
        .send_json(&server.admin, Method::POST, "/v1alpha1/tokens", &request)
        .await;
    assert_eq!(status, 201, "{token}");
    let token = token["token"].as_str().unwrap();
    let text = web("kat-core", "dns", 1);
    let path = "/v1alpha1/n/kat-core/workloads/dns";
    let refused = server
        .send(token, Method::PUT, path, &files(&text), &[])
        .await;
    assert_eq!(refused.status(), 403);
    assert_eq!(server.put("kat-core", "dns", &files(&text)).await.0, 201);
}

#[tokio::test]
async fn a_machine_reports_for_itself_alone() {
    let server = Server::start().await;
    let report = |name: &str, uid: &str| json!({"nodeName": name, "nodeUID": uid, "workloadInstances": [{"instanceID": "web-abcde", "memory": 4096}]});
    let node = server.client(Some(&server.node_leaf("n1")));
    let send = async |client: &reqwest::Client, path: &str, body: Value| {
        let path = server.url(path);
        read(client.post(path).json(&body).send().await.unwrap()).await
    };
    let status = "/v1alpha1/nodes/n1/status";
    let (code, body) = send(&node, status, report("n1", NODE_UID)).await;
    assert_eq!(code, 204, "{body}");
    let observed = server.handle.reports.observed(Duration::MAX);
    assert_eq!(
        observed.reports["n1"].report.workload_instances[0].memory,
        Some(4096)
    );

    for (path, body) in [
        (status, report("n2", NODE_UID)),
        (status, report("n1", "another-uid")),
        ("/v1alpha1/nodes/n2/status", report("n2", "uid")),
    ] {
        let (code, answer) = send(&node, path, body).await;
        assert_eq!(code, 403, "{path}: {answer}");
    }
    let unregistered = server.client(Some(&server.node_leaf("n3")));
    let (code, _) = send(
        &unregistered,
        "/v1alpha1/nodes/n3/status",
        report("n3", "uid"),
    )
    .await;
    assert_eq!(code, 401);
    // A machine's certificate permits nothing else, and an administrator cannot report for a
    // machine.
    assert_eq!(
        node.get(server.url("/v1alpha1/nodes"))
            .send()
            .await
            .unwrap()
            .status(),
        403
    );
    let request = server
        .client(None)
        .post(server.url(status))
        .bearer_auth(&server.admin);
    let refused = request.json(&report("n1", NODE_UID)).send().await.unwrap();
    assert_eq!(refused.status(), 403);
    assert_eq!(
        server.handle.reports.observed(Duration::MAX).reports.len(),
        1
    );

    // The leader keeps reports in memory and shows them in the API.
    with_instance(&server).await;
    let (_, item) = server
        .get(&server.read, "/v1alpha1/n/shop/instances/web-abcde")
        .await;
    assert_eq!(item["status"]["memory"], 4096, "{item}");
    assert!(!item.to_string().contains("correct-horse"));
    let (_, node) = server.get(&server.read, "/v1alpha1/nodes/n1").await;
    assert!(node["status"]["lastHeartbeat"].is_string(), "{node}");
    assert_eq!(node["status"]["roles"], json!(["leader", "etcd", "worker"]));

    // When the machine leads anew, another one may have led and heard later reports.
    server.leaderships.send_modify(|leadership| {
        if let Some(leadership) = leadership {
            leadership.create_revision += 1;
            leadership.since = tokio::time::Instant::now();
        }
    });
    let (_, node) = server.get(&server.read, "/v1alpha1/nodes/n1").await;
    assert!(node["status"]["lastHeartbeat"].is_null(), "{node}");
    let client = server.client(Some(&server.node_leaf("n1")));
    let (code, body) = send(&client, status, report("n1", NODE_UID)).await;
    assert_eq!(code, 204, "{body}");
    let (_, node) = server.get(&server.read, "/v1alpha1/nodes/n1").await;
    assert!(node["status"]["lastHeartbeat"].is_string(), "{node}");
}

#[tokio::test]
async fn health_version_metrics_and_description() {
    let server = Server::start().await;
    let backup = json!({"node": "", "failing": false, "overdue": false});
    assert_eq!(
        server.get("", "/healthz").await,
        (
            reqwest::StatusCode::OK,
            json!({"status": "ok", "leader": true, "stale": false, "backup": backup})
        )
    );
    assert_eq!(
        server.get("", "/version").await.1["version"],
        kat_types::VERSION
    );
    assert_eq!(server.get("", "/metrics").await.0, 401);
    assert_eq!(
        server.get(&server.deploy, "/openapi.json").await.1["openapi"],
        "3.1.0"
    );
    let status = NodeStatusRecord::default();
    server.write(&[put(keys::node_status("n1"), &status)]).await;
    let (_, metrics) = server.get(&server.read, "/metrics").await;
    assert_eq!(metrics["nodes"], json!({"Joining": 1}));
    let calls = metrics["calls"].as_array().unwrap();
    let health = calls
        .iter()
        .find(|call| call["route"] == "/healthz")
        .unwrap();
    assert_eq!(
        (&health["count"], &health["status"]),
        (&json!(1), &json!(200))
    );
    let (status, text) = server.get(&server.read, "/metrics?format=prometheus").await;
    assert_eq!(status, 200);
    assert!(text.as_str().unwrap().contains("kat_leader 1\n"), "{text}");
    let request = server
        .client(None)
        .get(server.url("/metrics"))
        .bearer_auth(&server.read);
    let response = request.header("accept", "text/plain").send().await.unwrap();
    assert!(response.text().await.unwrap().starts_with("# HELP"));
    let (_, cluster) = server.get(&server.read, "/v1alpha1/config/cluster").await;
    assert_eq!(cluster["spec"]["apiPort"], 9115);
}

#[tokio::test]
async fn a_machine_that_does_not_lead_says_who_does() {
    let server = Server::start().await;
    server.leaderships.send_replace(None);
    let before = server.stored();
    let (status, body) = server
        .put("shop", "web", &files(&web("shop", "web", 1)))
        .await;
    assert_eq!(
        (status.as_u16(), &body["error"]),
        (503, &json!("NotLeader"))
    );
    assert!(
        body["hint"].as_str().unwrap().contains("192.0.2.1:9115"),
        "{body}"
    );
    let request = server.client(None).get(server.url(SHOP));
    let answer = request.bearer_auth(&server.read).send().await.unwrap();
    assert_eq!(answer.status(), 200, "reads go on");
    assert!(!answer.headers().contains_key("kat-stale"));
    assert_eq!(server.stored(), before);
    // A member of etcd, of which no member leads, names that problem in its answer.
    let member = json!({"id": "1", "voting": true, "healthy": true});
    let members = json!({"n1": member, "n2": member, "n3": member});
    let members = json!({"schema": 1, "members": members});
    server
        .write(&[put(keys::MEMBERS.to_owned(), &members)])
        .await;
    let (status, body) = server
        .put("shop", "web", &files(&web("shop", "web", 1)))
        .await;
    assert_eq!(
        (status.as_u16(), &body["error"]),
        (503, &json!("NotLeader"))
    );
    let message = body["message"].as_str().unwrap();
    assert!(message.contains("the 3 machines"), "{message}");
    let (status, health) = server.get("", "/healthz").await;
    let backup = json!({"node": "", "failing": false, "overdue": false});
    assert_eq!(status, 200, "reads go on, and say that they may be old");
    assert_eq!(
        health,
        json!({"status": "ok", "leader": false, "stale": true, "backup": backup})
    );
    let request = server.client(None).get(server.url(SHOP));
    let request = request.bearer_auth(&server.read);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["kat-stale"], "true");
}

#[tokio::test]
async fn a_deposed_leader_writes_nothing() {
    let server = Server::start().await;
    let leadership = server.handle.leadership.borrow().clone().unwrap();
    // Another machine became the leader, and this one has not noticed yet.
    server
        .write(&[WriteOperation::Delete(leadership.key.clone())])
        .await;
    let before = server.stored();
    let body = json!({"metadata": {"name": "late"}});
    let (status, body) = server
        .send_json(&server.admin, Method::POST, "/v1alpha1/namespaces", &body)
        .await;
    assert_eq!(
        (status.as_u16(), &body["error"]),
        (503, &json!("NotLeader")),
        "{body}"
    );
    assert_eq!(server.stored(), before);
}

#[tokio::test]
async fn the_client_and_the_server_understand_each_other() {
    let server = Server::start().await;
    let connection = Connection {
        cluster: "home".to_owned(),
        cluster_uid: CLUSTER_UID.to_owned(),
        endpoints: vec![format!("127.0.0.1:{}", server.port)],
        ca: server.authority.certificate_pem().to_owned(),
        token: server.admin.clone(),
        namespace: None,
        api_name_required: true,
    };
    let client = Client::from_connection(&connection, ClientOptions::default()).unwrap();
    client.healthz().await.unwrap();
    let mut follow =
        client.follow::<WorkloadItem>(RequestPath::workloads(Some("shop")).unwrap(), false);
    let first = tokio::time::timeout(DEADLINE, follow.next()).await.unwrap();
    assert!(matches!(first.unwrap(), ListChange::Listed(items) if items.is_empty()));
    let text = web("shop", "web", 1);
    let sent = archive(&files(&text));
    for (dry_run, outcome) in [
        (true, WriteOutcome::Created),
        (false, WriteOutcome::Created),
        (false, WriteOutcome::Unchanged),
    ] {
        let applied = client
            .apply("shop", "web", sent.clone().into(), dry_run, None)
            .await
            .unwrap();
        assert_eq!(
            (applied.result.outcome, applied.dry_run),
            (outcome, dry_run)
        );
    }
    let next = tokio::time::timeout(DEADLINE, follow.next()).await.unwrap();
    assert!(matches!(next.unwrap(), ListChange::Changed(item) if item.metadata.name == "web"));
    assert_eq!(client.files("shop", "web").await.unwrap(), ["workload.kat"]);
    assert_eq!(
        client.file("shop", "web", "workload.kat").await.unwrap(),
        text
    );
    let events = client.events(&EventFilter::default()).await.unwrap();
    assert_eq!(events.items.len(), 1);
    let how = Deletion::default();
    client.delete_workload("shop", "web", how).await.unwrap();
    let gone = client.workload("shop", "none").await.unwrap_err();
    assert!(gone.is_not_found(), "{gone}");
    let socket =
        Client::from_unix_socket(&server.socket("admin.sock"), ClientOptions::default()).unwrap();
    assert_eq!(socket.version().await.unwrap().version, kat_types::VERSION);
    let report = NodeReport {
        node_name: "n1".to_owned(),
        node_uid: NODE_UID.to_owned(),
        ..NodeReport::default()
    };
    let leaf = server.node_leaf("n1");
    let identity = format!("{}{}", leaf.certificate_pem, leaf.key_pem);
    let (endpoints, ca) = (&connection.endpoints, &connection.ca);
    let node = Client::of_machine(
        endpoints,
        CLUSTER_UID,
        ca,
        Some(&identity),
        &ApiServers::Named(ServerMemory::new(true)),
        ClientOptions::default(),
    );
    node.unwrap().report("n1", &report).await.unwrap();
    assert_eq!(
        server.handle.reports.observed(Duration::MAX).reports.len(),
        1
    );
}

#[tokio::test]
async fn a_new_namespace_is_not_called_like_a_top_level_domain_or_a_kind_and_an_old_one_stays() {
    let server = Server::start().await;
    let list = "/v1alpha1/namespaces";
    let make = async |body: serde_json::Value| {
        server
            .send_json(&server.admin, Method::POST, list, &body)
            .await
    };
    for name in ["dev", "com", "lan", "test"] {
        let (status, body) = make(json!({"metadata": {"name": name}})).await;
        assert_eq!(status, 400, "{body}");
        let text = body.to_string();
        assert!(text.contains("is a top-level domain"), "{text}");
    }
    for name in ["volume", "wl", "instances", "ev"] {
        let (status, body) = make(json!({"metadata": {"name": name}})).await;
        assert_eq!(status, 400, "{body}");
        let text = body.to_string();
        assert!(text.contains("is a word for a kind of object"), "{text}");
    }
    // This namespace existed before such names were refused.
    let (status, body) = make(json!({"metadata": {"name": "shop", "labels": {"a": "b"}}})).await;
    assert_eq!(
        (status.as_u16(), &body["outcome"]),
        (200, &json!("updated"))
    );
    server.stop().await;
}
