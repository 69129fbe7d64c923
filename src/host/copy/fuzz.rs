//! Reads any bytes as a copy's stream, for the fuzz targets.

use std::fs::File;

use super::{CopyError, CopyProgress, Owners, Summary, frames::CopyFrame, receive};

/// Reads frames up to the end or the first error. Each that was read is read equally once it is
/// written, but for the reason of a failure, which is cleaned. Returns their number.
///
/// # Panics
/// If it is not.
pub fn read_frames(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Ok(Some(frame)) = CopyFrame::read(&mut bytes) {
        count += 1;
        let mut written = Vec::new();
        frame.write(&mut written);
        let again = CopyFrame::read(&mut written.as_slice());
        match frame {
            CopyFrame::Failed(_) => assert!(matches!(again, Ok(Some(CopyFrame::Failed(_))))),
            frame => assert_eq!(again.ok(), Some(Some(frame))),
        }
    }
    count
}

/// Receives the bytes into an empty folder, as of a workload with the user 20001.
///
/// # Errors
/// As [`receive`].
pub fn receive_into(mut bytes: &[u8], into: &File) -> Result<Summary, CopyError> {
    let owners = Owners {
        uid: 20_001,
        subordinate_start: 1_879_113_728,
        subordinate_count: 65_536,
    };
    receive(&mut bytes, into, &owners, &CopyProgress::default())
}
