//! The client against a registry of the test on loopback.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use parking_lot::Mutex;

use super::{answer::*, *};
use kat_types::{encoding::digest::sha256_hex, registry::*};

const INDEX: &str = r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[
    {"digest":"sha256:1","platform":{"architecture":"arm64","os":"linux","variant":"v8"}},
    {"digest":"sha256:2","platform":{"architecture":"amd64","os":"linux"}},
    {"digest":"sha256:3","platform":{"architecture":"amd64","os":"windows"}},
    {"digest":"sha256:4","platform":{"architecture":"unknown","os":"unknown"}}]}"#;
const CONFIGURATION: &str = r#"{"architecture":"arm64","os":"linux"}"#;

fn digest(text: &str) -> String {
    format!("sha256:{}", sha256_hex(text.as_bytes()))
}

fn single() -> String {
    let configuration = digest(CONFIGURATION);
    format!(
        r#"{{"schemaVersion":2,"config":{{"mediaType":"x","digest":"{configuration}"}},"layers":[]}}"#
    )
}

/// A registry that records its requests.
#[derive(Default)]
struct Fake {
    /// `Basic` or `Bearer`, or empty if it asks for no credentials.
    wants: &'static str,
    host: String,
    asked: Mutex<Vec<String>>,
}

impl Fake {
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock())
    }

    fn challenge(&self) -> Response {
        let challenge = match self.wants {
            "Bearer" => format!(
                "Bearer realm=\"http://{}/token\",service=\"the \\\"registry\\\"\",scope=\"repository:web:pull\"",
                self.host
            ),
            _ => "Basic realm=\"x\"".to_owned(),
        };
        (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, challenge)],
        )
            .into_response()
    }
}

type TheFake = State<Arc<Fake>>;

async fn start(wants: &'static str) -> Arc<Fake> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let fake = Arc::new(Fake {
        wants,
        host: listener.local_addr().unwrap().to_string(),
        asked: Mutex::default(),
    });
    let router = Router::new()
        .route("/token", get(token))
        .route("/v2/", get(root))
        .route("/v2/{*path}", get(answer))
        .with_state(Arc::clone(&fake));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    fake
}

fn authorization(headers: &HeaderMap) -> &str {
    let header = headers.get(header::AUTHORIZATION);
    header.map_or("", |value| value.to_str().unwrap())
}

async fn token(
    State(fake): TheFake,
    Query(questions): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    assert_eq!(questions["scope"], "repository:web:pull");
    assert_eq!(questions["service"], "the \"registry\"");
    let who = authorization(&headers).to_owned();
    fake.asked.lock().push(format!("token {who}"));
    match who.as_str() {
        "" | "Basic bWU6c2VjcmV0" => r#"{"access_token":"t0ken"}"#.into_response(),
        _ => StatusCode::FORBIDDEN.into_response(),
    }
}

async fn root(fake: TheFake, headers: HeaderMap) -> Response {
    answer(fake, Path(String::new()), headers).await
}

async fn answer(State(fake): TheFake, Path(path): Path<String>, headers: HeaderMap) -> Response {
    fake.asked.lock().push(path.clone());
    let enough = match fake.wants {
        "Basic" => authorization(&headers) == "Basic bWU6c2VjcmV0",
        "Bearer" => authorization(&headers) == "Bearer t0ken",
        _ => true,
    };
    if !enough {
        return fake.challenge();
    }
    let with = |kind: &str, text: String| {
        let kind = (header::CONTENT_TYPE, kind.to_owned());
        ([kind], text).into_response()
    };
    let image = "application/vnd.docker.distribution.manifest.v2+json";
    match path.as_str() {
        "" => "{}".into_response(),
        "web/manifests/1" => with("text/plain", INDEX.to_owned()),
        "hub/library/web/manifests/1" => with("text/plain", INDEX.to_owned()),
        "one/manifests/latest" => with(image, single()),
        _ if path == format!("one/blobs/{}", digest(CONFIGURATION)) => {
            with("x", CONFIGURATION.to_owned())
        }
        _ if path == format!("web/manifests/{}", digest("other")) => with(image, single()),
        "lies/manifests/1" => (
            [("docker-content-digest", digest("other"))],
            INDEX.to_owned(),
        )
            .into_response(),
        "html/manifests/1" => with("text/html", "<html>".to_owned()),
        "large/manifests/1" => with(image, "x".repeat((4 << 20) + 1)),
        "busy/manifests/1" => StatusCode::TOO_MANY_REQUESTS.into_response(),
        "web/manifests/none" | "empty/web/manifests/none" => {
            let body = r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#;
            (StatusCode::NOT_FOUND, body).into_response()
        }
        _ if path.starts_with("nowhere/manifests/") => {
            let body = r#"{"errors":[{"code":"NAME_UNKNOWN"}]}"#;
            (StatusCode::NOT_FOUND, body).into_response()
        }
        "denied/manifests/1" => {
            let body = r#"{"errors":[{"code":"DENIED"}]}"#;
            (StatusCode::NOT_FOUND, body).into_response()
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

fn settings(of: &[(&str, bool, &[&str])]) -> RegistrySettings {
    let registries = of.iter().map(|(host, insecure, mirrors)| {
        let setting = RegistrySetting {
            insecure: *insecure,
            mirrors: mirrors.iter().map(|one| (*one).to_owned()).collect(),
        };
        ((*host).to_owned(), setting)
    });
    RegistrySettings {
        schema: 1,
        registries: registries.collect(),
    }
}

async fn resolve(
    fake: &Fake,
    image: &str,
    credentials: Option<&Credentials>,
) -> Result<ResolvedImage, RegistryError> {
    let image = Reference::parse(&format!("{}/{image}", fake.host)).unwrap();
    let settings = settings(&[(&fake.host, true, &[])]);
    let source = Registries::new().unwrap();
    let of = |one: &Credentials| (LoginPlace::parse(&fake.host), one.clone());
    let logins = Logins(credentials.map(of).into_iter().collect());
    source.resolve(&image, &settings, &logins).await
}

fn me() -> Credentials {
    Credentials {
        username: "me".to_owned(),
        password: "secret".to_owned(),
    }
}

#[tokio::test]
async fn an_index_says_its_digest_and_for_which_machines_it_is() {
    let fake = start("").await;
    let found = resolve(&fake, "web:1", None).await.unwrap();
    assert_eq!(found.digest, digest(INDEX));
    assert_eq!(found.architectures, ["amd64", "arm64"]);
    let found = resolve(&fake, "one", None).await.unwrap();
    assert_eq!(found.digest, digest(&single()));
    assert_eq!(found.architectures, ["arm64"]);
}

#[tokio::test]
async fn registries_that_want_to_know_who_asks_are_answered() {
    for wants in ["Basic", "Bearer"] {
        let fake = start(wants).await;
        let found = resolve(&fake, "web:1", Some(&me())).await;
        assert_eq!(found.unwrap().digest, digest(INDEX), "{wants}");
        let wrong = Credentials {
            password: "other".to_owned(),
            ..me()
        };
        let found = resolve(&fake, "web:1", Some(&wrong)).await;
        assert_eq!(
            found,
            Err(RegistryError::Unauthorized(fake.host.clone())),
            "{wants}"
        );
    }
    // An anonymous client gets a token for public images.
    let fake = start("Bearer").await;
    assert!(resolve(&fake, "web:1", None).await.is_ok());
    assert_eq!(
        fake.asked(),
        ["web/manifests/1", "token ", "web/manifests/1"]
    );
    let fake = start("Basic").await;
    let found = resolve(&fake, "web:1", None).await;
    assert_eq!(found, Err(RegistryError::Unauthorized(fake.host.clone())));
}

#[tokio::test]
async fn what_is_not_there_or_not_right_is_told() {
    let fake = start("").await;
    let said = async |image: &str| resolve(&fake, image, None).await.unwrap_err().to_string();
    let host = &fake.host;
    assert_eq!(said("none:2").await, format!("{host} has no none:2"));
    assert_eq!(said("busy:1").await, format!("{host} answers with 429"));
    assert!(said("lies:1").await.contains("another digest"));
    assert!(said("html:1").await.contains("no manifest of an image"));
    assert!(
        said("large:1")
            .await
            .contains("more than an answer may have")
    );
    // The manifest must have the requested digest.
    let other = format!("web@{}", digest("other"));
    assert!(said(&other).await.contains("another digest"));
}

#[tokio::test]
async fn only_a_registrys_own_words_prove_that_an_image_does_not_exist() {
    let nonexistent = |host: &str, image: &str| {
        Err(RegistryError::Nonexistent {
            host: host.to_owned(),
            image: image.to_owned(),
        })
    };
    // The words count after the authentication that the registry requires.
    for (wants, credentials) in [("", None), ("Bearer", None), ("Basic", Some(me()))] {
        let fake = start(wants).await;
        let found = resolve(&fake, "web:none", credentials.as_ref()).await;
        assert_eq!(found, nonexistent(&fake.host, "web:none"), "{wants}");
    }
    let fake = start("").await;
    let digest = digest("other");
    let found = resolve(&fake, &format!("nowhere@{digest}"), None).await;
    assert_eq!(found, nonexistent(&fake.host, &format!("nowhere@{digest}")));
    // Any other 404 is none.
    for image in ["none:2", "denied:1"] {
        let found = resolve(&fake, image, None).await;
        assert!(
            matches!(found, Err(RegistryError::NotFound { .. })),
            "{found:?}"
        );
    }
    let fake = start("Basic").await;
    let found = resolve(&fake, "web:none", None).await;
    assert_eq!(found, Err(RegistryError::Unauthorized(fake.host.clone())));
}

#[tokio::test]
async fn an_image_that_another_source_may_have_is_not_nonexistent() {
    let (fake, mirror, private) = (start("").await, start("").await, start("Basic").await);
    let image = Reference::parse(&format!("{}/web:none", fake.host)).unwrap();
    let source = Registries::new().unwrap();
    let resolve = async |mirror: &str| {
        let host = mirror.split('/').next().unwrap();
        let settings = settings(&[(&fake.host, true, &[mirror]), (host, true, &[])]);
        source.resolve(&image, &settings, &Logins::default()).await
    };
    let everywhere = resolve(&format!("{}/empty", mirror.host)).await;
    let nonexistent = matches!(everywhere, Err(RegistryError::Nonexistent { .. }));
    assert!(nonexistent, "{everywhere:?}");
    for away in ["127.0.0.1:1", &private.host] {
        let found = resolve(away).await;
        assert!(
            matches!(found, Err(RegistryError::NotFound { .. })),
            "{away}: {found:?}"
        );
    }
}

#[tokio::test]
async fn mirrors_are_asked_first_and_see_no_password() {
    let (fake, mirror) = (start("Basic").await, start("").await);
    let image = Reference::parse("docker.io/web:1").unwrap();
    let hub = format!("{}/hub", mirror.host);
    let of = settings(&[("docker.io", false, &[&hub]), (&mirror.host, true, &[])]);
    let source = Registries::new().unwrap();
    let logins = ["docker.io", &fake.host].map(|host| (LoginPlace::parse(host), me()));
    let logins = Logins(logins.into());
    let found = source.resolve(&image, &of, &logins).await.unwrap();
    assert_eq!(found.digest, digest(INDEX));
    assert_eq!(mirror.asked(), ["hub/library/web/manifests/1"]);

    // If a mirror does not have the image, the registry itself is called.
    let image = Reference::parse(&format!("{}/web:1", fake.host)).unwrap();
    let empty = format!("{}/empty", mirror.host);
    let of = settings(&[(&fake.host, true, &[&empty]), (&mirror.host, true, &[])]);
    let found = source.resolve(&image, &of, &logins).await.unwrap();
    assert_eq!(found.digest, digest(INDEX));
    assert_eq!(mirror.asked(), ["empty/web/manifests/1"]);
}

#[tokio::test]
async fn credentials_are_checked_where_the_registry_is_and_nowhere_else() {
    let check = async |fake: &Fake, credentials: &Credentials, insecure: bool| {
        let place = LoginPlace::parse(&format!("{}/org", fake.host));
        let settings = settings(&[(&fake.host, insecure, &[])]);
        let source = Registries::new().unwrap();
        source.check_login(&place, &settings, credentials).await
    };
    let wrong = Credentials {
        password: "other".to_owned(),
        ..me()
    };
    for wants in ["Basic", "Bearer"] {
        let fake = start(wants).await;
        let answer = check(&fake, &me(), true).await;
        assert_eq!(answer, Ok(LoginAnswer::Accepted), "{wants}");
        let refused = Err(RegistryError::Unauthorized(fake.host.clone()));
        assert_eq!(check(&fake, &wrong, true).await, refused, "{wants}");
        fake.asked();
        // No password is sent unencrypted unless the registry is configured as insecure.
        let answer = check(&fake, &me(), false).await;
        let unreachable = matches!(answer, Err(RegistryError::Unreachable { .. }));
        assert!(unreachable, "{answer:?}");
        assert_eq!(fake.asked(), Vec::<String>::new());
    }
    let open = start("").await;
    assert_eq!(check(&open, &wrong, true).await, Ok(LoginAnswer::NotAsked));
}

#[tokio::test]
async fn nobody_there_is_unreachable_and_plain_http_is_only_for_those_that_are_named() {
    let fake = start("").await;
    let image = Reference::parse(&format!("{}/web:1", fake.host)).unwrap();
    let source = Registries::new().unwrap();
    let none = RegistrySettings::default();
    let error = source
        .resolve(&image, &none, &Logins::default())
        .await
        .unwrap_err();
    assert!(
        matches!(error, RegistryError::Unreachable { .. }),
        "{error}"
    );
    let command = format!("`katcall registry set {} --insecure`", fake.host);
    assert!(error.to_string().contains(&command), "{error}");
    assert_eq!(fake.asked(), Vec::<String>::new());
    let image = Reference::parse("127.0.0.1:1/web:1").unwrap();
    let error = source
        .resolve(&image, &none, &Logins::default())
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("127.0.0.1:1 does not answer: "),
        "{error}"
    );
}

#[test]
fn challenges_are_read_and_others_are_not_known() {
    let read = |header: &str| Challenge::read([header]);
    let bearer = |realm: &str, questions: &[(&'static str, &str)]| {
        let questions = questions.iter();
        let questions = questions.map(|(name, value)| (*name, (*value).to_owned()));
        Some(Challenge::Bearer {
            realm: realm.to_owned(),
            questions: questions.collect(),
        })
    };
    assert_eq!(read("Basic realm=\"x\""), Some(Challenge::Basic));
    assert_eq!(read("basic"), Some(Challenge::Basic));
    assert_eq!(
        read("Bearer realm=\"https://a/t\",service=b , scope=\"c d,e\\\"\""),
        bearer("https://a/t", &[("service", "b"), ("scope", "c d,e\"")])
    );
    for unknown in [
        "",
        "Negotiate",
        "Bearer service=\"b\"",
        "Bearer realm",
        "Negotiate, Digest realm=\"x\"",
        "Bearer realm=\"https://a/t",
    ] {
        assert_eq!(read(unknown), None, "{unknown}");
    }
    // A token is preferred, wherever its challenge is.
    for headers in [
        &["Negotiate, Bearer realm=\"https://a/t\""] as &[&str],
        &["Basic realm=\"x\", Bearer realm=\"https://a/t\""],
        &["Bearer realm=\"https://a/t\", Basic realm=\"x\""],
        &["Basic realm=\"x\"", "Bearer realm=\"https://a/t\""],
        &["Negotiate YII=", "Bearer realm=\"https://a/t\", a b c"],
    ] {
        let read = Challenge::read(headers.iter().copied());
        assert_eq!(read, bearer("https://a/t", &[]), "{headers:?}");
    }
}
