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
    /// present one, and the one of before.
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
}

/// An epoch of the store before the present one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EarlierEpoch {
    /// Number of the epoch.
    pub epoch: u64,
    /// The epoch sealed with the recovery key of that time, base64.
    pub proof: String,
}
