//! SHA-256 of bytes, as text and as numbers. The results are stored, and compared between versions:
//! none of these functions may ever give another one.

use sha2::{Digest, Sha256};

/// SHA-256 as 64 hexadecimal digits in lower case.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(sha256(bytes))
}

/// The first `count` bytes of SHA-256, as twice as many hexadecimal digits in lower case; all 64
/// digits from 32 bytes on.
pub fn sha256_prefix_hex(bytes: &[u8], count: usize) -> String {
    let mut text = sha256_hex(bytes);
    text.truncate(count.saturating_mul(2));
    text
}

/// The first 4 bytes of SHA-256 as a number, the first byte the highest.
pub fn sha256_u32(bytes: &[u8]) -> u32 {
    let [first, second, third, fourth, ..] = sha256(bytes);
    u32::from_be_bytes([first, second, third, fourth])
}

/// The first 8 bytes of SHA-256 as a number, the first byte the highest.
pub fn sha256_u64(bytes: &[u8]) -> u64 {
    sha256(bytes)
        .iter()
        .take(8)
        .fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `abc`, from FIPS 180-2, appendix B.1.
    const OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn the_hexadecimal_text_is_the_whole_digest() {
        assert_eq!(sha256_hex(b"abc"), OF_ABC);
    }

    #[test]
    fn a_prefix_has_two_digits_for_each_byte() {
        assert_eq!(sha256_prefix_hex(b"abc", 0), "");
        assert_eq!(sha256_prefix_hex(b"abc", 5), "ba7816bf8f");
        assert_eq!(sha256_prefix_hex(b"abc", 32), OF_ABC);
        assert_eq!(sha256_prefix_hex(b"abc", 33), OF_ABC);
    }

    #[test]
    fn the_small_number_is_the_first_four_bytes() {
        assert_eq!(sha256_u32(b"abc"), 0xba78_16bf);
    }

    #[test]
    fn the_large_number_is_the_first_eight_bytes() {
        assert_eq!(sha256_u64(b"abc"), 0xba78_16bf_8f01_cfea);
    }
}
