//! Addresses of instances that are gone, while the cluster isolates namespaces.

use super::*;
use kat_types::{
    api::IsolationReport,
    machine::isolation::ENFORCING_DATA_PATH,
    resource::{ClusterConfiguration, Isolation},
};

/// A machine with five addresses, whose neighbour takes no instance. Both isolate namespaces.
fn isolated(mode: Isolation) -> World {
    let mut world = World::new();
    world.machine("n1", "29", &[]);
    world.machine("n2", "29", &[no_schedule("n2")]);
    world.namespace("shop", false);
    let mut cluster = ClusterConfiguration::default();
    cluster.spec.isolation = mode;
    world.write(keys::CLUSTER.to_owned(), &cluster);
    for machine in world.machines.values_mut() {
        machine.data_path = ENFORCING_DATA_PATH;
        machine.isolation = Some(IsolationReport {
            mode: Some(mode),
            ..IsolationReport::default()
        });
    }
    world
}

/// As [`isolated`]; four instances of the namespace `default` are gone, and n2 has not followed.
fn with_gone_instances(mode: Isolation) -> World {
    let mut world = isolated(mode);
    world.apply_workload("web", |file| file["spec"]["replicas"] = json!(4));
    world.roll_out();
    world.at("n2").obeys = false;
    world.delete_workload("web");
    world.roll_out();
    world
}

fn of_namespace(world: &mut World, namespace: &str) -> usize {
    let snapshot = world.snapshot();
    let instances = snapshot.instances.values();
    instances
        .filter(|entry| entry.assignment.value.namespace == namespace)
        .count()
}

fn three_of_shop(world: &mut World) {
    world.apply_workload_in("shop", "db", |file| file["spec"]["replicas"] = json!(3));
    world.roll_out();
}

#[test]
fn another_namespace_gets_an_address_when_every_machine_has_forgotten_its_last_owner() {
    let mut world = with_gone_instances(Isolation::Namespaces);
    three_of_shop(&mut world);
    assert_eq!(
        of_namespace(&mut world, "shop"),
        1,
        "one address was never used"
    );
    let snapshot = world.snapshot();
    let status = &snapshot.workloads[&WorkloadKey::new("shop", "db")].status;
    let conditions = &status.as_ref().unwrap().value.status.conditions;
    let says = |text: &str| conditions.iter().any(|one| one.message.contains(text));
    assert!(
        says(
            "1 without a free address; 4 addresses of other namespaces wait until n2 confirms that their instances are gone"
        ),
        "{conditions:?}"
    );

    // Instances of the same namespace get the others meanwhile.
    world.apply_workload("api", |file| file["spec"]["replicas"] = json!(2));
    world.roll_out();
    assert_eq!(of_namespace(&mut world, NAMESPACE), 2);
    world.replicas("api", 0);
    world.roll_out();
    assert_eq!(of_namespace(&mut world, "shop"), 1);

    world.at("n2").obeys = true;
    world.roll_out();
    assert_eq!(of_namespace(&mut world, "shop"), 3);
    let snapshot = world.snapshot();
    assert!(!snapshot.allocations.values().any(|one| one.value.released));
}

#[test]
fn a_machine_that_is_lost_and_answers_nobody_is_not_waited_for() {
    let mut world = with_gone_instances(Isolation::Namespaces);
    three_of_shop(&mut world);
    world.at("n2").speaks = false;
    world.pass(Duration::from_secs(61));
    world.roll_out();
    assert_eq!(
        of_namespace(&mut world, "shop"),
        1,
        "n1 reaches it over the overlay"
    );

    world.at("n1").unanswered.insert("n2".to_owned(), 15);
    world.roll_out();
    assert_eq!(of_namespace(&mut world, "shop"), 3);
}

#[test]
fn a_lost_machine_that_served_nothing_is_not_waited_for_once_it_has_no_session() {
    let mut world = with_gone_instances(Isolation::Namespaces);
    three_of_shop(&mut world);
    // Nobody asks a machine without an instance whether it answers.
    world.at("n1").unasked.insert("n2".to_owned(), true);
    world.at("n2").speaks = false;
    world.pass(Duration::from_secs(61));
    world.roll_out();
    assert_eq!(of_namespace(&mut world, "shop"), 1, "it has a session");

    world.at("n1").unasked.insert("n2".to_owned(), false);
    world.roll_out();
    assert_eq!(of_namespace(&mut world, "shop"), 3);
    let snapshot = world.snapshot();
    assert!(!snapshot.allocations.values().any(|one| one.value.released));
}

#[test]
fn a_machine_that_is_idle_and_heard_by_the_leader_is_waited_for() {
    let mut world = with_gone_instances(Isolation::Namespaces);
    world.at("n1").unasked.insert("n2".to_owned(), false);
    three_of_shop(&mut world);
    world.pass(Duration::from_secs(61));
    world.roll_out();
    assert_eq!(of_namespace(&mut world, "shop"), 1);
}

#[test]
fn a_revision_of_the_store_before_a_restore_confirms_nothing() {
    let mut world = with_gone_instances(Isolation::Namespaces);
    world.at("n2").isolation.as_mut().unwrap().revision = 1_000_000;
    three_of_shop(&mut world);
    assert_eq!(of_namespace(&mut world, "shop"), 1);
}

#[test]
fn a_machine_that_isolates_nothing_is_not_waited_for() {
    let mut world = with_gone_instances(Isolation::Namespaces);
    world.at("n2").data_path = ENFORCING_DATA_PATH - 1;
    three_of_shop(&mut world);
    assert_eq!(of_namespace(&mut world, "shop"), 3);
}

#[test]
fn without_isolation_an_address_is_free_at_once() {
    let mut world = with_gone_instances(Isolation::Audit);
    assert!(world.snapshot().allocations.is_empty());
    three_of_shop(&mut world);
    assert_eq!(of_namespace(&mut world, "shop"), 3);
}

#[test]
fn the_end_of_isolation_frees_the_addresses() {
    let mut world = with_gone_instances(Isolation::Namespaces);
    assert_eq!(world.snapshot().allocations.len(), 4);
    let cluster = ClusterConfiguration::default();
    world.write(keys::CLUSTER.to_owned(), &cluster);
    world.plan_out();
    assert!(world.snapshot().allocations.is_empty());
}

#[test]
fn an_allocation_of_an_earlier_version_gets_its_namespace() {
    let mut world = World::with_machines(1);
    world.apply_workload("web", |_| {});
    world.roll_out();
    let key = world.keys(keys::ALLOCATIONS).remove(0);
    let of = |world: &mut World| {
        let allocation = world
            .snapshot()
            .state
            .allocations
            .into_values()
            .next()
            .unwrap()
            .value;
        (allocation.namespace, allocation.workload)
    };
    let expected = (NAMESPACE.to_owned(), "web".to_owned());
    assert_eq!(of(&mut world), expected);
    world.change(&key, |value| {
        let fields = value.as_object_mut().unwrap();
        fields.remove("namespace");
        fields.remove("workload");
    });
    assert_eq!(of(&mut world), (String::new(), String::new()));
    world.plan_out();
    assert_eq!(of(&mut world), expected);
}
