//! Credentials for registries: they are checked before they are stored, never returned, and only
//! usable with permission.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    files,
    support::{Server, put, web},
};
use kat_api::ApiLimits;
use kat_registry::{ImageSource, LoginAnswer, RegistryError, ResolvedImage};
use kat_types::{
    registry::{Credentials, LoginPlace, LoginRecord, Logins, Reference, RegistrySettings},
    store::{keys, records::WorkloadMeta, transaction::WriteOperation},
};

const LIST: &str = "/v1alpha1/n/shop/registries";
const LAB: &str = "/v1alpha1/n/shop/registries/registry.lab%3A5000";
const KEY: &str = "/v1alpha1/sealing-key";
/// Forbidden in answers and in the store: the password, its base64, and the base64 of name and
/// password.
const PASSWORD: &str = "hunter2-hunter2";
const ENCODED: [&str; 2] = ["aHVudGVyMi1odW50ZXIy", "bWU6aHVudGVyMi1odW50ZXIy"];

/// A registry that accepts one password and records the credentials of its requests.
#[derive(Default)]
struct Keeper {
    password: Mutex<String>,
    checked: Mutex<Vec<String>>,
    asked: Mutex<Vec<Logins>>,
}

#[async_trait]
impl ImageSource for Keeper {
    async fn resolve(
        &self,
        image: &Reference,
        _: &RegistrySettings,
        logins: &Logins,
    ) -> Result<ResolvedImage, RegistryError> {
        self.asked.lock().push(logins.clone());
        match logins.0.is_empty() {
            true => Err(RegistryError::Unauthorized(image.host.clone())),
            false => Ok(ResolvedImage {
                digest: "sha256:one".to_owned(),
                architectures: Vec::new(),
            }),
        }
    }

    async fn check_login(
        &self,
        place: &LoginPlace,
        _: &RegistrySettings,
        credentials: &Credentials,
    ) -> Result<LoginAnswer, RegistryError> {
        self.checked.lock().push(place.to_string());
        let host = place.host().to_owned();
        match host.as_str() {
            "away.example" => Err(RegistryError::Unreachable {
                host,
                error: "connection refused".to_owned(),
            }),
            "open.example" => Ok(LoginAnswer::NotAsked),
            _ if credentials.password == *self.password.lock() => Ok(LoginAnswer::Accepted),
            _ => Err(RegistryError::Unauthorized(host)),
        }
    }
}

async fn server() -> (Server, Arc<Keeper>) {
    let keeper = Arc::new(Keeper::default());
    PASSWORD.clone_into(&mut keeper.password.lock());
    let server = Server::start_knowing(ApiLimits::default(), Some(keeper.clone())).await;
    (server, keeper)
}

fn nothing_is_in(text: &str) {
    let texts = [PASSWORD].into_iter().chain(ENCODED);
    for one in texts {
        assert!(!text.contains(one), "{text}");
    }
}

async fn call(
    server: &Server,
    token: &str,
    method: Method,
    path: &str,
    body: Value,
) -> (u16, Value) {
    let (status, body) = server.send_json(token, method, path, &body).await;
    nothing_is_in(&body.to_string());
    (status.as_u16(), body)
}

async fn login(server: &Server, path: &str, password: &str) -> (u16, Value) {
    let content = json!({"username": "me", "password": password});
    call(server, &server.deploy, Method::PUT, path, content).await
}

async fn list(server: &Server, token: &str) -> Vec<Value> {
    let (status, body) = server.get(token, LIST).await;
    assert_eq!(status, 200, "{body}");
    nothing_is_in(&body.to_string());
    body["items"].as_array().unwrap().clone()
}

fn stored(server: &Server, place: &str) -> LoginRecord {
    let items = server.store.peek(&keys::login("shop", place)).items;
    serde_json::from_slice(&items[0].value).unwrap()
}

#[tokio::test]
async fn credentials_are_checked_and_stored_sealed() {
    let (server, keeper) = server().await;
    let (status, created) = login(&server, LAB, PASSWORD).await;
    assert_eq!(status, 201, "{created}");
    assert_eq!(
        (&created["outcome"], &created["check"]),
        (&json!("created"), &json!("accepted"))
    );
    for (key, value) in server.stored() {
        let text = String::from_utf8_lossy(&value);
        assert!(
            !text.contains(PASSWORD) && !ENCODED.iter().any(|one| text.contains(one)),
            "{key}"
        );
    }
    let before = server.stored();
    let (status, again) = login(&server, LAB, PASSWORD).await;
    assert_eq!((status, &again["outcome"]), (200, &json!("unchanged")));
    assert_eq!(server.stored(), before, "the same writes nothing");

    // A wrong password changes nothing.
    let (status, body) = login(&server, LAB, "wrong").await;
    assert_eq!(status, 409, "{body}");
    let message = body["message"].as_str().unwrap();
    assert!(
        message.contains("registry.lab:5000 does not take this name and password"),
        "{message}"
    );
    assert_eq!(server.stored(), before);
    "changed".clone_into(&mut keeper.password.lock());
    let (_, updated) = login(&server, LAB, "changed").await;
    assert_eq!(updated["outcome"], "updated");
    assert_eq!(stored(&server, "registry.lab:5000").version, 2);

    // The registry `away.example` does not answer.
    let away = format!("{LIST}/away.example");
    let (status, body) = login(&server, &away, "x").await;
    assert_eq!(status, 409, "{body}");
    let text = body.to_string();
    assert!(
        text.contains("does not answer as a registry") && text.contains("--no-check"),
        "{text}"
    );
    let unchecked = json!({"username": "me", "password": "x", "noCheck": true});
    let (status, body) = call(&server, &server.deploy, Method::PUT, &away, unchecked).await;
    assert_eq!(
        (status, &body["check"]),
        (201, &json!("notChecked")),
        "{body}"
    );
    let (_, body) = login(&server, &format!("{LIST}/open.example"), "x").await;
    assert_eq!(body["check"], "notAsked");
    // A registry on the loopback address, which only the leader itself could reach, is not checked.
    let (status, body) = login(&server, &format!("{LIST}/127.0.0.1%3A5000"), "x").await;
    assert_eq!(status, 409, "{body}");
    assert!(!keeper.checked.lock().contains(&"127.0.0.1:5000".to_owned()));

    // Names of the same registry are one entry; a path in a registry is another entry.
    login(&server, &format!("{LIST}/Index.Docker.IO"), "changed").await;
    login(&server, &format!("{LIST}/ghcr.io%2Forg"), "changed").await;
    let names: Vec<Value> = list(&server, &server.deploy).await;
    let names: Vec<&str> = names
        .iter()
        .map(|one| one["registry"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "away.example",
            "docker.io",
            "ghcr.io/org",
            "open.example",
            "registry.lab:5000"
        ]
    );
    let (_, events) = server.get(&server.admin, "/v1alpha1/events").await;
    nothing_is_in(&events.to_string());
    assert!(events.to_string().contains("RegistryLogin"), "{events}");

    let (status, _) = call(&server, &server.deploy, Method::DELETE, LAB, json!(null)).await;
    assert_eq!(status, 204);
    let (status, body) = call(&server, &server.deploy, Method::DELETE, LAB, json!(null)).await;
    assert_eq!(status, 404, "{body}");
    server.stop().await;
}

#[tokio::test]
async fn only_who_may_deploy_writes_and_sees_names() {
    let (server, _) = server().await;
    let content = || json!({"username": "me", "password": PASSWORD});
    let other = "/v1alpha1/n/default/registries/registry.lab%3A5000";
    for (token, path, status) in [
        (&server.read, LAB, 403),
        (&server.deploy, other, 403),
        (&server.deploy, LAB, 201),
        (&server.admin, other, 201),
    ] {
        let found = call(&server, token, Method::PUT, path, content()).await;
        assert_eq!(found.0, status, "{path}: {}", found.1);
    }
    let (status, _) = call(&server, &server.read, Method::DELETE, LAB, json!(null)).await;
    assert_eq!(status, 403);
    for (token, name) in [
        (&server.read, None),
        (&server.deploy, Some("me")),
        (&server.admin, Some("me")),
    ] {
        let items = list(&server, token).await;
        assert_eq!(items.len(), 1);
        assert_eq!(items[0]["registry"], "registry.lab:5000");
        assert_eq!(items[0]["username"].as_str(), name);
    }
    let path = "/v1alpha1/n/default/registries";
    assert_eq!(server.get(&server.deploy, path).await.0, 403);
    let (status, _) = server
        .get(&server.admin, "/v1alpha1/n/none/registries")
        .await;
    assert_eq!(status, 404);
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_said_without_the_password() {
    let (server, keeper) = server().await;
    for (content, expected) in [
        (json!({"username": "me"}), "password: it is empty"),
        (json!({"password": PASSWORD}), "username: it is empty"),
        (
            json!({"username": "a:b", "password": PASSWORD}),
            "it has a `:`",
        ),
        (
            json!({"username": "me", "password": format!("{PASSWORD}\n")}),
            "a control character",
        ),
        (
            json!({"username": "me", "password": "x".repeat(20_000)}),
            "more than 16384 bytes",
        ),
        (
            json!({"username": "me", "password": [PASSWORD]}),
            "the body is no name and password",
        ),
        (json!({PASSWORD: "me"}), "the body is no name and password"),
    ] {
        let (status, body) = call(&server, &server.deploy, Method::PUT, LAB, content).await;
        assert_eq!(status, 400, "{body}");
        let message = body["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
    }
    for name in [
        "https%3A%2F%2Fghcr.io",
        "ghcr",
        "ghcr.io%2FOrg",
        "ghcr.io%2F",
        "ghcr.io%3A99999",
    ] {
        let (status, body) = login(&server, &format!("{LIST}/{name}"), PASSWORD).await;
        assert_eq!(status, 400, "{body}");
        let message = body["message"].as_str().unwrap();
        assert!(message.contains("expected a host such as"), "{message}");
    }
    assert!(keeper.checked.lock().is_empty(), "nobody was asked");
    assert!(server.store.peek(keys::LOGINS).items.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn a_private_image_is_pinned_with_its_namespaces_credentials_alone() {
    let (server, keeper) = server().await;
    let image = |server: &Server| {
        let items = server.store.peek(&keys::workload_meta("shop", "web")).items;
        let meta: WorkloadMeta = serde_json::from_slice(&items[0].value).unwrap();
        meta.image
    };
    let text = web("shop", "web", 1);
    let (status, body) = server.put("shop", "web", &files(&text)).await;
    assert!(status.is_success(), "{body}");
    let problem = image(&server).problem;
    assert!(
        problem.ends_with("`katcall registry login registry.lab:5000 -n shop`"),
        "{problem}"
    );
    login(&server, LAB, PASSWORD).await;
    login(&server, &format!("{LIST}/other.example"), PASSWORD).await;
    let path = "/v1alpha1/n/shop/workloads/web/restart";
    let at = json!({"restartedAt": "2026-11-20T10:00:00Z"});
    let (status, body) = call(&server, &server.deploy, Method::PUT, path, at).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(image(&server).pinned, "registry.lab:5000/web@sha256:one");
    let asked = keeper.asked.lock().clone();
    let names: Vec<Vec<String>> = asked
        .iter()
        .map(|one| one.0.keys().map(ToString::to_string).collect())
        .collect();
    assert_eq!(names, [vec![], vec!["registry.lab:5000".to_owned()]]);
    // Another namespace has no credentials.
    let text = web("default", "web", 1);
    let (status, _) = server.put("default", "web", &files(&text)).await;
    assert!(status.is_success());
    assert!(keeper.asked.lock()[2].0.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn a_rotation_seals_credentials_anew_and_a_namespace_keeps_them_until_asked() {
    let (server, _) = server().await;
    for number in 0..40 {
        let path = format!("{LIST}/r{number}.example%2Forg");
        assert_eq!(login(&server, &path, PASSWORD).await.0, 201);
    }
    let before = stored(&server, "r7.example/org");
    let secret = json!({"values": {"A": "eA=="}});
    let path = "/v1alpha1/n/shop/secrets/db";
    assert_eq!(
        call(&server, &server.deploy, Method::PUT, path, secret)
            .await
            .0,
        201
    );
    let (_, done) = call(&server, &server.admin, Method::POST, KEY, json!(null)).await;
    assert_eq!(done, json!({"key": 2, "left": 0}));
    let keys: Vec<String> = server
        .store
        .peek(keys::SEALING)
        .items
        .into_iter()
        .map(|item| item.key)
        .collect();
    assert_eq!(keys, [keys::sealing_key(2)]);
    let after = stored(&server, "r7.example/org");
    assert_eq!((before.key_id, after.key_id), (1, 2));
    assert_ne!(before.sealed, after.sealed);
    assert_eq!((before.version, &before.uid), (after.version, &after.uid));
    let (_, same) = login(&server, &format!("{LIST}/r7.example%2Forg"), PASSWORD).await;
    assert_eq!(same["outcome"], "unchanged", "it opens");
    // The key that may have sealed an unreadable entry is kept.
    let broken = keys::login("shop", "broken.example");
    server
        .write(&[put(broken.clone(), &json!({"schema": 1}))])
        .await;
    let (_, done) = call(&server, &server.admin, Method::POST, KEY, json!(null)).await;
    assert_eq!(done, json!({"key": 3, "left": 1}));
    assert_eq!(server.store.peek(keys::SEALING).items.len(), 2);
    server.write(&[WriteOperation::Delete(broken)]).await;

    let (status, body) = call(
        &server,
        &server.admin,
        Method::DELETE,
        "/v1alpha1/namespaces/shop",
        json!(null),
    )
    .await;
    assert_eq!(status, 409, "{body}");
    server.stop().await;
}
