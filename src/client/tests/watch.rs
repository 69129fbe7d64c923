//! Following a list with its watch: the end and the loss of the watch, and errors that end it.

use axum::{
    Json, Router,
    body::Body,
    extract::Query,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Calls, Server};
use crate::{ListChange, RequestPath};
use kat_types::api::NamespaceItem;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    #[serde(default)]
    watch: bool,
    #[serde(default)]
    resource_version: String,
}

fn item(name: &str) -> Value {
    json!({"kind": "Namespace", "metadata": {"name": name}, "spec": {}, "status": {}})
}

fn list(names: &[&str], version: &str) -> Response {
    let items: Vec<Value> = names.iter().map(|name| item(name)).collect();
    Json(json!({"items": items, "metadata": {"resourceVersion": version}})).into_response()
}

fn lines(lines: &[Value]) -> Response {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    Body::from(text).into_response()
}

fn told(change: ListChange<NamespaceItem>) -> String {
    match change {
        ListChange::Listed(items) => {
            let names: Vec<String> = items.into_iter().map(|item| item.metadata.name).collect();
            format!("listed {}", names.join(" "))
        }
        ListChange::Changed(item) => format!("changed {}", item.metadata.name),
        ListChange::Deleted(item) => format!("deleted {}", item.metadata.name),
        ListChange::Interrupted(_) => "interrupted".to_owned(),
    }
}

#[tokio::test]
async fn a_list_is_followed_through_the_end_and_the_loss_of_its_watch() {
    let (lists, watches) = (Calls::default(), Calls::default());
    let router = Router::new().route(
        "/v1alpha1/namespaces",
        get(async move |Query(asked): Query<Asked>| {
            if !asked.watch {
                return match lists.next() {
                    0 => list(&["a"], "7"),
                    1 => list(&["a", "b", "c"], "8"),
                    2 => list(&["b"], "9"),
                    3 => (StatusCode::SERVICE_UNAVAILABLE, "starting").into_response(),
                    _ => list(&["d"], "10"),
                };
            }
            match watches.next() {
                0 => {
                    assert_eq!(asked.resource_version, "7");
                    lines(&[
                        json!({"type": "ADDED", "object": item("b")}),
                        json!({"type": "BOOKMARK", "object": {"resourceVersion": "8"}}),
                    ])
                }
                1 => lines(&[
                    json!({"type": "ERROR", "object": {"error": "Gone", "message": "old"}}),
                ]),
                2 => {
                    // The stream breaks off inside a line.
                    let deleted = json!({"type": "DELETED", "object": item("b")});
                    Body::from(format!("{deleted}\n{{\"type\":\"ADD")).into_response()
                }
                _ => {
                    let silence =
                        futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>();
                    Body::from_stream(silence).into_response()
                }
            }
        }),
    );
    let server = Server::start(router);
    let mut follow = server
        .client()
        .follow::<NamespaceItem>(RequestPath::namespaces(), true);
    let mut seen = Vec::new();
    for _ in 0..8 {
        seen.push(told(follow.next().await.unwrap()));
        if seen.last().is_some_and(|last| last == "listed d") {
            break;
        }
    }
    assert_eq!(
        seen,
        [
            "listed a",
            "changed b",
            "listed a b c",
            "listed b",
            "deleted b",
            "interrupted",
            "listed d",
        ]
    );
}

#[tokio::test]
async fn a_permanent_error_ends_a_watch() {
    let router = Router::new().route(
        "/v1alpha1/namespaces",
        get(async || {
            (
                StatusCode::FORBIDDEN,
                Json(json!({"error": "Forbidden", "message": "no"})),
            )
        }),
    );
    let server = Server::start(router);
    let mut follow = server
        .client()
        .follow::<NamespaceItem>(RequestPath::namespaces(), true);
    assert_eq!(follow.next().await.unwrap_err().code(), "Forbidden");
}

#[tokio::test]
async fn an_impatient_one_fails_with_its_first_list() {
    let folder = tempfile::tempdir().unwrap();
    let client =
        super::Client::from_unix_socket(&folder.path().join("none"), super::quick()).unwrap();
    let mut follow = client.follow::<NamespaceItem>(RequestPath::namespaces(), false);
    assert_eq!(follow.next().await.unwrap_err().exit_code(), 4);
}
