//! katcall on a machine without the store, over that machine's socket.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

const SILENCE: &str = "no machine that holds the store answers since 2026-11-22T03:45:00Z, asked n1 (192.0.2.11:9115), n2 (192.0.2.12:9115)";

/// A machine as the overview has it.
fn by_overview(name: &str, roles: &[&str], number: u8, silent: bool) -> Value {
    let mut conditions = vec![json!({"type": "OverviewOnly", "status": true, "reason": "",
        "message": "n4 does not hold the cluster's store", "since": ""})];
    conditions.extend(silent.then(silent_condition));
    let (phase, reason) = match silent {
        false => ("Ready", ""),
        true => ("NotReady", "Unconfirmed"),
    };
    json!({
        "kind": "Node",
        "metadata": {"name": name, "resourceVersion": "9", "creationTimestamp": ""},
        "spec": {},
        "status": {"phase": phase, "reason": reason, "roles": roles,
            "message": if silent { "it was Ready as of 2026-11-22T03:40:00Z" } else { "" },
            "addresses": [format!("192.0.2.{number}")],
            "overlayAddress": format!("10.100.{number}.1"), "subnet": format!("10.100.{number}.0/23"),
            "version": "0.2.0", "instances": 0, "conditions": conditions}
    })
}

fn silent_condition() -> Value {
    json!({"type": "StoreSilent", "status": true, "reason": "Unconfirmed",
        "message": format!("other machines are shown as of 2026-11-22T03:40:00Z: {SILENCE}"),
        "since": "2026-11-22T03:45:00Z"})
}

fn overview(silent: bool) -> Value {
    let node = |name: &str, phase: &str| json!({"name": name, "phase": phase, "reason": "", "roles": ["worker"]});
    let mut relay = json!({
        "node": "n4", "asOf": "2026-11-22T03:40:00Z",
        "asked": [
            {"name": "n1", "endpoints": ["192.0.2.11:9115"]},
            {"name": "n2", "endpoints": ["192.0.2.12:9115"]},
        ],
    });
    if silent {
        relay["silentSince"] = "2026-11-22T03:45:00Z".into();
        relay["asked"][0]["error"] = "connection refused".into();
        relay["asked"][1]["error"] = "no answer within 3 s".into();
    }
    json!({
        "cluster": "home", "clusterUid": "u", "leader": "n1", "stale": false,
        "nodes": [node("n1", "Ready"), node("n2", "Ready"), node("n4", "Ready")],
        "store": {"members": 2, "voting": 2, "healthy": 2, "quorum": true, "reasons": []},
        "relay": relay,
    })
}

/// The API on the socket of n4.
fn worker(silent: bool) -> Fake {
    let fake = Fake::start();
    fake.reply("GET /version", 200, json!({"version": "0.2.0"}));
    let mut own = node("n4", "Ready", &["worker"]);
    own["metadata"]["creationTimestamp"] = "".into();
    own["status"]["conditions"] = match silent {
        true => json!([silent_condition()]),
        false => json!([]),
    };
    let leads: &[&str] = if silent {
        &["etcd", "worker"]
    } else {
        &["leader", "etcd", "worker"]
    };
    fake.list(
        "/v1alpha1/nodes",
        &[
            by_overview("n1", leads, 11, silent),
            by_overview("n2", &["etcd", "worker"], 12, silent),
            own,
        ],
    );
    fake.list("/v1alpha1/instances", &[instance("web-aaaaa", "Running")]);
    fake.reply("GET /v1alpha1/overview", 200, overview(silent));
    let silence = if silent {
        format!("; {SILENCE}")
    } else {
        String::new()
    };
    let mut refusal = error(
        "Forbidden",
        &format!(
            "this machine (n4) does not hold the cluster's store: its socket shows its own instances and the cluster's overview{silence}"
        ),
    );
    refusal["hint"] = "ask on n1 (192.0.2.11), n2 (192.0.2.12), or bring a connection: ...".into();
    for path in [
        "workloads",
        "events",
        "config/cluster",
        "n/default/workloads",
    ] {
        fake.reply(&format!("GET /v1alpha1/{path}"), 403, refusal.clone());
    }
    fake
}

#[test]
fn a_worker_shows_the_whole_clusters_machines_and_whether_it_is_well() {
    let fake = worker(false);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["get", "nodes"]));
    assert_snapshot!(program.run(&["status"]));
}

#[test]
fn a_worker_that_nobody_answers_says_what_is_old_and_whom_it_asked() {
    let fake = worker(true);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["get", "nodes"]));
    assert_snapshot!(program.run(&["status"]));
    // Programs see no other machine as Ready.
    let text = program.run(&["get", "nodes", "-o", "json"]);
    assert_eq!(text.matches(r#""phase": "Ready""#).count(), 1, "{text}");
}

#[test]
fn a_worker_says_of_everything_else_where_to_ask() {
    let fake = worker(true);
    assert_snapshot!(Program::of(&fake).run(&["get", "workloads"]));
}

#[test]
fn problems_of_the_store_reach_a_workers_status() {
    let fake = worker(false);
    let mut full = overview(false);
    full["store"] = json!({"members": 2, "voting": 2, "healthy": 1, "quorum": false,
        "reasons": ["StoreFull", "EtcdHasKnownHoles", "OfANewerVersion"]});
    fake.instead("GET /v1alpha1/overview", 200, full);
    let text = Program::of(&fake).run(&["status"]);
    assert!(
        text.starts_with("exit: 1\n--- stdout\ncluster `home` is not well\n"),
        "{text}"
    );
    assert!(
        text.contains("most members of etcd do not answer (1 of 2 do)"),
        "{text}"
    );
    assert!(
        text.contains("StoreFull: the cluster's store is full"),
        "{text}"
    );
    assert!(text.contains("OfANewerVersion"), "{text}");
    let (_, security) = text.split_once("\nsecurity\n").unwrap();
    assert!(security.contains("EtcdHasKnownHoles: "), "{security}");
    // Nobody leads that the members reach.
    let fake = worker(false);
    let mut stale = overview(false);
    stale["stale"] = true.into();
    fake.instead("GET /v1alpha1/overview", 200, stale);
    let text = Program::of(&fake).run(&["status"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    assert!(
        text.contains("no machine leads that can be reached"),
        "{text}"
    );
}
