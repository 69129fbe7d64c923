use jiff::Timestamp;

use super::*;
use crate::{Authority, files::faults, replacement};

/// Runs a change that is interrupted before each of its writes in turn, and after each interruption
/// checks the disk and repeats the change to its end.
fn interrupted_everywhere(
    begin: impl Fn() -> tempfile::TempDir,
    change: impl Fn(&Path) -> Result<(), PkiError>,
    holds: impl Fn(&Path),
    ended: impl Fn(&Path),
) {
    for writes in 0.. {
        assert!(writes < 100, "the change does not end");
        let folder = begin();
        faults::allow(Some(writes));
        let changed = change(folder.path());
        faults::allow(None);
        holds(folder.path());
        let whole = changed.is_ok();
        complete_recovery_key_promotion(folder.path()).unwrap();
        holds(folder.path());
        change(folder.path()).unwrap();
        holds(folder.path());
        ended(folder.path());
        if whole {
            assert!(writes > 0, "the change changes nothing");
            return;
        }
    }
}

fn key() -> RecoveryKey {
    RecoveryKey::generate().unwrap()
}

/// A machine's authorities; those of etcd's clients in all four editions.
fn stored(recovery: &RecoveryKey) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    store_recovery_key(folder.path(), recovery).unwrap();
    let made = |kind| Authority::generate(kind, "test", Timestamp::now()).unwrap();
    for kind in AuthorityKind::ALL {
        made(kind).store(folder.path(), recovery).unwrap();
    }
    for edition in AuthorityEdition::ALL {
        made(AuthorityKind::EtcdClients)
            .store_edition(folder.path(), edition, recovery)
            .unwrap();
    }
    folder
}

/// All keys of authorities on the disk open and fit to their certificates.
fn opens(folder: &Path, keys: &RecoveryKeys) {
    let mut found = 0;
    for (kind, edition, _) in sealed_files(folder) {
        Authority::load_edition(folder, kind, edition, keys).unwrap();
        found += 1;
    }
    assert_eq!(found, 6);
}

fn opens_with_what_is_held(folder: &Path) {
    opens(folder, &load_recovery_keys(folder).unwrap());
}

fn opens_with_nothing_of(folder: &Path, key: &RecoveryKey) {
    for (kind, _, path) in sealed_files(folder) {
        let sealed = files::read_bytes(&path).unwrap();
        open(key, &sealed, kind.name().as_bytes()).unwrap_err();
    }
}

#[test]
fn the_present_key_seals_and_each_of_them_opens() {
    let (first, second, third) = (key(), key(), key());
    let keys = RecoveryKeys::new(
        second.clone(),
        [first.clone(), second.clone(), first.clone()],
    );
    assert_eq!(
        keys.fingerprints(),
        [second.fingerprint(), first.fingerprint()]
    );
    for key in [&first, &second] {
        let sealed = seal(key, b"text", b"x").unwrap();
        assert_eq!(keys.open(&sealed, b"x").unwrap(), b"text");
        assert_eq!(keys.open(&sealed, b"y"), Err(SealError::DoesNotOpen));
    }
    let sealed = seal(&third, b"text", b"x").unwrap();
    assert_eq!(keys.open(&sealed, b"x"), Err(SealError::DoesNotOpen));
    assert_eq!(keys.open(b"PK", b"x"), Err(SealError::Header));
    assert!(!format!("{keys:?}").contains(&first.reveal()));
}

#[test]
fn a_promotion_that_is_interrupted_anywhere_keeps_every_authority_and_goes_on() {
    let (old, next) = (key(), key());
    interrupted_everywhere(
        || {
            let folder = stored(&old);
            store_next_recovery_key(folder.path(), &next).unwrap();
            folder
        },
        promote_recovery_key,
        |folder| {
            opens_with_what_is_held(folder);
            let held = load_recovery_keys(folder).unwrap();
            assert!(held.with_fingerprint(&old.fingerprint()).is_some());
            assert!(held.with_fingerprint(&next.fingerprint()).is_some());
        },
        |folder| {
            assert!(load_recovery_key(folder).unwrap() == next);
            assert!(next_recovery_key(folder).unwrap().is_none());
            opens(folder, &next.clone().into());
            opens_with_nothing_of(folder, &old);
        },
    );
}

#[test]
fn forgetting_that_is_interrupted_anywhere_keeps_every_authority_and_goes_on() {
    let (old, next) = (key(), key());
    interrupted_everywhere(
        || {
            // A promotion that was interrupted before anything was sealed anew, too.
            let folder = stored(&old);
            add_old(folder.path(), old.clone()).unwrap();
            store_recovery_key(folder.path(), &next).unwrap();
            folder
        },
        |folder| forget_other_recovery_keys(folder).map(drop),
        opens_with_what_is_held,
        |folder| {
            assert_eq!(
                load_recovery_keys(folder).unwrap(),
                RecoveryKeys::from(next.clone())
            );
            opens(folder, &next.clone().into());
            assert!(!folder.join("recovery-old.key").exists());
        },
    );
}

#[test]
fn another_next_key_takes_no_key_away_wherever_it_is_interrupted() {
    let (old, lost, next) = (key(), key(), key());
    interrupted_everywhere(
        || {
            let folder = stored(&old);
            store_next_recovery_key(folder.path(), &lost).unwrap();
            folder
        },
        |folder| store_next_recovery_key(folder, &next),
        |folder| {
            opens_with_what_is_held(folder);
            let held = load_recovery_keys(folder).unwrap();
            assert!(held.with_fingerprint(&lost.fingerprint()).is_some());
        },
        |folder| assert!(next_recovery_key(folder).unwrap().unwrap() == next),
    );
}

#[test]
fn keys_of_another_machine_take_no_key_away_wherever_they_are_interrupted() {
    let (own, own_next, current, other) = (key(), key(), key(), key());
    let given = RecoveryKeys::new(current.clone(), [other.clone()]);
    interrupted_everywhere(
        || {
            let folder = stored(&own);
            store_next_recovery_key(folder.path(), &own_next).unwrap();
            folder
        },
        |folder| store_recovery_keys(folder, &given),
        |folder| {
            opens_with_what_is_held(folder);
            let held = load_recovery_keys(folder).unwrap();
            assert!(held.with_fingerprint(&own_next.fingerprint()).is_some());
        },
        |folder| {
            let held = load_recovery_keys(folder).unwrap();
            assert!(*held.current() == current);
            assert_eq!(held.others().len(), 3);
        },
    );
}

#[test]
fn a_key_that_opens_no_authority_replaces_none() {
    let (old, next, wrong) = (key(), key(), key());
    let folder = stored(&old);
    store_next_recovery_key(folder.path(), &next).unwrap();
    // As if somebody had written another key into the file.
    store_recovery_key(folder.path(), &wrong).unwrap();
    promote_recovery_key(folder.path()).unwrap_err();
    forget_other_recovery_keys(folder.path()).unwrap_err();
    assert!(load_recovery_key(folder.path()).unwrap() == wrong);
    assert!(next_recovery_key(folder.path()).unwrap().is_some());
    store_recovery_key(folder.path(), &old).unwrap();
    promote_recovery_key(folder.path()).unwrap();
    opens(folder.path(), &next.into());
}

#[test]
fn an_authority_that_is_replaced_next_is_sealed_with_the_present_recovery_key() {
    let (old, next) = (key(), key());
    let folder = stored(&old);
    let folder = folder.path();
    store_next_recovery_key(folder, &next).unwrap();
    promote_recovery_key(folder).unwrap();
    let held = load_recovery_keys(folder).unwrap();
    let kind = AuthorityKind::EtcdPeers;
    let made = Authority::generate(kind, "test", Timestamp::now()).unwrap();
    replacement::store_next(folder, &made, held.current()).unwrap();
    replacement::promote_next(folder, kind, &held).unwrap();
    let loaded = Authority::load(folder, kind, &next.into()).unwrap();
    assert_eq!(loaded.fingerprint(), made.fingerprint());
}

#[test]
fn a_machine_that_gives_up_the_store_keeps_no_recovery_key() {
    let folder = stored(&key());
    store_next_recovery_key(folder.path(), &key()).unwrap();
    add_old(folder.path(), key()).unwrap();
    remove_recovery_keys(folder.path()).unwrap();
    for edition in RecoveryKeyEdition::ALL {
        assert!(!folder.path().join(edition.file()).exists());
    }
}
