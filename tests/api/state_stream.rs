//! The state stream over TLS: from a member, and through a machine that forwards it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::stream;
use reqwest::{Method, StatusCode};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::support::{CLUSTER_UID, DEADLINE, Server, key_hash, node_kind, put, registration};
use kat_api::{
    ApiConfig, ApiLimits, ApiListeners, InstanceLogs, InstanceSessions, OwnRoute, StateRoute,
    TlsListener, random_uid, serve,
};
use kat_client::{Client, ClientError, ClientOptions, StateConnection};
use kat_daemon::watchdog::LoopPulses;
use kat_leader::LeaderHandle;
use kat_pki::{
    ApiServers, CertificateKeyPair, KnownServer, KnownServers, LeafKind, machine_server_name,
    state_server_name, tls,
};
use kat_store::{StateFeed, StateFrames, StateSource, StateSourceError, StateStore, follow_source};
use kat_testing::state_stream::{ServingStore, conforms, wait_for};
use kat_types::{
    encoding::state_frames::{StateEndReason, StateFrame, StatePosition},
    store::{
        keys,
        members::{ClusterMembers, MemberRecord},
        records::NodeRegistration,
        transaction::WriteOperation,
    },
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
        let config = tls::server_config(
            Arc::clone(&server.identity),
            tls::CurrentTrust::new(authority).unwrap(),
        )
        .unwrap();
        let own = tls::server_config(
            tls::CurrentIdentity::new(&server.node_leaf("n1"), authority).unwrap(),
            tls::CurrentTrust::new(authority).unwrap(),
        )
        .unwrap();
        TlsListener {
            listener,
            config: Arc::new(move || Arc::clone(&config)),
            leader: Arc::new(leader),
            stands_in: false,
            state_route: Some(StateRoute {
                server_name: state_server_name(CLUSTER_UID),
                members: Arc::new(members),
            }),
            own_route: Some(OwnRoute {
                server_name: machine_server_name(CLUSTER_UID),
                config: Arc::new(move || Arc::clone(&own)),
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
        relay: None,
    };
    tokio::spawn(serve(config, listeners, cancel.clone()));
    addresses
}

/// A reader with this certificate that accepts `n1` with this key.
fn client(server: &Server, address: &str, own: &CertificateKeyPair, member_key: &str) -> Client {
    let authority = server.authority.certificate_pem();
    let identity = tls::CurrentIdentity::new(own, authority).unwrap();
    let member = KnownServer {
        is_member: true,
        node_key: None,
        api_key: Some(member_key.to_owned()),
    };
    let servers = ApiServers::KnownOnly(KnownServers {
        machines: [("n1".to_owned(), member)].into(),
        api_name_required: true,
    });
    let config = tls::client_config(authority, CLUSTER_UID, Some(identity), servers).unwrap();
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
        Arc::new(HttpSource(client(
            &server,
            &address,
            &own,
            &server.api_key(),
        )))
    };
    conforms(&make).await;
}

#[tokio::test]
async fn the_stream_through_another_machine_conforms() {
    let server = Server::start().await;
    let own = server.node_leaf("n1");
    let make = |serving: &ServingStore| -> Arc<dyn StateSource> {
        let [_, address] = listen(&server, &serving.feed, &serving.cancel);
        Arc::new(HttpSource(client(
            &server,
            &address,
            &own,
            &server.api_key(),
        )))
    };
    conforms(&make).await;
}

/// Neither the leader nor a machine with the stream is there for its connections.
#[tokio::test]
async fn a_machine_proves_that_it_is_up_whoever_leads() {
    let server = Server::start().await;
    let serving = ServingStore::start(&server.store);
    let addresses = listen(&server, &serving.feed, &serving.cancel);
    let authority = server.authority.certificate_pem();
    let connect = async |address: &str, name: &str| {
        let machine = tls::KnownMachine {
            name: name.to_owned(),
            key_hash: None,
        };
        let config = tls::machine_client_config(authority, machine).unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from(machine_server_name(CLUSTER_UID)).unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let connected = timeout(DEADLINE, connector.connect(name, stream)).await;
        let mut stream = connected.unwrap()?;
        // It serves nothing on such a connection.
        let mut rest = Vec::new();
        let ended = timeout(DEADLINE, stream.read_to_end(&mut rest)).await;
        ended.unwrap()
    };
    for address in &addresses {
        assert_eq!(connect(address, "n1").await.unwrap(), 0);
        assert!(connect(address, "n2").await.is_err());
    }
    serving.cancel.cancel();
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
        let member = self.server.api_key();
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
    let member = server.api_key();
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
    let member = server.api_key();
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
    let member = scene.server.api_key();
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
    let member = scene.server.api_key();
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
    let member = scene.server.api_key();
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

/// Eight readers that take nothing keep the others from their lists for ten seconds, and no longer.
#[tokio::test]
async fn a_reader_that_takes_nothing_for_ten_seconds_loses_its_stream() {
    let scene = scene().await;
    let server = &scene.server;
    let names: Vec<_> = (2..=10).map(|number| format!("n{number}")).collect();
    for name in &names {
        let known = NodeRegistration {
            identity_key: key_hash(&server.node_leaf(name)),
            uid: format!("uid-of-{name}"),
            ..registration()
        };
        server
            .store
            .write_now(&[put(keys::registration(name), &known)]);
    }
    // More than a connection takes that is not read.
    for number in 0..24 {
        let key = keys::service_balance("default", &format!("s{number}"));
        server.store.write_now(&[put(key, &"x".repeat(1_000_000))]);
    }
    let revision = server.store.revision();
    assert!(server.handle.wait_for_revision(revision, DEADLINE).await);
    let member = server.api_key();
    let client_of = |name: &str| client(server, &scene.address, &server.node_leaf(name), &member);
    let [stalled @ .., last] = names.as_slice() else {
        panic!("no names");
    };
    let mut unread = Vec::new();
    let mut opened_at = Instant::now();
    for name in stalled {
        let mut opened = client_of(name).state_stream(name, None).await.unwrap();
        let first = opened.next().await.unwrap();
        assert!(
            matches!(first, Some(StateFrame::Begin(_))),
            "{name}: {first:?}"
        );
        unread.push(opened);
        opened_at = Instant::now();
    }
    let ninth = client_of(last);
    let mut refused = 0;
    let served = timeout(3 * DEADLINE, async {
        loop {
            let mut opened = ninth.state_stream(last, None).await.unwrap();
            match opened.next().await.unwrap() {
                Some(StateFrame::Begin(begin)) => {
                    return (begin.keys, read_commit(&mut opened).await.len());
                }
                Some(StateFrame::End(end)) => {
                    assert_eq!(end.reason, StateEndReason::Busy);
                    refused += 1;
                    sleep(Duration::from_millis(end.retry_after_ms)).await;
                }
                other => panic!("{other:?}"),
            }
        }
    });
    let (expected, listed) = served.await.expect("the others keep their turns");
    assert_eq!(listed, expected);
    assert!(refused > 0, "the ninth had its turn at once");
    // To read again would be progress for the others.
    sleep_until(opened_at + Duration::from_secs(12)).await;
    for mut opened in unread {
        let ended = timeout(DEADLINE, async {
            while let Ok(Some(frame)) = opened.next().await {
                let whole = matches!(frame, StateFrame::Commit(_));
                assert!(!whole, "the list was sent whole");
            }
        });
        ended.await.expect("the stream is still open");
    }
    scene.serving.cancel.cancel();
}

/// A member without a vote serves no stream, and names those that have one.
#[tokio::test]
async fn a_member_without_a_vote_serves_no_stream() {
    let scene = scene().await;
    let server = &scene.server;
    let key = server.api_key();
    let second = client(server, &scene.address, &server.node_leaf("n2"), &key);
    for (voting, expected) in [(false, Some(503)), (true, None)] {
        let member = |voting| MemberRecord {
            voting,
            ..MemberRecord::default()
        };
        let members = ClusterMembers {
            schema: 1,
            members: [("n1", voting), ("n2", true), ("n3", true), ("n4", false)]
                .map(|(name, voting)| (name.to_owned(), member(voting)))
                .into(),
            ..ClusterMembers::default()
        };
        server
            .store
            .write_now(&[put(keys::MEMBERS.to_owned(), &members)]);
        let revision = server.store.revision();
        assert!(server.handle.wait_for_revision(revision, DEADLINE).await);
        match second.state_stream("n2", None).await {
            Ok(_) => assert_eq!(expected, None),
            Err(error) => {
                assert_eq!(error.status(), expected, "{error}");
                let text = error.to_string();
                assert!(text.contains("served by n2, n3"), "{text}");
            }
        }
    }
    scene.serving.cancel.cancel();
}

/// What happens to the bytes of the server on one connection.
enum LineFault {
    /// Nothing passes any more once this is set, and the connection stays.
    Silent(Arc<AtomicBool>),
    /// The connection ends after so many bytes.
    EndsAfter(usize),
    /// So many bytes pass in a second.
    BytesPerSecond(usize),
}

/// A line to a server. Its connections have faults, in their order; later connections have none.
struct Line {
    address: String,
    connections: Arc<AtomicUsize>,
}

impl Line {
    async fn to(server: &str, faults: Vec<LineFault>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server: SocketAddr = server.parse().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            let mut faults = faults.into_iter();
            while let Ok((reader, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                // The server finds out that the line is slow.
                let socket = TcpSocket::new_v4().unwrap();
                socket.set_recv_buffer_size(16 << 10).unwrap();
                let server = socket.connect(server).await.unwrap();
                tokio::spawn(forward(reader, server, faults.next()));
            }
        });
        Self {
            address,
            connections,
        }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn forward(reader: TcpStream, server: TcpStream, fault: Option<LineFault>) {
    let (mut from_reader, mut to_reader) = reader.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let back = async {
        let (mut passed, mut piece) = (0, vec![0; 4096]);
        while let Ok(read) = from_server.read(&mut piece).await
            && read > 0
        {
            passed += read;
            match &fault {
                Some(LineFault::Silent(from)) if from.load(Ordering::Relaxed) => {
                    std::future::pending().await
                }
                Some(LineFault::EndsAfter(most)) if passed > *most => return,
                Some(LineFault::BytesPerSecond(rate)) => {
                    let micros = 1_000_000 * read / rate;
                    sleep(Duration::from_micros(u64::try_from(micros).unwrap())).await;
                }
                _ => {}
            }
            if to_reader.write_all(&piece[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = tokio::io::copy(&mut from_reader, &mut to_server) => {}
        () = back => {}
    }
}

/// A source with a connection of its own for each stream, as on a machine.
struct LineSource {
    server: Server,
    address: String,
}

#[async_trait]
impl StateSource for LineSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let own = self.server.node_leaf("n2");
        let member = self.server.api_key();
        let opened = client(&self.server, &self.address, &own, &member)
            .state_stream("n2", resume)
            .await
            .map_err(|error| StateSourceError::Unreachable(error.to_string()))?;
        let frames = stream::unfold(Some(opened), |opened| async move {
            let mut opened = opened?;
            match opened.next().await {
                Ok(frame) => frame.map(|frame| (Ok(frame), Some(opened))),
                Err(error) => Some((Err(StateSourceError::Broken(error.to_string())), None)),
            }
        });
        Ok(Box::pin(frames))
    }
}

#[tokio::test]
async fn a_half_open_line_is_left_for_another_connection() {
    let Scene {
        server,
        serving,
        address,
    } = scene().await;
    let store = server.store.clone();
    store.write_now(&[put(keys::desired_meta("n2"), &"first")]);
    let silent = Arc::new(AtomicBool::new(false));
    let line = Line::to(&address, vec![LineFault::Silent(Arc::clone(&silent))]).await;
    let source = LineSource {
        server,
        address: line.address.clone(),
    };
    let mirror = follow_source(Arc::new(source), serving.cancel.clone());
    wait_for(&mirror, |state| state.confirmed).await;
    assert_eq!(line.connections(), 1);
    silent.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    store.write_now(&[put(keys::desired_instance("n2", "a"), &"later")]);
    wait_for(&mirror, |state| !state.confirmed).await;
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
    let state = wait_for(&mirror, |state| state.confirmed).await;
    assert!(state.get(&keys::desired_instance("n2", "a")).is_some());
    assert_eq!(line.connections(), 2);
    serving.cancel.cancel();
}

#[tokio::test]
async fn a_server_that_dies_in_the_middle_of_a_list_leaves_no_part_of_it() {
    let Scene {
        server,
        serving,
        address,
    } = scene().await;
    // 1.2 MB.
    for part in many(120, &"x".repeat(10_000)).chunks(60) {
        server.store.write_now(part);
    }
    let faults = [100_000, 700_000].map(LineFault::EndsAfter);
    let line = Line::to(&address, faults.into()).await;
    let source = LineSource {
        server,
        address: line.address.clone(),
    };
    let mirror = follow_source(Arc::new(source), serving.cancel.clone());
    let own = keys::desired_instance("n2", "");
    let state = wait_for(&mirror, |state| {
        let listed = state.below(&own).count();
        assert!(listed == 0 || listed == 120, "{listed} of 120 keys show");
        state.confirmed
    })
    .await;
    assert_eq!(state.below(&own).count(), 120);
    assert_eq!(line.connections(), 3);
    serving.cancel.cancel();
}

/// The server and the reader count progress, not whole frames.
#[tokio::test]
async fn a_value_that_takes_longer_than_ten_seconds_arrives_on_its_first_connection() {
    let Scene {
        server,
        serving,
        address,
    } = scene().await;
    let store = server.store.clone();
    let line = Line::to(&address, vec![LineFault::BytesPerSecond(80_000)]).await;
    let source = LineSource {
        server,
        address: line.address.clone(),
    };
    let mirror = follow_source(Arc::new(source), serving.cancel.clone());
    wait_for(&mirror, |state| state.confirmed).await;
    let begun = Instant::now();
    let large = keys::desired_instance("n2", "large");
    store.write_now(&[put(large.clone(), &"x".repeat(1_100_000))]);
    wait_for(&mirror, |state| state.get(&large).is_some()).await;
    assert!(
        begun.elapsed() > Duration::from_secs(11),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(line.connections(), 1);
    serving.cancel.cancel();
}
