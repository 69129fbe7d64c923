//! Sessions with instances: data passes in both directions, and permissions are checked.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use reqwest::Method;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::support::{CLUSTER_UID, DEADLINE, Server, key_hash, put, registration, with_instance};
use kat_api::{ApiLimits, SessionRequest};
use kat_client::{Client, ClientOptions, SessionOutput};
use kat_pki::{ApiServers, CertificateKeyPair, LeafKind, ServerMemory};
use kat_types::{
    api::{Connection, ExecRequest, LogQuery, MemberKeys},
    encoding::frames::{InputFrame, MOST, OutputFrame, TerminalSize},
    store::{keys, records::NodeRegistration, transaction::WriteOperation},
};

fn client(server: &Server, token: &str, port: u16) -> Client {
    let connection = Connection {
        cluster: "test".to_owned(),
        cluster_uid: CLUSTER_UID.to_owned(),
        endpoints: vec![format!("127.0.0.1:{port}")],
        ca: server.authority.certificate_pem().to_owned(),
        token: token.to_owned(),
        namespace: None,
        api_name_required: true,
    };
    Client::from_connection(&connection, ClientOptions::default()).unwrap()
}

/// A client with a certificate instead of a token.
fn client_with(server: &Server, leaf: &CertificateKeyPair) -> Client {
    Client::of_machine(
        &[format!("127.0.0.1:{}", server.port)],
        CLUSTER_UID,
        server.authority.certificate_pem(),
        Some(&format!("{}{}", leaf.certificate_pem, leaf.key_pem)),
        &ApiServers::Named(ServerMemory::new(true)),
        ClientOptions {
            retry_for: Duration::ZERO,
            ..ClientOptions::default()
        },
    )
    .unwrap()
}

fn request(command: &[&str]) -> ExecRequest {
    ExecRequest {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        stdin: true,
        terminal: Some(TerminalSize {
            rows: 24,
            columns: 80,
        }),
        term: "xterm".to_owned(),
        container: None,
    }
}

async fn next(receiving: &mut SessionOutput) -> OutputFrame {
    let next = timeout(DEADLINE, receiving.next()).await;
    next.expect("the session says nothing").unwrap()
}

async fn none_open(server: &Server) {
    let deadline = Instant::now() + DEADLINE;
    while server.echo.open.load(Ordering::SeqCst) > 0 {
        assert!(Instant::now() < deadline, "a session is still open");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A complete session with its exit code, one whose caller disconnects, and one that is refused.
pub(super) async fn talks(client: &Client, server: &Server) {
    let words = ["/bin/sh", "-c", "echo \"a&b=c\" \u{1F600}", ""];
    let (sending, mut receiving) = client
        .exec("shop", "web", "web-abcde", &request(&words))
        .await
        .unwrap();
    assert_eq!(
        next(&mut receiving).await,
        OutputFrame::Error("web-abcde".into())
    );
    let begun = server.echo.begun.lock().pop().unwrap();
    assert_eq!(begun, SessionRequest::Exec(request(&words)));
    assert!(sending.send(&InputFrame::Data("hello".into())).await);
    assert_eq!(
        next(&mut receiving).await,
        OutputFrame::Data("hello".into())
    );
    // Answers arrive before the input ends.
    let size = TerminalSize {
        rows: 50,
        columns: 100,
    };
    assert!(sending.send(&InputFrame::Resize(size)).await);
    assert_eq!(
        next(&mut receiving).await,
        OutputFrame::Error("50x100".into())
    );
    let large = Bytes::from(vec![7; MOST * 3]);
    let said = InputFrame::Data(large.clone());
    let saying = sending.send(&said);
    let hearing = async {
        let mut heard = Vec::new();
        while heard.len() < large.len() {
            match next(&mut receiving).await {
                OutputFrame::Data(data) => heard.extend_from_slice(&data),
                other => panic!("{other:?}"),
            }
        }
        heard
    };
    let (_, heard) = tokio::join!(saying, hearing);
    assert_eq!(heard, large);
    sending.send(&InputFrame::End).await;
    assert_eq!(next(&mut receiving).await, OutputFrame::Exit(7));
    none_open(server).await;

    // The session ends when its caller disconnects.
    let (sending, mut receiving) = client
        .forward("shop", "web", "web-abcde", 80)
        .await
        .unwrap();
    next(&mut receiving).await;
    assert_eq!(server.echo.open.load(Ordering::SeqCst), 1);
    drop((sending, receiving));
    none_open(server).await;

    let refused = client.forward("shop", "web", "web-abcde", 81).await;
    assert_eq!(refused.unwrap_err().status(), Some(409));
    let missing = client.forward("shop", "web", "web-zzzzz", 80).await;
    assert_eq!(missing.unwrap_err().status(), Some(404));
}

#[tokio::test]
async fn a_session_says_both_ways_through_every_door() {
    let server = Server::start().await;
    with_instance(&server).await;
    talks(&client(&server, &server.deploy, server.port), &server).await;
    // A machine that is not the leader passes the TLS connection on without opening it.
    talks(
        &client(&server, &server.admin, server.passing_port),
        &server,
    )
    .await;
    let socket = server.socket("admin.sock");
    let local = Client::from_unix_socket(&socket, ClientOptions::default()).unwrap();
    talks(&local, &server).await;
}

#[tokio::test]
async fn who_only_reads_has_no_sessions() {
    let server = Server::start().await;
    with_instance(&server).await;
    let reader = client(&server, &server.read, server.port);
    let refused = reader
        .exec("shop", "web", "web-abcde", &request(&["id"]))
        .await;
    assert_eq!(refused.unwrap_err().status(), Some(403));
    let refused = reader.forward("shop", "web", "web-abcde", 80).await;
    assert_eq!(refused.unwrap_err().status(), Some(403));
    let admin = client(&server, &server.admin, server.port);
    let empty = admin.exec("shop", "web", "web-abcde", &request(&[])).await;
    assert_eq!(empty.unwrap_err().status(), Some(400));
    assert_eq!(server.echo.begun.lock().len(), 0);
}

#[tokio::test]
async fn a_session_ends_with_its_token() {
    let server = Server::start_with(ApiLimits {
        bookmark_interval: Duration::from_millis(100),
        ..ApiLimits::default()
    })
    .await;
    with_instance(&server).await;
    let request_token = json!({"scope": {"kind": "deploy", "namespace": "shop"}, "name": "short"});
    let (_, made) = server
        .send_json(
            &server.admin,
            Method::POST,
            "/v1alpha1/tokens",
            &request_token,
        )
        .await;
    let short = client(&server, made["token"].as_str().unwrap(), server.port);
    let command = request(&["sh"]);
    let begun = short.exec("shop", "web", "web-abcde", &command);
    let (_sending, mut receiving) = begun.await.unwrap();
    next(&mut receiving).await;
    let path = format!("/v1alpha1/tokens/{}", made["id"].as_str().unwrap());
    server.call(&server.admin, Method::DELETE, &path).await;
    let OutputFrame::Failed(body) = next(&mut receiving).await else {
        panic!("it goes on");
    };
    assert_eq!(body.error, "Unauthorized");
    none_open(&server).await;
}

/// Who copied the administrator's key of a member keeps nothing when that member leaves.
#[tokio::test]
async fn a_session_and_a_followed_log_end_with_the_machine_of_their_certificate() {
    let server = Server::start_with(ApiLimits {
        bookmark_interval: Duration::from_millis(100),
        ..ApiLimits::default()
    })
    .await;
    with_instance(&server).await;
    let second = LeafKind::Admin {
        name: "n2".to_owned(),
    };
    let leaf = server.leaf(&second);
    let registered = NodeRegistration {
        identity_key: key_hash(&server.node_leaf("n2")),
        member_keys: MemberKeys {
            leader: key_hash(&server.node_leaf("n2")),
            admin: key_hash(&leaf),
            api: String::new(),
        },
        ..registration()
    };
    let key = keys::registration("n2");
    server.write(&[put(key.clone(), &registered)]).await;
    let member = client_with(&server, &leaf);
    // The control: an administrator of a machine that stays.
    let name = "n1".to_owned();
    let staying = client_with(&server, &server.leaf(&LeafKind::Admin { name }));
    let command = request(&["sh"]);
    let begin = |client: &Client| {
        let (client, command) = (client.clone(), command.clone());
        async move { client.exec("shop", "web", "web-abcde", &command).await }
    };
    let (_sending, mut ending) = begin(&member).await.unwrap();
    let (sending, mut going_on) = begin(&staying).await.unwrap();
    next(&mut ending).await;
    next(&mut going_on).await;
    let follow = LogQuery {
        follow: true,
        ..LogQuery::default()
    };
    let lines = member.logs("shop", "web", "web-abcde", &follow).await;
    let mut lines = lines.unwrap();
    for _ in 0..3 {
        lines.next().await.unwrap().unwrap();
    }

    server.write(&[WriteOperation::Delete(key)]).await;
    let OutputFrame::Failed(body) = next(&mut ending).await else {
        panic!("it goes on");
    };
    assert_eq!(body.error, "Unauthorized");
    let last = timeout(DEADLINE, lines.next()).await.unwrap();
    let last = last.unwrap().expect("a reason");
    let error = last.error.expect("the log goes on");
    assert_eq!(error.error, "Unauthorized");
    let end = timeout(DEADLINE, lines.next()).await.unwrap();
    assert!(!matches!(end, Ok(Some(_))), "{end:?}");
    let refused = begin(&member).await.map(drop).unwrap_err();
    assert_eq!(refused.status(), Some(401), "{refused}");
    sending.send(&InputFrame::Data("still here".into())).await;
    assert_eq!(
        next(&mut going_on).await,
        OutputFrame::Data("still here".into())
    );
    begin(&staying).await.unwrap();
}

/// A session that reads nothing does not block other sessions on the same connection.
#[tokio::test]
async fn sessions_do_not_wait_for_one_another() {
    let server = Server::start().await;
    with_instance(&server).await;
    let client = Arc::new(client(&server, &server.admin, server.port));
    let mut stuck = Vec::new();
    for _ in 0..8 {
        let (sending, receiving) = client
            .forward("shop", "web", "web-abcde", 80)
            .await
            .unwrap();
        let filling = tokio::spawn(async move {
            let full = InputFrame::Data(vec![1; MOST].into());
            while sending.send(&full).await {}
        });
        stuck.push((receiving, filling));
    }
    // The pause is long enough for all buffers to fill.
    sleep(Duration::from_millis(300)).await;
    let (sending, mut receiving) = client
        .forward("shop", "web", "web-abcde", 80)
        .await
        .unwrap();
    sending.send(&InputFrame::Data("still here".into())).await;
    next(&mut receiving).await;
    assert_eq!(
        next(&mut receiving).await,
        OutputFrame::Data("still here".into())
    );
    for (receiving, filling) in stuck {
        filling.abort();
        drop(receiving);
    }
}

#[tokio::test]
async fn a_namespace_is_counted_on_all_its_machines_and_nothing_else_is() {
    let server = Server::start().await;
    with_instance(&server).await;
    let path = "/v1alpha1/n/shop/usage";
    for token in [&server.deploy, &server.read, &server.admin] {
        let (status, body) = server.get(token, path).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["away"], json!([]));
        let found = body["instances"].as_array().unwrap();
        let ids: Vec<_> = found.iter().map(|one| &one["instance"]).collect();
        assert_eq!(ids, ["web-abcde"]);
    }
    *server.echo.away.lock() = Some("can't be reached".to_owned());
    let (status, body) = server.get(&server.deploy, path).await;
    assert_eq!(status, 200, "{body}");
    let away = json!([{"node": "n1", "message": "the machine `n1` can't be reached"}]);
    assert_eq!(body, json!({"instances": [], "away": away}));
    for (token, namespace, wanted) in [
        (&server.deploy, "default", 403),
        (&server.admin, "default", 200),
        (&server.admin, "none", 404),
    ] {
        let path = format!("/v1alpha1/n/{namespace}/usage");
        assert_eq!(server.get(token, &path).await.0, wanted, "{namespace}");
    }
    server.stop().await;
}

/// Watches, logs and sessions share one limit for each caller.
#[tokio::test]
async fn one_caller_takes_no_more_than_its_part_of_the_streams() {
    let server = Server::start_with(ApiLimits {
        streams: 4,
        streams_of_one_caller: 2,
        ..ApiLimits::default()
    })
    .await;
    with_instance(&server).await;
    let deploy = client(&server, &server.deploy, server.port);
    let forward = |client: &Client| {
        let client = client.clone();
        async move { client.forward("shop", "web", "web-abcde", 80).await }
    };
    let first = forward(&deploy).await.unwrap();
    let second = forward(&deploy).await.unwrap();
    let refused = forward(&deploy).await.unwrap_err();
    assert_eq!(refused.status(), Some(429));
    let id = server.echo.callers.lock()[0].clone().unwrap();
    assert!(id.starts_with("token:"), "{id}");
    let words = refused.to_string();
    assert!(words.contains(&format!("`{id}` has 2 streams")), "{words}");
    assert!(refused.hint().unwrap().contains("end some of them"));
    let watch = "/v1alpha1/n/shop/workloads?watch=true";
    let logs = "/v1alpha1/n/shop/workloads/web/instances/web-abcde/logs?follow=true";
    for path in [watch, logs] {
        let refused = server.call(&server.deploy, Method::GET, path).await;
        assert_eq!(refused.status(), 429, "{path}");
        assert!(refused.headers().contains_key("retry-after"));
    }
    // Other requests still work, and other callers have their own limit.
    let (status, _) = server
        .get(&server.deploy, "/v1alpha1/n/shop/workloads")
        .await;
    assert_eq!(status, 200);
    let others = [
        server.call(&server.read, Method::GET, watch).await,
        server.call(&server.read, Method::GET, logs).await,
    ];
    assert!(others.iter().all(|one| one.status() == 200));
    let refused = server.call(&server.admin, Method::GET, watch).await;
    assert_eq!(refused.status(), 429, "all of them are taken");
    drop((first, second));
    none_open(&server).await;
    let deadline = Instant::now() + DEADLINE;
    while forward(&deploy).await.is_err() {
        assert!(Instant::now() < deadline, "its part is not free again");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Its copy of the tokens may be out of date, so it only answers reads.
#[tokio::test]
async fn a_machine_that_does_not_lead_begins_no_session() {
    let server = Server::start().await;
    with_instance(&server).await;
    server.leaderships.send_replace(None);
    let instance = "/v1alpha1/n/shop/workloads/web/instances/web-abcde";
    // The encoded request is `{"command":["true"]}`.
    let exec = "exec?request=%7B%22command%22%3A%5B%22true%22%5D%7D";
    for what in [exec, "forward?port=80"] {
        let path = format!("{instance}/{what}");
        let refused = server.call(&server.admin, Method::POST, &path).await;
        assert_eq!(refused.status(), 503, "{what}");
    }
    assert_eq!(server.echo.callers.lock().len(), 0, "nothing was begun");
    // The control: reads are answered.
    let logs = format!("{instance}/logs");
    assert_eq!(server.get(&server.admin, &logs).await.0, 200);
}
