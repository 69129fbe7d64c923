//! The API over real sockets: what callers see, what is stored, and who may do what.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[path = "api/agent_port.rs"]
mod agent_port;
#[path = "api/files.rs"]
mod files_of_folder;
#[path = "api/images.rs"]
mod images;
#[path = "api/logins.rs"]
mod logins;
#[path = "api/nodes.rs"]
mod nodes;
#[path = "api/preview.rs"]
mod preview;
#[path = "api/rollouts.rs"]
mod rollouts;
#[path = "api/secrets.rs"]
mod secrets;
#[path = "api/sessions.rs"]
mod sessions;
#[path = "support/api.rs"]
mod support;
#[path = "api/volume_moves.rs"]
mod volume_moves;
#[path = "api/volumes.rs"]
mod volumes;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use kat::{
    api::{
        Limits,
        client::{Change, Client, Deletion, EventQuery, Options, Route},
        types::{Connection, Event, NodeReport, ObjectReference, WorkloadItem},
    },
    pki::LeafKind,
    plan::{LastIndex, NodeStatusRecord, WorkloadMeta},
    store::{Operation, keys},
};
use reqwest::Method;
use serde_json::{Value, json};
use support::{
    CLUSTER_UID, DEADLINE, LinesOf, NODE_UID, Server, archive, put, read, web, with_instance,
};

const SHOP: &str = "/v1alpha1/n/shop/workloads";
const WEB: &str = "/v1alpha1/n/shop/workloads/web";

fn files(text: &str) -> [(&str, &str); 1] {
    [("workload.kat", text)]
}

#[tokio::test]
async fn an_apply_is_stored_once_and_changed_by_its_content_alone() {
    let server = Server::start().await;
    let first = web("shop", "web", 1);
    let (status, created) = server.put("shop", "web", &files(&first)).await;
    assert_eq!(
        (status.as_u16(), &created["outcome"]),
        (201, &json!("created")),
        "{created}"
    );
    assert_eq!(created["metadata"]["generation"], 1);
    let before = server.stored();

    let (status, again) = server.put("shop", "web", &files(&first)).await;
    assert_eq!(
        (status.as_u16(), &again["outcome"]),
        (200, &json!("unchanged"))
    );
    assert_eq!(again["metadata"], created["metadata"]);
    assert_eq!(server.stored(), before, "the same content writes nothing");

    let second = web("shop", "web", 2);
    let (status, updated) = server.put("shop", "web", &files(&second)).await;
    assert_eq!(
        (status.as_u16(), &updated["outcome"]),
        (200, &json!("updated")),
        "{updated}"
    );
    assert_eq!(updated["metadata"]["generation"], 2);
    assert_eq!(updated["metadata"]["uid"], created["metadata"]["uid"]);

    // What was written is read at once.
    let (_, item) = server.get(&server.read, WEB).await;
    assert_eq!(item["spec"]["replicas"], 2);
    assert_eq!(item["metadata"]["generation"], 2);
    let stored: Vec<_> = server.stored().into_iter().map(|(key, _)| key).collect();
    for key in [
        "/kat/workloads/desired/shop/web/manifest/workload.kat",
        "/kat/workloads/archive/shop/web/1/workload.kat",
        "/kat/workloads/archive/shop/web/2/workload.kat",
        "/kat/indexes/0",
    ] {
        assert!(
            stored.iter().any(|found| found == key),
            "{key} is missing in {stored:?}"
        );
    }
    let (_, events) = server
        .get(&server.admin, "/v1alpha1/events?resourceName=web")
        .await;
    let reasons: Vec<_> = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["reason"].clone())
        .collect();
    assert_eq!(reasons, [json!("Created"), json!("Updated")]);
}

#[tokio::test]
async fn a_namespaces_events_have_those_of_machines_but_for_deploy_tokens() {
    let server = Server::start().await;
    let event = |id: &str, kind: &str, name: &str, namespace: &str| {
        let involved_object = ObjectReference {
            kind: kind.to_owned(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            uid: String::new(),
        };
        let event = Event {
            id: id.to_owned(),
            involved_object,
            ..Event::default()
        };
        put(keys::event(id), &event)
    };
    server
        .write(&[
            event("test-1", "Node", "n9", ""),
            event("test-2", "Workload", "web", "shop"),
            event("test-3", "Workload", "web", "other"),
            event("test-4", "Namespace", "shop", ""),
            event("test-5", "Namespace", "other", ""),
        ])
        .await;
    for (token, expected) in [
        (&server.read, vec!["test-1", "test-2", "test-4"]),
        (&server.deploy, vec!["test-2", "test-4"]),
    ] {
        let (status, found) = server.get(token, "/v1alpha1/events?namespace=shop").await;
        assert_eq!(status, 200, "{found}");
        let ids: Vec<_> = found["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|event| event["id"].as_str())
            .filter(|id| id.starts_with("test-"))
            .collect();
        assert_eq!(ids, expected);
    }
}

#[tokio::test]
async fn ten_generations_are_kept() {
    let server = Server::start().await;
    for replicas in 1..=13 {
        let (status, body) = server
            .put("shop", "web", &files(&web("shop", "web", replicas)))
            .await;
        assert!(status.is_success(), "{body}");
    }
    let prefix = keys::archive("shop", "web");
    let kept: Vec<_> = server
        .stored()
        .into_iter()
        .filter(|(key, _)| key.starts_with(&prefix) && key.ends_with("/workload.kat"))
        .collect();
    assert_eq!(kept.len(), 10, "{kept:?}");
    assert!(
        !kept
            .iter()
            .any(|(key, _)| key.starts_with(&format!("{prefix}3/")))
    );
}

#[tokio::test]
async fn a_post_creates_and_does_not_overwrite() {
    let server = Server::start().await;
    let post = async |text: String| {
        read(
            server
                .send(&server.deploy, Method::POST, SHOP, &files(&text), &[])
                .await,
        )
        .await
    };
    let (status, _) = post(web("shop", "web", 1)).await;
    assert_eq!(status, 201);
    let (status, same) = post(web("shop", "web", 1)).await;
    assert_eq!(
        (status.as_u16(), &same["outcome"]),
        (200, &json!("unchanged"))
    );
    let (status, other) = post(web("shop", "web", 2)).await;
    assert_eq!(
        (status.as_u16(), &other["error"]),
        (409, &json!("Conflict"))
    );
}

#[tokio::test]
async fn a_dry_run_says_what_would_happen_and_stores_nothing() {
    let server = Server::start().await;
    let before = server.stored();
    let path = format!("{WEB}?dryRun=true");
    let put = async |text: String| {
        read(
            server
                .send(&server.admin, Method::PUT, &path, &files(&text), &[])
                .await,
        )
        .await
    };
    let (status, would) = put(web("shop", "web", 1)).await;
    assert_eq!(
        (status.as_u16(), &would["outcome"]),
        (200, &json!("created"))
    );
    let (status, _) = put(web("shop", "web", 1).replace("Always", "Sometimes")).await;
    assert_eq!(status, 400);
    assert_eq!(server.stored(), before);
}

#[tokio::test]
async fn if_match_lets_a_write_through_only_when_nobody_was_quicker() {
    let server = Server::start().await;
    let (_, created) = server
        .put("shop", "web", &files(&web("shop", "web", 1)))
        .await;
    let version = created["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    // The leader's own notes do not count as a change.
    let status = json!({"schema": 1, "status": {"phase": "Running"}});
    server
        .write(&[put(keys::workload_status("shop", "web"), &status)])
        .await;
    let quoted = format!("\"{version}\"");
    let write = async |replicas, name: &str, value: &str| {
        let text = web("shop", "web", replicas);
        let response = server
            .send(
                &server.admin,
                Method::PUT,
                WEB,
                &files(&text),
                &[(name, value)],
            )
            .await;
        response.status().as_u16()
    };
    assert_eq!(write(2, "if-match", &quoted).await, 200);
    let before = server.stored();
    assert_eq!(write(3, "if-match", &quoted).await, 412);
    assert_eq!(write(3, "if-none-match", "*").await, 412);
    assert_eq!(server.stored(), before);
    let response = server.call(&server.read, Method::GET, WEB).await;
    let etag = response.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(write(3, "if-match", &etag).await, 200);
}

#[tokio::test]
async fn two_creations_at_once_get_two_indexes() {
    let server = Server::start().await;
    let names: Vec<String> = (0..8).map(|number| format!("web-{number}")).collect();
    let texts: Vec<String> = names.iter().map(|name| web("shop", name, 1)).collect();
    let applies = names.iter().zip(&texts).map(|(name, text)| async {
        let files = [("workload.kat", text.as_str())];
        server.put("shop", name, &files).await
    });
    for (status, body) in futures_util::future::join_all(applies).await {
        assert!(status == 201 || status == 409, "{status} {body}");
    }
    let metas = server
        .store
        .peek(keys::WORKLOADS)
        .items
        .into_iter()
        .filter(|item| item.key.ends_with("/meta"));
    let mut indexes: Vec<u32> = metas
        .map(|item| {
            serde_json::from_slice::<WorkloadMeta>(&item.value)
                .unwrap()
                .index
        })
        .collect();
    indexes.sort_unstable();
    let count = u32::try_from(indexes.len()).unwrap();
    assert!(count >= 4, "most get through: {indexes:?}");
    assert_eq!(indexes, (0..count).collect::<Vec<_>>());
    let stored = server.store.peek(keys::INDEXES).items;
    let (last, owned): (Vec<_>, Vec<_>) = stored
        .into_iter()
        .partition(|item| item.key == keys::LAST_INDEX);
    assert_eq!(owned.len(), indexes.len());
    let last: LastIndex = serde_json::from_slice(&last[0].value).unwrap();
    assert_eq!(last.index, count - 1);
}

#[tokio::test]
async fn a_deletion_marks_the_workload_and_may_be_repeated() {
    let server = Server::start().await;
    server
        .put("shop", "web", &files(&web("shop", "web", 1)))
        .await;
    for _ in 0..2 {
        let (status, body) = read(server.call(&server.deploy, Method::DELETE, WEB).await).await;
        assert_eq!(
            (status.as_u16(), &body["outcome"]),
            (200, &json!("deleting")),
            "{body}"
        );
    }
    let (_, item) = server.get(&server.read, WEB).await;
    assert_eq!(item["status"]["phase"], "Deleting");
    let (status, body) = server
        .put("shop", "web", &files(&web("shop", "web", 2)))
        .await;
    assert_eq!((status.as_u16(), &body["error"]), (409, &json!("Conflict")));
    let (status, _) = read(
        server
            .call(
                &server.admin,
                Method::DELETE,
                "/v1alpha1/n/shop/workloads/none",
            )
            .await,
    )
    .await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn namespaces_come_and_go() {
    let server = Server::start().await;
    let list = "/v1alpha1/namespaces";
    let body = json!({"apiVersion": "kat.dws.rip/v1alpha1", "kind": "Namespace", "metadata": {"name": "team"}});
    let (status, created) = server
        .send_json(&server.admin, Method::POST, list, &body)
        .await;
    assert_eq!(
        (status.as_u16(), &created["outcome"]),
        (201, &json!("created")),
        "{created}"
    );
    let (status, again) = server
        .send_json(&server.admin, Method::POST, list, &body)
        .await;
    assert_eq!(
        (status.as_u16(), &again["outcome"]),
        (200, &json!("unchanged"))
    );
    let labelled = json!({"metadata": {"name": "team", "labels": {"a": "b"}}});
    let (_, labelled) = server
        .send_json(&server.admin, Method::POST, list, &labelled)
        .await;
    assert_eq!(labelled["outcome"], "updated");
    assert_eq!(labelled["metadata"]["uid"], created["metadata"]["uid"]);

    for name in ["web", "db"] {
        let (status, body) = server
            .put("team", name, &files(&web("team", name, 1)))
            .await;
        assert_eq!(status, 201, "{body}");
    }
    let delete =
        async |path: &str| read(server.call(&server.admin, Method::DELETE, path).await).await;
    let (status, body) = delete("/v1alpha1/namespaces/team").await;
    assert_eq!(status, 409, "{body}");
    assert!(body["hint"].as_str().unwrap().contains("cascade"), "{body}");
    let (status, body) = delete("/v1alpha1/namespaces/team?cascade=true").await;
    assert_eq!(
        (status.as_u16(), &body["outcome"]),
        (200, &json!("deleting")),
        "{body}"
    );
    let (_, workloads) = server
        .get(&server.admin, "/v1alpha1/n/team/workloads")
        .await;
    for item in workloads["items"].as_array().unwrap() {
        assert_eq!(item["status"]["phase"], "Deleting");
    }
    let (status, _) = server
        .put("team", "new", &files(&web("team", "new", 1)))
        .await;
    assert_eq!(status, 409, "nothing comes into a namespace that goes");
    for name in ["default", "kat-core"] {
        assert_eq!(
            delete(&format!("/v1alpha1/namespaces/{name}?cascade=true"))
                .await
                .0,
            403
        );
    }
}

#[tokio::test]
async fn values_of_variables_are_seen_by_those_alone_who_may_write_them() {
    let server = Server::start().await;
    server
        .put("shop", "web", &files(&web("shop", "web", 1)))
        .await;
    let file = format!("{WEB}/files/workload.kat");
    for path in [
        WEB,
        SHOP,
        "/v1alpha1/workloads",
        "/v1alpha1/events",
        &format!("{WEB}/files"),
    ] {
        let (status, body) = server.get(&server.read, path).await;
        assert_eq!(status, 200, "{path}: {body}");
        assert!(
            !body.to_string().contains("correct-horse"),
            "{path}: {body}"
        );
    }
    let (_, item) = server.get(&server.read, WEB).await;
    assert_eq!(
        item["spec"]["container"]["env"][0],
        json!({"name": "PASSWORD", "value": "***"})
    );
    let (_, names) = server.get(&server.read, &format!("{WEB}/files")).await;
    assert_eq!(names["items"], json!(["workload.kat"]));
    assert_eq!(server.get(&server.read, &file).await.0, 403);
    let (status, text) = server.get(&server.deploy, &file).await;
    assert_eq!(status, 200);
    assert_eq!(text.as_str().unwrap(), web("shop", "web", 1));
    assert_eq!(
        server
            .get(&server.deploy, &format!("{WEB}/files/none.kat"))
            .await
            .0,
        404
    );
}

#[tokio::test]
async fn kats_own_namespace_is_changed_by_administrators_alone() {
    let server = Server::start().await;
    let request = json!({"scope": {"kind": "deploy", "namespace": "kat-core"}, "name": "core"});
    let (status, token) = server
        .send_json(&server.admin, Method::POST, "/v1alpha1/tokens", &request)
        .await;
    assert_eq!(status, 201, "{token}");
    let token = token["token"].as_str().unwrap();
    let text = web("kat-core", "dns", 1);
    let path = "/v1alpha1/n/kat-core/workloads/dns";
    let refused = server
        .send(token, Method::PUT, path, &files(&text), &[])
        .await;
    assert_eq!(refused.status(), 403);
    assert_eq!(server.put("kat-core", "dns", &files(&text)).await.0, 201);
}

async fn watch(server: &Server, path: &str) -> LinesOf {
    LinesOf::new(server.call(&server.admin, Method::GET, path).await)
}

#[tokio::test]
async fn a_watch_outlives_the_time_for_the_head_of_a_request() {
    let header_timeout = Duration::from_millis(300);
    let server = Server::start_with(Limits {
        header_timeout,
        bookmark_interval: Duration::from_millis(100),
        ..Limits::default()
    })
    .await;
    let (_, list) = server.get(&server.admin, SHOP).await;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let started = std::time::Instant::now();
    let mut lines = watch(
        &server,
        &format!("{SHOP}?watch=true&resourceVersion={version}"),
    )
    .await;
    while started.elapsed() < header_timeout * 4 {
        assert_eq!(
            lines.next().await.expect("the watch ended")["type"],
            "BOOKMARK"
        );
    }
}

#[tokio::test]
async fn a_watch_goes_on_from_its_list() {
    let server = Server::start().await;
    server
        .put("shop", "web", &files(&web("shop", "web", 1)))
        .await;
    let (_, list) = server.get(&server.admin, SHOP).await;
    let version = list["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    // These happen between the list and the watch, and must not be missed.
    server
        .put("shop", "db", &files(&web("shop", "db", 1)))
        .await;
    server
        .put("shop", "web", &files(&web("shop", "web", 2)))
        .await;
    let mut lines = watch(
        &server,
        &format!("{SHOP}?watch=true&resourceVersion={version}"),
    )
    .await;
    let line = lines.next().await.unwrap();
    assert_eq!(
        (&line["type"], &line["object"]["metadata"]["name"]),
        (&json!("ADDED"), &json!("db"))
    );
    let line = lines.next().await.unwrap();
    assert_eq!(
        (&line["type"], &line["object"]["spec"]["replicas"]),
        (&json!("MODIFIED"), &json!(2))
    );
    // And this happens while it is open.
    server
        .write(&[Operation::DeletePrefix(keys::workload("shop", "db"))])
        .await;
    let line = lines.next().await.unwrap();
    assert_eq!(
        (&line["type"], &line["object"]["metadata"]["name"]),
        (&json!("DELETED"), &json!("db"))
    );
}

#[tokio::test]
async fn a_watch_without_a_start_begins_with_everything_and_keeps_itself_alive() {
    let limits = Limits {
        bookmark_interval: Duration::from_millis(100),
        ..Limits::default()
    };
    let server = Server::start_with(limits).await;
    let mut lines = watch(&server, "/v1alpha1/namespaces?watch=true").await;
    for name in ["default", "kat-core", "shop"] {
        let line = lines.next().await.unwrap();
        assert_eq!(
            (&line["type"], &line["object"]["metadata"]["name"]),
            (&json!("ADDED"), &json!(name))
        );
    }
    let bookmark = lines.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    let version = bookmark["object"]["resourceVersion"].as_str().unwrap();
    assert_eq!(version, server.store.revision().to_string());
    let mut from = watch(
        &server,
        &format!("/v1alpha1/namespaces?watch=true&resourceVersion={version}"),
    )
    .await;
    assert_eq!(
        from.next().await.unwrap()["type"],
        "BOOKMARK",
        "nothing is said twice"
    );
}

#[tokio::test]
async fn a_watch_from_too_long_ago_is_gone() {
    let server = Server::start().await;
    for version in ["0", "99999"] {
        let limits = server
            .get(
                &server.admin,
                &format!("{SHOP}?watch=true&resourceVersion={version}"),
            )
            .await;
        assert_eq!(
            (limits.0.as_u16(), &limits.1["error"]),
            (410, &json!("Gone")),
            "{version}"
        );
    }
}

#[tokio::test]
async fn a_watch_ends_with_its_token() {
    let server = Server::start().await;
    let request = json!({"scope": {"kind": "read"}, "name": "short"});
    let (_, made) = server
        .send_json(&server.admin, Method::POST, "/v1alpha1/tokens", &request)
        .await;
    let token = made["token"].as_str().unwrap().to_owned();
    let id = made["id"].as_str().unwrap().to_owned();
    let response = server
        .call(&token, Method::GET, "/v1alpha1/namespaces?watch=true")
        .await;
    let mut lines = LinesOf::new(response);
    for _ in 0..3 {
        assert_eq!(lines.next().await.unwrap()["type"], "ADDED");
    }
    let deleted = server
        .call(
            &server.admin,
            Method::DELETE,
            &format!("/v1alpha1/tokens/{id}"),
        )
        .await;
    assert_eq!(deleted.status(), 204);
    let line = lines.next().await.unwrap();
    assert_eq!(
        (&line["type"], &line["object"]["error"]),
        (&json!("ERROR"), &json!("Unauthorized"))
    );
    assert_eq!(lines.next().await, None);
    assert_eq!(server.get(&token, "/v1alpha1/namespaces").await.0, 401);
}

#[tokio::test]
async fn a_followed_log_ends_with_its_token() {
    let server = Server::start_with(Limits {
        bookmark_interval: Duration::from_millis(100),
        ..Limits::default()
    })
    .await;
    with_instance(&server).await;
    let path = format!("{WEB}/instances/web-abcde/logs?follow=true");
    let mut follows = Vec::new();
    // One is revoked, the other runs out.
    for ttl in [json!(null), json!(1)] {
        let request = json!({"scope": {"kind": "read"}, "name": "short", "ttlSeconds": ttl});
        let (_, made) = server
            .send_json(&server.admin, Method::POST, "/v1alpha1/tokens", &request)
            .await;
        let token = made["token"].as_str().unwrap();
        let mut lines = LinesOf::new(server.call(token, Method::GET, &path).await);
        for _ in 0..3 {
            assert!(lines.next().await.unwrap().get("error").is_none());
        }
        follows.push(lines);
        if ttl.is_null() {
            let id = made["id"].as_str().unwrap();
            let path = format!("/v1alpha1/tokens/{id}");
            let deleted = server.call(&server.admin, Method::DELETE, &path).await;
            assert_eq!(deleted.status(), 204);
        }
    }
    // The log says nothing itself.
    for mut lines in follows {
        let line = lines.next().await.unwrap();
        assert_eq!(
            (&line["message"], &line["error"]["error"]),
            (&json!(""), &json!("Unauthorized"))
        );
        assert_eq!(lines.next().await, None);
    }
    // One whose token is still good goes on.
    let mut lines = LinesOf::new(server.call(&server.read, Method::GET, &path).await);
    for _ in 0..3 {
        lines.next().await.unwrap();
    }
    let more = tokio::time::timeout(Duration::from_millis(400), lines.next());
    assert!(more.await.is_err());
}

#[tokio::test]
async fn tokens_are_shown_once_and_stored_hashed() {
    let server = Server::start().await;
    let request =
        json!({"scope": {"kind": "deploy", "namespace": "shop"}, "name": "ci", "ttlSeconds": 60});
    let (status, made) = server
        .send_json(&server.admin, Method::POST, "/v1alpha1/tokens", &request)
        .await;
    assert_eq!(status, 201, "{made}");
    let token = made["token"].as_str().unwrap();
    let secret = token.split('.').nth(2).unwrap();
    assert_eq!(server.get(token, SHOP).await.0, 200);
    assert_eq!(
        server.get(token, "/v1alpha1/n/default/workloads").await.0,
        403
    );
    let stored = server.stored();
    assert!(
        !stored
            .iter()
            .any(|(_, value)| String::from_utf8_lossy(value).contains(secret))
    );
    let (_, list) = server.get(&server.admin, "/v1alpha1/tokens").await;
    let shown = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["name"] == "ci")
        .unwrap();
    assert_eq!(shown.get("token"), None);
    assert!(shown["expires"].is_string());
    for body in [
        json!({"scope": {"kind": "deploy", "namespace": "none"}}),
        json!({"scope": {"kind": "root"}}),
        json!({"scope": {"kind": "read"}, "ttlSeconds": 0}),
    ] {
        let (status, answer) = server
            .send_json(&server.admin, Method::POST, "/v1alpha1/tokens", &body)
            .await;
        assert!(status == 400 || status == 404, "{body}: {status} {answer}");
    }
    assert_eq!(server.stored(), stored);
}

#[tokio::test]
async fn logs_are_read_and_followed() {
    let server = Server::start().await;
    with_instance(&server).await;
    let path = format!("{WEB}/instances/web-abcde/logs");
    let asked = format!("{path}?tail=2&since=2026-01-01T00:00:00Z");
    let mut lines = LinesOf::new(server.call(&server.deploy, Method::GET, &asked).await);
    for number in 0..3 {
        assert_eq!(
            lines.next().await.unwrap()["message"],
            format!("web-abcde line {number}")
        );
    }
    assert_eq!(lines.next().await, None);
    let query = server.logs.asked.lock().unwrap().pop().unwrap();
    assert_eq!((query.follow, query.tail), (false, Some(2)));
    assert_eq!(query.since, Some("2026-01-01T00:00:00Z".parse().unwrap()));

    let mut follows = LinesOf::new(
        server
            .call(&server.read, Method::GET, &format!("{path}?follow=true"))
            .await,
    );
    follows.next().await.unwrap();
    assert_eq!(
        server
            .get(&server.read, &format!("{path}?since=yesterday"))
            .await
            .0,
        400
    );
    assert_eq!(
        server
            .get(&server.read, &format!("{WEB}/instances/other-abcde/logs"))
            .await
            .0,
        404
    );
    // An instance is not found under another workload's name.
    let other = "/v1alpha1/n/shop/workloads/db/instances/web-abcde/logs";
    assert_eq!(server.get(&server.read, other).await.0, 404);
    // Streams do not hold up the end.
    server.stop().await;
    follows.next().await;
    follows.next().await;
    assert_eq!(follows.next().await, None);
}

/// The caller learns which machine it is, and that others answer.
/// The journal goes on for ever; the instance does not.
#[tokio::test]
async fn a_followed_log_ends_with_its_instance() {
    let server = Server::start().await;
    with_instance(&server).await;
    let path = format!("{WEB}/instances/web-abcde/logs?follow=true");
    let mut lines = LinesOf::new(server.call(&server.read, Method::GET, &path).await);
    for _ in 0..3 {
        lines.next().await.unwrap();
    }
    // A change that is not its end, and its end.
    let meta = |count: u32| json!({"schema": 1, "revision": 2, "count": count});
    server
        .write(&[put(keys::desired_meta("n1"), &meta(1))])
        .await;
    let going_on = tokio::time::timeout(Duration::from_secs(3), lines.next()).await;
    assert!(going_on.is_err(), "{going_on:?}");
    server
        .write(&[
            Operation::Delete(keys::desired_instance("n1", "web-abcde")),
            put(keys::desired_meta("n1"), &meta(0)),
        ])
        .await;
    assert_eq!(lines.next().await, None);
}

#[tokio::test]
async fn a_log_of_a_machine_that_is_away_says_so() {
    let server = Server::start().await;
    with_instance(&server).await;
    let path = format!("{WEB}/instances/web-abcde/logs");
    server
        .logs
        .break_off("the machine `n1` can't be reached", 2);
    let mut lines = LinesOf::new(server.call(&server.read, Method::GET, &path).await);
    for _ in 0..2 {
        assert!(lines.next().await.unwrap().get("error").is_none());
    }
    let last = lines.next().await.unwrap();
    assert_eq!(last["error"]["error"], "MachineAway");
    assert_eq!(
        last["error"]["message"],
        "the machine `n1` can't be reached"
    );
    assert_eq!(lines.next().await, None);
    server
        .logs
        .break_off("the machine `n1` can't be reached", 0);
    let (status, answer) = server.get(&server.read, &path).await;
    assert_eq!(
        (status.as_u16(), &answer["error"]),
        (502, &json!("MachineAway"))
    );
    let both = format!("{path}?previous=true&follow=true");
    assert_eq!(server.get(&server.read, &both).await.0, 400);
}

#[tokio::test]
async fn a_machine_reports_for_itself_alone() {
    let server = Server::start().await;
    let report = |name: &str, uid: &str| json!({"nodeName": name, "nodeUID": uid, "workloadInstances": [{"instanceID": "web-abcde", "memory": 4096}]});
    let node = server.client(Some(&server.node_leaf("n1")));
    let send = async |client: &reqwest::Client, path: &str, body: Value| {
        let path = server.url(path);
        read(client.post(path).json(&body).send().await.unwrap()).await
    };
    let status = "/v1alpha1/nodes/n1/status";
    let (code, body) = send(&node, status, report("n1", NODE_UID)).await;
    assert_eq!(code, 204, "{body}");
    let observed = server.handle.reports.observed(Duration::ZERO);
    assert_eq!(
        observed.reports["n1"].report.workload_instances[0].memory,
        Some(4096)
    );

    for (path, body) in [
        (status, report("n2", NODE_UID)),
        (status, report("n1", "another-uid")),
        ("/v1alpha1/nodes/n2/status", report("n2", "uid")),
    ] {
        let (code, answer) = send(&node, path, body).await;
        assert_eq!(code, 403, "{path}: {answer}");
    }
    let unregistered = server.client(Some(&server.node_leaf("n3")));
    let (code, _) = send(
        &unregistered,
        "/v1alpha1/nodes/n3/status",
        report("n3", "uid"),
    )
    .await;
    assert_eq!(code, 404);
    // A machine may do nothing else, and an administrator does not report for one.
    assert_eq!(
        node.get(server.url("/v1alpha1/nodes"))
            .send()
            .await
            .unwrap()
            .status(),
        403
    );
    let request = server
        .client(None)
        .post(server.url(status))
        .bearer_auth(&server.admin);
    let refused = request.json(&report("n1", NODE_UID)).send().await.unwrap();
    assert_eq!(refused.status(), 403);
    assert_eq!(
        server.handle.reports.observed(Duration::ZERO).reports.len(),
        1
    );

    // What a machine said lives in memory, and shows.
    with_instance(&server).await;
    let (_, item) = server
        .get(&server.read, "/v1alpha1/n/shop/instances/web-abcde")
        .await;
    assert_eq!(item["status"]["memory"], 4096, "{item}");
    assert!(!item.to_string().contains("correct-horse"));
    let (_, node) = server.get(&server.read, "/v1alpha1/nodes/n1").await;
    assert!(node["status"]["lastHeartbeat"].is_string(), "{node}");
    assert_eq!(node["status"]["roles"], json!(["leader", "etcd", "worker"]));
}

#[tokio::test]
async fn an_admin_certificate_is_as_good_as_an_admin_token() {
    let server = Server::start().await;
    let name = "ada".to_owned();
    let admin = server.client(Some(&server.leaf(&LeafKind::Admin { name })));
    let response = admin
        .get(server.url("/v1alpha1/tokens"))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let name = "n1".to_owned();
    let leader = server.client(Some(&server.leaf(&LeafKind::Leader { name })));
    let response = leader
        .get(server.url("/v1alpha1/tokens"))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 403);
}

#[tokio::test]
async fn local_sockets_need_no_token() {
    let server = Server::start().await;
    with_instance(&server).await;
    let client = |name: &str| {
        reqwest::Client::builder()
            .unix_socket(server.socket(name))
            .build()
            .unwrap()
    };
    let get = async |client: &reqwest::Client, path: &str| {
        read(
            client
                .get(format!("http://localhost{path}"))
                .send()
                .await
                .unwrap(),
        )
        .await
    };
    let admin = client("admin.sock");
    assert_eq!(get(&admin, "/v1alpha1/tokens").await.0, 200);
    let machine = client("machine.sock");
    for (path, status) in [
        ("/v1alpha1/tokens", 403),
        ("/v1alpha1/workloads", 403),
        ("/v1alpha1/nodes/n2", 404),
        ("/v1alpha1/nodes/n1", 200),
        ("/version", 200),
    ] {
        assert_eq!(get(&machine, path).await.0, status, "{path}");
    }
    let (_, instances) = get(&machine, "/v1alpha1/instances").await;
    assert_eq!(instances["items"].as_array().unwrap().len(), 1);
    let other = server
        .store
        .peek(&keys::desired_instance("n1", "web-abcde"))
        .items
        .remove(0)
        .value;
    server
        .write(&[Operation::Delete(keys::desired_instance("n1", "web-abcde"))])
        .await;
    server
        .write(&[Operation::Put(
            keys::desired_instance("n2", "web-abcde"),
            other,
        )])
        .await;
    let (_, instances) = get(&machine, "/v1alpha1/instances").await;
    assert_eq!(
        instances["items"],
        json!([]),
        "another machine's instances are not shown"
    );
}

#[tokio::test]
async fn health_version_metrics_and_description() {
    let server = Server::start().await;
    let backup = json!({"node": "", "failing": false});
    assert_eq!(
        server.get("", "/healthz").await,
        (
            reqwest::StatusCode::OK,
            json!({"status": "ok", "leader": true, "stale": false, "backup": backup})
        )
    );
    assert_eq!(server.get("", "/version").await.1["version"], kat::VERSION);
    assert_eq!(server.get("", "/metrics").await.0, 401);
    assert_eq!(
        server.get(&server.deploy, "/openapi.json").await.1["openapi"],
        "3.1.0"
    );
    let status = NodeStatusRecord::default();
    server.write(&[put(keys::node_status("n1"), &status)]).await;
    let (_, metrics) = server.get(&server.read, "/metrics").await;
    assert_eq!(metrics["nodes"], json!({"Joining": 1}));
    let calls = metrics["calls"].as_array().unwrap();
    let health = calls
        .iter()
        .find(|call| call["route"] == "/healthz")
        .unwrap();
    assert_eq!(
        (&health["count"], &health["status"]),
        (&json!(1), &json!(200))
    );
    let (status, text) = server.get(&server.read, "/metrics?format=prometheus").await;
    assert_eq!(status, 200);
    assert!(text.as_str().unwrap().contains("kat_leader 1\n"), "{text}");
    let request = server
        .client(None)
        .get(server.url("/metrics"))
        .bearer_auth(&server.read);
    let response = request.header("accept", "text/plain").send().await.unwrap();
    assert!(response.text().await.unwrap().starts_with("# HELP"));
    let (_, cluster) = server.get(&server.read, "/v1alpha1/config/cluster").await;
    assert_eq!(cluster["spec"]["apiPort"], 9115);
}

#[tokio::test]
async fn a_machine_that_does_not_lead_says_who_does() {
    let server = Server::start().await;
    server.leaderships.send_replace(None);
    let before = server.stored();
    let (status, body) = server
        .put("shop", "web", &files(&web("shop", "web", 1)))
        .await;
    assert_eq!(
        (status.as_u16(), &body["error"]),
        (503, &json!("NotLeader"))
    );
    assert!(
        body["hint"].as_str().unwrap().contains("192.0.2.1:9115"),
        "{body}"
    );
    let request = server.client(None).get(server.url(SHOP));
    let answer = request.bearer_auth(&server.read).send().await.unwrap();
    assert_eq!(answer.status(), 200, "reads go on");
    assert!(!answer.headers().contains_key("kat-stale"));
    assert_eq!(server.stored(), before);
    // One of three that hold the store, none of which leads: it says what is the matter.
    let member = json!({"id": "1", "voting": true, "healthy": true});
    let members = json!({"n1": member, "n2": member, "n3": member});
    let members = json!({"schema": 1, "members": members});
    server
        .write(&[put(keys::MEMBERS.to_owned(), &members)])
        .await;
    let (status, body) = server
        .put("shop", "web", &files(&web("shop", "web", 1)))
        .await;
    assert_eq!(
        (status.as_u16(), &body["error"]),
        (503, &json!("NotLeader"))
    );
    let message = body["message"].as_str().unwrap();
    assert!(message.contains("the 3 machines"), "{message}");
    let (status, health) = server.get("", "/healthz").await;
    let backup = json!({"node": "", "failing": false});
    assert_eq!(status, 200, "reads go on, and say that they may be old");
    assert_eq!(
        health,
        json!({"status": "ok", "leader": false, "stale": true, "backup": backup})
    );
    let request = server.client(None).get(server.url(SHOP));
    let request = request.bearer_auth(&server.read);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["kat-stale"], "true");
}

#[tokio::test]
async fn a_deposed_leader_writes_nothing() {
    let server = Server::start().await;
    let leadership = server.handle.leadership.borrow().clone().unwrap();
    // Somebody else took over, and this machine does not know it yet.
    server
        .write(&[Operation::Delete(leadership.key.clone())])
        .await;
    let before = server.stored();
    let body = json!({"metadata": {"name": "late"}});
    let (status, body) = server
        .send_json(&server.admin, Method::POST, "/v1alpha1/namespaces", &body)
        .await;
    assert_eq!(
        (status.as_u16(), &body["error"]),
        (503, &json!("NotLeader")),
        "{body}"
    );
    assert_eq!(server.stored(), before);
}

#[tokio::test]
async fn a_retry_after_an_unknown_outcome_is_safe() {
    let server = Server::start().await;
    let text = web("shop", "web", 1);
    server.written_through.lose_answers(1);
    let (status, body) = server.put("shop", "web", &files(&text)).await;
    assert_eq!(
        (status.as_u16(), &body["error"]),
        (503, &json!("Unavailable")),
        "{body}"
    );
    assert!(body["hint"].as_str().unwrap().contains("again"), "{body}");
    let before = server.stored();
    let (status, body) = server.put("shop", "web", &files(&text)).await;
    assert_eq!(
        (status.as_u16(), &body["outcome"]),
        (200, &json!("unchanged")),
        "{body}"
    );
    assert_eq!(body["metadata"]["generation"], 1);
    assert_eq!(server.stored(), before);
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn every_call_leaves_one_line_without_secrets() {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    // The runtime of a test has one thread, so the server writes here too.
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Server::start().await;
    server
        .put("shop", "web", &files(&web("shop", "web", 1)))
        .await;
    server
        .get(&server.read, "/v1alpha1/tokens?watch=true")
        .await;
    server
        .get("kat1.0123456789ab.wrong", "/v1alpha1/nowhere")
        .await;
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.contains(" audit: "))
        .collect();
    assert_eq!(lines.len(), 3, "{text}");
    let id = |token: &str| {
        format!(
            "by token:{} from 127.0.0.1:",
            token.split('.').nth(1).unwrap()
        )
    };
    for (line, parts) in lines.iter().zip([
        [format!("PUT {WEB} 201 "), id(&server.admin)],
        ["GET /v1alpha1/tokens 403 ".to_owned(), id(&server.read)],
        [
            "GET /v1alpha1/nowhere 404 ".to_owned(),
            "by anonymous from 127.0.0.1:".to_owned(),
        ],
    ]) {
        for part in parts {
            assert!(line.contains(&part), "{part} is missing in {line}");
        }
        assert!(line.ends_with(" ms"), "{line}");
    }
    for secret in [
        server.admin.rsplit('.').next().unwrap(),
        "wrong",
        "correct-horse",
    ] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}

#[tokio::test]
async fn http_2_and_http_1_both_work_and_a_renewed_leaf_is_used() {
    let server = Server::start().await;
    let response = server.call("", Method::GET, "/version").await;
    assert_eq!(response.version(), reqwest::Version::HTTP_2);
    let authority =
        reqwest::Certificate::from_pem(server.authority.certificate_pem().as_bytes()).unwrap();
    let old = reqwest::Client::builder()
        .tls_certs_only([authority])
        .http1_only()
        .build()
        .unwrap();
    let response = old.get(server.url("/version")).send().await.unwrap();
    assert_eq!(response.version(), reqwest::Version::HTTP_11);
    assert_eq!(response.headers()["cache-control"], "no-store");
    server.identity.replace(&server.node_leaf("n1")).unwrap();
    assert_eq!(server.get("", "/version").await.0, 200);
}

#[tokio::test]
async fn a_caller_that_asks_too_often_is_slowed_down() {
    let one = std::num::NonZeroU32::new(1).unwrap();
    let limits = Limits {
        calls_per_second: one,
        call_burst: std::num::NonZeroU32::new(3).unwrap(),
        ..Limits::default()
    };
    let server = Server::start_with(limits).await;
    let client = server.client(None);
    let mut statuses = Vec::new();
    let mut waits = Vec::new();
    for _ in 0..6 {
        let request = client.get(server.url(SHOP)).bearer_auth(&server.read);
        let response = request.send().await.unwrap();
        statuses.push(response.status().as_u16());
        waits.extend(response.headers().get("retry-after").cloned());
    }
    assert_eq!(statuses.first(), Some(&200));
    assert!(statuses.contains(&429), "{statuses:?}");
    assert!(
        waits
            .iter()
            .all(|wait| wait.to_str().unwrap().parse::<u64>().unwrap() >= 1)
    );
    assert_eq!(
        server.get(&server.admin, SHOP).await.0,
        200,
        "others are not"
    );
}

#[tokio::test]
async fn the_client_and_the_server_understand_each_other() {
    let server = Server::start().await;
    let connection = Connection {
        cluster: "home".to_owned(),
        cluster_uid: CLUSTER_UID.to_owned(),
        endpoints: vec![format!("127.0.0.1:{}", server.port)],
        ca: server.authority.certificate_pem().to_owned(),
        token: server.admin.clone(),
    };
    let client = Client::from_connection(&connection, Options::default()).unwrap();
    client.healthz().await.unwrap();
    let mut follow = client.follow::<WorkloadItem>(Route::workloads(Some("shop")).unwrap(), false);
    let first = tokio::time::timeout(DEADLINE, follow.next()).await.unwrap();
    assert!(matches!(first.unwrap(), Change::Listed(items) if items.is_empty()));
    let text = web("shop", "web", 1);
    let sent = archive(&files(&text));
    for (dry_run, outcome) in [(true, "created"), (false, "created"), (false, "unchanged")] {
        let applied = client
            .apply("shop", "web", sent.clone().into(), dry_run, None)
            .await
            .unwrap();
        assert_eq!(
            (applied.result.outcome.as_str(), applied.dry_run),
            (outcome, dry_run)
        );
    }
    let next = tokio::time::timeout(DEADLINE, follow.next()).await.unwrap();
    assert!(matches!(next.unwrap(), Change::Changed(item) if item.metadata.name == "web"));
    assert_eq!(client.files("shop", "web").await.unwrap(), ["workload.kat"]);
    assert_eq!(
        client.file("shop", "web", "workload.kat").await.unwrap(),
        text
    );
    let events = client.events(&EventQuery::default()).await.unwrap();
    assert_eq!(events.items.len(), 1);
    let how = Deletion::default();
    client.delete_workload("shop", "web", how).await.unwrap();
    let gone = client.workload("shop", "none").await.unwrap_err();
    assert!(gone.is_not_found(), "{gone}");
    let socket =
        Client::from_unix_socket(&server.socket("admin.sock"), Options::default()).unwrap();
    assert_eq!(socket.version().await.unwrap().version, kat::VERSION);
    let report = NodeReport {
        node_name: "n1".to_owned(),
        node_uid: NODE_UID.to_owned(),
        ..NodeReport::default()
    };
    let leaf = server.node_leaf("n1");
    let identity = format!("{}{}", leaf.certificate_pem, leaf.key_pem);
    let (endpoints, ca) = (&connection.endpoints, &connection.ca);
    let node = Client::from_identity(endpoints, CLUSTER_UID, ca, &identity, Options::default());
    node.unwrap().report("n1", &report).await.unwrap();
    assert_eq!(
        server.handle.reports.observed(Duration::ZERO).reports.len(),
        1
    );
}
