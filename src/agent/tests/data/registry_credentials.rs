//! Registry credentials: one file for a user's pulls only, removed when no assignment needs it.

use std::fs;

use super::*;
use crate::tests::data::secrets::{access, keyed, private};
use kat_pki::{
    delivery::{SealingPurpose, seal_for},
    secret_sealing::DataKey,
};
use kat_types::{resource::secret::SecretValues, secrets::SecretVersion};

const PASSWORD: &str = "hunter2-hunter2";
/// Base64 of `me:hunter2-hunter2`.
const ENCODED: &str = "bWU6aHVudGVyMi1odW50ZXIy";

/// The same instance with these passwords by registry, sealed for this machine.
fn with(one: Assignment, passwords: &[(&str, &str)], version: u64) -> Assignment {
    let version = |registry: &str| {
        let uid = format!("uid-{registry}");
        SecretVersion { uid, version }
    };
    let passwords = passwords.iter();
    let versions = passwords
        .clone()
        .map(|(registry, _)| ((*registry).to_owned(), version(registry)));
    let values = passwords.map(|(registry, password)| {
        let values = [("username", "me"), ("password", *password)];
        let values = values.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
        ((*registry).to_owned(), SecretValues(values.into()))
    });
    let sealed = seal_for(
        SealingPurpose::Logins,
        &DataKey::from_bytes([1; 32]),
        ("n1", &private(7).public().0),
        &one.instance,
        versions.collect(),
        &values.collect(),
    );
    Assignment {
        logins: Some(sealed.unwrap()),
        ..one
    }
}

fn file(bench: &Bench, one: &Assignment) -> PathBuf {
    let path = format!("run/kat/auth/{}.json", one.user.uid);
    bench.root.path().join(path)
}

fn text(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The text of all units of a user, and the names of the units that refer to the credentials.
fn units(bench: &Bench, one: &Assignment) -> (String, Vec<String>) {
    let mut all = String::new();
    let mut naming = Vec::new();
    for entry in fs::read_dir(bench.units(one)).unwrap().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap();
        if text.contains("/run/kat/auth/") {
            naming.push(entry.file_name().into_string().unwrap());
        }
        all += &text;
    }
    naming.sort();
    (all, naming)
}

#[tokio::test(start_paused = true)]
async fn pulls_are_given_one_file_and_nothing_else_is() {
    let bench = Bench::new();
    keyed(&bench, 7);
    let plain = assignment(0, "web");
    let one = with(plain.clone(), &[("registry.lab:5000", PASSWORD)], 1);
    bench.list(true, std::slice::from_ref(&one));
    bench.soon().await;
    assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
    let path = file(&bench, &one);
    let uid = one.user.uid;
    assert_eq!(access(&path), (0o640, 0, uid));
    assert_eq!(access(path.parent().unwrap()), (0o711, 0, 0));
    let auth = serde_json::json!({"auths": {"registry.lab:5000": {"auth": ENCODED}}});
    assert_eq!(text(&path), auth);
    let pull = image_unit(&bench, &one).replace("-image.service", ".image");
    let (all, naming) = units(&bench, &one);
    assert_eq!(naming, [pull], "the pull's alone");
    assert!(
        all.contains(&format!("AuthFile=/run/kat/auth/{uid}.json\n")),
        "{all}"
    );
    assert!(!all.contains(PASSWORD) && !all.contains(ENCODED));
    let kept = fs::read_dir(bench.units(&one)).unwrap().count();

    // A second instance of the user needs another registry; both share one file.
    let mut second = assignment(0, "web");
    second.instance = "web-bbbbb".to_owned();
    second.image = "b.example/web:2".to_owned();
    let second = with(second, &[("b.example", "other")], 1);
    bench.list(true, &[one.clone(), second.clone()]);
    bench.soon().await;
    let names = |value: &serde_json::Value| -> Vec<String> {
        value["auths"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    assert_eq!(names(&text(&path)), ["b.example", "registry.lab:5000"]);
    assert_eq!(units(&bench, &one).1.len(), 2);
    bench.list(true, std::slice::from_ref(&one));
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(names(&text(&path)), ["registry.lab:5000"]);
    assert_eq!(fs::read_dir(bench.units(&one)).unwrap().count(), kept);

    // A changed password rewrites the file without a reload, start or stop.
    let calls = |begin: &str| bench.calls(&one, begin);
    let before = (
        calls("reload"),
        calls("start"),
        calls("stop"),
        calls("restart"),
    );
    let changed = with(plain.clone(), &[("registry.lab:5000", "changed")], 2);
    bench.list(true, std::slice::from_ref(&changed));
    bench.soon().await;
    assert_ne!(text(&path), auth);
    let after = (
        calls("reload"),
        calls("start"),
        calls("stop"),
        calls("restart"),
    );
    assert_eq!(before, after);

    // Only a confirmed list removes the file. Afterwards no unit refers to it.
    bench.list(false, std::slice::from_ref(&plain));
    bench.soon().await;
    assert!(path.exists());
    assert_eq!(units(&bench, &one).1.len(), 1);
    bench.list(true, std::slice::from_ref(&plain));
    bench.soon().await;
    assert!(!path.parent().unwrap().exists());
    assert_eq!(units(&bench, &one).1, Vec::<String>::new());
    assert_eq!(calls("stop"), before.2, "it runs on");

    // The file is removed together with the user.
    bench.list(true, std::slice::from_ref(&one));
    bench.soon().await;
    assert!(path.exists());
    bench.list(true, &[]);
    bench.later(Duration::from_secs(60)).await;
    assert!(!path.parent().unwrap().exists());
}

fn refuses() -> UnitBehaviour {
    UnitBehaviour {
        oneshot: true,
        exits: Some(125),
        ..UnitBehaviour::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_pull_names_the_way_out_and_goes_on_with_it_at_once() {
    let bench = Bench::new();
    keyed(&bench, 7);
    let plain = assignment(0, "web");
    let unit = image_unit(&bench, &plain);
    bench.behave(&unit, Some(refuses()));
    let words = "Error: initializing source docker://registry.lab:5000/web:1: reading manifest 1 in registry.lab:5000/web: authentication required";
    bench.logs.say(&unit, words, false);
    bench.list(true, std::slice::from_ref(&plain));
    bench.soon().await;
    let (phase, reason, message) = bench.said(&plain.instance);
    assert_eq!(phase, InstancePhase::Pulling);
    assert_eq!(reason, "ImagePullUnauthorized");
    assert!(
        message.ends_with("authentication required; `katcall registry login registry.lab:5000 -n default` gives this namespace a name and password for it"),
        "{message}"
    );
    // Retries have become rare, but new credentials cause one immediately.
    bench.later(Duration::from_secs(400)).await;
    let tries = bench.calls(&plain, &format!("start {unit}"));
    let one = with(plain.clone(), &[("registry.lab:5000", "wrong")], 1);
    bench.list(true, std::slice::from_ref(&one));
    bench.soon().await;
    assert_eq!(bench.calls(&plain, &format!("start {unit}")), tries + 1);
    let (_, reason, message) = bench.said(&plain.instance);
    assert_eq!(reason, "ImagePullUnauthorized");
    assert!(
        message.ends_with("replaces the name and password that it was given"),
        "{message}"
    );
    assert!(!message.contains("wrong"));
    bench.behaviours.lock().clear();
    let works = UnitBehaviour {
        exits: Some(0),
        ..refuses()
    };
    bench.manager(&plain).define(&unit, works);
    let one = with(plain, &[("registry.lab:5000", PASSWORD)], 2);
    bench.list(true, std::slice::from_ref(&one));
    bench.soon().await;
    assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
}

#[tokio::test(start_paused = true)]
async fn what_is_sealed_for_another_machine_is_said_where_it_is_needed() {
    let bench = Bench::new();
    keyed(&bench, 8);
    let one = with(assignment(0, "web"), &[("registry.lab:5000", PASSWORD)], 1);
    let other = with(
        assignment(1, "other"),
        &[("registry.lab:5000", PASSWORD)],
        1,
    );
    bench.images(&other, &[&other.image]);
    bench.list(true, &[one.clone(), other.clone()]);
    bench.soon().await;
    let (phase, reason, message) = bench.said(&one.instance);
    assert_eq!(phase, InstancePhase::Pulling);
    assert_eq!(reason, "CredentialsUnreadable", "{message}");
    assert_eq!(bench.calls(&one, "start"), 0);
    assert!(!file(&bench, &one).exists());
    assert_eq!(
        bench.said(&other.instance).0,
        InstancePhase::Running,
        "its image is there"
    );
    keyed(&bench, 7);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
}
