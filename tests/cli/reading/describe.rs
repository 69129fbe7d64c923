use insta::assert_snapshot;

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

fn shop() -> Fake {
    let fake = Fake::start();
    let web = because(
        workload("web", "Degraded", [2, 1, 2]),
        "ImagePullFailed",
        "no such image",
    );
    fake.reply(&format!("GET {WEB}"), 200, web);
    let pulling = troubled(
        instance("web-bbbbb", "Pulling"),
        "ImagePullFailed",
        "Trying to pull registry.lab:5000/web:1...\nError: manifest unknown",
    );
    let items = [instance("web-aaaaa", "Running"), pulling.clone()];
    fake.list(WEB_INSTANCES, &items);
    fake.list(INSTANCES, &items);
    fake.list("/v1alpha1/instances", &items);
    fake.reply(&format!("GET {INSTANCES}/web-bbbbb"), 200, pulling);
    fake.list(
        "/v1alpha1/events",
        &[
            event(
                "1",
                "Normal",
                "Scheduled",
                ("Workload", "web"),
                "placed on a",
            ),
            event(
                "2",
                "Warning",
                "ImagePullFailed",
                ("Instance", "web-bbbbb"),
                "manifest unknown",
            ),
            event("3", "Normal", "Scheduled", ("Workload", "db"), "another's"),
        ],
    );
    fake
}

#[test]
fn a_workload_has_its_instances_events_and_commands() {
    let text = Program::of(&shop()).run(&["describe", "workload", "web"]);
    assert!(!text.contains("another's"), "{text}");
    assert_snapshot!(text);
}

#[test]
fn an_instance_has_the_commands_that_work_for_its_user() {
    assert_snapshot!(Program::of(&shop()).run(&["describe", "instance", "web-bbbbb"]));
}

#[test]
fn a_node_has_its_instances() {
    let fake = shop();
    fake.reply(
        "GET /v1alpha1/nodes/a",
        200,
        with_peers(node("a", "Ready", &["leader", "worker"])),
    );
    fake.reply(
        "GET /v1alpha1/events",
        403,
        error("Forbidden", "not with this token"),
    );
    let text = Program::of(&fake).run(&["describe", "node", "a"]);
    assert_snapshot!(text);
}

#[test]
fn a_node_has_its_gpus_with_their_memory_and_use() {
    let fake = shop();
    let mut node = node("a", "Ready", &["worker"]);
    node["status"]["gpus"] = serde_json::json!([
        {"name": "amd.com/gpu=0", "used": false},
        {"name": "nvidia.com/gpu=0", "memory": "24Gi", "used": true},
    ]);
    fake.reply("GET /v1alpha1/nodes/a", 200, node.clone());
    let text = Program::of(&fake).run(&["describe", "node", "a"]);
    let first = "gpus          amd.com/gpu=0, memory unknown, free\n";
    let second = "              nvidia.com/gpu=0, 24.0Gi memory, in use\n";
    assert!(text.contains(&format!("{first}{second}")), "{text}");
    fake.list("/v1alpha1/nodes", &[node]);
    let text = Program::of(&fake).run(&["get", "nodes", "-o", "wide"]);
    assert!(text.contains("1 of 2 free"), "{text}");
}

#[test]
fn a_namespace_is_short() {
    let fake = shop();
    fake.reply(
        "GET /v1alpha1/namespaces/default",
        200,
        namespace("default", 1),
    );
    assert_snapshot!(Program::of(&fake).run(&["describe", "ns", "default"]));
}

#[test]
fn what_is_not_there_ends_with_3() {
    assert_snapshot!(Program::of(&shop()).run(&["describe", "instance", "web-bbbb"]), @r"
    exit: 3
    --- stderr
    error: there is no instance `web-bbbb` in namespace `default`

    hint: did you mean `web-bbbbb`?
    ");
}
