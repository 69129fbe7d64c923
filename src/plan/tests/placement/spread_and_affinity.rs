//! Spread, affinity and GPUs.

use proptest::prelude::*;

use super::*;
use kat_types::{
    machine::gpu::GpuDevice,
    resource::{GpuDriver, GpuRequest, Spread, Workload, WorkloadSpec},
};

impl World {
    /// Adds a machine with labels.
    fn labelled(&mut self, name: &str, labels: &[(&str, &str)]) {
        self.machine(name, "24", &[]);
        self.settle();
        let mut registration = self.snapshot().nodes[name].registration.value.clone();
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        registration.labels.extend(labels);
        self.write(keys::registration(name), &registration);
    }

    /// Machines of a workload's instances.
    fn machines_of(&mut self, name: &str) -> Vec<String> {
        self.wanted(name)
            .into_iter()
            .map(|(_, node, _)| node)
            .collect()
    }

    /// Instances of a workload in each zone of [`zones`].
    fn by_zone(&mut self, name: &str) -> BTreeMap<String, u32> {
        let snapshot = self.snapshot();
        let zones = snapshot
            .nodes
            .values()
            .filter_map(|node| zone_of(&node.registration.value));
        let mut counts: BTreeMap<String, u32> = zones.map(|zone| (zone, 0)).collect();
        for node in self.machines_of(name) {
            let zone = zone_of(&snapshot.nodes[&node].registration.value);
            *counts.entry(zone.unwrap()).or_default() += 1;
        }
        counts
    }
}

fn zone_of(registration: &NodeRegistration) -> Option<String> {
    registration.labels.get("zone").cloned()
}

/// Two machines in zone a, one in b, one in c.
fn zones() -> World {
    let mut world = World::new();
    for (name, zone) in [("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", "c")] {
        world.labelled(name, &[("zone", zone)]);
    }
    world
}

fn spread(required: bool, replicas: u32) -> impl FnOnce(&mut serde_json::Value) {
    move |file| {
        file["spec"]["replicas"] = json!(replicas);
        file["spec"]["spread"] = json!({"topologyKey": "zone", "required": required});
    }
}

fn is_even(counts: &BTreeMap<String, u32>) -> bool {
    counts.values().max().unwrap() - counts.values().min().unwrap() <= 1
}

#[test]
fn instances_are_even_over_the_zones_also_after_a_rollout_and_more() {
    for required in [false, true] {
        let mut world = zones();
        world.apply_workload("web", spread(required, 5));
        world.roll_out();
        assert!(is_even(&world.by_zone("web")), "{:?}", world.by_zone("web"));
        for version in 2..6 {
            world.apply_workload("web", |file| {
                spread(required, 5 + version % 3)(file);
                file["spec"]["source"]["image"] = json!(format!("registry.example/web:{version}"));
            });
            world.roll_out();
            assert!(is_even(&world.by_zone("web")), "{:?}", world.by_zone("web"));
        }
    }
}

/// The file sets no spread. Instances that are being replaced or stopped do not count.
#[test]
fn two_instances_share_no_machine_after_a_rollout_either() {
    for strategy in [
        json!({}),
        json!({"rolling": {"maxSurge": 0}}),
        json!({"type": "Simultaneous"}),
    ] {
        let mut world = World::with_machines(2);
        let web = |version: u32, replicas: u32| {
            let strategy = strategy.clone();
            move |file: &mut serde_json::Value| {
                file["spec"]["replicas"] = json!(replicas);
                file["spec"]["updateStrategy"] = strategy;
                file["spec"]["source"]["image"] = json!(format!("registry.example/web:{version}"));
            }
        };
        world.apply_workload("web", web(1, 2));
        world.roll_out();
        let places = |world: &mut World| {
            world
                .machines_of("web")
                .into_iter()
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(places(&mut world).len(), 2);
        for version in 2..12 {
            // The drain of n2 makes the placement uneven in every fourth version.
            world.drain("n2", version % 4 == 0);
            world.apply_workload("web", web(version, 2));
            world.roll_out();
            if version % 4 != 0 {
                assert_eq!(places(&mut world).len(), 2, "{strategy} {version}");
            }
        }
    }
}

#[test]
fn a_required_spread_waits_rather_than_becomes_uneven_and_goes_on_when_it_can() {
    let mut world = zones();
    world.at("n4").speaks = false;
    world.pass(Duration::from_secs(61));
    world.settle();
    // Zone c has no available machine, so it does not count.
    world.apply_workload("web", spread(true, 4));
    world.settle();
    assert_eq!(world.machines_of("web").len(), 4);
    let full = spread(true, 4);
    world.apply_workload("db", |file| {
        full(file);
        file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "2500m"}});
    });
    world.settle();
    // One replica fits on each machine; the fourth has no machine left.
    assert_eq!(world.machines_of("db").len(), 3);
    let message = world.status("db").conditions[0].message.clone();
    assert_eq!(
        message,
        "0 of 4 machines fit: 1 not ready, 3 without enough processor left; processor: asks 2500m"
    );
    world.labelled("n5", &[]);
    world.settle();
    let message = world.status("db").conditions[0].message.clone();
    assert!(
        message.contains("1 without the label of spread"),
        "{message}"
    );
    world.labelled("n6", &[("zone", "a")]);
    world.settle();
    let message = world.status("db").conditions[0].message.clone();
    assert!(
        message.contains("1 where the spread would become uneven"),
        "{message}"
    );
    world.labelled("n7", &[("zone", "b")]);
    world.settle_and_run();
    assert_eq!(world.status("db").phase, WorkloadPhase::Running);
    assert!(!world.machines_of("db").contains(&"n6".to_owned()));
}

#[test]
fn a_zone_gets_no_more_instances_than_the_most_also_in_updates_and_the_rest_wait() {
    let mut world = zones();
    world.labelled("n5", &[]);
    let most = |version: u32| {
        move |file: &mut serde_json::Value| {
            file["spec"]["replicas"] = json!(5);
            file["spec"]["spread"] = json!({"topologyKey": "zone", "maxPerDomain": 1});
            file["spec"]["source"]["image"] = json!(format!("registry.example/web:{version}"));
        }
    };
    world.apply_workload("web", most(1));
    world.settle_and_run();
    let count = world.by_zone("web").len();
    assert!(world.by_zone("web").values().all(|found| *found == 1));
    assert!(!world.machines_of("web").contains(&"n5".to_owned()));
    assert_eq!(world.machines_of("web").len(), count);
    let message = world.status("web").conditions[0].message.clone();
    assert!(
        message.contains("4 where spread.maxPerDomain is reached"),
        "{message}"
    );
    assert!(
        message.contains("1 without the label of spread"),
        "{message}"
    );
    // An instance that is being replaced does not keep its successor from its zone.
    world.apply_workload("web", |file| {
        most(2)(file);
        file["spec"]["replicas"] = json!(3);
    });
    world.roll_out();
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    assert!(world.by_zone("web").values().all(|found| *found == 1));
}

#[test]
fn anti_affinity_separates_both_workloads_whichever_names_the_other() {
    let mut world = World::with_machines(3);
    world.apply_workload("web", |file| file["spec"]["replicas"] = json!(2));
    world.settle();
    world.apply_workload("db", |file| {
        file["spec"]["replicas"] = json!(3);
        file["spec"]["antiAffinity"] = json!(["web"]);
    });
    world.settle();
    let (web, db) = (world.machines_of("web"), world.machines_of("db"));
    assert!(web.iter().all(|node| !db.contains(node)), "{web:?} {db:?}");
    // The named workload avoids the other one too.
    world.replicas("web", 5);
    world.settle();
    let (web, db) = (world.machines_of("web"), world.machines_of("db"));
    assert!(web.iter().all(|node| !db.contains(node)), "{web:?} {db:?}");
    assert_eq!(web.len(), 5);
    world.apply_workload("alone", |file| {
        file["spec"]["replicas"] = json!(4);
        file["spec"]["antiAffinity"] = json!(["alone"]);
    });
    world.settle();
    let nodes = world.machines_of("alone");
    assert_eq!(nodes.len(), 3, "one on each machine");
    assert_eq!(nodes.iter().collect::<BTreeSet<_>>().len(), 3);
    let message = world.status("alone").conditions[0].message.clone();
    assert_eq!(
        message,
        "0 of 3 machines fit: 3 with a workload of antiAffinity"
    );
    world.machine("n4", "23", &[]);
    world.settle_and_run();
    assert_eq!(world.status("alone").phase, WorkloadPhase::Running);
}

#[test]
fn who_must_share_a_machine_waits_for_the_other() {
    let mut world = World::with_machines(3);
    // The name sorts before `web`, so the workload is planned first.
    world.apply_workload("cache", |file| file["spec"]["affinity"] = json!(["web"]));
    world.settle();
    let message = world.status("cache").conditions[0].message.clone();
    assert_eq!(
        message,
        "0 of 3 machines fit: 3 without a workload of affinity"
    );
    world.replicas("web", 1);
    world.settle();
    assert_eq!(world.machines_of("cache"), world.machines_of("web"));
    // A workload of the same name in another namespace does not count.
    world.namespace("other", false);
    world.apply_workload_in("other", "cache", |file| {
        file["spec"]["affinity"] = json!(["web"])
    });
    world.settle();
    assert_eq!(
        world
            .keys("/kat/nodes/desired/")
            .iter()
            .filter(|key| key.contains("cache"))
            .count(),
        1
    );
}

/// A machine for [`choose`] alone.
pub(crate) fn candidate<'a>(
    name: &'a str,
    labels: &'a BTreeMap<String, String>,
) -> MachineCandidate<'a> {
    MachineCandidate {
        name,
        phase: NodePhase::Ready,
        draining: false,
        labels,
        taints: &[],
        allocatable: ResourceList {
            cpu: Some(MilliCpu(4000)),
            memory: Some(Bytes(8 * GIB)),
            storage: None,
        },
        requested: RequestedResources::default(),
        host_ports: BTreeMap::new(),
        staying: 0,
        repelled: false,
        lonely: false,
        has_address: true,
        assignment_schema: ASSIGNMENT_SCHEMA,
        data_path: HOST_PORT_DATA_PATH,
        architecture: "amd64",
        volume_shared: false,
        host_network: false,
        lacks_crun: false,
        foreign_indexes: Vec::new(),
        unreachable: false,
        cannot_start: false,
        disk_pressure: false,
        visible_bytes: 0,
        gpus: Vec::new(),
        gpu_holders: BTreeMap::new(),
    }
}

fn workload() -> Workload {
    let mut world = World::with_machines(1);
    world.replicas("web", 1);
    let snapshot = world.snapshot();
    let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "web")];
    entry.parsed.clone().unwrap().workload.clone()
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    owned.collect()
}

/// A GPU with so many mebibytes.
fn gpu(name: &str, mebibytes: Option<u64>) -> GpuDevice {
    GpuDevice {
        name: name.to_owned(),
        memory: mebibytes.map(|amount| Bytes(amount << 20)),
    }
}

#[test]
fn a_gpu_is_of_the_driver_has_the_memory_and_belongs_to_no_other_instance() {
    let none = labels(&[]);
    let mut machines = [
        candidate("amd", &none),
        candidate("none", &none),
        candidate("nvidia", &none),
    ];
    machines[0].gpus = vec![gpu("amd.com/gpu=0", Some(16_384))];
    machines[2].gpus = vec![
        gpu("nvidia.com/gpu=0", Some(8192)),
        gpu("nvidia.com/gpu=1", None),
    ];
    let asks = |driver, min_vram_mb| {
        let mut workload = workload();
        workload.spec.container.resources.gpu = Some(GpuRequest {
            driver,
            min_vram_mb,
        });
        workload.spec
    };
    let small = asks(GpuDriver::Nvidia, Some(4096));
    let said = |spec: &WorkloadSpec, machines: &[MachineCandidate<'_>]| {
        choose(InstanceDemand::of(spec), machines, 1)
            .map(str::to_owned)
            .map_err(|failure| failure.to_string())
    };
    assert_eq!(said(&small, &machines), Ok("nvidia".to_owned()));
    let holder = BTreeSet::from(["web-aaaaa".to_owned()]);
    let hold = |machine: &mut MachineCandidate<'_>, name: &str| {
        machine.gpu_holders.insert(name.to_owned(), holder.clone());
    };
    hold(&mut machines[2], "nvidia.com/gpu=0");
    assert_eq!(
        said(&small, &machines).unwrap_err(),
        "0 of 3 machines fit: 1 whose GPUs of the requested kind are all in use, 2 without a GPU of the requested driver in its CDI specs"
    );
    // One whose memory is unknown suffices where none is requested.
    let unmeasured = asks(GpuDriver::Nvidia, None);
    assert_eq!(said(&unmeasured, &machines), Ok("nvidia".to_owned()));
    let large = asks(GpuDriver::Any, Some(10_000));
    assert_eq!(said(&large, &machines), Ok("amd".to_owned()));
    hold(&mut machines[0], "amd.com/gpu=0");
    let why = said(&large, &machines).unwrap_err();
    let expected = "1 without a GPU that is known to have minVRAM_MB";
    assert!(why.contains(expected), "{why}");
}

#[test]
fn a_machine_whose_gpu_in_use_has_another_name_now_gives_none_until_its_holder_is_gone() {
    let none = labels(&[]);
    let mut machines = [candidate("n1", &none)];
    machines[0].gpus = vec![gpu("nvidia.com/gpu=0", None), gpu("nvidia.com/gpu=1", None)];
    let holder = BTreeSet::from(["web-aaaaa".to_owned()]);
    let renamed = "nvidia.com/gpu=GPU-5b1f".to_owned();
    machines[0].gpu_holders.insert(renamed.clone(), holder);
    let mut workload = workload();
    workload.spec.container.resources.gpu = Some(GpuRequest {
        driver: GpuDriver::Any,
        min_vram_mb: None,
    });
    let said = |machines: &[MachineCandidate<'_>]| {
        choose(InstanceDemand::of(&workload.spec), machines, 1)
            .map(str::to_owned)
            .map_err(|failure| failure.to_string())
    };
    assert_eq!(
        said(&machines).unwrap_err(),
        "0 of 1 machines fit: 1 with an instance whose GPU its CDI specs name no more"
    );
    machines[0].gpu_holders.insert(renamed, BTreeSet::new());
    assert_eq!(said(&machines), Ok("n1".to_owned()));
}

proptest! {
    #![proptest_config(random_cases(200))]

    /// If nothing else differs, domains and machines differ by one at most, and required rules hold
    /// after every placement.
    #[test]
    fn the_spread_stays_within_one(
        domains in proptest::collection::vec(0usize..4, 1..8),
        replicas in 0usize..20,
        explicit in prop::option::of(any::<bool>()),
        seed in any::<u64>(),
    ) {
        let names: Vec<String> = (0..domains.len()).map(|number| format!("n{number}")).collect();
        let zones: Vec<_> = domains.iter().map(|zone| labels(&[("zone", &zone.to_string())])).collect();
        let mut machines: Vec<_> = names.iter().zip(&zones).map(|(name, zone)| candidate(name, zone)).collect();
        let mut workload = workload();
        workload.spec.spread = explicit.map(|required| Spread { topology_key: "zone".to_owned(), required, max_per_domain: None });
        let uneven = |counts: &[u32]| counts.iter().max().unwrap() - counts.iter().min().unwrap() > 1;
        for number in 0..replicas {
            let chosen = choose(InstanceDemand::of(&workload.spec), &machines, seed ^ number as u64).unwrap();
            let again = choose(InstanceDemand::of(&workload.spec), &machines, seed ^ number as u64).unwrap();
            prop_assert_eq!(chosen, again);
            let machine = machines.iter_mut().find(|one| one.name == chosen).unwrap();
            machine.staying += 1;
            let by_machine: Vec<u32> = machines.iter().map(|one| one.staying).collect();
            let mut by_zone: BTreeMap<usize, u32> = BTreeMap::new();
            for (zone, count) in domains.iter().zip(&by_machine) {
                *by_zone.entry(*zone).or_default() += count;
            }
            let by_zone: Vec<u32> = by_zone.into_values().collect();
            match explicit {
                None => prop_assert!(!uneven(&by_machine), "{by_machine:?}"),
                Some(_) => prop_assert!(!uneven(&by_zone), "{by_zone:?}"),
            }
        }
    }
}
