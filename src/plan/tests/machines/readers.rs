//! Machines whose version of KAT does not read the files of every workload.

use super::*;
use crate::updates::strategies::web;
use kat_types::store::members::{ClusterMembers, MemberRecord};

/// A workload whose file leaves out `type`, which needs version 2 of the reader.
fn short(version: u32, replicas: u32) -> impl FnOnce(&mut serde_json::Value) {
    move |file| {
        let strategy = json!({"autoRollback": true, "progressDeadlineSeconds": 60});
        web(version, replicas, strategy)(file);
        file["spec"].as_object_mut().unwrap().remove("type");
    }
}

/// The same file with all that every version requires.
fn long(version: u32, replicas: u32) -> impl FnOnce(&mut serde_json::Value) {
    move |file| {
        short(version, replicas)(file);
        file["spec"]["type"] = json!("Service");
    }
}

fn with_readers(mut snapshot: Snapshot, readers: &[(&str, u32)]) -> Snapshot {
    for (name, reader) in readers {
        let node = snapshot.nodes.get_mut(*name).unwrap();
        node.status.as_mut().unwrap().value.manifest_reader = *reader;
    }
    snapshot
}

fn member(id: u64, voting: bool) -> SeenMember {
    SeenMember {
        id,
        node: Some(format!("n{id}")),
        voting,
        healthy: true,
        ..SeenMember::default()
    }
}

fn wanted(snapshot: &Snapshot, seen: &[SeenMember], now: Timestamp) -> Vec<String> {
    let none = (&BTreeSet::new(), &BTreeSet::new());
    let wanted = wanted_members(snapshot, seen, none, "n1", now);
    wanted.into_iter().collect()
}

#[test]
fn a_machine_that_does_not_read_a_workload_becomes_no_member() {
    let mut world = World::with_machines(4);
    world.apply_workload("web", long(1, 1));
    world.roll_out();
    let readers = [("n1", 2), ("n2", 0), ("n3", 2), ("n4", 2)];
    let (now, only) = (world.now, [member(1, true)]);
    let before = with_readers(world.snapshot(), &readers);
    assert_eq!(highest_needed_reader(&before), 1);
    assert_eq!(wanted(&before, &only, now), ["n1", "n2", "n3"]);

    world.apply_workload("web", short(1, 1));
    world.roll_out();
    let snapshot = with_readers(world.snapshot(), &readers);
    assert_eq!(highest_needed_reader(&snapshot), 2);
    assert_eq!(wanted(&snapshot, &only, now), ["n1", "n3", "n4"]);
    // A member without a vote does not get one. A voting one stays.
    let learner = [member(1, true), member(2, false)];
    assert_eq!(wanted(&snapshot, &learner, now), ["n1", "n3", "n4"]);
    let voting = [member(1, true), member(2, true)];
    assert_eq!(wanted(&snapshot, &voting, now), ["n1", "n2", "n3"]);
    // A namespace with settings needs more than the files.
    let mut open = with_readers(snapshot.clone(), &[("n2", 2)]);
    for stored in open.namespaces.values_mut() {
        stored.value.access.allow_namespaces = vec!["shop".to_owned()];
    }
    assert_eq!(highest_needed_reader(&open), 3);
    let newer = with_readers(open.clone(), &[("n1", 3), ("n3", 3), ("n4", 3)]);
    assert_eq!(wanted(&newer, &only, now), ["n1", "n3", "n4"]);
    // A quota of hosts needs more than other settings.
    for stored in open.namespaces.values_mut() {
        stored.value.quota.workloads = Some(3);
    }
    assert_eq!(highest_needed_reader(&open), 3);
    for stored in open.namespaces.values_mut() {
        stored.value.quota.hosts = Some(3);
    }
    assert_eq!(highest_needed_reader(&open), 6);
    for stored in open.namespaces.values_mut() {
        stored.value.defaults.requests.cpu = Some(MilliCpu(100));
    }
    assert_eq!(highest_needed_reader(&open), 7);
    // It is upgraded.
    let upgraded = with_readers(snapshot, &[("n2", 2)]);
    assert_eq!(wanted(&upgraded, &only, now), ["n1", "n2", "n3"]);
}

#[test]
fn an_automatic_rollback_waits_until_every_machine_that_may_lead_reads_the_files() {
    let mut world = World::with_machines(3);
    world.apply_workload("web", short(1, 3));
    world.roll_out();
    world.failing.insert("registry.example/web:2".to_owned());
    world.apply_workload("web", long(2, 3));
    world.settle();
    // The machines of the test report no reader.
    let members = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned());
        ClusterMembers {
            members: names.map(|name| (name, MemberRecord::default())).collect(),
            ..ClusterMembers::default()
        }
    };
    world.write(keys::MEMBERS.to_owned(), &members(&["n3"]));
    world.pass(Duration::from_secs(61));
    world.settle();
    assert_eq!(world.events("RolledBack"), Vec::<String>::new());
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Stalled);
    let message = &status.conditions[0].message;
    let why = "generation 1 is not taken again, because a machine that may lead does not read its files: n3; upgrade kat there";
    assert!(message.ends_with(why), "{message}");
    // That machine may lead no more.
    world.write(keys::MEMBERS.to_owned(), &members(&[]));
    world.roll_out();
    assert_eq!(world.events("RolledBack").len(), 1);
    assert_eq!(world.versions(), BTreeMap::from([("1".to_owned(), 3)]));
}

/// The machine does not read the present files either.
#[test]
fn an_automatic_rollback_to_files_that_need_no_more_than_the_present_ones_waits_for_no_machine() {
    let mut world = World::with_machines(3);
    world.apply_workload("web", short(1, 3));
    world.roll_out();
    world.failing.insert("registry.example/web:2".to_owned());
    world.apply_workload("web", short(2, 3));
    world.settle();
    let members = ClusterMembers {
        members: BTreeMap::from([("n3".to_owned(), MemberRecord::default())]),
        ..ClusterMembers::default()
    };
    world.write(keys::MEMBERS.to_owned(), &members);
    world.pass(Duration::from_secs(61));
    world.roll_out();
    assert_eq!(world.events("RolledBack").len(), 1);
    assert_eq!(world.versions(), BTreeMap::from([("1".to_owned(), 3)]));
}
