//! Volumes stay on their machine: an instance is placed where its data is, after the previous
//! writer has ended, or waits. Every change is checked for two writers to the same data and for
//! starts with an empty folder.

mod shared_storage;

use super::*;

fn machines(count: usize) -> World {
    let mut world = World::with_machines(count);
    for machine in world.machines.values_mut() {
        machine.schema = ASSIGNMENT_SCHEMA;
    }
    world
}

/// A workload that writes to one volume, or to one per replica.
fn database(world: &mut World, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
    world.apply_workload(name, |file| {
        file["spec"]["volumes"] = json!([{"name": "data", "simpleClusterStorage": {}}]);
        file["spec"]["container"]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
        change(file);
    });
}

fn per_replica(file: &mut serde_json::Value, replicas: u32) {
    file["spec"]["replicas"] = json!(replicas);
    file["spec"]["volumes"][0]["perReplica"] = json!(true);
}

/// The machine of each slot's instance, in the order of slots.
fn places(world: &mut World, name: &str) -> Vec<String> {
    let mut wanted = world.wanted(name);
    wanted.sort_by_key(|(.., one)| one.slot);
    wanted.into_iter().map(|(_, node, _)| node).collect()
}

fn record(world: &mut World, volume: &str) -> Option<VolumeRecord> {
    let key = VolumeKey::parse(volume).unwrap();
    let snapshot = world.snapshot();
    snapshot
        .volumes
        .get(&key)
        .map(|stored| stored.value.clone())
}

fn lose(world: &mut World, machine: &str) {
    let at = world.at(machine);
    (at.speaks, at.obeys) = (false, false);
    at.fence();
    let seconds = world.snapshot().cluster.spec.node_loss_timeout_seconds;
    // The time passes in several steps, because reports in between matter too.
    for _ in 0..6 {
        world.pass(Duration::from_secs(seconds.into()));
        world.settle();
    }
}

fn find(world: &mut World, machine: &str) {
    let at = world.at(machine);
    (at.speaks, at.obeys) = (true, true);
    world.roll_out();
}

fn message(world: &mut World, name: &str) -> String {
    let status = world.status(name);
    let conditions = status.conditions.iter();
    conditions
        .map(|one| one.message.as_str())
        .collect::<Vec<_>>()
        .join(" | ")
}

#[test]
fn another_version_comes_to_the_data_when_the_old_one_has_ended() {
    let mut world = machines(3);
    database(&mut world, "db", |_| {});
    world.roll_out();
    let before = places(&mut world, "db");
    let kept = record(&mut world, "default/db/data").unwrap();
    assert_eq!(
        (kept.node.as_deref(), kept.made),
        (Some(before[0].as_str()), true)
    );
    for version in 2..6 {
        database(&mut world, "db", |file| {
            file["spec"]["source"]["image"] = json!(format!("registry.example/db:{version}"));
        });
        let mut least = 1;
        for _ in 0..30 {
            world.plan_out();
            world.agents();
            least = least.min(world.wanted("db").len());
        }
        world.roll_out();
        assert_eq!(least, 0, "the old one ends first");
        assert_eq!(places(&mut world, "db"), before);
        let (.., assignment) = world.wanted("db").remove(0);
        assert_eq!(
            assignment.volumes[0].folder.as_deref(),
            Some("default/db/data")
        );
        assert!(assignment.volumes[0].made && assignment.writes_data());
        assert_eq!(assignment.schema, 4);
    }
}

#[test]
fn a_read_only_instance_starts_beside_the_old_one_on_the_machine_with_the_data() {
    let mut world = machines(3);
    database(&mut world, "db", |file| {
        file["spec"]["container"]["volumeMounts"][0]["readOnly"] = json!(true);
        file["spec"]["replicas"] = json!(3);
    });
    world.roll_out();
    let before = places(&mut world, "db");
    assert_eq!(
        BTreeSet::from_iter(before.iter().cloned()).len(),
        1,
        "{before:?}"
    );
    database(&mut world, "db", |file| {
        file["spec"]["container"]["volumeMounts"][0]["readOnly"] = json!(true);
        file["spec"]["replicas"] = json!(3);
        file["spec"]["source"]["image"] = json!("registry.example/db:2");
    });
    for _ in 0..30 {
        world.plan_out();
        world.agents();
        assert!(world.running("db") >= 3);
    }
    world.roll_out();
    assert_eq!(places(&mut world, "db"), before);
}

#[test]
fn a_lost_machine_is_waited_for_and_nothing_starts_empty_elsewhere() {
    let mut world = machines(3);
    database(&mut world, "db", |_| {});
    world.roll_out();
    let (id, node, _) = world.wanted("db").remove(0);
    lose(&mut world, &node);
    let wanted = world.wanted("db");
    assert_eq!((wanted.len(), &wanted[0].0), (1, &id));
    let said = message(&mut world, "db");
    assert!(
        said.contains("it has data of its own, and waits for its machine"),
        "{said}"
    );
    world.new_leader();
    for _ in 0..5 {
        world.pass(Duration::from_secs(60));
        world.settle();
    }
    assert_eq!(world.wanted("db").len(), 1);
    find(&mut world, &node);
    assert_eq!(world.wanted("db")[0].0, id);
    assert_eq!(world.status("db").phase, WorkloadPhase::Running);
}

#[test]
fn a_machine_on_which_it_never_ran_does_not_hold_it() {
    let mut world = machines(2);
    for machine in world.machines.values_mut() {
        machine.obeys = false;
    }
    database(&mut world, "db", |_| {});
    world.plan_out();
    let (id, node, _) = world.wanted("db").remove(0);
    assert!(!record(&mut world, "default/db/data").unwrap().made);
    let pull = InstanceReport {
        instance_id: id.clone(),
        phase: InstancePhase::Pulling,
        reason: "ImagePullFailed".to_owned(),
        ..InstanceReport::default()
    };
    world.at(&node).instances.insert(id.clone(), pull);
    world.drain(&node, true);
    world.plan_out();
    for machine in world.machines.values_mut() {
        machine.obeys = true;
    }
    world.roll_out();
    let (other, elsewhere, _) = world.wanted("db").remove(0);
    assert!(other != id && elsewhere != node);
    let kept = record(&mut world, "default/db/data").unwrap();
    assert_eq!((kept.node, kept.made), (Some(elsewhere), true));
}

#[test]
fn a_drain_leaves_it_and_says_where_its_data_is() {
    let mut world = machines(2);
    database(&mut world, "db", |_| {});
    world.roll_out();
    let (id, node, _) = world.wanted("db").remove(0);
    world.drain(&node, true);
    world.roll_out();
    assert_eq!(world.wanted("db")[0].0, id);
    let conditions = world.status("db").conditions;
    let blocked = conditions
        .iter()
        .find(|one| one.kind == "DrainBlocked")
        .unwrap();
    let expected = format!("the data of its volumes lies on {node}");
    assert!(blocked.message.contains(&expected), "{}", blocked.message);
    assert_eq!(world.status("db").phase, WorkloadPhase::Running);
}

#[test]
fn a_forced_drain_stops_it_and_it_returns_to_its_data() {
    let mut world = machines(3);
    database(&mut world, "db", |file| per_replica(file, 3));
    world.roll_out();
    let before = places(&mut world, "db");
    let node = before[0].clone();
    world.drain_by_force(&node);
    world.roll_out();
    assert_eq!(world.wanted("db").len(), 2, "nothing with an empty folder");
    let status = world.status("db");
    let why = &status.conditions[0];
    assert_eq!((why.reason.as_str(), why.status), ("Unschedulable", false));
    let expected = format!("the data of its volumes lies on {node}");
    assert!(why.message.contains(&expected), "{}", why.message);
    world.pass(Duration::from_secs(3600));
    world.roll_out();
    assert_eq!(world.wanted("db").len(), 2);
    world.drain(&node, false);
    world.roll_out();
    assert_eq!(places(&mut world, "db"), before);
    assert_eq!(world.status("db").phase, WorkloadPhase::Running);
}

#[test]
fn each_replica_returns_to_its_own_data() {
    let mut world = machines(3);
    database(&mut world, "db", |file| per_replica(file, 3));
    world.roll_out();
    let before = places(&mut world, "db");
    assert_eq!(
        BTreeSet::from_iter(before.iter().cloned()).len(),
        3,
        "{before:?}"
    );
    for count in [1, 3] {
        database(&mut world, "db", |file| per_replica(file, count));
        world.roll_out();
    }
    assert_eq!(places(&mut world, "db"), before);
    database(&mut world, "db", |file| {
        per_replica(file, 3);
        file["spec"]["source"]["image"] = json!("registry.example/db:2");
    });
    for _ in 0..60 {
        world.plan_out();
        world.agents();
        assert!(world.wanted("db").len() >= 2, "one after the other");
        world.pass(Duration::from_secs(1));
    }
    world.roll_out();
    assert_eq!(places(&mut world, "db"), before);
    let volumes: Vec<String> = world
        .snapshot()
        .volumes
        .keys()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        volumes,
        [
            "default/db/data.0",
            "default/db/data.1",
            "default/db/data.2"
        ]
    );
}

#[test]
fn data_outlives_its_workload_and_is_found_again_by_its_name() {
    let mut world = machines(3);
    database(&mut world, "db", |_| {});
    world.roll_out();
    let before = places(&mut world, "db");
    world.delete_workload("db");
    world.roll_out();
    assert!(world.snapshot().workloads.is_empty());
    let kept = record(&mut world, "default/db/data").unwrap();
    assert!(world.at(&before[0]).data.contains("default/db/data"));
    // The user index stays reserved for the data.
    world.replicas("web", 1);
    world.roll_out();
    let snapshot = world.snapshot();
    let web = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "web")];
    assert_ne!(web.meta.value.index, kept.index);
    database(&mut world, "db", |_| {});
    world.roll_out();
    assert_eq!(places(&mut world, "db"), before);
    let (.., assignment) = world.wanted("db").remove(0);
    assert!(assignment.volumes[0].made);
    assert_eq!(assignment.user.index, kept.index);
}

/// Checks that no machine and no key has anything left of `default/db/data`.
fn is_forgotten(world: &mut World) {
    assert_eq!(record(world, "default/db/data"), None);
    assert!(
        world
            .machines
            .values()
            .all(|machine| machine.data.is_empty())
    );
    let left = world.keys(keys::ROOT).into_iter();
    let left: Vec<_> = left
        .filter(|key| key.contains("/db/") && !key.starts_with(keys::EVENTS))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    assert!(world.snapshot().indexes.is_empty());
}

#[test]
fn data_goes_with_its_workload_where_that_is_asked_for() {
    for reclaim in [true, false] {
        let mut world = machines(2);
        database(&mut world, "db", |_| {});
        world.roll_out();
        if reclaim {
            // `reclaim` is not part of the template, so the instance is not replaced.
            let id = world.wanted("db").remove(0).0;
            let key = keys::workload_meta(NAMESPACE, "db");
            let hash = world.snapshot().workloads[&WorkloadKey::new(NAMESPACE, "db")]
                .meta
                .value
                .template_hash
                .clone();
            database(&mut world, "db", |file| {
                file["spec"]["volumes"][0]["reclaim"] = json!("Delete")
            });
            world.change(&key, |meta| meta["templateHash"] = json!(hash));
            world.roll_out();
            assert_eq!(world.wanted("db")[0].0, id);
            world.delete_workload("db");
        } else {
            world.delete_workload("db");
            let key = keys::workload_meta(NAMESPACE, "db");
            world.change(&key, |meta| meta["deletesVolumes"] = json!(true));
        }
        world.roll_out();
        is_forgotten(&mut world);
    }
}

#[test]
fn data_is_not_removed_before_who_writes_to_it_has_ended() {
    let mut world = machines(1);
    database(&mut world, "db", |_| {});
    world.roll_out();
    world.delete_workload("db");
    let key = keys::workload_meta(NAMESPACE, "db");
    world.change(&key, |meta| meta["deletesVolumes"] = json!(true));
    world.at("n1").obeys = false;
    world.roll_out();
    assert!(world.snapshot().removals.is_empty());
    world.at("n1").obeys = true;
    world.roll_out();
    is_forgotten(&mut world);
}

#[test]
fn what_is_removed_by_hand_is_made_anew() {
    let mut world = machines(3);
    database(&mut world, "db", |file| file["spec"]["replicas"] = json!(0));
    world.roll_out();
    database(&mut world, "db", |_| {});
    world.roll_out();
    database(&mut world, "db", |file| file["spec"]["replicas"] = json!(0));
    world.roll_out();
    let key = keys::volume("default/db/data");
    world.change(&key, |volume| volume["deleting"] = json!(true));
    // No instance starts during the removal.
    database(&mut world, "db", |_| {});
    world.plan_out();
    let said = message(&mut world, "db");
    assert!(
        said.contains("the data of its volume data is being removed from n"),
        "{said}"
    );
    assert_eq!(world.wanted("db").len(), 0);
    world.roll_out();
    assert_eq!(world.running("db"), 1);
    assert_eq!(world.events("VolumeDeleted").len(), 1);
    assert!(world.snapshot().removals.is_empty());
    assert!(record(&mut world, "default/db/data").unwrap().made);
}

#[test]
fn data_of_a_machine_that_left_is_waited_for_until_it_is_given_up() {
    let mut world = machines(2);
    database(&mut world, "db", |_| {});
    world.roll_out();
    let node = places(&mut world, "db").remove(0);
    world.remove_machine(&node);
    world.roll_out();
    assert_eq!(world.wanted("db").len(), 0);
    let said = message(&mut world, "db");
    assert!(
        said.contains(&format!(
            "lies on {node}, which is no machine of the cluster"
        )),
        "{said}"
    );
    assert!(
        said.contains("katcall delete volume default/db/data"),
        "{said}"
    );
    let key = keys::volume("default/db/data");
    world.change(&key, |volume| volume["deleting"] = json!(true));
    world.roll_out();
    assert_eq!(world.running("db"), 1);
}

#[test]
fn a_path_that_is_made_on_a_machine_holds_its_slot_there() {
    let mut world = machines(3);
    let cache = |world: &mut World, path: &str, version: u32| {
        world.apply_workload("web", |file| {
            file["spec"]["replicas"] = json!(2);
            file["spec"]["source"]["image"] = json!(format!("registry.example/web:{version}"));
            file["spec"]["volumes"] = json!([{"name": "cache", "hostMount": {"hostPath": path, "ensureType": "DirectoryOrCreate"}}]);
            file["spec"]["container"]["volumeMounts"] = json!([{"name": "cache", "mountPath": "/cache"}]);
        });
        world.roll_out();
    };
    cache(&mut world, "/srv/web", 1);
    let before = places(&mut world, "web");
    assert_ne!(before[0], before[1], "each has its own");
    cache(&mut world, "/srv/web", 2);
    assert_eq!(places(&mut world, "web"), before);
    let kept = record(&mut world, "default/web/cache@host.1").unwrap();
    assert_eq!(kept.host_path.as_deref(), Some("/srv/web"));
    // Another path is another volume, so its slots are not bound to the machines.
    for node in &before {
        world.drain(node, true);
    }
    cache(&mut world, "/srv/other", 3);
    let now = places(&mut world, "web");
    assert!(now.iter().all(|node| !before.contains(node)), "{now:?}");
    world.delete_workload("web");
    world.roll_out();
    assert!(record(&mut world, "default/web/cache@host.1").is_some());
}

#[test]
fn older_agents_get_no_volumes() {
    let mut world = machines(2);
    for machine in world.machines.values_mut() {
        machine.schema = 3;
    }
    database(&mut world, "db", |_| {});
    world.roll_out();
    assert_eq!(world.wanted("db").len(), 0);
    assert!(message(&mut world, "db").contains("with a version of KAT that is too old for it"));
}
