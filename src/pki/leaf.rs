//! The kinds of leaf certificates and their content.

use std::{fmt, net::IpAddr};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
    SanType, SerialNumber, string::Ia5String,
};

use jiff::SignedDuration;

use super::{
    API_LEAF_LIFETIME, AuthorityKind, LEAF_LIFETIME, PkiError, Validity, api_server_name,
    check_name, cluster_name, validity,
};

/// A kind of certificate, with its subject. All names are labels; `root` is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafKind {
    /// A machine as the server of its agent's port and as client of the API. Common name
    /// `node:NAME`.
    Node {
        /// Name of the machine, which is also a DNS name of the certificate.
        name: String,
        /// Uid of the cluster, for [`cluster_name`], by which version 0.1.0 checks every server;
        /// `None` where no machine of that version has to accept this one.
        cluster_uid: Option<String>,
        addresses: Vec<IpAddr>,
    },
    /// The API on a machine that holds the store. Common name `api:NAME`. No other machine gets
    /// this kind.
    Api {
        /// The machine.
        name: String,
        /// Uid of the cluster, for the server names.
        cluster_uid: String,
        /// Which server names it has.
        names: ApiNames,
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

/// The server names of an API certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiNames {
    /// [`cluster_name`] alone: another machine that holds the store has no such certificate yet.
    /// Who connects to this machine must not learn to demand [`api_server_name`].
    Earlier,
    /// [`api_server_name`], and [`cluster_name`] for clients of version 0.1.0.
    Both,
}

impl LeafKind {
    /// The name of the machine or administrator.
    pub fn name(&self) -> &str {
        match self {
            Self::Node { name, .. }
            | Self::Api { name, .. }
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
            Self::Api { .. } => "api",
            Self::Leader { .. } => "leader",
            Self::Admin { .. } => "admin",
            Self::EtcdServer { .. } | Self::EtcdPeer { .. } => "etcd",
        };
        format!("{role}:{}", self.name())
    }

    /// Whether this authority signs it.
    pub fn signed_by(&self, authority: AuthorityKind) -> bool {
        match self {
            Self::Node { .. } | Self::Api { .. } | Self::Admin { .. } => {
                authority == AuthorityKind::Cluster
            }
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
            Self::Node { .. } | Self::Api { .. } | Self::EtcdServer { .. } | Self::EtcdPeer { .. }
        )
    }

    /// How long a certificate of this kind is valid.
    pub fn lifetime(&self) -> SignedDuration {
        match self {
            Self::Api { .. } => API_LEAF_LIFETIME,
            _ => LEAF_LIFETIME,
        }
    }

    fn is_client(&self) -> bool {
        // A server certificate of etcd is not valid for clients: only etcd's HTTP gateway would use
        // it so, and that is disabled.
        !matches!(self, Self::Api { .. } | Self::EtcdServer { .. })
    }

    fn alternative_names(&self) -> Result<Vec<SanType>, PkiError> {
        let (dns, addresses) = match self {
            Self::Node {
                name,
                cluster_uid,
                addresses,
            } => {
                let earlier = cluster_uid.as_deref().map(cluster_name);
                let names = std::iter::once(name.clone()).chain(earlier);
                (names.collect(), addresses)
            }
            Self::Api {
                cluster_uid,
                names,
                addresses,
                ..
            } => {
                let new = match names {
                    ApiNames::Both => Some(api_server_name(cluster_uid)),
                    ApiNames::Earlier => None,
                };
                let names = new.into_iter().chain([cluster_name(cluster_uid)]);
                (names.collect(), addresses)
            }
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
        if let Self::Node {
            cluster_uid: Some(cluster_uid),
            ..
        }
        | Self::Api { cluster_uid, .. } = self
        {
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
