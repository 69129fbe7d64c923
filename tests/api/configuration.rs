//! Changes of the cluster's configuration.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::support::{NODE_UID, Server, put, read, web};
use kat_types::{
    api::{FollowedConfiguration, NodeReport},
    resource::ClusterConfiguration,
    store::{configuration::ConfigurationRecord, keys},
};

const CONFIGURATION: &str = "/v1alpha1/config/cluster";
const REVISIONS: &str = "/v1alpha1/config/cluster/revisions";

/// A `cluster.kat` of the server's cluster with these lines in `spec`.
fn text(lines: &[&str]) -> String {
    let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
    format!(
        "apiVersion: kat.dws.rip/v1alpha1\nkind: ClusterConfiguration\nmetadata: {{name: kat}}\nspec:\n  clusterCIDR: 10.100.0.0/16\n  serviceCIDR: 10.200.0.0/16\n{lines}"
    )
}

async fn server() -> Server {
    let server = Server::start().await;
    let configuration = ClusterConfiguration::default();
    server
        .write(&[put(keys::CLUSTER.to_owned(), &configuration)])
        .await;
    server
}

async fn change(server: &Server, query: &str, text: String) -> (StatusCode, Value) {
    change_if(server, query, text, "*").await
}

async fn change_if(
    server: &Server,
    query: &str,
    text: String,
    if_match: &str,
) -> (StatusCode, Value) {
    let request = server
        .client(None)
        .put(server.url(&format!("{CONFIGURATION}{query}")))
        .bearer_auth(&server.admin)
        .header("content-type", "text/plain")
        .header("if-match", if_match)
        .body(text);
    read(request.send().await.unwrap()).await
}

fn stored<T: serde::de::DeserializeOwned>(server: &Server, key: &str) -> Option<T> {
    let found = server.store.peek(key).items;
    let found = found.into_iter().find(|entry| entry.key == key)?;
    Some(serde_json::from_slice(&found.value).unwrap())
}

/// The seconds by which leaders and machines go.
fn timeouts(server: &Server) -> (u32, u32) {
    let of_leaders: ClusterConfiguration = stored(server, keys::CLUSTER).unwrap();
    let wanted: ConfigurationRecord = stored(server, keys::WANTED_CONFIGURATION).unwrap();
    (
        of_leaders.spec.node_loss_timeout_seconds,
        wanted.configuration.spec.node_loss_timeout_seconds,
    )
}

fn report(server: &Server, followed: Option<FollowedConfiguration>) {
    let report = NodeReport {
        node_name: "n1".to_owned(),
        node_uid: NODE_UID.to_owned(),
        version: "0.1.0".to_owned(),
        configuration: followed,
        ..NodeReport::default()
    };
    let tick = Duration::from_secs(15);
    server.handle.reports.accept("n1", report, tick);
}

#[tokio::test]
async fn settings_are_changed_together_listed_and_taken_back() {
    let server = server().await;
    let before = server.stored();
    let wanted = text(&["agentTickSeconds: 20", "nodeLossTimeoutSeconds: 90"]);
    let (status, body) = change(&server, "?dryRun=true", wanted.clone()).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(
        (&body["dryRun"], &body["number"]),
        (&json!(true), &json!(2))
    );
    assert_eq!(server.stored(), before, "a dry run writes nothing");
    let (status, body) = change(&server, "", wanted.clone()).await;
    assert_eq!(status, 200, "{body}");
    let changes = body["changes"].as_array().unwrap().iter();
    let changes = changes.map(|one| {
        (
            one["setting"].clone(),
            one["before"].clone(),
            one["after"].clone(),
        )
    });
    assert_eq!(
        changes.collect::<Vec<_>>(),
        [
            (json!("agentTickSeconds"), json!("15"), json!("20")),
            (json!("nodeLossTimeoutSeconds"), json!("60"), json!("90")),
        ]
    );
    // A higher time holds for both at once, and no plan of before is written afterwards.
    assert_eq!(timeouts(&server), (90, 90));
    assert_eq!(server.store.peek(keys::PLANNED).items.len(), 1);
    let before = server.stored();
    let (_, body) = change(&server, "", wanted).await;
    assert_eq!(body["changes"], json!([]));
    assert_eq!(server.stored(), before, "the same settings change nothing");
    let (_, cluster) = server.get(&server.read, CONFIGURATION).await;
    assert_eq!(cluster["spec"]["agentTickSeconds"], 20);

    let (status, history) = server.get(&server.admin, REVISIONS).await;
    assert_eq!(status, 200, "{history}");
    let revisions = history["revisions"].as_array().unwrap();
    assert_eq!(revisions.len(), 2);
    assert_eq!(revisions[0]["madeBy"], "init");
    assert!(revisions[0].get("madeAt").is_none());
    assert!(revisions[1]["madeAt"].is_string());
    assert_eq!(revisions[1]["changes"].as_array().unwrap().len(), 2);
    // Back to the first: the lower time waits for the machines.
    let (status, body) = change(&server, "", text(&[])).await;
    assert_eq!(
        (status.as_u16(), &body["number"]),
        (200, &json!(3)),
        "{body}"
    );
    assert_eq!(timeouts(&server), (90, 60));
    let (_, history) = server.get(&server.admin, REVISIONS).await;
    assert_eq!(history["waiting"]["leadersSeconds"], 90);
    let machines = history["waiting"]["machines"].as_array().unwrap();
    assert!(machines.contains(&json!("n1")), "{history}");
    let events = server.get(&server.read, "/v1alpha1/events").await.1;
    let events = events["items"].as_array().unwrap().iter();
    let told = events.filter(|event| event["reason"] == "ConfigurationChanged");
    assert_eq!(told.count(), 2);
}

#[tokio::test]
async fn a_change_of_another_configuration_than_the_one_that_was_read_is_refused() {
    let server = server().await;
    let (_, history) = server.get(&server.admin, REVISIONS).await;
    let version = history["resourceVersion"].as_str().unwrap().to_owned();
    let first = change_if(&server, "", text(&["mtu: 1400"]), &version).await;
    assert_eq!(first.0, 200, "{}", first.1);
    let before = server.stored();
    let second = change_if(&server, "", text(&["mtu: 1380"]), &version).await;
    assert_eq!(second.0, 412, "{}", second.1);
    assert_eq!(server.stored(), before);
}

#[tokio::test]
async fn a_mistake_is_refused_with_its_place_and_what_cannot_change_with_the_cause() {
    let server = server().await;
    let before = server.stored();
    for (lines, path, part) in [
        (
            vec!["agentTickSeconds: 30"],
            "spec.agentTickSeconds",
            "at least three ticks",
        ),
        (vec!["mtu: 70"], "spec.mtu", "1280"),
        (vec!["nodeLossTimeout: 70"], "spec.nodeLossTimeout", ""),
        (vec!["apiPort: 9000"], "spec.apiPort", "since init"),
        (
            vec!["volumeBasePath: /srv/kat"],
            "spec.volumeBasePath",
            "the data of volumes lies there",
        ),
    ] {
        let (status, body) = change(&server, "", text(&lines)).await;
        assert_eq!(status, 400, "{body}");
        let detail = &body["details"][0];
        assert_eq!(detail["path"], path, "{body}");
        assert_eq!(detail["file"], "cluster.kat");
        assert!(detail["line"].as_u64().unwrap() > 0, "{body}");
        assert!(body["message"].as_str().unwrap().contains(part), "{body}");
    }
    assert_eq!(server.stored(), before);
    let refused = server
        .client(None)
        .put(server.url(CONFIGURATION))
        .bearer_auth(&server.read)
        .header("content-type", "text/plain")
        .body(text(&["mtu: 1400"]));
    assert_eq!(refused.send().await.unwrap().status(), 403);
    assert_eq!(server.get(&server.read, REVISIONS).await.0, 403);
    let json = json!({"spec": {"mtu": 1400}});
    let (status, _) = server
        .send_json(&server.admin, Method::PUT, CONFIGURATION, &json)
        .await;
    assert_eq!(status, 415);
    assert_eq!(server.stored(), before);
}

#[tokio::test]
async fn a_machine_of_an_earlier_version_is_named_where_it_would_not_follow() {
    let server = server().await;
    report(&server, None);
    for line in [
        "agentTickSeconds: 5",
        "nodeLossTimeoutSeconds: 90",
        "mtu: 1400",
    ] {
        let (status, body) = change(&server, "", text(&[line])).await;
        assert_eq!(status, 409, "{body}");
        let message = body["message"].as_str().unwrap();
        assert!(message.contains("n1 (0.1.0)"), "{message}");
    }
    let (status, body) = change(&server, "", text(&["backupRetention: 7"])).await;
    assert_eq!(status, 200, "leaders of all versions follow: {body}");
    report(&server, Some(FollowedConfiguration::default()));
    let lines = ["backupRetention: 7", "mtu: 1400"];
    let (status, body) = change(&server, "", text(&lines)).await;
    assert_eq!(status, 200, "{body}");
}

#[tokio::test]
async fn a_time_in_which_a_program_may_not_have_ended_is_refused_with_its_workload() {
    let server = server().await;
    let workload = web("shop", "web", 1).replacen("spec:\n", "spec:\n  onPartition: stop\n", 1);
    let (status, body) = server
        .put("shop", "web", &[("workload.kat", &workload)])
        .await;
    assert_eq!(status, 201, "{body}");
    let lines = ["agentTickSeconds: 3", "nodeLossTimeoutSeconds: 10"];
    let (status, body) = change(&server, "", text(&lines)).await;
    assert_eq!(status, 409, "{body}");
    let message = body["message"].as_str().unwrap();
    assert!(message.contains("shop/web"), "{message}");
    // An apply is checked with the time of the machines, also while leaders have a higher one.
    let (status, _) = change(&server, "", text(&["nodeLossTimeoutSeconds: 600"])).await;
    assert_eq!(status, 200);
    let (status, _) = change(&server, "", text(&[])).await;
    assert_eq!(status, 200);
    assert_eq!(timeouts(&server), (600, 60));
    let slow = workload.replacen(
        "  container:\n",
        "  container:\n    terminationGraceSeconds: 60\n",
        1,
    );
    let (status, body) = server.put("shop", "web", &[("workload.kat", &slow)]).await;
    assert_eq!(status, 400, "{body}");
    let message = body["message"].as_str().unwrap();
    assert!(
        message.contains("nodeLossTimeoutSeconds, which is 60"),
        "{message}"
    );
}

#[tokio::test]
async fn the_last_twenty_configurations_before_the_present_one_are_kept() {
    let server = server().await;
    for number in 1..=25 {
        let line = format!("backupRetention: {}", number + 100);
        let (status, body) = change(&server, "", text(&[&line])).await;
        assert_eq!(status, 200, "{body}");
    }
    let (_, history) = server.get(&server.admin, REVISIONS).await;
    let numbers = history["revisions"].as_array().unwrap().iter();
    let numbers: Vec<_> = numbers.map(|one| one["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (6..=26).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_ingress_is_refused_while_a_workload_has_a_port_that_stored_routes_need() {
    let server = server().await;
    let off = text(&["ingress: {enabled: false}"]);
    let (status, body) = change(&server, "", off).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let put = async |name: &str, spec: &str| {
        let main = web("shop", name, 1);
        let balancer =
            format!("apiVersion: kat.dws.rip/v1alpha1\nkind: VirtualLoadBalancer\nspec: {spec}\n");
        let files = [
            ("workload.kat", main.as_str()),
            ("VirtualLoadBalancer.kat", balancer.as_str()),
        ];
        let (status, body) = server.put("shop", name, &files).await;
        assert!(status.is_success(), "{body}");
    };
    // Without an ingress port 443 is like any other.
    let route = "{ports: [{containerPort: 8080}], ingress: [{host: a.lan, servicePort: 8080}]}";
    put("web", route).await;
    put("port", "{ports: [{containerPort: 8080, hostPort: 443}]}").await;
    let on = text(&["ingress: {enabled: true}"]);
    for query in ["?dryRun=true", ""] {
        let (status, body) = change(&server, query, on.clone()).await;
        assert_eq!(status, StatusCode::CONFLICT, "{body}");
        let said = body["message"].as_str().unwrap();
        assert!(
            said.contains("port 443") && said.contains("shop/port"),
            "{said}"
        );
    }
    put("port", "{ports: [{containerPort: 8080}]}").await;
    let claims = |server: &Server| server.store.peek(keys::INGRESS_CLAIMS).items[0].mod_revision;
    let before = claims(&server);
    let (status, body) = change(&server, "", on).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    // An apply that was decided before it is decided again.
    assert!(claims(&server) > before);
    server.stop().await;
}
