//! `katcall ca`, and the lines of `katcall status` about authorities.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

const AUTHORITIES: &str = "/v1alpha1/authorities";
const ROTATE: &str = "POST /v1alpha1/authorities/etcd-client-ca/rotate";
const MIGRATION: &str = "POST /v1alpha1/authorities/migration";

fn authority(name: &str, phase: &str, fingerprint: &str, message: &str) -> Value {
    json!({"name": name, "fingerprint": fingerprint, "notAfter": ago(-3600 * 24 * 3649 - 60),
        "since": ago(7300), "phase": phase, "replacementSince": "", "message": message,
        "certificates": [{"name": "a", "expires": ago(-3600 * 24 * 20)}]})
}

fn replaced(phase: &str, fingerprint: &str, message: &str) -> Value {
    let mut one = authority("etcd-client-ca", phase, fingerprint, message);
    one["replacementSince"] = ago(65).into();
    one["next"] = "1111".into();
    one
}

fn well(nodes: &[&str]) -> Fake {
    let fake = Fake::start();
    let roles: &[&str] = &["leader", "etcd", "worker"];
    let nodes = nodes.iter().zip([roles, &["etcd"]]);
    let nodes: Vec<Value> = nodes
        .map(|(name, roles)| {
            let node = node(name, "Ready", roles);
            with_member(node, true, "Votes", "its etcd answers and has a vote")
        })
        .collect();
    fake.list("/v1alpha1/nodes", &nodes);
    fake
}

#[test]
fn authorities_are_a_table_with_what_a_replacement_waits_for() {
    let fake = Fake::start();
    let message = "being replaced, because somebody asked for it; etcd of n2 restarts";
    fake.list(
        AUTHORITIES,
        &[
            authority("cluster-ca", "Settled", "aaaa", ""),
            replaced("Trust", "0000", message),
        ],
    );
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["ca", "list"]), @r"
    exit: 0
    --- stdout
    NAME             PHASE     EXPIRES   SINCE   MESSAGE
    cluster-ca       Settled   in 9y     2h      -
    etcd-client-ca   Trust     in 9y     1m      being replaced, because somebody asked for it; etcd of n2 restarts
    ");
    assert_snapshot!(program.run(&["ca", "list", "-o", "wide"]), @r"
    exit: 0
    --- stdout
    NAME             PHASE     EXPIRES   SINCE   FINGERPRINT   NEXT   MESSAGE
    cluster-ca       Settled   in 9y     2h      aaaa          -      -
    etcd-client-ca   Trust     in 9y     1m      0000          1111   being replaced, because somebody asked for it; etcd of n2 restarts
    ");
    assert_snapshot!(program.run(&["ca", "list", "-o", "name"]), @r"
    exit: 0
    --- stdout
    authority/cluster-ca
    authority/etcd-client-ca
    ");
    let printed = program.run(&["ca", "list", "-o", "json"]);
    assert!(printed.contains("\"phase\": \"Trust\""), "{printed}");
    assert!(printed.contains("\"next\": \"1111\""), "{printed}");
}

#[test]
fn an_older_leader_is_named_as_the_reason_that_nothing_is_shown() {
    let fake = Fake::start();
    let refusal = error("NotFound", "there is no route `/v1alpha1/authorities`");
    fake.reply(&format!("GET {AUTHORITIES}"), 404, refusal);
    assert_snapshot!(Program::of(&fake).run(&["ca", "list"]), @r"
    exit: 1
    --- stderr
    error: the leader has a version of KAT that replaces no authorities

    hint: upgrade KAT on the machines that hold the store
    ");
}

#[test]
fn a_request_on_one_member_says_that_nothing_can_be_written_for_some_seconds() {
    let fake = well(&["a"]);
    let due = "to be replaced, because somebody asked for it";
    fake.reply(ROTATE, 200, authority("etcd-client-ca", "Due", "0000", due));
    let program = Program::of(&fake);
    let rotate = ["ca", "rotate", "etcd-client-ca"];
    assert_snapshot!(program.run(&rotate), @r"
    exit: 0
    --- stdout
    authority/etcd-client-ca is in phase Due
    --- stderr
    a alone holds the store: while its etcd restarts, twice, nothing can be changed for some seconds; instances continue to run
    ");
    fake.instead("GET /v1alpha1/nodes", 200, json!({"items": []}));
    assert_snapshot!(program.run(&rotate), @r"
    exit: 0
    --- stdout
    authority/etcd-client-ca is in phase Due
    ");
}

#[test]
fn a_replacement_is_followed_to_its_end_while_the_api_does_not_always_answer() {
    let fake = well(&["a", "b"]);
    let list = format!("GET {AUTHORITIES}");
    let listed = |one: Value| json!({"items": [one], "metadata": {"resourceVersion": "1"}});
    fake.reply(
        ROTATE,
        200,
        authority("etcd-client-ca", "Due", "0000", "to be replaced"),
    );
    fake.reply(
        &list,
        200,
        listed(replaced("Trust", "0000", "etcd of b restarts")),
    );
    fake.reply(&list, 503, error("Unavailable", "no machine leads"));
    fake.reply(&list, 200, listed(replaced("Retire", "0000", "")));
    fake.reply(
        &list,
        200,
        listed(authority("etcd-client-ca", "Settled", "1111", "")),
    );
    let program = Program::of(&fake);
    let printed = program.run(&["ca", "rotate", "etcd-client-ca", "--wait"]);
    assert_snapshot!(printed, @r"
    exit: 0
    --- stdout
    authority/etcd-client-ca replaced
    --- stderr
    etcd-client-ca is in phase Due: to be replaced
    etcd-client-ca is in phase Trust: etcd of b restarts
    etcd-client-ca is in phase Retire
    etcd-client-ca is in phase Settled
    backups and snapshots that were made before keep the old keys: `sudo kat-agent backup` makes a new backup
    ");
}

#[test]
fn a_replacement_that_takes_too_long_goes_on() {
    let fake = well(&["a", "b"]);
    let due = authority("etcd-client-ca", "Due", "0000", "etcd of b is not ready");
    fake.reply(ROTATE, 200, due.clone());
    fake.list(AUTHORITIES, &[due]);
    let words = [
        "ca",
        "rotate",
        "etcd-client-ca",
        "--wait",
        "--timeout",
        "2s",
    ];
    assert_snapshot!(Program::of(&fake).run(&words), @r"
    exit: 5
    --- stderr
    etcd-client-ca is in phase Due: etcd of b is not ready
    error: authority `etcd-client-ca` is not replaced after 2s: etcd-client-ca is in phase Due: etcd of b is not ready

    hint: it continues; `katcall ca list` shows how far it is
    ");
}

#[test]
fn a_refused_replacement_has_the_servers_reason() {
    let fake = well(&["a", "b"]);
    fake.list(AUTHORITIES, &[]);
    let missing = error("NotFound", "authority `etcd-ca` does not exist");
    fake.reply("POST /v1alpha1/authorities/etcd-ca/rotate", 404, missing);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["ca", "rotate", "etcd-ca"]), @r"
    exit: 3
    --- stderr
    error: authority `etcd-ca` does not exist

    hint: `katcall ca list` shows the authorities, and `katcall get nodes` the machines
    ");
    let mut conflict = error("Conflict", "etcd-client-ca is being replaced already");
    conflict["hint"] = "`katcall ca list` shows how far it is".into();
    fake.reply(ROTATE, 409, conflict);
    assert_snapshot!(program.run(&["ca", "rotate", "etcd-client-ca"]), @r"
    exit: 1
    --- stderr
    error: etcd-client-ca is being replaced already

    hint: `katcall ca list` shows how far it is
    ");
}

#[test]
fn the_migration_is_ended_for_the_named_machines() {
    let fake = Fake::start();
    fake.reply(MIGRATION, 200, json!({"waitsFor": ["n6"]}));
    let program = Program::of(&fake);
    let printed = program.run(&["ca", "migrate", "--without", "n4", "--without", "n5"]);
    assert_snapshot!(printed, @r"
    exit: 0
    --- stdout
    node/n4 is not waited for
    node/n5 is not waited for
    --- stderr
    a machine that was given up reads nothing until KAT is upgraded on it
    still waited for: n6
    ");
    let sent: Value = serde_json::from_slice(&fake.body()).unwrap();
    assert_eq!(sent, json!({"without": ["n4", "n5"]}));
    fake.instead(MIGRATION, 200, json!({"waitsFor": []}));
    assert_snapshot!(program.run(&["ca", "migrate", "--without", "n4,n5"]), @r"
    exit: 0
    --- stdout
    node/n4 is not waited for
    node/n5 is not waited for
    --- stderr
    a machine that was given up reads nothing until KAT is upgraded on it
    no machine is waited for: etcd-client-ca is replaced next, and `katcall ca list` shows how far it is
    ");
    let sent: Value = serde_json::from_slice(&fake.body()).unwrap();
    assert_eq!(sent, json!({"without": ["n4", "n5"]}));
    let printed = program.run(&["ca", "migrate"]);
    assert!(printed.starts_with("exit: 2\n"), "{printed}");
}

#[test]
fn the_help_says_what_a_replacement_costs_and_what_keeps_the_old_keys() {
    assert_snapshot!(Program::alone().run(&["ca", "rotate", "--help"]));
    assert_snapshot!(Program::alone().run(&["ca", "migrate", "--help"]));
}

/// What `katcall status` prints with this answer about authorities.
fn status(code: u16, body: Value) -> String {
    let fake = well(&["a"]);
    fake.reply("GET /version", 200, json!({"version": "0.1.0"}));
    let configuration = json!({"metadata": {"name": "home"}, "spec": {}});
    fake.reply("GET /v1alpha1/config/cluster", 200, configuration);
    for path in ["workloads", "instances", "events"] {
        fake.list(&format!("/v1alpha1/{path}"), &[]);
    }
    fake.reply(&format!("GET {AUTHORITIES}"), code, body);
    Program::of(&fake).run(&["status"])
}

#[test]
fn a_cluster_in_migration_is_not_well_and_one_that_replaces_an_authority_is() {
    let listed = |one: Value| json!({"items": [one], "metadata": {"resourceVersion": "1"}});
    let settled = authority("etcd-client-ca", "Settled", "0000", "");
    let screen = status(200, listed(settled));
    assert!(screen.starts_with("exit: 0\n"), "{screen}");
    assert!(!screen.contains("etcd-client-ca"), "{screen}");
    let message = "n4 still read etcd as version 0.1.0 does";
    let migration = authority("etcd-client-ca", "Migration", "0000", message);
    let screen = status(200, listed(migration));
    assert!(screen.starts_with("exit: 1\n"), "{screen}");
    let line = "\nnot well\n  authority etcd-client-ca is in phase Migration: n4 still read etcd";
    assert!(screen.contains(line), "{screen}");
    let screen = status(200, listed(replaced("Trust", "0000", "etcd of a restarts")));
    assert!(screen.starts_with("exit: 0\n"), "{screen}");
    let line = "\non the way\n  authority etcd-client-ca is in phase Trust (replacement began 1m ago): etcd of a restarts\n";
    assert!(screen.contains(line), "{screen}");
}

#[test]
fn an_older_leader_without_authorities_leaves_the_status_as_it_was() {
    let screen = status(404, error("NotFound", "there is no route"));
    assert!(screen.starts_with("exit: 0\n"), "{screen}");
    assert!(!screen.contains("authorities"), "{screen}");
    let screen = status(500, error("Internal", "a bug"));
    assert!(screen.starts_with("exit: 1\n"), "{screen}");
    assert!(
        screen.contains("authorities cannot be read: a bug"),
        "{screen}"
    );
}

#[test]
fn a_replaced_recovery_key_is_to_be_written_down() {
    let fake = Fake::start();
    let list = format!("GET {AUTHORITIES}");
    let one = |phase: &str, fingerprint: &str| {
        let mut one = authority("recovery-key", phase, fingerprint, "");
        one["notAfter"] = "".into();
        one["certificates"] = json!([]);
        one
    };
    let rotate = "POST /v1alpha1/authorities/recovery-key/rotate";
    fake.reply(rotate, 200, one("Due", "0000"));
    let listed = json!({"items": [one("Settled", "1111")], "metadata": {"resourceVersion": "1"}});
    fake.reply(&list, 200, listed);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["ca", "rotate", "recovery-key", "--wait"]), @r"
    exit: 0
    --- stdout
    authority/recovery-key replaced
    --- stderr
    recovery-key is in phase Due
    recovery-key is in phase Settled
    write the new recovery key down, and keep it away from the machines: `sudo kat-agent recovery-key` on a machine that holds the store shows it
    backups that were made before open with the earlier recovery key only: `sudo kat-agent backup` makes a new backup
    `katcall ca exposed` lists the secrets, credentials and tokens that could be read before
    ");
    assert_snapshot!(program.run(&["ca", "list"]), @r"
    exit: 0
    --- stdout
    NAME           PHASE     EXPIRES   SINCE   MESSAGE
    recovery-key   Settled   -         2h      -
    ");
}

#[test]
fn exposed_values_are_a_table_with_what_to_do() {
    let fake = Fake::start();
    let path = format!("GET {AUTHORITIES}/exposed");
    let value = |kind: &str, name: &str| json!({"kind": kind, "namespace": "shop", "name": name, "updated": ago(7300)});
    let found = json!({"sealedSince": ago(3700), "unread": 1,
        "items": [value("Secret", "db"), value("RegistryLogin", "example.com"),
            {"kind": "Authority", "namespace": "", "name": "ingress-ca", "updated": ago(7300)},
            {"kind": "Token", "namespace": "", "name": "abcdefghijkl", "updated": ago(7300)}]});
    fake.instead(&path, 200, found);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["ca", "exposed"]), @r"
    exit: 0
    --- stdout
    KIND            NAMESPACE   NAME           AGE   TO DO
    Secret          shop        db             2h    change it, then: `katcall secret set db -n shop`
    RegistryLogin   shop        example.com    2h    change it, then: `katcall registry login example.com -n shop`
    Authority       -           ingress-ca     2h    replace it: `katcall ca rotate ingress-ca`
    Token           -           abcdefghijkl   2h    replace it where it is used, then: `katcall token revoke abcdefghijkl`
    --- stderr
    these are from before the recovery key was replaced, 1h ago: whoever had root on a machine that held the store, or the earlier key and a backup, may know them
    1 more can't be read by the leader's version of KAT
    ");
    assert_snapshot!(program.run(&["ca", "exposed", "-o", "name"]), @r"
    exit: 0
    --- stdout
    secret/shop/db
    registrylogin/shop/example.com
    authority/ingress-ca
    token/abcdefghijkl
    ");
    let printed = program.run(&["ca", "exposed", "-o", "json"]);
    assert!(printed.contains("\"sealedSince\""), "{printed}");
    let printed = program.run(&["ca", "exposed", "-o", "yaml"]);
    assert!(printed.contains("kind: RegistryLogin"), "{printed}");
    fake.instead(
        &path,
        200,
        json!({"sealedSince": ago(3700), "unread": 0, "items": []}),
    );
    assert_snapshot!(program.run(&["ca", "exposed"]), @r"
    exit: 0
    --- stderr
    every secret, credential and token was made after the recovery key was replaced, 1h ago
    ");
    fake.instead(
        &path,
        200,
        json!({"sealedSince": "", "unread": 0, "items": []}),
    );
    assert_snapshot!(program.run(&["ca", "exposed"]), @r"
    exit: 0
    --- stderr
    the recovery key was never replaced; `katcall ca rotate recovery-key` replaces it
    ");
}

#[test]
fn a_leader_of_an_earlier_version_lists_no_exposed_values() {
    let fake = Fake::start();
    let path = format!("GET {AUTHORITIES}/exposed");
    fake.reply(&path, 404, error("NotFound", "no such route"));
    assert_snapshot!(Program::of(&fake).run(&["ca", "exposed"]), @r"
    exit: 1
    --- stderr
    error: the leader has a version of KAT that does not replace the recovery key

    hint: upgrade KAT on the machines that hold the store
    ");
}

#[test]
fn the_help_of_exposed_values_says_what_they_are() {
    assert_snapshot!(Program::alone().run(&["ca", "exposed", "--help"]));
}

#[test]
fn while_the_authority_for_ingress_is_replaced_both_certificates_are_printed() {
    const PATH: &str = "GET /v1alpha1/ingress/authority";
    let fake = Fake::start();
    let settled = json!({"certificate": "FIRST\n", "fingerprint": "0000", "domains": ["lan"]});
    fake.reply(PATH, 200, settled.clone());
    let program = Program::of(&fake);
    let printed = program.run(&["ca", "trust"]);
    assert!(printed.contains("FIRST\n"), "{printed}");
    assert!(!printed.contains("being replaced"), "{printed}");
    let printed = program.run(&["ca", "trust", "--next"]);
    assert!(
        printed.contains("no other authority is to replace") && !printed.contains("FIRST"),
        "{printed}"
    );

    let mut trust = settled.clone();
    trust["next"] = json!({"certificate": "SECOND\n", "fingerprint": "1111", "domains": ["corp"]});
    trust["nextIssues"] = "2026-12-24T18:00:00Z".into();
    fake.instead(PATH, 200, trust);
    let printed = program.run(&["ca", "trust"]);
    assert!(printed.contains("FIRST\nSECOND\n"), "{printed}");
    assert!(
        printed.contains("the second one issues all certificates from 2026-12-24T18:00:00Z on"),
        "{printed}"
    );
    let printed = program.run(&["ca", "trust", "--next"]);
    assert!(
        printed.contains("SECOND\n") && !printed.contains("FIRST"),
        "{printed}"
    );

    let mut issue = settled;
    issue["previous"] = json!({"certificate": "ZERO\n", "fingerprint": "2222", "domains": ["lan"]});
    fake.instead(PATH, 200, issue);
    let printed = program.run(&["ca", "trust"]);
    assert!(printed.contains("FIRST\nZERO\n"), "{printed}");
}

#[test]
fn a_request_for_the_authority_for_ingress_says_that_clients_have_to_trust_the_new_one() {
    let fake = Fake::start();
    let due = "to be replaced, because somebody asked for it";
    fake.reply(
        "POST /v1alpha1/authorities/ingress-ca/rotate",
        200,
        authority("ingress-ca", "Due", "0000", due),
    );
    let printed = Program::of(&fake).run(&["ca", "rotate", "ingress-ca"]);
    assert!(
        printed.contains("authority/ingress-ca is in phase Due")
            && printed.contains("`katcall ca trust --next` prints its certificate"),
        "{printed}"
    );
}
