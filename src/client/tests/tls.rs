//! TLS: the certificates that the client accepts and shows, and the socket as a fallback.

use std::sync::Arc;

use axum::{Extension, Json, Router, http::HeaderMap, routing::get};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use super::quick;
use crate::{Client, ClientError};
use kat_pki::{ApiServers, ServerMemory, api_server_name, cluster_name};
use kat_types::api::Connection;

const UID: &str = "0B0e8a52-5c0f-4d4e-9a38-3b1a3f4c2d11";

struct Authority {
    pem: String,
    der: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "test authority");
        let certificate = params.self_signed(&key).unwrap();
        Self {
            pem: certificate.pem(),
            der: certificate.der().to_vec(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A leaf certificate and its key.
    fn leaf(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> (rcgen::Certificate, KeyPair) {
        self.leaf_for(&[name.to_owned()], purpose)
    }

    fn leaf_for(
        &self,
        names: &[String],
        purpose: ExtendedKeyUsagePurpose,
    ) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names.to_vec()).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, &names[0]);
        params.extended_key_usages = vec![purpose];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate, key)
    }
}

/// Serves `/v1alpha1/nodes` under TLS 1.3 and answers with the caller's credentials. Returns
/// `host:port`.
async fn serve(authority: &Authority, uid: &str) -> (String, JoinHandle<()>) {
    serve_as(
        authority,
        &[api_server_name(uid), cluster_name(&uid.to_lowercase())],
    )
    .await
}

/// A server with these names.
async fn serve_as(authority: &Authority, names: &[String]) -> (String, JoinHandle<()>) {
    let (leaf, key) = authority.leaf_for(names, ExtendedKeyUsagePurpose::ServerAuth);
    let mut roots = RootCertStore::empty();
    roots.add(authority.der.clone().into()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![leaf.der().clone()],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let router = Router::new().route(
        "/v1alpha1/nodes/a",
        get(
            async |headers: HeaderMap, Extension(certified): Extension<bool>| {
                let token = headers
                    .get("authorization")
                    .map(|value| value.to_str().unwrap().to_owned());
                Json(
                    json!({"kind": "Node", "metadata": {"name": token.unwrap_or_default()},
                "spec": {"draining": certified}, "status": {}}),
                )
            },
        ),
    );
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, router) = (acceptor.clone(), router.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let certified = stream.get_ref().1.peer_certificates().is_some();
                let service = TowerToHyperService::new(router.layer(Extension(certified)));
                let _ = auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    (address, task)
}

/// What is sent of the token: not the namespace after it.
const SENT: &str = "Bearer kat1.0123456789ab.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn connection(authority: &Authority, endpoints: &[&str], uid: &str) -> Connection {
    Connection {
        cluster: "home".to_owned(),
        cluster_uid: uid.to_owned(),
        endpoints: endpoints
            .iter()
            .map(|&endpoint| endpoint.to_owned())
            .collect(),
        ca: authority.pem.clone(),
        token: format!("{}.shop", SENT.trim_start_matches("Bearer ")),
        namespace: None,
        api_name_required: false,
    }
}

async fn refused(connection: &Connection) -> String {
    let client = Client::from_connection(connection, quick()).unwrap();
    let error = client.node("a").await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    assert_eq!(error.exit_code(), 4);
    error.to_string()
}

#[tokio::test]
async fn the_clusters_name_and_authority_count_and_not_the_address() {
    let authority = Authority::new();
    let (address, server) = serve(&authority, UID).await;

    // The first endpoint is unreachable; the others are the same server by name and by address.
    let port = address.rsplit(':').next().unwrap();
    let endpoints = ["127.0.0.1:1", &format!("localhost:{port}"), &address];
    let client =
        Client::from_connection(&connection(&authority, &endpoints, UID), quick()).unwrap();
    let node = client.node("a").await.unwrap();
    assert_eq!(node.metadata.name, SENT);
    assert!(!node.spec.draining, "no client certificate was given");
    assert_eq!(
        client.endpoint(),
        endpoints[1],
        "the one that answered is asked first"
    );

    let other = "11111111-5c0f-4d4e-9a38-3b1a3f4c2d11";
    let error = refused(&connection(&authority, &[&address], other)).await;
    assert!(
        error.ends_with("its certificate names another cluster"),
        "{error}"
    );

    let stranger = Authority::new();
    let error = refused(&connection(&stranger, &[&address], UID)).await;
    assert!(
        error.ends_with("its certificate is not from this cluster's authority"),
        "{error}"
    );
    server.abort();
}

/// A worker of version 0.1.0 has the earlier name, too, and could take a caller's token.
#[tokio::test]
async fn a_server_with_the_earlier_name_gets_no_token_once_the_name_of_the_api_was_seen() {
    let authority = Authority::new();
    let earlier = [cluster_name(&UID.to_lowercase())];
    let (worker, worker_task) = serve_as(&authority, &earlier).await;
    let (member, member_task) = serve(&authority, UID).await;

    // A new connection demands the name from the start.
    let mut connection = connection(&authority, &[&worker], UID);
    connection.api_name_required = true;
    let error = refused(&connection).await;
    assert!(error.contains("it is not for the API"), "{error}");
    connection.endpoints = vec![member.clone()];
    let client = Client::from_connection(&connection, quick()).unwrap();
    client.node("a").await.unwrap();
    assert_eq!(client.learned(), None, "there is nothing to keep");

    // A connection of version 0.1.0 accepts both, until it has seen the name.
    connection.api_name_required = false;
    connection.endpoints = vec![worker.clone()];
    let client = Client::from_connection(&connection, quick()).unwrap();
    client.node("a").await.unwrap();
    assert_eq!(client.learned(), None);
    connection.endpoints = vec![member];
    let client = Client::from_connection(&connection, quick()).unwrap();
    client.node("a").await.unwrap();
    client.learned().unwrap().enter(&mut connection);
    connection.endpoints = vec![worker];
    let error = refused(&connection).await;
    assert!(error.contains("it is not for the API"), "{error}");
    member_task.abort();
    worker_task.abort();
}

/// A machine that lost its network cannot reach its own address, but its agent still listens on the
/// socket.
#[tokio::test]
async fn the_socket_answers_without_the_token_where_no_endpoint_does() {
    let authority = Authority::new();
    let (endpoint, task) = serve(&authority, UID).await;
    let told = async |headers: HeaderMap| {
        let token = headers.contains_key("authorization");
        Json(
            json!({"kind": "Node", "metadata": {"name": "socket"}, "spec": {"draining": token}, "status": {}}),
        )
    };
    let server = super::Server::start(Router::new().route("/v1alpha1/nodes/a", get(told)));
    let connection = connection(&authority, &[&endpoint], UID);
    let client = Client::from_connection(&connection, quick()).unwrap();
    let client = client.or_unix_socket(&server.path()).unwrap();
    let name = async || client.node("a").await.unwrap().metadata.name;
    assert_eq!(name().await, SENT);
    task.abort();
    let _ = task.await;
    let client = Client::from_connection(&connection, quick()).unwrap();
    let client = client.or_unix_socket(&server.path()).unwrap();
    let node = client.node("a").await.unwrap();
    assert_eq!(
        (node.metadata.name.as_str(), node.spec.draining),
        ("socket", false)
    );
}

#[tokio::test]
async fn a_node_shows_its_certificate() {
    let authority = Authority::new();
    let (address, server) = serve(&authority, UID).await;
    let (leaf, key) = authority.leaf("node-a", ExtendedKeyUsagePurpose::ClientAuth);
    let identity = format!("{}{}", leaf.pem(), key.serialize_pem());
    let named = ApiServers::Named(ServerMemory::new(true));
    let client = Client::of_machine(
        &[address],
        UID,
        &authority.pem,
        Some(&identity),
        &named,
        quick(),
    )
    .unwrap();
    let node = client.node("a").await.unwrap();
    assert!(node.spec.draining, "the server saw a certificate");
    assert_eq!(node.metadata.name, "", "and no token");
    server.abort();
}

#[test]
fn a_connection_that_cannot_work_is_refused_before_anything_is_sent() {
    let authority = Authority::new();
    let good = connection(&authority, &["127.0.0.1:9115"], UID);
    assert!(Client::from_connection(&good, quick()).is_ok());
    let no_endpoints = connection(&authority, &[], UID);
    let no_port = connection(&authority, &["127.0.0.1"], UID);
    let bad_uid = connection(&authority, &["127.0.0.1:9115"], "a.b/c");
    let mut no_authority = good;
    no_authority.ca = "nothing".to_owned();
    for (case, connection) in [
        ("no endpoints", no_endpoints),
        ("no port", no_port),
        ("bad uid", bad_uid),
        ("no authority", no_authority),
    ] {
        let error = Client::from_connection(&connection, quick()).unwrap_err();
        assert!(
            matches!(error, ClientError::Configuration { .. }),
            "{case}: {error}"
        );
    }
}
