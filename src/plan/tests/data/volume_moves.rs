//! Moves of volumes: at any time one machine has the data, each start has all of it, and a failed
//! move leaves the data on its first machine.

mod interrupted;

use super::*;
use kat_types::api::WorkloadStatus;

const VOLUME: &str = "default/db/data";

fn world() -> World {
    let mut world = World::with_machines(3);
    for machine in world.machines.values_mut() {
        machine.schema = ASSIGNMENT_SCHEMA;
    }
    world
}

fn database(world: &mut World, change: impl FnOnce(&mut serde_json::Value)) {
    world.apply_workload("db", |file| {
        file["spec"]["volumes"] = json!([{"name": "data", "simpleClusterStorage": {}}]);
        file["spec"]["container"]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
        change(file);
    });
}

fn record(world: &mut World, volume: &str) -> VolumeRecord {
    let key = VolumeKey::parse(volume).unwrap();
    world.snapshot().volumes[&key].value.clone()
}

fn write(world: &mut World, key: &VolumeKey, record: &VolumeRecord) {
    world.write(keys::volume(&key.to_string()), record);
}

/// Requests a move as the API does.
fn ask(world: &mut World, volume: &str, to: &str, id: &str) {
    let key = VolumeKey::parse(volume).unwrap();
    let snapshot = world.snapshot();
    for key in moves_together(&snapshot, &key) {
        let record = snapshot.volumes[&key].value.clone();
        let moving = VolumeMove {
            id: id.to_owned(),
            from: record.node.clone().unwrap(),
            to: to.to_owned(),
            asked: world.now,
            placing: false,
            replaced: None,
        };
        let record = VolumeRecord {
            moving: Some(moving),
            ..record
        };
        write(world, &key, &record);
    }
}

fn cancel(world: &mut World) {
    let now = world.now;
    let snapshot = world.snapshot();
    for (key, stored) in &snapshot.volumes {
        let to = stored.value.moving.as_ref().map(|moving| &moving.to);
        let taker = to.and_then(|to| snapshot.nodes.get(to)?.status.as_ref());
        let taker = taker.map(|status| &status.value);
        let stopped = stopped_move(key, &stored.value, taker, now);
        write(world, key, &stopped);
    }
}

fn place(world: &mut World) -> String {
    world.wanted("db").remove(0).1
}

fn elsewhere(node: &str) -> (&'static str, &'static str) {
    match node {
        "n1" => ("n2", "n3"),
        "n2" => ("n3", "n1"),
        _ => ("n1", "n2"),
    }
}

fn runs(world: &mut World) {
    world.roll_out();
    let status: WorkloadStatus = world.status("db");
    assert_eq!(status.phase, WorkloadPhase::Running, "{status:?}");
}

fn copies(world: &World) -> usize {
    world
        .machines
        .values()
        .map(|one| one.carrying.copies.len())
        .sum()
}

#[test]
fn data_moves_and_its_old_copy_is_kept_for_a_day() {
    let mut world = world();
    database(&mut world, |_| {});
    runs(&mut world);
    let from = place(&mut world);
    let (to, _) = elsewhere(&from);
    ask(&mut world, VOLUME, to, "one");
    world.plan_out();
    assert!(world.wanted("db").is_empty(), "it stops first");
    let status = world.status("db");
    assert_eq!(status.conditions[0].reason, "VolumeMoving", "{status:?}");
    assert!(world.snapshot().moves.is_empty(), "it may still write");
    runs(&mut world);
    assert_eq!(place(&mut world), to);
    let kept = record(&mut world, VOLUME);
    assert_eq!((kept.node.as_deref(), &kept.moving), (Some(to), &None));
    assert_eq!(kept.kept.len(), 1);
    assert_eq!(kept.kept[0].node, from);
    assert!(world.snapshot().moves.is_empty());
    assert_eq!(copies(&world), 0);
    assert_eq!(world.events("VolumeMoved").len(), 1);
    // The old copy is removed after a day, unless the new machine does not report.
    world.pass(Duration::from_secs(23 * 3600));
    runs(&mut world);
    assert!(world.at(&from).data.contains(VOLUME));
    world.at(to).speaks = false;
    world.pass(Duration::from_secs(2 * 3600));
    world.settle();
    assert!(world.at(&from).data.contains(VOLUME));
    world.at(to).speaks = true;
    runs(&mut world);
    assert!(!world.at(&from).data.contains(VOLUME));
    assert!(world.at(to).data.contains(VOLUME));
    assert_eq!(record(&mut world, VOLUME).kept, []);
    assert!(world.snapshot().removals.is_empty());
}

#[test]
fn a_volume_moves_back_over_its_kept_copy_but_over_no_unknown_folder() {
    let mut world = world();
    database(&mut world, |_| {});
    runs(&mut world);
    let from = place(&mut world);
    let (to, third) = elsewhere(&from);
    for (number, node) in [to, &from, third, &from, to].into_iter().enumerate() {
        ask(&mut world, VOLUME, node, &number.to_string());
        runs(&mut world);
        assert_eq!(place(&mut world), node);
    }
    let kept: BTreeSet<String> = record(&mut world, VOLUME)
        .kept
        .into_iter()
        .map(|copy| copy.node)
        .collect();
    assert_eq!(kept, BTreeSet::from([from.clone(), third.to_owned()]));
    // KAT does not know the origin of this folder.
    world.pass(Duration::from_secs(25 * 3600));
    runs(&mut world);
    world.at(&from).data.insert(VOLUME.to_owned());
    ask(&mut world, VOLUME, &from, "last");
    world.roll_out();
    let said = world.status("db").conditions[0].message.clone();
    assert!(said.contains("a folder is there already"), "{said}");
    let asked = record(&mut world, VOLUME);
    assert_eq!(asked.node.as_deref(), Some(to), "it is not the data yet");
    cancel(&mut world);
    runs(&mut world);
    assert_eq!(place(&mut world), to);
    // The folder stays after another attempt and after a day.
    ask(&mut world, VOLUME, &from, "again");
    world.roll_out();
    let said = world.status("db").conditions[0].message.clone();
    assert!(said.contains("a folder is there already"), "{said}");
    cancel(&mut world);
    world.pass(Duration::from_secs(25 * 3600));
    runs(&mut world);
    assert_eq!(place(&mut world), to);
    assert!(world.at(&from).data.contains(VOLUME));
    assert!(world.snapshot().removals.is_empty());
}

#[test]
fn a_full_disk_is_told_and_taking_it_back_starts_it_again() {
    let mut world = world();
    database(&mut world, |_| {});
    runs(&mut world);
    let from = place(&mut world);
    let (to, _) = elsewhere(&from);
    world.at(to).carrying.full = true;
    ask(&mut world, VOLUME, to, "one");
    world.roll_out();
    let condition = world.status("db").conditions.remove(0);
    assert_eq!(condition.reason, "VolumeMoveFailing");
    assert!(
        condition
            .message
            .contains("no space left; it is tried again"),
        "{condition:?}"
    );
    assert_eq!(world.events("VolumeMoveFailed").len(), 1);
    cancel(&mut world);
    runs(&mut world);
    assert_eq!(place(&mut world), from);
    world.at(to).carrying.full = false;
    ask(&mut world, VOLUME, to, "two");
    runs(&mut world);
    assert_eq!(place(&mut world), to);
}

/// Calls `happens` after 0 to 13 steps of a move, and checks that the move ends.
fn after_each_step(happens: impl Fn(&mut World, &str, &str)) {
    for steps in 0..14 {
        let mut world = world();
        database(&mut world, |_| {});
        runs(&mut world);
        let from = place(&mut world);
        let (to, _) = elsewhere(&from);
        ask(&mut world, VOLUME, to, "one");
        for step in 0..steps {
            match step % 2 {
                0 => drop(world.step()),
                _ => world.agents(),
            }
        }
        happens(&mut world, &from, to);
        runs(&mut world);
        assert_eq!(copies(&world), 0, "after {steps} steps");
        assert!(world.snapshot().moves.is_empty(), "after {steps} steps");
        assert_eq!(
            record(&mut world, VOLUME).moving,
            None,
            "after {steps} steps"
        );
    }
}

#[test]
fn it_may_be_taken_back_at_any_time() {
    after_each_step(|world, _, _| cancel(world));
}

#[test]
fn the_machine_that_takes_it_may_be_drained_or_leave_at_any_time() {
    // After the move, the target machine has the only data.
    let over = |world: &mut World, to: &str| {
        let record = record(world, VOLUME);
        record.moving.is_none() && record.node.as_deref() == Some(to)
    };
    after_each_step(|world, _, to| {
        if !over(world, to) {
            world.drain(to, true);
        }
    });
    after_each_step(|world, _, to| {
        if !over(world, to) {
            world.remove_machine(to);
        }
    });
}

#[test]
fn a_new_leader_and_new_processes_go_on_at_any_time() {
    after_each_step(|world, from, to| {
        world.new_leader();
        for machine in [from, to] {
            world.at(machine).restart(1);
        }
    });
    after_each_step(|world, from, _| {
        world.at(from).restart(0);
        world.new_leader();
    });
}

#[test]
fn machines_that_are_away_for_a_while_hold_it_up_and_no_more() {
    after_each_step(|world, from, to| {
        for machine in [from, to] {
            let at = world.at(machine);
            (at.speaks, at.obeys) = (false, false);
            for _ in 0..5 {
                world.pass(Duration::from_secs(60));
                world.settle();
            }
            let at = world.at(machine);
            (at.speaks, at.obeys) = (true, true);
        }
    });
}

#[test]
fn a_workload_that_changes_or_goes_meanwhile_loses_nothing() {
    after_each_step(|world, _, _| {
        database(world, |file| {
            file["spec"]["source"]["image"] = json!("registry.example/db:2");
        });
    });
    after_each_step(|world, _, _| {
        world.delete_workload("db");
        world.roll_out();
        assert!(world.snapshot().workloads.is_empty());
        database(world, |_| {});
    });
}

#[test]
fn data_that_is_to_go_goes_everywhere() {
    let mut world = world();
    database(&mut world, |_| {});
    runs(&mut world);
    let from = place(&mut world);
    let (to, _) = elsewhere(&from);
    ask(&mut world, VOLUME, to, "one");
    runs(&mut world);
    world.delete_workload("db");
    let key = keys::workload_meta(NAMESPACE, "db");
    world.change(&key, |meta| meta["deletesVolumes"] = json!(true));
    world.roll_out();
    let snapshot = world.snapshot();
    assert!(snapshot.volumes.is_empty() && snapshot.removals.is_empty());
    assert!(snapshot.indexes.is_empty());
    for machine in world.machines.values() {
        assert!(machine.data.is_empty());
    }
}

#[test]
fn replicas_with_data_of_their_own_move_alone_and_take_all_of_theirs_along() {
    let mut world = world();
    let two = |file: &mut serde_json::Value| {
        file["spec"]["replicas"] = json!(2);
        file["spec"]["volumes"] = json!([
            {"name": "data", "simpleClusterStorage": {}, "perReplica": true},
            {"name": "logs", "simpleClusterStorage": {}, "perReplica": true},
        ]);
        file["spec"]["container"]["volumeMounts"] = json!([
            {"name": "data", "mountPath": "/data"},
            {"name": "logs", "mountPath": "/logs"},
        ]);
    };
    database(&mut world, two);
    runs(&mut world);
    let node_of = |world: &mut World, slot: u32| {
        let mut wanted = world.wanted("db").into_iter();
        wanted
            .find(|(.., one)| one.slot == slot)
            .map(|(_, node, _)| node)
    };
    let (first, other) = (node_of(&mut world, 0).unwrap(), node_of(&mut world, 1));
    let third = ["n1", "n2", "n3"];
    let to = third
        .into_iter()
        .find(|node| *node != first && Some(*node) != other.as_deref());
    let to = to.unwrap();
    ask(&mut world, "default/db/data.0", to, "one");
    for _ in 0..20 {
        world.plan_out();
        world.agents();
        assert_eq!(node_of(&mut world, 1), other, "the other serves on");
    }
    runs(&mut world);
    assert_eq!(node_of(&mut world, 0).as_deref(), Some(to));
    for volume in ["default/db/data.0", "default/db/logs.0"] {
        assert_eq!(
            record(&mut world, volume).node.as_deref(),
            Some(to),
            "{volume}"
        );
    }
    assert_eq!(record(&mut world, "default/db/logs.1").node, other);
}

#[test]
fn a_drain_names_the_command_that_helps() {
    let mut world = world();
    database(&mut world, |_| {});
    runs(&mut world);
    let node = place(&mut world);
    world.drain(&node, true);
    world.roll_out();
    let conditions = world.status("db").conditions;
    let blocked = conditions
        .iter()
        .find(|one| one.kind == "DrainBlocked")
        .unwrap();
    let command = "`katcall volume move default/db/data --to NODE` moves it";
    assert!(blocked.message.contains(command), "{}", blocked.message);
    ask(&mut world, VOLUME, elsewhere(&node).0, "one");
    runs(&mut world);
    assert_eq!(place(&mut world), elsewhere(&node).0);
}

/// Random events in random order: at the end the workload runs with all the data that it has
/// written.
#[test]
fn nothing_that_happens_loses_or_doubles_data() {
    for seed in 0u64..120 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut world = world();
        database(&mut world, |_| {});
        runs(&mut world);
        for turn in 0..60 {
            let machine = format!("n{}", random(3) + 1);
            match random(14) {
                0 => world.new_leader(),
                1 => world.at(&machine).restart(u8::try_from(random(3)).unwrap()),
                2 => world.at(&machine).speaks = random(2) == 0,
                3 => world.at(&machine).obeys = random(2) == 0,
                4 => cancel(&mut world),
                5 => {
                    let now = record(&mut world, VOLUME);
                    let goes = world.snapshot().removals.contains_key(&machine);
                    if now.moving.is_none() && now.node.as_ref() != Some(&machine) && !goes {
                        ask(&mut world, VOLUME, &machine, &format!("{seed}-{turn}"));
                    }
                }
                6 => world.drain(&machine, random(3) == 0),
                7 => world.at(&machine).carrying.full = random(3) == 0,
                8 => {
                    let version = random(3);
                    database(&mut world, |file| {
                        file["spec"]["source"]["image"] =
                            json!(format!("registry.example/db:{version}"));
                    });
                }
                9 => world.pass(Duration::from_secs(random(20_000))),
                _ => {}
            }
            match random(3) {
                0 => world.plan_out(),
                1 => drop(world.step()),
                _ => {}
            }
            world.agents();
        }
        for machine in world.machines.values_mut() {
            (machine.speaks, machine.obeys, machine.carrying.full) = (true, true, false);
        }
        for machine in ["n1", "n2", "n3"] {
            world.drain(machine, false);
        }
        world.roll_out();
        world.pass(Duration::from_secs(600));
        runs(&mut world);
        assert_eq!(copies(&world), 0, "seed {seed}");
        world.pass(Duration::from_secs(100_000));
        runs(&mut world);
        let with_data = world
            .machines
            .values()
            .filter(|one| one.data.contains(VOLUME));
        assert_eq!(with_data.count(), 1, "seed {seed}");
    }
}
