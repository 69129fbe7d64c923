//! The status of a workload, and its DNS names.

use super::*;

#[test]
fn phases_on_the_way_to_running() {
    let mut world = World::with_machines(1);
    world.machines.get_mut("n1").unwrap().obeys = false;
    world.replicas("web", 2);
    world.plan_out();
    assert_eq!(world.status("web").phase, WorkloadPhase::Progressing);
    assert_eq!(
        world.keys("/kat/dns/default/"),
        Vec::<String>::new(),
        "nothing answers yet"
    );
    world.machines.get_mut("n1").unwrap().obeys = true;
    world.settle_and_run();
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Running);
    assert!(status.conditions[0].status);
    assert_eq!(world.keys("/kat/dns/default/").len(), 4);
}

#[test]
fn names_are_those_of_healthy_and_wanted_instances() {
    let mut world = World::with_machines(1);
    world.replicas("web", 2);
    world.settle();
    let ill = world.wanted("web")[0].clone();
    let machine = world.machines.get_mut("n1").unwrap();
    machine.obeys = false;
    machine.instances.get_mut(&ill.0).unwrap().health_status = Health::Unhealthy;
    world.plan_out();
    let names = world.keys("/kat/dns/default/");
    assert_eq!(names.len(), 2);
    assert!(
        names
            .iter()
            .all(|key| !key.ends_with(&ill.2.address.to_string()))
    );
    world.replicas("web", 0);
    world.plan_out();
    assert_eq!(world.keys("/kat/dns/default/"), Vec::<String>::new());
    assert_eq!(
        world.keys("/kat/dns/node/"),
        ["/kat/dns/node/n1/A/10.100.0.1"]
    );
}

#[test]
fn an_unreadable_workload_says_so() {
    let mut world = World::with_machines(1);
    world.replicas("web", 1);
    world.settle();
    let file = keys::manifest(NAMESPACE, "web", "workload.kat");
    world.apply(&[WriteOperation::Put(file, b"- : -".to_vec())]);
    world.settle();
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Degraded);
    assert_eq!(status.conditions[0].reason, "Unreadable");
    assert_eq!(world.running("web"), 1, "what runs is left alone");
}

#[test]
fn a_condition_keeps_its_time_while_it_holds() {
    let mut world = World::with_machines(1);
    world.replicas("web", 1);
    world.settle_and_run();
    let since = world.status("web").conditions[0].since;
    world.pass(Duration::from_secs(60));
    world.replicas("web", 2);
    world.settle_and_run();
    let later = world.status("web").conditions[0].since;
    assert_ne!(since, later, "it was Progressing in between");
    world.pass(Duration::from_secs(60));
    world.settle();
    assert_eq!(world.status("web").conditions[0].since, later);
}

#[test]
fn a_name_goes_with_the_stop_and_not_after_it() {
    let mut world = World::with_machines(1);
    world.replicas("web", 2);
    world.settle();
    world.replicas("web", 1);
    assert!(world.step() > 0);
    assert_eq!(world.wanted("web").len(), 1);
    assert_eq!(world.keys("/kat/dns/default/").len(), 2);
}
