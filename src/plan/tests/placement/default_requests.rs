//! Requests that a namespace gives to containers without their own.

use super::*;
use kat_types::store::snapshot::ParsedWorkload;

impl World {
    fn default_processor(&mut self, cpu: Option<&str>) {
        self.change(&keys::namespace(NAMESPACE), |record| {
            record["defaults"] = match cpu {
                Some(cpu) => json!({"requests": {"cpu": cpu}}),
                None => json!({}),
            };
        });
    }

    /// The requested processor of each instance of `web`, in thousandths.
    fn requested(&mut self) -> Vec<Option<u64>> {
        let wanted = self.wanted("web").into_iter();
        let requests = wanted.map(|(_, _, assignment)| {
            let cpu = assignment.container.resources.requests.cpu;
            cpu.map(|cpu| cpu.0)
        });
        requests.collect()
    }
}

#[test]
fn the_measured_size_of_an_instance_has_room_for_what_its_namespace_gives() {
    let mut world = World::with_machines(1);
    world.apply_workload("web", |_| {});
    let snapshot = world.snapshot();
    let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "web")];
    let parsed = entry.parsed.clone().unwrap();
    let measured = largest_assignment(&parsed).unwrap();
    let mut filled = ParsedWorkload::clone(&parsed);
    filled.workload.spec.container.resources.requests = ResourceList {
        cpu: Some(MilliCpu(1_234_567)),
        memory: Some(Bytes((1 << 50) + 1)),
        storage: None,
    };
    let needed = largest_assignment(&filled).unwrap();
    assert!(measured >= needed, "{measured} {needed}");
}

#[test]
fn new_instances_request_what_their_namespace_gives_and_running_ones_stay_as_they_are() {
    // One machine with four processors.
    let mut world = World::with_machines(1);
    world.default_processor(Some("2500m"));
    world.apply_workload("web", |file| file["spec"]["replicas"] = json!(2));
    world.settle_and_run();
    assert_eq!(
        world.requested(),
        [Some(2500)],
        "the second one has no room"
    );
    let before = world.wanted("web");
    world.default_processor(Some("500m"));
    world.settle_and_run();
    let mut requested = world.requested();
    requested.sort_unstable();
    assert_eq!(requested, [Some(500), Some(2500)]);
    let ids = |wanted: &[(String, String, Arc<Assignment>)]| {
        let ids = wanted.iter().map(|(_, _, one)| one.instance.clone());
        ids.collect::<BTreeSet<_>>()
    };
    let after = world.wanted("web");
    assert!(ids(&after).is_superset(&ids(&before)), "none was replaced");
    // Without defaults as well, and what is written is not replaced by them.
    world.default_processor(None);
    world.settle_and_run();
    assert_eq!(ids(&world.wanted("web")), ids(&after));
    world.default_processor(Some("2500m"));
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(2);
        file["spec"]["container"]["resources"] = json!({"limits": {"cpu": "250m"}});
    });
    world.roll_out();
    assert_eq!(world.requested(), [None, None]);
}
