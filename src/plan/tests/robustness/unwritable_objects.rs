//! Objects that exceed the limits of a transaction stay unchanged, and everything else is still
//! planned.

use proptest::prelude::*;

use super::*;
use kat_bundle::{CARRIED, CarriedFile, MAX_CARRIED, pack_carried};
use kat_types::store::transaction::MAX_BYTES;

/// The number of arguments of 65,000 characters, each of two bytes in the file and six bytes as
/// JSON.
const MOST_BELLS: usize = 2;
/// Size of the workload's files in bytes: the maximum.
const MOST_CARRIED: usize = MAX_CARRIED;

/// Two replicas that are too large for a transaction.
fn apply_large(world: &mut World, name: &str) {
    apply(world, name, MOST_BELLS, MOST_CARRIED);
}

fn apply(world: &mut World, name: &str, bells: usize, carried: usize) {
    apply_with(world, name, (bells, carried), |_| {});
}

/// With `maxSurge: 0`, so that each instance is stopped before its successor starts.
fn apply_in_place(world: &mut World, name: &str, bells: usize, carried: usize) {
    apply_with(world, name, (bells, carried), |file| {
        file["spec"]["updateStrategy"] = json!({"rolling": {"maxSurge": 0}});
    });
}

fn apply_with(
    world: &mut World,
    name: &str,
    (bells, carried): (usize, usize),
    set: impl FnOnce(&mut serde_json::Value),
) {
    knows_files(world);
    world.apply_workload(name, |file| {
        file["spec"]["replicas"] = json!(2);
        large(file, bells);
        set(file);
    });
    enlarge(world, name, carried);
}

fn knows_files(world: &mut World) {
    let machines = world.machines.values_mut();
    machines.for_each(|machine| machine.schema = ASSIGNMENT_SCHEMA);
}

fn large(file: &mut serde_json::Value, bells: usize) {
    file["spec"]["volumes"] = json!([{"name": "conf", "files": "conf/"}]);
    file["spec"]["container"]["volumeMounts"] = json!([{"name": "conf", "mountPath": "/conf"}]);
    file["spec"]["container"]["command"] = json!(vec!["BELLS"; bells]);
}

/// Pseudo-random bytes that do not compress.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..count).map(|_| next()).collect()
}

/// Replaces the mark `BELLS` in the workload's file, and adds a file of `carried` bytes.
fn enlarge(world: &mut World, name: &str, carried: usize) {
    let file = keys::manifest(NAMESPACE, name, "workload.kat");
    let text = String::from_utf8(world.entries[file.as_str()].value.to_vec()).unwrap();
    let text = text.replace("BELLS", &"\\a".repeat(65_000));
    let files = keys::manifest(NAMESPACE, name, CARRIED);
    let blob = CarriedFile {
        path: "conf/blob".to_owned(),
        executable: false,
        bytes: noise(carried),
    };
    let pack = pack_carried(&[blob]).unwrap();
    world.apply(&[
        WriteOperation::Put(file, text.into_bytes()),
        WriteOperation::Put(files, pack.into_bytes()),
    ]);
}

fn frozen(world: &mut World) -> Vec<NotWritable> {
    let snapshot = world.snapshot();
    let observed = world.observed();
    plan(&snapshot, &observed, world.now, 7).frozen
}

/// The keys of a workload with their revisions, except its status and events.
fn keys_of(world: &World, name: &str) -> BTreeMap<String, i64> {
    let entries = world.entries.iter();
    let own = entries.filter(|(key, _)| {
        let told = key.starts_with(keys::WORKLOAD_STATUS) || key.starts_with(keys::EVENTS);
        key.contains(name) && !told
    });
    own.map(|(key, entry)| (key.to_string(), entry.mod_revision))
        .collect()
}

#[test]
fn a_workload_that_no_transaction_takes_stops_nobody_else() {
    let mut world = World::with_machines(2);
    apply_large(&mut world, "big");
    world.replicas("other", 2);
    world.settle();
    assert_eq!(world.running("other"), 2);
    assert!(world.wanted("big").is_empty());
    let status = world.status("big");
    assert_eq!(status.phase, WorkloadPhase::Degraded);
    assert_eq!(status.conditions[0].reason, "NotWritable");
    let message = &status.conditions[0].message;
    assert!(
        message.contains("/instances/big-") && message.contains("KiB"),
        "{message}"
    );
    assert_eq!(world.events("NotWritable").len(), 1, "it is told once");
    let objects: Vec<_> = frozen(&mut world)
        .into_iter()
        .map(|one| one.object)
        .collect();
    let big = WorkloadKey::new(NAMESPACE, "big");
    assert_eq!(objects, [WrittenObject::Workload(big)]);
    world.new_leader();
    world.pass(Duration::from_secs(1));
    world.settle();
    assert_eq!(
        frozen(&mut world).len(),
        1,
        "another leader finds it out anew"
    );
    apply(&mut world, "big", 0, 1000);
    world.roll_out();
    assert_eq!(world.running("big"), 2, "it goes on once it fits");
    assert_eq!(frozen(&mut world), []);
}

#[test]
fn a_frozen_workload_keeps_all_its_keys_until_it_is_deleted() {
    let mut world = World::with_machines(3);
    apply(&mut world, "big", 0, 1000);
    world.roll_out();
    let before = world.wanted("big");
    apply_large(&mut world, "big");
    let keys = keys_of(&world, "big");
    world.settle();
    world.drain(&before[0].1, true);
    world.replicas("other", 3);
    world.settle();
    assert_eq!(world.running("other"), 3);
    assert_eq!(world.running("big"), 2, "the old version runs");
    assert_eq!(keys_of(&world, "big"), keys);
    world.delete_workload("big");
    world.settle();
    assert_eq!(
        keys_of(&world, "big"),
        BTreeMap::new(),
        "its deletion always fits"
    );
}

#[test]
fn what_is_replaced_in_place_runs_on_while_nothing_that_replaces_it_can_be_written() {
    let mut world = World::with_machines(2);
    apply_in_place(&mut world, "big", 0, 1000);
    world.roll_out();
    let instances = |world: &mut World| -> Vec<String> {
        let wanted = world.wanted("big").into_iter();
        wanted.map(|(id, ..)| id).collect()
    };
    let before = instances(&mut world);
    assert_eq!(before.len(), 2);
    apply_in_place(&mut world, "big", MOST_BELLS, MOST_CARRIED);
    for _ in 0..5 {
        world.pass(Duration::from_secs(60));
        world.settle();
        assert_eq!(instances(&mut world), before);
        assert_eq!(world.running("big"), 2);
    }
    assert_eq!(world.status("big").conditions[0].reason, "NotWritable");
    // Control: a small version replaces the instances.
    apply_in_place(&mut world, "big", 1, 1000);
    world.roll_out();
    assert_eq!(world.running("big"), 2);
    assert!(instances(&mut world).iter().all(|id| !before.contains(id)));
}

#[test]
fn an_assignment_at_the_limit_can_still_be_stopped() {
    let mut world = World::with_machines(1);
    world.replicas("big", 1);
    world.settle();
    let (id, node, assignment) = world.wanted("big").remove(0);
    let mut large = Assignment::clone(&assignment);
    large.carried = Some("x".repeat(MAX_BYTES - 10_000).into());
    let key = keys::desired_instance(&node, &id);
    world.write(key, &large);
    world.delete_workload("big");
    world.settle();
    assert_eq!(world.keys(keys::WORKLOADS), Vec::<String>::new());
}

#[test]
fn a_machine_whose_status_no_transaction_takes_is_its_own_trouble() {
    let mut world = World::with_machines(3);
    world.replicas("web", 3);
    world.settle();
    let before = world.snapshot().nodes["n3"].status.clone().unwrap().value;
    world.at("n3").data = (0..40_000)
        .map(|number| format!("default/web/{number:040}"))
        .collect();
    world.replicas("other", 4);
    world.settle();
    assert_eq!(world.running("other"), 4);
    let status = world.snapshot().nodes["n3"].status.clone().unwrap().value;
    assert_eq!(status.phase, NodePhase::Ready);
    assert_eq!(status.reason, "NotWritable");
    assert!(
        status.message.contains("/kat/nodes/status/n3"),
        "{}",
        status.message
    );
    assert_eq!(status.instances, before.instances, "nothing of it changes");
    let others = world.wanted("other");
    assert!(others.iter().all(|(_, node, _)| node != "n3"));
    // The machine no longer reports, and its loss is still detected.
    world.at("n3").speaks = false;
    for _ in 0..12 {
        world.pass(Duration::from_secs(10));
        world.settle();
    }
    let status = world.snapshot().nodes["n3"].status.clone().unwrap().value;
    assert_eq!(status.phase, NodePhase::NotReady);
    assert_eq!(world.running("web"), 3, "what it ran is replaced");
}

proptest! {
    #![proptest_config(random_cases(24))]

    #[test]
    fn whatever_is_applied_and_reported_a_plan_fits_or_leaves_an_object_out(
        bells in 0..=MOST_BELLS,
        carried in 0..=MOST_CARRIED,
        replicas in 1u32..30,
        volumes in 0usize..30_000,
        message in 0usize..60_000,
        labels in 0usize..200,
    ) {
        let mut world = World::with_machines(2);
        world.replicas("other", 1);
        world.settle();
        knows_files(&mut world);
        world.apply_workload("big", |file| {
            file["spec"]["replicas"] = json!(replicas);
            large(file, bells);
            let labels: BTreeMap<String, String> =
                (0..labels).map(|number| (format!("l{number}"), "v".repeat(60))).collect();
            file["metadata"]["labels"] = json!(labels);
        });
        enlarge(&mut world, "big", carried);
        world.at("n2").data = (0..volumes).map(|number| format!("default/x/{number:040}")).collect();
        for report in world.at("n2").instances.values_mut() {
            report.message = "\u{1}".repeat(message);
        }
        world.replicas("last", 1);
        for _ in 0..6 {
            let (snapshot, observed) = (world.snapshot(), world.observed());
            let planned = plan(&snapshot, &observed, world.now, 3);
            for change in &planned.changes {
                let operations = change.operations.iter();
                let bytes: usize = operations.map(kat_types::store::transaction::operation_bytes).sum();
                prop_assert!(bytes < MAX_BYTES && change.operations.len() < MAX_OPERATIONS);
            }
            for one in &planned.frozen {
                let big = WrittenObject::Workload(WorkloadKey::new(NAMESPACE, "big"));
                let machine = WrittenObject::Machine("n2".to_owned());
                prop_assert!(one.object == big || one.object == machine, "{:?}", one);
            }
            world.step();
            world.agents();
        }
        prop_assert_eq!(world.running("last"), 1);
    }
}
