//! Host ports: the number for `auto`, the workload that has a number, and the instances behind it.

use proptest::prelude::*;

use super::*;
use crate::placement::spread_and_affinity::candidate;
use kat_types::{
    resource::{AutoPort, HostPort, Port, Protocol},
    services::{BackendState, host_port_statuses},
};

/// Applies a service with this host port.
fn publish(world: &mut World, name: &str, host_port: serde_json::Value, replicas: u32) {
    publish_all(world, name, &[(80, "TCP", host_port)], replicas);
}

fn publish_all(
    world: &mut World,
    name: &str,
    ports: &[(u16, &str, serde_json::Value)],
    replicas: u32,
) {
    let ports: Vec<_> = ports
        .iter()
        .map(|(port, protocol, host_port)| {
            json!({"containerPort": port, "protocol": protocol, "hostPort": host_port})
        })
        .collect();
    let balancer = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "VirtualLoadBalancer",
        "spec": {"headless": true, "ports": ports},
    });
    let key = keys::manifest(NAMESPACE, name, "VirtualLoadBalancer.kat");
    world.write(key, &balancer);
    world.apply_workload(name, |file| {
        file["spec"]["replicas"] = json!(replicas);
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

/// The host ports of a workload's instances, by machine.
fn numbers(world: &mut World, name: &str) -> BTreeSet<(String, u16)> {
    let wanted = world.wanted(name);
    let numbers = wanted.into_iter().flat_map(|(_, node, assignment)| {
        let ports = assignment.ports.clone();
        let numbers = ports.into_iter().map(|port| match port.host_port {
            Some(HostPort::Number(number)) => number,
            other => panic!("{other:?}"),
        });
        numbers
            .map(|number| (node.clone(), number))
            .collect::<Vec<_>>()
    });
    numbers.collect()
}

fn waits(world: &mut World, name: &str) -> String {
    let status = world.status(name);
    status.conditions[0].message.clone()
}

#[test]
fn a_port_of_a_machine_is_one_workloads_and_who_has_it_is_named() {
    let mut world = current(2);
    publish(&mut world, "first", json!(80), 1);
    world.roll_out();
    publish(&mut world, "second", json!(80), 1);
    world.roll_out();
    let (first, second) = (numbers(&mut world, "first"), numbers(&mut world, "second"));
    assert_eq!((first.len(), second.len()), (1, 1));
    assert!(first.is_disjoint(&second), "{first:?} {second:?}");
    // The same number over UDP is another port.
    publish_all(&mut world, "names", &[(53, "UDP", json!(80))], 1);
    publish(&mut world, "third", json!(80), 1);
    world.roll_out();
    assert_eq!(numbers(&mut world, "names").len(), 1);
    let node = |ports: &BTreeSet<(String, u16)>| ports.first().unwrap().0.clone();
    let message = waits(&mut world, "third");
    for part in [
        "0 of 2 machines fit: 2 with a host port that is taken",
        &format!(
            "host port 80/TCP is taken by default/first on {}",
            node(&first)
        ),
        &format!(
            "host port 80/TCP is taken by default/second on {}",
            node(&second)
        ),
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(world.wanted("third").len(), 0);
    // The deletion of a workload frees its port.
    world.delete_workload("first");
    world.roll_out();
    assert_eq!(node(&numbers(&mut world, "third")), node(&first));
    let status = world.status("third");
    let shown = &status.host_ports;
    assert_eq!(
        (shown.len(), shown[0].port, shown[0].container_port),
        (1, 80, 80)
    );
}

#[test]
fn a_version_takes_over_on_the_same_machine_behind_the_same_port() {
    let mut world = current(1);
    publish(&mut world, "web", json!(80), 2);
    world.roll_out();
    assert_eq!(numbers(&mut world, "web").len(), 1, "both share it");
    let before: BTreeSet<String> = world.wanted("web").into_iter().map(|one| one.0).collect();
    publish_all(&mut world, "web", &[(8080, "TCP", json!(80))], 2);
    let mut most = 0;
    for _ in 0..40 {
        world.plan_out();
        most = most.max(world.wanted("web").len());
        assert!(world.running("web") >= 2, "nothing serves the port");
        world.agents();
        world.pass(Duration::from_secs(1));
    }
    world.roll_out();
    assert_eq!(most, 3, "the next version stands beside the one before");
    let after: BTreeSet<String> = world.wanted("web").into_iter().map(|one| one.0).collect();
    assert!(before.is_disjoint(&after));
    // The instances behind a host port are also written if the service has no address.
    let key = WorkloadKey::new(NAMESPACE, "web");
    let snapshot = world.snapshot();
    let service = &snapshot.services[&key];
    assert!(service.address.is_none());
    let balance = &service.balance.as_ref().unwrap().value;
    let parts: Vec<BackendState> = balance.ports[0].instances.values().copied().collect();
    assert_eq!(parts, [BackendState::Serving, BackendState::Serving]);
    assert!(
        snapshot
            .instances
            .values()
            .all(|entry| entry.assignment.value.schema == 5)
    );
}

#[test]
fn auto_is_one_number_for_the_workloads_life() {
    let mut world = current(3);
    let auto = [(80, "TCP", json!("auto")), (81, "UDP", json!("auto"))];
    publish_all(&mut world, "web", &auto, 3);
    publish(&mut world, "other", json!("auto"), 3);
    world.roll_out();
    let own = |world: &mut World| -> BTreeSet<u16> {
        let numbers = numbers(world, "web");
        assert_eq!(numbers.len(), 6, "the same on each of three machines");
        numbers.into_iter().map(|(_, number)| number).collect()
    };
    let first = own(&mut world);
    let other = numbers(&mut world, "other").first().unwrap().1;
    assert!(!first.contains(&other));
    assert!(
        first
            .iter()
            .chain([&other])
            .all(|number| (30_000..=32_767).contains(number))
    );
    let shown: BTreeSet<u16> = {
        let status = world.status("web");
        status.host_ports.iter().map(|port| port.port).collect()
    };
    assert_eq!(shown, first);
    // The next version has no `auto` ports, and the one after it has them again.
    publish_all(&mut world, "web", &[(80, "TCP", json!(9000))], 3);
    world.roll_out();
    publish_all(&mut world, "web", &auto, 3);
    world.roll_out();
    assert_eq!(own(&mut world), first);
    // The workload keeps its `auto` numbers meanwhile, and its deletion frees them.
    world.delete_workload("web");
    world.roll_out();
    assert_eq!(
        world.keys("/kat/network/services/default/web/"),
        Vec::<String>::new()
    );
}

#[test]
fn auto_takes_no_number_that_somebody_has_written() {
    let mut world = current(1);
    let all: Vec<(u16, &str, serde_json::Value)> = (0..2767)
        .map(|place| (place + 1, "TCP", json!(30_001 + place)))
        .collect();
    publish_all(&mut world, "all", &all, 1);
    publish(&mut world, "last", json!("auto"), 1);
    publish(&mut world, "none", json!("auto"), 1);
    world.roll_out();
    let mut found = [numbers(&mut world, "last"), numbers(&mut world, "none")];
    found.sort();
    assert_eq!(found, [BTreeSet::new(), [("n1".to_owned(), 30_000)].into()]);
    let without = match world.wanted("last").len() {
        0 => "last",
        _ => "none",
    };
    let message = waits(&mut world, without);
    assert!(
        message.contains("no host port of 30000 to 32767 is free"),
        "{message}"
    );
}

#[test]
fn machines_of_an_older_version_are_not_trusted_with_host_ports() {
    let mut world = current(2);
    world.at("n1").schema = 4;
    world.at("n2").data_path = HOST_PORT_DATA_PATH - 1;
    publish(&mut world, "web", json!(80), 1);
    world.roll_out();
    let message = waits(&mut world, "web");
    for part in [
        "1 with a version of KAT that is too old for it",
        "1 whose kat-net is too old for host ports",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    world.at("n2").data_path = HOST_PORT_DATA_PATH;
    world.roll_out();
    assert_eq!(numbers(&mut world, "web"), [("n2".to_owned(), 80)].into());
}

/// Applies `web` with host port 80, or `auto`, for these addresses alone.
fn publish_for(world: &mut World, host_port: serde_json::Value, sources: &[&str]) {
    let balancer = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "VirtualLoadBalancer",
        "spec": {"ports": [
            {"containerPort": 8080, "hostPort": host_port, "allowSources": sources},
            {"containerPort": 9090, "hostPort": 90},
        ]},
    });
    let key = keys::manifest(NAMESPACE, "web", "VirtualLoadBalancer.kat");
    world.write(key, &balancer);
    world.apply_workload("web", |_| {});
}

/// The ports that are for some addresses alone, each with these.
fn sources(world: &mut World) -> Vec<(u16, Vec<String>)> {
    let snapshot = world.snapshot();
    let service = &snapshot.services[&WorkloadKey::new(NAMESPACE, "web")];
    let balance = &service.balance.as_ref().unwrap().value;
    let found = balance.sources.iter().map(|one| {
        let ranges = one.allow_sources.iter();
        (one.port, ranges.map(ToString::to_string).collect())
    });
    found.collect()
}

#[test]
fn machines_learn_who_may_use_a_host_port_without_another_instance() {
    let mut world = current(1);
    world.at("n1").data_path = SOURCES_DATA_PATH;
    publish_for(&mut world, json!(80), &["192.0.2.1", "198.51.100.0/24"]);
    world.roll_out();
    let ids = |world: &mut World| -> Vec<String> {
        let wanted = world.wanted("web").into_iter();
        wanted.map(|(id, ..)| id).collect()
    };
    let before = ids(&mut world);
    assert_eq!(before.len(), 1);
    let both = ["192.0.2.1/32", "198.51.100.0/24"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(sources(&mut world), [(80, both)]);
    publish_for(&mut world, json!(80), &["203.0.113.0/24"]);
    world.roll_out();
    let one = vec!["203.0.113.0/24".to_owned()];
    assert_eq!(sources(&mut world), [(80, one.clone())]);
    assert_eq!(ids(&mut world), before);
    // Files that can't be read open nothing.
    let file = keys::manifest(NAMESPACE, "web", "VirtualLoadBalancer.kat");
    world.apply(&[WriteOperation::Put(file, b"- : -".to_vec())]);
    world.change(&keys::workload_meta(NAMESPACE, "web"), |value| {
        value["generation"] = json!(9);
    });
    world.plan_out();
    assert_eq!(sources(&mut world), [(80, one)]);
    publish_for(&mut world, json!(80), &[]);
    world.roll_out();
    assert!(sources(&mut world).is_empty());
    assert_eq!(ids(&mut world), before);
}

#[test]
fn a_host_port_with_a_number_from_kat_is_kept_to_its_addresses_by_that_number() {
    let mut world = current(1);
    world.at("n1").data_path = SOURCES_DATA_PATH;
    publish_for(&mut world, json!("auto"), &["192.0.2.0/24"]);
    world.roll_out();
    let status = world.status("web");
    let ports = status.host_ports.iter();
    let number = ports
        .map(|one| one.port)
        .find(|number| *number != 90)
        .unwrap();
    let expected = [(number, vec!["192.0.2.0/24".to_owned()])];
    assert_eq!(sources(&mut world), expected);
}

#[test]
fn machines_of_an_older_version_get_no_host_port_that_is_for_some_addresses() {
    let mut world = current(2);
    publish_for(&mut world, json!(80), &["192.0.2.0/24"]);
    world.roll_out();
    let message = waits(&mut world, "web");
    let expected = "2 whose kat-net is too old for allowSources of host ports";
    assert!(message.contains(expected), "{message}");
    world.at("n2").data_path = SOURCES_DATA_PATH;
    world.roll_out();
    let nodes: Vec<String> = world
        .wanted("web")
        .into_iter()
        .map(|(_, node, _)| node)
        .collect();
    assert_eq!(nodes, ["n2"]);
}

#[test]
fn an_earlier_version_goes_to_no_older_machine_if_the_present_files_restrict_a_host_port() {
    let mut world = current(1);
    publish_for(&mut world, json!(80), &[]);
    let snapshot = world.snapshot();
    let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "web")];
    let parsed = entry.parsed.clone().unwrap();
    let none = BTreeMap::new();
    let old = [candidate("n1", &none)];
    let port = |host_port| Port {
        container_port: 80,
        host_port,
        ..Port::default()
    };
    let fits = |host_port, restricted| {
        let ports = [port(host_port)];
        let demand = InstanceDemand {
            ports: &ports,
            restricted,
            ..InstanceDemand::of(&parsed.workload.spec)
        };
        let chosen = choose(demand, &old, 1).map(str::to_owned);
        chosen.map_err(|failure| failure.to_string())
    };
    let published = Some(HostPort::Number(80));
    assert_eq!(fits(published, false), Ok("n1".to_owned()));
    assert_eq!(
        fits(published, true).unwrap_err(),
        "0 of 1 machines fit: 1 whose kat-net is too old for allowSources of host ports"
    );
    assert_eq!(fits(None, true), Ok("n1".to_owned()), "it has no host port");
}

proptest! {
    #![proptest_config(random_cases(200))]

    /// No two workloads share a port of a machine, and no instance waits if a machine fits.
    #[test]
    fn a_port_of_a_machine_is_had_by_one_workload(
        asked in proptest::collection::vec((0u16..3, any::<bool>(), 0u8..4), 1..14),
    ) {
        let none = BTreeMap::new();
        let mut machines = [candidate("n1", &none), candidate("n2", &none)];
        let mut world = World::with_machines(1);
        world.apply_workload("web", |_| {});
        let snapshot = world.snapshot();
        let parsed = snapshot.workloads.values().next().unwrap().parsed.clone().unwrap();
        for (number, udp, workload) in asked {
            let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
            let owner = WorkloadKey::new(NAMESPACE, &format!("w{workload}"));
            let ports = [Port {
                name: None,
                container_port: 80,
                protocol,
                host_port: Some(HostPort::Number(number)),
                ..Port::default()
            }];
            let demand = InstanceDemand {
                ports: &ports,
                workload: Some(&owner),
                ..InstanceDemand::of(&parsed.workload.spec)
            };
            let port = (number, protocol);
            match choose(demand, &machines, 1) {
                Ok(name) => {
                    let machine = machines.iter_mut().find(|one| one.name == name).unwrap();
                    let before = machine.host_ports.insert(port, owner.clone());
                    prop_assert!(before.is_none_or(|before| before == owner));
                }
                Err(failure) => {
                    let others = machines.iter().all(|machine| {
                        machine.host_ports.get(&port).is_some_and(|other| *other != owner)
                    });
                    prop_assert!(others, "{failure}");
                    prop_assert_eq!(failure.taken.values().flatten().count(), 2);
                }
            }
        }
    }
}

#[test]
fn only_ports_with_numbers_are_shown() {
    let port = |host_port| Port {
        name: None,
        container_port: 80,
        protocol: Protocol::Tcp,
        host_port,
        ..Port::default()
    };
    let ports = [
        port(None),
        port(Some(HostPort::Auto(AutoPort::Auto))),
        port(Some(HostPort::Number(7))),
    ];
    let shown = host_port_statuses(&ports);
    assert_eq!((shown.len(), shown[0].port), (1, 7));
}
