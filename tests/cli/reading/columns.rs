//! Every command that reads, on terminals of 80 and of 120 columns: no line is wider than the
//! terminal, and no name of a machine is cut.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::Fake, fixtures::*, namespaces_tokens_contexts::connection, run_katcall::Program,
};

const EVENTS: &str = "/v1alpha1/events";
/// A name that is as long as people make them.
const MACHINE: &str = "cellar-rack-2";
const LONG: &str = "web-frontend-bbbbb";

/// Commands with a screen at each width, by what the cluster of it has.
const OF_THE_CLUSTER: [&str; 26] = [
    "get workloads",
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
    "describe instance/web-frontend-bbbbb",
    "describe node/cellar-rack-2",
    "describe namespace/default",
    "describe secret/database-credentials",
    "describe volume/web-frontend/uploads-of-customers",
    "why web-frontend",
    "why instance/web-frontend-bbbbb",
    "why node/cellar-rack-2",
    "status",
    "rollout status web-frontend",
    "config history",
    "token list",
    "explain workload.spec.restartPolicy",
    "explain Unschedulable",
];
const OF_ROUTES_AND_ADDRESSES: [&str; 4] = [
    "describe route www.example.org",
    "describe address 192.168.1.9",
    "why route www.example.org",
    "why address 192.168.1.9",
];
const OF_ADMINISTRATORS: [&str; 5] = [
    "ca list",
    "registry list",
    "why isolation",
    "top instances",
    "top nodes",
];
const OF_SETTINGS: [&str; 3] = ["config get", "config get mtu", "version"];
/// Commands whose screens have a test of their own here.
pub(crate) const ON_THEIR_OWN: [&str; 3] = ["ca exposed", "context list", "plan"];

/// All lines whose screens are compared here.
pub(crate) fn compared() -> impl Iterator<Item = &'static str> {
    OF_THE_CLUSTER
        .into_iter()
        .chain(OF_ROUTES_AND_ADDRESSES)
        .chain(OF_ADMINISTRATORS)
        .chain(OF_SETTINGS)
        .chain(ON_THEIR_OWN)
}

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
    lost["status"]["lastHeartbeat"] = ago(75).into();
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
    fake.reply(
        "GET /v1alpha1/namespaces/default",
        200,
        namespace("default", 2),
    );
    let uploads = volume("web-frontend", "uploads-of-customers", "Bound");
    fake.list(VOLUMES, std::slice::from_ref(&uploads));
    fake.reply(
        "GET /v1alpha1/n/default/workloads/web-frontend/volumes/uploads-of-customers",
        200,
        uploads,
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
    let mut secret = json!({"kind": "Secret",
        "metadata": {"name": "database-credentials", "namespace": "default", "uid": "u",
            "generation": 3, "resourceVersion": "1", "creationTimestamp": ago(130)},
        "spec": {"keys": [{"name": "PASSWORD", "size": 15}]},
        "status": {"updated": ago(70), "behind": [],
            "usedBy": ["web-frontend", "db", "worker-of-the-night", "reports"]}});
    fake.list("/v1alpha1/n/default/secrets", std::slice::from_ref(&secret));
    // The page of a secret has the whole time.
    secret["status"]["updated"] = "2026-11-20T10:00:00Z".into();
    fake.reply(
        "GET /v1alpha1/n/default/secrets/database-credentials",
        200,
        secret,
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

/// Compares a screen with the stored one. No line of it is wider than the terminal.
fn check_screen(program: &Program, line: &str, columns: usize) {
    let words: Vec<&str> = line.split(' ').collect();
    let text = program.run(&words);
    assert!(text.starts_with("exit: 0\n"), "{line}: {text}");
    assert!(!text.contains("the fake has no"), "{line}: {text}");
    let wide = too_wide(&text, columns);
    assert!(wide.is_empty(), "{line} at {columns} columns: {wide:#?}");
    let name = line.replace([' ', '/'], "-");
    assert_snapshot!(format!("{name} at {columns} columns"), text);
}

/// Words of a table that are used in other commands are whole, and so is each text of a page.
fn check_whole_names(line: &str, text: &str) {
    let object = format!("Instance default/{LONG}");
    for (lines, name) in [
        (
            &["get instances", "get instances -A", "get all", "ps"][..],
            "ImagePullFailed",
        ),
        (
            &["get events", "events", "status", "describe web-frontend"][..],
            object.as_str(),
        ),
        (&["get nodes"][..], "leader,etcd,worker"),
        (&["history web-frontend"][..], "/web-frontend:1"),
        (&["history web-frontend"][..], "/web-frontend:2"),
        (&["get secrets"][..], "web-frontend,db"),
    ] {
        assert!(
            !lines.contains(&line) || text.contains(name),
            "{name} in {line}: {text}"
        );
    }
    assert!(
        !line.starts_with("describe ") || !text.contains('…'),
        "{line}: {text}"
    );
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
        "describe namespace/default",
        "describe secret/database-credentials",
        "describe volume/web-frontend/uploads-of-customers",
        "why web-frontend",
        "why instance/web-frontend-bbbbb",
        "why node/cellar-rack-2",
        "status",
        "rollout status web-frontend",
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
            // Three names and a reason that stay whole take 80 columns here, below a section.
            if line == "describe node/cellar-rack-2" && columns == 80 {
                continue;
            }
            let text = program.run(&words);
            assert!(!text.contains("the fake has no"), "{line}: {text}");
            check_whole_names(&line, &text);
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

/// Jobs with their runs, routes and virtual addresses, with texts as people have them. `next` is the next
/// time of the schedules, and `due` that of a Job whose run is late.
fn of_jobs_and_routes(next: &str, due: &str) -> Fake {
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
        "lastFinished": ago(75_000), "next": next})
    };
    let mut suspended = last();
    suspended["suspended"] = true.into();
    let mut late = last();
    late["next"] = due.into();
    let jobs = [
        job("backup", last()),
        job("reports", suspended),
        job("sweep", late),
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
        let waits = match reason {
            "Served" => "",
            _ => "its certificate has not been made yet, and requests get a page that says so",
        };
        json!({"kind": "Route", "metadata": {"name": format!("{host}/"), "namespace": "default"},
            "spec": {"workload": "web-frontend", "host": host, "path": "/", "to": to,
                "issuer": "internal"},
            "status": {"served": reason == "Served", "reason": reason, "serving": 2, "instances": 3,
                "machines": [{"node": MACHINE, "serves": reason == "Served", "holdsKey": false,
                    "message": waits}],
                "addresses": ["192.0.2.11", "192.0.2.12"]}})
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
        "status": {"holder": MACHINE, "held": true, "since": ago(130), "machines": [
            {"node": MACHINE, "state": "Held", "interface": "enp3s0"},
            {"node": "n2", "state": "Unknown",
                "message": "no interface of this machine has an address of the network of 192.168.1.9/24"}]}});
    fake.list("/v1alpha1/virtual-addresses", &[address]);
    fake.list(EVENTS, &[]);
    fake
}

#[test]
fn lists_of_jobs_runs_routes_and_addresses_fit_too() {
    for columns in [80, 120] {
        let fake = of_jobs_and_routes(&ago(-10_830), &ago(5));
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
        for line in OF_ROUTES_AND_ADDRESSES {
            check_screen(&program, line, columns);
        }
    }
}

/// What administrators look at: authorities, registries, isolation, and what instances use.
fn of_administration() -> Fake {
    let fake = Fake::start();
    let authority = |name: &str, phase: &str, message: &str| {
        json!({"name": name, "fingerprint": "0123456789abcdef", "phase": phase, "message": message,
            "notAfter": ago(-3600 * 24 * 3649 - 60), "since": ago(7300), "replacementSince": "",
            "certificates": [{"name": MACHINE, "expires": ago(-3600 * 24 * 20)}]})
    };
    let waits =
        format!("being replaced, because somebody asked for it; etcd of {MACHINE} restarts");
    let mut replaced = authority("etcd-client-ca", "Trust", &waits);
    replaced["replacementSince"] = ago(75).into();
    replaced["next"] = "fedcba9876543210".into();
    fake.list(
        "/v1alpha1/authorities",
        &[authority("cluster-ca", "Settled", ""), replaced],
    );
    fake.list(
        "/v1alpha1/registries",
        &[
            json!({"host": "docker.io", "insecure": false,
                "mirrors": ["mirror-of-the-house.example.org:5000/docker-hub", "mirror.example.net/hub"]}),
            json!({"host": "registry.lab:5000", "insecure": true, "mirrors": []}),
        ],
    );
    fake.list(
        "/v1alpha1/n/default/registries",
        &[
            json!({"registry": "registry.example.org/shop", "namespace": "default",
            "username": "the-pipeline-of-the-shop", "version": 1,
            "updated": "2026-11-20T10:00:00Z", "resourceVersion": "7"}),
        ],
    );
    let refused = json!({"from": {"namespace": "shop", "workload": "web-frontend"},
        "to": {"namespace": "default", "workload": "db"}, "protocol": "TCP", "port": 5432,
        "packets": 12, "last": ago(130), "passed": false, "machines": [MACHINE]});
    fake.reply(
        "GET /v1alpha1/isolation",
        200,
        json!({"mode": "Namespaces", "refused": [refused], "leftOut": 0,
            "machines": [{"name": MACHINE, "message": "kat-net does not say which rules are in force"}]}),
    );
    let mut web = instance(LONG, "Running");
    web["status"]["node"] = MACHINE.into();
    let instances = [web, instance("db-aaaaa", "Running")];
    for path in [INSTANCES, "/v1alpha1/instances"] {
        fake.list(path, &instances);
    }
    let roles = ["leader", "etcd", "worker"];
    let nodes = [
        node(MACHINE, "Ready", &roles),
        node("a", "Ready", &["worker"]),
    ];
    fake.list("/v1alpha1/nodes", &nodes);
    // A quarter of a processor in the second between two measurements.
    for (second, cpu) in [(0, 1_000_000_000_u64), (1, 1_250_000_000)] {
        let usage = |instances: &[&str]| {
            let instances = instances.iter().map(|id| {
                json!({"instance": id, "at": format!("2026-11-20T10:00:0{second}Z"), "cpu": cpu,
                    "memory": 3 << 20})
            });
            let instances: Vec<Value> = instances.collect();
            json!({"instances": instances, "away": []})
        };
        let all = usage(&[LONG, "db-aaaaa"]);
        fake.reply("GET /v1alpha1/n/default/usage", 200, all);
        for (node, id) in [(MACHINE, LONG), ("a", "db-aaaaa")] {
            let path = format!("GET /v1alpha1/nodes/{node}/usage");
            fake.reply(&path, 200, usage(&[id]));
        }
    }
    fake
}

#[test]
fn screens_of_administrators_fit_too() {
    for columns in [80, 120] {
        let fake = of_administration();
        let program = Program::of(&fake).variable("COLUMNS", &columns.to_string());
        for line in OF_ADMINISTRATORS {
            check_screen(&program, line, columns);
        }
    }
}

#[test]
fn contexts_fit_too() {
    let mut home: Value = serde_json::from_str(&connection("home", "")).unwrap();
    home["endpoints"] = json!([
        "192.0.2.11:9115",
        "192.0.2.12:9115",
        "192.0.2.13:9115",
        "cellar-rack-2.example.org:9115"
    ]);
    for columns in [80, 120] {
        let program = Program::alone()
            .variable("KAT_CONNECTION", "")
            .variable("COLUMNS", &columns.to_string());
        let file = program.file("home.conf", &home.to_string());
        for name in ["home", "the-cluster-in-the-cellar"] {
            let added = program.run(&["context", "add", name, "--file", &file]);
            assert!(added.starts_with("exit: 0\n"), "{added}");
        }
        check_screen(&program, "context list", columns);
    }
}

/// What is to be done has a command to copy: it stands below its row where the terminal is narrower.
#[test]
fn commands_of_exposed_values_stay_whole() {
    let value = |kind: &str, namespace: &str, name: &str| json!({"kind": kind, "namespace": namespace, "name": name, "updated": ago(7300)});
    let found = json!({"sealedSince": ago(3700), "unread": 1,
        "items": [value("Secret", "shop", "db"),
            value("RegistryLogin", "shop", "example.com"),
            value("Authority", "", "ingress-ca"),
            value("Token", "", "abcdefghijkl")]});
    for columns in [80, 120] {
        let fake = Fake::start();
        fake.reply("GET /v1alpha1/authorities/exposed", 200, found.clone());
        let program = Program::of(&fake).variable("COLUMNS", &columns.to_string());
        let text = program.run(&["ca", "exposed"]);
        for command in [
            "`katcall secret set db -n shop`\n",
            "`katcall registry login example.com -n shop`\n",
            "`katcall ca rotate ingress-ca`\n",
            "`katcall token revoke abcdefghijkl`\n",
        ] {
            assert!(text.contains(command), "{command} in {text}");
        }
        let wide = too_wide(&text, columns);
        assert!(wide.is_empty(), "{columns} columns: {wide:#?}");
        assert_snapshot!(format!("ca-exposed at {columns} columns"), text);
    }
}

#[test]
fn settings_and_versions_fit_too() {
    for columns in [80, 120] {
        let fake = cluster();
        let program = Program::of(&fake).variable("COLUMNS", &columns.to_string());
        for line in OF_SETTINGS {
            check_screen(&program, line, columns);
        }
    }
}

#[test]
fn lines_of_a_watch_fit_too() {
    for columns in [80, 120] {
        let fake = cluster();
        let program = Program::of(&fake).variable("COLUMNS", &columns.to_string());
        let mut running = program.spawn(&["get", "workloads", "-w"]);
        running.stdout_says("Degraded");
        let waits = because(
            workload("web-frontend", "Pending", [2, 0, 0]),
            "ImagePullFailed",
            &format!("{LONG}: {}", "the registry did not answer; ".repeat(5)),
        );
        fake.change(WORKLOADS, "MODIFIED", &waits);
        running.stdout_says("Pending");
        running.interrupt();
        let text = running.end();
        let rows = text.lines().filter(|line| line.contains("web-frontend "));
        assert_eq!(rows.count(), 2, "{text}");
        let wide = too_wide(&text, columns);
        assert!(wide.is_empty(), "{columns} columns: {wide:#?}");
        assert_snapshot!(format!("get-workloads-w at {columns} columns"), text);
    }
}

/// The column of the change takes the room of columns that say less; a name and a reason stay whole.
#[test]
fn a_watch_of_instances_fits_too() {
    for columns in [80, 120] {
        let fake = cluster();
        let program = Program::of(&fake).variable("COLUMNS", &columns.to_string());
        let mut running = program.spawn(&["get", "instances", "-w"]);
        running.stdout_says("ImagePullFailed");
        let mut restarted = troubled(instance(LONG, "Running"), "Unhealthy", "");
        restarted["status"]["node"] = MACHINE.into();
        restarted["status"]["restarts"] = 13.into();
        fake.change(INSTANCES, "MODIFIED", &restarted);
        running.stdout_says("changed");
        running.interrupt();
        let text = running.end();
        let wide = too_wide(&text, columns);
        assert!(wide.is_empty(), "{columns} columns: {wide:#?}");
        let row = text.lines().find(|line| line.starts_with("changed"));
        let words: Vec<&str> = row.unwrap().split_whitespace().collect();
        let mut expected = vec!["changed", LONG, MACHINE, "Running", "13", "Unhealthy"];
        if columns == 120 {
            expected.insert(4, "-");
            expected.push("2m");
        }
        assert_eq!(words, expected);
        assert_snapshot!(format!("get-instances-w at {columns} columns"), text);
    }
}

/// `-o wide` has whole texts: no terminal is wide enough for all of them.
#[test]
fn wide_lists_are_the_same_at_each_width() {
    let (next, due) = ("2126-11-20T03:15:00Z", "2026-11-20T03:15:00Z");
    for (fake, lists) in [
        (
            cluster(),
            &[
                "get workloads",
                "get instances",
                "get nodes",
                "get namespaces",
                "get volumes",
                "get secrets",
                "get events",
                "get tokens",
                "get all",
                "ps",
                "token list",
            ][..],
        ),
        (
            of_jobs_and_routes(next, due),
            &["get jobs", "get runs", "get routes", "get addresses"][..],
        ),
        (of_administration(), &["ca list", "registry list"][..]),
    ] {
        let narrow = Program::of(&fake).variable("COLUMNS", "80");
        let wider = Program::of(&fake).variable("COLUMNS", "120");
        for list in lists {
            let words: Vec<&str> = list.split(' ').chain(["-o", "wide"]).collect();
            let text = narrow.run(&words);
            assert!(text.starts_with("exit: 0\n"), "{list}: {text}");
            assert!(!text.contains('…'), "{list}: {text}");
            assert_eq!(text, wider.run(&words), "{list}");
            assert_snapshot!(format!("{} wide", list.replace(' ', "-")), text);
        }
    }
}

#[test]
fn screens_of_80_and_120_columns() {
    for columns in [80, 120] {
        let fake = cluster();
        let program = Program::of(&fake).variable("COLUMNS", &columns.to_string());
        for line in OF_THE_CLUSTER {
            let words: Vec<&str> = line.split(' ').collect();
            let text = program.run(&words);
            let name = line.replace([' ', '/'], "-");
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
        assert_snapshot!(format!("plan at {columns} columns"), text);
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

#[test]
fn sentences_of_stderr_are_broken_on_a_terminal_alone() {
    let program = Program::alone().variable("COLUMNS", "30");
    let hint =
        "`katcall apply -f DIR` updates workloads, the package `kat` on each machine updates KAT";
    let piped = program.run(&["upgrade"]);
    assert!(piped.contains(hint), "{piped}");
    let (code, shown) = program.run_on_terminal(&["upgrade"]);
    assert_eq!(code, 2, "{shown}");
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert!(words.join(" ").contains(hint), "{shown}");
    // A command stays on its line, to be copied.
    assert!(shown.contains("`katcall apply -f DIR`\r\n"), "{shown}");
    // Colours take no room.
    let mut plain = shown.lines().filter(|line| !line.contains('\u{1b}'));
    assert!(plain.all(|line| line.chars().count() <= 30), "{shown}");
}
