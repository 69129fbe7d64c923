//! What a machine gets that is to hold etcd.

use std::{collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The cluster's authorities with their keys. Only a machine that the leader has chosen gets them,
/// over a connection that its certificate opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MembershipAnswer {
    /// By name: `cluster-ca`, `etcd-client-ca`, `etcd-peer-ca`.
    pub authorities: BTreeMap<String, AuthorityKeys>,
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
