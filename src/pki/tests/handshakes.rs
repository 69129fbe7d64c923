//! TLS handshakes between KAT's servers and clients, in memory.

use std::sync::Arc;

use jiff::SignedDuration;
use rustls::pki_types::{ServerName, pem::PemObject};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{
    super::tls::{
        CurrentIdentity, CurrentTrust, KnownMachine, agent_client_config, agent_server_config,
        client_config, machine_client_config, pinned_client_config, public_key_hash,
        same_certificates, server_config, successor_client_config,
    },
    *,
};

/// Makes one connection in memory. Returns the client's identity as the server sees it, or the
/// reason of the failure.
async fn handshake(
    server: Arc<rustls::ServerConfig>,
    client: rustls::ClientConfig,
) -> Result<Option<PeerIdentity>, String> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serving = tokio::spawn(async move {
        let mut stream = TlsAcceptor::from(server)
            .accept(far)
            .await
            .map_err(|error| error.to_string())?;
        let peer = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(|chain| chain.first())
            .cloned();
        stream
            .write_all(b"x")
            .await
            .map_err(|error| error.to_string())?;
        stream.flush().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(peer)
    });
    let connecting = async {
        let address = ServerName::try_from("203.0.113.9").expect("an address");
        let connector = TlsConnector::from(Arc::new(client));
        let mut stream = connector
            .connect(address, near)
            .await
            .map_err(|error| error.to_string())?;
        assert_eq!(
            stream.get_ref().1.protocol_version(),
            Some(rustls::ProtocolVersion::TLSv1_3)
        );
        // In TLS 1.3, a client sees its refusal at the first read.
        stream
            .read_exact(&mut [0])
            .await
            .map_err(|error| error.to_string())
    };
    let connected = connecting.await;
    let served = serving.await.expect("served");
    connected?;
    Ok(served?.map(|certificate| peer_identity(&certificate).expect("a peer")))
}

struct Cluster {
    authority: Authority,
    server: Arc<rustls::ServerConfig>,
    identity: Arc<CurrentIdentity>,
}

fn trust(authorities: &str) -> Arc<CurrentTrust> {
    CurrentTrust::new(authorities).expect("usable")
}

fn cluster() -> Cluster {
    let authority = authority(AuthorityKind::Cluster);
    let own = authority
        .issue(&api("alpha", ApiNames::Both), now())
        .expect("issued");
    let identity = CurrentIdentity::new(&own, authority.certificate_pem()).expect("usable");
    let server =
        server_config(identity.clone(), trust(authority.certificate_pem())).expect("a server");
    Cluster {
        authority,
        server,
        identity,
    }
}

impl Cluster {
    fn client(&self, kind: Option<&LeafKind>) -> rustls::ClientConfig {
        let identity = kind.map(|kind| {
            let identity = self.authority.issue(kind, now()).expect("issued");
            CurrentIdentity::new(&identity, self.authority.certificate_pem()).expect("usable")
        });
        self.client_of(identity, ApiServers::Named(ServerMemory::new(true)))
    }

    fn client_of(
        &self,
        identity: Option<Arc<CurrentIdentity>>,
        servers: ApiServers,
    ) -> rustls::ClientConfig {
        let authority = self.authority.certificate_pem();
        client_config(authority, UID, identity, servers).expect("a client")
    }

    /// A server of the API's port with a new certificate of this kind, and the hash of its key.
    fn server_of(&self, kind: &LeafKind) -> (Arc<rustls::ServerConfig>, String) {
        let leaf = self.authority.issue(kind, now()).expect("issued");
        let authority = self.authority.certificate_pem();
        let identity = CurrentIdentity::new(&leaf, authority).expect("usable");
        let server = server_config(identity, trust(authority)).expect("a server");
        let hash = public_key_hash(&leaf.certificate_pem).expect("a hash");
        (server, hash)
    }
}

/// The machine `name` with these keys.
fn known(name: &str, is_member: bool, node_key: &str, api_key: &str) -> KnownServers {
    let hash = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let machine = KnownServer {
        is_member,
        node_key: hash(node_key),
        api_key: hash(api_key),
    };
    KnownServers {
        machines: [(name.to_owned(), machine)].into(),
        api_name_required: false,
    }
}

fn required(servers: KnownServers) -> KnownServers {
    KnownServers {
        api_name_required: true,
        ..servers
    }
}

/// Sends a certificate that others have seen, and other certificates beside it, without the key.
#[derive(Debug)]
struct Copied(Arc<rustls::sign::CertifiedKey>);

impl rustls::server::ResolvesServerCert for Copied {
    fn resolve(
        &self,
        _: rustls::server::ClientHello<'_>,
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

#[tokio::test]
async fn nothing_is_learned_from_a_server_that_does_not_prove_its_key() {
    let cluster = cluster();
    let now = jiff::Timestamp::now();
    let kind = LeafKind::Api {
        name: "n1".into(),
        cluster_uid: UID.into(),
        names: ApiNames::Both,
        addresses: Vec::new(),
    };
    let genuine = cluster.authority.issue(&kind, now).expect("issued");
    let attacker = Authority::generate(AuthorityKind::Cluster, UID, now).expect("made");
    let key = attacker.issue(&kind, now).expect("issued").key_pem;
    let mut chain = super::super::tls::certificates(&genuine.certificate_pem).expect("one");
    chain.extend(super::super::tls::certificates(attacker.certificate_pem()).expect("one"));
    let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
    let key = rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(&key).expect("a key");
    let certified = Arc::new(rustls::sign::CertifiedKey::new(chain, key));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Copied(certified)));
    let memory = ServerMemory::new(false);
    let servers = ApiServers::Named(memory.clone());
    let authority = cluster.authority.certificate_pem();
    let client = client_config(authority, UID, None, servers).expect("a client");
    let error = handshake(Arc::new(server), client).await.unwrap_err();
    assert!(error.contains("ignature"), "{error}");
    assert_eq!(memory.authorities(), None);
    assert!(!memory.is_required());

    // The control: the same certificate with its key.
    let identity = CurrentIdentity::new(&genuine, authority).expect("usable");
    let server = server_config(identity, trust(authority)).expect("a server");
    let client = client_config(authority, UID, None, ApiServers::Named(memory.clone()));
    handshake(server, client.expect("a client"))
        .await
        .expect("accepted");
    assert!(memory.is_required() && memory.authorities().is_some());
}

/// While an authority is replaced, servers and clients go on without a new start: katcall learns of
/// the new authority while the old one signs, and refuses the old one's certificates in the end.
#[tokio::test]
async fn an_authority_is_replaced_under_servers_and_clients_that_stay() {
    let cluster = cluster();
    let now = jiff::Timestamp::now();
    let old = cluster.authority.certificate_pem();
    let next = cluster
        .authority
        .generate_successor(UID, now)
        .expect("made");
    let foreign = Authority::generate(AuthorityKind::Cluster, "another", now).expect("made");
    let leaf = |authority: &Authority| {
        let kind = LeafKind::Api {
            name: "n1".into(),
            cluster_uid: UID.into(),
            names: ApiNames::Both,
            addresses: Vec::new(),
        };
        authority.issue(&kind, now).expect("issued")
    };
    let admin = |authority: &Authority| {
        let kind = LeafKind::Admin { name: "n1".into() };
        let admin = authority.issue(&kind, now).expect("issued");
        CurrentIdentity::new(&admin, authority.certificate_pem()).expect("usable")
    };
    let both = format!("{old}{}", next.certificate_pem());
    let sent = format!("{both}{}", foreign.certificate_pem());
    let identity = CurrentIdentity::new(&leaf(&cluster.authority), &sent).expect("usable");
    let trusted = trust(old);
    let server = server_config(identity.clone(), trusted.clone()).expect("a server");
    let client = |ca: &str, memory: &Arc<ServerMemory>, authority: &Authority| {
        let servers = ApiServers::Named(memory.clone());
        client_config(ca, UID, Some(admin(authority)), servers).expect("a client")
    };
    let memory = ServerMemory::new(true);
    let late = ServerMemory::new(true);
    let try_it = async |ca: &str, memory: &Arc<ServerMemory>, authority: &Authority| {
        handshake(server.clone(), client(ca, memory, authority))
            .await
            .is_ok()
    };

    // Trust.
    assert!(try_it(old, &memory, &cluster.authority).await);
    let learned = memory.authorities().expect("it was sent");
    assert!(
        same_certificates(&learned, &both),
        "that of another cluster is not taken"
    );
    assert!(
        !try_it(old, &memory, &next).await,
        "the server does not trust it yet"
    );
    trusted.replace(&both).expect("usable");
    assert!(try_it(old, &memory, &next).await);

    // Issue: who has not heard of it meanwhile is cut off, and learns nothing.
    identity.replace(&leaf(&next), &both).expect("usable");
    assert!(try_it(old, &memory, &next).await);
    assert!(try_it(&learned, &ServerMemory::new(true), &cluster.authority).await);
    assert!(!try_it(old, &late, &cluster.authority).await);
    assert_eq!(late.authorities(), None);

    // Retire.
    trusted.replace(next.certificate_pem()).expect("usable");
    identity
        .replace(&leaf(&next), next.certificate_pem())
        .expect("usable");
    assert!(try_it(old, &memory, &next).await);
    assert!(same_certificates(
        &memory.authorities().expect("sent"),
        next.certificate_pem()
    ));
    assert!(!try_it(next.certificate_pem(), &memory, &cluster.authority).await);
    identity
        .replace(&leaf(&cluster.authority), old)
        .expect("usable");
    assert!(!try_it(next.certificate_pem(), &memory, &next).await);
}

/// A machine whose authority was replaced while it was away recognises the servers of its successor,
/// and of nobody else.
#[tokio::test]
async fn a_server_of_the_authority_that_replaced_another_is_recognised() {
    let cluster = cluster();
    let now = jiff::Timestamp::now();
    let old = &cluster.authority;
    let next = old.generate_successor(UID, now).expect("made");
    let after = next.generate_successor(UID, now).expect("made");
    let stranger = Authority::generate(AuthorityKind::Cluster, UID, now).expect("made");
    let own = stranger.generate_successor(UID, now).expect("made");
    let known = format!("{}{}", old.certificate_pem(), stranger.certificate_pem());
    let accepted = async |trusted: &str, issuer: &Authority, kind: &LeafKind| {
        let leaf = issuer.issue(kind, now).expect("issued");
        let sent = format!("{}{}", issuer.certificate_pem(), next.certificate_pem());
        let identity = CurrentIdentity::new(&leaf, &sent).expect("usable");
        let server = server_config(identity, trust(old.certificate_pem())).expect("a server");
        let client = successor_client_config(trusted).expect("a client");
        handshake(server, client).await.is_ok()
    };
    let server = api("alpha", ApiNames::Both);
    assert!(accepted(old.certificate_pem(), &next, &server).await);
    assert!(!accepted(old.certificate_pem(), &next, &node("alpha")).await);
    for foreign in [&after, &stranger, &own, old] {
        assert!(!accepted(old.certificate_pem(), foreign, &server).await);
    }
    assert!(accepted(&known, &own, &server).await);
}

/// Who has copied the certificate of the API with its key is taken for a server while it lives, but
/// changes nothing in what a client trusts after that.
#[tokio::test]
async fn a_copied_key_of_a_server_teaches_no_authority_and_takes_none_away() {
    let cluster = cluster();
    let now = jiff::Timestamp::now();
    let old = cluster.authority.certificate_pem();
    let copied = cluster.authority.issue(&api("alpha", ApiNames::Both), now);
    let copied = copied.expect("issued");
    let attacker = Authority::generate(AuthorityKind::Cluster, UID, now).expect("made");
    let own = attacker.generate_successor(UID, now).expect("made");
    let next = cluster
        .authority
        .generate_successor(UID, now)
        .expect("made");
    let lost = cluster
        .authority
        .generate_successor(UID, now)
        .expect("made");
    let memory = ServerMemory::new(true);
    let after = async |leaf: &CertificateKeyPair, sent: &[&Authority]| {
        let sent: String = sent.iter().map(|one| one.certificate_pem()).collect();
        let identity = CurrentIdentity::new(leaf, &sent).expect("usable");
        let server = server_config(identity, trust(old)).expect("a server");
        let servers = ApiServers::Named(memory.clone());
        let client = client_config(old, UID, None, servers).expect("a client");
        handshake(server, client).await.expect("connected");
        memory.authorities().expect("something")
    };
    let is = |found: &str, expected: &[&Authority]| {
        let expected: String = expected.iter().map(|one| one.certificate_pem()).collect();
        assert!(same_certificates(found, &expected), "{found}");
    };
    let first = &cluster.authority;
    is(&after(&copied, &[first, &attacker, &own]).await, &[first]);
    is(&after(&copied, &[&attacker]).await, &[first]);
    is(&after(&copied, &[first, &next]).await, &[first, &next]);
    is(&after(&copied, &[first]).await, &[first, &next]);
    is(&after(&copied, &[&attacker]).await, &[first, &next]);
    // Another one was made, since the leader that had made it was lost.
    let all = [first, &next, &lost];
    is(&after(&copied, &[first, &lost]).await, &all);
    let issued = next.issue(&api("alpha", ApiNames::Both), now);
    let issued = issued.expect("issued");
    is(&after(&issued, &[first, &next]).await, &[first, &next]);
    is(&after(&issued, &[&next]).await, &[&next]);
    // The old certificate opens connections that were configured with the old authority, and no
    // more.
    is(&after(&copied, &[first]).await, &[&next]);
}

#[tokio::test]
async fn servers_know_their_clients_and_serve_those_without_a_certificate() {
    let cluster = cluster();
    let seen = handshake(cluster.server.clone(), cluster.client(None)).await;
    assert_eq!(seen.expect("connected"), None);
    let seen = handshake(cluster.server.clone(), cluster.client(Some(&admin("kim")))).await;
    assert_eq!(
        seen.expect("connected"),
        Some(PeerIdentity::Admin("kim".into()))
    );
    let seen = handshake(cluster.server.clone(), cluster.client(Some(&node("beta")))).await;
    assert_eq!(
        seen.expect("connected"),
        Some(PeerIdentity::Node("beta".into()))
    );
}

#[tokio::test]
async fn foreign_clients_and_servers_are_refused() {
    let (cluster, other) = (cluster(), cluster());
    // The authority of another cluster issued this client certificate.
    let foreign = other.authority.issue(&admin("kim"), now()).expect("issued");
    let foreign =
        CurrentIdentity::new(&foreign, other.authority.certificate_pem()).expect("usable");
    let named = || ApiServers::Named(ServerMemory::new(true));
    let client = cluster.client_of(Some(foreign), named());
    handshake(cluster.server.clone(), client)
        .await
        .expect_err("a foreign client");
    // The client refuses a server of another cluster, and a server under another cluster's name
    // than it expects.
    handshake(other.server.clone(), cluster.client(None))
        .await
        .expect_err("a foreign server");
    let client = client_config(
        cluster.authority.certificate_pem(),
        "another",
        None,
        named(),
    )
    .expect("a client");
    let error = handshake(cluster.server.clone(), client)
        .await
        .expect_err("another cluster");
    assert!(error.contains("not valid for name"), "{error}");
    // An administrator's certificate cannot be used by a server.
    let admin = cluster
        .authority
        .issue(&admin("kim"), now())
        .expect("issued");
    let admin = CurrentIdentity::new(&admin, cluster.authority.certificate_pem()).expect("usable");
    let server =
        server_config(admin, trust(cluster.authority.certificate_pem())).expect("a server");
    handshake(server, cluster.client(None))
        .await
        .expect_err("an administrator as server");
    // This certificate has expired.
    let long_ago = now() - SignedDuration::from_hours(31 * 24);
    let old = cluster
        .authority
        .issue(&node("beta"), long_ago)
        .expect("issued");
    let old = CurrentIdentity::new(&old, cluster.authority.certificate_pem()).expect("usable");
    let client = cluster.client_of(Some(old), named());
    handshake(cluster.server.clone(), client)
        .await
        .expect_err("an expired client");
}

#[tokio::test]
async fn a_renewed_leaf_is_used_from_the_next_handshake_on() {
    let cluster = cluster();
    let long_ago = now() - SignedDuration::from_hours(31 * 24);
    let kind = api("alpha", ApiNames::Both);
    let expired = cluster.authority.issue(&kind, long_ago).expect("issued");
    cluster
        .identity
        .replace(&expired, cluster.authority.certificate_pem())
        .expect("replaced");
    handshake(cluster.server.clone(), cluster.client(None))
        .await
        .expect_err("expired");
    let renewed = cluster.authority.issue(&kind, now()).expect("issued");
    cluster
        .identity
        .replace(&renewed, cluster.authority.certificate_pem())
        .expect("replaced");
    handshake(cluster.server.clone(), cluster.client(None))
        .await
        .expect("renewed");
    let mixed = CertificateKeyPair {
        certificate_pem: renewed.certificate_pem,
        key_pem: expired.key_pem,
    };
    assert!(
        cluster
            .identity
            .replace(&mixed, cluster.authority.certificate_pem())
            .is_err()
    );
    handshake(cluster.server.clone(), cluster.client(None))
        .await
        .expect("the old one stays");
}

#[tokio::test]
async fn a_joining_machine_trusts_the_hash_and_nothing_else() {
    let (cluster, other) = (cluster(), cluster());
    let pinned = || pinned_client_config(Some(&cluster.authority.fingerprint())).expect("a client");
    handshake(cluster.server.clone(), pinned())
        .await
        .expect("the right authority");
    handshake(other.server.clone(), pinned())
        .await
        .expect_err("another authority");
    // This server sends the right authority's certificate with a leaf that the authority did not
    // sign.
    let foreign = other
        .authority
        .issue(&api("alpha", ApiNames::Both), now())
        .expect("issued");
    let forged =
        CurrentIdentity::new(&foreign, cluster.authority.certificate_pem()).expect("usable");
    let server =
        server_config(forged, trust(cluster.authority.certificate_pem())).expect("a server");
    handshake(server, pinned())
        .await
        .expect_err("a forged chain");
    let admin = cluster
        .authority
        .issue(&admin("kim"), now())
        .expect("issued");
    let admin = CurrentIdentity::new(&admin, cluster.authority.certificate_pem()).expect("usable");
    let server =
        server_config(admin, trust(cluster.authority.certificate_pem())).expect("a server");
    handshake(server, pinned())
        .await
        .expect_err("an administrator as server");
    assert!(pinned_client_config(Some("abc")).is_err());
    // A machine without the store, or one of version 0.1.0.
    for kind in [node("beta"), earlier_node("alpha")] {
        let (server, _) = cluster.server_of(&kind);
        let error = handshake(server, pinned()).await.expect_err("a machine");
        assert!(error.contains("NotForApi"), "{error}");
    }
    let (server, _) = cluster.server_of(&api("alpha", ApiNames::Earlier));
    handshake(server, pinned())
        .await
        .expect("the API while members are upgraded");
}

/// A worker has a certificate of the cluster's authority, which version 0.1.0 also accepted for the
/// API: it got the tokens of those who connected to it.
#[tokio::test]
async fn a_worker_that_serves_the_api_is_refused_by_its_name() {
    let cluster = cluster();
    for kind in [node("worker"), earlier_node("worker")] {
        let (worker, _) = cluster.server_of(&kind);
        handshake(worker, cluster.client(None))
            .await
            .expect_err("a worker");
    }
    handshake(cluster.server.clone(), cluster.client(None))
        .await
        .expect("a member");
    // A machine knows the members by name, and refuses a worker where the cluster is not upgraded
    // yet, too.
    let (worker, hash) = cluster.server_of(&earlier_node("worker"));
    let servers = ApiServers::Known(known("worker", false, &hash, ""));
    let error = handshake(worker, cluster.client_of(None, servers))
        .await
        .expect_err("a worker");
    assert!(error.contains("NoMember(\"worker\")"), "{error}");
    let (member, hash) = cluster.server_of(&earlier_node("alpha"));
    let servers = ApiServers::Known(known("alpha", true, &hash, ""));
    handshake(member, cluster.client_of(None, servers))
        .await
        .expect("a member of version 0.1.0");
}

#[tokio::test]
async fn a_client_that_has_seen_the_name_of_the_api_refuses_servers_without_it() {
    let cluster = cluster();
    let (earlier, _) = cluster.server_of(&earlier_node("beta"));
    let (half, _) = cluster.server_of(&api("beta", ApiNames::Earlier));
    let memory = ServerMemory::new(false);
    let client = || cluster.client_of(None, ApiServers::Named(Arc::clone(&memory)));
    for server in [&earlier, &half] {
        handshake(Arc::clone(server), client())
            .await
            .expect("the earlier name");
        assert!(!memory.is_required());
    }
    handshake(cluster.server.clone(), client())
        .await
        .expect("both names");
    assert!(memory.is_required());
    for server in [earlier, half] {
        let error = handshake(server, client()).await.expect_err("too late");
        assert!(error.contains("NotForApi"), "{error}");
    }
    handshake(cluster.server.clone(), client())
        .await
        .expect("both names");
}

#[tokio::test]
async fn a_machine_accepts_earlier_servers_by_their_keys_alone_once_it_demands_the_name() {
    let cluster = cluster();
    let (server, hash) = cluster.server_of(&earlier_node("alpha"));
    let connect = |servers| {
        let client = cluster.client_of(None, ApiServers::Known(servers));
        handshake(Arc::clone(&server), client)
    };
    // A leader of version 0.1.0 publishes no keys.
    connect(known("alpha", true, "", ""))
        .await
        .expect("a known member");
    connect(known("beta", true, "", ""))
        .await
        .expect("an unknown machine");
    connect(known("alpha", true, "another key", ""))
        .await
        .expect_err("an earlier machine of that name");
    connect(known("alpha", false, &hash, ""))
        .await
        .expect_err("no member");
    connect(required(known("alpha", true, &hash, "")))
        .await
        .expect("a member that went back to version 0.1.0");
    for servers in [
        known("alpha", true, "", ""),
        known("alpha", true, "another key", ""),
        known("beta", true, &hash, ""),
    ] {
        connect(required(servers))
            .await
            .expect_err("no known key and the earlier name");
    }
    // After a restore a machine may know no server any more: it accepts the name.
    let servers = required(known("beta", true, "a key", "another"));
    let client = cluster.client_of(None, ApiServers::Known(servers));
    handshake(cluster.server.clone(), client)
        .await
        .expect("the name of the API");
}

/// The stream of the cluster's state decides what a machine runs.
#[tokio::test]
async fn the_state_is_read_of_known_members_alone() {
    let cluster = cluster();
    let (server, hash) = cluster.server_of(&api("alpha", ApiNames::Both));
    let connect = |servers| {
        let client = cluster.client_of(None, ApiServers::KnownOnly(servers));
        handshake(Arc::clone(&server), client)
    };
    for servers in [
        known("alpha", true, "a key", &hash),
        known("alpha", true, &hash, ""),
        // The member has been upgraded, and its new key is not published yet.
        known("alpha", true, "a key", ""),
        required(known("alpha", true, "a key", &hash)),
    ] {
        connect(servers).await.expect("a member");
    }
    for servers in [
        known("alpha", true, "a key", "another"),
        known("alpha", false, "a key", &hash),
        known("beta", true, "a key", &hash),
        KnownServers::default(),
    ] {
        connect(servers).await.expect_err("no known member");
    }
}

#[tokio::test]
async fn an_agent_is_known_by_its_machine_and_needs_no_name_of_the_cluster() {
    let cluster = cluster();
    let authority = cluster.authority.certificate_pem();
    let issue = |kind: &LeafKind| {
        let leaf = cluster.authority.issue(kind, now()).expect("issued");
        let hash = public_key_hash(&leaf.certificate_pem).expect("a hash");
        let identity = CurrentIdentity::new(&leaf, authority).expect("usable");
        (identity, hash)
    };
    let (own, _) = issue(&LeafKind::Leader {
        name: "alpha".into(),
    });
    let connect = |server: Arc<CurrentIdentity>, name: &str, hash: &str| {
        let server = agent_server_config(server, trust(authority)).expect("a server");
        let machine = KnownMachine {
            name: name.to_owned(),
            key_hash: Some(hash.to_owned()),
        };
        let client = agent_client_config(authority, own.clone(), machine).expect("a client");
        handshake(server, client)
    };
    for kind in [node("beta"), earlier_node("beta")] {
        let (server, hash) = issue(&kind);
        connect(server.clone(), "beta", &hash)
            .await
            .expect("the machine");
        connect(server.clone(), "gamma", &hash)
            .await
            .expect_err("another machine");
        connect(server, "beta", "another key")
            .await
            .expect_err("an earlier machine of that name");
    }
    let (server, hash) = issue(&api("beta", ApiNames::Both));
    connect(server, "beta", &hash)
        .await
        .expect_err("the API is no agent");
}

#[tokio::test]
async fn a_client_without_a_certificate_knows_a_machine_by_its_name() {
    let cluster = cluster();
    let authority = cluster.authority.certificate_pem();
    let connect = |kind: &LeafKind| {
        let leaf = cluster.authority.issue(kind, now()).expect("issued");
        let identity = CurrentIdentity::new(&leaf, authority).expect("usable");
        let server = server_config(identity, trust(authority)).expect("a server");
        let machine = KnownMachine {
            name: "beta".to_owned(),
            key_hash: None,
        };
        let client = machine_client_config(authority, machine).expect("a client");
        handshake(server, client)
    };
    connect(&node("beta")).await.expect("the machine");
    connect(&node("gamma")).await.expect_err("another machine");
    connect(&api("beta", ApiNames::Both))
        .await
        .expect_err("the API is no machine");
}
