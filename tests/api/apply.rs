//! What an apply and a deletion store.

use super::*;

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

    // A read right after the write shows the new state.
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
    // A status written by the leader does not count as a change.
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
