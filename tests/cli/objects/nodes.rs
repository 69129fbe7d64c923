//! Drain, uncordon, label and taint.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

const NODES: &str = "/v1alpha1/nodes";
const ALL_INSTANCES: &str = "/v1alpha1/instances";
const ALL_WORKLOADS: &str = "/v1alpha1/workloads";

fn settled(outcome: &str) -> Value {
    json!({"outcome": outcome, "kind": "Node", "metadata": {"name": "a", "uid": "uid-a"}})
}

fn draining(phase: &str) -> Value {
    let mut node = node("a", phase, &["worker"]);
    node["spec"]["draining"] = true.into();
    node
}

fn blocked(mut workload: Value, message: &str) -> Value {
    workload["status"]["conditions"] = json!([{"type": "DrainBlocked", "status": true,
        "reason": "Unschedulable", "message": message, "since": ago(65)}]);
    workload
}

/// A cluster that accepts a drain of machine `a`.
fn cluster(node: &Value, instances: &[Value], workloads: &[Value]) -> Fake {
    let fake = Fake::start();
    fake.reply("PUT /v1alpha1/nodes/a/drain", 200, settled("updated"));
    fake.list(NODES, std::slice::from_ref(node));
    fake.list(ALL_INSTANCES, instances);
    fake.list(ALL_WORKLOADS, workloads);
    fake
}

#[test]
fn a_drain_says_what_is_left_and_ends_when_nothing_is() {
    let mut elsewhere = instance("web-ccccc", "Running");
    elsewhere["status"]["node"] = "b".into();
    let here = [
        instance("web-aaaaa", "Running"),
        instance("web-bbbbb", "Running"),
        elsewhere,
    ];
    let fake = cluster(
        &draining("Draining"),
        &here,
        &[workload("web", "Running", [3, 3, 3])],
    );
    let program = Program::of(&fake);
    let mut running = program.spawn(&["drain", "a"]);
    running.stderr_says("a: 2 instances left");
    fake.change(ALL_INSTANCES, "DELETED", &here[0]);
    running.stderr_says("a: 1 instance left");
    fake.change(ALL_INSTANCES, "DELETED", &here[1]);
    running.stderr_says("a: nothing left to move");
    fake.change(NODES, "MODIFIED", &draining("Drained"));
    let text = running.end();
    assert!(
        text.starts_with("exit: 0\n--- stdout\nnode/a drained\n"),
        "{text}"
    );
    assert!(
        fake.asked()
            .contains(&"PUT /v1alpha1/nodes/a/drain".to_owned())
    );
}

#[test]
fn what_can_not_move_is_named_at_once_and_the_rest_at_the_end() {
    let web = blocked(
        workload("web", "Running", [1, 1, 1]),
        "web-aaaaa can't leave a: 0 of 1 machines fit: 1 being drained",
    );
    let mut other = instance("db-aaaaa", "Running");
    other["status"]["workload"] = "db".into();
    let here = [instance("web-aaaaa", "Running"), other];
    let fake = cluster(&draining("Draining"), &here, &[web]);
    assert_snapshot!(Program::of(&fake).run(&["drain", "a", "--timeout", "1s"]));
}

#[test]
fn what_a_forced_drain_stopped_is_named_at_its_end() {
    let lacks = |name: &str, message: &str| {
        let mut workload = workload(name, "Pending", [1, 0, 0]);
        workload["status"]["conditions"] = json!([{"type": "Available", "status": false,
            "reason": "Unschedulable", "message": message, "since": ago(5)}]);
        workload
    };
    let here = [instance("web-aaaaa", "Running")];
    let workloads = [
        lacks("web", "0 of 1 machines fit: 1 being drained"),
        lacks("other", "it had nothing there"),
    ];
    let fake = cluster(&draining("Draining"), &here, &workloads);
    let program = Program::of(&fake);
    let mut running = program.spawn(&["drain", "a", "--force"]);
    running.stderr_says("a: 1 instance left");
    fake.change(ALL_INSTANCES, "DELETED", &here[0]);
    fake.change(NODES, "MODIFIED", &draining("Drained"));
    let text = running.end();
    assert!(
        text.starts_with("exit: 0\n--- stdout\nnode/a drained\n"),
        "{text}"
    );
    let expected = "default/web lacks an instance: 0 of 1 machines fit: 1 being drained";
    assert!(text.contains(expected), "{text}");
    assert!(!text.contains("default/other"), "{text}");
    let asked = "PUT /v1alpha1/nodes/a/drain?force=true".to_owned();
    assert!(fake.asked().contains(&asked), "{:?}", fake.asked());
}

#[test]
fn the_kind_of_a_machine_may_be_left_out_and_several_are_labelled() {
    let fake = Fake::start();
    for name in ["a", "b"] {
        let path = format!("/v1alpha1/nodes/{name}");
        let item = node(name, "Ready", &["worker"]);
        fake.reply(&format!("GET {path}"), 200, item);
        fake.reply(&format!("PUT {path}/labels"), 200, settled("updated"));
    }
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["label", "a", "node/b", "disk=ssd"]), @r"
    exit: 0
    --- stdout
    node/a updated
    node/b updated
    ");
    let text = program.run(&["label", "workload", "a", "disk=ssd"]);
    assert!(text.starts_with("exit: 2\n"), "{text}");
    assert!(text.contains("the command takes a node"), "{text}");
}

#[test]
fn a_cordon_is_a_taint_that_uncordon_removes() {
    let fake = Fake::start();
    let mut item = node("a", "Ready", &["worker"]);
    fake.reply("GET /v1alpha1/nodes/a", 200, item.clone());
    fake.reply("PUT /v1alpha1/nodes/a/taints", 200, settled("updated"));
    fake.reply("DELETE /v1alpha1/nodes/a/drain", 200, settled("unchanged"));
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["cordon", "a"]), @r"
    exit: 0
    --- stdout
    node/a cordoned
    --- stderr
    what runs there stays; `katcall drain a` moves it, `katcall uncordon a` ends this
    ");
    let sent: Value = serde_json::from_slice(&fake.body()).unwrap();
    let of_cordon = |taint: &Value| taint["key"] == "kat.dws.rip/cordoned";
    let taints = sent["taints"].as_array().unwrap().clone();
    assert_eq!(taints.len(), 2, "{sent}");
    assert_eq!(taints[0]["key"], "dedicated");
    assert!(of_cordon(&taints[1]), "{sent}");
    assert_eq!(taints[1]["effect"], "NoSchedule");
    item["spec"]["taints"] = taints.into();
    fake.instead("GET /v1alpha1/nodes/a", 200, item);
    let text = program.run(&["uncordon", "a"]);
    assert!(text.contains("node/a uncordoned"), "{text}");
    let sent: Value = serde_json::from_slice(&fake.body()).unwrap();
    let taints = sent["taints"].as_array().unwrap();
    assert_eq!(taints.len(), 1, "{sent}");
    assert!(!taints.iter().any(of_cordon), "{sent}");
}

#[test]
fn what_is_left_on_a_lost_machine_waits_for_it() {
    let here = [instance("web-aaaaa", "Unknown")];
    let fake = cluster(&draining("NotReady"), &here, &[]);
    let text = Program::of(&fake).run(&["drain", "a", "--timeout", "1s"]);
    assert!(
        text.contains("web-aaaaa: Unknown, until its machine answers"),
        "{text}"
    );
}

#[test]
fn a_drain_that_is_taken_back_or_lost_ends_with_that() {
    let fake = cluster(&draining("Draining"), &[], &[]);
    let program = Program::of(&fake);
    let mut running = program.spawn(&["drain", "a"]);
    running.stderr_says("a: nothing left to move");
    fake.change(NODES, "MODIFIED", &node("a", "Ready", &["worker"]));
    assert_snapshot!(running.end());

    let fake = cluster(&draining("NotReady"), &[], &[]);
    let program = Program::of(&fake);
    let mut running = program.spawn(&["drain", "a"]);
    running.stderr_says("a is NotReady");
    fake.change(NODES, "DELETED", &draining("NotReady"));
    let text = running.end();
    assert!(text.starts_with("exit: 3\n"), "{text}");
}

#[test]
fn a_machine_that_is_not_there_is_not_drained() {
    let fake = Fake::start();
    fake.list(NODES, &[node("n2", "Ready", &["worker"])]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["drain", "n3"]));
    assert_snapshot!(program.run(&["uncordon", "n3"]));
    assert_snapshot!(program.run(&["label", "node", "n3", "disk=ssd"]));
}

#[test]
fn a_machine_is_opened_again() {
    let fake = Fake::start();
    fake.reply("DELETE /v1alpha1/nodes/a/drain", 200, settled("updated"));
    fake.reply("DELETE /v1alpha1/nodes/a/drain", 200, settled("unchanged"));
    let item = node("a", "Ready", &["worker"]);
    fake.reply("GET /v1alpha1/nodes/a", 200, item);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["uncordon", "a"]), @r"
    exit: 0
    --- stdout
    node/a uncordoned
    --- stderr
    instances that moved away stay where they are; `katcall restart NAME` spreads those of a workload again
    ");
    assert_snapshot!(program.run(&["uncordon", "a"]), @r"
    exit: 0
    --- stdout
    node/a unchanged
    ");
}

#[test]
fn labels_and_taints_are_sent_whole() {
    let fake = Fake::start();
    let mut item = node("a", "Ready", &["worker"]);
    item["metadata"]["labels"] = json!({"disk": "hdd", "zone": "a"});
    fake.reply("GET /v1alpha1/nodes/a", 200, item);
    // Another client changes the labels between the read and the first write.
    let late = error(
        "PreconditionFailed",
        "it was changed at resourceVersion 10, after 9",
    );
    fake.reply("PUT /v1alpha1/nodes/a/labels", 412, late);
    fake.reply("PUT /v1alpha1/nodes/a/labels", 200, settled("updated"));
    fake.reply("PUT /v1alpha1/nodes/a/taints", 200, settled("updated"));
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["label", "node", "a", "disk=ssd", "zone-"]), @r"
    exit: 0
    --- stdout
    node/a updated
    ");
    let sent: Value = serde_json::from_slice(&fake.body()).unwrap();
    assert_eq!(sent, json!({"labels": {"disk": "ssd"}}));
    assert_eq!(
        fake.asked()
            .iter()
            .filter(|asked| asked.starts_with("PUT"))
            .count(),
        2
    );
    assert_snapshot!(
        program.run(&["taint", "node", "a", "dedicated:NoSchedule-", "slow=yes:PreferNoSchedule"]),
        @r"
    exit: 0
    --- stdout
    node/a updated
    "
    );
    let sent: Value = serde_json::from_slice(&fake.body()).unwrap();
    let taint = json!({"key": "slow", "value": "yes", "effect": "PreferNoSchedule"});
    assert_eq!(sent, json!({"taints": [taint]}));
    assert_snapshot!(program.run(&["taint", "node", "a", "slow:NoExecute"]));
    assert_snapshot!(program.run(&["label", "node", "a", "disk"]));
    assert_snapshot!(program.run(&["label", "node", "a"]));
}
