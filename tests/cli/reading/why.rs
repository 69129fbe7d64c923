use insta::assert_snapshot;

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

const EVENTS: &str = "/v1alpha1/events";

/// A cluster in which one of two instances cannot pull its image.
fn stuck() -> Fake {
    let fake = Fake::start();
    let trouble = "Error: initializing source: reading manifest 1: manifest unknown";
    let item = because(
        workload("web", "Degraded", [2, 1, 1]),
        "ImagePullFailed",
        &format!("web-bbbbb: {trouble}"),
    );
    fake.reply(&format!("GET {WEB}"), 200, item);
    let pulls = troubled(instance("web-bbbbb", "Pulling"), "ImagePullFailed", trouble);
    fake.list(
        WEB_INSTANCES,
        &[instance("web-aaaaa", "Running"), pulls.clone()],
    );
    fake.reply(&format!("GET {INSTANCES}/web-bbbbb"), 200, pulls);
    fake.list(
        EVENTS,
        &[
            event(
                "1",
                "Normal",
                "Updated",
                ("Workload", "web"),
                "generation 2 was applied by socket:root",
            ),
            event(
                "2",
                "Warning",
                "ImagePullFailed",
                ("Instance", "web-bbbbb"),
                trouble,
            ),
            event(
                "3",
                "Warning",
                "CrashLoop",
                ("Instance", "db-ccccc"),
                "another's",
            ),
        ],
    );
    fake
}

#[test]
fn a_workload_is_told_in_sentences() {
    let fake = stuck();
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["why", "workload", "web"]));
    let yaml = program.run(&["why", "wl", "web", "-o", "yaml"]);
    assert!(
        yaml.contains("\nstate: \"workload default/web is Degraded"),
        "{yaml}"
    );
}

#[test]
fn an_instance_is_told_in_sentences() {
    let fake = stuck();
    assert_snapshot!(Program::of(&fake).run(&["why", "instance", "web-bbbbb"]));
}

#[test]
fn a_node_is_told_in_sentences() {
    let fake = Fake::start();
    let mut item = node("b", "NotReady", &["worker"]);
    item["status"]["reason"] = "NoHeartbeat".into();
    item["status"]["message"] = "machine b has not reported for 60 s".into();
    fake.reply("GET /v1alpha1/nodes/b", 200, item);
    fake.list(EVENTS, &[]);
    assert_snapshot!(Program::of(&fake).run(&["why", "node", "b"]));
}

#[test]
fn what_is_not_there_has_a_proposal() {
    let fake = Fake::start();
    fake.reply(
        &format!("GET {WORKLOADS}/wbe"),
        404,
        error("NotFound", "there is no workload `default/wbe`"),
    );
    fake.list(WORKLOADS, &[workload("web", "Running", [1, 1, 1])]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["why", "workload", "wbe"]));
    let text = program.run(&["why", "wrkload"]);
    assert!(text.starts_with("exit: 3\n"), "{text}");
    assert!(text.contains("did you mean `workload`?"), "{text}");
}
