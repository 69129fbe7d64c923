//! `katcall volume forget`: what is asked before it, and how waiting removals are shown.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

const DATA: &str = "/v1alpha1/n/default/workloads/web/volumes/data";
const FORGET: &str = "/v1alpha1/n/default/workloads/web/volumes/data/forget";
const COMMAND: [&str; 5] = ["volume", "forget", "web/data", "--on", "a"];

/// A volume whose removal from machine `a` waits.
fn waiting(phase: &str, state: &str) -> Value {
    let mut item = volume("web", "data", phase);
    item["status"]["removals"] = json!([{"node": "a", "since": "2026-01-01T00:00:00Z", "state": state,
        "message": "/data is not there on a"}]);
    item
}

fn cluster(item: &Value) -> Fake {
    let fake = Fake::start();
    fake.list(VOLUMES, std::slice::from_ref(item));
    fake.reply(&format!("GET {DATA}"), 200, item.clone());
    let outcome = json!({"outcome": "forgetting", "kind": "Volume",
        "metadata": {"name": "data", "namespace": "default"}});
    fake.reply(&format!("PUT {FORGET}"), 200, outcome);
    fake
}

fn puts(fake: &Fake) -> Vec<String> {
    let asked = fake.asked();
    let puts = asked.iter().filter(|asked| asked.starts_with("PUT"));
    puts.cloned().collect()
}

#[test]
fn data_is_given_up_only_after_a_yes() {
    let fake = cluster(&waiting("Removing", "Missing"));
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&COMMAND), @r"
    exit: 2
    --- stderr
    data that is to be given up; KAT neither uses nor removes it when its disk returns:
      volume default/web/data on a: /var/lib/kat/volumes/default/web/data
    error: deleting these needs a confirmation, and there is no terminal to ask on

    hint: `--yes` says that they may
    ");
    assert_snapshot!(program.run_answering(&COMMAND, "n\n"), @r"
    exit: 1
    --- stderr
    data that is to be given up; KAT neither uses nor removes it when its disk returns:
      volume default/web/data on a: /var/lib/kat/volumes/default/web/data
    give it up? [y/N] error: nothing was done
    ");
    let tried = format!("PUT {FORGET}?dryRun=true");
    assert_eq!(puts(&fake), [tried.as_str(), tried.as_str()]);
    assert_snapshot!(program.run_answering(&COMMAND, "y\n"), @r"
    exit: 0
    --- stdout
    volume/web/data forgetting
    --- stderr
    data that is to be given up; KAT neither uses nor removes it when its disk returns:
      volume default/web/data on a: /var/lib/kat/volumes/default/web/data
    give it up? [y/N]
    ");
    let yes = [&COMMAND[..], &["--yes"]].concat();
    assert!(program.run(&yes).starts_with("exit: 0\n"));
    let done = format!("PUT {FORGET}");
    let done = puts(&fake).into_iter().filter(|asked| *asked == done);
    assert_eq!(done.count(), 2);
    assert!(
        program
            .run(&["volume", "forget", "web/data"])
            .starts_with("exit: 2\n")
    );
}

#[test]
fn data_that_was_given_up_before_is_not_asked_about_again() {
    let fake = cluster(&waiting("Removing", "Forgetting"));
    assert_snapshot!(Program::of(&fake).run(&COMMAND), @r"
    exit: 0
    --- stdout
    volume/web/data forgetting
    ");
}

#[test]
fn a_refusal_comes_before_the_question() {
    let fake = cluster(&waiting("Removing", "Requested"));
    let mut refusal = error("Conflict", "a does not report that it is missing");
    refusal["hint"] = "a removes it".into();
    fake.instead(&format!("PUT {FORGET}"), 409, refusal);
    assert_snapshot!(Program::of(&fake).run(&COMMAND), @r"
    exit: 1
    --- stderr
    error: a does not report that it is missing

    hint: a removes it
    ");
}

#[test]
fn a_removal_that_waits_for_a_missing_disk_is_seen_in_tables() {
    let fake = cluster(&waiting("Removing", "Missing"));
    let text = Program::of(&fake).run(&["get", "volumes"]);
    assert!(text.contains("Removing (not found on a)"), "{text}");
    let mut moved = waiting("Bound", "Missing");
    moved["status"]["node"] = json!("b");
    moved["status"]["kept"] = json!([{"node": "a", "until": "2026-01-02T00:00:00Z"}]);
    let fake = cluster(&moved);
    let text = Program::of(&fake).run(&["get", "volumes", "-o", "wide"]);
    assert!(
        text.contains("a until 2026-01-02T00:00:00Z (not found)"),
        "{text}"
    );
    assert!(!text.contains("(not found on a)"), "{text}");
}

#[test]
fn a_workload_is_described_with_the_removal_that_waits() {
    let fake = cluster(&waiting("Removing", "Missing"));
    fake.reply(
        &format!("GET {WEB}"),
        200,
        workload("web", "Running", [1, 1, 1]),
    );
    fake.list(WEB_INSTANCES, &[]);
    fake.list("/v1alpha1/events", &[]);
    let text = Program::of(&fake).run(&["describe", "workload", "web"]);
    assert!(
        text.contains("of web/data the removal from a waits: /data is not there on a"),
        "{text}"
    );
}
