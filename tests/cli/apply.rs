use insta::assert_snapshot;
use serde_json::json;

use super::{
    fake::{Fake, error},
    fixtures::*,
    program::Program,
};

#[test]
fn a_folder_is_sent_as_an_archive_and_created() {
    let fake = Fake::start();
    fake.reply(&format!("POST {WORKLOADS}"), 201, applied("created", "web"));
    let program = Program::of(&fake);
    program.file("web/workload.kat", &workload_file("web"));
    program.file("web/README.md", "not sent");
    assert_snapshot!(program.run(&["apply", "-f", "web"]), @r"
    exit: 0
    --- stdout
    workload/web created
    ");
    assert_eq!(
        fake.asked(),
        [format!("PUT {WEB}"), format!("POST {WORKLOADS}")]
    );
    let body = fake.body();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&body[..]));
    let names: Vec<String> = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    assert_eq!(names, ["workload.kat"]);

    // The same archive from a file.
    std::fs::write(program.home.path().join("web.tar.gz"), &body).unwrap();
    let fake = Fake::start();
    fake.reply(&format!("PUT {WEB}"), 200, applied("unchanged", "web"));
    let socket = fake.socket().display().to_string();
    assert_snapshot!(program.variable("KAT_CONNECTION", &socket).run(&["apply", "-f", "web.tar.gz"]), @r"
    exit: 0
    --- stdout
    workload/web unchanged
    ");
    assert_eq!(fake.body(), body);
}

#[test]
fn several_folders_are_applied_in_turn_and_a_dry_run_says_so() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {WEB}"), 200, applied("updated", "web"));
    fake.reply(
        &format!("PUT {WORKLOADS}/db"),
        200,
        applied("unchanged", "db"),
    );
    let program = Program::of(&fake);
    program.file("web/workload.kat", &workload_file("web"));
    program.file("db/workload.kat", &workload_file("db"));
    assert_snapshot!(program.run(&["apply", "-f", "web", "-f", "db", "--dry-run"]), @r"
    exit: 0
    --- stdout
    workload/web updated (dry run)
    workload/db unchanged (dry run)
    ");
    assert_eq!(fake.asked()[0], format!("PUT {WEB}?dryRun=true"));
}

#[test]
fn the_servers_mistakes_are_shown_in_the_file() {
    let fake = Fake::start();
    let mut body = error("Invalid", "2 fields are not valid");
    body["details"] = json!([
        {"class": "name", "file": "workload.kat", "line": 4, "column": 9, "end": {"line": 4, "column": 12},
         "path": "metadata.name", "message": "`web` is being deleted", "hint": "wait until it is gone"},
        {"class": "archive", "file": "build.kat", "line": 0, "column": 0, "path": "",
         "message": "the namespace has no room left"},
    ]);
    fake.reply(&format!("PUT {WEB}"), 400, body);
    let program = Program::of(&fake);
    program.file("web/workload.kat", &workload_file("web"));
    assert_snapshot!(program.run(&["apply", "-f", "web"]));
}

#[test]
fn what_cannot_be_read_is_named_before_anything_is_sent() {
    let fake = Fake::start();
    let program = Program::of(&fake);
    program.file("web/workload.kat", &workload_file("web"));
    program.file("empty/x.txt", "");
    assert_snapshot!(program.run(&["apply", "-f", "web", "-f", "none"]));
    assert_snapshot!(program.run(&["apply", "-f", "empty"]));
    assert_snapshot!(program.run(&["apply", "-f", "web/workload.kat"]));
    assert_snapshot!(program.run(&["apply", "-f", "empty/x.txt"]));
    assert_snapshot!(program.run(&["apply"]));
    assert_snapshot!(program.run(&["apply", "-f", "web", "--timeout", "soon"]));
    assert_eq!(fake.asked(), Vec::<String>::new());
}

#[test]
fn the_users_mistakes_are_shown_before_anything_is_sent() {
    let fake = Fake::start();
    let program = Program::of(&fake);
    let wrong = workload_file("web")
        .replace("replicas: 1", "replicas: many")
        .replace("type: Service", "typ: Service");
    program.file("web/workload.kat", &wrong);
    let later =
        workload_file("db").replace("    name: app\n", "    name: app\n    hostNetwork: true\n");
    program.file("db/workload.kat", &later);
    assert_snapshot!(program.run(&["apply", "-f", "web", "-f", "db"]));
    assert_eq!(fake.asked(), Vec::<String>::new());
}

#[test]
fn a_namespace_comes_before_the_workload_in_it() {
    let fake = Fake::start();
    let made = json!({"outcome": "created", "kind": "Namespace", "metadata": {"name": "shop"}});
    fake.reply("POST /v1alpha1/namespaces", 201, made);
    let path = "/v1alpha1/n/shop/workloads/web";
    fake.reply(&format!("PUT {path}"), 201, applied("created", "web"));
    let program = Program::of(&fake);
    let workload = workload_file("web").replace("name: web\n", "name: web\n  namespace: shop\n");
    program.file("web/workload.kat", &workload);
    program.file(
        "web/namespace.kat",
        "apiVersion: kat.dws.rip/v1alpha1\nkind: Namespace\nmetadata: {name: shop}\n",
    );
    assert_snapshot!(program.run(&["apply", "-f", "web"]), @r"
    exit: 0
    --- stdout
    namespace/shop created
    workload/web created
    ");
    fake.reply(&format!("GET {path}"), 200, workload_item());
    fake.reply(&format!("DELETE {path}"), 200, applied("deleted", "web"));
    assert_snapshot!(program.run(&["delete", "-f", "web"]), @r"
    exit: 0
    --- stdout
    workload/web deleting
    ");
}

fn workload_item() -> serde_json::Value {
    workload("web", "Running", [1, 1, 1])
}

#[test]
fn a_refusal_for_another_reason_keeps_its_words() {
    let fake = Fake::start();
    fake.reply(&format!("POST {WORKLOADS}"), 404, json!({"error": "NotFound",
        "message": "there is no namespace `default`", "hint": "`katcall create namespace default` makes it"}));
    let program = Program::of(&fake);
    program.file("web/workload.kat", &workload_file("web"));
    assert_snapshot!(program.run(&["apply", "-f", "web"]), @r"
    exit: 3
    --- stderr
    error: there is no namespace `default`

    hint: `katcall create namespace default` makes it
    ");
}
