//! Agents of several versions: an assignment is not placed on an agent that does not understand it.

use super::*;

#[test]
fn what_an_older_agent_does_not_know_is_placed_on_a_newer_one() {
    let mut world = World::with_machines(2);
    for machine in world.machines.values_mut() {
        machine.schema = 0;
    }
    world.apply_workload("web", |file| {
        file["spec"]["onPartition"] = json!("stop");
    });
    world.settle();
    let status = world.status("web");
    assert_eq!(status.conditions[0].reason, "Unschedulable");
    assert_eq!(
        status.conditions[0].message,
        "0 of 2 machines fit: 2 with a version of KAT that is too old for it"
    );
    // The old agents run every other assignment, and get it in the oldest schema that can express
    // it.
    world.replicas("plain", 2);
    world.settle();
    let plain = world.wanted("plain");
    assert_eq!(plain.len(), 2);
    for (_, _, assignment) in plain {
        assert_eq!(assignment.schema, 1);
        let text = serde_json::to_string(assignment.as_ref()).unwrap();
        assert!(
            !text.contains("onPartition") && !text.contains("notUnderstood"),
            "{text}"
        );
    }
    world.at("n2").schema = ASSIGNMENT_SCHEMA;
    world.settle_and_run();
    let placed = world.wanted("web");
    let nodes: Vec<&str> = placed.iter().map(|(_, node, _)| node.as_str()).collect();
    assert_eq!(nodes, ["n2"]);
    assert_eq!(placed[0].2.schema, 2);
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}

/// An assignment that this leader does not understand keeps its slot and address. The leader
/// creates no other instance for the slot, and can stop it.
#[test]
fn an_older_leader_keeps_what_it_does_not_understand() {
    let mut world = World::with_machines(2);
    world.replicas("web", 2);
    world.settle();
    let before: Vec<_> = world
        .wanted("web")
        .into_iter()
        .map(|(id, node, one)| (id, node, one.address))
        .collect();
    let (id, node, _) = before[0].clone();
    let key = keys::desired_instance(&node, &id);
    world.change(&key, |stored| {
        stored["restartPolicy"]["condition"] = json!("OnTuesdays");
        stored["schema"] = json!(9);
    });
    world.settle_and_run();
    let after: Vec<_> = world
        .wanted("web")
        .into_iter()
        .map(|(id, node, one)| (id, node, one.address))
        .collect();
    assert_eq!(after, before);
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    world.replicas("web", 0);
    world.settle();
    assert_eq!(world.wanted("web").len(), 0);
    assert_eq!(
        world.keys(&keys::node_desired(&node)).len(),
        1,
        "its meta alone is left"
    );
}
