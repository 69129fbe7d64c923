//! The cluster's certificate authorities, and how those of etcd are replaced.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Which of a cluster's three authorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuthorityKind {
    /// For machines, the API, administrators, and the leader as client of the agents.
    Cluster,
    /// For etcd's client port and its clients.
    EtcdClients,
    /// For etcd's peer ports.
    EtcdPeers,
}

impl AuthorityKind {
    /// The three authorities.
    pub const ALL: [Self; 3] = [Self::Cluster, Self::EtcdClients, Self::EtcdPeers];
    /// The authorities that KAT replaces while the cluster runs. Only machines that hold etcd trust
    /// them.
    pub const REPLACEABLE: [Self; 2] = [Self::EtcdClients, Self::EtcdPeers];

    /// Its name in files, in keys of the store, and for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster-ca",
            Self::EtcdClients => "etcd-client-ca",
            Self::EtcdPeers => "etcd-peer-ca",
        }
    }

    /// The authority with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// `/kat/authorities/NAME`: an authority of etcd, and its replacement. Only the leader writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorityRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// SHA-256 of the certificate of the authority that signs, as 64 hexadecimal digits. Until a
    /// replacement is complete, that of the old authority.
    pub current: String,
    /// When that authority began to be the only one.
    pub since: Option<Timestamp>,
    /// Epoch of the store in which the authority was made. A store that was created anew from a backup
    /// has a higher one.
    pub epoch: u64,
    /// The machines that have held the authority's key: the uid of each by its name.
    pub holders: BTreeMap<String, String>,
    /// Why the authority is to be replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<RotationReason>,
    /// Since when it is to be replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_since: Option<Timestamp>,
    /// The replacement under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
}

/// A replacement of an authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// How far it has come.
    pub phase: RotationPhase,
    /// Certificate of the new authority, PEM.
    pub certificate: String,
    /// SHA-256 of that certificate, as 64 hexadecimal digits.
    pub next: String,
    /// Why the authority is replaced.
    pub reason: RotationReason,
    /// When it began.
    pub since: Timestamp,
    /// The machines that may hold the key of the new authority: the uid of each by its name.
    #[serde(default)]
    pub holders: BTreeMap<String, String>,
    /// The machine whose etcd may be restarted now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<String>,
}

/// How far the replacement of an authority has come. In each phase every machine that holds etcd
/// does one thing and reports it; the next phase begins when all of them have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RotationPhase {
    /// The machines take the new authority, and their etcd trusts both.
    Trust,
    /// Certificates are issued by the new authority.
    Issue,
    /// No etcd trusts the old authority any more.
    Retire,
}

/// Why an authority is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RotationReason {
    /// Somebody asked for it.
    Requested,
    /// A machine that held its key holds etcd no more.
    HolderLeft,
    /// The store was created anew from a backup or from one machine's data.
    StoreReplaced,
    /// The cluster is one of version 0.1.0, in which every machine had a certificate of etcd.
    Migration,
    /// A later version's reason.
    #[serde(other)]
    Other,
}

impl RotationReason {
    /// The reason in words, after "because".
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Requested => "somebody asked for it",
            Self::HolderLeft => "a machine that held its key holds the store no more",
            Self::StoreReplaced => "the store was created anew",
            Self::Migration => "every machine had a certificate of it in version 0.1.0",
            Self::Other => "a newer version of KAT wants it",
        }
    }
}
