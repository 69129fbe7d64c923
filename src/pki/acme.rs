//! What certificates by ACME need of cryptography: keys, the request for a certificate, and tokens.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SanType, string::Ia5String};

use super::{PkiError, authority::generate_key};

/// A key for an account (ECDSA on P-256), PKCS #8 in DER.
///
/// # Errors
/// [`PkiError::Key`].
pub fn account_key() -> Result<Vec<u8>, PkiError> {
    Ok(generate_key()?.serialize_der())
}

/// A key for a certificate (ECDSA on P-256), PEM.
///
/// # Errors
/// [`PkiError::Key`].
pub fn certificate_key() -> Result<String, PkiError> {
    Ok(generate_key()?.serialize_pem())
}

/// A request for a certificate for one host, in DER (RFC 8555, 7.4): its subject is empty.
///
/// # Errors
/// [`PkiError`] if the key can't be read, or the host is no name.
pub fn certificate_request(host: &str, key_pem: &str) -> Result<Vec<u8>, PkiError> {
    let key = KeyPair::from_pem(key_pem)
        .map_err(|error| PkiError::Key(format!("of the certificate for {host}: {error}")))?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::DnsName(Ia5String::try_from(host.to_owned())?)];
    Ok(params.serialize_request(&key)?.der().to_vec())
}

/// 256 random bits in base64url, 43 characters: a token, or an answer that nobody can guess.
///
/// # Errors
/// [`PkiError::Key`] without randomness.
pub fn random_token() -> Result<String, PkiError> {
    let mut bytes = [0_u8; 32];
    super::fill_random(&mut bytes)
        .map_err(|_| PkiError::Key("the system has no randomness".to_owned()))?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}
