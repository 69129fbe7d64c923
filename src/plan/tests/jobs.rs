//! Jobs: runs by hand, by a schedule and by an apply, and what becomes of them when machines and
//! leaders are lost.

mod bound;
mod per_node;

use super::*;
use kat_types::{
    resource::WorkloadType,
    store::jobs::{JobRunRecord, JobStateRecord, RunPhase},
};
use proptest::prelude::*;

const DUMP: &str = "registry.example/dump:1";
/// Instances whose stops need more than one transaction.
const MOST_STOPS: usize = 20;

impl World {
    /// Applies a Job `dump` with this `spec` of `job.kat`.
    fn job(&mut self, spec: serde_json::Value) {
        self.job_with(spec, |_| {});
    }

    fn job_with(&mut self, spec: serde_json::Value, change: impl FnOnce(&mut serde_json::Value)) {
        let definition = json!({
            "apiVersion": "kat.dws.rip/v1alpha1",
            "kind": "JobDefinition",
            "spec": spec,
        });
        self.write(keys::manifest(NAMESPACE, "dump", "job.kat"), &definition);
        self.apply_workload("dump", |file| {
            file["spec"]["type"] = json!("Job");
            file["spec"]["restartPolicy"] = json!({"condition": "Never"});
            file["spec"].as_object_mut().unwrap().remove("replicas");
            change(file);
        });
    }

    /// The runs of `dump` by their numbers.
    fn runs(&mut self) -> Vec<JobRunRecord> {
        let snapshot = self.snapshot();
        let entry = snapshot.jobs.get(&WorkloadKey::new(NAMESPACE, "dump"));
        let runs = entry.into_iter().flat_map(|entry| entry.runs.values());
        let mut runs: Vec<_> = runs.map(|run| JobRunRecord::clone(&run.value)).collect();
        runs.sort_by_key(|run| run.number);
        runs
    }

    fn run_numbered(&mut self, number: u64) -> JobRunRecord {
        let mut runs = self.runs().into_iter();
        runs.find(|run| run.number == number).unwrap()
    }

    fn job_state(&mut self) -> JobStateRecord {
        let snapshot = self.snapshot();
        let entry = &snapshot.jobs[&WorkloadKey::new(NAMESPACE, "dump")];
        entry.state.as_ref().unwrap().value.clone()
    }

    /// Lets time pass in steps, as a leader that wakes up does.
    fn live(&mut self, seconds: u64, step: u64) {
        for _ in 0..seconds / step {
            self.pass(Duration::from_secs(step));
            self.plan_out();
            self.agents();
            self.plan_out();
        }
    }

    /// How often the leader writes an object while time passes in steps of ten seconds.
    fn writes(&mut self, key: &str, seconds: u64) -> usize {
        let mut before = self.written(key);
        let mut count = 0;
        for _ in 0..seconds / 10 {
            self.live(10, 10);
            let now = self.written(key);
            count += usize::from(now != before);
            before = now;
        }
        count
    }

    fn written(&self, key: &str) -> Option<i64> {
        self.entries.get(key).map(|entry| entry.mod_revision)
    }

    /// Instances of `dump` that run now, on any machine.
    fn dumping(&self) -> usize {
        let running = self.machines.values().flat_map(Machine::running);
        running.filter(|id| id.starts_with("dump-")).count()
    }
}

#[test]
fn a_job_without_schedule_runs_once_for_each_generation() {
    let mut world = World::with_machines(2);
    world.job(json!({}));
    world.settle();
    let runs = world.runs();
    assert_eq!(runs.len(), 1);
    assert_eq!((runs[0].number, runs[0].phase), (1, RunPhase::Succeeded));
    assert_eq!(runs[0].attempts.len(), 1);
    let status = world.status("dump");
    assert_eq!(status.phase, WorkloadPhase::Succeeded);
    assert_eq!(world.wanted("dump").len(), 0);
    // Nothing happens until its files change.
    world.live(3600, 600);
    assert_eq!(world.runs().len(), 1);
    world.job(json!({"backoffLimit": 1}));
    world.settle();
    assert_eq!(world.run_numbered(2).phase, RunPhase::Succeeded);
}

#[test]
fn a_job_that_fails_too_often_says_so_and_its_instances_are_gone() {
    let mut world = World::with_machines(2);
    world.failing.insert(DUMP.to_owned());
    world.job(json!({"backoffLimit": 2}));
    world.live(300, 5);
    world.settle();
    let run = world.run_numbered(1);
    assert_eq!((run.phase, run.failures), (RunPhase::Failed, 3));
    assert_eq!(run.reason, "BackoffLimitExceeded");
    assert_eq!(run.attempts.len(), 3);
    let status = world.status("dump");
    assert_eq!(status.phase, WorkloadPhase::Failed);
    assert_eq!(status.conditions[0].reason, "BackoffLimitExceeded");
    assert_eq!(world.wanted("dump").len(), 0);
    assert_eq!(world.events("RunFailed").len(), 1);
}

#[test]
fn a_parallel_job_has_each_index_once_and_as_many_at_once_as_it_may() {
    let mut world = World::with_machines(3);
    world.job(json!({"completions": 7, "parallelism": 3}));
    let mut most = 0;
    for _ in 0..60 {
        world.plan_out();
        most = most.max(world.wanted("dump").len());
        world.agents();
    }
    world.settle();
    let run = world.run_numbered(1);
    assert_eq!(run.phase, RunPhase::Succeeded);
    assert_eq!(run.succeeded, (0..7).collect());
    assert_eq!((run.attempts.len(), run.failures), (7, 0));
    assert!((2..=3).contains(&most), "{most}");
    let machines: BTreeSet<_> = run.attempts.iter().map(|one| &one.node).collect();
    assert!(machines.len() > 1, "{machines:?}");
}

#[test]
fn an_instance_knows_its_index_and_the_time_that_its_run_has_left() {
    let mut world = World::with_machines(1);
    world.lasting.insert(DUMP.to_owned());
    world.job(json!({"completions": 2, "parallelism": 2, "activeDeadlineSeconds": 100}));
    world.plan_out();
    let wanted = world.wanted("dump");
    let indexes: BTreeSet<_> = wanted
        .iter()
        .map(|(_, _, assignment)| {
            let mut env = assignment.container.env.iter();
            let index = env.find(|one| one.name == "KAT_JOB_COMPLETION_INDEX");
            assert_eq!(assignment.schema, 9);
            assert_eq!(assignment.workload_type, WorkloadType::Job);
            assert_eq!(assignment.run.as_ref().unwrap().seconds_left, Some(100));
            index.unwrap().value.clone().unwrap()
        })
        .collect();
    assert_eq!(indexes, BTreeSet::from(["0".to_owned(), "1".to_owned()]));
}

#[test]
fn a_deadline_ends_a_run_whatever_its_program_does() {
    let mut world = World::with_machines(1);
    world.lasting.insert(DUMP.to_owned());
    world.job(json!({"activeDeadlineSeconds": 60}));
    world.live(50, 5);
    assert_eq!(world.run_numbered(1).phase, RunPhase::Active);
    assert_eq!(world.dumping(), 1);
    world.live(20, 5);
    world.settle();
    let run = world.run_numbered(1);
    assert_eq!(
        (run.phase, run.reason.as_str()),
        (RunPhase::Failed, "DeadlineExceeded")
    );
    assert_eq!(world.dumping(), 0);
}

#[test]
fn a_schedule_has_one_run_for_each_time_over_changes_of_the_leader() {
    let mut world = World::with_machines(2);
    world.job(json!({"schedule": "* * * * *", "successfulHistory": 1000}));
    for round in 0..20 {
        world.live(30, 10);
        if round % 3 == 0 {
            world.new_leader();
        }
    }
    let runs = world.runs();
    let times: Vec<_> = runs.iter().filter_map(|run| run.scheduled).collect();
    let each: BTreeSet<_> = times.iter().collect();
    assert_eq!((times.len(), each.len()), (10, 10));
    assert!(runs.iter().all(|run| run.attempts.len() == 1), "{runs:?}");
    world.settle();
    assert_eq!(world.status("dump").phase, WorkloadPhase::Scheduled);
}

#[test]
fn a_leader_that_was_away_for_a_week_makes_up_for_the_last_time_alone() {
    let mut world = World::with_machines(1);
    world.job(json!({"schedule": "0 2 * * *"}));
    world.settle();
    world.pass(Duration::from_secs(7 * 86_400 + 3 * 3600));
    world.settle();
    let runs = world.runs();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(
        runs[0].scheduled.unwrap().to_string(),
        "2026-01-08T02:00:00Z"
    );
    let state = world.job_state();
    assert_eq!(state.skips, 7);
    assert_eq!(state.skipped.unwrap().reason, "RunMissed");
    assert_eq!(world.events("RunMissed").len(), 1);
}

#[test]
fn under_forbid_a_time_that_comes_during_a_run_is_skipped_and_told() {
    let mut world = World::with_machines(1);
    world.lasting.insert(DUMP.to_owned());
    world.job(json!({"schedule": "* * * * *"}));
    world.live(185, 5);
    assert_eq!(world.runs().len(), 1);
    assert_eq!(world.dumping(), 1);
    let skipped = world.job_state().skipped.unwrap();
    assert_eq!(skipped.reason, "RunOverlapped");
    assert_eq!(
        skipped.message,
        "run 1 was active, and concurrencyPolicy is Forbid"
    );
}

#[test]
fn under_replace_the_earlier_run_ends_before_the_later_one_begins() {
    let mut world = World::with_machines(1);
    world.lasting.insert(DUMP.to_owned());
    world.job(
        json!({"schedule": "* * * * *", "concurrencyPolicy": "Replace", "failedHistory": 100}),
    );
    for _ in 0..40 {
        world.pass(Duration::from_secs(5));
        world.plan_out();
        assert!(world.dumping() <= 1);
        world.agents();
    }
    let runs = world.runs();
    assert!(runs.len() >= 3, "{runs:?}");
    assert_eq!(runs[0].reason, "RunReplaced");
    assert!(runs.last().unwrap().is_active());
}

#[test]
fn what_comes_while_a_job_is_suspended_has_no_run_later_either() {
    let mut world = World::with_machines(1);
    world.job(json!({"schedule": "* * * * *", "suspend": true}));
    world.live(300, 30);
    assert_eq!(world.runs(), []);
    let status = world.status("dump");
    assert_eq!(status.conditions[0].reason, "JobSuspended");
    assert!(status.job.unwrap().suspended);
    world.job(json!({"schedule": "* * * * *"}));
    world.live(20, 10);
    assert_eq!(world.runs(), []);
    world.live(60, 10);
    assert_eq!(world.runs().len(), 1);
}

#[test]
fn a_suspended_job_writes_nothing_while_its_times_pass() {
    let mut world = World::with_machines(1);
    world.job(json!({"schedule": "* * * * *"}));
    world.live(70, 10);
    assert_eq!(world.runs().len(), 1);
    world.job(json!({"schedule": "* * * * *", "suspend": true}));
    // The run that has begun ends.
    world.live(60, 10);
    assert_eq!(world.run_numbered(1).phase, RunPhase::Succeeded);
    let state = keys::job_state(NAMESPACE, "dump");
    assert_eq!(world.writes(&state, 600), 0);
    let status = keys::workload_status(NAMESPACE, "dump");
    assert_eq!(world.writes(&status, 600), 0);

    world.job(json!({"schedule": "* * * * *"}));
    world.live(60, 10);
    assert_eq!(world.runs().len(), 2);
    assert!(world.writes(&state, 600) >= 9, "each run writes the state");
}

#[test]
fn a_time_between_the_resumption_and_the_next_plan_has_its_run() {
    let mut world = World::with_machines(1);
    let state_key = keys::job_state(NAMESPACE, "dump");
    world.job(json!({"schedule": "* * * * *"}));
    world.live(10, 10);
    world.change(&state_key, |state| {
        state["suspended"] = json!({"by": "token:a", "at": "2026-01-01T00:00:10Z"});
    });
    world.live(120, 10);
    assert_eq!(world.runs(), []);
    // The API resumes it five seconds before its next time.
    world.pass(Duration::from_secs(45));
    let snapshot = world.snapshot();
    let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "dump")];
    let spec = entry.parsed.as_ref().unwrap().job.as_ref().unwrap();
    let mut state = world.job_state();
    state.suspended = None;
    state.begin_schedule(spec, world.now);
    world.write(state_key, &state);
    world.live(10, 10);
    let times: Vec<_> = world.runs().iter().map(|run| run.scheduled).collect();
    let expected: Timestamp = "2026-01-01T00:03:00Z".parse().unwrap();
    assert_eq!(times, [Some(expected)]);
}

#[test]
fn a_schedule_goes_on_after_a_clock_that_was_days_ahead() {
    let mut world = World::with_machines(1);
    world.job(json!({"schedule": "* * * * *", "successfulHistory": 1000}));
    world.live(70, 10);
    let right = world.now;
    world.pass(Duration::from_secs(2 * 86_400));
    world.live(120, 10);
    let ahead = world.runs().len();
    assert!(ahead > 1, "{ahead}");
    world.now = right;
    world.live(180, 10);
    assert!(world.runs().len() > ahead, "{:?}", world.runs());
}

#[test]
fn a_history_keeps_as_many_runs_as_it_says() {
    let mut world = World::with_machines(1);
    world.job(json!({"schedule": "* * * * *", "successfulHistory": 2}));
    world.live(600, 10);
    world.settle();
    let numbers: Vec<_> = world.runs().iter().map(|run| run.number).collect();
    assert_eq!(numbers, [9, 10]);
}

#[test]
fn a_job_without_schedule_is_deleted_after_its_time() {
    let mut world = World::with_machines(1);
    world.job(json!({"ttlSecondsAfterFinished": 100}));
    world.settle();
    assert_eq!(world.run_numbered(1).phase, RunPhase::Succeeded);
    world.live(90, 10);
    assert!(!world.keys(keys::WORKLOADS).is_empty());
    world.live(60, 10);
    world.settle();
    assert_eq!(world.keys(keys::WORKLOADS), Vec::<String>::new());
    assert_eq!(world.keys(keys::JOBS), Vec::<String>::new());
}

#[test]
fn an_attempt_on_a_lost_machine_is_not_replaced_and_keeps_the_next_run_away() {
    let mut world = World::with_machines(2);
    world.lasting.insert(DUMP.to_owned());
    world.job(json!({"schedule": "* * * * *"}));
    world.live(70, 5);
    let (_, node, _) = world.wanted("dump").remove(0);
    world.at(&node).speaks = false;
    world.at(&node).obeys = false;
    world.live(600, 10);
    assert_eq!(world.wanted("dump").len(), 1);
    assert_eq!(world.runs().len(), 1);
    // It is back, and its program ends.
    world.lasting.clear();
    world.at(&node).speaks = true;
    world.at(&node).obeys = true;
    world.live(120, 10);
    assert!(world.runs().len() > 1);
    assert_eq!(world.run_numbered(1).phase, RunPhase::Succeeded);
}

/// A machine that was not heard of since may have started the instance just before.
#[test]
fn a_lost_machine_keeps_the_next_run_away_until_its_own_deadline_has_passed_for_certain() {
    let mut world = World::with_machines(2);
    world.lasting.insert(DUMP.to_owned());
    world.job(json!({"schedule": "* * * * *", "activeDeadlineSeconds": 100}));
    // The run is placed, and its machine has not begun it.
    let mut passed = 0;
    while world.wanted("dump").is_empty() {
        world.pass(Duration::from_secs(5));
        world.plan_out();
        passed += 5;
        assert!(passed < 120);
    }
    let (_, node, _) = world.wanted("dump").remove(0);
    world.at(&node).obeys = false;
    // Its images take 90 s, and then the machine is cut off.
    world.live(90, 10);
    world.at(&node).speaks = false;
    let begun = |world: &mut World| {
        let runs = world.runs().into_iter();
        let begun = runs.filter(|run| run.number > 1 && run.started.is_some());
        begun.count()
    };
    // An instance that it has started since has its start, 100 s and its stop.
    world.live(240, 10);
    assert_eq!(begun(&mut world), 0);
    world.live(120, 10);
    assert!(begun(&mut world) > 0);
}

#[test]
fn a_lost_machine_that_stops_by_itself_lets_its_attempt_move() {
    let mut world = World::with_machines(2);
    world.lasting.insert(DUMP.to_owned());
    world.job_with(json!({}), |file| {
        file["spec"]["onNodeLoss"] = json!("move");
        file["spec"]["onPartition"] = json!("stop");
    });
    world.live(30, 5);
    let (_, node, _) = world.wanted("dump").remove(0);
    world.at(&node).speaks = false;
    world.at(&node).obeys = false;
    world.at(&node).fence();
    world.live(300, 10);
    let (_, other, _) = world.wanted("dump").remove(0);
    assert_ne!(node, other);
    assert_eq!(world.run_numbered(1).failures, 1);
}

#[test]
fn a_drained_machine_lets_a_run_end_and_says_what_it_waits_for() {
    let mut world = World::with_machines(2);
    world.lasting.insert(DUMP.to_owned());
    world.job(json!({}));
    world.live(30, 5);
    let (_, node, _) = world.wanted("dump").remove(0);
    world.drain(&node, true);
    world.live(60, 5);
    assert_eq!(world.dumping(), 1);
    let status = world.status("dump");
    let mut conditions = status.conditions.iter();
    let blocked = conditions
        .find(|one| one.kind == kat_types::api::DRAIN_BLOCKED)
        .unwrap();
    assert!(
        blocked.message.contains("a Job runs to its end"),
        "{blocked:?}"
    );
    world.drain_by_force(&node);
    world.live(60, 5);
    let (_, other, _) = world.wanted("dump").remove(0);
    assert_ne!(node, other);
}

#[test]
fn a_job_that_writes_data_has_one_instance_at_a_time() {
    let mut world = World::with_machines(2);
    world.job_with(json!({"completions": 4, "parallelism": 4}), |file| {
        file["spec"]["volumes"] = json!([{"name": "data", "simpleClusterStorage": {}}]);
        file["spec"]["container"] =
            json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    });
    for _ in 0..60 {
        world.plan_out();
        assert!(world.wanted("dump").len() <= 1);
        world.agents();
    }
    world.settle();
    assert_eq!(world.run_numbered(1).phase, RunPhase::Succeeded);
}

#[test]
fn a_deleted_job_leaves_nothing_in_the_store() {
    let mut world = World::with_machines(1);
    world.lasting.insert(DUMP.to_owned());
    world.job(json!({"schedule": "* * * * *"}));
    world.live(70, 5);
    world.delete_workload("dump");
    world.settle();
    assert_eq!(world.keys(keys::JOBS), Vec::<String>::new());
    assert_eq!(world.dumping(), 0);
}

#[test]
fn a_service_that_becomes_a_job_is_stopped_before_its_first_run() {
    let mut world = World::with_machines(1);
    world.apply_workload("dump", |_| {});
    world.settle();
    assert_eq!(world.dumping(), 1);
    world.job(json!({}));
    world.settle();
    assert_eq!(world.dumping(), 0);
    assert_eq!(world.wanted("dump").len(), 0);
    assert_eq!(world.run_numbered(1).phase, RunPhase::Succeeded);
}

#[test]
fn a_job_that_becomes_a_service_leaves_no_run_behind() {
    let mut world = World::with_machines(1);
    world.lasting.insert(DUMP.to_owned());
    world.job(json!({}));
    world.live(30, 5);
    assert_eq!(world.run_numbered(1).phase, RunPhase::Active);
    world.apply_workload("dump", |_| {});
    world.settle();
    assert_eq!(world.keys(keys::JOBS), Vec::<String>::new());
    let wanted = world.wanted("dump");
    assert_eq!(wanted.len(), 1);
    assert_eq!(wanted[0].2.workload_type, WorkloadType::Service);
}

#[test]
fn a_run_with_more_instances_than_one_transaction_takes_ends_as_a_whole() {
    let mut world = World::with_machines(2);
    world.lasting.insert(DUMP.to_owned());
    world.job(json!({"completions": 60, "parallelism": 60, "activeDeadlineSeconds": 60}));
    world.live(30, 5);
    assert!(world.dumping() > MOST_STOPS, "{}", world.dumping());
    world.live(60, 5);
    world.settle();
    assert_eq!(world.run_numbered(1).reason, "DeadlineExceeded");
    assert_eq!(world.dumping(), 0);
}

#[test]
fn of_many_missed_times_each_has_its_run_however_many_plans_that_takes() {
    let mut world = World::with_machines(1);
    world.job(json!({
        "schedule": "* * * * *", "catchUp": "All", "concurrencyPolicy": "Replace",
        "failedHistory": 1000, "successfulHistory": 1000,
    }));
    world.settle();
    world.pass(Duration::from_secs(50 * 60));
    world.settle();
    let runs = world.runs();
    let times: BTreeSet<_> = runs.iter().filter_map(|run| run.scheduled).collect();
    assert_eq!(runs.len(), times.len());
    assert!(times.len() >= 49, "{}", times.len());
    assert_eq!(runs.last().unwrap().phase, RunPhase::Succeeded);
}

/// What happens in a random history.
#[derive(Debug, Clone)]
enum Happening {
    Pass(u64),
    NewLeader,
    Lose(usize),
    Return(usize),
    Lasting(bool),
    Failing(bool),
    ClockBack(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (1_u64..90).prop_map(Happening::Pass),
        2 => Just(Happening::NewLeader),
        1 => (0_usize..2).prop_map(Happening::Lose),
        2 => (0_usize..2).prop_map(Happening::Return),
        1 => any::<bool>().prop_map(Happening::Lasting),
        1 => any::<bool>().prop_map(Happening::Failing),
        1 => (1_u64..600).prop_map(Happening::ClockBack),
    ]
}

proptest! {
    #![proptest_config(random_cases(48))]

    #[test]
    fn no_time_has_two_runs_and_no_runs_overlap_whatever_happens(
        happenings in prop::collection::vec(happening(), 1..60),
        catch_up in prop::sample::select(vec!["None", "Last", "All"]),
        policy in prop::sample::select(vec!["Forbid", "Replace"]),
    ) {
        let mut world = World::with_machines(2);
        world.job(json!({
            "schedule": "* * * * *", "catchUp": catch_up, "concurrencyPolicy": policy,
            "successfulHistory": 1000, "failedHistory": 1000, "backoffLimit": 1,
            "activeDeadlineSeconds": 90,
        }));
        let mut lost = BTreeSet::new();
        for happening in happenings {
            match happening {
                Happening::Pass(seconds) => world.pass(Duration::from_secs(seconds)),
                Happening::NewLeader => world.new_leader(),
                Happening::Lose(index) => {
                    lost.insert(index);
                    let machine = world.at(&format!("n{}", index + 1));
                    (machine.speaks, machine.obeys) = (false, false);
                }
                Happening::Return(index) => {
                    let machine = world.at(&format!("n{}", index + 1));
                    (machine.speaks, machine.obeys) = (true, true);
                }
                Happening::Lasting(true) => {
                    world.lasting.insert(DUMP.to_owned());
                }
                Happening::Lasting(false) => world.lasting.clear(),
                Happening::Failing(true) => {
                    world.failing.insert(DUMP.to_owned());
                }
                Happening::Failing(false) => world.failing.clear(),
                Happening::ClockBack(seconds) => {
                    world.now = world.now.checked_sub(Duration::from_secs(seconds)).unwrap();
                }
            }
            world.plan_out();
            let dumping = world.dumping();
            // On a machine that was lost its unit's own deadline ends a run, which this model does
            // not have.
            prop_assert!(dumping <= 1 + lost.len(), "{dumping} instances run at once");
            world.agents();
            world.plan_out();
        }
        let runs = world.runs();
        let times: Vec<_> = runs.iter().filter_map(|run| run.scheduled).collect();
        let each: BTreeSet<_> = times.iter().collect();
        prop_assert_eq!(times.len(), each.len());
        let numbers: BTreeSet<_> = runs.iter().map(|run| run.number).collect();
        prop_assert_eq!(numbers.len(), runs.len());
    }
}
