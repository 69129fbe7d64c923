//! Resources of the machine: host network, devices, groups, GPUs. Only one instance at a time has
//! them, on a machine whose owner allows it.

use super::*;
use kat_types::machine::{gpu::GpuDevice, network::node_address};

fn machines(count: usize) -> World {
    let mut world = World::with_machines(count);
    for machine in world.machines.values_mut() {
        (machine.schema, machine.host_network) = (ASSIGNMENT_SCHEMA, true);
    }
    world
}

/// A workload with the host network that serves this port.
fn on_host(world: &mut World, name: &str, port: u16, replicas: u32, image: u32) {
    let balancer = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "VirtualLoadBalancer",
        "spec": {"ports": [{"containerPort": port}]},
    });
    let key = keys::manifest(NAMESPACE, name, "VirtualLoadBalancer.kat");
    world.write(key, &balancer);
    world.apply_workload(name, |file| {
        file["spec"]["container"]["hostNetwork"] = json!(true);
        file["spec"]["replicas"] = json!(replicas);
        file["spec"]["source"]["image"] = json!(format!("registry.example/{name}:{image}"));
    });
}

fn nodes(world: &mut World, name: &str) -> BTreeSet<String> {
    world
        .wanted(name)
        .into_iter()
        .map(|(_, node, _)| node)
        .collect()
}

fn message(world: &mut World, name: &str) -> String {
    let conditions = world.status(name).conditions;
    let messages = conditions.iter().map(|one| one.message.as_str());
    messages.collect::<Vec<_>>().join(" | ")
}

/// The fewest and the most running instances during a rollout.
fn while_rolled(world: &mut World, name: &str) -> (usize, usize) {
    let (mut least, mut most) = (usize::MAX, 0);
    for _ in 0..40 {
        world.plan_out();
        world.agents();
        let running = world.running(name);
        (least, most) = (least.min(running), most.max(running));
        world.pass(Duration::from_secs(1));
    }
    world.roll_out();
    (least, most)
}

#[test]
fn the_machines_network_is_had_once_on_each_machine_that_lets_it() {
    let mut world = machines(4);
    world.at("n2").host_network = false;
    on_host(&mut world, "edge", 80, 4, 1);
    world.roll_out();
    let expected = ["n1", "n3", "n4"].map(str::to_owned).into();
    assert_eq!(nodes(&mut world, "edge"), expected);
    let why = message(&mut world, "edge");
    assert!(
        why.contains("1 without hostNetworkAllow in /etc/kat/agent.yaml"),
        "{why}"
    );
    assert!(
        why.contains("3 with another of its instances on the machine's network"),
        "{why}"
    );
    // The owner allows the host network now.
    world.at("n2").host_network = true;
    world.roll_out();
    assert_eq!(nodes(&mut world, "edge").len(), 4);

    // The instance's name and service have the machine's own address, which no allocation has.
    let snapshot = world.snapshot();
    for (id, node, assignment) in world.wanted("edge") {
        let subnet = snapshot.nodes[&node].subnet.unwrap();
        assert_eq!(assignment.address, node_address(subnet), "{id}");
        assert!(
            !snapshot.allocations.contains_key(&id),
            "{id} takes no address"
        );
        assert_eq!(assignment.schema, 5);
        let name = format!("/kat/dns/{NAMESPACE}/edge/A/{id}={}", assignment.address);
        assert_eq!(world.keys(&name).len(), 1, "{name}");
    }
    let service = &snapshot.services[&WorkloadKey::new(NAMESPACE, "edge")];
    let behind = &service.balance.as_ref().unwrap().value.ports[0].instances;
    let machines: BTreeSet<_> = world
        .wanted("edge")
        .iter()
        .map(|(.., one)| one.address)
        .collect();
    assert_eq!(behind.keys().copied().collect::<BTreeSet<_>>(), machines);
}

#[test]
fn ports_of_the_machines_network_are_had_once_whoever_has_them() {
    let mut world = machines(2);
    on_host(&mut world, "one", 80, 1, 1);
    on_host(&mut world, "other", 80, 1, 1);
    on_host(&mut world, "third", 80, 1, 1);
    on_host(&mut world, "apart", 81, 2, 1);
    world.roll_out();
    let placed = ["one", "other", "third"].map(|name| nodes(&mut world, name));
    let all: Vec<&String> = placed.iter().flatten().collect();
    assert_eq!(all.len(), 2, "{placed:?}");
    assert_ne!(all[0], all[1]);
    assert_eq!(nodes(&mut world, "apart").len(), 2, "another port");
    // Without ports, only instances of the same workload are known to conflict.
    world.apply_workload("quiet", |file| {
        file["spec"]["container"]["hostNetwork"] = json!(true);
        file["spec"]["replicas"] = json!(3);
    });
    world.roll_out();
    assert_eq!(world.wanted("quiet").len(), 2);
    let why = message(&mut world, "quiet");
    assert!(
        why.contains("2 with another of its instances on the machine's network"),
        "{why}"
    );
}

#[test]
fn an_instance_with_machine_resources_stops_before_its_successor_starts() {
    let mut world = machines(1);
    on_host(&mut world, "edge", 80, 1, 1);
    let stick = |world: &mut World, image: u32| {
        world.apply_workload("stick", |file| {
            file["spec"]["container"]["devices"] = json!(["/dev/ttyUSB0"]);
            file["spec"]["container"]["groups"] = json!(["dialout"]);
            file["spec"]["source"]["image"] = json!(format!("registry.example/stick:{image}"));
        });
    };
    stick(&mut world, 1);
    world.roll_out();
    on_host(&mut world, "edge", 80, 1, 2);
    stick(&mut world, 2);
    assert_eq!(while_rolled(&mut world, "edge"), (0, 1));
    assert_eq!(world.running("stick"), 1);
    stick(&mut world, 3);
    assert_eq!(while_rolled(&mut world, "stick"), (0, 1));
    // The order also holds if the next version uses no such resources.
    world.apply_workload("stick", |file| file["spec"]["replicas"] = json!(1));
    assert_eq!(while_rolled(&mut world, "stick"), (0, 1));
    let (.., last) = world.wanted("stick").remove(0);
    assert!(!last.container.has_machine_things());
    assert_eq!(last.schema, 1);
}

#[test]
fn it_is_moved_where_its_machine_is_lost_and_when_it_is_drained() {
    let mut world = machines(3);
    on_host(&mut world, "edge", 80, 1, 1);
    world.roll_out();
    let first = nodes(&mut world, "edge");
    world.drain(first.first().unwrap(), true);
    world.roll_out();
    let second = nodes(&mut world, "edge");
    assert_ne!(first, second);
    assert_eq!(world.running("edge"), 1);
    let lost = second.first().unwrap();
    (world.at(lost).speaks, world.at(lost).obeys) = (false, false);
    let seconds = world.snapshot().cluster.spec.node_loss_timeout_seconds;
    for _ in 0..6 {
        world.pass(Duration::from_secs(seconds.into()));
        world.settle();
    }
    let third = world.wanted("edge").into_iter().map(|(_, node, _)| node);
    let third: BTreeSet<String> = third.filter(|node| node != lost).collect();
    assert_eq!(third.len(), 1, "what is no data waits for no machine");
}

#[test]
fn it_waits_for_a_machine_whose_version_knows_it() {
    let mut world = machines(1);
    world.at("n1").schema = 4;
    world.apply_workload("stick", |file| {
        file["spec"]["container"]["devices"] = json!(["/dev/ttyUSB0"]);
    });
    world.roll_out();
    assert!(world.wanted("stick").is_empty());
    let why = message(&mut world, "stick");
    assert!(
        why.contains("a version of KAT that is too old for it"),
        "{why}"
    );
    world.at("n1").schema = ASSIGNMENT_SCHEMA;
    world.roll_out();
    assert_eq!(world.running("stick"), 1);
}

#[test]
fn groups_and_health_checks_by_a_command_come_only_to_machines_with_crun() {
    for groups in [true, false] {
        let mut world = machines(3);
        for (node, runtime) in [("n1", "runc"), ("n2", "crun"), ("n3", "runc")] {
            world.at(node).runtime = runtime.to_owned();
        }
        world.plan_out();
        let probe = match groups {
            true => json!({"tcp": {"port": 80}}),
            false => json!({"exec": {"command": ["/bin/true"]}}),
        };
        world.write(
            keys::manifest(NAMESPACE, "web", "VirtualLoadBalancer.kat"),
            &json!({
                "apiVersion": "kat.dws.rip/v1alpha1",
                "kind": "VirtualLoadBalancer",
                "spec": {"ports": [{"containerPort": 80}], "healthCheck": probe},
            }),
        );
        world.apply_workload("web", |file| {
            file["spec"]["replicas"] = json!(2);
            if groups {
                file["spec"]["container"]["groups"] = json!(["dialout"]);
            }
        });
        world.replicas("plain", 3);
        world.roll_out();
        assert_eq!(nodes(&mut world, "web"), ["n2".to_owned()].into());
        assert_eq!(nodes(&mut world, "plain").len(), 3, "others run with runc");

        // Without a machine with crun, the reason says what is missing.
        world.at("n2").runtime = "runc".to_owned();
        world.apply_workload("late", |file| {
            file["spec"]["sidecars"] =
                json!([{"name": "a", "image": "registry.example/a:1", "groups": ["dialout"]}]);
        });
        world.roll_out();
        assert!(nodes(&mut world, "late").is_empty());
        let why = message(&mut world, "late");
        let reason = "3 without crun, which its groups or its health check by a command need";
        assert!(why.contains(reason), "{why}");

        // An agent that does not report its runtime counts as having crun.
        world.at("n3").runtime.clear();
        world.roll_out();
        assert_eq!(nodes(&mut world, "late"), ["n3".to_owned()].into());
    }
}

fn gpu(name: &str, mebibytes: u64) -> GpuDevice {
    GpuDevice {
        name: name.to_owned(),
        memory: Some(Bytes(mebibytes << 20)),
    }
}

/// A workload whose instances need a GPU each.
fn on_gpu(world: &mut World, name: &str, replicas: u32, image: u32) {
    world.apply_workload(name, |file| {
        file["spec"]["container"]["resources"] = json!({"gpu": {"driver": "any"}});
        file["spec"]["replicas"] = json!(replicas);
        file["spec"]["source"]["image"] = json!(format!("registry.example/{name}:{image}"));
    });
}

/// The machine and the GPU of each instance of a workload.
fn gpus_of(world: &mut World, name: &str) -> Vec<(String, String)> {
    let wanted = world.wanted(name).into_iter();
    let mut gpus: Vec<_> = wanted
        .map(|(_, node, assignment)| (node, assignment.gpu.clone().unwrap()))
        .collect();
    gpus.sort();
    gpus
}

#[test]
fn a_gpu_belongs_to_one_instance_until_its_machine_confirms_the_end() {
    let mut world = machines(2);
    world.at("n2").gpus = vec![gpu("amd.com/gpu=0", 8192)];
    on_gpu(&mut world, "first", 1, 1);
    world.roll_out();
    on_gpu(&mut world, "second", 1, 1);
    world.roll_out();
    let only = [("n2".to_owned(), "amd.com/gpu=0".to_owned())];
    assert_eq!(gpus_of(&mut world, "first"), only);
    let (_, _, assignment) = world.wanted("first").remove(0);
    assert_eq!(assignment.schema, 12);
    assert!(world.wanted("second").is_empty());
    let why = message(&mut world, "second");
    let expected = "1 whose GPUs of the requested kind are all in use, 1 without a GPU of the requested driver in its CDI specs";
    assert!(why.contains(expected), "{why}");

    // The machine does nothing, so the first instance may still run.
    world.at("n2").obeys = false;
    world.delete_workload("first");
    world.settle();
    assert!(world.wanted("first").is_empty());
    assert!(world.wanted("second").is_empty());
    world.at("n2").obeys = true;
    world.roll_out();
    assert_eq!(gpus_of(&mut world, "second"), only);
    assert_eq!(world.running("second"), 1);
}

#[test]
fn replicas_get_different_gpus_and_the_smallest_that_suffices_first() {
    let mut world = machines(1);
    world.at("n1").gpus = vec![
        gpu("nvidia.com/gpu=0", 24_576),
        gpu("nvidia.com/gpu=1", 8192),
    ];
    on_gpu(&mut world, "model", 1, 1);
    world.roll_out();
    let on_n1 = |name: &str| ("n1".to_owned(), name.to_owned());
    assert_eq!(gpus_of(&mut world, "model"), [on_n1("nvidia.com/gpu=1")]);
    on_gpu(&mut world, "model", 3, 1);
    world.roll_out();
    let both = [on_n1("nvidia.com/gpu=0"), on_n1("nvidia.com/gpu=1")];
    assert_eq!(gpus_of(&mut world, "model"), both);
    let why = message(&mut world, "model");
    assert!(why.contains("are all in use"), "{why}");
}

#[test]
fn an_instance_with_a_gpu_is_replaced_in_place_while_its_machine_has_the_gpu() {
    let mut world = machines(1);
    world.at("n1").gpus = vec![gpu("amd.com/gpu=0", 8192)];
    on_gpu(&mut world, "model", 1, 1);
    world.roll_out();
    let before = gpus_of(&mut world, "model");
    on_gpu(&mut world, "model", 1, 2);
    assert_eq!(while_rolled(&mut world, "model"), (0, 1));
    assert_eq!(gpus_of(&mut world, "model"), before);
    // What runs continues, and its successor waits for a GPU.
    world.at("n1").gpus.clear();
    on_gpu(&mut world, "model", 1, 3);
    world.roll_out();
    assert_eq!(world.running("model"), 1);
    let why = message(&mut world, "model");
    assert!(why.contains("without a GPU"), "{why}");
}
