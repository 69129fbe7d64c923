//! Changes of the number of replicas: up, down, to zero, and to many.

use super::*;

#[test]
fn up_down_and_to_nothing() {
    let mut world = World::with_machines(3);
    for count in [1, 5, 2, 0, 3] {
        world.replicas("web", count);
        world.settle_and_run();
        let wanted = world.wanted("web");
        let slots: BTreeSet<u32> = wanted
            .iter()
            .map(|(_, _, assignment)| assignment.slot)
            .collect();
        assert_eq!(slots, (0..count).collect());
        assert_eq!(wanted.len(), usize::try_from(count).unwrap());
        let status = world.status("web");
        assert_eq!(
            (status.phase, status.ready, status.replicas),
            (WorkloadPhase::Running, count, count)
        );
        assert_eq!(
            world.keys(keys::ALLOCATIONS).len(),
            usize::try_from(count).unwrap(),
            "addresses of stopped instances are given back"
        );
    }
}

#[test]
fn what_runs_stays_when_more_are_wanted() {
    let mut world = World::with_machines(2);
    world.replicas("web", 2);
    world.settle();
    let before = world.wanted("web");
    world.replicas("web", 4);
    world.settle();
    let after = world.wanted("web");
    assert!(before.iter().all(|one| after.contains(one)));
}

#[test]
fn three_hundred_replicas_are_cut_into_transactions() {
    let mut world = World::with_machines(1);
    world.replicas("web", 300);
    world.settle_and_run();
    assert_eq!(world.status("web").ready, 300);
    world.replicas("web", 0);
    world.settle();
    assert_eq!(world.keys(keys::ALLOCATIONS), Vec::<String>::new());
}

#[test]
fn events_are_capped_and_repeats_are_counted() {
    let mut world = World::with_machines(1);
    world.replicas("web", 250);
    world.settle();
    world.replicas("web", 0);
    world.settle();
    world.replicas("web", 250);
    world.settle();
    assert_eq!(world.keys(keys::EVENTS).len(), LIMIT);
}
