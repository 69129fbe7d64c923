//! `katcall explain`, JSONPath output, `katcall wait` and shell completion.

use insta::assert_snapshot;

use super::{fake_api::Fake, fixtures::*, run_katcall::Program};

#[test]
fn a_field_is_explained_without_a_cluster() {
    let program = Program::alone();
    assert_snapshot!(program.run(&["explain"]));
    assert_snapshot!(program.run(&["explain", "workload.spec.restartPolicy"]));
    assert_snapshot!(program.run(&["explain", "workload.spec.type"]));
    assert_snapshot!(program.run(&["explain", "VirtualLoadBalancer"]));
    assert_snapshot!(program.run(&["explain", "workload.spec.replcas"]));
    assert_snapshot!(program.run(&["explain", "wrkload"]));
}

#[test]
fn a_reason_is_explained_without_a_cluster() {
    let program = Program::alone();
    let text = program.run(&["explain", "CrashLoop"]);
    assert!(
        text.starts_with("exit: 0\n--- stdout\nCrashLoop\n\nreason of a status or a condition\n"),
        "{text}"
    );
    assert!(
        text.contains("\n  means  its program ends repeatedly"),
        "{text}"
    );
    let next = "\n  try    katcall logs INSTANCE -n NAMESPACE\n";
    assert!(text.ends_with(next), "{text}");
    assert_eq!(program.run(&["explain", "reason/CrashLoop"]), text);

    let text = program.run(&["explain", "RolloutStarted"]);
    assert!(
        text.starts_with("exit: 0\n--- stdout\nRolloutStarted\n\nreason of an event\n"),
        "{text}"
    );
    let next = "\n  try    katcall rollout status NAMESPACE/WORKLOAD\n";
    assert!(text.ends_with(next), "{text}");
    assert_eq!(program.run(&["explain", "reason/RolloutStarted"]), text);

    let text = program.run(&["explain", "reason/CrashLop"]);
    assert!(text.starts_with("exit: 3\n"), "{text}");
    assert!(text.contains("there is no reason `CrashLop`"), "{text}");
    assert!(text.contains("did you mean `reason/CrashLoop`?"), "{text}");
}

#[test]
fn a_template_picks_out_of_lists_and_items() {
    let fake = Fake::start();
    let items = [
        workload("web", "Running", [1, 1, 1]),
        because(
            workload("db", "Degraded", [1, 0, 0]),
            "CrashLoop",
            "it ends",
        ),
    ];
    fake.list(WORKLOADS, &items);
    fake.reply(&format!("GET {WEB}"), 200, items[0].clone());
    let program = Program::of(&fake);
    let names = "jsonpath={.items[*].metadata.name}";
    assert_snapshot!(program.run(&["get", "wl", "-o", names]), @r"
    exit: 0
    --- stdout
    db web
    ");
    let one = "jsonpath={.metadata.name} is {.status.phase}";
    assert_snapshot!(program.run(&["get", "wl", "web", "-o", one]), @r"
    exit: 0
    --- stdout
    web is Running
    ");
    let why = "jsonpath={.items[?(@.status.phase==\"Degraded\")].status.conditions[0].reason}";
    assert_snapshot!(program.run(&["get", "wl", "-o", why]), @r"
    exit: 0
    --- stdout
    CrashLoop
    ");
    assert_snapshot!(program.run(&["get", "wl", "-o", "jsonpath={.items[}"]));
    assert_snapshot!(program.run(&["get", "wl", "-o", "jsn"]));
}

#[test]
fn a_wait_ends_when_it_is_so() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[workload("web", "Pending", [1, 0, 0])]);
    let program = Program::of(&fake);
    let mut running = program.spawn(&["wait", "workload", "web", "--for=phase=Running"]);
    running.stderr_says("its phase is Pending");
    fake.change(
        WORKLOADS,
        "MODIFIED",
        &workload("web", "Running", [1, 1, 1]),
    );
    assert_snapshot!(running.end(), @r"
    exit: 0
    --- stdout
    workload web is Running
    --- stderr
    workload web: its phase is Pending
    ");
    let mut running = program.spawn(&["wait", "workload", "web", "--for=delete"]);
    running.stderr_says("its phase is");
    fake.change(
        WORKLOADS,
        "DELETED",
        &workload("web", "Deleting", [1, 0, 0]),
    );
    let text = running.end();
    assert!(
        text.starts_with("exit: 0\n--- stdout\nworkload web is gone\n"),
        "{text}"
    );
}

#[test]
fn a_wait_in_vain_says_what_is_and_what_to_ask() {
    let fake = Fake::start();
    let item = because(
        workload("web", "Degraded", [1, 0, 0]),
        "CrashLoop",
        "web-aaaaa: it ends",
    );
    fake.list(WORKLOADS, &[item]);
    let program = Program::of(&fake);
    let wait = |what: &str| program.run(&["wait", "workload", "web", what, "--timeout", "1s"]);
    assert_snapshot!(wait("--for=condition=Available"));
    assert_snapshot!(wait("--for=condition=Nothing"));
    assert_snapshot!(wait("--for=soon"));
    assert_snapshot!(program.run(&["wait", "workload", "db", "--for=phase=Running"]), @r"
    exit: 3
    --- stderr
    error: there is no workload db
    ");
    assert_snapshot!(program.run(&["wait", "workload", "db", "--for=delete"]), @r"
    exit: 0
    --- stdout
    workload db is gone
    ");
}

#[test]
fn events_are_followed_without_those_that_make_room() {
    let fake = Fake::start();
    let path = "/v1alpha1/events";
    let crash = |id: &str, count: u32| {
        let mut event = event(
            id,
            "Warning",
            "CrashLoop",
            ("Instance", "web-aaaaa"),
            "it ends",
        );
        event["count"] = count.into();
        event
    };
    fake.list(path, &[crash("1", 1)]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["events"]));
    let mut running = program.spawn(&["events", "-f"]);
    running.stdout_says("CrashLoop");
    fake.change(path, "DELETED", &crash("1", 1));
    fake.change(path, "ADDED", &crash("2", 2));
    running.stdout_says("added");
    running.interrupt();
    let text = running.end();
    assert!(text.starts_with("exit: 130\n"), "{text}");
    assert!(!text.contains("deleted"), "{text}");
}

#[test]
fn live_names_are_completed_in_bash() {
    let fake = Fake::start();
    let web = workload("web", "Running", [1, 1, 1]);
    fake.list(WORKLOADS, &[workload("db", "Running", [1, 1, 1]), web]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["__complete", "--", "get", "wl"]), @r"
    exit: 0
    --- stdout
    db
    web
    ");
    let script = program.run(&["completion", "bash"]);
    let script = script.split_once("--- stdout\n").unwrap().1;
    let file = program.file("katcall.bash", script);
    let complete = |words: &str, last: &str| {
        let text = format!(
            "source {file}\nCOMP_WORDS=(\"$0\" {words} '{last}')\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_katcall_live \"$0\" '{last}' x\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let katcall = env!("CARGO_BIN_EXE_katcall");
        let mut command = std::process::Command::new("bash");
        let socket = fake.socket();
        command
            .args(["-c", &text, katcall])
            .current_dir(program.home.path())
            .env("KAT_CONNECTION", socket);
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(complete("get workload", "w"), "web\n");
    assert_eq!(complete("why workload", ""), "db\nweb\n");
    assert!(complete("", "ge").contains("get"), "commands as before");
    // `cp` completes to a path in a container or to a local one.
    fake.list(INSTANCES, &[instance("web-aaaaa", "Running")]);
    program.file("wide/a", "");
    assert_eq!(
        complete("cp", "w"),
        "workload/\nweb:/\nweb-aaaaa:/\nwide/\n"
    );
    assert_eq!(complete("cp ./x", "web"), "web:/\nweb-aaaaa:/\n");
    // Without an answer from the cluster, nothing is completed.
    let alone = Program::alone();
    assert_snapshot!(alone.run(&["__complete", "--", "get", "wl"]), @"exit: 0");
}
