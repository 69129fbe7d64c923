use super::*;
use kat_types::api::{Condition, InstanceSpec, Item, Metadata, WorkloadStatus, WorkloadView};

fn target() -> AwaitedWorkload {
    AwaitedWorkload {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        uid: "u1".to_owned(),
        generation: 2,
    }
}

fn workload(phase: WorkloadPhase, observed: u64, counts: (u32, u32, u32)) -> WorkloadItem {
    let spec: WorkloadView = serde_json::from_value(serde_json::json!({
        "type": "Service", "source": {"image": "x"}, "replicas": counts.0,
        "restartPolicy": {"condition": "Always"}, "container": {},
    }))
    .unwrap();
    Item {
        kind: "Workload".to_owned(),
        metadata: Metadata {
            name: "web".to_owned(),
            uid: "u1".to_owned(),
            ..Metadata::default()
        },
        spec,
        status: WorkloadStatus {
            phase,
            replicas: counts.0,
            ready: counts.1,
            updated: counts.2,
            observed_generation: observed,
            ..WorkloadStatus::default()
        },
    }
}

fn instance(name: &str, phase: InstancePhase, reason: &str, generation: u64) -> InstanceItem {
    let mut item: InstanceItem = Item {
        kind: "Instance".to_owned(),
        metadata: Metadata {
            name: name.to_owned(),
            ..Metadata::default()
        },
        spec: InstanceSpec::default(),
        status: kat_types::api::InstanceStatus::default(),
    };
    item.status.phase = phase;
    item.status.reason = reason.to_owned();
    item.status.generation = generation;
    item
}

fn with(item: WorkloadItem) -> RolloutWait {
    let mut state = RolloutWait::new(target());
    state.workload(ListChange::Listed(vec![item]));
    state
}

#[test]
fn success_needs_the_applied_generation_and_every_count() {
    use WorkloadPhase::{Degraded, Pending, Progressing, Running, Scheduled, Stopped, Succeeded};
    let stopped = WaitVerdict::Failed("was stopped meanwhile".to_owned());
    let table = [
        (Running, 2, (3, 3, 3), WaitVerdict::Done),
        (Running, 3, (3, 3, 3), WaitVerdict::Done),
        (Running, 2, (0, 0, 0), WaitVerdict::Done),
        (Running, 1, (3, 3, 3), WaitVerdict::Waiting),
        (Running, 2, (3, 2, 3), WaitVerdict::Waiting),
        (Running, 2, (3, 3, 2), WaitVerdict::Waiting),
        (Progressing, 2, (3, 3, 3), WaitVerdict::Waiting),
        (Degraded, 2, (3, 2, 3), WaitVerdict::Waiting),
        (Pending, 2, (3, 0, 0), WaitVerdict::Waiting),
        (Succeeded, 2, (1, 0, 0), WaitVerdict::Done),
        (Scheduled, 2, (1, 0, 0), WaitVerdict::Done),
        // A stop that is waited for, and one by somebody else.
        (Stopped, 2, (0, 0, 0), WaitVerdict::Done),
        (Stopped, 3, (0, 0, 0), stopped),
    ];
    for (phase, observed, counts, wanted) in table {
        let state = with(workload(phase, observed, counts));
        assert_eq!(state.verdict(), wanted, "{phase:?} {observed} {counts:?}");
    }
}

#[test]
fn a_stall_counts_only_when_it_is_of_this_generation() {
    let mut stalled = workload(WorkloadPhase::Stalled, 1, (3, 0, 0));
    assert_eq!(with(stalled.clone()).verdict(), WaitVerdict::Waiting);
    stalled.status.observed_generation = 2;
    stalled.status.conditions.push(Condition {
        kind: "Progressing".to_owned(),
        reason: "ProgressDeadlineExceeded".to_owned(),
        message: "no progress for 600 s".to_owned(),
        ..Condition::default()
    });
    let reason = "has stalled: ProgressDeadlineExceeded: no progress for 600 s".to_owned();
    assert_eq!(with(stalled).verdict(), WaitVerdict::Failed(reason));
    let failed = with(workload(WorkloadPhase::Failed, 2, (1, 0, 0)));
    assert_eq!(
        failed.verdict(),
        WaitVerdict::Failed("has failed".to_owned())
    );
}

#[test]
fn deleted_and_made_anew_are_both_gone() {
    assert_eq!(RolloutWait::new(target()).verdict(), WaitVerdict::Waiting);
    let item = workload(WorkloadPhase::Running, 2, (1, 1, 1));

    let mut state = with(item.clone());
    state.workload(ListChange::Deleted(item.clone()));
    assert_eq!(state.verdict(), WaitVerdict::Gone);

    let mut state = with(item.clone());
    state.workload(ListChange::Listed(vec![]));
    assert_eq!(state.verdict(), WaitVerdict::Gone);

    let mut anew = item.clone();
    anew.metadata.uid = "u2".to_owned();
    assert_eq!(with(anew).verdict(), WaitVerdict::Gone);
    assert_eq!(
        with(workload(WorkloadPhase::Deleting, 2, (1, 1, 1))).verdict(),
        WaitVerdict::Gone
    );

    let mut other = item;
    other.metadata.name = "db".to_owned();
    let mut state = with(workload(WorkloadPhase::Running, 2, (1, 1, 1)));
    state.workload(ListChange::Deleted(other));
    assert_eq!(state.verdict(), WaitVerdict::Done);
}

#[test]
fn the_summary_counts_what_is_of_this_generation() {
    use InstancePhase::{Pulling, Restarting, Running, Starting, Stopping};
    let mut state = with(workload(WorkloadPhase::Progressing, 2, (4, 1, 3)));
    state.instances(ListChange::Listed(vec![
        instance("web-old", Running, "", 1),
        instance("web-a", Running, "", 2),
        instance("web-b", Pulling, "ImagePullFailed", 2),
        instance("web-c", Starting, "", 2),
        instance("web-d", Restarting, "CrashLoop", 2),
        instance("web-e", Stopping, "", 2),
    ]));
    assert_eq!(
        state.summary(),
        "web: 1 of 4 healthy, 1 pulling, 1 starting, 1 restarting, 1 old one stopping"
    );
    let begin = Instant::now();
    state.look(begin);
    assert_eq!(state.news(begin), Vec::<String>::new(), "it may pass");
    assert_eq!(
        state.news(begin + QUIET),
        [
            "web-b: Pulling: ImagePullFailed",
            "web-d: Restarting: CrashLoop"
        ]
    );
    assert_eq!(state.news(begin + QUIET), Vec::<String>::new(), "told once");
    let slow = state.news(begin + SLOW_STOP);
    assert_eq!(slow.len(), 1, "{slow:?}");
    assert!(
        slow[0].starts_with("web-e is stopping: its program has not ended"),
        "{slow:?}"
    );
    // What was printed is not printed again.
    assert_eq!(state.troubles(true), ["web-c: Starting"]);
    let early = with(workload(WorkloadPhase::Running, 1, (1, 1, 1)));
    assert_eq!(early.summary(), "web: waiting for the leader");
}

#[test]
fn a_program_that_ends_at_once_is_named_with_its_exit_code_although_it_just_runs() {
    use InstancePhase::{Restarting, Running};
    let mut state = with(workload(WorkloadPhase::Progressing, 2, (1, 0, 0)));
    let mut ended = instance("web-a", Restarting, "CrashLoop", 2);
    "the program ended with exit code 3".clone_into(&mut ended.status.message);
    state.instances(ListChange::Changed(ended));
    state.instances(ListChange::Changed(instance("web-a", Running, "", 2)));
    assert_eq!(state.verdict(), WaitVerdict::Waiting);
    assert_eq!(
        state.summary(),
        "web: 0 of 1 healthy, 1 running for a moment"
    );
    assert_eq!(
        state.troubles(true),
        ["web-a: Restarting: CrashLoop: the program ended with exit code 3"]
    );
    let mut ended = instance("web-a", Restarting, "CrashLoop", 2);
    ended.status.exit_code = Some(3);
    state.instances(ListChange::Changed(ended));
    let mut often = instance("web-a", Restarting, "CrashLoop", 2);
    "started again 4 times".clone_into(&mut often.status.message);
    state.instances(ListChange::Changed(often));
    let told = state.troubles(true).remove(0);
    assert!(
        told.ends_with("; the program last ended with exit code 3"),
        "{told}"
    );
    state.instances(ListChange::Changed(instance("web-a", Running, "", 2)));
    state.workload(ListChange::Changed(workload(
        WorkloadPhase::Running,
        2,
        (1, 1, 1),
    )));
    assert_eq!(state.troubles(true), Vec::<String>::new());
}

#[test]
fn gone_means_without_instances_and_only_when_both_lists_are_known() {
    let item = workload(WorkloadPhase::Deleting, 2, (1, 1, 1));
    let mut state = RolloutWait::new(target());
    assert!(!state.is_gone());
    state.workload(ListChange::Listed(vec![item.clone()]));
    state.instances(ListChange::Listed(vec![instance(
        "web-a",
        InstancePhase::Stopping,
        "",
        2,
    )]));
    assert!(!state.is_gone());
    state.workload(ListChange::Deleted(item.clone()));
    assert!(!state.is_gone());
    assert_eq!(state.remaining_in_words(), "1 instance left");
    assert_eq!(
        RolloutWait::new(target()).remaining_in_words(),
        "deleting",
        "nothing is known yet"
    );
    state.instances(ListChange::Deleted(instance(
        "web-a",
        InstancePhase::Stopped,
        "",
        2,
    )));
    assert!(state.is_gone());
    // It is not called "deleting" a second time.
    assert_eq!(state.remaining_in_words(), "no instance left");
}

#[test]
fn the_earlier_version_that_still_serves_is_counted() {
    let starts = instance("web-a", InstancePhase::Starting, "", 2);
    let mut state = with(workload(WorkloadPhase::Progressing, 2, (2, 2, 0)));
    state.instances(ListChange::Listed(vec![starts.clone()]));
    assert_eq!(
        state.summary(),
        "web: 0 of 2 healthy, 1 starting, 2 old ones serving"
    );
    let mut first = with(workload(WorkloadPhase::Progressing, 2, (2, 0, 0)));
    first.instances(ListChange::Listed(vec![starts]));
    assert_eq!(first.summary(), "web: 0 of 2 healthy, 1 starting");
}

#[test]
fn healthy_ones_wait_for_old_ones_in_the_summary() {
    use InstancePhase::{Running, Stopped, Stopping};
    let mut state = with(workload(WorkloadPhase::Progressing, 2, (2, 2, 2)));
    state.instances(ListChange::Listed(vec![
        instance("web-a", Running, "", 2),
        instance("web-b", Running, "", 2),
        instance("web-old", Stopping, "", 1),
        instance("web-older", Stopped, "", 1),
    ]));
    assert_eq!(state.summary(), "web: 2 of 2 healthy, 1 old one stopping");
    state.instances(ListChange::Deleted(instance("web-old", Stopping, "", 1)));
    assert_eq!(state.summary(), "web: 2 of 2 healthy");
}

/// A connection that drains is the normal course of a stop.
#[test]
fn a_stop_is_named_when_its_program_does_not_end() {
    let mut state = with(workload(WorkloadPhase::Progressing, 2, (1, 1, 1)));
    let begin = Instant::now();
    let drains = instance("web-old", InstancePhase::Stopping, "ConnectionDraining", 1);
    state.instances(ListChange::Listed(vec![drains]));
    state.look(begin);
    assert!(state.news(begin + SLOW_STOP).is_empty());
    let stops = instance("web-old", InstancePhase::Stopping, "", 1);
    state.instances(ListChange::Changed(stops));
    state.look(begin + SLOW_STOP);
    assert!(
        state.news(begin + SLOW_STOP).is_empty(),
        "it has just begun"
    );
    assert_eq!(state.news(begin + SLOW_STOP * 2).len(), 1);
}

#[test]
fn the_wait_ends_early_only_where_a_person_has_to_act() {
    use InstancePhase::{Pulling, Restarting, Scheduled};
    for (phase, reason, ends) in [
        (Scheduled, "SecretMissing", true),
        (Pulling, "ImageNotFound", true),
        (Pulling, "ImagePullFailed", false),
        (Restarting, "CrashLoop", false),
        (Scheduled, "WaitingForAgent", false),
        (Scheduled, "OfANewerVersion", false),
    ] {
        let mut state = with(workload(WorkloadPhase::Progressing, 2, (1, 0, 0)));
        state.instances(ListChange::Listed(vec![instance(
            "web-a", phase, reason, 2,
        )]));
        let begin = Instant::now();
        state.look(begin);
        assert_eq!(state.in_vain(begin), None, "{reason}: it may pass");
        let long = state.in_vain(begin + Duration::from_secs(30));
        assert_eq!(long.is_some(), ends, "{reason}: {long:?}");
        // Somebody has mended it.
        state.instances(ListChange::Changed(instance(
            "web-a",
            InstancePhase::Starting,
            "",
            2,
        )));
        state.look(begin + Duration::from_secs(31));
        assert_eq!(
            state.in_vain(begin + Duration::from_secs(60)),
            None,
            "{reason}"
        );
    }
}

#[test]
fn without_a_place_the_wait_ends_unless_an_old_instance_may_make_room() {
    let mut item = workload(WorkloadPhase::Pending, 2, (1, 0, 0));
    item.status.conditions.push(Condition {
        kind: "Available".to_owned(),
        reason: "Unschedulable".to_owned(),
        message: "0 of 1 machines fit: 1 without enough memory left".to_owned(),
        ..Condition::default()
    });
    let begin = Instant::now();
    let mut state = with(item);
    state.instances(ListChange::Listed(vec![]));
    state.look(begin);
    assert_eq!(state.in_vain(begin + QUIET), None);
    let why = state.in_vain(begin + NO_PLACE).unwrap();
    assert!(why.ends_with("1 without enough memory left"), "{why}");
    let old = instance("web-old", InstancePhase::Running, "", 1);
    state.instances(ListChange::Changed(old));
    assert_eq!(state.in_vain(begin + NO_PLACE), None);
}

#[test]
fn a_programs_lines_are_cut_from_a_message_where_they_are_printed_below() {
    use InstancePhase::Restarting;
    let mut state = with(workload(WorkloadPhase::Progressing, 2, (1, 0, 0)));
    let mut ended = instance("web-a", Restarting, "CrashLoop", 2);
    "the program ended with exit code 3; last lines: no database | bye"
        .clone_into(&mut ended.status.message);
    ended.status.exit_code = Some(3);
    state.instances(ListChange::Changed(ended));
    assert_eq!(state.speaker(), Some("web-a"));
    assert!(state.troubles(true)[0].ends_with("last lines: no database | bye"));
    assert!(state.troubles(false)[0].ends_with("ended with exit code 3"));
    // It is gone after a rollback: only this message has its lines.
    state.instances(ListChange::Listed(vec![]));
    assert_eq!(state.speaker(), None);
    assert!(state.troubles(false)[0].ends_with("no database | bye"));
}

#[test]
fn instances_that_stay_after_a_rollback_are_no_old_ones() {
    let mut state = with(workload(WorkloadPhase::Running, 2, (1, 1, 1)));
    let kept = instance("web-a", InstancePhase::Running, "", 1);
    state.instances(ListChange::Listed(vec![kept]));
    assert_eq!(state.summary(), "web: 1 of 1 healthy");
}

#[test]
fn an_instance_of_a_run_whose_program_has_ended_does_not_wait_for_a_signal() {
    let mut over = instance("web-aaaaa", InstancePhase::Stopping, "", 2);
    over.status.exit_code = Some(0);
    let mut job = workload(WorkloadPhase::Progressing, 2, (1, 0, 0));
    let mut said = |is_job: bool, restarts: u32| {
        over.status.restarts = restarts;
        job.spec.job = is_job.then(|| serde_json::from_value(serde_json::json!({})).unwrap());
        let mut state = with(job.clone());
        state.instances(ListChange::Listed(vec![over.clone()]));
        let begin = Instant::now();
        state.look(begin);
        state.news(begin + SLOW_STOP)
    };
    let of_job = said(true, 0);
    assert_eq!(
        of_job,
        ["web-aaaaa is stopping: its program has ended; its machine removes what it used"]
    );
    // A Service's starts again, and one that was started again may run.
    for (is_job, restarts) in [(false, 0), (true, 1)] {
        let said = said(is_job, restarts);
        assert!(said[0].contains("its program has not ended on its stop signal yet"));
    }
}
