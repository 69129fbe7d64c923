//! A workload is removed when every machine has confirmed that no part of it is left.

use super::*;

/// Keys that name the workload, except events.
fn left_of(world: &World, name: &str) -> Vec<String> {
    world
        .keys(keys::ROOT)
        .into_iter()
        .filter(|key| !key.starts_with(keys::EVENTS) && key.contains(name))
        .collect()
}

#[test]
fn waits_for_every_machine_and_then_leaves_nothing() {
    let mut world = World::with_machines(2);
    world.replicas("web", 4);
    world.replicas("other", 1);
    world.settle();
    world.machines.get_mut("n2").unwrap().obeys = false;
    world.delete_workload("web");
    world.settle();
    assert_eq!(world.status("web").phase, WorkloadPhase::Deleting);
    assert!(world.keys(keys::DNS).iter().all(|key| !key.contains("web")));
    assert_eq!(
        world.snapshot().indexes.len(),
        2,
        "the index is not free yet"
    );
    world.machines.get_mut("n2").unwrap().obeys = true;
    world.settle_and_run();
    assert_eq!(left_of(&world, "web"), Vec::<String>::new());
    assert_eq!(world.snapshot().indexes.len(), 1);
    assert_eq!(world.status("other").phase, WorkloadPhase::Running);
}

#[test]
fn a_user_that_is_left_holds_the_index() {
    let mut world = World::with_machines(1);
    world.replicas("web", 1);
    world.settle();
    world.delete_workload("web");
    for _ in 0..6 {
        world.plan_out();
        world.agents();
        // The home of its user cannot be removed.
        world.machines.get_mut("n1").unwrap().users.insert(0);
    }
    world.plan_out();
    assert_eq!(
        world.keys(keys::NODE_DESIRED),
        ["/kat/nodes/desired/n1/meta"]
    );
    assert!(world.snapshot().indexes.contains_key(&0));
    world.machines.get_mut("n1").unwrap().users.clear();
    world.plan_out();
    assert!(world.snapshot().indexes.is_empty());
}

#[test]
fn a_workload_that_is_made_again_gets_new_ids() {
    let mut world = World::with_machines(1);
    for _ in 0..5 {
        world.replicas("web", 3);
        world.settle();
        world.delete_workload("web");
        world.settle();
    }
    assert_eq!(world.ids.len(), 15);
}

#[test]
fn a_namespace_goes_last() {
    let mut world = World::with_machines(1);
    world.replicas("web", 1);
    world.settle();
    world.namespace(NAMESPACE, true);
    world.delete_workload("web");
    while world
        .snapshot()
        .workloads
        .contains_key(&WorkloadKey::new(NAMESPACE, "web"))
    {
        assert!(world.snapshot().namespaces.contains_key(NAMESPACE));
        world.step();
        world.agents();
    }
    world.plan_out();
    assert!(!world.snapshot().namespaces.contains_key(NAMESPACE));
}

#[test]
fn a_workload_that_never_ran_goes_at_once() {
    let mut world = World::new();
    world.replicas("web", 1);
    world.settle();
    world.delete_workload("web");
    world.settle();
    assert_eq!(left_of(&world, "web"), Vec::<String>::new());
}
