//! Authorities, certificates, tokens, TLS configurations and sealed keys.
//!
//! A cluster has three authorities from its first `init` on ([`AuthorityKind`]), so that a
//! certificate for one purpose is not valid for another (docs/internals/identity-and-access.md).
//!
//! Where to begin:
//! - `authority.rs`: [`Authority`], which issues certificates. `leaf.rs`: [`LeafKind`], which ones.
//! - `tls.rs`: configurations of servers and clients, and [`PeerIdentity`] of a certificate.
//! - `server_identity.rs`: [`ApiServers`], which servers a client accepts.
//! - `recovery_key.rs`: the recovery key, and sealing with it.
//! - `secret_sealing.rs`: how secrets are stored, and delivered to one machine.
//!
//! Modules:
//! - `authority`, `endorsement`, `succession`, `replacement`: authorities and their successors.
//! - `leaf`, `request`, `admission`, `validity`: certificates of machines.
//! - `server_identity`, `tls`: connections. `token`: tokens of the API and of joins.
//! - `recovery_key`, `recovery_keys`, `epoch_proof`: the recovery key, its files and its
//!   signatures.
//! - `secret_sealing`, `delivery`, `stream`: sealed values, and sealed large files.
//! - `files`: keys on the disk.
//!
//! Rules:
//! - No error message and no debug output contains a key or the secret of a token.
//! - The crate reads no clock: the time is an argument. It starts no task and opens no connection.
//! - Sealing of secrets is deterministic, because plans have to be (invariant 1).
//! - Steps that replace files can be interrupted between any two writes, and are completed by
//!   repeating them. A key is written so that no other user can read it meanwhile.
//! - Formats of sealed bytes have a version.
//! - Requests and certificates of other machines are parsed within bounds (invariant 8).
//!
//! Tests: `src/pki/tests` and tests beside the code; the target `certificate` of `contrib/fuzz`;
//! `tests/joining.rs` and `tests/api` over connections.

pub mod acme;
mod admission;
mod authority;
pub mod delivery;
mod endorsement;
pub mod epoch_proof;
mod files;
pub mod ingress;
mod leaf;
pub mod recovery_key;
mod recovery_keys;
pub mod replacement;
mod request;
pub mod secret_sealing;
mod server_identity;
pub mod stream;
mod succession;
pub mod tls;
pub mod token;
mod validity;

use std::path::PathBuf;

use rand::{TryRngCore, rngs::OsRng};

use kat_types::resource::name::{self, NameError};

pub use self::{
    admission::{Authorities, MachineCertificates},
    authority::{
        Authority, AuthorityEdition, clear_file, cluster_uid_of_authority, fingerprint_of,
        is_issued_by,
    },
    files::{write_public, write_secret},
    leaf::{ApiNames, CertificateKeyPair, LeafKind},
    request::{
        CertificateRequest, MAX_REQUEST, create_key, create_request, create_request_for_key,
        create_request_stating, key_hash,
    },
    server_identity::{
        ApiServers, KnownServer, KnownServers, NotAServer, ServerMemory, has_server_name,
    },
    tls::{PeerCertificate, PeerIdentity, peer_certificate, peer_identity},
    validity::{
        API_LEAF_LIFETIME, AUTHORITY_LIFETIME, BACKDATED, LEAF_LIFETIME, Validity, renew_due,
        validity_of,
    },
};
pub use kat_types::store::authorities::AuthorityKind;

pub use self::succession::{SuccessionError, accepted_successor, sign_succession};

pub use crate::recovery_keys::{
    RecoveryKeyEdition, RecoveryKeys, complete_recovery_key_promotion, forget_other_recovery_keys,
    load_recovery_key, load_recovery_keys, next_recovery_key, promote_recovery_key,
    recovery_key_file, remove_recovery_keys, store_next_recovery_key, store_recovery_key,
    store_recovery_keys,
};

/// Names that no certificate may have: `root` is etcd's superuser.
const RESERVED: &[&str] = &["root"];

/// Why an operation on keys or certificates failed. No message contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file can't be read or written.
    #[error("{}: {source}", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The PEM text has another kind of content, or several blocks.
    #[error("expected one {expected} in PEM, found {found}")]
    Pem {
        /// Such as `CERTIFICATE` or `PRIVATE KEY`.
        expected: &'static str,
        /// The content that was found.
        found: String,
    },
    /// A certificate is unreadable or not as required.
    #[error("certificate: {0}")]
    Certificate(String),
    /// A key is unreadable or not as required.
    #[error("key: {0}")]
    Key(String),
    /// A certificate request was rejected.
    #[error("certificate request: {0}")]
    Request(String),
    /// The name is not allowed in a certificate.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The authority does not sign such certificates.
    #[error("the authority {authority} signs no certificate for {common_name}")]
    WrongAuthority {
        /// Name of the authority.
        authority: &'static str,
        /// The requested common name.
        common_name: String,
    },
    /// Bytes can't be sealed or opened.
    #[error(transparent)]
    Seal(#[from] recovery_key::SealError),
    /// rustls rejects a configuration.
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
}

impl PkiError {
    /// Whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}

impl From<rcgen::Error> for PkiError {
    fn from(error: rcgen::Error) -> Self {
        Self::Certificate(error.to_string())
    }
}

/// The server name of a cluster in version 0.1.0, where every machine's certificate has it. Clients
/// of later versions accept it while they have never seen [`api_server_name`].
pub fn cluster_name(cluster_uid: &str) -> String {
    format!("kat.{cluster_uid}")
}

/// The server name of the cluster's API, which only certificates of machines with the store have:
/// clients check the API by it, whatever address they connect to.
pub fn api_server_name(cluster_uid: &str) -> String {
    format!("api.kat.{}", cluster_uid.to_ascii_lowercase())
}

/// The server name that clients send for the state stream; machines that don't hold the store
/// forward such connections to one that does. It is in no certificate.
pub fn state_server_name(cluster_uid: &str) -> String {
    format!("state.kat.{}", cluster_uid.to_ascii_lowercase())
}

/// The server name of connections that every machine answers itself, whoever leads, with its own
/// certificate as a machine: they only prove that it is up. It is in no certificate.
pub fn machine_server_name(cluster_uid: &str) -> String {
    format!("machine.kat.{}", cluster_uid.to_ascii_lowercase())
}

/// Checks the name of a machine or administrator for a certificate.
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

/// Fills `bytes` from the kernel's random generator.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), <OsRng as TryRngCore>::Error> {
    OsRng.try_fill_bytes(bytes)
}

#[cfg(test)]
mod tests;
