//! What machines know of namespaces, and machines that do not isolate them.

use super::*;
use kat_types::{
    api::{Condition, ISOLATION_ENFORCED, IsolationReport},
    machine::isolation::ENFORCING_DATA_PATH,
    resource::{ClusterConfiguration, Isolation, NamespaceIsolation},
};

const LATE: Duration = Duration::from_secs(60);

fn condition(world: &mut World, name: &str) -> Option<Condition> {
    let status = world.snapshot().nodes[name].status.clone().unwrap();
    let mut conditions = status.value.conditions.into_iter();
    conditions.find(|one| one.kind == ISOLATION_ENFORCED)
}

fn with_isolation(world: &mut World, mode: Isolation) {
    let mut cluster = ClusterConfiguration::default();
    cluster.spec.isolation = mode;
    world.write(keys::CLUSTER.to_owned(), &cluster);
}

fn reported(mode: Isolation) -> Option<IsolationReport> {
    Some(IsolationReport {
        mode: Some(mode),
        ..IsolationReport::default()
    })
}

#[test]
fn a_machine_that_does_not_isolate_says_so_after_a_minute_and_until_it_does() {
    let mut world = World::with_machines(2);
    for name in ["n1", "n2"] {
        world.at(name).data_path = ENFORCING_DATA_PATH;
        world.at(name).isolation = reported(Isolation::Namespaces);
    }
    with_isolation(&mut world, Isolation::Namespaces);
    world.settle();
    assert_eq!(condition(&mut world, "n1"), None);

    // It has just started, and may be about to.
    world.at("n2").isolation = None;
    world.at("n2").steady = LATE - Duration::from_secs(1);
    world.settle();
    assert_eq!(condition(&mut world, "n2"), None);

    world.at("n2").steady = LATE;
    world.at("n2").isolation = Some(IsolationReport {
        problem: Some("nft: no such file".to_owned()),
        ..IsolationReport::default()
    });
    world.settle();
    let shown = condition(&mut world, "n2").unwrap();
    assert_eq!(
        (shown.status, shown.reason.as_str()),
        (false, "IsolationNotEnforced")
    );
    assert!(
        shown.message.contains("nft: no such file"),
        "{}",
        shown.message
    );
    assert_eq!(world.events("IsolationNotEnforced").len(), 1);
    assert_eq!(condition(&mut world, "n1"), None);

    world.at("n2").isolation = reported(Isolation::Namespaces);
    world.settle();
    assert_eq!(condition(&mut world, "n2"), None);
    assert_eq!(world.events("IsolationEnforced").len(), 1);
}

#[test]
fn a_machine_that_keeps_to_earlier_rules_says_so_until_it_follows() {
    let mut world = World::with_machines(1);
    world.at("n1").data_path = ENFORCING_DATA_PATH;
    let stuck = Some(IsolationReport {
        problem: Some("nft: too many files".to_owned()),
        ..reported(Isolation::Namespaces).unwrap()
    });
    world.at("n1").isolation = stuck.clone();
    with_isolation(&mut world, Isolation::Audit);
    world.settle();
    assert_eq!(condition(&mut world, "n1"), None);
    with_isolation(&mut world, Isolation::Namespaces);
    world.settle();
    let shown = condition(&mut world, "n1").unwrap();
    assert_eq!(
        (shown.reason.as_str(), shown.message.as_str()),
        (
            "IsolationNotEnforced",
            "its kat-net isolates namespaces by earlier rules only: nft: too many files"
        )
    );
    world.at("n1").isolation = reported(Isolation::Namespaces);
    world.settle();
    assert_eq!(condition(&mut world, "n1"), None);
}

#[test]
fn a_machine_of_a_version_that_isolates_nothing_says_so_at_once() {
    let mut world = World::with_machines(1);
    with_isolation(&mut world, Isolation::Audit);
    world.settle();
    assert_eq!(
        condition(&mut world, "n1"),
        None,
        "an audit refuses nothing"
    );
    with_isolation(&mut world, Isolation::Namespaces);
    world.settle();
    assert!(condition(&mut world, "n1").is_some());
    with_isolation(&mut world, Isolation::None);
    world.settle();
    assert_eq!(condition(&mut world, "n1"), None);
}

#[test]
fn machines_are_told_which_namespaces_may_reach_a_namespace_or_a_workload() {
    let mut world = World::with_machines(1);
    world.namespace("shop", false);
    world.apply_workload_in("shop", "db", |_| {});
    world.plan_out();
    let told = |world: &World| {
        let namespaces = world.keys(keys::NETWORK_NAMESPACES);
        let services = world.keys(keys::SERVICES).into_iter();
        let accesses = services.filter(|key| key.ends_with("/access"));
        namespaces.into_iter().chain(accesses).collect::<Vec<_>>()
    };
    assert!(told(&world).is_empty(), "closed namespaces need no key");

    world.change(&keys::namespace("shop"), |value| {
        value["access"] = json!({"isolation": "Shared", "allowNamespaces": ["ops"]});
    });
    let balancer = json!({
        "apiVersion": "kat.dws.rip/v1alpha1", "kind": "VirtualLoadBalancer",
        "spec": {"allowNamespaces": ["ops", "web"]},
    });
    let manifest = keys::manifest("shop", "db", "VirtualLoadBalancer.kat");
    world.write(manifest.clone(), &balancer);
    world.change(&keys::workload_meta("shop", "db"), |value| {
        value["generation"] = json!(2);
    });
    world.plan_out();
    let namespace = keys::network_namespace("shop");
    let access = keys::service_access("shop", "db");
    assert_eq!(told(&world), [namespace, access]);
    let snapshot = world.snapshot();
    let shop = &snapshot.network_namespaces["shop"].value.access;
    assert_eq!(shop.isolation, NamespaceIsolation::Shared);
    let db = &snapshot.services[&WorkloadKey::new("shop", "db")];
    let allowed = &db.access.as_ref().unwrap().value.allow_namespaces;
    assert_eq!(*allowed, ["ops", "web"]);

    // What can't be read changes nothing.
    world.apply(&[WriteOperation::Put(manifest.clone(), b"- : -".to_vec())]);
    world.change(&keys::workload_meta("shop", "db"), |value| {
        value["generation"] = json!(3);
    });
    world.plan_out();
    assert_eq!(told(&world).len(), 2);

    world.apply(&[WriteOperation::Delete(manifest)]);
    world.change(&keys::workload_meta("shop", "db"), |value| {
        value["generation"] = json!(4);
    });
    world.change(&keys::namespace("shop"), |value| {
        value.as_object_mut().unwrap().remove("access");
    });
    world.plan_out();
    assert!(told(&world).is_empty());
}
