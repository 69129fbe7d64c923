use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, Piece},
    fixtures::*,
    run_katcall::Program,
};

fn line(second: u32, message: &str) -> Piece {
    let timestamp = format!("2026-11-20T10:00:{second:02}.000001Z");
    Piece::Line(json!({"timestamp": timestamp, "message": message, "priority": 6}))
}

fn path(id: &str) -> String {
    format!("LOGS {WEB_INSTANCES}/{id}/logs")
}

fn two() -> Fake {
    let fake = Fake::start();
    let mut newer = instance("web-bbbbb", "Running");
    newer["metadata"]["creationTimestamp"] = ago(10).into();
    let items = [instance("web-aaaaa", "Running"), newer];
    fake.list(INSTANCES, &items);
    fake.list(WEB_INSTANCES, &items);
    fake
}

fn ended(fake: &Fake, id: &str, lines: Vec<Piece>) {
    for piece in lines {
        fake.send(&path(id), piece);
    }
    fake.send(&path(id), Piece::End);
}

#[test]
fn one_instance_is_shown_as_it_printed() {
    let fake = two();
    ended(
        &fake,
        "web-aaaaa",
        vec![line(1, "hello"), line(2, "  \u{1b}[31mred\u{1b}[0m")],
    );
    let program = Program::of(&fake);
    let text = program.run(&[
        "logs",
        "web-aaaaa",
        "--tail",
        "5",
        "--since",
        "2026-11-20T12:00:00+02:00",
    ]);
    assert_eq!(
        text,
        "exit: 0\n--- stdout\nhello\n  \u{1b}[31mred\u{1b}[0m\n"
    );
    let asked = fake.asked();
    let wanted = "/logs?since=2026-11-20T10%3A00%3A00Z&tail=5";
    assert!(asked.last().unwrap().ends_with(wanted), "{asked:?}");
}

/// On a terminal no line can impersonate another instance's. A program that reads the output gets
/// the lines unchanged.
#[test]
fn a_line_does_not_steer_the_terminal() {
    let fake = two();
    let mean = "\u{1b}[32mgreen\rweb-bbbbb | x\u{1b}[2";
    let program = Program::of(&fake).variable("NO_COLOR", "");
    let arguments = ["logs", "web", "--all"];
    for _ in 0..2 {
        ended(&fake, "web-aaaaa", vec![line(1, mean)]);
        ended(&fake, "web-bbbbb", vec![line(2, "other")]);
    }
    let piped = program.run(&arguments);
    assert!(
        piped.contains(&format!("web-aaaaa | {mean}\n")),
        "{piped:?}"
    );
    let (code, shown) = program.run_on_terminal(&arguments);
    assert_eq!(code, 0);
    let lines: Vec<&str> = shown.lines().collect();
    let own = "\u{1b}[32mgreen\\rweb-bbbbb | x\\u{1b}[2\u{1b}[0m";
    assert!(lines[0].contains("web-aaaaa |"), "{shown:?}");
    assert!(lines[0].ends_with(own), "{shown:?}");
    assert!(lines[1].ends_with(" other"), "{shown:?}");
}

#[test]
fn all_instances_are_shown_in_the_order_of_time() {
    let fake = two();
    let program = Program::of(&fake);
    for arguments in [
        &["logs", "web", "--timestamps"][..],
        &["logs", "web", "--timestamps", "--all"],
    ] {
        ended(&fake, "web-aaaaa", vec![line(1, "a1"), line(4, "a4")]);
        ended(
            &fake,
            "web-bbbbb",
            vec![line(2, "b2"), line(3, "b3"), line(5, "b5")],
        );
        let text = program.run(arguments);
        assert_eq!(
            text,
            "exit: 0\n--- stdout\n\
            web-aaaaa | 2026-11-20T10:00:01.000001Z a1\n\
            web-bbbbb | 2026-11-20T10:00:02.000001Z b2\n\
            web-bbbbb | 2026-11-20T10:00:03.000001Z b3\n\
            web-aaaaa | 2026-11-20T10:00:04.000001Z a4\n\
            web-bbbbb | 2026-11-20T10:00:05.000001Z b5\n"
        );
    }
}

/// The only instance of a workload needs no name before its lines.
#[test]
fn a_single_instance_of_a_workload_prints_bare_lines() {
    let fake = Fake::start();
    fake.list(INSTANCES, &[instance("web-aaaaa", "Running")]);
    ended(&fake, "web-aaaaa", vec![line(1, "hello")]);
    let text = Program::of(&fake).run(&["logs", "web"]);
    assert_eq!(text, "exit: 0\n--- stdout\nhello\n");
}

const GONE: &str = "GET /v1alpha1/n/default/workloads/web/gone-instances";

fn gone() -> Value {
    json!({"items": [
        {"instance": "web-zzzzz", "node": "b", "generation": 2,
            "since": "2026-11-20T09:00:00Z", "until": "2026-11-20T09:30:00Z"},
        {"instance": "web-yyyyy", "node": "c", "generation": 1,
            "since": "2026-11-20T08:00:00Z", "until": "2026-11-20T08:30:00Z"},
    ], "away": [{"node": "d", "message": "the machine `d` did not answer within 4 s"}]})
}

#[test]
fn instances_that_are_gone_are_shown_where_they_are_asked_for() {
    let fake = two();
    let web = workload("web", "Running", [2, 2, 2]);
    fake.reply(&format!("GET {WEB}"), 200, web);
    fake.reply(GONE, 200, gone());
    ended(&fake, "web-aaaaa", vec![line(3, "a3")]);
    ended(&fake, "web-bbbbb", vec![line(4, "b4")]);
    ended(&fake, "web-yyyyy", vec![line(1, "y1")]);
    ended(&fake, "web-zzzzz", vec![line(2, "z2")]);
    let text = Program::of(&fake).run(&["logs", "web", "--gone"]);
    assert_eq!(
        text,
        "exit: 0\n--- stdout\nweb-yyyyy | y1\nweb-zzzzz | z2\nweb-aaaaa | a3\nweb-bbbbb | b4\n\
        --- stderr\nwarning: the machine `d` did not answer within 4 s\n"
    );
    let asked = fake.asked();
    for (id, query) in [
        ("web-yyyyy", "?node=c"),
        ("web-zzzzz", "?node=b"),
        ("web-aaaaa", ""),
    ] {
        let wanted = format!("/{id}/logs{query}");
        assert!(
            asked.iter().any(|one| one.ends_with(&wanted)),
            "{wanted}: {asked:?}"
        );
    }
}

#[test]
fn an_id_that_is_none_does_not_keep_the_other_logs_from_being_read() {
    let fake = two();
    let web = workload("web", "Running", [2, 2, 2]);
    fake.reply(&format!("GET {WEB}"), 200, web);
    let mut found = gone();
    found["away"] = json!([]);
    found["items"][0]["instance"] = json!("X");
    fake.reply(GONE, 200, found);
    ended(&fake, "web-aaaaa", vec![line(3, "a3")]);
    ended(&fake, "web-bbbbb", vec![line(4, "b4")]);
    ended(&fake, "web-yyyyy", vec![line(1, "y1")]);
    let text = Program::of(&fake).run(&["logs", "web", "--gone"]);
    assert_eq!(
        text,
        "exit: 0\n--- stdout\nweb-yyyyy | y1\nweb-aaaaa | a3\nweb-bbbbb | b4\n\
        --- stderr\nwarning: the machine `b` had no instance `X`: there is no such id\n"
    );
}

/// After a rollback the instances of the failed version are on no list any more.
#[test]
fn an_instance_that_is_gone_is_found_by_its_id() {
    let fake = two();
    fake.reply(
        &format!("GET {WEB}"),
        200,
        workload("web", "Running", [2, 2, 2]),
    );
    fake.reply(GONE, 200, gone());
    ended(&fake, "web-zzzzz", vec![line(1, "no such table")]);
    let text = Program::of(&fake).run(&["logs", "web-zzzzz"]);
    assert!(
        text.starts_with("exit: 0\n--- stdout\nno such table\n"),
        "{text}"
    );
}

#[test]
fn a_leader_of_an_older_version_says_nothing_of_what_is_gone() {
    let fake = two();
    ended(&fake, "web-aaaaa", vec![line(3, "a3")]);
    ended(&fake, "web-bbbbb", vec![line(4, "b4")]);
    let text = Program::of(&fake).run(&["logs", "web", "--gone"]);
    assert!(text.contains("web-bbbbb | b4"), "{text}");
    assert!(
        text.contains("upgrade the cluster to read their lines"),
        "{text}"
    );
}

#[test]
fn a_followed_log_goes_on_after_a_break_and_ends_with_its_instance() {
    let fake = two();
    let one = format!("GET {INSTANCES}/web-aaaaa");
    fake.reply(&one, 200, instance("web-aaaaa", "Running"));
    let program = Program::of(&fake);
    let mut running = program.spawn(&["logs", "web-aaaaa", "-f", "--tail", "1"]);
    fake.send(&path("web-aaaaa"), line(1, "one"));
    running.stdout_says("one");
    fake.send(&path("web-aaaaa"), Piece::Cut);
    running.stderr_says("broke off");
    // The server starts again with lines of the last line's time.
    fake.send(&path("web-aaaaa"), line(1, "one"));
    fake.send(&path("web-aaaaa"), line(1, "one more"));
    fake.send(&path("web-aaaaa"), line(2, "two"));
    running.stdout_says("two");
    fake.reply(&one, 200, instance("web-aaaaa", "Stopped"));
    // The instance runs at the stream's first end, and has stopped at its second.
    fake.send(&path("web-aaaaa"), Piece::End);
    fake.send(&path("web-aaaaa"), Piece::End);
    assert_snapshot!(running.end(), @r"
    exit: 0
    --- stdout
    one
    one more
    two
    --- stderr
    the log of `web-aaaaa` broke off, trying again: the connection to [SOCKET] broke off: it ended inside a line
    the log of `web-aaaaa` has ended
    ");
    let asked = fake.asked();
    let again: Vec<&String> = asked
        .iter()
        .filter(|asked| asked.contains("since="))
        .collect();
    assert!(
        again[0].ends_with("?follow=true&since=2026-11-20T10%3A00%3A01.000001Z"),
        "{asked:?}"
    );
}

/// The machine of an instance may end its log before the API's list lacks the instance.
#[test]
fn a_log_without_lines_ends_though_its_instance_is_still_listed() {
    let fake = two();
    let one = format!("GET {INSTANCES}/web-aaaaa");
    fake.reply(&one, 200, instance("web-aaaaa", "Running"));
    ended(&fake, "web-aaaaa", vec![]);
    fake.send(&path("web-aaaaa"), Piece::Missing);
    let text = Program::of(&fake).run(&["logs", "web-aaaaa", "-f"]);
    assert_eq!(
        text,
        "exit: 0\n--- stderr\nthe log of `web-aaaaa` has ended\n"
    );
}

#[test]
fn a_log_that_the_server_ends_says_why() {
    let fake = two();
    let last = json!({"timestamp": "2026-11-20T10:00:02Z", "message": "", "priority": 0,
        "error": {"error": "Unauthorized", "message": "the token is gone or has expired"}});
    let program = Program::of(&fake);
    for follow in [&["-f"][..], &[]] {
        ended(
            &fake,
            "web-aaaaa",
            vec![line(1, "one"), Piece::Line(last.clone())],
        );
        let text = program.run(&[&["logs", "web-aaaaa"], follow].concat());
        assert!(
            text.starts_with("exit: 1\n--- stdout\none\n--- stderr\n"),
            "{text}"
        );
        assert!(
            text.contains("error: the token is gone or has expired"),
            "{text}"
        );
    }
}

#[test]
fn all_instances_are_followed_and_new_ones_join() {
    let fake = Fake::start();
    let first: Vec<Value> = vec![instance("web-aaaaa", "Running")];
    fake.list(INSTANCES, &first);
    fake.list(WEB_INSTANCES, &first);
    let program = Program::of(&fake);
    let mut running = program.spawn(&["logs", "web", "-f"]);
    fake.send(&path("web-aaaaa"), line(1, "first"));
    running.stdout_says("web-aaaaa | first");
    fake.change(WEB_INSTANCES, "ADDED", &instance("web-bbbbb", "Starting"));
    fake.send(&path("web-bbbbb"), line(2, "second"));
    running.stdout_says("web-bbbbb | second");
    running.interrupt();
    assert!(running.end().starts_with("exit: 130\n"));
}

fn away(id: &str) -> Piece {
    let message = format!("the machine of {id} can't be reached");
    Piece::Line(
        json!({"timestamp": "2026-11-20T10:00:03Z", "message": "", "priority": 0,
        "error": {"error": "MachineAway", "message": message}}),
    )
}

#[test]
fn a_machine_that_is_away_does_not_hide_the_others() {
    let fake = two();
    ended(&fake, "web-aaaaa", vec![line(1, "a1"), away("web-aaaaa")]);
    ended(&fake, "web-bbbbb", vec![line(2, "b2"), line(5, "b5")]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["logs", "web", "--all"]), @r"
    exit: 4
    --- stdout
    web-aaaaa | a1
    web-bbbbb | b2
    web-bbbbb | b5
    --- stderr
    warning: the log of `web-aaaaa`: the machine of web-aaaaa can't be reached
    error: 1 of 2 logs could not be read
    ");
    // With a single instance, the failure is the command's result.
    ended(&fake, "web-aaaaa", vec![away("web-aaaaa")]);
    assert_snapshot!(program.run(&["logs", "web-aaaaa"]), @r"
    exit: 4
    --- stderr
    error: the machine of web-aaaaa can't be reached
    ");
}

#[test]
fn what_was_is_shown_in_order_and_then_what_comes() {
    let fake = two();
    ended(&fake, "web-aaaaa", vec![line(1, "a1"), line(3, "a3")]);
    ended(&fake, "web-bbbbb", vec![line(2, "b2")]);
    let program = Program::of(&fake);
    let mut running = program.spawn(&["logs", "web", "-f", "--all", "--tail", "9"]);
    running.stdout_says("web-aaaaa | a3");
    // Each log continues with lines of its last line's time.
    fake.send(&path("web-aaaaa"), line(3, "a3"));
    fake.send(&path("web-aaaaa"), line(4, "a4"));
    running.stdout_says("web-aaaaa | a4");
    fake.send(&path("web-bbbbb"), Piece::Cut);
    running.stderr_says("the log of `web-bbbbb` broke off, trying again");
    fake.send(&path("web-bbbbb"), line(2, "b2"));
    fake.send(&path("web-bbbbb"), line(6, "b6"));
    running.stdout_says("web-bbbbb | b6");
    running.interrupt();
    let text = running.end();
    let shown: Vec<&str> = text.lines().filter(|line| line.contains(" | ")).collect();
    let expected = [
        "web-aaaaa | a1",
        "web-bbbbb | b2",
        "web-aaaaa | a3",
        "web-aaaaa | a4",
        "web-bbbbb | b6",
    ];
    assert_eq!(shown, expected, "{text}");
    let asked = fake.asked();
    let followed = "/web-aaaaa/logs?follow=true&since=2026-11-20T10%3A00%3A03.000001Z";
    assert!(
        asked.iter().any(|asked| asked.ends_with(followed)),
        "{asked:?}"
    );
}

#[test]
fn the_run_before_is_asked_for() {
    let fake = two();
    ended(&fake, "web-aaaaa", vec![line(1, "crashed")]);
    let program = Program::of(&fake);
    let text = program.run(&["logs", "web-aaaaa", "--previous"]);
    assert_eq!(text, "exit: 0\n--- stdout\ncrashed\n");
    assert!(
        fake.asked()
            .last()
            .unwrap()
            .ends_with("/logs?previous=true")
    );
    assert!(
        program
            .run(&["logs", "web-aaaaa", "--previous", "-f"])
            .starts_with("exit: 2\n")
    );
}

#[test]
fn a_program_that_wrote_nothing_is_said_to_have_written_nothing() {
    let fake = two();
    let program = Program::of(&fake);
    // The fake sends a log once.
    let silent = |ids: &[&str], words: &[&str]| {
        for id in ids {
            ended(&fake, id, vec![]);
        }
        program.run(words)
    };
    let both = ["web-aaaaa", "web-bbbbb"];
    for (name, ids) in [("web", &both[..]), ("web-aaaaa", &both[..1])] {
        let text = silent(ids, &["logs", name]);
        assert!(text.starts_with("exit: 0\n--- stderr\n"), "{text}");
        let said = format!("`{name}` has no lines: its program has written nothing");
        assert!(text.contains(&said), "{text}");
        assert!(!text.contains("--- stdout"), "{text}");
    }
    let text = silent(&both, &["logs", "web", "--since", "5m"]);
    assert!(text.contains("`web` has no lines since then"), "{text}");
    let text = silent(&both, &["logs", "web", "--tail", "0"]);
    assert!(!text.contains("has no lines"), "{text}");

    // One line of one instance is enough.
    ended(&fake, "web-aaaaa", vec![line(1, "here")]);
    ended(&fake, "web-bbbbb", vec![]);
    let text = program.run(&["logs", "web"]);
    assert!(text.contains("here"), "{text}");
    assert!(!text.contains("has no lines"), "{text}");
}

/// For a workload, the previous run is that of the instance that was restarted. If there was no
/// earlier run, katcall says so.
#[test]
fn a_run_before_is_of_what_was_started_again() {
    let fake = two();
    ended(&fake, "web-bbbbb", vec![]);
    let program = Program::of(&fake);
    let text = program.run(&["logs", "web-bbbbb", "--previous"]);
    assert!(text.starts_with("exit: 0\n--- stderr\n"), "{text}");
    assert!(
        text.contains("`web-bbbbb` has no lines of an earlier run"),
        "{text}"
    );
    let mut again = instance("web-aaaaa", "Running");
    again["status"]["restarts"] = 2.into();
    let mut newer = instance("web-bbbbb", "Running");
    newer["metadata"]["creationTimestamp"] = ago(10).into();
    fake.list(INSTANCES, &[again, newer]);
    ended(&fake, "web-aaaaa", vec![line(1, "crashed")]);
    let text = program.run(&["logs", "web", "--previous"]);
    assert_eq!(text, "exit: 0\n--- stdout\ncrashed\n");
}

#[test]
fn without_instances_or_workload_it_says_so() {
    let fake = Fake::start();
    fake.list(INSTANCES, &[]);
    fake.list(WORKLOADS, &[workload("web", "Pending", [1, 0, 0])]);
    fake.reply(
        &format!("GET {WEB}"),
        200,
        workload("web", "Pending", [1, 0, 0]),
    );
    fake.reply(GONE, 200, json!({"items": [], "away": []}));
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["logs", "web"]), @r"
    exit: 1
    --- stderr
    error: workload `web` has no instances yet

    hint: `katcall why workload web -n default` says why
    ");
    assert_snapshot!(program.run(&["logs", "wev"]), @r"
    exit: 3
    --- stderr
    error: there is no workload `wev` in namespace `default`

    hint: did you mean `web`?
    ");
    assert_snapshot!(program.run(&["logs", "web", "--since", "noon"]));
}
