//! The three certificate authorities of a cluster.

use std::path::Path;

use jiff::Timestamp;
use rcgen::{BasicConstraints, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData};
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::ParsedExtension;

use super::{
    AUTHORITY_LIFETIME, CertificateKeyPair, CertificateRequest, LeafKind, PkiError, Validity,
    endorsement, files, leaf, request, tls,
};
use crate::{recovery_key as seal, recovery_keys::RecoveryKeys};
use kat_types::{encoding::digest::sha256_hex, store::authorities::AuthorityKind};

/// Which of the files of an authority. There is more than one while it is being replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuthorityEdition {
    /// The one that signs.
    Current,
    /// The one that will sign. It is trusted already.
    Next,
    /// The one that signed before. It is still trusted.
    Old,
    /// The one that signed before, and is not trusted any more.
    Retired,
}

impl AuthorityEdition {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Current, Self::Next, Self::Old, Self::Retired];
    /// Those whose certificates are trusted.
    pub const TRUSTED: [Self; 3] = [Self::Current, Self::Next, Self::Old];

    /// File name of its certificate.
    pub fn certificate_file(self, kind: AuthorityKind) -> String {
        format!("{}.crt", self.stem(kind))
    }

    /// File name of its sealed key.
    pub fn sealed_file(self, kind: AuthorityKind) -> String {
        format!("{}.key.sealed", self.stem(kind))
    }

    fn stem(self, kind: AuthorityKind) -> String {
        let name = kind.name();
        match self {
            Self::Current => name.to_owned(),
            Self::Next => format!("{name}.next"),
            Self::Old => format!("{name}.old"),
            Self::Retired => format!("{name}.retired"),
        }
    }
}

/// File name of an authority's key in clear, as written by earlier versions.
pub fn clear_file(kind: AuthorityKind) -> String {
    format!("{}.key", kind.name())
}

/// An authority with its key: ECDSA P-256; signs only leaves.
pub struct Authority {
    kind: AuthorityKind,
    certificate_pem: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Authority")
            .field("kind", &self.kind)
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new authority that is valid for ten years.
    ///
    /// # Errors
    /// [`PkiError::Certificate`] or [`PkiError::Key`].
    pub fn generate(
        kind: AuthorityKind,
        cluster_uid: &str,
        now: Timestamp,
    ) -> Result<Self, PkiError> {
        Self::generate_with(kind, cluster_uid, now, None)
    }

    /// Makes the authority that is to replace this one. Its certificate says that this one endorses
    /// it (see [`endorsement`]).
    ///
    /// # Errors
    /// As [`Self::generate`].
    pub fn generate_successor(&self, cluster_uid: &str, now: Timestamp) -> Result<Self, PkiError> {
        Self::generate_with(self.kind, cluster_uid, now, Some(self))
    }

    fn generate_with(
        kind: AuthorityKind,
        cluster_uid: &str,
        now: Timestamp,
        endorser: Option<&Self>,
    ) -> Result<Self, PkiError> {
        let key = generate_key()?;
        let validity = Validity::starting(now, AUTHORITY_LIFETIME)?;
        let common_name = format!("{}{cluster_uid}", subject_prefix(kind));
        let mut params = leaf::base_params(&common_name, validity)?;
        if let Some(endorser) = endorser {
            let (by, signing) = (&endorser.certificate, endorser.issuer.key());
            let subject_key = key.subject_public_key_info();
            let name = endorsement::make(by, signing, &common_name, &subject_key)?;
            params.subject_alt_names = vec![name];
        }
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        Self::from_pem(kind, &certificate.pem(), &key.serialize_pem())
    }

    /// An authority from its certificate and key.
    ///
    /// # Errors
    /// [`PkiError`] if they are unreadable, don't belong together, or are no authority.
    pub fn from_pem(
        kind: AuthorityKind,
        certificate_pem: &str,
        key_pem: &str,
    ) -> Result<Self, PkiError> {
        let certificate = tls::first_certificate(certificate_pem)?;
        let key = KeyPair::from_pem(key_pem)
            .map_err(|error| PkiError::Key(format!("of {}: {error}", kind.name())))?;
        check_authority(kind, &certificate, &key)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        Ok(Self {
            kind,
            certificate_pem: certificate_pem.to_owned(),
            certificate,
            issuer,
        })
    }

    /// Reads the present authority from `folder` (`/var/lib/kat/pki`), with its sealed key.
    ///
    /// # Errors
    /// As [`Self::unseal`], and [`PkiError::File`].
    pub fn load(
        folder: &Path,
        kind: AuthorityKind,
        recovery: &RecoveryKeys,
    ) -> Result<Self, PkiError> {
        Self::load_edition(folder, kind, AuthorityEdition::Current, recovery)
    }

    /// Like [`Self::load`], from the files of an edition.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_edition(
        folder: &Path,
        kind: AuthorityKind,
        edition: AuthorityEdition,
        recovery: &RecoveryKeys,
    ) -> Result<Self, PkiError> {
        let certificate = files::read(&folder.join(edition.certificate_file(kind)))?;
        let sealed = files::read_bytes(&folder.join(edition.sealed_file(kind)))?;
        Self::unseal(kind, &certificate, &sealed, recovery)
    }

    /// Reads the authority with its key in clear, as written by earlier versions.
    ///
    /// # Errors
    /// As [`Self::from_pem`], and [`PkiError::File`].
    pub fn load_clear(folder: &Path, kind: AuthorityKind) -> Result<Self, PkiError> {
        let certificate = AuthorityEdition::Current.certificate_file(kind);
        let certificate = files::read(&folder.join(certificate))?;
        let key = files::read(&folder.join(clear_file(kind)))?;
        Self::from_pem(kind, &certificate, &key)
    }

    /// Writes the authority to `folder`, whose mode becomes 0700; the sealed key is 0600. The key
    /// is written first, so that a certificate on the disk always has its key. A key in clear is
    /// removed last, so that at any moment one of the two is completely on the disk.
    ///
    /// # Errors
    /// [`PkiError::File`]; [`PkiError::Key`] if the key can't be sealed.
    pub fn store(&self, folder: &Path, recovery: &seal::RecoveryKey) -> Result<(), PkiError> {
        self.store_edition(folder, AuthorityEdition::Current, recovery)?;
        files::remove(&folder.join(clear_file(self.kind)))
    }

    /// Like [`Self::store`], to the files of an edition.
    ///
    /// # Errors
    /// As [`Self::store`].
    pub fn store_edition(
        &self,
        folder: &Path,
        edition: AuthorityEdition,
        recovery: &seal::RecoveryKey,
    ) -> Result<(), PkiError> {
        files::make_folder(folder)?;
        let sealed = self
            .seal_key(recovery)
            .map_err(|error| PkiError::Key(format!("of {}: {error}", self.kind.name())))?;
        files::write_secret(&folder.join(edition.sealed_file(self.kind)), &sealed)?;
        let certificate = folder.join(edition.certificate_file(self.kind));
        files::write_public(&certificate, self.certificate_pem.as_bytes())
    }

    /// The recovery key that is derived from this authority's key, for a cluster without one.
    pub fn derived_recovery_key(&self) -> seal::RecoveryKey {
        seal::RecoveryKey::derived_from(self.issuer.key().serialized_der())
    }

    /// Its key as PEM. It is only sent to another machine that is to hold etcd.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    pub fn kind(&self) -> AuthorityKind {
        self.kind
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// SHA-256 of its certificate in DER, as 64 hexadecimal digits; join tokens contain it.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.certificate)
    }

    /// Makes a key and a certificate for it.
    ///
    /// # Errors
    /// [`PkiError::Name`], [`PkiError::WrongAuthority`], [`PkiError::Certificate`].
    pub fn issue(&self, kind: &LeafKind, now: Timestamp) -> Result<CertificateKeyPair, PkiError> {
        let key = generate_key()?;
        let certificate_pem = self.sign(kind, &key, now)?;
        Ok(CertificateKeyPair {
            certificate_pem,
            key_pem: key.serialize_pem(),
        })
    }

    /// Signs a certificate for the key of a request. Only the key is taken from the request;
    /// everything else comes from `kind`, which the caller decided, and the request must ask for
    /// that common name.
    ///
    /// # Errors
    /// [`PkiError::Request`] if the request is rejected, otherwise as [`Self::issue`].
    pub fn sign_request(
        &self,
        request_pem: &str,
        kind: &LeafKind,
        now: Timestamp,
    ) -> Result<String, PkiError> {
        let request = CertificateRequest::parse(request_pem)?;
        let expected = kind.common_name();
        if request.common_name() != expected {
            return Err(PkiError::Request(format!(
                "it is for `{}`, expected `{expected}`",
                request.common_name()
            )));
        }
        self.sign(kind, request.public_key(), now)
    }

    fn sign(
        &self,
        kind: &LeafKind,
        key: &impl rcgen::PublicKeyData,
        now: Timestamp,
    ) -> Result<String, PkiError> {
        if !kind.signed_by(self.kind) {
            return Err(PkiError::WrongAuthority {
                authority: self.kind.name(),
                common_name: kind.common_name(),
            });
        }
        let params = kind.params(Validity::starting(now, kind.lifetime())?)?;
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }

    /// The key, sealed with the recovery key for a machine that holds etcd.
    pub fn seal_key(&self, key: &seal::RecoveryKey) -> Result<Vec<u8>, seal::SealError> {
        let plain = self.issuer.key().serialize_pem();
        seal::seal(key, plain.as_bytes(), self.kind.name().as_bytes())
    }

    /// An authority whose key was sealed by [`Self::seal_key`].
    ///
    /// # Errors
    /// As [`Self::from_pem`]; [`PkiError::Key`] if it can't be opened.
    pub fn unseal(
        kind: AuthorityKind,
        certificate_pem: &str,
        sealed: &[u8],
        keys: &RecoveryKeys,
    ) -> Result<Self, PkiError> {
        let plain = keys
            .open(sealed, kind.name().as_bytes())
            .map_err(|error| PkiError::Key(format!("of {}: {error}", kind.name())))?;
        let key_pem = String::from_utf8(plain)
            .map_err(|_| PkiError::Key(format!("of {}: it is not text", kind.name())))?;
        Self::from_pem(kind, certificate_pem, &key_pem)
    }
}

/// The common name of an authority without the cluster's uid at its end.
fn subject_prefix(kind: AuthorityKind) -> String {
    format!("kat {} ", kind.name())
}

/// The uid of the cluster whose authority for machines and the API has this certificate.
///
/// # Errors
/// [`PkiError`] if the text is no certificate in PEM, or that of anything else.
pub fn cluster_uid_of_authority(certificate_pem: &str) -> Result<String, PkiError> {
    uid_of_authority(&tls::first_certificate(certificate_pem)?)
}

/// Like [`cluster_uid_of_authority`], of a certificate in DER.
pub(super) fn uid_of_authority(certificate: &CertificateDer<'_>) -> Result<String, PkiError> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|error| PkiError::Certificate(error.to_string()))?;
    let common_name = request::only_common_name(parsed.subject());
    common_name
        .filter(|_| parsed.is_ca())
        .and_then(|name| {
            let uid = name.strip_prefix(&subject_prefix(AuthorityKind::Cluster))?;
            Some(uid.to_owned())
        })
        .ok_or_else(|| PkiError::Certificate("it is not the authority of a cluster".into()))
}

/// SHA-256 of an authority's certificate, as [`Authority::fingerprint`].
///
/// # Errors
/// [`PkiError`] if the text is no certificate in PEM.
pub fn fingerprint_of(certificate_pem: &str) -> Result<String, PkiError> {
    Ok(fingerprint(&tls::first_certificate(certificate_pem)?))
}

/// Whether a certificate names the key of this authority as that which signed it (RFC 5280,
/// 4.2.1.1). An authority and the one that replaces it have the same subject.
///
/// # Errors
/// [`PkiError`] if a text is no certificate in PEM.
pub fn is_issued_by(certificate_pem: &str, authority_pem: &str) -> Result<bool, PkiError> {
    let leaf = tls::first_certificate(certificate_pem)?;
    let authority = tls::first_certificate(authority_pem)?;
    names_issuer(&leaf, &authority)
}

/// Like [`is_issued_by`], of certificates in DER; false if one can't be read.
pub(super) fn is_issuer_of(authority: &CertificateDer<'_>, leaf: &CertificateDer<'_>) -> bool {
    names_issuer(leaf, authority).unwrap_or(false)
}

fn names_issuer(
    leaf: &CertificateDer<'_>,
    authority: &CertificateDer<'_>,
) -> Result<bool, PkiError> {
    let issuer = key_identifiers(leaf)?.issuer;
    let own = key_identifiers(authority)?.own;
    Ok(issuer.is_some() && issuer == own)
}

/// The identifiers of keys in a certificate.
#[derive(Default)]
struct KeyIdentifiers {
    /// Of the key that signed it.
    issuer: Option<Vec<u8>>,
    /// Of its own key.
    own: Option<Vec<u8>>,
}

fn key_identifiers(certificate: &CertificateDer<'_>) -> Result<KeyIdentifiers, PkiError> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|error| PkiError::Certificate(error.to_string()))?;
    let mut found = KeyIdentifiers::default();
    for extension in parsed.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(one) => {
                found.issuer = one.key_identifier.as_ref().map(|id| id.0.to_vec());
            }
            ParsedExtension::SubjectKeyIdentifier(id) => found.own = Some(id.0.to_vec()),
            _ => {}
        }
    }
    Ok(found)
}

/// SHA-256 of a certificate in DER, as 64 hexadecimal digits.
pub(super) fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    sha256_hex(certificate)
}

pub(super) fn generate_key() -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
        .map_err(|error| PkiError::Key(error.to_string()))
}

fn check_authority(
    kind: AuthorityKind,
    certificate: &CertificateDer<'_>,
    key: &KeyPair,
) -> Result<(), PkiError> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|error| PkiError::Certificate(format!("of {}: {error}", kind.name())))?;
    if !parsed.is_ca() {
        return Err(PkiError::Certificate(format!(
            "of {}: it is not an authority's",
            kind.name()
        )));
    }
    if request::public_key_of(&parsed.tbs_certificate.subject_pki)? != key.public_key_raw() {
        return Err(PkiError::Key(format!(
            "of {}: it does not belong to the certificate",
            kind.name()
        )));
    }
    Ok(())
}
