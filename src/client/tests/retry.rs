//! Retries: the calls that are repeated, and the errors that are not.

use axum::{
    Json, Router,
    body::Body,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use bytes::Bytes;
use serde_json::json;

use super::{Calls, Server, quick};
use crate::{Client, ClientError, ClientOptions, Deletion};
use kat_types::api::{Scope, TokenRequest, WriteOutcome};

fn error(status: StatusCode, word: &str) -> Response {
    let body = json!({"error": word, "message": "because", "hint": "do this"});
    (status, Json(body)).into_response()
}

/// A response whose connection breaks in the middle of the body.
fn broken() -> Response {
    let pieces = futures_util::stream::iter([
        Ok(Bytes::from_static(b"{\"ite")),
        Err(std::io::Error::other("broken")),
    ]);
    Body::from_stream(pieces).into_response()
}

fn request() -> TokenRequest {
    TokenRequest {
        insecure_trust_network: false,
        scope: Scope::Read,
        name: String::new(),
        ttl_seconds: None,
        uses: None,
    }
}

#[tokio::test]
async fn a_read_is_repeated_until_the_server_is_ready() {
    let calls = Calls::default();
    let seen = calls.clone();
    let router = Router::new().route(
        "/v1alpha1/nodes",
        get(async move || match seen.next() {
            0 => error(StatusCode::SERVICE_UNAVAILABLE, "NotLeader"),
            1 => broken(),
            _ => Json(json!({"items": []})).into_response(),
        }),
    );
    let server = Server::start(router);
    let nodes = server.client().nodes().await.unwrap();
    assert_eq!(nodes.items.len(), 0);
    assert_eq!(calls.count(), 3);
}

#[tokio::test]
async fn a_token_is_never_made_twice() {
    let calls = Calls::default();
    let seen = calls.clone();
    let router = Router::new().route(
        "/v1alpha1/tokens",
        any(async move || {
            seen.next();
            broken()
        }),
    );
    let server = Server::start(router);
    let error = server.client().create_token(&request()).await.unwrap_err();
    assert!(matches!(error, ClientError::Interrupted { .. }), "{error}");
    assert_eq!((calls.count(), error.exit_code()), (1, 4));
}

#[tokio::test]
async fn a_token_is_asked_for_again_when_the_server_refused_for_now() {
    let calls = Calls::default();
    let seen = calls.clone();
    let router = Router::new().route(
        "/v1alpha1/tokens",
        any(async move || match seen.next() {
            0 => error(StatusCode::SERVICE_UNAVAILABLE, "NotLeader"),
            _ => Json(json!({"id": "a", "name": "", "scope": {"kind": "read"}, "created": "", "token": "s"}))
                .into_response(),
        }),
    );
    let server = Server::start(router);
    let made = server.client().create_token(&request()).await.unwrap();
    assert_eq!((made.token.as_deref(), calls.count()), (Some("s"), 2));
}

#[tokio::test]
async fn a_deletion_that_broke_off_and_is_not_found_again_is_done() {
    let calls = Calls::default();
    let seen = calls.clone();
    let router = Router::new().route(
        "/v1alpha1/n/default/workloads/{name}",
        any(async move || match seen.next() {
            0 => broken(),
            _ => error(StatusCode::NOT_FOUND, "NotFound"),
        }),
    );
    let server = Server::start(router);
    let client = server.client();
    client
        .delete_workload("default", "web", Deletion::default())
        .await
        .unwrap();
    // Without the interrupted first attempt, `NotFound` is an error.
    let error = client
        .delete_workload("default", "web", Deletion::default())
        .await
        .unwrap_err();
    assert_eq!(
        (error.exit_code(), error.to_string().as_str()),
        (3, "because")
    );
    assert_eq!(error.hint().as_deref(), Some("do this"));
}

#[tokio::test]
async fn a_refusal_is_not_repeated() {
    let calls = Calls::default();
    let seen = calls.clone();
    let router = Router::new().route(
        "/v1alpha1/nodes",
        get(async move || {
            seen.next();
            error(StatusCode::FORBIDDEN, "Forbidden")
        }),
    );
    let server = Server::start(router);
    let error = server.client().nodes().await.unwrap_err();
    assert_eq!(
        (calls.count(), error.exit_code(), error.code()),
        (1, 1, "Forbidden")
    );
}

#[tokio::test]
async fn the_deadline_ends_the_repeating() {
    let router = Router::new().route(
        "/v1alpha1/nodes",
        get(async || {
            let busy = error(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests");
            ([(header::RETRY_AFTER, "20")], busy)
        }),
    );
    let server = Server::start(router);
    let started = std::time::Instant::now();
    let error = server.client().nodes().await.unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(
        started.elapsed() < quick().retry_for,
        "it must not wait past its deadline"
    );
}

#[tokio::test]
async fn what_is_not_there_is_not_reachable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.sock");
    let client = Client::from_unix_socket(&path, quick()).unwrap();
    let error = client.nodes().await.unwrap_err();
    assert_eq!(error.exit_code(), 4);
    let wanted = format!(
        "the cluster cannot be reached: {}: no such socket",
        path.display()
    );
    assert_eq!(error.to_string(), wanted);

    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let error = client.nodes().await.unwrap_err().to_string();
    assert!(error.ends_with("connection refused"), "{error}");
}

#[tokio::test]
async fn an_apply_creates_what_is_not_there() {
    let calls = Calls::default();
    let seen = calls.clone();
    let result = json!({"outcome": "created", "kind": "Workload", "metadata": {"name": "web"}});
    let router = Router::new()
        .route(
            "/v1alpha1/n/default/workloads/{name}",
            any(async move || {
                seen.next();
                error(StatusCode::NOT_FOUND, "NotFound")
            }),
        )
        .route(
            "/v1alpha1/n/default/workloads",
            axum::routing::post(async move |headers: axum::http::HeaderMap, body: Bytes| {
                assert_eq!(headers[header::CONTENT_TYPE], "application/gzip");
                assert_eq!(body, "archive");
                Json(result).into_response()
            }),
        );
    let server = Server::start(router);
    let archive = Bytes::from_static(b"archive");
    let applied = server
        .client()
        .apply("default", "web", archive, false, None)
        .await
        .unwrap();
    assert_eq!(
        (applied.result.outcome, calls.count()),
        (WriteOutcome::Created, 1)
    );
}

#[tokio::test]
async fn an_answer_that_is_no_json_is_said_to_be_so() {
    let router = Router::new()
        .route("/v1alpha1/nodes", get(async || "<html>"))
        .route(
            "/v1alpha1/namespaces",
            get(async || (StatusCode::NOT_FOUND, "<html>")),
        );
    let server = Server::start(router);
    let error = server.client().nodes().await.unwrap_err();
    assert!(error.to_string().contains("no JSON"), "{error}");
    let error = server.client().namespaces().await.unwrap_err();
    assert_eq!((error.exit_code(), error.code()), (3, "NotFound"));
    assert!(
        error.to_string().ends_with("answered HTTP status 404"),
        "{error}"
    );
}

/// A machine's agent is no member of etcd, and may be anybody's.
#[tokio::test]
async fn a_machines_list_of_what_is_gone_is_read_to_a_bound() {
    let path = "/v1alpha1/n/default/workloads/web/gone-instances";
    let items = vec![json!({}); 100_000];
    let router = Router::new().route(
        path,
        get(async move || Json(json!({"items": items})).into_response()),
    );
    let server = Server::start(router);
    let options = ClientOptions {
        retry_for: std::time::Duration::ZERO,
        ..quick()
    };
    let client = Client::from_unix_socket(&server.path(), options).unwrap();
    let told = client.gone_instances("default", "web", Some("u1")).await;
    let error = told.unwrap_err();
    assert!(matches!(error, ClientError::Answer { .. }), "{error}");
    // The leader is trusted.
    let told = client.gone_instances("default", "web", None).await;
    assert_eq!(told.unwrap().items.len(), 100_000);
}
