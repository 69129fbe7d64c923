//! Logs of instances.

use super::*;

#[tokio::test]
async fn a_followed_log_ends_with_its_token() {
    let server = Server::start_with(ApiLimits {
        bookmark_interval: Duration::from_millis(100),
        ..ApiLimits::default()
    })
    .await;
    with_instance(&server).await;
    let path = format!("{WEB}/instances/web-abcde/logs?follow=true");
    let mut follows = Vec::new();
    // The first token is revoked, the second one expires.
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
    // The stream ends with an error that has no log message.
    for mut lines in follows {
        let line = lines.next().await.unwrap();
        assert_eq!(
            (&line["message"], &line["error"]["error"]),
            (&json!(""), &json!("Unauthorized"))
        );
        assert_eq!(lines.next().await, None);
    }
    // A stream whose token is still valid stays open.
    let mut lines = LinesOf::new(server.call(&server.read, Method::GET, &path).await);
    for _ in 0..3 {
        lines.next().await.unwrap();
    }
    let more = tokio::time::timeout(Duration::from_millis(400), lines.next());
    assert!(more.await.is_err());
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
    let query = server.logs.asked.lock().pop().unwrap();
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
    // Open streams do not delay the server's stop.
    server.stop().await;
    follows.next().await;
    follows.next().await;
    assert_eq!(follows.next().await, None);
}

/// The journal of this test never ends, but the instance does.
#[tokio::test]
async fn a_followed_log_ends_with_its_instance() {
    let server = Server::start().await;
    with_instance(&server).await;
    let path = format!("{WEB}/instances/web-abcde/logs?follow=true");
    let mut lines = LinesOf::new(server.call(&server.read, Method::GET, &path).await);
    for _ in 0..3 {
        lines.next().await.unwrap();
    }
    // The first change leaves the instance on the list, and the second one removes it.
    let meta = |count: u32| json!({"schema": 1, "revision": 2, "count": count});
    server
        .write(&[put(keys::desired_meta("n1"), &meta(1))])
        .await;
    let going_on = tokio::time::timeout(Duration::from_secs(3), lines.next()).await;
    assert!(going_on.is_err(), "{going_on:?}");
    server
        .write(&[
            WriteOperation::Delete(keys::desired_instance("n1", "web-abcde")),
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

fn gone_instance(id: &str) -> kat_types::api::GoneInstance {
    kat_types::api::GoneInstance {
        instance: id.to_owned(),
        node: "n1".to_owned(),
        ..kat_types::api::GoneInstance::default()
    }
}

#[tokio::test]
async fn instances_that_are_gone_are_listed_and_read_by_the_workloads_identity() {
    let server = Server::start().await;
    with_instance(&server).await;
    let (_, web) = server.get(&server.admin, WEB).await;
    let uid = web["metadata"]["uid"].as_str().unwrap().to_owned();
    // One is still there, and one was of an earlier workload of the same name.
    server.logs.gone.lock().extend([
        (uid.clone(), gone_instance("web-ggggg")),
        (uid.clone(), gone_instance("web-abcde")),
        ("uid-of-before".to_owned(), gone_instance("web-earlier")),
    ]);
    let (status, found) = server
        .get(&server.read, &format!("{WEB}/gone-instances"))
        .await;
    assert_eq!(status, 200);
    let items = found["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{found}");
    assert_eq!(items[0]["instance"], "web-ggggg");

    let path = |id: &str, query: &str| format!("{WEB}/instances/{id}/logs?{query}");
    let asked = path("web-ggggg", "node=n1");
    let mut lines = LinesOf::new(server.call(&server.read, Method::GET, &asked).await);
    assert_eq!(lines.next().await.unwrap()["message"], "web-ggggg is gone");
    assert_eq!(lines.next().await, None);
    let (workload, id) = server.logs.asked_gone.lock().pop().unwrap();
    assert_eq!(
        (workload.uid.as_str(), id.as_str()),
        (uid.as_str(), "web-ggggg")
    );

    for (path, expected) in [
        // Without its machine nobody is asked.
        (path("web-ggggg", ""), 404),
        (path("web-ggggg", "node=none"), 404),
        (path("web-nobody", "node=n1"), 404),
        // What the earlier workload had is not shown, whatever the caller says of the identity.
        (path("web-earlier", "node=n1"), 404),
        (path("web-earlier", "node=n1&goneOf=uid-of-before"), 404),
        (path("web-ggggg", "node=n1&previous=true"), 400),
    ] {
        assert_eq!(server.get(&server.read, &path).await.0, expected, "{path}");
    }
    // The token of another namespace may not.
    let other = "/v1alpha1/n/default/workloads/web/gone-instances";
    assert_eq!(server.get(&server.deploy, other).await.0, 403);
}

#[tokio::test]
async fn a_machine_that_is_not_ready_is_not_asked_what_is_gone() {
    let server = Server::start().await;
    with_instance(&server).await;
    for (name, phase) in [("n4", "Ready"), ("n5", "NotReady")] {
        let registration =
            kat_types::store::records::NodeRegistration::new(name, jiff::Timestamp::UNIX_EPOCH);
        let status = json!({"schema": 1, "phase": phase});
        server
            .write(&[
                put(keys::registration(name), &registration),
                put(keys::node_status(name), &status),
            ])
            .await;
    }
    let path = format!("{WEB}/gone-instances");
    let (status, found) = server.get(&server.read, &path).await;
    assert_eq!(status, 200);
    let asked = server.logs.asked_nodes.lock().clone();
    assert!(asked.contains(&"n4".to_owned()), "{asked:?}");
    assert!(!asked.contains(&"n5".to_owned()), "{asked:?}");
    let away = found["away"].as_array().unwrap();
    assert_eq!(away.len(), 1, "{found}");
    assert_eq!(away[0]["node"], "n5");
}
