//! Moves that are interrupted, or meet an unexpected state.

use super::*;

/// Advances until the move makes the copy the volume's data.
fn until_placing(world: &mut World) {
    for _ in 0..20 {
        let moving = record(world, VOLUME).moving;
        if moving.is_some_and(|moving| moving.placing) {
            return;
        }
        world.step();
        if record(world, VOLUME).moving.is_some_and(|one| one.placing) {
            return;
        }
        world.agents();
    }
    panic!("it is not put in its place");
}

#[test]
fn a_folder_that_comes_while_the_copy_is_to_be_placed_stays() {
    let mut world = world();
    database(&mut world, |_| {});
    runs(&mut world);
    let from = place(&mut world);
    let (to, _) = elsewhere(&from);
    ask(&mut world, VOLUME, to, "one");
    until_placing(&mut world);
    world.at(to).data.insert(VOLUME.to_owned());
    world.agents();
    cancel(&mut world);
    runs(&mut world);
    assert_eq!(place(&mut world), from);
    ask(&mut world, VOLUME, to, "two");
    world.roll_out();
    let said = world.status("db").conditions[0].message.clone();
    assert!(said.contains("a folder is there already"), "{said}");
    cancel(&mut world);
    world.pass(Duration::from_secs(25 * 3600));
    runs(&mut world);
    assert!(world.at(to).data.contains(VOLUME));
    assert_eq!(record(&mut world, VOLUME).kept, []);
}

#[test]
fn a_copy_that_was_placed_unseen_goes_after_a_day_or_is_replaced() {
    for retried in [false, true] {
        let mut world = world();
        database(&mut world, |_| {});
        runs(&mut world);
        let from = place(&mut world);
        let (to, _) = elsewhere(&from);
        ask(&mut world, VOLUME, to, "one");
        until_placing(&mut world);
        world.at(to).speaks = false;
        world.agents();
        assert!(world.at(to).data.contains(VOLUME));
        cancel(&mut world);
        world.at(to).speaks = true;
        runs(&mut world);
        assert_eq!(place(&mut world), from);
        if retried {
            ask(&mut world, VOLUME, to, "two");
            runs(&mut world);
            assert_eq!(place(&mut world), to);
        }
        world.pass(Duration::from_secs(25 * 3600));
        runs(&mut world);
        assert_eq!(world.at(to).data.contains(VOLUME), retried);
        assert_eq!(world.at(&from).data.contains(VOLUME), !retried);
    }
}

#[test]
fn what_an_older_leader_started_meanwhile_keeps_what_it_writes() {
    let mut world = world();
    database(&mut world, |_| {});
    runs(&mut world);
    let from = place(&mut world);
    let (to, _) = elsewhere(&from);
    ask(&mut world, VOLUME, to, "one");
    // The move is desired and the copy complete, but the leader has not seen that yet.
    for _ in 0..20 {
        if copies(&world) > 0 {
            break;
        }
        world.step();
        world.agents();
    }
    assert_eq!(copies(&world), 1);
    let before = record(&mut world, VOLUME);
    assert!(!before.moving.as_ref().unwrap().placing);
    // An older leader knows no moves, but preserves unknown keys.
    let moves = world.snapshot().state.moves;
    let unmoved = VolumeRecord {
        moving: None,
        ..before.clone()
    };
    let key = VolumeKey::parse(VOLUME).unwrap();
    write(&mut world, &key, &unmoved);
    for _ in 0..20 {
        if !world.wanted("db").is_empty() {
            break;
        }
        world.step();
    }
    assert_eq!(place(&mut world), from);
    world.agents();
    write(&mut world, &key, &before);
    for (node, all) in &moves {
        let wish = &all[&key];
        world.write(keys::desired_move(node, VOLUME), wish);
    }
    world.agents();
    runs(&mut world);
    assert_eq!(place(&mut world), from);
    assert_eq!(record(&mut world, VOLUME), unmoved);
    assert!(world.snapshot().state.moves.is_empty());
    assert_eq!(copies(&world), 0);
    assert_eq!(world.events("VolumeMoved").len(), 0);
}

#[test]
fn a_move_ends_where_both_machines_have_left() {
    let mut world = world();
    database(&mut world, |_| {});
    runs(&mut world);
    let from = place(&mut world);
    let (to, _) = elsewhere(&from);
    ask(&mut world, VOLUME, to, "one");
    until_placing(&mut world);
    world.remove_machine(&from);
    world.remove_machine(to);
    world.roll_out();
    let now = record(&mut world, VOLUME);
    assert_eq!((now.node.as_deref(), now.moving), (Some(to), None));
    assert!(world.snapshot().state.moves.is_empty());
}

#[test]
fn removal_that_was_asked_for_goes_on_beside_a_move() {
    let mut world = world();
    database(&mut world, |_| {});
    runs(&mut world);
    let from = place(&mut world);
    let (to, third) = elsewhere(&from);
    ask(&mut world, VOLUME, to, "one");
    runs(&mut world);
    world.at(&from).obeys = false;
    world.pass(Duration::from_secs(25 * 3600));
    world.roll_out();
    let wish = world.snapshot().state.removals[&from][&VolumeKey::parse(VOLUME).unwrap()];
    assert!(wish.copy && !wish.unsure);
    ask(&mut world, VOLUME, third, "two");
    world.roll_out();
    let removals = world.snapshot().state.removals;
    assert_eq!(removals[&from].values().next(), Some(&wish));
}

#[test]
fn a_drain_beside_a_move_says_what_it_waits_for() {
    let mut world = world();
    let two = |file: &mut serde_json::Value| {
        file["spec"]["replicas"] = json!(2);
        file["spec"]["volumes"] =
            json!([{"name": "data", "simpleClusterStorage": {}, "perReplica": true}]);
    };
    database(&mut world, two);
    runs(&mut world);
    let placed = world.wanted("db");
    let node_of = |slot: u32| {
        let mut placed = placed.iter();
        let (_, node, _) = placed.find(|(.., one)| one.slot == slot).unwrap();
        node.clone()
    };
    let (first, other) = (node_of(0), node_of(1));
    let (a, b) = elsewhere(&first);
    let to = if a == other { b } else { a };
    world.at(to).carrying.full = true;
    ask(&mut world, "default/db/data.0", to, "one");
    world.roll_out();
    world.drain(&other, true);
    world.roll_out();
    let conditions = world.status("db").conditions;
    let blocked = conditions.iter().find(|one| one.kind == "DrainBlocked");
    let said = &blocked.unwrap().message;
    assert!(said.contains("is on its way"), "{said}");
}

#[test]
fn a_machine_without_room_for_what_moves_is_told() {
    let mut world = world();
    let large = |file: &mut serde_json::Value| {
        file["spec"]["replicas"] = json!(2);
        file["spec"]["volumes"] =
            json!([{"name": "data", "simpleClusterStorage": {}, "perReplica": true}]);
        file["spec"]["container"]["resources"] = json!({"requests": {"memory": "6Gi"}});
    };
    database(&mut world, large);
    runs(&mut world);
    let placed = world.wanted("db");
    let node_of = |slot: u32| {
        let mut placed = placed.iter();
        let (_, node, _) = placed.find(|(.., one)| one.slot == slot).unwrap();
        node.clone()
    };
    let (first, other) = (node_of(0), node_of(1));
    let (a, b) = elsewhere(&first);
    let free = if a == other { b } else { a };
    let key = VolumeKey::parse("default/db/data.0").unwrap();
    let (snapshot, now) = (world.snapshot(), world.now);
    assert_eq!(why_it_does_not_fit(&snapshot, &key, free, now), None);
    let why = why_it_does_not_fit(&snapshot, &key, &other, now).unwrap();
    assert!(why.contains("memory"), "{why}");
}
