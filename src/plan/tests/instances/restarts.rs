//! Restarts of agents and leaders at any moment: an unconfirmed report neither removes a name nor
//! frees an index, and in the end nothing stays reserved.

use super::*;

fn records(world: &mut World, machine: &str) -> Vec<String> {
    let snapshot = world.snapshot();
    let status = snapshot.nodes[machine].status.as_ref().unwrap();
    status.value.instances.keys().cloned().collect()
}

fn users(world: &mut World, machine: &str) -> Vec<u32> {
    let snapshot = world.snapshot();
    let status = snapshot.nodes[machine].status.as_ref().unwrap();
    status.value.user_indexes.clone()
}

fn is_gone(world: &mut World, name: &str) -> bool {
    let snapshot = world.snapshot();
    !snapshot
        .workloads
        .contains_key(&WorkloadKey::new(NAMESPACE, name))
}

/// Runs `rounds` rounds of leader and agents.
fn turns(world: &mut World, rounds: usize) {
    for _ in 0..rounds {
        world.plan_out();
        world.agents();
    }
}

/// A workload of two instances on one machine.
fn serving() -> World {
    let mut world = World::with_machines(1);
    world.replicas("web", 2);
    world.settle_and_run();
    world
}

#[test]
fn a_report_without_an_instance_keeps_its_record_and_its_name() {
    let mut world = serving();
    let (names, before) = (world.keys("/kat/dns/default/"), records(&mut world, "n1"));
    assert_eq!((names.len(), before.len()), (4, 2));
    world.at("n1").restart(2);
    let mut silent = 0;
    for _ in 0..4 {
        world.plan_out();
        let report = world.at("n1").heard.clone().unwrap();
        silent += usize::from(report.workload_instances.is_empty());
        assert_eq!(world.keys("/kat/dns/default/"), names);
        assert_eq!(records(&mut world, "n1"), before);
        let status = world.status("web");
        assert_eq!((status.phase, status.ready), (WorkloadPhase::Running, 2));
        world.agents();
    }
    assert_eq!(
        silent, 3,
        "unconfirmed before and after the list, confirmed"
    );
    world.settle();
}

#[test]
fn what_the_agent_says_after_its_restart_counts() {
    let mut world = serving();
    world.at("n1").restart(0);
    world.failing.insert("registry.example/web:1".to_owned());
    world.agents();
    world.plan_out();
    assert_eq!(world.status("web").ready, 0);
    assert_eq!(world.keys("/kat/dns/default/"), Vec::<String>::new());
}

#[test]
fn the_first_report_waits_for_the_first_look() {
    let mut world = serving();
    world.at("n1").restart(0);
    let before = world.at("n1").heard.clone();
    world.plan_out();
    assert_eq!(world.at("n1").heard, before);
    world.agents();
    world.plan_out();
    let report = world.at("n1").heard.clone().unwrap();
    assert_eq!(
        (report.desired_revision, report.workload_instances.len()),
        (0, 2)
    );
    world.agents();
    world.plan_out();
    assert!(world.at("n1").heard.clone().unwrap().desired_revision > 1);
}

#[test]
fn what_was_stopped_and_removed_leaves_the_record() {
    let mut world = World::with_machines(1);
    world.replicas("web", 3);
    world.settle();
    assert_eq!(records(&mut world, "n1").len(), 3);
    world.replicas("web", 1);
    world.settle();
    let wanted = world.wanted("web");
    assert_eq!(records(&mut world, "n1"), [wanted[0].0.clone()]);
    world.replicas("web", 0);
    world.settle();
    assert_eq!(records(&mut world, "n1"), Vec::<String>::new());
}

#[test]
fn what_is_removed_while_the_agent_restarts_leaves_the_record() {
    for late in 0..3 {
        let mut world = serving();
        world.replicas("web", 1);
        turns(&mut world, 2);
        world.plan_out();
        assert_eq!(world.keys(keys::ALLOCATIONS).len(), 1, "it is confirmed");
        world.at("n1").restart(late);
        world.settle();
        let wanted = world.wanted("web");
        assert_eq!(records(&mut world, "n1"), [wanted[0].0.clone()]);
    }
}

/// The deletion ends after restarts at any moment, and not before the last account is gone, which
/// `World::check` verifies.
#[test]
fn a_deletion_outlives_restarts_of_the_agent_and_of_the_leader() {
    let mut held = 0;
    for rounds in 0..9 {
        for late in 0..3 {
            for leader_too in [false, true] {
                let mut world = serving();
                world.delete_workload("web");
                turns(&mut world, rounds);
                world.at("n1").restart(late);
                if leader_too {
                    world.new_leader();
                }
                for _ in 0..20 {
                    world.plan_out();
                    let machine = world.at("n1");
                    held += usize::from(machine.users.is_empty() && !machine.accounts.is_empty());
                    world.agents();
                }
                assert!(is_gone(&mut world, "web"), "{rounds} {late} {leader_too}");
                assert!(world.snapshot().indexes.is_empty());
                assert_eq!(records(&mut world, "n1"), Vec::<String>::new());
                assert_eq!(users(&mut world, "n1"), Vec::<u32>::new());
                assert!(world.at("n1").accounts.is_empty());
            }
        }
    }
    assert!(
        held > 0,
        "some reports said nothing of a user that was left"
    );
}

#[test]
fn an_unconfirmed_report_frees_no_index() {
    let mut world = serving();
    world.delete_workload("web");
    while !world.keys(keys::ALLOCATIONS).is_empty() {
        turns(&mut world, 1);
    }
    // The agent has stored the empty list, but the account still exists.
    assert_eq!(world.at("n1").accounts.len(), 1);
    for _ in 0..3 {
        world.at("n1").restart(1);
        world.plan_out();
        let report = world.at("n1").heard.clone().unwrap();
        assert_eq!((report.desired_revision, report.user_indexes.len()), (0, 0));
        assert_eq!(users(&mut world, "n1"), [0]);
        let status = world.status("web");
        assert_eq!(status.phase, WorkloadPhase::Deleting);
        assert_eq!(
            status.conditions[0].message,
            "its user is still to be confirmed as removed on n1"
        );
    }
    world.settle();
    assert!(is_gone(&mut world, "web"));
}

/// The leader's memory still has reports from its earlier leadership.
#[test]
fn a_leader_that_leads_again_does_not_decide_by_old_reports() {
    let mut world = World::with_machines(1);
    world.settle();
    let old = world.at("n1").heard.clone();
    assert!(old.as_ref().unwrap().user_indexes.is_empty());
    world.replicas("web", 2);
    world.settle();
    world.delete_workload("web");
    while !world.keys(keys::ALLOCATIONS).is_empty() {
        turns(&mut world, 1);
    }
    world.new_leader();
    let machine = world.at("n1");
    (machine.heard, machine.age) = (old, Duration::from_secs(60));
    machine.speaks = false;
    world.plan_out();
    assert_eq!(users(&mut world, "n1"), [0]);
    assert!(!is_gone(&mut world, "web"));
    world.at("n1").speaks = true;
    world.settle();
    assert!(is_gone(&mut world, "web"));
}

#[test]
fn a_machine_that_never_comes_back_holds_what_it_may_still_have() {
    let mut held = 0;
    for rounds in 0..5 {
        let mut world = World::with_machines(2);
        world.replicas("web", 4);
        world.settle();
        world.delete_workload("web");
        turns(&mut world, rounds);
        let machine = world.at("n2");
        (machine.speaks, machine.obeys) = (false, false);
        world.pass(Duration::from_secs(3600));
        world.settle();
        assert_eq!(world.keys("/kat/dns/default/"), Vec::<String>::new());
        world.new_leader();
        world.pass(Duration::from_secs(3600));
        world.settle();
        if is_gone(&mut world, "web") {
            assert!(world.at("n2").accounts.is_empty());
            continue;
        }
        held += 1;
        let status = world.status("web");
        assert_eq!(status.phase, WorkloadPhase::Deleting);
        let message = &status.conditions[0].message;
        assert!(message.ends_with(" on n2"), "{message}");
        assert!(world.snapshot().indexes.contains_key(&0));
        world.remove_machine("n2");
        world.settle();
        assert!(is_gone(&mut world, "web"), "a machine that is gone");
        assert!(world.snapshot().indexes.is_empty());
    }
    assert!(held > 2, "{held}");
}

#[test]
fn a_machine_that_comes_back_late_finishes_the_deletion() {
    for (rounds, late) in (0..5).flat_map(|rounds| (0..3).map(move |late| (rounds, late))) {
        let mut world = World::with_machines(2);
        world.replicas("web", 4);
        world.settle();
        world.delete_workload("web");
        turns(&mut world, rounds);
        let machine = world.at("n2");
        (machine.speaks, machine.obeys) = (false, false);
        world.pass(Duration::from_secs(3600));
        world.settle();
        world.new_leader();
        world.settle();
        let machine = world.at("n2");
        (machine.speaks, machine.obeys) = (true, true);
        machine.restart(late);
        world.settle();
        assert!(is_gone(&mut world, "web"));
        assert!(world.machines.values().all(|one| one.accounts.is_empty()));
    }
}

/// The planner never moves an instance, but its records follow the assignment.
#[test]
fn an_instance_that_is_assigned_elsewhere_leaves_the_record() {
    let mut world = World::with_machines(2);
    world.replicas("web", 2);
    world.settle();
    let wanted = world.wanted("web");
    let (id, _, before) = wanted.iter().find(|(_, node, _)| node == "n1").unwrap();
    let after = Assignment {
        address: "10.100.2.77".parse().unwrap(),
        ..Assignment::clone(before)
    };
    let allocation = Allocation {
        schema: 1,
        node: "n2".to_owned(),
        address: after.address,
        namespace: NAMESPACE.to_owned(),
        workload: "web".to_owned(),
        released: false,
    };
    let snapshot = world.snapshot();
    let meta = |node: &str, count: usize| {
        let present = &snapshot.nodes[node].desired.value;
        let meta = DesiredMeta {
            revision: present.revision + 1,
            count,
            ..present.clone()
        };
        let value = serde_json::to_vec(&meta).unwrap();
        WriteOperation::Put(keys::desired_meta(node), value)
    };
    let put = |key: String, value: Vec<u8>| WriteOperation::Put(key, value);
    let operations = [
        WriteOperation::Delete(keys::desired_instance("n1", id)),
        put(
            keys::desired_instance("n2", id),
            serde_json::to_vec(&after).unwrap(),
        ),
        put(
            keys::allocation(id),
            serde_json::to_vec(&allocation).unwrap(),
        ),
        meta("n1", 0),
        meta("n2", 2),
    ];
    world.apply(&operations);
    world.ids.remove(id);
    world.plan_out();
    let report = world.at("n1").heard.clone().unwrap();
    assert_eq!(report.workload_instances.len(), 1, "n1 still speaks of it");
    assert_eq!(
        records(&mut world, "n1"),
        Vec::<String>::new(),
        "what a machine says of another's instance is not kept"
    );
    world.at("n1").restart(2);
    world.plan_out();
    assert_eq!(records(&mut world, "n1"), Vec::<String>::new());
    world.settle();
    assert_eq!(records(&mut world, "n2").len(), 2);
    assert_eq!(users(&mut world, "n1"), Vec::<u32>::new());
    assert!(
        world
            .keys("/kat/dns/default/")
            .contains(&format!("/kat/dns/default/web/A/{id}=10.100.2.77"))
    );
}

#[test]
fn a_workload_that_runs_elsewhere_keeps_its_index_and_leaves_the_first_machine() {
    let mut world = World::with_machines(2);
    world.replicas("web", 2);
    world.settle();
    assert_eq!(
        (users(&mut world, "n1"), users(&mut world, "n2")),
        (vec![0], vec![0])
    );
    world.replicas("web", 1);
    turns(&mut world, 3);
    for machine in ["n1", "n2"] {
        world.at(machine).restart(1);
    }
    world.settle_and_run();
    let here = world.wanted("web")[0].1.clone();
    for machine in ["n1", "n2"] {
        let expected: &[u32] = if machine == here { &[0] } else { &[] };
        assert_eq!(users(&mut world, machine), expected, "{machine}");
    }
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}
