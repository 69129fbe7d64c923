//! `katcall export`, `edit` and `diff`, and what `apply` and `plan` take from stdin.

use insta::assert_snapshot;
use kat_bundle::{SourceFile, pack};
use serde_json::json;

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::{Program, mode},
};

const SOURCE: &str = "/v1alpha1/n/default/workloads/web/source";

fn packed(files: &[(&str, &str)]) -> Vec<u8> {
    let files: Vec<SourceFile> = files
        .iter()
        .map(|(name, text)| SourceFile {
            name: (*name).to_owned(),
            text: (*text).to_owned(),
        })
        .collect();
    pack(&files).unwrap()
}

const BALANCER: &str = "apiVersion: kat.dws.rip/v1alpha1\nkind: VirtualLoadBalancer\nspec:\n  ports: [{containerPort: 8080}]  # web\n";

/// A cluster with `web` and its port.
fn with_web() -> Fake {
    let fake = Fake::start();
    let files = [
        ("workload.kat", &*workload_file("web")),
        ("VirtualLoadBalancer.kat", BALANCER),
    ];
    fake.archive(SOURCE, &packed(&files));
    fake.reply(&format!("PUT {WEB}"), 200, applied("updated", "web"));
    fake
}

/// What a run printed on stdout.
fn stdout(text: &str) -> &str {
    let after = text.split_once("--- stdout\n").unwrap().1;
    after.split("--- stderr\n").next().unwrap()
}

#[test]
fn printed_files_are_applied_again_unchanged() {
    let fake = with_web();
    let program = Program::of(&fake);
    let printed = program.run(&["export", "web"]);
    assert_snapshot!(printed);
    let stream = stdout(&printed).as_bytes();
    let text = program.run_piped(&["apply", "-f", "-"], stream);
    assert_snapshot!(text, @r"
    exit: 0
    --- stdout
    workload/web updated
    ");
    let sent = kat_bundle::read_archive(&fake.body()).unwrap();
    let texts: Vec<&str> = sent.iter().map(|file| file.text.as_str()).collect();
    assert_eq!(texts, [BALANCER, &workload_file("web")]);

    let text = program.run_piped(&["plan", "-"], stream);
    assert!(text.starts_with("exit: 10\n"), "{text}");
    let archive = fake.body();
    let text = program.run_piped(&["apply", "-"], &archive);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert_eq!(fake.body(), archive);
}

#[test]
fn what_stdin_brings_is_bounded_and_has_its_place() {
    let fake = with_web();
    let program = Program::of(&fake);
    let view = "kind: Workload\nmetadata:\n  name: web\n  namespace: default\n  uid: u\nspec: {}\nstatus: {phase: Running}\n";
    assert_snapshot!(program.run_piped(&["apply", "-f", "-"], view.as_bytes()));
    let wrong = workload_file("web").replace("replicas: 1", "replicas: many");
    assert_snapshot!(program.run_piped(&["apply", "-f", "-"], wrong.as_bytes()));
    let twice = format!("{0}---\n{0}", workload_file("web"));
    assert_snapshot!(program.run_piped(&["apply", "-f", "-"], twice.as_bytes()));
    let huge = vec![b'#'; (1 << 20) + 1];
    for sent in [&b""[..], b"PK\x03\x04\0\0", b"\xff\xfe", b"---\n", &huge] {
        let text = program.run_piped(&["apply", "-f", "-"], sent);
        assert!(text.starts_with("exit: 1\n"), "{text}");
        assert!(text.contains("stdin"), "{text}");
    }
    let text = program.run(&["apply", "-", "-f", "-"]);
    assert!(text.starts_with("exit: 2\n"), "{text}");
    let text = program.run_answering(&["apply", "-"], "");
    assert!(text.starts_with("exit: 2\n"), "{text}");
    // The same view saved as a file of a folder.
    program.file("web/workload.kat", view);
    let text = program.run(&["apply", "web"]);
    assert!(text.contains("`katcall export default/web`"), "{text}");
    assert_eq!(fake.asked(), Vec::<String>::new());
}

#[test]
fn files_are_written_for_their_owner_and_never_over_others() {
    let fake = Fake::start();
    let mounting = workload_file("web")
        + "    volumeMounts: [{name: conf, mountPath: /etc/web}]\n  volumes: [{name: conf, files: conf/}]\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("workload.kat"), &mounting).unwrap();
    std::fs::create_dir(folder.path().join("conf")).unwrap();
    std::fs::write(folder.path().join("conf/a"), "one\n").unwrap();
    let files = kat_bundle::read_folder(folder.path()).unwrap();
    fake.archive(SOURCE, &pack(&files).unwrap());
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["export", "web"]), @r"
    exit: 1
    --- stderr
    error: `the files that its volumes mount` cannot be printed among YAML documents

    hint: `-o DIR` writes all files into a folder
    ");
    let export = ["export", "web", "-o", "out"];
    assert_snapshot!(program.run(&export), @r"
    exit: 0
    --- stdout
    out/conf/a
    out/workload.kat
    ");
    let out = program.home.path().join("out");
    assert_eq!((mode(&out), mode(&out.join("conf/a"))), (0o700, 0o600));
    assert_eq!(kat_bundle::read_folder(&out).unwrap(), files);
    assert_snapshot!(program.run(&export), @r"
    exit: 1
    --- stderr
    error: `out/conf/a`, `out/workload.kat` exist already; nothing was written

    hint: name another folder, or replace the files with `--force`
    ");
    program.file("out/workload.kat", "changed");
    program.file("out/job.kat", "of somebody");
    assert_snapshot!(program.run(&[&export[..], &["--force"]].concat()), @r"
    exit: 0
    --- stdout
    out/conf/a
    out/workload.kat
    --- stderr
    warning: `out/job.kat` was there before, and an apply of the folder sends it too
    ");
    assert_eq!(
        std::fs::read_to_string(out.join("workload.kat")).unwrap(),
        mounting
    );
    let text = program.run(&["export", "web", "--generation", "3", "-o", "three"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert_eq!(
        fake.asked().last().unwrap(),
        &format!("GET {SOURCE}?generation=3")
    );
}

#[test]
fn a_hostile_cluster_writes_nothing() {
    let hostile = |name: &[u8], kind: tar::EntryType| {
        let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut builder = tar::Builder::new(gzip);
        for (name, kind) in [
            (&b"workload.kat"[..], tar::EntryType::Regular),
            (name, kind),
        ] {
            let mut header = tar::Header::new_ustar();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name);
            header.as_mut_bytes()[157..168].copy_from_slice(b"/etc/passwd");
            header.set_entry_type(kind);
            header.set_size(0);
            header.set_cksum();
            builder.append(&header, &b""[..]).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    };
    let regular = tar::EntryType::Regular;
    for answer in [
        hostile(b"../x.kat", regular),
        hostile(b"/tmp/x.kat", regular),
        hostile(b"x\x1b[2J.kat", regular),
        hostile(b"x.kat", tar::EntryType::Symlink),
        hostile(b"x.kat", tar::EntryType::Link),
        b"no archive".to_vec(),
        vec![0; 8 << 20],
    ] {
        let fake = Fake::start();
        fake.archive(SOURCE, &answer);
        let program = Program::of(&fake).variable("EDITOR", "touch ran;");
        for arguments in [
            &["export", "web"][..],
            &["export", "web", "-o", "out"],
            &["export", "web", "-o", "out", "--force"],
            &["edit", "web"],
        ] {
            let text = program.run(arguments);
            assert!(text.starts_with("exit: 1\n--- stderr\nerror: "), "{text}");
            assert!(!text.contains('\u{1b}'), "{text:?}");
        }
        let written = std::fs::read_dir(program.home.path()).unwrap();
        assert_eq!(written.count(), 0, "no file, and no editor");
    }
}

#[test]
fn what_cannot_be_exported_says_why() {
    let fake = Fake::start();
    let program = Program::of(&fake);
    let old = error(
        "NotFound",
        "there is no route `/v1alpha1/n/default/workloads/web/source`",
    );
    fake.reply(&format!("GET {SOURCE}"), 404, old);
    let text = program.run(&["export", "web"]);
    assert!(text.contains("an earlier version of KAT"), "{text}");
    fake.instead(
        &format!("GET {SOURCE}"),
        404,
        error("NotFound", "there is no workload `default/web`"),
    );
    fake.list(WORKLOADS, &[workload("web2", "Running", [1, 1, 1])]);
    let text = program.run(&["export", "web"]);
    assert!(text.starts_with("exit: 3\n"), "{text}");
    assert!(text.contains("did you mean `web2`?"), "{text}");
    let forbidden = json!({"error": "Forbidden", "message": "`token:x` may not do this",
        "hint": "files hold values of environment variables"});
    fake.instead(&format!("GET {SOURCE}"), 403, forbidden);
    let text = program.run(&["export", "web"]);
    assert!(text.contains("may not do this"), "{text}");
    for name in ["../x", "a/b/c", "a\u{1b}[2J"] {
        let text = program.run(&["export", name]);
        assert!(text.starts_with("exit: 2\n"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}

#[test]
fn a_difference_ends_with_10() {
    let fake = with_web();
    let program = Program::of(&fake);
    program.file("web/workload.kat", &workload_file("web"));
    program.file("web/VirtualLoadBalancer.kat", BALANCER);
    assert_eq!(program.run(&["diff", "web"]), "exit: 0\n");
    let changed = workload_file("web").replace("replicas: 1", "replicas: 2");
    program.file("web/workload.kat", &changed);
    std::fs::remove_file(program.home.path().join("web/VirtualLoadBalancer.kat")).unwrap();
    let text = program.run(&["diff", "web"]);
    assert!(text.starts_with("exit: 10\n"), "{text}");
    assert!(text.contains("+  replicas: 2\n"), "{text}");
    assert!(text.contains("+++ /dev/null\n"), "{text}");
    assert_snapshot!(text);
    program.file("db/workload.kat", &workload_file("db"));
    let text = program.run(&["diff", "db"]);
    assert!(
        text.starts_with("exit: 10\n--- stdout\n--- /dev/null\n+++ db/workload.kat\n"),
        "{text}"
    );
    assert!(
        text.contains("workload default/db does not exist"),
        "{text}"
    );
}

#[test]
fn a_field_that_is_not_known_is_compared_and_a_value_that_cannot_be_read_is_shown() {
    let fake = with_web();
    let program = Program::of(&fake);
    program.file("web/VirtualLoadBalancer.kat", BALANCER);
    let with_replicas = |replicas: &str| workload_file("web").replace("replicas: 1", replicas);
    program.file(
        "web/workload.kat",
        &with_replicas("replicas: 1\n  novel: 1"),
    );
    let text = program.run(&["diff", "web"]);
    assert!(text.starts_with("exit: 10\n"), "{text}");
    assert!(text.contains("+  novel: 1\n"), "{text}");
    // The workload to compare with has to be known.
    program.file("web/workload.kat", &with_replicas("replicas: many"));
    let text = program.run(&["diff", "web"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(text.contains("web/workload.kat:9:13"), "{text}");
    assert!(text.contains("expected a whole number"), "{text}");
}

/// A difference is copied into other programs, so that its lines are never broken.
#[test]
fn a_difference_is_the_same_at_each_width() {
    let fake = with_web();
    let program = Program::of(&fake);
    let argument = "replicas: 1 # ".to_owned() + &"two ".repeat(40);
    let changed = workload_file("web").replace("replicas: 1", argument.trim_end());
    program.file("web/workload.kat", &changed);
    program.file("web/VirtualLoadBalancer.kat", BALANCER);
    let piped = program.run(&["diff", "web"]);
    assert!(piped.starts_with("exit: 10\n"), "{piped}");
    assert!(piped.contains(argument.trim_end()), "{piped}");
    let program = program.variable("COLUMNS", "80");
    assert_eq!(program.run(&["diff", "web"]), piped);
    let program = program.variable("COLUMNS", "120");
    assert_eq!(program.run(&["diff", "web"]), piped);
}

/// An editor that is a shell script over the files.
fn editing(fake: &Fake, script: &str) -> Program {
    let program = Program::of(fake);
    let temporary = program.home.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let path = program.file("editor", &format!("#!/bin/sh\nset -e\n{script}\n"));
    program
        .variable("EDITOR", &format!("sh {path}"))
        .variable("PATH", "/usr/bin:/bin")
        .variable("TMPDIR", temporary.to_str().unwrap())
}

/// What is left of temporary folders.
fn kept(program: &Program) -> usize {
    let temporary = program.home.path().join("tmp");
    std::fs::read_dir(temporary).unwrap().count()
}

#[test]
fn an_edited_workload_is_applied_if_nobody_else_changed_it() {
    let fake = with_web();
    let program = editing(&fake, "sed -i 's/replicas: 1/replicas: 3/' \"$1\"");
    assert_snapshot!(program.run(&["edit", "web"]), @r"
    exit: 0
    --- stdout
    workload/web updated
    ");
    assert_eq!(
        fake.asked(),
        [format!("GET {SOURCE}"), format!("PUT {WEB}")]
    );
    let sent = kat_bundle::read_archive(&fake.body()).unwrap();
    assert!(sent[1].text.contains("replicas: 3"), "{}", sent[1].text);
    assert_eq!(kept(&program), 0);

    let changed = error(
        "PreconditionFailed",
        "it was changed at resourceVersion 9, after 7",
    );
    fake.instead(&format!("PUT {WEB}"), 412, changed);
    let text = program.run(&["edit", "web"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(
        text.contains("was changed or deleted meanwhile; nothing was done"),
        "{text}"
    );
    assert!(
        text.contains("the changed files are kept in [HOME]/tmp/katcall-"),
        "{text}"
    );
    assert_eq!(kept(&program), 1);
}

#[test]
fn an_edit_without_a_change_sends_nothing_and_a_broken_one_keeps_the_files() {
    let fake = with_web();
    let puts = || {
        let asked = fake.asked().into_iter();
        asked.filter(|one| one.starts_with("PUT ")).count()
    };
    assert_snapshot!(editing(&fake, ":").run(&["edit", "web"]), @r"
    exit: 0
    --- stdout
    workload/web unchanged
    ");
    for (script, words) in [
        (
            "sed -i 's/replicas: 1/replicas: many/' \"$1\"",
            "expected a whole number",
        ),
        (
            "sed -i 's/name: web/name: other/' \"$1\"",
            "no longer those of workload default/web",
        ),
        ("rm \"$1\"", "no file holds a Workload"),
        ("echo >>\"$1\"; exit 3", "the editor ended with"),
    ] {
        let program = editing(&fake, script);
        let text = program.run(&["edit", "web"]);
        assert!(text.starts_with("exit: 1\n"), "{script}: {text}");
        assert!(text.contains(words), "{script}: {text}");
        assert!(text.contains("the changed files are kept in"), "{text}");
        assert_eq!(kept(&program), 1, "{script}");
    }
    let program = editing(&fake, "exit 1");
    assert!(program.run(&["edit", "web"]).starts_with("exit: 1\n"));
    assert_eq!(kept(&program), 0, "nothing was changed");
    assert_eq!(puts(), 0);
    let text = Program::of(&fake).run(&["edit", "web"]);
    assert!(
        text.starts_with("exit: 2\n"),
        "no editor and no terminal: {text}"
    );
}
