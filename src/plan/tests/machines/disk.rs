//! Machines that are short of disk space, and the placement of evicted and of lost instances.

use super::*;
use kat_types::{
    api::{ApiTime, Condition, DISK_PRESSURE},
    reason::Reason,
};

fn pressure() -> Vec<Condition> {
    vec![Condition {
        kind: DISK_PRESSURE.to_owned(),
        status: true,
        reason: Reason::DiskPressure.into(),
        message: "/var/lib/kat: 5 MiB of 100 MiB are free, less than 10 MiB".to_owned(),
        since: ApiTime::UNKNOWN,
    }]
}

/// Advances the clock by this many seconds, while machines report.
fn wait(world: &mut World, seconds: u64) {
    for _ in 0..seconds / 5 {
        world.pass(Duration::from_secs(5));
        world.settle();
    }
}

/// The machine and the id of the only instance.
fn only(world: &mut World) -> (String, String) {
    let mut found = world.wanted("web");
    assert_eq!(found.len(), 1, "{found:?}");
    let (id, node, _) = found.remove(0);
    (node, id)
}

/// Two machines, and one instance that its machine has evicted. Returns also its machine and its
/// id.
fn evicted(change: impl FnOnce(&mut serde_json::Value)) -> (World, String, String) {
    let mut world = World::with_machines(2);
    for machine in world.machines.values_mut() {
        machine.schema = ASSIGNMENT_SCHEMA;
    }
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(1);
        change(file);
    });
    world.settle();
    let (node, id) = only(&mut world);
    let machine = world.at(&node);
    machine.evicted.insert(id.clone());
    machine.conditions = pressure();
    world.settle();
    (world, node, id)
}

#[test]
fn an_evicted_instance_waits_for_its_machine_and_is_then_placed_elsewhere() {
    let (mut world, node, id) = evicted(|_| {});
    assert_eq!(only(&mut world), (node.clone(), id.clone()));
    assert_eq!(world.events(Reason::Evicted.word()).len(), 1);
    wait(&mut world, 290);
    assert_eq!(only(&mut world), (node.clone(), id.clone()));
    wait(&mut world, 20);
    let (other, successor) = only(&mut world);
    assert_ne!((&other, &successor), (&node, &id));
    assert_eq!(world.running("web"), 1);
}

#[test]
fn an_evicted_instance_stays_where_there_is_room_again() {
    let (mut world, node, id) = evicted(|_| {});
    world.at(&node).conditions.clear();
    wait(&mut world, 900);
    assert_eq!(only(&mut world), (node.clone(), id.clone()));
    world.at(&node).evicted.clear();
    world.settle();
    assert_eq!(only(&mut world), (node, id));
    assert_eq!(world.running("web"), 1);
}

#[test]
fn an_evicted_instance_stays_where_its_data_is() {
    let (mut world, node, id) = evicted(|file| {
        file["spec"]["volumes"] = json!([{"name": "data", "simpleClusterStorage": {}}]);
        file["spec"]["container"]["volumeMounts"] = json!([{"name": "data", "mountPath": "/d"}]);
    });
    wait(&mut world, 900);
    assert_eq!(only(&mut world), (node, id));
}

/// The instance would fill the next disk too, so such a machine is not even a last resort.
#[test]
fn an_evicted_instance_goes_to_no_machine_that_is_short_of_disk_space() {
    let (mut world, node, id) = evicted(|_| {});
    for machine in ["n1", "n2"] {
        world.at(machine).conditions = pressure();
    }
    wait(&mut world, 900);
    assert_eq!(only(&mut world), (node, id));
}

/// Of three machines one is lost, and `short` lists those of the others that are short of disk
/// space.
fn after_a_loss(short: &[usize]) -> (World, String, Vec<String>) {
    let mut world = World::with_machines(3);
    world.replicas("web", 1);
    world.settle();
    let (lost, _) = only(&mut world);
    let others: Vec<String> = ["n1", "n2", "n3"]
        .map(str::to_owned)
        .into_iter()
        .filter(|name| *name != lost)
        .collect();
    for place in short {
        world.at(&others[*place]).conditions = pressure();
    }
    world.settle();
    let machine = world.at(&lost);
    (machine.speaks, machine.obeys) = (false, false);
    let timeout = world.snapshot().cluster.spec.node_loss_timeout_seconds;
    wait(&mut world, u64::from(timeout) + 10);
    (world, lost, others)
}

fn runs_on(world: &mut World, lost: &str) -> Vec<String> {
    let found = world.wanted("web").into_iter();
    let nodes = found.map(|(_, node, _)| node);
    nodes.filter(|node| node != lost).collect()
}

#[test]
fn what_lost_its_machine_prefers_one_with_disk_space() {
    for short in [0, 1] {
        let (mut world, lost, others) = after_a_loss(&[short]);
        assert_eq!(runs_on(&mut world, &lost), [others[1 - short].clone()]);
    }
}

#[test]
fn what_lost_its_machine_starts_on_one_that_is_short_of_disk_space_where_no_other_is_left() {
    let (mut world, lost, _) = after_a_loss(&[0, 1]);
    assert_eq!(runs_on(&mut world, &lost).len(), 1);
    // A new instance does not start on a machine that is short of disk space.
    world.replicas("late", 1);
    world.settle();
    assert!(world.wanted("late").is_empty());
}
