//! Files from the workload's folder, unpacked for its containers.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::*;
use crate::volumes::carried_files::{forget, prepare, tidy};
use kat_bundle::{CarriedFile, pack_carried};

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
fn unpacked_files_belong_to_the_user_below_a_folder_that_only_its_group_may_enter() {
    let root = tempfile::tempdir().unwrap();
    let tree = &Root::new(root.path());
    let one = carrying("1");
    prepare(tree, &one).unwrap();
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

    // Unpacking twice changes nothing, and an interrupted attempt is started again.
    let inode = fs::metadata(&whole).unwrap().ino();
    prepare(tree, &one).unwrap();
    assert_eq!(fs::metadata(&whole).unwrap().ino(), inode);
    let other = carrying("2");
    let unfinished = folder.join(format!(".{}", other.carried_digest().unwrap()));
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join("rest"), "x").unwrap();
    prepare(tree, &other).unwrap();
    let whole_other = folder.join(other.carried_digest().unwrap());
    assert!(!whole_other.join("rest").exists());

    tidy(tree, uid, [&other].into_iter());
    assert!(!whole.exists() && whole_other.exists());
    forget(tree, uid).unwrap();
    forget(tree, uid).unwrap();
    assert!(!folder.exists());
}

#[test]
fn what_can_not_be_read_leaves_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    let tree = &Root::new(root.path());
    let damaged = Assignment {
        carried: Some("????".into()),
        ..assignment(0, "web")
    };
    assert!(prepare(tree, &damaged).is_err());
    assert!(!root.path().join("var").exists());
}

/// Repeatedly replaces a future folder and an existing file by links, with the file system rights
/// of the workload's user.
fn put_links(unfinished: &Path, elsewhere: &Path, uid: u32, stop: &AtomicBool, tries: &AtomicU64) {
    nix::unistd::setfsgid(uid.into());
    nix::unistd::setfsuid(uid.into());
    let inner = unfinished.join("conf/a");
    let first = inner.join("f000");
    while !stop.load(Ordering::Relaxed) {
        let _ = symlink(elsewhere, inner.join("z"));
        if fs::rename(&first, inner.join("old")).is_ok() {
            let _ = symlink(elsewhere.join("kept"), &first);
        }
        tries.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn links_that_the_user_puts_there_meanwhile_lead_root_nowhere() {
    let root = tempfile::tempdir().unwrap();
    let tree = &Root::new(root.path());
    let elsewhere = tempfile::tempdir().unwrap();
    for folder in [root.path(), elsewhere.path()] {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(elsewhere.path().join("kept"), "kept").unwrap();
    let file = |path: String, size| CarriedFile {
        path,
        executable: false,
        bytes: vec![b'x'; size],
    };
    // Many files are unpacked between the folder that the user owns and the path where the user
    // creates a link.
    let mut files = vec![file("conf/a/f000".to_owned(), 256 * 1024)];
    files.extend((1..250).map(|index| file(format!("conf/a/f{index:03}"), 1)));
    files.push(file("conf/a/z/taken".to_owned(), 1));
    let one = Assignment {
        carried: Some(pack_carried(&files).unwrap().into()),
        ..assignment(0, "web")
    };
    let uid = one.user.uid;
    let digest = one.carried_digest().unwrap();
    let folder = root.path().join("var/lib/kat/files").join(uid.to_string());
    let unfinished = folder.join(format!(".{digest}"));
    let (stop, tries) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| put_links(&unfinished, elsewhere.path(), uid, &stop, &tries));
        while tries.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        for _ in 0..8 {
            let prepared = prepare(tree, &one);
            let taken = elsewhere.path().join("taken").exists();
            let owner = fs::metadata(elsewhere.path().join("kept")).unwrap().uid();
            let _ = forget(tree, uid);
            if prepared.is_err() || taken || owner != 0 {
                stop.store(true, Ordering::Relaxed);
                panic!("{prepared:?}, written elsewhere: {taken}, owner elsewhere: {owner}");
            }
        }
        // Control: in a folder that the user may enter, the user can create the link.
        fs::create_dir_all(unfinished.join("conf/a")).unwrap();
        for inner in ["conf/a", "conf"] {
            std::os::unix::fs::chown(unfinished.join(inner), Some(uid), Some(uid)).unwrap();
        }
        let began = std::time::Instant::now();
        while fs::read_link(unfinished.join("conf/a/z")).is_err() {
            if began.elapsed().as_secs() > 10 {
                stop.store(true, Ordering::Relaxed);
                panic!("no link was put where it may be");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
