//! Bad requests over real sockets, in named classes. Each gets a clear error in time, and nothing
//! is stored.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[path = "bad_requests/bodies.rs"]
mod bodies;
#[path = "bad_requests/connections.rs"]
mod connections;
#[path = "support/api.rs"]
mod support;
#[path = "bad_requests/unauthorized_callers.rs"]
mod unauthorized_callers;
#[path = "bad_requests/unknown_routes.rs"]
mod unknown_routes;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use reqwest::Method;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use kat_api::{
    ApiLimits, ConnectionLimits,
    access::authorization::RouteAccess,
    routes::{ROUTES, RoutePayload},
};
use kat_pki::{ApiServers, Authority, AuthorityKind, ServerMemory, tls};
use kat_types::api::ErrorBody;
use support::{
    CLUSTER_UID, DEADLINE, NODE_UID, Server, archive, issue_node, read, server_name, web,
};

const NAMESPACES: &str = "/v1alpha1/namespaces";
const TOKENS: &str = "/v1alpha1/tokens";
const SHOP: &str = "/v1alpha1/n/shop/workloads";
const WEB: &str = "/v1alpha1/n/shop/workloads/web";
const STATUS: &str = "/v1alpha1/nodes/n1/status";

/// Short time limits, so that the test of each limit is short.
fn impatient() -> ApiLimits {
    ApiLimits {
        handshake_timeout: Duration::from_millis(800),
        header_timeout: Duration::from_millis(1500),
        body_timeout: Duration::from_millis(800),
        ..ApiLimits::default()
    }
}

async fn tls_stream(server: &Server) -> TlsStream<TcpStream> {
    let servers = ApiServers::Named(ServerMemory::new(true));
    let authority = server.authority.certificate_pem();
    let config = tls::client_config(authority, CLUSTER_UID, None, servers).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    let name = ServerName::try_from(server_name()).unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap()
}

/// Everything until the connection ends, including what arrived before an error.
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

/// Sends raw bytes over TLS and reads until the server closes the connection.
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
    /// A part of the expected message.
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
    let mut cases = Cases {
        server,
        all: Vec::new(),
    };
    unauthorized_callers::callers(&mut cases);
    unknown_routes::ways(&mut cases);
    bodies::heads(&mut cases);
    bodies::bodies(&mut cases);
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

/// An empty list is also no object whose fields may all be left out: it would roll back, or replace
/// an authority.
#[tokio::test]
async fn an_empty_list_is_refused_by_every_route_that_takes_an_object() {
    let server = Server::start().await;
    let before = server.stored();
    let user = server.client(None);
    let machine = server.client(Some(&server.node_leaf("n1")));
    let mut routes = 0;
    for route in ROUTES {
        let client = match (route.request, route.access) {
            // These need a token of their own, or a proof in the body.
            (_, RouteAccess::Join | RouteAccess::KnownKey) => continue,
            (RoutePayload::Json(_), RouteAccess::Report) => &machine,
            (RoutePayload::Json(_), _) => &user,
            _ => continue,
        };
        let mut path = route.path.to_owned();
        for (parameter, name) in [
            ("{namespace}", "shop"),
            ("{workload}", "web"),
            ("{volume}", "data"),
            ("{secret}", "db"),
            ("{node}", "n1"),
            ("{host}", "registry.lab:5000"),
            ("{registry}", "registry.lab:5000"),
            ("{authority}", "cluster-ca"),
        ] {
            path = path.replace(parameter, name);
        }
        assert!(!path.contains('{'), "{path}");
        let method: Method = route.verb.as_str().parse().unwrap();
        let mut request = client
            .request(method, server.url(&path))
            .header("content-type", "application/json")
            .body("[]");
        if route.access != RouteAccess::Report {
            request = request.bearer_auth(&server.admin);
        }
        let (status, body) = read(request.send().await.unwrap()).await;
        assert_eq!(status, 400, "{path}: {body}");
        let body: ErrorBody = serde_json::from_value(body).unwrap();
        assert_eq!(body.error, "Invalid", "{path}");
        let the_body = body.message.starts_with("the body");
        assert!(the_body, "{path}: {}", body.message);
        assert!(body.message.contains("line 1"), "{path}: {}", body.message);
        routes += 1;
    }
    assert!(routes >= 15, "{routes}");
    assert_eq!(server.stored(), before);
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
    // Two lengths would allow a request to be smuggled inside another.
    let smuggled = "POST /v1alpha1/namespaces HTTP/1.1\r\nHost: kat\r\nContent-Length: 4\r\nContent-Length: 40\r\n\r\nabcd";
    let answer = raw(&server, smuggled.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    // HTTP/1.0 is old but valid.
    let answer = raw(&server, b"GET /version HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
}

#[tokio::test]
async fn guesses_at_tokens_are_slowed_down() {
    let few = std::num::NonZeroU32::new(5).unwrap();
    let server = Server::start_with(ApiLimits {
        unknown_calls_per_second: std::num::NonZeroU32::MIN,
        unknown_call_burst: few,
        ..ApiLimits::default()
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
    // Known callers behind the same address are not slowed down.
    assert_eq!(server.get(&server.read, NAMESPACES).await.0, 200);
}
