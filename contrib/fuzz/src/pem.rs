//! DER in PEM.

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_STANDARD};

/// One PEM block.
pub fn armoured(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    let body = BASE64_STANDARD.encode(der);
    for line in body.as_bytes().chunks(64) {
        let _ = writeln!(text, "{}", String::from_utf8_lossy(line));
    }
    let _ = writeln!(text, "-----END {label}-----");
    text
}
