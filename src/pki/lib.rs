//! Authorities, certificates, tokens and sealed keys.
//!
//! A cluster has three authorities from its first `init` on ([`AuthorityKind`]), so that a
//! certificate for one purpose opens nothing else (ARCHITECTURE.md, Identity). Leaves live 30 days
//! ([`LEAF_LIFETIME`]) and are renewed after two thirds of it. Nothing here reads the clock: the
//! time comes in as an argument. Nothing here starts a task or opens a connection either;
//! [`tls`] only prepares configurations for those who do.

mod admission;
mod authority;
mod files;
mod leaf;
mod recovery;
pub mod recovery_key;
mod request;
pub mod secret_sealing;
pub mod stream;
pub mod tls;
pub mod token;
mod validity;

use std::path::PathBuf;

pub use self::{
    admission::{Authorities, MachineCertificates},
    authority::{Authority, AuthorityKind},
    files::{write_public, write_secret},
    leaf::{Identity, LeafKind},
    recovery::{load_recovery_key, recovery_key_file, store_recovery_key},
    request::{
        CertificateRequest, MAX_REQUEST, create_key, create_request, create_request_for_key,
        create_request_stating, key_hash,
    },
    tls::{PeerCertificate, PeerIdentity, peer_certificate, peer_identity},
    validity::{AUTHORITY_LIFETIME, BACKDATED, LEAF_LIFETIME, Validity, renew_due, validity_of},
};

use rand::{TryRngCore, rngs::OsRng};

use kat_types::resource::name::{self, NameError};

/// Names that no certificate carries: `root` is etcd's superuser.
const RESERVED: &[&str] = &["root"];

/// Why something about keys or certificates failed. No message holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file can't be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// PEM that is something else, or several things.
    #[error("expected one {expected} in PEM, found {found}")]
    Pem {
        /// `CERTIFICATE`, `PRIVATE KEY` or the like.
        expected: &'static str,
        /// What is there instead.
        found: String,
    },
    /// A certificate that can't be read or is not what it should be.
    #[error("certificate: {0}")]
    Certificate(String),
    /// A key that can't be read or does not fit.
    #[error("key: {0}")]
    Key(String),
    /// A certificate request that is refused.
    #[error("certificate request: {0}")]
    Request(String),
    /// A name that may not be in a certificate.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The authority does not sign such certificates.
    #[error("the authority {authority} signs no certificate for {common_name}")]
    WrongAuthority {
        /// Its name.
        authority: &'static str,
        /// The common name that was wanted.
        common_name: String,
    },
    /// rustls does not accept a configuration.
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
}

impl PkiError {
    /// Whether a file is simply not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}

impl From<rcgen::Error> for PkiError {
    fn from(error: rcgen::Error) -> Self {
        Self::Certificate(error.to_string())
    }
}

/// The DNS name that every node's certificate carries: who connects checks the cluster, whatever
/// address it used.
pub fn cluster_name(cluster_uid: &str) -> String {
    format!("kat.{cluster_uid}")
}

/// Accepts the name of a machine or administrator for a certificate.
///
/// # Errors
/// [`PkiError::Name`].
pub fn check_name(name: &str) -> Result<(), PkiError> {
    name::check_label(name)?;
    if RESERVED.contains(&name) {
        return Err(NameError::Reserved(name.to_owned()).into());
    }
    Ok(())
}

/// Fills `bytes` from the kernel's generator.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), <OsRng as TryRngCore>::Error> {
    OsRng.try_fill_bytes(bytes)
}

#[cfg(test)]
mod tests;
