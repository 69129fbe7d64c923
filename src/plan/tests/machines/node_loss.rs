//! Lost machines, their instances, and the return of these machines.

use super::*;

pub(crate) fn timeout(world: &mut World) -> Duration {
    let seconds = world.snapshot().cluster.spec.node_loss_timeout_seconds;
    Duration::from_secs(u64::from(seconds))
}

/// The machine no longer reports or acts.
pub(crate) fn unplug(world: &mut World, machine: &str) {
    let machine = world.at(machine);
    (machine.speaks, machine.obeys) = (false, false);
}

/// The machine is back, with its running instances.
fn plug_in(world: &mut World, machine: &str) {
    let machine = world.at(machine);
    (machine.speaks, machine.obeys) = (true, true);
}

/// A workload with one instance on each of `machines` machines.
fn spread(machines: usize) -> World {
    spread_with(machines, |_| {})
}

fn spread_with(machines: usize, change: impl FnOnce(&mut serde_json::Value)) -> World {
    let mut world = World::with_machines(machines);
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(machines);
        change(file);
    });
    world.roll_out();
    let on: BTreeSet<String> = world.wanted("web").into_iter().map(|one| one.1).collect();
    assert_eq!(on.len(), machines, "one on each");
    world
}

/// The workload's only wanted instance on a machine.
fn on(world: &mut World, machine: &str) -> (String, Arc<Assignment>) {
    let mut found = world.wanted("web");
    found.retain(|(_, node, _)| node == machine);
    assert_eq!(found.len(), 1, "{found:?}");
    let (id, _, assignment) = found.remove(0);
    (id, assignment)
}

fn node_status(world: &mut World, machine: &str) -> NodeStatusRecord {
    let snapshot = world.snapshot();
    snapshot.nodes[machine]
        .status
        .as_ref()
        .unwrap()
        .value
        .clone()
}

fn events(world: &mut World, reason: &str) -> Vec<String> {
    let snapshot = world.snapshot();
    let events = snapshot.events.values().map(|stored| &stored.value);
    let told = events.filter(|event| event.reason == reason);
    told.map(|event| format!("{}: {}", event.involved_object.name, event.message))
        .collect()
}

/// Instances that run on any machine, whether or not the leader knows them.
fn really_running(world: &World) -> Vec<(String, String)> {
    let units = world.machines.iter().flat_map(|(name, machine)| {
        let running = machine.running();
        running.into_iter().map(|id| (name.clone(), id))
    });
    units.collect()
}

#[test]
fn a_lost_machines_instances_are_replaced_at_the_timeout_and_not_before() {
    let mut world = spread(3);
    let (lost, before) = on(&mut world, "n2");
    unplug(&mut world, "n2");
    let timeout = timeout(&mut world);
    world.pass(timeout - Duration::from_millis(1));
    world.settle();
    assert_eq!(on(&mut world, "n2").0, lost, "not before");
    let name = format!("/kat/dns/default/web/A/{}", before.address);
    assert!(world.keys("/kat/dns/default/").contains(&name));

    world.pass(Duration::from_millis(1));
    world.plan_out();
    assert!(!world.keys("/kat/dns/default/").contains(&name), "no name");
    assert_eq!(world.status("web").phase, WorkloadPhase::Degraded);
    assert_eq!(world.wanted("web").len(), 4, "the lost one may come back");
    world.settle_and_run();
    let status = world.status("web");
    assert_eq!((status.phase, status.ready), (WorkloadPhase::Running, 3));
    let wanted = world.wanted("web");
    assert_eq!(wanted.len(), 3);
    assert!(
        wanted.iter().all(|(id, node, one)| {
            node != "n2" && *id != lost && one.address != before.address
        })
    );
    assert_eq!(world.running("web"), 3);

    // The address and the entry stay until the machine reports that nothing of the instance is
    // left.
    let snapshot = world.snapshot();
    assert_eq!(snapshot.allocations[&lost].value.address, before.address);
    let entry = &snapshot.instances[&lost];
    assert_eq!(
        (entry.node.as_str(), entry.assignment.value.wanted),
        ("n2", DesiredRun::Stopped)
    );
    let successor = wanted
        .iter()
        .find(|(_, _, one)| one.slot == before.slot)
        .unwrap();
    let told = format!(
        "{lost}: its machine n2 is lost; {} takes its place",
        successor.0
    );
    assert_eq!(events(&mut world, "Lost"), [told]);
    assert_eq!(events(&mut world, "NodeNotReady").len(), 1);
}

#[test]
fn nothing_runs_twice_when_the_machine_is_back() {
    let mut world = spread(3);
    let (lost, _) = on(&mut world, "n2");
    unplug(&mut world, "n2");
    let timeout = timeout(&mut world);
    world.pass(timeout);
    world.settle();
    let replaced: Vec<String> = world.wanted("web").into_iter().map(|one| one.0).collect();
    assert_eq!(really_running(&world).len(), 4, "the zombie runs on");
    plug_in(&mut world, "n2");
    world.settle_and_run();
    let after: Vec<String> = world.wanted("web").into_iter().map(|one| one.0).collect();
    assert_eq!(after, replaced, "what serves stays where it is");
    let running = really_running(&world);
    assert_eq!(running.len(), 3);
    assert!(running.iter().all(|(_, id)| *id != lost));
    assert_eq!(world.snapshot().allocations.len(), 3, "its address is free");
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}

#[test]
fn a_machine_that_is_back_before_the_replacement_serves_keeps_its_instance() {
    let mut world = spread(3);
    let (original, _) = on(&mut world, "n2");
    unplug(&mut world, "n2");
    let timeout = timeout(&mut world);
    world.pass(timeout);
    world.plan_out();
    assert_eq!(world.wanted("web").len(), 4);
    plug_in(&mut world, "n2");
    world.plan_out();
    let wanted = world.wanted("web");
    assert_eq!(wanted.len(), 3);
    assert!(wanted.iter().any(|(id, ..)| *id == original));
    world.settle();
    assert_eq!(on(&mut world, "n2").0, original);
    assert_eq!(really_running(&world).len(), 3);
}

#[test]
fn a_new_leader_moves_nothing_before_its_own_full_timeout() {
    let mut world = spread(3);
    unplug(&mut world, "n2");
    let timeout = timeout(&mut world);
    world.pass(timeout - Duration::from_secs(1));
    world.settle();
    world.new_leader();
    world.pass(timeout - Duration::from_secs(1));
    world.settle();
    assert_eq!(node_status(&mut world, "n2").phase, NodePhase::Ready);
    on(&mut world, "n2");
    world.pass(Duration::from_secs(1));
    world.settle();
    assert!(world.wanted("web").iter().all(|(_, node, _)| node != "n2"));
}

/// The other leader stored NotReady and was lost before it could replace anything.
#[test]
fn a_new_leader_does_not_act_on_what_another_saw() {
    let mut world = spread(3);
    let (before, _) = on(&mut world, "n2");
    unplug(&mut world, "n2");
    let timeout = timeout(&mut world);
    world.pass(timeout);
    let snapshot = world.snapshot();
    let observed = world.observed();
    let planned = plan(&snapshot, &observed, world.now, 1);
    let status = &planned.changes[0];
    assert_eq!(status.reason, "status of machine n2");
    let operations = status.operations.clone();
    world.apply(&operations);
    world.new_leader();
    world.pass(timeout - Duration::from_secs(1));
    world.settle();
    assert_eq!(node_status(&mut world, "n2").phase, NodePhase::NotReady);
    assert_eq!(on(&mut world, "n2").0, before);
    world.pass(Duration::from_secs(1));
    world.settle();
    assert!(world.wanted("web").iter().all(|(_, node, _)| node != "n2"));
}

#[test]
fn nothing_moves_while_more_than_half_of_the_machines_are_gone_at_once() {
    let mut world = spread(3);
    let before = world.wanted("web");
    // The last reports of machines are some seconds apart.
    unplug(&mut world, "n2");
    world.pass(Duration::from_secs(15));
    world.settle();
    unplug(&mut world, "n3");
    let timeout = timeout(&mut world);
    world.pass(timeout - Duration::from_secs(15));
    world.settle();
    assert_eq!(world.wanted("web"), before, "n3 is as silent as n2");
    world.pass(Duration::from_secs(15));
    world.settle();
    world.pass(Duration::from_secs(3600));
    world.settle();
    assert_eq!(world.wanted("web"), before);
    let names = world.keys("/kat/dns/default/web/A/");
    assert_eq!(names.len(), 2, "only what answers has names: {names:?}");
    for machine in ["n2", "n3"] {
        let status = node_status(&mut world, machine);
        assert_eq!(status.reason, "MostMachinesLost");
        assert!(
            status.message.contains("2 of 3 machines vanished at once"),
            "{status:?}"
        );
    }
    assert_eq!(events(&mut world, "MostMachinesLost").len(), 2);
    let status = world.status("web");
    assert_eq!((status.phase, status.ready), (WorkloadPhase::Degraded, 1));
    let condition = &status.conditions[0];
    assert_eq!(condition.reason, "NodeNotReady");
    assert!(
        condition.message.contains("nothing is moved"),
        "{}",
        condition.message
    );
    world.apply_workload("db", |file| {
        file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "5"}});
    });
    world.settle();
    let message = world.status("db").conditions[0].message.clone();
    assert!(
        message.contains("2 not ready") && message.contains("nothing is moved"),
        "{message}"
    );

    // n3 is back, and n2 may follow shortly.
    plug_in(&mut world, "n3");
    world.settle_and_run();
    assert_eq!(node_status(&mut world, "n2").reason, "MostMachinesLost");
    let wanted = world.wanted("web");
    assert!(wanted.iter().any(|(_, node, _)| node == "n2"), "{wanted:?}");
    // n2 does not return. As one lost machine of three, it is replaced.
    world.pass(timeout);
    world.settle_and_run();
    assert_eq!(node_status(&mut world, "n2").reason, "NoHeartbeat");
    let wanted = world.wanted("web");
    assert_eq!(wanted.len(), 3);
    assert!(wanted.iter().all(|(_, node, _)| node != "n2"));
    assert!(
        wanted.iter().any(|(_, node, _)| node == "n3"),
        "it kept its own"
    );
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}

/// The replacement has not started when others vanish too; from then on no instance is given up.
#[test]
fn what_may_still_come_back_is_kept_until_its_replacement_serves() {
    let mut world = spread(3);
    let (original, _) = on(&mut world, "n2");
    unplug(&mut world, "n2");
    let timeout = timeout(&mut world);
    world.pass(timeout);
    world.plan_out();
    let replacement = world
        .wanted("web")
        .into_iter()
        .max_by_key(|one| one.2.created)
        .unwrap();
    let other = if replacement.1 == "n1" { "n3" } else { "n1" };
    unplug(&mut world, other);
    world.at(&replacement.1).obeys = false;
    world.pass(timeout);
    world.plan_out();
    assert_eq!(node_status(&mut world, "n2").reason, "MostMachinesLost");
    let wanted = world.wanted("web");
    assert_eq!(wanted.len(), 4, "both stay");
    assert!(wanted.iter().any(|(id, ..)| *id == original));
    plug_in(&mut world, "n2");
    plug_in(&mut world, other);
    plug_in(&mut world, &replacement.1);
    world.settle();
    assert_eq!(on(&mut world, "n2").0, original);
    assert_eq!(really_running(&world).len(), 3);
}

#[test]
fn a_new_leader_waits_too_when_most_machines_are_gone() {
    let mut world = spread(3);
    let before = world.wanted("web");
    unplug(&mut world, "n2");
    unplug(&mut world, "n3");
    let timeout = timeout(&mut world);
    world.pass(timeout);
    world.settle();
    for _ in 0..3 {
        world.new_leader();
        world.pass(timeout / 2);
        world.settle();
        world.pass(timeout * 20);
        world.settle();
        assert_eq!(world.wanted("web"), before);
    }
    world.remove_machine("n3");
    world.settle();
    let wanted = world.wanted("web");
    assert_eq!(wanted.len(), 3);
    assert!(
        wanted.iter().all(|(_, node, _)| node == "n1"),
        "somebody said which is gone"
    );
}

#[test]
fn machines_that_are_lost_one_after_the_other_are_each_replaced() {
    let mut world = spread(4);
    let timeout = timeout(&mut world);
    for machine in ["n2", "n3", "n4"] {
        unplug(&mut world, machine);
        world.pass(timeout);
        world.settle_and_run();
        assert_eq!(
            world.status("web").phase,
            WorkloadPhase::Running,
            "{machine}"
        );
        assert!(
            world
                .wanted("web")
                .iter()
                .all(|(_, node, _)| node != machine)
        );
        world.pass(timeout * 2);
        world.settle();
    }
    assert_eq!(world.running("web"), 4);
    for machine in ["n4", "n2", "n3"] {
        plug_in(&mut world, machine);
        world.settle();
    }
    assert_eq!(really_running(&world).len(), 4);
    assert_eq!(world.snapshot().instances.len(), 4);
}

#[test]
fn the_replacement_of_a_replacement_leaves_one() {
    let mut world = spread(4);
    let timeout = timeout(&mut world);
    unplug(&mut world, "n2");
    world.pass(timeout);
    world.plan_out();
    let started: BTreeSet<String> = world.wanted("web").into_iter().map(|one| one.0).collect();
    assert_eq!(started.len(), 5);
    // The replacement's machine is lost before it has started the replacement.
    let replacement = world
        .wanted("web")
        .into_iter()
        .max_by_key(|one| one.2.created)
        .unwrap();
    unplug(&mut world, &replacement.1);
    world.settle();
    world.pass(timeout * 2);
    world.settle_and_run();
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    assert_eq!(world.running("web"), 4);
    plug_in(&mut world, "n2");
    plug_in(&mut world, &replacement.1);
    world.settle();
    assert_eq!(really_running(&world).len(), 4);
    assert_eq!(world.snapshot().instances.len(), 4);
}

/// Both instances are healthy, and the slots that are wanted serve on neither machine.
#[test]
fn of_two_instances_of_a_slot_that_is_no_longer_wanted_one_serves_for_the_others() {
    let mut world = World::with_machines(3);
    for others in ["n1", "n3"] {
        world.drain(others, true);
    }
    world.replicas("web", 2);
    world.roll_out();
    for others in ["n1", "n3"] {
        world.drain(others, false);
    }
    world.replicas("web", 3);
    world.roll_out();
    let of_slot = |world: &mut World| -> Vec<String> {
        let mut wanted = world.wanted("web");
        wanted.retain(|(_, _, one)| one.slot == 2);
        wanted.into_iter().map(|(_, node, _)| node).collect()
    };
    let first = of_slot(&mut world).remove(0);
    unplug(&mut world, &first);
    let timeout = timeout(&mut world);
    world.pass(timeout);
    world.plan_out();
    assert_eq!(of_slot(&mut world).len(), 2, "it has a successor");
    world.agents();
    world.agents();
    unplug(&mut world, "n2");
    world.pass(timeout);
    for others in ["n1", "n3"] {
        world.at(others).speaks = true;
    }
    world.replicas("web", 2);
    world.plan_out();
    assert_eq!(of_slot(&mut world).len(), 1);
}

#[test]
fn an_instance_with_on_node_loss_keep_waits_for_its_lost_machine() {
    let mut world = spread_with(3, |file| file["spec"]["onNodeLoss"] = json!("keep"));
    let (kept, _) = on(&mut world, "n2");
    unplug(&mut world, "n2");
    let timeout = timeout(&mut world);
    world.pass(timeout * 10);
    world.settle();
    assert_eq!(on(&mut world, "n2").0, kept);
    let status = world.status("web");
    assert_eq!((status.phase, status.ready), (WorkloadPhase::Degraded, 2));
    assert_eq!(status.conditions[0].reason, "NodeNotReady");
    plug_in(&mut world, "n2");
    world.settle();
    assert_eq!(on(&mut world, "n2").0, kept);
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}

#[test]
fn a_rollout_goes_on_without_the_lost_machine() {
    let mut world = spread(3);
    let version = |version: u32| {
        move |file: &mut serde_json::Value| {
            file["spec"]["replicas"] = json!(3);
            file["spec"]["source"]["image"] = json!(format!("registry.example/web:{version}"));
        }
    };
    world.apply_workload("web", version(2));
    world.plan_out();
    unplug(&mut world, "n2");
    let timeout = timeout(&mut world);
    world.pass(timeout);
    world.roll_out();
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    world.apply_workload("web", version(3));
    world.roll_out();
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    plug_in(&mut world, "n2");
    world.roll_out();
    assert!(
        world
            .wanted("web")
            .iter()
            .all(|(_, _, one)| one.image.ends_with(":3"))
    );
    assert_eq!(really_running(&world).len(), 3);
    assert_eq!(world.snapshot().instances.len(), 3);
}

#[test]
fn what_finds_no_place_waits_and_says_why() {
    let mut world = World::with_machines(2);
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(2);
        file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "3"}});
    });
    world.settle();
    unplug(&mut world, "n2");
    let timeout = timeout(&mut world);
    world.pass(timeout);
    world.settle();
    let status = world.status("web");
    assert_eq!((status.phase, status.ready), (WorkloadPhase::Degraded, 1));
    let condition = &status.conditions[0];
    assert_eq!(condition.reason, "Unschedulable");
    assert!(
        condition.message.contains("1 not ready"),
        "{}",
        condition.message
    );
    assert_eq!(events(&mut world, "Lost"), Vec::<String>::new());
    plug_in(&mut world, "n2");
    world.settle();
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}

#[test]
fn the_status_of_a_silent_machine_forgets_an_instance_that_it_has_no_more() {
    let mut world = spread(2);
    let (own, _) = on(&mut world, "n2");
    let (mut snapshot, mut observed) = (world.snapshot(), world.observed());
    let node = snapshot.nodes.get_mut("n2").unwrap();
    let status = &mut node.status.as_mut().unwrap().value;
    let record = status.instances[&own].clone();
    status.instances.insert("web-zzzzz".to_owned(), record);
    // A new leader has no report of the machine yet.
    observed.reports.remove("n2");
    let planned = plan(&snapshot, &observed, world.now, 1);
    let operations = planned.changes.iter().flat_map(|one| &one.operations);
    let written = operations.filter_map(|operation| match operation {
        WriteOperation::Put(key, value) if *key == kat_types::store::keys::node_status("n2") => {
            Some(value)
        }
        _ => None,
    });
    let written: Vec<NodeStatusRecord> = written
        .map(|value| serde_json::from_slice(value).unwrap())
        .collect();
    let kept: Vec<&String> = written[0].instances.keys().collect();
    assert_eq!(kept, [&own]);
}
