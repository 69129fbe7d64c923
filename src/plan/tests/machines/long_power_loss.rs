//! A cluster that was off for a long time, so that the wall clock is far ahead of all stored times.

use super::*;

#[test]
fn ninety_days_without_power_move_nothing() {
    let mut world = World::with_machines(4);
    world.replicas("web", 8);
    world.settle();
    // One instance failed shortly before.
    world.failing.insert("registry.example/bad:1".to_owned());
    world.apply_workload("bad", |file| {
        file["spec"]["restartPolicy"]["condition"] = json!("Never");
    });
    world.settle();
    let before = world.wanted("web");
    let addresses = world.keys("/kat/network/allocations/").len();
    world.now = world
        .now
        .checked_add(jiff::SignedDuration::from_hours(90 * 24))
        .unwrap();
    world.new_leader();
    for machine in world.machines.values_mut() {
        machine.restart(1);
        (machine.speaks, machine.obeys) = (false, false);
    }
    // The machines return one after the other, the last one within the timeout that a new leader
    // grants.
    for machine in ["n3", "n1", "n4", "n2"] {
        world.pass(Duration::from_secs(14));
        let machine = world.at(machine);
        (machine.speaks, machine.obeys) = (true, true);
        world.plan_out();
        world.agents();
        assert_eq!(world.wanted("web"), before);
    }
    world.settle();
    assert_eq!(world.wanted("web"), before);
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    assert!(world.keys("/kat/network/allocations/").len() >= addresses);
}
