//! The kinds of leaf certificates and their content.

use std::{fmt, net::IpAddr};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
    SanType, SerialNumber, string::Ia5String,
};

use super::{AuthorityKind, PkiError, Validity, check_name, cluster_name, validity};

/// A kind of certificate, with its subject. All names are labels; `root` is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafKind {
    /// A machine as server and client of the API. Common name `node:NAME`.
    Node {
        /// Name of the machine, which is also a DNS name of the certificate.
        name: String,
        /// Uid of the cluster, for [`cluster_name`].
        cluster_uid: String,
        addresses: Vec<IpAddr>,
    },
    /// The leader on a machine, as client of etcd and of the agents. Common name `leader:NAME`.
    Leader {
        /// The machine.
        name: String,
    },
    /// An administrator, as client of the API. Common name `admin:NAME`.
    Admin {
        /// The administrator.
        name: String,
    },
    /// A machine as client of etcd. Common name `node:NAME`, which is its user in etcd.
    EtcdNode {
        /// The machine.
        name: String,
    },
    /// Server on etcd's client port. Common name `etcd:NAME`, which is no user of etcd.
    EtcdServer {
        /// The machine.
        name: String,
        /// Addresses that clients use.
        addresses: Vec<IpAddr>,
    },
    /// Server and client on etcd's peer port. Common name `etcd:NAME`.
    EtcdPeer {
        /// The machine.
        name: String,
        /// Addresses that peers use.
        addresses: Vec<IpAddr>,
    },
}

impl LeafKind {
    /// The name of the machine or administrator.
    pub fn name(&self) -> &str {
        match self {
            Self::Node { name, .. }
            | Self::Leader { name }
            | Self::Admin { name }
            | Self::EtcdNode { name }
            | Self::EtcdServer { name, .. }
            | Self::EtcdPeer { name, .. } => name,
        }
    }

    /// The certificate's common name.
    pub fn common_name(&self) -> String {
        let role = match self {
            Self::Node { .. } | Self::EtcdNode { .. } => "node",
            Self::Leader { .. } => "leader",
            Self::Admin { .. } => "admin",
            Self::EtcdServer { .. } | Self::EtcdPeer { .. } => "etcd",
        };
        format!("{role}:{}", self.name())
    }

    /// Whether this authority signs it.
    pub fn signed_by(&self, authority: AuthorityKind) -> bool {
        match self {
            Self::Node { .. } | Self::Admin { .. } => authority == AuthorityKind::Cluster,
            Self::Leader { .. } => {
                matches!(
                    authority,
                    AuthorityKind::Cluster | AuthorityKind::EtcdClients
                )
            }
            Self::EtcdNode { .. } | Self::EtcdServer { .. } => {
                authority == AuthorityKind::EtcdClients
            }
            Self::EtcdPeer { .. } => authority == AuthorityKind::EtcdPeers,
        }
    }

    fn is_server(&self) -> bool {
        matches!(
            self,
            Self::Node { .. } | Self::EtcdServer { .. } | Self::EtcdPeer { .. }
        )
    }

    fn is_client(&self) -> bool {
        // A server certificate of etcd is not valid for clients: only etcd's HTTP gateway would use
        // it so, and that is disabled.
        !matches!(self, Self::EtcdServer { .. })
    }

    fn alternative_names(&self) -> Result<Vec<SanType>, PkiError> {
        let (dns, addresses) = match self {
            Self::Node {
                name,
                cluster_uid,
                addresses,
            } => (vec![name.clone(), cluster_name(cluster_uid)], addresses),
            Self::EtcdServer { name, addresses } | Self::EtcdPeer { name, addresses } => {
                (vec![name.clone()], addresses)
            }
            Self::Leader { .. } | Self::Admin { .. } | Self::EtcdNode { .. } => {
                return Ok(Vec::new());
            }
        };
        let mut names = Vec::new();
        for name in dns {
            names.push(SanType::DnsName(Ia5String::try_from(name)?));
        }
        names.extend(addresses.iter().copied().map(SanType::IpAddress));
        Ok(names)
    }

    /// Everything in the certificate except its key.
    pub(super) fn params(&self, validity: Validity) -> Result<CertificateParams, PkiError> {
        check_name(self.name())?;
        if let Self::Node { cluster_uid, .. } = self {
            check_cluster_uid(cluster_uid)?;
        }
        let mut params = base_params(&self.common_name(), validity)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if self.is_server() {
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if self.is_client() {
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        params.subject_alt_names = self.alternative_names()?;
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}

/// Accepts a label of a DNS name; in practice it is a UUID.
fn check_cluster_uid(uid: &str) -> Result<(), PkiError> {
    let fine = (1..=63).contains(&uid.len())
        && !uid.starts_with('-')
        && !uid.ends_with('-')
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if fine {
        Ok(())
    } else {
        Err(PkiError::Certificate(format!(
            "the cluster's uid `{uid}` is not a DNS label"
        )))
    }
}

/// Subject, serial and validity. The serial is random, since rcgen's own one is derived from the
/// key, so that a renewed certificate would have the same one.
pub(super) fn base_params(
    common_name: &str,
    validity: Validity,
) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, common_name);
    params.distinguished_name = subject;
    params.not_before = validity::date(validity.not_before)?;
    params.not_after = validity::date(validity.not_after)?;
    params.serial_number = Some(random_serial()?);
    Ok(params)
}

/// 127 random bits: positive, and in practice never 0 (RFC 5280, 4.1.2.2).
fn random_serial() -> Result<SerialNumber, PkiError> {
    let mut bytes = [0_u8; 16];
    super::fill_random(&mut bytes)
        .map_err(|_| PkiError::Key("the system has no randomness".into()))?;
    if let Some(first) = bytes.first_mut() {
        *first = *first & 0x3f | 0x40;
    }
    Ok(SerialNumber::from_slice(&bytes))
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct CertificateKeyPair {
    pub certificate_pem: String,
    /// The key, PKCS #8.
    pub key_pem: String,
}

impl fmt::Debug for CertificateKeyPair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Identity")
            .field("certificate_pem", &self.certificate_pem)
            .finish_non_exhaustive()
    }
}
