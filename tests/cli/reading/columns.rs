//! Every command that reads, on terminals of 80 and of 120 columns: no line is wider than the
//! terminal, and no name of a machine is cut.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{fake_api::Fake, fixtures::*, run_katcall::Program};

const EVENTS: &str = "/v1alpha1/events";
/// A name that is as long as people make them.
const MACHINE: &str = "cellar-rack-2";
const LONG: &str = "web-frontend-bbbbb";

/// A cluster of a real size and in trouble, whose texts do not fit into 80 columns.
fn cluster() -> Fake {
    let fake = Fake::start();
    fake.reply("GET /version", 200, json!({"version": "0.1.0"}));
    fake.reply(
        "GET /v1alpha1/config/cluster",
        200,
        json!({"metadata": {"name": "home"}, "spec": {}}),
    );
    let manifest = "Error: initializing source docker://registry.lab:5000/shop/web-frontend:1: \
                    reading manifest 1 in registry.lab:5000/shop/web-frontend: manifest unknown";
    let on = |mut item: Value| {
        item["status"]["node"] = MACHINE.into();
        item
    };
    let mut runs = on(instance("web-frontend-aaaaa", "Running"));
    runs["status"]["image"] = format!(
        "registry.lab:5000/shop/web-frontend@sha256:{}",
        "0123456789abcdef".repeat(4)
    )
    .into();
    let mut pulls = on(troubled(
        instance(LONG, "Pulling"),
        "ImagePullFailed",
        manifest,
    ));
    pulls["status"]["restarts"] = 12.into();
    let instances = [runs, pulls.clone()];
    let web = because(
        workload("web-frontend", "Degraded", [2, 1, 1]),
        "ImagePullFailed",
        &format!("{LONG}: {manifest}"),
    );
    let db = workload("db", "Running", [1, 1, 1]);
    let workloads = [web.clone(), db];
    for path in [WORKLOADS, "/v1alpha1/workloads"] {
        fake.list(path, &workloads);
    }
    for path in [
        INSTANCES,
        "/v1alpha1/instances",
        "/v1alpha1/n/default/workloads/web-frontend/instances",
    ] {
        fake.list(path, &instances);
    }
    fake.reply("GET /v1alpha1/n/default/workloads/web-frontend", 200, web);
    fake.reply(&format!("GET {INSTANCES}/{LONG}"), 200, pulls);
    let mut lost = node(MACHINE, "NotReady", &["leader", "etcd", "worker"]);
    lost["status"]["reason"] = "NoHeartbeat".into();
    lost["status"]["message"] =
        format!("machine {MACHINE} has not reported for 60 s, and others get no answer from it")
            .into();
    let lost = with_peers(with_member(
        lost,
        false,
        "NoAnswer",
        "its etcd does not answer",
    ));
    fake.list(
        "/v1alpha1/nodes",
        &[lost.clone(), node("n2", "Ready", &["etcd", "worker"])],
    );
    fake.reply(&format!("GET /v1alpha1/nodes/{MACHINE}"), 200, lost);
    fake.list(
        "/v1alpha1/namespaces",
        &[
            namespace("default", 2),
            namespace("a-namespace-with-a-long-name", 0),
        ],
    );
    fake.list(
        VOLUMES,
        &[volume("web-frontend", "uploads-of-customers", "Bound")],
    );
    fake.list(
        EVENTS,
        &[
            event(
                "1",
                "Normal",
                "Updated",
                ("Workload", "web-frontend"),
                "generation 2 was applied by socket:root",
            ),
            event(
                "2",
                "Warning",
                "ImagePullFailed",
                ("Instance", LONG),
                manifest,
            ),
            event(
                "3",
                "Warning",
                "NodeNotReady",
                ("Node", MACHINE),
                "it has not reported for 60 s",
            ),
        ],
    );
    fake.list("/v1alpha1/n/default/routes", &[]);
    fake.list(
        "/v1alpha1/n/default/secrets",
        &[json!({"kind": "Secret",
            "metadata": {"name": "database-credentials", "namespace": "default", "uid": "u",
                "generation": 3, "resourceVersion": "1", "creationTimestamp": ago(130)},
            "spec": {"keys": [{"name": "PASSWORD", "size": 15}]},
            "status": {"updated": ago(70), "behind": [],
                "usedBy": ["web-frontend", "db", "worker-of-the-night", "reports"]}})],
    );
    fake.list(
        "/v1alpha1/tokens",
        &[json!({"id": "5vb7pkb71n2v", "name": "the pipeline of the shop, made by the team of the shop",
            "created": ago(90_000), "scope": {"kind": "deploy", "namespace": "shop"}})],
    );
    let generation = |number: u64, image: &str| {
        json!({"generation": number, "applied": "2026-11-20T10:00:00Z", "by": "token:5vb7pkb71n2v",
            "origin": "Scaled", "image": image, "replicas": 3, "good": true,
            "current": number == 4})
    };
    let image = format!(
        "registry.lab:5000/shop/web-frontend:2@sha256:{}",
        "0".repeat(64)
    );
    fake.list(
        "/v1alpha1/n/default/workloads/web-frontend/generations",
        &[
            generation(3, "registry.lab:5000/shop/web-frontend:1"),
            generation(4, &image),
        ],
    );
    let configuration = json!({"metadata": {"name": "home"}, "spec": {"mtu": 1380}});
    let changes = json!([
        {"setting": "nodeLossTimeoutSeconds", "before": "60", "after": "90", "effect": ""},
        {"setting": "backupIntervalMinutes", "before": "60", "after": "30", "effect": ""},
        {"setting": "mtu", "before": "1420", "after": "1380", "effect": ""},
    ]);
    fake.reply(
        "GET /v1alpha1/config/cluster/revisions",
        200,
        json!({"resourceVersion": "7", "revisions": [
            {"number": 1, "madeBy": "init", "configuration": configuration},
            {"number": 2, "madeAt": "2026-11-20T10:00:00Z", "madeBy": "token the-pipeline-of-the-shop",
                "configuration": configuration, "changes": changes}]}),
    );
    fake
}

/// The lines of stdout that are wider than the terminal.
fn too_wide(text: &str, columns: usize) -> Vec<&str> {
    let stdout = text.split("--- stderr\n").next().unwrap();
    let lines = stdout.lines();
    lines
        .filter(|line| line.chars().count() > columns)
        .collect()
}

/// Commands that read, without those whose output is a file or a stream.
fn commands() -> Vec<Vec<&'static str>> {
    [
        "get workloads",
        "get instances",
        "get nodes",
        "get namespaces",
        "get volumes",
        "get secrets",
        "get events",
        "get tokens",
        "get all",
        "get instances -A",
        "ps",
        "events",
        "history web-frontend",
        "describe web-frontend",
        "describe node/cellar-rack-2",
        "why web-frontend",
        "why instance/web-frontend-bbbbb",
        "why node/cellar-rack-2",
        "status",
        "config history",
        "token list",
        "explain workload.spec",
        "explain workload.spec.container --recursive",
        "explain --search port",
        "explain Unschedulable",
    ]
    .map(|line| line.split(' ').collect())
    .into()
}

#[test]
fn no_line_is_wider_than_the_terminal_and_no_machine_is_cut() {
    for columns in [80, 120] {
        let fake = cluster();
        let program = Program::of(&fake).variable("COLUMNS", &columns.to_string());
        for words in commands() {
            let line = words.join(" ");
            // Three names that stay whole take 56 columns here.
            let three_names = ["get instances -A", "describe node/cellar-rack-2"];
            if three_names.contains(&&*line) && columns == 80 {
                continue;
            }
            let text = program.run(&words);
            assert!(!text.contains("the fake has no"), "{line}: {text}");
            assert!(!text.contains("not_applicable"), "{line}: {text}");
            // The commands of systemd stay whole, to be copied.
            let wide = too_wide(&text, columns);
            let wide: Vec<_> = wide
                .iter()
                .filter(|line| {
                    let line = line.trim_start();
                    !line.starts_with("systemctl ") && !line.starts_with("journalctl ")
                })
                .collect();
            assert!(wide.is_empty(), "{line} at {columns} columns: {wide:#?}");
            if ["get instances", "get nodes", "ps", "describe web-frontend"].contains(&&*line) {
                assert!(text.contains(&format!("{MACHINE} ")), "{line}: {text}");
            }
        }
    }
}

/// Jobs with their runs, routes and virtual addresses, with texts as people have them.
fn of_jobs_and_routes() -> Fake {
    let fake = Fake::start();
    let job = |name: &str, status: Value| {
        let mut item = workload(name, "Scheduled", [1, 0, 0]);
        item["spec"]["type"] = "Job".into();
        item["spec"]["job"] = json!({"schedule": "15 3 * * *", "timeZone": "Europe/Berlin"});
        item["status"]["job"] = status;
        item
    };
    let last = || {
        json!({"active": 0, "lastNumber": 12, "lastPhase": "Succeeded",
        "lastFinished": ago(75_000), "next": ago(-10_830)})
    };
    let mut suspended = last();
    suspended["suspended"] = true.into();
    let mut due = last();
    due["next"] = ago(5).into();
    let jobs = [
        job("backup", last()),
        job("reports", suspended),
        job("sweep", due),
        workload("web", "Running", [1, 1, 1]),
    ];
    fake.list(WORKLOADS, &jobs);
    let run = |number: u64, phase: &str, reason: &str| {
        json!({"kind": "Run",
            "metadata": {"name": format!("backup-{number}"), "namespace": "default"},
            "spec": {"workload": "backup", "number": number, "cause": "Schedule",
                "scheduled": "2026-11-20T03:15:00Z", "completions": 1, "parallelism": 1},
            "status": {"phase": phase, "reason": reason, "message": "the words of it",
                "started": ago(75_100), "finished": ago(75_000),
                "succeeded": u32::from(phase == "Succeeded"),
                "failed": u32::from(phase == "Failed"), "exitCode": 3}})
    };
    let runs = [
        run(11, "Failed", "ProgramFailed"),
        run(12, "Succeeded", "Succeeded"),
    ];
    fake.list("/v1alpha1/n/default/runs", &runs);
    let route = |host: &str, to: &str, reason: &str| {
        json!({"kind": "Route", "metadata": {"name": format!("{host}/"), "namespace": "default"},
            "spec": {"workload": "web-frontend", "host": host, "path": "/", "to": to,
                "issuer": "internal"},
            "status": {"served": reason == "Served", "reason": reason, "serving": 2, "instances": 3}})
    };
    let routes = [
        route("example.org", "port 8080", "Served"),
        route(
            "www.example.org",
            "redirect to https://example.org",
            "TlsNotReady",
        ),
    ];
    fake.list("/v1alpha1/n/default/routes", &routes);
    let address = json!({"kind": "VirtualAddress", "metadata": {"name": "192.168.1.9"},
        "spec": {"address": "192.168.1.9/24", "interface": "auto", "onLeaderLoss": "keep"},
        "status": {"holder": MACHINE, "held": true, "since": ago(130)}});
    fake.list("/v1alpha1/virtual-addresses", &[address]);
    fake
}

#[test]
fn lists_of_jobs_runs_routes_and_addresses_fit_too() {
    for columns in [80, 120] {
        let fake = of_jobs_and_routes();
        let program = Program::of(&fake).variable("COLUMNS", &columns.to_string());
        for (kind, shown) in [
            ("jobs", &["in 3h", "suspended", "due"][..]),
            ("runs", &["backup-11", "Failed"][..]),
            ("routes", &["www.example.org"][..]),
            ("addresses", &[MACHINE, "Held"][..]),
        ] {
            let text = program.run(&["get", kind]);
            assert!(text.starts_with("exit: 0\n"), "{kind}: {text}");
            for word in shown {
                assert!(text.contains(word), "{word} of {kind}: {text}");
            }
            let wide = too_wide(&text, columns);
            assert!(wide.is_empty(), "{kind} at {columns} columns: {wide:#?}");
            assert_snapshot!(format!("get-{kind} at {columns} columns"), text);
        }
    }
}

#[test]
fn screens_of_80_and_120_columns() {
    for columns in [80, 120] {
        let fake = cluster();
        let program = Program::of(&fake).variable("COLUMNS", &columns.to_string());
        for line in [
            "get workloads",
            "get namespaces",
            "get volumes",
            "get secrets",
            "get events",
            "get all",
            "ps",
            "history web-frontend",
            "describe web-frontend",
            "why web-frontend",
            "status",
            "config history",
            "token list",
            "explain Unschedulable",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let text = program.run(&words);
            let name = line.replace(' ', "-");
            assert_snapshot!(format!("{name} at {columns} columns"), text);
        }
    }
}

/// A plan is read on a terminal too; differences of files stay as they are.
#[test]
fn a_plan_fits_a_terminal_but_for_differences_of_files() {
    let mut answer = applied("updated", "web");
    answer["metadata"]["generation"] = 4.into();
    let fits = "0 of 2 machines fit: 2 without enough memory left; memory: asks 100Gi, the largest machine has 23.5Gi \
                in all";
    answer["preview"] = json!({
        "presentGeneration": 3, "templateChanged": true, "complete": true, "blocked": fits,
        "rollout": "at most 1 at a time, each stops when its successor is healthy, and then the next one follows",
        "fields": [{"file": "workload.kat", "path": "spec.container.args",
            "before": ["--a-long-option=with-a-value"],
            "after": ["--a-long-option=with-a-value", "--another-option=with-another-value", "--third"]}],
        "files": [{"path": "conf/a", "diff": format!("--- conf/a\n+++ conf/a\n@@ -1 +1 @@\n-one\n+{}\n", "two ".repeat(40))}],
        "instances": [{"action": "Keep", "slot": 0, "instance": "web-aaaaa", "node": "n1",
            "reason": fits}],
        "units": [],
    });
    for columns in [80, 120] {
        let fake = Fake::start();
        fake.reply(&format!("PUT {WEB}"), 200, answer.clone());
        let program = Program::of(&fake).variable("COLUMNS", &columns.to_string());
        program.file("web/workload.kat", &workload_file("web"));
        let text = program.run(&["plan", "-f", "web"]);
        // A value that is one word stays whole.
        let mut wide = too_wide(&text, columns);
        wide.retain(|line| line.trim_start().contains(' '));
        assert_eq!(wide.len(), 1, "{wide:#?}");
        assert!(wide[0].starts_with("    +two two"), "{wide:#?}");
        assert!(text.contains("asks 100Gi"), "{text}");
    }
}

/// A pipe has no width: programs get whole lines.
#[test]
fn a_pipe_gets_lines_that_are_not_broken() {
    let fake = cluster();
    let text = Program::of(&fake).run(&["why", "web-frontend"]);
    assert!(
        text.contains(
            "reading manifest 1 in registry.lab:5000/shop/web-frontend: manifest unknown\n"
        ),
        "{text}"
    );
}
