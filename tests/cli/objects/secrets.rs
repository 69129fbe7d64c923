//! Secrets: listed and described without values, set from files and stdin, and never printed.

use std::io::Write;

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

const LIST: &str = "/v1alpha1/n/default/secrets";
const DB: &str = "/v1alpha1/n/default/secrets/db";

fn secret(name: &str, used_by: &[&str]) -> Value {
    json!({
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
            "generation": 3, "resourceVersion": "12", "creationTimestamp": ago(130)},
        "spec": {"keys": [{"name": "PASSWORD", "size": 15}, {"name": "tls.crt", "size": 1200}]},
        "status": {"updated": ago(70), "usedBy": used_by, "behind": []}
    })
}

#[test]
fn secrets_are_listed_by_name_and_key() {
    let fake = Fake::start();
    fake.list(LIST, &[secret("db", &["web", "worker"]), secret("ca", &[])]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["get", "secrets"]));
    assert_snapshot!(program.run(&["get", "secret", "-o", "wide"]));
}

#[test]
fn a_missing_secret_is_told_with_the_nearest() {
    let fake = Fake::start();
    fake.list(LIST, &[secret("db", &[])]);
    let missing = error("NotFound", "secret `default/dbs` does not exist");
    fake.reply("GET /v1alpha1/n/default/secrets/dbs", 404, missing);
    assert_snapshot!(Program::of(&fake).run(&["describe", "secret", "dbs"]));
}

#[test]
fn values_are_sent_and_never_said() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {DB}"), 200, applied("updated", "db"));
    let program = Program::of(&fake);
    let file = program.file("tls.crt", "certificate");
    let ran = program.run(&["secret", "set", "db", "A=hunter2", "--from-file", &file]);
    assert!(!ran.contains("hunter2"), "{ran}");
    assert!(ran.contains("secret/db updated"), "{ran}");
    let sent: Value = serde_json::from_slice(&fake.body()).unwrap();
    let values = json!({"A": "aHVudGVyMg==", "tls.crt": "Y2VydGlmaWNhdGU="});
    assert_eq!(sent, json!({"values": values, "merge": true}));
    let mut child = program
        .command(&["secret", "set", "db", "--from-file", "B=-", "--replace"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"\xff\n").unwrap();
    assert!(child.wait().unwrap().success());
    let sent: Value = serde_json::from_slice(&fake.body()).unwrap();
    assert_eq!(sent, json!({"values": {"B": "/wo="}}));

    for words in [
        vec!["secret", "set", "db", "hunter2"],
        vec!["secret", "set", "db", "A=1", "A=hunter2"],
        vec!["secret", "set", "db", "a b=hunter2"],
    ] {
        let ran = program.run(&words);
        assert!(ran.contains("exit: 2"), "{ran}");
        assert!(!ran.contains("hunter2"), "{ran}");
    }
}

#[test]
fn a_rotation_goes_on_until_nothing_is_left() {
    let fake = Fake::start();
    let left = |left: u64| json!({"key": 2, "left": left});
    fake.reply("POST /v1alpha1/sealing-key", 200, left(40));
    fake.reply("POST /v1alpha1/sealing-key", 200, left(8));
    fake.reply("POST /v1alpha1/sealing-key", 200, left(0));
    let ran = Program::of(&fake).run(&["secret", "rotate-key"]);
    assert!(ran.contains("all secrets are sealed with key 2"), "{ran}");
    assert!(
        ran.contains("8 secrets are still to be sealed anew"),
        "{ran}"
    );
}

#[test]
fn what_is_used_is_not_deleted() {
    let fake = Fake::start();
    let used = error("Conflict", "secret `default/db` is used by web");
    fake.reply(&format!("DELETE {DB}"), 409, used);
    let ran = Program::of(&fake).run(&["delete", "secret", "db"]);
    assert!(
        ran.contains("exit: 1") && ran.contains("is used by web"),
        "{ran}"
    );
}
