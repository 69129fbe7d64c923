//! `katcall run` and `katcall new`.

use insta::assert_snapshot;
use serde_json::json;

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::{Program, mode},
};

const IMAGE: &str = "registry.lab:5000/test/web:1";

/// The files in the last request.
fn sent(fake: &Fake) -> Vec<(String, String)> {
    let files = kat_bundle::read_archive(&fake.body()).unwrap();
    let files = files.into_iter().map(|file| (file.name, file.text));
    files.collect()
}

#[test]
fn an_image_is_enough_and_the_saved_folder_is_what_was_sent() {
    let fake = Fake::start();
    fake.reply(&format!("POST {WORKLOADS}"), 201, applied("created", "web"));
    let program = Program::of(&fake).variable("LEVEL", "of the shell");
    program.file("env", "# of the project\nMODE=fast one\nLEVEL\n");
    let arguments = [
        "run",
        IMAGE,
        "-p",
        "80:8080",
        "-p",
        "9090",
        "-e",
        "PORT=8080",
        "--env-file",
        "env",
        "-v",
        "data:/data:ro",
        "--on",
        "n1",
        "--replicas",
        "2",
        "--save",
        "saved",
        "--",
        "serve",
        "-x",
    ];
    assert_snapshot!(program.run(&arguments), @r"
    exit: 0
    --- stdout
    workload/web created
    saved/VirtualLoadBalancer.kat
    saved/workload.kat
    ");
    assert_eq!(fake.asked(), [format!("POST {WORKLOADS}")]);
    let files = sent(&fake);
    let text = |name: &str| std::fs::read_to_string(program.home.path().join(name)).unwrap();
    for (name, content) in &files {
        assert_eq!(text(&format!("saved/{name}")), *content);
    }
    let workload = &files
        .iter()
        .find(|(name, _)| name == "workload.kat")
        .unwrap()
        .1;
    for line in [
        "replicas: 2",
        "kat.dws.rip/nodeName: n1",
        "- serve",
        "- \"-x\"",
        "value: of the shell",
        "value: fast one",
        "value: \"8080\"",
        "mountPath: /data",
    ] {
        assert!(workload.contains(line), "{line} is not in {workload}");
    }
    let saved = program.home.path().join("saved");
    assert_eq!(mode(&saved), 0o700);
    assert_eq!(mode(&saved.join("workload.kat")), 0o600);

    // The folder is applied unchanged, and nothing is written over it.
    fake.reply(&format!("PUT {WEB}"), 200, applied("unchanged", "web"));
    assert_snapshot!(program.run(&["apply", "saved"]), @r"
    exit: 0
    --- stdout
    workload/web unchanged
    ");
    assert_eq!(sent(&fake), files);
    let asked = fake.asked().len();
    assert_snapshot!(program.run(&arguments), @r"
    exit: 1
    --- stderr
    error: `saved/VirtualLoadBalancer.kat`, `saved/workload.kat` exist already; nothing was written

    hint: name a folder that has no such files
    ");
    assert_eq!(fake.asked().len(), asked, "nothing is sent");
}

#[test]
fn an_existing_name_is_refused() {
    let fake = Fake::start();
    let mut conflict = error(
        "Conflict",
        "the workload `default/web` exists with other content",
    );
    conflict["hint"] = json!("`katcall edit` or `katcall apply` with its folder changes it");
    fake.reply(&format!("POST {WORKLOADS}"), 409, conflict);
    fake.reply(
        &format!("POST {WORKLOADS}"),
        200,
        applied("unchanged", "web"),
    );
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["run", IMAGE]), @r"
    exit: 1
    --- stderr
    error: the workload `default/web` exists with other content

    hint: `katcall edit` or `katcall apply` with its folder changes it
    ");
    assert_snapshot!(program.run(&["run", IMAGE]), @r"
    exit: 1
    --- stderr
    error: the workload `default/web` exists already, with the same content

    hint: `katcall edit default/web` changes it; `--name` creates another one
    ");
    let once = format!("POST {WORKLOADS}");
    assert_eq!(fake.asked(), [once.clone(), once], "no PUT follows");
}

/// The user wrote no file that could have a line.
#[test]
fn a_mistake_in_the_image_is_shown_at_the_argument() {
    let fake = Fake::start();
    let mut refusal = error("Invalid", "workload.kat:9:12: `web:1` names no registry");
    let detail = |path: &str| {
        json!({"class": "range", "file": "workload.kat", "line": 9, "column": 12, "path": path,
            "message": "`web:1` names no registry", "hint": "write the full name"})
    };
    refusal["details"] = json!([detail("spec.source.image")]);
    fake.reply(&format!("POST {WORKLOADS}"), 400, refusal.clone());
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["run", "web:1", "-p", "8080"]), @r"
    exit: 1
    --- stderr
    error: <IMAGE>: `web:1` names no registry

    hint: write the full name
    ");
    // What the user wrote no argument for is shown in the file that katcall made.
    refusal["details"] = json!([detail("spec.source.image"), detail("spec.container.name")]);
    fake.reply(&format!("POST {WORKLOADS}"), 400, refusal);
    let text = program.run(&["run", "web:1", "-p", "8080"]);
    assert!(text.contains("web/workload.kat:9:12"), "{text}");
    assert!(text.contains("2 mistakes in `web`"), "{text}");
}

#[test]
fn a_folder_is_written_without_a_cluster_and_never_over_files() {
    let program = Program::alone();
    let arguments = [
        "new",
        "web",
        "--image",
        IMAGE,
        "-p",
        "auto:8080",
        "-n",
        "shop",
    ];
    assert_snapshot!(program.run(&arguments), @r"
    exit: 0
    --- stdout
    web/VirtualLoadBalancer.kat
    web/workload.kat
    --- stderr

    hint: `katcall apply web --wait` creates the workload
    ");
    assert_snapshot!(program.run(&["apply", "web", "--dry-run=client"]), @r"
    exit: 0
    --- stdout
    workload/web is valid
    ");
    let text = program.run(&arguments);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    std::fs::create_dir(program.home.path().join("real")).unwrap();
    std::os::unix::fs::symlink("real", program.home.path().join("link")).unwrap();
    let text = program.run(&["new", "web", "link", "--image", IMAGE]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    let real = program.home.path().join("real");
    assert_eq!(std::fs::read_dir(real).unwrap().count(), 0);
}

#[test]
fn what_is_not_valid_is_refused_before_anything_is_sent() {
    let fake = Fake::start();
    let program = Program::of(&fake);
    program.file("env", "A=1\nexport B=2\n");
    for arguments in [
        &["run", "regi\u{1b}[2Jstry/x"][..],
        &["run", IMAGE, "--name", "a\u{1b}[2J"],
        &["run", IMAGE, "--name", "../x"],
        &["run", IMAGE, "-p", "127.0.0.1:80:80"],
        &["run", IMAGE, "-v", "/srv:/srv"],
        &["run", IMAGE, "-e", "UNSET"],
        &["run", IMAGE, "--env-file", "env"],
        &["run", IMAGE, "--env-file", "none"],
        &["run", IMAGE, "--replicas", "5000"],
        &["run", IMAGE, "--route", "shop.example.org"],
        &[
            "run",
            IMAGE,
            "-p",
            "8080",
            "--route",
            "shop.example.org/a%2e",
        ],
        &["run", IMAGE, "-v", "data:/a", "-v", "other:/a"],
        &["new", "web", "--image", "nginx:"],
    ] {
        let text = program.run(arguments);
        let refused = text.starts_with("exit: 1\n") || text.starts_with("exit: 2\n");
        assert!(refused, "{arguments:?}: {text}");
        assert!(text.contains("error"), "{arguments:?}: {text}");
        assert!(!text.contains('\u{1b}'), "{arguments:?}: {text:?}");
    }
    let text = program.run(&["run", IMAGE, "serve", "now"]);
    assert!(text.contains("the command goes after `--`"), "{text}");
    assert_eq!(fake.asked(), Vec::<String>::new());
}
