//! Runs with one instance on each machine, and runs that overlap.

use super::*;
use crate::machines::node_loss::{timeout, unplug};
use kat_types::assignment::is_machine_slot;

impl World {
    /// The machine of each wanted instance of `dump`, in their order.
    fn dumping_on(&mut self) -> Vec<String> {
        let mut on: Vec<String> = self.wanted("dump").into_iter().map(|one| one.1).collect();
        on.sort();
        on
    }

    /// The machines of the attempts of a run, in their order.
    fn attempted_on(&mut self, number: u64) -> Vec<String> {
        let run = self.run_numbered(number);
        let mut on: Vec<String> = run.attempts.into_iter().map(|one| one.node).collect();
        on.sort();
        on
    }

    fn plug_in(&mut self, machine: &str) {
        let machine = self.at(machine);
        (machine.speaks, machine.obeys) = (true, true);
    }
}

fn per_node(parallelism: u32) -> serde_json::Value {
    json!({"completions": "PerNode", "parallelism": parallelism, "backoffLimit": 1})
}

#[test]
fn a_run_has_one_instance_on_each_machine_and_none_on_one_that_joins_later() {
    let mut world = World::with_machines(3);
    world.lasting.insert(DUMP.to_owned());
    world.job(per_node(3));
    world.plan_out();
    assert_eq!(world.dumping_on(), ["n1", "n2", "n3"]);
    for (_, node, assignment) in world.wanted("dump") {
        assert!(is_machine_slot(assignment.slot), "{}", assignment.slot);
        let mut env = assignment.container.env.iter();
        let index = env.find(|one| one.name == "KAT_JOB_COMPLETION_INDEX");
        let index: u32 = index.unwrap().value.as_ref().unwrap().parse().unwrap();
        assert_eq!(node, format!("n{}", index + 1));
    }
    world.machine("n4", "23", &[]);
    world.live(30, 5);
    assert_eq!(world.dumping_on(), ["n1", "n2", "n3"]);
    world.lasting.clear();
    world.live(30, 5);
    world.settle();
    let run = world.run_numbered(1);
    assert_eq!((run.phase, run.completions), (RunPhase::Succeeded, 3));
    assert_eq!(run.message, "3 machines succeeded");
    assert_eq!(world.attempted_on(1), ["n1", "n2", "n3"]);
}

#[test]
fn a_machine_that_fails_once_is_repeated_there_and_as_many_run_at_once_as_may() {
    let mut world = World::with_machines(3);
    world.failing.insert(DUMP.to_owned());
    world.job(per_node(1));
    for _ in 0..10 {
        world.plan_out();
        if world.run_numbered(1).failures == 1 {
            break;
        }
        world.agents();
    }
    world.failing.clear();
    let mut most = 0;
    for _ in 0..60 {
        world.pass(Duration::from_secs(5));
        world.plan_out();
        most = most.max(world.wanted("dump").len());
        world.agents();
    }
    let run = world.run_numbered(1);
    assert_eq!((run.phase, run.failures), (RunPhase::Succeeded, 1));
    let failures: Vec<u32> = run
        .machines
        .unwrap()
        .iter()
        .map(|one| one.failures)
        .collect();
    assert_eq!(failures, [1, 0, 0]);
    assert_eq!(world.attempted_on(1), ["n1", "n1", "n2", "n3"]);
    assert_eq!(most, 1);
}

#[test]
fn a_run_fails_when_every_machine_has_done_what_it_will() {
    let mut world = World::with_machines(3);
    world.failing.insert(DUMP.to_owned());
    world.job(per_node(1));
    world.live(300, 5);
    world.settle();
    let run = world.run_numbered(1);
    assert_eq!((run.phase, run.failures), (RunPhase::Failed, 6));
    assert_eq!(run.reason, "BackoffLimitExceeded");
    assert!(
        run.message.starts_with(
            "0 of 3 machines succeeded; more instances failed than backoffLimit (1) allows on n1, n2, n3"
        ),
        "{}",
        run.message
    );
    assert_eq!(world.wanted("dump").len(), 0);
}

#[test]
fn a_machine_that_leaves_the_cluster_during_a_run_has_failed_and_the_others_go_on() {
    let mut world = World::with_machines(3);
    world.lasting.insert(DUMP.to_owned());
    world.job(per_node(2));
    world.live(10, 5);
    assert_eq!(world.dumping_on(), ["n1", "n2"]);
    world.remove_machine("n2");
    world.live(10, 5);
    assert_eq!(world.dumping_on(), ["n1", "n3"]);
    world.lasting.clear();
    world.live(30, 5);
    world.settle();
    let run = world.run_numbered(1);
    assert_eq!(run.phase, RunPhase::Failed);
    assert_eq!(run.reason, "MachineRemoved");
    assert_eq!(
        run.message,
        "2 of 3 machines succeeded; n2 left the cluster before that"
    );
    assert_eq!(world.attempted_on(1), ["n1", "n2", "n3"]);
}

#[test]
fn a_machine_that_does_not_answer_holds_up_no_other_and_goes_on_when_it_is_back() {
    let mut world = World::with_machines(2);
    world.lasting.insert(DUMP.to_owned());
    world.job(per_node(1));
    world.live(10, 5);
    assert_eq!(world.dumping_on(), ["n1"]);
    unplug(&mut world, "n1");
    let lost = timeout(&mut world);
    world.pass(lost + Duration::from_secs(1));
    world.live(10, 5);
    assert_eq!(world.dumping_on(), ["n1", "n2"]);
    world.lasting.clear();
    world.live(60, 5);
    assert_eq!(world.run_numbered(1).phase, RunPhase::Active);
    let status = world.status("dump");
    assert!(
        status.conditions[0].message.contains("n1"),
        "{:?}",
        status.conditions
    );
    world.plug_in("n1");
    world.live(60, 5);
    assert_eq!(world.run_numbered(1).phase, RunPhase::Succeeded);
}

#[test]
fn a_machine_that_takes_no_work_when_a_run_begins_is_left_out_of_it_by_name() {
    let mut world = World::with_machines(4);
    world.settle();
    unplug(&mut world, "n3");
    let lost = timeout(&mut world);
    world.pass(lost + Duration::from_secs(1));
    world.drain("n4", true);
    world.settle();
    world.job(per_node(1));
    world.live(60, 5);
    world.settle();
    let run = world.run_numbered(1);
    assert_eq!(run.phase, RunPhase::Succeeded);
    assert_eq!(run.left_out, ["n3", "n4"]);
    assert_eq!(
        run.message,
        "2 machines succeeded; left out, because they took no work when the run began: n3, n4"
    );
    assert_eq!(world.attempted_on(1), ["n1", "n2"]);
}

#[test]
fn a_run_without_any_machine_fails_and_one_whose_machines_are_away_waits_for_them() {
    let mut world = World::with_machines(2);
    world.job_with(per_node(1), |file| {
        file["spec"]["nodeSelector"] = json!({"name": "n9"});
    });
    world.settle();
    let run = world.run_numbered(1);
    assert_eq!((run.phase, run.started), (RunPhase::Failed, None));
    assert_eq!(run.reason, "NoMatchingMachine");
    let status = world.status("dump");
    assert_eq!(status.phase, WorkloadPhase::Failed);
    assert_eq!(status.conditions[0].reason, "NoMatchingMachine");
    assert_eq!(world.events("RunFailed").len(), 1);

    unplug(&mut world, "n2");
    let lost = timeout(&mut world);
    world.pass(lost + Duration::from_secs(1));
    world.settle();
    world.job_with(per_node(1), |file| {
        file["spec"]["nodeSelector"] = json!({"name": "n2"});
    });
    world.live(30, 5);
    assert!(world.run_numbered(2).is_active());
    let message = world.status("dump").conditions[0].message.clone();
    assert_eq!(message, "no machine that matches takes work now: n2");
    world.plug_in("n2");
    world.live(30, 5);
    world.settle();
    assert_eq!(world.run_numbered(2).phase, RunPhase::Succeeded);
    assert_eq!(world.attempted_on(2), ["n2"]);
}

#[test]
fn a_machine_with_a_taint_that_is_not_tolerated_is_no_machine_of_a_run() {
    let mut world = World::with_machines(2);
    world.machine("n3", "23", &[no_schedule("kat.dws.rip/unschedulable")]);
    world.job(per_node(3));
    world.settle();
    let run = world.run_numbered(1);
    assert_eq!(run.phase, RunPhase::Succeeded);
    assert_eq!(world.attempted_on(1), ["n1", "n2"]);
    assert!(run.left_out.is_empty());
}

#[test]
fn a_cordoned_machine_is_left_out_of_a_run_by_name_and_a_run_waits_if_all_are_cordoned() {
    let mut world = World::with_machines(2);
    world.machine("n3", "23", &[no_schedule("kat.dws.rip/cordoned")]);
    world.job(per_node(3));
    world.settle();
    let run = world.run_numbered(1);
    assert_eq!(run.phase, RunPhase::Succeeded);
    assert_eq!(run.left_out, ["n3"]);
    assert_eq!(world.attempted_on(1), ["n1", "n2"]);

    world.job_with(per_node(1), |file| {
        file["spec"]["nodeSelector"] = json!({"name": "n3"});
    });
    world.live(30, 5);
    assert!(world.run_numbered(2).is_active());
    let message = world.status("dump").conditions[0].message.clone();
    assert_eq!(message, "no machine that matches takes work now: n3");
    world.change(&keys::registration("n3"), |record| {
        record["taints"] = json!([]);
    });
    world.live(30, 5);
    world.settle();
    assert_eq!(world.run_numbered(2).phase, RunPhase::Succeeded);
    assert_eq!(world.attempted_on(2), ["n3"]);
}

#[test]
fn a_machine_that_is_cordoned_before_its_turn_keeps_the_run_active_and_says_so() {
    let mut world = World::with_machines(2);
    world.lasting.insert(DUMP.to_owned());
    world.job(per_node(1));
    world.live(10, 5);
    assert_eq!(world.dumping_on(), ["n1"]);
    let taints = serde_json::to_value([no_schedule("kat.dws.rip/unschedulable")]).unwrap();
    world.change(&keys::registration("n2"), |record| {
        record["taints"] = taints
    });
    world.lasting.clear();
    world.live(60, 5);
    assert!(world.run_numbered(1).is_active());
    assert_eq!(
        world.status("dump").conditions[0].message,
        "the run waits for the end of a taint, which it does not tolerate, on n2"
    );
    world.change(&keys::registration("n2"), |record| {
        record["taints"] = json!([])
    });
    world.live(60, 5);
    assert_eq!(world.run_numbered(1).phase, RunPhase::Succeeded);
    assert_eq!(world.attempted_on(1), ["n1", "n2"]);
}

#[test]
fn each_machine_has_a_volume_of_its_own_and_writes_it_beside_the_others() {
    let mut world = World::with_machines(3);
    world.lasting.insert(DUMP.to_owned());
    world.job_with(per_node(3), with_data);
    world.plan_out();
    let folders: BTreeSet<Option<String>> = world
        .wanted("dump")
        .iter()
        .map(|(_, _, assignment)| assignment.volumes[0].folder.clone())
        .collect();
    assert_eq!(folders.len(), 3, "{folders:?}");
    world.lasting.clear();
    world.live(30, 5);
    world.settle();
    assert_eq!(world.run_numbered(1).phase, RunPhase::Succeeded);
}

#[test]
fn the_volumes_of_a_run_on_each_machine_use_the_quota_before_they_are_made() {
    let mut world = World::with_machines(3);
    world.job_with(per_node(1), with_data);
    let used = used_by_namespace(&world.snapshot(), NAMESPACE);
    assert_eq!((used.instances, used.volumes), (Some(1), Some(3)));
}

fn with_data(file: &mut serde_json::Value) {
    file["spec"]["volumes"] = json!([{"name": "data", "simpleClusterStorage": {}}]);
    file["spec"]["container"] = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
}

#[test]
fn under_allow_runs_overlap_until_there_are_too_many() {
    let mut world = World::with_machines(2);
    world.lasting.insert(DUMP.to_owned());
    world.job(json!({
        "schedule": "* * * * *", "concurrencyPolicy": "Allow", "successfulHistory": 1000,
    }));
    world.live(200, 5);
    assert_eq!(world.runs().len(), 3);
    assert_eq!(world.dumping(), 3);
    let status = world.status("dump");
    assert_eq!(status.job.unwrap().active, 3);
    assert!(
        status.conditions[0]
            .message
            .ends_with("2 other runs are active"),
        "{:?}",
        status.conditions
    );
    world.live(25 * 60, 30);
    let active = world.runs().iter().filter(|run| run.is_active()).count();
    assert_eq!(active, 20);
    let skipped = world.job_state().skipped.unwrap();
    assert_eq!(
        (skipped.reason.as_str(), skipped.message.as_str()),
        (
            "RunOverlapped",
            "20 runs were active, which is the most under concurrencyPolicy Allow"
        )
    );
    world.lasting.clear();
    world.live(120, 10);
    let runs = world.runs();
    assert!(runs.len() > 20, "{}", runs.len());
    assert_eq!(runs[0].phase, RunPhase::Succeeded);
}

#[test]
fn under_allow_changed_files_end_the_run_of_a_job_without_schedule() {
    let mut world = World::with_machines(1);
    world.lasting.insert(DUMP.to_owned());
    world.job(json!({"concurrencyPolicy": "Allow"}));
    world.live(10, 5);
    world.job(json!({"concurrencyPolicy": "Allow", "backoffLimit": 1}));
    world.live(20, 5);
    let run = world.run_numbered(1);
    assert_eq!(
        (run.phase, run.reason.as_str()),
        (RunPhase::Cancelled, "RunReplaced")
    );
    assert!(world.run_numbered(2).is_active());
}

/// An apply refuses such files; they may be in the store all the same.
#[test]
fn runs_that_write_data_wait_for_each_other_even_under_allow() {
    let mut world = World::with_machines(2);
    world.lasting.insert(DUMP.to_owned());
    let spec = json!({
        "schedule": "* * * * *", "concurrencyPolicy": "Allow", "successfulHistory": 1000,
    });
    world.job_with(spec, with_data);
    for _ in 0..40 {
        world.live(5, 5);
        assert!(world.wanted("dump").len() <= 1);
    }
    assert_eq!(world.runs().len(), 3);
    world.lasting.clear();
    world.live(150, 5);
    let runs = world.runs();
    let first = runs.iter().take(3);
    let phases: Vec<RunPhase> = first.map(|run| run.phase).collect();
    assert_eq!(phases, [RunPhase::Succeeded; 3]);
}
