//! Isolation of namespaces: who may open one, when the cluster may isolate, and what callers see of
//! refused connections.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::support::{NODE_UID, Server, namespace, put, read, web, with_instance};
use kat_types::{
    api::{
        ApiTime, ConnectionEnd, FollowedConfiguration, IsolationReport, NodeReport, RefusedReport,
    },
    machine::isolation::ENFORCING_DATA_PATH,
    resource::{ClusterConfiguration, Isolation, Protocol},
    store::{keys, records::NamespaceRecord},
};

const NAMESPACES: &str = "/v1alpha1/namespaces";
const ISOLATION: &str = "/v1alpha1/isolation";

/// A server with the namespaces `shop`, which has an instance on n1, and `ops` with a workload.
async fn server() -> Server {
    let server = Server::start().await;
    let ops = namespace("2026-01-01T00:00:00Z".parse().unwrap());
    let cluster = ClusterConfiguration::default();
    server
        .write(&[
            put(keys::namespace("ops"), &ops),
            put(keys::CLUSTER.to_owned(), &cluster),
        ])
        .await;
    with_instance(&server).await;
    let files = [("workload.kat", web("ops", "log", 1))];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    let (status, body) = server.put("ops", "log", &files).await;
    assert_eq!(status, 201, "{body}");
    server
}

fn end(namespace: &str, workload: &str, instance: &str) -> ConnectionEnd {
    ConnectionEnd {
        namespace: namespace.to_owned(),
        workload: workload.to_owned(),
        instance: instance.to_owned(),
    }
}

fn refused(from: ConnectionEnd, to: ConnectionEnd, port: u16) -> RefusedReport {
    RefusedReport {
        from,
        to,
        protocol: Some(Protocol::Tcp),
        port,
        packets: 3,
        last: ApiTime::parse("2026-11-22T03:59:00Z"),
        passed: false,
    }
}

fn report(server: &Server, data_path: u32, isolation: Option<IsolationReport>) {
    let report = NodeReport {
        node_name: "n1".to_owned(),
        node_uid: NODE_UID.to_owned(),
        version: "0.2.0".to_owned(),
        data_path,
        isolation,
        configuration: Some(FollowedConfiguration::default()),
        ..NodeReport::default()
    };
    let tick = Duration::from_secs(15);
    server.handle.reports.accept("n1", report, tick);
}

fn record(server: &Server, name: &str) -> NamespaceRecord {
    let key = keys::namespace(name);
    let found = server.store.peek(&key).items;
    let found = found.into_iter().find(|entry| entry.key == key).unwrap();
    serde_json::from_slice(&found.value).unwrap()
}

async fn isolate(server: &Server, mode: &str) -> (StatusCode, Value) {
    let text = format!(
        "apiVersion: kat.dws.rip/v1alpha1\nkind: ClusterConfiguration\nmetadata: {{name: kat}}\nspec:\n  clusterCIDR: 10.100.0.0/16\n  serviceCIDR: 10.200.0.0/16\n  isolation: {mode}\n"
    );
    let request = server
        .client(None)
        .put(server.url("/v1alpha1/config/cluster"))
        .bearer_auth(&server.admin)
        .header("content-type", "text/plain")
        .header("if-match", "*")
        .body(text);
    read(request.send().await.unwrap()).await
}

#[tokio::test]
async fn only_administrators_say_who_may_reach_a_namespace() {
    let server = server().await;
    let open = |allowed: Value| {
        json!({
            "metadata": {"name": "shop"},
            "spec": {"isolation": "Private", "allowNamespaces": allowed},
        })
    };
    for token in [&server.deploy, &server.read] {
        let body = open(json!(["*"]));
        let (status, _) = server
            .send_json(token, Method::POST, NAMESPACES, &body)
            .await;
        assert_eq!(status, 403);
    }
    assert!(record(&server, "shop").access.is_closed());

    let set = async |body: Value| {
        let admin = &server.admin;
        server
            .send_json(admin, Method::POST, NAMESPACES, &body)
            .await
    };
    let (status, body) = set(open(json!(["ops", "later"]))).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["outcome"], "updated");
    let warning = body["warnings"][0].as_str().unwrap();
    assert!(
        warning.contains("there is no namespace `later`"),
        "{warning}"
    );
    assert_eq!(
        record(&server, "shop").access.allow_namespaces,
        ["ops", "later"]
    );
    let (status, shown) = server
        .get(&server.deploy, "/v1alpha1/namespaces/shop")
        .await;
    assert_eq!(
        (status, &shown["spec"]["allowNamespaces"]),
        (StatusCode::OK, &json!(["ops", "later"]))
    );
    assert_eq!(shown["spec"]["isolation"], "Private");
    let (_, events) = server
        .get(&server.admin, "/v1alpha1/events?namespace=shop")
        .await;
    assert!(
        events.to_string().contains("NamespaceAccessSet"),
        "{events}"
    );

    // Without `spec`, as in a file of labels alone, it stays.
    let labels = json!({"metadata": {"name": "shop", "labels": {"team": "a"}}});
    let (status, body) = set(labels).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(
        record(&server, "shop").access.allow_namespaces,
        ["ops", "later"]
    );
    for wrong in [
        json!({"metadata": {"name": "shop"}, "spec": {"ingressHosts": ["a b"]}}),
        json!({"metadata": {"name": "shop"}, "spec": {"isolation": "Open"}}),
        open(json!(["No Name"])),
        open(json!(
            (0..65).map(|one| format!("n{one}")).collect::<Vec<_>>()
        )),
    ] {
        let (status, body) = set(wrong.clone()).await;
        assert!(
            matches!(status.as_u16(), 400 | 422),
            "{wrong}: {status} {body}"
        );
    }
    let closed = json!({"metadata": {"name": "shop"}, "spec": {}});
    let (status, _) = set(closed).await;
    assert_eq!(status, 200);
    assert!(record(&server, "shop").access.is_closed());
}

#[tokio::test]
async fn an_apply_warns_of_an_allowed_namespace_that_does_not_exist() {
    let server = server().await;
    let balancer = "apiVersion: kat.dws.rip/v1alpha1\nkind: VirtualLoadBalancer\nspec:\n  allowNamespaces: [ops, later]\n";
    let workload = web("shop", "db", 1);
    let files = [
        ("workload.kat", workload.as_str()),
        ("VirtualLoadBalancer.kat", balancer),
    ];
    let (status, body) = server.put("shop", "db", &files).await;
    assert_eq!(status, 201, "{body}");
    let warnings = body["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1, "{body}");
    assert!(warnings[0].as_str().unwrap().contains("`later`"), "{body}");
}

#[tokio::test]
async fn the_cluster_isolates_when_every_kat_net_does() {
    let server = server().await;
    let (status, body) = isolate(&server, "Namespaces").await;
    assert_eq!(status, 409, "a machine that has not reported: {body}");
    report(&server, ENFORCING_DATA_PATH - 1, None);
    let (status, body) = isolate(&server, "Namespaces").await;
    assert_eq!(status, 409, "{body}");
    let message = body["message"].as_str().unwrap();
    assert!(message.ends_with("does not: n1"), "{message}");
    let (status, body) = isolate(&server, "Audit").await;
    assert_eq!(status, 200, "an audit refuses nothing: {body}");

    report(&server, ENFORCING_DATA_PATH, None);
    let (status, body) = isolate(&server, "Namespaces").await;
    assert_eq!(status, 200, "{body}");
    let change = &body["changes"][0];
    assert_eq!(
        (&change["before"], &change["after"]),
        (&json!("Audit"), &json!("Namespaces"))
    );
    // Once it does, a change of something else is not refused for a machine that does not.
    report(&server, ENFORCING_DATA_PATH - 1, None);
    let (status, body) = isolate(&server, "Namespaces\n  mtu: 1400").await;
    assert_eq!(status, 200, "{body}");
    let (_, view) = server.get(&server.read, ISOLATION).await;
    assert_eq!(view["mode"], "Namespaces");
    assert_eq!(view["machines"][0]["name"], "n1", "{view}");
    let mut state = IsolationReport {
        mode: Some(Isolation::Namespaces),
        ..IsolationReport::default()
    };
    report(&server, ENFORCING_DATA_PATH, Some(state.clone()));
    let (_, view) = server.get(&server.read, ISOLATION).await;
    assert_eq!(view["machines"], json!([]));
    state.problem = Some("nft: no memory".to_owned());
    report(&server, ENFORCING_DATA_PATH, Some(state));
    let (_, view) = server.get(&server.read, ISOLATION).await;
    assert_eq!(view["machines"][0]["message"], "nft: no memory", "{view}");
    let (status, body) = isolate(&server, "None").await;
    assert_eq!(status, 200, "{body}");
}

#[tokio::test]
async fn callers_see_the_refused_connections_of_their_namespace_that_a_machine_can_know_of() {
    let server = server().await;
    let shop = || end("shop", "web", "web-abcde");
    let log = || end("ops", "log", "log-aaaaa");
    let forged = [
        // Neither is an instance of n1.
        refused(
            end("ops", "log", "log-aaaaa"),
            end("shop", "web", "web-zzzzz"),
            1,
        ),
        // The instance of n1 is of another workload.
        refused(
            end("ops", "log", "web-abcde"),
            end("shop", "web", "web-zzzzz"),
            2,
        ),
        refused(shop(), end("ops", "secret-plan", "x"), 3),
        refused(shop(), end("shop", "web", "web-zzzzz"), 4),
    ];
    let mut all = vec![refused(shop(), log(), 80), refused(log(), shop(), 443)];
    all.extend(forged);
    let isolation = IsolationReport {
        mode: Some(Isolation::Audit),
        refused: all,
        ..IsolationReport::default()
    };
    report(&server, ENFORCING_DATA_PATH, Some(isolation));

    let ports = |view: &Value| {
        let refused = view["refused"].as_array().unwrap().iter();
        let mut ports: Vec<_> = refused.map(|one| one["port"].as_u64().unwrap()).collect();
        ports.sort_unstable();
        ports
    };
    let (status, view) = server.get(&server.admin, ISOLATION).await;
    assert_eq!(status, 200, "{view}");
    assert_eq!(ports(&view), [80, 443]);
    assert_eq!(
        view["machines"][0]["name"], "n1",
        "it audits, and the cluster does not"
    );
    assert_eq!(view["refused"][0]["machines"], json!(["n1"]));
    assert_eq!(view["refused"][0]["from"].get("instance"), None);

    let (status, _) = server.get(&server.deploy, ISOLATION).await;
    assert_eq!(status, 403);
    let of_ops = format!("{ISOLATION}?namespace=ops");
    let (status, _) = server.get(&server.deploy, &of_ops).await;
    assert_eq!(status, 403);
    let (status, view) = server
        .get(&server.deploy, &format!("{ISOLATION}?namespace=shop"))
        .await;
    assert_eq!((status, ports(&view)), (StatusCode::OK, vec![80, 443]));
    assert_eq!(view["machines"], json!([]), "machines are not a tenant's");
    let (_, view) = server
        .get(&server.read, &format!("{ISOLATION}?namespace=default"))
        .await;
    assert_eq!(ports(&view), [0_u64; 0]);
}
