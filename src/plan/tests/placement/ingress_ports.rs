//! Host ports of the machines that serve routes: who has them, and what machines know of them.

use super::*;
use kat_types::{
    api::INGRESS_PORTS_OPEN,
    machine::node_labels::{INGRESS_ROLE, ROLE_LABEL},
    reason::Reason,
    resource::Protocol,
    services::{BackendState, IngressPorts},
};

/// Applies a service with a host port of the machines that serve routes, or of those with an instance.
fn publish(
    world: &mut World,
    name: &str,
    (container_port, host_port): (u16, serde_json::Value),
    on: &str,
) {
    let balancer = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "VirtualLoadBalancer",
        "spec": {
            "headless": true,
            "ports": [{"containerPort": container_port, "hostPort": host_port, "hostPortOn": on}],
        },
    });
    let key = keys::manifest(NAMESPACE, name, "VirtualLoadBalancer.kat");
    world.write(key, &balancer);
    world.apply_workload(name, |file| {
        // The world's own hash covers the workload's file only, so the ports are made a part of it.
        file["spec"]["container"]["env"] =
            json!([{"name": "PORTS", "value": balancer.to_string()}]);
    });
}

fn current(count: usize) -> World {
    let mut world = World::with_machines(count);
    for machine in world.machines.values_mut() {
        machine.schema = ASSIGNMENT_SCHEMA;
    }
    world
}

/// Sets or removes the label of machines that serve routes.
fn label(world: &mut World, node: &str, serves: bool) {
    world.change(&keys::registration(node), |record| {
        let labels = record["labels"].as_object_mut().unwrap();
        match serves {
            true => drop(labels.insert(ROLE_LABEL.to_owned(), json!(INGRESS_ROLE))),
            false => drop(labels.remove(ROLE_LABEL)),
        }
    });
}

/// What machines know of the ports of a workload.
fn known(world: &mut World, name: &str) -> Option<IngressPorts> {
    let snapshot = world.snapshot();
    let service = snapshot.services.get(&WorkloadKey::new(NAMESPACE, name))?;
    service.balance.as_ref()?.value.ingress.clone()
}

/// The machines that have the ports of a workload.
fn holders(world: &mut World, name: &str) -> Vec<String> {
    let ports = known(world, name).unwrap_or_default();
    ports.machines.into_iter().collect()
}

fn nodes(world: &mut World, name: &str) -> Vec<String> {
    let wanted = world.wanted(name).into_iter();
    wanted.map(|(_, node, _)| node).collect()
}

/// What is said of a machine's ports.
fn closed(world: &mut World, node: &str) -> Option<(String, String)> {
    let status = world.snapshot().nodes[node].status.clone()?.value;
    let mut conditions = status.conditions.into_iter();
    let found = conditions.find(|one| one.kind == INGRESS_PORTS_OPEN)?;
    Some((found.reason, found.message))
}

#[test]
fn a_machine_whose_kat_net_does_not_know_such_ports_is_named() {
    let mut world = current(3);
    for name in ["n1", "n2"] {
        world.at(name).data_path = SOURCES_DATA_PATH;
        label(&mut world, name, true);
    }
    world.at("n2").data_path = SOURCES_DATA_PATH - 1;
    world.settle();
    assert_eq!(closed(&mut world, "n2"), None, "it is to have no such port");
    publish(&mut world, "db", (5432, json!(15_432)), "ingress");
    world.roll_out();
    world.settle();
    let (reason, message) = closed(&mut world, "n2").unwrap();
    assert_eq!(reason, Reason::KatNetTooOld);
    assert!(
        message.ends_with("routes: 15432/TCP of default/db"),
        "{message}"
    );
    for name in ["n1", "n3"] {
        assert_eq!(closed(&mut world, name), None, "{name}");
    }
    world.at("n2").data_path = SOURCES_DATA_PATH;
    world.settle();
    assert_eq!(closed(&mut world, "n2"), None);
}

#[test]
fn the_machines_that_serve_routes_have_the_port_wherever_the_instance_runs() {
    let mut world = current(3);
    label(&mut world, "n3", true);
    publish(&mut world, "db", (5432, json!(15_432)), "ingress");
    world.roll_out();
    assert_eq!(holders(&mut world, "db"), ["n3"]);
    let ports = known(&mut world, "db").unwrap().ports;
    assert_eq!(ports.len(), 1);
    let port = &ports[0];
    assert_eq!((port.port, port.container_port), (15_432, 5432));
    assert!(port.earlier.is_empty());
    // The instance has no host port of its own machine.
    let (_, _, assignment) = world.wanted("db").remove(0);
    assert_eq!(assignment.ports[0].host_port, None);
    let shown = world.status("db").host_ports;
    assert_eq!((shown[0].port, shown[0].container_port), (15_432, 5432));
    let snapshot = world.snapshot();
    let service = &snapshot.services[&WorkloadKey::new(NAMESPACE, "db")];
    let serving = &service.balance.as_ref().unwrap().value.ports[0].instances;
    let states: Vec<BackendState> = serving.values().copied().collect();
    assert_eq!(states, [BackendState::Serving]);
    // The label moves, and none is all.
    label(&mut world, "n3", false);
    label(&mut world, "n1", true);
    world.plan_out();
    assert_eq!(holders(&mut world, "db"), ["n1"]);
    label(&mut world, "n1", false);
    world.plan_out();
    assert_eq!(holders(&mut world, "db"), ["n1", "n2", "n3"]);
    // Files that can't be read leave the port where it is.
    let file = keys::manifest(NAMESPACE, "db", "VirtualLoadBalancer.kat");
    world.apply(&[WriteOperation::Put(file, b"- : -".to_vec())]);
    world.change(&keys::workload_meta(NAMESPACE, "db"), |value| {
        value["generation"] = json!(9);
    });
    world.plan_out();
    assert_eq!(known(&mut world, "db").unwrap().ports, ports);
}

#[test]
fn an_instance_with_the_port_goes_to_a_machine_that_serves_no_routes() {
    let mut world = current(2);
    label(&mut world, "n1", true);
    publish(&mut world, "db", (5432, json!(15_432)), "ingress");
    world.roll_out();
    publish(&mut world, "web", (80, json!(15_432)), "instances");
    world.roll_out();
    assert_eq!(nodes(&mut world, "web"), ["n2"]);
    publish(&mut world, "more", (80, json!(15_432)), "instances");
    world.roll_out();
    assert!(nodes(&mut world, "more").is_empty());
    let message = world.status("more").conditions[0].message.clone();
    let expected = "host port 15432/TCP is taken by default/db on n1";
    assert!(message.contains(expected), "{message}");
    // The workload itself may run anywhere.
    assert_eq!(nodes(&mut world, "db").len(), 1);
}

#[test]
fn instances_of_an_earlier_version_keep_their_container_port_behind_the_port() {
    let mut world = current(2);
    publish(&mut world, "db", (5432, json!(15_432)), "ingress");
    world.roll_out();
    let (_, _, before) = world.wanted("db").remove(0);
    publish(&mut world, "db", (6432, json!(15_432)), "ingress");
    world.plan_out();
    let port = known(&mut world, "db").unwrap().ports.remove(0);
    assert_eq!(port.container_port, 6432);
    assert_eq!(port.earlier, BTreeMap::from([(before.address, 5432)]));
    world.roll_out();
    let port = known(&mut world, "db").unwrap().ports.remove(0);
    assert_eq!(port.container_port, 6432);
    assert!(port.earlier.is_empty(), "{port:?}");
}

#[test]
fn a_port_moves_from_the_machines_with_instances_to_those_that_serve_routes() {
    let mut world = current(2);
    label(&mut world, "n1", true);
    publish(&mut world, "db", (5432, json!(15_432)), "instances");
    world.roll_out();
    assert_eq!(known(&mut world, "db"), None);
    let (_, _, before) = world.wanted("db").remove(0);
    assert!(before.ports[0].host_port.is_some());
    publish(&mut world, "db", (6432, json!(15_432)), "ingress");
    world.plan_out();
    let port = known(&mut world, "db").unwrap().ports.remove(0);
    assert_eq!(port.earlier, BTreeMap::from([(before.address, 5432)]));
    // And back.
    publish(&mut world, "db", (6432, json!(15_432)), "instances");
    world.roll_out();
    assert_eq!(known(&mut world, "db"), None);
}

#[test]
fn a_number_that_kat_chose_is_the_same_on_each_machine_that_serves_routes() {
    let mut world = current(2);
    publish(&mut world, "db", (5432, json!("auto")), "ingress");
    world.roll_out();
    let shown = world.status("db").host_ports;
    let number = shown[0].port;
    assert!((30_000..=32_767).contains(&number), "{number}");
    let ports = known(&mut world, "db").unwrap().ports;
    assert_eq!(ports[0].port, number);
    // Another workload can't take it.
    let claims = WorkloadClaims {
        on_ingress: [(number, Protocol::Tcp)].into(),
        ..WorkloadClaims::default()
    };
    let other = WorkloadKey::new(NAMESPACE, "other");
    let conflict = claim_conflict(&world.snapshot(), &other, &claims).unwrap();
    assert_eq!(conflict.owner(), &WorkloadKey::new(NAMESPACE, "db"));
}

#[test]
fn a_port_that_an_instance_has_on_a_machine_that_serves_routes_is_refused() {
    let mut world = current(2);
    publish(&mut world, "web", (80, json!(15_432)), "instances");
    world.roll_out();
    let node = nodes(&mut world, "web").remove(0);
    let other = match node.as_str() {
        "n1" => "n2",
        _ => "n1",
    };
    let claims = WorkloadClaims {
        on_ingress: [(15_432, Protocol::Tcp)].into(),
        ..WorkloadClaims::default()
    };
    let key = WorkloadKey::new(NAMESPACE, "db");
    let said = |world: &mut World| {
        let conflict = claim_conflict(&world.snapshot(), &key, &claims);
        conflict.map(|conflict| conflict.in_words("default/web"))
    };
    label(&mut world, other, true);
    assert_eq!(said(&mut world), None, "{node} serves no routes");
    label(&mut world, &node, true);
    let expected =
        format!("{node} serves routes, and an instance of default/web has its port 15432/TCP");
    assert_eq!(said(&mut world), Some(expected));
    // Its own instances keep no port from a workload.
    let own = WorkloadKey::new(NAMESPACE, "web");
    assert_eq!(claim_conflict(&world.snapshot(), &own, &claims), None);
}

#[test]
fn of_two_workloads_with_one_port_the_first_has_it() {
    let mut world = current(1);
    publish(&mut world, "zz", (80, json!(15_432)), "ingress");
    world.roll_out();
    publish(&mut world, "aa", (80, json!(15_432)), "ingress");
    world.roll_out();
    assert_eq!(holders(&mut world, "zz"), ["n1"]);
    assert_eq!(known(&mut world, "aa"), None);
    world.delete_workload("zz");
    world.roll_out();
    assert_eq!(holders(&mut world, "aa"), ["n1"]);
}
