//! Any bytes as an archive, and as the tar inside one: no panic, and accepted archives stay within
//! the limits.
#![no_main]

use kat_bundle::{
    CARRIED, DecodeMode, MAX_BUNDLE, MAX_CARRIED, MAX_CARRIED_FILES, MAX_FILE, MAX_FILES, pack,
    parse, read_archive, unpack_carried,
};
use kat_fuzz::{bundle::check_diagnostics, peak_of, survive_overflow, tar};
use libfuzzer_sys::fuzz_target;

/// The archive, the tar in it and its contents, each up to four times a bundle's size, and twice
/// that while a vector grows.
const MEMORY: usize = 32 * MAX_BUNDLE;

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    read(bytes);
    read(&tar::gzip(&tar::with_checksums(bytes)));
});

fn read(bytes: &[u8]) {
    let (outcome, memory) = peak_of(|| read_archive(bytes));
    assert!(memory <= MEMORY, "{memory} bytes of memory");
    let files = match outcome {
        Ok(files) => files,
        Err(found) => return check_diagnostics(&found, None),
    };
    let carried = files.iter().find(|file| file.name == CARRIED);
    if let Some(carried) = carried {
        let carried = unpack_carried(&carried.text).expect("what was packed is read");
        assert!((1..=MAX_CARRIED_FILES).contains(&carried.len()));
        let bytes: usize = carried.iter().map(|file| file.bytes.len()).sum();
        assert!(bytes <= MAX_CARRIED);
        for file in &carried {
            let mut parts = file.path.split('/');
            assert!(
                parts.all(|part| !matches!(part, "" | "." | "..")),
                "{:?}",
                file.path
            );
        }
    }
    assert!((1..=MAX_FILES + 1).contains(&files.len()));
    assert!(files.is_sorted_by(|left, right| left.name < right.name));
    for file in &files {
        assert!(file.text.len() <= MAX_FILE || file.name == CARRIED);
        assert!(!file.name.contains(['/', '\\', '\0']) && !file.name.starts_with('.'));
    }
    let packed = pack(&files).expect("a file that was read can be packed");
    if packed.len() <= MAX_BUNDLE {
        assert_eq!(read_archive(&packed).as_ref(), Ok(&files));
    }
    let _ = parse(&files, DecodeMode::Strict);
}
