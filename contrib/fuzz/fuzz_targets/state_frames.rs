//! Any bytes as the body of a state stream: the result does not depend on how the bytes are cut into
//! pieces, memory is bounded, and decoded frames survive serialization.
#![no_main]

use kat_fuzz::{peak_of, survive_overflow};
use kat_types::encoding::{
    frames::FrameError,
    state_frames::{MOST_BODY, StateFrame, StateFrameDecoder},
};
use libfuzzer_sys::fuzz_target;

/// All frames before the end or the first error, read in pieces of `cut` bytes. That parts of long
/// frames have arrived is left out.
fn read(wire: &[u8], cut: usize) -> (Vec<StateFrame>, Result<(), FrameError>) {
    let mut decoder = StateFrameDecoder::default();
    let mut found = Vec::new();
    for piece in wire.chunks(cut) {
        decoder.push(piece);
        loop {
            match decoder.take() {
                Ok(Some(StateFrame::Part)) => {}
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(error) => return (found, Err(error)),
            }
        }
    }
    (found, Ok(()))
}

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let Some((cut, wire)) = bytes.split_first() else { return };
    let cut = usize::from(*cut).max(1);
    let ((found, end), memory) = peak_of(|| read(wire, cut));
    assert!(
        memory <= 2 * MOST_BODY + 256 * 1024 + 256 * wire.len(),
        "{memory} bytes of memory"
    );
    assert_eq!(
        read(wire, wire.len().max(1)),
        (found.clone(), end),
        "cut into pieces of {cut}"
    );
    for frame in found {
        let written = frame.encode().expect("a decoded frame can be written");
        assert_eq!(read(&written, cut), (vec![frame], Ok(())));
    }
});
