//! Image tags are resolved once for each version, and every replica runs the resolved image.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    WEB, files,
    preview::{ready, settle},
    support::{Server, web},
};
use kat_api::ApiLimits;
use kat_registry::{ImageSource, LoginAnswer, RegistryError, ResolvedImage};
use kat_types::{
    registry::{Credentials, LoginPlace, Logins, Reference, RegistrySettings},
    store::{
        keys,
        records::{ImageRecord, WorkloadMeta},
    },
};

/// The digests that the registry returns, and the requests that it got.
#[derive(Default)]
struct Known {
    digests: Mutex<Vec<&'static str>>,
    asked: Mutex<Vec<String>>,
    insecure: Mutex<Vec<bool>>,
    /// The images that it states not to have.
    nonexistent: Mutex<Vec<String>>,
}

#[async_trait]
impl ImageSource for Known {
    async fn resolve(
        &self,
        image: &Reference,
        settings: &RegistrySettings,
        _: &Logins,
    ) -> Result<ResolvedImage, RegistryError> {
        self.asked.lock().push(image.to_string());
        if self.nonexistent.lock().contains(&image.to_string()) {
            return Err(RegistryError::Nonexistent {
                host: image.host.clone(),
                image: image.to_string(),
            });
        }
        let insecure = settings
            .registries
            .get(&image.host)
            .is_some_and(|one| one.insecure);
        self.insecure.lock().push(insecure);
        let mut digests = self.digests.lock();
        if digests.is_empty() {
            return Err(RegistryError::Unauthorized(image.host.clone()));
        }
        Ok(ResolvedImage {
            digest: digests.remove(0).to_owned(),
            architectures: vec!["amd64".to_owned()],
        })
    }

    async fn check_login(
        &self,
        _: &LoginPlace,
        _: &RegistrySettings,
        _: &Credentials,
    ) -> Result<LoginAnswer, RegistryError> {
        Ok(LoginAnswer::NotAsked)
    }
}

async fn server(digests: &[&'static str]) -> (Server, Arc<Known>) {
    let known = Arc::new(Known::default());
    digests.clone_into(&mut known.digests.lock());
    let server = Server::start_knowing(ApiLimits::default(), Some(known.clone())).await;
    (server, known)
}

fn image(server: &Server) -> ImageRecord {
    let items = server.store.peek(&keys::workload_meta("shop", "web")).items;
    let meta: WorkloadMeta = serde_json::from_slice(&items[0].value).unwrap();
    meta.image
}

async fn apply(server: &Server, text: &str) {
    let (status, body) = server.put("shop", "web", &files(text)).await;
    assert!(status.is_success(), "{body}");
}

async fn ask(server: &Server, method: Method, what: &str, body: &Value) -> Value {
    let path = format!("{WEB}/{what}");
    let (status, body) = server.send_json(&server.deploy, method, &path, body).await;
    assert!(status.is_success(), "{body}");
    body
}

#[tokio::test]
async fn a_version_is_pinned_when_it_begins_and_comes_back_with_a_rollback() {
    let (server, known) = server(&["sha256:one", "sha256:two", "sha256:three"]).await;
    let text = web("shop", "web", 1);
    apply(&server, &text).await;
    let pinned = |digest: &str| format!("registry.lab:5000/web@{digest}");
    assert_eq!(image(&server).pinned, pinned("sha256:one"));
    assert_eq!(image(&server).architectures, ["amd64"]);
    // Applying the same text starts no version.
    apply(&server, &text).await;
    assert_eq!(known.asked.lock().len(), 1);

    let at = json!({"restartedAt": "2026-11-20T10:00:00Z"});
    ask(&server, Method::PUT, "restart", &at).await;
    assert_eq!(
        image(&server).pinned,
        pinned("sha256:two"),
        "the tag means another one by now"
    );
    // The files are the same, but generation 1 ran another digest.
    let back = ask(&server, Method::POST, "rollback", &json!({"to": 1})).await;
    assert_eq!(back["outcome"], "updated", "{back}");
    assert_eq!(image(&server).pinned, pinned("sha256:one"));
    let back = ask(&server, Method::POST, "rollback", &json!({"to": 1})).await;
    assert_eq!(back["outcome"], "unchanged", "{back}");
    // Another number of replicas starts no version either.
    ask(&server, Method::PUT, "replicas", &json!({"replicas": 2})).await;
    assert_eq!(image(&server).pinned, pinned("sha256:one"));
    assert_eq!(known.asked.lock().len(), 2);

    let three = json!({"image": "registry.example/web:2"});
    let body = ask(&server, Method::PUT, "image", &three).await;
    assert_eq!(body["outcome"], "updated");
    assert_eq!(image(&server).pinned, "registry.example/web@sha256:three");
    let (_, item) = server.get(&server.admin, WEB).await;
    assert_eq!(item["spec"]["source"]["image"], "registry.example/web:2");
    let same = ask(&server, Method::PUT, "image", &three).await;
    assert_eq!(same["outcome"], "unchanged");
    let path = format!("{WEB}/image");
    let wrong = json!({"image": "https://registry.example/web:2"});
    let (status, body) = server
        .send_json(&server.deploy, Method::PUT, &path, &wrong)
        .await;
    assert_eq!(status, 400, "{body}");
}

#[tokio::test]
async fn instances_run_what_was_pinned() {
    let (server, _) = server(&["sha256:one"]).await;
    ready(&server).await;
    apply(&server, &web("shop", "web", 1)).await;
    settle(&server).await;
    let items = server.store.peek(keys::NODE_DESIRED).items;
    let item = items
        .iter()
        .find(|item| item.key.contains("/instances/"))
        .unwrap();
    let assignment: Value = serde_json::from_slice(&item.value).unwrap();
    assert_eq!(assignment["image"], "registry.lab:5000/web@sha256:one");
}

#[tokio::test]
async fn an_unreachable_registry_does_not_prevent_an_apply() {
    let (server, known) = server(&[]).await;
    ready(&server).await;
    apply(&server, &web("shop", "web", 1)).await;
    settle(&server).await;
    let found = image(&server);
    assert_eq!(found.pinned, "");
    let text = web("shop", "web", 1).replace("web:1", "web:2");
    let (_, body) = server.put("shop", "web", &files(&text)).await;
    let warning = body["warnings"][0].as_str().unwrap();
    assert!(
        warning.contains("image registry.lab:5000/web:2: registry.lab:5000 wants a name"),
        "{body}"
    );
    assert!(
        found.problem.contains("wants a name and password"),
        "{found:?}"
    );
    let (_, item) = server.get(&server.admin, WEB).await;
    let conditions = item["status"]["conditions"].as_array().unwrap();
    let condition = conditions
        .iter()
        .find(|one| one["type"] == "ImagePinned")
        .unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!(false), &json!("ImageNotPinned"))
    );

    // An image that is never pulled is not resolved.
    let count = known.asked.lock().len();
    let text = web("shop", "web", 1);
    apply(
        &server,
        &text.replace(
            "  container:\n",
            "  container:\n    imagePullPolicy: Never\n",
        ),
    )
    .await;
    assert!(image(&server).is_empty());
    assert_eq!(known.asked.lock().len(), count);

    // A version with both kinds of image is stored as only partly resolved.
    let own = "  sidecars: [{name: own, image: \"localhost/own:1\", imagePullPolicy: Never}]\n  container:\n";
    apply(&server, &text.replace("  container:\n", own)).await;
    assert!(image(&server).partial, "{:?}", image(&server));
    apply(&server, &text).await;
    assert!(!image(&server).partial, "{:?}", image(&server));
}

/// The `details` of an answer, each as `line:column path: message (hint)`.
fn mistakes(body: &Value) -> Vec<String> {
    let details = body["details"].as_array().unwrap().iter();
    let line = |one: &Value| {
        let word = |name: &str| one[name].as_str().unwrap().to_owned();
        let (path, message, hint) = (word("path"), word("message"), word("hint"));
        let (line, column) = (&one["line"], &one["column"]);
        format!("{line}:{column} {path}: {message} ({hint})")
    };
    details.map(line).collect()
}

#[tokio::test]
async fn an_image_that_its_registry_does_not_have_is_refused_at_its_place_and_in_a_preview_too() {
    let (server, known) = server(&["sha256:one", "sha256:two"]).await;
    *known.nonexistent.lock() = ["web:9", "init:1", "helper:1"].map(str::to_owned).into();
    let others = "  initContainers: [{name: a, image: \"registry.lab:5000/init:1\"}]\n  \
                  sidecars: [{name: b, image: \"registry.lab:5000/helper:1\"}, {name: c, image: \"nginx:1\"}]\n  \
                  container:\n";
    let text = web("shop", "web", 1).replace("web:1", "web:9");
    let text = text.replace("  container:\n", others);
    let place = |wanted: &str| {
        let at = text.find(wanted).unwrap();
        let before = &text[..at];
        let column = before.len() - before.rfind('\n').unwrap();
        format!("{}:{column}", before.matches('\n').count() + 1)
    };
    let (own, init) = (
        place("registry.lab:5000/web"),
        place("\"registry.lab:5000/init"),
    );
    let (helper, short) = (place("\"registry.lab:5000/helper"), place("\"nginx:1"));
    let what = "check the name and the tag, or push the image first; if the image is private: `katcall registry login registry.lab:5000 -n shop`";
    let expected = [
        format!("{own} spec.source.image: registry.lab:5000 has no web:9 ({what})"),
        format!("{init} spec.initContainers[0].image: registry.lab:5000 has no init:1 ({what})"),
        format!("{helper} spec.sidecars[0].image: registry.lab:5000 has no helper:1 ({what})"),
        format!(
            "{short} spec.sidecars[1].image: `nginx:1` names no registry, so which one is meant depends on the machine (write the full name, such as `docker.io/library/nginx:1`)"
        ),
    ];
    for query in ["?dryRun=true", ""] {
        let path = format!("{WEB}{query}");
        let archive = files(&text);
        let sent = server.send(&server.deploy, Method::PUT, &path, &archive, &[]);
        let answer = sent.await;
        assert_eq!(answer.status(), 400);
        let body: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        assert_eq!(mistakes(&body), expected, "{query}");
    }
    let stored = server.store.peek(&keys::workload_meta("shop", "web")).items;
    assert!(stored.is_empty(), "nothing is stored");

    // Images that are never pulled are not looked up.
    let never = text.replace(
        "image: \"registry.lab:5000",
        "imagePullPolicy: Never, image: \"registry.lab:5000",
    );
    let never = never.replace("image: \"nginx", "imagePullPolicy: Never, image: \"nginx");
    let never = never.replace("web:9", "web:1");
    apply(&server, &never).await;
}

#[tokio::test]
async fn a_stored_workload_whose_image_is_gone_is_never_refused() {
    let (server, known) = server(&["sha256:one", "sha256:two"]).await;
    let text = web("shop", "web", 1);
    apply(&server, &text).await;
    let other = text.replace("web:1", "web:2");
    apply(&server, &other).await;
    *known.nonexistent.lock() = ["web:1", "web:2", "web:3"].map(str::to_owned).into();

    // The same image with another variable, and a restart: the problem is recorded and shown.
    let changed = other.replace("correct-horse", "other");
    let (status, body) = server.put("shop", "web", &files(&changed)).await;
    assert_eq!(status, 200, "{body}");
    let warning = "image registry.lab:5000/web:2: registry.lab:5000 has no web:2";
    assert_eq!(body["warnings"], json!([warning]));
    assert_eq!(image(&server).problem, "registry.lab:5000 has no web:2");
    let at = json!({"restartedAt": "2026-11-20T10:00:00Z"});
    let body = ask(&server, Method::PUT, "restart", &at).await;
    assert_eq!(body["warnings"], json!([warning]));
    let (_, body) = server.put("shop", "web", &files(&changed)).await;
    assert_eq!(
        (&body["outcome"], body.get("warnings")),
        (&json!("unchanged"), None)
    );

    // Another number of replicas and a rollback ask nothing.
    let count = known.asked.lock().len();
    ask(&server, Method::PUT, "replicas", &json!({"replicas": 2})).await;
    ask(&server, Method::POST, "rollback", &json!({"to": 1})).await;
    assert_eq!(known.asked.lock().len(), count);
    assert_eq!(image(&server).pinned, "registry.lab:5000/web@sha256:one");

    // Another image is looked up, and refused with its name and what to do.
    let path = format!("{WEB}/image");
    for (name, expected) in [
        (
            "registry.lab:5000/web:3",
            "image: registry.lab:5000 has no web:3; check the name and the tag",
        ),
        (
            "web:3",
            "image: `web:3` names no registry, so which one is meant depends on the machine; write the full name, such as `docker.io/library/web:3`",
        ),
    ] {
        let (status, body) = server
            .send_json(&server.deploy, Method::PUT, &path, &json!({"image": name}))
            .await;
        assert_eq!(status, 400, "{body}");
        let message = body["message"].as_str().unwrap();
        assert!(message.starts_with(expected), "{message}");
    }
}

#[tokio::test]
async fn what_is_set_about_registries_is_kept_and_counts() {
    let (server, known) = server(&["sha256:one"]).await;
    let registries = "/v1alpha1/registries";
    let lab = format!("{registries}/registry.lab:5000");
    let body = json!({"insecure": true, "mirrors": ["mirror.example/lab"]});
    let (status, answer) = server
        .send_json(&server.admin, Method::PUT, &lab, &body)
        .await;
    assert_eq!(status, 200, "{answer}");
    let (_, list) = server.get(&server.admin, registries).await;
    let expected =
        json!([{"host": "registry.lab:5000", "insecure": true, "mirrors": ["mirror.example/lab"]}]);
    assert_eq!(list["items"], expected);
    apply(&server, &web("shop", "web", 1)).await;
    assert_eq!(*known.insecure.lock(), [true]);

    for (path, body) in [
        (format!("{registries}/registry.lab%2Fx"), json!({})),
        (format!("{registries}/nodots"), json!({})),
        (lab.clone(), json!({"mirrors": ["a b"]})),
        (
            lab.clone(),
            json!({"mirrors": ["x.example\"\n[[registry]]"]}),
        ),
    ] {
        let (status, answer) = server
            .send_json(&server.admin, Method::PUT, &path, &body)
            .await;
        assert_eq!(status, 400, "{path} {answer}");
    }
    let gone = server.call(&server.admin, Method::DELETE, &lab).await;
    assert_eq!(gone.status(), 204);
    let again = server.call(&server.admin, Method::DELETE, &lab).await;
    assert_eq!(again.status(), 404);
    let (_, list) = server.get(&server.admin, registries).await;
    assert_eq!(list["items"], json!([]));
}
