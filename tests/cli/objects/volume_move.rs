//! `katcall volume move`: its request, its progress and its result.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

const DATA: &str = "/v1alpha1/n/default/workloads/web/volumes/data";
const MOVE: &str = "/v1alpha1/n/default/workloads/web/volumes/data/move";

fn outcome(word: &str) -> Value {
    json!({"outcome": word, "kind": "Volume", "metadata": {"name": "data", "namespace": "default"}})
}

fn moving(name: &str, phase: &str) -> Value {
    let mut item = volume("web", name, "Moving");
    item["status"]["move"] = json!({"id": "one", "from": "a", "to": "b", "since": "2026-01-01T00:00:00Z",
        "phase": phase, "files": 2, "bytes": 1 << 20, "totalFiles": 4, "totalBytes": 4 << 20, "message": ""});
    item
}

fn cluster(items: &[Value], asked: &str) -> Fake {
    let fake = Fake::start();
    fake.list(VOLUMES, items);
    fake.reply(&format!("GET {DATA}"), 200, items[0].clone());
    fake.reply(&format!("PUT {MOVE}"), 200, outcome(asked));
    fake.reply(&format!("DELETE {MOVE}"), 200, outcome("cancelled"));
    fake
}

#[test]
fn a_move_says_what_comes_along_and_may_be_left_alone() {
    let items = [
        moving("data", "Copying"),
        moving("logs", "Copied"),
        volume("db", "data", "Bound"),
    ];
    let fake = cluster(&items, "moving");
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["volume", "move", "web/data", "--to", "b", "--no-wait"]), @r"
    exit: 0
    --- stdout
    volume/web/data moving
    --- stderr
    with it moves web/logs: what has one of them has them all
    ");
    assert_snapshot!(program.run(&["volume", "move", "web/data", "--to", "b", "--timeout", "1s"]), @r"
    exit: 5
    --- stderr
    with it moves web/logs: what has one of them has them all
    web/data: copying to b, 4 of 8 files, 2 of 8 MiB
    error: volume `web/data` has not moved yet

    hint: the move continues; `katcall get volume web/data -n default -o yaml` shows how far it is
    ");
    assert_snapshot!(program.run(&["volume", "move", "web/data", "--cancel"]), @r"
    exit: 0
    --- stdout
    volume/web/data cancelled
    ");
}

#[test]
fn a_move_ends_where_the_data_is() {
    let fake = cluster(&[moving("data", "Placing")], "moving");
    let program = Program::of(&fake);
    let mut there = volume("web", "data", "Bound");
    there["status"]["node"] = json!("b");
    there["status"]["kept"] = json!([{"node": "a", "until": "2026-01-02T00:00:00Z"}]);
    let mut running = program.spawn(&["volume", "move", "web/data", "--to", "b"]);
    running.stderr_says("taking the copy into use");
    fake.list(VOLUMES, &[there]);
    assert_snapshot!(running.end(), @r"
    exit: 0
    --- stdout
    volume/web/data moved to b
    --- stderr
    web/data: taking the copy into use
    the copy on a is kept until 2026-01-02T00:00:00Z
    ");

    let fake = cluster(&[moving("data", "Waiting")], "moving");
    let program = Program::of(&fake);
    let mut running = program.spawn(&["volume", "move", "web/data", "--to", "b"]);
    running.stderr_says("b is about to copy it");
    fake.list(VOLUMES, &[volume("web", "data", "Bound")]);
    assert_snapshot!(running.end(), @r"
    exit: 1
    --- stderr
    web/data: b is about to copy it
    error: volume `web/data` did not move: its data is on a

    hint: `katcall events` says who ended the move, or why it came to nothing
    ");
}

#[test]
fn a_move_is_refused_in_the_clusters_words() {
    let fake = cluster(&[volume("web", "data", "Bound")], "unchanged");
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["volume", "move", "web/data", "--to", "a"]), @r"
    exit: 0
    --- stdout
    volume/web/data unchanged
    ");
    let said = error("Conflict", "b is being drained");
    fake.instead(&format!("PUT {MOVE}"), 409, said);
    assert_snapshot!(program.run(&["volume", "move", "web/data", "--to", "b"]), @r"
    exit: 1
    --- stderr
    error: b is being drained
    ");
    let usage = program.run(&["volume", "move", "web/data"]);
    assert!(
        usage.starts_with("exit: 2\n") && usage.contains("--to <NODE>"),
        "{usage}"
    );
}
