//! Stalled rollouts: the progress deadline over a change of the leader, the serving instances
//! meanwhile, and automatic rollback.

use super::*;
use crate::updates::strategies::web;

const BAD: &str = "registry.example/web:2";

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Three replicas of version 1, and version 2, which fails.
fn bad_version(strategy: serde_json::Value) -> World {
    let mut world = World::with_machines(3);
    world.apply_workload("web", web(1, 3, strategy.clone()));
    world.roll_out();
    world.failing.insert(BAD.to_owned());
    world.apply_workload("web", web(2, 3, strategy));
    world.settle();
    world
}

fn by_version(world: &mut World, version: &str) -> Vec<(String, String)> {
    let wanted = world.wanted("web").into_iter();
    let of = wanted.filter(|(.., one)| one.image.ends_with(version));
    of.map(|(id, node, _)| (id, node)).collect()
}

#[test]
fn the_deadline_is_kept_over_a_change_of_the_leader() {
    let mut world = bad_version(json!({"progressDeadlineSeconds": 300}));
    world.pass(seconds(200));
    world.settle();
    world.new_leader();
    world.settle();
    world.pass(seconds(98));
    world.settle();
    assert_eq!(world.status("web").phase, WorkloadPhase::Degraded);
    world.pass(seconds(3));
    world.settle();
    assert_eq!(world.status("web").phase, WorkloadPhase::Stalled);
    assert_eq!(world.running("web"), 3);
    assert_eq!(world.events("Stalled").len(), 1);
}

/// The next leader's clock is an hour behind.
#[test]
fn a_clock_that_was_ahead_holds_nothing_up() {
    let mut world = World::with_machines(3);
    let behind = |world: &mut World| {
        world.now = world.now.checked_sub(seconds(3600)).unwrap();
        world.new_leader();
    };
    world.apply_workload("web", web(1, 3, json!({})));
    world.roll_out();
    world.apply_workload("web", web(2, 3, json!({})));
    world.settle();
    behind(&mut world);
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), 3)]));
    let mut world = bad_version(json!({"progressDeadlineSeconds": 300}));
    behind(&mut world);
    world.settle();
    world.pass(seconds(301));
    world.settle();
    assert_eq!(world.status("web").phase, WorkloadPhase::Stalled);
}

#[test]
fn a_leader_that_has_just_begun_calls_nothing_stalled() {
    let mut world = bad_version(json!({"progressDeadlineSeconds": 60}));
    // No machine has led for an hour.
    world.now = world.now.checked_add(seconds(3600)).unwrap();
    world.new_leader();
    world.settle();
    assert_ne!(world.status("web").phase, WorkloadPhase::Stalled);
    world.pass(seconds(61));
    world.settle();
    assert_eq!(world.status("web").phase, WorkloadPhase::Stalled);
}

/// With `maxSurge: 0`, a serving instance is stopped before its successor starts. After a stall
/// that would empty one more slot for a version that has not worked yet.
#[test]
fn a_drain_moves_nothing_that_serves_while_a_stalled_version_does_not_work_in_place() {
    let strategy = json!({"rolling": {"maxSurge": 0}, "progressDeadlineSeconds": 60});
    let mut world = bad_version(strategy);
    world.pass(seconds(61));
    world.settle();
    assert_eq!(world.status("web").phase, WorkloadPhase::Stalled);
    let serving = by_version(&mut world, ":1");
    assert_eq!(serving.len(), 2);
    let (serves, node) = serving[0].clone();
    world.drain(&node, true);
    world.settle();
    let left = by_version(&mut world, ":1");
    assert!(left.contains(&(serves.clone(), node.clone())), "{left:?}");
    let conditions = world.status("web").conditions;
    let blocked = conditions.iter().find(|one| one.kind == "DrainBlocked");
    let why = blocked.map(|one| one.message.clone()).unwrap_or_default();
    assert!(why.contains("another replica does"), "{why}");
    // The next version works: its rollout completes, and the drained machine is left.
    world.failing.clear();
    let strategy = json!({"rolling": {"maxSurge": 0}, "progressDeadlineSeconds": 60});
    world.apply_workload("web", web(3, 3, strategy));
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("3".to_owned(), 3)]));
    assert!(world.wanted("web").iter().all(|(_, on, _)| *on != node));
}

/// The same without a rollout: one replica does not work, and the drain of another replica's
/// machine reports that.
#[test]
fn a_drain_says_that_it_waits_for_a_replica_that_is_ill_in_place() {
    let strategy = json!({"rolling": {"maxSurge": 0}});
    let mut world = World::with_machines(3);
    world.apply_workload("web", web(1, 3, strategy));
    world.roll_out();
    let all = world.wanted("web");
    let ((_, node, _), (ill, on, _)) = (all[0].clone(), all[1].clone());
    let machine = world.at(&on);
    machine.obeys = false;
    let instance = machine.instances.get_mut(&ill).unwrap();
    (instance.phase, instance.reason) = (InstancePhase::Restarting, "CrashLoop".into());
    world.drain(&node, true);
    world.plan_out();
    assert_eq!(world.wanted("web").len(), 3);
    let conditions = world.status("web").conditions;
    let blocked = conditions.iter().find(|one| one.kind == "DrainBlocked");
    let blocked = blocked.expect("the drain waits");
    assert_eq!(blocked.reason, "DrainWaits");
    let why = &blocked.message;
    assert!(why.contains("another replica does"), "{why}");
}

/// The replaced instances may take longer to end than the deadline allows. The old version is not
/// started again to be stopped once more.
#[test]
fn what_was_stopped_for_the_new_version_gives_way_to_it_after_a_stall_too() {
    let ways = [
        json!({"rolling": {"maxSurge": 0}}),
        json!({"type": "Simultaneous"}),
    ];
    for how in ways {
        let strategy = |mut strategy: serde_json::Value| {
            strategy["progressDeadlineSeconds"] = json!(60);
            strategy
        };
        let mut world = World::with_machines(2);
        world.apply_workload("web", web(1, 3, strategy(how.clone())));
        world.roll_out();
        let before = world.ids.clone();
        world.apply_workload("web", web(2, 3, strategy(how.clone())));
        world.plan_out();
        world.pass(seconds(61));
        world.plan_out();
        assert_eq!(world.status("web").phase, WorkloadPhase::Stalled, "{how}");
        world.roll_out();
        let versions = BTreeMap::from([("2".to_owned(), 3)]);
        assert_eq!(world.versions(), versions, "{how}");
        assert_eq!(world.ids.difference(&before).count(), 3, "{how}");
    }
}

#[test]
fn a_version_that_is_never_healthy_stalls_with_the_words_of_its_probe() {
    let mut world = World::with_machines(3);
    world.apply_workload("web", web(1, 3, json!({})));
    world.roll_out();
    world.apply_workload("web", web(2, 3, json!({})));
    world.settle();
    let (id, node) = by_version(&mut world, ":2").remove(0);
    let why = "its health check does not succeed yet: GET :80/healthz: http 503";
    let machine = world.at(&node);
    // From now on the agent's reports do not change.
    machine.obeys = false;
    machine.instances.get_mut(&id).unwrap().health_status = Health::Unhealthy;
    world.settle();
    let report = world.at(&node).instances.get_mut(&id).unwrap();
    report.health_status = Health::PendingCheck;
    (report.reason, report.message) = ("HealthCheckPending".to_owned(), why.to_owned());
    world.settle();
    let status = world.status("web");
    let counts = "0 of 3 instances of this generation are healthy";
    let expected = format!("{counts}; {id}: {why}");
    assert_eq!(status.conditions[0].message, expected);
    world.pass(seconds(601));
    world.settle();
    let status = world.status("web");
    assert_eq!((status.phase, status.ready), (WorkloadPhase::Stalled, 3));
    let expected = format!("no progress for 600 s: {expected}");
    assert_eq!(status.conditions[0].message, expected);
    assert_eq!(by_version(&mut world, ":1").len(), 3);
    // An automatic rollback gives the same reason.
    world.apply_workload("web", web(2, 3, json!({"autoRollback": true})));
    world.settle();
    world.pass(seconds(601));
    world.settle();
    let told = world.events("RolledBack");
    let expected =
        format!("generation 3 made no progress ({id}: {why}); generation 1 is taken again");
    assert_eq!(told, [expected]);
}

#[test]
fn an_automatic_rollback_of_a_version_that_fits_nowhere_names_the_lack_of_machines() {
    let mut world = World::with_machines(2);
    world.apply_workload("web", web(1, 1, json!({})));
    world.roll_out();
    world.apply_workload("web", |file| {
        let strategy = json!({"autoRollback": true, "progressDeadlineSeconds": 60});
        web(2, 1, strategy)(file);
        file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "99"}});
    });
    world.settle();
    world.pass(seconds(61));
    world.settle();
    let told = world.events("RolledBack");
    let expected = "generation 2 made no progress (last status: Unschedulable: 0 of 2 machines fit: 2 without \
                    enough processor left; processor: asks 99, the largest machine has 4 in all); generation 1 is taken again";
    assert_eq!(told, [expected]);
}

#[test]
fn a_stalled_rollout_continues_when_the_new_version_works() {
    let mut world = bad_version(json!({}));
    world.pass(seconds(700));
    world.settle();
    assert_eq!(world.status("web").phase, WorkloadPhase::Stalled);
    world.failing.clear();
    world.roll_out();
    let status = world.status("web");
    assert_eq!((status.phase, status.updated), (WorkloadPhase::Running, 3));
    assert_eq!(status.last_good_generation, Some(2));
    assert_eq!(world.events("RolloutCompleted").len(), 1);
}

#[test]
fn what_serves_in_a_stalled_rollout_is_replaced_by_its_own_version() {
    let mut world = bad_version(json!({}));
    world.pass(seconds(700));
    world.settle();
    // The first drain is of the machine of an old instance without a new one in its slot, the
    // second of the machine of an old instance with a new one.
    for _ in 0..2 {
        let machines: BTreeSet<String> = by_version(&mut world, ":1")
            .into_iter()
            .map(|one| one.1)
            .collect();
        let machine = machines.first().unwrap().clone();
        world.drain(&machine, true);
        for _ in 0..5 {
            world.pass(seconds(301));
            world.settle();
            assert!(world.running("web") >= 3, "{}", world.running("web"));
        }
        assert!(
            by_version(&mut world, ":1")
                .iter()
                .all(|one| one.1 != machine),
            "drained"
        );
        world.drain(&machine, false);
    }
    // A lost machine is handled in the same way.
    let (_, lost) = by_version(&mut world, ":1").remove(0);
    let machine = world.at(&lost);
    (machine.speaks, machine.obeys) = (false, false);
    world.pass(seconds(61));
    world.settle();
    world.settle();
    let serving = by_version(&mut world, ":1")
        .into_iter()
        .filter(|one| one.1 != lost);
    assert_eq!(serving.count(), 3);
}

#[test]
fn a_lost_machine_in_the_middle_of_a_bad_version_costs_nothing_for_long() {
    let mut world = bad_version(json!({}));
    let bad = by_version(&mut world, ":2");
    assert_eq!(bad.len(), 1);
    // The lost machine has another slot than the one with the bad version, which waits for the
    // deadline.
    let slot = world
        .wanted("web")
        .iter()
        .find(|one| one.0 == bad[0].0)
        .unwrap()
        .2
        .slot;
    let wanted = world.wanted("web");
    let other = wanted
        .iter()
        .find(|(_, node, one)| one.slot != slot && *node != bad[0].1);
    let lost = other.unwrap().1.clone();
    let beside = wanted
        .iter()
        .filter(|(_, node, one)| *node == lost && one.slot == slot)
        .count();
    let machine = world.at(&lost);
    (machine.speaks, machine.obeys) = (false, false);
    world.pass(seconds(61));
    world.settle();
    let serving = by_version(&mut world, ":1")
        .into_iter()
        .filter(|one| one.1 != lost);
    assert_eq!(serving.count(), 3 - beside);
}

#[test]
fn an_automatic_rollback_happens_only_once() {
    let strategy = json!({"autoRollback": true, "progressDeadlineSeconds": 60});
    let mut world = bad_version(strategy.clone());
    world.pass(seconds(61));
    world.roll_out();
    let status = world.status("web");
    assert_eq!((status.phase, status.updated), (WorkloadPhase::Running, 3));
    assert_eq!(
        (status.observed_generation, status.last_good_generation),
        (3, Some(3))
    );
    assert!(
        world
            .wanted("web")
            .iter()
            .all(|(.., one)| one.image.ends_with(":1"))
    );
    let condition = status
        .conditions
        .iter()
        .find(|one| one.kind == "RolledBack")
        .unwrap();
    let why = "generation 2 made no progress (RestartsExhausted: web-";
    assert!(condition.message.starts_with(why), "{}", condition.message);
    assert!(condition.message.ends_with("; generation 1 is taken again"));
    assert_eq!(world.events("RolledBack").len(), 1);
    let text = &world.entries[keys::manifest(NAMESPACE, "web", "workload.kat").as_str()].value;
    assert!(String::from_utf8_lossy(text).contains("web:1"));

    // The version of the rollback fails too, and no further rollback follows.
    world.apply_workload("web", web(2, 3, strategy.clone()));
    world.settle();
    world.failing.insert("registry.example/web:1".to_owned());
    world.pass(seconds(61));
    world.settle();
    for _ in 0..20 {
        world.pass(seconds(301));
        world.settle();
    }
    let status = world.status("web");
    assert_eq!(
        (status.phase, status.observed_generation),
        (WorkloadPhase::Stalled, 5)
    );
    assert_eq!(world.events("RolledBack").len(), 2);
}

#[test]
fn with_nothing_to_go_back_to_it_stays_stalled() {
    let mut world = World::with_machines(1);
    world.failing.insert(BAD.to_owned());
    let strategy = json!({"autoRollback": true, "progressDeadlineSeconds": 60});
    world.apply_workload("web", web(2, 1, strategy));
    world.settle();
    world.pass(seconds(61));
    world.settle();
    let status = world.status("web");
    assert_eq!(
        (status.phase, status.observed_generation),
        (WorkloadPhase::Stalled, 1)
    );
}

#[test]
fn the_last_good_generation_is_kept_beyond_the_others() {
    let mut world = bad_version(json!({}));
    for version in 12..24 {
        world
            .failing
            .insert(format!("registry.example/web:{version}"));
        world.apply_workload("web", web(version, 3, json!({})));
        world.settle();
    }
    let snapshot = world.snapshot();
    let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "web")];
    assert_eq!(entry.archive.len(), 14, "the test's apply deletes none");
    assert_eq!(kat_plan::outdated_generations(entry, 15), [2, 3, 4, 5]);
}

/// The running version is good, so it is not taken for the one without progress.
#[test]
fn a_number_that_finds_no_room_brings_no_older_version_back() {
    let strategy = json!({"autoRollback": true, "progressDeadlineSeconds": 60});
    let large = |version, replicas| {
        let strategy = strategy.clone();
        move |file: &mut serde_json::Value| {
            web(version, replicas, strategy)(file);
            file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "1"}});
        }
    };
    let mut world = World::with_machines(3);
    for version in [1, 2] {
        world.apply_workload("web", large(version, 3));
        world.roll_out();
    }
    world.apply_workload("web", large(2, 50));
    world.settle();
    assert!(world.wanted("web").len() < 50);
    world.pass(seconds(61));
    world.roll_out();
    assert_eq!(world.events("RolledBack").len(), 1);
    let status = world.status("web");
    assert_eq!((status.phase, status.updated), (WorkloadPhase::Running, 3));
    assert_eq!(by_version(&mut world, ":2").len(), 3);
    assert_eq!(by_version(&mut world, ":1").len(), 0);
}

#[test]
fn the_end_of_what_is_replaced_may_take_longer_than_the_deadline() {
    let strategy = json!({"autoRollback": true, "progressDeadlineSeconds": 60});
    let mut world = World::with_machines(3);
    for version in [1, 2] {
        world.apply_workload("web", web(version, 3, strategy.clone()));
        world.roll_out();
    }
    for machine in world.machines.values_mut() {
        machine.obeys = false;
    }
    world.apply_workload("web", web(2, 1, strategy));
    for _ in 0..4 {
        world.settle();
        world.pass(seconds(40));
        world.settle();
        world.pass(seconds(1));
        assert_eq!(world.step(), 0, "time alone is written nowhere");
    }
    world.settle();
    assert_ne!(world.status("web").phase, WorkloadPhase::Stalled);
    for machine in world.machines.values_mut() {
        machine.obeys = true;
    }
    world.roll_out();
    let status = world.status("web");
    assert_eq!((status.phase, status.ready), (WorkloadPhase::Running, 1));
    assert_eq!(by_version(&mut world, ":2").len(), 1);
    assert_eq!(world.events("Stalled").len(), 0);
}

#[test]
fn a_generation_without_instances_has_shown_nothing() {
    let mut world = World::with_machines(1);
    world.apply_workload("web", web(1, 1, json!({})));
    world.roll_out();
    world.apply_workload("web", web(2, 0, json!({})));
    world.roll_out();
    assert_eq!(world.status("web").last_good_generation, Some(1));
}

/// If the running version equals the last good generation, a good generation with another content
/// is kept too.
#[test]
fn there_is_another_good_generation_where_the_last_one_is_the_present_one() {
    let mut world = World::with_machines(3);
    for version in [1, 2] {
        world.apply_workload("web", web(version, 3, json!({})));
        world.roll_out();
    }
    for _ in 3..=14 {
        world.apply_workload("web", web(2, 3, json!({})));
        world.roll_out();
    }
    let snapshot = world.snapshot();
    let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "web")];
    let good = &entry.status.as_ref().unwrap().value.good;
    assert_eq!(good.last(), Some(&14));
    assert_eq!(kat_plan::outdated_generations(entry, 15), [2, 3, 4, 5]);
}
