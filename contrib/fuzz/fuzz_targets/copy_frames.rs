//! Any bytes as the frames of a moved volume: memory is bounded, and what is read survives
//! serialization.
#![no_main]

use kat_fuzz::{peak_of, survive_overflow};
use kat_host::copy::fuzz::read_frames;
use libfuzzer_sys::fuzz_target;

/// Several times the longest frame: its payload, what is parsed of it, and both once more for the
/// comparison.
const MEMORY: usize = 16 << 20;

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let (_, memory) = peak_of(|| read_frames(bytes));
    assert!(memory <= MEMORY, "{memory} bytes of memory");
});
