//! Any bytes as the stream of a moved volume, received into an empty folder: nothing outside it is
//! made or changed. As root, as the agent receives it.
#![no_main]

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use kat_fuzz::{peak_of, survive_overflow};
use kat_host::copy::fuzz::receive_into;
use libfuzzer_sys::fuzz_target;

const MEMORY: usize = 16 << 20;
/// What lies beside the folder, at the names that a seed's links lead to.
const BESIDE: &str = "beside";

/// Everything that a program could have changed of a file.
fn state(path: &Path) -> (u64, u32, u32, i64, i64, u64, String) {
    let found = fs::symlink_metadata(path).expect("still there");
    let text = fs::read_to_string(path).expect("still readable");
    (
        found.nlink(),
        found.mode(),
        found.uid(),
        found.mtime(),
        found.mtime_nsec(),
        found.size(),
        text,
    )
}

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let room = tempfile::tempdir().expect("a folder");
    let (into, beside) = (room.path().join("into"), room.path().join(BESIDE));
    fs::create_dir(&into).expect("made");
    fs::write(&beside, "whole").expect("written");
    fs::set_permissions(&beside, Permissions::from_mode(0o600)).expect("set");
    let before = state(&beside);
    let folder = File::open(&into).expect("open");
    let (received, memory) = peak_of(|| receive_into(bytes, &folder));
    assert!(memory <= MEMORY, "{memory} bytes of memory");
    if let Err(error) = received {
        assert!(error.to_string().len() < 128 << 10);
    }
    assert_eq!(state(&beside), before);
    let names = fs::read_dir(room.path()).expect("read");
    let mut names: Vec<_> = names.map(|one| one.expect("read").file_name()).collect();
    names.sort();
    assert_eq!(names, [BESIDE, "into"]);
});
