//! Images that machines keep for workloads, and machines that are short of disk space.

use super::*;
use kat_types::{
    api::{ApiTime, Condition, DISK_PRESSURE, ImagesRemoved},
    reason::{EventReason, Reason},
};

fn pressure(message: &str) -> Vec<Condition> {
    vec![Condition {
        kind: DISK_PRESSURE.to_owned(),
        status: true,
        reason: Reason::DiskPressure.into(),
        message: message.to_owned(),
        since: ApiTime::UNKNOWN,
    }]
}

fn kept(
    world: &mut World,
    machine: &str,
) -> Option<BTreeMap<u32, kat_types::images::KeptUserImages>> {
    let stored = world.snapshot().kept_images.remove(machine)?;
    Some(stored.value.users)
}

/// Applies a version of `web`, with the image's digest from the registry.
fn version(world: &mut World, number: u32) {
    let image = format!("registry.example/web:{number}");
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(1);
        file["spec"]["source"]["image"] = json!(image);
    });
    let record =
        json!({"reference": image, "pinned": format!("registry.example/web@sha256:{number}")});
    world.change(&keys::workload_meta(NAMESPACE, "web"), |meta| {
        meta["image"] = record.clone()
    });
    let generation = world.snapshot().workloads[&WorkloadKey::new(NAMESPACE, "web")]
        .meta
        .value
        .generation;
    let archived = keys::archive_meta(NAMESPACE, "web", generation);
    world.change(&archived, |meta| meta["image"] = record);
}

#[test]
fn a_machine_is_told_of_what_a_workload_that_has_its_user_may_run_next() {
    let mut world = World::with_machines(2);
    version(&mut world, 1);
    world.roll_out();
    let node = world.wanted("web")[0].1.clone();
    let other = if node == "n1" { "n2" } else { "n1" };
    let images = |world: &mut World| {
        let users = kept(world, &node).unwrap();
        assert_eq!(users.len(), 1);
        let (_, of) = users.into_iter().next().unwrap();
        assert!(!of.unknown);
        of.images
    };
    assert_eq!(images(&mut world), ["registry.example/web@sha256:1"]);
    assert_eq!(kept(&mut world, other), None, "it has nothing of it");
    for number in [2, 3] {
        version(&mut world, number);
        world.roll_out();
        world.pass(Duration::from_secs(10));
        world.roll_out();
    }
    // The machine keeps the present image and the one for a rollback.
    let expected = [
        "registry.example/web@sha256:2",
        "registry.example/web@sha256:3",
    ];
    if world.wanted("web")[0].1 == node {
        assert_eq!(images(&mut world), expected);
    }
    let holders: Vec<_> = ["n1", "n2"]
        .into_iter()
        .filter_map(|name| kept(&mut world, name))
        .collect();
    assert!(
        holders
            .iter()
            .any(|users| users.values().any(|one| one.images == expected)),
        "{holders:?}"
    );
    // An unchanged state causes no writes.
    assert_eq!(world.step(), 0);
    // The list of kept images is removed together with the workload.
    world.delete_workload("web");
    world.settle();
    assert_eq!(kept(&mut world, "n1"), None);
    assert_eq!(kept(&mut world, "n2"), None);
    assert!(world.keys("/kat/workloads/desired/").is_empty());
}

#[test]
fn a_good_version_without_a_known_image_keeps_all_images() {
    let mut world = World::with_machines(1);
    world.replicas("web", 1);
    world.roll_out();
    let first = kept(&mut world, "n1").unwrap();
    let first = first.values().next().unwrap();
    assert_eq!(first.images, ["registry.example/web:1"]);
    assert!(!first.unknown, "the present one is of the files");
    world.apply_workload("web", |file| {
        file["spec"]["source"]["image"] = json!("registry.example/web:2");
    });
    world.settle();
    assert!(
        kept(&mut world, "n1")
            .unwrap()
            .values()
            .next()
            .unwrap()
            .unknown
    );
}

#[test]
fn where_an_image_is_never_pulled_all_are_kept() {
    let unknown = |world: &mut World| {
        let kept = kept(world, "n1").unwrap();
        kept.values().next().unwrap().unknown
    };
    let mut world = World::with_machines(1);
    version(&mut world, 1);
    world.roll_out();
    world.pass(Duration::from_secs(10));
    world.roll_out();
    assert!(!unknown(&mut world));
    // An earlier good version had such an image.
    for had in [true, false] {
        let archived = keys::archive_meta(NAMESPACE, "web", 1);
        world.change(&archived, |meta| meta["image"]["partial"] = json!(had));
        // An apply writes both keys.
        world.change(&keys::workload_meta(NAMESPACE, "web"), |_| {});
        world.settle();
        assert_eq!(unknown(&mut world), had);
    }
    // The present version has such an image.
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(1);
        file["spec"]["container"]["imagePullPolicy"] = json!("Never");
    });
    world.settle();
    assert!(unknown(&mut world));
}

#[test]
fn nothing_new_comes_to_a_machine_that_is_short_of_disk_space() {
    let mut world = World::with_machines(2);
    world.replicas("web", 2);
    world.settle();
    let before: Vec<_> = world.wanted("web").into_iter().map(|(id, ..)| id).collect();
    world.at("n1").conditions =
        pressure("/var/lib/kat: 5 MiB of 100 MiB are free, less than 10 MiB");
    world.settle();
    assert_eq!(
        world.events(EventReason::DiskPressure.word()),
        ["/var/lib/kat: 5 MiB of 100 MiB are free, less than 10 MiB; nothing new is placed on it"]
    );
    // Existing instances stay.
    let after: Vec<_> = world.wanted("web").into_iter().map(|(id, ..)| id).collect();
    assert_eq!(before, after);
    world.replicas("other", 4);
    world.settle();
    let nodes: BTreeSet<String> = world
        .wanted("other")
        .into_iter()
        .map(|(_, node, _)| node)
        .collect();
    assert_eq!(nodes, ["n2".to_owned()].into());
    world.at("n2").conditions = pressure("full");
    world.settle();
    world.replicas("late", 1);
    world.settle();
    assert!(world.wanted("late").is_empty());
    assert_eq!(
        world.status("late").conditions[0].message,
        "0 of 2 machines fit: 2 short of disk space (DiskPressure)"
    );
    world.at("n1").conditions.clear();
    world.settle();
    let nodes: Vec<String> = world
        .wanted("late")
        .into_iter()
        .map(|(_, node, _)| node)
        .collect();
    assert_eq!(nodes, ["n1"]);
    assert_eq!(
        world.events("DiskPressureEnded"),
        ["machine n1 has enough free disk space again"]
    );
}

/// The successor must be placed on the machine in spite of its disk pressure: the instance before
/// it was stopped for it, and other machines may have no space.
#[test]
fn an_update_in_place_starts_its_successor_in_spite_of_disk_pressure() {
    let mut world = World::with_machines(1);
    let in_place = |world: &mut World, image: u32| {
        world.apply_workload("db", |file| {
            file["spec"]["updateStrategy"] = json!({"rolling": {"maxSurge": 0}});
            file["spec"]["source"]["image"] = json!(format!("registry.example/db:{image}"));
        });
    };
    in_place(&mut world, 1);
    world.roll_out();
    world.at("n1").conditions = pressure("full");
    world.settle();
    in_place(&mut world, 2);
    world.roll_out();
    let wanted = world.wanted("db");
    assert_eq!(wanted.len(), 1);
    assert!(wanted[0].2.image.ends_with(":2"));
    assert_eq!(world.running("db"), 1);
}

#[test]
fn images_that_were_removed_are_one_event() {
    let mut world = World::with_machines(1);
    world.settle();
    let removed = |id, images: u32| ImagesRemoved {
        id,
        images,
        bytes: 300 << 20,
        names: vec!["registry.example/web:1".to_owned(); 20],
    };
    world.at("n1").images_removed = Some(removed(1, 1));
    world.settle();
    world.settle();
    assert_eq!(world.events("ImagesRemoved").len(), 1);
    let snapshot = world.snapshot();
    let status = snapshot.nodes["n1"].status.as_ref().unwrap();
    assert_eq!(
        status.value.images_removed.as_ref().unwrap().names.len(),
        3,
        "bounded"
    );
    // A report without the removal deletes nothing, and a repeated report causes no event.
    world.at("n1").images_removed = None;
    world.settle();
    world.at("n1").images_removed = Some(removed(1, 1));
    world.settle();
    assert_eq!(world.events("ImagesRemoved").len(), 1);
    world.at("n1").images_removed = Some(removed(2, 4));
    world.settle();
    let told = world.events("ImagesRemoved");
    assert_eq!(told.len(), 2);
    assert!(
        told[1]
            .starts_with("removed 4 images that nothing used, 300 MiB: registry.example/web:1, "),
        "{told:?}"
    );
}
