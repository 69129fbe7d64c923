use insta::assert_snapshot;
use serde_json::json;

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
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

    // katcall also applies the same archive from a file.
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
fn the_servers_warnings_are_shown_below_the_workload() {
    let fake = Fake::start();
    let mut result = applied("created", "web");
    result["warnings"] = json!(["image registry.example/web:1: no answer\u{1b}[2J"]);
    fake.reply(&format!("PUT {WEB}"), 200, result);
    let program = Program::of(&fake);
    program.file("web/workload.kat", &workload_file("web"));
    assert_snapshot!(program.run(&["apply", "-f", "web"]), @r"
    exit: 0
    --- stdout
    workload/web created
    --- stderr
    warning: image registry.example/web:1: no answer\u{1b}[2J
    ");
}

#[test]
fn several_folders_are_tried_in_turn_and_a_dry_run_says_so() {
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
    exit: 10
    --- stdout
    workload default/web would be updated
      the cluster's version says no more than that

    workload default/db stays as it is

    0 to create, 1 to change, 1 as they are; nothing was done
    ");
    assert_eq!(
        fake.asked(),
        [
            format!("PUT {WEB}?dryRun=true"),
            format!("PUT {WORKLOADS}/db?dryRun=true")
        ]
    );
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
    let later = workload_file("db").replace(
        "    name: app\n",
        "    name: app\n  ports:\n    - {containerPort: 80, hostPort: 80, hostPortOn: ingress}\n",
    );
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

/// A folder with `web`, `db` and unrelated notes. Both workloads have the label `app: shop`.
fn shop(program: &Program) {
    for name in ["web", "db"] {
        let text = workload_file(name).replace("metadata:\n", "metadata:\n  labels: {app: shop}\n");
        program.file(&format!("shop/{name}/workload.kat"), &text);
    }
    program.file("shop/docs/notes.md", "");
}

#[test]
fn a_folder_of_folders_is_applied_in_the_order_of_names() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {WEB}"), 200, applied("updated", "web"));
    fake.reply(
        &format!("PUT {WORKLOADS}/db"),
        201,
        applied("created", "db"),
    );
    let program = Program::of(&fake);
    shop(&program);
    assert_snapshot!(program.run(&["apply", "-f", "shop"]), @r"
    exit: 0
    --- stdout
    workload/db created
    workload/web updated
    --- stderr
    2 workloads: 1 created, 1 updated
    ");
    fake.instead(&format!("PUT {WEB}"), 403, error("Forbidden", "no"));
    assert_snapshot!(program.run(&["apply", "-f", "shop"]));
    let broken = workload_file("api").replace("replicas: 1", "replicas: many");
    program.file("shop/api/workload.kat", &broken);
    program.file(
        "shop/mail/workload.kat",
        &broken.replace("name: api", "name: mail"),
    );
    let asked = fake.asked().len();
    assert_snapshot!(program.run(&["apply", "-f", "shop"]));
    program.file("shop/api/workload.kat", &workload_file("web"));
    program.file("shop/mail/workload.kat", &workload_file("mail"));
    assert_snapshot!(program.run(&["apply", "-f", "shop"]));
    assert_eq!(fake.asked().len(), asked, "nothing is sent");
}

/// A workload with labels, as the API returns it.
fn labelled(name: &str, labels: serde_json::Value) -> serde_json::Value {
    let mut item = workload(name, "Running", [1, 1, 1]);
    item["metadata"]["labels"] = labels;
    item
}

#[test]
fn what_is_in_no_folder_goes_where_that_is_asked_for() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {WEB}"), 200, applied("unchanged", "web"));
    fake.reply(
        &format!("PUT {WORKLOADS}/db"),
        200,
        applied("unchanged", "db"),
    );
    fake.list(
        WORKLOADS,
        &[
            labelled("web", json!({"app": "shop"})),
            labelled("old", json!({"app": "shop"})),
            labelled("other", json!({"app": "mail"})),
            labelled("bare", json!({})),
        ],
    );
    fake.reply(
        &format!("DELETE {WORKLOADS}/old"),
        200,
        applied("deleting", "old"),
    );
    let program = Program::of(&fake);
    shop(&program);
    let prune = ["--prune", "-l", "app=shop"];
    let apply = [&["apply", "-f", "shop"], &prune[..]].concat();
    assert_snapshot!(program.run(&apply));
    let asked = fake.asked();
    assert!(
        asked.iter().all(|asked| asked.starts_with("GET ")),
        "{asked:?}"
    );
    assert_snapshot!(program.run(&[&apply[..], &["--yes"]].concat()));
    let deleted: Vec<String> = fake
        .asked()
        .into_iter()
        .filter(|asked| asked.starts_with("DELETE "))
        .collect();
    assert_eq!(deleted, [format!("DELETE {WORKLOADS}/old")]);
    assert_snapshot!(program.run(&[&["plan", "-f", "shop"], &prune[..]].concat()));
    assert_snapshot!(program.run(&["apply", "-f", "shop", "--prune"]));
    assert_snapshot!(program.run(&["apply", "-f", "shop", "-l", "app"]));
}
