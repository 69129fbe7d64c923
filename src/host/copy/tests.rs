//! Copies between folders on the disk.

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown, lchown, symlink},
        net::UnixListener,
    },
};

use super::*;

const OWNERS: Owners = Owners {
    uid: 20_001,
    subordinate_start: 1_879_113_728,
    subordinate_count: 65_536,
};

/// A source folder that belongs to the workload's user.
fn source() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    chown(folder.path(), Some(20_001), Some(20_001)).unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o2770)).unwrap();
    folder
}

fn open(folder: &tempfile::TempDir) -> fs::File {
    fs::File::open(folder.path()).unwrap()
}

fn stream(from: &tempfile::TempDir) -> (Vec<u8>, Result<(), CopyError>) {
    let mut all = Vec::new();
    let sent = send(&open(from), &OWNERS, |piece| {
        all.extend(piece);
        true
    });
    (all, sent)
}

fn arrive(text: &[u8]) -> (tempfile::TempDir, Result<Summary, CopyError>) {
    let into = tempfile::tempdir().unwrap();
    let received = receive(&mut &*text, &open(&into), &OWNERS, &CopyProgress::default());
    (into, received)
}

fn attribute(path: &std::path::Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 256];
    let length = rustix::fs::getxattr(path, name, value.as_mut_slice()).ok()?;
    value.truncate(length);
    Some(value)
}

#[test]
fn all_kinds_of_files_arrive_as_they_were() {
    let from = source();
    let at = |name: &str| from.path().join(name);
    fs::create_dir_all(at("sub/empty")).unwrap();
    fs::write(at("sub/one"), "one").unwrap();
    fs::write(at("tool"), "#!/bin/sh").unwrap();
    chown(at("tool"), Some(1_879_113_800), Some(20_001)).unwrap();
    fs::set_permissions(at("tool"), Permissions::from_mode(0o6755)).unwrap();
    fs::set_permissions(at("sub"), Permissions::from_mode(0o1777)).unwrap();
    fs::hard_link(at("sub/one"), at("zwei")).unwrap();
    symlink("/etc/passwd", at("link")).unwrap();
    lchown(at("link"), Some(20_001), Some(7)).unwrap();
    symlink("nowhere", at("a\nb")).unwrap();
    rustix::fs::mknodat(
        open(&from),
        "pipe",
        rustix::fs::FileType::Fifo,
        0o640.into(),
        0,
    )
    .unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    let sparse = fs::File::create(at("sparse")).unwrap();
    rustix::io::pwrite(&sparse, b"far", 50 << 20).unwrap();
    sparse.set_len(90 << 20).unwrap();
    let large: Vec<u8> = (0..3_000_000u32)
        .map(|number| (number % 251) as u8)
        .collect();
    fs::write(at("large"), &large).unwrap();
    let time = rustix::fs::Timespec {
        tv_sec: 1_000_000_000,
        tv_nsec: 123_456_789,
    };
    let times = rustix::fs::Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(
        rustix::fs::CWD,
        at("large"),
        &times,
        rustix::fs::AtFlags::empty(),
    )
    .unwrap();
    let set = rustix::fs::setxattr(
        at("large"),
        "user.colour",
        b"red",
        rustix::fs::XattrFlags::empty(),
    );
    rustix::fs::utimensat(
        rustix::fs::CWD,
        at("sub"),
        &times,
        rustix::fs::AtFlags::empty(),
    )
    .unwrap();

    let (text, sent) = stream(&from);
    sent.unwrap();
    assert!(text.len() < 8 << 20, "holes are not sent: {}", text.len());
    let (into, received) = arrive(&text);
    let summary = received.unwrap();
    assert_eq!((summary.files, summary.skipped), (8, 1));
    let to = |name: &str| into.path().join(name);
    assert_eq!(fs::read(to("large")).unwrap(), large);
    assert_eq!(fs::read(to("sub/one")).unwrap(), b"one");
    let there = |name: &str| fs::symlink_metadata(to(name)).unwrap();
    assert_eq!(there("zwei").ino(), there("sub/one").ino());
    assert_eq!(there("tool").mode() & 0o7777, 0o6755);
    assert_eq!(
        (there("tool").uid(), there("tool").gid()),
        (1_879_113_800, 20_001)
    );
    assert_eq!(there("sub").mode() & 0o7777, 0o1777);
    assert_eq!(
        (there("sub").mtime(), there("sub").mtime_nsec()),
        (1_000_000_000, 123_456_789)
    );
    assert_eq!(
        (there("large").mtime(), there("large").mtime_nsec()),
        (1_000_000_000, 123_456_789)
    );
    assert_eq!(
        fs::read_link(to("link")).unwrap(),
        std::path::Path::new("/etc/passwd")
    );
    assert_eq!((there("link").uid(), there("link").gid()), (20_001, 7));
    assert_eq!(
        there("pipe").mode() & 0o7777,
        0o640 & fs::symlink_metadata(at("pipe")).unwrap().mode()
    );
    assert!(there("sub/empty").is_dir());
    assert!(fs::symlink_metadata(to("socket")).is_err());
    assert_eq!(there("sparse").size(), 90 << 20);
    assert!(
        there("sparse").blocks() * 512 < 2 << 20,
        "{}",
        there("sparse").blocks()
    );
    let root = fs::metadata(into.path()).unwrap();
    assert_eq!((root.mode() & 0o7777, root.uid()), (0o2770, 20_001));
    if set.is_ok() {
        assert_eq!(attribute(&to("large"), "user.colour").unwrap(), b"red");
    }
    let again = digest(&open(&from), &OWNERS, &CopyProgress::default()).unwrap();
    assert_eq!(again, summary);
}

#[test]
fn each_difference_shows_in_the_digest() {
    let from = source();
    let path = from.path().join("file");
    fs::write(&path, "text").unwrap();
    let look = || {
        digest(&open(&from), &OWNERS, &CopyProgress::default())
            .unwrap()
            .digest
    };
    let mut seen = std::collections::BTreeSet::from([look()]);
    let mut differs = |what: &str| assert!(seen.insert(look()), "{what}");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let keep = || {
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap()
    };
    fs::write(&path, "texd").unwrap();
    keep();
    differs("contents");
    fs::write(&path, "texd\0").unwrap();
    keep();
    differs("size");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    differs("mode");
    chown(&path, Some(20_001), None).unwrap();
    differs("owner");
    fs::rename(&path, from.path().join("other")).unwrap();
    differs("name");
    fs::create_dir(from.path().join("empty")).unwrap();
    differs("an empty folder");
}

/// Changed or lost bytes are detected at every position.
#[test]
fn a_stream_that_was_changed_never_counts_as_whole() {
    let from = source();
    fs::create_dir(from.path().join("sub")).unwrap();
    fs::write(from.path().join("sub/file"), "text").unwrap();
    symlink("x", from.path().join("link")).unwrap();
    let (text, sent) = stream(&from);
    sent.unwrap();
    let expected = digest(&open(&from), &OWNERS, &CopyProgress::default()).unwrap();
    // The link's mode is the 4 bytes before its uid, gid, time and count. The link is the first
    // entry in the folder.
    let link = text.windows(4).position(|part| part == b"link").unwrap();
    let is_of_link = |place: usize| (link + 8..link + 12).contains(&place);
    // The announcement at the start and the count of skipped files at the end are informational.
    let left_out = text.len() - 72..text.len() - 64;
    for place in (21..text.len()).filter(|place| !left_out.contains(place)) {
        let mut changed = text.clone();
        changed[place] ^= 0x11;
        let (_into, received) = arrive(&changed);
        // The digest is computed from the disk, so a change without effect there may pass, such as
        // the mode of a link.
        let whole = received.is_ok_and(|found| found.digest == expected.digest);
        assert!(!whole || is_of_link(place), "byte {place}");
        let (_into, received) = arrive(&text[..place]);
        assert!(received.is_err(), "cut at {place}");
    }
}

#[test]
fn what_a_stranger_sends_stays_in_the_folder_and_gains_no_rights() {
    let frame = |entry: (&[u8], EntryKind, u32, u32)| {
        let (name, kind, mode, uid) = entry;
        frames::CopyFrame::Entry(CopyEntry {
            name: name.to_vec(),
            kind,
            attributes: Attributes {
                mode,
                uid,
                gid: uid,
                ..Attributes::default()
            },
        })
    };
    let end = frames::CopyFrame::End;
    let root = frame((b"", EntryKind::Folder, 0o770, 20_001));
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().to_str().unwrap().as_bytes().to_vec();
    let outward = frame((b"out", EntryKind::Symlink(path), 0o777, 20_001));
    let cases = [
        // The sender puts an entry below a link that it created before.
        vec![
            root.clone(),
            outward.clone(),
            frame((b"out", EntryKind::Folder, 0o700, 20_001)),
        ],
        vec![
            root.clone(),
            outward.clone(),
            frame((b"out", EntryKind::File(1), 0o700, 20_001)),
        ],
        vec![
            root.clone(),
            outward.clone(),
            frame((b"b", EntryKind::Link(b"out/file".to_vec()), 0, 0)),
        ],
        // Files and folders may not have root's rights.
        vec![
            root.clone(),
            frame((b"sh", EntryKind::File(0), 0o4755, 0)),
            end.clone(),
        ],
        vec![
            root.clone(),
            frame((b"sh", EntryKind::File(0), 0o2755, 0)),
            end.clone(),
        ],
        vec![frame((b"", EntryKind::Folder, 0o770, 0))],
        // These frames are out of order.
        vec![frame((b"a", EntryKind::Folder, 0o770, 20_001))],
        vec![root.clone(), end.clone(), root.clone()],
        vec![root.clone(), end.clone(), end.clone()],
        vec![
            root.clone(),
            frame((b"a", EntryKind::File(1), 0o600, 20_001)),
            frame((b"b", EntryKind::Fifo, 0o600, 20_001)),
        ],
        vec![
            root.clone(),
            frames::CopyFrame::Block {
                offset: 0,
                bytes: vec![1],
            },
        ],
        vec![
            root.clone(),
            frame((b"a", EntryKind::File(1), 0o600, 20_001)),
            frames::CopyFrame::Block {
                offset: u64::MAX,
                bytes: vec![1, 2],
            },
        ],
    ];
    fs::write(elsewhere.path().join("file"), "secret").unwrap();
    for case in cases {
        let mut text = Vec::new();
        for one in &case {
            one.write(&mut text);
        }
        let (_into, received) = arrive(&text);
        let error = received.unwrap_err();
        assert!(!matches!(error, CopyError::Ended), "{case:?}: {error}");
        assert_eq!(
            fs::read_dir(elsewhere.path()).unwrap().count(),
            1,
            "{case:?}"
        );
        assert_eq!(
            fs::metadata(elsewhere.path().join("file")).unwrap().nlink(),
            1
        );
    }
    let mut deep = Vec::new();
    root.write(&mut deep);
    for _ in 0..300 {
        frame((b"d", EntryKind::Folder, 0o700, 20_001)).write(&mut deep);
    }
    let (_into, received) = arrive(&deep);
    assert!(matches!(received, Err(CopyError::Stream(_))));
}

#[test]
fn rights_of_others_are_left_behind_and_a_foreign_folder_is_refused() {
    let from = source();
    let path = from.path().join("su");
    fs::write(&path, "x").unwrap();
    chown(&path, Some(0), Some(0)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
    let (text, sent) = stream(&from);
    sent.unwrap();
    let (into, received) = arrive(&text);
    received.unwrap();
    let there = fs::metadata(into.path().join("su")).unwrap();
    assert_eq!((there.mode() & 0o7777, there.uid()), (0o755, 0));
    chown(from.path(), Some(0), None).unwrap();
    let (text, sent) = stream(&from);
    assert!(matches!(sent, Err(CopyError::Foreign(0))));
    let (_into, received) = arrive(&text);
    let error = received.unwrap_err().to_string();
    assert_eq!(error, "it belongs to uid 0, which is not of this workload");
}

#[test]
fn one_who_does_not_listen_any_more_ends_it_on_both_sides() {
    let from = source();
    for number in 0..50 {
        fs::write(from.path().join(number.to_string()), vec![7; 100_000]).unwrap();
    }
    let mut pieces = 0;
    let sent = send(&open(&from), &OWNERS, |_| {
        pieces += 1;
        pieces < 3
    });
    assert!(matches!(sent, Err(CopyError::Ended)));
    let (text, _) = stream(&from);
    let into = tempfile::tempdir().unwrap();
    let progress = CopyProgress::default();
    progress.end();
    let received = receive(&mut text.as_slice(), &open(&into), &OWNERS, &progress);
    assert!(matches!(received, Err(CopyError::Ended)));
}

#[test]
fn enough_stays_free_and_small_file_systems_take_something() {
    const GIB: u64 = 1 << 30;
    let cases = [
        (1000 * GIB, GIB),
        (20 * GIB, GIB),
        (10 * GIB, GIB / 2),
        (64 << 20, (64 << 20) / 20),
        (0, 0),
    ];
    for (whole, free) in cases {
        assert_eq!(super::receive::stays_free(whole), free, "{whole}");
    }
}

#[test]
fn names_are_bounded_and_a_file_with_several_is_forgotten_after_its_last() {
    struct Names(Vec<EntryKind>);
    impl super::walk::WalkVisitor for Names {
        fn entry(&mut self, entry: &CopyEntry) -> Result<(), CopyError> {
            self.0.push(entry.kind.clone());
            Ok(())
        }
        fn block(&mut self, _: u64, _: &[u8]) -> Result<(), CopyError> {
            Ok(())
        }
        fn end(&mut self) -> Result<(), CopyError> {
            Ok(())
        }
    }
    let from = tempfile::tempdir().unwrap();
    chown(from.path(), Some(OWNERS.uid), Some(OWNERS.uid)).unwrap();
    for name in ["a", "b", "c"] {
        let one = from.path().join(format!("{name}1"));
        fs::write(&one, "x").unwrap();
        fs::hard_link(&one, from.path().join(format!("{name}2"))).unwrap();
    }
    // The limit holds six names of two bytes and one path at a time.
    let mut seen = Names(Vec::new());
    super::walk::walk_within(&open(&from), &OWNERS, &mut seen, 14).unwrap();
    let links = seen
        .0
        .iter()
        .filter(|kind| matches!(kind, EntryKind::Link(_)));
    assert_eq!(links.count(), 3);
    for limit in [11, 13] {
        let mut seen = Names(Vec::new());
        let walked = super::walk::walk_within(&open(&from), &OWNERS, &mut seen, limit);
        assert!(matches!(walked, Err(CopyError::TooMuch { .. })), "{limit}");
    }
}
