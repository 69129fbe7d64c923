//! Programs that have ended for good are replaced after a growing delay, which is reset after a
//! quiet time.

use super::*;

/// Seconds until the failed instance is replaced.
fn until_replaced(world: &mut World) -> u64 {
    let before = world.wanted("web")[0].0.clone();
    for second in 0..400 {
        world.plan_out();
        if world.wanted("web")[0].0 != before {
            // The replacement starts and fails within the same second.
            world.settle();
            return second;
        }
        world.pass(Duration::from_secs(1));
    }
    panic!("it is not replaced");
}

#[test]
fn the_delay_doubles_from_ten_seconds_to_five_minutes_and_is_forgiven() {
    let mut world = World::with_machines(1);
    world.failing.insert("registry.example/web:1".to_owned());
    world.replicas("web", 1);
    world.settle();
    let delays: Vec<u64> = (0..7).map(|_| until_replaced(&mut world)).collect();
    assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
    world.failing.clear();
    world.settle();
    world.pass(Duration::from_secs(599));
    world.settle();
    world.pass(Duration::from_secs(1));
    world.settle();
    world.failing.insert("registry.example/web:1".to_owned());
    world.settle();
    assert_eq!(until_replaced(&mut world), 10, "forgiven");
}

#[test]
fn the_leader_wakes_when_the_delay_ends() {
    let mut world = World::with_machines(1);
    world.failing.insert("registry.example/web:1".to_owned());
    world.replicas("web", 1);
    world.settle();
    world.pass(Duration::from_secs(4));
    world.settle();
    let snapshot = world.snapshot();
    let planned = plan(&snapshot, &world.observed(), world.now, 1);
    assert_eq!(planned.wake_after, Some(Duration::from_secs(6)));
}

#[test]
fn one_failing_replica_leaves_the_others_alone() {
    let mut world = World::with_machines(1);
    world.replicas("web", 3);
    world.settle();
    let before = world.wanted("web");
    let (ill, _, _) = before[0].clone();
    let machine = world.machines.get_mut("n1").unwrap();
    machine.obeys = false;
    machine.instances.get_mut(&ill).unwrap().phase = InstancePhase::Failed;
    world.plan_out();
    world.pass(Duration::from_secs(10));
    world.plan_out();
    let after = world.wanted("web");
    assert_eq!(after.len(), 3);
    assert!(after.iter().all(|(id, ..)| *id != ill));
    assert!(before[1..].iter().all(|one| after.contains(one)));
}
