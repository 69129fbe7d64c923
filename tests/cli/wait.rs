use insta::assert_snapshot;
use serde_json::Value;

use super::{
    fake_api::{Fake, Piece},
    fixtures::*,
    run_katcall::{Program, Running},
};

fn begun(program: &Program, fake: &Fake, timeout: &str) -> Running {
    fake.reply(&format!("PUT {WEB}"), 200, applied("updated", "web"));
    program.file("web/workload.kat", &workload_file("web"));
    program.spawn(&["apply", "-f", "web", "--wait", "--timeout", timeout])
}

/// The status is still that of the previous generation.
fn stale(mut workload: Value) -> Value {
    workload["status"]["observedGeneration"] = 1.into();
    workload
}

/// Removes the elapsed time, which differs in each run.
fn without_time(text: &str) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for line in &mut lines {
        if let Some(at) = line.rfind(" after ")
            && line[at + 7..].ends_with('s')
        {
            line.replace_range(at + 7.., "[TIME]");
        }
    }
    lines.join("\n")
}

#[test]
fn it_shows_the_phases_and_ends_when_everything_runs() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[stale(workload("web", "Running", [1, 1, 1]))]);
    fake.list(WEB_INSTANCES, &[]);
    let program = Program::of(&fake);
    let mut running = begun(&program, &fake, "1m");
    // The old generation runs, which is not success.
    running.stderr_says("web: waiting for the leader");
    fake.change(
        WORKLOADS,
        "MODIFIED",
        &workload("web", "Progressing", [1, 0, 1]),
    );
    running.stderr_says("web: 0 of 1 healthy");
    fake.change(WEB_INSTANCES, "ADDED", &instance("web-aaaaa", "Pulling"));
    running.stderr_says("1 pulling");
    fake.change(
        WEB_INSTANCES,
        "MODIFIED",
        &instance("web-aaaaa", "Starting"),
    );
    running.stderr_says("1 starting");
    fake.change(WEB_INSTANCES, "MODIFIED", &instance("web-aaaaa", "Running"));
    running.stderr_says("1 running for a moment");
    fake.change(
        WORKLOADS,
        "MODIFIED",
        &workload("web", "Running", [1, 1, 1]),
    );
    assert_snapshot!(without_time(&running.end()), @r"
    exit: 0
    --- stdout
    workload/web updated
    --- stderr
    web: waiting for the leader
    web: 0 of 1 healthy
    web: 0 of 1 healthy, 1 pulling
    web: 0 of 1 healthy, 1 starting
    web: 0 of 1 healthy, 1 running for a moment
    web: 1 of 1 healthy after [TIME]
    ");
}

#[test]
fn a_pull_that_keeps_failing_is_told_and_ends_with_5_at_the_deadline() {
    let fake = Fake::start();
    let web = because(
        workload("web", "Progressing", [1, 0, 1]),
        "ImagePullFailed",
        "1 of 1 instances wait for their image",
    );
    fake.list(WORKLOADS, &[web]);
    let pulling = troubled(
        instance("web-aaaaa", "Pulling"),
        "ImagePullFailed",
        "Trying to pull...\nError: manifest unknown",
    );
    fake.list(WEB_INSTANCES, &[pulling]);
    let program = Program::of(&fake);
    let mut running = begun(&program, &fake, "1s");
    running.stderr_says("ImagePullFailed");
    assert_snapshot!(without_time(&running.end()));
}

#[test]
fn a_watch_that_breaks_in_the_middle_is_taken_up_again() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[workload("web", "Progressing", [1, 0, 1])]);
    fake.list(WEB_INSTANCES, &[]);
    let program = Program::of(&fake);
    let mut running = begun(&program, &fake, "1m");
    running.stderr_says("web: 0 of 1 healthy");
    // The workload became healthy while no watch was open, so only a new list can show it.
    fake.list(WORKLOADS, &[workload("web", "Running", [1, 1, 1])]);
    fake.send(&format!("WATCH {WORKLOADS}"), Piece::Cut);
    let text = without_time(&running.end());
    assert_snapshot!(text, @r"
    exit: 0
    --- stdout
    workload/web updated
    --- stderr
    web: 0 of 1 healthy
    the connection to the cluster is lost, trying again: the connection to [SOCKET] broke off: it ended inside a line
    the connection to the cluster is back
    web: 1 of 1 healthy after [TIME]
    ");
}

#[test]
fn a_watch_whose_history_is_gone_lists_again_without_a_word() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[workload("web", "Progressing", [1, 0, 1])]);
    fake.list(WEB_INSTANCES, &[]);
    let program = Program::of(&fake);
    let mut running = begun(&program, &fake, "1m");
    running.stderr_says("web: 0 of 1 healthy");
    fake.list(WORKLOADS, &[workload("web", "Running", [1, 1, 1])]);
    let gone = serde_json::json!({"error": "Gone", "message": "compacted"});
    fake.change(WORKLOADS, "ERROR", &gone);
    let text = running.end();
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert!(!text.contains("lost"), "{text}");
}

#[test]
fn a_stalled_rollout_ends_with_1_at_once() {
    let fake = Fake::start();
    let mut web = because(
        workload("web", "Stalled", [1, 0, 1]),
        "ProgressDeadlineExceeded",
        "no progress for 600 s",
    );
    web["status"]["lastGoodGeneration"] = 1.into();
    fake.list(WORKLOADS, &[web]);
    fake.list(WEB_INSTANCES, &[]);
    let program = Program::of(&fake);
    let mut running = begun(&program, &fake, "1m");
    assert_snapshot!(running.end());
}

#[test]
fn a_workload_that_is_deleted_meanwhile_ends_with_3() {
    let fake = Fake::start();
    let web = workload("web", "Progressing", [1, 0, 1]);
    fake.list(WORKLOADS, std::slice::from_ref(&web));
    fake.list(WEB_INSTANCES, &[]);
    let program = Program::of(&fake);
    let mut running = begun(&program, &fake, "1m");
    running.stderr_says("web: 0 of 1 healthy");
    fake.change(WORKLOADS, "DELETED", &web);
    assert_snapshot!(running.end(), @r"
    exit: 3
    --- stdout
    workload/web updated
    --- stderr
    web: 0 of 1 healthy
    error: workload `web` in namespace `default` was deleted meanwhile
    ");
}

#[test]
fn ctrl_c_ends_with_130() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[workload("web", "Progressing", [1, 0, 1])]);
    fake.list(WEB_INSTANCES, &[]);
    let program = Program::of(&fake);
    let mut running = begun(&program, &fake, "1m");
    running.stderr_says("web: 0 of 1 healthy");
    running.interrupt();
    assert!(running.end().starts_with("exit: 130\n"));
}

#[test]
fn a_terminal_gets_one_line_that_changes() {
    let fake = Fake::start();
    fake.reply(&format!("PUT {WEB}"), 200, applied("updated", "web"));
    fake.list(WORKLOADS, &[workload("web", "Progressing", [1, 0, 1])]);
    let pulling = troubled(
        instance("web-aaaaa", "Pulling"),
        "ImagePullFailed",
        "manifest unknown",
    );
    fake.list(WEB_INSTANCES, &[pulling]);
    let program = Program::of(&fake);
    program.file("web/workload.kat", &workload_file("web"));
    let arguments = ["apply", "-f", "web", "--wait", "--timeout", "1s"];
    let (code, text) = program.run_on_terminal(&arguments);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("0 of 1 healthy, 1 pulling"), "{text:?}");
    // It is printed at the end: until then it may have passed.
    assert!(
        text.contains("web-aaaaa on a: Pulling: ImagePullFailed: manifest unknown"),
        "{text:?}"
    );
    // The progress line is removed at the end.
    assert!(text.contains("\u{1b}[2K"), "{text:?}");
}

/// A state that passes within two seconds leaves no line.
#[test]
fn what_passes_at_once_is_not_printed() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[workload("web", "Progressing", [1, 0, 1])]);
    let waits = troubled(
        instance("web-aaaaa", "Scheduled"),
        "WaitingForAgent",
        "the agent of a has not reported it yet",
    );
    fake.list(WEB_INSTANCES, &[waits]);
    let program = Program::of(&fake);
    let mut running = begun(&program, &fake, "1m");
    fake.change(WEB_INSTANCES, "MODIFIED", &instance("web-aaaaa", "Running"));
    fake.change(
        WORKLOADS,
        "MODIFIED",
        &workload("web", "Running", [1, 1, 1]),
    );
    assert_snapshot!(without_time(&running.end()), @r"
    exit: 0
    --- stdout
    workload/web updated
    --- stderr
    web: 1 of 1 healthy after [TIME]
    ");
}

#[test]
fn the_wait_says_that_old_instances_stop() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[workload("web", "Progressing", [1, 1, 1])]);
    let mut old = instance("web-ooooo", "Stopping");
    old["status"]["generation"] = 1.into();
    fake.list(
        WEB_INSTANCES,
        &[instance("web-aaaaa", "Running"), old.clone()],
    );
    let program = Program::of(&fake);
    let mut running = begun(&program, &fake, "1m");
    running.stderr_says("web: 1 of 1 healthy, 1 old one stopping");
    running.stderr_says(
        "web-ooooo on a is stopping: its program has not ended on its stop signal yet",
    );
    fake.change(WEB_INSTANCES, "DELETED", &old);
    fake.change(
        WORKLOADS,
        "MODIFIED",
        &workload("web", "Running", [1, 1, 1]),
    );
    let text = running.end();
    assert!(text.starts_with("exit: 0\n"), "{text}");
}

#[test]
fn what_only_a_person_can_mend_ends_the_wait_early_and_is_said_once() {
    let fake = Fake::start();
    let message = "secret `db` does not exist in namespace `default`";
    fake.list(WORKLOADS, &[workload("web", "Progressing", [1, 0, 1])]);
    let waits = troubled(instance("web-aaaaa", "Scheduled"), "SecretMissing", message);
    fake.list(WEB_INSTANCES, &[waits]);
    let program = Program::of(&fake);
    let text = begun(&program, &fake, "5m").end();
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert_eq!(text.matches(message).count(), 1, "{text}");
    assert!(
        text.contains("waits for a person: web-aaaaa: SecretMissing"),
        "{text}"
    );
    assert!(
        text.contains("hint: `katcall why workload web` says why"),
        "{text}"
    );
}

#[test]
fn the_last_lines_of_the_program_that_failed_are_printed_once() {
    let fake = Fake::start();
    let web = because(
        workload("web", "Stalled", [1, 0, 1]),
        "ProgressDeadlineExceeded",
        "no progress for 600 s",
    );
    fake.list(WORKLOADS, &[web]);
    let mut ended = troubled(
        instance("web-aaaaa", "Restarting"),
        "CrashLoop",
        "the program ended with exit code 3; last lines: no database",
    );
    ended["status"]["exitCode"] = 3.into();
    ended["status"]["restarts"] = 4.into();
    fake.list(WEB_INSTANCES, &[ended]);
    let log = format!("LOGS {WEB_INSTANCES}/web-aaaaa/logs");
    for message in ["connecting", "no database"] {
        let line = serde_json::json!({"timestamp": "2026-11-20T10:00:01Z", "message": message, "priority": 6});
        fake.send(&log, Piece::Line(line));
    }
    fake.send(&log, Piece::End);
    let program = Program::of(&fake);
    let text = begun(&program, &fake, "1m").end();
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(
        text.contains("  last lines of web-aaaaa:\n    connecting\n    no database\n"),
        "{text}"
    );
    assert_eq!(text.matches("no database").count(), 1, "{text}");
}
