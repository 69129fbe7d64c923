//! Bad requests over real sockets, in named classes: each gets a clear error in good time, and
//! nothing is stored.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[path = "support/api.rs"]
mod support;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kat::{
    api::{Limits, types::ErrorBody},
    pki::{Authority, AuthorityKind, tls},
};
use reqwest::Method;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use support::{
    CLUSTER_UID, DEADLINE, NODE_UID, Server, archive, issue_node, read, server_name, web,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

const NAMESPACES: &str = "/v1alpha1/namespaces";
const TOKENS: &str = "/v1alpha1/tokens";
const SHOP: &str = "/v1alpha1/n/shop/workloads";
const WEB: &str = "/v1alpha1/n/shop/workloads/web";
const STATUS: &str = "/v1alpha1/nodes/n1/status";

/// Short, so that a test of each deadline stays short.
fn impatient() -> Limits {
    Limits {
        handshake_timeout: Duration::from_millis(800),
        header_timeout: Duration::from_millis(1500),
        body_timeout: Duration::from_millis(800),
        ..Limits::default()
    }
}

async fn tls_stream(server: &Server) -> TlsStream<TcpStream> {
    let config = tls::client_config(server.authority.certificate_pem(), CLUSTER_UID, None).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    let name = ServerName::try_from(server_name()).unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap()
}

/// Everything up to the end of the connection; what arrived before a break counts too.
async fn rest(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut found = Vec::new();
    let mut piece = [0u8; 4096];
    while let Ok(count) = timeout(DEADLINE, stream.read(&mut piece))
        .await
        .expect("the connection stays open")
    {
        if count == 0 {
            break;
        }
        found.extend_from_slice(&piece[..count]);
    }
    String::from_utf8_lossy(&found).into_owned()
}

/// Sends raw bytes under TLS and reads what comes back until the server closes.
async fn raw(server: &Server, bytes: &[u8]) -> String {
    let mut stream = tls_stream(server).await;
    stream.write_all(bytes).await.unwrap();
    rest(&mut stream).await
}

struct Case {
    class: &'static str,
    method: Method,
    path: String,
    token: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    status: u16,
    error: &'static str,
    /// A part of the message.
    says: &'static str,
}

struct Cases<'a> {
    server: &'a Server,
    all: Vec<Case>,
}

impl Cases<'_> {
    fn add(
        &mut self,
        class: &'static str,
        method: Method,
        path: &str,
        status: u16,
        error: &'static str,
        says: &'static str,
    ) -> &mut Case {
        self.all.push(Case {
            class,
            method,
            path: path.to_owned(),
            token: self.server.admin.clone(),
            headers: Vec::new(),
            body: Vec::new(),
            status,
            error,
            says,
        });
        self.all.last_mut().unwrap()
    }
}

impl Case {
    fn token(&mut self, token: impl Into<String>) -> &mut Self {
        self.token = token.into();
        self
    }

    fn header(&mut self, name: &'static str, value: impl Into<String>) -> &mut Self {
        self.headers.push((name, value.into()));
        self
    }

    fn json(&mut self, body: Value) -> &mut Self {
        self.body = body.to_string().into_bytes();
        self.header("content-type", "application/json")
    }

    fn text(&mut self, body: &str) -> &mut Self {
        self.body = body.as_bytes().to_vec();
        self.header("content-type", "application/json")
    }

    fn gzip(&mut self, body: Vec<u8>) -> &mut Self {
        self.body = body;
        self.header("content-type", "application/gzip")
    }
}

fn one(text: &str) -> Vec<u8> {
    archive(&[("workload.kat", text)])
}

fn cases(server: &Server) -> Vec<Case> {
    let (get, post, put, delete) = (Method::GET, Method::POST, Method::PUT, Method::DELETE);
    let mut cases = Cases {
        server,
        all: Vec::new(),
    };
    let wrong = {
        let mut text = server.admin.clone().into_bytes();
        text[20] = if text[20] == b'A' { b'B' } else { b'A' };
        String::from_utf8(text).unwrap()
    };

    cases
        .add(
            "no token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "who calls",
        )
        .token("");
    cases
        .add(
            "wrong token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "not known",
        )
        .token(wrong.clone());
    cases
        .add(
            "wrong token",
            get.clone(),
            "/version",
            401,
            "Unauthorized",
            "not known",
        )
        .token(wrong);
    cases
        .add(
            "wrong token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "form",
        )
        .token("kat1.x.y");
    cases
        .add(
            "wrong token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "form",
        )
        .token("x".repeat(5000));
    let join = format!("{}.{}", server.admin, "ab".repeat(32));
    cases
        .add(
            "wrong token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "form",
        )
        .token(join);
    cases
        .add(
            "wrong token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "Bearer",
        )
        .token("")
        .header("authorization", "Basic YTpi");

    cases
        .add(
            "wrong scope",
            get.clone(),
            TOKENS,
            403,
            "Forbidden",
            "admin",
        )
        .token(&server.read);
    cases
        .add(
            "wrong scope",
            post.clone(),
            NAMESPACES,
            403,
            "Forbidden",
            "admin",
        )
        .token(&server.deploy)
        .json(json!({"metadata": {"name": "mine"}}));
    cases
        .add("wrong scope", put.clone(), WEB, 403, "Forbidden", "deploy")
        .token(&server.read)
        .gzip(one(&web("shop", "web", 1)));
    cases
        .add(
            "wrong scope",
            put.clone(),
            "/v1alpha1/n/default/workloads/web",
            403,
            "Forbidden",
            "deploy",
        )
        .token(&server.deploy)
        .gzip(one(&web("default", "web", 1)));
    cases
        .add(
            "wrong scope",
            get.clone(),
            "/v1alpha1/workloads",
            403,
            "Forbidden",
            "read",
        )
        .token(&server.deploy);
    cases
        .add(
            "wrong scope",
            get.clone(),
            "/v1alpha1/events",
            403,
            "Forbidden",
            "namespace",
        )
        .token(&server.deploy);
    cases
        .add(
            "wrong scope",
            get.clone(),
            "/v1alpha1/events?namespace=shop&namespace=default",
            403,
            "Forbidden",
            "namespace",
        )
        .token(&server.deploy);
    cases
        .add(
            "wrong scope",
            post.clone(),
            STATUS,
            403,
            "Forbidden",
            "certificate",
        )
        .json(json!({"nodeName": "n1", "nodeUID": NODE_UID}));

    cases.add(
        "unknown route",
        get.clone(),
        "/",
        404,
        "NotFound",
        "no route",
    );
    cases
        .add(
            "unknown route",
            get.clone(),
            "/v1/namespaces",
            404,
            "NotFound",
            "no route",
        )
        .token("");
    cases.add(
        "unknown route",
        get.clone(),
        "/v1alpha1/namespaces/",
        404,
        "NotFound",
        "no route",
    );
    cases.add(
        "unknown route",
        get.clone(),
        "/v1alpha1/n/shop/workloads/web/files/../../../../tokens",
        404,
        "NotFound",
        "",
    );
    cases.add(
        "unknown thing",
        get.clone(),
        "/v1alpha1/namespaces/none",
        404,
        "NotFound",
        "namespace `none`",
    );
    cases.add(
        "unknown thing",
        get.clone(),
        WEB,
        404,
        "NotFound",
        "workload `shop/web`",
    );
    cases.add(
        "unknown thing",
        get.clone(),
        "/v1alpha1/n/none/workloads",
        404,
        "NotFound",
        "namespace `none`",
    );
    cases.add(
        "unknown thing",
        get.clone(),
        "/v1alpha1/n/shop/instances/web-abcde",
        404,
        "NotFound",
        "instance",
    );
    cases.add(
        "unknown thing",
        get.clone(),
        "/v1alpha1/nodes/none",
        404,
        "NotFound",
        "node `none`",
    );
    cases.add(
        "unknown thing",
        delete.clone(),
        "/v1alpha1/tokens/none",
        404,
        "NotFound",
        "token",
    );
    cases
        .add(
            "unknown thing",
            put.clone(),
            "/v1alpha1/n/none/workloads/web",
            404,
            "NotFound",
            "namespace `none`",
        )
        .gzip(one(&web("none", "web", 1)));

    cases.add(
        "wrong method",
        Method::PATCH,
        NAMESPACES,
        405,
        "MethodNotAllowed",
        "PATCH",
    );
    cases.add(
        "wrong method",
        delete.clone(),
        NAMESPACES,
        405,
        "MethodNotAllowed",
        "DELETE",
    );
    cases
        .add(
            "wrong method",
            put.clone(),
            "/version",
            405,
            "MethodNotAllowed",
            "PUT",
        )
        .token("");
    cases
        .add(
            "wrong method",
            Method::TRACE,
            "/version",
            405,
            "MethodNotAllowed",
            "TRACE",
        )
        .token("");

    cases.add(
        "bad query",
        get.clone(),
        "/v1alpha1/namespaces?watsch=true",
        400,
        "Invalid",
        "watsch",
    );
    cases.add(
        "bad query",
        get.clone(),
        "/v1alpha1/namespaces?watch=perhaps",
        400,
        "Invalid",
        "query",
    );
    cases.add(
        "bad query",
        get.clone(),
        "/v1alpha1/namespaces?watch=true&resourceVersion=new",
        400,
        "Invalid",
        "resourceVersion",
    );
    cases.add(
        "bad query",
        get.clone(),
        "/v1alpha1/namespaces?watch=true&resourceVersion=-1",
        400,
        "Invalid",
        "resourceVersion",
    );
    cases.add(
        "bad query",
        get.clone(),
        "/metrics?format=xml",
        400,
        "Invalid",
        "prometheus",
    );
    cases.add(
        "bad query",
        delete.clone(),
        "/v1alpha1/namespaces/shop?dryrun=true",
        400,
        "Invalid",
        "dryrun",
    );
    cases.add(
        "bad path",
        get.clone(),
        "/v1alpha1/namespaces/%ff",
        400,
        "Invalid",
        "path",
    );

    cases
        .add("bad If-Match", put.clone(), WEB, 400, "Invalid", "If-Match")
        .gzip(one(&web("shop", "web", 1)))
        .header("if-match", "latest");
    cases
        .add(
            "bad If-Match",
            put.clone(),
            WEB,
            412,
            "PreconditionFailed",
            "does not exist",
        )
        .gzip(one(&web("shop", "web", 1)))
        .header("if-match", "\"7\"");
    cases
        .add("bad If-Match", put.clone(), WEB, 400, "Invalid", "together")
        .gzip(one(&web("shop", "web", 1)))
        .header("if-match", "7")
        .header("if-none-match", "*");
    cases
        .add(
            "bad If-Match",
            delete.clone(),
            "/v1alpha1/namespaces/shop",
            412,
            "PreconditionFailed",
            "changed",
        )
        .header("if-match", "1");

    cases
        .add(
            "wrong content type",
            put.clone(),
            WEB,
            415,
            "UnsupportedMediaType",
            "application/gzip",
        )
        .text("{}");
    cases.add(
        "wrong content type",
        put.clone(),
        WEB,
        415,
        "UnsupportedMediaType",
        "application/gzip",
    );
    cases
        .add(
            "wrong content type",
            post.clone(),
            NAMESPACES,
            415,
            "UnsupportedMediaType",
            "application/json",
        )
        .gzip(Vec::new());

    cases
        .add("bad JSON", post.clone(), NAMESPACES, 400, "Invalid", "EOF")
        .text("");
    cases
        .add(
            "bad JSON",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "line 1",
        )
        .text("{\"metadata\": ");
    cases
        .add(
            "bad JSON",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "unknown field `spec`",
        )
        .json(json!({"metadata": {"name": "a"}, "spec": {}}));
    cases
        .add("bad JSON", post.clone(), NAMESPACES, 400, "Invalid", "name")
        .json(json!({"metadata": {}}));
    cases
        .add(
            "bad JSON",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "invalid type",
        )
        .json(json!({"metadata": {"name": 7}}));
    cases
        .add("bad JSON", post.clone(), NAMESPACES, 400, "Invalid", "")
        .text(&"[".repeat(10_000));
    cases
        .add(
            "bad name",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "lower-case",
        )
        .json(json!({"metadata": {"name": "Shop"}}));
    cases
        .add(
            "bad name",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "reserved",
        )
        .json(json!({"metadata": {"name": "node"}}));
    cases
        .add("bad name", post.clone(), NAMESPACES, 400, "Invalid", "")
        .json(json!({"metadata": {"name": "../etc"}}));
    cases
        .add(
            "bad kind",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "expected `Namespace`",
        )
        .json(json!({"kind": "Workload", "metadata": {"name": "a"}}));
    cases
        .add(
            "bad version",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "apiVersion",
        )
        .json(json!({"apiVersion": "v1", "metadata": {"name": "a"}}));
    cases
        .add(
            "bad scope",
            post.clone(),
            TOKENS,
            400,
            "Invalid",
            "unknown variant",
        )
        .json(json!({"scope": {"kind": "root"}}));
    cases
        .add(
            "bad scope",
            post.clone(),
            TOKENS,
            404,
            "NotFound",
            "namespace",
        )
        .json(json!({"scope": {"kind": "deploy", "namespace": "none"}}));

    cases
        .add(
            "oversize",
            post.clone(),
            NAMESPACES,
            413,
            "TooLarge",
            "65536",
        )
        .text(&" ".repeat(65_537));
    cases
        .add("oversize", put.clone(), WEB, 413, "TooLarge", "1048576")
        .gzip(vec![0; 1_048_577]);
    let bomb = archive(&[("workload.kat", &"#".repeat(64 << 20))]);
    cases
        .add("oversize", put.clone(), WEB, 413, "TooLarge", "")
        .gzip(bomb);

    cases
        .add("bad gzip", put.clone(), WEB, 400, "Invalid", "")
        .gzip(Vec::new());
    cases
        .add("bad gzip", put.clone(), WEB, 400, "Invalid", "")
        .gzip(b"not a gzip".to_vec());
    let mut cut = one(&web("shop", "web", 1));
    cut.truncate(cut.len() / 2);
    cases
        .add("bad gzip", put.clone(), WEB, 400, "Invalid", "")
        .gzip(cut);
    cases
        .add(
            "bad archive",
            put.clone(),
            WEB,
            400,
            "Invalid",
            "no *.kat file",
        )
        .gzip(archive(&[]));
    cases
        .add(
            "bad file",
            put.clone(),
            WEB,
            400,
            "Invalid",
            "workload.kat:",
        )
        .gzip(one(&web("shop", "web", 1).replace("Always", "Often")));
    cases
        .add("bad file", put.clone(), WEB, 400, "Invalid", "(and 1 more)")
        .gzip(one(&web("shop", "web", 1).replace("replicas", "replcas")));
    cases
        .add(
            "other namespace",
            put.clone(),
            WEB,
            400,
            "Invalid",
            "namespace `default`",
        )
        .gzip(one(&web("default", "web", 1)));
    cases
        .add(
            "other namespace",
            post.clone(),
            SHOP,
            400,
            "Invalid",
            "namespace `default`",
        )
        .gzip(one(&web("default", "web", 1)));
    cases
        .add("other name", put.clone(), WEB, 400, "Invalid", "name `db`")
        .gzip(one(&web("shop", "db", 1)));
    cases.add(
        "protected",
        delete,
        "/v1alpha1/namespaces/default",
        403,
        "Forbidden",
        "default",
    );
    cases.all
}

#[tokio::test]
async fn every_bad_request_gets_a_clear_error_and_nothing_is_stored() {
    let server = Server::start().await;
    let before = server.stored();
    let client = server.client(None);
    let cases = cases(&server);
    assert!(cases.len() >= 60, "{}", cases.len());
    for case in cases {
        let mut request = client
            .request(case.method.clone(), server.url(&case.path))
            .body(case.body);
        if !case.token.is_empty() {
            request = request.bearer_auth(&case.token);
        }
        for (name, value) in &case.headers {
            request = request.header(*name, value);
        }
        let (status, body) = read(request.send().await.unwrap()).await;
        let what = format!(
            "{}: {} {}: {status} {body}",
            case.class, case.method, case.path
        );
        assert_eq!(status.as_u16(), case.status, "{what}");
        let body: ErrorBody = serde_json::from_value(body).expect(&what);
        assert_eq!(body.error, case.error, "{what}");
        assert!(body.message.contains(case.says), "{what}");
        assert!(
            !body.message.is_empty() && body.message.len() < 1000,
            "{what}"
        );
        assert_eq!(server.stored(), before, "{what}");
    }
}

#[tokio::test]
async fn a_file_error_names_its_place() {
    let server = Server::start().await;
    let text = web("shop", "web", 1).replace("replicas: 1", "replicas: many");
    let (status, body) = server.put("shop", "web", &[("workload.kat", &text)]).await;
    assert_eq!(status, 400);
    let detail = &body["details"][0];
    assert_eq!(
        (&detail["file"], &detail["path"]),
        (&json!("workload.kat"), &json!("spec.replicas")),
        "{body}"
    );
    assert_eq!(detail["line"], 11, "{body}");
}

#[tokio::test]
async fn no_tls_is_answered_in_plain_words() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    stream
        .write_all(b"GET /version HTTP/1.1\r\nHost: kat\r\n\r\n")
        .await
        .unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("TlsRequired"), "{answer}");
}

#[tokio::test]
async fn an_older_tls_is_refused() {
    let server = Server::start().await;
    let mut roots = rustls::RootCertStore::empty();
    let pem = server.authority.certificate_pem();
    use rustls::pki_types::pem::PemObject;
    roots
        .add(rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    let name = ServerName::try_from(server_name()).unwrap();
    let error = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("ProtocolVersion"), "{error}");
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused() {
    let server = Server::start().await;
    let now = Timestamp::now();
    let other = Authority::generate(AuthorityKind::Cluster, CLUSTER_UID, now).unwrap();
    // The server shows itself to nobody who trusts another authority.
    let trusting = tls::client_config(other.certificate_pem(), CLUSTER_UID, None).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    let name = ServerName::try_from(server_name()).unwrap();
    assert!(
        TlsConnector::from(Arc::new(trusting))
            .connect(name, stream)
            .await
            .is_err()
    );
    // And it believes no certificate of another authority, whatever its name.
    let forged = issue_node(&other, "n1", now);
    let client = server.client(Some(&forged));
    let body = json!({"nodeName": "n1", "nodeUID": NODE_UID});
    let sent = client.post(server.url(STATUS)).json(&body).send().await;
    assert!(sent.is_err(), "{sent:?}");
    assert!(
        server
            .handle
            .reports
            .observed(Duration::ZERO)
            .reports
            .is_empty()
    );
    // A certificate for another purpose of the same cluster is none for this one.
    let etcd = Authority::generate(AuthorityKind::EtcdClients, CLUSTER_UID, now).unwrap();
    let kind = kat::pki::LeafKind::EtcdNode {
        name: "n1".to_owned(),
    };
    let leaf = etcd.issue(&kind, now).unwrap();
    let sent = server
        .client(Some(&leaf))
        .get(server.url("/version"))
        .send()
        .await;
    assert!(sent.is_err(), "{sent:?}");
}

#[tokio::test]
async fn a_client_that_never_shakes_hands_is_dropped() {
    let server = Server::start_with(impatient()).await;
    let started = Instant::now();
    let mut silent = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    assert_eq!(rest(&mut silent).await, "");
    let mut half = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    half.write_all(&[22, 3, 1]).await.unwrap();
    assert_eq!(rest(&mut half).await, "");
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn slow_headers_are_not_waited_for() {
    let server = Server::start_with(impatient()).await;
    let heads: [&[u8]; 5] = [
        b"",
        b"G",
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /version HTTP/1.1\r\nHost: kat\r\nX-Slow: ",
    ];
    let waits = heads.map(async |head| {
        let mut stream = tls_stream(&server).await;
        stream.write_all(head).await.unwrap();
        stream.flush().await.unwrap();
        let started = Instant::now();
        let answer = rest(&mut stream).await;
        assert!(!answer.contains("200"), "{answer}");
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(10), "{head:?}: {waited:?}");
    });
    futures_util::future::join_all(waits).await;
    // One byte at a time does not help.
    let mut stream = tls_stream(&server).await;
    let started = Instant::now();
    let drip = async {
        loop {
            if stream.write_all(b"G").await.is_err() || stream.flush().await.is_err() {
                return;
            }
            let mut byte = [0u8; 256];
            if let Ok(Ok(0) | Err(_)) =
                timeout(Duration::from_millis(50), stream.read(&mut byte)).await
            {
                return;
            }
        }
    };
    assert!(
        timeout(Duration::from_secs(10), drip).await.is_ok(),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn slow_bodies_are_not_waited_for() {
    let server = Server::start_with(impatient()).await;
    let before = server.stored();
    let head = format!(
        "POST {NAMESPACES} HTTP/1.1\r\nHost: kat\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n{{\"meta",
        server.admin
    );
    let started = Instant::now();
    let answer = raw(&server, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("\"Timeout\""), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(server.stored(), before);
}

#[tokio::test]
async fn half_closed_bodies_store_nothing() {
    let server = Server::start_with(impatient()).await;
    let before = server.stored();
    let body = "{\"metadata\":{\"name\":\"half\"}}";
    for (length, kind) in [(body.len() + 1, "content-length"), (0, "chunked")] {
        let mut stream = tls_stream(&server).await;
        let size = match kind {
            "chunked" => format!(
                "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n",
                body.len()
            ),
            _ => format!("Content-Length: {length}\r\n\r\n{body}"),
        };
        let request = format!(
            "POST {NAMESPACES} HTTP/1.1\r\nHost: kat\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n{size}",
            server.admin
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{kind}: {answer}"
        );
        assert_eq!(server.stored(), before, "{kind}");
    }
}

#[tokio::test]
async fn what_is_no_http_is_refused() {
    let server = Server::start_with(impatient()).await;
    let long = format!("GET /{} HTTP/1.1\r\nHost: kat\r\n\r\n", "a".repeat(70_000));
    let many: String = (0..200)
        .map(|number| format!("x-{number}: y\r\n"))
        .collect();
    let many = format!("GET /version HTTP/1.1\r\nHost: kat\r\n{many}\r\n");
    let garbage: [(&[u8], &[u16]); 6] = [
        (b"\x00\x01\x02\x03\x04\x05\r\n\r\n", &[400]),
        (b"HELO kat\r\n\r\n", &[400]),
        (b"GET /version HTTP/9.9\r\n\r\n", &[400]),
        (b"GET /version HTTP/1.1\r\nBad Header\r\n\r\n", &[400]),
        (long.as_bytes(), &[400, 414, 431]),
        (many.as_bytes(), &[400, 431]),
    ];
    for (bytes, statuses) in garbage {
        let answer = raw(&server, bytes).await;
        let status = answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse::<u16>().ok());
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
        assert!(
            status.is_some_and(|status| statuses.contains(&status)),
            "{shown:?}: {answer:?}"
        );
    }
    // Two lengths would let a request hide in another.
    let smuggled = "POST /v1alpha1/namespaces HTTP/1.1\r\nHost: kat\r\nContent-Length: 4\r\nContent-Length: 40\r\n\r\nabcd";
    let answer = raw(&server, smuggled.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    // HTTP/1.0 is old, not wrong.
    let answer = raw(&server, b"GET /version HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
}

#[tokio::test]
async fn one_address_takes_only_so_many_connections() {
    let server = Server::start_with(Limits {
        handshake_timeout: Duration::from_secs(20),
        connections_from_one_address: 4,
        ..impatient()
    })
    .await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(
            TcpStream::connect(("127.0.0.1", server.port))
                .await
                .unwrap(),
        );
    }
    let mut fifth = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    assert_eq!(rest(&mut fifth).await, "", "the fifth is closed at once");
    held.clear();
    // The places are free again as soon as the others are gone.
    let again = async {
        loop {
            if server
                .client(None)
                .get(server.url("/version"))
                .send()
                .await
                .is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, again)
        .await
        .expect("a place becomes free");
}

#[tokio::test]
async fn guesses_at_tokens_are_slowed_down() {
    let few = std::num::NonZeroU32::new(5).unwrap();
    let server = Server::start_with(Limits {
        unknown_calls_per_second: std::num::NonZeroU32::MIN,
        unknown_call_burst: few,
        ..Limits::default()
    })
    .await;
    let client = server.client(None);
    let mut statuses = Vec::new();
    for number in 0..8 {
        let token = format!("kat1.{number:0>12}.AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8");
        let request = client.get(server.url(NAMESPACES)).bearer_auth(token);
        statuses.push(request.send().await.unwrap().status().as_u16());
    }
    assert_eq!(statuses[..5], [401; 5]);
    assert!(statuses[5..].contains(&429), "{statuses:?}");
    // Known callers behind the same address go on.
    assert_eq!(server.get(&server.read, NAMESPACES).await.0, 200);
}
