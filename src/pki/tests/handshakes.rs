//! TLS handshakes between KAT's servers and clients, in memory.

use std::sync::Arc;

use jiff::SignedDuration;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{
    super::tls::{CurrentIdentity, client_config, pinned_client_config, server_config},
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

fn cluster() -> Cluster {
    let authority = authority(AuthorityKind::Cluster);
    let own = authority.issue(&node("alpha"), now()).expect("issued");
    let identity = CurrentIdentity::new(&own, authority.certificate_pem()).expect("usable");
    let server = server_config(identity.clone(), authority.certificate_pem()).expect("a server");
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
        client_config(self.authority.certificate_pem(), UID, identity).expect("a client")
    }
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
    let client =
        client_config(cluster.authority.certificate_pem(), UID, Some(foreign)).expect("a client");
    handshake(cluster.server.clone(), client)
        .await
        .expect_err("a foreign client");
    // The client refuses a server of another cluster, and a server under another cluster's name
    // than it expects.
    handshake(other.server.clone(), cluster.client(None))
        .await
        .expect_err("a foreign server");
    let client =
        client_config(cluster.authority.certificate_pem(), "another", None).expect("a client");
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
    let server = server_config(admin, cluster.authority.certificate_pem()).expect("a server");
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
    let client =
        client_config(cluster.authority.certificate_pem(), UID, Some(old)).expect("a client");
    handshake(cluster.server.clone(), client)
        .await
        .expect_err("an expired client");
}

#[tokio::test]
async fn a_renewed_leaf_is_used_from_the_next_handshake_on() {
    let cluster = cluster();
    let long_ago = now() - SignedDuration::from_hours(31 * 24);
    let expired = cluster
        .authority
        .issue(&node("alpha"), long_ago)
        .expect("issued");
    cluster.identity.replace(&expired).expect("replaced");
    handshake(cluster.server.clone(), cluster.client(None))
        .await
        .expect_err("expired");
    let renewed = cluster
        .authority
        .issue(&node("alpha"), now())
        .expect("issued");
    cluster.identity.replace(&renewed).expect("replaced");
    handshake(cluster.server.clone(), cluster.client(None))
        .await
        .expect("renewed");
    let mixed = CertificateKeyPair {
        certificate_pem: renewed.certificate_pem,
        key_pem: expired.key_pem,
    };
    assert!(cluster.identity.replace(&mixed).is_err());
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
        .issue(&node("alpha"), now())
        .expect("issued");
    let forged =
        CurrentIdentity::new(&foreign, cluster.authority.certificate_pem()).expect("usable");
    let server = server_config(forged, cluster.authority.certificate_pem()).expect("a server");
    handshake(server, pinned())
        .await
        .expect_err("a forged chain");
    let admin = cluster
        .authority
        .issue(&admin("kim"), now())
        .expect("issued");
    let admin = CurrentIdentity::new(&admin, cluster.authority.certificate_pem()).expect("usable");
    let server = server_config(admin, cluster.authority.certificate_pem()).expect("a server");
    handshake(server, pinned())
        .await
        .expect_err("an administrator as server");
    assert!(pinned_client_config(Some("abc")).is_err());
}
