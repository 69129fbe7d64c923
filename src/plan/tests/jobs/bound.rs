//! Schedules that the machine with a Job's data keeps by itself.

mod per_node;

use super::*;
use kat_types::{
    api::{BoundReport, BoundRun},
    resource::CatchUp,
    store::jobs::{AttemptEnd, JobSuspension, RunCause, scheduled_run},
};

impl World {
    /// A Job whose schedule its machine keeps after the first run, at 00:05. Returns that machine.
    fn with_kept_schedule() -> (Self, String) {
        Self::with_kept_job(json!({}))
    }

    fn with_kept_job(change: serde_json::Value) -> (Self, String) {
        let mut world = Self::with_machines(2);
        world.kept_job(change);
        world.live(360, 5);
        let (_, node, assignment) = world.wanted("dump").remove(0);
        assert!(assignment.bound.is_some());
        (world, node)
    }

    fn kept_job(&mut self, change: serde_json::Value) {
        let mut spec = json!({
            "schedule": "*/5 * * * *", "catchUp": "None", "backoffLimit": 0,
            "successfulHistory": 100, "failedHistory": 100,
        });
        let spec_fields = spec.as_object_mut().unwrap();
        spec_fields.extend(change.as_object().unwrap().clone());
        self.job_with(spec, |file| {
            file["spec"]["volumes"] = json!([{"name": "data", "simpleClusterStorage": {}}]);
            file["spec"]["container"] =
                json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
        });
    }

    fn suspend(&mut self, is_suspended: bool) {
        let mut state = self.job_state();
        state.suspended = is_suspended.then(|| JobSuspension {
            by: "token:a".to_owned(),
            at: self.now,
        });
        self.write(keys::job_state(NAMESPACE, "dump"), &state);
    }

    /// The machine reports this of the schedule that it keeps, as no agent does, and nothing after it.
    fn hears(&mut self, node: &str, said: BoundReport) {
        let (id, _, assignment) = self.wanted("dump").remove(0);
        let from = assignment.bound.as_ref().unwrap().handled;
        let machine = self.at(node);
        let mut report = machine.report(node).unwrap();
        let mut instances = report.workload_instances.iter_mut();
        let own = instances.find(|one| one.instance_id == id).unwrap();
        own.bound = Some(BoundReport {
            from,
            handled: from,
            ..said
        });
        (machine.speaks, machine.obeys) = (false, false);
        machine.age = Duration::ZERO;
        machine.heard = Some(Arc::new(report));
    }

    fn live_until(&mut self, time: Timestamp) {
        while self.now < time {
            self.live(5, 5);
        }
    }

    fn scheduled_times(&mut self) -> Vec<String> {
        let runs = self.runs();
        let times = runs.iter().filter_map(|run| run.scheduled);
        times.map(|time| time.to_string()).collect()
    }
}

fn at(text: &str) -> Timestamp {
    format!("2026-01-01T{text}Z").parse().unwrap()
}

fn run(scheduled: &str, exit_code: Option<i32>) -> BoundRun {
    let scheduled = at(scheduled);
    BoundRun {
        scheduled,
        started: scheduled,
        end: exit_code.map(|code| AttemptEnd {
            at: scheduled,
            succeeded: code == 0,
            exit_code: Some(code),
            message: format!("the program ended with exit code {code}"),
            ..AttemptEnd::default()
        }),
        ..BoundRun::default()
    }
}

/// Such a run with this number of attempts before the last one.
fn retried(scheduled: &str, failed: usize, exit_code: Option<i32>) -> BoundRun {
    let earlier = run(scheduled, Some(3)).end.unwrap();
    BoundRun {
        failed: vec![earlier; failed],
        ..run(scheduled, exit_code)
    }
}

#[test]
fn a_machine_with_a_jobs_data_keeps_its_schedule_and_each_run_is_recorded_once() {
    let (mut world, node) = World::with_kept_schedule();
    assert_eq!(world.scheduled_times(), ["2026-01-01T00:05:00Z"]);
    let (id, _, assignment) = world.wanted("dump").remove(0);
    assert_eq!(assignment.bound.as_ref().unwrap().handled, at("00:05:00"));
    assert!(assignment.schema >= BOUND_SCHEMA);
    assert_eq!(world.job_state().bound, Some(id));
    // The leader begins none of its times.
    world.live(420, 10);
    assert_eq!(world.runs().len(), 1);
    let machine = world.at(&node);
    machine.bound_runs = vec![run("00:10:00", None)];
    world.live(10, 10);
    assert_eq!(world.run_numbered(2).phase, RunPhase::Active);
    let machine = world.at(&node);
    machine.bound_runs = vec![run("00:10:00", Some(0))];
    machine.bound_handled = Some(at("00:10:00"));
    world.settle();
    let second = world.run_numbered(2);
    assert_eq!((second.phase, second.bound), (RunPhase::Succeeded, true));
    assert_eq!(second.attempts[0].node, node);
    world.pass(Duration::from_secs(300));
    let machine = world.at(&node);
    machine.bound_runs.push(run("00:15:00", Some(3)));
    machine.bound_handled = Some(at("00:15:00"));
    world.settle();
    let third = world.run_numbered(3);
    assert_eq!(
        (third.phase, third.reason.as_str()),
        (RunPhase::Failed, "BackoffLimitExceeded")
    );
    world.live(120, 10);
    assert_eq!(world.runs().len(), 3);
    assert_eq!(world.job_state().handled, Some(at("00:15:00")));
    let status = world.status("dump");
    assert_eq!(status.job.unwrap().machine, Some(node));
}

#[test]
fn a_suspension_waits_for_the_machine_that_keeps_the_schedule_and_loses_no_run() {
    let (mut world, node) = World::with_kept_schedule();
    world.at(&node).speaks = false;
    world.at(&node).obeys = false;
    world.live(420, 10);
    world.suspend(true);
    world.live(600, 10);
    // The leader begins nothing, and does not know what the machine did.
    assert_eq!(world.runs().len(), 1);
    let (_, _, assignment) = world.wanted("dump").remove(0);
    assert!(assignment.bound.as_ref().unwrap().closed);
    let status = world.status("dump");
    assert_eq!(status.conditions[0].reason, "NodeNotReady");
    let machine = world.at(&node);
    machine.bound_runs = vec![run("00:10:00", Some(0)), run("00:15:00", Some(0))];
    machine.bound_handled = Some(at("00:20:00"));
    machine.speaks = true;
    machine.obeys = true;
    world.settle();
    let expected = ["00:05:00", "00:10:00", "00:15:00"].map(|time| format!("2026-01-01T{time}Z"));
    assert_eq!(world.scheduled_times(), expected);
    assert_eq!(world.wanted("dump").len(), 0);
    assert_eq!(world.job_state().bound, None);
    world.live(600, 10);
    assert_eq!(world.runs().len(), 3);
}

#[test]
fn a_run_after_a_time_that_nothing_began_is_recorded_before_the_schedule_is_given_back() {
    let (mut world, node) = World::with_kept_schedule();
    world.live(560, 10);
    // 00:10 is undecided, so that nothing of 00:15 is reported yet.
    world.at(&node).bound_runs = vec![run("00:15:00", Some(0))];
    world.live(10, 10);
    assert_eq!(world.runs().len(), 1);
    world.suspend(true);
    world.settle();
    let expected = ["00:05:00", "00:15:00"].map(|time| format!("2026-01-01T{time}Z"));
    assert_eq!(world.scheduled_times(), expected);
    assert_eq!(world.job_state().bound, None);
    assert_eq!(world.job_state().handled, Some(at("00:15:00")));
    world.suspend(false);
    world.live(60, 10);
    assert_eq!(world.runs().len(), 2);
}

#[test]
fn a_run_of_which_its_machine_says_nothing_at_the_end_is_interrupted() {
    let (mut world, node) = World::with_kept_schedule();
    world.live(260, 10);
    world.at(&node).bound_runs = vec![run("00:10:00", None)];
    world.live(10, 10);
    assert_eq!(world.run_numbered(2).phase, RunPhase::Active);
    // As of a machine that has lost the file of its runs.
    world.at(&node).bound_runs.clear();
    world.suspend(true);
    world.settle();
    let second = world.run_numbered(2);
    assert_eq!(
        (second.phase, second.reason.as_str()),
        (RunPhase::Failed, "Interrupted")
    );
    assert_eq!(world.job_state().bound, None);
}

#[test]
fn a_run_that_is_left_active_without_a_machine_that_keeps_the_schedule_is_ended() {
    let (mut world, node) = World::with_kept_schedule();
    world.live(260, 10);
    world.at(&node).bound_runs = vec![run("00:10:00", Some(0))];
    world.at(&node).bound_handled = Some(at("00:10:00"));
    world.settle();
    world.suspend(true);
    world.settle();
    assert_eq!(world.job_state().bound, None);
    let mut left = world.run_numbered(2);
    left.phase = RunPhase::Active;
    left.finished = None;
    let key = keys::job_run(NAMESPACE, "dump", &scheduled_run(at("00:10:00")));
    world.write(key, &left);
    world.settle();
    assert_eq!(world.run_numbered(2).phase, RunPhase::Failed);
}

#[test]
fn a_machine_whose_clock_is_ahead_can_give_the_schedule_back() {
    let (mut world, node) = World::with_kept_schedule();
    world.live(260, 10);
    // It is 00:10 for the leader.
    world.at(&node).bound_runs = vec![run("00:10:00", Some(0)), run("00:15:00", Some(0))];
    world.at(&node).bound_handled = Some(at("00:15:00"));
    world.live(10, 10);
    assert_eq!(world.runs().len(), 1);
    world.suspend(true);
    world.settle();
    assert_eq!(world.runs().len(), 3);
    let state = world.job_state();
    assert_eq!(state.bound, None);
    // That a clock is a minute ahead is possible; later times are not decided.
    let latest = world.now.checked_add(Duration::from_secs(60)).unwrap();
    assert!(state.handled <= Some(latest), "{state:?}");
    // The leader comes to 00:15, which has had its run.
    world.suspend(false);
    world.live(400, 10);
    let times = world.scheduled_times();
    let count = times.iter().filter(|time| time.contains("T00:15:00"));
    assert_eq!(count.count(), 1, "{times:?}");
}

#[test]
fn runs_of_times_to_come_stay_beside_the_history_until_their_time() {
    let (mut world, node) = World::with_kept_job(json!({"successfulHistory": 1}));
    world.live(260, 10);
    // It is 00:10 for the leader.
    let ahead = ["00:10:00", "00:15:00", "00:20:00", "00:25:00"];
    world.at(&node).bound_runs = ahead.map(|time| run(time, Some(0))).to_vec();
    world.at(&node).bound_handled = Some(at("00:25:00"));
    // Takes the schedule back, and gives it to no machine again.
    let other = ["n1", "n2"].into_iter().find(|other| *other != node);
    world.at(other.unwrap()).schema = BOUND_SCHEMA - 1;
    world.live(400, 10);
    assert!(world.now > at("00:15:00") && world.now < at("00:20:00"));
    let state = world.job_state();
    assert_eq!((state.bound, state.last_number), (None, 5));
    let times = world.scheduled_times();
    let expected = ["00:15:00", "00:20:00", "00:25:00"].map(|time| at(time).to_string());
    assert_eq!(times, expected);
}

#[test]
fn a_machine_that_gets_an_earlier_version_makes_the_leader_take_the_schedule_back() {
    let (mut world, node) = World::with_kept_schedule();
    let other = ["n1", "n2"].into_iter().find(|other| *other != node);
    world.at(other.unwrap()).schema = BOUND_SCHEMA - 1;
    world.live(60, 10);
    assert_eq!(world.job_state().bound, None);
    let bound = world.wanted("dump").into_iter();
    assert_eq!(bound.filter(|(_, _, one)| one.bound.is_some()).count(), 0);
}

#[test]
fn a_machine_that_has_not_reported_yet_takes_no_schedule_back() {
    let (mut world, _) = World::with_kept_schedule();
    world.machine("n3", "23", &[]);
    world.at("n3").speaks = false;
    world.live(60, 10);
    let (_, _, assignment) = world.wanted("dump").remove(0);
    assert!(!assignment.bound.as_ref().unwrap().closed);
}

#[test]
fn changed_files_take_the_schedule_back_and_a_job_with_many_retries_stays_with_the_leader() {
    let (mut world, node) = World::with_kept_schedule();
    world.at(&node).bound_handled = Some(at("00:05:00"));
    world.kept_job(json!({"backoffLimit": 11}));
    world.live(400, 5);
    assert_eq!(
        world.scheduled_times(),
        ["2026-01-01T00:05:00Z", "2026-01-01T00:10:00Z"]
    );
    let bound = world.wanted("dump").into_iter();
    assert_eq!(bound.filter(|(_, _, one)| one.bound.is_some()).count(), 0);
    assert!(!world.run_numbered(2).bound);
}

#[test]
fn a_report_about_times_to_come_or_about_an_earlier_state_is_not_taken() {
    let (mut world, node) = World::with_kept_schedule();
    let machine = world.at(&node);
    machine.bound_runs = vec![run("03:00:00", Some(0))];
    machine.bound_handled = Some(at("03:00:00"));
    world.live(60, 10);
    assert_eq!(world.runs().len(), 1);
    assert_eq!(world.job_state().handled, Some(at("00:05:00")));
}

#[test]
fn a_machine_of_an_earlier_version_keeps_the_schedule_with_the_leader() {
    let mut world = World::with_machines(2);
    world.at("n2").schema = BOUND_SCHEMA - 1;
    world.kept_job(json!({}));
    world.live(700, 5);
    assert_eq!(world.runs().len(), 2);
    assert!(world.runs().iter().all(|run| !run.bound));
}

#[test]
fn a_record_of_a_run_that_its_machine_tried_again_has_all_attempts() {
    let (mut world, node) = World::with_kept_job(json!({"backoffLimit": 2}));
    let (_, _, assignment) = world.wanted("dump").remove(0);
    assert_eq!(assignment.bound.as_ref().unwrap().backoff_limit, 2);
    assert_eq!(assignment.schema, BOUND_RETRIES_SCHEMA);
    world.live(300, 10);
    world.at(&node).bound_runs = vec![BoundRun {
        paused: true,
        ..retried("00:10:00", 1, None)
    }];
    world.live(10, 10);
    let second = world.run_numbered(2);
    assert_eq!((second.phase, second.failures), (RunPhase::Active, 1));
    let open = |run: &JobRunRecord| run.attempts.iter().filter(|one| one.end.is_none()).count();
    assert_eq!((second.attempts.len(), open(&second)), (1, 0));
    world.at(&node).bound_runs = vec![retried("00:10:00", 1, None)];
    world.live(10, 10);
    let second = world.run_numbered(2);
    assert_eq!((second.attempts.len(), open(&second)), (2, 1));
    world.at(&node).bound_runs = vec![retried("00:10:00", 2, Some(3))];
    world.at(&node).bound_handled = Some(at("00:10:00"));
    world.settle();
    let second = world.run_numbered(2);
    assert_eq!(second.reason, "BackoffLimitExceeded");
    assert_eq!(
        second.message,
        "3 instances failed, and backoffLimit is 2; the last: the program ended with exit code 3"
    );
    assert_eq!((second.failures, second.attempts.len()), (3, 3));
    world.pass(Duration::from_secs(300));
    let machine = world.at(&node);
    machine.bound_runs.push(retried("00:15:00", 1, Some(0)));
    machine.bound_handled = Some(at("00:15:00"));
    world.settle();
    let third = world.run_numbered(3);
    assert_eq!((third.phase, third.failures), (RunPhase::Succeeded, 1));
    assert_eq!(third.attempts.len(), 2);
}

#[test]
fn a_run_with_fewer_attempts_than_it_may_have_says_why() {
    let retries = json!({"backoffLimit": 2, "activeDeadlineSeconds": 60});
    let (mut world, node) = World::with_kept_job(retries);
    world.live(300, 10);
    let mut late = run("00:10:00", Some(3));
    if let Some(end) = &mut late.end {
        end.at = at("00:10:55");
    }
    world.at(&node).bound_runs = vec![late];
    world.at(&node).bound_handled = Some(at("00:10:00"));
    world.live(10, 10);
    let second = world.run_numbered(2);
    assert_eq!(second.reason, "DeadlineExceeded");
    assert!(
        second.message.contains("after the deadline"),
        "{}",
        second.message
    );
    world.pass(Duration::from_secs(300));
    let machine = world.at(&node);
    machine.bound_runs.push(run("00:15:00", Some(3)));
    machine.bound_handled = Some(at("00:15:00"));
    world.settle();
    let third = world.run_numbered(3);
    assert_eq!((third.reason.as_str(), third.failures), ("Interrupted", 1));
}

#[test]
fn a_machine_that_knows_no_retries_keeps_a_schedule_without_them_alone() {
    let mut world = World::with_machines(2);
    world.at("n2").schema = BOUND_RETRIES_SCHEMA - 1;
    world.kept_job(json!({"backoffLimit": 1}));
    world.live(360, 5);
    assert!(
        world
            .wanted("dump")
            .iter()
            .all(|(_, _, one)| one.bound.is_none())
    );
    world.kept_job(json!({}));
    world.live(300, 5);
    let bound = world.wanted("dump").into_iter();
    assert_eq!(bound.filter(|(_, _, one)| one.bound.is_some()).count(), 1);
}

#[test]
fn a_machine_makes_up_for_missed_times_and_leaves_those_that_wait_to_the_leader() {
    let (mut world, node) = World::with_kept_job(json!({"catchUp": "Last"}));
    let (_, _, assignment) = world.wanted("dump").remove(0);
    let bound = assignment.bound.clone().unwrap();
    assert_eq!(bound.catch_up, Some(CatchUp::Last));
    assert_eq!(assignment.schema, BOUND_RETRIES_SCHEMA);
    // It was off at 00:10 and 00:15, and makes up for the latter.
    world.live(800, 10);
    let made_up = BoundRun {
        started: at("00:19:00"),
        ..run("00:15:00", Some(0))
    };
    world.at(&node).bound_runs = vec![made_up];
    world.at(&node).bound_handled = Some(at("00:15:00"));
    world.settle();
    let second = world.run_numbered(2);
    assert_eq!(second.scheduled, Some(at("00:15:00")));
    assert_eq!(
        (second.cause, second.phase),
        (RunCause::Schedule, RunPhase::Succeeded)
    );
    // 00:20 is missed as well, and the schedule is taken back before it has begun.
    world.live(240, 10);
    world.kept_job(json!({"catchUp": "Last", "backoffLimit": 11}));
    world.live(60, 10);
    let times = world.scheduled_times();
    let count = times.iter().filter(|time| time.contains("T00:20:00"));
    assert_eq!(count.count(), 1, "{times:?}");
    assert_eq!(world.job_state().bound, None);
}

#[test]
fn a_time_that_a_clock_a_little_ahead_has_begun_is_none_of_the_next_instance() {
    let (mut world, node) = World::with_kept_schedule();
    world.live(230, 10);
    assert!(world.now < at("00:10:00"));
    world.at(&node).bound_runs = vec![run("00:10:00", Some(0))];
    world.at(&node).bound_handled = Some(at("00:10:00"));
    world.settle();
    assert_eq!(world.job_state().handled, Some(at("00:10:00")));
    world.kept_job(json!({"backoffLimit": 2}));
    world.settle();
    assert!(world.now < at("00:10:00"));
    let (_, on, assignment) = world.wanted("dump").remove(0);
    let next = assignment.bound.clone().unwrap();
    assert_eq!(
        (on, next.backoff_limit, next.handled),
        (node, 2, at("00:10:00"))
    );
    world.live(60, 10);
    assert_eq!(world.runs().len(), 2);
}

#[test]
fn a_schedule_stays_with_the_leader_until_the_times_that_a_clock_has_begun_have_come() {
    let (mut world, node) = World::with_kept_schedule();
    world.live(260, 10);
    // It is 00:10 for the leader.
    world.at(&node).bound_runs = vec![run("00:10:00", Some(0)), run("00:15:00", Some(0))];
    world.at(&node).bound_handled = Some(at("00:15:00"));
    world.suspend(true);
    world.settle();
    world.suspend(false);
    world.settle();
    assert!(world.now < at("00:14:00"));
    // Its machine would begin 00:15 again.
    assert_eq!(world.wanted("dump").len(), 0);
    world.live(400, 10);
    let (_, on, assignment) = world.wanted("dump").remove(0);
    let next = assignment.bound.clone().unwrap();
    assert_eq!((on, next.handled), (node, at("00:15:00")));
    let expected = ["00:05:00", "00:10:00", "00:15:00"].map(|time| at(time).to_string());
    assert_eq!(world.scheduled_times(), expected);
}

#[test]
fn another_schedule_with_a_time_that_a_clock_a_little_ahead_has_begun_does_not_begin_it_again() {
    let (mut world, node) = World::with_kept_schedule();
    world.live(230, 10);
    world.at(&node).bound_runs = vec![run("00:10:00", Some(0))];
    world.at(&node).bound_handled = Some(at("00:10:00"));
    world.settle();
    // Nothing is decided of another schedule.
    world.kept_job(json!({"schedule": "*/10 * * * *"}));
    world.settle();
    assert!(world.now < at("00:10:00"));
    assert_eq!(world.wanted("dump").len(), 0);
    world.live(40, 10);
    let (_, _, assignment) = world.wanted("dump").remove(0);
    let next = assignment.bound.clone().unwrap();
    assert_eq!(
        (next.schedule.as_str(), next.handled),
        ("*/10 * * * *", at("00:10:00"))
    );
    assert_eq!(world.runs().len(), 2);
}

#[test]
fn a_machine_has_a_few_open_runs_at_most_and_its_next_report_ends_them() {
    let (mut world, node) = World::with_kept_job(json!({"schedule": "* * * * *"}));
    for time in ["00:02:00", "00:03:00", "00:04:00", "00:05:00", "00:06:00"] {
        world.at(&node).bound_runs = vec![run(time, None)];
        world.settle();
    }
    // The first one is the leader's.
    let runs = world.runs();
    assert_eq!(runs.len(), 5, "{runs:?}");
    assert_eq!(runs.iter().filter(|run| run.is_active()).count(), 4);
    world.at(&node).bound_runs = vec![run("00:06:00", Some(0))];
    world.at(&node).bound_handled = Some(at("00:06:00"));
    world.settle();
    let runs = world.runs();
    assert_eq!(runs.len(), 6);
    assert!(runs.iter().all(|run| !run.is_active()), "{runs:?}");
}

#[test]
fn a_run_at_a_time_that_the_schedule_does_not_have_gets_no_record() {
    let (mut world, node) = World::with_kept_schedule();
    world.live(260, 10);
    world.at(&node).bound_runs = vec![
        run("00:07:00", Some(0)),
        run("00:10:00", Some(0)),
        run("00:10:01", None),
    ];
    world.at(&node).bound_handled = Some(at("00:10:00"));
    world.settle();
    let expected = ["00:05:00", "00:10:00"].map(|time| at(time).to_string());
    assert_eq!(world.scheduled_times(), expected);
    assert_eq!(world.job_state().handled, Some(at("00:10:00")));
}

#[test]
fn a_run_of_the_schedule_before_a_change_is_recorded() {
    let (mut world, node) = World::with_kept_schedule();
    let machine = world.at(&node);
    (machine.speaks, machine.obeys) = (false, false);
    world.live(60, 10);
    world.kept_job(json!({"schedule": "*/7 * * * *"}));
    world.live(260, 10);
    let machine = world.at(&node);
    machine.bound_runs = vec![run("00:10:00", Some(0))];
    machine.bound_handled = Some(at("00:10:00"));
    (machine.speaks, machine.obeys) = (true, true);
    world.settle();
    let expected = ["00:05:00", "00:10:00"].map(|time| at(time).to_string());
    assert_eq!(world.scheduled_times(), expected);
}

#[test]
fn a_run_that_is_over_gets_no_record_before_its_time_is_decided() {
    let (mut world, node) = World::with_kept_schedule();
    world.live(260, 10);
    // It could report such runs without end, also as its last ones although it keeps the schedule.
    for idle in [false, true] {
        let said = BoundReport {
            runs: vec![run("00:10:00", Some(0))],
            idle,
            ..BoundReport::default()
        };
        world.hears(&node, said);
        world.plan_out();
        assert_eq!(world.runs().len(), 1, "{idle}");
    }
}

#[test]
fn a_run_that_is_reported_again_and_again_as_the_last_one_is_not_recorded_again_and_again() {
    let (mut world, node) = World::with_kept_job(json!({"successfulHistory": 0}));
    world.live(260, 10);
    let before = world.job_state();
    let said = BoundReport {
        runs: vec![run("00:10:00", Some(0))],
        idle: true,
        ..BoundReport::default()
    };
    world.hears(&node, said);
    world.plan_out();
    assert_eq!(world.job_state(), before);
}

#[test]
fn a_report_with_a_time_twice_is_one_run() {
    let (mut world, node) = World::with_kept_schedule();
    world.live(260, 10);
    let later = BoundRun {
        started: at("00:10:01"),
        ..run("00:10:00", None)
    };
    let said = BoundReport {
        runs: vec![run("00:10:00", None), later],
        ..BoundReport::default()
    };
    world.hears(&node, said);
    world.plan_out();
    assert_eq!(world.runs().len(), 2);
    assert_eq!(world.run_numbered(2).started, Some(at("00:10:00")));
}

#[test]
fn a_time_that_a_clock_has_begun_is_not_begun_again_before_its_delay_is_over() {
    let mut world = World::with_machines(2);
    world.kept_job(json!({"jitterSeconds": 240, "successfulHistory": 0}));
    world.live(900, 5);
    let (_, node, assignment) = world.wanted("dump").remove(0);
    assert!(assignment.bound.is_some());
    let snapshot = world.snapshot();
    let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "dump")];
    let uid = &entry.meta.value.uid;
    let begins = |time: Timestamp| kat_plan::start_of_run(time, uid, 240);
    let mut times = (20..60).step_by(5).map(|minute| format!("00:{minute}:00"));
    let time = times.find(|time| begins(at(time)).duration_since(at(time)).as_secs() > 60);
    let time = time.unwrap();
    let scheduled = at(&time);

    // The clock of its machine is two minutes ahead of the leader's, beyond the delay.
    world.live_until(scheduled.checked_sub(Duration::from_secs(100)).unwrap());
    world.at(&node).bound_runs = vec![run(&time, Some(0))];
    world.at(&node).bound_handled = Some(scheduled);
    world.suspend(true);
    world.settle();
    world.suspend(false);
    world.settle();
    let runs = world.job_state().last_number;

    world.live_until(scheduled.checked_add(Duration::from_secs(20)).unwrap());
    assert!(world.now < begins(scheduled));
    assert_eq!(world.wanted("dump").len(), 0);
    world.live_until(
        begins(scheduled)
            .checked_add(Duration::from_secs(20))
            .unwrap(),
    );
    assert_eq!(world.job_state().last_number, runs);
    let (_, on, assignment) = world.wanted("dump").remove(0);
    assert_eq!(on, node);
    assert_eq!(assignment.bound.as_ref().unwrap().handled, scheduled);
}
