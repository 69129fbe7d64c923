//! Random events: the invariants hold, and in the end the state is as requested.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Act {
    Replicas(usize, u32),
    Version(usize, u32),
    Delete(usize),
    Fail(usize, u32),
    Mend,
    Speak(usize, bool),
    Obey(usize, bool),
    Restart(usize, u8),
    Drain(usize, bool),
    DrainByForce(usize),
    NewLeader,
    WorkloadPlanner(u64),
    Plan,
    Agents,
}

const NAMES: [&str; 3] = ["web", "db", "job"];
const MACHINES: usize = 3;

fn act() -> impl Strategy<Value = Act> {
    let workload = 0..NAMES.len();
    let machine = 0..MACHINES;
    prop_oneof![
        3 => (workload.clone(), 0u32..7).prop_map(|(which, count)| Act::Replicas(which, count)),
        3 => (workload.clone(), 1u32..4).prop_map(|(which, version)| Act::Version(which, version)),
        1 => workload.clone().prop_map(Act::Delete),
        1 => (workload, 1u32..4).prop_map(|(which, version)| Act::Fail(which, version)),
        1 => Just(Act::Mend),
        1 => (machine.clone(), any::<bool>()).prop_map(|(which, on)| Act::Speak(which, on)),
        1 => (machine.clone(), any::<bool>()).prop_map(|(which, on)| Act::Obey(which, on)),
        1 => (machine.clone(), any::<bool>()).prop_map(|(which, on)| Act::Drain(which, on)),
        1 => machine.clone().prop_map(Act::DrainByForce),
        1 => (machine, 0u8..3).prop_map(|(which, late)| Act::Restart(which, late)),
        1 => Just(Act::NewLeader),
        2 => (0u64..200).prop_map(Act::WorkloadPlanner),
        6 => Just(Act::Plan),
        6 => Just(Act::Agents),
    ]
}

/// The last requested replicas and version of each workload.
type Asked = BTreeMap<usize, (u32, u32)>;

fn ask(world: &mut World, asked: &mut Asked, which: usize, wish: impl FnOnce(&mut (u32, u32))) {
    let key = WorkloadKey::new(NAMESPACE, NAMES[which]);
    let snapshot = world.snapshot();
    if snapshot
        .workloads
        .get(&key)
        .is_some_and(|entry| entry.meta.value.deleting)
    {
        return;
    }
    let wanted = asked.entry(which).or_insert((1, 1));
    wish(wanted);
    let (replicas, version) = *wanted;
    world.apply_workload(NAMES[which], |file| {
        file["spec"]["replicas"] = json!(replicas);
        file["spec"]["source"]["image"] = json!(image(which, version));
        file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "500m"}});
    });
}

fn image(which: usize, version: u32) -> String {
    format!("registry.example/{}:{version}", NAMES[which])
}

fn perform(world: &mut World, asked: &mut Asked, act: &Act) {
    let machine = |which: usize| format!("n{}", which + 1);
    match *act {
        Act::Replicas(which, count) => ask(world, asked, which, |wanted| wanted.0 = count),
        Act::Version(which, version) => ask(world, asked, which, |wanted| wanted.1 = version),
        Act::Delete(which) => {
            if asked.remove(&which).is_some() {
                world.delete_workload(NAMES[which]);
            }
        }
        Act::Fail(which, version) => {
            world.failing.insert(image(which, version));
        }
        Act::Mend => world.failing.clear(),
        Act::Speak(which, on) => world.machines.get_mut(&machine(which)).unwrap().speaks = on,
        Act::Obey(which, on) => world.machines.get_mut(&machine(which)).unwrap().obeys = on,
        Act::Restart(which, late) => world.at(&machine(which)).restart(late),
        Act::Drain(which, on) => world.drain(&machine(which), on),
        Act::DrainByForce(which) => world.drain_by_force(&machine(which)),
        Act::NewLeader => world.new_leader(),
        Act::WorkloadPlanner(seconds) => world.pass(Duration::from_secs(seconds)),
        Act::Plan => {
            world.step();
        }
        Act::Agents => world.agents(),
    }
}

proptest! {
    #![proptest_config(random_cases(40))]

    #[test]
    fn always_safe_and_at_last_as_asked(
        acts in proptest::collection::vec(act(), 1..60),
        tainted in any::<bool>(),
    ) {
        let mut world = World::with_machines(MACHINES - 1);
        let taints = if tainted { vec![no_schedule("kept")] } else { Vec::new() };
        world.machine(&format!("n{MACHINES}"), "23", &taints);
        let mut asked = Asked::new();
        for act in &acts {
            perform(&mut world, &mut asked, act);
            if tainted {
                let snapshot = world.snapshot();
                prop_assert!(snapshot.instances.values().all(|entry| entry.node != "n3"));
            }
        }
        world.failing.clear();
        for number in 1..=MACHINES {
            world.drain(&format!("n{number}"), false);
        }
        for machine in world.machines.values_mut() {
            machine.speaks = true;
            machine.obeys = true;
        }
        for _ in 0..20 {
            world.pass(Duration::from_secs(301));
            world.settle();
        }
        for (which, name) in NAMES.iter().enumerate() {
            let Some((replicas, version)) = asked.get(&which) else {
                let left = world.keys(keys::WORKLOADS);
                let prefix = keys::workload(NAMESPACE, name);
                prop_assert!(left.iter().all(|key| !key.starts_with(&prefix)));
                continue;
            };
            let wanted = world.wanted(name);
            // 16 replicas fit on two machines.
            let most: u32 = asked.values().map(|(replicas, _)| replicas).sum();
            if most <= 15 {
                let count = usize::try_from(*replicas).unwrap();
                prop_assert_eq!(wanted.len(), count);
                prop_assert_eq!(world.status(name).phase, WorkloadPhase::Running);
                prop_assert!(wanted.iter().all(|(_, _, one)| one.image == image(which, *version)));
            }
        }
        let snapshot = world.snapshot();
        prop_assert_eq!(snapshot.indexes.len(), snapshot.workloads.len());
        prop_assert_eq!(snapshot.allocations.len(), snapshot.instances.len());
        for (name, node) in &snapshot.nodes {
            let status = &node.status.as_ref().unwrap().value;
            for id in status.instances.keys() {
                prop_assert!(snapshot.instances.contains_key(id), "{id} in the record of {name}");
            }
            for index in &status.user_indexes {
                prop_assert!(snapshot.indexes.contains_key(index), "user {index} on {name}");
            }
        }
    }
}
