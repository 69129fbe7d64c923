//! Machines whose overlay is dead while they report.

use super::*;
use crate::placement::service_addresses::{parts, serve};
use kat_types::{
    api::{Condition, OverlayStatus},
    services::BackendState,
};

const AFTER: u32 = 15;
const PAUSE: Duration = Duration::from_secs(30);

/// Machines of which `n1` leads, with a service of one replica on each.
fn world(machines: usize) -> World {
    let mut world = World::with_machines(machines);
    let text = |key: &str, value: &str| WriteOperation::Put(key.into(), value.into());
    world.apply(&[
        text(keys::LEADER_ENDPOINT, "192.0.2.1:9115"),
        text(keys::LEADER_NAME, "n1"),
    ]);
    serve(&mut world, "web", |_| {});
    world.replicas("web", machines.try_into().unwrap());
    world.roll_out();
    assert_eq!(served(&mut world).len(), machines, "one on each machine");
    world
}

/// The machines with an instance that serves.
fn served(world: &mut World) -> BTreeSet<String> {
    let parts = parts(world, "web");
    let serves = |address| parts.get(&address) == Some(&BackendState::Serving);
    let wanted = world.wanted("web").into_iter();
    let serving = wanted.filter(|(_, _, assignment)| serves(assignment.address));
    serving.map(|(_, node, _)| node).collect()
}

/// The machines say that they have had no answer from `silent` for so long.
fn say(world: &mut World, machines: &[&str], silent: &str, seconds: u32) {
    for machine in machines {
        let unanswered = &mut world.at(machine).unanswered;
        unanswered.insert(silent.to_owned(), seconds);
    }
}

fn unsay(world: &mut World) {
    for machine in world.machines.values_mut() {
        machine.unanswered.clear();
    }
}

fn condition(world: &mut World, machine: &str) -> Option<Condition> {
    let status = world.snapshot().nodes[machine].status.clone().unwrap();
    let mut conditions = status.value.conditions.into_iter();
    conditions.find(|one| one.kind == "OverlayReachable")
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_machine_that_most_others_do_not_reach_is_sent_no_callers_and_keeps_its_instances() {
    let mut world = world(3);
    let before = world.wanted("web");
    say(&mut world, &["n1", "n2"], "n3", AFTER);
    world.settle();
    assert_eq!(served(&mut world), names(&["n1", "n2"]));
    let shown = condition(&mut world, "n3").unwrap();
    assert_eq!(
        (shown.status, shown.reason.as_str()),
        (false, "OverlayDown")
    );
    assert!(shown.message.contains("n1, n2"), "{}", shown.message);
    assert_eq!(world.events("OverlayDown").len(), 1);
    for _ in 0..20 {
        world.pass(Duration::from_secs(10));
        world.settle();
    }
    let ids = |wanted: &[(String, String, Arc<Assignment>)]| -> BTreeSet<String> {
        wanted.iter().map(|(id, _, _)| id.clone()).collect()
    };
    assert_eq!(
        ids(&world.wanted("web")),
        ids(&before),
        "nothing is replaced"
    );
    assert_eq!(condition(&mut world, "n3"), Some(shown), "written once");
    unsay(&mut world);
    world.settle();
    assert_eq!(served(&mut world), names(&["n1", "n2", "n3"]));
    assert_eq!(condition(&mut world, "n3"), None);
    assert_eq!(world.events("OverlayUp").len(), 1);
}

#[test]
fn new_instances_go_to_a_judged_machine_only_where_no_other_takes_them() {
    let mut world = world(3);
    say(&mut world, &["n1", "n2"], "n3", AFTER);
    world.settle();
    world.replicas("late", 4);
    world.settle();
    let nodes = |world: &mut World, name: &str| -> BTreeSet<String> {
        let wanted = world.wanted(name).into_iter();
        wanted.map(|(_, node, _)| node).collect()
    };
    assert_eq!(nodes(&mut world, "late"), names(&["n1", "n2"]));
    world.apply_workload("pinned", |file| {
        file["spec"]["nodeSelector"] = json!({"name": "n3"});
    });
    world.settle();
    assert_eq!(nodes(&mut world, "pinned"), names(&["n3"]));
    unsay(&mut world);
    world.pass(PAUSE * 2);
    world.settle();
    world.replicas("late", 9);
    world.settle();
    assert_eq!(nodes(&mut world, "late"), names(&["n1", "n2", "n3"]));
}

#[test]
fn neither_the_leader_alone_nor_the_others_without_it_judge_a_machine() {
    for (machines, say_so, seconds) in [
        (3, vec!["n1"], AFTER),
        (3, vec!["n2"], AFTER),
        (3, vec!["n1", "n2"], AFTER - 1),
        (5, vec!["n1", "n2"], AFTER),
        (5, vec!["n2", "n3", "n4"], AFTER),
        // With two machines nobody says which one is at fault.
        (2, vec!["n1"], AFTER),
    ] {
        let mut world = world(machines);
        let silent = format!("n{machines}");
        say(&mut world, &say_so, &silent, seconds);
        world.settle();
        assert_eq!(served(&mut world).len(), machines, "{say_so:?}");
        assert_eq!(condition(&mut world, &silent), None, "{say_so:?}");
    }
}

/// The reports of the others are from while it was off.
#[test]
fn a_machine_that_was_off_is_judged_only_by_the_time_since_its_return() {
    let mut world = world(3);
    say(&mut world, &["n1", "n2"], "n3", 100);
    for (steady, down) in [(0, false), (AFTER - 1, false), (AFTER, true)] {
        world.at("n3").steady = Duration::from_secs(u64::from(steady));
        world.settle();
        assert_eq!(condition(&mut world, "n3").is_some(), down, "{steady} s");
    }
}

#[test]
fn a_judged_machine_whose_agent_restarts_stays_judged_until_the_others_reach_it() {
    let mut world = world(3);
    say(&mut world, &["n1", "n2"], "n3", AFTER);
    world.settle();
    let judged = condition(&mut world, "n3");
    assert!(judged.is_some());
    world.pass(PAUSE * 2);
    world.at("n3").steady = Duration::ZERO;
    world.settle();
    assert_eq!(condition(&mut world, "n3"), judged);
    unsay(&mut world);
    world.settle();
    assert_eq!(condition(&mut world, "n3"), None);
}

#[test]
fn a_machine_that_has_just_gone_off_is_not_said_to_report() {
    let mut world = world(3);
    world.at("n3").speaks = false;
    world.pass(Duration::from_secs(u64::from(AFTER)));
    say(&mut world, &["n1", "n2"], "n3", AFTER);
    world.settle();
    assert_eq!(condition(&mut world, "n3"), None);
    // The control: the same of a machine that has reported meanwhile.
    world.at("n3").speaks = true;
    world.settle();
    assert!(condition(&mut world, "n3").is_some());
}

/// The machine at fault reaches nobody, and says so of all the others.
#[test]
fn a_machine_that_reaches_nobody_takes_no_other_one_away() {
    let mut world = world(3);
    say(&mut world, &["n1", "n2"], "n3", AFTER);
    say(&mut world, &["n3"], "n1", AFTER);
    say(&mut world, &["n3"], "n2", AFTER);
    for _ in 0..10 {
        world.settle();
        assert_eq!(served(&mut world), names(&["n1", "n2"]));
        world.pass(Duration::from_secs(10));
    }
    // The leader's own overlay is dead: the others do not agree with it.
    unsay(&mut world);
    world.settle();
    say(&mut world, &["n1"], "n2", AFTER);
    say(&mut world, &["n1"], "n3", AFTER);
    say(&mut world, &["n2", "n3"], "n1", AFTER);
    world.settle();
    assert_eq!(served(&mut world), names(&["n1", "n2", "n3"]));
}

#[test]
fn the_last_instance_of_a_workload_stays() {
    let mut world = world(3);
    world.replicas("web", 1);
    world.roll_out();
    let [(_, only, _)] = &world.wanted("web")[..] else {
        panic!("one instance")
    };
    let only = only.clone();
    if only == "n1" {
        world.apply(&[
            WriteOperation::Put(keys::LEADER_ENDPOINT.into(), "192.0.2.2:9115".into()),
            WriteOperation::Put(keys::LEADER_NAME.into(), "n2".into()),
        ]);
    }
    let others: Vec<&str> = ["n1", "n2", "n3"]
        .into_iter()
        .filter(|one| *one != only)
        .collect();
    say(&mut world, &others, &only, AFTER);
    world.settle();
    assert!(condition(&mut world, &only).is_some());
    assert_eq!(served(&mut world), names(&[&only]));
}

#[test]
fn machines_are_judged_one_by_one_and_each_judgement_lasts() {
    let mut world = world(6);
    for silent in ["n5", "n6"] {
        say(&mut world, &["n1", "n2", "n3", "n4"], silent, AFTER);
    }
    world.settle();
    assert_eq!(served(&mut world).len(), 5);
    world.pass(PAUSE - Duration::from_secs(1));
    world.settle();
    assert_eq!(served(&mut world).len(), 5);
    world.pass(Duration::from_secs(1));
    world.settle();
    assert_eq!(served(&mut world).len(), 4);
    // A machine that answers now and then is not taken back each time.
    unsay(&mut world);
    world.settle();
    assert_eq!(served(&mut world).len(), 5);
    world.pass(PAUSE);
    world.settle();
    assert_eq!(served(&mut world).len(), 6);
}

#[test]
fn one_forged_report_takes_no_other_machine_away_and_a_stopped_data_path_says_nothing() {
    let mut world = world(3);
    for silent in ["n1", "n2"] {
        say(&mut world, &["n3"], silent, 1_000_000);
    }
    world.settle();
    assert_eq!(served(&mut world).len(), 3);
    // What a machine says of itself in this condition does not count either.
    let forged = Condition {
        kind: "OverlayReachable".to_owned(),
        reason: "OverlayDown".to_owned(),
        ..Condition::default()
    };
    world.at("n3").conditions.push(forged);
    world.settle();
    assert_eq!(condition(&mut world, "n3"), None);
    unsay(&mut world);
    say(&mut world, &["n1", "n2"], "n3", AFTER);
    world.at("n2").overlay_status = OverlayStatus::Down;
    world.settle();
    assert_eq!(served(&mut world).len(), 3);
}
