//! Workloads that a user stops and starts again.

use super::*;
use crate::updates::strategies::web;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Automatic rollback after a minute without progress.
fn strategy() -> serde_json::Value {
    json!({"autoRollback": true, "progressDeadlineSeconds": 60})
}

/// Stops `web` of version `version` as the API does: no replicas, and the record of the stop.
fn stop(world: &mut World, version: u32) {
    world.apply_workload("web", web(version, 0, strategy()));
    let at = world.now;
    world.change(&keys::workload_meta(NAMESPACE, "web"), |meta| {
        meta["stopped"] = json!({"replicas": 3, "by": "uid:1000", "at": at});
    });
}

/// Three replicas that ran, and are stopped.
fn stopped() -> World {
    let mut world = World::with_machines(3);
    world.apply_workload("web", web(1, 3, strategy()));
    world.roll_out();
    stop(&mut world, 1);
    world.roll_out();
    world
}

#[test]
fn a_stopped_workload_says_who_stopped_it_and_has_no_instance() {
    let mut world = stopped();
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Stopped);
    assert_eq!((status.replicas, status.ready), (0, 0));
    let available = &status.conditions[0];
    assert_eq!(available.reason, "Stopped");
    assert!(!available.status);
    assert_eq!(
        available.message,
        "stopped by uid:1000; `katcall start default/web` starts it"
    );
    assert_eq!(world.wanted("web").len(), 0);
    assert_eq!(world.events("Stalled"), Vec::<String>::new());
    // A start brings all of them back.
    world.apply_workload("web", web(1, 3, strategy()));
    world.roll_out();
    let status = world.status("web");
    assert_eq!((status.phase, status.ready), (WorkloadPhase::Running, 3));
}

/// `stop --wait` ends with the phase, so no plan may say it too early, not even the first one.
#[test]
fn a_workload_whose_instances_still_run_is_not_stopped_yet() {
    let mut world = World::with_machines(3);
    world.apply_workload("web", web(1, 3, strategy()));
    world.roll_out();
    stop(&mut world, 1);
    let mut phases = Vec::new();
    while world.status("web").phase != WorkloadPhase::Stopped {
        assert!(phases.len() < 20, "{phases:?}");
        world.step();
        phases.push(world.status("web").phase);
        if phases.last() == Some(&WorkloadPhase::Stopped) {
            assert_eq!(world.running("web"), 0, "{phases:?}");
        }
        world.agents();
    }
    assert!(phases.contains(&WorkloadPhase::Progressing), "{phases:?}");
}

#[test]
fn a_stopped_generation_is_none_to_return_to() {
    let mut world = stopped();
    assert_eq!(world.status("web").last_good_generation, Some(1));
    // What is started has the content of the last good generation, so there is none to return to.
    world.failing.insert("registry.example/web:1".to_owned());
    world.apply_workload("web", web(1, 3, strategy()));
    world.settle();
    world.pass(seconds(61));
    world.settle();
    assert_eq!(world.status("web").phase, WorkloadPhase::Stalled);
    assert_eq!(world.events("RolledBack"), Vec::<String>::new());
    // Another version that fails returns to the good one, and not to the stopped one.
    world.failing.clear();
    world.roll_out();
    stop(&mut world, 1);
    world.roll_out();
    world.failing.insert("registry.example/web:2".to_owned());
    world.apply_workload("web", web(2, 3, strategy()));
    world.settle();
    world.pass(seconds(61));
    world.roll_out();
    assert_eq!(world.events("RolledBack").len(), 1);
    let status = world.status("web");
    assert_eq!((status.phase, status.ready), (WorkloadPhase::Running, 3));
    assert_eq!(world.versions(), BTreeMap::from([("1".to_owned(), 3)]));
}

#[test]
fn a_stop_that_does_not_end_is_under_way_and_is_never_rolled_back() {
    let mut world = World::with_machines(1);
    world.apply_workload("web", web(1, 3, strategy()));
    world.roll_out();
    world.at("n1").obeys = false;
    stop(&mut world, 1);
    for _ in 0..3 {
        world.settle();
        world.pass(seconds(61));
    }
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Progressing);
    assert_eq!(
        status.conditions[0].message,
        "stopped by uid:1000; `katcall start default/web` starts it; 3 instances still stop"
    );
    assert_eq!(world.events("RolledBack"), Vec::<String>::new());
    assert_eq!(world.running("web"), 0, "none of them serves");
    world.at("n1").obeys = true;
    world.settle();
    assert_eq!(world.status("web").phase, WorkloadPhase::Stopped);
}

/// A leader of an earlier version writes the record of the workload without the field.
#[test]
fn a_workload_whose_stop_was_forgotten_runs_nothing() {
    let mut world = stopped();
    world.change(&keys::workload_meta(NAMESPACE, "web"), |meta| {
        meta.as_object_mut().unwrap().remove("stopped");
    });
    world.roll_out();
    let status = world.status("web");
    assert_eq!((status.phase, status.replicas), (WorkloadPhase::Running, 0));
    assert_eq!(world.wanted("web").len(), 0);
}

/// A leader that does not know the field cannot keep it while it writes other replicas, but two
/// versions may write the files and the record in turn.
#[test]
fn the_replicas_of_the_files_count_whatever_the_record_says() {
    let mut world = stopped();
    let at = world.now;
    world.apply_workload("web", web(1, 2, strategy()));
    world.change(&keys::workload_meta(NAMESPACE, "web"), |meta| {
        meta["stopped"] = json!({"replicas": 3, "by": "uid:1000", "at": at});
    });
    world.roll_out();
    let status = world.status("web");
    assert_eq!((status.phase, status.ready), (WorkloadPhase::Running, 2));
    assert!(status.conditions[0].status);
}
