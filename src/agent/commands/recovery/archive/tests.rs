use super::*;

fn facts() -> BackupFacts {
    let identity = MachineIdentity {
        advertise: vec!["192.0.2.1".parse().unwrap()],
        etcd: true,
        ..MachineIdentity::example("n1")
    };
    let keys = AuthorityKeys {
        certificate: "a certificate".to_owned(),
        key: "the authority's secret".to_owned(),
    };
    BackupFacts {
        identity,
        authorities: BTreeMap::from([("cluster-ca".to_owned(), keys)]),
        node_key: "the machine's secret".to_owned(),
        api_key: "the API's secret".to_owned(),
        wireguard_key: "the tunnel's secret".to_owned(),
        other_recovery_keys: vec!["another recovery key, a secret".to_owned()],
    }
}

fn header(key: &RecoveryKey) -> BackupHeader {
    BackupHeader {
        schema: 1,
        cluster: "home".to_owned(),
        cluster_uid: "3f0c".to_owned(),
        node: "n1".to_owned(),
        created: Timestamp::UNIX_EPOCH,
        version: "0.1.0".to_owned(),
        recovery_key: key.fingerprint(),
    }
}

/// Writes a backup of these pieces. The data ends with or without the confirmation that it is
/// complete, as `is_whole` says.
fn backup(
    path: &Path,
    key: &RecoveryKey,
    header: &BackupHeader,
    pieces: &[&[u8]],
    is_whole: bool,
) -> Result<u64, ArchiveError> {
    let (sender, receiver) = mpsc::channel(pieces.len() + 1);
    for piece in pieces {
        sender.try_send(piece.to_vec()).unwrap();
    }
    drop(sender);
    let (tell, whole) = oneshot::channel();
    match is_whole {
        true => tell.send(()).unwrap(),
        false => drop(tell),
    }
    write(path, key, (header, &facts()), receiver, whole)
}

#[test]
fn what_went_in_comes_out_with_the_key_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.backup");
    let key = RecoveryKey::generate().unwrap();
    let bytes = backup(&path, &key, &header(&key), &[b"etcd's ", b"data"], true).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    assert_eq!((metadata.len(), mode & 0o777), (bytes, 0o600));
    // No secret is readable in the file.
    let raw = fs::read(&path).unwrap();
    for secret in [&b"secret"[..], b"data", b"a certificate"] {
        assert!(!raw.windows(secret.len()).any(|part| part == secret));
    }

    let opened = Archive::open(&path).unwrap();
    assert_eq!(opened.header(), &header(&key));
    let data = folder.path().join("data");
    assert!(opened.unpack(&key, &data).unwrap() == facts());
    assert_eq!(fs::read(&data).unwrap(), b"etcd's data");

    let other = RecoveryKey::generate().unwrap();
    let refused = |error: ArchiveError| error.to_string();
    let closed = Archive::open(&path).unwrap();
    let closed = closed.unpack(&other, &folder.path().join("no")).err();
    let words = refused(closed.unwrap());
    assert!(
        words.contains("another recovery key") && words.contains("home"),
        "{words}"
    );
    assert!(!folder.path().join("no").exists());
    let again = backup(&path, &key, &header(&key), &[b"x"], true);
    assert!(refused(again.unwrap_err()).contains("exists already"));
    assert_eq!(fs::read(&path).unwrap(), raw, "it is as it was");
}

#[test]
fn nothing_is_left_of_one_that_is_not_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.backup");
    let key = RecoveryKey::generate().unwrap();
    let error = backup(&path, &key, &header(&key), &[b"half"], false).unwrap_err();
    assert!(matches!(error, ArchiveError::NotWhole(_)), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let nowhere = folder.path().join("none/a.backup");
    let error = backup(&nowhere, &key, &header(&key), &[], true).unwrap_err();
    assert!(error.to_string().contains("none/a.backup"), "{error}");
}

#[test]
fn what_is_damaged_foreign_or_newer_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let key = RecoveryKey::generate().unwrap();
    let path = folder.path().join("a.backup");
    backup(&path, &key, &header(&key), &[b"etcd's data"], true).unwrap();
    let good = fs::read(&path).unwrap();
    let data = folder.path().join("data");
    let words = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        let _ = fs::remove_file(&data);
        let read = Archive::open(&path).and_then(|archive| archive.unpack(&key, &data));
        read.err().map(|error| error.to_string())
    };
    assert_eq!(words(&good), None);
    let mut damaged = good.clone();
    let middle = good.len() - 70;
    damaged[middle] ^= 1;
    assert!(words(&damaged).unwrap().contains("damaged"));
    assert!(
        words(&good[..good.len() - 3])
            .unwrap()
            .contains("not whole")
    );
    assert!(
        words(b"PK\x03\x04")
            .unwrap()
            .contains("no sealed file of KAT")
    );
    let mut newer = good;
    newer[4] = 9;
    assert!(words(&newer).unwrap().contains("newer version"));
    fs::remove_file(&path).unwrap();
    let next = BackupHeader {
        schema: 2,
        version: "3.0.0".to_owned(),
        ..header(&key)
    };
    backup(&path, &key, &next, &[b"x"], true).unwrap();
    let error = Archive::open(&path).err().unwrap().to_string();
    assert!(error.contains("3.0.0"), "{error}");
}

/// While the recovery key is replaced, a data key in etcd may be sealed with the other key: the one
/// key of the backup's header is enough to open it.
#[test]
fn a_backup_opens_with_its_own_recovery_key_and_brings_the_other_one() {
    use kat_pki::{RecoveryKeys, secret_sealing::DataKey};

    let folder = tempfile::tempdir().unwrap();
    let [old, new] = [(); 2].map(|()| RecoveryKey::generate().unwrap());
    let data_key = DataKey::generate().unwrap();
    let sealed = data_key.sealed_with(&old, 1).unwrap();
    let path = folder.path().join("a.backup");
    let facts = BackupFacts {
        other_recovery_keys: vec![old.reveal()],
        ..facts()
    };
    let (sender, receiver) = mpsc::channel(1);
    drop(sender);
    let (tell, whole) = oneshot::channel();
    tell.send(()).unwrap();
    write(&path, &new, (&header(&new), &facts), receiver, whole).unwrap();
    let unpack = |key: &RecoveryKey, to: &str| {
        Archive::open(&path)
            .unwrap()
            .unpack(key, &folder.path().join(to))
    };
    let refused = unpack(&old, "old").err().unwrap();
    assert!(
        matches!(refused, ArchiveError::WrongKey { .. }),
        "{refused}"
    );
    let given = unpack(&new, "new").unwrap().other_recovery_keys;
    let others = given.iter().map(|text| RecoveryKey::parse(text).unwrap());
    let held = RecoveryKeys::new(new.clone(), others);
    assert_eq!(DataKey::open_with(&held, &sealed, 1), Ok(data_key));
    DataKey::open_with(&new.into(), &sealed, 1).unwrap_err();
}

#[test]
fn a_backup_of_an_earlier_version_has_no_other_recovery_keys() {
    let mut text = serde_json::to_value(facts()).unwrap();
    text.as_object_mut()
        .unwrap()
        .remove("otherRecoveryKeys")
        .unwrap();
    let read: BackupFacts = serde_json::from_value(text).unwrap();
    assert!(read.other_recovery_keys.is_empty());
}
