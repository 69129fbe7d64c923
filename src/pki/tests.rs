mod handshakes;

use std::{net::IpAddr, os::unix::fs::PermissionsExt};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::extensions::GeneralName;

use super::*;

const UID: &str = "6f1d2c3b-0000-4000-8000-000000000001";

fn now() -> Timestamp {
    Timestamp::now()
}

fn authority(kind: AuthorityKind) -> Authority {
    Authority::generate(kind, UID, now()).expect("an authority")
}

fn node(name: &str) -> LeafKind {
    LeafKind::Node {
        name: name.into(),
        cluster_uid: None,
        addresses: vec![
            IpAddr::from([192, 0, 2, 7]),
            "2001:db8::7".parse().expect("an address"),
        ],
    }
}

/// The certificate that every machine has in version 0.1.0, and by which it can pose as the API.
fn earlier_node(name: &str) -> LeafKind {
    LeafKind::Node {
        name: name.into(),
        cluster_uid: Some(UID.into()),
        addresses: Vec::new(),
    }
}

fn api(name: &str, names: ApiNames) -> LeafKind {
    LeafKind::Api {
        name: name.into(),
        cluster_uid: UID.into(),
        names,
        addresses: Vec::new(),
    }
}

/// The server names of a certificate.
fn dns_names(pem: &str) -> Vec<String> {
    let leaf = der(pem);
    let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).expect("parsed");
    let names = leaf
        .subject_alternative_name()
        .expect("one")
        .expect("present")
        .value;
    let names = names.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    names.collect()
}

fn admin(name: &str) -> LeafKind {
    LeafKind::Admin { name: name.into() }
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

#[test]
fn the_certificate_of_a_clusters_authority_tells_the_clusters_uid() {
    let cluster = authority(AuthorityKind::Cluster);
    let uid = cluster_uid_of_authority(cluster.certificate_pem()).expect("a uid");
    assert_eq!(uid, UID);

    let leaf = cluster.issue(&node("alpha"), now()).expect("issued");
    let etcd = authority(AuthorityKind::EtcdClients);
    for (case, other) in [
        ("a machine", leaf.certificate_pem.as_str()),
        ("etcd's authority", etcd.certificate_pem()),
        ("no PEM", "cluster-ca"),
        ("nothing", ""),
    ] {
        assert!(cluster_uid_of_authority(other).is_err(), "{case}");
    }
}

#[test]
fn a_node_certificate_says_what_it_should() {
    let at = Timestamp::from_second(1_800_000_000).expect("a time");
    let cluster = Authority::generate(AuthorityKind::Cluster, UID, at).expect("an authority");
    let leaf = der(&cluster
        .issue(&node("alpha"), at)
        .expect("issued")
        .certificate_pem);
    let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).expect("parsed");
    assert_eq!(leaf.validity().not_before.timestamp(), 1_800_000_000 - 3600);
    assert_eq!(
        leaf.validity().not_after.timestamp(),
        1_800_000_000 + 30 * 86_400
    );
    assert_eq!(leaf.subject().to_string(), "CN=node:alpha");
    assert!(!leaf.is_ca());
    let usage = leaf
        .extended_key_usage()
        .expect("one")
        .expect("present")
        .value;
    assert!(usage.server_auth && usage.client_auth);
    let names = leaf
        .subject_alternative_name()
        .expect("one")
        .expect("present")
        .value;
    let names: Vec<_> = names.general_names.iter().collect();
    assert!(
        matches!(names[0], GeneralName::DNSName("alpha")),
        "{names:?}"
    );
    assert!(
        matches!(names[1], GeneralName::IPAddress([192, 0, 2, 7])),
        "{names:?}"
    );
    assert_eq!(names.len(), 3);

    let root = der(cluster.certificate_pem());
    let (_, root) = x509_parser::parse_x509_certificate(&root).expect("parsed");
    let basic = root
        .basic_constraints()
        .expect("one")
        .expect("present")
        .value;
    assert_eq!((basic.ca, basic.path_len_constraint), (true, Some(0)));
    assert_eq!(leaf.issuer(), root.subject());
    leaf.verify_signature(Some(root.public_key()))
        .expect("signed by it");
}

#[test]
fn the_name_of_the_api_is_in_certificates_of_the_api_alone() {
    let cluster = authority(AuthorityKind::Cluster);
    let names = |kind: &LeafKind| {
        let pem = cluster.issue(kind, now()).expect("issued").certificate_pem;
        let names = dns_names(&pem);
        let has = has_server_name(&pem, &api_server_name(UID)).expect("read");
        assert_eq!(has, names.contains(&api_server_name(UID)), "{kind:?}");
        names
    };
    let both = [api_server_name(UID), cluster_name(UID)];
    assert_eq!(names(&api("alpha", ApiNames::Both)), both);
    assert_eq!(names(&api("alpha", ApiNames::Earlier)), [cluster_name(UID)]);
    assert_eq!(names(&node("alpha")), ["alpha"]);
    let earlier = ["alpha".to_owned(), cluster_name(UID)];
    assert_eq!(names(&earlier_node("alpha")), earlier);
}

#[test]
fn a_certificate_of_the_api_lives_two_days_and_is_no_client() {
    let at = Timestamp::from_second(1_800_000_000).expect("a time");
    let cluster = Authority::generate(AuthorityKind::Cluster, UID, at).expect("an authority");
    let issued = cluster.issue(&api("alpha", ApiNames::Both), at);
    let pem = issued.expect("issued").certificate_pem;
    let validity = validity_of(&pem).expect("read");
    let after = |hours: i64| at + SignedDuration::from_hours(hours);
    assert!(validity.holds(after(48)) && !validity.holds(after(49)));
    assert!(
        !renew_due(&pem, after(31)).expect("read") && renew_due(&pem, after(32)).expect("read")
    );
    let leaf = der(&pem);
    let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).expect("parsed");
    assert_eq!(leaf.subject().to_string(), "CN=api:alpha");
    let usage = leaf.extended_key_usage().expect("one").expect("present");
    assert!(usage.value.server_auth && !usage.value.client_auth);
    assert!(
        peer_identity(&der(&pem)).is_err(),
        "no caller has this name"
    );
}

#[test]
fn clients_are_no_servers_and_servers_of_etcd_no_clients() {
    let clients = authority(AuthorityKind::EtcdClients);
    let usage = |kind: LeafKind| {
        let leaf = der(&clients.issue(&kind, now()).expect("issued").certificate_pem);
        let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).expect("parsed");
        let usage = leaf
            .extended_key_usage()
            .expect("one")
            .expect("present")
            .value;
        (
            usage.server_auth,
            usage.client_auth,
            leaf.subject().to_string(),
        )
    };
    let name = || "alpha".to_owned();
    assert_eq!(
        usage(LeafKind::Leader { name: name() }),
        (false, true, "CN=leader:alpha".into())
    );
    assert_eq!(
        usage(LeafKind::EtcdNode { name: name() }),
        (false, true, "CN=node:alpha".into())
    );
    let server = LeafKind::EtcdServer {
        name: name(),
        addresses: Vec::new(),
    };
    assert_eq!(usage(server), (true, false, "CN=etcd:alpha".into()));
}

#[test]
fn serials_differ_also_for_the_same_key() {
    let cluster = authority(AuthorityKind::Cluster);
    let (request, key) = create_request("admin:kim").expect("made");
    let again = create_request_for_key("admin:kim", &key).expect("made");
    let serial = |request: &str| {
        let leaf = cluster
            .sign_request(request, &admin("kim"), now())
            .expect("signed");
        let leaf = der(&leaf);
        let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).expect("parsed");
        (leaf.raw_serial().to_vec(), leaf.public_key().raw.to_vec())
    };
    let (first, second) = (serial(&request), serial(&again));
    assert_eq!(first.1, second.1);
    assert_ne!(first.0, second.0);
}

#[test]
fn authorities_sign_only_their_own_kinds() {
    let name = || "alpha".to_owned();
    let kinds = [
        node("alpha"),
        api("alpha", ApiNames::Both),
        admin("kim"),
        LeafKind::Leader { name: name() },
        LeafKind::EtcdNode { name: name() },
        LeafKind::EtcdServer {
            name: name(),
            addresses: Vec::new(),
        },
        LeafKind::EtcdPeer {
            name: name(),
            addresses: Vec::new(),
        },
    ];
    let signed: Vec<Vec<bool>> = AuthorityKind::ALL
        .map(authority)
        .iter()
        .map(|authority| {
            kinds
                .iter()
                .map(|kind| authority.issue(kind, now()).is_ok())
                .collect()
        })
        .collect();
    assert_eq!(signed[0], [true, true, true, true, false, false, false]);
    assert_eq!(signed[1], [false, false, false, true, true, true, false]);
    assert_eq!(signed[2], [false, false, false, false, false, false, true]);
}

#[test]
fn reserved_and_wrong_names_get_no_certificate() {
    let cluster = authority(AuthorityKind::Cluster);
    for name in ["root", "", "A", "a:b", "a/b", "-a", "a\0", &"a".repeat(41)] {
        let refused = cluster.issue(&admin(name), now());
        assert!(
            matches!(refused, Err(PkiError::Name(_))),
            "{name:?}: {refused:?}"
        );
    }
    let mut odd = api("alpha", ApiNames::Both);
    if let LeafKind::Api { cluster_uid, .. } = &mut odd {
        *cluster_uid = "a.b".into();
    }
    assert!(cluster.issue(&odd, now()).is_err());
}

#[test]
fn a_request_gives_its_key_and_nothing_else() {
    let cluster = authority(AuthorityKind::Cluster);
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["evil.example".to_owned()]).expect("params");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, "node:alpha");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let request = params
        .serialize_request(&key)
        .expect("made")
        .pem()
        .expect("pem");
    let leaf = der(&cluster
        .sign_request(&request, &node("alpha"), now())
        .expect("signed"));
    let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).expect("parsed");
    assert!(!leaf.is_ca());
    assert_eq!(
        leaf.public_key().subject_public_key.data.as_ref(),
        key.public_key_raw()
    );
    let names = leaf
        .subject_alternative_name()
        .expect("one")
        .expect("present")
        .value;
    assert!(!format!("{names:?}").contains("evil"));

    let refused = cluster
        .sign_request(&request, &node("beta"), now())
        .expect_err("another name");
    assert!(
        refused.to_string().contains("expected `node:beta`"),
        "{refused}"
    );
}

#[test]
fn weak_foreign_and_broken_requests_are_refused() {
    let cluster = authority(AuthorityKind::Cluster);
    let refusal = |request: &str| {
        let refused = cluster.sign_request(request, &admin("kim"), now());
        refused.expect_err("refused").to_string()
    };
    for algorithm in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P384_SHA384] {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "admin:kim");
        let request = params
            .serialize_request(&key)
            .expect("made")
            .pem()
            .expect("pem");
        assert!(refusal(&request).contains("P-256"));
    }
    assert!(refusal("").contains("PEM"));
    assert!(refusal(&"x".repeat(MAX_REQUEST + 1)).contains("at most"));
    let (request, _) = create_request("admin:kim").expect("made");
    // The last byte belongs to the signature.
    let mut bytes =
        rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(request.as_bytes())
            .expect("pem")
            .to_vec();
    *bytes.last_mut().expect("bytes") ^= 1;
    let body = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
    let broken =
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n");
    assert!(
        refusal(&broken).contains("signature"),
        "{}",
        refusal(&broken)
    );
    let (two, _) = create_request("admin:kim,O=x").expect("made");
    assert!(refusal(&two).contains("expected `admin:kim`"));
}

#[test]
fn renewal_is_due_after_two_thirds() {
    let at = Timestamp::from_second(1_800_000_000).expect("a time");
    let cluster = Authority::generate(AuthorityKind::Cluster, UID, at).expect("an authority");
    let leaf = cluster
        .issue(&admin("kim"), at)
        .expect("issued")
        .certificate_pem;
    let after = |hours: i64| at + SignedDuration::from_hours(hours);
    assert!(!renew_due(&leaf, at).expect("read"));
    assert!(
        !renew_due(&leaf, after(-24)).expect("read"),
        "a clock that is behind"
    );
    assert!(!renew_due(&leaf, after(479)).expect("read"));
    assert!(renew_due(&leaf, after(480)).expect("read"));
    assert!(renew_due(&leaf, after(9999)).expect("read"));
    assert!(renew_due("nothing", at).is_err());
    let validity = validity_of(&leaf).expect("read");
    assert!(validity.holds(at) && !validity.holds(after(721)) && !validity.holds(after(-2)));
}

#[test]
fn authorities_are_stored_and_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("pki");
    let cluster = authority(AuthorityKind::Cluster);
    let recovery = recovery_key::RecoveryKey::generate().expect("a key");
    cluster.store(&folder, &recovery).expect("stored");
    let mode = |name: &str| {
        let path = if name.is_empty() {
            folder.clone()
        } else {
            folder.join(name)
        };
        std::fs::metadata(path).expect("there").permissions().mode() & 0o777
    };
    assert_eq!(
        (
            mode(""),
            mode("cluster-ca.key.sealed"),
            mode("cluster-ca.crt")
        ),
        (0o700, 0o600, 0o644)
    );
    let load = |kind| Authority::load(&folder, kind, &recovery.clone().into());
    let loaded = load(AuthorityKind::Cluster).expect("loaded");
    // The folder does not contain the key unencrypted.
    let sealed = std::fs::read(folder.join("cluster-ca.key.sealed")).expect("read");
    let pem = cluster.key_pem();
    let secret = pem.lines().nth(1).expect("a line").as_bytes();
    assert!(
        !sealed
            .windows(8)
            .any(|part| secret.windows(8).any(|one| one == part))
    );
    assert!(!folder.join("cluster-ca.key").exists());
    let other = recovery_key::RecoveryKey::generate().expect("a key");
    let closed =
        Authority::load(&folder, AuthorityKind::Cluster, &other.into()).expect_err("another key");
    assert!(closed.to_string().contains("cluster-ca"), "{closed}");
    assert_eq!(loaded.fingerprint(), cluster.fingerprint());
    assert_eq!(loaded.fingerprint().len(), 64);
    let leaf = der(&loaded
        .issue(&admin("kim"), now())
        .expect("issued")
        .certificate_pem);
    let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).expect("parsed");
    let root = der(cluster.certificate_pem());
    let (_, root) = x509_parser::parse_x509_certificate(&root).expect("parsed");
    leaf.verify_signature(Some(root.public_key()))
        .expect("signed by it");

    let missing = load(AuthorityKind::EtcdPeers).expect_err("missing");
    assert!(
        missing.to_string().contains("etcd-peer-ca.crt"),
        "{missing}"
    );
    let other = authority(AuthorityKind::Cluster);
    other.store(&folder, &recovery).expect("stored");
    write_public(
        &folder.join("cluster-ca.crt"),
        cluster.certificate_pem().as_bytes(),
    )
    .expect("written");
    let mixed = load(AuthorityKind::Cluster).expect_err("mixed");
    assert!(mixed.to_string().contains("does not belong"), "{mixed}");
    let identity = cluster.issue(&node("alpha"), now()).expect("issued");
    let leaf = Authority::from_pem(
        AuthorityKind::Cluster,
        &identity.certificate_pem,
        &identity.key_pem,
    );
    assert!(
        leaf.expect_err("a leaf")
            .to_string()
            .contains("not an authority")
    );
    assert!(!format!("{identity:?}").contains("PRIVATE"));
}

#[test]
fn sealed_authorities_open_with_the_recovery_key() {
    let cluster = authority(AuthorityKind::Cluster);
    let key = recovery_key::RecoveryKey::generate().expect("a key");
    let sealed = cluster.seal_key(&key).expect("sealed");
    let opened = Authority::unseal(
        AuthorityKind::Cluster,
        cluster.certificate_pem(),
        &sealed,
        &key.into(),
    );
    assert_eq!(opened.expect("opened").fingerprint(), cluster.fingerprint());
    let other = recovery_key::RecoveryKey::generate().expect("a key");
    assert!(
        Authority::unseal(
            AuthorityKind::Cluster,
            cluster.certificate_pem(),
            &sealed,
            &other.into()
        )
        .is_err()
    );
}

#[test]
fn peers_are_told_apart_by_their_common_name() {
    let cluster = authority(AuthorityKind::Cluster);
    let identity = |kind: &LeafKind| {
        peer_identity(&der(&cluster
            .issue(kind, now())
            .expect("issued")
            .certificate_pem))
    };
    assert_eq!(
        identity(&node("alpha")).expect("read"),
        PeerIdentity::Node("alpha".into())
    );
    assert_eq!(
        identity(&admin("kim")).expect("read"),
        PeerIdentity::Admin("kim".into())
    );
    let leader = LeafKind::Leader {
        name: "alpha".into(),
    };
    assert_eq!(
        identity(&leader).expect("read"),
        PeerIdentity::Leader("alpha".into())
    );
    let of = |common_name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        let made = params
            .self_signed(&KeyPair::generate().expect("a key"))
            .expect("made");
        peer_identity(made.der())
    };
    for wrong in [
        "root",
        "node:",
        "node:root",
        "node:a:b",
        "etcd:alpha",
        "Node:alpha",
        "alpha",
        "node:../a",
    ] {
        assert!(of(wrong).is_err(), "{wrong}");
    }
    assert!(peer_identity(&CertificateDer::from(vec![0x30, 0x00])).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>, text in ".{0,300}") {
        let _ = peer_identity(&CertificateDer::from(bytes.clone()));
        let _ = CertificateRequest::parse(&text);
        let _ = validity_of(&text);
        let body = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
        for label in ["CERTIFICATE", "CERTIFICATE REQUEST"] {
            let pem = format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
            let _ = CertificateRequest::parse(&pem);
            let _ = validity_of(&pem);
        }
    }

    #[test]
    fn a_damaged_request_says_the_same_or_is_refused(at: prop::sample::Index, value: u8) {
        let (request, _) = create_request("admin:kim").expect("made");
        let label = rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(request.as_bytes());
        let mut bytes = label.expect("pem").to_vec();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != value);
        bytes[at] = value;
        let _ = peer_identity(&CertificateDer::from(bytes.clone()));
        let body = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
        let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n");
        // The parser tolerates changes around the request, but the request itself cannot be
        // changed.
        if let Ok(damaged) = CertificateRequest::parse(&pem) {
            let whole = CertificateRequest::parse(&request).expect("whole");
            prop_assert_eq!(damaged.common_name(), whole.common_name());
            prop_assert_eq!(damaged.public_key(), whole.public_key());
        }
    }
}
