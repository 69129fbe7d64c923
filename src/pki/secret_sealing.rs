//! Sealing of secrets: in the store with a data key, and for one machine with its public key.
//!
//! A [`DataKey`] is 32 random bytes. It seals nothing itself: a separate key is derived from it for
//! each sealed value, so that no nonce can be used twice, and none has to be random. Sealing is
//! deterministic, so that planning from the same snapshot gives the same result each time.
//!
//! - **In the store** ([`DataKey::seal`]): `KATE`, a version (1), 32 bytes that are an HMAC of the
//!   context and the plain text under the data key, and AES-256-GCM's output under a key derived
//!   from the data key, these 32 bytes and the context. As with a synthetic nonce (RFC 5297) the
//!   same text in the same context gives the same bytes; nothing else is revealed.
//! - **For a machine** ([`DataKey::deliver`]): `KATD`, a version (1), an X25519 public key (RFC
//!   7748), and AES-256-GCM's output under a key derived from the shared secret of this key and the
//!   machine's (HKDF, RFC 5869, with both public keys). The ephemeral private key is an HMAC of
//!   machine, context and plain text under the data key: without the data key it can't be told from
//!   a random one, as with the nonces of RFC 6979, and another text, context or machine has another
//!   key.

use std::fmt;

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    agreement::{self, PrivateKey, UnparsedPublicKey, X25519},
    hmac,
};

use crate::{
    recovery_key::{RecoveryKey, SealError, seal},
    recovery_keys::RecoveryKeys,
};

/// Prefix of a sealed record, with the version.
const RECORD: &[u8; 5] = b"KATE\x01";
/// Prefix of a value sealed for a machine, with the version.
const DELIVERY: &[u8; 5] = b"KATD\x01";
/// Length of keys in bytes.
const KEY: usize = 32;

/// Seals secrets. Debug does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct DataKey([u8; KEY]);

impl fmt::Debug for DataKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DataKey(..)")
    }
}

impl DataKey {
    /// A key from these bytes, which have to be random.
    pub fn from_bytes(bytes: [u8; KEY]) -> Self {
        Self(bytes)
    }

    /// A new key.
    ///
    /// # Errors
    /// [`SealError::Randomness`].
    pub fn generate() -> Result<Self, SealError> {
        let mut key = [0; KEY];
        super::fill_random(&mut key).map_err(|_| SealError::Randomness)?;
        Ok(Self(key))
    }

    /// Seals the key itself with the recovery key, as key number `number`.
    pub fn sealed_with(&self, recovery: &RecoveryKey, number: u64) -> Result<Vec<u8>, SealError> {
        seal(recovery, &self.0, &key_context(number))
    }

    /// Opens a key that [`Self::sealed_with`] sealed with one of the recovery keys.
    pub fn open_with(
        recovery: &RecoveryKeys,
        sealed: &[u8],
        number: u64,
    ) -> Result<Self, SealError> {
        let bytes = recovery.open(sealed, &key_context(number))?;
        let bytes = bytes.try_into().map_err(|_| SealError::DoesNotOpen)?;
        Ok(Self(bytes))
    }

    /// Seals bytes for the store; `context` names their kind and place.
    ///
    /// # Errors
    /// [`SealError::DoesNotOpen`] where the cipher fails.
    pub fn seal(&self, plain: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
        let mark = derive(&self.0, b"mark of a record", &[context, plain]);
        let key = derive(&self.0, b"key of a record", &[&mark, context]);
        let body = encrypt(&key, RECORD, context, plain)?;
        Ok([RECORD.as_slice(), &mark, &body].concat())
    }

    /// Opens bytes that [`Self::seal`] sealed with the same key and context.
    ///
    /// # Errors
    /// [`SealError::Header`] or [`SealError::DoesNotOpen`].
    pub fn open(&self, sealed: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
        let body = sealed.strip_prefix(RECORD).ok_or(SealError::Header)?;
        let (mark, body) = body.split_at_checked(KEY).ok_or(SealError::DoesNotOpen)?;
        let key = derive(&self.0, b"key of a record", &[mark, context]);
        decrypt(&key, RECORD, context, body)
    }

    /// Seals bytes for the machine with this X25519 public key; `context` names their purpose.
    ///
    /// # Errors
    /// [`SealError::DoesNotOpen`] for a public key that makes the shared secret predictable.
    pub fn deliver(
        &self,
        machine: &[u8; KEY],
        plain: &[u8],
        context: &[u8],
    ) -> Result<Vec<u8>, SealError> {
        let ephemeral = derive(&self.0, b"key of a delivery", &[machine, context, plain]);
        let private = private_key(&ephemeral)?;
        let public = public_key(&private)?;
        let key = common_key(&private, machine, (&public, machine))?;
        let body = encrypt(&key, DELIVERY, context, plain)?;
        Ok([DELIVERY.as_slice(), &public, &body].concat())
    }
}

/// Opens bytes that [`DataKey::deliver`] sealed, with the machine's X25519 private key and the same
/// context.
///
/// # Errors
/// [`SealError::Header`] or [`SealError::DoesNotOpen`].
pub fn open_delivery(
    machine: &[u8; KEY],
    sealed: &[u8],
    context: &[u8],
) -> Result<Vec<u8>, SealError> {
    let body = sealed.strip_prefix(DELIVERY).ok_or(SealError::Header)?;
    let (ephemeral, body) = body.split_at_checked(KEY).ok_or(SealError::DoesNotOpen)?;
    let ephemeral: [u8; KEY] = ephemeral.try_into().map_err(|_| SealError::DoesNotOpen)?;
    let private = private_key(machine)?;
    let public = public_key(&private)?;
    let key = common_key(&private, &ephemeral, (&ephemeral, &public))?;
    decrypt(&key, DELIVERY, context, body)
}

fn key_context(number: u64) -> Vec<u8> {
    format!("data key {number} of secrets").into_bytes()
}

fn private_key(bytes: &[u8; KEY]) -> Result<PrivateKey, SealError> {
    PrivateKey::from_private_key(&X25519, bytes).map_err(|_| SealError::DoesNotOpen)
}

fn public_key(private: &PrivateKey) -> Result<[u8; KEY], SealError> {
    let public = private.compute_public_key();
    let public = public.map_err(|_| SealError::DoesNotOpen)?;
    public
        .as_ref()
        .try_into()
        .map_err(|_| SealError::DoesNotOpen)
}

/// The key that both sides derive; `between` is the ephemeral public key and the machine's.
fn common_key(
    own: &PrivateKey,
    other: &[u8; KEY],
    between: (&[u8; KEY], &[u8; KEY]),
) -> Result<[u8; KEY], SealError> {
    let other = UnparsedPublicKey::new(&X25519, other);
    agreement::agree(own, other, SealError::DoesNotOpen, |secret| {
        let extractor = hmac::Key::new(hmac::HMAC_SHA256, b"kat secrets delivery 1");
        let extracted = hmac::sign(&extractor, secret);
        let parts: [&[u8]; 2] = [between.0, between.1];
        Ok(derive(extracted.as_ref(), b"cipher of a delivery", &parts))
    })
}

/// HMAC-SHA256 of a label and parts, each preceded by its length.
fn derive(key: &[u8], label: &[u8], parts: &[&[u8]]) -> [u8; KEY] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut context = hmac::Context::with_key(&key);
    for part in std::iter::once(&label).chain(parts) {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let tag = context.sign();
    let mut derived = [0; KEY];
    for (to, from) in derived.iter_mut().zip(tag.as_ref()) {
        *to = *from;
    }
    derived
}

fn cipher(key: &[u8; KEY]) -> Result<LessSafeKey, SealError> {
    let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| SealError::DoesNotOpen)?;
    Ok(LessSafeKey::new(key))
}

/// Each key seals only one text, so the nonce can be constant.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn encrypt(
    key: &[u8; KEY],
    header: &[u8],
    context: &[u8],
    plain: &[u8],
) -> Result<Vec<u8>, SealError> {
    let mut body = plain.to_vec();
    let aad = Aad::from([header, context].concat());
    cipher(key)?
        .seal_in_place_append_tag(nonce(), aad, &mut body)
        .map_err(|_| SealError::DoesNotOpen)?;
    Ok(body)
}

fn decrypt(
    key: &[u8; KEY],
    header: &[u8],
    context: &[u8],
    body: &[u8],
) -> Result<Vec<u8>, SealError> {
    let mut body = body.to_vec();
    let aad = Aad::from([header, context].concat());
    let cipher = cipher(key)?;
    let plain = cipher.open_in_place(nonce(), aad, &mut body);
    Ok(plain.map_err(|_| SealError::DoesNotOpen)?.to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REFUSED: SealError = SealError::DoesNotOpen;

    fn machine(seed: u8) -> ([u8; KEY], [u8; KEY]) {
        let private = [seed; KEY];
        (
            private,
            public_key(&private_key(&private).unwrap()).unwrap(),
        )
    }

    #[test]
    fn a_record_opens_with_its_key_in_its_place_only() {
        let key = DataKey::from_bytes([1; KEY]);
        let sealed = key.seal(b"hunter2", b"shop/db").unwrap();
        assert_eq!(key.open(&sealed, b"shop/db").unwrap(), b"hunter2");
        assert_eq!(key.open(&sealed, b"shop/other"), Err(REFUSED));
        let other = DataKey::from_bytes([2; KEY]);
        assert_eq!(other.open(&sealed, b"shop/db"), Err(REFUSED));
        assert_eq!(key.open(b"hunter2", b"shop/db"), Err(SealError::Header));
        assert_eq!(key.open(&sealed[..20], b"shop/db"), Err(REFUSED));
        // Sealing is deterministic, but two plaintexts have nothing in common when sealed.
        assert_eq!(key.seal(b"hunter2", b"shop/db").unwrap(), sealed);
        let like = key.seal(b"hunter3", b"shop/db").unwrap();
        assert_ne!(like[5..37], sealed[5..37]);
        assert!(!sealed.windows(7).any(|part| part == b"hunter2"));
        assert_eq!(format!("{key:?}"), "DataKey(..)");
    }

    #[test]
    fn the_data_key_opens_with_the_recovery_key_as_its_own_number() {
        let recovery = RecoveryKey::generate().unwrap();
        let key = DataKey::generate().unwrap();
        let sealed = key.sealed_with(&recovery, 3).unwrap();
        let recovery = RecoveryKeys::from(recovery);
        assert_eq!(DataKey::open_with(&recovery, &sealed, 3), Ok(key));
        assert_eq!(DataKey::open_with(&recovery, &sealed, 4), Err(REFUSED));
        let other = RecoveryKey::generate().unwrap();
        assert_eq!(DataKey::open_with(&other.into(), &sealed, 3), Err(REFUSED));
    }

    #[test]
    fn a_delivery_opens_on_its_machine_for_its_instance_only() {
        let key = DataKey::from_bytes([1; KEY]);
        let ((private, public), (other, other_public)) = (machine(7), machine(8));
        let sealed = key.deliver(&public, b"hunter2", b"n1 web-1").unwrap();
        let opened = open_delivery(&private, &sealed, b"n1 web-1");
        assert_eq!(opened.unwrap(), b"hunter2");
        for (private, context) in [(other, "n1 web-1"), (private, "n1 web-2")] {
            let opened = open_delivery(&private, &sealed, context.as_bytes());
            assert_eq!(opened, Err(REFUSED), "{context}");
        }
        // The leader's data key does not open a delivery, and a delivery does not open as a record.
        assert_eq!(open_delivery(&[1; KEY], &sealed, b"n1 web-1"), Err(REFUSED));
        assert_eq!(key.open(&sealed, b"n1 web-1"), Err(SealError::Header));
        // A delivery is deterministic. Any other input leads to another ephemeral key.
        assert_eq!(
            key.deliver(&public, b"hunter2", b"n1 web-1").unwrap(),
            sealed
        );
        for (machine, plain, context) in [
            (&other_public, "hunter2", "n1 web-1"),
            (&public, "hunter3", "n1 web-1"),
            (&public, "hunter2", "n1 web-2"),
        ] {
            let like = key.deliver(machine, plain.as_bytes(), context.as_bytes());
            assert_ne!(like.unwrap()[5..37], sealed[5..37]);
        }
        assert_eq!(key.deliver(&[0; KEY], b"x", b"y"), Err(REFUSED));
    }

    proptest! {
        #[test]
        fn a_changed_byte_never_opens(plain: Vec<u8>, at: prop::sample::Index, change in 1_u8..) {
            let key = DataKey::from_bytes([3; KEY]);
            let (private, public) = machine(9);
            let mut record = key.seal(&plain, b"x").unwrap();
            let place = at.index(record.len());
            record[place] ^= change;
            prop_assert!(key.open(&record, b"x").is_err());
            let mut delivery = key.deliver(&public, &plain, b"x").unwrap();
            let place = at.index(delivery.len());
            delivery[place] ^= change;
            // X25519 ignores the highest bit of a public key, but the encryption key is derived
            // from the whole public key.
            prop_assert!(open_delivery(&private, &delivery, b"x").is_err());
        }

        #[test]
        fn any_bytes_are_opened_or_refused(bytes: Vec<u8>) {
            let _ = DataKey::from_bytes([3; KEY]).open(&bytes, b"x");
            let _ = open_delivery(&[4; KEY], &bytes, b"x");
        }
    }
}
