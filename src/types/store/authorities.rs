//! The cluster's certificate authorities and its recovery key, and how they are replaced.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
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
    /// The authorities of etcd. Only machines that hold etcd trust them.
    pub const OF_ETCD: [Self; 2] = [Self::EtcdClients, Self::EtcdPeers];

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

/// What is replaced while the cluster runs, each with an [`AuthorityRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplaceableKey {
    /// An authority, with its certificate.
    Authority(AuthorityKind),
    /// The recovery key, which has no certificate: hashes in its record are fingerprints of keys.
    Recovery,
}

impl ReplaceableKey {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Authority(AuthorityKind::Cluster),
        Self::Authority(AuthorityKind::EtcdClients),
        Self::Authority(AuthorityKind::EtcdPeers),
        Self::Recovery,
    ];

    /// Its name in keys of the store, and for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Authority(kind) => kind.name(),
            Self::Recovery => "recovery-key",
        }
    }

    /// What has this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Whether it is replaced by request alone, since a person has to do something afterwards.
    pub const fn by_request_alone(self) -> bool {
        match self {
            Self::Authority(AuthorityKind::Cluster) | Self::Recovery => true,
            Self::Authority(AuthorityKind::EtcdClients | AuthorityKind::EtcdPeers) => false,
        }
    }
}

impl From<AuthorityKind> for ReplaceableKey {
    fn from(kind: AuthorityKind) -> Self {
        Self::Authority(kind)
    }
}

/// `/kat/authorities/NAME`: an authority or the recovery key, and its replacement. Only the leader
/// writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorityRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// SHA-256 of the certificate of the authority that signs, as 64 hexadecimal digits, or the
    /// fingerprint of the recovery key that seals. Until a replacement is complete, that of the old
    /// one.
    pub current: String,
    /// When that authority or key began to be the only one.
    pub since: Option<Timestamp>,
    /// The recovery key: when everything in the store was last sealed with another one. A value that
    /// was stored before could be read with an earlier key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sealed_since: Option<Timestamp>,
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
    /// For how long katcall's connections may learn of the authority that is to replace this one,
    /// in seconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub grace_seconds: u32,
    /// The replacement under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// [`AuthorityKind::Cluster`]: the last replacements, the latest last; at most
    /// [`MAX_SUCCESSIONS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub successions: Vec<AuthoritySuccession>,
}

/// How many replacements of an authority are remembered.
pub const MAX_SUCCESSIONS: usize = 8;

/// A replacement of [`AuthorityKind::Cluster`] with the signatures of the machines that held the
/// store, for a machine that was off meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthoritySuccession {
    /// SHA-256 of the certificate of the replaced authority, as 64 hexadecimal digits.
    pub before: String,
    /// SHA-256 of the certificate of the authority that replaced it.
    pub after: String,
    /// Certificate of the authority that replaced it, PEM.
    pub certificate: String,
    /// The signatures, by machine.
    pub signatures: BTreeMap<String, MemberSignature>,
}

/// The signature of a machine that holds the store, with the key of its certificate `node:NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberSignature {
    /// The machine's public key: base64 of its SubjectPublicKeyInfo (RFC 5280, 4.1.2.7).
    pub key: String,
    /// The signature: base64 of ECDSA P-256 with SHA-256, as ASN.1.
    pub signature: String,
}

impl AuthorityRecord {
    /// The replacements of the authority, also the one under way as soon as machines have signed it.
    pub fn all_successions(&self) -> Vec<AuthoritySuccession> {
        let under_way = self
            .rotation
            .as_ref()
            .and_then(|rotation| rotation.succession_of(&self.current));
        let mut all = self.successions.clone();
        all.extend(under_way);
        let beyond = all.len().saturating_sub(MAX_SUCCESSIONS);
        all.split_off(beyond)
    }
}

/// A replacement of an authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// How far it has come.
    pub phase: RotationPhase,
    /// Certificate of the new authority, PEM; empty for the recovery key.
    pub certificate: String,
    /// SHA-256 of that certificate, as 64 hexadecimal digits, or the fingerprint of the new recovery
    /// key.
    pub next: String,
    /// Why the authority is replaced.
    pub reason: RotationReason,
    /// When it began.
    pub since: Timestamp,
    /// The machines that may hold the key of the new authority: the uid of each by its name.
    #[serde(default)]
    pub holders: BTreeMap<String, String>,
    /// The machine whose etcd may be restarted now; nobody's for [`AuthorityKind::Cluster`] and the
    /// recovery key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<String>,
    /// The replacement of [`AuthorityKind::Cluster`]: the new authority issues no certificate for
    /// so many seconds after `since`, in which katcall's connections learn of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub grace_seconds: u32,
    /// [`AuthorityKind::Cluster`]: the signatures for [`AuthoritySuccession`], by machine.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub signatures: BTreeMap<String, MemberSignature>,
}

impl Rotation {
    /// What the machines have signed; `None` while none has.
    fn succession_of(&self, before: &str) -> Option<AuthoritySuccession> {
        let signed = !self.signatures.is_empty();
        signed.then(|| AuthoritySuccession {
            before: before.to_owned(),
            after: self.next.clone(),
            certificate: self.certificate.clone(),
            signatures: self.signatures.clone(),
        })
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(seconds: &u32) -> bool {
    *seconds == 0
}

/// `/kat/config/cluster_authority`: which certificates of [`AuthorityKind::Cluster`] the machines
/// trust and use. Written together with that authority's record, for all machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterAuthority {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// SHA-256 of the certificate of the authority that signs; until a replacement is complete, that
    /// of the old authority. Empty in a cluster whose leader has not recorded it.
    pub current: String,
    /// The replacement under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replacement: Option<ClusterAuthorityReplacement>,
}

/// The replacement of [`AuthorityKind::Cluster`], as machines see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterAuthorityReplacement {
    /// How far it has come.
    pub phase: RotationPhase,
    /// Certificate of the new authority, PEM.
    pub certificate: String,
    /// SHA-256 of that certificate.
    pub next: String,
}

impl ClusterAuthority {
    /// What the record of the authority says to all machines.
    pub fn of(record: &AuthorityRecord) -> Self {
        let replacement = record.rotation.as_ref();
        Self {
            schema: 1,
            current: record.current.clone(),
            replacement: replacement.map(|rotation| ClusterAuthorityReplacement {
                phase: rotation.phase,
                certificate: rotation.certificate.clone(),
                next: rotation.next.clone(),
            }),
        }
    }

    /// SHA-256 of the certificate of the authority by which certificates are to be issued now; empty
    /// where that is not known.
    pub fn issuer(&self) -> &str {
        match &self.replacement {
            Some(replacement) if replacement.phase >= RotationPhase::Issue => &replacement.next,
            _ => &self.current,
        }
    }
}

/// How far a replacement has come. In each phase every machine that uses the authority or the key
/// does one thing and reports it; the next phase begins when all of them have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RotationPhase {
    /// The machines take the new authority, and they and their etcd trust both. The recovery key:
    /// both open.
    Trust,
    /// Certificates are issued by the new authority. The recovery key: the new one seals, and what
    /// is stored is sealed again.
    Issue,
    /// Nobody trusts the old authority, or holds the old recovery key, any more.
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
    /// KAT's own authority for ingress: `internalDomains` are others than those of its constraints.
    DomainsChanged,
    /// It expires before long.
    Expires,
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
            Self::DomainsChanged => "internalDomains have changed",
            Self::Expires => "it expires before long",
            Self::Other => "a newer version of KAT wants it",
        }
    }
}
