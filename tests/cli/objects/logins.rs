//! Logging in to registries: passwords come from stdin or a hidden prompt and are never printed.

use std::io::Write;

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    run_katcall::Program,
};

const LIST: &str = "/v1alpha1/n/default/registries";
const LAB: &str = "/v1alpha1/n/default/registries/registry.lab%3A5000";

fn result(outcome: &str, check: &str) -> Value {
    let login = json!({"registry": "registry.lab:5000", "namespace": "default", "username": "me",
        "version": 1, "updated": "2026-11-20T10:00:00Z", "resourceVersion": "7"});
    json!({"outcome": outcome, "check": check, "login": login})
}

/// Runs katcall with `text` on its stdin, which is not a terminal.
fn piped(program: &Program, words: &[&str], text: &str) -> std::process::Output {
    let mut child = program
        .command(words)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // katcall may exit without reading.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn a_password_is_read_from_stdin_and_never_said() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {LAB}"), 201, result("created", "accepted"));
    let program = Program::of(&fake);
    let words = [
        "registry",
        "login",
        "registry.lab:5000",
        "-u",
        "me",
        "--password-stdin",
    ];
    let output = piped(&program, &words, "hunter2 \n");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        said,
        "registry/registry.lab:5000 logged in, namespace default\n"
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let sent: Value = serde_json::from_slice(&fake.body()).unwrap();
    assert_eq!(sent, json!({"username": "me", "password": "hunter2 "}));

    for (words, text) in [
        (
            vec!["registry", "login", "registry.lab:5000", "--password-stdin"],
            "hunter2",
        ),
        (
            vec!["registry", "login", "registry.lab:5000", "-u", "me"],
            "hunter2",
        ),
        (
            vec![
                "registry",
                "login",
                "registry.lab:5000",
                "-u",
                "me",
                "--password-stdin",
            ],
            "\n",
        ),
        (
            vec!["registry", "login", "", "-u", "me", "--password-stdin"],
            "hunter2",
        ),
    ] {
        let output = piped(&program, &words, text);
        let text = format!("{output:?}");
        assert!(
            !output.status.success() && !text.contains("hunter2"),
            "{text}"
        );
    }
}

#[test]
fn a_password_that_is_typed_does_not_show() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {LAB}"), 200, result("updated", "notAsked"));
    let program = Program::of(&fake);
    let words = ["registry", "login", "registry.lab:5000"];
    let ran = program.run_answering(&words, "me\nhunter2\n");
    assert!(!ran.contains("hunter2"), "{ran}");
    assert_snapshot!(ran);
    let sent: Value = serde_json::from_slice(&fake.body()).unwrap();
    assert_eq!(sent, json!({"username": "me", "password": "hunter2"}));
}

#[test]
fn what_the_registry_refuses_is_said() {
    let fake = Fake::start();
    let refused = "registry.lab:5000 does not take this name and password; nothing was changed for namespace default";
    fake.reply(&format!("PUT {LAB}"), 409, error("Conflict", refused));
    let program = Program::of(&fake);
    let words = [
        "registry",
        "login",
        "registry.lab:5000",
        "-u",
        "me",
        "--password-stdin",
    ];
    let output = piped(&program, &words, "hunter2");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains(refused) && !text.contains("hunter2"),
        "{text}"
    );
}

#[test]
fn logins_are_listed_beside_what_is_set() {
    let fake = Fake::start();
    let logins = |username: Option<&str>| {
        let mut lab = result("", "")["login"].clone();
        lab["username"] = json!(username);
        let mut org = lab.clone();
        org["registry"] = json!("ghcr.io/org");
        json!({"items": [org, lab], "metadata": {"resourceVersion": "9"}})
    };
    let set = json!({"host": "registry.lab:5000", "insecure": true, "mirrors": []});
    let set = json!({"items": [set], "metadata": {"resourceVersion": "3"}});
    fake.reply(&format!("GET {LIST}"), 200, logins(Some("me")));
    fake.reply("GET /v1alpha1/registries", 200, set);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["registry", "list"]));
    assert_snapshot!(program.run(&["registry", "list", "-o", "json"]));
    // A caller who is not an administrator sees only the namespace's own logins.
    let fake = Fake::start();
    fake.reply(&format!("GET {LIST}"), 200, logins(None));
    fake.reply(
        "GET /v1alpha1/registries",
        403,
        error("Forbidden", "it needs the scope `admin`"),
    );
    assert_snapshot!(Program::of(&fake).run(&["registry", "list"]));
}

#[test]
fn a_logout_says_what_is_gone() {
    let fake = Fake::start();
    fake.reply(&format!("DELETE {LIST}/ghcr.io%2Forg"), 204, json!({}));
    let missing = error("NotFound", "login `b.example` does not exist");
    fake.reply(&format!("DELETE {LIST}/b.example"), 404, missing);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["registry", "logout", "ghcr.io/org"]));
    assert_snapshot!(program.run(&["registry", "logout", "b.example"]));
}
