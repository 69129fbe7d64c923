//! Joining over real sockets: which machines are let in, what is stored, and what they receive.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[path = "joining/modes.rs"]
mod modes;
#[path = "support/api.rs"]
mod support;

use std::collections::BTreeSet;

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, SanType};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use x509_parser::extensions::GeneralName;

use kat_pki as pki;
use kat_pki::{create_request, create_request_for_key, tls};
use kat_types::{
    api::JoinRequest,
    store::{
        authorities::AuthorityRecord,
        keys,
        records::{NodeRegistration, TokenRecord},
        transaction::WriteOperation,
    },
};
use support::{CLUSTER_UID, Server, put, read};

const JOIN: &str = "/v1alpha1/join";
const TOKENS: &str = "/v1alpha1/tokens";

/// A server with an overlay network and machine n1.
async fn server() -> Server {
    let server = Server::start().await;
    let key = |field| keys::network_node("n1", field);
    server
        .write(&[
            WriteOperation::Put(keys::OVERLAY_CIDR.to_owned(), b"10.100.0.0/16".to_vec()),
            WriteOperation::Put(key("subnet"), b"10.100.0.0/23".to_vec()),
            WriteOperation::Put(key("wg_pubkey"), wireguard_key(1).into_bytes()),
            put(key("wg_endpoints"), &["192.0.2.1:51820"]),
        ])
        .await;
    server
}

/// A join token as a machine sends it, and its id.
async fn token(server: &Server, options: &Value) -> (String, String) {
    let mut request = json!({"scope": {"kind": "join"}});
    let more = options.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    let (status, made) = server
        .send_json(&server.admin, Method::POST, TOKENS, &request)
        .await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    assert_eq!(made["leaderApi"], "192.0.2.1:9115");
    let whole = made["token"].as_str().unwrap();
    let (bearer, pin) = whole.rsplit_once('.').unwrap();
    assert_eq!(pin, server.authority.fingerprint());
    (bearer.to_owned(), made["id"].as_str().unwrap().to_owned())
}

fn wireguard_key(number: u8) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    BASE64_STANDARD.encode([number; 32])
}

fn body(name: &str, number: u8, request_pem: &str) -> Value {
    json!({
        "name": name,
        "certificateRequest": request_pem,
        "wireguardKey": wireguard_key(number),
        "endpoints": [format!("192.0.2.{number}:51820")],
        "advertise": [format!("192.0.2.{number}")],
        "architecture": "amd64",
        "stateStream": true,
    })
}

fn fresh(name: &str, number: u8) -> Value {
    let (request, _) = create_request(&format!("node:{name}")).unwrap();
    body(name, number, &request)
}

async fn join(server: &Server, token: &str, body: &Value) -> (StatusCode, Value) {
    server.send_json(token, Method::POST, JOIN, body).await
}

fn stored<T: serde::de::DeserializeOwned>(server: &Server, key: &str) -> T {
    let items = server.stored();
    let (_, value) = items.iter().find(|(found, _)| found == key).expect(key);
    serde_json::from_slice(value).unwrap()
}

#[tokio::test]
async fn a_machine_gets_certificates_a_subnet_and_the_others() {
    let server = server().await;
    let (token, id) = token(&server, &json!({"uses": 1})).await;
    let (request, key_pem) = create_request("node:n2").unwrap();
    let (status, answer) = join(&server, &token, &body("n2", 2, &request)).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    assert_eq!(answer["subnet"], "10.100.2.0/23");
    assert_eq!(answer["clusterUID"], CLUSTER_UID);
    assert_eq!(answer["known"], false);
    assert_eq!(answer["peers"].as_object().unwrap().len(), 1);
    assert_eq!(answer["peers"]["n1"]["publicKey"], wireguard_key(1));
    assert_eq!(answer["peers"]["n1"]["subnet"], "10.100.0.0/23");
    let certificates = &answer["certificates"];
    let text = |name: &str| certificates[name].as_str().unwrap().to_owned();
    assert_eq!(text("clusterAuthority"), server.authority.certificate_pem());
    assert_eq!(
        text("etcdAuthority"),
        server.etcd_authority.certificate_pem()
    );

    let registration: NodeRegistration = stored(&server, &keys::registration("n2"));
    assert_eq!(answer["nodeUID"], registration.uid);
    assert!(!registration.etcd);
    let hash = tls::public_key_hash(&text("node")).unwrap();
    assert_eq!(hash, registration.identity_key, "the key is known");
    assert!(registration.state_stream);
    assert!(certificates.get("etcd").is_none(), "{certificates}");
    let record: TokenRecord = stored(&server, &keys::token(&id));
    assert_eq!(record.uses, Some(0));

    // With its certificate the machine reports, and reads only about itself.
    let identity = pki::CertificateKeyPair {
        certificate_pem: text("node"),
        key_pem,
    };
    let client = server.client(Some(&identity));
    let report = json!({"nodeName": "n2", "nodeUID": registration.uid});
    let path = server.url("/v1alpha1/nodes/n2/status");
    let reported = client.post(path).json(&report).send().await.unwrap();
    assert_eq!(reported.status(), StatusCode::NO_CONTENT);
    for (path, expected) in [
        ("/v1alpha1/nodes/n2", 200),
        ("/v1alpha1/nodes/n1", 403),
        ("/v1alpha1/nodes", 403),
        ("/v1alpha1/tokens", 403),
        ("/v1alpha1/config/cluster", 403),
    ] {
        let answer = client.get(server.url(path)).send().await.unwrap();
        assert_eq!(answer.status(), expected, "{path}");
    }
    // A machine cannot remove another one; a machine only leaves by itself.
    let away = client.delete(server.url("/v1alpha1/nodes/n1"));
    assert_eq!(away.send().await.unwrap().status(), 403);
}

#[tokio::test]
async fn a_known_key_keeps_identity_name_and_subnet_and_uses_nothing_up() {
    let server = server().await;
    let (token, id) = token(&server, &json!({"uses": 2})).await;
    let (request, key_pem) = create_request("node:n2").unwrap();
    let (_, first) = join(&server, &token, &body("n2", 2, &request)).await;
    let (_, other) = join(&server, &token, &fresh("n3", 3)).await;
    assert_eq!(other["subnet"], "10.100.4.0/23");
    // The token was used up by this very machine, which may repeat its request because the first
    // answer may have been lost.
    let again = create_request_for_key("node:n2", &key_pem).unwrap();
    let (status, second) = join(&server, &token, &body("n2", 2, &again)).await;
    assert_eq!(status, StatusCode::OK, "{second}");
    for field in ["nodeUID", "subnet"] {
        assert_eq!(first[field], second[field]);
    }
    assert_eq!(second["known"], true);
    let record: TokenRecord = stored(&server, &keys::token(&id));
    assert_eq!(record.uses, Some(0));

    let before = server.stored();
    // Neither the same name with another key nor the same key with another name is admitted.
    let (status, refused) = join(&server, &token, &fresh("n2", 4)).await;
    assert_eq!(status, StatusCode::CONFLICT, "{refused}");
    let renamed = create_request_for_key("node:n4", &key_pem).unwrap();
    let (status, refused) = join(&server, &token, &body("n4", 2, &renamed)).await;
    assert_eq!(status, StatusCode::CONFLICT, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("`n2`"));
    assert_eq!(server.stored(), before);
}

/// A machine between the joining machine and the leader sees the whole request, but not the key
/// that signed it.
#[tokio::test]
async fn what_a_machine_says_of_itself_can_not_be_changed_on_the_way() {
    let server = server().await;
    let (token, _) = token(&server, &json!({"uses": 3})).await;
    let key = pki::create_key().unwrap();
    let signed = |number: u8| {
        let mut request: JoinRequest = serde_json::from_value(body("n2", number, "")).unwrap();
        let statement = request.statement();
        let signed = pki::create_request_stating("node:n2", &key, &statement).unwrap();
        request.certificate_request = signed;
        serde_json::to_value(request).unwrap()
    };
    let before = server.stored();
    for (field, value) in [
        ("wireguardKey", json!(wireguard_key(9))),
        ("endpoints", json!(["192.0.2.9:51820"])),
        ("advertise", json!(["192.0.2.9"])),
        ("etcdPeer", json!(true)),
        ("reach", json!({"names": ["other.example.org"]})),
        (
            "memberKeys",
            json!({"leader": "ab".repeat(32), "admin": "ab".repeat(32)}),
        ),
    ] {
        let mut changed = signed(2);
        changed[field] = value;
        let (status, answer) = join(&server, &token, &changed).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{field} {answer}");
        assert!(
            answer["message"].as_str().unwrap().contains("signed"),
            "{answer}"
        );
    }
    assert_eq!(server.stored(), before);
    let (status, answer) = join(&server, &token, &signed(2)).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    // A renewal request, signed by the same key, cannot be used to replace the WireGuard key.
    let renewal = create_request_for_key("node:n2", &key).unwrap();
    let (status, answer) = join(&server, &token, &body("n2", 9, &renewal)).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    // The machine itself can replace its WireGuard key.
    let (status, answer) = join(&server, &token, &signed(7)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}

#[tokio::test]
async fn a_token_ends_by_uses_time_and_revocation_and_says_which() {
    let server = server().await;
    let (single, _) = token(&server, &json!({"uses": 1})).await;
    let (status, _) = join(&server, &single, &fresh("n2", 2)).await;
    assert_eq!(status, StatusCode::CREATED);
    let (expired, expired_id) = token(&server, &json!({"ttlSeconds": 60})).await;
    let mut record: TokenRecord = stored(&server, &keys::token(&expired_id));
    record.expires = Some(Timestamp::now());
    server
        .write(&[put(keys::token(&expired_id), &record)])
        .await;
    let (revoked, revoked_id) = token(&server, &json!({})).await;
    let path = format!("{TOKENS}/{revoked_id}");
    let gone = server.call(&server.admin, Method::DELETE, &path).await;
    assert_eq!(gone.status(), StatusCode::NO_CONTENT);
    let before = server.stored();
    for (token, status, word) in [
        (&single, 403, "used up"),
        (&expired, 401, "expired"),
        (&revoked, 401, "not known"),
        (&server.admin, 403, "token for joining"),
        (&server.read, 403, "token for joining"),
        (&String::new(), 401, ""),
    ] {
        let (found, answer) = join(&server, token, &fresh("n3", 3)).await;
        assert_eq!(found, status, "{answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(server.stored(), before);
    assert!(!server.users.names.lock().contains("n3"));
    // A join token only opens the routes that a machine reads before it joins.
    let (token, _) = token(&server, &json!({})).await;
    for (path, expected) in [
        ("/v1alpha1/config/cluster", 200),
        ("/v1alpha1/nodes", 403),
        ("/v1alpha1/tokens", 403),
        ("/openapi.json", 403),
    ] {
        let (status, answer) = server.get(&token, path).await;
        assert_eq!(status, expected, "{path} {answer}");
    }
}

#[tokio::test]
async fn only_the_key_of_a_request_counts() {
    let server = server().await;
    let (token, _) = token(&server, &json!({})).await;
    let request = |common_name: &str| {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.subject_alt_names = vec![
            SanType::DnsName("stolen.example.org".try_into().unwrap()),
            SanType::IpAddress("192.0.2.1".parse().unwrap()),
        ];
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        params.serialize_request(&key).unwrap().pem().unwrap()
    };
    // The default subject already has a common name of rcgen's, so this subject starts out empty.
    let plain = |common_name: &str| {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::default();
        let mut subject = rcgen::DistinguishedName::new();
        subject.push(DnType::CommonName, common_name);
        params.distinguished_name = subject;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.subject_alt_names = vec![SanType::DnsName("stolen.example.org".try_into().unwrap())];
        params.serialize_request(&key).unwrap().pem().unwrap()
    };
    let before = server.stored();
    for asked in [
        "admin:n2",
        "leader:n2",
        "node:n1",
        "root",
        "etcd:n2",
        "node:n2/x",
    ] {
        let (status, answer) = join(&server, &token, &body("n2", 2, &plain(asked))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{asked} {answer}");
    }
    let (status, _) = join(&server, &token, &body("n2", 2, &request("x"))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    for name in ["root", "N2", "", "n2.", "../n1", &"x".repeat(41)] {
        let asked = plain(&format!("node:{name}"));
        let (status, answer) = join(&server, &token, &body(name, 2, &asked)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{name} {answer}");
    }
    assert_eq!(server.stored(), before);
    let (status, answer) = join(&server, &token, &body("n2", 2, &plain("node:n2"))).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let text = answer["certificates"]["node"].as_str().unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(text.as_bytes()).unwrap();
    let certificate = pem.parse_x509().unwrap();
    assert!(!certificate.is_ca());
    let names = certificate.subject_alternative_name().unwrap();
    let names = names.map_or_else(String::new, |names| format!("{:?}", names.value));
    assert!(!names.contains("stolen"), "{names}");
}

/// With the name of the API a machine could take the calls of others. Leaders of version 0.1.0
/// expect the cluster's name, which was the API's then, of every agent.
#[tokio::test]
async fn a_machines_certificate_has_the_clusters_name_only_while_a_member_of_0_1_0_may_lead() {
    let server = server().await;
    let (token, _) = token(&server, &json!({})).await;
    let names = async |name: &str, number: u8| {
        let (request, _) = create_request(&format!("node:{name}")).unwrap();
        let (status, answer) = join(&server, &token, &body(name, number, &request)).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
        let text = answer["certificates"]["node"].as_str().unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(text.as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        let names = certificate.subject_alternative_name().unwrap().unwrap();
        let names = names
            .value
            .general_names
            .iter()
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some((*name).to_owned()),
                _ => None,
            });
        names.collect::<Vec<_>>()
    };
    let mut member: NodeRegistration = stored(&server, &keys::registration("n1"));
    assert!(member.etcd && !member.member_keys.api.is_empty());
    member.advertise = vec![[192, 0, 2, 1].into()];
    let key = keys::registration("n1");
    server.write(&[put(key.clone(), &member)]).await;
    assert_eq!(names("n2", 2).await, ["n2"]);
    member.member_keys.api.clear();
    server.write(&[put(key, &member)]).await;
    let earlier = pki::cluster_name(CLUSTER_UID);
    assert_eq!(names("n3", 3).await, ["n3", earlier.as_str()]);
}

/// The new authority may issue the servers' certificates before the machine has read anything.
#[tokio::test]
async fn a_machine_that_joins_hears_of_the_authority_that_is_to_replace_the_present_one() {
    let server = server().await;
    let (first, _) = token(&server, &json!({})).await;
    let (status, answer) = join(&server, &first, &fresh("n2", 2)).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    assert!(answer.get("nextClusterAuthority").is_none(), "{answer}");
    let record = json!({"schema": 1, "current": server.authority.fingerprint(), "rotation": {
        "phase": "Trust", "certificate": "the new one", "next": "its hash",
        "reason": "Requested", "since": "2026-01-01T00:00:00Z"}});
    let record = put(keys::authority("cluster-ca"), &record);
    server.write(&[record]).await;
    let (status, answer) = join(&server, &first, &fresh("n3", 3)).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    assert_eq!(answer["nextClusterAuthority"], "the new one");
}

/// A machine can't ask for a way into etcd by claiming to be of version 0.1.0.
#[tokio::test]
async fn no_machine_that_joins_gets_a_way_into_etcd() {
    let server = server().await;
    let (token, _) = token(&server, &json!({})).await;
    let (request, key_pem) = create_request("node:n2").unwrap();
    let before = server.stored();
    let mut older = body("n2", 2, &request);
    older.as_object_mut().unwrap().remove("stateStream");
    for asks in [&older, &{
        let mut asks = older.clone();
        asks["stateStream"] = json!(false);
        asks
    }] {
        let (status, answer) = join(&server, &token, asks).await;
        assert_eq!(status, StatusCode::CONFLICT, "{answer}");
        assert!(answer["message"].to_string().contains("0.1.0"), "{answer}");
    }
    assert_eq!(server.stored(), before);
    server.users.names.lock().insert("n2".to_owned());
    let (status, answer) = join(&server, &token, &body("n2", 2, &request)).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    assert!(answer["certificates"].get("etcd").is_none(), "{answer}");
    assert!(
        !server.users.names.lock().contains("n2"),
        "a user of before"
    );
    let renewed = create_request_for_key("node:n2", &key_pem).unwrap();
    let renew = async |state_stream: bool| {
        let body = json!({"certificateRequest": renewed, "stateStream": state_stream});
        let url = server.url("/v1alpha1/nodes/n2/certificates");
        let answer = server.client(None).post(url).json(&body).send().await;
        read(answer.unwrap()).await
    };
    for state_stream in [true, false] {
        let (status, answer) = renew(state_stream).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert!(answer.get("etcd").is_none(), "{answer}");
    }
    // The control: a machine that joined with version 0.1.0 still gets the certificate.
    let mut registration: NodeRegistration = stored(&server, &keys::registration("n2"));
    registration.state_stream = false;
    server
        .store
        .write_now(&[put(keys::registration("n2"), &registration)]);
    let revision = server.store.revision();
    assert!(
        server
            .handle
            .wait_for_revision(revision, support::DEADLINE)
            .await
    );
    let (_, answer) = renew(false).await;
    assert!(answer["etcd"].is_string(), "{answer}");
    // The authority is being replaced, or was: the new one signs for no machine without the store.
    server.store.write_now(&[put(
        keys::authority("etcd-client-ca"),
        &AuthorityRecord::default(),
    )]);
    let revision = server.store.revision();
    assert!(
        server
            .handle
            .wait_for_revision(revision, support::DEADLINE)
            .await
    );
    let (status, answer) = renew(false).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert!(answer.get("etcd").is_none(), "{answer}");
    let (_, answer) = renew(true).await;
    assert!(answer.get("etcd").is_none(), "{answer}");
}

#[tokio::test]
async fn what_a_stranger_says_is_bounded() {
    let server = server().await;
    let (token, _) = token(&server, &json!({})).await;
    let before = server.stored();
    let wrong: [(&str, Value); 14] = [
        ("wireguardKey", json!("AAAA")),
        ("wireguardKey", json!("!".repeat(44))),
        ("endpoints", json!([])),
        ("endpoints", json!(["192.0.2.2"])),
        ("endpoints", json!(["a b:1"])),
        ("endpoints", json!([format!("{}:1", "a".repeat(300))])),
        ("endpoints", json!(vec!["192.0.2.2:1"; 17])),
        ("advertise", json!([])),
        ("advertise", json!(["127.0.0.1"])),
        ("advertise", json!(["10.100.0.1"])),
        ("advertise", json!(["0.0.0.0"])),
        ("advertise", json!(vec!["192.0.2.2"; 17])),
        ("architecture", json!("a\nb")),
        ("certificateRequest", json!("x")),
    ];
    for (field, value) in wrong {
        let mut body = fresh("n2", 2);
        body[field] = value.clone();
        let (status, answer) = join(&server, &token, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{field} {value} {answer}");
    }
    let mut large = fresh("n2", 2);
    large["certificateRequest"] = json!("x".repeat(100_000));
    let (status, _) = join(&server, &token, &large).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    // Another machine already has this WireGuard key.
    let (status, answer) = join(&server, &token, &fresh("n2", 1)).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    assert_eq!(server.stored(), before);
}

/// Joins these machines at once with one token. Returns how many were admitted, each with its own
/// subnet.
async fn join_at_once(server: &Server, options: &Value, names: std::ops::Range<u8>) -> usize {
    let (token, _) = token(server, options).await;
    let joins = names.map(|number| {
        let body = fresh(&format!("n{number}"), number);
        let token = &token;
        async move { join(server, token, &body).await }
    });
    let answers = futures_util::future::join_all(joins).await;
    let (admitted, others): (Vec<_>, Vec<_>) = answers
        .into_iter()
        .partition(|(status, _)| *status == StatusCode::CREATED);
    let subnets: BTreeSet<String> = admitted
        .iter()
        .map(|(_, answer)| answer["subnet"].to_string())
        .collect();
    assert_eq!(subnets.len(), admitted.len(), "{admitted:?}");
    for (status, answer) in &others {
        // Machines that lose too many races get an error and are not admitted.
        let expected = [StatusCode::FORBIDDEN, StatusCode::CONFLICT];
        assert!(expected.contains(status), "{answer}");
    }
    admitted.len()
}

#[tokio::test]
async fn machines_that_join_at_once_get_different_subnets_and_no_use_too_many() {
    let server = server().await;
    let any = join_at_once(&server, &json!({}), 2..10).await;
    let five = join_at_once(&server, &json!({"uses": 5}), 10..18).await;
    assert!(any > 1 && (1..=5).contains(&five), "{any} {five}");
    let registered = server.stored().into_iter();
    let registered = registered.filter(|(key, _)| key.starts_with(keys::REGISTRATIONS));
    assert_eq!(registered.count(), 1 + any + five);
}

#[tokio::test]
async fn certificates_are_renewed_for_the_known_key_and_no_other() {
    let server = server().await;
    let (token, _) = token(&server, &json!({})).await;
    let (request, key_pem) = create_request("node:n2").unwrap();
    let (_, first) = join(&server, &token, &body("n2", 2, &request)).await;
    let path = "/v1alpha1/nodes/n2/certificates";
    let renew = |path: &'static str, request: String| {
        let body = json!({"certificateRequest": request});
        let call = server
            .client(None)
            .request(Method::POST, server.url(path))
            .json(&body);
        async move { read(call.send().await.unwrap()).await }
    };
    // The machine renews without a certificate and a token, as after months without power.
    let again = create_request_for_key("node:n2", &key_pem).unwrap();
    let (status, renewed) = renew(path, again).await;
    assert_eq!(status, StatusCode::OK, "{renewed}");
    assert_ne!(renewed["node"], first["certificates"]["node"]);
    let hash = |value: &Value| tls::public_key_hash(value.as_str().unwrap()).unwrap();
    assert_eq!(
        hash(&renewed["node"]),
        hash(&first["certificates"]["node"]),
        "the key stays"
    );
    let (stranger, _) = create_request("node:n2").unwrap();
    assert_eq!(renew(path, stranger).await.0, StatusCode::UNAUTHORIZED);
    // The right key does not renew the certificates of another name.
    let other = create_request_for_key("node:n1", &key_pem).unwrap();
    let refused = renew("/v1alpha1/nodes/n1/certificates", other).await;
    assert_eq!(refused.0, StatusCode::UNAUTHORIZED);
    let admin = create_request_for_key("admin:n2", &key_pem).unwrap();
    assert_eq!(renew(path, admin).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_machine_that_does_not_lead_passes_the_stream_on_unopened() {
    let server = server().await;
    let url = format!("https://127.0.0.1:{}/v1alpha1/nodes", server.passing_port);
    let answer = server.client(None).get(url).bearer_auth(&server.admin);
    let (status, answer) = read(answer.send().await.unwrap()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    // A client certificate also passes through, which would fail if the relaying machine terminated
    // TLS.
    let client = server.client(Some(&server.node_leaf("n1")));
    let url = format!(
        "https://127.0.0.1:{}/v1alpha1/nodes/n1",
        server.passing_port
    );
    assert_eq!(client.get(url).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn the_authorities_are_handed_to_a_chosen_machine_and_nobody_else() {
    let server = server().await;
    for name in ["n2", "n3"] {
        let registration = NodeRegistration {
            uid: name.to_owned(),
            identity_key: support::key_hash(&server.node_leaf(name)),
            etcd: false,
            ..support::registration()
        };
        server
            .write(&[put(keys::registration(name), &registration)])
            .await;
    }
    let members = |names: &[&str]| {
        let members = names.iter().map(|name| {
            let record = json!({"id": "1", "voting": false, "healthy": false});
            ((*name).to_owned(), record)
        });
        let members: serde_json::Map<_, _> = members.collect();
        put(
            keys::MEMBERS.to_owned(),
            &json!({"schema": 1, "members": members}),
        )
    };
    let ask = async |caller: &str, about: &str| {
        let leaf = server.node_leaf(caller);
        let url = server.url(&format!("/v1alpha1/nodes/{about}/membership"));
        let response = server.client(Some(&leaf)).get(url).send().await.unwrap();
        read(response).await
    };
    server.write(&[members(&["n1"])]).await;
    let (status, refused) = ask("n2", "n2").await;
    assert_eq!(status, StatusCode::CONFLICT, "{refused}");
    server.write(&[members(&["n1", "n2"])]).await;
    let (status, given) = ask("n2", "n2").await;
    assert_eq!(status, StatusCode::OK);
    let names: Vec<&String> = given["authorities"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["cluster-ca", "etcd-client-ca", "etcd-peer-ca"]);
    let cluster = &given["authorities"]["cluster-ca"];
    let text = |field: &str| cluster[field].as_str().unwrap();
    assert_eq!(text("certificate"), server.authority.certificate_pem());
    let kind = pki::AuthorityKind::Cluster;
    pki::Authority::from_pem(kind, text("certificate"), text("key")).unwrap();
    let recovery = given["recoveryKey"].as_str().unwrap();
    pki::recovery_key::RecoveryKey::parse(recovery).unwrap();
    let others = given["otherRecoveryKeys"].as_array().unwrap();
    assert_eq!(others.len(), 1);
    assert_ne!(others[0], recovery);
    pki::recovery_key::RecoveryKey::parse(others[0].as_str().unwrap()).unwrap();
    for (caller, about, expected) in [
        ("n3", "n3", StatusCode::CONFLICT),
        ("n3", "n2", StatusCode::FORBIDDEN),
    ] {
        let (status, refused) = ask(caller, about).await;
        assert_eq!(status, expected, "{caller} {about} {refused}");
        assert!(!refused.to_string().contains("PRIVATE KEY"));
        assert!(!refused.to_string().contains("kat-recovery"));
    }
    let path = "/v1alpha1/nodes/n2/membership";
    let (status, refused) = server.get(&server.admin, path).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{refused}");
    // A machine whose key is not known is refused.
    let unknown = NodeRegistration {
        uid: "n2".to_owned(),
        etcd: false,
        ..support::registration()
    };
    server
        .write(&[put(keys::registration("n2"), &unknown)])
        .await;
    assert_eq!(ask("n2", "n2").await.0, StatusCode::UNAUTHORIZED);
    // A machine that is being removed gets no more certificates.
    let leaving = NodeRegistration {
        uid: "n2".to_owned(),
        identity_key: support::key_hash(&server.node_leaf("n2")),
        no_etcd: true,
        ..support::registration()
    };
    server
        .write(&[put(keys::registration("n2"), &leaving)])
        .await;
    assert_eq!(ask("n2", "n2").await.0, StatusCode::CONFLICT);
}
