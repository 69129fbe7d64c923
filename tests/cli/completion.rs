//! The words that `katcall __complete` proposes, and the completion scripts in their shells.

use std::{
    io::Read,
    process::{Command, Stdio},
};

use serde_json::json;

use super::{fake_api::Fake, fixtures::*, run_katcall::Program};

/// Two namespaces with workloads, instances, volumes and a secret, and two machines.
fn cluster() -> Fake {
    let fake = Fake::start();
    let mut web = workload("web", "Running", [1, 1, 1]);
    web["spec"]["initContainers"] = json!([{"name": "prepare"}]);
    web["spec"]["sidecars"] = json!([{"name": "proxy"}, {"name": "shipper"}]);
    fake.list(
        WORKLOADS,
        &[web.clone(), workload("db", "Running", [1, 1, 1])],
    );
    fake.reply(&format!("GET {WEB}"), 200, web);
    fake.list(INSTANCES, &[instance("web-aaaaa", "Running")]);
    fake.reply(
        &format!("GET {INSTANCES}/web-aaaaa"),
        200,
        instance("web-aaaaa", "Running"),
    );
    let mut api = workload("api", "Running", [1, 1, 1]);
    api["metadata"]["namespace"] = "shop".into();
    fake.list("/v1alpha1/n/shop/workloads", &[api]);
    fake.list("/v1alpha1/n/shop/instances", &[]);
    fake.list(
        "/v1alpha1/namespaces",
        &[namespace("default", 2), namespace("shop", 1)],
    );
    fake.list(VOLUMES, &[volume("db", "data", "Bound")]);
    fake.list("/v1alpha1/n/shop/volumes", &[]);
    fake.list(
        "/v1alpha1/nodes",
        &[
            node("n1", "Ready", &["worker"]),
            node("n2", "Ready", &["worker"]),
        ],
    );
    let secret = json!({"kind": "Secret",
        "metadata": {"name": "login", "namespace": "default", "uid": "u", "generation": 1,
            "resourceVersion": "1", "creationTimestamp": ago(10)},
        "spec": {"keys": [{"name": "USER", "size": 3}, {"name": "PASSWORD", "size": 9}]},
        "status": {"updated": ago(10), "usedBy": [], "behind": []}});
    fake.list("/v1alpha1/n/default/secrets", std::slice::from_ref(&secret));
    fake.reply("GET /v1alpha1/n/default/secrets/login", 200, secret);
    fake
}

/// The proposals at the end of a line whose last word is being written; a line that ends in a space
/// has an empty one.
fn proposed(program: &Program, line: &str) -> Vec<String> {
    let (before, current) = line.rsplit_once(' ').unwrap_or(("", line));
    let current = format!("--current={current}");
    let mut words = vec!["__complete", &current, "--"];
    words.extend(before.split_whitespace());
    let text = program.run(&words);
    let lines = text
        .strip_prefix("exit: 0\n")
        .unwrap_or_else(|| panic!("{text}"));
    let lines = lines.strip_prefix("--- stdout\n").unwrap_or(lines);
    lines.lines().map(str::to_owned).collect()
}

#[test]
fn names_follow_a_kind_and_a_namespace() {
    let fake = cluster();
    let program = Program::of(&fake);
    let expect = |line: &str, names: &[&str]| {
        assert_eq!(proposed(&program, line), names, "{line}");
    };
    expect("restart ", &["db", "web"]);
    expect("restart w", &["workload/", "web"]);
    expect("restart web ", &["db"]);
    expect("restart workload/", &["workload/db", "workload/web"]);
    expect("restart workload/s", &["workload/shop/"]);
    expect("restart workload/shop/", &["workload/shop/api"]);
    expect("restart sh", &["shop/"]);
    expect("restart shop/", &["shop/api"]);
    expect("restart shop/b", &[]);
    expect("restart -n shop ", &["api"]);
    // A namespace in a reference must not contradict the option.
    expect("restart -n shop sh", &[]);
    expect("get wor", &["workloads", "workload/"]);
    expect("get workload/d", &["workload/db", "workload/default/"]);
    expect("get workloads w", &["web"]);
    expect("get node/", &["node/n1", "node/n2"]);
    expect("drain n", &["node/", "n1", "n2"]);
    expect("delete volume/", &["volume/db/data"]);
    expect("delete volume/db/", &["volume/db/data"]);
    expect("delete volume/shop/", &[]);
    expect("volume move ", &["db/data"]);
    expect("volume move db/data --to ", &["n1", "n2"]);
    expect("logs ", &["db", "web", "web-aaaaa"]);
    expect("logs instance/", &["instance/web-aaaaa"]);
    expect("why n", &["node", "node/", "n1", "n2"]);
    expect("cp web", &["web:/", "web-aaaaa:/"]);
    expect("cp shop/", &["shop/api:/"]);
    expect("set image w", &["workload/", "web="]);
}

#[test]
fn containers_keys_and_settings_follow_what_they_belong_to() {
    let fake = cluster();
    let program = Program::of(&fake);
    let expect = |line: &str, names: &[&str]| {
        assert_eq!(proposed(&program, line), names, "{line}");
    };
    expect("logs web -c ", &["prepare", "proxy", "shipper"]);
    expect("logs default/web -c s", &["shipper"]);
    expect("exec -it web-aaaaa -c ", &["proxy", "shipper"]);
    expect(
        "exec instance/web-aaaaa --container ",
        &["proxy", "shipper"],
    );
    expect("secret set login ", &["USER=", "PASSWORD="]);
    expect("secret unset login USER ", &["PASSWORD"]);
    expect("config get nodeLossT", &["nodeLossTimeoutSeconds"]);
    expect("config set nodeLossT", &["nodeLossTimeoutSeconds="]);
    expect("config unset nodeLossT", &["nodeLossTimeoutSeconds"]);
    expect("config set apiP", &[]);
    expect("config get apiP", &["apiPort"]);
    expect("namespace set shop w", &["workloads="]);
    expect(
        "namespace set shop defaults",
        &["defaults.requests.cpu=", "defaults.requests.memory="],
    );
}

#[test]
fn paths_of_fields_and_reasons_are_completed_without_a_cluster() {
    let program = Program::alone();
    let expect = |line: &str, names: &[&str]| {
        assert_eq!(proposed(&program, line), names, "{line}");
    };
    expect("explain wo", &["workload."]);
    expect(
        "explain workload.spec.re",
        &["workload.spec.replicas", "workload.spec.restartPolicy."],
    );
    expect("explain CrashL", &["CrashLoop"]);
    expect("explain reason/CrashL", &["reason/CrashLoop"]);
    expect("explain workload.nothing.", &[]);
    // A cluster that is not there is waited for at most for a moment, and nothing is printed.
    expect("restart ", &[]);
}

/// Scripts of earlier versions do not say the word that is being written.
#[test]
fn a_script_of_an_earlier_version_gets_all_names() {
    let fake = cluster();
    let text = Program::of(&fake).run(&["__complete", "--", "restart"]);
    assert_eq!(text, "exit: 0\n--- stdout\ndb\nweb\n");
}

#[test]
fn what_a_caller_may_not_read_hides_nothing_else() {
    let fake = cluster();
    fake.instead(
        "GET /v1alpha1/nodes",
        403,
        super::fake_api::error("Forbidden", "no"),
    );
    let program = Program::of(&fake);
    assert_eq!(
        proposed(&program, "why w"),
        ["workload", "workload/", "web", "web-aaaaa"]
    );
}

/// Runs lines of a shell with the folder of katcall first in `PATH`. `None` if the shell is not
/// installed.
#[expect(clippy::print_stderr, reason = "says which shell is missing")]
fn in_shell(program: &Program, shell: &str, arguments: &[&str], lines: &str) -> Option<String> {
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_katcall"))
        .parent()
        .unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let own = program.command(&[]);
    let mut command = Command::new(shell);
    command.args(arguments).arg(lines).env_clear();
    for (name, value) in own.get_envs() {
        command.env(name, value.unwrap());
    }
    command
        .env("PATH", format!("{}:{path}", folder.display()))
        .current_dir(program.home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("not tested: {shell} is not installed");
            return None;
        }
        Err(error) => panic!("{shell}: {error}"),
    };
    let mut stdout = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut stdout)
        .unwrap();
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert!(child.wait().unwrap().success(), "{shell}: {stdout}{stderr}");
    Some(stdout)
}

/// What bash proposes for words of a line, as it splits them itself.
fn in_bash(program: &Program, words: &[&str]) -> Vec<String> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let lines = format!(
        "source <(katcall completion bash)\n\
         COMP_WORDS=(katcall {})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
         _katcall_live katcall \"${{COMP_WORDS[COMP_CWORD]}}\" ''\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        quoted.join(" ")
    );
    let text = in_shell(program, "bash", &["--norc", "-c"], &lines).expect("bash is needed");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_names_fields_settings_and_what_it_splits_itself() {
    let fake = cluster();
    let program = Program::of(&fake);
    assert_eq!(in_bash(&program, &["restart", ""]), ["db", "web"]);
    assert_eq!(in_bash(&program, &["restart", "shop/"]), ["shop/api"]);
    assert_eq!(
        in_bash(&program, &["restart", "workload/s"]),
        ["workload/shop/"]
    );
    assert_eq!(
        in_bash(&program, &["get", "wl", "--namespace", "=", "sh"]),
        ["shop"]
    );
    let spaces = in_bash(&program, &["get", "wl", "--namespace", "="]);
    assert_eq!(spaces, ["default", "shop"]);
    let settings = in_bash(&program, &["config", "set", "nodeLossT"]);
    assert_eq!(settings, ["nodeLossTimeoutSeconds="]);
    let path = in_bash(&program, &["explain", "workload.spec.repl"]);
    assert_eq!(path, ["workload.spec.replicas"]);
    // Options are clap's.
    let options = in_bash(&program, &["restart", "--wa"]);
    assert_eq!(options, ["--wait"]);
    program.file("web.txt", "");
    let places = in_bash(&program, &["cp", "web"]);
    assert_eq!(places, ["web:/", "web-aaaaa:/", "web.txt"]);
}

#[test]
fn zsh_completes_names_fields_and_settings() {
    let fake = cluster();
    let program = Program::of(&fake);
    // Outside a line editor `compadd` is no command, so that a function can take its words.
    let lines = "source <(katcall completion zsh | sed '/^if .*funcstack/,$d')\n\
        compadd() {\n\
            local suffix=' '\n\
            [[ $1 == -S ]] && { suffix=$2; shift 2 }\n\
            [[ $1 == -a ]] && shift\n\
            print -rl -- ${^${(P)1}}\"$suffix|\"\n\
        }\n\
        _katcall_words() { print clap }\n\
        _files() { print files }\n\
        complete_words() { words=(katcall \"$@\"); CURRENT=$#words; _katcall }\n\
        complete_words restart ''\n\
        complete_words restart workload/s\n\
        complete_words config set nodeLossT\n\
        complete_words explain workload.spec.re\n\
        complete_words restart --wa\n\
        complete_words cp shop/\n";
    let Some(text) = in_shell(&program, "zsh", &["-f", "-c"], lines) else {
        return;
    };
    assert_eq!(
        text,
        "db |\nweb |\nworkload/shop/|\nnodeLossTimeoutSeconds=|\nworkload.spec.restartPolicy.|\n\
         workload.spec.replicas |\nclap\nshop/api:/|\nfiles\n"
    );
}

#[test]
fn fish_completes_names_fields_and_settings() {
    let fake = cluster();
    let program = Program::of(&fake);
    let lines = "katcall completion fish | source\n\
        complete -C 'katcall restart '\n\
        complete -C 'katcall restart workload/s'\n\
        complete -C 'katcall config set nodeLossT'\n\
        complete -C 'katcall explain workload.spec.repl'\n\
        complete -C 'katcall restart --wai'\n";
    let Some(text) = in_shell(&program, "fish", &["--no-config", "-c"], lines) else {
        return;
    };
    let words: Vec<&str> = text
        .lines()
        .map(|line| line.split('\t').next().unwrap())
        .collect();
    assert_eq!(
        words,
        [
            "db",
            "web",
            "workload/shop/",
            "nodeLossTimeoutSeconds=",
            "workload.spec.replicas",
            "--wait"
        ]
    );
}
