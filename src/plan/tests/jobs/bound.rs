//! Schedules that the machine with a Job's data keeps by itself.

use super::*;
use kat_types::{
    api::BoundRun,
    store::jobs::{AttemptEnd, JobSuspension, scheduled_run},
};

impl World {
    /// A Job whose schedule its machine keeps after the first run, at 00:05. Returns that machine.
    fn with_kept_schedule() -> (Self, String) {
        let mut world = Self::with_machines(2);
        world.kept_job(json!({}));
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
    assert!(state.handled <= Some(world.now), "{state:?}");
    // The leader comes to 00:15, which has had its run.
    world.suspend(false);
    world.live(400, 10);
    let times = world.scheduled_times();
    let count = times.iter().filter(|time| time.contains("T00:15:00"));
    assert_eq!(count.count(), 1, "{times:?}");
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
fn changed_files_take_the_schedule_back_and_a_job_with_retries_stays_with_the_leader() {
    let (mut world, node) = World::with_kept_schedule();
    world.at(&node).bound_handled = Some(at("00:05:00"));
    world.kept_job(json!({"backoffLimit": 2}));
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
