//! Placement of instances, and the reasons if no machine fits.

use super::*;

fn asks(cpu: &str, replicas: u32) -> impl FnOnce(&mut serde_json::Value) {
    let cpu = cpu.to_owned();
    move |file| {
        file["spec"]["replicas"] = json!(replicas);
        file["spec"]["container"]["resources"] = json!({"requests": {"cpu": cpu}});
    }
}

#[test]
fn replicas_without_requests_spread() {
    for replicas in 3..10 {
        let mut world = World::with_machines(3);
        world.replicas("web", replicas);
        world.settle();
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for (_, node, _) in world.wanted("web") {
            *counts.entry(node).or_default() += 1;
        }
        assert_eq!(counts.len(), 3, "{counts:?}");
        let (least, most) = (counts.values().min(), counts.values().max());
        assert!(
            most.unwrap() - least.unwrap() <= 1,
            "placed in one plan and yet apart: {counts:?}"
        );
    }
}

#[test]
fn replicas_spread_although_one_machine_is_emptier_than_the_others() {
    let mut world = World::with_machines(3);
    for busy in ["n1", "n2"] {
        world.apply_workload(&format!("large-{busy}"), |file| {
            asks("2500m", 1)(file);
            file["spec"]["nodeSelector"] = json!({"name": busy});
        });
    }
    world.settle();
    world.apply_workload("web", asks("500m", 3));
    world.settle();
    let nodes: BTreeSet<_> = world
        .wanted("web")
        .into_iter()
        .map(|(_, node, _)| node)
        .collect();
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    // A machine without room gets none, and the others stay even.
    world.apply_workload("web", asks("500m", 9));
    world.settle();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for (_, node, _) in world.wanted("web") {
        *counts.entry(node).or_default() += 1;
    }
    assert_eq!(counts.values().sum::<u32>(), 9, "{counts:?}");
    assert_eq!(
        (counts["n1"], counts["n2"], counts["n3"]),
        (3, 3, 3),
        "{counts:?}"
    );
}

#[test]
fn a_full_cluster_is_not_overcommitted_and_says_so() {
    let mut world = World::with_machines(2);
    world.apply_workload("web", asks("1500m", 6));
    world.settle();
    assert_eq!(world.wanted("web").len(), 4, "two on each machine");
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Degraded);
    assert_eq!(status.conditions[0].reason, "Unschedulable");
    assert_eq!(
        status.conditions[0].message,
        "0 of 2 machines fit: 2 without enough processor left; processor: asks 1500m"
    );
    world.apply_workload("web", asks("1500m", 4));
    world.settle_and_run();
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}

#[test]
fn a_plan_says_how_many_it_places_and_which_slots_no_machine_takes() {
    let mut world = World::with_machines(2);
    world.settle();
    let outcome = |world: &mut World| {
        let (snapshot, observed) = (world.snapshot(), world.observed());
        plan(&snapshot, &observed, world.now, SEED).scheduling
    };
    world.apply_workload("web", asks("1500m", 6));
    let first = outcome(&mut world);
    assert_eq!(first.placed, 4, "two on each machine");
    world.settle();
    let later = outcome(&mut world);
    assert_eq!(later.placed, 0);
    let key = WorkloadKey::new(NAMESPACE, "web");
    for refused in [&first.refused, &later.refused] {
        assert!(!refused.is_empty());
        for place in refused {
            assert_eq!(
                (&place.workload, place.slot >= 4),
                (&key, true),
                "{place:?}"
            );
            assert_eq!(place.reason, "without enough processor left");
        }
    }
    world.apply_workload("web", asks("1500m", 4));
    world.settle_and_run();
    assert!(outcome(&mut world).refused.is_empty());
}

/// What is free changes with each placement, and each change of the message would be written.
#[test]
fn a_message_names_what_is_asked_for_and_stays_when_other_workloads_take_room() {
    let mut world = World::with_machines(3);
    for (number, gibibytes) in (1..).zip([8_u64, 24, 16]) {
        world.at(&format!("n{number}")).resources.memory = Some(Bytes(gibibytes << 30));
    }
    let asks = |memory: &'static str| {
        move |file: &mut serde_json::Value| {
            file["spec"]["container"]["resources"] = json!({"requests": {"memory": memory}});
        }
    };
    world.settle();
    world.apply_workload("huge", asks("100Gi"));
    world.apply_workload("large", asks("20Gi"));
    world.settle();
    world.apply_workload("late", asks("20Gi"));
    world.settle();
    let said = |world: &mut World| {
        ["huge", "late"].map(|name| world.status(name).conditions[0].message.clone())
    };
    let expected = [
        "0 of 3 machines fit: 3 without enough memory left; memory: asks 100Gi, the largest machine has 24.0Gi in all",
        "0 of 3 machines fit: 3 without enough memory left; memory: asks 20Gi",
    ];
    assert_eq!(said(&mut world), expected);
    for number in 0..4 {
        world.apply_workload(&format!("small-{number}"), asks("2150Mi"));
        world.settle();
        assert_eq!(said(&mut world), expected, "{number}");
    }
}

/// A machine's state stream takes 64 MiB.
#[test]
fn a_machine_whose_list_is_full_gets_no_more_instances_and_that_is_said() {
    let mut world = World::with_machines(2);
    let large = |name: &str, mebibytes: usize| {
        let key = format!("{}later", keys::node_desired(name));
        WriteOperation::Put(key, vec![b'x'; mebibytes << 20])
    };
    world.apply(&[large("n1", 57), large("n2", 55)]);
    world.replicas("web", 2);
    world.settle();
    let nodes: Vec<_> = world
        .wanted("web")
        .into_iter()
        .map(|(_, node, _)| node)
        .collect();
    assert_eq!(nodes, ["n2", "n2"], "n1 is full");
    world.apply(&[large("n2", 57)]);
    world.replicas("web", 3);
    world.settle_and_run();
    assert_eq!(world.wanted("web").len(), 2);
    let status = world.status("web");
    assert_eq!(status.conditions[0].reason, "Unschedulable");
    assert_eq!(
        status.conditions[0].message,
        "0 of 2 machines fit: 2 whose list of assignments is full (64 MiB)"
    );
    // Shared keys count for each machine, and instances go on once there is room.
    world.apply(&[large("n2", 30)]);
    world.settle_and_run();
    assert_eq!(world.wanted("web").len(), 3);
}

/// One plan that places many large instances counts each of them.
#[test]
fn large_assignments_of_one_plan_are_counted_while_it_is_made() {
    let mut world = World::with_machines(1);
    let key = format!("{}later", keys::node_desired("n1"));
    world.apply(&[WriteOperation::Put(key, vec![b'x'; (56 << 20) - 300_000])]);
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(20);
        file["spec"]["container"]["env"] = json!([{"name": "TEXT", "value": "t".repeat(30_000)}]);
    });
    world.settle();
    let placed = world.wanted("web").len();
    assert!(
        (7..=11).contains(&placed),
        "{placed} instances of 30 kB in 300 kB"
    );
}

#[test]
fn a_taint_and_labels_exclude_and_are_counted() {
    let mut world = World::with_machines(1);
    world.machine("n2", "23", &[no_schedule("gpu")]);
    world.apply_workload("web", |file| {
        file["spec"]["nodeSelector"] = json!({"name": "n2"});
    });
    world.settle();
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Pending);
    assert_eq!(
        status.conditions[0].message,
        "0 of 2 machines fit: 1 with a taint that is not tolerated, 1 without the labels of nodeSelector"
    );
    world.apply_workload("web", |file| {
        file["spec"]["nodeSelector"] = json!({"name": "n2"});
        file["spec"]["tolerations"] = json!([{"key": "gpu", "operator": "Exists"}]);
    });
    world.settle();
    assert_eq!(world.wanted("web")[0].1, "n2");
}

#[test]
fn a_subnet_without_addresses_is_named() {
    let mut world = World::new();
    world.machine("n1", "29", &[]);
    world.replicas("web", 8);
    world.settle();
    assert_eq!(
        world.wanted("web").len(),
        5,
        "10.100.0.2 to .6 without the machine's own"
    );
    assert_eq!(
        world.status("web").conditions[0].message,
        "0 of 1 machines fit: 1 without a free address"
    );
}

#[test]
fn a_cluster_without_machines_says_so() {
    let mut world = World::new();
    world.replicas("web", 1);
    world.settle();
    assert_eq!(
        world.status("web").conditions[0].message,
        "the cluster has no machine yet"
    );
}

#[test]
fn a_machine_of_another_architecture_is_passed_over_and_counted() {
    let mut world = World::with_machines(3);
    for arm in ["n2", "n3"] {
        world.change(&keys::registration(arm), |stored| {
            stored["architecture"] = json!("arm64");
        });
    }
    world.replicas("web", 4);
    let meta = keys::workload_meta(NAMESPACE, "web");
    world.change(&meta, |stored| {
        stored["image"] = json!({"reference": "registry.example/web:1", "architectures": ["arm64", "riscv64"]})
    });
    world.settle();
    let nodes: BTreeSet<String> = world.wanted("web").into_iter().map(|one| one.1).collect();
    assert_eq!(nodes, ["n2", "n3"].map(str::to_owned).into());
    // If the image's architecture is unknown, every machine fits.
    world.replicas("other", 3);
    world.settle();
    let nodes: BTreeSet<String> = world.wanted("other").into_iter().map(|one| one.1).collect();
    assert_eq!(nodes.len(), 3);
    world.replicas("third", 1);
    let meta = keys::workload_meta(NAMESPACE, "third");
    world.change(
        &meta,
        |stored| {
            stored["image"] =
                json!({"reference": "registry.example/third:1", "architectures": ["s390x"]})
        },
    );
    world.settle();
    assert_eq!(
        world.status("third").conditions[0].message,
        "0 of 3 machines fit: 3 of an architecture that the image is not made for"
    );
}
