//! Certificate requests (PKCS #10): made by machines, checked by the leader.

use rcgen::{
    CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData, SanType,
    SubjectPublicKeyInfo,
};
use rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject};
use x509_parser::{
    certification_request::X509CertificationRequest,
    extensions::{GeneralName, ParsedExtension},
    oid_registry,
    prelude::FromDer,
    x509::SubjectPublicKeyInfo as ParsedKey,
};

use super::{PkiError, authority::generate_key};
use kat_types::encoding::digest::sha256_hex;

/// Prefix of the hash of a text that is signed with a request. The number changes when the text's
/// meaning changes.
const STATEMENT: &str = "kat-join-1:";

/// Largest request in bytes of PEM.
pub const MAX_REQUEST: usize = 16 * 1024;

/// A request with a valid signature and key. Apart from its key and common name (names, usages,
/// being an authority) its content is not even read.
#[derive(Debug)]
pub struct CertificateRequest {
    common_name: String,
    public_key: SubjectPublicKeyInfo,
    key_hash: String,
    statement: Option<String>,
}

impl CertificateRequest {
    /// Parses a request: one PEM block, at most [`MAX_REQUEST`] bytes, signed with its own ECDSA
    /// P-256 key, with one common name and nothing else in the subject.
    ///
    /// # Errors
    /// [`PkiError::Request`] with the reason.
    pub fn parse(pem: &str) -> Result<Self, PkiError> {
        let refuse = |why: String| PkiError::Request(why);
        if pem.len() > MAX_REQUEST {
            return Err(refuse(format!(
                "{} bytes, at most {MAX_REQUEST} are allowed",
                pem.len()
            )));
        }
        let der = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| refuse(format!("expected one in PEM: {error}")))?;
        let (rest, request) =
            X509CertificationRequest::from_der(&der).map_err(|error| refuse(error.to_string()))?;
        if !rest.is_empty() {
            return Err(refuse("something follows it".into()));
        }
        let info = &request.certification_request_info;
        // The key is checked before the signature: only such keys are worth the computation.
        let public_key = strong_key(&info.subject_pki)?;
        if request.signature_algorithm.algorithm != oid_registry::OID_SIG_ECDSA_WITH_SHA256 {
            return Err(refuse("it is not signed with ECDSA and SHA-256".into()));
        }
        request
            .verify_signature()
            .map_err(|_| refuse("its signature is wrong".into()))?;
        let common_name = only_common_name(&info.subject)
            .ok_or_else(|| refuse("its subject must be one common name".into()))?;
        Ok(Self {
            common_name,
            public_key,
            key_hash: sha256_hex(info.subject_pki.raw),
            statement: statement_of(&request),
        })
    }

    pub fn common_name(&self) -> &str {
        &self.common_name
    }

    /// SHA-256 of its public key as 64 hexadecimal digits, like
    /// [`public_key_hash`](super::tls::public_key_hash) of a certificate for that key.
    pub fn key_hash(&self) -> &str {
        &self.key_hash
    }

    /// Whether it was signed together with this text; `None` where it was signed without one, as by
    /// version 0.1.0 and for renewals.
    pub fn states(&self, text: &str) -> Option<bool> {
        let statement = self.statement.as_ref()?;
        Some(*statement == sha256_hex(text.as_bytes()))
    }

    pub(super) fn public_key(&self) -> &SubjectPublicKeyInfo {
        &self.public_key
    }
}

/// The hash of the text that was signed with a request. It is stored as a requested name, which
/// version 0.1.0 ignores like all names.
fn statement_of(request: &X509CertificationRequest<'_>) -> Option<String> {
    let extensions = request.requested_extensions().into_iter().flatten();
    let names = extensions.filter_map(|extension| match extension {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    names.flatten().find_map(|name| match name {
        GeneralName::URI(uri) => uri.strip_prefix(STATEMENT).map(ToOwned::to_owned),
        _ => None,
    })
}

/// The only attribute of a subject, if that is a common name.
pub(super) fn only_common_name(subject: &x509_parser::x509::X509Name<'_>) -> Option<String> {
    let mut attributes = subject.iter_attributes();
    let (first, second) = (attributes.next()?, attributes.next());
    if second.is_some() || *first.attr_type() != oid_registry::OID_X509_COMMON_NAME {
        return None;
    }
    first.as_str().ok().map(ToOwned::to_owned)
}

/// Accepts only ECDSA keys on P-256.
fn strong_key(key: &ParsedKey<'_>) -> Result<SubjectPublicKeyInfo, PkiError> {
    let curve = key
        .algorithm
        .parameters
        .as_ref()
        .and_then(|parameters| parameters.as_oid().ok());
    let is_p256 = key.algorithm.algorithm == oid_registry::OID_KEY_TYPE_EC_PUBLIC_KEY
        && curve == Some(oid_registry::OID_EC_P256);
    if !is_p256 {
        return Err(PkiError::Request(
            "its key must be an ECDSA key on the curve P-256".into(),
        ));
    }
    SubjectPublicKeyInfo::from_der(key.raw).map_err(|error| PkiError::Request(error.to_string()))
}

pub(super) fn public_key_of<'a>(key: &'a ParsedKey<'_>) -> Result<&'a [u8], PkiError> {
    Ok(key.subject_public_key.data.as_ref())
}

/// Makes a key and a request for a certificate with this common name; returns both as PEM, the
/// request first.
///
/// # Errors
/// [`PkiError::Key`] or [`PkiError::Certificate`].
pub fn create_request(common_name: &str) -> Result<(String, String), PkiError> {
    let key = generate_key()?;
    Ok((request_of(common_name, &key)?, key.serialize_pem()))
}

/// Makes a key, as PEM.
///
/// # Errors
/// [`PkiError::Key`].
pub fn create_key() -> Result<String, PkiError> {
    Ok(generate_key()?.serialize_pem())
}

/// SHA-256 of a key's public key, like [`public_key_hash`](super::tls::public_key_hash) of a
/// certificate for it.
///
/// # Errors
/// [`PkiError::Key`] if the text is not a key.
pub fn key_hash(key_pem: &str) -> Result<String, PkiError> {
    let key = KeyPair::from_pem(key_pem).map_err(|error| PkiError::Key(error.to_string()))?;
    Ok(sha256_hex(&key.subject_public_key_info()))
}

/// Makes a request for an existing key, to renew a certificate.
///
/// # Errors
/// As [`create_request`].
pub fn create_request_for_key(common_name: &str, key_pem: &str) -> Result<String, PkiError> {
    let key = KeyPair::from_pem(key_pem).map_err(|error| PkiError::Key(error.to_string()))?;
    request_of(common_name, &key)
}

/// Makes a request that is signed together with a text, so that no one who passes the request on
/// can change the text.
///
/// # Errors
/// As [`create_request`].
pub fn create_request_stating(
    common_name: &str,
    key_pem: &str,
    text: &str,
) -> Result<String, PkiError> {
    let key = KeyPair::from_pem(key_pem).map_err(|error| PkiError::Key(error.to_string()))?;
    let statement = format!("{STATEMENT}{}", sha256_hex(text.as_bytes()));
    let name = SanType::URI(statement.try_into()?);
    request_with(common_name, &key, vec![name])
}

fn request_of(common_name: &str, key: &KeyPair) -> Result<String, PkiError> {
    request_with(common_name, key, Vec::new())
}

fn request_with(common_name: &str, key: &KeyPair, names: Vec<SanType>) -> Result<String, PkiError> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, common_name);
    params.distinguished_name = subject;
    Ok(params.serialize_request(key)?.pem()?)
}
