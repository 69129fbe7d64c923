//! The keys of a machine: renewal of its leaf certificates over months, and the storage and sealing
//! of the authorities' keys.

use jiff::ToSpan;

use super::*;
use kat_types::api::{AuthorityKeys, MachineEndpoints};

fn identity() -> MachineIdentity {
    MachineIdentity {
        advertise: vec!["192.0.2.1".parse().unwrap()],
        etcd: true,
        ..MachineIdentity::example("n1")
    }
}

fn day(number: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    start + (number * 24).hours()
}

/// Certificate and key of every leaf, as PEM.
fn leaves(keys: &MachineKeys) -> Vec<(String, String)> {
    let leaves = LEAVES.iter().map(|name| keys.leaf(name).unwrap());
    leaves
        .map(|leaf| (leaf.certificate_pem, leaf.key_pem))
        .collect()
}

/// The files in etcd's folder, by name.
fn of_etcd(keys: &MachineKeys) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(&keys.etcd_folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn leaves_are_renewed_after_two_thirds_of_their_life_and_keep_their_keys() {
    let folder = tempfile::tempdir().unwrap();
    let keys = MachineKeys {
        folder: folder.path().join("pki"),
        etcd_folder: folder.path().join("etcd-pki"),
        etcd_group: Some(0),
    };
    let identity = identity();
    keys.ensure_authorities(&identity.cluster_uid, day(0))
        .unwrap();
    assert_eq!(
        keys.renew(&identity, &ClusterCache::default(), day(0))
            .unwrap(),
        LEAVES
    );
    let (first, key) = (leaves(&keys), keys.identity_key().unwrap());
    let etcd_first = of_etcd(&keys);
    assert!(!etcd_first.is_empty());
    // No leaf is due in the first 20 days, but that of the API. A clock that is behind makes no other
    // leaf due.
    for (calm, expected) in [
        (0, &[][..]),
        (1, &[]),
        (2, &["api"]),
        (3, &[]),
        (19, &["api"]),
        (-400, &["api"]),
        (19, &["api"]),
    ] {
        let renewed = keys
            .renew(&identity, &ClusterCache::default(), day(calm))
            .unwrap();
        assert_eq!(renewed, expected, "day {calm}");
    }
    assert_eq!(
        keys.renew(&identity, &ClusterCache::default(), day(21))
            .unwrap(),
        LEAVES
    );
    let second = leaves(&keys);
    for (name, (before, after)) in LEAVES.iter().zip(first.iter().zip(&second)) {
        assert_ne!(before.0, after.0, "{name}");
        assert!(before.1 == after.1, "{name} has another key");
        let validity = pki::validity_of(&after.0).unwrap();
        let (holds, ended) = match *name {
            "api" => (day(22), day(24)),
            _ => (day(50), day(52)),
        };
        assert!(validity.holds(day(21)) && validity.holds(holds), "{name}");
        assert!(!validity.holds(ended), "{name}");
    }
    assert_eq!(keys.identity_key().unwrap(), key);
    // The renewed leaves are also copied to etcd's folder.
    let etcd_second = of_etcd(&keys);
    assert_eq!(etcd_first.len(), etcd_second.len());
    let changed: Vec<&str> = etcd_first
        .iter()
        .zip(&etcd_second)
        .filter(|(before, after)| before != after)
        .map(|(before, _)| before.0.as_str())
        .collect();
    assert_eq!(changed.len(), 2, "{changed:?}");
}

#[test]
fn a_machine_that_was_away_for_months_has_new_leaves_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let keys = MachineKeys {
        folder: folder.path().join("pki"),
        etcd_folder: folder.path().join("etcd-pki"),
        etcd_group: Some(0),
    };
    let identity = identity();
    keys.ensure_authorities(&identity.cluster_uid, day(0))
        .unwrap();
    keys.renew(&identity, &ClusterCache::default(), day(0))
        .unwrap();
    assert_eq!(
        keys.renew(&identity, &ClusterCache::default(), day(90))
            .unwrap(),
        LEAVES
    );
    // Only a missing or damaged leaf is issued again.
    std::fs::remove_file(keys.folder.join("leader.crt")).unwrap();
    std::fs::write(keys.folder.join("etcd-peer.crt"), "damaged").unwrap();
    assert_eq!(
        keys.renew(&identity, &ClusterCache::default(), day(91))
            .unwrap(),
        ["leader", "etcd-peer"]
    );
}

/// The other members of a cluster that is upgraded, of which those with a key have a certificate of
/// the API.
fn upgrading(keys: &[(&str, &str)]) -> ClusterCache {
    let machines = keys.iter().map(|(name, api_key)| {
        let machine = MachineEndpoints {
            etcd: true,
            api_key: (*api_key).to_owned(),
            ..MachineEndpoints::default()
        };
        ((*name).to_owned(), machine)
    });
    let mut known = ClusterCache::default();
    known.endpoints.machines = machines.collect();
    known
}

#[test]
fn the_name_of_the_api_comes_when_every_member_can_have_it_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let keys = keys_in(&folder);
    let identity = identity();
    let has_name = || {
        let pem = keys.certificate("api").unwrap();
        pki::has_server_name(&pem, &pki::api_server_name(&identity.cluster_uid)).unwrap()
    };
    keys.ensure_authorities(&identity.cluster_uid, day(0))
        .unwrap();
    let renew = |known: &ClusterCache| keys.renew(&identity, known, day(0)).unwrap();
    // n1, which this is, and n2 have been upgraded.
    let half = upgrading(&[("n1", ""), ("n2", "a"), ("n3", "")]);
    assert_eq!(renew(&half), LEAVES);
    assert!(!has_name() && !keys.lacks_api_name(&identity, &half));
    let key = keys.member_keys().unwrap().api;
    // The others do not know of this machine's own certificate yet: its upgrade may be taken back.
    let unsaid = upgrading(&[("n1", ""), ("n2", "a"), ("n3", "b")]);
    assert!(!keys.lacks_api_name(&identity, &unsaid));
    let whole = upgrading(&[("n1", "c"), ("n2", "a"), ("n3", "b")]);
    assert!(keys.lacks_api_name(&identity, &whole));
    assert_eq!(renew(&whole), ["api"]);
    assert!(has_name() && !keys.lacks_api_name(&identity, &whole));
    assert_eq!(keys.member_keys().unwrap().api, key);
    // It stays, since clients that have seen it refuse servers without it.
    assert!(renew(&half).is_empty());
    assert_eq!(keys.renew(&identity, &half, day(2)).unwrap(), ["api"]);
    assert!(has_name());
    // The first machine of a new cluster has nobody to wait for.
    let folder = tempfile::tempdir().unwrap();
    let alone = keys_in(&folder);
    alone
        .ensure_authorities(&identity.cluster_uid, day(0))
        .unwrap();
    alone.renew(&identity, &upgrading(&[]), day(0)).unwrap();
    let pem = alone.certificate("api").unwrap();
    assert!(pki::has_server_name(&pem, &pki::api_server_name(&identity.cluster_uid)).unwrap());
}

fn given(authorities: &[Authority], recovery_key: &str) -> MembershipAnswer {
    let keys = authorities.iter().map(|authority| {
        let keys = AuthorityKeys {
            certificate: authority.certificate_pem().to_owned(),
            key: authority.key_pem(),
        };
        (authority.kind().name().to_owned(), keys)
    });
    MembershipAnswer {
        authorities: keys.collect(),
        next: BTreeMap::new(),
        recovery_key: recovery_key.to_owned(),
        other_recovery_keys: Vec::new(),
    }
}

fn keys_in(folder: &tempfile::TempDir) -> MachineKeys {
    MachineKeys {
        folder: folder.path().join("pki"),
        etcd_folder: folder.path().join("etcd-pki"),
        etcd_group: Some(0),
    }
}

fn authorities() -> Vec<Authority> {
    let now = Timestamp::now();
    let kinds = AuthorityKind::ALL.into_iter();
    kinds
        .map(|kind| Authority::generate(kind, "test", now).unwrap())
        .collect()
}

#[test]
fn a_machine_that_joins_trusts_the_announced_authority_of_its_cluster_too() {
    let folder = tempfile::tempdir().unwrap();
    let keys = keys_in(&folder);
    std::fs::create_dir(&keys.folder).unwrap();
    let present = &authorities()[0];
    let path = keys.folder.join("cluster-ca.crt");
    std::fs::write(path, present.certificate_pem()).unwrap();
    let now = Timestamp::now();
    let next = present.generate_successor("test", now).unwrap();
    let foreign = Authority::generate(AuthorityKind::Cluster, "other", now).unwrap();
    let trusted = || keys.cluster_authority().unwrap();
    keys.trust_announced("", "test").unwrap();
    keys.trust_announced(present.certificate_pem(), "test")
        .unwrap();
    keys.trust_announced(foreign.certificate_pem(), "test")
        .unwrap_err();
    keys.trust_announced("no certificate", "test").unwrap_err();
    assert!(pki::tls::same_certificates(
        &trusted(),
        present.certificate_pem()
    ));
    keys.trust_announced(next.certificate_pem(), "test")
        .unwrap();
    let both = format!("{}{}", present.certificate_pem(), next.certificate_pem());
    assert!(pki::tls::same_certificates(&trusted(), &both));
}

#[test]
fn only_the_known_authorities_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let keys = MachineKeys {
        folder: folder.path().join("pki"),
        etcd_folder: folder.path().join("etcd-pki"),
        etcd_group: None,
    };
    std::fs::create_dir(&keys.folder).unwrap();
    let (own, others) = (authorities(), authorities());
    // A worker has the certificates of the first two authorities.
    for authority in own.iter().take(2) {
        let path = keys.folder.join(format!("{}.crt", authority.kind().name()));
        std::fs::write(path, authority.certificate_pem()).unwrap();
    }
    let recovery = RecoveryKey::generate().unwrap();
    let text = recovery.reveal();
    keys.store_authorities(&given(&others, &text)).unwrap_err();
    let mut mixed = given(&own, &text);
    let foreign = others[2].key_pem();
    mixed.authorities.get_mut("etcd-peer-ca").unwrap().key = foreign;
    keys.store_authorities(&mixed).unwrap_err();
    keys.store_authorities(&given(&own[..2], &text))
        .unwrap_err();
    keys.store_authorities(&given(&own, "kat-recovery-123"))
        .unwrap_err();
    let has_key = || keys.folder.join("cluster-ca.key.sealed").exists();
    assert!(
        !has_key() && keys.recovery_key().is_err(),
        "nothing is kept of what is refused"
    );
    keys.store_authorities(&given(&own, &text)).unwrap();
    assert!(has_key() && keys.recovery_key().unwrap() == recovery);
    assert!(!format!("{:?}", given(&own, &text)).contains(&text));
    keys.forget_authorities().unwrap();
    let mut left: Vec<_> = std::fs::read_dir(&keys.folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["cluster-ca.crt", "etcd-client-ca.crt"]);
}

/// Stores the authorities as an earlier version did, with each key unencrypted.
fn leave_clear(keys: &MachineKeys, authorities: &[Authority]) {
    std::fs::create_dir_all(&keys.folder).unwrap();
    for authority in authorities {
        let (kind, pem) = (authority.kind(), authority.key_pem());
        pki::write_secret(&keys.folder.join(pki::clear_file(kind)), pem.as_bytes()).unwrap();
        let certificate = keys.folder.join(format!("{}.crt", kind.name()));
        pki::write_public(&certificate, authority.certificate_pem().as_bytes()).unwrap();
    }
}

fn clear_keys(keys: &MachineKeys) -> usize {
    let kinds = AuthorityKind::ALL.into_iter();
    kinds
        .filter(|kind| keys.folder.join(pki::clear_file(*kind)).exists())
        .count()
}

#[test]
fn keys_of_an_earlier_version_are_sealed_and_every_member_finds_the_same_recovery_key() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (keys_in(&first), keys_in(&second));
    let authorities = authorities();
    leave_clear(&first, &authorities);
    leave_clear(&second, &authorities);
    assert!(first.seal_authorities().unwrap() && second.seal_authorities().unwrap());
    assert_eq!((clear_keys(&first), clear_keys(&second)), (0, 0));
    let recovery = first.recovery_key().unwrap();
    assert!(recovery == second.recovery_key().unwrap());
    for authority in &authorities {
        let opened =
            Authority::load(&second.folder, authority.kind(), &recovery.clone().into()).unwrap();
        assert_eq!(opened.key_pem(), authority.key_pem());
    }
    // Leaves can still be issued, and sealing again changes nothing.
    first
        .renew(&identity(), &ClusterCache::default(), Timestamp::now())
        .unwrap();
    assert!(!first.seal_authorities().unwrap());
    // Authorities from a leader of an earlier version lead to the same recovery key.
    let third = tempfile::tempdir().unwrap();
    let third = keys_in(&third);
    third.store_authorities(&given(&authorities, "")).unwrap();
    assert!(third.recovery_key().unwrap() == recovery);
}

/// The check whether the store belongs to the cluster uses the recovery key, which is derived from
/// the unencrypted keys. It must exist before the first check, and so before etcd starts.
#[tokio::test]
async fn a_member_of_an_earlier_version_can_be_told_of_a_later_epoch_at_its_first_start() {
    let folder = tempfile::tempdir().unwrap();
    let keys = keys_in(&folder);
    leave_clear(&keys, &authorities());
    keys.recovery_key().unwrap_err();
    let system = kat_testing::systemd::fake::FakeManager::new("system");
    let known = crate::cluster::cluster_cache::ClusterCache::default();
    let outdated =
        crate::etcd::membership::give_up_outdated(&identity(), &keys, &known, &system).await;
    assert!(!outdated.unwrap(), "nobody says so");
    keys.recovery_key().unwrap();
    assert_eq!(clear_keys(&keys), 0);
}

#[test]
fn sealing_that_was_broken_off_anywhere_goes_on() {
    let authorities = authorities();
    let recovery = authorities[0].derived_recovery_key();
    // Sealing stops after the recovery key, or after one of the sealed keys, with its unencrypted
    // key removed or not.
    for sealed in 0..=3 {
        for removed in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let keys = keys_in(&folder);
            leave_clear(&keys, &authorities);
            pki::store_recovery_key(&keys.folder, &recovery).unwrap();
            for authority in authorities.iter().take(sealed) {
                authority.store(&keys.folder, &recovery).unwrap();
            }
            if let (false, Some(last)) = (removed, sealed.checked_sub(1)) {
                leave_clear(&keys, &authorities[last..=last]);
            }
            keys.seal_authorities().unwrap();
            assert_eq!(clear_keys(&keys), 0, "{sealed} {removed}");
            for authority in &authorities {
                let opened =
                    Authority::load(&keys.folder, authority.kind(), &recovery.clone().into())
                        .unwrap();
                assert_eq!(opened.key_pem(), authority.key_pem());
            }
        }
    }
    // A sealed key whose recovery key is missing is never replaced.
    let folder = tempfile::tempdir().unwrap();
    let keys = keys_in(&folder);
    leave_clear(&keys, &authorities);
    keys.seal_authorities().unwrap();
    std::fs::remove_file(keys.folder.join("recovery.key")).unwrap();
    assert!(!keys.seal_authorities().unwrap());
    let error = keys
        .renew(&identity(), &ClusterCache::default(), Timestamp::now())
        .unwrap_err();
    assert!(error.to_string().contains("recovery.key"), "{error}");
}

#[test]
fn a_new_member_holds_all_recovery_keys_of_the_leader_and_gives_all_up() {
    let folder = tempfile::tempdir().unwrap();
    let keys = keys_in(&folder);
    let [current, next, old] = [(); 3].map(|()| RecoveryKey::generate().unwrap());
    let answer = MembershipAnswer {
        other_recovery_keys: vec![next.reveal(), old.reveal()],
        ..given(&authorities(), &current.reveal())
    };
    let shown = format!("{answer:?}");
    assert!(!shown.contains(&next.reveal()) && !shown.contains(&old.reveal()));
    let wrong = MembershipAnswer {
        other_recovery_keys: vec!["kat-recovery-123".to_owned()],
        ..answer.clone()
    };
    keys.store_authorities(&wrong).unwrap_err();
    keys.recovery_key().unwrap_err();
    keys.store_authorities(&answer).unwrap();
    let all = [&current, &next, &old].map(RecoveryKey::fingerprint);
    assert_eq!(keys.recovery_keys().unwrap().fingerprints(), all);
    let found = recovery::given_recovery_key(&answer, &next.fingerprint());
    assert!(found.unwrap() == next);
    recovery::given_recovery_key(&answer, "feed").unwrap_err();
    keys.forget_authorities().unwrap();
    let names = std::fs::read_dir(&keys.folder).unwrap();
    for name in names {
        let name = name.unwrap().file_name().into_string().unwrap();
        assert!(!name.starts_with("recovery"), "{name}");
    }
}

/// The leader's recovery key may be another one for a moment; what is stored here must open here.
#[test]
fn an_authority_that_is_handed_over_is_sealed_with_this_machines_recovery_key() {
    let folder = tempfile::tempdir().unwrap();
    let keys = keys_in(&folder);
    keys.ensure_authorities("test", Timestamp::now()).unwrap();
    let handed = authorities();
    let foreign = RecoveryKey::generate().unwrap().reveal();
    let (kind, next) = (AuthorityKind::EtcdPeers, AuthorityEdition::Next);
    let hash = handed[2].fingerprint();
    keys.take_edition(kind, next, &hash, &given(&handed, &foreign))
        .unwrap();
    let held = keys.recovery_keys().unwrap();
    Authority::load_edition(&keys.folder, kind, next, &held).unwrap();
}

#[test]
fn a_promotion_of_the_recovery_key_that_was_interrupted_is_completed_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let keys = keys_in(&folder);
    let old = keys.ensure_authorities("test", Timestamp::now()).unwrap();
    let next = keys.make_next_recovery_key().unwrap();
    let made = pki::next_recovery_key(&keys.folder).unwrap().unwrap();
    // The key is the present one, and nothing is sealed with it yet.
    pki::write_secret(
        &keys.folder.join("recovery-old.key"),
        format!("{}\n", old.reveal()).as_bytes(),
    )
    .unwrap();
    pki::store_recovery_key(&keys.folder, &made).unwrap();
    keys.renew(&identity(), &ClusterCache::default(), Timestamp::now())
        .unwrap();
    assert_eq!(keys.next_recovery_fingerprint().unwrap(), "");
    assert_eq!(keys.recovery_key().unwrap().fingerprint(), next);
    for kind in AuthorityKind::ALL {
        Authority::load(&keys.folder, kind, &made.clone().into()).unwrap();
    }
}
