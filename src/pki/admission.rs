//! Certificates of machines that hold no authority: signed by the leader when they join, and
//! renewed before they expire.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use jiff::Timestamp;

use super::{Authority, AuthorityEdition, AuthorityKind, LeafKind, PkiError};
use crate::{
    recovery_keys::{RecoveryKeys, load_recovery_keys},
    replacement::edition_certificate,
};

/// The authorities that sign for other machines.
#[derive(Debug)]
pub struct Authorities {
    cluster: Authority,
    etcd_clients: Authority,
    etcd_peers: Option<Authority>,
    recovery: Option<RecoveryKeys>,
    next: Vec<Authority>,
}

/// The certificates for a machine's key. All of them are public.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineCertificates {
    /// Signed by the cluster's authority: the machine as server and client of the API.
    pub node: String,
    /// Signed by the authority of etcd's clients: the machine's user of etcd.
    pub etcd: String,
    /// Certificate of the cluster's authority.
    pub cluster_authority: String,
    /// Certificate of the authority of etcd's clients and servers.
    pub etcd_authority: String,
}

impl Authorities {
    /// Certificate of the cluster's authority, PEM.
    pub fn cluster_certificate(&self) -> &str {
        self.cluster.certificate_pem()
    }

    /// Certificates of the cluster's authority and of the one that will replace it, PEM.
    pub fn cluster_certificates(&self) -> String {
        let next = self.next.iter();
        let next = next.filter(|one| one.kind() == AuthorityKind::Cluster);
        let all = std::iter::once(&self.cluster).chain(next);
        all.map(Authority::certificate_pem).collect()
    }

    /// Reads the authorities from `folder` (`/var/lib/kat/pki`).
    ///
    /// # Errors
    /// As [`Authority::load`] and [`load_recovery_keys`].
    pub fn load(folder: &Path) -> Result<Self, PkiError> {
        let recovery = load_recovery_keys(folder)?;
        let load = |kind| Authority::load(folder, kind, &recovery);
        Ok(Self {
            cluster: load(AuthorityKind::Cluster)?,
            etcd_clients: load(AuthorityKind::EtcdClients)?,
            etcd_peers: Some(load(AuthorityKind::EtcdPeers)?),
            next: load_next(folder, &recovery)?,
            recovery: Some(recovery),
        })
    }

    /// Uses these two authorities.
    ///
    /// # Errors
    /// [`PkiError::WrongAuthority`] unless they are the cluster's and that of etcd's clients.
    pub fn new(cluster: Authority, etcd_clients: Authority) -> Result<Self, PkiError> {
        for (authority, expected) in [
            (&cluster, AuthorityKind::Cluster),
            (&etcd_clients, AuthorityKind::EtcdClients),
        ] {
            if authority.kind() != expected {
                return Err(PkiError::WrongAuthority {
                    authority: authority.kind().name(),
                    common_name: "a machine that joins".to_owned(),
                });
            }
        }
        Ok(Self {
            cluster,
            etcd_clients,
            etcd_peers: None,
            recovery: None,
            next: Vec::new(),
        })
    }

    /// All three; `None` where the authority of etcd's peers is not known.
    pub fn all(&self) -> Option<[&Authority; 3]> {
        Some([&self.cluster, &self.etcd_clients, self.etcd_peers.as_ref()?])
    }

    /// Those that will replace another one.
    pub fn next(&self) -> &[Authority] {
        &self.next
    }

    /// The recovery keys of a machine that holds etcd: more than one while the key is replaced.
    pub fn recovery_keys(&self) -> Option<&RecoveryKeys> {
        self.recovery.as_ref()
    }

    /// The fingerprint in join tokens: see [`Authority::fingerprint`].
    pub fn fingerprint(&self) -> String {
        self.cluster.fingerprint()
    }

    /// Signs certificates for the key of a request, which must ask for `node:NAME`. Name and
    /// addresses are those that the caller decided; nothing else of the request is used. Both
    /// certificates are for the one key, so that a replayed request is useless to others. The
    /// machine's certificate names the cluster with `earlier_cluster_uid` only, for callers of
    /// version 0.1.0.
    ///
    /// # Errors
    /// As [`Authority::sign_request`].
    pub fn sign_machine(
        &self,
        request_pem: &str,
        name: &str,
        earlier_cluster_uid: Option<&str>,
        overlay: Ipv4Addr,
        now: Timestamp,
    ) -> Result<MachineCertificates, PkiError> {
        let node = LeafKind::Node {
            name: name.to_owned(),
            cluster_uid: earlier_cluster_uid.map(ToOwned::to_owned),
            addresses: vec![IpAddr::V4(overlay), IpAddr::V4(Ipv4Addr::LOCALHOST)],
        };
        let etcd = LeafKind::EtcdNode {
            name: name.to_owned(),
        };
        Ok(MachineCertificates {
            node: self.cluster.sign_request(request_pem, &node, now)?,
            etcd: self.etcd_clients.sign_request(request_pem, &etcd, now)?,
            cluster_authority: self.cluster.certificate_pem().to_owned(),
            etcd_authority: self.etcd_clients.certificate_pem().to_owned(),
        })
    }
}

fn load_next(folder: &Path, recovery: &RecoveryKeys) -> Result<Vec<Authority>, PkiError> {
    let mut found = Vec::new();
    for kind in AuthorityKind::ALL {
        if edition_certificate(folder, kind, AuthorityEdition::Next)?.is_some() {
            let next = AuthorityEdition::Next;
            found.push(Authority::load_edition(folder, kind, next, recovery)?);
        }
    }
    Ok(found)
}
