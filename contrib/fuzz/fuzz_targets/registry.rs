//! Any bytes as what a registry answers: a manifest, an image's configuration, an error, and the
//! headers that ask for a login.
#![no_main]

use kat_fuzz::{peak_of, survive_overflow};
use kat_registry::fuzz::{read_body, read_challenges};
use libfuzzer_sys::fuzz_target;

const KINDS: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json; charset=utf-8",
    "application/json",
    "",
];

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let Some((first, body)) = bytes.split_first() else { return };
    let ((), memory) = peak_of(|| match KINDS.get(usize::from(*first)) {
        Some(kind) => read_body(kind, body),
        None => {
            let text = String::from_utf8_lossy(body);
            read_challenges(&text.split('\n').collect::<Vec<_>>());
        }
    });
    assert!(memory <= 64 * 1024 + 64 * body.len(), "{memory} bytes of memory");
});
