//! Secrets that an instance uses: variables and files with their owners, only on the instance's
//! machine, removed with the instance.

use std::{fs, os::unix::fs::MetadataExt};

use super::*;
use kat_network::overlay::wireguard::PrivateKey;
use kat_pki::{
    delivery::{SealingPurpose, seal_for},
    secret_sealing::DataKey,
};
use kat_types::{
    assignment::AssignedVolume,
    resource::{VolumeMount, secret::SecretValues},
    secrets::SecretVersion,
};

const VALUE: &str = "hunter2-hunter2";

pub(super) fn private(seed: u8) -> PrivateKey {
    PrivateKey::from_bytes([seed; 32])
}

/// Gives the machine this WireGuard key.
pub(super) fn keyed(bench: &Bench, seed: u8) {
    let folder = bench.root.path().join("var/lib/kat/network");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("wireguard.key"), private(seed).to_base64()).unwrap();
}

/// An instance of workload `index` with `PASSWORD` of `db` as a variable, all of `db` as files, and
/// one key of `db` as a file.
fn user(index: u32, values: &[(&str, &[u8])]) -> Assignment {
    let mut one = assignment(index, &format!("app{index}"));
    one.schema = 5;
    one.container.env = serde_json::from_value(serde_json::json!([
        {"name": "P", "valueFrom": {"secret": {"name": "db", "key": "PASSWORD"}}},
        {"name": "PLAIN", "value": "p"},
    ]))
    .unwrap();
    let mount = |path: &str, key: Option<&str>| VolumeMount {
        name: "keys".to_owned(),
        mount_path: path.to_owned(),
        sub_path: key.map(str::to_owned),
        read_only: false,
    };
    one.container.volume_mounts = vec![mount("/keys", None), mount("/p", Some("PASSWORD"))];
    one.volumes = vec![AssignedVolume {
        definition: serde_json::from_value(
            serde_json::json!({"name": "keys", "secret": {"name": "db"}}),
        )
        .unwrap(),
        folder: None,
        made: false,
    }];
    let values = values.iter();
    let values = values.map(|(key, value)| ((*key).to_owned(), value.to_vec()));
    let values = BTreeMap::from([("db".to_owned(), SecretValues(values.collect()))]);
    let version = SecretVersion {
        uid: "u".to_owned(),
        version: 1,
    };
    let sealed = seal_for(
        SealingPurpose::Secrets,
        &DataKey::from_bytes([1; 32]),
        ("n1", &private(7).public().0),
        &one.instance,
        BTreeMap::from([("db".to_owned(), version)]),
        &values,
    );
    one.secrets = Some(sealed.unwrap());
    one
}

fn folder(bench: &Bench, one: &Assignment) -> PathBuf {
    let path = format!("var/lib/kat/secrets/{}/{}", one.user.uid, one.instance);
    bench.root.path().join(path)
}

/// Mode, uid and gid.
pub(super) fn access(path: &Path) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.mode() & 0o7777, found.uid(), found.gid())
}

fn unit_text(bench: &Bench, one: &Assignment, suffix: &str) -> String {
    let unit = one.unit();
    let stem = unit.strip_suffix(".service").unwrap();
    fs::read_to_string(bench.units(one).join(format!("{stem}.{suffix}"))).unwrap()
}

#[tokio::test(start_paused = true)]
async fn values_come_into_variables_and_files_and_go_with_the_instance() {
    let bench = Bench::new();
    keyed(&bench, 7);
    let one = user(0, &[("PASSWORD", VALUE.as_bytes()), ("bin", b"\xff\0")]);
    bench.images(&one, &[&one.image]);
    bench.list(true, std::slice::from_ref(&one));
    bench.soon().await;
    assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
    assert_eq!(
        unit_text(&bench, &one, "env"),
        format!("P={VALUE}\nPLAIN=p\n")
    );
    let quadlet = unit_text(&bench, &one, "container");
    assert!(!quadlet.contains(VALUE));
    let place = format!("/var/lib/kat/secrets/{}/{}/db", one.user.uid, one.instance);
    assert!(quadlet.contains(&format!("{place}:/keys:ro")), "{quadlet}");
    assert!(
        quadlet.contains(&format!("{place}/PASSWORD:/p:ro")),
        "{quadlet}"
    );

    let uid = one.user.uid;
    let here = folder(&bench, &one);
    let secret = here.join("db");
    assert_eq!(access(here.parent().unwrap()), (0o750, 0, uid));
    assert_eq!(access(&here), (0o750, 0, uid));
    assert_eq!(access(&secret), (0o755, uid, uid));
    assert_eq!(access(&secret.join("PASSWORD")), (0o444, uid, uid));
    assert_eq!(fs::read(secret.join("PASSWORD")).unwrap(), VALUE.as_bytes());
    assert_eq!(fs::read(secret.join("bin")).unwrap(), b"\xff\0");
    let names: Vec<_> = fs::read_dir(&here).unwrap().collect();
    assert_eq!(names.len(), 1, "nothing unfinished is left: {names:?}");

    // A link in the place of a file is replaced, and its target is not changed.
    let victim = bench.root.path().join("victim");
    fs::write(&victim, VALUE).unwrap();
    let before = access(&victim);
    fs::remove_file(secret.join("PASSWORD")).unwrap();
    std::os::unix::fs::symlink(&victim, secret.join("PASSWORD")).unwrap();
    bench.later(Duration::from_secs(31)).await;
    assert_eq!(access(&secret.join("PASSWORD")), (0o444, uid, uid));
    assert_eq!(access(&victim), before);

    // Only a confirmed list removes the files, and another instance of the workload does not keep
    // them.
    bench.list(false, &[]);
    bench.soon().await;
    assert!(here.exists());
    let next = Assignment {
        instance: "app0-bbbbb".to_owned(),
        secrets: None,
        ..assignment(0, "app0")
    };
    bench.list(true, &[one.clone(), next.clone()]);
    bench.soon().await;
    assert!(here.exists());
    bench.list(true, &[next]);
    bench.later(Duration::from_secs(60)).await;
    assert!(!here.exists(), "its files go when it has stopped");
    bench.list(true, &[]);
    bench.later(Duration::from_secs(60)).await;
    assert!(!bench.root.path().join("var/lib/kat/secrets").exists());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_for_this_machine_does_not_start_and_says_so() {
    let bench = Bench::new();
    keyed(&bench, 8);
    let one = user(0, &[("PASSWORD", VALUE.as_bytes())]);
    let other = assignment(1, "web");
    for one in [&one, &other] {
        bench.images(one, &[&one.image]);
    }
    bench.list(true, &[one.clone(), other.clone()]);
    bench.soon().await;
    let (phase, reason, message) = bench.said(&one.instance);
    assert_eq!(phase, InstancePhase::Starting);
    assert_eq!(reason, "SecretUnreadable", "{message}");
    assert!(!message.contains(VALUE));
    assert!(!folder(&bench, &one).exists());
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
    // The instance starts without further action once the key is right.
    keyed(&bench, 7);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
    // With a changed key, a running instance continues with its files.
    keyed(&bench, 8);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
    assert!(folder(&bench, &one).join("db/PASSWORD").exists());
    assert_eq!(bench.calls(&one, "stop"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_no_variable_can_have_holds_up_its_instance_alone() {
    let bench = Bench::new();
    keyed(&bench, 7);
    let mut one = user(0, &[("PASSWORD", b"a\0b")]);
    one.container.env[0].name = "PATH".to_owned();
    let other = assignment(1, "web");
    for one in [&one, &other] {
        bench.images(one, &[&one.image]);
    }
    bench.list(true, &[one.clone(), other.clone()]);
    bench.soon().await;
    let (_, reason, message) = bench.said(&one.instance);
    assert_eq!(reason, "SecretUnusable", "{message}");
    assert!(message.contains("`PATH`"), "{message}");
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
}
