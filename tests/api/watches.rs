//! Watches of lists.

use super::*;

async fn watch(server: &Server, path: &str) -> LinesOf {
    LinesOf::new(server.call(&server.admin, Method::GET, path).await)
}

#[tokio::test]
async fn a_watch_outlives_the_time_for_the_head_of_a_request() {
    let header_timeout = Duration::from_millis(300);
    let server = Server::start_with(ApiLimits {
        header_timeout,
        bookmark_interval: Duration::from_millis(100),
        ..ApiLimits::default()
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
    // These changes happen between the list and the watch and must not be missed.
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
    // This change happens while the watch is open.
    server
        .write(&[WriteOperation::DeletePrefix(keys::workload("shop", "db"))])
        .await;
    let line = lines.next().await.unwrap();
    assert_eq!(
        (&line["type"], &line["object"]["metadata"]["name"]),
        (&json!("DELETED"), &json!("db"))
    );
}

#[tokio::test]
async fn a_watch_without_a_start_begins_with_everything_and_keeps_itself_alive() {
    let limits = ApiLimits {
        bookmark_interval: Duration::from_millis(100),
        ..ApiLimits::default()
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
