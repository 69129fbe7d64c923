//! Updates in place: an instance is stopped once the machine of its successor has reported that the
//! successor can start.

use super::*;
use crate::{
    machines::node_loss::{timeout, unplug},
    updates::strategies::web,
};
use kat_types::assignment::PREPARED_SCHEMA;

const IMAGE: &str = "registry.example/web";

fn in_place() -> serde_json::Value {
    json!({"rolling": {"maxSurge": 0}})
}

/// A world of machines of this version, in which one replica of version 1 runs.
fn running(machines: usize) -> World {
    let mut world = World::with_machines(machines);
    for machine in world.machines.values_mut() {
        machine.schema = ASSIGNMENT_SCHEMA;
    }
    world.apply_workload("web", web(1, 1, in_place()));
    world.roll_out();
    world
}

impl World {
    /// Prepared instances of a workload.
    fn prepared(&mut self, name: &str) -> Vec<Arc<Assignment>> {
        let snapshot = self.snapshot();
        let key = WorkloadKey::new(NAMESPACE, name);
        let all = snapshot.instances_of(&key);
        let prepared = all.filter(|(_, one)| one.assignment.value.wanted == DesiredRun::Prepared);
        prepared
            .map(|(_, one)| Arc::clone(&one.assignment.value))
            .collect()
    }

    fn only(&mut self, name: &str) -> String {
        let [(id, ..)] = &self.wanted(name)[..] else {
            panic!("{name} has not one instance");
        };
        id.clone()
    }
}

#[test]
fn an_image_that_cannot_be_pulled_leaves_the_old_instance_running() {
    let mut world = running(1);
    let old = world.only("web");
    world.missing.insert(format!("{IMAGE}:2"));
    world.apply_workload("web", web(2, 1, in_place()));
    world.settle();
    assert_eq!(world.running("web"), 1);
    assert_eq!(world.only("web"), old);
    let [prepared] = &world.prepared("web")[..] else {
        panic!("one instance is prepared");
    };
    assert_eq!(prepared.schema, PREPARED_SCHEMA);
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Degraded);
    let condition = &status.conditions[0];
    assert_eq!(condition.reason, "ImagePullFailed");
    assert!(condition.message.starts_with(&prepared.instance));
    assert!(!world.events("ImagePullFailed").is_empty());

    world.pass(Duration::from_secs(601));
    world.settle();
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Stalled);
    assert!(status.conditions[0].message.contains("ImagePullFailed"));
    assert_eq!(world.only("web"), old);

    // Another version takes the place of the prepared one, and then of the old one.
    world.apply_workload("web", web(3, 1, in_place()));
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("3".to_owned(), 1)]));
    assert!(world.prepared("web").is_empty());
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    // What runs does not need an agent that knows prepared instances.
    assert_eq!(world.wanted("web")[0].2.schema, 1);
    assert_eq!(world.snapshot().allocations.len(), 1);
}

#[test]
fn a_version_that_cannot_be_prepared_is_rolled_back_without_a_restart() {
    let mut world = running(1);
    let old = world.only("web");
    let automatic = json!({"rolling": {"maxSurge": 0}, "autoRollback": true});
    world.missing.insert(format!("{IMAGE}:2"));
    world.apply_workload("web", web(2, 1, automatic));
    world.settle();
    world.pass(Duration::from_secs(601));
    world.settle_and_run();
    assert_eq!(world.only("web"), old);
    assert!(world.prepared("web").is_empty());
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    let [why] = &world.events("RolledBack")[..] else {
        panic!("one rollback");
    };
    assert!(why.contains("ImagePullFailed"), "{why}");
}

#[test]
fn a_deletion_removes_a_prepared_instance_with_its_workload() {
    let mut world = running(1);
    world.missing.insert(format!("{IMAGE}:2"));
    world.apply_workload("web", web(2, 1, in_place()));
    world.settle();
    assert_eq!(world.prepared("web").len(), 1);
    world.delete_workload("web");
    world.settle();
    assert!(world.snapshot().workloads.is_empty());
    assert!(world.snapshot().instances.is_empty());
}

#[test]
fn fewer_replicas_remove_the_prepared_instance_of_their_slot() {
    let mut world = running(1);
    world.missing.insert(format!("{IMAGE}:2"));
    world.apply_workload("web", web(2, 1, in_place()));
    world.settle();
    world.apply_workload("web", web(2, 0, in_place()));
    world.settle();
    assert!(world.snapshot().instances.is_empty());
}

#[test]
fn a_machine_of_an_earlier_version_stops_the_old_instance_first() {
    let mut world = running(1);
    world.at("n1").schema = PREPARED_SCHEMA - 1;
    world.settle();
    world.missing.insert(format!("{IMAGE}:2"));
    world.apply_workload("web", web(2, 1, in_place()));
    world.settle();
    assert!(world.prepared("web").is_empty());
    assert_eq!(world.running("web"), 0);
    let [(_, _, next)] = &world.wanted("web")[..] else {
        panic!("one instance");
    };
    assert_eq!(next.image, format!("{IMAGE}:2"));
}

#[test]
fn an_old_program_that_ends_is_started_again_while_its_successor_cannot_be_prepared() {
    let mut world = running(1);
    let old = world.only("web");
    world.missing.insert(format!("{IMAGE}:2"));
    world.apply_workload("web", web(2, 1, in_place()));
    world.settle();
    world.failing.insert(format!("{IMAGE}:1"));
    world.settle();
    let status = world.status("web");
    let condition = &status.conditions[0];
    assert_eq!(condition.reason, "ImagePullFailed");
    let meanwhile = format!("; meanwhile RestartsExhausted: {old}: ");
    assert!(
        condition.message.contains(&meanwhile),
        "{}",
        condition.message
    );
    world.failing.clear();
    world.pass(Duration::from_secs(11));
    world.settle_and_run();
    assert_eq!(world.running("web"), 1);
    assert_ne!(world.only("web"), old);
    assert_eq!(world.versions(), BTreeMap::from([("1".to_owned(), 1)]));
    world.missing.clear();
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), 1)]));
}

#[test]
fn a_successor_is_prepared_elsewhere_when_its_machine_is_drained() {
    let mut world = running(2);
    world.missing.insert(format!("{IMAGE}:2"));
    world.apply_workload("web", web(2, 1, in_place()));
    world.settle();
    let first = world.prepared("web")[0].instance.clone();
    let node = world.snapshot().instances[&first].node.clone();
    world.drain(&node, true);
    world.settle();
    let [next] = &world.prepared("web")[..] else {
        panic!("one instance is prepared");
    };
    assert_ne!(world.snapshot().instances[&next.instance].node, node);
    assert!(!world.snapshot().instances.contains_key(&first));
}

#[test]
fn old_and_new_in_one_slot_hold_their_machine_once() {
    let mut world = World::with_machines(1);
    world.at("n1").schema = ASSIGNMENT_SCHEMA;
    // One replica takes the whole machine.
    let full = |version: u32| {
        move |file: &mut serde_json::Value| {
            web(version, 1, in_place())(file);
            file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "4"}});
        }
    };
    world.apply_workload("web", full(1));
    world.roll_out();
    world.missing.insert(format!("{IMAGE}:2"));
    world.apply_workload("web", full(2));
    world.settle();
    assert_eq!((world.running("web"), world.prepared("web").len()), (1, 1));
    // The room is not given to another workload either.
    world.apply_workload("other", |file| {
        file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "1"}});
    });
    world.settle();
    assert!(world.wanted("other").is_empty());
    // The old program ends: another instance of its version finds its place.
    let old = world.only("web");
    world.failing.insert(format!("{IMAGE}:1"));
    world.settle();
    world.failing.clear();
    world.pass(Duration::from_secs(11));
    world.settle_and_run();
    assert_eq!(world.running("web"), 1);
    assert_ne!(world.only("web"), old);
    assert_eq!(world.versions(), BTreeMap::from([("1".to_owned(), 1)]));
    world.missing.clear();
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), 1)]));
}

#[test]
fn simultaneously_one_image_that_is_missing_stops_nothing() {
    let mut world = World::with_machines(2);
    for machine in world.machines.values_mut() {
        machine.schema = ASSIGNMENT_SCHEMA;
    }
    let all_at_once = || json!({"type": "Simultaneous"});
    world.apply_workload("web", web(1, 3, all_at_once()));
    world.roll_out();
    world.missing.insert(format!("{IMAGE}:2"));
    world.apply_workload("web", web(2, 3, all_at_once()));
    world.settle();
    assert_eq!((world.running("web"), world.prepared("web").len()), (3, 3));
    world.missing.clear();
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), 3)]));
}

/// Its prepared successor has the only machine with room, and cannot start.
#[test]
fn what_a_lost_machine_had_is_replaced_where_its_successor_is_prepared() {
    for is_missing in [true, false] {
        let mut world = World::with_machines(2);
        for machine in world.machines.values_mut() {
            machine.schema = ASSIGNMENT_SCHEMA;
        }
        let full = |version: u32, cpu: &'static str| {
            move |file: &mut serde_json::Value| {
                web(version, 1, in_place())(file);
                file["spec"]["container"]["resources"] = json!({"requests": {"cpu": cpu}});
            }
        };
        world.apply_workload("web", full(1, "2"));
        world.roll_out();
        let (_, first, _) = world.wanted("web").remove(0);
        let other = if first == "n1" { "n2" } else { "n1" };
        // The next version needs more than its first machine has left.
        world.apply_workload("other", |file| {
            file["spec"]["nodeSelector"] = json!({"name": first});
            file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "1500m"}});
        });
        world.roll_out();
        assert_eq!(world.running("other"), 1);
        world.missing.insert(format!("{IMAGE}:2"));
        world.apply_workload("web", full(2, "4"));
        world.settle();
        let next = world.prepared("web").remove(0);
        assert_eq!(world.snapshot().instances[&next.instance].node, other);
        if !is_missing {
            world.missing.clear();
        }
        unplug(&mut world, &first);
        let timeout = timeout(&mut world);
        world.pass(timeout);
        world.settle_and_run();
        let wanted = world.wanted("web");
        let here = wanted.iter().filter(|(_, node, _)| node == other);
        assert_eq!(here.count(), 1, "{wanted:?}");
        assert_eq!(world.running("web"), 1);
    }
}

/// The instances of the drained machine end when their successors can start.
#[test]
fn a_drain_in_place_stops_nothing_before_its_successor_is_prepared() {
    let mut world = running(2);
    let (old, node, assignment) = world.wanted("web").remove(0);
    world.missing.insert(assignment.image.clone());
    world.drain(&node, true);
    world.settle();
    assert_eq!(world.only("web"), old);
    assert_eq!(world.running("web"), 1);
    let [next] = &world.prepared("web")[..] else {
        panic!("one instance is prepared");
    };
    let next = next.instance.clone();
    assert_ne!(world.snapshot().instances[&next].node, node);
    let conditions = world.status("web").conditions;
    let drain = conditions.iter().find(|one| one.kind == "DrainBlocked");
    let why = &drain.expect("the drain is blocked").message;
    let begin = format!(
        "{old} can't leave {node} yet: its successor cannot start: ImagePullFailed: {next}: "
    );
    assert!(why.starts_with(&begin), "{why}");

    world.missing.clear();
    world.roll_out();
    assert_eq!(world.only("web"), next, "what was prepared starts");
    assert_eq!(world.running("web"), 1);
    assert!(world.prepared("web").is_empty());
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Running);
    assert!(
        status
            .conditions
            .iter()
            .all(|one| one.kind != "DrainBlocked")
    );
    let stops = world.events("Stopping");
    assert!(
        stops
            .iter()
            .any(|why| why.contains("its machine is drained"))
    );
}

#[test]
fn a_drain_that_is_taken_back_removes_the_prepared_successor() {
    let mut world = running(2);
    let (old, node, assignment) = world.wanted("web").remove(0);
    world.missing.insert(assignment.image.clone());
    world.drain(&node, true);
    world.settle();
    assert_eq!(world.prepared("web").len(), 1);
    world.drain(&node, false);
    world.settle();
    assert!(world.prepared("web").is_empty());
    assert_eq!(world.only("web"), old);
    assert_eq!(world.running("web"), 1);
}

#[test]
fn a_drain_by_force_waits_for_no_preparation() {
    let mut world = running(2);
    let (_, node, assignment) = world.wanted("web").remove(0);
    world.missing.insert(assignment.image.clone());
    world.drain_by_force(&node);
    world.settle();
    assert_eq!(world.running("web"), 0);
    let (_, now, _) = world.wanted("web").remove(0);
    assert_ne!(now, node);
}
