//! katcall against the real API with its state in memory: both sides must agree.

use insta::assert_snapshot;
use serde_json::json;

use super::{run_katcall::Program, support};
use kat_pki::{Authority, AuthorityKind, CertificateKeyPair, LeafKind};

/// katcall with a connection file that contains `token`, as a user has it.
pub(crate) fn with_token(server: &support::Server, token: &str, authority: &str) -> Program {
    let program = Program::alone();
    let connection = json!({
        "cluster": "home", "clusterUid": support::CLUSTER_UID,
        "endpoints": [format!("127.0.0.1:{}", server.port)], "ca": authority, "token": token,
    });
    let file = program.file("connection.json", &connection.to_string());
    program.variable("KAT_CONNECTION", &file)
}

fn admin(server: &support::Server) -> Program {
    let program = with_token(server, &server.admin, server.authority.certificate_pem());
    program.file("web/workload.kat", &support::web("shop", "web", 2));
    program
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_in_the_environment_is_sent_to_the_clusters_own_servers_alone() {
    let server = support::Server::start().await;
    let address = format!("127.0.0.1:{}", server.port);
    let program = || {
        let program = Program::alone().variable("KAT_SERVER", &address);
        program.variable("KAT_TOKEN", &server.admin)
    };
    let list = ["get", "namespaces"];

    let own = &server.authority;
    let hash = format!("sha256:{}", own.fingerprint());
    for authority in [own.certificate_pem(), hash.as_str()] {
        let text = program().variable("KAT_CA", authority).run(&list);
        assert!(text.starts_with("exit: 0\n"), "{text}");
    }

    let now = jiff::Timestamp::now();
    let other = Authority::generate(AuthorityKind::Cluster, support::CLUSTER_UID, now).unwrap();
    let hash = format!("sha256:{}", other.fingerprint());
    for authority in [other.certificate_pem(), hash.as_str()] {
        let text = program().variable("KAT_CA", authority).run(&list);
        assert!(text.starts_with("exit: 4\n"), "{text}");
        let reason = "its certificate is not from this cluster's authority";
        assert!(text.contains(reason), "{text}");
    }

    let text = program().run(&list);
    assert!(text.starts_with("exit: 2\n"), "{text}");
    assert!(text.contains("KAT_CA is not"), "{text}");
}

/// The certificate that every machine has in version 0.1.0, also a hostile worker.
fn earlier_leaf(server: &support::Server) -> CertificateKeyPair {
    let kind = LeafKind::Node {
        name: "n1".to_owned(),
        cluster_uid: Some(support::CLUSTER_UID.to_owned()),
        addresses: vec!["127.0.0.1".parse().unwrap()],
    };
    server
        .authority
        .issue(&kind, jiff::Timestamp::now())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_an_earlier_version_demands_the_name_of_the_api_once_a_server_had_it() {
    let server = support::Server::start().await;
    let program = Program::alone();
    let connection = json!({
        "cluster": "home", "clusterUid": support::CLUSTER_UID, "namespace": "shop",
        "endpoints": [format!("127.0.0.1:{}", server.port)],
        "ca": server.authority.certificate_pem(), "token": server.admin,
    });
    let file = program.file("connection.json", &connection.to_string());
    let program = program.variable("KAT_CONNECTION", &file);
    let kept = || {
        let text = std::fs::read_to_string(&file).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let list = ["get", "namespaces"];
    let earlier = earlier_leaf(&server);
    let authority = server.authority.certificate_pem().to_owned();

    server.identity.replace(&earlier, &authority).unwrap();
    let text = program.run(&list);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert_eq!(kept(), connection, "nothing was learned");

    let own = server.leaf(&support::api_kind("n1"));
    server.identity.replace(&own, &authority).unwrap();
    let text = program.run(&list);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    let mut demanding = connection.clone();
    demanding["apiNameRequired"] = true.into();
    assert_eq!(kept(), demanding);

    server.identity.replace(&earlier, &authority).unwrap();
    let text = program.run(&list);
    assert!(text.starts_with("exit: 4\n"), "{text}");
    assert!(
        text.contains("its certificate is refused: it is not for the API"),
        "{text}"
    );
    server.identity.replace(&own, &authority).unwrap();
    let text = program.run(&list);
    assert!(text.starts_with("exit: 0\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_lives_and_goes() {
    let server = support::Server::start().await;
    let program = admin(&server);
    let apply = ["apply", "-f", "web"];
    let text = program.run(&["apply", "-f", "web", "--dry-run"]);
    assert!(
        text.starts_with("exit: 10\n--- stdout\nworkload shop/web would be created\n"),
        "{text}"
    );
    assert!(!text.contains("correct-horse"), "{text}");
    let missing = program.run(&["get", "workload", "web", "-n", "shop"]);
    assert!(missing.starts_with("exit: 3\n"), "{missing}");
    assert_snapshot!(program.run(&apply), @r"
    exit: 0
    --- stdout
    workload/web created
    ");
    assert_snapshot!(program.run(&apply), @r"
    exit: 0
    --- stdout
    workload/web unchanged
    ");
    program.file("web/workload.kat", &support::web("shop", "web", 3));
    assert_snapshot!(program.run(&apply), @r"
    exit: 0
    --- stdout
    workload/web updated
    ");
    assert_snapshot!(program.run(&["get", "workloads", "-A", "-o", "name"]), @r"
    exit: 0
    --- stdout
    workload/shop/web
    ");
    let text = program.run(&["get", "workload", "web", "-n", "shop", "-o", "yaml"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert!(text.contains("generation: 2\n"), "{text}");
    assert!(!text.contains("correct-horse"), "{text}");
    let text = program.run(&["describe", "workload", "web", "-n", "shop"]);
    assert!(
        text.contains("image         registry.lab:5000/web:1"),
        "{text}"
    );
    assert!(!text.contains("correct-horse"), "{text}");
    // No leader plans in this test, so the workload never runs.
    let text = program.run(&["apply", "-f", "web", "--wait", "--timeout", "1s"]);
    assert!(
        text.starts_with("exit: 5\n--- stdout\nworkload/web unchanged\n"),
        "{text}"
    );
    assert_snapshot!(program.run(&["delete", "-f", "web"]), @r"
    exit: 0
    --- stdout
    workload/web deleting
    ");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_list_and_every_watch_is_understood() {
    let server = support::Server::start().await;
    let program = admin(&server);
    for kind in [
        "workloads",
        "instances",
        "nodes",
        "namespaces",
        "volumes",
        "events",
        "tokens",
    ] {
        let text = program.run(&["get", kind]);
        assert!(text.starts_with("exit: 0\n"), "{kind}: {text}");
        if kind == "tokens" {
            continue;
        }
        let mut running = program.spawn(&["get", kind, "-A", "--watch", "-o", "json"]);
        match kind {
            "nodes" | "namespaces" => running.stdout_says("ADDED"),
            _ => running.stderr_says(&format!("no {kind}")),
        }
        running.interrupt();
        let text = running.end();
        assert!(text.starts_with("exit: 130\n"), "{kind}: {text}");
        assert!(!text.contains("nothing is seen"), "{kind}: {text}");
    }
    let mut running = program.spawn(&["get", "wl", "-n", "shop", "--watch"]);
    running.stderr_says("no workloads in namespace shop");
    assert!(
        program
            .run(&["apply", "-f", "web"])
            .starts_with("exit: 0\n")
    );
    running.stdout_says("added");
    let socket = server.socket("admin.sock").display().to_string();
    let local = Program::alone().variable("KAT_CONNECTION", &socket);
    assert_snapshot!(local.run(&["get", "nodes", "-o", "name"]), @r"
    exit: 0
    --- stdout
    node/n1
    ");
    let text = program.run(&["status"]);
    assert!(text.contains("cluster `"), "{text}");
    assert!(!text.contains("cannot be read"), "{text}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_have_their_codes_and_words() {
    let server = support::Server::start().await;
    let program = admin(&server);
    assert_snapshot!(program.run(&["get", "workloads", "-n", "shpo"]));
    assert_snapshot!(program.run(&["get", "workload", "wbe", "-n", "shop"]));
    assert_snapshot!(program.run(&["create", "namespace", "payments"]));
    assert!(
        program
            .run(&["apply", "-f", "web"])
            .starts_with("exit: 0\n")
    );
    assert_snapshot!(program.run(&["delete", "namespace", "shop"]));

    let ca = server.authority.certificate_pem();
    let reader = with_token(&server, &server.read, ca);
    reader.file("web/workload.kat", &support::web("shop", "web", 2));
    let text = reader.run(&["apply", "-f", "web"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(
        text.contains("may not do this; it needs the scope"),
        "{text}"
    );
    let stranger = with_token(&server, "kat1.no.token", ca);
    assert_snapshot!(stranger.run(&["get", "nodes"]));
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["x".to_owned()]).unwrap();
    let other = params.self_signed(&key).unwrap().pem();
    let misled = with_token(&server, &server.admin, &other).run(&["get", "nodes"]);
    let port = server.port.to_string();
    assert_snapshot!(misled.replace(&port, "[PORT]"));

    // A new token works within its scope, and no longer once it is revoked.
    let made = program.run(&[
        "token", "create", "--scope", "read", "--ttl", "1h", "-o", "json",
    ]);
    let json = made
        .split("--- stdout\n")
        .nth(1)
        .unwrap()
        .split("--- stderr")
        .next()
        .unwrap();
    let made: serde_json::Value = serde_json::from_str(json).unwrap();
    let (id, token) = (
        made["id"].as_str().unwrap(),
        made["token"].as_str().unwrap(),
    );
    let fresh = with_token(&server, token, ca);
    assert!(fresh.run(&["get", "nodes"]).starts_with("exit: 0\n"));
    let text = program.run(&["token", "revoke", id]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert!(fresh.run(&["get", "nodes"]).starts_with("exit: 1\n"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_data_of_a_volume_is_kept_and_removed() {
    let server = support::Server::start().await;
    let program = admin(&server);
    assert!(
        program
            .run(&["apply", "-f", "web"])
            .starts_with("exit: 0\n")
    );
    let record = json!({"schema": 1, "index": 0, "node": "n1", "made": true,
        "reclaim": "Retain", "created": "2026-01-01T00:00:00Z"});
    let volume = |name: &str| kat_types::store::keys::volume(name);
    server
        .write(&[
            support::put(volume("shop/web/data.0"), &record),
            support::put(volume("shop/web/conf@host.0"), &record),
        ])
        .await;
    let names = ["get", "volumes", "-n", "shop", "-o", "name"];
    assert_snapshot!(program.run(&names), @r"
    exit: 0
    --- stdout
    volume/web/conf@host.0
    volume/web/data.0
    ");
    let delete = ["delete", "volume", "shop/web/conf@host.0", "--yes"];
    let text = program.run(&delete);
    assert!(
        text.starts_with("exit: 0\n--- stdout\nvolume/web/conf@host.0 deleting\n"),
        "{text}"
    );
    let text = program.run(&["get", "volume", "shop/web/conf@host.0"]);
    assert!(text.contains("Removing"), "{text}");
    let with_data = ["delete", "-f", "web", "--volumes", "--yes"];
    let text = program.run(&with_data);
    assert!(
        text.starts_with("exit: 0\n--- stdout\nworkload/web deleting\n"),
        "{text}"
    );
    let (_, events) = server
        .get(&server.admin, "/v1alpha1/events?resourceName=web")
        .await;
    assert!(
        events.to_string().contains("with the data of its volumes"),
        "{events}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_of_one_line_is_exported_changed_and_compared() {
    let server = support::Server::start().await;
    let program = admin(&server);
    let run = [
        "run",
        "registry.lab:5000/api:1",
        "-n",
        "shop",
        "-p",
        "80:8080",
        "-e",
        "KEY=correct-horse",
    ];
    assert_snapshot!(program.run(&run), @r"
    exit: 0
    --- stdout
    workload/api created
    ");
    let again = program.run(&run);
    assert!(
        again.contains("`shop/api` exists already, with the same content"),
        "{again}"
    );
    let other = program.run(&[&run[..], &["--replicas", "2"]].concat());
    assert!(
        other.contains("hint: `katcall edit` or `katcall apply`"),
        "{other}"
    );

    let printed = program.run(&["export", "shop/api"]);
    let stream = printed.split_once("--- stdout\n").unwrap().1;
    let applied = program.run_piped(&["apply", "-f", "-"], stream.as_bytes());
    assert_snapshot!(applied, @r"
    exit: 0
    --- stdout
    workload/api unchanged
    ");
    let text = program.run(&["export", "shop/api", "-o", "api"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert_eq!(program.run(&["diff", "api"]), "exit: 0\n");
    let path = program.home.path().join("api/workload.kat");
    let changed = std::fs::read_to_string(&path)
        .unwrap()
        .replace("replicas: 1", "replicas: 2");
    std::fs::write(&path, changed).unwrap();
    let text = program.run(&["diff", "api"]);
    assert!(text.starts_with("exit: 10\n"), "{text}");
    assert!(
        text.contains("\n-  replicas: 1\n+  replicas: 2\n"),
        "{text}"
    );

    // Somebody else changes it while the editor is open.
    let home = program.home.path().display().to_string();
    let katcall = env!("CARGO_BIN_EXE_katcall");
    let script = format!(
        "sed -i 's/replicas: 1/replicas: 4/' \"$1\"; {katcall} scale api -n shop --replicas 3\n"
    );
    let editor = program.file("editor", &script);
    let program = program
        .variable("EDITOR", &format!("sh {editor}"))
        .variable("TMPDIR", &home)
        .variable("PATH", "/usr/bin:/bin");
    let text = program.run(&["edit", "shop/api"]);
    assert!(text.contains("was changed or deleted meanwhile"), "{text}");
    program.file("editor", "sed -i 's/replicas: 3/replicas: 5/' \"$1\"\n");
    let text = program.run(&["edit", "shop/api"]);
    assert!(
        text.starts_with("exit: 0\n--- stdout\nworkload/api updated\n"),
        "{text}"
    );
    let text = program.run(&["export", "shop/api", "--generation", "1"]);
    assert!(text.contains("replicas: 1\n"), "{text}");
    let text = program.run(&["export", "shop/api", "--generation", "9"]);
    assert!(text.starts_with("exit: 3\n"), "{text}");

    let ca = server.authority.certificate_pem();
    let reader = with_token(&server, &server.read, ca);
    for arguments in [
        &["export", "shop/api"][..],
        &["diff", "api"],
        &["edit", "shop/api"],
    ] {
        reader.file("api/workload.kat", &support::web("shop", "api", 1));
        let text = reader.run(arguments);
        assert!(!text.contains("KEY"), "{text}");
        assert!(!text.starts_with("exit: 0\n"), "{text}");
    }
    let text = reader.run(&["export", "shop/api"]);
    assert!(
        text.contains("which the scope `read` does not see"),
        "{text}"
    );
    let deployer = with_token(&server, &server.deploy, ca);
    let text = deployer.run(&["export", "shop/api"]);
    assert!(text.contains("correct-horse"), "{text}");
    server.stop().await;
}
