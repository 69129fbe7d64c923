//! Data that a person gives up because the disk with it is missing.

use super::*;

const VOLUME: &str = "default/db/data";

fn key() -> VolumeKey {
    VolumeKey::parse(VOLUME).unwrap()
}

/// A database that runs, and its machine.
fn running(count: usize) -> (World, String) {
    let mut world = World::with_machines(count);
    for machine in world.machines.values_mut() {
        machine.schema = ASSIGNMENT_SCHEMA;
    }
    database(&mut world, 1);
    world.roll_out();
    let node = world.wanted("db").remove(0).1;
    (world, node)
}

fn database(world: &mut World, replicas: u32) {
    world.apply_workload("db", |file| {
        file["spec"]["replicas"] = json!(replicas);
        file["spec"]["volumes"] = json!([{"name": "data", "simpleClusterStorage": {}}]);
        file["spec"]["container"]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    });
}

fn record(world: &mut World) -> Option<VolumeRecord> {
    let snapshot = world.snapshot();
    let stored = snapshot.volumes.get(&key());
    stored.map(|stored| stored.value.clone())
}

/// Requests the removal as the API does.
fn delete(world: &mut World) {
    database(world, 0);
    world.roll_out();
    world.change(&keys::volume(VOLUME), |volume| {
        volume["deleting"] = json!(true);
    });
    world.roll_out();
}

/// Gives the data on a machine up as the API does.
fn forget(world: &mut World, node: &str) {
    let asked = world.snapshot().removals[node][&key()].asked;
    world.change(&keys::volume(VOLUME), |volume| {
        volume["forgotten"] = json!({ node: asked });
    });
}

#[test]
fn a_removal_from_a_missing_disk_waits_and_says_how_the_data_is_given_up() {
    let (mut world, node) = running(2);
    world.at(&node).lacks_disk = true;
    delete(&mut world);
    database(&mut world, 1);
    for _ in 0..5 {
        world.pass(Duration::from_secs(3600));
        world.roll_out();
    }
    assert_eq!(world.running("db"), 0);
    let said = world.status("db").conditions[0].message.clone();
    let expected = format!(
        "is being removed from {node}, and {node} does not find it: mount its disk, or give the data up with `katcall volume forget default/db/data --on {node}`"
    );
    assert!(said.contains(&expected), "{said}");

    forget(&mut world, &node);
    world.roll_out();
    assert_eq!(world.running("db"), 1, "a new volume begins");
    let events = world.events("VolumeDeleted");
    assert!(events[0].contains("was given up"), "{events:?}");
    assert!(world.snapshot().removals.is_empty());
    assert!(record(&mut world).unwrap().forgotten.is_empty());
}

#[test]
fn data_that_was_given_up_is_forgotten_with_its_workloads_index() {
    let (mut world, node) = running(2);
    world.at(&node).lacks_disk = true;
    delete(&mut world);
    world.delete_workload("db");
    world.roll_out();
    assert!(!world.snapshot().indexes.is_empty());
    forget(&mut world, &node);
    world.new_leader();
    world.roll_out();
    assert_eq!(record(&mut world), None);
    assert!(world.snapshot().indexes.is_empty());
    assert!(world.snapshot().removals.is_empty());
}

#[test]
fn a_machine_that_finds_the_data_removes_it_although_it_was_given_up() {
    let (mut world, node) = running(2);
    world.at(&node).lacks_disk = true;
    delete(&mut world);
    world.at(&node).obeys = false;
    forget(&mut world, &node);
    world.plan_out();
    assert!(world.snapshot().removals[&node][&key()].forget);
    assert!(record(&mut world).is_some(), "until the machine confirms");
    let at = world.at(&node);
    (at.lacks_disk, at.obeys) = (false, true);
    world.roll_out();
    assert_eq!(record(&mut world), None);
    assert!(!world.at(&node).data.contains(VOLUME));
}

#[test]
fn an_old_copy_that_was_given_up_leaves_the_volume_as_it_is() {
    let (mut world, from) = running(2);
    let to = if from == "n1" { "n2" } else { "n1" };
    world.change(&keys::volume(VOLUME), |volume| {
        volume["moving"] =
            json!({"id": "one", "from": from, "to": to, "asked": "2026-01-01T00:00:00Z"});
    });
    world.roll_out();
    assert_eq!(record(&mut world).unwrap().node.as_deref(), Some(to));
    world.at(&from).lacks_disk = true;
    world.pass(Duration::from_secs(25 * 3600));
    world.roll_out();
    assert_eq!(record(&mut world).unwrap().kept.len(), 1, "it waits");
    forget(&mut world, &from);
    world.roll_out();
    let after = record(&mut world).unwrap();
    assert_eq!((after.node.as_deref(), after.kept.len()), (Some(to), 0));
    assert!(after.forgotten.is_empty() && !after.deleting);
    assert_eq!(world.running("db"), 1);
    assert!(world.at(to).data.contains(VOLUME));
    assert!(world.snapshot().removals.is_empty());
}

#[test]
fn data_that_was_given_up_once_is_not_given_up_at_a_later_removal() {
    let (mut world, node) = running(1);
    world.at(&node).lacks_disk = true;
    delete(&mut world);
    let earlier = world.snapshot().removals[&node][&key()].asked;
    forget(&mut world, &node);
    world.roll_out();
    assert_eq!(record(&mut world), None);
    world.at(&node).lacks_disk = false;
    world.pass(Duration::from_secs(60));
    database(&mut world, 1);
    world.roll_out();
    assert_eq!(world.running("db"), 1);
    world.at(&node).lacks_disk = true;
    delete(&mut world);
    // What an earlier request has left names another removal.
    world.change(&keys::volume(VOLUME), |volume| {
        volume["forgotten"] = json!({ node.as_str(): earlier });
    });
    world.roll_out();
    let asked = world.snapshot().removals[&node][&key()];
    assert!(asked.asked > earlier && !asked.forget, "{asked:?}");
    assert!(record(&mut world).is_some());
}
