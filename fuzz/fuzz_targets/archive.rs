//! Any bytes as an archive: no panic, and what is read keeps to the limits.
#![no_main]

use kat::bundle::{MAX_FILE, MAX_FILES, Mode, pack, parse, read_archive};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(files) = read_archive(bytes) else {
        return;
    };
    assert!(files.len() <= MAX_FILES);
    for file in &files {
        assert!(file.text.len() <= MAX_FILE);
        assert!(!file.name.contains(['/', '\\', '\0']) && !file.name.starts_with('.'));
    }
    let packed = pack(&files).expect("a file that was read can be packed");
    if packed.len() <= 1024 * 1024 {
        assert_eq!(read_archive(&packed).as_ref(), Ok(&files));
    }
    let _ = parse(&files, Mode::Strict);
});
