//! The forms of references to objects in each command.

use insta::assert_snapshot;
use serde_json::json;

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

/// Two workloads, `web` of team `shop` and `db` of team `data`.
fn two() -> Fake {
    let fake = Fake::start();
    let web = workload("web", "Running", [1, 1, 1]);
    let mut db = workload("db", "Running", [1, 1, 1]);
    db["metadata"]["labels"] = json!({"team": "data"});
    fake.list(WORKLOADS, &[web.clone(), db.clone()]);
    fake.list("/v1alpha1/workloads", &[web.clone(), db.clone()]);
    for (name, item) in [("web", web), ("db", db)] {
        let path = format!("{WORKLOADS}/{name}");
        fake.list(&format!("{path}/instances"), &[]);
        fake.reply(&format!("GET {path}"), 200, item);
        fake.reply(&format!("DELETE {path}"), 200, applied("deleted", name));
        for what in ["restart", "replicas"] {
            let answer = applied("updated", name);
            fake.reply(&format!("PUT {path}/{what}"), 200, answer);
        }
    }
    fake
}

#[test]
fn what_a_list_prints_as_names_is_taken_by_other_commands() {
    let fake = two();
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["get", "workloads", "-A", "-o", "name"]), @r"
    exit: 0
    --- stdout
    workload/default/db
    workload/default/web
    ");
    let with_names =
        |words: &[&str]| program.run(&[words, &["workload/default/db", "workload/web"]].concat());
    assert_snapshot!(with_names(&["get", "-o", "name"]), @r"
    exit: 0
    --- stdout
    workload/db
    workload/web
    ");
    assert_snapshot!(with_names(&["restart"]), @r"
    exit: 0
    --- stdout
    workload/db restarting, as generation 2
    workload/web restarting, as generation 2
    ");
    assert_snapshot!(with_names(&["delete"]), @r"
    exit: 0
    --- stdout
    workload/db deleting
    workload/web deleting
    ");
    let described = with_names(&["describe"]);
    assert!(described.starts_with("exit: 0\n"), "{described}");
    let names = ["name          db", "name          web"];
    for name in names {
        assert!(described.contains(name), "{described}");
    }
}

#[test]
fn a_failure_is_named_and_the_others_are_done() {
    let fake = two();
    let program = Program::of(&fake);
    let text = program.run(&["rm", "workload", "gone", "web"]);
    assert!(text.starts_with("exit: 3\n"), "{text}");
    assert!(text.contains("workload/web deleting"), "{text}");
    let named = "error: workload/gone: there is no workload `gone`";
    assert!(text.contains(named), "{text}");
    assert!(text.contains("error: 1 of 2 failed"), "{text}");
    // The exit code is that of the first failure.
    let refused = error("Forbidden", "a token for `shop` may not do this");
    fake.instead(&format!("PUT {WORKLOADS}/db/restart"), 403, refused);
    let text = program.run(&["restart", "db", "gone", "web"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(text.contains("error: 2 of 3 failed"), "{text}");
    assert!(text.contains("workload/web restarting"), "{text}");
}

#[test]
fn labels_select_what_is_listed_restarted_and_deleted() {
    let fake = two();
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["get", "wl", "-l", "team=data", "-o", "name"]), @r"
    exit: 0
    --- stdout
    workload/db
    ");
    assert_snapshot!(program.run(&["restart", "-l", "team=shop"]), @r"
    exit: 0
    --- stdout
    workload/web restarting, as generation 2
    ");
    assert_snapshot!(program.run(&["scale", "-l", "team", "--replicas", "3"]), @r"
    exit: 0
    --- stdout
    workload/db scaled to 3, as generation 2
    workload/web scaled to 3, as generation 2
    ");
    assert_snapshot!(program.run(&["delete", "workload", "-l", "team=shop", "--yes"]), @r"
    exit: 0
    --- stdout
    workload/web deleting
    --- stderr
    with these labels, and to be deleted:
      workload/web
    ");
    assert_snapshot!(program.run(&["restart", "-l", "team=none"]), @r"
    exit: 0
    --- stderr
    no workloads with these labels in namespace default
    ");
    // A selector without a kind, of another kind, or beside a name selects nothing.
    let before = fake.asked().len();
    for words in [
        &["delete", "-l", "team=shop"][..],
        &["delete", "node", "-l", "team=shop"],
        &["delete", "workload", "web", "-l", "team=shop"],
        &["restart", "web", "-l", "team=shop"],
    ] {
        let text = program.run(words);
        assert!(text.starts_with("exit: 2\n"), "{words:?}: {text}");
    }
    assert_eq!(fake.asked().len(), before);
}

#[test]
fn several_kinds_are_listed_together() {
    let fake = two();
    fake.list(INSTANCES, &[instance("web-aaaaa", "Running")]);
    fake.list(VOLUMES, &[volume("db", "data", "Bound")]);
    fake.list("/v1alpha1/n/default/secrets", &[]);
    fake.list("/v1alpha1/n/default/routes", &[]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["get", "all", "-o", "name"]), @r"
    exit: 0
    --- stdout
    workload/db
    workload/web
    instance/web-aaaaa
    volume/db/data
    ");
    let path = "jsonpath={.items[*].metadata.name}";
    let text = program.run(&["get", "wl,inst", "-o", path]);
    assert!(text.contains("db web web-aaaaa"), "{text}");
    assert_eq!(
        program.run(&["ps", "-o", "name"]),
        program.run(&["get", "instances", "-o", "name"])
    );
    let refused = error("Forbidden", "a token may not do this");
    fake.instead("GET /v1alpha1/n/default/secrets", 403, refused);
    let text = program.run(&["get", "all", "-o", "name"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    let named = "error: secrets: a token may not do this";
    assert!(text.contains(named), "{text}");
    assert!(text.contains("volume/db/data"), "{text}");
}

#[test]
fn a_bare_name_is_described_where_one_kind_has_it() {
    let fake = two();
    let program = Program::of(&fake);
    let text = program.run(&["describe", "web"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert!(text.contains("name          web"), "{text}");
    assert_snapshot!(program.run(&["describe", "wbe"]), @r"
    exit: 3
    --- stderr
    error: there is no workload, instance, node, namespace or secret `wbe` in namespace `default`

    hint: did you mean `workload/web`?
    ");
    let machine = node("web", "Ready", &["worker"]);
    fake.reply("GET /v1alpha1/nodes/web", 200, machine);
    for command in ["describe", "why"] {
        let text = program.run(&[command, "web"]);
        assert!(text.starts_with("exit: 2\n"), "{text}");
        let several = "`web` is the name of several objects";
        assert!(text.contains(several), "{text}");
        let forms = "write one of workload/web, node/web";
        assert!(text.contains(forms), "{text}");
    }
    // A kind says which, and a namespace before the name leaves the machine out.
    for form in ["workload/web", "default/web"] {
        let text = program.run(&["why", form]);
        assert!(text.starts_with("exit: 0\n"), "{form}: {text}");
    }
}

#[test]
fn a_volume_is_described_with_its_namespace_in_the_reference() {
    let fake = Fake::start();
    let path = "GET /v1alpha1/n/shop/workloads/db/volumes/data";
    fake.reply(path, 200, volume("db", "data", "Bound"));
    let program = Program::of(&fake);
    let text = program.run(&["describe", "volume/shop/db/data"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert!(text.contains("name          db/data"), "{text}");
    let asked = fake.asked();
    assert!(asked.contains(&path.to_owned()), "{asked:?}");
}

#[test]
fn the_kind_in_a_reference_chooses_between_a_workload_and_an_instance() {
    let fake = Fake::start();
    fake.list(INSTANCES, &[instance("web-aaaaa", "Running")]);
    let program = Program::of(&fake);
    let text = program.run(&["exec", "instance/web", "--", "true"]);
    assert!(text.starts_with("exit: 3\n"), "{text}");
    let text = program.run(&["logs", "instance/web"]);
    assert!(text.starts_with("exit: 3\n"), "{text}");
    assert!(text.contains("there is no instance `web`"), "{text}");
    let text = program.run(&["logs", "node/a"]);
    assert!(text.starts_with("exit: 2\n"), "{text}");
    let taken = "the command takes workload, instance";
    assert!(text.contains(taken), "{text}");
}
