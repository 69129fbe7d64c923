use insta::assert_snapshot;
use serde_json::json;

use super::{
    fake_api::{Fake, Piece, error},
    fixtures::*,
    run_katcall::Program,
};

fn shop() -> Fake {
    let fake = Fake::start();
    let web = because(
        workload("web", "Degraded", [3, 1, 3]),
        "ImagePullFailed",
        "no such image",
    );
    let db = workload("db", "Running", [1, 1, 1]);
    fake.list(WORKLOADS, &[web.clone(), db.clone()]);
    fake.reply(&format!("GET {WEB}"), 200, web.clone());
    let mut other = workload("api", "Pending", [1, 0, 0]);
    other["metadata"]["namespace"] = "shop".into();
    fake.list("/v1alpha1/workloads", &[other, web, db]);
    let pulling = troubled(
        instance("web-bbbbb", "Pulling"),
        "ImagePullFailed",
        "manifest unknown",
    );
    fake.list(INSTANCES, &[pulling, instance("web-aaaaa", "Running")]);
    fake
}

#[test]
fn workloads_are_a_table() {
    let fake = shop();
    assert_snapshot!(Program::of(&fake).run(&["get", "workloads"]));
    assert_snapshot!(Program::of(&fake).run(&["get", "wl", "-A", "-o", "wide"]));
    assert_snapshot!(Program::of(&fake).run(&["get", "workload", "web"]));
    assert_snapshot!(Program::of(&fake).run(&["get", "workloads", "-o", "name"]));
}

#[test]
fn what_may_be_old_is_said_beside_the_data() {
    let fake = shop();
    fake.be_stale();
    assert_snapshot!(Program::of(&fake).run(&["get", "workload", "web"]));
    fake.reply(
        "GET /v1alpha1/namespaces/none",
        404,
        error("NotFound", "no"),
    );
    assert_snapshot!(Program::of(&fake).run(&["get", "namespace", "none"]));
}

#[test]
fn json_and_yaml_have_items_and_one_is_the_item() {
    let fake = Fake::start();
    let mut space = namespace("default", 2);
    space["metadata"]["creationTimestamp"] = "2026-11-20T10:00:00Z".into();
    fake.list("/v1alpha1/namespaces", std::slice::from_ref(&space));
    fake.reply("GET /v1alpha1/namespaces/default", 200, space);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["get", "ns", "-o", "json"]));
    assert_snapshot!(program.run(&["get", "ns", "-o", "yaml"]));
    assert_snapshot!(program.run(&["get", "ns", "default", "-o", "json"]));
}

#[test]
fn every_kind_has_its_columns() {
    let fake = shop();
    fake.list(
        "/v1alpha1/nodes",
        &[node("a", "Ready", &["leader", "etcd", "worker"])],
    );
    fake.list(
        "/v1alpha1/namespaces",
        &[namespace("default", 2), namespace("kat-core", 0)],
    );
    fake.list(
        "/v1alpha1/events",
        &[
            event(
                "2",
                "Warning",
                "ImagePullFailed",
                ("Instance", "web-bbbbb"),
                "manifest unknown\nno such tag",
            ),
            event(
                "1",
                "Normal",
                "Scheduled",
                ("Workload", "web"),
                "placed on a",
            ),
        ],
    );
    fake.list(
        "/v1alpha1/tokens",
        &[json!({"id": "t1", "name": "ci", "created": ago(90_000),
        "scope": {"kind": "deploy", "namespace": "shop"}})],
    );
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["get", "instances"]));
    assert_snapshot!(program.run(&["get", "inst", "-o", "wide"]));
    assert_snapshot!(program.run(&["get", "nodes"]));
    assert_snapshot!(program.run(&["get", "node", "-o", "wide"]));
    assert_snapshot!(program.run(&["get", "namespaces"]));
    assert_snapshot!(program.run(&["get", "events"]));
    assert_snapshot!(program.run(&["get", "events", "web"]));
    assert_snapshot!(program.run(&["get", "tokens"]));
    assert!(
        fake.asked()
            .contains(&"GET /v1alpha1/events?namespace=default".to_owned())
    );
}

/// A cluster with long names, as people have them.
fn of_a_real_size() -> Fake {
    let fake = Fake::start();
    let digest = "0123456789abcdef".repeat(4);
    let mut web = instance("web-aaaaa", "Running");
    web["status"]["health"] = "pending_check".into();
    web["status"]["image"] = format!("registry.lab:5000/shop/web@sha256:{digest}").into();
    let pulling = troubled(
        instance("web-bbbbb", "Pulling"),
        "ImageNotFound",
        "manifest unknown",
    );
    let mut lost = instance("web-ccccc", "Unknown");
    lost["status"]["health"] = "healthy".into();
    fake.list(INSTANCES, &[web, pulling, lost]);
    let machine = |name: &str, roles: &[&str]| {
        let mut machine = node(name, "Ready", roles);
        machine["status"]["allocatable"]["memory"] = "24684084Ki".into();
        machine
    };
    let roles = ["leader", "etcd", "worker"];
    fake.list(
        "/v1alpha1/nodes",
        &[machine("n1", &roles), machine("n2", &["worker"])],
    );
    let message =
        "the program ended with exit code 3; last lines: no database at 10.0.0.1 | giving up";
    let events = [event(
        "1",
        "Warning",
        "CrashLoop",
        ("Instance", "web-aaaaa"),
        message,
    )];
    fake.list("/v1alpha1/events", &events);
    let web = because(
        workload("web", "Degraded", [3, 1, 3]),
        "ImageNotFound",
        "no such image",
    );
    fake.list(WORKLOADS, &[web]);
    fake
}

#[test]
fn lists_fit_a_terminal_of_80_columns_and_one_of_120() {
    for columns in [80, 120] {
        let fake = of_a_real_size();
        let program = Program::of(&fake).variable("COLUMNS", &columns.to_string());
        for kind in ["instances", "nodes", "workloads", "events"] {
            let text = program.run(&["get", kind]);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest.is_some_and(|widest| widest <= columns), "{text}");
            assert_snapshot!(format!("{kind} at {columns} columns"), text);
        }
    }
}

/// A program that reads a pipe gets every word.
#[test]
fn a_pipe_gets_whole_messages() {
    let fake = of_a_real_size();
    let text = Program::of(&fake).run(&["get", "events"]);
    assert!(
        text.contains("no database at 10.0.0.1 | giving up"),
        "{text}"
    );
}

#[test]
fn what_does_not_apply_is_a_dash_and_sizes_and_digests_are_short() {
    let fake = of_a_real_size();
    let program = Program::of(&fake);
    let instances = program.run(&["get", "instances", "-o", "wide"]);
    assert!(!instances.contains("not_applicable"), "{instances}");
    assert!(
        !instances.contains("healthy"),
        "its machine does not answer: {instances}"
    );
    assert!(
        instances.contains("shop/web@sha256:0123456789ab\n"),
        "{instances}"
    );
    let nodes = program.run(&["get", "nodes", "-o", "wide"]);
    assert!(nodes.contains("23.5Gi"), "{nodes}");
}

#[test]
fn an_output_format_that_is_not_known_is_told_of_the_template() {
    let program = Program::of(&shop());
    let text = program.run(&[
        "get",
        "workloads",
        "-o",
        "custom-columns=NAME:.metadata.name",
    ]);
    assert!(text.starts_with("exit: 2\n"), "{text}");
    assert!(text.contains("jsonpath="), "{text}");
    let text = program.run(&[
        "get",
        "workloads",
        "-o",
        "jsonpath={range .items[*]}{.metadata.name}{end}",
    ]);
    assert!(
        text.contains("`{range .items[*]}` is not supported"),
        "{text}"
    );
}

#[test]
fn nothing_there_is_said_on_stderr() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[]);
    fake.list("/v1alpha1/nodes", &[]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["get", "workloads"]), @r"
    exit: 0
    --- stderr
    no workloads in namespace default
    ");
    assert_snapshot!(program.run(&["get", "nodes"]), @r"
    exit: 0
    --- stderr
    no nodes
    ");
    assert_snapshot!(program.run(&["get", "workloads", "-o", "json"]), @r#"
    exit: 0
    --- stdout
    {
      "items": []
    }
    "#);
}

#[test]
fn what_is_not_there_ends_with_3_and_a_proposal() {
    let fake = shop();
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["get", "workload", "wbe"]), @r"
    exit: 3
    --- stderr
    error: there is no workload `wbe` in namespace `default`

    hint: did you mean `web`?
    ");
    assert_snapshot!(program.run(&["get", "workload", "mail"]), @r"
    exit: 3
    --- stderr
    error: there is no workload `mail` in namespace `default`

    hint: `katcall get workloads -A` lists those of all namespaces
    ");
}

#[test]
fn wrong_usage_ends_with_2() {
    let program = Program::alone();
    assert_snapshot!(program.run(&["get", "workloadz"]), @r"
    exit: 2
    --- stderr
    error: `workloadz` is not a kind

    hint: did you mean `workloads`?
    ");
    assert_snapshot!(program.run(&["get", "pods"]));
    assert_snapshot!(program.run(&["gte", "workloads"]));
    for (words, hint) in [
        (&["statsu"][..], "did you mean `status`?"),
        (&["undo", "web"], "`katcall rollback` goes back"),
        (&["up"], "`katcall apply -f DIR`"),
        (&["get"], "kinds are workloads, instances, nodes"),
        (&["get", "pods"], "KAT has `instances`"),
        (&["get", "web"], "an object is written KIND/NAME"),
        (&["get", "shop/web"], "it is written KIND/NAME or"),
        (&["get", "wl,pods"], "KAT has `instances`"),
        (&["get", "wl,inst", "web"], "are written KIND/NAME"),
        (
            &["get", "volumes", "-l", "a=b"],
            "`--label` selects workloads",
        ),
        (&["get", "wl", "web", "-l", "a=b"], "exclude each other"),
        (&["get", "wl,inst", "--watch"], "of workloads, instances"),
        (
            &["rollout", "xyz"],
            "`katcall rollout --help` lists the commands",
        ),
        (&["xyz"], "`katcall --help` lists the commands"),
        (&["exec", "web", "ls", "/"], "`katcall exec web -- ls /`"),
        (&["exec", "ls", "ls"], "the command goes after `--`"),
    ] {
        let text = program.run(words);
        assert!(text.starts_with("exit: 2\n"), "{words:?}: {text}");
        assert!(text.contains(hint), "{words:?}: {text}");
    }
    assert_snapshot!(program.run(&["get", "workloads", "--wathc"]));
    assert_snapshot!(program.run(&["get", "workloads", "-o", "xml"]));
    assert_snapshot!(program.run(&["get", "workloads", "-n", "Shop"]));
    assert_snapshot!(program.run(&["get", "workload", "a/../b"]));
    assert_snapshot!(program.run(&["get", "workloads", "web", "-A"]));
}

#[test]
fn a_refusal_ends_with_1_and_a_silent_cluster_with_4() {
    let fake = Fake::start();
    let forbidden = json!({"error": "Forbidden", "message": "a token with scope read may not do this",
        "hint": "use a token with scope admin"});
    fake.reply("GET /v1alpha1/nodes", 403, forbidden);
    assert_snapshot!(Program::of(&fake).run(&["get", "nodes"]), @r"
    exit: 1
    --- stderr
    error: a token with scope read may not do this

    hint: use a token with scope admin
    ");
    assert_snapshot!(Program::alone().run(&["get", "nodes"]), @r"
    exit: 4
    --- stderr
    error: the cluster cannot be reached: [SOCKET]: connection refused

    hint: on the machine, `systemctl status kat-agent` says whether it runs
    ");
    let nowhere = Program::alone().variable("KAT_CONNECTION", "/nonexistent/admin.conf");
    assert_snapshot!(nowhere.run(&["get", "nodes"]), @r"
    exit: 4
    --- stderr
    error: connection `/nonexistent/admin.conf`: no such file or directory
    ");
}

#[test]
fn a_watch_shows_every_change_and_survives_a_break() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[workload("web", "Pending", [1, 0, 0])]);
    let program = Program::of(&fake);
    let mut running = program.spawn(&["get", "workloads", "--watch"]);
    running.stdout_says("Pending");
    fake.change(
        WORKLOADS,
        "MODIFIED",
        &workload("web", "Running", [1, 1, 1]),
    );
    running.stdout_says("Running");
    let second = [workload("db", "Pending", [1, 0, 0])];
    fake.list(WORKLOADS, &second);
    fake.send(&format!("WATCH {WORKLOADS}"), Piece::Cut);
    running.stdout_says("deleted");
    running.interrupt();
    assert_snapshot!(running.end());
}

#[test]
fn a_watch_in_json_is_one_change_a_line() {
    let fake = Fake::start();
    fake.list("/v1alpha1/namespaces", &[]);
    let program = Program::of(&fake);
    let mut running = program.spawn(&["get", "ns", "--watch", "-o", "json"]);
    running.stderr_says("no namespaces");
    let mut space = namespace("shop", 0);
    space["metadata"]["creationTimestamp"] = "2026-11-20T10:00:00Z".into();
    fake.change("/v1alpha1/namespaces", "ADDED", &space);
    running.stdout_says("ADDED");
    fake.change("/v1alpha1/namespaces", "DELETED", &space);
    running.stdout_says("DELETED");
    running.interrupt();
    assert_snapshot!(running.end());
}

#[test]
fn a_watch_that_is_refused_later_ends_with_its_reason() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[]);
    fake.reply(
        &format!("GET {WORKLOADS}"),
        401,
        error("Unauthorized", "the token was revoked"),
    );
    fake.send(&format!("WATCH {WORKLOADS}"), Piece::End);
    assert_snapshot!(Program::of(&fake).run(&["get", "workloads", "-w"]), @r"
    exit: 1
    --- stderr
    no workloads in namespace default
    error: the token was revoked

    hint: an administrator makes another token with `katcall token create`; `katcall context list` shows which connection is used
    ");
}

#[test]
fn a_terminal_gets_colours_unless_they_are_not_wanted() {
    let fake = shop();
    let (code, text) = Program::of(&fake).run_on_terminal(&["get", "workloads"]);
    assert_eq!(code, 0);
    assert!(text.contains("\u{1b}["), "{text:?}");
    let (_, plain) = Program::of(&fake)
        .variable("NO_COLOR", "1")
        .run_on_terminal(&["get", "workloads"]);
    assert!(!plain.contains('\u{1b}'), "{plain:?}");
    let piped = Program::of(&fake).run(&["get", "workloads"]);
    assert!(
        piped.contains(&plain.replace("\r\n", "\n")),
        "{plain:?} {piped:?}"
    );
}

#[test]
fn a_reader_that_left_is_no_failure() {
    let fake = shop();
    fake.hold();
    let mut child = Program::of(&fake)
        .command(&["get", "workloads"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    fake.release();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
