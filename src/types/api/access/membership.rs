//! Keys for a machine that becomes a member of etcd, and the epoch of the store.

use std::{collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The cluster's authorities with their private keys. The leader sends them only to a machine that
/// it has chosen to hold etcd, over a connection that the machine's certificate authenticates.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MembershipAnswer {
    /// The authorities by name: `cluster-ca`, `etcd-client-ca` and `etcd-peer-ca`.
    pub authorities: BTreeMap<String, AuthorityKeys>,
    /// The authorities that will replace others, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub next: BTreeMap<String, AuthorityKeys>,
    /// The recovery key in its printed form, which seals the private keys on the machine's disk.
    /// Empty if the leader has none.
    #[serde(default)]
    pub recovery_key: String,
    /// The recovery keys, in their printed form, that open only: the one that will replace the
    /// present one, and the earlier one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_recovery_keys: Vec<String>,
}

impl fmt::Debug for MembershipAnswer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MembershipAnswer")
            .field("authorities", &self.authorities)
            .finish_non_exhaustive()
    }
}

/// A certificate authority.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityKeys {
    /// Certificate of the authority, PEM.
    pub certificate: String,
    /// Private key of the authority, PEM.
    pub key: String,
}

impl fmt::Debug for AuthorityKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AuthorityKeys")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// Epoch of the store: how often `recover` or `restore` has replaced the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StoreEpoch {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Number of the epoch: 0 at init, increased by each `recover` or `restore`.
    pub epoch: u64,
    /// The epoch sealed with the recovery key, base64: only a machine that holds the store can
    /// produce it.
    pub proof: String,
    /// Earlier epochs, the latest first, each sealed with the recovery key of its time: a machine that
    /// was away while the recovery key was replaced believes one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<EarlierEpoch>,
    /// The epoch signed by the key that is derived from the recovery key, base64: machines without
    /// the store check it with a verifier that they know. Empty if an earlier version began the
    /// epoch.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub signature: String,
    /// The public keys of the recovery keys in force, base64, the present one first. Empty if an
    /// earlier version wrote the record.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verifiers: Vec<String>,
    /// Verifiers that an earlier recovery key has signed when it was replaced, the latest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endorsements: Vec<VerifierEndorsement>,
    /// The machine that a `restore` began this epoch on, under the name of the machine that made the
    /// backup. Absent if another command began the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<StoreServer>,
}

/// An epoch of the store before the present one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EarlierEpoch {
    /// Number of the epoch.
    pub epoch: u64,
    /// The epoch sealed with the recovery key of that time, base64.
    pub proof: String,
    /// The epoch signed by the key that is derived from the recovery key of that time, base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub signature: String,
    /// The machine that a `restore` began this epoch on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<StoreServer>,
}

/// The statement of an earlier recovery key that a later one takes its place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VerifierEndorsement {
    /// Verifier of the later recovery key, base64.
    pub verifier: String,
    /// Verifier of the earlier recovery key, base64.
    pub by: String,
    /// Signature of the earlier recovery key, base64.
    pub signature: String,
}

/// The statement of a holder of the recovery key that a machine holds the store of an epoch, and by
/// which key its API is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StoreServer {
    /// Name of the machine.
    pub machine: String,
    /// SHA-256 of the public key of its API's certificate, hexadecimal.
    pub key_hash: String,
    /// Signature by the recovery key over cluster, epoch, machine and key, base64.
    pub signature: String,
}
