//! The cluster's certificate authorities: what is shown, and requests for a replacement.

use std::{collections::BTreeMap, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Server, put, registration};
use kat_pki::ingress::{certificate_hash, create_ingress_authority};
use kat_types::{
    api::{ApiTime, AuthorityReport, NodeReport},
    secrets::SecretRecord,
    store::{
        authorities::{
            AuthorityRecord, AuthoritySuccession, MemberSignature, Rotation, RotationPhase,
            RotationReason,
        },
        ingress::{
            IngressAuthorityRecord, IngressReplacement, NextIngressAuthority,
            PreviousIngressAuthority,
        },
        keys,
        records::NodeRegistration,
        transaction::WriteOperation,
    },
};

const AUTHORITIES: &str = "/v1alpha1/authorities";
const ROTATE: &str = "/v1alpha1/authorities/etcd-client-ca/rotate";
const MIGRATION: &str = "/v1alpha1/authorities/migration";
const OLD: &str = "old-authority";
const NEW: &str = "new-authority";
const TICK: Duration = Duration::from_secs(15);

fn node(name: &str, state_stream: bool) -> WriteOperation {
    let registration = NodeRegistration {
        state_stream,
        ..registration()
    };
    put(keys::registration(name), &registration)
}

/// n1 leads, holds the store with n2, and both have reported. n3 does not hold it, and reads the
/// state stream.
async fn cluster() -> Server {
    let server = Server::start().await;
    let member = json!({"id": "1", "voting": true, "healthy": true});
    let members = json!({"schema": 1, "members": {"n1": member, "n2": member}});
    let members = put(keys::MEMBERS.to_owned(), &members);
    server
        .write(&[members, node("n2", false), node("n3", true)])
        .await;
    for name in ["n1", "n2"] {
        server
            .handle
            .reports
            .accept(name, report(OLD), Duration::from_secs(15));
    }
    server
}

/// The report of a machine that holds the store.
fn report(issues: &str) -> NodeReport {
    let authority = |name: &str, expires: &str| AuthorityReport {
        name: name.to_owned(),
        issues: issues.to_owned(),
        expires: ApiTime::parse(expires),
        ..AuthorityReport::default()
    };
    NodeReport {
        authorities: vec![
            authority("cluster-ca", "2026-02-01T00:00:00Z"),
            authority("etcd-client-ca", "2026-03-01T00:00:00Z"),
            authority("etcd-peer-ca", "2026-04-01T00:00:00Z"),
        ],
        ..NodeReport::default()
    }
}

fn record(name: &str, change: impl FnOnce(&mut AuthorityRecord)) -> WriteOperation {
    let mut record = AuthorityRecord {
        schema: 1,
        current: OLD.to_owned(),
        since: Some("2026-01-01T00:00:00Z".parse().unwrap()),
        ..AuthorityRecord::default()
    };
    for holder in ["n1", "n2"] {
        let uid = registration().uid;
        record.holders.insert(holder.to_owned(), uid);
    }
    change(&mut record);
    put(keys::authority(name), &record)
}

fn rotation(phase: RotationPhase) -> Rotation {
    Rotation {
        phase,
        certificate: String::new(),
        next: NEW.to_owned(),
        reason: RotationReason::HolderLeft,
        since: "2026-01-02T00:00:00Z".parse().unwrap(),
        holders: ["n1", "n2"]
            .map(|name| (name.to_owned(), registration().uid))
            .into(),
        turn: None,
        signatures: Default::default(),
        grace_seconds: 0,
    }
}

fn stored(server: &Server, name: &str) -> AuthorityRecord {
    let mut found = server.store.peek(&keys::authority(name)).items;
    serde_json::from_slice(&found.remove(0).value).unwrap()
}

/// The authorities by name, as the reader of the cluster sees them.
async fn shown(server: &Server) -> BTreeMap<String, Value> {
    let (status, body) = server.get(&server.read, AUTHORITIES).await;
    assert_eq!(status, 200, "{body}");
    let items = body["items"].as_array().unwrap().iter();
    items
        .map(|one| (one["name"].as_str().unwrap().to_owned(), one.clone()))
        .collect()
}

async fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let call = server.send_json(&server.admin, Method::POST, path, body);
    let (status, body) = call.await;
    (status.as_u16(), body)
}

async fn rotate(server: &Server, path: &str) -> (u16, Value) {
    post(server, path, &json!({})).await
}

#[tokio::test]
async fn authorities_are_shown_with_their_expiry_and_that_of_the_machines_certificates() {
    let server = cluster().await;
    let own = server.etcd_authority.fingerprint();
    server
        .write(&[
            record("etcd-client-ca", |one| one.current.clone_from(&own)),
            record("etcd-peer-ca", |_| {}),
        ])
        .await;
    let shown = shown(&server).await;
    let names: Vec<&String> = shown.keys().collect();
    assert_eq!(
        names,
        [
            "cluster-ca",
            "etcd-client-ca",
            "etcd-peer-ca",
            "recovery-key"
        ]
    );
    let cluster = &shown["cluster-ca"];
    assert_eq!(cluster["fingerprint"], server.authority.fingerprint());
    assert_eq!(
        (&cluster["phase"], &cluster["message"], &cluster["since"]),
        (&json!("Settled"), &json!(""), &json!(""))
    );
    let expires = "2026-02-01T00:00:00Z";
    assert_eq!(
        cluster["certificates"],
        json!([
            {"name": "n1", "expires": expires}, {"name": "n2", "expires": expires},
            {"name": "n3", "expires": ""},
        ])
    );
    let clients = &shown["etcd-client-ca"];
    assert_eq!(clients["fingerprint"], own);
    let not_after: jiff::Timestamp = clients["notAfter"].as_str().unwrap().parse().unwrap();
    let left = not_after.duration_since(jiff::Timestamp::now()).as_hours() / 24;
    assert!((3640..=3653).contains(&left), "{left} days");
    assert_eq!(clients["since"], "2026-01-01T00:00:00Z");
    let expires = "2026-03-01T00:00:00Z";
    assert_eq!(
        clients["certificates"],
        json!([{"name": "n1", "expires": expires}, {"name": "n2", "expires": expires}])
    );
    assert!(clients.get("next").is_none() && clients.get("reason").is_none());
    let recovery = &shown["recovery-key"];
    assert_eq!(recovery["fingerprint"].as_str().unwrap().len(), 16);
    assert_eq!(
        (&recovery["notAfter"], &recovery["certificates"]),
        (&json!(""), &json!([]))
    );
    // This machine does not hold an authority with that fingerprint.
    assert_eq!(shown["etcd-peer-ca"]["notAfter"], "");
    let (status, body) = server.get(&server.deploy, AUTHORITIES).await;
    assert_eq!(status, 403, "{body}");
    server.leaderships.send_replace(None);
    let (status, body) = server.get(&server.read, AUTHORITIES).await;
    assert_eq!(status, 503, "only the leader has the reports: {body}");
}

/// A machine that was off while `cluster-ca` was replaced has no certificate that anybody accepts.
#[tokio::test]
async fn everybody_reads_the_signatures_for_replacements_and_from_a_machine_that_does_not_lead_too()
{
    let path = "/v1alpha1/authorities/successions";
    let server = cluster().await;
    let (status, body) = server.get("", path).await;
    assert_eq!((status.as_u16(), body), (200, json!({"successions": []})));
    let signature = |text: &str| MemberSignature {
        key: "a key".to_owned(),
        signature: text.to_owned(),
    };
    let earlier = AuthoritySuccession {
        before: "the first".to_owned(),
        after: OLD.to_owned(),
        signatures: [("n1".to_owned(), signature("earlier"))].into(),
        ..AuthoritySuccession::default()
    };
    server
        .write(&[record("cluster-ca", |one| {
            one.successions.push(earlier);
            one.rotation = Some(rotation(RotationPhase::Trust));
        })])
        .await;
    let befores = |body: &Value| {
        let found = body["successions"].as_array().unwrap().clone();
        let befores = found
            .iter()
            .map(|one| one["before"].as_str().unwrap().to_owned());
        befores.collect::<Vec<_>>()
    };
    let (_, body) = server.get("", path).await;
    assert_eq!(
        befores(&body),
        ["the first"],
        "nobody has signed the one under way"
    );
    server
        .write(&[record("cluster-ca", |one| {
            let mut under_way = rotation(RotationPhase::Issue);
            under_way.signatures = [("n2".to_owned(), signature("present"))].into();
            one.rotation = Some(under_way);
        })])
        .await;
    server.leaderships.send_replace(None);
    let (status, body) = server.get("", path).await;
    assert_eq!(
        (status.as_u16(), befores(&body)),
        (200, vec![OLD.to_owned()])
    );
    let shown = &body["successions"][0];
    assert_eq!(shown["after"], NEW);
    assert_eq!(
        shown["signatures"],
        json!({"n2": {"key": "a key", "signature": "present"}})
    );
}

#[tokio::test]
async fn a_replacement_is_shown_with_its_reason_and_what_it_waits_for() {
    let server = cluster().await;
    server
        .write(&[record("etcd-peer-ca", |one| {
            one.rotation = Some(rotation(RotationPhase::Issue));
        })])
        .await;
    server.handle.reports.accept("n1", report(NEW), TICK);
    let one = &shown(&server).await["etcd-peer-ca"];
    let expected = json!({
        "phase": "Issue", "next": NEW, "reason": "HolderLeft", "fingerprint": OLD,
        "replacementSince": "2026-01-02T00:00:00Z",
        "message": "being replaced, because a machine that held its key holds the store no more; machine n2 does not issue by it",
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(one[field], *value, "{field}");
    }
    // Once all have done their part, nothing is waited for.
    server.handle.reports.accept("n2", report(NEW), TICK);
    let message = &shown(&server).await["etcd-peer-ca"]["message"];
    assert_eq!(
        message,
        "being replaced, because a machine that held its key holds the store no more"
    );
}

#[tokio::test]
async fn a_request_for_a_replacement_is_written_once() {
    let server = cluster().await;
    server.write(&[record("etcd-client-ca", |_| {})]).await;
    let before = stored(&server, "etcd-client-ca");
    for token in [&server.read, &server.deploy] {
        let answer = server.call(token, Method::POST, ROTATE).await;
        assert_eq!(answer.status(), 403);
    }
    assert_eq!(stored(&server, "etcd-client-ca"), before);
    let (status, body) = rotate(&server, ROTATE).await;
    assert_eq!(
        (
            status,
            &body["phase"],
            &body["reason"],
            &body["fingerprint"]
        ),
        (200, &json!("Due"), &json!("Requested"), &json!(OLD)),
        "{body}"
    );
    assert_eq!(
        body["message"],
        "to be replaced, because somebody asked for it"
    );
    let found = stored(&server, "etcd-client-ca");
    assert!(found.due_since.is_some());
    let due = AuthorityRecord {
        due: Some(RotationReason::Requested),
        due_since: found.due_since,
        ..before
    };
    assert_eq!(found, due);
    let stands = server.stored();
    let (status, body) = rotate(&server, ROTATE).await;
    assert_eq!((status, &body["phase"]), (200, &json!("Due")), "{body}");
    assert_eq!(server.stored(), stands);
}

#[tokio::test]
async fn a_replacement_that_is_not_possible_is_refused_with_the_reason() {
    let server = cluster().await;
    server
        .write(&[record("etcd-client-ca", |one| {
            one.rotation = Some(Rotation {
                turn: Some("n2".to_owned()),
                ..rotation(RotationPhase::Retire)
            });
        })])
        .await;
    server.handle.reports.accept("n1", report(NEW), TICK);
    server.handle.reports.accept("n2", report(NEW), TICK);
    let before = server.stored();
    let refused = async |name: &str| {
        let (status, body) = rotate(&server, &format!("{AUTHORITIES}/{name}/rotate")).await;
        (status, body["message"].as_str().unwrap().to_owned())
    };
    let (status, message) = refused("etcd-client-ca").await;
    assert_eq!(
        (status, message.as_str()),
        (
            409,
            "etcd-client-ca is being replaced already, in phase Retire: etcd of n2 restarts"
        )
    );
    let (status, message) = refused("etcd-peer-ca").await;
    let expected = "the leader has not recorded yet which etcd-peer-ca is in use";
    assert_eq!((status, message.as_str()), (409, expected));
    let (status, message) = refused("cluster-ca").await;
    let expected = "the leader has not recorded yet which cluster-ca is in use";
    assert_eq!((status, message.as_str()), (409, expected));
    let (status, message) = refused("other-ca").await;
    assert_eq!(
        (status, message.as_str()),
        (404, "authority `other-ca` does not exist")
    );
    assert_eq!(server.stored(), before);
}

/// A replacement of `cluster-ca` gives katcall time to learn of it, and the time can be changed
/// while it runs.
#[tokio::test]
async fn the_time_for_katcall_is_set_and_changed_by_requests() {
    let server = cluster().await;
    server
        .write(&[record("cluster-ca", |_| {}), record("etcd-peer-ca", |_| {})])
        .await;
    let path = format!("{AUTHORITIES}/cluster-ca/rotate");
    let peers = format!("{AUTHORITIES}/etcd-peer-ca/rotate");
    for (path, grace) in [(&peers, 1_u64), (&path, 3_000_000)] {
        let (status, body) = post(&server, path, &json!({ "graceSeconds": grace })).await;
        assert_eq!(status, 400, "{body}");
    }
    let grace = || stored(&server, "cluster-ca").grace_seconds;
    let (status, body) = post(&server, &path, &json!({})).await;
    assert_eq!((status, &body["phase"]), (200, &json!("Due")), "{body}");
    assert_eq!(grace(), 86_400);
    let (status, _) = post(&server, &path, &json!({"graceSeconds": 60})).await;
    assert_eq!((status, grace()), (200, 60));
    let (status, _) = post(&server, &path, &json!({})).await;
    assert_eq!(
        (status, grace()),
        (200, 60),
        "a request that does not say it changes nothing"
    );

    let in_phase = |phase| {
        record("cluster-ca", |one| {
            one.rotation = Some(Rotation {
                grace_seconds: 60,
                ..rotation(phase)
            });
        })
    };
    server.write(&[in_phase(RotationPhase::Trust)]).await;
    let (status, body) = post(&server, &path, &json!({"graceSeconds": 0})).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(
        stored(&server, "cluster-ca")
            .rotation
            .unwrap()
            .grace_seconds,
        10
    );
    server.write(&[in_phase(RotationPhase::Issue)]).await;
    let (status, _) = post(&server, &path, &json!({"graceSeconds": 0})).await;
    assert_eq!(status, 409);
}

/// KAT's own authority for ingress as it is stored; its key opens nowhere.
fn ingress_authority() -> IngressAuthorityRecord {
    let now: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let domains = ["lan".to_owned()];
    let made = create_ingress_authority("test", &domains, now).unwrap();
    IngressAuthorityRecord {
        schema: 1,
        certificate: made.certificate_pem,
        domains: domains.into(),
        since: now,
        key: SecretRecord {
            schema: 1,
            uid: "u".to_owned(),
            version: 1,
            created: now,
            updated: now,
            keys: BTreeMap::new(),
            key_id: 1,
            sealed: String::new(),
        },
        due: None,
        next: None,
        previous: None,
    }
}

fn stored_ingress_authority(server: &Server) -> IngressAuthorityRecord {
    let mut found = server.store.peek(keys::INGRESS_AUTHORITY).items;
    serde_json::from_slice(&found.remove(0).value).unwrap()
}

const ROTATE_INGRESS: &str = "/v1alpha1/authorities/ingress-ca/rotate";

#[tokio::test]
async fn the_authority_for_ingress_is_replaced_by_request_and_the_time_for_clients_is_changed() {
    let server = cluster().await;
    assert!(!shown(&server).await.contains_key("ingress-ca"));
    let (status, body) = rotate(&server, ROTATE_INGRESS).await;
    let message = body["message"].as_str().unwrap();
    assert!(
        status == 409 && message == "ingress-ca has not been made yet",
        "{body}"
    );

    let write = async |record: &IngressAuthorityRecord| {
        let key = keys::INGRESS_AUTHORITY.to_owned();
        server.write(&[put(key, record)]).await;
    };
    let record = ingress_authority();
    let old = certificate_hash(&record.certificate).unwrap();
    write(&record).await;
    let one = &shown(&server).await["ingress-ca"];
    assert_eq!(
        (&one["phase"], &one["fingerprint"], &one["message"]),
        (&json!("Settled"), &json!(old), &json!(""))
    );
    assert!(
        one["notAfter"].as_str().unwrap().starts_with("203"),
        "{one}"
    );

    for token in [&server.read, &server.deploy] {
        let answer = server.call(token, Method::POST, ROTATE_INGRESS).await;
        assert_eq!(answer.status(), 403);
    }
    let grace = || stored_ingress_authority(&server).due.unwrap().grace_seconds;
    let too_long = json!({"graceSeconds": 3_000_000});
    let (status, body) = post(&server, ROTATE_INGRESS, &too_long).await;
    assert_eq!(status, 400, "{body}");
    let (status, body) = rotate(&server, ROTATE_INGRESS).await;
    assert_eq!(
        (status, &body["phase"], &body["reason"]),
        (200, &json!("Due"), &json!("Requested")),
        "{body}"
    );
    assert_eq!(grace(), 30 * 24 * 3600);
    let (status, _) = post(&server, ROTATE_INGRESS, &json!({"graceSeconds": 60})).await;
    assert_eq!((status, grace()), (200, 60));
    let (status, _) = rotate(&server, ROTATE_INGRESS).await;
    assert_eq!(
        (status, grace()),
        (200, 60),
        "a request that does not say it changes nothing"
    );
}

#[tokio::test]
async fn clients_are_shown_both_authorities_for_ingress_while_one_replaces_the_other() {
    let server = cluster().await;
    let write = async |record: &IngressAuthorityRecord| {
        let key = keys::INGRESS_AUTHORITY.to_owned();
        server.write(&[put(key, record)]).await;
    };
    let (first, second) = (ingress_authority(), ingress_authority());
    let hash = |record: &IngressAuthorityRecord| certificate_hash(&record.certificate).unwrap();
    let (old, new) = (hash(&first), hash(&second));
    let replacement = IngressReplacement {
        reason: RotationReason::DomainsChanged,
        since: first.since,
        grace_seconds: 60,
    };
    let trust = IngressAuthorityRecord {
        next: Some(NextIngressAuthority {
            certificate: second.certificate.clone(),
            domains: second.domains.clone(),
            key: second.key.clone(),
            replacement: replacement.clone(),
        }),
        ..first.clone()
    };
    write(&trust).await;
    let one = &shown(&server).await["ingress-ca"];
    assert_eq!(
        (&one["phase"], &one["fingerprint"], &one["next"]),
        (&json!("Trust"), &json!(old), &json!(new))
    );
    assert_eq!(one["graceUntil"], "2026-01-01T00:01:00Z");
    let message = one["message"].as_str().unwrap();
    assert!(
        message.contains("because internalDomains have changed"),
        "{message}"
    );
    let path = "/v1alpha1/ingress/authority";
    let (_, shown_to_clients) = server.get(&server.deploy, path).await;
    assert_eq!(shown_to_clients["certificate"], first.certificate);
    assert_eq!(shown_to_clients["next"]["certificate"], second.certificate);
    assert_eq!(shown_to_clients["nextIssues"], "2026-01-01T00:01:00Z");

    let (status, body) = rotate(&server, ROTATE_INGRESS).await;
    let message = body["message"].as_str().unwrap();
    assert!(
        status == 409 && message.contains("in phase Trust"),
        "{body}"
    );
    assert_eq!(stored_ingress_authority(&server), trust);
    let (status, _) = post(&server, ROTATE_INGRESS, &json!({"graceSeconds": 0})).await;
    assert_eq!(status, 200);
    let next = stored_ingress_authority(&server).next.unwrap();
    assert_eq!(next.replacement.grace_seconds, 0, "a person ends the time");

    let issue = IngressAuthorityRecord {
        previous: Some(PreviousIngressAuthority {
            certificate: first.certificate.clone(),
            domains: first.domains.clone(),
            replacement,
            until: first.since,
        }),
        ..second
    };
    write(&issue).await;
    let one = &shown(&server).await["ingress-ca"];
    assert_eq!(
        (&one["phase"], &one["fingerprint"], &one["next"]),
        (&json!("Issue"), &json!(old), &json!(new))
    );
    let (_, shown_to_clients) = server.get(&server.deploy, path).await;
    assert_eq!(shown_to_clients["certificate"], issue.certificate);
    assert_eq!(
        shown_to_clients["previous"]["certificate"],
        first.certificate
    );
    let (status, body) = post(&server, ROTATE_INGRESS, &json!({"graceSeconds": 0})).await;
    assert_eq!(status, 409, "{body}");
}

#[tokio::test]
async fn a_cluster_of_the_first_version_waits_for_its_machines_unless_told_otherwise() {
    let server = cluster().await;
    server.write(&[node("n4", false), node("n5", false)]).await;
    server
        .users
        .names
        .lock()
        .extend(["n4", "n5"].map(str::to_owned));
    let one = &shown(&server).await["etcd-client-ca"];
    assert_eq!(
        (&one["phase"], &one["reason"]),
        (&json!("Migration"), &json!("Migration"))
    );
    assert_eq!(one["fingerprint"], server.etcd_authority.fingerprint());
    let message = one["message"].as_str().unwrap();
    assert!(
        message.contains("n4, n5 still read etcd")
            && message.contains("katcall ca migrate --without n4 --without n5"),
        "{message}"
    );
    let (status, body) = rotate(&server, ROTATE).await;
    let message = body["message"].as_str().unwrap();
    assert!(
        status == 409 && message.contains("phase Migration: n4, n5 still read"),
        "{body}"
    );
    let before = server.stored();
    let body = json!({"without": ["n4"]});
    let call = server.send_json(&server.read, Method::POST, MIGRATION, &body);
    assert_eq!(call.await.0, 403);
    for (without, status, reason) in [
        (json!([]), 400, "at least one machine"),
        (json!(["n4", "n9"]), 404, "node `n9` does not exist"),
        (json!(["n4", "n2"]), 409, "`n2` holds the cluster's store"),
        (json!(["n3", "n4"]), 409, "`n3` reads the state stream"),
    ] {
        let (found, body) = post(&server, MIGRATION, &json!({"without": without})).await;
        let message = body["message"].as_str().unwrap();
        assert!(found == status && message.contains(reason), "{body}");
    }
    assert_eq!(server.stored(), before);
    assert_eq!(server.users.names.lock().len(), 2);
    let (status, body) = post(&server, MIGRATION, &body).await;
    assert_eq!((status, &body["waitsFor"]), (200, &json!(["n5"])), "{body}");
    let users: Vec<String> = server.users.names.lock().iter().cloned().collect();
    assert_eq!(users, ["n5"]);
    let left_out = |name: &str| {
        let mut found = server.store.peek(&keys::registration(name)).items;
        let registration: NodeRegistration =
            serde_json::from_slice(&found.remove(0).value).unwrap();
        registration.migration_ended
    };
    assert!(left_out("n4") && !left_out("n5"));
    let (status, body) = post(&server, MIGRATION, &json!({"without": ["n5", "n5"]})).await;
    assert_eq!((status, &body["waitsFor"]), (200, &json!([])), "{body}");
}

const EXPOSED: &str = "/v1alpha1/authorities/exposed";

/// The machine's report of a recovery key that it holds alone.
fn report_of_recovery_key(key: &str) -> NodeReport {
    let mut report = report(OLD);
    report.authorities.push(AuthorityReport {
        name: "recovery-key".to_owned(),
        issues: key.to_owned(),
        accepted: vec![key.to_owned()],
        ..AuthorityReport::default()
    });
    report
}

#[tokio::test]
async fn the_recovery_key_is_replaced_by_request_and_katcall_has_nothing_to_learn() {
    let server = cluster().await;
    server.write(&[record("recovery-key", |_| {})]).await;
    for name in ["n1", "n2"] {
        let report = report_of_recovery_key(OLD);
        server.handle.reports.accept(name, report, TICK);
    }
    let path = format!("{AUTHORITIES}/recovery-key/rotate");
    let (status, body) = post(&server, &path, &json!({"graceSeconds": 60})).await;
    let message = body["message"].as_str().unwrap();
    assert!(status == 400 && message.contains("recovery-key"), "{body}");
    for token in [&server.read, &server.deploy] {
        let answer = server.call(token, Method::POST, &path).await;
        assert_eq!(answer.status(), 403);
    }
    let (status, body) = rotate(&server, &path).await;
    assert_eq!(
        (status, &body["phase"], &body["fingerprint"]),
        (200, &json!("Due"), &json!(OLD)),
        "{body}"
    );
    // The phase is shown with the machine that it waits for.
    server
        .write(&[record("recovery-key", |one| {
            one.rotation = Some(rotation(RotationPhase::Issue));
        })])
        .await;
    let report = report_of_recovery_key(NEW);
    server.handle.reports.accept("n1", report, TICK);
    let message = &shown(&server).await["recovery-key"]["message"];
    assert_eq!(
        message,
        "being replaced, because a machine that held its key holds the store no more; machine n2 does not seal with it yet"
    );
    let (status, body) = rotate(&server, &path).await;
    assert_eq!(status, 409, "{body}");
}

/// The authority of etcd's clients is replaced by itself then.
#[tokio::test]
async fn a_machine_that_had_a_key_and_left_is_named_where_a_person_decides() {
    let server = cluster().await;
    let names = [
        "recovery-key",
        "cluster-ca",
        "etcd-peer-ca",
        "etcd-client-ca",
    ];
    let left = names.map(|name| {
        record(name, |one| {
            one.holders.insert("n9".to_owned(), "gone".to_owned());
        })
    });
    server.write(&left).await;
    let shown = shown(&server).await;
    let message = |name: &str| shown[name]["message"].as_str().unwrap().to_owned();
    for (name, what) in [
        ("recovery-key", "it"),
        ("cluster-ca", "its key"),
        ("etcd-peer-ca", "its key"),
    ] {
        assert_eq!(
            message(name),
            format!(
                "machine n9 had {what} and has left; where you do not trust it: katcall ca rotate {name}"
            )
        );
    }
    let own = message("etcd-client-ca");
    assert!(!own.contains("katcall ca rotate"), "{own}");
}

#[tokio::test]
async fn values_from_before_the_last_replacement_are_listed_until_they_are_changed() {
    let server = cluster().await;
    let exposed = async || {
        let (status, body) = server.get(&server.admin, EXPOSED).await;
        assert_eq!(status, 200, "{body}");
        let items = body["items"].as_array().unwrap().iter();
        let items = items.filter(|one| one["kind"] != "Token");
        let names = items.map(|one| format!("{}/{}", one["namespace"], one["name"]));
        let names: Vec<_> = names.map(|name| name.replace('"', "")).collect();
        (body["sealedSince"].as_str().unwrap().to_owned(), names)
    };
    let set = async |name: &str, value: &str| {
        let path = format!("/v1alpha1/n/shop/secrets/{name}");
        let content = json!({"values": {"A": value}});
        let call = server.send_json(&server.admin, Method::PUT, &path, &content);
        assert!(call.await.0.is_success());
    };
    set("db", "MQ==").await;
    set("mail", "MQ==").await;
    let login = json!({"username": "kim", "password": "geheim"});
    let path = "/v1alpha1/n/shop/registries/example.com";
    let call = server.send_json(&server.admin, Method::PUT, path, &login);
    let (status, body) = call.await;
    assert!(status.is_success(), "{body}");
    assert_eq!(exposed().await, (String::new(), vec![]));
    server.write(&[record("recovery-key", |_| {})]).await;
    assert_eq!(exposed().await, (String::new(), vec![]));
    let since = jiff::Timestamp::now();
    server
        .write(&[record("recovery-key", |one| one.sealed_since = Some(since))])
        .await;
    let (shown, names) = exposed().await;
    assert!(!shown.is_empty());
    assert_eq!(names, ["shop/db", "shop/mail", "shop/example.com"]);
    // Sealing again is no change of a value.
    let call = server.call(&server.admin, Method::POST, "/v1alpha1/sealing-key");
    assert_eq!(call.await.status(), 200);
    set("mail", "MQ==").await;
    assert_eq!(exposed().await.1.len(), 3);
    set("db", "Mg==").await;
    assert_eq!(exposed().await.1, ["shop/mail", "shop/example.com"]);
    // The key of this authority is older than its record says.
    let authority = |since: jiff::Timestamp, made: jiff::Timestamp| {
        let domains = ["lan".to_owned()];
        let made = create_ingress_authority("test", &domains, made).unwrap();
        let record = IngressAuthorityRecord {
            certificate: made.certificate_pem,
            since,
            ..ingress_authority()
        };
        put(keys::INGRESS_AUTHORITY.to_owned(), &record)
    };
    let later = since + jiff::SignedDuration::from_hours(48);
    let earlier = since - jiff::SignedDuration::from_hours(48);
    server.write(&[authority(later, earlier)]).await;
    assert_eq!(
        exposed().await.1,
        ["shop/mail", "shop/example.com", "/ingress-ca"]
    );
    server.write(&[authority(later, later)]).await;
    assert_eq!(exposed().await.1, ["shop/mail", "shop/example.com"]);
    let (_, body) = server.get(&server.admin, EXPOSED).await;
    assert!(!body.to_string().contains("geheim") && !body.to_string().contains("kim"));
    for token in [&server.read, &server.deploy] {
        let (status, body) = server.get(token, EXPOSED).await;
        assert_eq!(status, 403, "{body}");
    }
    server.leaderships.send_replace(None);
    let (status, body) = server.get(&server.admin, EXPOSED).await;
    assert_eq!(status, 503, "{body}");
}

/// The leader sees a token in each call, whatever the store has of it.
#[tokio::test]
async fn tokens_from_before_the_last_replacement_are_listed_until_they_are_revoked() {
    let server = cluster().await;
    let id_of = |token: &str| token.split('.').nth(1).unwrap().to_owned();
    let listed = async || {
        let (status, body) = server.get(&server.admin, EXPOSED).await;
        assert_eq!(status, 200, "{body}");
        let items = body["items"].as_array().unwrap().iter();
        let tokens = items.filter(|one| one["kind"] == "Token");
        let tokens = tokens.map(|one| {
            let text = |field: &str| one[field].as_str().unwrap().to_owned();
            (text("name"), text("namespace"))
        });
        tokens.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(listed().await, BTreeMap::new());
    let since = jiff::Timestamp::now();
    server
        .write(&[record("recovery-key", |one| one.sealed_since = Some(since))])
        .await;
    let before = listed().await;
    for (token, namespace) in [
        (&server.admin, ""),
        (&server.read, ""),
        (&server.deploy, "shop"),
    ] {
        assert_eq!(
            before.get(&id_of(token)).map(String::as_str),
            Some(namespace)
        );
    }
    let request = json!({"scope": {"kind": "read"}, "name": "later"});
    let call = server.send_json(&server.admin, Method::POST, "/v1alpha1/tokens", &request);
    let (status, body) = call.await;
    assert!(status.is_success(), "{body}");
    assert_eq!(listed().await, before, "a token of now is not exposed");
    let path = format!("/v1alpha1/tokens/{}", id_of(&server.read));
    let call = server.call(&server.admin, Method::DELETE, &path);
    assert!(call.await.status().is_success());
    assert_eq!(listed().await.get(&id_of(&server.read)), None);
}

/// A data key that is sealed with the recovery key of a moment ago could be one that nobody opens.
#[tokio::test]
async fn a_data_key_is_written_only_while_the_replacement_stands_where_it_was_decided() {
    let server = cluster().await;
    server.write(&[record("recovery-key", |_| {})]).await;
    let stale = server.handle.snapshot.borrow().clone().unwrap();
    let step = kat_plan::another_data_key(&stale, jiff::Timestamp::now()).unwrap();
    let key = keys::authority("recovery-key");
    assert!(step.conditions.iter().any(|one| matches!(
        one,
        kat_types::store::transaction::Compare::ModRevision(name, revision)
            if *name == key && *revision > 0
    )));
}
