//! WireGuard's keys: 32 bytes, in base64 in files and in hexadecimal on the UAPI socket.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use gotatun::x25519;
use rand::TryRngCore;

/// Why a key can't be read or made.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text has wrong characters or a wrong length.
    #[error("not a WireGuard key; expected 32 bytes in base64 (44 characters)")]
    Malformed,
    #[error("{path}: {source}")]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file does not contain a key.
    #[error("{path}: not a WireGuard key; expected 32 bytes in base64 (44 characters)")]
    MalformedFile {
        /// The file.
        path: PathBuf,
    },
    /// The system's random generator failed.
    #[error("can't generate a key: {0}")]
    Random(String),
}

/// A peer's public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

/// A private key. Its debug output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey([u8; 32]);

impl PrivateKey {
    /// Takes 32 bytes and clamps them as Curve25519 requires (RFC 7748, section 5), so that the key
    /// compares equal when it is read back.
    pub fn from_bytes(mut bytes: [u8; 32]) -> Self {
        let [first, .., last] = &mut bytes;
        *first &= 248;
        *last &= 127;
        *last |= 64;
        Self(bytes)
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The public key.
    pub fn public(&self) -> PublicKey {
        let secret = x25519::StaticSecret::from(self.0);
        PublicKey(x25519::PublicKey::from(&secret).to_bytes())
    }

    /// The shared secret of this key and a peer's (RFC 7748, section 6.1); `None` for a public key
    /// that makes it predictable.
    pub fn shared_with(&self, peer: &PublicKey) -> Option<[u8; 32]> {
        let secret = x25519::StaticSecret::from(self.0);
        let shared = secret.diffie_hellman(&x25519::PublicKey::from(peer.0));
        shared.was_contributory().then(|| shared.to_bytes())
    }

    /// The key in base64, as in its file.
    pub fn to_base64(&self) -> String {
        BASE64_STANDARD.encode(self.0)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PrivateKey(hidden)")
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PublicKey({self})")
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&BASE64_STANDARD.encode(self.0))
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        from_base64(text).map(Self)
    }
}

impl FromStr for PrivateKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        from_base64(text).map(Self::from_bytes)
    }
}

fn from_base64(text: &str) -> Result<[u8; 32], KeyError> {
    let bytes = BASE64_STANDARD
        .decode(text.trim())
        .map_err(|_| KeyError::Malformed)?;
    bytes.try_into().map_err(|_| KeyError::Malformed)
}

/// Generates a private key with the system's random generator.
///
/// # Errors
/// [`KeyError::Random`].
pub fn generate_key() -> Result<PrivateKey, KeyError> {
    let mut bytes = [0; 32];
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| KeyError::Random(error.to_string()))?;
    Ok(PrivateKey::from_bytes(bytes))
}

/// Reads a key file.
///
/// # Errors
/// The file can't be read, or does not contain a key.
pub fn read_private_key(path: &Path) -> Result<PrivateKey, KeyError> {
    let text = fs::read_to_string(path).map_err(|source| KeyError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    text.parse().map_err(|_| KeyError::MalformedFile {
        path: path.to_owned(),
    })
}

/// 32 bytes from 64 hexadecimal digits.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_key_follows_from_the_private_one() {
        // The private and the public key are Alice's in RFC 7748, section 6.1.
        let private = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";
        let public = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
        let key = PrivateKey::from_bytes(from_hex(private).unwrap());
        assert_eq!(hex::encode(key.public().0), public);
        // The shared secret with Bob's key is from the same section.
        let bob = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f";
        let bob = PublicKey(from_hex(bob).unwrap());
        let shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742";
        assert_eq!(hex::encode(key.shared_with(&bob).unwrap()), shared);
        assert_eq!(key.shared_with(&PublicKey([0; 32])), None);
        let text = key.to_base64();
        assert_eq!(text.len(), 44);
        assert_eq!(text.parse::<PrivateKey>().unwrap(), key);
    }

    #[test]
    fn generated_keys_differ_and_are_clamped() {
        let (one, two) = (generate_key().unwrap(), generate_key().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.bytes()[0] & 7, 0);
        assert_eq!(one.bytes()[31] & 192, 64);
        assert_eq!(format!("{one:?}"), "PrivateKey(hidden)");
    }

    #[test]
    fn bad_keys_are_refused() {
        for text in [
            "",
            "abc",
            "AAAA",
            &"A".repeat(44),
            "not base64 at all, really not one",
        ] {
            assert!(text.parse::<PublicKey>().is_err(), "{text}");
        }
        assert_eq!(from_hex(&"zz".repeat(32)), None);
        assert_eq!(from_hex(&"+f".repeat(32)), None);
        assert_eq!(from_hex("00"), None);
        let hex = "0a".repeat(32);
        assert_eq!(hex::encode(from_hex(&hex).unwrap()), hex);
    }
}
