//! Service addresses: services that have one, the instances behind it, and the answers to DNS
//! names.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use kat_types::{
    api::SERVICE_ADDRESS,
    services::{BackendState, Backends},
};

/// Applies a service, with `change` made to its load balancer.
pub(crate) fn serve(world: &mut World, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
    let mut balancer = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "VirtualLoadBalancer",
        "spec": {"ports": [
            {"containerPort": 80},
            {"containerPort": 53, "protocol": "UDP"},
        ]},
    });
    change(&mut balancer);
    let key = keys::manifest(NAMESPACE, name, "VirtualLoadBalancer.kat");
    world.write(key, &balancer);
    world.apply_workload(name, |_| {});
}

fn set_service_cidr(world: &mut World, network: &str) {
    let mut cluster = kat_types::resource::ClusterConfiguration::default();
    cluster.spec.service_cidr = network.parse().unwrap();
    world.write(keys::CLUSTER.to_owned(), &cluster);
}

fn address(world: &mut World, name: &str) -> Option<Ipv4Addr> {
    let snapshot = world.snapshot();
    let service = snapshot.services.get(&WorkloadKey::new(NAMESPACE, name))?;
    Some(service.address.as_ref()?.value.address)
}

/// The instances behind the first port.
pub(crate) fn parts(world: &mut World, name: &str) -> Backends {
    let snapshot = world.snapshot();
    let service = &snapshot.services[&WorkloadKey::new(NAMESPACE, name)];
    service.balance.as_ref().unwrap().value.ports[0]
        .instances
        .clone()
}

fn named(world: &World, name: &str) -> Vec<String> {
    let prefix = format!("/kat/dns/{NAMESPACE}/{name}/A/");
    let keys = world.keys(&prefix);
    let values = keys.iter().map(|key| key[prefix.len()..].to_owned());
    values.filter(|value| !value.contains('=')).collect()
}

#[test]
fn a_service_keeps_its_address_until_its_workload_is_gone() {
    let mut world = World::with_machines(2);
    serve(&mut world, "web", |_| {});
    world.apply_workload("plain", |_| {});
    world.settle();
    let first = address(&mut world, "web").unwrap();
    assert!(
        "10.200.0.0/16"
            .parse::<ipnet::Ipv4Net>()
            .unwrap()
            .contains(&first)
    );
    assert_eq!(address(&mut world, "plain"), None);
    assert_eq!(world.status("web").service_address, Some(first));
    assert_eq!(world.status("plain").service_address, None);
    let written = |world: &World| {
        let key = keys::service_address(NAMESPACE, "web");
        world.entries[key.as_str()].mod_revision
    };
    let once = written(&world);
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(3);
        file["spec"]["source"]["image"] = json!("registry.example/web:2");
    });
    world.settle();
    world.new_leader();
    world.settle();
    world.replicas("web", 0);
    world.settle();
    let balancer = keys::manifest(NAMESPACE, "web", "VirtualLoadBalancer.kat");
    world.apply(&[WriteOperation::Delete(balancer)]);
    world.apply_workload("web", |_| {});
    world.settle();
    assert_eq!(
        named(&world, "web").len(),
        1,
        "the instance answers, without a load balancer"
    );
    assert_ne!(named(&world, "web"), [first.to_string()]);
    serve(&mut world, "web", |_| {});
    world.settle();
    assert_eq!(named(&world, "web"), [first.to_string()]);
    assert_eq!(
        (address(&mut world, "web"), written(&world)),
        (Some(first), once)
    );
    world.at("n1").obeys = false;
    world.at("n2").obeys = false;
    world.delete_workload("web");
    world.plan_out();
    assert_eq!(
        address(&mut world, "web"),
        Some(first),
        "it is still being stopped"
    );
    world.at("n1").obeys = true;
    world.at("n2").obeys = true;
    world.settle();
    assert_eq!(world.keys(keys::SERVICES), [""; 0]);
    serve(&mut world, "web", |_| {});
    world.settle();
    assert_eq!(
        address(&mut world, "web"),
        Some(first),
        "the name points there"
    );
}

#[test]
fn a_service_without_an_address_says_why_and_is_reached_by_its_instances() {
    let mut world = World::with_machines(1);
    set_service_cidr(&mut world, "10.201.0.0/30");
    for name in ["a", "b", "c"] {
        serve(&mut world, name, |_| {});
    }
    world.settle();
    let has = |world: &mut World| ["a", "b", "c"].map(|name| address(world, name));
    let given: BTreeSet<Ipv4Addr> = has(&mut world).into_iter().flatten().collect();
    assert_eq!(
        given,
        BTreeSet::from([[10, 201, 0, 1].into(), [10, 201, 0, 2].into()])
    );
    let without = world.status("c");
    let condition = without
        .conditions
        .iter()
        .find(|one| one.kind == SERVICE_ADDRESS);
    let condition = condition.unwrap();
    assert_eq!(
        (condition.status, condition.reason.as_str()),
        (false, "NoneFree")
    );
    assert!(
        condition.message.contains("10.201.0.0/30"),
        "{}",
        condition.message
    );
    let instance = world.wanted("c")[0].2.address.to_string();
    assert_eq!(named(&world, "c"), [instance]);
    world.delete_workload("a");
    world.settle();
    assert_eq!(
        has(&mut world).into_iter().flatten().count(),
        2,
        "the next one has it"
    );
    let status = world.status("c");
    assert!(
        status
            .conditions
            .iter()
            .all(|one| one.kind != SERVICE_ADDRESS)
    );
    assert_eq!(
        named(&world, "c"),
        [status.service_address.unwrap().to_string()]
    );
}

#[test]
fn a_headless_service_answers_with_its_instances() {
    let mut world = World::with_machines(1);
    serve(&mut world, "web", |balancer| {
        balancer["spec"]["headless"] = json!(true)
    });
    world.settle();
    assert_eq!(address(&mut world, "web"), None);
    let instance = world.wanted("web")[0].2.address.to_string();
    assert_eq!(named(&world, "web"), std::slice::from_ref(&instance));
    serve(&mut world, "web", |_| {});
    world.settle();
    let own = address(&mut world, "web").unwrap().to_string();
    assert_eq!(named(&world, "web"), [own]);
    serve(&mut world, "web", |balancer| {
        balancer["spec"]["headless"] = json!(true)
    });
    world.settle();
    assert_eq!(named(&world, "web"), [instance]);
    // Clients that resolved the name before still reach the service.
    assert_eq!(parts(&mut world, "web").len(), 1);
}

#[test]
fn names_answer_with_service_addresses_once_every_machine_balances() {
    let mut world = World::with_machines(2);
    world.at("n2").data_path = BALANCING_DATA_PATH - 1;
    serve(&mut world, "web", |_| {});
    world.settle();
    let own = address(&mut world, "web").unwrap().to_string();
    let instance = world.wanted("web")[0].2.address.to_string();
    assert_eq!(named(&world, "web"), [instance]);
    world.at("n2").data_path = BALANCING_DATA_PATH;
    world.settle();
    assert_eq!(named(&world, "web"), [own]);
}

#[test]
fn who_serves_follows_what_machines_say() {
    let mut world = World::with_machines(2);
    serve(&mut world, "web", |_| {});
    world.plan_out();
    assert_eq!(
        parts(&mut world, "web"),
        Backends::new(),
        "it has not begun"
    );
    world.settle();
    let (id, node, assignment) = world.wanted("web").remove(0);
    let only = |part| Backends::from([(assignment.address, part)]);
    assert_eq!(parts(&mut world, "web"), only(BackendState::Serving));
    let ports = |world: &mut World| {
        let snapshot = world.snapshot();
        let balance = snapshot.services[&WorkloadKey::new(NAMESPACE, "web")]
            .balance
            .clone();
        let ports = balance.unwrap().value.ports.into_iter();
        ports
            .map(|port| (port.port, port.protocol))
            .collect::<Vec<_>>()
    };
    use kat_types::resource::Protocol::{Tcp, Udp};
    assert_eq!(ports(&mut world), [(53, Udp), (80, Tcp)]);
    let unhealthy = |world: &mut World, health| {
        world
            .at(&node)
            .instances
            .get_mut(&id)
            .unwrap()
            .health_status = health;
        world.plan_out();
    };
    unhealthy(&mut world, Health::Unhealthy);
    assert_eq!(parts(&mut world, "web"), only(BackendState::Held));
    assert_eq!(
        named(&world, "web").len(),
        1,
        "the address stays, and refuses"
    );
    unhealthy(&mut world, Health::Healthy);
    assert_eq!(parts(&mut world, "web"), only(BackendState::Serving));
    // The same plan stops the instance and takes it from the service; open connections may end.
    world.at(&node).obeys = false;
    world.replicas("web", 0);
    world.plan_out();
    assert_eq!(parts(&mut world, "web"), only(BackendState::Leaving));
    world.at(&node).obeys = true;
    world.settle();
    assert_eq!(parts(&mut world, "web"), Backends::new());
}

#[test]
fn an_instance_that_served_before_its_machine_fell_silent_is_away_until_the_machine_reports() {
    let mut world = World::with_machines(2);
    serve(&mut world, "web", |_| {});
    world.apply_workload("web", |file| file["spec"]["onNodeLoss"] = json!("keep"));
    world.settle();
    let (_, node, assignment) = world.wanted("web").remove(0);
    let only = |part| Backends::from([(assignment.address, part)]);

    world.at(&node).speaks = false;
    world.pass(Duration::from_secs(60));
    world.settle();
    assert_eq!(parts(&mut world, "web"), only(BackendState::Away));

    world.at(&node).speaks = true;
    world.settle();
    assert_eq!(parts(&mut world, "web"), only(BackendState::Serving));
}

#[test]
fn the_successor_of_an_instance_on_a_lost_machine_is_called_alone() {
    let mut world = World::with_machines(2);
    serve(&mut world, "web", |_| {});
    world.settle();
    let (_, node, assignment) = world.wanted("web").remove(0);
    world.at(&node).speaks = false;
    world.pass(Duration::from_secs(60));
    world.settle();
    let parts = parts(&mut world, "web");
    assert_eq!(parts[&assignment.address], BackendState::Held);
    let serving = parts
        .values()
        .filter(|part| **part == BackendState::Serving);
    assert_eq!(serving.count(), 1, "its successor");
}

/// While a port's number changes, each port has the instances that listen on it.
#[test]
fn instances_are_behind_the_ports_that_they_have() {
    let mut world = World::with_machines(1);
    serve(&mut world, "web", |_| {});
    world.settle();
    let before = world.wanted("web")[0].2.address;
    world.at("n1").obeys = false;
    serve(&mut world, "web", |balancer| {
        balancer["spec"]["ports"] = json!([{"containerPort": 8080}]);
    });
    world.apply_workload("web", |file| {
        file["spec"]["source"]["image"] = json!("registry.example/web:2");
    });
    world.plan_out();
    let snapshot = world.snapshot();
    let service = &snapshot.services[&WorkloadKey::new(NAMESPACE, "web")];
    let ports = &service.balance.as_ref().unwrap().value.ports;
    let listed: Vec<_> = ports
        .iter()
        .map(|port| (port.port, port.instances.len()))
        .collect();
    assert_eq!(listed, [(53, 1), (80, 1), (8080, 0)]);
    assert!(ports[1].instances.contains_key(&before));
    world.at("n1").obeys = true;
    world.roll_out();
    let snapshot = world.snapshot();
    let service = &snapshot.services[&WorkloadKey::new(NAMESPACE, "web")];
    let ports = &service.balance.as_ref().unwrap().value.ports;
    assert_eq!(ports.len(), 1);
    assert_eq!(ports[0].instances.len(), 1);
}

#[derive(Debug, Clone)]
enum Act {
    Serve(usize, bool),
    Delete(usize),
    NewLeader,
    Settle,
    Plan,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0usize..6, any::<bool>()).prop_map(|(which, balanced)| Act::Serve(which, balanced)),
        2 => (0usize..6).prop_map(Act::Delete),
        1 => Just(Act::NewLeader),
        2 => Just(Act::Settle),
        3 => Just(Act::Plan),
    ]
}

proptest! {
    #![proptest_config(random_cases(30))]

    /// No address is used twice, no address changes while its workload exists, and none is left
    /// unused.
    #[test]
    fn addresses_are_unique_and_stay(acts in proptest::collection::vec(act(), 1..40)) {
        let mut world = World::with_machines(1);
        set_service_cidr(&mut world, "10.201.0.0/29");
        let mut had: BTreeMap<String, (String, Ipv4Addr)> = BTreeMap::new();
        for act in acts {
            match act {
                Act::Serve(which, headless) => {
                    let name = format!("w{which}");
                    let key = WorkloadKey::new(NAMESPACE, &name);
                    let snapshot = world.snapshot();
                    let present = snapshot.workloads.get(&key);
                    if !present.is_some_and(|entry| entry.meta.value.deleting) {
                        serve(&mut world, &name, |balancer| {
                            balancer["spec"]["headless"] = json!(headless);
                        });
                    }
                }
                Act::Delete(which) => {
                    let name = format!("w{which}");
                    let key = WorkloadKey::new(NAMESPACE, &name);
                    if world.snapshot().workloads.contains_key(&key) {
                        world.delete_workload(&name);
                    }
                }
                Act::NewLeader => world.new_leader(),
                Act::Settle => world.settle(),
                Act::Plan => {
                    world.step();
                }
            }
            let snapshot = world.snapshot();
            let mut seen = BTreeSet::new();
            for (key, service) in &snapshot.services {
                let Some(stored) = &service.address else { continue };
                let address = stored.value.address;
                prop_assert!(seen.insert(address), "{address} twice");
                let Some(entry) = snapshot.workloads.get(key) else { continue };
                let uid = entry.meta.value.uid.clone();
                if let Some((of, before)) = had.insert(key.name.clone(), (uid.clone(), address)) {
                    prop_assert!(of != uid || before == address, "{key} moved");
                }
            }
            prop_assert!(seen.len() <= 6);
        }
        world.settle();
        let snapshot = world.snapshot();
        for (key, entry) in &snapshot.workloads {
            let balancer = entry.parsed.as_ref().unwrap().load_balancer.as_ref().unwrap();
            let has = snapshot.services.get(key).is_some_and(|one| one.address.is_some());
            prop_assert!(has || balancer.spec.headless, "six fit, and {key} has none");
        }
        prop_assert!(snapshot.services.keys().all(|key| snapshot.workloads.contains_key(key)));
    }
}
