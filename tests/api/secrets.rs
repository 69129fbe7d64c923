//! Secrets: values are stored sealed and never returned, and permissions on them.

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    files,
    support::{Server, assignment, put, read, web},
};
use kat_types::{
    secrets::{SecretRecord, SecretVersion},
    store::{keys, transaction::WriteOperation},
};

const DB: &str = "/v1alpha1/n/shop/secrets/db";
const LIST: &str = "/v1alpha1/n/shop/secrets";
const KEY: &str = "/v1alpha1/sealing-key";
/// Forbidden in answers: the value and its base64.
const VALUE: &str = "hunter2-hunter2";
const ENCODED: &str = "aHVudGVyMi1odW50ZXIy";

async fn call(
    server: &Server,
    token: &str,
    method: Method,
    path: &str,
    body: Value,
) -> (u16, Value) {
    let (status, body) = server.send_json(token, method, path, &body).await;
    let text = body.to_string();
    assert!(!text.contains(VALUE) && !text.contains(ENCODED), "{text}");
    (status.as_u16(), body)
}

async fn set(server: &Server, content: Value) -> (u16, Value) {
    call(server, &server.deploy, Method::PUT, DB, content).await
}

async fn get(server: &Server, token: &str, path: &str) -> (u16, Value) {
    let (status, body) = server.get(token, path).await;
    let text = body.to_string();
    assert!(!text.contains(VALUE) && !text.contains(ENCODED), "{text}");
    (status.as_u16(), body)
}

fn stored(server: &Server) -> SecretRecord {
    let items = server.store.peek(&keys::secret("shop/db")).items;
    serde_json::from_slice(&items[0].value).unwrap()
}

/// No stored value contains the secret in clear text.
fn nothing_is_clear(server: &Server) {
    for (key, value) in server.stored() {
        let text = String::from_utf8_lossy(&value);
        assert!(!text.contains(VALUE) && !text.contains(ENCODED), "{key}");
    }
}

#[tokio::test]
async fn a_secret_is_stored_sealed_and_changes_by_its_content_alone() {
    let server = Server::start().await;
    let content = json!({"values": {"PASSWORD": ENCODED, "tls.crt": "/w=="}});
    let (status, created) = set(&server, content.clone()).await;
    assert_eq!(
        (status, &created["outcome"]),
        (201, &json!("created")),
        "{created}"
    );
    assert_eq!(created["metadata"]["generation"], 1);
    nothing_is_clear(&server);
    let before = server.stored();
    let (status, again) = set(&server, content).await;
    assert_eq!(
        (status, &again["outcome"]),
        (200, &json!("unchanged")),
        "{again}"
    );
    assert_eq!(server.stored(), before, "the same content writes nothing");

    let (status, item) = get(&server, &server.read, DB).await;
    assert_eq!(status, 200, "{item}");
    assert_eq!(item["kind"], "Secret");
    let keys = json!([{"name": "PASSWORD", "size": 15}, {"name": "tls.crt", "size": 1}]);
    assert_eq!(item["spec"], json!({"keys": keys}));
    assert_eq!(item["status"]["usedBy"], json!([]));
    let (_, list) = get(&server, &server.deploy, LIST).await;
    assert_eq!(list["items"], json!([item]));
    let (_, events) = get(&server, &server.admin, "/v1alpha1/events").await;
    assert!(
        events.to_string().contains("version 1 was written by"),
        "{events}"
    );

    // A merge changes some keys.
    let part = json!({"values": {"NEW": "eA=="}, "remove": ["tls.crt"], "merge": true});
    let (_, updated) = set(&server, part.clone()).await;
    assert_eq!(updated["metadata"]["generation"], 2, "{updated}");
    let (_, unchanged) = set(&server, part).await;
    assert_eq!(unchanged["outcome"], "unchanged");
    let keys: Vec<String> = stored(&server).keys.into_keys().collect();
    assert_eq!(keys, ["NEW", "PASSWORD"]);
    // Without `merge` all keys are replaced.
    set(&server, json!({"values": {"ONLY": "eA=="}})).await;
    let record = stored(&server);
    assert_eq!((record.version, record.keys.len()), (3, 1));
    assert!(record.keys["ONLY"].text);
    let (status, _) = call(&server, &server.deploy, Method::DELETE, DB, json!(null)).await;
    assert_eq!(status, 200);
    assert_eq!(get(&server, &server.read, DB).await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_said_without_the_value() {
    let server = Server::start().await;
    for (content, expected) in [
        (
            json!({"values": {"A": VALUE}}),
            "values.A: the value is not base64",
        ),
        (
            json!({"values": {"..": ENCODED}}),
            "can't be the key of a secret",
        ),
        (
            json!({"values": {"A": [VALUE]}}),
            "the body is no content of a secret",
        ),
        (
            json!({"values": VALUE}),
            "the body is no content of a secret",
        ),
        (json!({VALUE: "x"}), "the body is no content of a secret"),
        (
            json!({"values": {"A": ENCODED}, "remove": ["A"], "merge": true}),
            "in `remove`",
        ),
        (
            json!({"values": {"A": ENCODED}, "remove": ["B"]}),
            "only with `merge`",
        ),
        (
            json!({"values": {"A": "aGhoaGho".repeat(11_000)}}),
            "at most 65536 are allowed",
        ),
    ] {
        let (status, body) = set(&server, content).await;
        assert_eq!(status, 400, "{body}");
        let message = body["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
    }
    let large = json!({"values": {"A": "aGhoaGho".repeat(100_000)}});
    assert_eq!(set(&server, large).await.0, 413);
    let (status, body) = set(&server, json!({"values": {}})).await;
    assert_eq!(status, 409, "{body}");
    let path = format!("{LIST}/Not-A-Name");
    let content = json!({"values": {"A": ENCODED}});
    let (status, _) = call(&server, &server.deploy, Method::PUT, &path, content).await;
    assert_eq!(status, 400);
    assert!(server.store.peek(keys::SECRETS).items.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn only_who_may_deploy_writes_and_only_the_namespace_of_its_own() {
    let server = Server::start().await;
    let content = || json!({"values": {"A": ENCODED}});
    let other = "/v1alpha1/n/default/secrets/db";
    for (token, path, status) in [
        (&server.read, DB, 403),
        (&server.deploy, other, 403),
        (&server.deploy, DB, 201),
        (&server.admin, other, 201),
    ] {
        let found = call(&server, token, Method::PUT, path, content()).await;
        assert_eq!(found.0, status, "{path}: {}", found.1);
    }
    assert_eq!(get(&server, &server.deploy, other).await.0, 403);
    assert_eq!(
        get(&server, &server.deploy, "/v1alpha1/secrets").await.0,
        403
    );
    let (_, all) = get(&server, &server.read, "/v1alpha1/secrets").await;
    assert_eq!(all["items"].as_array().unwrap().len(), 2);
    let (status, _) = call(&server, &server.deploy, Method::POST, KEY, json!(null)).await;
    assert_eq!(status, 403);
    let (status, body) = call(&server, &server.read, Method::DELETE, DB, json!(null)).await;
    assert_eq!(status, 403, "{body}");
    server.stop().await;
}

#[tokio::test]
async fn what_is_used_stays() {
    let server = Server::start().await;
    set(&server, json!({"values": {"A": ENCODED, "B": "eA=="}})).await;
    let text = web("shop", "web", 1);
    let env = "    env:\n      - {name: A, valueFrom: {secret: {name: db, key: A}}}\n";
    let text = text.replace("    env:\n", env);
    assert!(text.contains("valueFrom"), "{text}");
    let (status, body) = server.put("shop", "web", &files(&text)).await;
    assert!(status.is_success(), "{body}");

    let (status, body) = call(&server, &server.deploy, Method::DELETE, DB, json!(null)).await;
    assert_eq!(status, 409, "{body}");
    assert!(
        body["message"].as_str().unwrap().contains("is used by web"),
        "{body}"
    );
    let removal = |key: &str| json!({"remove": [key], "merge": true});
    let (status, body) = set(&server, removal("A")).await;
    assert_eq!(status, 409, "{body}");
    assert_eq!(set(&server, removal("B")).await.0, 200);
    let (_, item) = get(&server, &server.read, DB).await;
    assert_eq!(
        item["status"],
        json!({"updated": item["status"]["updated"], "usedBy": ["web"], "behind": []})
    );

    // The instance uses another version of the secret, and the rollout has not begun.
    let (_, workload) = get(&server, &server.read, "/v1alpha1/n/shop/workloads/web").await;
    assert_eq!(workload["metadata"]["generation"], 1);
    let hash = server.store.peek(&keys::workload_meta("shop", "web")).items;
    let hash: Value = serde_json::from_slice(&hash[0].value).unwrap();
    let mut given = assignment();
    given["templateHash"] = hash["templateHash"].clone();
    let version = SecretVersion {
        uid: stored(&server).uid,
        version: 1,
    };
    given["secrets"] = json!({"versions": {"db": version}, "sealed": ""});
    let key = keys::desired_instance("n1", "web-abcde");
    server.write(&[put(key, &given)]).await;
    let (_, item) = get(&server, &server.read, DB).await;
    assert_eq!(item["status"]["behind"], json!(["web"]));
    server.stop().await;
}

#[tokio::test]
async fn a_rotation_seals_everything_anew_and_goes_on_where_it_broke_off() {
    let server = Server::start().await;
    for number in 0..40 {
        let path = format!("{LIST}/db-{number}");
        let content = json!({"values": {"A": ENCODED}});
        let (status, body) = call(&server, &server.deploy, Method::PUT, &path, content).await;
        assert_eq!(status, 201, "{body}");
    }
    let key = || {
        let items = server.store.peek(keys::SEALING).items;
        items.into_iter().map(|item| item.key).collect::<Vec<_>>()
    };
    assert_eq!(key(), [keys::sealing_key(1)]);
    let before = server.store.peek(keys::SECRETS).items;
    // An interrupted rotation: both keys exist, and new writes use the newer one.
    let snapshot = server.handle.snapshot.borrow().clone().unwrap();
    let second = snapshot.sealing.new_key(2, jiff::Timestamp::now()).unwrap();
    server.write(&[put(keys::sealing_key(2), &second)]).await;
    set(&server, json!({"values": {"A": ENCODED}})).await;
    assert_eq!(stored(&server).key_id, 2);
    let (status, done) = call(&server, &server.admin, Method::POST, KEY, json!(null)).await;
    assert_eq!(
        (status, &done),
        (200, &json!({"key": 2, "left": 0})),
        "{done}"
    );
    assert_eq!(
        key(),
        [keys::sealing_key(2)],
        "no third one, and the first is gone"
    );
    for item in &before {
        let after = server.store.peek(&item.key).items;
        let old: SecretRecord = serde_json::from_slice(&item.value).unwrap();
        let new: SecretRecord = serde_json::from_slice(&after[0].value).unwrap();
        assert_eq!((old.key_id, new.key_id), (1, 2));
        assert_ne!(old.sealed, new.sealed);
        assert_eq!((old.version, old.updated), (new.version, new.updated));
    }
    // The secrets can still be opened: the same content counts as unchanged.
    let path = format!("{LIST}/db-7");
    let content = json!({"values": {"A": ENCODED}});
    let (_, body) = call(&server, &server.deploy, Method::PUT, &path, content).await;
    assert_eq!(body["outcome"], "unchanged");
    let (_, done) = call(&server, &server.admin, Method::POST, KEY, json!(null)).await;
    assert_eq!(done, json!({"key": 3, "left": 0}));
    let go_on = format!("{KEY}?goOn=true");
    let (_, done) = call(&server, &server.admin, Method::POST, &go_on, json!(null)).await;
    assert_eq!(done, json!({"key": 3, "left": 0}), "nothing is begun");
    nothing_is_clear(&server);
    // A missing key is reported, and nothing is overwritten.
    server
        .write(&[WriteOperation::Delete(keys::sealing_key(3))])
        .await;
    let (status, body) = set(&server, json!({"values": {"A": "eA=="}})).await;
    assert_eq!(status, 503, "{body}");
    let (_, read) = read(server.call(&server.read, Method::GET, DB).await).await;
    assert_eq!(
        read["metadata"]["generation"], 1,
        "names are shown all the same"
    );
    server.stop().await;
}
