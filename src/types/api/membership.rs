//! What a machine gets that is to hold etcd.

use std::{collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The cluster's authorities with their keys. Only a machine that the leader has chosen gets them,
/// over a connection that its certificate opened.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MembershipAnswer {
    /// By name: `cluster-ca`, `etcd-client-ca`, `etcd-peer-ca`.
    pub authorities: BTreeMap<String, AuthorityKeys>,
    /// The recovery key as it is printed, with which the keys lie sealed on the machine. Empty from
    /// a leader that knows none.
    #[serde(default)]
    pub recovery_key: String,
}

impl fmt::Debug for MembershipAnswer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MembershipAnswer")
            .field("authorities", &self.authorities)
            .finish_non_exhaustive()
    }
}

/// One authority.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityKeys {
    /// Its certificate, PEM.
    pub certificate: String,
    /// Its key, PEM.
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

/// How often the store was begun anew from earlier data, by `recover` or `restore`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StoreEpoch {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Goes up each time; 0 for a store that never was.
    pub epoch: u64,
    /// The epoch sealed with the recovery key, base64: only a machine that holds the store can say so.
    pub proof: String,
}
