//! Other ways to join, and machines of other versions.

use super::*;

/// Joining without a token, as the specification permits: off by default, and only for a limited
/// time.
#[tokio::test]
async fn without_a_token_only_while_the_network_is_trusted() {
    let server = server().await;
    let before = server.stored();
    let trusting = kat_types::api::TRUSTING;
    let refused = async |number: u8, status: StatusCode, words: &str| {
        let name = format!("n{number}");
        let (found, answer) = join(&server, trusting, &fresh(&name, number)).await;
        assert_eq!(found, status, "{answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    };
    refused(2, StatusCode::UNAUTHORIZED, "no machine without a token").await;
    assert_eq!(server.stored(), before);
    // A token with a secret does not permit joining without a token. The token that does must be
    // for joining and must expire.
    token(&server, &json!({"uses": 5})).await;
    refused(2, StatusCode::UNAUTHORIZED, "no machine without a token").await;
    let make = async |request: Value| {
        let admin = &server.admin;
        server
            .send_json(admin, Method::POST, TOKENS, &request)
            .await
    };
    for wrong in [
        json!({"scope": {"kind": "admin"}, "ttlSeconds": 60, "insecureTrustNetwork": true}),
        json!({"scope": {"kind": "join"}, "uses": 1, "insecureTrustNetwork": true}),
        json!({"scope": {"kind": "join"}, "uses": 1, "ttlSeconds": 86401, "insecureTrustNetwork": true}),
        json!({"scope": {"kind": "join"}, "ttlSeconds": 60, "insecureTrustNetwork": true}),
    ] {
        let (status, answer) = make(wrong).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    }
    let open = json!({
        "scope": {"kind": "join"}, "ttlSeconds": 3600, "uses": 1, "insecureTrustNetwork": true
    });
    let (status, made) = make(open).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    assert_eq!(made["token"], Value::Null, "nobody needs its secret");
    assert_eq!(made["insecureTrustNetwork"], true);
    // The token opens the routes that a machine reads before it joins, and no others.
    for (path, expected) in [
        ("/v1alpha1/config/cluster", 200),
        ("/v1alpha1/nodes", 403),
        ("/v1alpha1/tokens", 403),
    ] {
        let (status, answer) = server.get(trusting, path).await;
        assert_eq!(status, expected, "{path} {answer}");
    }
    // A request without any token is still unauthorized.
    let (status, _) = server.get("", "/v1alpha1/config/cluster").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let second = fresh("n2", 2);
    let (status, answer) = join(&server, trusting, &second).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    refused(3, StatusCode::FORBIDDEN, "used up").await;
    // A used-up token opens no route any more, but the machine that joined with it may repeat its
    // request.
    let (status, answer) = server.get(trusting, "/v1alpha1/config/cluster").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
    assert!(
        answer["message"].as_str().unwrap().contains("used up"),
        "{answer}"
    );
    let (status, answer) = join(&server, trusting, &second).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let id = made["id"].as_str().unwrap();
    let path = format!("{TOKENS}/{id}");
    let (status, _) = server
        .send_json(&server.admin, Method::DELETE, &path, &json!({}))
        .await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    refused(3, StatusCode::UNAUTHORIZED, "no machine without a token").await;
    // An expired token permits nothing.
    let mut record: TokenRecord = serde_json::from_value(json!({
        "schema": 1, "hash": "", "scope": {"kind": "join"}, "created": "2020-01-01T00:00:00Z",
        "expires": "2020-01-02T00:00:00Z", "insecureTrustNetwork": true
    }))
    .unwrap();
    let key = keys::token("0123456789ab");
    server.write(&[put(key.clone(), &record)]).await;
    refused(3, StatusCode::UNAUTHORIZED, "no machine without a token").await;
    record.expires = None;
    record.scope = kat_types::api::Scope::Admin;
    server.write(&[put(key, &record)]).await;
    refused(3, StatusCode::UNAUTHORIZED, "no machine without a token").await;
}

#[tokio::test]
async fn a_machine_asks_for_a_part_of_the_store_or_for_none() {
    let server = server().await;
    let (token, _) = token(&server, &json!({})).await;
    let mut asks = fresh("n2", 2);
    asks["etcdPeer"] = json!(true);
    asks["noEtcd"] = json!(true);
    let (status, answer) = join(&server, &token, &asks).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    asks["noEtcd"] = json!(false);
    let (status, answer) = join(&server, &token, &asks).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let registration: NodeRegistration = stored(&server, &keys::registration("n2"));
    assert!(
        registration.etcd_peer && !registration.etcd,
        "the leader decides"
    );
    // The machine joins again and no longer asks to be a member of etcd.
    asks["etcdPeer"] = json!(false);
    let (status, answer) = join(&server, &token, &asks).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let registration: NodeRegistration = stored(&server, &keys::registration("n2"));
    assert!(!registration.etcd_peer);
}

/// Agents of the previous and of the next version report to the same leader.
#[tokio::test]
async fn reports_of_other_versions_are_taken() {
    let server = server().await;
    let leaf = server.node_leaf("n1");
    let instance = json!({
        "workloadName": "web", "namespace": "default", "instanceID": "web-aaaaa",
        "phase": "Running", "healthStatus": "healthy", "state": "running",
    });
    let older =
        json!({"nodeName": "n1", "nodeUID": support::NODE_UID, "workloadInstances": [instance]});
    let mut newer = older.clone();
    newer["fromLater"] = json!({"a": [1, "b"]});
    newer["conditions"] = json!([{"type": "Mood", "status": true, "colour": "blue"}]);
    newer["workloadInstances"][0]["phase"] = json!("Hibernating");
    newer["workloadInstances"][0]["healthStatus"] = json!("sleepy");
    newer["workloadInstances"][0]["state"] = json!("frozen");
    newer["workloadInstances"][0]["temperature"] = json!(36.6);
    newer["overlayNetwork"] = json!({"status": "woven"});
    newer["assignmentSchema"] = json!(7);
    for report in [older, newer] {
        let url = server.url("/v1alpha1/nodes/n1/status");
        let client = server.client(Some(&leaf));
        let response = client.post(url).json(&report).send().await.unwrap();
        let (status, answer) = read(response).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{answer}");
    }
    // A phase that is not a string is still refused.
    let broken = json!({"nodeName": "n1", "nodeUID": support::NODE_UID, "workloadInstances": [{"phase": 7}]});
    let url = server.url("/v1alpha1/nodes/n1/status");
    let client = server.client(Some(&leaf));
    let response = client.post(url).json(&broken).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}
