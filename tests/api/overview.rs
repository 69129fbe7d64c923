//! The overview: who may read it, what is in it, and what a machine without the store makes of it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::support::{
    LinesOf, Server, key_hash, node_kind, put, read, registration, web, with_instance,
};
use kat_api::OverviewRelay;
use kat_client::{Client, ClientOptions};
use kat_pki::CertificateKeyPair;
use kat_types::{
    api::{
        ApiTime, AskedServer, ClusterOverview, Condition, Event, NodePhase, ObjectKind,
        ObjectReference, OverviewRelayState, Taint,
    },
    reason::Reason,
    resource::TaintEffect,
    store::{
        keys,
        records::{NodeRegistration, NodeStatusRecord},
        transaction::WriteOperation,
    },
};

const OVERVIEW: &str = "/v1alpha1/overview";

/// Registers a worker and returns its certificate.
async fn with_worker(server: &Server, name: &str) -> CertificateKeyPair {
    let leaf = server.node_leaf(name);
    let worker = NodeRegistration {
        uid: format!("uid-{name}"),
        identity_key: key_hash(&leaf),
        etcd: false,
        advertise: vec!["192.0.2.4".parse().unwrap()],
        ..registration()
    };
    server
        .write(&[put(keys::registration(name), &worker)])
        .await;
    leaf
}

async fn by_certificate(server: &Server, leaf: &CertificateKeyPair) -> (StatusCode, Value) {
    let client = server.client(Some(leaf));
    read(client.get(server.url(OVERVIEW)).send().await.unwrap()).await
}

#[tokio::test]
async fn the_overview_is_for_readers_of_the_cluster_and_for_each_machine_by_its_own_key() {
    let server = Server::start().await;
    let worker = with_worker(&server, "n4").await;
    for token in [&server.admin, &server.read] {
        let (status, body) = server.get(token, OVERVIEW).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["leader"], "n1", "{body}");
    }
    // The control: this certificate reads it, and nothing else.
    let (status, body) = by_certificate(&server, &worker).await;
    assert_eq!(status, 200, "{body}");
    let client = server.client(Some(&worker));
    for path in [
        "/v1alpha1/nodes",
        "/v1alpha1/nodes/n1",
        "/v1alpha1/workloads",
    ] {
        let refused = client.get(server.url(path)).send().await.unwrap();
        assert_eq!(refused.status(), 403, "{path}");
    }

    let (status, body) = server.get(&server.deploy, OVERVIEW).await;
    assert_eq!(status, 403, "{body}");
    assert_eq!(
        server.get(&server.deploy, "/v1alpha1/nodes").await.0,
        403,
        "a deploy token reads no more of machines than before"
    );
    assert_eq!(server.get("", OVERVIEW).await.0, 401);
    // A certificate of the same name for another key, and a machine that nobody registered.
    let other = server
        .authority
        .issue(&node_kind("n4"), jiff::Timestamp::now());
    let (status, body) = by_certificate(&server, &other.unwrap()).await;
    assert_eq!(status, 401, "{body}");
    assert_eq!(
        by_certificate(&server, &server.node_leaf("n5")).await.0,
        401
    );
    // The machine is removed.
    let gone = WriteOperation::Delete(keys::registration("n4"));
    server.write(&[gone]).await;
    let (status, body) = by_certificate(&server, &worker).await;
    assert_eq!(status, 401, "{body}");
}

#[tokio::test]
async fn the_overview_has_no_text_that_somebody_wrote() {
    let server = Server::start().await;
    let leaf = server.node_leaf("n1");
    let labelled = NodeRegistration {
        identity_key: key_hash(&leaf),
        labels: [("marker-label".to_owned(), "marker-value".to_owned())].into(),
        taints: vec![Taint {
            key: "marker-taint".to_owned(),
            value: String::new(),
            effect: TaintEffect::NoSchedule,
        }],
        ..registration()
    };
    let condition = Condition {
        kind: "marker-condition".to_owned(),
        message: "marker-condition-message".to_owned(),
        ..Condition::default()
    };
    let status = NodeStatusRecord {
        phase: NodePhase::NotReady,
        reason: Reason::NoHeartbeat.into(),
        message: "marker-message".to_owned(),
        version: "0.2.0".to_owned(),
        conditions: vec![condition],
        ..NodeStatusRecord::default()
    };
    let event = Event {
        id: "1".to_owned(),
        reason: "marker-event".to_owned(),
        message: "marker-event-message".to_owned(),
        involved_object: ObjectReference {
            kind: ObjectKind::Node,
            name: "n1".to_owned(),
            namespace: String::new(),
            uid: String::new(),
        },
        ..Event::default()
    };
    let foreign = NodeStatusRecord {
        reason: "marker-reason".to_owned(),
        version: "1 marker-version".to_owned(),
        ..NodeStatusRecord::default()
    };
    with_instance(&server).await;
    with_worker(&server, "n4").await;
    server
        .write(&[
            put(keys::registration("n1"), &labelled),
            put(keys::node_status("n1"), &status),
            put(keys::node_status("n4"), &foreign),
            put(keys::event("1"), &event),
        ])
        .await;
    // Each marker, and where an administrator finds it: else the search below would prove nothing.
    let markers = [
        ("/v1alpha1/nodes", "marker-label"),
        ("/v1alpha1/nodes", "marker-value"),
        ("/v1alpha1/nodes", "marker-taint"),
        ("/v1alpha1/nodes", "marker-condition"),
        ("/v1alpha1/nodes", "marker-condition-message"),
        ("/v1alpha1/nodes", "marker-message"),
        ("/v1alpha1/nodes", "marker-reason"),
        ("/v1alpha1/nodes", "marker-version"),
        ("/v1alpha1/events", "marker-event"),
        ("/v1alpha1/events", "marker-event-message"),
        ("/v1alpha1/instances", "web-abcde"),
        ("/v1alpha1/workloads", "shop"),
        ("/v1alpha1/workloads", "\"web\""),
    ];
    let (code, overview) = server.get(&server.admin, OVERVIEW).await;
    assert_eq!(code, 200);
    let text = overview.to_string();
    for (path, marker) in markers {
        let (_, answer) = server.get(&server.admin, path).await;
        assert!(answer.to_string().contains(marker), "{marker} in {answer}");
        assert!(!text.contains(marker), "{marker} in {text}");
    }
    let n1 = &overview["nodes"][0];
    assert_eq!(
        (&n1["name"], &n1["phase"], &n1["reason"], &n1["version"]),
        (
            &json!("n1"),
            &json!("NotReady"),
            &json!("NoHeartbeat"),
            &json!("0.2.0")
        )
    );
    let n4 = &overview["nodes"][1];
    assert_eq!((&n4["reason"], &n4["version"]), (&json!(""), &json!("")));
    assert_eq!(n4["endpoints"], json!(["192.0.2.4:9115"]));
    assert_eq!(n4["roles"], json!(["worker"]));
}

#[tokio::test]
async fn the_overview_counts_the_stores_members_and_says_when_nobody_leads() {
    let server = Server::start().await;
    let member = |voting, healthy| json!({"id": "1", "voting": voting, "healthy": healthy});
    let with = async |members: Value| {
        let members = json!({"schema": 1, "members": members});
        server
            .write(&[put(keys::MEMBERS.to_owned(), &members)])
            .await;
        server.get(&server.read, OVERVIEW).await.1
    };
    let whole = with(json!({
        "n1": member(true, true), "n2": member(true, true), "n3": member(true, false),
        "n4": member(false, true),
    }))
    .await;
    assert_eq!(
        whole["store"],
        json!({"members": 4, "voting": 3, "healthy": 3, "quorum": true, "reasons": []})
    );
    let half = with(json!({"n1": member(true, true), "n2": member(true, false)})).await;
    assert_eq!(half["store"]["quorum"], false, "{half}");
    // The leadership ends, and this member stands in for a leader that it does not reach.
    server.leaderships.send_replace(None);
    let (_, alone) = server.get(&server.read, OVERVIEW).await;
    assert_eq!(alone["stale"], true, "{alone}");
    assert!(alone.get("leader").is_none(), "{alone}");
    assert!(alone["store"].get("quorum").is_none(), "{alone}");
    assert!(!alone.to_string().contains("leader"), "{alone}");
}

/// What a machine without the store has of the overview.
struct Kept {
    overview: Mutex<ClusterOverview>,
    reads: AtomicUsize,
    following: Arc<AtomicUsize>,
}

struct Following(Arc<AtomicUsize>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl OverviewRelay for Kept {
    async fn read(&self) -> ClusterOverview {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.overview.lock().clone()
    }

    fn follow(&self) -> Box<dyn Send + Sync> {
        self.following.fetch_add(1, Ordering::SeqCst);
        Box::new(Following(Arc::clone(&self.following)))
    }
}

fn kept() -> Arc<Kept> {
    let relay = OverviewRelayState {
        node: "n4".to_owned(),
        asked: vec![AskedServer {
            name: "n1".to_owned(),
            endpoints: vec!["192.0.2.1:9115".to_owned()],
            error: String::new(),
        }],
        ..OverviewRelayState::default()
    };
    Arc::new(Kept {
        overview: Mutex::new(ClusterOverview {
            cluster: "home".to_owned(),
            relay: Some(relay),
            ..ClusterOverview::default()
        }),
        reads: AtomicUsize::default(),
        following: Arc::default(),
    })
}

#[tokio::test]
async fn a_machine_without_the_store_passes_the_overview_on_and_says_where_to_ask_for_the_rest() {
    let kept = kept();
    let server = Server::start_relaying(Arc::clone(&kept) as Arc<dyn OverviewRelay>).await;
    let client = |name: &str| {
        let client = Client::from_unix_socket(&server.socket(name), ClientOptions::default());
        client.unwrap().trying_once()
    };
    let local = client("machine.sock");
    let overview = local.overview().await.unwrap();
    assert_eq!(overview.cluster, "home");
    assert_eq!(
        overview.relay.map(|relay| relay.node).as_deref(),
        Some("n4")
    );
    assert_eq!(kept.reads.load(Ordering::SeqCst), 1);
    // The snapshot has the machines of the overview, and all of them are listed.
    with_worker(&server, "n5").await;
    assert_eq!(local.nodes().await.unwrap().items.len(), 2);
    local.node("n5").await.unwrap();
    assert!(!local.saw_stale());

    let refused = local.workloads(None).await.unwrap_err();
    assert_eq!(refused.status(), Some(403));
    let (text, hint) = (refused.to_string(), refused.hint().unwrap());
    assert!(
        text.contains("this machine (n4) does not hold the cluster's store"),
        "{text}"
    );
    assert!(!text.contains("answers"), "{text}");
    assert!(hint.contains("ask on n1 (192.0.2.1)"), "{hint}");
    assert!(hint.contains("KAT_SERVER"), "{hint}");
    let since = ApiTime::parse("2026-11-22T03:41:00Z");
    kept.overview.lock().relay.as_mut().unwrap().silent_since = Some(since);
    let text = local.workloads(None).await.unwrap_err().to_string();
    assert!(
        text.contains("answers since 2026-11-22T03:41:00Z, asked n1 (192.0.2.1:9115)"),
        "{text}"
    );
    local.nodes().await.unwrap();
    assert!(!local.saw_stale(), "the machines themselves say it");

    // A member answered that reaches no leader.
    {
        let mut overview = kept.overview.lock();
        overview.stale = true;
        overview.relay.as_mut().unwrap().silent_since = None;
    }
    local.nodes().await.unwrap();
    assert!(local.saw_stale());
    // An administrator of this test's API sees its own store, and causes no reads.
    let before = kept.reads.load(Ordering::SeqCst);
    let admin = client("admin.sock");
    assert_eq!(admin.overview().await.unwrap().relay, None);
    admin.nodes().await.unwrap();
    admin.workloads(None).await.unwrap();
    assert_eq!(kept.reads.load(Ordering::SeqCst), before);
    server.stop().await;
}

#[tokio::test]
async fn a_watch_of_machines_keeps_the_overview_read_until_it_ends() {
    let kept = kept();
    let server = Server::start_relaying(Arc::clone(&kept) as Arc<dyn OverviewRelay>).await;
    let client = reqwest::Client::builder()
        .unix_socket(server.socket("machine.sock"))
        .build()
        .unwrap();
    let watch = client.get("http://localhost/v1alpha1/nodes?watch=true");
    let mut lines = LinesOf::new(watch.send().await.unwrap());
    assert_eq!(
        lines.next().await.unwrap()["object"]["metadata"]["name"],
        "n1"
    );
    assert_eq!(kept.following.load(Ordering::SeqCst), 1);
    drop(lines);
    drop(client);
    let ended = async {
        while kept.following.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(super::support::DEADLINE, ended)
        .await
        .unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_hundred_machines_fit_into_a_short_answer() {
    let server = Server::start().await;
    let worker = |number: u8| NodeRegistration {
        uid: format!("uid-{number}"),
        identity_key: format!("{number:064x}"),
        etcd: false,
        advertise: vec![std::net::Ipv4Addr::new(192, 0, 2, number).into()],
        ..registration()
    };
    for number in 2..=120 {
        let key = keys::registration(&format!("machine-{number}"));
        server.store.write_now(&[put(key, &worker(number))]);
    }
    server
        .put("shop", "web", &[("workload.kat", &web("shop", "web", 1))])
        .await;
    let answer = server.call(&server.read, Method::GET, OVERVIEW).await;
    let text = answer.text().await.unwrap();
    let overview: ClusterOverview = serde_json::from_str(&text).unwrap();
    assert_eq!(overview.nodes.len(), 120);
    assert!(text.len() < 64 << 10, "{} bytes", text.len());
}
