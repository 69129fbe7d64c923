//! Registry credentials: each instance is given those of its images only, and a changed credential
//! replaces no instance.

use super::{
    secrets::{machines, private},
    *,
};
use kat_pki::delivery::{SealingPurpose, open_assigned, open_logins};
use kat_types::registry::{
    Credentials, LoginPlace, LoginRecord, RegistrySetting, RegistrySettings,
};

fn login(world: &mut World, namespace: &str, registry: &str, password: &str) {
    let snapshot = world.snapshot();
    let place = LoginPlace::parse(registry);
    let before = snapshot.logins.get(namespace);
    let before = before.and_then(|logins| logins.get(&place));
    let record = LoginRecord {
        schema: 1,
        uid: "u".to_owned(),
        version: before.map_or(0, |before| before.value.version) + 1,
        created: world.now,
        updated: world.now,
        username: String::new(),
        key_id: 0,
        sealed: String::new(),
    };
    let credentials = Credentials {
        username: "me".to_owned(),
        password: password.to_owned(),
    };
    let (number, key) = snapshot.sealing_keys.last_key_value().unwrap();
    let login = (namespace, &place);
    let sealing = &snapshot.sealing;
    let record = sealing.seal_login((*number, &key.value), login, &credentials, record);
    let record = record.unwrap();
    assert!(!format!("{record:?}").contains(&record.sealed));
    // Base64 has any three letters once in some hundred records by chance.
    let mut open = record.clone();
    open.sealed.clear();
    assert!(!serde_json::to_string(&open).unwrap().contains(password));
    assert!(password.len() < 7 || !record.sealed.contains(password));
    world.write(keys::login(namespace, &place.to_string()), &record);
}

fn app(world: &mut World, image: &str, replicas: u32) {
    world.apply_workload("app", |file| {
        file["spec"]["source"]["image"] = json!(image);
        file["spec"]["replicas"] = json!(replicas);
    });
}

/// The credentials of each instance, opened on its machine, as `registry=password`.
fn given(world: &mut World) -> Vec<Vec<String>> {
    let wanted = world.wanted("app").into_iter();
    let given = wanted.map(|(id, node, assignment)| {
        let Some(logins) = &assignment.logins else {
            return Vec::new();
        };
        let number: usize = node.trim_start_matches('n').parse().unwrap();
        let key = private(number);
        let opened = open_logins(logins, key.bytes(), &node, &id).unwrap();
        // Sealed credentials do not open on another machine, for another instance, or as secrets.
        assert!(open_logins(logins, private(number + 1).bytes(), &node, &id).is_err());
        assert!(open_logins(logins, key.bytes(), &node, "app-other").is_err());
        assert!(open_assigned(logins, SealingPurpose::Secrets, key.bytes(), &node, &id).is_err());
        let opened = opened.into_iter();
        opened
            .map(|(key, one)| format!("{key}={}", one.password))
            .collect()
    });
    given.collect()
}

#[test]
fn an_instance_has_what_its_images_need_and_follows_it_without_being_replaced() {
    let mut world = machines(2);
    login(&mut world, NAMESPACE, "a.example", "one");
    login(&mut world, NAMESPACE, "a.example/org", "org");
    login(&mut world, NAMESPACE, "b.example", "other");
    login(&mut world, "shop", "a.example/org/app", "foreign");
    app(&mut world, "a.example/org/app:1", 3);
    world.roll_out();
    let org = vec!["a.example/org=org".to_owned()];
    assert_eq!(given(&mut world), [org.clone(), org.clone(), org]);
    let ids = |world: &mut World| -> Vec<String> {
        world.wanted("app").into_iter().map(|one| one.0).collect()
    };
    let before = ids(&mut world);
    assert!(world.wanted("app").iter().all(|one| one.2.schema == 6));

    login(&mut world, NAMESPACE, "a.example/org", "changed");
    assert!(world.step() > 0);
    assert_eq!(world.step(), 0, "what follows is written once");
    let changed = vec!["a.example/org=changed".to_owned()];
    assert_eq!(
        given(&mut world),
        [changed.clone(), changed.clone(), changed]
    );
    // Credentials for other images cause no write.
    login(&mut world, NAMESPACE, "b.example", "changed");
    assert_eq!(world.step(), 0);
    // The credentials of the next shorter path apply, and after their deletion none do.
    for (gone, left) in [
        ("a.example/org", vec!["a.example=one".to_owned()]),
        ("a.example", vec![]),
    ] {
        world.apply(&[WriteOperation::Delete(keys::login(NAMESPACE, gone))]);
        world.roll_out();
        assert_eq!(given(&mut world), [left.clone(), left.clone(), left]);
    }
    assert_eq!(ids(&mut world), before, "nothing was replaced");
    let generation = world.wanted("app")[0].2.generation;
    assert_eq!(generation, 1);
    let text = serde_json::to_string(world.wanted("app")[0].2.as_ref()).unwrap();
    assert!(!text.contains("logins"), "{text}");
}

#[test]
fn what_moves_takes_its_own_along_and_what_ends_is_left_alone() {
    let mut world = machines(2);
    login(&mut world, NAMESPACE, "a.example", "one");
    app(&mut world, "a.example/app:1", 1);
    world.roll_out();
    let (id, from, _) = world.wanted("app")[0].clone();
    world.drain(&from, true);
    world.roll_out();
    assert_ne!(world.wanted("app")[0].1, from);
    assert_eq!(given(&mut world), [["a.example=one"]]);

    // An instance being stopped is not written again.
    let (last, node, _) = world.wanted("app")[0].clone();
    assert_ne!(last, id);
    world.at(&node).obeys = false;
    app(&mut world, "a.example/app:1", 0);
    world.plan_out();
    login(&mut world, NAMESPACE, "a.example", "two");
    assert_eq!(world.step(), 0);
}

#[test]
fn mirrors_are_told_what_was_said_about_them_alone() {
    let mut world = machines(1);
    let setting = RegistrySetting {
        insecure: false,
        mirrors: vec!["m.example/hub".to_owned()],
    };
    let settings = RegistrySettings {
        schema: 1,
        registries: [("docker.io".to_owned(), setting)].into(),
    };
    world.write(keys::REGISTRIES.to_owned(), &settings);
    login(&mut world, NAMESPACE, "Registry-1.Docker.io", "hub");
    app(&mut world, "nginx:1", 1);
    world.roll_out();
    assert_eq!(given(&mut world), [["docker.io=hub"]]);
    login(&mut world, NAMESPACE, "m.example", "mirror");
    world.roll_out();
    assert_eq!(given(&mut world), [["docker.io=hub", "m.example=mirror"]]);
}

#[test]
fn agents_of_before_get_no_new_instance_that_needs_credentials_and_keep_theirs() {
    let mut world = machines(1);
    world.at("n1").schema = 5;
    app(&mut world, "a.example/app:1", 1);
    world.roll_out();
    assert_eq!(world.running("app"), 1);
    login(&mut world, NAMESPACE, "a.example", "one");
    world.roll_out();
    let (_, _, assignment) = world.wanted("app")[0].clone();
    // The instance continues, and its agent ignores the unknown field.
    assert!(assignment.logins.is_some() && assignment.schema < 6);
    app(&mut world, "a.example/app:1", 2);
    world.roll_out();
    assert_eq!(world.wanted("app").len(), 1);
    let message = world.status("app").conditions[0].message.clone();
    assert!(message.contains("too old for it"), "{message}");
}

#[test]
fn unreadable_credentials_hold_up_new_instances_only() {
    let mut world = machines(1);
    login(&mut world, NAMESPACE, "a.example", "one");
    app(&mut world, "a.example/app:1", 1);
    world.roll_out();
    // The record of one registry is stored under the key of another.
    let name = |place: &str| keys::login(NAMESPACE, place);
    let record = world.entries[name("a.example").as_str()].value.clone();
    world.apply(&[WriteOperation::Put(name("a.example/app"), record)]);
    world.roll_out();
    assert_eq!(given(&mut world), [["a.example=one"]], "it has what it had");
    assert_eq!(world.running("app"), 1);
    app(&mut world, "a.example/app:1", 2);
    world.roll_out();
    assert_eq!(world.wanted("app").len(), 1);
    let condition = world.status("app").conditions[0].clone();
    assert_eq!(condition.reason, "CredentialsUnreadable");
    let message = condition.message;
    assert!(
        message.contains("a.example/app in namespace default"),
        "{message}"
    );
}

#[test]
fn credentials_go_with_their_namespace() {
    let mut world = machines(1);
    world.namespace("shop", true);
    login(&mut world, "shop", "a.example/org", "hunter2");
    login(&mut world, "shop-2", "a.example", "hunter2");
    world.plan_out();
    assert_eq!(
        world.keys(keys::LOGINS),
        ["/kat/registries/shop-2/a.example"]
    );
}

#[test]
fn an_instance_has_no_more_credentials_than_its_entry_takes() {
    let mut world = machines(1);
    login(&mut world, NAMESPACE, "a.example", &"x".repeat(16 << 10));
    app(&mut world, "a.example/app:1", 1);
    world.roll_out();
    assert_eq!(given(&mut world).len(), 1);
    let long = "y".repeat(60 << 10);
    login(&mut world, NAMESPACE, "a.example", &long);
    world.settle();
    // The running instance keeps its credentials, and a new one waits with a reason.
    let kept = given(&mut world);
    assert_eq!(kept, [[format!("a.example={}", "x".repeat(16 << 10))]]);
    app(&mut world, "a.example/app:2", 1);
    world.settle();
    let status = world.status("app");
    let said = serde_json::to_string(&status).unwrap();
    assert!(
        said.contains("an instance can have 65536 at most"),
        "{said}"
    );
    login(&mut world, NAMESPACE, "a.example", "short");
    world.roll_out();
    assert_eq!(given(&mut world), [["a.example=short".to_owned()]]);
}

/// The credentials change, and another version is wanted, before the next plan: the prepared instance
/// of the version before it goes, and its machine's list is whole.
#[test]
fn a_prepared_instance_that_goes_does_not_come_back_with_new_credentials() {
    let mut world = machines(1);
    let version = |world: &mut World, number: u32| {
        world.apply_workload("app", |file| {
            file["spec"]["source"]["image"] = json!(format!("a.example/app:{number}"));
            file["spec"]["updateStrategy"] = json!({"rolling": {"maxSurge": 0}});
        });
    };
    login(&mut world, NAMESPACE, "a.example", "one");
    version(&mut world, 1);
    world.roll_out();
    for missing in [2, 3] {
        world.missing.insert(format!("a.example/app:{missing}"));
    }
    version(&mut world, 2);
    world.settle();
    assert_eq!(world.snapshot().instances.len(), 2);
    version(&mut world, 3);
    login(&mut world, NAMESPACE, "a.example", "two");
    // Each step checks that the list has as many assignments as its meta counts.
    world.settle();
    let snapshot = world.snapshot();
    assert_eq!(snapshot.instances.len(), 2);
    let images = snapshot.instances.values();
    let images: BTreeSet<_> = images
        .map(|one| one.assignment.value.image.clone())
        .collect();
    let wanted = ["a.example/app:1", "a.example/app:3"].map(str::to_owned);
    assert_eq!(images, BTreeSet::from(wanted));
    // A start and new credentials in one plan: the start counts, and the credentials follow.
    world.missing.clear();
    login(&mut world, NAMESPACE, "a.example", "three");
    world.roll_out();
    assert_eq!(given(&mut world), [["a.example=three"]]);
}
