//! A changed template replaces one slot after the other, and starts each new instance before the
//! old one stops.

use super::*;

fn image(version: u32, replicas: u32) -> impl FnOnce(&mut serde_json::Value) {
    move |file| {
        file["spec"]["replicas"] = json!(replicas);
        file["spec"]["source"]["image"] = json!(format!("registry.example/web:{version}"));
    }
}

#[test]
fn never_has_fewer_than_before() {
    let mut world = World::with_machines(2);
    world.apply_workload("web", image(1, 4));
    world.settle();
    world.apply_workload("web", image(2, 4));
    let mut most = 0;
    for _ in 0..100 {
        world.plan_out();
        assert!(world.running("web") >= 4, "{}", world.running("web"));
        most = most.max(world.wanted("web").len());
        let before = world.revision;
        world.agents();
        assert!(world.running("web") >= 4, "{}", world.running("web"));
        world.plan_out();
        world.agents();
        world.pass(Duration::from_secs(1));
        world.plan_out();
        if world.revision == before && world.status("web").phase == WorkloadPhase::Running {
            break;
        }
    }
    assert_eq!(most, 5, "one more at a time");
    let wanted = world.wanted("web");
    assert_eq!(wanted.len(), 4);
    assert!(
        wanted
            .iter()
            .all(|(_, _, assignment)| assignment.image.ends_with(":2"))
    );
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}

#[test]
fn a_version_that_fails_takes_one_slot_and_no_more() {
    let mut world = World::with_machines(2);
    world.apply_workload("web", image(1, 3));
    world.settle();
    world.failing.insert("registry.example/web:2".to_owned());
    world.apply_workload("web", image(2, 3));
    world.settle();
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Degraded);
    assert_eq!(status.conditions[0].reason, "RestartsExhausted");
    for _ in 0..10 {
        world.pass(Duration::from_secs(400));
        world.settle();
        assert_eq!(world.running("web"), 3, "the old ones serve on");
        assert_eq!(world.wanted("web").len(), 4, "and one is tried again");
    }
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Stalled);
    let condition = &status.conditions[0];
    assert_eq!(condition.reason, "ProgressDeadlineExceeded");
    let why = &condition.message;
    assert!(
        why.contains("no progress for 600 s: RestartsExhausted: web-"),
        "{why}"
    );
    assert_eq!((status.ready, status.updated), (3, 0));
    world.apply_workload("web", image(3, 3));
    world.pass(Duration::from_secs(400));
    world.roll_out();
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    assert_eq!(world.wanted("web").len(), 3);
}

#[test]
fn hasty_changes_do_not_pile_up() {
    let mut world = World::with_machines(2);
    world.apply_workload("web", image(1, 3));
    world.settle();
    for version in 2..8 {
        // The previous version has no time to become healthy.
        world.apply_workload("web", image(version, 3));
        world.plan_out();
        assert_eq!(world.running("web"), 3);
        assert_eq!(
            world.wanted("web").len(),
            4,
            "three that serve, one that comes"
        );
    }
    world.roll_out();
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}

#[test]
fn going_back_to_the_old_version_keeps_what_still_runs() {
    let mut world = World::with_machines(1);
    world.apply_workload("web", image(1, 3));
    world.roll_out();
    let before: BTreeSet<String> = world.wanted("web").into_iter().map(|one| one.0).collect();
    world.failing.insert("registry.example/web:2".to_owned());
    world.apply_workload("web", image(2, 3));
    world.roll_out();
    world.apply_workload("web", image(1, 3));
    world.roll_out();
    let after: BTreeSet<String> = world.wanted("web").into_iter().map(|one| one.0).collect();
    assert_eq!(before, after);
}
