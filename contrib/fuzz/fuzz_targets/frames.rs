//! Any bytes as the body of a session, in either direction: the result does not depend on how the
//! bytes are cut into pieces, no frame exceeds the limit, and parsed frames survive serialization.
#![no_main]

use std::fmt::Debug;

use kat_fuzz::{peak_of, survive_overflow};
use kat_types::encoding::frames::{
    FrameError, Frames, InputFrame, MOST, OutputFrame, SessionFrame,
};
use libfuzzer_sys::fuzz_target;

/// All frames before the end or the first error, read in pieces of `cut` bytes.
fn read<T: SessionFrame>(wire: &[u8], cut: usize) -> (Vec<T>, Result<(), FrameError>) {
    let mut frames = Frames::default();
    let mut found = Vec::new();
    for piece in wire.chunks(cut) {
        frames.push(piece);
        loop {
            match frames.take() {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(error) => return (found, Err(error)),
            }
        }
    }
    (found, frames.end())
}

fn check<T: SessionFrame + PartialEq + Debug>(wire: &[u8], cut: usize) {
    let ((found, end), memory) = peak_of(|| read::<T>(wire, cut));
    assert!(
        memory <= 256 * 1024 + 256 * wire.len(),
        "{memory} bytes of memory"
    );
    assert_eq!(
        read::<T>(wire, wire.len().max(1)),
        (found, end),
        "cut into pieces of {cut}"
    );
    let (found, _) = read::<T>(wire, cut);
    for frame in found {
        let (_, content) = frame.parts();
        assert!(content.len() <= MOST, "{} bytes of content", content.len());
        let written = frame.encode();
        let (again, end) = read::<T>(&written, cut);
        assert_eq!(end, Ok(()));
        // Serialization may have shortened the text of an error.
        assert_eq!(again.len(), 1, "one frame becomes {}", again.len());
        for frame in again {
            assert_eq!(frame.encode(), written);
        }
    }
}

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let Some((cut, wire)) = bytes.split_first() else { return };
    let cut = usize::from(*cut).max(1);
    check::<InputFrame>(wire, cut);
    check::<OutputFrame>(wire, cut);
});
