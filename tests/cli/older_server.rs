//! katcall with a cluster of an earlier or a later version: each command says what it needs.

use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

/// A cluster whose version knows the workload `web` and none of the later routes.
fn older() -> Fake {
    let fake = Fake::start();
    fake.be_older();
    fake.list(WORKLOADS, &[workload("web", "Running", [1, 1, 1])]);
    fake.list(INSTANCES, &[]);
    fake.reply(
        &format!("GET {WEB}"),
        200,
        workload("web", "Running", [1, 1, 1]),
    );
    fake
}

/// The mistake of a reader that requires a field which later ones do not.
fn required() -> Value {
    let mut refusal = error("Invalid", "workload.kat: spec.type is missing");
    refusal["details"] = json!([{"class": "missing", "file": "workload.kat", "line": 4, "column": 1,
        "path": "spec", "message": "`type` is missing"}]);
    refusal
}

const ANOTHER_VERSION: &str =
    "the server runs another version of KAT: `katcall version` shows both";

#[test]
fn a_route_of_a_later_version_is_not_reported_as_a_missing_workload() {
    let fake = older();
    let program = Program::of(&fake);
    for words in [
        &["stop", "web"][..],
        &["start", "web"],
        &["stop", "-l", "team=shop"],
        &["export", "web"],
        &["config", "set", "nodeLossTimeoutSeconds=90"],
    ] {
        let text = program.run(words);
        assert!(text.starts_with("exit: 1\n"), "{words:?}: {text}");
        assert!(text.contains("version of KAT"), "{words:?}: {text}");
        assert!(text.contains("katcall version"), "{words:?}: {text}");
        assert!(!text.contains("there is no workload"), "{words:?}: {text}");
    }
    let changes = fake.asked().into_iter().filter(|asked| {
        let sent = asked.starts_with("PUT ") || asked.starts_with("DELETE ");
        sent && !asked.ends_with("/stop")
    });
    assert_eq!(changes.count(), 0, "nothing was changed");
}

#[test]
fn get_all_lists_the_kinds_that_an_older_server_knows_and_names_the_others() {
    let fake = older();
    let empty = json!({"items": [], "metadata": {"resourceVersion": "1"}});
    fake.list(VOLUMES, &[volume("db", "data", "Bound")]);
    fake.list("/v1alpha1/n/default/secrets", &[]);
    let program = Program::of(&fake);
    let text = program.run(&["get", "all", "-o", "name"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert!(text.contains("workload/web"), "{text}");
    assert!(text.contains("volume/db/data"), "{text}");
    let missing =
        "warning: routes are not listed: the server runs a version of KAT that does not know them";
    assert!(text.contains(missing), "{text}");

    // What nobody has is named without the kind that nobody knows.
    fake.instead(&format!("GET {WORKLOADS}"), 200, empty.clone());
    fake.instead(&format!("GET {VOLUMES}"), 200, empty);
    let text = program.run(&["get", "all"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    let none = "no workloads, instances, volumes, secrets in namespace default";
    assert!(text.contains(none), "{text}");

    // A kind that is named itself is an error.
    for words in [["get", "routes"], ["get", "workloads,routes"]] {
        let text = program.run(&words);
        assert!(text.starts_with("exit: 1\n"), "{words:?}: {text}");
        assert!(text.contains("does not know this request"), "{text}");
    }
    // A namespace that does not exist is no matter of versions.
    let refused = error("NotFound", "there is no namespace `default`");
    fake.instead("GET /v1alpha1/n/default/secrets", 404, refused);
    let text = program.run(&["get", "all"]);
    assert!(text.starts_with("exit: 3\n"), "{text}");
}

#[test]
fn an_edit_of_files_that_the_server_does_not_hand_out_opens_no_editor() {
    let fake = older();
    let program = Program::of(&fake);
    let marker = program.home.path().join("edited");
    let editor = format!("touch {}", marker.display());
    let program = program.variable("EDITOR", &editor);
    let (code, shown) = program.run_on_terminal(&["edit", "web"]);
    assert_eq!(code, 1, "{shown}");
    assert!(shown.contains("an earlier version of KAT"), "{shown}");
    assert!(!marker.exists());
}

#[test]
fn logs_of_gone_instances_need_a_later_server_and_say_so() {
    let fake = older();
    let text = Program::of(&fake).run(&["logs", "web", "--gone"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(
        text.contains("the leader's version does not know of instances that are gone"),
        "{text}"
    );
    assert!(text.contains("upgrade the cluster"), "{text}");
}

#[test]
fn short_files_that_an_older_server_refuses_are_named_as_a_matter_of_versions() {
    let fake = older();
    fake.reply(&format!("PUT {WEB}"), 400, required());
    fake.reply(&format!("POST {WORKLOADS}"), 400, required());
    let program = Program::of(&fake);
    let short = workload_file("web").replace("  type: Service\n", "");
    assert_ne!(short, workload_file("web"));
    program.file("web/workload.kat", &short);
    for words in [
        &["apply", "web"][..],
        &["run", "registry.lab:5000/test/web:1"],
    ] {
        let text = program.run(words);
        assert!(text.starts_with("exit: 1\n"), "{words:?}: {text}");
        assert!(text.contains("`type` is missing"), "{words:?}: {text}");
        assert!(text.contains(ANOTHER_VERSION), "{words:?}: {text}");
    }
    // The control: a refusal that depends on the cluster says nothing of versions.
    let mut refusal = error("Invalid", "1 field is not valid");
    refusal["details"] = json!([{"class": "name", "file": "workload.kat", "line": 4, "column": 9,
        "path": "metadata.name", "message": "`web` is being deleted"}]);
    fake.instead(&format!("PUT {WEB}"), 400, refusal);
    let text = program.run(&["apply", "web"]);
    assert!(!text.contains("another version"), "{text}");
}

/// A newer leader refuses a short file while an older machine may lead.
#[test]
fn a_mixed_cluster_names_the_machine_to_upgrade() {
    let fake = Fake::start();
    let refusal = json!({"error": "Conflict",
        "message": "workload.kat:3:1: `spec.type` is left out, which a machine that may lead does not read yet: n3",
        "hint": "upgrade kat on n3, or write `type: Service`"});
    fake.reply(&format!("POST {WORKLOADS}"), 409, refusal);
    let text = Program::of(&fake).run(&["run", "registry.lab:5000/test/web:1"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(text.contains("does not read yet: n3"), "{text}");
    assert!(text.contains("upgrade kat on n3"), "{text}");
}

#[test]
fn fields_and_words_of_a_later_server_do_no_harm() {
    let fake = Fake::start();
    let mut answer = applied("updated", "web");
    answer["later"] = json!({"field": [1, 2]});
    answer["metadata"]["later"] = "text".into();
    for (method, what) in [("PUT", "stop"), ("DELETE", "stop"), ("PUT", "replicas")] {
        fake.reply(&format!("{method} {WEB}/{what}"), 200, answer.clone());
    }
    let mut item = workload("web", "Hibernating", [1, 0, 0]);
    item["status"]["later"] = json!({"deep": true});
    item["spec"]["later"] = 7.into();
    fake.list(WORKLOADS, &[item]);
    fake.list(
        &format!("{WEB}/generations"),
        &[json!({"generation": 4, "origin": "Hibernated", "later": 1})],
    );
    let program = Program::of(&fake);
    for words in [
        &["stop", "web"][..],
        &["start", "web"],
        &["scale", "web", "--replicas", "2"],
        &["get", "workloads"],
        &["history", "web"],
    ] {
        let text = program.run(words);
        assert!(text.starts_with("exit: 0\n"), "{words:?}: {text}");
    }
}

#[test]
fn an_answer_without_a_needed_field_is_a_matter_of_versions() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {WEB}/stop"), 200, json!({"kind": "Workload"}));
    fake.list(&format!("{WEB}/generations"), &[json!({"generation": 4})]);
    let program = Program::of(&fake);
    let text = program.run(&["stop", "web"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(
        text.contains("what this version does not understand"),
        "{text}"
    );
    assert!(text.contains("`katcall version` shows"), "{text}");
    // Fields that a later version added to a list are left empty.
    let text = program.run(&["history", "web"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert!(text.contains('4'), "{text}");
}
