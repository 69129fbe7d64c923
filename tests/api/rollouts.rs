//! Generations, rollbacks, pauses, scaling and restarts through the API.

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    WEB, files,
    support::{Server, put, read, web},
};
use kat_types::store::{keys, records::WorkloadMeta, transaction::WriteOperation};

fn meta(server: &Server) -> WorkloadMeta {
    let key = keys::workload_meta("shop", "web");
    let items = server.store.peek(&key).items;
    serde_json::from_slice(&items[0].value).unwrap()
}

fn file(server: &Server) -> String {
    let key = keys::manifest("shop", "web", "workload.kat");
    String::from_utf8(server.store.peek(&key).items[0].value.clone()).unwrap()
}

/// Stores which generations were completely healthy.
async fn are_good(server: &Server, good: &[u64]) {
    let status = json!({"schema": 1, "status": {"phase": "Running"}, "good": good});
    let key = keys::workload_status("shop", "web");
    server.write(&[put(key, &status)]).await;
}

async fn ask(server: &Server, method: Method, what: &str, body: &Value) -> (u16, Value) {
    let path = format!("{WEB}/{what}");
    let (status, body) = server.send_json(&server.deploy, method, &path, body).await;
    (status.as_u16(), body)
}

/// A version of `web` with a confidential value.
fn version(number: u32) -> String {
    let text = web("shop", "web", 3);
    let text = text.replace(
        "registry.lab:5000/web:1",
        &format!("registry.example/web:{number}"),
    );
    text.replace("correct-horse", &format!("s3cret-{number}"))
}

async fn apply(server: &Server, text: &str) {
    let (status, body) = server.put("shop", "web", &files(text)).await;
    assert!(status.is_success(), "{body}");
}

#[tokio::test]
async fn a_rollback_takes_the_last_good_generation_or_the_one_that_is_named() {
    let server = Server::start().await;
    for number in 1..=3 {
        apply(&server, &version(number)).await;
    }
    let hash = meta(&server).template_hash;

    let (status, refused) = ask(&server, Method::POST, "rollback", &json!({})).await;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(
        refused["message"],
        "`shop/web` has no earlier generation that was wholly healthy"
    );
    let (status, refused) = ask(&server, Method::POST, "rollback", &json!({"to": 7})).await;
    assert_eq!(status, 404);
    assert_eq!(refused["message"], "no generation 7: kept are 1 to 3");

    // The last good generation is no longer kept.
    are_good(&server, &[0]).await;
    let (status, refused) = ask(&server, Method::POST, "rollback", &json!({})).await;
    assert_eq!(status, 409, "{refused}");
    let hint = refused["hint"].as_str().unwrap();
    assert!(hint.contains("kept are 1 to 3"), "{refused}");

    are_good(&server, &[1, 2]).await;
    let (status, body) = ask(&server, Method::POST, "rollback", &json!({})).await;
    assert_eq!(
        (status, &body["outcome"]),
        (200, &json!("updated")),
        "{body}"
    );
    assert_eq!(body["metadata"]["generation"], 4);
    assert_eq!(file(&server), version(2));
    assert_ne!(meta(&server).template_hash, hash);

    // A rollback to the current content changes nothing, whether its current or its original
    // generation is named.
    let before = server.stored();
    for to in [2, 4] {
        let (status, body) = ask(&server, Method::POST, "rollback", &json!({"to": to})).await;
        assert_eq!(
            (status, &body["outcome"]),
            (200, &json!("unchanged")),
            "{body}"
        );
    }
    assert_eq!(server.stored(), before);

    // A rollback to generation 3 restores the template that ran then.
    let (_, body) = ask(&server, Method::POST, "rollback", &json!({"to": 3})).await;
    assert_eq!(body["metadata"]["generation"], 5);
    assert_eq!(meta(&server).template_hash, hash);

    let (_, list) = server
        .get(&server.read, &format!("{WEB}/generations"))
        .await;
    let shown: Vec<_> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            json!([
                one["generation"],
                one["origin"],
                one["of"],
                one["image"],
                one["good"],
                one["current"]
            ])
        })
        .collect();
    assert_eq!(
        shown,
        [
            json!([1, "Applied", null, "registry.example/web:1", true, false]),
            json!([2, "Applied", null, "registry.example/web:2", true, false]),
            json!([3, "Applied", null, "registry.example/web:3", false, false]),
            json!([4, "RolledBack", 2, "registry.example/web:2", false, false]),
            json!([5, "RolledBack", 3, "registry.example/web:3", false, true]),
        ]
    );
    assert!(!list.to_string().contains("s3cret"), "{list}");
    let events = server
        .get(&server.admin, "/v1alpha1/events?resourceName=web")
        .await
        .1;
    assert!(
        events
            .to_string()
            .contains("generation 4 is generation 2 again"),
        "{events}"
    );
    assert!(!events.to_string().contains("s3cret"), "{events}");
}

#[tokio::test]
async fn a_number_changes_one_word_of_the_file_and_replaces_nothing() {
    let server = Server::start().await;
    let text = web("shop", "web", 3).replace("replicas: 3", "replicas: 3   # for the weekend");
    apply(&server, &text).await;
    let before = meta(&server);
    let (status, body) = ask(&server, Method::PUT, "replicas", &json!({"replicas": 5})).await;
    assert_eq!(
        (status, &body["outcome"]),
        (200, &json!("updated")),
        "{body}"
    );
    assert_eq!(file(&server), text.replace("replicas: 3", "replicas: 5"));
    let after = meta(&server);
    assert_eq!(after.generation, 2);
    assert_eq!(after.template_hash, before.template_hash);
    assert_ne!(after.spec_hash, before.spec_hash);
    let (_, body) = ask(&server, Method::PUT, "replicas", &json!({"replicas": 5})).await;
    assert_eq!(body["outcome"], "unchanged");
    let (status, body) = ask(&server, Method::PUT, "replicas", &json!({"replicas": 5000})).await;
    assert_eq!(status, 400);
    assert!(
        body["message"].as_str().unwrap().contains("0 to 1000"),
        "{body}"
    );
    // Applying the original folder again restores its number of replicas.
    apply(&server, &text).await;
    assert_eq!((meta(&server).generation, file(&server)), (3, text));
}

#[tokio::test]
async fn a_restart_is_done_once_and_outlives_an_apply() {
    let server = Server::start().await;
    apply(&server, &version(1)).await;
    let plain = meta(&server).template_hash;
    let at = json!({"restartedAt": "2026-11-20T10:00:00Z"});
    for (outcome, generation) in [("updated", 2), ("unchanged", 2)] {
        let (status, body) = ask(&server, Method::PUT, "restart", &at).await;
        assert_eq!((status, &body["outcome"]), (200, &json!(outcome)), "{body}");
        assert_eq!(meta(&server).generation, generation);
    }
    let restarted = meta(&server).template_hash;
    assert_ne!(restarted, plain);
    apply(&server, &version(1)).await;
    assert_eq!(
        meta(&server).template_hash,
        restarted,
        "the same folder restarts nothing"
    );
    let scale = json!({"replicas": 4});
    ask(&server, Method::PUT, "replicas", &scale).await;
    assert_eq!(meta(&server).template_hash, restarted);
    let (_, body) = ask(&server, Method::POST, "rollback", &json!({"to": 1})).await;
    assert_eq!(body["outcome"], "updated", "{body}");
    assert_eq!(
        meta(&server).template_hash,
        plain,
        "what ran before is like it"
    );
    let (status, body) = ask(
        &server,
        Method::PUT,
        "restart",
        &json!({"restartedAt": "now"}),
    )
    .await;
    assert_eq!(status, 400, "{body}");
}

#[tokio::test]
async fn a_pause_is_kept_until_it_is_taken_back() {
    let server = Server::start().await;
    apply(&server, &version(1)).await;
    let path = format!("{WEB}/pause");
    for (method, outcome, paused) in [
        (Method::PUT, "updated", true),
        (Method::PUT, "unchanged", true),
        (Method::DELETE, "updated", false),
        (Method::DELETE, "unchanged", false),
        (Method::PUT, "updated", true),
    ] {
        let answer = server.call(&server.deploy, method, &path).await;
        let (status, body) = read(answer).await;
        assert_eq!(
            (status.as_u16(), &body["outcome"]),
            (200, &json!(outcome)),
            "{body}"
        );
        assert_eq!(meta(&server).paused, paused);
    }
    apply(&server, &version(2)).await;
    assert!(meta(&server).paused);
    assert_eq!(meta(&server).generation, 2, "a pause is no generation");
}

async fn stop(server: &Server, method: Method) -> Value {
    let path = format!("{WEB}/stop");
    let answer = server.call(&server.deploy, method, &path).await;
    let (status, body) = read(answer).await;
    assert_eq!(status.as_u16(), 200, "{body}");
    body
}

#[tokio::test]
async fn a_stop_remembers_the_replicas_and_a_start_restores_them() {
    let server = Server::start().await;
    apply(&server, &version(1)).await;
    let template = meta(&server).template_hash;
    let body = stop(&server, Method::DELETE).await;
    assert_eq!(body["outcome"], "unchanged", "it is not stopped");
    assert_eq!(body.get("warnings"), None, "{body}");

    let body = stop(&server, Method::PUT).await;
    assert_eq!(body["outcome"], "updated", "{body}");
    let record = meta(&server).stopped.unwrap();
    assert_eq!((record.replicas, meta(&server).generation), (3, 2));
    assert!(record.by.starts_with("token:"), "{}", record.by);
    assert!(file(&server).contains("replicas: 0"), "{}", file(&server));
    let body = stop(&server, Method::PUT).await;
    assert_eq!(body["outcome"], "unchanged", "{body}");
    assert_eq!(meta(&server).stopped.unwrap(), record);

    // Other changes of a stopped workload leave it stopped, and nothing of it can be restarted.
    let image = json!({"image": "registry.example/web:2"});
    let (status, body) = ask(&server, Method::PUT, "image", &image).await;
    assert_eq!((status, &body["outcome"]), (200, &json!("updated")));
    assert_eq!(meta(&server).stopped.unwrap(), record);
    let again = json!({"restartedAt": "2026-11-20T10:00:00Z"});
    let (status, body) = ask(&server, Method::PUT, "restart", &again).await;
    assert_eq!(status, 409, "{body}");
    assert_eq!(body["hint"], "`katcall start shop/web` starts it");

    let body = stop(&server, Method::DELETE).await;
    assert_eq!(body["outcome"], "updated", "{body}");
    assert_eq!(meta(&server).stopped, None);
    assert!(file(&server).contains("replicas: 3"), "{}", file(&server));
    let (_, body) = ask(&server, Method::POST, "rollback", &json!({"to": 1})).await;
    assert_eq!(body["outcome"], "updated", "{body}");
    assert_eq!(meta(&server).template_hash, template);
    let path = format!("{WEB}/generations");
    let (_, list) = read(server.call(&server.read, Method::GET, &path).await).await;
    let items = list["items"].as_array().unwrap();
    let origins: Vec<&str> = items
        .iter()
        .map(|one| one["origin"].as_str().unwrap())
        .collect();
    assert_eq!(
        origins,
        ["Applied", "Stopped", "ImageSet", "Started", "RolledBack"]
    );
}

#[tokio::test]
async fn whatever_gives_a_stopped_workload_replicas_starts_it() {
    let server = Server::start().await;
    apply(&server, &version(1)).await;
    let to_two = json!({"replicas": 2});
    let back = json!({"to": 1});
    for (method, what, body) in [
        (Method::PUT, "replicas", &to_two),
        (Method::POST, "rollback", &back),
    ] {
        stop(&server, Method::PUT).await;
        assert!(meta(&server).stopped.is_some());
        let (status, answer) = ask(&server, method, what, body).await;
        assert_eq!((status, &answer["outcome"]), (200, &json!("updated")));
        assert_eq!(meta(&server).stopped, None, "{what}");
    }
    stop(&server, Method::PUT).await;
    apply(&server, &version(1)).await;
    assert_eq!(meta(&server).stopped, None, "an apply overrides the stop");
    assert!(file(&server).contains("replicas: 3"), "{}", file(&server));

    // A workload that was scaled to 0 is not stopped, and has no number to restore.
    ask(&server, Method::PUT, "replicas", &json!({"replicas": 0})).await;
    let body = stop(&server, Method::PUT).await;
    assert_eq!(body["outcome"], "unchanged", "{body}");
    let body = stop(&server, Method::DELETE).await;
    assert_eq!(body["outcome"], "unchanged", "{body}");
    let warning = body["warnings"][0].as_str().unwrap();
    assert!(warning.contains("has 0 replicas"), "{warning}");
}

#[tokio::test]
async fn a_rollback_without_a_number_passes_over_a_stop() {
    let server = Server::start().await;
    apply(&server, &version(1)).await;
    apply(&server, &version(2)).await;
    stop(&server, Method::PUT).await;
    stop(&server, Method::DELETE).await;
    // The leader calls no generation without replicas good.
    are_good(&server, &[1, 2]).await;
    let (status, body) = ask(&server, Method::POST, "rollback", &json!({})).await;
    assert_eq!(
        (status, &body["outcome"]),
        (200, &json!("updated")),
        "{body}"
    );
    assert!(
        file(&server).contains("registry.example/web:1"),
        "{}",
        file(&server)
    );
    assert!(file(&server).contains("replicas: 3"), "{}", file(&server));
}

#[tokio::test]
async fn rollout_calls_need_a_deploy_token_a_current_version_and_an_undeleted_workload() {
    let server = Server::start().await;
    apply(&server, &version(1)).await;
    apply(&server, &version(2)).await;
    let old = server.store.peek(&keys::workload_meta("shop", "web")).items[0].mod_revision - 1;
    let calls = [
        (Method::POST, "rollback", json!({"to": 1})),
        (Method::PUT, "replicas", json!({"replicas": 1})),
        (
            Method::PUT,
            "restart",
            json!({"restartedAt": "2026-11-20T10:00:00Z"}),
        ),
        (Method::PUT, "pause", json!({})),
        (Method::PUT, "stop", json!({})),
        (Method::DELETE, "stop", json!({})),
    ];
    let before = server.stored();
    for (method, what, body) in &calls {
        let path = format!("{WEB}/{what}");
        let send = async |token: &str, path: &str, headers: &[(&str, String)]| {
            let mut request = server
                .client(None)
                .request(method.clone(), server.url(path));
            for (name, value) in headers {
                request = request.header(*name, value);
            }
            request
                .bearer_auth(token)
                .json(body)
                .send()
                .await
                .unwrap()
                .status()
                .as_u16()
        };
        assert_eq!(send(&server.read, &path, &[]).await, 403, "{what}");
        let stale = [("if-match", format!("\"{old}\""))];
        assert_eq!(send(&server.deploy, &path, &stale).await, 412, "{what}");
        let dry = format!("{path}?dryRun=true");
        assert_eq!(send(&server.deploy, &dry, &[]).await, 200, "{what}");
        let none = path.replace("/web/", "/none/");
        assert_eq!(send(&server.deploy, &none, &[]).await, 404, "{what}");
    }
    assert_eq!(server.stored(), before, "nothing of it wrote anything");
    server.call(&server.admin, Method::DELETE, WEB).await;
    for (method, what, body) in &calls {
        let (status, refused) = ask(&server, method.clone(), what, body).await;
        assert_eq!(status, 409, "{what}: {refused}");
        assert!(
            refused["message"]
                .as_str()
                .unwrap()
                .contains("is being deleted"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn the_last_good_generation_outlives_ten_others() {
    let server = Server::start().await;
    apply(&server, &version(1)).await;
    are_good(&server, &[1]).await;
    for number in 2..=13 {
        apply(&server, &version(number)).await;
    }
    let (_, refused) = ask(&server, Method::POST, "rollback", &json!({"to": 3})).await;
    assert_eq!(refused["message"], "no generation 3: kept are 1, 4 to 13");
    let (status, body) = ask(&server, Method::POST, "rollback", &json!({})).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(file(&server), version(1));
}

#[tokio::test]
async fn what_an_earlier_version_kept_can_be_gone_back_to() {
    let server = Server::start().await;
    apply(&server, &version(1)).await;
    apply(&server, &version(2)).await;
    let record = keys::archive_meta("shop", "web", 1);
    server.write(&[WriteOperation::Delete(record)]).await;
    let (_, list) = server
        .get(&server.read, &format!("{WEB}/generations"))
        .await;
    assert_eq!(list["items"][0]["image"], "registry.example/web:1");
    let (status, body) = ask(&server, Method::POST, "rollback", &json!({"to": 1})).await;
    assert_eq!((status, file(&server)), (200, version(1)), "{body}");
}
