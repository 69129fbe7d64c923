//! Answers of commands that change something, on terminals of 80 and of 120 columns, and which commands
//! have such screens here or in `reading/columns.rs`.

use std::{collections::BTreeSet, fs::File, path::PathBuf, process::Stdio};

use insta::assert_snapshot;
use kat_bundle::{SourceFile, pack, settings::ClusterSetting};
use serde_json::{Value, json};

use super::{
    columns,
    fake_api::{Fake, error},
    fixtures::*,
    namespaces_tokens_contexts::connection,
    run_katcall::Program,
};

/// Names that are as long as people make them.
const MACHINE: &str = "cellar-rack-2";
const FRONTEND: &str = "/v1alpha1/n/default/workloads/web-frontend";
const UPLOADS: &str = "/v1alpha1/n/default/workloads/web-frontend/volumes/uploads-of-customers";
const BACKUP: &str = "/v1alpha1/n/default/workloads/nightly-backup";
const NEWS: &str =
    "image registry.lab:5000/shop/web-frontend:2: the registry did not answer within 10 s";
const PASSWORD_FILE: &str = "password";

/// Commands whose answers are compared together.
struct Family {
    name: &'static str,
    /// In the order in which they run.
    lines: &'static [&'static str],
    cluster: fn() -> Fake,
}

const FAMILIES: [Family; 14] = [
    Family {
        name: "folders",
        lines: &[
            "apply web-frontend",
            "apply shop --prune -l app=shop --yes",
            "apply web-frontend --dry-run=client",
            "new reports --image registry.lab:5000/shop/reports:1 -p 8080",
            "run registry.lab:5000/shop/web-frontend:1 -p 8080 --save saved",
            "export web-frontend",
            "export web-frontend -o out",
            "edit web-frontend",
        ],
        cluster: of_folders,
    },
    Family {
        name: "rollouts",
        lines: &[
            "restart web-frontend",
            "scale web-frontend --replicas 5",
            "stop web-frontend",
            "stop the-front-end-of-the-shop-in-the-north",
            "start web-frontend",
            "set image web-frontend=registry.lab:5000/shop/web-frontend:2",
            "rollback web-frontend",
            "rollout undo web-frontend --to 4",
            "rollout restart web-frontend",
            "rollout pause web-frontend",
            "rollout resume web-frontend",
            "wait workload/web-frontend --for phase=Running",
        ],
        cluster: of_rollouts,
    },
    Family {
        name: "jobs",
        lines: &[
            "job run nightly-backup -- --full",
            "job suspend nightly-backup",
            "job resume nightly-backup",
            "job cancel run/nightly-backup-12",
            "job cancel nightly-backup",
        ],
        cluster: of_jobs,
    },
    Family {
        name: "deletions",
        lines: &[
            "delete workload/web-frontend",
            "delete workload -l app=shop --yes",
            "delete volume/web-frontend/uploads-of-customers --yes",
            "delete namespace/shop --cascade",
            "delete secret/database-credentials",
            "delete node/cellar-rack-2",
            "delete route/www.example.org",
        ],
        cluster: of_deletions,
    },
    Family {
        name: "namespaces",
        lines: &[
            "create namespace shop",
            "namespace set shop instances=10",
            "namespace set shop isolation=Shared",
        ],
        cluster: of_namespaces,
    },
    Family {
        name: "machines",
        lines: &[
            "cordon cellar-rack-2",
            "drain cellar-rack-2",
            "uncordon cellar-rack-2",
            "label cellar-rack-2 disk=ssd",
            "taint cellar-rack-2 dedicated=db:NoSchedule",
        ],
        cluster: of_machines,
    },
    Family {
        name: "volumes",
        lines: &[
            "volume move web-frontend/uploads-of-customers --to cellar-rack-2 --no-wait",
            "volume move web-frontend/uploads-of-customers --cancel",
            "volume forget web-frontend/uploads-of-customers --on a --yes",
        ],
        cluster: of_volumes,
    },
    Family {
        name: "tokens",
        lines: &[
            "token create --scope deploy:shop --ttl 30d",
            "token create --join --uses 2",
            "token create --join --insecure-trust-network",
            "token revoke 5vb7pkb71n2v",
        ],
        cluster: of_tokens,
    },
    Family {
        name: "authorities",
        lines: &[
            "ca rotate etcd-client-ca",
            "ca rotate ingress-ca",
            "ca rotate recovery-key --wait",
            "ca trust",
            "ca trust --next",
            "ca migrate --without n4,n5",
        ],
        cluster: of_authorities,
    },
    Family {
        name: "registries",
        lines: &[
            "registry set registry.lab:5000 --insecure --mirror mirror.example.net/hub",
            "registry unset registry.lab:5000",
            "registry login registry.lab:5000 -u pipeline --password-stdin",
            "registry logout registry.lab:5000",
        ],
        cluster: of_registries,
    },
    Family {
        name: "secrets",
        lines: &[
            "secret set database-credentials PASSWORD=hunter2",
            "secret unset database-credentials PASSWORD",
            "secret rotate-key",
        ],
        cluster: of_secrets,
    },
    Family {
        name: "settings",
        lines: &[
            "config set mtu=1400 nodeLossTimeoutSeconds=90",
            "config set mtu=1400 --dry-run",
            "config unset mtu",
            "config edit",
            "config rollback 1",
        ],
        cluster: of_settings,
    },
    Family {
        name: "contexts",
        lines: &[
            "context add home --file home.conf",
            "context add the-cluster-in-the-cellar --file home.conf",
            "context use the-cluster-in-the-cellar",
            "context current",
            "context remove the-cluster-in-the-cellar",
        ],
        cluster: Fake::start,
    },
    Family {
        name: "refusals",
        lines: &[
            "apply web-frontend",
            "scale web-frontned --replicas 5",
            "delete volume/web-frontend/uploads-of-customers --yes",
            "drain cellar-rack-3",
            "config set mtu=1400",
        ],
        cluster: of_refusals,
    },
];

/// Commands without a screen at each width, and why.
const WITHOUT_SCREENS: [(&str, &str); 8] = [
    ("__complete", "words for the completion scripts of shells"),
    ("completion", "a script for a shell"),
    ("cp", "it prints nothing when it has copied all"),
    (
        "diff",
        "the same at each width, which a test of source.rs checks",
    ),
    ("exec", "what it prints is that of a program"),
    ("logs", "lines of programs are not broken"),
    ("man", "it writes files and prints nothing"),
    ("port-forward", "its line names the port that was free"),
];

fn applied_to(outcome: &str, name: &str, warnings: &[&str]) -> Value {
    let mut answer = applied(outcome, name);
    answer["warnings"] = json!(warnings);
    answer
}

fn labelled(name: &str) -> Value {
    let mut item = workload(name, "Running", [1, 1, 1]);
    item["metadata"]["labels"] = json!({"app": "shop"});
    item
}

fn of_folders() -> Fake {
    let fake = Fake::start();
    let answer = applied_to("updated", "web-frontend", &[NEWS]);
    fake.reply(&format!("PUT {FRONTEND}"), 200, answer);
    fake.reply(
        &format!("PUT {WORKLOADS}/db"),
        200,
        applied("unchanged", "db"),
    );
    let created = applied_to("created", "web-frontend", &[NEWS]);
    fake.reply(&format!("POST {WORKLOADS}"), 201, created);
    fake.list(WORKLOADS, &[labelled("web-frontend"), labelled("reports")]);
    fake.list(VOLUMES, &[volume("reports", "archive-of-reports", "Bound")]);
    let deleted = applied("deleting", "reports");
    fake.reply(&format!("DELETE {WORKLOADS}/reports"), 200, deleted);
    let stored = [SourceFile {
        name: "workload.kat".to_owned(),
        text: workload_file("web-frontend"),
    }];
    fake.archive(&format!("{FRONTEND}/source"), &pack(&stored).unwrap());
    fake
}

fn of_rollouts() -> Fake {
    let fake = Fake::start();
    let answer = || applied_to("updated", "web-frontend", &[NEWS]);
    for what in [
        "PUT restart",
        "PUT replicas",
        "PUT stop",
        "DELETE stop",
        "PUT image",
        "POST rollback",
        "PUT pause",
        "DELETE pause",
    ] {
        let (method, what) = what.split_once(' ').unwrap();
        fake.reply(&format!("{method} {FRONTEND}/{what}"), 200, answer());
    }
    let long = "the-front-end-of-the-shop-in-the-north";
    let stopped = applied("updated", long);
    fake.reply(&format!("PUT {WORKLOADS}/{long}/stop"), 200, stopped);
    fake.list(WORKLOADS, &[workload("web-frontend", "Running", [2, 2, 2])]);
    fake
}

fn of_jobs() -> Fake {
    let fake = Fake::start();
    let mut job = workload("nightly-backup", "Scheduled", [1, 0, 0]);
    job["spec"]["type"] = "Job".into();
    job["spec"]["job"] = json!({"schedule": "15 3 * * *", "timeZone": "Europe/Berlin"});
    fake.reply(&format!("GET {BACKUP}"), 200, job);
    let run = |number: u64| {
        json!({"kind": "Run",
            "metadata": {"name": format!("nightly-backup-{number}"), "namespace": "default"},
            "spec": {"workload": "nightly-backup", "number": number, "cause": "Schedule",
                "completions": 1, "parallelism": 1},
            "status": {"phase": "Active", "started": ago(75)}})
    };
    fake.reply(&format!("POST {BACKUP}/runs"), 201, run(14));
    let answer = || applied("updated", "nightly-backup");
    fake.reply(&format!("PUT {BACKUP}/stop"), 200, answer());
    fake.reply(&format!("DELETE {BACKUP}/stop"), 200, answer());
    fake.list("/v1alpha1/n/default/runs", &[run(12), run(13)]);
    fake.reply(&format!("DELETE {BACKUP}/runs/12"), 200, answer());
    fake.reply(&format!("DELETE {BACKUP}/runs/13"), 200, answer());
    fake
}

fn of_deletions() -> Fake {
    let fake = Fake::start();
    let frontend = labelled("web-frontend");
    fake.list(WORKLOADS, std::slice::from_ref(&frontend));
    fake.reply(&format!("GET {FRONTEND}"), 200, frontend);
    let deleted = || applied("deleting", "web-frontend");
    fake.reply(&format!("DELETE {FRONTEND}"), 200, deleted());
    let mut uploads = volume("web-frontend", "uploads-of-customers", "Bound");
    uploads["status"]["node"] = MACHINE.into();
    fake.list(VOLUMES, std::slice::from_ref(&uploads));
    fake.list("/v1alpha1/volumes", std::slice::from_ref(&uploads));
    uploads["status"]["phase"] = "Released".into();
    fake.reply(&format!("GET {UPLOADS}"), 200, uploads);
    let outcome = json!({"outcome": "deleting", "kind": "Volume",
        "metadata": {"name": "uploads-of-customers", "namespace": "default"}});
    fake.reply(&format!("DELETE {UPLOADS}"), 200, outcome);
    let of_shop = ["api", "db"].map(|name| {
        let mut item = volume(name, "data", "Bound");
        item["metadata"]["namespace"] = "shop".into();
        item
    });
    fake.list("/v1alpha1/n/shop/volumes", &of_shop);
    for path in [
        "/v1alpha1/namespaces/shop",
        "/v1alpha1/n/default/secrets/database-credentials",
        "/v1alpha1/nodes/cellar-rack-2",
        "/v1alpha1/routes",
    ] {
        fake.reply(&format!("DELETE {path}"), 200, deleted());
    }
    fake
}

fn of_namespaces() -> Fake {
    let fake = Fake::start();
    let made = |outcome: &str, warnings: &[&str]| json!({"outcome": outcome, "kind": "Namespace", "metadata": {"name": "shop"}, "warnings": warnings});
    let warnings = [
        "a workload of namespace shop has more instances than its quota allows; they continue to run",
    ];
    let path = "/v1alpha1/namespaces";
    fake.reply(&format!("POST {path}"), 201, made("created", &[]));
    fake.reply(&format!("POST {path}"), 200, made("updated", &[]));
    fake.reply(&format!("GET {path}/shop"), 200, namespace("shop", 2));
    let quota = made("updated", &warnings);
    fake.reply(&format!("PUT {path}/shop/quota"), 200, quota);
    fake
}

fn of_machines() -> Fake {
    let fake = Fake::start();
    let path = "/v1alpha1/nodes";
    let changed =
        || json!({"outcome": "updated", "kind": "Node", "metadata": {"name": MACHINE, "uid": "u"}});
    let item = node(MACHINE, "Ready", &["worker"]);
    fake.reply(&format!("GET {path}/{MACHINE}"), 200, item);
    for what in ["PUT taints", "PUT labels", "PUT drain", "DELETE drain"] {
        let (method, what) = what.split_once(' ').unwrap();
        fake.reply(&format!("{method} {path}/{MACHINE}/{what}"), 200, changed());
    }
    let mut drained = node(MACHINE, "Drained", &["worker"]);
    drained["spec"]["draining"] = true.into();
    fake.list(path, &[drained]);
    fake.list("/v1alpha1/instances", &[]);
    fake.list("/v1alpha1/workloads", &[]);
    fake
}

fn of_volumes() -> Fake {
    let fake = Fake::start();
    let moving = |name: &str| {
        let mut item = volume("web-frontend", name, "Moving");
        item["status"]["move"] = json!({"id": "one", "from": "a", "to": MACHINE,
            "since": "2026-01-01T00:00:00Z", "phase": "Copying", "files": 2, "bytes": 1 << 20,
            "totalFiles": 4, "totalBytes": 4 << 20, "message": ""});
        item
    };
    let outcome = |word: &str| json!({"outcome": word, "kind": "Volume", "metadata": {"name": "uploads-of-customers", "namespace": "default"}});
    let uploads = moving("uploads-of-customers");
    fake.list(VOLUMES, &[uploads.clone(), moving("thumbnails")]);
    fake.reply(&format!("GET {UPLOADS}"), 200, uploads);
    fake.reply(&format!("PUT {UPLOADS}/move"), 200, outcome("moving"));
    let cancelled = outcome("cancelled");
    fake.reply(&format!("DELETE {UPLOADS}/move"), 200, cancelled);
    let forgotten = outcome("forgetting");
    fake.reply(&format!("PUT {UPLOADS}/forget"), 200, forgotten);
    fake
}

fn of_tokens() -> Fake {
    let fake = Fake::start();
    let path = "/v1alpha1/tokens";
    let secret = format!("kat1.5vb7pkb71n2v.{}", "0123456789abcdef".repeat(3));
    let made = |scope: Value| json!({"id": "5vb7pkb71n2v", "name": "", "created": ago(1), "scope": scope, "token": secret});
    let mut deploys = made(json!({"kind": "deploy", "namespace": "shop"}));
    deploys["expires"] = "2026-12-24T18:00:00Z".into();
    fake.reply(&format!("POST {path}"), 201, deploys);
    let mut joins = made(json!({"kind": "join"}));
    joins["uses"] = 2.into();
    joins["leaderApi"] = "192.0.2.11:9115".into();
    fake.reply(&format!("POST {path}"), 201, joins.clone());
    joins["uses"] = 1.into();
    joins["insecureTrustNetwork"] = true.into();
    fake.reply(&format!("POST {path}"), 201, joins);
    fake.list(
        "/v1alpha1/authorities",
        &[authority("cluster-ca", "Trust", "0000")],
    );
    let revoked = json!({});
    fake.reply(&format!("DELETE {path}/5vb7pkb71n2v"), 200, revoked);
    fake
}

fn authority(name: &str, phase: &str, fingerprint: &str) -> Value {
    json!({"name": name, "fingerprint": fingerprint, "notAfter": ago(-3600 * 24 * 3649),
        "since": ago(7300), "phase": phase, "replacementSince": "", "message": "",
        "certificates": []})
}

fn of_authorities() -> Fake {
    let fake = Fake::start();
    let path = "/v1alpha1/authorities";
    for name in ["etcd-client-ca", "ingress-ca", "recovery-key"] {
        let due = authority(name, "Due", "0000");
        fake.reply(&format!("POST {path}/{name}/rotate"), 200, due);
    }
    fake.list(path, &[authority("recovery-key", "Settled", "1111")]);
    let leader = node(MACHINE, "Ready", &["leader", "etcd", "worker"]);
    fake.list("/v1alpha1/nodes", &[leader]);
    let trusted = |name: &str| {
        json!({"certificate": format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n"),
            "fingerprint": "0123456789abcdef".repeat(4), "domains": ["lan", "internal.example.org"]})
    };
    let mut present = trusted("FIRST");
    present["next"] = trusted("SECOND");
    present["nextIssues"] = "2026-12-24T18:00:00Z".into();
    fake.reply("GET /v1alpha1/ingress/authority", 200, present);
    let waits = json!({"waitsFor": []});
    fake.reply(&format!("POST {path}/migration"), 200, waits);
    fake
}

fn of_registries() -> Fake {
    let fake = Fake::start();
    let path = "/v1alpha1/registries/registry.lab%3A5000";
    let set = json!({"host": "registry.lab:5000", "insecure": true, "mirrors": []});
    fake.reply(&format!("PUT {path}"), 200, set);
    fake.reply(&format!("DELETE {path}"), 204, json!({}));
    let path = "/v1alpha1/n/default/registries/registry.lab%3A5000";
    let login = json!({"registry": "registry.lab:5000", "namespace": "default",
        "username": "pipeline", "version": 1, "updated": "2026-11-20T10:00:00Z",
        "resourceVersion": "7"});
    let answer = json!({"outcome": "created", "check": "notAsked", "login": login});
    fake.reply(&format!("PUT {path}"), 201, answer);
    fake.reply(&format!("DELETE {path}"), 204, json!({}));
    fake
}

fn of_secrets() -> Fake {
    let fake = Fake::start();
    let path = "/v1alpha1/n/default/secrets/database-credentials";
    let written = applied("updated", "database-credentials");
    fake.reply(&format!("PUT {path}"), 200, written);
    let item = json!({"kind": "Secret",
        "metadata": {"name": "database-credentials", "namespace": "default", "uid": "u",
            "generation": 3, "resourceVersion": "1", "creationTimestamp": ago(130)},
        "spec": {"keys": [{"name": "PASSWORD", "size": 15}]},
        "status": {"updated": ago(70), "behind": [], "usedBy": ["web-frontend"]}});
    fake.reply(&format!("GET {path}"), 200, item);
    let rotation = "POST /v1alpha1/sealing-key";
    fake.reply(rotation, 200, json!({"key": 2, "left": 8}));
    fake.reply(rotation, 200, json!({"key": 2, "left": 0}));
    fake
}

fn of_settings() -> Fake {
    let fake = Fake::start();
    let configuration = json!({"metadata": {"name": "home"}, "spec": {"mtu": 1380}});
    let revision =
        |number: u64| json!({"number": number, "madeBy": "init", "configuration": configuration});
    let known = json!({"resourceVersion": "7", "revisions": [revision(1), revision(2)]});
    fake.reply("GET /v1alpha1/config/cluster/revisions", 200, known);
    // The texts of real effects.
    let change = |setting: &str, before: &str, after: &str| {
        let effect = ClusterSetting::of(setting).and_then(ClusterSetting::effect);
        json!({"setting": setting, "before": before, "after": after, "effect": effect.unwrap()})
    };
    let changes = [
        change("mtu", "1380", "1400"),
        change("nodeLossTimeoutSeconds", "60", "90"),
    ];
    for dry_run in [false, true, false] {
        let changed = json!({"number": 3, "dryRun": dry_run, "changes": changes});
        fake.reply("PUT /v1alpha1/config/cluster", 200, changed);
    }
    fake
}

/// A cluster that refuses, with hints.
fn of_refusals() -> Fake {
    let fake = Fake::start();
    let refusal = |word: &str, message: &str, hint: &str| json!({"error": word, "message": message, "hint": hint});
    let quota = refusal(
        "Conflict",
        "namespace `default` would have 12 instances, and its quota is 10; nothing was changed",
        "`katcall describe namespace default` shows the use of each quota, and `katcall namespace set default instances=12` raises it",
    );
    fake.reply(&format!("PUT {FRONTEND}"), 409, quota);
    let missing = error("NotFound", "workload `default/web-frontned` does not exist");
    fake.reply(
        "PUT /v1alpha1/n/default/workloads/web-frontned/replicas",
        404,
        missing,
    );
    fake.list(WORKLOADS, &[workload("web-frontend", "Running", [2, 2, 2])]);
    let uploads = volume("web-frontend", "uploads-of-customers", "Bound");
    fake.list(VOLUMES, std::slice::from_ref(&uploads));
    fake.reply(&format!("GET {UPLOADS}"), 200, uploads);
    let used = refusal(
        "Conflict",
        "volume `default/web-frontend/uploads-of-customers` is in use by web-frontend-aaaaa",
        "`katcall stop web-frontend` ends its instances, and `katcall delete workload web-frontend` deletes the workload",
    );
    fake.reply(&format!("DELETE {UPLOADS}"), 409, used);
    let unknown = error("NotFound", "node `cellar-rack-3` does not exist");
    fake.reply("PUT /v1alpha1/nodes/cellar-rack-3/drain", 404, unknown);
    fake.list("/v1alpha1/nodes", &[node(MACHINE, "Ready", &["worker"])]);
    let old = error("NotFound", "there is no such route");
    fake.reply("GET /v1alpha1/config/cluster/revisions", 404, old);
    fake
}

/// katcall's home folder with what the commands read.
fn program(fake: &Fake) -> Program {
    let program = Program::of(fake)
        .variable("EDITOR", "sh ./editor")
        .variable("PATH", "/usr/bin:/bin");
    let mends = "s/replicas: 1/replicas: 3/; s/mtu: 1380/mtu: 1400/";
    program.file("editor", &format!("sed -i '{mends}' \"$1\"\n"));
    program.file(PASSWORD_FILE, "hunter2\n");
    let home = connection("home", "192.0.2.11:9115");
    program.file("home.conf", &home);
    for path in ["web-frontend", "shop/web-frontend"] {
        let text = workload_file("web-frontend");
        program.file(&format!("{path}/workload.kat"), &text);
    }
    program.file("shop/db/workload.kat", &workload_file("db"));
    program
}

/// Whether a line can be wider than the terminal: a command to copy, or what is one word for a reader.
fn stays_whole(line: &str) -> bool {
    let line = line.trim();
    let is_quoted = line.starts_with('`') && line.matches('`').count() == 2;
    line.starts_with("sudo ") || is_quoted || !line.contains(' ')
}

/// All screens of a family, one below the other as on a terminal. No line is wider than it.
fn screens(family: &Family, columns: usize) -> String {
    let fake = (family.cluster)();
    let program = program(&fake);
    let home = program.home.path().display().to_string();
    let refuses = family.name == "refusals";
    let mut all = String::new();
    for line in family.lines {
        let words: Vec<&str> = line.split(' ').collect();
        let stdin = match words.contains(&"--password-stdin") {
            true => File::open(program.home.path().join(PASSWORD_FILE))
                .unwrap()
                .into(),
            false => Stdio::null(),
        };
        let (code, text) = program.screen(&words, columns, stdin);
        assert_eq!(code != 0, refuses, "{line}: {text}");
        assert!(!text.contains("the fake has no"), "{line}: {text}");
        // What differs from run to run has another width each time.
        assert!(!text.contains(&home), "{line}: {text}");
        assert!(!text.contains("hunter2"), "{line}: {text}");
        let wide: Vec<&str> = text
            .lines()
            .filter(|line| line.chars().count() > columns && !stays_whole(line))
            .collect();
        assert!(wide.is_empty(), "{line} at {columns} columns: {wide:#?}");
        all.push_str(&format!("$ katcall {line}\n{text}"));
        if refuses {
            all.push_str(&format!("[exit code {code}]\n"));
        }
        all.push('\n');
    }
    all
}

#[test]
fn answers_of_commands_that_change_something_fit_80_and_120_columns() {
    for columns in [80, 120] {
        for family in &FAMILIES {
            let name = format!("{} at {columns} columns", family.name);
            assert_snapshot!(name, screens(family, columns));
        }
    }
}

/// The paths of the commands below one, such as `config set`; those without commands of their own.
fn leaves(command: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
    for inner in command.get_subcommands() {
        let path = format!("{path} {}", inner.get_name());
        if inner.has_subcommands() {
            leaves(inner, &path, found);
        } else {
            found.insert(path.trim_start().to_owned());
        }
    }
}

/// Whether a line runs the command with this path.
fn runs(line: &str, path: &str) -> bool {
    let rest = line.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

#[test]
fn every_command_has_a_screen_at_each_width_or_a_reason_why_it_has_none() {
    let mut commands = BTreeSet::new();
    leaves(&kat_cli::command(), "", &mut commands);
    assert!(commands.len() > 70, "{commands:?}");
    let answers = FAMILIES.iter().filter(|family| family.name != "refusals");
    let answers = answers.flat_map(|family| family.lines.iter().copied());
    let lines: Vec<&str> = answers.chain(columns::compared()).collect();
    for command in &commands {
        let has_screen = lines.iter().any(|line| runs(line, command));
        let mut exceptions = WITHOUT_SCREENS.iter();
        let has_reason = exceptions.any(|(path, _)| path == command);
        assert!(
            has_screen || has_reason,
            "`katcall {command}` has no screen at 80 and 120 columns: add a line to a family here, \
             or a reason to WITHOUT_SCREENS"
        );
        assert!(
            !(has_screen && has_reason),
            "`katcall {command}` has a screen and a reason for none"
        );
    }
    for (path, _) in WITHOUT_SCREENS {
        assert!(commands.contains(path), "`katcall {path}` does not exist");
    }
    for line in lines {
        let is_known = commands.iter().any(|command| runs(line, command));
        assert!(is_known, "`katcall {line}` does not exist");
    }
}

/// What is compared in a test of its own has a snapshot for each width.
#[test]
fn screens_with_a_test_of_their_own_are_stored_at_each_width() {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/cli/reading/snapshots");
    for line in columns::ON_THEIR_OWN {
        for columns in [80, 120] {
            let name = line.replace(' ', "-");
            let path = folder.join(format!("cli__columns__{name} at {columns} columns.snap"));
            assert!(path.is_file(), "{}", path.display());
        }
    }
}
