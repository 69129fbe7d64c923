//! Any bytes as what a server of ACME answers. The first byte chooses the question; the rest is the
//! answers, one after the other, separated by NUL, the directory first. What is taken of them is bounded,
//! and their texts are fit for a terminal.
#![no_main]

use kat_fuzz::{peak_of, survive_overflow};
use kat_leader::fuzz::ask_server;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let Some((question, answers)) = bytes.split_first() else { return };
    let (_, memory) = peak_of(|| ask_server(*question, answers));
    assert!(memory <= 256 * 1024 + 1024 * answers.len(), "{memory} bytes of memory");
});
