//! Any text as the path of a request: what passes is below the same prefixes as for a program that
//! decodes it, takes backslashes for slashes, merges slashes and follows dots.
#![no_main]

use kat_fuzz::survive_overflow;
use kat_ingress::request_path::{RequestPath, prefix_segments, without_prefix};
use libfuzzer_sys::fuzz_target;

/// Segments that the routes of the host distinguish.
const DEPTH: usize = 2;

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let Ok(path) = std::str::from_utf8(bytes) else { return };
    let Ok(read) = RequestPath::parse(path, DEPTH) else { return };
    assert!(path.starts_with('/'));
    let decoded = decode(bytes);
    let mut stack: Vec<&[u8]> = Vec::new();
    for segment in decoded.split(|byte| matches!(byte, b'/' | b'\\')) {
        match segment.split(|byte| *byte == b';').next().unwrap_or_default() {
            b"" | b"." => {}
            b".." => panic!("dots passed: {path}"),
            segment => stack.push(segment),
        }
    }
    for prefix in ["/a", "/b", "/admin", "/a/b", "/admin/x"] {
        let segments = prefix_segments(prefix).expect("a plain path");
        let theirs = stack.len() >= segments.len()
            && stack.iter().zip(&segments).all(|(one, other)| *one == other.as_bytes());
        assert_eq!(read.is_below(&segments), theirs, "{path} below {prefix}");
        if theirs {
            assert!(without_prefix(path, segments.len()).starts_with('/'));
        }
    }
});

fn decode(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        match (first, after) {
            (b'%', [high, low, behind @ ..]) if digit(*high).is_some() && digit(*low).is_some() => {
                let value = digit(*high).unwrap_or(0) * 16 + digit(*low).unwrap_or(0);
                decoded.push(u8::try_from(value).expect("two digits"));
                rest = behind;
            }
            _ => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    decoded
}
