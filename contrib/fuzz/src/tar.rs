//! Archives with valid checksums, which mutation alone does not produce.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};

/// Bytes of a tar header; contents are padded to a multiple of it.
const BLOCK: usize = 512;
/// Position of the size and of the checksum in a header.
const SIZE: std::ops::Range<usize> = 124..136;
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// The bytes with a valid checksum wherever a tar has a header.
pub fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut tar = bytes.to_vec();
    let mut place = 0;
    while let Some(header) = tar.get_mut(place..place + BLOCK) {
        if header.iter().any(|byte| *byte != 0) {
            header[CHECKSUM].fill(b' ');
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        let digits = String::from_utf8_lossy(&header[SIZE]).into_owned();
        let digits = digits.trim_matches(|letter: char| !letter.is_digit(8));
        let size = usize::from_str_radix(digits, 8).unwrap_or(0);
        place += BLOCK + size.min(tar.len()).next_multiple_of(BLOCK);
    }
    tar
}

/// The bytes as an uncompressed gzip stream.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
    encoder
        .write_all(bytes)
        .and_then(|()| encoder.finish())
        .expect("a vector takes everything")
}
