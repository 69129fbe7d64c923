use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

/// The API's preview of a new image, one more replica and another secret.
fn update() -> Value {
    let mut answer = applied("updated", "web");
    answer["metadata"]["generation"] = 4.into();
    answer["preview"] = json!({
        "presentGeneration": 3, "templateChanged": true, "complete": true, "blocked": "",
        "rollout": "at most 1 at a time, each stops when its successor is healthy",
        "fields": [
            {"file": "workload.kat", "path": "spec.replicas", "before": 2, "after": 3},
            {"file": "workload.kat", "path": "spec.source.image",
                "before": "registry.lab:5000/web:1", "after": "registry.lab:5000/web:2"},
            {"file": "workload.kat", "path": "spec.container.env[SECRET].value",
                "before": "***", "after": "***"},
            {"file": "workload.kat", "path": "spec.container.args", "after": ["-v", "a\u{1b}[2J"]},
            {"file": "VirtualLoadBalancer.kat", "path": "spec.ports[web]",
                "before": {"name": "web", "containerPort": 8080}},
        ],
        "files": [{"path": "conf/a", "diff": "--- conf/a\n+++ conf/a\n@@ -1 +1 @@\n-one\n+t\u{1b}[2Jwo\n"}],
        "instances": [
            {"action": "Restart", "slot": 0, "instance": "web-aaaaa", "node": "n1",
                "successor": "web-ccccc", "successorNode": "n1", "reason": "what it is made of changes"},
            {"action": "Move", "slot": 1, "instance": "web-bbbbb", "node": "n1",
                "successor": "web-ddddd", "successorNode": "n2", "reason": "what it is made of changes"},
            {"action": "Create", "slot": 2, "successor": "web-eeeee", "successorNode": "n2", "reason": ""},
        ],
        "units": [{"name": "kat-default-web-aaaaa.container", "instances": 2,
            "diff": "--- kat-default-web-aaaaa.container\n+++ kat-default-web-aaaaa.container\n@@ -1,3 +1,3 @@\n [Container]\n-Image=registry.lab:5000/web:1\n+Image=registry.lab:5000/web:2\n"}],
    });
    answer
}

fn folder(fake: &Fake) -> Program {
    let program = Program::of(fake);
    program.file("web/workload.kat", &workload_file("web"));
    program
}

#[test]
fn a_change_is_told_whole_and_ends_with_10() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {WEB}"), 200, update());
    let program = folder(&fake);
    let told = program.run(&["plan", "-f", "web"]);
    assert_snapshot!(told);
    assert!(
        told.contains("1 unit differs; `--units` shows how"),
        "{told}"
    );
    assert!(!told.contains("+Image="), "{told}");
    assert_eq!(fake.asked(), [format!("PUT {WEB}?dryRun=true")]);
    assert_eq!(
        program.run(&["apply", "-f", "web", "--dry-run=server"]),
        told
    );
    assert_eq!(program.run(&["apply", "-f", "web", "--dry-run"]), told);
    let yaml = program.run(&["plan", "-f", "web", "-o", "yaml"]);
    assert!(yaml.starts_with("exit: 10\n--- stdout\nitems:\n"), "{yaml}");
    assert!(yaml.contains("action: Move"), "{yaml}");
}

#[test]
fn units_are_shown_where_they_are_asked_for() {
    let fake = Fake::start();
    let mut answer = update();
    let image = json!({"name": "kat-default-web-aaaaa.image", "instances": 2,
        "diff": "--- a\n+++ b\n@@ -1 +1 @@\n-Image=x\n+Image=y\n"});
    answer["preview"]["units"]
        .as_array_mut()
        .unwrap()
        .push(image);
    fake.reply(&format!("PUT {WEB}"), 200, answer);
    let told = folder(&fake).run(&["plan", "-f", "web", "--units"]);
    assert!(told.contains("+Image=registry.lab:5000/web:2"), "{told}");
    // Those of images follow from the field that names the image.
    assert!(!told.contains("+Image=y"), "{told}");
}

#[test]
fn many_instances_of_one_action_are_counted() {
    let fake = Fake::start();
    let mut answer = update();
    let restarts = (0..9).map(|slot| {
        json!({"action": "Restart", "slot": slot, "instance": format!("web-old{slot:02}"),
            "node": "n1", "successor": format!("web-new{slot:02}"), "successorNode": "n1",
            "reason": "what it is made of changes"})
    });
    answer["preview"]["instances"] = restarts.collect();
    fake.reply(&format!("PUT {WEB}"), 200, answer);
    let told = folder(&fake).run(&["plan", "-f", "web"]);
    assert!(
        told.contains("restart web-old02 on n1 as web-new02"),
        "{told}"
    );
    assert!(told.contains("...     and 6 more like these"), "{told}");
    assert!(!told.contains("web-old03"), "{told}");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {WEB}"), 200, update());
    let (code, text) = folder(&fake).run_on_terminal(&["plan", "-f", "web", "--units"]);
    assert_eq!(code, 10);
    for coloured in [
        "\u{1b}[32m+Image=registry.lab:5000/web:2\u{1b}[0m",
        "\u{1b}[31m-Image=registry.lab:5000/web:1\u{1b}[0m",
        "\u{1b}[33mrestart\u{1b}[0m web-aaaaa",
    ] {
        assert!(text.contains(coloured), "{text:?}");
    }
    let plain = folder(&fake).variable("NO_COLOR", "1");
    let (code, text) = plain.run_on_terminal(&["plan", "-f", "web"]);
    assert_eq!(code, 10);
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

#[test]
fn what_stays_ends_with_0() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {WEB}"), 200, applied("unchanged", "web"));
    assert_snapshot!(folder(&fake).run(&["plan", "-f", "web"]), @r"
    exit: 0
    --- stdout
    workload default/web stays as it is

    nothing would change
    ");
}

#[test]
fn what_can_not_come_about_is_said() {
    let fake = Fake::start();
    let why = "0 of 2 machines fit: 2 without enough memory left";
    let mut answer = applied("created", "web");
    answer["preview"] = json!({"complete": false, "blocked": why, "instances": [
        {"action": "Create", "slot": 0, "successorNode": "n1"},
        {"action": "Keep", "slot": 1, "instance": "web-bbbbb", "node": "n1", "reason": why},
        {"action": "Wait", "slot": 2, "reason": why},
        {"action": "Stop", "slot": 3, "instance": "web-fffff", "node": "n2", "reason": "fewer replicas are wanted"},
    ]});
    fake.reply(&format!("PUT {WEB}"), 200, answer);
    assert_snapshot!(folder(&fake).run(&["plan", "-f", "web"]));
}

#[test]
fn a_daemon_is_named_by_its_machines() {
    let fake = Fake::start();
    let mut answer = applied("created", "web");
    answer["preview"] = json!({"complete": true, "instances": [
        {"action": "Create", "slot": 10_001, "successorNode": "n1"},
        {"action": "Create", "slot": 10_002, "successorNode": "n2"},
        {"action": "Wait", "slot": 10_003, "node": "n4", "reason": "when the machine joins"},
    ]});
    fake.reply(&format!("PUT {WEB}"), 200, answer);
    let shown = folder(&fake).run(&["plan", "-f", "web"]);
    // As docs/guide/daemons.md shows it.
    for line in [
        "    create  one on n1\n",
        "    create  one on n2\n",
        "    wait    one on n4: when the machine joins\n",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn an_older_cluster_and_a_refusal_are_told_as_they_are() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {WEB}"), 200, applied("updated", "web"));
    let program = folder(&fake);
    assert_snapshot!(program.run(&["plan", "-f", "web"]), @r"
    exit: 10
    --- stdout
    workload default/web would be updated
      the cluster's version says no more than that

    0 to create, 1 to change, 0 as they are; nothing was done
    ");
    fake.instead(
        &format!("PUT {WEB}"),
        409,
        error("Conflict", "the workload `default/web` is being deleted"),
    );
    assert_snapshot!(program.run(&["plan", "-f", "web"]), @r"
    exit: 1
    --- stderr
    error: the workload `default/web` is being deleted
    ");
}

#[test]
fn a_check_here_asks_no_cluster() {
    let fake = Fake::start();
    let program = folder(&fake);
    assert_snapshot!(program.run(&["apply", "-f", "web", "--dry-run=client"]), @r"
    exit: 0
    --- stdout
    workload/web is valid
    ");
    assert_eq!(fake.asked(), Vec::<String>::new());
}
