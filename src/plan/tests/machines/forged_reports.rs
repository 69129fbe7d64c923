//! A machine with a forged report harms only itself.

use super::*;
use crate::placement::service_addresses::serve;

/// Replaces the machine's report from now on by a changed one, and stops its agent.
fn forge(world: &mut World, node: &str, change: impl FnOnce(&mut NodeReport)) {
    let mut report = world.at(node).report(node).unwrap();
    change(&mut report);
    let machine = world.at(node);
    (machine.speaks, machine.obeys) = (false, false);
    machine.age = Duration::ZERO;
    machine.heard = Some(Arc::new(report));
}

#[test]
fn forged_user_indexes_take_no_index_and_hold_no_deletion_up() {
    let mut world = World::with_machines(3);
    world.replicas("web", 1);
    world.settle();
    let runs_web = world.wanted("web")[0].1.clone();
    let forger = if runs_web == "n3" { "n2" } else { "n3" };
    forge(&mut world, forger, |report| {
        report.user_indexes = (0..INDEX_LIMIT).collect();
    });
    world.plan_out();
    let snapshot = world.snapshot();
    assert_eq!(
        next_index(&snapshot),
        Some(1),
        "there is one for a new workload"
    );
    world.delete_workload("web");
    world.settle();
    assert_eq!(world.keys(keys::WORKLOADS), Vec::<String>::new());
}

#[test]
fn a_user_of_a_machine_is_not_forgotten_when_its_instance_is_gone() {
    let mut world = World::with_machines(1);
    world.replicas("web", 1);
    world.settle();
    world.replicas("web", 0);
    world.settle();
    let status = world.snapshot().nodes["n1"].status.clone().unwrap().value;
    let machine = world.at("n1").users.clone();
    assert_eq!(status.user_indexes, Vec::from_iter(machine));
    assert_eq!(status.unexplained_indexes, Vec::<u32>::new());
}

#[test]
fn a_forged_data_path_takes_no_service_address_away() {
    let mut world = World::with_machines(3);
    world.apply_workload("web", |_| {});
    serve(&mut world, "web", |_| {});
    world.settle();
    let before = world.keys("/kat/dns/default/web/");
    forge(&mut world, "n3", |report| report.data_path = 0);
    serve(&mut world, "new", |_| {});
    world.settle();
    assert_eq!(world.keys("/kat/dns/default/web/"), before);
    let address = world.status("new").service_address.unwrap();
    let record = keys::dns_record(NAMESPACE, "new", "A", &address.to_string());
    assert!(world.keys("/kat/dns/default/new/").contains(&record));
}

#[test]
fn forged_instances_make_no_events_and_no_statuses() {
    let mut world = World::with_machines(3);
    world.replicas("web", 2);
    world.settle();
    let victim = world.wanted("web");
    let victim = victim.iter().find(|(_, node, _)| node != "n3").unwrap();
    let id = victim.0.clone();
    forge(&mut world, "n3", |report| {
        for instance in [id.clone(), "nothing-00000".to_owned()] {
            report.workload_instances.push(InstanceReport {
                instance_id: instance,
                phase: InstancePhase::Failed,
                reason: "Hacked".to_owned(),
                message: "forged".to_owned(),
                ..InstanceReport::default()
            });
        }
    });
    world.settle();
    assert_eq!(world.events("Hacked"), Vec::<String>::new());
    let status = world.snapshot().nodes["n3"].status.clone().unwrap().value;
    assert!(!status.instances.contains_key(&id));
    assert!(!status.instances.contains_key("nothing-00000"));
}
