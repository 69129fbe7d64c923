//! Machines that report and do not act on their list of assignments.

use super::*;
use kat_types::api::{ASSIGNMENTS_APPLIED, ApiTime, Condition, FILES_WRITTEN};

const LATE: Duration = Duration::from_secs(60);

fn condition(world: &mut World) -> Option<Condition> {
    let status = world.snapshot().nodes["n1"].status.clone().unwrap();
    let mut conditions = status.value.conditions.into_iter();
    conditions.find(|one| one.kind == ASSIGNMENTS_APPLIED)
}

/// A machine that reports and does not act on a list that has just changed.
fn that_lags() -> World {
    let mut world = World::with_machines(1);
    world.apply_workload("web", |_| {});
    world.roll_out();
    world.at("n1").obeys = false;
    world.replicas("web", 2);
    world.plan_out();
    world
}

#[test]
fn a_machine_that_reports_and_does_not_act_on_its_list_says_so_after_a_minute() {
    let mut world = that_lags();
    world.pass(LATE - Duration::from_secs(1));
    world.plan_out();
    assert_eq!(condition(&mut world), None);

    world.pass(Duration::from_secs(1));
    world.plan_out();
    let shown = condition(&mut world).unwrap();
    assert_eq!(
        (shown.status, shown.reason.as_str()),
        (false, "AssignmentsNotApplied")
    );
    assert_ne!(shown.since, ApiTime::UNKNOWN);

    // Another change of the list does not end it.
    world.replicas("web", 3);
    world.plan_out();
    assert_eq!(condition(&mut world), Some(shown));

    world.at("n1").obeys = true;
    world.settle();
    assert_eq!(condition(&mut world), None);
}

#[test]
fn a_machine_that_has_reported_for_less_than_a_minute_gets_time_to_act() {
    let mut world = that_lags();
    world.at("n1").steady = LATE - Duration::from_secs(1);
    world.pass(LATE * 2);
    world.plan_out();
    assert_eq!(condition(&mut world), None);

    world.at("n1").steady = LATE;
    world.plan_out();
    assert!(condition(&mut world).is_some());
}

#[test]
fn a_machine_that_says_itself_why_it_does_not_act_has_one_condition_for_it() {
    let mut world = that_lags();
    world.at("n1").conditions = vec![Condition {
        kind: FILES_WRITTEN.to_owned(),
        status: false,
        reason: "FilesNotWritten".to_owned(),
        message: "no space left".to_owned(),
        since: ApiTime::UNKNOWN,
    }];
    world.pass(LATE * 2);
    world.plan_out();
    assert_eq!(condition(&mut world), None);
}
