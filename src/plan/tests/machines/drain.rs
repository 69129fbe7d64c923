//! Drained machines: they get no new instances, and their instances leave without an outage.

use super::*;
use crate::updates::strategies::web;

fn phase(world: &mut World, machine: &str) -> NodePhase {
    let snapshot = world.snapshot();
    snapshot.nodes[machine].status.as_ref().unwrap().value.phase
}

fn on(world: &mut World, machine: &str) -> Vec<String> {
    let wanted = world.wanted("web").into_iter();
    let here = wanted.filter(|(_, node, _)| node == machine);
    here.map(|one| one.0).collect()
}

fn blocked(world: &mut World) -> Option<String> {
    let conditions = world.status("web").conditions;
    let found = conditions.iter().find(|one| one.kind == "DrainBlocked");
    found.map(|condition| condition.message.clone())
}

#[test]
fn a_drained_machine_is_left_one_by_one_and_stays_empty() {
    let mut world = World::with_machines(3);
    world.replicas("web", 6);
    world.settle();
    let here = on(&mut world, "n2").len();
    assert!(here > 1, "{here}");
    world.drain("n2", true);
    let mut seen = Vec::new();
    for _ in 0..100 {
        let before = world.revision;
        world.plan_out();
        seen.push(phase(&mut world, "n2"));
        let running = world.running("web");
        assert!((6..=7).contains(&running), "{running} serve");
        assert!(world.wanted("web").len() <= 7, "one more at a time");
        world.agents();
        if world.revision == before {
            break;
        }
    }
    world.settle_and_run();
    assert_eq!(phase(&mut world, "n2"), NodePhase::Drained);
    assert!(seen.contains(&NodePhase::Draining));
    assert_eq!(world.running("web"), 6);
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    let snapshot = world.snapshot();
    assert!(snapshot.instances.values().all(|entry| entry.node != "n2"));
    let told = snapshot.events.values();
    let told = told.filter(|stored| stored.value.reason == "NodeDrained");
    assert_eq!(told.count(), 1);
    world.replicas("web", 12);
    world.settle();
    assert_eq!(on(&mut world, "n2"), Vec::<String>::new());

    world.drain("n2", false);
    world.settle();
    assert_eq!(phase(&mut world, "n2"), NodePhase::Ready);
    world.replicas("web", 15);
    world.settle();
    assert!(!on(&mut world, "n2").is_empty(), "it takes work again");
}

#[test]
fn what_can_not_leave_stays_and_says_why() {
    let mut world = World::with_machines(2);
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(2);
        file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "3"}});
    });
    world.settle_and_run();
    let here = on(&mut world, "n2");
    assert_eq!(here.len(), 1);
    world.drain("n2", true);
    world.settle();
    assert_eq!(on(&mut world, "n2"), here, "it serves on");
    assert_eq!(phase(&mut world, "n2"), NodePhase::Draining);
    let status = world.status("web");
    assert_eq!((status.phase, status.ready), (WorkloadPhase::Running, 2));
    let why = blocked(&mut world).unwrap();
    assert!(
        why.starts_with(&format!("{} can't leave n2: ", here[0])),
        "{why}"
    );
    assert!(why.contains("without enough processor"), "{why}");
    let since = status.conditions[1].since;
    world.pass(Duration::from_secs(30));
    world.settle();
    assert_eq!(world.status("web").conditions[1].since, since);
    world.drain("n2", false);
    world.settle();
    assert_eq!(blocked(&mut world), None);
    assert_eq!(on(&mut world, "n2"), here);
}

#[test]
fn by_force_what_can_not_leave_is_stopped_and_comes_back_when_it_may() {
    let mut world = World::with_machines(2);
    let apply = |world: &mut World, surge: u32| {
        world.apply_workload("web", |file| {
            file["spec"]["replicas"] = json!(4);
            file["spec"]["updateStrategy"] = json!({"rolling": {"maxSurge": surge}});
            file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "1500m"}});
        });
    };
    for surge in [1, 0] {
        apply(&mut world, surge);
        world.settle();
        let here = on(&mut world, "n2");
        assert_eq!(here.len(), 2, "surge {surge}");
        world.drain("n2", true);
        world.settle();
        assert_eq!(
            on(&mut world, "n2"),
            here,
            "not by force, with surge {surge}"
        );
        world.drain_by_force("n2");
        world.settle();
        assert_eq!(phase(&mut world, "n2"), NodePhase::Drained, "surge {surge}");
        assert_eq!(on(&mut world, "n2"), Vec::<String>::new());
        assert_eq!((world.running("web"), blocked(&mut world)), (2, None));
        let status = world.status("web");
        assert_eq!(status.phase, WorkloadPhase::Degraded);
        let why = &status.conditions[0];
        assert_eq!(why.reason, "Unschedulable");
        assert!(why.message.contains("1 being drained"), "{}", why.message);
        let told = world.snapshot().events.clone();
        let told = told.values().filter(|stored| {
            let event = &stored.value;
            event.reason == "Stopping" && event.message.contains("is drained by force")
        });
        assert!(told.count() >= 2);
        world.drain("n2", false);
        world.settle();
        assert_eq!((on(&mut world, "n2").len(), world.running("web")), (2, 4));
    }
}

#[test]
fn a_forced_drain_moves_instances_that_fit_elsewhere_without_an_outage() {
    let mut world = World::with_machines(3);
    world.replicas("web", 6);
    world.settle();
    world.drain_by_force("n2");
    for _ in 0..100 {
        let before = world.revision;
        world.plan_out();
        assert!(world.running("web") >= 6, "{}", world.running("web"));
        world.agents();
        if world.revision == before {
            break;
        }
    }
    world.settle();
    assert_eq!(phase(&mut world, "n2"), NodePhase::Drained);
    assert_eq!(world.running("web"), 6);
}

#[test]
fn a_machine_that_is_lost_while_it_is_drained_by_force_is_told_nothing() {
    let mut world = World::with_machines(2);
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(2);
        file["spec"]["onNodeLoss"] = json!("keep");
        file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "3"}});
    });
    world.settle();
    let here = on(&mut world, "n2");
    let machine = world.at("n2");
    (machine.speaks, machine.obeys) = (false, false);
    world.pass(Duration::from_secs(3600));
    world.settle();
    world.drain_by_force("n2");
    world.settle();
    assert_eq!(on(&mut world, "n2"), here, "nobody knows what runs there");
    let machine = world.at("n2");
    (machine.speaks, machine.obeys) = (true, true);
    world.settle();
    assert_eq!(phase(&mut world, "n2"), NodePhase::Drained);
}

#[test]
fn a_drain_that_is_taken_back_keeps_what_still_serves() {
    let mut world = World::with_machines(2);
    world.replicas("web", 2);
    world.settle();
    let before = world.wanted("web");
    world.drain("n2", true);
    world.plan_out();
    assert_eq!(world.wanted("web").len(), 3, "its successor is on its way");
    world.drain("n2", false);
    world.settle();
    assert_eq!(world.wanted("web"), before);
}

#[test]
fn a_machine_that_dies_while_it_is_drained_is_replaced_like_any_other() {
    let mut world = World::with_machines(3);
    world.replicas("web", 6);
    world.settle();
    world.drain("n2", true);
    world.plan_out();
    world.agents();
    let machine = world.at("n2");
    (machine.speaks, machine.obeys) = (false, false);
    world.settle();
    world.pass(Duration::from_secs(3600));
    world.settle();
    assert_eq!(world.running("web"), 6);
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    let machine = world.at("n2");
    (machine.speaks, machine.obeys) = (true, true);
    world.settle();
    assert_eq!(phase(&mut world, "n2"), NodePhase::Drained);
    assert_eq!(world.snapshot().instances.len(), 6);
}

#[test]
fn a_rollout_and_a_drain_at_once_come_to_their_end() {
    let mut world = World::with_machines(3);
    world.replicas("web", 6);
    world.roll_out();
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(6);
        file["spec"]["source"]["image"] = json!("registry.example/web:2");
    });
    world.drain("n2", true);
    for _ in 0..200 {
        let before = world.revision;
        world.plan_out();
        assert!(world.running("web") >= 6, "{}", world.running("web"));
        world.agents();
        world.pass(Duration::from_secs(1));
        if world.revision == before && world.status("web").updated == 6 {
            break;
        }
    }
    world.roll_out();
    let wanted = world.wanted("web");
    assert_eq!(wanted.len(), 6);
    assert!(
        wanted
            .iter()
            .all(|(_, node, one)| node != "n2" && one.image.ends_with(":2"))
    );
    assert_eq!(phase(&mut world, "n2"), NodePhase::Drained);
}

/// With `maxSurge: 0`, one replica at most may be away. An instance that serves is not moved while
/// other replicas do not work, and the drain reports that.
#[test]
fn in_place_nothing_that_serves_is_moved_while_others_do_not_work() {
    let strategy = json!({"rolling": {"maxSurge": 0}});
    let paused = |world: &mut World, version| {
        world.apply_workload(
            "web",
            crate::updates::strategies::web(version, 3, strategy.clone()),
        );
    };
    // The instances have the wanted version, or the previous version while the next one is paused.
    for version in [1, 2] {
        let mut world = World::with_machines(3);
        paused(&mut world, 1);
        world.roll_out();
        paused(&mut world, version);
        world.pause("web", true);
        world.roll_out();
        let all = world.wanted("web");
        let (serves, node, _) = all[0].clone();
        for machine in world.machines.values_mut() {
            machine.obeys = false;
        }
        for (id, node, _) in &all[1..] {
            world.at(node).instances.get_mut(id).unwrap().phase = InstancePhase::Failed;
        }
        world.drain(&node, true);
        world.plan_out();
        let left = world.wanted("web");
        assert!(
            left.iter().any(|(id, ..)| *id == serves),
            "{version}: {left:?}"
        );
        let why = blocked(&mut world).unwrap();
        assert!(why.contains("2 other replicas do not work"), "{why}");
        assert!(
            why.starts_with(&format!("{serves} can't leave {node} yet: ")),
            "{why}"
        );
        // The failed replicas are replaced, and then the instance leaves.
        for machine in world.machines.values_mut() {
            machine.obeys = true;
        }
        for _ in 0..20 {
            world.pass(Duration::from_secs(60));
            world.settle();
        }
        assert_eq!(blocked(&mut world), None, "{version}");
        assert!(on(&mut world, &node).is_empty(), "{version}");
        assert_eq!(world.running("web"), 3);
    }
}

/// The image of a replica that has to leave its machine can't be pulled on another one: the next
/// version does not wait for that.
#[test]
fn a_version_reaches_a_replica_whose_move_cannot_end() {
    for strategy in [
        json!({}),
        json!({"rolling": {"maxSurge": 0}}),
        json!({"type": "Simultaneous"}),
    ] {
        for first_runs in [true, false] {
            let mut world = World::with_machines(3);
            let missing = "registry.example/web:1".to_owned();
            if !first_runs {
                world.missing.insert(missing.clone());
            }
            world.apply_workload("web", web(1, 1, json!({})));
            world.roll_out();
            let (_, node, _) = world.wanted("web").remove(0);
            world.missing.insert(missing);
            world.drain(&node, true);
            world.roll_out();
            assert_eq!(world.wanted("web").len(), 2, "the move has begun");
            world.apply_workload("web", web(1, 1, strategy.clone()));
            world.roll_out();
            world.apply_workload("web", web(3, 1, strategy.clone()));
            world.roll_out();
            assert_eq!(world.versions(), BTreeMap::from([("3".to_owned(), 1)]));
            assert!(world.wanted("web").iter().all(|(_, on, _)| *on != node));
            assert_eq!(world.status("web").phase, WorkloadPhase::Running);
        }
    }
}
