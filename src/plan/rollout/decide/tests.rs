use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use proptest::{prelude::*, strategy::Strategy};

use super::*;
use crate::rollout::{
    blocked::{Blocked, LeaveObstacle, NotPlaced, WorkloadOutcome},
    classify::{classify_all, may_be_ending, remains},
    slots::SlotSet,
};
use kat_types::{
    api::{Health, InstancePhase},
    assignment::DesiredRun,
    reason::Reason,
    store::records::InstanceRecord,
};

const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Healthy,
    /// It has no health check, and has run for one second.
    Began,
    Starting,
    Unhealthy,
    Failed,
    Evicted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Machine {
    Ready,
    Drained,
    DrainedByForce,
    Unreachable,
    Lost,
}

/// An instance of a version; version 1 is the wanted one.
#[derive(Debug, Clone, Copy)]
struct Made {
    slot: u32,
    version: u8,
    program: Program,
    machine: Machine,
    stopping: bool,
}

const fn made(slot: u32, version: u8, program: Program, machine: Machine) -> Made {
    Made {
        slot,
        version,
        program,
        machine,
        stopping: false,
    }
}

impl Made {
    fn record(self) -> InstanceRecord {
        let (phase, health, since) = match self.program {
            Program::Healthy => (InstancePhase::Running, Health::Healthy, NOW - 60),
            Program::Began => (InstancePhase::Running, Health::NotApplicable, NOW - 1),
            Program::Starting => (InstancePhase::Starting, Health::NotApplicable, NOW - 60),
            Program::Unhealthy => (InstancePhase::Running, Health::Unhealthy, NOW - 60),
            Program::Failed => (InstancePhase::Failed, Health::NotApplicable, NOW - 60),
            Program::Evicted => (InstancePhase::Scheduled, Health::NotApplicable, NOW - 600),
        };
        let reason = match self.program {
            Program::Evicted => Reason::Evicted.to_string(),
            _ => String::new(),
        };
        InstanceRecord {
            phase,
            health,
            reason,
            since: Some(at(since)),
            ..InstanceRecord::default()
        }
    }

    fn assignment(self, number: usize) -> Arc<Assignment> {
        let assignment = serde_json::json!({
            "schema": 1,
            "instance": format!("web-{number}"),
            "namespace": "default",
            "workload": "web",
            "workloadUid": "uid",
            "workloadType": "Service",
            "slot": self.slot,
            "generation": self.version,
            "templateHash": format!("version {}", self.version),
            "user": kat_types::assignment::WorkloadUser::from_index(1, "default", "web").unwrap(),
            "address": "10.0.0.1",
            "image": "registry.example/web:1",
            "container": kat_types::resource::Container::default(),
            "restartPolicy": {"condition": "Always"},
            "created": at(NOW - 1000 + i64::try_from(number).unwrap()),
        });
        let assignment: Assignment = serde_json::from_value(assignment).unwrap();
        Arc::new(Assignment {
            wanted: match self.stopping {
                true => DesiredRun::Stopped,
                false => DesiredRun::Running,
            },
            ..assignment
        })
    }
}

/// The instances of a workload, and how its rollout is.
#[derive(Debug, Clone)]
struct Scene {
    instances: Vec<(String, Made, InstanceRecord, Arc<Assignment>)>,
    replicas: u32,
    at_once: usize,
    stops_first: bool,
    simultaneous: bool,
    paused: bool,
    stalled: bool,
    /// Slots whose next instance is assigned and not started.
    successors: BTreeMap<u32, (InstanceRecord, String, Arc<Assignment>)>,
    /// Slots whose machines have no room for the wanted version.
    without_place: BTreeSet<u32>,
}

impl Scene {
    fn new(replicas: u32, instances: &[Made]) -> Self {
        let numbered = instances.iter().enumerate();
        Self {
            instances: numbered
                .map(|(number, made)| {
                    let id = format!("web-{number}");
                    (id, *made, made.record(), made.assignment(number))
                })
                .collect(),
            replicas,
            at_once: 1,
            stops_first: false,
            simultaneous: false,
            paused: false,
            stalled: false,
            successors: BTreeMap::new(),
            without_place: BTreeSet::new(),
        }
    }

    /// With a successor of an instance that is replaced in place in this slot.
    fn with_successor(mut self, slot: u32, is_prepared: bool) -> Self {
        let made = made(slot, 1, Program::Starting, Machine::Ready);
        let assignment = Assignment {
            wanted: DesiredRun::Prepared,
            ..Assignment::clone(&made.assignment(0))
        };
        let id = format!("next-{slot}");
        let record = InstanceRecord {
            phase: match is_prepared {
                true => InstancePhase::Prepared,
                false => InstancePhase::Pulling,
            },
            ..InstanceRecord::default()
        };
        let successor = (record, id, Arc::new(assignment));
        self.successors.insert(slot, successor);
        self
    }

    fn prepared(&self) -> Vec<LiveInstance<'_>> {
        let successors = self.successors.values();
        let live = successors.map(|(record, id, assignment)| LiveInstance {
            id,
            node: "n1",
            assignment,
            record: Some(record),
            current: true,
            away: false,
            heard: None,
            leaves: false,
            forced_out: false,
            waits: false,
            fenced: false,
            evicted: false,
        });
        live.collect()
    }

    fn in_place(self) -> Self {
        Self {
            stops_first: true,
            ..self
        }
    }

    fn live(&self) -> Vec<LiveInstance<'_>> {
        let all = self.instances.iter();
        all.map(|(id, made, record, assignment)| {
            let away = matches!(made.machine, Machine::Unreachable | Machine::Lost);
            LiveInstance {
                id,
                node: "n1",
                assignment,
                record: Some(record),
                current: made.version == 1,
                away,
                heard: None,
                leaves: !matches!(made.machine, Machine::Ready | Machine::Unreachable),
                forced_out: made.machine == Machine::DrainedByForce,
                waits: false,
                fenced: false,
                evicted: made.program == Program::Evicted && !away,
            }
        })
        .collect()
    }

    fn facts<'l>(&self, all: &'l [LiveInstance<'_>]) -> RolloutFacts<'l> {
        let others = || all.iter().filter(|live| !live.current && live.is_wanted());
        RolloutFacts {
            strategy: crate::rollout::Strategy {
                at_once: self.at_once,
                stops_first: self.stops_first || self.simultaneous,
                simultaneous: self.simultaneous,
            },
            now: at(NOW),
            paused: self.paused,
            held: self.paused || self.stalled,
            rolling: others().next().is_some(),
            other_runs: others().any(|live| !live.away),
            any_ending: all.iter().any(may_be_ending),
            other: remains(all, &SlotSet::Replicas(self.replicas))
                .values()
                .find_map(|here| here.other),
            starts_earlier: false,
            data_moves: false,
            without_place: self.without_place.clone(),
            failures: 0,
        }
    }

    /// Calls `check` with the slots, their budget and the steps.
    fn decided<T>(
        &self,
        check: impl FnOnce(&[ClassifiedSlot<'_, '_>], RolloutBudget, &[SlotStep<'_, '_>]) -> T,
    ) -> T {
        let all = self.live();
        let facts = self.facts(&all);
        let prepared = self.prepared();
        let successors: Vec<_> = prepared.iter().collect();
        let numbers = SlotSet::Replicas(self.replicas);
        let wanted = WantedSlots::of(&all, &successors, &numbers, &BTreeSet::new());
        let slots = classify_all(&all, &wanted, &numbers, &facts);
        let budget = RolloutBudget::of(&slots, &facts);
        let mut steps = decide_surplus(&wanted, &numbers, &facts);
        steps.extend(decide(&slots, &facts, budget));
        check(&slots, budget, &steps)
    }

    fn words(&self) -> Vec<String> {
        self.decided(|_, _, steps| steps.iter().map(words).collect())
    }
}

fn words(step: &SlotStep<'_, '_>) -> String {
    let next = |next: &Option<NextVersion<'_>>| match next {
        None => "stop first",
        Some(NextVersion::Wanted) => "wanted version",
        Some(NextVersion::Like(_)) => "own version",
        Some(NextVersion::Earlier) => "earlier version",
    };
    let action = match &step.action {
        SlotAction::Stop(live, reason) => format!("stop {}: {}", live.id, reason.words()),
        SlotAction::Create(version) => format!("create: {}", next(&Some(*version))),
        SlotAction::Start(live) => format!("start {}", live.id),
        SlotAction::Prepare(live) => format!("prepare the successor of {}", live.id),
        SlotAction::AwaitSuccessor(live, _) => format!("await the successor of {}", live.id),
        SlotAction::UpdateInPlace(live) => format!("update {} in place", live.id),
        SlotAction::UpdateBeside(live) => format!("update {}", live.id),
        SlotAction::MoveInPlace(live) => format!("move {} in place", live.id),
        SlotAction::MoveToSuccessor(live) => format!("move {} to its successor", live.id),
        SlotAction::MoveBeside(live, version) => {
            format!("move {}: {}", live.id, next(&Some(*version)))
        }
        SlotAction::ForceOut(live, _) => format!("force out {}", live.id),
        SlotAction::ReplaceLost(live, version) => {
            format!("replace lost {}: {}", live.id, next(&Some(*version)))
        }
        SlotAction::ReplaceEnded(live, version) => {
            format!("replace ended {}: {}", live.id, next(version))
        }
        SlotAction::ReplaceEvicted(live, version) => {
            format!("replace evicted {}: {}", live.id, next(version))
        }
        SlotAction::AwaitEnd(live) => format!("await the end of {}", live.id),
        SlotAction::CannotLeave(live, waiting) => format!("{} stays: {waiting:?}", live.id),
        SlotAction::Wait(left) => format!("wait {} s", left.as_secs()),
    };
    format!("{}: {action}", step.slot)
}

/// The instance that a step ends, if it is applied.
fn ended<'a>(step: &SlotStep<'_, 'a>) -> Option<&'a str> {
    match step.action {
        SlotAction::Stop(live, _)
        | SlotAction::Prepare(live)
        | SlotAction::UpdateInPlace(live)
        | SlotAction::MoveInPlace(live)
        | SlotAction::MoveToSuccessor(live)
        | SlotAction::ReplaceEnded(live, _)
        | SlotAction::ReplaceEvicted(live, _) => Some(live.id),
        _ => None,
    }
}

/// The version of the instance that a step creates.
fn created<'l>(step: &SlotStep<'l, '_>) -> Option<NextVersion<'l>> {
    match step.action {
        SlotAction::Create(next)
        | SlotAction::MoveBeside(_, next)
        | SlotAction::ReplaceLost(_, next) => Some(next),
        SlotAction::UpdateBeside(_) | SlotAction::Start(_) => Some(NextVersion::Wanted),
        SlotAction::ReplaceEnded(_, next) | SlotAction::ReplaceEvicted(_, next) => next,
        _ => None,
    }
}

type Row = (
    u8,
    Program,
    Machine,
    &'static [&'static str],
    &'static [&'static str],
);

#[test]
fn one_instance_alone_in_its_slot_gets_the_step_of_its_state() {
    use {Machine::*, Program::*};
    // Version, program, machine; the step with a successor beside it, and in place.
    let table: [Row; 17] = [
        (1, Healthy, Ready, &[], &[]),
        (1, Began, Ready, &[], &[]),
        (1, Starting, Ready, &[], &[]),
        (1, Unhealthy, Ready, &[], &[]),
        (
            1,
            Failed,
            Ready,
            &["0: replace ended web-0: wanted version"],
            &["0: replace ended web-0: stop first"],
        ),
        (
            1,
            Evicted,
            Ready,
            &["0: replace evicted web-0: wanted version"],
            &["0: replace evicted web-0: stop first"],
        ),
        (
            1,
            Healthy,
            Drained,
            &["0: move web-0: wanted version"],
            &["0: prepare the successor of web-0"],
        ),
        (
            1,
            Unhealthy,
            Drained,
            &["0: move web-0: wanted version"],
            &["0: move web-0 in place"],
        ),
        (
            1,
            Failed,
            Drained,
            &["0: replace ended web-0: wanted version"],
            &["0: replace ended web-0: stop first"],
        ),
        (1, Healthy, Unreachable, &[], &[]),
        (
            1,
            Healthy,
            Lost,
            &["0: replace lost web-0: wanted version"],
            &["0: replace lost web-0: wanted version"],
        ),
        (
            0,
            Healthy,
            Ready,
            &["0: update web-0"],
            &["0: prepare the successor of web-0"],
        ),
        (
            0,
            Failed,
            Ready,
            &["0: update web-0"],
            &["0: prepare the successor of web-0"],
        ),
        (
            0,
            Healthy,
            Drained,
            &["0: update web-0"],
            &["0: prepare the successor of web-0"],
        ),
        (0, Healthy, Unreachable, &[], &[]),
        (
            0,
            Healthy,
            Lost,
            &["0: replace lost web-0: wanted version"],
            // The slot is down, which is all that the budget allows, and no instance of the wanted
            // version has shown that it works.
            &["0: replace lost web-0: own version"],
        ),
        (
            0,
            Starting,
            Ready,
            &["0: update web-0"],
            // A slot that is starting is down.
            &[],
        ),
    ];
    for (version, program, machine, beside, in_place) in table {
        let scene = Scene::new(1, &[made(0, version, program, machine)]);
        let case = format!("version {version}, {program:?}, {machine:?}");
        assert_eq!(scene.words(), beside, "{case}");
        assert_eq!(scene.in_place().words(), in_place, "{case}, in place");
    }
}

#[test]
fn in_place_an_instance_is_stopped_when_its_successor_is_prepared() {
    use Machine::{DrainedByForce, Ready};
    use Program::{Failed, Healthy};
    let table: [(Program, Machine, bool, &[&str]); 6] = [
        (Healthy, Ready, false, &[]),
        (Healthy, Ready, true, &["0: update web-0 in place"]),
        (
            Failed,
            Ready,
            false,
            &["0: replace ended web-0: stop first"],
        ),
        (Failed, Ready, true, &["0: update web-0 in place"]),
        (
            Healthy,
            DrainedByForce,
            false,
            &["0: update web-0 in place"],
        ),
        (Healthy, DrainedByForce, true, &["0: update web-0 in place"]),
    ];
    for (program, machine, is_prepared, steps) in table {
        let scene = Scene::new(1, &[made(0, 0, program, machine)]).in_place();
        let scene = scene.with_successor(0, is_prepared);
        assert_eq!(
            scene.words(),
            steps,
            "{program:?}, {machine:?}, {is_prepared}"
        );
    }
}

#[test]
fn in_place_an_instance_leaves_its_machine_when_its_successor_is_prepared() {
    use Machine::{Drained, DrainedByForce};
    use Program::{Failed, Healthy, Unhealthy};
    let table: [(Program, Machine, bool, &str); 8] = [
        (Healthy, Drained, false, "0: await the successor of web-0"),
        (Healthy, Drained, true, "0: move web-0 to its successor"),
        // Nothing is lost by moving it at once.
        (Unhealthy, Drained, false, "0: move web-0 in place"),
        (Unhealthy, Drained, true, "0: move web-0 to its successor"),
        (Failed, Drained, false, "0: replace ended web-0: stop first"),
        (Failed, Drained, true, "0: replace ended web-0: stop first"),
        (Healthy, DrainedByForce, false, "0: move web-0 in place"),
        (
            Healthy,
            DrainedByForce,
            true,
            "0: move web-0 to its successor",
        ),
    ];
    for (program, machine, is_prepared, step) in table {
        let scene = Scene::new(1, &[made(0, 1, program, machine)]).in_place();
        let scene = scene.with_successor(0, is_prepared);
        assert_eq!(
            scene.words(),
            [step],
            "{program:?}, {machine:?}, {is_prepared}"
        );
    }
}

/// Both may not be down at once: the second one waits until the first one's successor serves.
#[test]
fn in_place_of_two_prepared_moves_one_stops_at_a_time() {
    let leaving = |slot| made(slot, 1, Program::Healthy, Machine::Drained);
    let scene = Scene::new(2, &[leaving(0), leaving(1)]).in_place();
    let scene = scene.with_successor(0, true).with_successor(1, true);
    assert_eq!(scene.words(), ["0: move web-0 to its successor"]);
}

#[test]
fn an_emptied_slot_starts_its_prepared_successor_or_its_old_version_again() {
    let gone = Made {
        stopping: true,
        ..made(0, 0, Program::Starting, Machine::Lost)
    };
    let scene = || Scene::new(1, &[gone]).in_place();
    assert_eq!(scene().words(), ["0: create: wanted version"]);
    let prepared = scene().with_successor(0, true);
    assert_eq!(prepared.words(), ["0: start next-0"]);
    let preparing = scene().with_successor(0, false);
    assert_eq!(preparing.words(), ["0: create: own version"]);
}

#[test]
fn simultaneously_none_is_stopped_before_every_successor_is_prepared() {
    let old = |slot| made(slot, 0, Program::Healthy, Machine::Ready);
    let scene = Scene {
        simultaneous: true,
        ..Scene::new(2, &[old(0), old(1)]).in_place()
    };
    let prepare = |slot: u32| format!("{slot}: prepare the successor of web-{slot}");
    assert_eq!(scene.clone().words(), [prepare(0), prepare(1)]);
    let one = scene.clone().with_successor(0, true);
    assert_eq!(one.words(), [prepare(1)]);
    let failing = one.clone().with_successor(1, false);
    assert!(failing.words().is_empty());
    let both = one.with_successor(1, true);
    let steps = ["0: update web-0 in place", "1: update web-1 in place"];
    assert_eq!(both.words(), steps);
}

#[test]
fn a_slot_without_a_place_says_why_and_takes_nothing_of_the_budget() {
    let old = |slot| made(slot, 0, Program::Healthy, Machine::Ready);
    let scene = |replicas, instances: &[Made]| Scene {
        without_place: BTreeSet::from([0]),
        ..Scene::new(replicas, instances)
    };
    let update = |slot: u32| format!("{slot}: update web-{slot}");
    let outdated = scene(3, &[old(0), old(1), old(2)]);
    assert_eq!(outdated.words(), [update(0), update(1)]);
    let prepare = |slot: u32| format!("{slot}: prepare the successor of web-{slot}");
    assert_eq!(outdated.in_place().words(), [prepare(0), prepare(1)]);
    // It says so also while another slot uses up the budget.
    let busy = scene(
        3,
        &[
            old(0),
            made(1, 1, Program::Starting, Machine::Ready),
            old(2),
        ],
    );
    assert_eq!(busy.words(), [update(0)]);
    // An empty one is not down, since nothing could be up there.
    let empty = scene(2, &[old(1)]).in_place();
    let create = "0: create: wanted version";
    let steps = [create, "1: prepare the successor of web-0"];
    assert_eq!(empty.words(), steps);
    let with_place = Scene::new(2, &[old(1)]).in_place();
    assert_eq!(with_place.words(), [create]);
}

/// Two instances leave their machines, and what is to take their places never works.
#[test]
fn stuck_moves_give_way_to_another_version_one_after_the_other() {
    let moving = |slot| {
        [
            made(slot, 0, Program::Healthy, Machine::Drained),
            made(slot, 0, Program::Unhealthy, Machine::Ready),
        ]
    };
    let instances = [moving(0), moving(1)].concat();
    let steps = [
        "0: stop web-1: a newer version takes its place",
        "0: update web-0",
    ];
    assert_eq!(Scene::new(2, &instances).words(), steps);
}

/// The old program of one slot has ended, and its next instance cannot be prepared.
#[test]
fn simultaneously_an_ended_program_does_not_stop_the_others() {
    let old = |slot| made(slot, 0, Program::Healthy, Machine::Ready);
    let gone = |slot| Made {
        stopping: true,
        ..made(slot, 0, Program::Starting, Machine::Lost)
    };
    let scene = |instances: &[Made]| Scene {
        simultaneous: true,
        ..Scene::new(2, instances).in_place()
    };
    let one_runs = scene(&[gone(0), old(1)]);
    let one_runs = one_runs.with_successor(0, false).with_successor(1, true);
    assert_eq!(one_runs.words(), ["0: create: own version"]);
    // Neither do both versions run where both have ended.
    let none_runs = scene(&[gone(0), gone(1)]);
    let none_runs = none_runs.with_successor(0, false).with_successor(1, true);
    let steps = ["0: create: own version", "1: create: own version"];
    assert_eq!(none_runs.words(), steps);
}

#[test]
fn an_empty_slot_of_a_paused_rollout_gets_the_version_of_its_neighbours() {
    let old = made(0, 0, Program::Healthy, Machine::Ready);
    let scene = Scene::new(2, &[old]);
    assert_eq!(
        scene.words(),
        ["1: create: wanted version", "0: update web-0"]
    );
    let paused = Scene {
        paused: true,
        ..scene
    };
    assert_eq!(paused.words(), ["1: create: own version"]);
}

#[test]
fn in_place_an_empty_slot_waits_for_the_end_of_its_instance() {
    let stopping = Made {
        stopping: true,
        ..made(0, 0, Program::Healthy, Machine::Ready)
    };
    let scene = Scene::new(1, &[stopping]);
    assert_eq!(scene.words(), ["0: create: wanted version"]);
    assert_eq!(scene.in_place().words(), [""; 0]);
}

#[test]
fn in_place_nothing_leaves_a_machine_while_another_replica_does_not_work() {
    let drained = made(0, 1, Program::Healthy, Machine::Drained);
    let forced = made(0, 1, Program::Healthy, Machine::DrainedByForce);
    let broken = made(1, 1, Program::Unhealthy, Machine::Ready);
    let scene = Scene::new(2, &[drained, broken]).in_place();
    assert_eq!(scene.words(), ["0: web-0 stays: OthersBroken(1)"]);
    let scene = Scene::new(2, &[forced, broken]).in_place();
    assert_eq!(scene.words(), ["0: force out web-0"]);
}

#[test]
fn each_replaced_failure_makes_the_delay_of_the_next_one_longer() {
    let failed = |slot| made(slot, 1, Program::Failed, Machine::Ready);
    let failures: Vec<Made> = (0..5).map(failed).collect();
    let scene = Scene::new(5, &failures);
    // The programs ended a minute ago: delays of 10, 20 and 40 seconds have passed.
    let replaced = |slot| format!("{slot}: replace ended web-{slot}: wanted version");
    let expected = [
        replaced(0),
        replaced(1),
        replaced(2),
        "3: wait 20 s".to_owned(),
        "4: wait 20 s".to_owned(),
    ];
    assert_eq!(scene.words(), expected);
}

#[test]
fn surplus_instances_serve_until_the_slots_do() {
    let instances = [
        made(0, 1, Program::Starting, Machine::Ready),
        made(1, 1, Program::Healthy, Machine::Drained),
        made(2, 1, Program::Unhealthy, Machine::Ready),
    ];
    let expected = [
        "2: stop web-2: fewer replicas are wanted",
        "1: web-1 stays: ServesForAnother",
    ];
    assert_eq!(Scene::new(1, &instances).words(), expected);
}

/// A lost machine has returned, and its instance was replaced meanwhile.
#[test]
fn of_two_surplus_instances_of_a_slot_one_serves_until_the_slots_do() {
    let instances = [
        made(0, 1, Program::Starting, Machine::Ready),
        made(1, 1, Program::Starting, Machine::Ready),
        made(2, 1, Program::Healthy, Machine::Drained),
        made(2, 1, Program::Healthy, Machine::Ready),
        made(2, 2, Program::Healthy, Machine::Ready),
    ];
    let expected = [
        "2: stop web-4: fewer replicas are wanted",
        "2: stop web-2: its slot has another instance",
    ];
    assert_eq!(Scene::new(2, &instances).words(), expected);
}

#[test]
fn the_last_trouble_with_secrets_hides_a_lack_of_machines() {
    let secrets = |message: &str| {
        NotPlaced::Secrets(crate::secrets::SecretTrouble {
            reason: Reason::SecretUnreadable,
            message: message.to_owned(),
        })
    };
    let outcome = WorkloadOutcome {
        blocked: vec![
            secrets("first").into(),
            secrets("second").into(),
            NotPlaced::NoHostPort.into(),
        ],
        ..WorkloadOutcome::default()
    };
    let expected = (Reason::SecretUnreadable, "second".to_owned());
    assert_eq!(outcome.not_placed(), Some(expected));
    assert_eq!(outcome.drain_blocked(), None);
}

#[test]
fn an_instance_without_a_successor_says_so_as_placement_and_as_drain() {
    let scene = Scene::new(1, &[made(0, 1, Program::Healthy, Machine::Drained)]);
    let all = scene.live();
    let obstacle = LeaveObstacle::NotPlaced {
        cause: NotPlaced::NoUser(7),
        advice: "; ask".to_owned(),
    };
    let outcome = WorkloadOutcome {
        blocked: vec![Blocked::cannot_leave(&all[0], obstacle)],
        ..WorkloadOutcome::default()
    };
    let drain = "web-0 can't leave n1: index 7 has no user; ask";
    let placement = "index 7 has no user";
    let drain = (Reason::Unschedulable, drain.to_owned());
    assert_eq!(outcome.drain_blocked(), Some(drain));
    let placement = (Reason::Unschedulable, placement.to_owned());
    assert_eq!(outcome.not_placed(), Some(placement));
}

fn instances() -> impl Strategy<Value = Made> {
    let programs = prop_oneof![
        4 => Just(Program::Healthy),
        1 => Just(Program::Began),
        1 => Just(Program::Starting),
        1 => Just(Program::Unhealthy),
        1 => Just(Program::Failed),
        1 => Just(Program::Evicted),
    ];
    let machines = prop_oneof![
        5 => Just(Machine::Ready),
        2 => Just(Machine::Drained),
        1 => Just(Machine::DrainedByForce),
        1 => Just(Machine::Unreachable),
        1 => Just(Machine::Lost),
    ];
    let stopping = prop_oneof![5 => Just(false), 1 => Just(true)];
    (0u32..7, 0u8..3, programs, machines, stopping).prop_map(
        |(slot, version, program, machine, stopping)| Made {
            slot,
            version,
            program,
            machine,
            stopping,
        },
    )
}

fn scenes() -> impl Strategy<Value = Scene> {
    let made = proptest::collection::vec(instances(), 0..12);
    let ways = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let successors = proptest::collection::btree_map(0u32..6, any::<bool>(), 0..6);
    (made, successors, 0u32..6, 1usize..4, ways).prop_map(
        |(made, successors, replicas, at_once, (stops_first, simultaneous, paused, stalled))| {
            let scene = Scene {
                at_once,
                stops_first,
                simultaneous: simultaneous && stops_first,
                paused,
                stalled,
                ..Scene::new(replicas, &made)
            };
            // A slot with an instance of the wanted version that may stay has no successor.
            let takes = |slot: u32| {
                let live = scene.live();
                let mut here = live.iter().filter(|live| live.assignment.slot == slot);
                slot >= replicas
                    || here.any(|live| live.is_wanted() && live.current && !live.leaves)
            };
            let open: Vec<_> = successors
                .into_iter()
                .filter(|(slot, _)| !takes(*slot))
                .collect();
            open.into_iter().fold(scene, |scene, (slot, is_prepared)| {
                scene.with_successor(slot, is_prepared)
            })
        },
    )
}

/// The moves that counted before these steps, and that an update ends.
fn given_up(
    slots: &[ClassifiedSlot<'_, '_>],
    steps: &[SlotStep<'_, '_>],
    stops_first: bool,
) -> usize {
    let stuck = slots.iter().filter(|slot| {
        let SlotState::StuckMove { mover, .. } = slot.state else {
            return false;
        };
        let counted = !(stops_first && slot.begins);
        counted && steps.iter().any(|step| ended(step) == Some(mover.id))
    });
    stuck.count()
}

/// The steps that disturb an instance whose machine answers and whose program has not ended, by
/// whether they update it.
fn disturbing(steps: &[SlotStep<'_, '_>]) -> (usize, usize) {
    let works = |live: &LiveInstance<'_>| !live.away && !live.has_ended();
    let (mut updates, mut moves) = (0, 0);
    for step in steps {
        match step.action {
            // The successor of an instance of the wanted version is for another machine.
            SlotAction::Prepare(live) if works(live) && live.current => moves += 1,
            SlotAction::UpdateBeside(live)
            | SlotAction::Prepare(live)
            | SlotAction::UpdateInPlace(live)
                if works(live) =>
            {
                updates += 1;
            }
            SlotAction::MoveBeside(live, _)
            | SlotAction::MoveInPlace(live)
            | SlotAction::MoveToSuccessor(live)
                if works(live) =>
            {
                moves += 1;
            }
            _ => {}
        }
    }
    (updates, moves)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_slot_with_a_healthy_instance_of_the_wanted_version_keeps_one(scene in scenes()) {
        let all = scene.live();
        let touched: BTreeSet<String> = scene.decided(|_, _, steps| {
            steps.iter().filter_map(ended).map(str::to_owned).collect()
        });
        let keeps = |live: &&LiveInstance<'_>| {
            let may_stay = live.is_wanted() && live.current && !live.leaves;
            may_stay && live.assignment.slot < scene.replicas && live.healthy()
        };
        let mut kept: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        for live in all.iter().filter(keeps) {
            kept.entry(live.assignment.slot).or_default().push(live.id);
        }
        for (slot, ids) in kept {
            let stays = ids.iter().any(|id| !touched.contains(*id));
            prop_assert!(stays, "slot {slot} loses {ids:?}");
        }
    }

    #[test]
    fn no_more_slots_are_disturbed_than_the_strategy_allows(scene in scenes()) {
        let scene = Scene { simultaneous: false, ..scene };
        let (budget, (updates, moves), given_up) = scene.decided(|slots, budget, steps| {
            let given_up = given_up(slots, steps, budget.strategy.stops_first);
            (budget, disturbing(steps), given_up)
        });
        // While the rollout is held, moves have a budget of their own.
        prop_assert!(updates <= scene.at_once, "{updates} updates");
        prop_assert!(moves <= scene.at_once, "{moves} moves");
        if !budget.held {
            let before = budget.busy + budget.moving + budget.down;
            let after = before + updates + moves - given_up;
            prop_assert!(after <= before.max(scene.at_once), "{updates} updates, {moves} moves");
        }
    }

    #[test]
    fn in_place_no_serving_slot_is_stopped_while_as_many_as_allowed_are_down(scene in scenes()) {
        let scene = Scene { simultaneous: false, ..scene.in_place() };
        let (down, stopped) = scene.decided(|_, budget, steps| {
            let stopped = steps.iter().filter(|step| match step.action {
                // An agent of an earlier version prepares nothing: the instance is stopped at once.
                SlotAction::Prepare(live)
                | SlotAction::UpdateInPlace(live)
                | SlotAction::MoveInPlace(live)
                | SlotAction::MoveToSuccessor(live) => live.healthy(),
                _ => false,
            });
            (budget.down, stopped.count())
        });
        prop_assert!(down + stopped <= down.max(scene.at_once), "{down} down, {stopped} stopped");
    }

    #[test]
    fn with_a_successor_beside_it_a_serving_slot_keeps_a_serving_instance(scene in scenes()) {
        let scene = Scene { stops_first: false, simultaneous: false, ..scene };
        let all = scene.live();
        let gone: BTreeSet<String> = scene.decided(|_, _, steps| {
            steps.iter().filter_map(ended).map(str::to_owned).collect()
        });
        for slot in 0..scene.replicas {
            let here = |live: &&LiveInstance<'_>| {
                live.is_wanted() && live.assignment.slot == slot && live.healthy()
            };
            let served = all.iter().any(|live| here(&live));
            let serves = all.iter().filter(here).any(|live| !gone.contains(live.id));
            prop_assert_eq!(served, serves, "slot {}", slot);
        }
    }

    #[test]
    fn no_instance_is_ended_twice_and_no_slot_gets_two_of_a_version(scene in scenes()) {
        scene.decided(|slots, _, steps| {
            let ids: Vec<&str> = steps.iter().filter_map(ended).collect();
            let once: BTreeSet<&str> = ids.iter().copied().collect();
            prop_assert_eq!(once.len(), ids.len());
            for slot in slots {
                // In a held rollout a slot may get an instance of each version of a pair.
                let here = steps.iter().filter(|step| step.slot == slot.number);
                let versions = here.filter_map(created).map(|next| next == NextVersion::Wanted);
                let (new, old): (Vec<bool>, Vec<bool>) = versions.partition(|is_new| *is_new);
                prop_assert!(new.len() <= 1 && old.len() <= 1, "slot {}", slot.number);
            }
            Ok(())
        })?;
    }

    #[test]
    fn in_place_no_instance_is_replaced_without_a_prepared_successor(scene in scenes()) {
        let scene = scene.in_place();
        scene.decided(|slots, _, steps| {
            for step in steps {
                let (live, may_be_stopped) = match step.action {
                    SlotAction::UpdateInPlace(live) | SlotAction::MoveToSuccessor(live) => (live, false),
                    // No successor of an earlier version is prepared.
                    SlotAction::MoveInPlace(live) => (live, !live.current || !live.healthy()),
                    _ => continue,
                };
                let mut here = slots.iter().filter(|slot| slot.number == step.slot);
                let is_prepared = here.any(|slot| slot.successor.is_some_and(LiveInstance::is_prepared));
                prop_assert!(is_prepared || live.forced_out || may_be_stopped, "{}", words(step));
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_paused_rollout_updates_nothing(scene in scenes()) {
        let scene = Scene { paused: true, ..scene };
        let (updates, _) = scene.decided(|_, _, steps| disturbing(steps));
        prop_assert_eq!(updates, 0);
    }
}

/// `katcall drain` does not give up while an instance may still leave.
#[test]
fn an_obstacle_to_a_drain_that_ends_by_itself_is_told_first_and_marked() {
    let scene = Scene::new(1, &[made(0, 1, Program::Healthy, Machine::Drained)]);
    let all = scene.live();
    let placeless = || LeaveObstacle::NotPlaced {
        cause: NotPlaced::NoUser(7),
        advice: String::new(),
    };
    let passing = [
        LeaveObstacle::NotPrepared("why".to_owned()),
        LeaveObstacle::OthersBroken(1),
        LeaveObstacle::ServesForAnother,
        LeaveObstacle::DataMoves("half".to_owned()),
    ];
    for obstacle in passing {
        let message = format!("web-0 can't leave n1 yet: {obstacle}");
        let outcome = WorkloadOutcome {
            blocked: vec![
                Blocked::cannot_leave(&all[0], obstacle),
                Blocked::cannot_leave(&all[0], placeless()),
            ],
            ..WorkloadOutcome::default()
        };
        assert_eq!(outcome.drain_blocked(), Some((Reason::DrainWaits, message)));
    }
}
