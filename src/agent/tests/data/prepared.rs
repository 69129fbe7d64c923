//! An instance that is prepared and not started: all that may fail before its start is tried, and
//! nothing changes for the instance that it replaces.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use super::{volumes::database, *};
use kat_types::{assignment::PREPARED_SCHEMA, resource::HostPort};

/// The next version of the database, to be prepared.
fn next(image: &str) -> Assignment {
    let mut next = database(true);
    next.instance = "db-bbbbb".to_owned();
    next.address = "10.100.0.200".parse().unwrap();
    next.image = image.to_owned();
    next.template_hash = "next".to_owned();
    next.schema = PREPARED_SCHEMA;
    next.wanted = DesiredRun::Prepared;
    next
}

fn started(prepared: &Assignment) -> Assignment {
    Assignment {
        schema: 4,
        wanted: DesiredRun::Running,
        ..prepared.clone()
    }
}

/// A machine on which the database runs.
async fn running() -> (Bench, Assignment) {
    let bench = Bench::new();
    fs::create_dir_all(bench.root.path().join("var/lib/kat")).unwrap();
    let db = database(false);
    bench.list(true, std::slice::from_ref(&db));
    bench.soon().await;
    assert_eq!(bench.said(&db.instance).0, InstancePhase::Running);
    (bench, db)
}

fn instances(bench: &Bench) -> String {
    fs::read_to_string(bench.root.path().join("net/instances.json")).unwrap()
}

fn data(root: &Path) -> (u32, u32) {
    let found = fs::metadata(root.join("var/lib/kat/volumes/default/db/data")).unwrap();
    (found.uid(), found.permissions().mode())
}

#[tokio::test(start_paused = true)]
async fn a_prepared_instance_has_its_image_and_starts_when_it_is_told() {
    let (bench, db) = running().await;
    let mut next = next("registry.lab:5000/db:2");
    // Another user in the container would get the folder at its start.
    next.container.user = Some("1000".to_owned());
    next.ports = serde_json::from_value(serde_json::json!([
        {"name": "sql", "containerPort": 5432}
    ]))
    .unwrap();
    next.ports[0].host_port = Some(HostPort::Number(5432));
    let before = (data(bench.root.path()), bench.calls(&db, "stop"));
    bench.list(true, &[db.clone(), next.clone()]);
    bench.soon().await;
    let prepared = (InstancePhase::Prepared, String::new(), String::new());
    assert_eq!(bench.said(&next.instance), prepared);
    assert_eq!(bench.said(&db.instance).0, InstancePhase::Running);
    let pull = format!("start {}", image_unit(&bench, &next));
    assert_eq!(bench.calls(&db, &pull), 1);
    assert_eq!(bench.calls(&db, &format!("start {}", next.unit())), 0);
    let after = (data(bench.root.path()), bench.calls(&db, "stop"));
    assert_eq!(after, before);
    let quadlet = |one: &Assignment| {
        let name = one.unit().replace(".service", ".container");
        bench.units(one).join(name).exists()
    };
    assert!(quadlet(&db) && !quadlet(&next));
    assert!(!instances(&bench).contains(&next.instance));

    let next = started(&next);
    bench.list(true, std::slice::from_ref(&next));
    bench.later(Duration::from_secs(20)).await;
    assert_eq!(bench.said(&next.instance).0, InstancePhase::Running);
    assert!(!quadlet(&db) && quadlet(&next));
    assert!(instances(&bench).contains(&next.instance));
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_pulled_is_reported_and_pulled_again() {
    let (bench, db) = running().await;
    let next = next("registry.lab:5000/db:none");
    let unit = image_unit(&bench, &next);
    let fails = UnitBehaviour {
        oneshot: true,
        exits: Some(125),
        ..UnitBehaviour::default()
    };
    bench.behave(&unit, Some(fails.clone()));
    bench.logs.say(&unit, "Error: manifest unknown", false);
    bench.list(true, &[db.clone(), next.clone()]);
    bench.soon().await;
    let failed = (
        InstancePhase::Pulling,
        "ImageNotFound".to_owned(),
        "manifest unknown".to_owned(),
    );
    assert_eq!(bench.said(&next.instance), failed);
    assert_eq!(bench.said(&db.instance).0, InstancePhase::Running);
    let works = UnitBehaviour {
        exits: Some(0),
        ..fails
    };
    bench.behaviours.lock().clear();
    bench.manager(&db).define(&unit, works);
    bench.later(Duration::from_secs(62)).await;
    assert_eq!(bench.said(&next.instance).0, InstancePhase::Prepared);
}

#[tokio::test(start_paused = true)]
async fn a_missing_volume_a_device_and_a_secret_are_reported_before_the_start() {
    let (bench, db) = running().await;
    let mut absent = next("registry.lab:5000/db:2");
    absent.volumes[0].folder = Some("default/db/other".to_owned());
    let mut device = next("registry.lab:5000/db:2");
    device.container.devices = vec!["/dev/kat-none".to_owned()];
    let mut secret = next("registry.lab:5000/db:2");
    secret.secrets = Some(
        serde_json::from_value(serde_json::json!({
            "versions": {"db": {"uid": "u", "version": 1}}, "sealed": "AAAA"
        }))
        .unwrap(),
    );
    for (one, reason) in [
        (absent, "VolumeMissing"),
        (device, "DeviceMissing"),
        (secret, "SecretUnreadable"),
    ] {
        bench.list(true, &[db.clone(), one.clone()]);
        bench.soon().await;
        let (phase, said, message) = bench.said(&one.instance);
        assert_eq!(
            (phase, &*said),
            (InstancePhase::Scheduled, reason),
            "{message}"
        );
        assert_eq!(bench.said(&db.instance).0, InstancePhase::Running);
        let made = bench
            .root
            .path()
            .join("var/lib/kat/volumes/default/db/other");
        assert!(!made.exists());
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_runs_and_is_to_be_prepared_only_is_stopped() {
    // As after the restore of a backup from before its start.
    let (bench, db) = running().await;
    let back = Assignment {
        schema: PREPARED_SCHEMA,
        wanted: DesiredRun::Prepared,
        ..db.clone()
    };
    bench.list(true, std::slice::from_ref(&back));
    bench.later(Duration::from_secs(20)).await;
    assert_eq!(bench.said(&db.instance).0, InstancePhase::Prepared);
    assert!(
        !bench
            .units(&db)
            .join(db.unit().replace(".service", ".container"))
            .exists()
    );
}

#[tokio::test(start_paused = true)]
async fn a_prepared_instance_that_is_removed_leaves_nothing() {
    let (bench, db) = running().await;
    let next = next("registry.lab:5000/db:2");
    bench.list(true, &[db.clone(), next.clone()]);
    bench.soon().await;
    assert_eq!(bench.said(&next.instance).0, InstancePhase::Prepared);
    bench.list(true, std::slice::from_ref(&db));
    bench.soon().await;
    assert!(bench.report(&next.instance).is_none());
    assert_eq!(bench.said(&db.instance).0, InstancePhase::Running);
    let image = image_unit(&bench, &next).replace("-image.service", ".image");
    assert!(!bench.units(&db).join(image).exists());
}
