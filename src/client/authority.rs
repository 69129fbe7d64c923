//! The cluster's authority as a user gives it apart from a connection file.

use kat_pki as pki;

/// The authority that a server of the cluster must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustedAuthority {
    /// Its certificate.
    Certificate {
        /// The certificate, PEM.
        pem: String,
        /// The uid of the cluster, which the certificate names.
        cluster_uid: String,
    },
    /// SHA-256 of its certificate in DER, 64 hexadecimal digits in lower case, as in tokens for
    /// joining.
    Hash(String),
}

impl TrustedAuthority {
    /// The authority with this certificate, PEM.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    pub fn from_certificate(pem: &str) -> Result<Self, String> {
        let cluster_uid = pki::cluster_uid_of_authority(pem).map_err(|error| error.to_string())?;
        Ok(Self::Certificate {
            pem: pem.to_owned(),
            cluster_uid,
        })
    }

    /// The authority whose certificate has this hash; the digits may be in upper case and in groups
    /// with colons between them.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    pub fn from_hash(text: &str) -> Result<Self, String> {
        let hash = text.replace(':', "").to_ascii_lowercase();
        if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err("the hash must have 64 hexadecimal digits".to_owned());
        }
        Ok(Self::Hash(hash))
    }
}
