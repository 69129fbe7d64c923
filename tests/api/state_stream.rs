//! The state stream over TLS: from a member, and through a machine that forwards it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::stream;
use reqwest::{Method, StatusCode};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;

use super::support::{CLUSTER_UID, DEADLINE, Server, key_hash, node_kind, put, registration};
use kat_api::{
    ApiConfig, ApiLimits, ApiListeners, InstanceLogs, InstanceSessions, StateRoute, TlsListener,
    random_uid, serve,
};
use kat_client::{Client, ClientError, ClientOptions, StateConnection};
use kat_daemon::watchdog::LoopPulses;
use kat_leader::LeaderHandle;
use kat_pki::{CertificateKeyPair, LeafKind, state_server_name, tls};
use kat_store::{StateFeed, StateFrames, StateSource, StateSourceError, StateStore};
use kat_testing::state_stream::{ServingStore, conforms};
use kat_types::{
    encoding::state_frames::{StateEndReason, StateFrame, StatePosition},
    store::{keys, records::NodeRegistration, transaction::WriteOperation},
};

/// Serves the stream of this feed on a free port, and forwards its connections on another one.
/// Returns both addresses.
fn listen(server: &Server, feed: &StateFeed, cancel: &CancellationToken) -> [String; 2] {
    let bind = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        TcpListener::from_std(listener).unwrap()
    };
    let (serving, forwarding) = (bind(), bind());
    let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    let addresses = [address(&serving), address(&forwarding)];
    let listener = |listener, leader: Vec<String>, members: Vec<String>| {
        let authority = server.authority.certificate_pem();
        let config = tls::server_config(Arc::clone(&server.identity), authority).unwrap();
        TlsListener {
            listener,
            config: Arc::new(move || Arc::clone(&config)),
            leader: Arc::new(leader),
            stands_in: false,
            state_route: Some(StateRoute {
                server_name: state_server_name(CLUSTER_UID),
                members: Arc::new(members),
            }),
        }
    };
    // Nobody listens at this leader's port: a connection that went there would fail.
    let nowhere = vec![SocketAddr::from(([127, 0, 0, 1], 9)).to_string()];
    let listeners = ApiListeners {
        tls: vec![
            listener(serving, nowhere.clone(), Vec::new()),
            listener(forwarding, nowhere, vec![addresses[0].clone()]),
        ],
        sockets: Vec::new(),
    };
    let config = ApiConfig {
        handle: LeaderHandle {
            feed: Some(feed.clone()),
            ..server.handle.clone()
        },
        logs: Arc::clone(&server.logs) as Arc<dyn InstanceLogs>,
        sessions: Arc::clone(&server.echo) as Arc<dyn InstanceSessions>,
        clock: Arc::new(jiff::Timestamp::now),
        new_uid: Arc::new(random_uid),
        node_name: "n1".to_owned(),
        limits: ApiLimits::default(),
        pulses: LoopPulses::default(),
        joining: None,
        images: None,
    };
    tokio::spawn(serve(config, listeners, cancel.clone()));
    addresses
}

/// A reader with this certificate that accepts `n1` with this key.
fn client(server: &Server, address: &str, own: &CertificateKeyPair, member_key: &str) -> Client {
    let authority = server.authority.certificate_pem();
    let identity = tls::CurrentIdentity::new(own, authority).unwrap();
    let member = tls::KnownMachine {
        name: "n1".to_owned(),
        key_hash: Some(member_key.to_owned()),
    };
    let config = tls::state_client_config(authority, CLUSTER_UID, identity, vec![member]).unwrap();
    let options = ClientOptions {
        retry_for: Duration::ZERO,
        unreachable_for: Duration::ZERO,
        ..ClientOptions::default()
    };
    let name = state_server_name(CLUSTER_UID);
    Client::of_state_server(address, &name, config, options).unwrap()
}

struct HttpSource(Client);

#[async_trait]
impl StateSource for HttpSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let opened = self.0.state_stream("n1", resume).await;
        let opened = opened.map_err(|error| StateSourceError::Unreachable(error.to_string()))?;
        let frames = stream::unfold(opened, |mut opened| async move {
            match opened.next().await {
                Ok(frame) => frame.map(|frame| (Ok(frame), opened)),
                Err(error) => Some((Err(StateSourceError::Broken(error.to_string())), opened)),
            }
        });
        Ok(Box::pin(frames))
    }
}

#[tokio::test]
async fn the_stream_conforms() {
    let server = Server::start().await;
    let own = server.node_leaf("n1");
    let make = |serving: &ServingStore| -> Arc<dyn StateSource> {
        let [address, _] = listen(&server, &serving.feed, &serving.cancel);
        Arc::new(HttpSource(client(&server, &address, &own, &key_hash(&own))))
    };
    conforms(&make).await;
}

#[tokio::test]
async fn the_stream_through_another_machine_conforms() {
    let server = Server::start().await;
    let own = server.node_leaf("n1");
    let make = |serving: &ServingStore| -> Arc<dyn StateSource> {
        let [_, address] = listen(&server, &serving.feed, &serving.cancel);
        Arc::new(HttpSource(client(&server, &address, &own, &key_hash(&own))))
    };
    conforms(&make).await;
}

struct Scene {
    server: Server,
    serving: ServingStore,
    address: String,
}

/// A server with the machines n1 and n2, and the stream of its store.
async fn scene() -> Scene {
    let server = Server::start().await;
    let second = NodeRegistration {
        identity_key: key_hash(&server.node_leaf("n2")),
        uid: "node-uid-2".to_owned(),
        ..registration()
    };
    server
        .store
        .write_now(&[put(keys::registration("n2"), &second)]);
    let revision = server.store.revision();
    assert!(server.handle.wait_for_revision(revision, DEADLINE).await);
    let serving = ServingStore::start(&server.store);
    let [address, _] = listen(&server, &serving.feed, &serving.cancel);
    Scene {
        server,
        serving,
        address,
    }
}

impl Scene {
    async fn refused(&self, own: &CertificateKeyPair, node: &str) -> u16 {
        let member = key_hash(&self.server.node_leaf("n1"));
        let client = client(&self.server, &self.address, own, &member);
        let opened = timeout(DEADLINE, client.state_stream(node, None))
            .await
            .unwrap();
        opened.unwrap_err().status().unwrap()
    }
}

#[tokio::test]
async fn a_stream_is_opened_by_its_own_machine_alone() {
    let scene = scene().await;
    let server = &scene.server;
    let second = server.node_leaf("n2");
    let member = key_hash(&server.node_leaf("n1"));
    let own = client(server, &scene.address, &second, &member);
    let mut opened = own.state_stream("n2", None).await.unwrap();
    let first = opened.next().await.unwrap();
    assert!(matches!(first, Some(StateFrame::Begin(_))), "{first:?}");
    // Another machine's stream, a machine's other certificates, and a machine that has left.
    assert_eq!(scene.refused(&second, "n1").await, 403);
    let leader = server.leaf(&LeafKind::Leader {
        name: "n1".to_owned(),
    });
    assert_eq!(scene.refused(&leader, "n1").await, 403);
    let admin = server.leaf(&LeafKind::Admin {
        name: "n1".to_owned(),
    });
    assert_eq!(scene.refused(&admin, "n1").await, 403);
    assert_eq!(scene.refused(&server.node_leaf("n9"), "n9").await, 401);
    // Another key under a known name.
    let forged = server
        .authority
        .issue(&node_kind("n2"), jiff::Timestamp::now())
        .unwrap();
    assert_eq!(scene.refused(&forged, "n2").await, 401);
    // No token reads a stream, on the port of the API either.
    let path = "/v1alpha1/nodes/n2/state";
    for token in ["", &server.admin, &server.read] {
        let answer = server.call(token, Method::GET, path).await;
        let expected = match token {
            "" => StatusCode::UNAUTHORIZED,
            _ => StatusCode::FORBIDDEN,
        };
        assert_eq!(answer.status(), expected);
    }
    scene.serving.cancel.cancel();
}

#[tokio::test]
async fn the_stream_of_a_machine_that_leaves_ends() {
    let scene = scene().await;
    let server = &scene.server;
    let member = key_hash(&server.node_leaf("n1"));
    let own = client(server, &scene.address, &server.node_leaf("n2"), &member);
    let mut opened = own.state_stream("n2", None).await.unwrap();
    while !matches!(opened.next().await.unwrap(), Some(StateFrame::Beat(_))) {}
    let gone = WriteOperation::Delete(keys::registration("n2"));
    server.store.transact(&[], &[gone]).await.unwrap();
    let ended = timeout(DEADLINE, async {
        while matches!(opened.next().await, Ok(Some(_))) {}
    });
    ended.await.expect("the stream goes on");
    scene.serving.cancel.cancel();
}

#[tokio::test]
async fn a_reader_accepts_only_the_key_of_a_member() {
    let scene = scene().await;
    let own = scene.server.node_leaf("n2");
    let wrong = key_hash(&own);
    let client = client(&scene.server, &scene.address, &own, &wrong);
    let error = client.state_stream("n2", None).await.unwrap_err();
    assert!(
        matches!(error, ClientError::Unreachable { .. }),
        "{error:?}"
    );
    scene.serving.cancel.cancel();
}

/// Puts of this value under many keys of n2's own.
fn many(count: usize, value: &str) -> Vec<WriteOperation> {
    let keys = (0..count).map(|number| keys::desired_instance("n2", &format!("i{number:03}")));
    keys.map(|key| put(key, &value)).collect()
}

/// Reads up to the next commit and returns the keys that were put.
async fn read_commit(opened: &mut StateConnection) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        match timeout(DEADLINE, opened.next()).await.unwrap().unwrap() {
            Some(StateFrame::Put(item)) => found.push(item.key),
            Some(StateFrame::Commit(_)) if !found.is_empty() => return found,
            Some(_) => {}
            None => panic!("the stream ended"),
        }
    }
}

#[tokio::test]
async fn a_large_list_and_a_large_change_arrive_whole() {
    let scene = scene().await;
    let store = &scene.server.store;
    // 1.2 MB: many pieces of the answer, and values that are longer than a frame.
    for part in many(120, &"x".repeat(10_000)).chunks(60) {
        store.write_now(part);
    }
    store.write_now(&[put(
        keys::desired_instance("n2", "large"),
        &"y".repeat(100_000),
    )]);
    let member = key_hash(&scene.server.node_leaf("n1"));
    let own = scene.server.node_leaf("n2");
    let own = client(&scene.server, &scene.address, &own, &member);
    let mut opened = own.state_stream("n2", None).await.unwrap();
    let Some(StateFrame::Begin(begin)) = opened.next().await.unwrap() else {
        panic!("no list");
    };
    assert_eq!(read_commit(&mut opened).await.len(), begin.keys);
    for round in 0..5 {
        store.write_now(&many(120, &round.to_string().repeat(5_000)));
        assert_eq!(read_commit(&mut opened).await.len(), 120, "round {round}");
    }
    scene.serving.cancel.cancel();
}

#[tokio::test]
async fn a_stream_that_the_server_ends_ends_in_order() {
    let scene = scene().await;
    let member = key_hash(&scene.server.node_leaf("n1"));
    let own = scene.server.node_leaf("n2");
    let own = client(&scene.server, &scene.address, &own, &member);
    let mut older = own.state_stream("n2", None).await.unwrap();
    while !matches!(older.next().await.unwrap(), Some(StateFrame::Beat(_))) {}
    let _newer = own.state_stream("n2", None).await.unwrap();
    let ended = timeout(DEADLINE, async {
        loop {
            if let Some(StateFrame::End(end)) = older.next().await.unwrap() {
                return end;
            }
        }
    });
    assert_eq!(ended.await.unwrap().reason, StateEndReason::Replaced);
    assert_eq!(older.next().await.unwrap(), None);
    scene.serving.cancel.cancel();
}

/// Every key that exists is asked for: a machine gets those that it may see, and no other.
#[tokio::test]
async fn no_key_of_others_is_in_a_stream() {
    let scene = scene().await;
    let store = &scene.server.store;
    store.write_now(&[
        put(keys::desired_meta("n1"), &"own"),
        put(keys::desired_meta("n2"), &"own"),
        put(keys::desired_instance("n2", "web-abcde"), &"own"),
        put(keys::secret("default/password"), &"sealed"),
        put(keys::volume("default/db/data"), &"volume"),
        put(keys::service_balance("default", "web"), &"shared"),
        put(keys::host_ports("default", "web"), &"hidden"),
    ]);
    let member = key_hash(&scene.server.node_leaf("n1"));
    let own = client(
        &scene.server,
        &scene.address,
        &scene.server.node_leaf("n2"),
        &member,
    );
    let mut opened = own.state_stream("n2", None).await.unwrap();
    let mut found = Vec::new();
    loop {
        match timeout(DEADLINE, opened.next()).await.unwrap().unwrap() {
            Some(StateFrame::Put(item)) => found.push(item.key),
            Some(StateFrame::Commit(_)) => break,
            Some(_) => {}
            None => panic!("the stream ended"),
        }
    }
    found.sort();
    let all = store.peek(keys::ROOT).items;
    assert!(all.len() > found.len() + 5);
    let mut expected = vec![
        keys::CLUSTER_UID.to_owned(),
        keys::LEADER_ENDPOINT.to_owned(),
        keys::service_balance("default", "web"),
        keys::desired_instance("n2", "web-abcde"),
        keys::desired_meta("n2"),
    ];
    expected.sort();
    assert_eq!(found, expected);
    scene.serving.cancel.cancel();
}
