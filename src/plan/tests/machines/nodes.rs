//! Phases of machines: Ready, silent, or with another identity.

use super::*;

fn phase(world: &mut World, name: &str) -> NodePhase {
    let snapshot = world.snapshot();
    snapshot.nodes[name].status.as_ref().unwrap().value.phase
}

#[test]
fn a_silent_machine_is_not_ready_at_its_timeout() {
    let mut world = World::with_machines(2);
    world.replicas("web", 2);
    world.settle();
    let timeout = world.snapshot().cluster.spec.node_loss_timeout_seconds;
    world.machines.get_mut("n1").unwrap().speaks = false;
    world.pass(Duration::from_secs(u64::from(timeout)) - Duration::from_millis(1));
    world.settle();
    assert_eq!(phase(&mut world, "n1"), NodePhase::Ready);
    world.pass(Duration::from_millis(1));
    world.settle();
    assert_eq!(phase(&mut world, "n1"), NodePhase::NotReady);
    assert_eq!(phase(&mut world, "n2"), NodePhase::Ready);
    world.replicas("web", 4);
    world.plan_out();
    let on_lost = world
        .wanted("web")
        .iter()
        .filter(|(_, node, _)| node == "n1")
        .count();
    assert_eq!(on_lost, 0, "nothing new is placed there");
    world.machines.get_mut("n1").unwrap().speaks = true;
    world.pass(Duration::from_secs(1));
    world.settle();
    assert_eq!(phase(&mut world, "n1"), NodePhase::Ready);
}

#[test]
fn a_new_leader_gives_every_machine_its_full_time() {
    let mut world = World::with_machines(1);
    world.settle();
    world.machines.get_mut("n1").unwrap().speaks = false;
    world.new_leader();
    let timeout = world.snapshot().cluster.spec.node_loss_timeout_seconds;
    world.pass(Duration::from_secs(u64::from(timeout) - 1));
    world.settle();
    assert_eq!(phase(&mut world, "n1"), NodePhase::Ready);
    world.pass(Duration::from_secs(1));
    world.settle();
    assert_eq!(phase(&mut world, "n1"), NodePhase::NotReady);
}

#[test]
fn a_machine_that_joins_gets_its_full_time_from_a_leader_of_long_ago() {
    let mut world = World::with_machines(2);
    world.settle();
    world.pass(Duration::from_secs(3600));
    world.machine("n3", "23", &[]);
    world.machines.get_mut("n3").unwrap().speaks = false;
    world.settle();
    assert_eq!(phase(&mut world, "n3"), NodePhase::Joining);
    let timeout = world.snapshot().cluster.spec.node_loss_timeout_seconds;
    world.pass(Duration::from_secs(u64::from(timeout) - 1));
    world.settle();
    assert_eq!(phase(&mut world, "n3"), NodePhase::Joining);
    world.pass(Duration::from_secs(1));
    world.settle();
    assert_eq!(phase(&mut world, "n3"), NodePhase::NotReady);
    assert_eq!(phase(&mut world, "n1"), NodePhase::Ready);
}

#[test]
fn the_leader_wakes_when_a_timeout_ends() {
    let mut world = World::with_machines(1);
    world.settle();
    let timeout = Duration::from_secs(u64::from(
        world.snapshot().cluster.spec.node_loss_timeout_seconds,
    ));
    world.machines.get_mut("n1").unwrap().speaks = false;
    world.pass(Duration::from_secs(3));
    let snapshot = world.snapshot();
    let planned = plan(&snapshot, &world.observed(), world.now, 1);
    assert_eq!(planned.wake_after, Some(timeout - Duration::from_secs(3)));
}

#[test]
fn a_report_of_another_identity_is_none() {
    let mut world = World::with_machines(1);
    world.machines.get_mut("n1").unwrap().uid = "someone else".to_owned();
    world.replicas("web", 1);
    world.settle();
    assert_eq!(phase(&mut world, "n1"), NodePhase::Joining);
    assert_eq!(world.wanted("web").len(), 0);
}

#[test]
fn a_heartbeat_without_news_writes_nothing() {
    let mut world = World::with_machines(2);
    world.replicas("web", 3);
    world.roll_out();
    let before = world.revision;
    for _ in 0..10 {
        world.pass(Duration::from_secs(5));
        for machine in world.machines.values_mut() {
            for report in machine.instances.values_mut() {
                report.memory = Some(report.memory.unwrap_or(0) + 4096);
            }
        }
        assert_eq!(world.step(), 0);
    }
    assert_eq!(world.revision, before);
}

/// `restore` and `recover` record of every other machine that the store has not heard it.
#[test]
fn a_machine_that_a_new_store_has_not_heard_is_not_shown_ready_until_it_reports() {
    let mut world = World::with_machines(3);
    world.replicas("web", 3);
    world.roll_out();
    let shown = |world: &mut World, name: &str| {
        let snapshot = world.snapshot();
        let status = &snapshot.nodes[name].status.as_ref().unwrap().value;
        (status.phase, status.shown_phase(), status.reason.clone())
    };
    let places = |world: &mut World| -> Vec<_> {
        let wanted = world.wanted("web").into_iter();
        wanted.map(|(id, node, _)| (id, node)).collect()
    };
    let before = places(&mut world);
    for name in ["n2", "n3"] {
        let snapshot = world.snapshot();
        let mut status = snapshot.nodes[name].status.as_ref().unwrap().value.clone();
        assert!(status.set_unheard(name));
        world.write(keys::node_status(name), &status);
        world.at(name).speaks = false;
    }
    world.new_leader();
    let unheard = (
        NodePhase::Ready,
        NodePhase::NotReady,
        "NoHeartbeat".to_owned(),
    );
    let heard = (NodePhase::Ready, NodePhase::Ready, String::new());
    world.settle();
    assert_eq!(shown(&mut world, "n1"), heard);
    assert_eq!(shown(&mut world, "n2"), unheard);
    assert_eq!(shown(&mut world, "n3"), unheard);
    world.at("n2").speaks = true;
    world.settle();
    assert_eq!(shown(&mut world, "n2"), heard);
    // The time until the machine is lost is that of any new leader.
    let timeout = world.snapshot().cluster.spec.node_loss_timeout_seconds;
    world.pass(Duration::from_secs(u64::from(timeout) - 1));
    world.settle();
    assert_eq!(shown(&mut world, "n3"), unheard);
    assert_eq!(places(&mut world), before, "nothing is replaced earlier");
    world.pass(Duration::from_secs(1));
    world.settle();
    assert_eq!(phase(&mut world, "n3"), NodePhase::NotReady);
    assert_eq!(phase(&mut world, "n2"), NodePhase::Ready);
}
