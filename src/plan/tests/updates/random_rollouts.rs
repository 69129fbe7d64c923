//! Random versions, replicas, strategies, pauses, drains and leaders: serving instances keep
//! serving, the surge is a limit, a pause holds, and the rollout ends.

use proptest::prelude::*;

use super::*;
use crate::updates::strategies::web;

#[derive(Debug, Clone)]
enum Act {
    Version(u32),
    Replicas(u32),
    Strategy(usize),
    Pause(bool),
    Drain(usize, bool),
    NewLeader,
    WorkloadPlanner(u64),
    Plan,
    Agents,
}

const MACHINES: usize = 3;
/// The number of versions. Every third one never runs.
const VERSIONS: u32 = 6;
/// Such a version, whose image cannot be pulled.
const MISSING: u32 = 5;

/// The surge of each strategy. `Simultaneous` has none, and promises nothing.
fn strategies() -> Vec<(Option<u32>, serde_json::Value)> {
    vec![
        (Some(1), json!({})),
        (Some(2), json!({"rolling": {"maxSurge": 2}})),
        (Some(0), json!({"rolling": {"maxSurge": 0}})),
        (None, json!({"type": "Simultaneous"})),
    ]
}

fn act(strategies: std::ops::Range<usize>) -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0..VERSIONS).prop_map(Act::Version),
        2 => (0u32..6).prop_map(Act::Replicas),
        1 => strategies.prop_map(Act::Strategy),
        2 => any::<bool>().prop_map(Act::Pause),
        1 => (0..MACHINES, any::<bool>()).prop_map(|(which, on)| Act::Drain(which, on)),
        1 => Just(Act::NewLeader),
        4 => prop_oneof![0u64..10, 0u64..700].prop_map(Act::WorkloadPlanner),
        8 => Just(Act::Plan),
        8 => Just(Act::Agents),
    ]
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    version: u32,
    replicas: u32,
    strategy: usize,
    paused: bool,
    drained: Option<usize>,
}

impl Asked {
    fn apply(self, world: &mut World) {
        let strategy = strategies().swap_remove(self.strategy).1;
        world.apply_workload("web", |file| {
            web(self.version, self.replicas, strategy)(file);
            file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "250m"}});
        });
    }
}

/// Counts before or after a plan: slots with a serving instance, slots with an instance of the
/// wanted version, and instances.
#[derive(Debug, Clone, Copy)]
struct Counts {
    serving: usize,
    new: usize,
    /// Instances whose program has not ended for good.
    all: usize,
    /// All instances, including those whose program has ended.
    with_ended: usize,
    /// Instances of other versions.
    old: usize,
    /// Wanted slots without a serving instance that have the wanted version, which never runs.
    failing_new: usize,
    /// The same with another version that never runs.
    failing_old: usize,
    /// Whether the rollout is reported as stalled.
    stalled: bool,
    /// Instances on a machine that is being drained.
    leaving: usize,
    /// Instances in slots beyond the wanted number.
    surplus: usize,
    /// Wanted slots without an instance.
    empty: usize,
}

fn counts(world: &mut World, asked: Asked) -> Counts {
    let wanted = world.wanted("web");
    let image = format!("registry.example/web:{}", asked.version);
    let drained = asked.drained.map(|which| format!("n{}", which + 1));
    let slots: BTreeSet<u32> = wanted.iter().map(|(.., one)| one.slot).collect();
    // Instances being stopped count too.
    let snapshot = world.snapshot();
    let all = snapshot
        .instances
        .values()
        .map(|entry| &entry.assignment.value);
    let new = all.filter(|one| one.image == image);
    let reached: BTreeSet<u32> = new.map(|one| one.slot).collect();
    let failing = |slot: u32, new: bool| {
        let mut here = wanted.iter().filter(|(.., one)| one.slot == slot);
        here.any(|(.., one)| world.failing.contains(&one.image) && (one.image == image) == new)
    };
    let served = world.served_slots(&wanted);
    let idle: Vec<u32> = (0..asked.replicas)
        .filter(|slot| !served.contains(slot))
        .collect();
    let has_new = |slot: &&u32| failing(**slot, true);
    let has_old = |slot: &&u32| !failing(**slot, true) && failing(**slot, false);
    let status = snapshot.workloads[&WorkloadKey::new(NAMESPACE, "web")]
        .status
        .as_ref();
    let surplus = wanted.iter().filter(|(.., one)| one.slot >= asked.replicas);
    Counts {
        serving: served.len(),
        new: reached.len(),
        all: wanted.iter().filter(|one| !world.has_ended(one)).count(),
        with_ended: wanted.len(),
        failing_new: idle.iter().filter(has_new).count(),
        failing_old: idle.iter().filter(has_old).count(),
        stalled: status.is_some_and(|one| one.value.status.phase == WorkloadPhase::Stalled),
        old: wanted.iter().filter(|(.., one)| one.image != image).count(),
        leaving: wanted
            .iter()
            .filter(|(_, node, _)| Some(node) == drained.as_ref())
            .count(),
        surplus: surplus.count(),
        empty: (0..asked.replicas)
            .filter(|slot| !slots.contains(slot))
            .count(),
    }
}

impl World {
    fn has_ended(&self, (id, node, _): &(String, String, Arc<Assignment>)) -> bool {
        let report = self.machines[node].instances.get(id);
        report.is_some_and(|report| report.phase == InstancePhase::Failed)
    }

    /// The number of slots with a running instance, by the machines' reports.
    pub(crate) fn served(&self, wanted: &[(String, String, Arc<Assignment>)]) -> usize {
        self.served_slots(wanted).len()
    }

    fn served_slots(&self, wanted: &[(String, String, Arc<Assignment>)]) -> BTreeSet<u32> {
        let running = wanted.iter().filter(|(id, node, _)| {
            let report = self.machines[node].instances.get(id);
            report.is_some_and(|report| report.phase == InstancePhase::Running)
        });
        running.map(|(.., one)| one.slot).collect()
    }
}

/// A plan removes no instance that is needed, and adds no more than the surge.
fn step(world: &mut World, asked: Asked) -> Result<(), TestCaseError> {
    let before = counts(world, asked);
    world.step();
    let after = counts(world, asked);
    let replicas = usize::try_from(asked.replicas).unwrap();
    let Some(surge) = strategies()[asked.strategy].0 else {
        return Ok(());
    };
    let surge = usize::try_from(surge).unwrap();
    // With `maxSurge: 0`, one instance may be missing, but none in addition to slots with a version
    // that never runs. A stalled wanted version keeps the slots that it has reached, and a drain
    // continues beside it.
    let stalled = (before.stalled || after.stalled) && !asked.paused;
    let missing = match stalled {
        true => before.failing_new + before.failing_old.max(1),
        false => (before.failing_new + before.failing_old).max(1),
    };
    let needed = match surge {
        0 => replicas.saturating_sub(missing),
        _ => replicas,
    };
    prop_assert!(
        after.serving >= needed.min(before.serving),
        "{asked:?}: {before:?} became {after:?}"
    );
    // An instance that leaves a machine may exist beside a new one, and a serving replacement
    // beside the replaced one. A smaller surge removes nothing.
    let moves = if before.leaving > 0 { surge } else { 0 };
    let most = replicas + surge + moves + before.surplus;
    prop_assert!(
        after.all <= most.max(before.with_ended + before.empty),
        "{asked:?}: {before:?} became {after:?}"
    );
    if asked.paused && before.old > 0 {
        prop_assert!(
            after.new <= before.new,
            "{asked:?}: {before:?} became {after:?}"
        );
    }
    Ok(())
}

/// Advances the given number of minutes, or stops after ten quiet ones.
fn rest(world: &mut World, asked: Asked, minutes: u32) -> Result<(), TestCaseError> {
    let mut quiet = 0;
    for _ in 0..minutes {
        let (mut idle, began) = (0, world.revision);
        for _ in 0..8 {
            let before = world.revision;
            step(world, asked)?;
            world.agents();
            idle = if world.revision == before {
                idle + 1
            } else {
                0
            };
            if idle == 2 {
                break;
            }
        }
        world.pass(Duration::from_secs(61));
        // A failed instance is replaced after 5 minutes at most, and the deadline is 10 minutes.
        quiet = if world.revision == began {
            quiet + 1
        } else {
            0
        };
        if quiet > 10 {
            break;
        }
    }
    Ok(())
}

fn play(acts: &[Act]) -> Result<(), TestCaseError> {
    let mut world = World::with_machines(MACHINES);
    for version in (2..VERSIONS).step_by(3) {
        world
            .failing
            .insert(format!("registry.example/web:{version}"));
    }
    world
        .missing
        .insert(format!("registry.example/web:{MISSING}"));
    let mut asked = Asked {
        version: 0,
        replicas: 3,
        strategy: 0,
        paused: false,
        drained: None,
    };
    asked.apply(&mut world);
    world.roll_out();
    for act in acts {
        match *act {
            Act::Version(version) => asked.version = version,
            Act::Replicas(replicas) => asked.replicas = replicas,
            Act::Strategy(strategy) => asked.strategy = strategy,
            Act::Pause(paused) => {
                asked.paused = paused;
                world.pause("web", paused);
            }
            Act::Drain(which, on) => {
                // Only one machine is drained at a time, so that the others have room.
                if asked.drained.is_none_or(|drained| drained == which) {
                    asked.drained = on.then_some(which);
                    world.drain(&format!("n{}", which + 1), on);
                }
            }
            Act::NewLeader => world.new_leader(),
            Act::WorkloadPlanner(seconds) => world.pass(Duration::from_secs(seconds)),
            Act::Plan => step(&mut world, asked)?,
            Act::Agents => world.agents(),
        }
        if matches!(act, Act::Version(_) | Act::Replicas(_) | Act::Strategy(_)) {
            asked.apply(&mut world);
        }
    }
    world.pause("web", false);
    asked.paused = false;
    // The rollout of a version that never runs stalls, and the serving instances continue.
    if asked.version % 3 == 2 {
        rest(&mut world, asked, 30)?;
        let phase = world.status("web").phase;
        let expected = if asked.replicas == 0 {
            WorkloadPhase::Running
        } else {
            WorkloadPhase::Stalled
        };
        prop_assert_eq!(phase, expected);
        asked.version = 1;
        asked.apply(&mut world);
    }
    rest(&mut world, asked, 40)?;
    world.settle();
    let wanted = world.wanted("web");
    let image = format!("registry.example/web:{}", asked.version);
    prop_assert_eq!(wanted.len(), usize::try_from(asked.replicas).unwrap());
    prop_assert!(wanted.iter().all(|(.., one)| one.image == image));
    prop_assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    Ok(())
}

/// A version that never runs has reached a slot on a machine that is then drained. The next slot
/// waits for the new version in that case too.
#[test]
fn in_place_a_new_version_that_is_ill_and_has_to_leave_counts() {
    use Act::{Agents, Drain, NewLeader, Pause, Plan, Strategy, Version, WorkloadPlanner};
    let acts = [
        Strategy(2),
        WorkloadPlanner(1),
        Agents,
        Plan,
        WorkloadPlanner(552),
        Version(2),
        Agents,
        Plan,
        Version(1),
        Plan,
        Agents,
        WorkloadPlanner(56),
        Plan,
        Agents,
        Version(2),
        Plan,
        Agents,
        NewLeader,
        Pause(true),
        Agents,
        Agents,
        Agents,
        Plan,
        Drain(2, false),
        Strategy(2),
        Plan,
        Drain(2, true),
        WorkloadPlanner(494),
    ];
    play(&acts).unwrap();
}

proptest! {
    #![proptest_config(random_cases(16))]

    #[test]
    fn what_serves_goes_on_serving(acts in proptest::collection::vec(act(0..2), 1..80)) {
        play(&acts)?;
    }

    #[test]
    fn in_place_one_is_missing_at_most(acts in proptest::collection::vec(act(2..3), 1..80)) {
        let mut all = vec![Act::Strategy(2)];
        all.extend(acts);
        play(&all)?;
    }

    #[test]
    fn strategies_may_change_in_the_middle(acts in proptest::collection::vec(act(0..4), 1..80)) {
        play(&acts)?;
    }
}
