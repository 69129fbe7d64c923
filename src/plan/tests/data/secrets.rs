//! Secrets: the version that each instance is given, instances that wait for a secret, and the
//! single rollout after a change.

use super::*;
use kat_network::overlay::wireguard::PrivateKey;
use kat_pki::{
    delivery::{SealingPurpose, open_assigned},
    recovery_key::RecoveryKey,
};
use kat_types::resource::secret::SecretValues;

pub(crate) fn private(machine: usize) -> PrivateKey {
    PrivateKey::from_bytes([u8::try_from(machine).unwrap() + 1; 32])
}

/// Machines with WireGuard keys, and a store with a sealing key.
pub(crate) fn machines(count: usize) -> World {
    let mut world = World::with_machines(count);
    world.builder =
        SnapshotBuilder::with_sealing(SnapshotSealing::with(RecoveryKey::generate().unwrap()));
    for (at, name) in (1..).zip(world.machines.keys().cloned().collect::<Vec<_>>()) {
        world.at(&name).schema = ASSIGNMENT_SCHEMA;
        let public = private(at).public().to_string();
        let key = keys::network_node(&name, "wg_pubkey");
        world.apply(&[WriteOperation::Put(key, public.into_bytes())]);
    }
    let now = world.now;
    let key = world.snapshot().sealing.new_key(1, now).unwrap();
    world.write(keys::sealing_key(1), &key);
    world
}

/// Writes a secret as the API does.
pub(crate) fn set(world: &mut World, name: &str, values: &[(&str, &[u8])]) {
    set_in(world, NAMESPACE, name, values);
}

/// [`set`] in another namespace.
pub(crate) fn set_in(world: &mut World, namespace: &str, name: &str, values: &[(&str, &[u8])]) {
    let snapshot = world.snapshot();
    let place = SecretKey::new(namespace, name);
    let before = snapshot.secrets.get(&place);
    let values = values.iter();
    let values = values.map(|(key, value)| ((*key).to_owned(), value.to_vec()));
    let values = SecretValues(values.collect());
    let record = SecretRecord {
        schema: 1,
        uid: "u".to_owned(),
        version: before.map_or(0, |before| before.value.version) + 1,
        created: world.now,
        updated: world.now,
        keys: BTreeMap::new(),
        key_id: 0,
        sealed: String::new(),
    };
    let (number, key) = snapshot.sealing_keys.last_key_value().unwrap();
    let sealing = &snapshot.sealing;
    let record = sealing.seal((*number, &key.value), &place, &values, record);
    world.write(keys::secret(&place.to_string()), &record.unwrap());
}

/// A workload with `PASSWORD` of `db` as a variable, and all of `db` as files.
fn app(world: &mut World, change: impl FnOnce(&mut serde_json::Value)) {
    world.apply_workload("app", |file| {
        let container = &mut file["spec"]["container"];
        container["env"] =
            json!([{"name": "P", "valueFrom": {"secret": {"name": "db", "key": "PASSWORD"}}}]);
        container["volumeMounts"] = json!([{"name": "keys", "mountPath": "/keys"}]);
        file["spec"]["volumes"] = json!([{"name": "keys", "secret": {"name": "db"}}]);
        change(file);
    });
}

/// The value of `PASSWORD` for each instance, opened on its machine.
fn given(world: &mut World) -> Vec<String> {
    let wanted = world.wanted("app").into_iter();
    let given = wanted.map(|(id, node, assignment)| {
        let number: usize = node.trim_start_matches('n').parse().unwrap();
        let secrets = assignment.secrets.as_ref().unwrap();
        let opened = open_assigned(
            secrets,
            SealingPurpose::Secrets,
            private(number).bytes(),
            &node,
            &id,
        )
        .unwrap();
        // Sealed secrets do not open on another machine or for another instance.
        let other = private(number + 1);
        assert!(
            open_assigned(secrets, SealingPurpose::Secrets, other.bytes(), &node, &id).is_err()
        );
        let own = private(number);
        assert!(
            open_assigned(
                secrets,
                SealingPurpose::Secrets,
                own.bytes(),
                &node,
                "app-other"
            )
            .is_err()
        );
        String::from_utf8(opened["db"].0["PASSWORD"].clone()).unwrap()
    });
    given.collect()
}

fn condition(world: &mut World) -> (String, String) {
    let status = world.status("app");
    let condition = &status.conditions[0];
    (condition.reason.clone(), condition.message.clone())
}

#[test]
fn a_workload_waits_for_its_secret_and_says_for_which() {
    let mut world = machines(2);
    app(&mut world, |_| {});
    world.roll_out();
    assert!(world.wanted("app").is_empty());
    let (reason, message) = condition(&mut world);
    assert_eq!(reason, "SecretMissing");
    assert!(
        message.contains("no secret db in namespace default"),
        "{message}"
    );
    set(&mut world, "db", &[("OTHER", b"x")]);
    world.roll_out();
    assert_eq!(condition(&mut world).1, "secret db has no key PASSWORD");
    set(&mut world, "db", &[("PASSWORD", b"\xff")]);
    world.roll_out();
    let (reason, message) = condition(&mut world);
    assert_eq!(reason, "SecretUnusable");
    assert!(message.contains("key PASSWORD of secret db"), "{message}");
    set(&mut world, "db", &[("PASSWORD", b"one")]);
    world.roll_out();
    assert_eq!(given(&mut world), ["one"]);
    assert_eq!(condition(&mut world).0, "AllHealthy");
    let generation = world.wanted("app")[0].2.generation;
    assert_eq!(generation, 1, "nothing was replaced");
}

#[test]
fn an_instance_that_cannot_leave_its_machine_for_want_of_a_secret_names_the_secret() {
    let mut world = machines(2);
    set(&mut world, "db", &[("PASSWORD", b"one")]);
    app(&mut world, |_| {});
    world.roll_out();
    let secret = SecretKey::new(NAMESPACE, "db");
    world.apply(&[WriteOperation::Delete(keys::secret(&secret.to_string()))]);
    let (id, node, _) = world.wanted("app").swap_remove(0);
    world.drain(&node, true);
    world.settle();
    let status = world.status("app");
    let mut conditions = status.conditions.iter();
    let blocked = conditions.find(|one| one.kind == "DrainBlocked").unwrap();
    let expected = format!("{id} can't leave {node}: there is no secret db in namespace default");
    assert!(
        blocked.message.starts_with(&expected),
        "{}",
        blocked.message
    );
}

#[test]
fn a_change_rolls_once_and_is_given_to_all() {
    let mut world = machines(2);
    set(&mut world, "db", &[("PASSWORD", b"one")]);
    set(&mut world, "unused", &[("A", b"x")]);
    app(&mut world, |file| file["spec"]["replicas"] = json!(3));
    world.roll_out();
    let before = world.wanted("app");
    set(&mut world, "unused", &[("A", b"y")]);
    world.roll_out();
    assert_eq!(world.wanted("app"), before, "another secret is no reason");
    set(&mut world, "db", &[("PASSWORD", b"two")]);
    world.plan_out();
    let behind = behind_secret(&world.snapshot(), &SecretKey::new(NAMESPACE, "db")).len();
    assert_eq!(behind, 0, "the rollout has begun with the first plan");
    assert!(
        given(&mut world).contains(&"one".to_owned()),
        "not all at once"
    );
    world.roll_out();
    assert_eq!(given(&mut world), ["two", "two", "two"]);
    let events = world.events("SecretChanged");
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains("secret db has changed"), "{events:?}");
    // The secret changes twice within one millisecond.
    for value in [b"three", b"fours"] {
        set(&mut world, "db", &[("PASSWORD", value)]);
        world.plan_out();
    }
    world.roll_out();
    assert_eq!(given(&mut world), ["fours"; 3]);
    let snapshot = world.snapshot();
    let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "app")];
    assert_eq!(entry.meta.value.generation, 4);
    let record = entry.archive[&4].record.as_ref().unwrap();
    assert_eq!(record.origin, Origin::SecretChanged);
    assert!(record.why.contains("secret db"), "{}", record.why);
}

#[test]
fn what_runs_goes_on_where_the_next_version_lacks_its_secret() {
    for surge in [0, 1] {
        let mut world = machines(2);
        set(&mut world, "db", &[("PASSWORD", b"one")]);
        let strategy = json!({"type": "Rolling", "maxSurge": surge});
        app(&mut world, |file| {
            file["spec"]["updateStrategy"] = strategy.clone();
        });
        world.roll_out();
        let before = world.wanted("app")[0].0.clone();
        app(&mut world, |file| {
            file["spec"]["updateStrategy"] = strategy.clone();
            file["spec"]["container"]["env"][0]["valueFrom"]["secret"]["key"] = json!("NEW");
        });
        world.roll_out();
        assert_eq!(world.running("app"), 1, "maxSurge {surge}");
        assert_eq!(world.wanted("app")[0].0, before);
        assert_eq!(condition(&mut world).1, "secret db has no key NEW");
        set(&mut world, "db", &[("PASSWORD", b"one"), ("NEW", b"n")]);
        world.roll_out();
        assert_eq!(condition(&mut world).0, "AllHealthy");
        assert_ne!(world.wanted("app")[0].0, before);
    }
}

#[test]
fn what_is_drained_takes_its_secret_along() {
    let mut world = machines(2);
    set(&mut world, "db", &[("PASSWORD", b"one")]);
    app(&mut world, |_| {});
    world.roll_out();
    let from = world.wanted("app")[0].1.clone();
    world.drain(&from, true);
    world.roll_out();
    assert_ne!(world.wanted("app")[0].1, from);
    assert_eq!(given(&mut world), ["one"]);
}

#[test]
fn agents_of_before_get_no_secrets() {
    let mut world = machines(1);
    world.at("n1").schema = 4;
    set(&mut world, "db", &[("PASSWORD", b"one")]);
    app(&mut world, |_| {});
    world.roll_out();
    assert!(world.wanted("app").is_empty());
    let message = condition(&mut world).1;
    assert!(message.contains("too old for it"), "{message}");
}

#[test]
fn what_does_not_open_is_not_placed_and_says_so() {
    let mut world = machines(1);
    set(&mut world, "db", &[("PASSWORD", b"one")]);
    // The record of one secret is stored under the key of another.
    let record = world.entries[keys::secret("default/db").as_str()]
        .value
        .clone();
    set(&mut world, "other", &[("PASSWORD", b"two")]);
    world.apply(&[WriteOperation::Put(keys::secret("default/other"), record)]);
    app(&mut world, |file| {
        file["spec"]["container"]["env"][0]["valueFrom"]["secret"]["name"] = json!("other");
    });
    world.roll_out();
    let (reason, message) = condition(&mut world);
    assert_eq!(reason, "SecretUnreadable");
    assert!(message.contains("secret default/other"), "{message}");
    let made = |world: &mut World| {
        let snapshot = world.snapshot();
        let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "app")];
        entry.status.as_ref().unwrap().value.instances_made
    };
    assert_eq!(made(&mut world), 0, "no id is used up");
}

#[test]
fn secrets_go_with_their_namespace() {
    let mut world = machines(1);
    world.namespace("shop", true);
    world.write(keys::secret("shop/db"), &json!({}));
    world.write(keys::secret("shop-2/db"), &json!({}));
    world.plan_out();
    assert_eq!(world.keys(keys::SECRETS), ["/kat/secrets/shop-2/db"]);
}
