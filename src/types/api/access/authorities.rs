//! The cluster's certificate authorities and its recovery key, and their replacement while the cluster
//! runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::{ApiTime, newer},
    store::authorities::{AuthoritySuccession, RotationPhase, RotationReason},
};

/// How far the replacement of an authority has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AuthorityPhase {
    /// The authority is not being replaced.
    #[default]
    Settled,
    /// The cluster was one of version 0.1.0, in which every machine had a certificate of etcd. The
    /// authority is replaced as soon as no machine reads etcd with such a certificate.
    Migration,
    /// The authority is to be replaced, and the replacement has not begun.
    Due,
    /// The machines take the new authority, and they and their etcd trust both. The recovery key: the
    /// machines that hold the store take the new one.
    Trust,
    /// Certificates are issued by the new authority. The recovery key: the new one seals, and what is
    /// stored is sealed again.
    Issue,
    /// The machines and their etcd stop trusting the old authority. The recovery key: the machines
    /// forget the old one.
    Retire,
}

/// An authority of unknown phase is being replaced.
impl newer::ExtensibleEnum for AuthorityPhase {
    const NEWER: Self = Self::Due;
}

impl From<RotationPhase> for AuthorityPhase {
    fn from(phase: RotationPhase) -> Self {
        match phase {
            RotationPhase::Trust => Self::Trust,
            RotationPhase::Issue => Self::Issue,
            RotationPhase::Retire => Self::Retire,
        }
    }
}

/// A certificate authority of the cluster, KAT's own authority for ingress, or the recovery key, which has
/// no certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorityStatus {
    /// `cluster-ca`, `etcd-client-ca`, `etcd-peer-ca`, `ingress-ca` or `recovery-key`.
    pub name: String,
    /// SHA-256 of the authority's certificate, as 64 hexadecimal digits, or 16 hexadecimal digits that
    /// identify the recovery key; during a replacement that of the old one. Empty if unknown.
    pub fingerprint: String,
    /// When the authority expires; RFC 3339, UTC; empty for the recovery key.
    pub not_after: ApiTime,
    /// When the authority became the only one of its kind; RFC 3339, UTC; empty if unknown.
    pub since: ApiTime,
    /// How far its replacement has come. In an object of a newer version, an unknown phase is read
    /// as `Due`.
    #[serde(deserialize_with = "newer::word")]
    pub phase: AuthorityPhase,
    /// The fingerprint of the authority or key that replaces it; absent if there is none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Why the authority is replaced: `Requested`, `HolderLeft`, `StoreReplaced`, `Migration`,
    /// `DomainsChanged`, `Expires`, or `Other` for a newer version's reason; absent if it is not being
    /// replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub reason: Option<RotationReason>,
    /// When the replacement began; RFC 3339, UTC; empty before it began.
    pub replacement_since: ApiTime,
    /// Until when the old authority issues certificates, so that every katcall that is used learns of
    /// the new one, or people bring clients to trust it; RFC 3339, UTC; empty where nothing waits for
    /// that.
    pub grace_until: ApiTime,
    /// Why the authority is replaced and what that waits for, for users; empty if there is nothing
    /// to say.
    pub message: String,
    /// When the machines' certificates of this authority expire, by machine.
    pub certificates: Vec<CertificateExpiry>,
}

/// When a machine's certificates of an authority expire.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateExpiry {
    /// Name of the machine.
    pub name: String,
    /// When the first of them expires; RFC 3339, UTC; empty while the machine has not reported it.
    pub expires: ApiTime,
}

/// Request to replace an authority.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AuthorityRotationRequest {
    /// For `cluster-ca` and `ingress-ca` only: for how long the old authority issues certificates, in
    /// seconds, at most 30 days. For `cluster-ca` every katcall that is used in this time learns of the
    /// new one; at least 10 seconds, by default one day. One that is used for the first time after it
    /// needs a new connection file. For `ingress-ca` people bring clients to trust the new one in this
    /// time; by default 30 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u32>,
}

/// The replacements of `cluster-ca`, for machines that were off meanwhile and trust the replaced
/// authority alone. Nothing in it is secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthoritySuccessions {
    /// The latest last.
    pub successions: Vec<AuthoritySuccession>,
}

/// Request to end the wait for machines of version 0.1.0 that never come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthorityMigrationRequest {
    /// Names of the machines that are not waited for any more.
    pub without: Vec<String>,
}

/// What the migration from version 0.1.0 waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorityMigration {
    /// Names of the machines that may still read etcd as version 0.1.0 does.
    pub waits_for: Vec<String>,
}

/// A value that a machine which held the store before the recovery key was replaced could read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExposedValue {
    /// What it is: `Secret`, `RegistryLogin`, `Authority` or `Token`. In an object of a newer version, an
    /// unknown word is read as `Secret`.
    #[serde(deserialize_with = "newer::word")]
    pub kind: ExposedKind,
    /// Its namespace; empty for an authority, and for a token that is not for one namespace.
    pub namespace: String,
    /// Name of the secret or the authority, the registry that the credentials are for, or the token's id.
    pub name: String,
    /// When the value was last changed, or the authority or the token made; RFC 3339, UTC.
    pub updated: ApiTime,
}

/// What kind of object has a value that could be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExposedKind {
    /// A secret.
    #[default]
    Secret,
    /// Credentials for a registry.
    RegistryLogin,
    /// KAT's own authority for ingress, whose key is sealed in the store.
    Authority,
    /// A token: the machine that leads sees it in each call.
    Token,
}

impl newer::ExtensibleEnum for ExposedKind {
    const NEWER: Self = Self::Secret;
}

/// The secrets, credentials and tokens that a machine which held the store before the recovery key
/// was replaced could read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExposedValues {
    /// When everything was last sealed with another recovery key; RFC 3339, UTC; empty if the
    /// recovery key was never replaced.
    pub sealed_since: ApiTime,
    /// The values from before that time: secrets and credentials by namespace, then tokens.
    pub items: Vec<ExposedValue>,
    /// Number of secrets and credentials that the leader's version can't read, and that may belong
    /// to them.
    pub unread: u64,
}
