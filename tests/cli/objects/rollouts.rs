//! Rollback, history, rollout, restart and scale.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

fn generation(number: u64, origin: &str, image: &str) -> Value {
    json!({"generation": number, "applied": "2026-11-20T10:00:00Z", "by": "token:abc",
        "origin": origin, "image": image, "replicas": 3, "good": false, "current": false})
}

#[test]
fn a_rollback_says_what_it_did_and_takes_the_name_in_each_form() {
    let fake = Fake::start();
    let path = "POST /v1alpha1/n/shop/workloads/web/rollback";
    fake.reply(path, 200, applied("updated", "web"));
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["rollback", "workload", "shop/web"]));
    assert_eq!(&fake.body()[..], b"{}");
    for form in [
        vec!["rollback", "web", "-n", "shop", "--to", "4"],
        vec!["rollback", "wl", "web", "-n", "shop", "--to", "4"],
        vec!["rollback", "shop/web", "--to", "4"],
    ] {
        let text = program.run(&form);
        assert!(text.starts_with("exit: 0\n"), "{text}");
        assert_eq!(&fake.body()[..], br#"{"to":4}"#);
    }
    fake.instead(path, 200, applied("unchanged", "web"));
    assert_snapshot!(program.run(&["rollback", "shop/web"]));
    let missing = error("NotFound", "no generation 7: kept are 1, 3 to 12");
    fake.instead(path, 404, missing);
    assert_snapshot!(program.run(&["rollback", "shop/web", "--to", "7"]));
    assert_snapshot!(program.run(&["rollback", "node", "shop/web"]));
}

#[test]
fn an_interrupted_wait_says_that_the_rollout_goes_on() {
    let fake = Fake::start();
    let path = format!("PUT {WEB}/replicas");
    fake.reply(&path, 200, applied("updated", "web"));
    fake.list(WORKLOADS, &[workload("web", "Progressing", [3, 3, 0])]);
    fake.list(WEB_INSTANCES, &[]);
    let program = Program::of(&fake);
    let arguments = ["scale", "web", "--replicas", "3", "--wait"];
    let mut running = program.spawn(&arguments);
    running.stdout_says("scaled to 3");
    running.interrupt();
    let text = running.end();
    assert!(text.starts_with("exit: 130\n"), "{text}");
    assert!(
        text.contains("continues without katcall: `katcall rollout status`"),
        "{text}"
    );
}

/// Two namespaces on the command line must be the same. A default from the environment never
/// contradicts the argument.
#[test]
fn two_namespaces_contradict_each_other() {
    let fake = Fake::start();
    fake.reply(
        "PUT /v1alpha1/n/shop/workloads/web/replicas",
        200,
        applied("updated", "web"),
    );
    let program = Program::of(&fake);
    for form in [
        vec!["scale", "shop/web", "-n", "other", "--replicas", "2"],
        vec!["rollback", "workload", "shop/web", "--namespace=other"],
        vec!["restart", "-n", "default", "shop/web"],
        vec!["history", "shop/web", "-n", "other"],
        vec!["rollout", "status", "shop/web", "-n", "other"],
        vec!["rollout", "pause", "shop/web", "-n", "other"],
        vec!["stop", "shop/web", "-n", "other"],
        vec!["start", "workload", "shop/web", "-n", "other"],
    ] {
        let text = program.run(&form);
        assert!(text.starts_with("exit: 2\n"), "{form:?}: {text}");
        assert!(text.contains("contradict each other"), "{form:?}: {text}");
    }
    let same = ["scale", "shop/web", "-n", "shop", "--replicas", "2"];
    let text = program.run(&same);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    let program = program.variable("KAT_NAMESPACE", "other");
    let text = program.run(&["scale", "shop/web", "--replicas", "2"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
}

#[test]
fn a_rollback_of_what_is_not_there_names_what_is_like_it() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[workload("web", "Running", [1, 1, 1])]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["rollback", "workload", "wed"]));
}

#[test]
fn a_history_is_a_table_or_the_answer_itself() {
    let fake = Fake::start();
    let mut second = generation(4, "RolledBackItself", "registry.lab:5000/web:1");
    second["of"] = 2.into();
    second["good"] = true.into();
    second["current"] = true.into();
    let mut old = generation(2, "", "registry.lab:5000/web:1");
    (old["by"], old["applied"]) = ("".into(), "".into());
    let mut scaled = generation(3, "Scaled", "registry.lab:5000/web:2");
    scaled["byName"] = "ci".into();
    let items = [old, scaled, second];
    fake.list(&format!("{WEB}/generations"), &items);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["history", "workload", "web"]));
    let narrow = Program::of(&fake).variable("COLUMNS", "80");
    let told = narrow.run(&["history", "workload", "web"]);
    assert!(
        told.lines().all(|line| line.chars().count() <= 80),
        "{told}"
    );
    assert!(
        told.contains("ci ") && !told.contains("token:abc   scaled"),
        "{told}"
    );
    let text = program.run(&["history", "web", "-o", "json"]);
    assert!(text.contains("\"origin\": \"RolledBackItself\""), "{text}");
}

#[test]
fn a_status_is_one_line_and_1_where_it_has_stalled() {
    let fake = Fake::start();
    let path = format!("GET {WEB}");
    let why = "no progress for 600 s: ImagePullFailed: web-abcde: no such image";
    let mut stalled = because(
        workload("web", "Stalled", [3, 3, 0]),
        "ProgressDeadlineExceeded",
        why,
    );
    fake.reply(&path, 200, stalled.clone());
    let program = Program::of(&fake);
    // The first version has nothing to roll back to.
    let text = program.run(&["rollout", "status", "web"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(!text.contains("katcall rollback"), "{text}");
    stalled["status"]["lastGoodGeneration"] = 1.into();
    fake.instead(&path, 200, stalled);
    assert_snapshot!(program.run(&["rollout", "status", "web"]));
    let mut well = because(
        workload("web", "Running", [3, 3, 3]),
        "AllHealthy",
        "3 of 3 instances are healthy",
    );
    well["status"]["paused"] = true.into();
    fake.instead(&path, 200, well);
    assert_snapshot!(program.run(&["rollout", "status", "workload", "web"]));
}

#[test]
fn pauses_numbers_and_restarts() {
    let fake = Fake::start();
    let at = |method: &str, what: &str| format!("{method} {WEB}/{what}");
    fake.reply(&at("PUT", "pause"), 200, applied("updated", "web"));
    fake.reply(&at("DELETE", "pause"), 200, applied("unchanged", "web"));
    fake.reply(&at("PUT", "replicas"), 200, applied("updated", "web"));
    fake.reply(&at("PUT", "restart"), 200, applied("updated", "web"));
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["rollout", "pause", "web"]));
    assert_snapshot!(program.run(&["rollout", "resume", "web"]));
    assert_snapshot!(program.run(&["scale", "web", "--replicas", "5"]));
    assert_eq!(&fake.body()[..], br#"{"replicas":5}"#);
    assert_snapshot!(program.run(&["restart", "workload", "web"]));
    let body: Value = serde_json::from_slice(&fake.body()).unwrap();
    let at: jiff::Timestamp = body["restartedAt"].as_str().unwrap().parse().unwrap();
    assert!(jiff::Timestamp::now().duration_since(at).as_secs() < 60);
}

#[test]
fn a_stop_and_a_start_say_what_they_did_and_do_nothing_twice() {
    let fake = Fake::start();
    let (stop, start) = (format!("PUT {WEB}/stop"), format!("DELETE {WEB}/stop"));
    fake.reply(&stop, 200, applied("updated", "web"));
    fake.reply(&start, 200, applied("updated", "web"));
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["stop", "web"]), @r"
    exit: 0
    --- stdout
    workload/web stopping, as generation 2; `katcall start` starts it
    ");
    assert_snapshot!(program.run(&["start", "workload", "default/web"]), @r"
    exit: 0
    --- stdout
    workload/web starting, as generation 2
    ");
    fake.instead(&stop, 200, applied("unchanged", "web"));
    let mut unchanged = applied("unchanged", "web");
    unchanged["warnings"] = json!(["it was not stopped, and has 0 replicas"]);
    fake.instead(&start, 200, unchanged);
    assert_snapshot!(program.run(&["stop", "web"]), @r"
    exit: 0
    --- stdout
    workload/web unchanged: it has 0 replicas already
    ");
    let text = program.run(&["start", "web"]);
    assert!(
        text.starts_with("exit: 0\n--- stdout\nworkload/web unchanged: it is not stopped\n"),
        "{text}"
    );
    assert!(text.contains("has 0 replicas"), "{text}");
}

#[test]
fn a_stop_waits_for_the_last_instance_and_a_start_until_the_workload_runs() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {WEB}/stop"), 200, applied("updated", "web"));
    fake.reply(
        &format!("DELETE {WEB}/stop"),
        200,
        applied("updated", "web"),
    );
    fake.list(WORKLOADS, &[workload("web", "Progressing", [0, 0, 0])]);
    fake.list(WEB_INSTANCES, &[instance("web-aaaaa", "Stopping")]);
    let program = Program::of(&fake);
    let mut running = program.spawn(&["stop", "web", "--wait"]);
    running.stdout_says("stopping");
    fake.change(
        WORKLOADS,
        "MODIFIED",
        &workload("web", "Stopped", [0, 0, 0]),
    );
    let text = running.end();
    assert!(text.starts_with("exit: 0\n"), "{text}");
    let fake = Fake::start();
    fake.reply(
        &format!("DELETE {WEB}/stop"),
        200,
        applied("updated", "web"),
    );
    fake.list(WORKLOADS, &[workload("web", "Running", [3, 3, 3])]);
    fake.list(WEB_INSTANCES, &[]);
    let text = Program::of(&fake).run(&["start", "web", "--wait"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
}

#[test]
fn waiting_for_a_version_that_is_gone_back_from_fails() {
    let fake = Fake::start();
    fake.reply(
        &format!("PUT {WEB}/replicas"),
        200,
        applied("updated", "web"),
    );
    let mut web = workload("web", "Running", [3, 3, 3]);
    web["metadata"]["generation"] = 3.into();
    web["status"]["observedGeneration"] = 3.into();
    web["status"]["conditions"] = json!([{"type": "RolledBack", "status": true, "reason": "AutoRollback",
        "message": "generation 2 made no progress; generation 1 is taken again", "since": ago(5)}]);
    fake.list(WORKLOADS, &[web]);
    fake.list(WEB_INSTANCES, &[]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["scale", "web", "--replicas", "3", "--wait"]));
}

#[test]
fn another_image_is_set_with_its_workload() {
    let fake = Fake::start();
    let mut answer = applied("updated", "web");
    answer["metadata"]["generation"] = 4.into();
    fake.reply(&format!("PUT {WEB}/image"), 200, answer);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["set", "image", "web=registry.example/web:2"]));
    assert_eq!(fake.asked(), [format!("PUT {WEB}/image")]);
    assert_snapshot!(program.run(&[
        "set",
        "image",
        "workload",
        "default/web=registry.example/web:2"
    ]));
    assert_snapshot!(program.run(&["set", "image", "web"]));
}

#[test]
fn registries_are_set_and_listed() {
    let fake = Fake::start();
    let one = json!({"host": "registry.lab:5000", "insecure": true, "mirrors": ["a.example", "b.example/hub"]});
    let none = json!({"items": [], "metadata": {"resourceVersion": "3"}});
    fake.reply("GET /v1alpha1/n/default/registries", 200, none);
    let path = "/v1alpha1/registries";
    fake.reply(&format!("PUT {path}/registry.lab%3A5000"), 200, one.clone());
    fake.reply(
        &format!("DELETE {path}/registry.lab%3A5000"),
        204,
        json!({}),
    );
    fake.reply(
        &format!("GET {path}"),
        200,
        json!({"items": [one], "metadata": {"resourceVersion": "3"}}),
    );
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&[
        "registry",
        "set",
        "registry.lab:5000",
        "--insecure",
        "--mirror",
        "a.example"
    ]));
    assert_snapshot!(program.run(&["registry", "list"]));
    assert_snapshot!(program.run(&["registry", "unset", "registry.lab:5000"]));
}
