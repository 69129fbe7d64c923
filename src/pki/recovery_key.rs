//! The recovery key, and sealing with it.
//!
//! Sealed bytes are `KATS`, a version (1), 12 random bytes (nonce), and AES-256-GCM's ciphertext
//! with its tag. The header and the caller's context are authenticated, so that bytes sealed for
//! one purpose can't be opened for another.
//!
//! The recovery key is 32 random bytes. Its printed form is `kat-recovery-XXXX-...`: 14 groups of
//! Crockford's base32, of which the last 24 bits are a checksum against typing errors. The
//! authorities' keys on machines that hold etcd, and backups, are sealed with it.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use sha2::{Digest, Sha256};

/// Prefix of sealed bytes, with the version.
const HEADER: &[u8; 5] = b"KATS\x01";
/// Prefix of a printed recovery key.
const PREFIX: &str = "kat-recovery-";
/// Crockford's base32: no I, L, O or U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Characters of a printed key without its dashes: 256 bits of the key and 24 of the checksum.
const CHARACTERS: usize = 56;

/// Why sealing or opening failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The text is no recovery key.
    #[error("not a recovery key: expected kat-recovery- and 14 groups of 4 characters")]
    Malformed,
    /// The checksum is wrong.
    #[error("the recovery key is mistyped: its checksum does not fit")]
    Checksum,
    /// The bytes were not sealed here, or by a newer version.
    #[error("the sealed data has an unknown header; expected version 1")]
    Header,
    /// Another key or purpose, or the bytes were changed.
    #[error("the sealed data does not open: it is damaged, or sealed with another key")]
    DoesNotOpen,
    /// The system's random generator failed.
    #[error("the system has no randomness")]
    Randomness,
}

/// The key that opens what the cluster sealed. Debug does not show it; [`RecoveryKey::reveal`]
/// does.
#[derive(Clone, PartialEq, Eq)]
pub struct RecoveryKey([u8; 32]);

impl fmt::Debug for RecoveryKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RecoveryKey(..)")
    }
}

impl RecoveryKey {
    /// A new key.
    ///
    /// # Errors
    /// [`SealError::Randomness`].
    pub fn generate() -> Result<Self, SealError> {
        let mut key = [0_u8; 32];
        super::fill_random(&mut key).map_err(|_| SealError::Randomness)?;
        Ok(Self(key))
    }

    /// The recovery key of a cluster from before recovery keys existed. It is derived from the key
    /// of an authority, which all members have, so that each member derives the same one.
    pub(crate) fn derived_from(authority: &[u8]) -> Self {
        let digest = Sha256::new()
            .chain_update(b"kat-recovery-key-of-authority")
            .chain_update(authority)
            .finalize();
        Self(digest.into())
    }

    /// Parses a printed key. Case, dashes and white space are ignored; O counts as 0, I and L as 1.
    /// The prefix may be missing.
    ///
    /// # Errors
    /// [`SealError::Malformed`] or [`SealError::Checksum`]; neither contains the text.
    pub fn parse(text: &str) -> Result<Self, SealError> {
        if text.len() > 4 * CHARACTERS {
            return Err(SealError::Malformed);
        }
        let upper = text.trim().to_ascii_uppercase();
        let body = upper
            .strip_prefix(&PREFIX.to_ascii_uppercase())
            .unwrap_or(&upper);
        let mut values = Vec::with_capacity(CHARACTERS);
        for character in body.bytes() {
            let character = match character {
                b'-' | b' ' | b'\t' | b'\n' | b'\r' => continue,
                b'O' => b'0',
                b'I' | b'L' => b'1',
                other => other,
            };
            let value = ALPHABET.iter().position(|known| *known == character);
            values.push(value.ok_or(SealError::Malformed)?);
        }
        if values.len() != CHARACTERS {
            return Err(SealError::Malformed);
        }
        let mut bytes = Vec::with_capacity(35);
        let (mut bits, mut held) = (0_u32, 0_usize);
        for value in values {
            held = held << 5 | value;
            bits += 5;
            if bits >= 8 {
                bits -= 8;
                bytes.push(u8::try_from(held >> bits & 0xff).map_err(|_| SealError::Malformed)?);
                held &= (1 << bits) - 1;
            }
        }
        let (key, sum) = bytes.split_at_checked(32).ok_or(SealError::Malformed)?;
        let key: [u8; 32] = key.try_into().map_err(|_| SealError::Malformed)?;
        if sum != checksum(&key) {
            return Err(SealError::Checksum);
        }
        Ok(Self(key))
    }

    /// The printed form: only for its owner, and for the file with mode 0600.
    pub fn reveal(&self) -> String {
        let mut text = String::from(PREFIX);
        let bytes = self.0.iter().copied().chain(checksum(&self.0));
        let (mut bits, mut held, mut written) = (0_u32, 0_u32, 0);
        for byte in bytes {
            held = held << 8 | u32::from(byte);
            bits += 8;
            while bits >= 5 {
                bits -= 5;
                if written > 0 && written % 4 == 0 {
                    text.push('-');
                }
                let value = usize::try_from(held >> bits & 31).unwrap_or_default();
                text.push(char::from(*ALPHABET.get(value).unwrap_or(&b'0')));
                written += 1;
                held &= (1 << bits) - 1;
            }
        }
        text
    }

    /// Identifies the key without revealing it: 16 hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        let digest = Sha256::new()
            .chain_update(b"kat-recovery-key-fingerprint")
            .chain_update(self.0)
            .finalize();
        hex::encode(digest.get(..8).unwrap_or_default())
    }

    /// What other keys are derived from.
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn cipher(&self) -> Result<RandomizedNonceKey, SealError> {
        RandomizedNonceKey::new(&AES_256_GCM, &self.0).map_err(|_| SealError::DoesNotOpen)
    }
}

fn checksum(key: &[u8; 32]) -> [u8; 3] {
    let digest = Sha256::new()
        .chain_update(b"kat-recovery")
        .chain_update(key)
        .finalize();
    let mut sum = [0; 3];
    for (to, from) in sum.iter_mut().zip(digest) {
        *to = from;
    }
    sum
}

fn authenticated(context: &[u8]) -> Vec<u8> {
    [HEADER.as_slice(), context].concat()
}

/// Seals bytes for one purpose; [`open`] needs the same `context`.
///
/// # Errors
/// [`SealError::Randomness`].
pub fn seal(key: &RecoveryKey, plain: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
    let mut body = plain.to_vec();
    let nonce = key
        .cipher()?
        .seal_in_place_append_tag(Aad::from(authenticated(context)), &mut body)
        .map_err(|_| SealError::Randomness)?;
    Ok([HEADER.as_slice(), nonce.as_ref(), &body].concat())
}

/// Opens bytes that [`seal`] sealed with the same key and context.
///
/// # Errors
/// [`SealError::Header`] or [`SealError::DoesNotOpen`].
pub fn open(key: &RecoveryKey, sealed: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
    let body = sealed.strip_prefix(HEADER).ok_or(SealError::Header)?;
    let (nonce, body) = body
        .split_at_checked(NONCE_LEN)
        .ok_or(SealError::DoesNotOpen)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::DoesNotOpen)?;
    let mut body = body.to_vec();
    let plain = key
        .cipher()?
        .open_in_place(nonce, Aad::from(authenticated(context)), &mut body)
        .map_err(|_| SealError::DoesNotOpen)?;
    Ok(plain.to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn opens_with_the_same_key_and_context_only() {
        let key = RecoveryKey::generate().expect("key");
        let sealed = seal(&key, b"secret", b"ca").expect("sealed");
        assert_eq!(open(&key, &sealed, b"ca").expect("opened"), b"secret");
        assert_eq!(open(&key, &sealed, b"backup"), Err(SealError::DoesNotOpen));
        let other = RecoveryKey::generate().expect("key");
        assert_eq!(open(&other, &sealed, b"ca"), Err(SealError::DoesNotOpen));
        assert_eq!(
            open(&key, b"KATS\x02whatever", b"ca"),
            Err(SealError::Header)
        );
        assert_ne!(
            seal(&key, b"secret", b"ca").expect("sealed"),
            sealed,
            "nonce used twice"
        );
    }

    #[test]
    fn prints_and_reads_a_key() {
        let key = RecoveryKey([7; 32]);
        let text = key.reveal();
        assert_eq!(text.len(), 13 + 56 + 13, "{text}");
        assert_eq!(RecoveryKey::parse(&text).expect("read"), key);
        let spoken = text
            .to_lowercase()
            .replace('-', " ")
            .replace('0', "o")
            .replace('1', "l");
        assert_eq!(
            RecoveryKey::parse(spoken.strip_prefix("kat recovery ").expect("prefix"))
                .expect("read"),
            key
        );
        assert_eq!(format!("{key:?}"), "RecoveryKey(..)");
    }

    #[test]
    fn a_slip_is_noticed() {
        let text = RecoveryKey([9; 32]).reveal();
        let (at, old) = text.char_indices().nth(20).expect("character");
        let mut wrong = text.clone();
        wrong.replace_range(at..=at, if old == 'X' { "Y" } else { "X" });
        assert_eq!(RecoveryKey::parse(&wrong), Err(SealError::Checksum));
        assert_eq!(RecoveryKey::parse(&text[..60]), Err(SealError::Malformed));
    }

    proptest! {
        #[test]
        fn every_key_is_read_back(bytes: [u8; 32]) {
            let key = RecoveryKey(bytes);
            prop_assert_eq!(RecoveryKey::parse(&key.reveal()).expect("read"), key);
        }

        #[test]
        fn any_text_and_bytes_are_read_or_refused(text in ".{0,300}", bytes: Vec<u8>) {
            let _ = RecoveryKey::parse(&text);
            let _ = open(&RecoveryKey([1; 32]), &bytes, b"");
        }

        #[test]
        fn a_changed_byte_never_opens(plain: Vec<u8>, at: prop::sample::Index, change in 1_u8..) {
            let key = RecoveryKey([3; 32]);
            let mut sealed = seal(&key, &plain, b"x").expect("sealed");
            let at = at.index(sealed.len());
            sealed[at] ^= change;
            prop_assert!(open(&key, &sealed, b"x").is_err());
        }
    }
}
