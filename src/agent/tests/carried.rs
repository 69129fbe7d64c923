//! Files of the workload's folder, laid out for its containers.

use std::{fs, os::unix::fs::MetadataExt};

use super::*;
use crate::{
    agent::carried::{forget, prepare, tidy},
    bundle::{CarriedFile, pack_carried},
};

fn carrying(text: &str) -> Assignment {
    let files = [
        ("conf/a", false, text),
        ("conf/in/run", true, "#!/bin/sh\n"),
    ];
    let files = files.map(|(path, executable, text)| CarriedFile {
        path: path.to_owned(),
        executable,
        bytes: text.into(),
    });
    Assignment {
        carried: Some(pack_carried(&files).unwrap().into()),
        ..assignment(0, "web")
    }
}

#[test]
fn they_are_the_users_below_what_only_its_group_passes() {
    let root = tempfile::tempdir().unwrap();
    let one = carrying("1");
    prepare(root.path(), &one).unwrap();
    let uid = one.user.uid;
    let folder = root.path().join("var/lib/kat/files").join(uid.to_string());
    let whole = folder.join(one.carried_digest().unwrap());
    let of = |path: &Path| {
        let found = fs::symlink_metadata(path).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    };
    assert_eq!(of(&folder), (0, uid, 0o750));
    assert_eq!(of(&whole), (0, uid, 0o750));
    assert_eq!(of(&whole.join("conf")), (uid, uid, 0o755));
    assert_eq!(of(&whole.join("conf/in")), (uid, uid, 0o755));
    assert_eq!(of(&whole.join("conf/a")), (uid, uid, 0o644));
    assert_eq!(of(&whole.join("conf/in/run")), (uid, uid, 0o755));
    assert_eq!(fs::read_to_string(whole.join("conf/a")).unwrap(), "1");

    // Once is enough, and an attempt that broke off is begun anew.
    let inode = fs::metadata(&whole).unwrap().ino();
    prepare(root.path(), &one).unwrap();
    assert_eq!(fs::metadata(&whole).unwrap().ino(), inode);
    let other = carrying("2");
    let unfinished = folder.join(format!(".{}", other.carried_digest().unwrap()));
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join("rest"), "x").unwrap();
    prepare(root.path(), &other).unwrap();
    let whole_other = folder.join(other.carried_digest().unwrap());
    assert!(!whole_other.join("rest").exists());

    tidy(root.path(), uid, [&other].into_iter());
    assert!(!whole.exists() && whole_other.exists());
    forget(root.path(), uid).unwrap();
    forget(root.path(), uid).unwrap();
    assert!(!folder.exists());
}

#[test]
fn what_can_not_be_read_leaves_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    let damaged = Assignment {
        carried: Some("????".into()),
        ..assignment(0, "web")
    };
    assert!(prepare(root.path(), &damaged).is_err());
    assert!(!root.path().join("var").exists());
}
