//! Namespaces, tokens, configuration, contexts, completions, man pages and version.

use insta::assert_snapshot;
use serde_json::json;

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::{Program, mode},
};

#[test]
fn a_namespace_is_created() {
    let fake = Fake::start();
    let made = json!({"outcome": "created", "kind": "Namespace", "metadata": {"name": "shop"}});
    fake.reply("POST /v1alpha1/namespaces", 201, made);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["create", "namespace", "shop"]), @r"
    exit: 0
    --- stdout
    namespace/shop created
    ");
    assert_eq!(fake.body(), r#"{"metadata":{"name":"shop"}}"#);
    assert_snapshot!(program.run(&["create", "namespace", "node"]), @r"
    exit: 2
    --- stderr
    error: `node` is reserved
    ");
    // All names are checked before the first is created.
    let asked = fake.asked().len();
    let text = program.run(&["create", "namespace", "crew", "node"]);
    assert!(text.starts_with("exit: 2\n"), "{text}");
    assert_eq!(fake.asked().len(), asked);
}

#[test]
fn a_namespace_that_exists_keeps_its_labels_and_settings() {
    let fake = Fake::start();
    fake.reply(
        "POST /v1alpha1/namespaces",
        412,
        error("PreconditionFailed", "it exists already"),
    );
    let present = |labels: serde_json::Value| json!({"kind": "Namespace", "metadata": {"name": "shop", "labels": labels}, "spec": {}, "status": {"phase": "Active"}});
    let item = "GET /v1alpha1/namespaces/shop";
    fake.reply(item, 200, present(json!({"team": "a"})));
    let program = Program::of(&fake);
    let text = program.run(&["create", "namespace", "shop"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(
        text.contains("the namespace `shop` exists already"),
        "{text}"
    );
    assert!(text.contains("katcall namespace set shop"), "{text}");
    // One that is as this command makes it.
    fake.instead(item, 200, present(json!({})));
    let text = program.run(&["create", "namespace", "shop"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert!(text.contains("namespace/shop unchanged"), "{text}");
}

#[test]
fn several_namespaces_are_created_and_several_tokens_revoked_at_once() {
    let fake = Fake::start();
    let made = json!({"outcome": "created", "kind": "Namespace", "metadata": {"name": "shop"}});
    fake.reply("POST /v1alpha1/namespaces", 201, made);
    fake.reply("DELETE /v1alpha1/tokens/t1", 200, json!({}));
    fake.list("/v1alpha1/tokens", &[]);
    let program = Program::of(&fake);
    let text = program.run(&["create", "namespace", "shop", "crew"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    let created = fake.asked();
    let created = created.iter().filter(|asked| asked.starts_with("POST "));
    assert_eq!(created.count(), 2);
    assert_eq!(fake.body(), r#"{"metadata":{"name":"crew"}}"#);
    // One that is missing does not keep the others, and `-o name` prints what is taken here.
    let text = program.run(&["token", "revoke", "token/t2", "t1"]);
    assert!(text.starts_with("exit: 3\n"), "{text}");
    assert!(text.contains("token/t1 revoked"), "{text}");
    assert!(text.contains("error: token/t2: "), "{text}");
    assert!(text.contains("1 of 2 failed"), "{text}");
}

#[test]
fn a_token_goes_to_stdout_alone() {
    let fake = Fake::start();
    let mut token = json!({"id": "t1", "name": "ci", "created": ago(90_000),
        "scope": {"kind": "deploy", "namespace": "shop"}, "expires": ago(-7200 - 30)});
    fake.list("/v1alpha1/tokens", std::slice::from_ref(&token));
    token["token"] = "kat1.t1.secret".into();
    fake.reply("POST /v1alpha1/tokens", 201, token);
    fake.reply("DELETE /v1alpha1/tokens/t1", 200, json!({}));
    let program = Program::of(&fake);
    let create = [
        "token",
        "create",
        "--scope",
        "deploy:shop",
        "--name",
        "ci",
        "--ttl",
        "2h",
    ];
    let shown = program.run(&create);
    let (stdout, stderr) = shown.split_once("\n--- stderr\n").unwrap();
    assert_snapshot!(stdout, @r"
    exit: 0
    --- stdout
    kat1.t1.secret
    ");
    let kept = "token `t1` with scope deploy:shop; it is shown this once; it ends at 20";
    assert!(stderr.starts_with(kept), "{stderr}");
    let sent: serde_json::Value = serde_json::from_slice(&fake.body()).unwrap();
    let wanted =
        json!({"scope": {"kind": "deploy", "namespace": "shop"}, "name": "ci", "ttlSeconds": 7200});
    assert_eq!(sent, wanted);
    assert_snapshot!(program.run(&["token", "list"]));
    assert_snapshot!(program.run(&["token", "revoke", "t1"]));
    assert_snapshot!(program.run(&["token", "revoke", "t2"]));
    assert_snapshot!(program.run(&["token", "create", "--scope", "root"]));
}

#[test]
fn a_cluster_that_trusts_the_network_says_what_that_means() {
    let fake = Fake::start();
    let made = json!({"id": "t1", "name": "", "created": ago(1), "scope": {"kind": "join"},
        "uses": 2, "insecureTrustNetwork": true, "leaderApi": "192.0.2.1:9115"});
    fake.reply("POST /v1alpha1/tokens", 201, made.clone());
    fake.list("/v1alpha1/tokens", &[made]);
    let program = Program::of(&fake);
    let create = [
        "token",
        "create",
        "--join",
        "--insecure-trust-network",
        "--uses",
        "2",
    ];
    let shown = program.run(&create);
    let line = "sudo kat-agent join --leader-api 192.0.2.1:9115 --insecure-trust-network\n";
    assert!(shown.contains(line), "{shown}");
    assert!(shown.contains("2 machines may join with it"), "{shown}");
    assert!(
        shown.contains("anybody who reaches this address joins"),
        "{shown}"
    );
    let sent: serde_json::Value = serde_json::from_slice(&fake.body()).unwrap();
    let wanted = json!({"scope": {"kind": "join"}, "name": "", "ttlSeconds": 3600, "uses": 2,
        "insecureTrustNetwork": true});
    assert_eq!(sent, wanted);
    let listed = program.run(&["token", "list"]);
    assert!(listed.contains("join without a token, 2 left"), "{listed}");
    // The flag is refused for tokens that do more than join.
    let refused = program.run(&[
        "token",
        "create",
        "--scope",
        "admin",
        "--insecure-trust-network",
    ]);
    assert!(refused.contains("exit: 2"), "{refused}");
}

#[test]
fn where_nobody_is_reached_from_outside_it_is_said_what_is_missing() {
    let fake = Fake::start();
    let made = json!({"id": "t1", "name": "", "created": ago(1), "scope": {"kind": "join"},
        "uses": 1, "token": "kat1.t1.secret"});
    fake.reply("POST /v1alpha1/tokens", 201, made);
    let shown = Program::of(&fake).run(&["token", "create", "--join"]);
    let line = "sudo kat-agent join --leader-api HOST:PORT <<< kat1.t1.secret\n";
    assert!(shown.contains(line), "{shown}");
    assert!(shown.contains("replace HOST:PORT"), "{shown}");
}

/// What a leader answers about a configuration that was never changed.
fn configuration_history() -> serde_json::Value {
    let configuration = json!({"metadata": {"name": "home"}, "spec": {"mtu": 1380}});
    let first = json!({"number": 1, "madeBy": "init", "configuration": configuration});
    let second = json!({
        "number": 2, "madeAt": "2026-11-20T10:00:00Z", "madeBy": "token admin", "configuration": configuration,
        "changes": [{"setting": "mtu", "before": "1420", "after": "1380", "effect": ""}],
    });
    json!({"resourceVersion": "7", "revisions": [first, second],
        "waiting": {"leadersSeconds": 90, "machines": ["n2", "n3"]}})
}

#[test]
fn the_configuration_is_shown_as_a_cluster_kat() {
    let fake = Fake::start();
    let configuration = json!({"metadata": {"name": "home"}, "spec": {"mtu": 1380}});
    fake.reply("GET /v1alpha1/config/cluster", 200, configuration);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["config", "get"]));
    assert_snapshot!(program.run(&["config", "get", "mtu", "spec.clusterDomain"]), @r"
    exit: 0
    --- stdout
    1380
    kat.cluster.local
    ");
}

#[test]
fn settings_are_changed_together_and_shown_with_their_effect() {
    let fake = Fake::start();
    fake.reply(
        "GET /v1alpha1/config/cluster/revisions",
        200,
        configuration_history(),
    );
    let changes = json!([
        {"setting": "agentTickSeconds", "before": "15", "after": "5", "effect": "machines report this often"},
        {"setting": "nodeLossTimeoutSeconds", "before": "60", "after": "30", "effect": "nothing restarts"},
    ]);
    let changed = json!({"number": 3, "dryRun": false, "changes": changes});
    fake.reply("PUT /v1alpha1/config/cluster", 200, changed);
    let program = Program::of(&fake);
    let settings = [
        "config",
        "set",
        "agentTickSeconds=5",
        "nodeLossTimeoutSeconds=30",
    ];
    assert_snapshot!(program.run(&settings), @r"
    exit: 0
    --- stdout
    agentTickSeconds: 15 -> 5
      machines report this often
    nodeLossTimeoutSeconds: 60 -> 30
      nothing restarts
    configuration 3; `katcall config rollback 2` takes it back
    ");
}

#[test]
fn a_setting_that_is_wrong_or_cannot_change_is_refused_before_the_leader_is_asked() {
    let fake = Fake::start();
    fake.reply(
        "GET /v1alpha1/config/cluster/revisions",
        200,
        configuration_history(),
    );
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["config", "set", "agentTickSeconds=30"]));
    assert_snapshot!(program.run(&["config", "set", "mtu=1400", "volumeBasePath=/srv/kat"]), @r"
    exit: 1
    --- stderr
    error: spec.volumeBasePath stays as it was at init: the data of volumes lies there on every machine

    hint: mount another disk or file system at that path
    ");
    assert_snapshot!(program.run(&["config", "unset", "nodeLossTimeout"]), @r"
    exit: 2
    --- stderr
    error: `nodeLossTimeout` is no setting of the cluster

    hint: did you mean `nodeLossTimeoutSeconds`?
    ");
    assert_snapshot!(program.run(&["config", "rollback", "9"]), @r"
    exit: 3
    --- stderr
    error: no configuration 9 is kept: kept are 1, 2

    hint: `katcall config history` lists them
    ");
}

#[test]
fn the_history_of_settings_names_who_made_each_and_what_leaders_wait_for() {
    let fake = Fake::start();
    fake.reply(
        "GET /v1alpha1/config/cluster/revisions",
        200,
        configuration_history(),
    );
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["config", "history"]));
}

#[test]
fn a_leader_that_cannot_change_settings_is_named_as_the_cause() {
    let fake = Fake::start();
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["config", "set", "mtu=1400"]), @r"
    exit: 1
    --- stderr
    error: the leader has a version of KAT that cannot change settings; nothing was changed

    hint: `katcall version` shows both versions; upgrade the machines first
    ");
}

pub(crate) fn connection(cluster: &str, endpoint: &str) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["x".to_owned()]).unwrap();
    let ca = params.self_signed(&key).unwrap().pem();
    json!({"cluster": cluster, "clusterUid": "u-1", "endpoints": [endpoint], "ca": ca, "token": "t"})
        .to_string()
}

#[test]
fn a_token_is_printed_as_a_connection_file() {
    let fake = Fake::start();
    let connection: serde_json::Value =
        serde_json::from_str(&connection("home", "127.0.0.1:1")).unwrap();
    let mut connection = connection;
    connection["namespace"] = "shop".into();
    let made = json!({"id": "t1", "name": "ci", "created": ago(9),
        "scope": {"kind": "deploy", "namespace": "shop"}, "token": "t",
        "connection": connection});
    fake.reply("POST /v1alpha1/tokens", 201, made);
    let create = [
        "token",
        "create",
        "--scope",
        "deploy:shop",
        "-o",
        "connection",
    ];
    let shown = Program::of(&fake).run(&create);
    let (stdout, stderr) = shown.split_once("\n--- stderr\n").unwrap();
    assert!(
        stderr.starts_with("token `t1` with scope deploy:shop"),
        "{stderr}"
    );
    let file = stdout.split_once("--- stdout\n").unwrap().1;
    let printed: serde_json::Value = serde_json::from_str(file).unwrap();
    assert_eq!(printed, connection);

    let join = ["token", "create", "--join", "-o", "connection"];
    let refused = Program::of(&fake).run(&join);
    assert!(refused.starts_with("exit: 2\n"), "{refused}");
}

#[test]
fn contexts_are_kept_for_their_owner_alone() {
    let program = Program::alone().variable("KAT_CONNECTION", "");
    let home = program.file("home.conf", &connection("home", "127.0.0.1:1"));
    let work = program.file("work.conf", &connection("work", "127.0.0.1:2"));
    assert_snapshot!(program.run(&["context", "list"]), @r"
    exit: 0
    --- stderr
    no contexts
    ");
    assert_snapshot!(program.run(&["context", "add", "home", "--file", &home]), @r"
    exit: 0
    --- stderr
    context `home` for cluster `home` is added and in use
    ");
    assert_snapshot!(program.run(&["context", "add", "work", "--file", &work]), @r"
    exit: 0
    --- stderr
    context `work` for cluster `work` is added
    ");
    let file = program.home.path().join(".config/kat/contexts.json");
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(file.parent().unwrap()), 0o700);
    assert_snapshot!(program.run(&["context", "use", "wrok"]));
    assert_snapshot!(program.run(&["context", "use", "work"]));
    assert_snapshot!(program.run(&["context", "list"]));
    assert_snapshot!(program.run(&["context", "current"]));

    // Commands now connect to this address.
    let text = program.run(&["get", "nodes"]);
    assert!(text.starts_with("exit: 4\n"), "{text}");
    assert!(text.contains("127.0.0.1:2: connection refused"), "{text}");
    let text = program.run(&["get", "nodes", "--context", "home"]);
    assert!(text.contains("127.0.0.1:1: connection refused"), "{text}");

    assert_snapshot!(program.run(&["context", "remove", "work"]));
    assert_snapshot!(program.run(&["context", "current"]));
    assert_eq!(
        program.run(&["context", "add", "x", "--file", "nosuch"]),
        "exit: 1\n--- stderr\nerror: connection `nosuch`: no such file or directory\n"
    );
    let broken = program.file("broken.conf", "cluster: home");
    assert_snapshot!(program.run(&["context", "add", "x", "--file", &broken]));
    let mut permissions = std::fs::metadata(&file).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    std::fs::set_permissions(&file, permissions).unwrap();
    assert_snapshot!(program.run(&["context", "list"]));
}

#[test]
fn completions_and_man_pages_are_made() {
    let program = Program::alone();
    for (shell, word) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef katcall"),
        ("fish", "complete -c katcall"),
    ] {
        let text = program.run(&["completion", shell]);
        assert!(text.starts_with("exit: 0\n--- stdout\n"), "{shell}: {text}");
        assert!(text.contains(word), "{shell}");
        assert!(!text.contains("--- stderr"), "{shell}");
        // Hidden commands are not among the proposals.
        let hidden = ["Print possible next words", "Write the man pages"];
        for line in text.lines() {
            let is_proposed = line.contains("opts=\"") && line.contains(" __complete ");
            let is_described = hidden.iter().any(|about| line.contains(about));
            assert!(!is_proposed && !is_described, "{shell}: {line}");
        }
    }
    assert_snapshot!(program.run(&["completion", "tcsh"]));
    assert_eq!(program.run(&["man", "pages"]), "exit: 0\n");
    let mut names: Vec<String> = std::fs::read_dir(program.home.path().join("pages"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.contains(&"katcall.1".to_owned()), "{names:?}");
    for command in ["apply", "drain", "uncordon", "label", "taint"] {
        let page = format!("katcall-{command}.1");
        assert!(names.contains(&page), "{page} is not among {names:?}");
    }
}

#[test]
fn the_version_needs_no_cluster() {
    let fake = Fake::start();
    fake.reply("GET /version", 200, json!({"version": "0.2.0"}));
    assert_snapshot!(Program::of(&fake).run(&["version"]), @r"
    exit: 0
    --- stdout
    katcall 0.1.0
    cluster 0.2.0
    ");
    assert_snapshot!(Program::alone().run(&["version", "-o", "json"]));
}

#[test]
fn help_goes_to_stdout_and_lists_every_command() {
    assert_snapshot!(Program::alone().run(&["--help"]));
}

#[test]
fn a_passing_refusal_is_waited_out() {
    let fake = Fake::start();
    fake.reply(
        "GET /v1alpha1/nodes",
        503,
        error("NotLeader", "another machine leads now"),
    );
    fake.list("/v1alpha1/nodes", &[]);
    assert_eq!(
        Program::of(&fake).run(&["get", "nodes"]),
        "exit: 0\n--- stderr\nno nodes\n"
    );
    assert_eq!(fake.asked().len(), 2);
}
