//! The port of a machine's agent, which only a leader and, for volumes, other machines may use.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::support::{Server, issue_node, key_hash};
use kat_api::{AgentPort, ApiError, ApiLimits, CopyStream, VolumeCopies, serve_agent};
use kat_client::{Client, ClientError, ClientOptions};
use kat_daemon::watchdog::LoopPulses;
use kat_pki::{CertificateKeyPair, LeafKind, PeerIdentity, tls};
use kat_types::{
    api::LogQuery,
    store::{revisions::Stored, snapshot::InstanceEntry},
};

/// The agent of machine n1, with one instance.
struct Agent {
    endpoint: String,
    /// Whether machine n2 has been removed from the cluster.
    removed: Arc<AtomicBool>,
    cancel: CancellationToken,
    running: JoinHandle<()>,
}

/// Sends one volume, to one machine and for one move.
struct Copies;

impl VolumeCopies for Copies {
    fn open(&self, machine: &str, volume: &str, id: &str) -> Result<CopyStream, ApiError> {
        if (machine, volume, id) != ("n2", "shop/web/data.1", "move-1") {
            return Err(ApiError::Forbidden {
                message: format!("{volume} is not for {machine}"),
                hint: None,
            });
        }
        let pieces = ["one ", "two"].map(|piece| axum::body::Bytes::from_static(piece.as_bytes()));
        Ok(Box::pin(futures_util::stream::iter(pieces)))
    }
}

impl Agent {
    async fn start(server: &Server) -> Self {
        let assignment = super::support::assignment();
        let assignment = Arc::new(serde_json::from_value(assignment).unwrap());
        let listener = kat_api::bind_overlay(Ipv4Addr::LOCALHOST, 0).unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let authority = server.authority.certificate_pem();
        let config = tls::agent_server_config(
            Arc::clone(&server.agent_identity),
            tls::CurrentTrust::new(authority).unwrap(),
        )
        .unwrap();
        let entry = InstanceEntry {
            node: "n1".to_owned(),
            created_revision: 1,
            assignment: Stored {
                revision: 1,
                value: assignment,
            },
        };
        let found = entry.clone();
        let removed = Arc::new(AtomicBool::new(false));
        let gone = Arc::clone(&removed);
        let port = AgentPort {
            listener,
            config: Arc::new(move || Arc::clone(&config)),
            knows: Arc::new(move |certificate| match &certificate.identity {
                PeerIdentity::Node(_) => true,
                PeerIdentity::Leader(name) => name == "n2" && !gone.load(Ordering::SeqCst),
                PeerIdentity::Admin(_) => false,
            }),
            find: Arc::new(move |id| (id == "web-abcde").then(|| found.clone())),
            all: Arc::new(move || vec![entry.clone()]),
            logs: Arc::clone(&server.logs) as _,
            sessions: Arc::clone(&server.echo) as _,
            copies: Arc::new(Copies),
            limits: ApiLimits::default(),
            pulses: LoopPulses::default(),
        };
        let cancel = CancellationToken::new();
        let running = tokio::spawn(serve_agent(port, cancel.clone()));
        Self {
            endpoint,
            removed,
            cancel,
            running,
        }
    }

    /// A client with certificate `leaf` that expects the agent of machine `node`.
    fn client(&self, server: &Server, leaf: &CertificateKeyPair, node: &str) -> Client {
        let authority = server.authority.certificate_pem();
        let identity = tls::CurrentIdentity::new(leaf, authority).unwrap();
        // The agent's certificate is that of n1.
        let machine = tls::KnownMachine {
            name: node.to_owned(),
            key_hash: Some(key_hash(&server.node_leaf("n1"))),
        };
        let config = tls::agent_client_config(authority, identity, machine).unwrap();
        let options = ClientOptions {
            retry_for: Duration::ZERO,
            unreachable_for: Duration::ZERO,
            ..ClientOptions::default()
        };
        Client::of_agent(&self.endpoint, config, options).unwrap()
    }
}

fn leader(server: &Server, name: &str) -> CertificateKeyPair {
    let name = name.to_owned();
    server.leaf(&LeafKind::Leader { name })
}

async fn logs(client: &Client, workload: &str, id: &str) -> Result<Vec<String>, ClientError> {
    let query = LogQuery {
        tail: Some(7),
        ..LogQuery::default()
    };
    let mut lines = client.logs("shop", workload, id, &query).await?;
    let mut found = Vec::new();
    while let Some(line) = lines.next().await? {
        found.push(line.message);
    }
    Ok(found)
}

#[tokio::test]
async fn a_machine_that_may_lead_reads_logs_and_nobody_else_does() {
    let server = Server::start().await;
    let agent = Agent::start(&server).await;
    let client = agent.client(&server, &leader(&server, "n2"), "n1");
    let lines = logs(&client, "web", "web-abcde").await.unwrap();
    let expected = ["web-abcde line 0", "web-abcde line 1", "web-abcde line 2"];
    assert_eq!(lines, expected);
    assert_eq!(server.logs.asked.lock().pop().unwrap().tail, Some(7));

    // The agent does not look for an instance that it does not have under this workload.
    for (workload, id) in [("web", "web-zzzzz"), ("db", "web-abcde")] {
        let error = logs(&client, workload, id).await.unwrap_err();
        assert_eq!(error.status(), Some(404), "{error}");
    }
    // n3 used to be a member of etcd.
    let former = agent.client(&server, &leader(&server, "n3"), "n1");
    let error = logs(&former, "web", "web-abcde").await.unwrap_err();
    assert_eq!(error.status(), Some(403), "{error}");
    // Other certificates of the same authority fail before the first request.
    let name = "n2".to_owned();
    let other = agent.client(&server, &server.leaf(&LeafKind::Admin { name }), "n1");
    let error = logs(&other, "web", "web-abcde").await.unwrap_err();
    assert_eq!(error.status(), None, "{error}");
    // A machine's own certificate, even a member's, is only good for volumes.
    let machine = agent.client(&server, &server.node_leaf("n2"), "n1");
    let error = logs(&machine, "web", "web-abcde").await.unwrap_err();
    assert_eq!(error.status(), Some(403), "{error}");
    let plain = server.client(None);
    let url = format!("https://{}/v1alpha1/nodes", agent.endpoint);
    assert!(plain.get(url).send().await.is_err());
    // A machine cannot pose as another, and an earlier machine cannot pose as the one that now has
    // its name.
    let earlier = issue_node(&server.authority, "n1", jiff::Timestamp::now());
    server
        .agent_identity
        .replace(&earlier, server.authority.certificate_pem())
        .unwrap();
    let meant = agent.client(&server, &leader(&server, "n2"), "n1");
    let error = logs(&meant, "web", "web-abcde").await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    let own = server.node_leaf("n1");
    server
        .agent_identity
        .replace(&own, server.authority.certificate_pem())
        .unwrap();
    let meant = agent.client(&server, &leader(&server, "n2"), "n4");
    let error = logs(&meant, "web", "web-abcde").await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    assert_eq!(server.logs.asked.lock().len(), 0);
}

#[tokio::test]
async fn every_call_leaves_a_line_that_of_a_refused_machine_too() {
    let written = super::authentication::Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    // A test's runtime has one thread, so this subscriber also receives the agent's lines.
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Server::start().await;
    let agent = Agent::start(&server).await;
    let may = agent.client(&server, &leader(&server, "n2"), "n1");
    let named = may.for_caller(Some("token:a"));
    assert!(named.forward("shop", "web", "web-abcde", 81).await.is_err());
    let former = agent.client(&server, &leader(&server, "n3"), "n1");
    assert!(
        former
            .forward("shop", "web", "web-abcde", 80)
            .await
            .is_err()
    );
    let text = String::from_utf8(written.0.lock().clone()).unwrap();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.contains(" audit: "))
        .collect();
    assert_eq!(lines.len(), 2, "{text}");
    for (line, end) in lines.iter().zip([
        "/forward 409 by leader:n2 for token:a on the agent's port",
        "/forward 403 by leader:n3, which may not lead, on the agent's port",
    ]) {
        assert!(line.ends_with(end), "{line}");
    }
}

/// The output of sessions through the agent's port, and their end with their caller.
#[tokio::test]
async fn sessions_go_through_the_agents_port() {
    let server = Server::start().await;
    let agent = Agent::start(&server).await;
    let client = agent.client(&server, &leader(&server, "n2"), "n1");
    super::sessions::talks(&client, &server).await;
    // The agent is told the caller's name.
    let callers = || std::mem::take(&mut *server.echo.callers.lock());
    assert_eq!(callers(), [None, None]);
    let named = client.for_caller(Some("token:a"));
    let begun = named.forward("shop", "web", "web-abcde", 80).await;
    assert!(begun.is_ok());
    assert_eq!(callers(), [Some("token:a".to_owned())]);
    let other = agent.client(&server, &server.node_leaf("n2"), "n1");
    let refused = other.forward("shop", "web", "web-abcde", 80).await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn a_stream_ends_with_the_agent() {
    let server = Server::start().await;
    let agent = Agent::start(&server).await;
    let client = agent.client(&server, &leader(&server, "n2"), "n1");
    let query = LogQuery {
        follow: true,
        ..LogQuery::default()
    };
    let mut lines = client
        .logs("shop", "web", "web-abcde", &query)
        .await
        .unwrap();
    for _ in 0..3 {
        lines.next().await.unwrap().unwrap();
    }
    agent.cancel.cancel();
    assert!(!matches!(lines.next().await, Ok(Some(_))));
    agent.running.await.unwrap();
}

#[tokio::test]
async fn a_stream_ends_within_a_second_when_its_leaders_machine_is_out_of_the_cluster() {
    let server = Server::start().await;
    let agent = Agent::start(&server).await;
    let client = agent.client(&server, &leader(&server, "n2"), "n1");
    let query = LogQuery {
        follow: true,
        ..LogQuery::default()
    };
    let mut lines = client
        .logs("shop", "web", "web-abcde", &query)
        .await
        .unwrap();
    for _ in 0..3 {
        lines.next().await.unwrap().unwrap();
    }
    agent.removed.store(true, Ordering::SeqCst);
    let next = tokio::time::timeout(Duration::from_secs(1), lines.next()).await;
    assert!(!matches!(next.unwrap(), Ok(Some(_))));
    let refused = logs(&client, "web", "web-abcde").await.unwrap_err();
    assert_eq!(refused.status(), Some(403), "{refused}");
}

#[tokio::test]
async fn a_volume_goes_to_the_machine_that_is_to_have_it_and_to_nobody_else() {
    let server = Server::start().await;
    let agent = Agent::start(&server).await;
    let machine = |name: &str| agent.client(&server, &server.node_leaf(name), "n1");
    let client = machine("n2");
    let mut pieces = client
        .copy_of_volume("shop", "web", "data.1", "move-1")
        .await
        .unwrap();
    let mut text = Vec::new();
    while let Some(piece) = pieces.next().await.unwrap() {
        text.extend(piece);
    }
    assert_eq!(text, b"one two");
    for (client, id) in [
        (machine("n3"), "move-1"),
        (machine("n2"), "move-2"),
        // A leader's certificate is for requests of people, which never read volumes.
        (
            agent.client(&server, &leader(&server, "n2"), "n1"),
            "move-1",
        ),
    ] {
        let copy = client.copy_of_volume("shop", "web", "data.1", id).await;
        assert_eq!(copy.unwrap_err().status(), Some(403));
    }
    let other = client
        .copy_of_volume("shop", "web", "other", "move-1")
        .await;
    assert_eq!(other.unwrap_err().status(), Some(403));
}
