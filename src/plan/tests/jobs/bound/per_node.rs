//! Schedules that each machine of a Job with one instance on each keeps for itself.

use super::*;
use kat_types::{
    assignment::BOUND_PER_NODE_SCHEMA,
    store::jobs::{manual_run, run_of_machines},
};

impl World {
    /// A Job with one instance on each of these machines, which keep its schedule from the first minute on.
    fn with_own_schedules(machines: usize, change: serde_json::Value) -> Self {
        let mut world = Self::with_machines(machines);
        world.own_job(change);
        world.live(60, 10);
        world
    }

    fn own_job(&mut self, change: serde_json::Value) {
        let mut spec = json!({
            "schedule": "*/5 * * * *", "catchUp": "None", "backoffLimit": 0, "completions": "PerNode",
            "parallelism": 4, "successfulHistory": 100, "failedHistory": 100,
        });
        let spec_fields = spec.as_object_mut().unwrap();
        spec_fields.extend(change.as_object().unwrap().clone());
        self.job(spec);
    }

    /// The machines whose schedules are not taken back.
    fn kept_on(&mut self) -> Vec<String> {
        let wanted = self.wanted("dump").into_iter();
        let kept = wanted.filter(|(_, _, one)| {
            let bound = one.bound.as_ref();
            bound.is_some_and(|bound| bound.per_node && !bound.closed)
        });
        let mut on: Vec<String> = kept.map(|one| one.1).collect();
        on.sort();
        on
    }

    fn kept_by(&mut self, node: &str) -> Arc<Assignment> {
        let mut wanted = self.wanted("dump").into_iter();
        let found = wanted.find(|(_, on, one)| on == node && one.bound.is_some());
        found.unwrap().2
    }

    /// The machine says that it has begun a run, and has decided the times until `handled`.
    fn tells(&mut self, node: &str, run: BoundRun, handled: Option<&str>) {
        let machine = self.at(node);
        machine
            .bound_runs
            .retain(|one| one.scheduled != run.scheduled);
        machine.bound_runs.push(run);
        machine.bound_handled = handled.map(at).max(machine.bound_handled);
    }

    fn is_plugged_in(&mut self, node: &str, is_it: bool) {
        let machine = self.at(node);
        (machine.speaks, machine.obeys) = (is_it, is_it);
    }

    /// Asks for a run by hand, as the API does.
    fn ask_by_hand(&mut self) -> u64 {
        let snapshot = self.snapshot();
        let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "dump")];
        let spec = entry.parsed.as_ref().unwrap().job.as_ref().unwrap();
        let now = self.now;
        let mut made = kat_plan::new_run(spec, &entry.meta.value, RunCause::Manual, now);
        let mut state = self.job_state();
        state.last_number += 1;
        made.number = state.last_number;
        self.write(keys::job_state(NAMESPACE, "dump"), &state);
        let key = keys::job_run(NAMESPACE, "dump", &manual_run(made.number));
        self.write(key, &made);
        made.number
    }
}

fn nodes_of(run: &JobRunRecord) -> Vec<&str> {
    let machines = run.machines.as_ref().unwrap();
    let mut nodes: Vec<&str> = machines.iter().map(|one| one.node.as_str()).collect();
    nodes.sort_unstable();
    nodes
}

#[test]
fn each_machine_keeps_the_schedule_and_their_parts_are_one_run() {
    let mut world = World::with_own_schedules(3, json!({}));
    assert_eq!(world.kept_on(), ["n1", "n2", "n3"]);
    assert_eq!(world.kept_by("n1").schema, BOUND_PER_NODE_SCHEMA);
    assert_eq!(world.job_state().keepers.len(), 3);
    world.live(240, 10);
    // The leader begins none of its times.
    assert_eq!(world.runs(), []);
    world.tells("n1", run("00:05:00", Some(0)), Some("00:05:00"));
    world.tells("n2", run("00:05:00", None), None);
    world.settle();
    let first = world.run_numbered(1);
    assert_eq!((first.phase, first.completions), (RunPhase::Active, 2));
    world.tells("n2", run("00:05:00", Some(0)), Some("00:05:00"));
    world.tells("n3", run("00:05:00", Some(3)), Some("00:05:00"));
    world.settle();
    let first = world.run_numbered(1);
    assert_eq!(
        (first.phase, first.succeeded.len(), first.failures),
        (RunPhase::Failed, 2, 1)
    );
    assert!(
        first
            .message
            .starts_with("2 of 3 machines succeeded; failed on n3; the last: "),
        "{}",
        first.message
    );
    assert_eq!(nodes_of(&first), ["n1", "n2", "n3"]);
    assert_eq!(world.runs().len(), 1);
    let state = world.job_state();
    let positions: Vec<Timestamp> = state.positions.values().copied().collect();
    assert_eq!(positions, [at("00:05:00"); 3]);
    let job = world.status("dump").job.unwrap();
    assert_eq!((job.machine, job.machines.len()), (None, 3));
    world.live(60, 10);
    assert_eq!(world.runs(), [first]);
}

#[test]
fn a_late_report_joins_the_record_that_is_over_and_none_that_is_forgotten() {
    let mut world = World::with_own_schedules(3, json!({"successfulHistory": 1}));
    world.is_plugged_in("n3", false);
    world.live(240, 10);
    for node in ["n1", "n2"] {
        world.tells(node, run("00:05:00", Some(0)), Some("00:05:00"));
    }
    world.live(300, 10);
    for node in ["n1", "n2"] {
        world.tells(node, run("00:10:00", Some(0)), Some("00:10:00"));
    }
    // A record is kept for two minutes from its start, beside the history.
    world.live(150, 10);
    let second = world.run_numbered(2);
    assert_eq!((second.phase, second.completions), (RunPhase::Succeeded, 2));
    assert_eq!(world.runs().len(), 1);
    assert_eq!(world.job_state().forgotten, Some(at("00:05:00")));
    world.is_plugged_in("n3", true);
    world.tells("n3", run("00:05:00", Some(0)), None);
    world.tells("n3", run("00:10:00", Some(3)), Some("00:10:00"));
    world.live(30, 10);
    let second = world.run_numbered(2);
    assert_eq!((second.phase, second.completions), (RunPhase::Failed, 3));
    assert_eq!(world.runs().len(), 1);
    let state = world.job_state();
    assert_eq!(state.last_number, 2);
    assert_eq!(state.positions["n3"], at("00:10:00"));
}

#[test]
fn a_machine_that_joins_begins_with_now_and_one_that_is_drained_concerns_no_other() {
    let mut world = World::with_own_schedules(3, json!({}));
    let first = world.kept_by("n1").instance.clone();
    world.live(240, 10);
    world.machine("n4", "23", &[]);
    world.live(60, 10);
    assert_eq!(world.kept_on(), ["n1", "n2", "n3", "n4"]);
    let joined = world.kept_by("n4");
    assert!(joined.bound.as_ref().unwrap().handled >= at("00:05:00"));
    assert_eq!(world.runs(), []);
    world.drain("n2", true);
    world.live(60, 10);
    assert_eq!(world.kept_on(), ["n1", "n3", "n4"]);
    assert_eq!(world.kept_by("n1").instance, first);
    assert!(!world.job_state().keepers.contains_key("n2"));
    world.drain("n2", false);
    world.live(60, 10);
    assert_eq!(world.kept_on(), ["n1", "n2", "n3", "n4"]);
}

#[test]
fn machines_beyond_parallelism_leave_the_schedule_with_the_leader() {
    let mut world = World::with_own_schedules(3, json!({"parallelism": 3}));
    assert_eq!(world.kept_on().len(), 3);
    world.machine("n4", "23", &[]);
    world.live(120, 10);
    assert_eq!(world.wanted("dump").len(), 0);
    assert_eq!(world.job_state().keepers.len(), 0);
    world.live(240, 10);
    let runs = world.runs();
    assert_eq!((runs.len(), runs[0].bound), (1, false));
    assert_eq!(
        (runs[0].completions, runs[0].phase),
        (4, RunPhase::Succeeded)
    );
}

#[test]
fn a_ask_by_hand_leaves_out_a_silent_machine_that_keeps_its_schedule() {
    let mut world = World::with_own_schedules(3, json!({}));
    world.live(240, 10);
    world.tells("n3", run("00:05:00", None), None);
    world.settle();
    assert_eq!(world.run_numbered(1).phase, RunPhase::Active);
    world.is_plugged_in("n3", false);
    world.live(180, 10);
    let number = world.ask_by_hand();
    world.live(110, 5);
    let by_hand = world.run_numbered(number);
    assert_eq!(
        (by_hand.phase, nodes_of(&by_hand)),
        (RunPhase::Succeeded, vec!["n1", "n2"])
    );
    assert_eq!(by_hand.left_out, ["n3"]);
    assert_eq!(world.kept_on(), ["n1", "n2"]);
    world.is_plugged_in("n3", true);
    world.tells("n3", run("00:05:00", Some(0)), Some("00:05:00"));
    world.live(120, 10);
    assert_eq!(world.run_numbered(1).phase, RunPhase::Succeeded);
    assert_eq!(world.kept_on(), ["n1", "n2", "n3"]);
}

#[test]
fn changed_files_reach_each_machine_when_it_answers() {
    let mut world = World::with_own_schedules(3, json!({}));
    world.is_plugged_in("n3", false);
    world.live(120, 10);
    world.own_job(json!({"backoffLimit": 2}));
    world.live(60, 10);
    assert_eq!(world.kept_on(), ["n1", "n2"]);
    let bound = world.kept_by("n1").bound.clone().unwrap();
    assert_eq!(bound.backoff_limit, 2);
    let silent = world.kept_by("n3").bound.clone().unwrap();
    assert_eq!((silent.backoff_limit, silent.closed), (0, true));
    world.is_plugged_in("n3", true);
    world.live(60, 10);
    assert_eq!(world.kept_on(), ["n1", "n2", "n3"]);
    assert_eq!(world.kept_by("n3").bound.as_ref().unwrap().backoff_limit, 2);
}

#[test]
fn a_time_that_one_machine_has_not_decided_is_led_on_that_machine_alone() {
    let mut world = World::with_own_schedules(2, json!({"catchUp": "Last"}));
    world.live(240, 10);
    for node in ["n1", "n2"] {
        world.tells(node, run("00:05:00", Some(0)), Some("00:05:00"));
    }
    world.live(300, 10);
    world.tells("n1", run("00:10:00", Some(0)), Some("00:10:00"));
    world.live(10, 10);
    // One machine at a time is what the leader alone can keep to.
    world.own_job(json!({"catchUp": "Last", "parallelism": 1}));
    world.live(110, 10);
    assert_eq!(world.wanted("dump").len(), 0);
    let runs = world.runs();
    let of_time = runs
        .iter()
        .filter(|one| one.scheduled == Some(at("00:10:00")));
    let (kept, led): (Vec<_>, Vec<_>) = of_time.partition(|one| one.bound);
    assert_eq!((kept.len(), led.len()), (1, 1), "{runs:?}");
    assert_eq!(nodes_of(kept[0]), ["n1"]);
    assert_eq!(nodes_of(led[0]), ["n2"]);
    assert_eq!(led[0].phase, RunPhase::Succeeded);
    assert_eq!(runs.len(), 3);
}

#[test]
fn one_machine_of_an_earlier_version_keeps_all_with_the_leader() {
    let mut world = World::with_machines(3);
    world.at("n2").schema = BOUND_PER_NODE_SCHEMA - 1;
    world.own_job(json!({}));
    world.live(360, 10);
    let runs = world.runs();
    assert_eq!((runs.len(), runs[0].bound), (1, false));
    assert_eq!(world.kept_on(), [""; 0]);
}

#[test]
fn a_cancelled_run_is_stopped_where_it_is_open() {
    let mut world = World::with_own_schedules(2, json!({}));
    world.live(240, 10);
    world.tells("n1", run("00:05:00", Some(0)), Some("00:05:00"));
    world.tells("n2", run("00:05:00", None), None);
    world.settle();
    let mut first = world.run_numbered(1);
    first.cancelled = Some(JobSuspension {
        by: "token:a".to_owned(),
        at: world.now,
    });
    let key = keys::job_run(NAMESPACE, "dump", &run_of_machines(at("00:05:00")));
    world.write(key, &first);
    let other = world.kept_by("n1").instance.clone();
    world.plan_out();
    assert_eq!(world.kept_on(), ["n1"]);
    world.tells("n2", run("00:05:00", Some(143)), Some("00:05:00"));
    world.live(60, 10);
    assert_eq!(world.run_numbered(1).phase, RunPhase::Cancelled);
    assert_eq!(world.kept_on(), ["n1", "n2"]);
    assert_eq!(world.kept_by("n1").instance, other);
}

#[test]
fn a_machine_that_leaves_the_cluster_ends_its_part_alone() {
    let mut world = World::with_own_schedules(3, json!({}));
    world.live(240, 10);
    world.tells("n2", run("00:05:00", Some(0)), Some("00:05:00"));
    world.tells("n3", run("00:05:00", None), None);
    world.settle();
    world.remove_machine("n3");
    world.live(30, 10);
    let first = world.run_numbered(1);
    assert_eq!(first.phase, RunPhase::Failed);
    let machines = first.machines.unwrap();
    let removed = machines.iter().filter(|one| one.removed);
    let removed: Vec<&str> = removed.map(|one| one.node.as_str()).collect();
    assert_eq!(removed, ["n3"]);
    let state = world.job_state();
    assert!(!state.keepers.contains_key("n3") && !state.positions.contains_key("n3"));
    assert_eq!(world.kept_on(), ["n1", "n2"]);
}

#[test]
fn a_time_that_a_machine_has_decided_is_not_led_there_after_its_record_is_deleted() {
    let short = json!({"catchUp": "Last", "successfulHistory": 0});
    let mut world = World::with_own_schedules(2, short);
    world.live(240, 10);
    for node in ["n1", "n2"] {
        world.tells(node, run("00:05:00", Some(0)), Some("00:05:00"));
    }
    world.live(300, 10);
    world.tells("n1", run("00:10:00", Some(0)), Some("00:10:00"));
    world.live(150, 10);
    assert_eq!(world.runs(), []);
    assert_eq!(world.job_state().forgotten, Some(at("00:10:00")));
    // One machine at a time is what the leader alone can keep to.
    world.own_job(json!({"catchUp": "Last", "parallelism": 1}));
    world.live(110, 10);
    let runs = world.runs();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(runs[0].scheduled, Some(at("00:10:00")));
    assert_eq!(nodes_of(&runs[0]), ["n2"]);
    // Nothing is left to be told by them.
    assert!(world.job_state().positions.is_empty());
}

#[test]
fn a_time_is_made_up_for_by_a_machine_that_took_no_work_when_all_gave_back() {
    let mut world = World::with_own_schedules(2, json!({"catchUp": "Last"}));
    world.live(250, 10);
    for node in ["n1", "n2"] {
        world.tells(node, run("00:05:00", Some(0)), Some("00:05:00"));
    }
    world.live(300, 10);
    world.tells("n1", run("00:10:00", Some(0)), Some("00:10:00"));
    world.live(10, 10);
    for node in ["n1", "n2"] {
        world.drain(node, true);
    }
    world.live(60, 10);
    assert!(world.job_state().keepers.is_empty());
    world.drain("n2", false);
    world.live(60, 10);
    let runs = world.runs();
    let led: Vec<_> = runs.iter().filter(|one| !one.bound).collect();
    assert_eq!(led.len(), 1, "{runs:?}");
    assert_eq!(led[0].scheduled, Some(at("00:10:00")));
    assert_eq!(nodes_of(led[0]), ["n2"]);
}

#[test]
fn a_part_that_is_reported_somewhat_later_is_recorded_without_a_history() {
    let mut world = World::with_own_schedules(2, json!({"successfulHistory": 0}));
    world.live(250, 10);
    world.tells("n1", run("00:05:00", Some(0)), Some("00:05:00"));
    world.settle();
    world.tells("n2", run("00:05:00", Some(3)), Some("00:05:00"));
    world.settle();
    let first = world.run_numbered(1);
    assert_eq!((first.phase, first.completions), (RunPhase::Failed, 2));
    world.live(300, 10);
    for node in ["n1", "n2"] {
        world.tells(node, run("00:10:00", Some(0)), Some("00:10:00"));
    }
    world.settle();
    assert_eq!(world.runs().len(), 2);
    world.live(180, 10);
    assert_eq!(world.runs(), [first]);
}

#[test]
fn a_machine_has_a_few_open_parts_at_most_and_its_next_report_ends_them() {
    let mut world = World::with_own_schedules(2, json!({"schedule": "* * * * *"}));
    world.live(250, 10);
    world.tells("n1", run("00:05:00", None), None);
    world.settle();
    let first = world.run_numbered(1);
    for (number, time) in [(11, "00:02:00"), (12, "00:03:00"), (13, "00:04:00")] {
        let other = JobRunRecord {
            number,
            scheduled: Some(at(time)),
            ..first.clone()
        };
        let key = keys::job_run(NAMESPACE, "dump", &run_of_machines(at(time)));
        world.write(key, &other);
    }
    let machine = world.at("n1");
    machine.bound_runs = vec![run("00:06:00", None)];
    world.live(30, 10);
    assert_eq!(world.runs().len(), 4);
    world.tells("n1", run("00:06:00", Some(0)), Some("00:06:00"));
    world.live(30, 10);
    let runs = world.runs();
    assert_eq!(runs.len(), 5);
    assert!(runs.iter().all(|run| !run.is_active()), "{runs:?}");
}

#[test]
fn the_parts_of_many_machines_are_taken_together() {
    let mut world = World::with_own_schedules(34, json!({"parallelism": 40}));
    assert_eq!(world.kept_on().len(), 34);
    world.live(250, 10);
    for number in 1..=34 {
        let node = format!("n{number}");
        world.tells(&node, run("00:05:00", Some(0)), Some("00:05:00"));
    }
    world.agents();
    world.step();
    let first = world.run_numbered(1);
    assert_eq!((first.phase, first.completions), (RunPhase::Succeeded, 34));
}

#[test]
fn a_machine_whose_clock_is_a_little_ahead_gets_no_time_again() {
    let mut world = World::with_own_schedules(2, json!({}));
    world.live(520, 10);
    assert!(world.now < at("00:10:00"));
    world.tells("n1", run("00:05:00", Some(0)), Some("00:05:00"));
    world.tells("n1", run("00:10:00", Some(0)), Some("00:10:00"));
    world.settle();
    assert_eq!(world.job_state().positions["n1"], at("00:10:00"));
    world.own_job(json!({"backoffLimit": 2}));
    world.settle();
    let next = world.kept_by("n1").bound.clone().unwrap();
    assert_eq!((next.backoff_limit, next.handled), (2, at("00:10:00")));
}

#[test]
fn a_part_with_a_false_start_keeps_no_part_of_another_machine_from_the_record() {
    let mut world = World::with_own_schedules(2, json!({"successfulHistory": 0}));
    world.live(250, 10);
    let early = BoundRun {
        started: Timestamp::UNIX_EPOCH,
        ..run("00:05:00", Some(0))
    };
    world.tells("n1", early, Some("00:05:00"));
    world.settle();
    world.tells("n2", run("00:05:00", Some(0)), Some("00:05:00"));
    world.settle();
    let runs = world.runs();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(nodes_of(&runs[0]), ["n1", "n2"]);
}

#[test]
fn runs_that_began_just_now_by_the_word_of_a_machine_stay_beside_the_history_up_to_a_hundred() {
    let every_minute = json!({"schedule": "* * * * *", "successfulHistory": 0});
    let mut world = World::with_own_schedules(2, every_minute);
    world.live(7200, 60);
    let minutes: Vec<u32> = (2..=120).collect();
    for some in minutes.chunks(19) {
        let times = some.iter();
        let times = times.map(|minute| format!("{:02}:{:02}:00", minute / 60, minute % 60));
        let runs = times.map(|time| BoundRun {
            started: world.now,
            ..run(&time, Some(0))
        });
        let runs: Vec<BoundRun> = runs.collect();
        let machine = world.at("n1");
        machine.bound_handled = runs.last().map(|one| one.scheduled);
        machine.bound_runs = runs;
        world.settle();
    }
    assert_eq!(world.job_state().last_number, 119);
    assert_eq!(world.runs().len(), 100);
}

#[test]
fn a_part_at_a_time_that_the_schedule_does_not_have_gets_no_record() {
    let mut world = World::with_own_schedules(2, json!({}));
    world.live(250, 10);
    world.tells("n1", run("00:04:30", Some(0)), None);
    world.tells("n1", run("00:05:00", Some(0)), Some("00:05:00"));
    world.settle();
    let runs = world.runs();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(runs[0].scheduled, Some(at("00:05:00")));
    assert_eq!(world.job_state().positions["n1"], at("00:05:00"));
}
