//! Init containers and sidecars: their images, their requests, and the volumes to which they write.

use super::*;

fn machines(count: usize) -> World {
    let mut world = World::with_machines(count);
    for machine in world.machines.values_mut() {
        machine.schema = ASSIGNMENT_SCHEMA;
    }
    world
}

/// The workload `web` with an init container and a sidecar, after `change`.
fn web(world: &mut World, change: impl FnOnce(&mut serde_json::Value)) {
    world.apply_workload("web", |file| {
        file["spec"]["replicas"] = json!(1);
        file["spec"]["initContainers"] = json!([{"name": "prepare"}]);
        file["spec"]["sidecars"] = json!([{"name": "proxy", "image": "registry.example/proxy:1"}]);
        change(file);
    });
}

fn message(world: &mut World) -> String {
    world.status("web").conditions[0].message.clone()
}

#[test]
fn each_runs_the_image_that_was_looked_up() {
    let mut world = machines(1);
    web(&mut world, |_| {});
    world.change(&keys::workload_meta(NAMESPACE, "web"), |stored| {
        stored["image"] = json!({
            "reference": "registry.example/web:1", "pinned": "registry.example/web@sha256:aa",
            "others": [{"reference": "registry.example/proxy:1", "pinned": "registry.example/proxy@sha256:bb"}],
        });
    });
    world.settle();
    let (_, _, assignment) = world.wanted("web").remove(0);
    assert_eq!(assignment.schema, 6);
    let images: Vec<&str> = assignment.images().collect();
    assert_eq!(
        images,
        [
            "registry.example/web@sha256:aa",
            "registry.example/web@sha256:aa",
            "registry.example/proxy@sha256:bb"
        ]
    );
}

#[test]
fn a_machine_must_be_able_to_run_every_image() {
    let mut world = machines(2);
    world.change(&keys::registration("n2"), |stored| {
        stored["architecture"] = json!("arm64");
    });
    web(&mut world, |_| {});
    let meta = keys::workload_meta(NAMESPACE, "web");
    world.change(&meta, |stored| {
        stored["image"] = json!({
            "reference": "registry.example/web:1", "architectures": ["amd64", "arm64"],
            "others": [{"reference": "registry.example/proxy:1", "architectures": ["arm64"]}],
        });
    });
    world.settle();
    let nodes: Vec<String> = world.wanted("web").into_iter().map(|one| one.1).collect();
    assert_eq!(nodes, ["n2"]);
}

#[test]
fn an_older_agent_gets_none_of_them() {
    let mut world = machines(1);
    world.at("n1").schema = 5;
    web(&mut world, |_| {});
    world.settle();
    assert!(world.wanted("web").is_empty());
    let message = message(&mut world);
    assert!(message.contains("too old for it"), "{message}");
}

#[test]
fn requests_of_init_containers_and_sidecars_count_for_placement() {
    let ask = |memory: &str| json!({"requests": {"memory": memory}});
    for (init, side, fits) in [
        ("1Mi", "1Mi", true),
        ("900Gi", "1Mi", false),
        ("1Mi", "900Gi", false),
    ] {
        let mut world = machines(1);
        web(&mut world, |file| {
            file["spec"]["initContainers"][0]["resources"] = ask(init);
            file["spec"]["sidecars"][0]["resources"] = ask(side);
        });
        world.settle();
        assert_eq!(!world.wanted("web").is_empty(), fits, "{init} {side}");
        if !fits {
            let message = message(&mut world);
            assert!(message.contains("without enough memory"), "{message}");
        }
    }
}

#[test]
fn a_volume_that_only_an_init_container_writes_to_has_one_writer() {
    let mut world = machines(2);
    web(&mut world, |file| {
        file["spec"]["volumes"] = json!([{"name": "data", "simpleClusterStorage": {}}]);
        file["spec"]["initContainers"][0]["volumeMounts"] =
            json!([{"name": "data", "mountPath": "/data"}]);
    });
    world.settle();
    let (id, node, assignment) = world.wanted("web").remove(0);
    assert!(assignment.writes_data() && assignment.stops_first());
    assert_eq!(assignment.volumes.len(), 1);
    // The next version is placed where the data is, after this one has ended.
    web(&mut world, |file| {
        file["spec"]["volumes"] = json!([{"name": "data", "simpleClusterStorage": {}}]);
        file["spec"]["initContainers"][0]["volumeMounts"] =
            json!([{"name": "data", "mountPath": "/data"}]);
        file["spec"]["sidecars"][0]["args"] = json!(["--verbose"]);
    });
    for _ in 0..10 {
        world.plan_out();
        assert!(world.wanted("web").len() <= 1, "two writers");
        world.agents();
        world.pass(Duration::from_secs(1));
    }
    world.settle();
    let (next, there, _) = world.wanted("web").remove(0);
    assert_ne!(next, id);
    assert_eq!(there, node);
}
