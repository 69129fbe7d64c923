//! A machine's leaves over the months.

use jiff::ToSpan;

use super::*;
use crate::resource::ClusterConfiguration;

fn identity() -> Identity {
    Identity {
        schema: 1,
        node: "n1".to_owned(),
        node_uid: "7a1c".to_owned(),
        cluster_uid: "3f0c".to_owned(),
        cluster: ClusterConfiguration::default(),
        subnet: "10.100.0.0/23".parse().unwrap(),
        advertise: vec!["192.0.2.1".parse().unwrap()],
        etcd: true,
    }
}

fn day(number: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    start + (number * 24).hours()
}

/// Certificate and key of every leaf.
fn leaves(keys: &Keys) -> Vec<(String, String)> {
    let leaves = LEAVES.iter().map(|name| keys.leaf(name).unwrap());
    leaves
        .map(|leaf| (leaf.certificate_pem, leaf.key_pem))
        .collect()
}

/// What etcd reads, by name.
fn of_etcd(keys: &Keys) -> Vec<(String, Vec<u8>)> {
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
    let keys = Keys {
        folder: folder.path().join("pki"),
        etcd_folder: folder.path().join("etcd-pki"),
        etcd_group: Some(0),
    };
    let identity = identity();
    keys.ensure_authorities(&identity.cluster_uid, day(0))
        .unwrap();
    assert_eq!(keys.renew(&identity, day(0)).unwrap(), LEAVES);
    let (first, key) = (leaves(&keys), keys.identity_key().unwrap());
    let etcd_first = of_etcd(&keys);
    assert!(!etcd_first.is_empty());
    // Nothing is due for twenty days, and a clock that is behind makes nothing due.
    for calm in [0, 10, 19, -400] {
        let renewed = keys.renew(&identity, day(calm)).unwrap();
        assert!(renewed.is_empty(), "day {calm}: {renewed:?}");
    }
    assert!(leaves(&keys) == first);
    assert_eq!(keys.renew(&identity, day(21)).unwrap(), LEAVES);
    let second = leaves(&keys);
    for (name, (before, after)) in LEAVES.iter().zip(first.iter().zip(&second)) {
        assert_ne!(before.0, after.0, "{name}");
        assert!(before.1 == after.1, "{name} has another key");
        let validity = pki::validity_of(&after.0).unwrap();
        assert!(validity.holds(day(21)) && validity.holds(day(50)), "{name}");
        assert!(!validity.holds(day(52)), "{name}");
    }
    assert_eq!(keys.identity_key().unwrap(), key);
    // etcd gets the renewed ones too.
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
    let keys = Keys {
        folder: folder.path().join("pki"),
        etcd_folder: folder.path().join("etcd-pki"),
        etcd_group: Some(0),
    };
    let identity = identity();
    keys.ensure_authorities(&identity.cluster_uid, day(0))
        .unwrap();
    keys.renew(&identity, day(0)).unwrap();
    assert_eq!(keys.renew(&identity, day(90)).unwrap(), LEAVES);
    // One that is gone or damaged is made again, alone.
    std::fs::remove_file(keys.folder.join("leader.crt")).unwrap();
    std::fs::write(keys.folder.join("etcd-peer.crt"), "damaged").unwrap();
    assert_eq!(
        keys.renew(&identity, day(91)).unwrap(),
        ["leader", "etcd-peer"]
    );
}

fn given(authorities: &[Authority]) -> BTreeMap<String, AuthorityKeys> {
    let keys = authorities.iter().map(|authority| {
        let keys = AuthorityKeys {
            certificate: authority.certificate_pem().to_owned(),
            key: authority.key_pem(),
        };
        (authority.kind().name().to_owned(), keys)
    });
    keys.collect()
}

fn authorities() -> Vec<Authority> {
    let now = Timestamp::now();
    let kinds = AuthorityKind::ALL.into_iter();
    kinds
        .map(|kind| Authority::generate(kind, "test", now).unwrap())
        .collect()
}

#[test]
fn only_the_known_authorities_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys {
        folder: folder.path().join("pki"),
        etcd_folder: folder.path().join("etcd-pki"),
        etcd_group: None,
    };
    std::fs::create_dir(&keys.folder).unwrap();
    let (own, others) = (authorities(), authorities());
    // What a worker has.
    for name in ["cluster-ca", "etcd-client-ca"] {
        let own = given(&own);
        let path = keys.folder.join(format!("{name}.crt"));
        std::fs::write(path, &own[name].certificate).unwrap();
    }
    keys.store_authorities(&given(&others)).unwrap_err();
    let mut mixed = given(&own);
    let foreign = given(&others)["etcd-peer-ca"].key.clone();
    mixed.get_mut("etcd-peer-ca").unwrap().key = foreign;
    keys.store_authorities(&mixed).unwrap_err();
    keys.store_authorities(&given(&own[..2])).unwrap_err();
    let has_key = || keys.folder.join("cluster-ca.key").exists();
    assert!(!has_key(), "nothing is kept of what is refused");
    keys.store_authorities(&given(&own)).unwrap();
    assert!(has_key());
    keys.forget_authorities().unwrap();
    let mut left: Vec<_> = std::fs::read_dir(&keys.folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["cluster-ca.crt", "etcd-client-ca.crt"]);
}
