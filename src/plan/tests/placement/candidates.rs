//! A plan updates its candidates from placement to placement. Candidates that are computed anew for
//! each placement lead to the same choices.

use proptest::prelude::*;

use super::*;

/// A machine: taint, draining, silent, few addresses, CPU in thousandths.
type Host = (Option<TaintEffect>, bool, bool, bool, u64);
/// A workload: replicas before, replicas after, CPU in thousandths, memory in MiB, tolerates the
/// taint, selects a machine.
type Wish = (u32, u32, u32, u32, bool, Option<usize>);

fn host() -> impl Strategy<Value = Host> {
    let taint = prop_oneof![
        3 => Just(None),
        1 => Just(Some(TaintEffect::NoSchedule)),
        1 => Just(Some(TaintEffect::PreferNoSchedule)),
    ];
    let seldom = || prop::bool::weighted(0.15);
    let cpu = prop_oneof![6 => Just(4000u64), 1 => 1000u64..4000];
    (taint, seldom(), seldom(), any::<bool>(), cpu)
}

fn wish() -> impl Strategy<Value = Wish> {
    let selected = prop::option::weighted(0.2, 0usize..6);
    // Most requests are zero, so that machines often only differ by the workload's own instances.
    let asked = prop_oneof![
        3 => Just((0u32, 0u32)),
        1 => (0u32..1200, 0u32..2048),
    ];
    (0u32..8, 0u32..12, asked, any::<bool>(), selected).prop_map(
        |(before, after, (cpu, memory), tolerates, selected)| {
            (before, after, cpu, memory, tolerates, selected)
        },
    )
}

fn cluster(hosts: &[Host]) -> World {
    let mut world = World::new();
    for (number, (taint, _, _, few, cpu)) in hosts.iter().enumerate() {
        let taints: Vec<Taint> = taint
            .iter()
            .map(|effect| Taint {
                effect: *effect,
                ..no_schedule("kept")
            })
            .collect();
        let name = format!("n{number}");
        world.machine(&name, if *few { "29" } else { "23" }, &taints);
        world.at(&name).resources.cpu = Some(MilliCpu(*cpu));
    }
    world
}

fn ask(world: &mut World, number: usize, replicas: u32, wish: &Wish) {
    let (_, _, cpu, memory, tolerates, selected) = wish;
    world.apply_workload(&format!("w{number}"), |file| {
        let spec = &mut file["spec"];
        spec["replicas"] = json!(replicas);
        let requests = json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
        spec["container"]["resources"] = json!({"requests": requests});
        if *tolerates {
            spec["tolerations"] = json!([{"key": "kept", "operator": "Exists"}]);
        }
        if let Some(number) = selected {
            spec["nodeSelector"] = json!({"name": format!("n{number}")});
        }
    });
}

/// The candidates for one more instance of a workload, computed from the snapshot and the
/// placements so far.
fn anew<'s>(
    snapshot: &'s Snapshot,
    placed: &[(String, Assignment)],
    key: &WorkloadKey,
) -> Vec<MachineCandidate<'s>> {
    let nodes = snapshot.nodes.iter();
    let candidates = nodes.map(|(name, node)| {
        let stored = snapshot
            .instances
            .values()
            .filter(|entry| entry.node == *name)
            .map(|entry| &*entry.assignment.value);
        let new = placed
            .iter()
            .filter(|(node, _)| node == name)
            .map(|(_, assignment)| assignment);
        let (mut requested, mut staying) = (RequestedResources::default(), 0);
        let mut taken = BTreeSet::new();
        for assignment in stored.chain(new) {
            requested.add(assignment.container.resources.effective_requests());
            let owner = WorkloadKey::new(&assignment.namespace, &assignment.workload);
            staying += u32::from(owner == *key && assignment.wanted == DesiredRun::Running);
            taken.insert(assignment.address);
        }
        let status = &node.status.as_ref().unwrap().value;
        MachineCandidate {
            name,
            phase: status.phase,
            draining: node.registration.value.draining,
            labels: &node.registration.value.labels,
            taints: &node.registration.value.taints,
            allocatable: status.allocatable,
            requested,
            host_ports: BTreeMap::new(),
            data_path: HOST_PORT_DATA_PATH,
            staying,
            repelled: false,
            lonely: false,
            has_address: next_address(node.subnet.unwrap(), |one| taken.contains(&one), None)
                .is_some(),
            assignment_schema: ASSIGNMENT_SCHEMA,
            architecture: &node.registration.value.architecture,
            volume_shared: false,
            host_network: false,
            lacks_crun: false,
            foreign_indexes: Vec::new(),
            unreachable: false,
            cannot_start: false,
            disk_pressure: false,
            visible_bytes: 0,
            gpus: Vec::new(),
            gpu_holders: BTreeMap::new(),
        }
    });
    candidates.collect()
}

/// New assignments of a plan in the order of the decisions, each with the instances that were
/// stopped before.
fn placements(
    planned: &ClusterPlan,
    snapshot: &Snapshot,
) -> Vec<(String, Assignment, BTreeSet<String>)> {
    let operations = planned.changes.iter().flat_map(|change| &change.operations);
    let written = operations.filter_map(|operation| match operation {
        WriteOperation::Put(key, value) => {
            let (node, _) = key
                .strip_prefix(keys::NODE_DESIRED)?
                .split_once("/instances/")?;
            Some((node.to_owned(), serde_json::from_slice(value).unwrap()))
        }
        _ => None,
    });
    let mut placements = Vec::new();
    let mut stopped = BTreeSet::new();
    for (node, assignment) in written {
        let assignment: Assignment = assignment;
        if !snapshot.instances.contains_key(&assignment.instance) {
            placements.push((node, assignment, stopped.clone()));
        } else if assignment.wanted == DesiredRun::Stopped {
            stopped.insert(assignment.instance);
        }
    }
    placements
}

proptest! {
    #![proptest_config(random_cases(100))]

    #[test]
    fn every_choice_is_that_of_candidates_counted_anew(
        hosts in proptest::collection::vec(host(), 1..6),
        wishes in proptest::collection::vec(wish(), 1..5),
    ) {
        let mut world = cluster(&hosts);
        for (number, wish) in wishes.iter().enumerate() {
            ask(&mut world, number, wish.0, wish);
        }
        world.settle();
        for (number, (_, draining, silent, ..)) in hosts.iter().enumerate() {
            let name = format!("n{number}");
            if *draining {
                let mut registration = world.snapshot().nodes[&name].registration.value.clone();
                registration.draining = true;
                world.write(keys::registration(&name), &registration);
            }
            world.at(&name).speaks = !silent;
        }
        world.pass(Duration::from_secs(3600));
        world.settle();
        for (number, wish) in wishes.iter().enumerate() {
            ask(&mut world, number, wish.1, wish);
        }
        let (snapshot, observed) = (world.snapshot(), world.observed());
        let seed = u64::try_from(world.revision).unwrap();
        let planned = plan(&snapshot, &observed, world.now, seed);
        let mut placed: Vec<(String, Assignment)> = Vec::new();
        for (node, assignment, stopped) in placements(&planned, &snapshot) {
            let key = WorkloadKey::new(&assignment.namespace, &assignment.workload);
            let parsed = snapshot.workloads[&key].parsed.clone().unwrap();
            let candidates = anew(&snapshot, &placed, &key);
            let seed = seed_of(seed, &assignment.workload_uid, assignment.slot);
            let own = snapshot.instances_of(&key).filter(|(id, entry)| {
                let one = &entry.assignment.value;
                one.wanted == DesiredRun::Running && (one.slot == assignment.slot || stopped.contains(*id))
            });
            let replaces: Vec<&str> = own.map(|(_, entry)| entry.node.as_str()).collect();
            let demand = InstanceDemand { replaces: &replaces, ..InstanceDemand::of(&parsed.workload.spec) };
            let chosen = choose(demand, &candidates, seed);
            prop_assert_eq!(chosen, Ok(node.as_str()), "{}", assignment.instance);
            placed.push((node, assignment));
        }
        // Replicas that were not placed fit on no machine.
        for (key, entry) in &snapshot.workloads {
            let parsed = entry.parsed.clone().unwrap();
            let spec = &parsed.workload.spec;
            let present = snapshot
                .instances_of(key)
                .map(|(_, entry)| &*entry.assignment.value)
                .chain(placed.iter().map(|(_, assignment)| assignment))
                .filter(|one| one.workload == key.name && one.slot < spec.replicas.unwrap())
                .filter(|one| one.wanted == DesiredRun::Running);
            let slots: BTreeSet<u32> = present.map(|one| one.slot).collect();
            if u32::try_from(slots.len()).unwrap() < spec.replicas.unwrap() {
                let candidates = anew(&snapshot, &placed, key);
                prop_assert!(choose(InstanceDemand::of(spec), &candidates, seed).is_err(), "{}", key);
            }
        }
    }
}
