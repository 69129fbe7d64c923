use insta::assert_snapshot;
use serde_json::json;

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

fn cluster() -> Fake {
    let fake = Fake::start();
    fake.reply("GET /version", 200, json!({"version": "0.1.0"}));
    fake.reply(
        "GET /v1alpha1/config/cluster",
        200,
        json!({"metadata": {"name": "home"}, "spec": {}}),
    );
    fake
}

#[test]
fn a_well_cluster_is_one_short_screen() {
    let fake = cluster();
    fake.list(
        "/v1alpha1/nodes",
        &[with_member(
            node("a", "Ready", &["leader", "etcd", "worker"]),
            true,
            "Votes",
            "its etcd answers and has a vote",
        )],
    );
    fake.list(
        "/v1alpha1/workloads",
        &[workload("web", "Running", [1, 1, 1])],
    );
    fake.list("/v1alpha1/instances", &[instance("web-aaaaa", "Running")]);
    fake.list(
        "/v1alpha1/events",
        &[event(
            "1",
            "Normal",
            "Scheduled",
            ("Workload", "web"),
            "placed",
        )],
    );
    assert_snapshot!(Program::of(&fake).run(&["status"]));
}

#[test]
fn what_is_wrong_is_said_with_its_reason() {
    let fake = cluster();
    let mut lost = node("b", "NotReady", &["worker"]);
    lost["status"]["reason"] = "NoHeartbeat".into();
    lost["status"]["lastHeartbeat"] = ago(130).into();
    fake.list(
        "/v1alpha1/nodes",
        &[
            with_member(lost, false, "NoAnswer", "its etcd does not answer"),
            node("a", "Ready", &["etcd", "worker"]),
        ],
    );
    let degraded = because(
        workload("web", "Degraded", [2, 1, 2]),
        "InstancesNotReady",
        "1 of 2 is ready",
    );
    fake.list(
        "/v1alpha1/workloads",
        &[degraded, workload("db", "Progressing", [1, 0, 1])],
    );
    let crashing = troubled(
        instance("web-bbbbb", "Restarting"),
        "CrashLoop",
        "panic: no config\nexit 1",
    );
    fake.list(
        "/v1alpha1/instances",
        &[
            crashing,
            instance("web-aaaaa", "Running"),
            instance("db-aaaaa", "Starting"),
        ],
    );
    let mut old = event("1", "Warning", "Old", ("Node", "b"), "long ago");
    old["timestamp"] = ago(4000).into();
    fake.list(
        "/v1alpha1/events",
        &[
            old,
            event(
                "2",
                "Warning",
                "CrashLoop",
                ("Instance", "web-bbbbb"),
                "exit 1",
            ),
        ],
    );
    assert_snapshot!(Program::of(&fake).run(&["status"]));
}

#[test]
fn what_cannot_be_read_is_said_and_not_guessed() {
    let fake = cluster();
    for path in ["nodes", "workloads", "instances", "events"] {
        let refusal = error("Forbidden", "a token with scope deploy may not do this");
        fake.reply(&format!("GET /v1alpha1/{path}"), 403, refusal);
    }
    assert_snapshot!(Program::of(&fake).run(&["status"]));
}

#[test]
fn a_machine_that_shows_itself_alone_does_not_say_that_nobody_leads() {
    let fake = cluster();
    fake.list("/v1alpha1/nodes", &[node("b", "Ready", &["worker"])]);
    fake.list("/v1alpha1/instances", &[instance("web-aaaaa", "Running")]);
    for path in ["workloads", "events"] {
        let refusal = error("Forbidden", "this machine shows itself alone");
        fake.reply(&format!("GET /v1alpha1/{path}"), 403, refusal);
    }
    let text = Program::of(&fake).run(&["status"]);
    assert!(text.contains("leader      not known"), "{text}");
    assert!(!text.contains("no machine leads"), "{text}");
    assert!(text.contains("workloads   not visible"), "{text}");
}

#[test]
fn a_silent_cluster_ends_with_4() {
    assert_snapshot!(Program::alone().run(&["status"]), @r"
    exit: 4
    --- stderr
    error: the cluster cannot be reached: [SOCKET]: connection refused

    hint: on the machine, `systemctl status kat-agent` says whether it runs
    ");
}

#[test]
fn an_etcd_with_known_holes_is_named_and_the_cluster_is_well() {
    let fake = cluster();
    let health = json!({
        "status": "ok", "leader": true,
        "store": {"fileBytes": 45_056, "usedBytes": 45_056, "versions": {"a": "3.5.16"}},
    });
    fake.instead("GET /healthz", 200, health);
    let member = with_member(
        node("a", "Ready", &["leader", "etcd", "worker"]),
        true,
        "Votes",
        "its etcd answers and has a vote",
    );
    fake.list("/v1alpha1/nodes", &[member]);
    fake.list("/v1alpha1/workloads", &[]);
    fake.list("/v1alpha1/instances", &[]);
    fake.list("/v1alpha1/events", &[]);
    let screen = Program::of(&fake).run(&["status"]);
    assert!(screen.starts_with("exit: 0\n"), "{screen}");
    let section = "\nsecurity\n  etcd 3.5.16 on a has known holes";
    assert!(screen.contains(section), "{screen}");
}

#[test]
fn a_store_that_is_full_is_trouble_and_its_size_is_said() {
    let fake = cluster();
    let health = json!({
        "status": "ok", "leader": true, "trouble": "the store is full, and this helps",
        "store": {"fileBytes": 2_147_483_648_u64, "usedBytes": 2_000_000_000, "quotaBytes": 2_147_483_648_u64},
    });
    fake.instead("GET /healthz", 200, health);
    let member = with_member(
        node("a", "Ready", &["leader", "etcd", "worker"]),
        true,
        "Votes",
        "its etcd answers and has a vote",
    );
    fake.list("/v1alpha1/nodes", &[member]);
    fake.list("/v1alpha1/workloads", &[]);
    fake.list("/v1alpha1/instances", &[]);
    fake.list("/v1alpha1/events", &[]);
    let screen = Program::of(&fake).run(&["status"]);
    for line in [
        "exit: 1",
        "cluster `home` is not well",
        "etcd        1 of 1 member well; 1.8Gi in use, largest file 2.0Gi of 2.0Gi",
        "  the store is full, and this helps",
    ] {
        assert!(screen.lines().any(|one| one == line), "{line}\n{screen}");
    }
}

#[test]
fn a_virtual_address_that_no_machine_can_hold_is_named() {
    let fake = cluster();
    let member = with_member(
        node("a", "Ready", &["leader", "etcd", "worker"]),
        true,
        "Votes",
        "its etcd answers and has a vote",
    );
    fake.list("/v1alpha1/nodes", &[member]);
    fake.list("/v1alpha1/workloads", &[]);
    fake.list("/v1alpha1/instances", &[]);
    fake.list("/v1alpha1/events", &[]);
    let address = json!({"kind": "VirtualAddress", "metadata": {"name": "192.168.1.9"},
        "spec": {"address": "192.168.1.9/24", "interface": "eth7", "onLeaderLoss": "keep"},
        "status": {"held": false, "reason": "NoAddressHolder", "message": "no machine can hold it",
            "machines": [{"node": "a", "state": "NoInterface", "message": "there is no eth7"}]}});
    fake.list("/v1alpha1/virtual-addresses", &[address]);
    assert_snapshot!(Program::of(&fake).run(&["status"]));
}

#[test]
fn warnings_leave_with_what_they_were_about() {
    let fake = cluster();
    let member = with_member(
        node("a", "Ready", &["leader", "etcd", "worker"]),
        true,
        "Votes",
        "its etcd answers and has a vote",
    );
    fake.list("/v1alpha1/nodes", &[member]);
    fake.list(
        "/v1alpha1/workloads",
        &[workload("web", "Running", [1, 1, 1])],
    );
    fake.list("/v1alpha1/instances", &[instance("web-aaaaa", "Running")]);
    let at = |seconds, mut one: serde_json::Value| {
        one["timestamp"] = ago(seconds).into();
        one
    };
    let warning = |reason, about| event(reason, "Warning", reason, about, "the words of it");
    let ready = event("2", "Normal", "NodeReady", ("Node", "a"), "it is back");
    fake.list(
        "/v1alpha1/events",
        &[
            at(300, warning("NodeNotReady", ("Node", "a"))),
            at(250, ready),
            at(200, warning("CrashLoop", ("Instance", "gone-aaaaa"))),
            at(100, warning("NotWritable", ("Workload", "gone"))),
            at(50, warning("CrashLoop", ("Instance", "web-aaaaa"))),
        ],
    );
    let text = Program::of(&fake).run(&["status"]);
    let (_, warnings) = text.split_once("recent warnings\n").unwrap();
    assert_eq!(warnings.matches("the words of it").count(), 1, "{text}");
    assert!(warnings.contains("web-aaaaa"), "{text}");
}
