//! What a machine that joins sends and gets (RFC001-KAT 4.1.2, 10.6).

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use ipnet::Ipv4Net;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MemberKeys;
use crate::resource::ClusterConfiguration;

/// Asks to be let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    /// Name of the machine.
    pub name: String,
    /// Certificate request for `node:NAME`, PEM. Its key is the machine's identity.
    pub certificate_request: String,
    /// WireGuard's public key, base64.
    pub wireguard_key: String,
    /// `host:port` of its WireGuard.
    pub endpoints: Vec<String>,
    /// Addresses at which others reach it outside the overlay.
    #[schemars(with = "Vec<String>")]
    pub advertise: Vec<IpAddr>,
    /// `amd64`, `arm64` ...
    pub architecture: String,
    /// It never is to hold etcd.
    #[serde(default)]
    pub no_etcd: bool,
    /// It asks to hold etcd, where there is room for one more.
    #[serde(default)]
    pub etcd_peer: bool,
    /// How it is reached.
    #[serde(default)]
    pub reach: Reach,
    /// The keys of the certificates that it is to have while it holds the store.
    #[serde(default, skip_serializing_if = "MemberKeys::is_empty")]
    pub member_keys: MemberKeys,
}

impl JoinRequest {
    /// What the machine's key signs beside itself: all that a machine between it and the leader could
    /// change to its own use. Never another list of values under the same name in the certificate request.
    pub fn statement(&self) -> String {
        let (reach, keys) = (&self.reach, &self.member_keys);
        serde_json::json!([
            self.name,
            self.wireguard_key,
            self.endpoints,
            self.advertise,
            self.architecture,
            [self.no_etcd, self.etcd_peer],
            reach.names,
            [reach.behind_nat, reach.relay],
            [keys.leader, keys.admin],
        ])
        .to_string()
    }
}

/// How a machine is reached, beside its addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Reach {
    /// Host names, to be tried before its addresses.
    pub names: Vec<String>,
    /// Others reach it only where it called them before: it keeps its ways to them open.
    pub behind_nat: bool,
    /// Machines behind NAT reach each other through it.
    pub relay: bool,
}

/// What a machine gets that was let in. Nothing of it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinAnswer {
    /// Identity of the machine.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Identity of the cluster.
    #[serde(rename = "clusterUID")]
    pub cluster_uid: String,
    /// The cluster's configuration.
    pub cluster: ClusterConfiguration,
    /// The machine's part of the overlay.
    #[schemars(with = "String")]
    pub subnet: Ipv4Net,
    /// It was in the cluster already.
    pub known: bool,
    /// Its certificates.
    pub certificates: Certificates,
    /// The other machines.
    pub peers: BTreeMap<String, JoinPeer>,
    /// Where machines answer.
    pub machines: BTreeMap<String, MachineEndpoints>,
}

/// Certificates for a machine's key, PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Certificates {
    /// The machine at the API.
    pub node: String,
    /// The machine as client of etcd.
    pub etcd: String,
    /// The cluster's authority.
    pub cluster_authority: String,
    /// The authority of etcd's clients and servers.
    pub etcd_authority: String,
}

/// Another machine on the overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinPeer {
    /// WireGuard's public key, base64.
    pub public_key: String,
    /// `host:port` of its WireGuard.
    pub endpoints: Vec<String>,
    /// Its part of the overlay.
    #[schemars(with = "String")]
    pub subnet: Ipv4Net,
    /// How it is reached.
    #[serde(default)]
    pub reach: Reach,
}

/// Where a machine answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineEndpoints {
    /// `host:port` of its API, outside the overlay; of a machine behind NAT, the one on it first.
    pub api: Vec<String>,
    /// Its address on the overlay.
    #[schemars(with = "Option<String>")]
    pub overlay: Option<Ipv4Addr>,
    /// It holds etcd.
    pub etcd: bool,
    /// SHA-256 of the public key of its certificate `node:NAME`; a leader of version 0.1.0 writes none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_key: String,
    /// The same of `leader:NAME`, where it is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub leader_key: String,
}

impl MachineEndpoints {
    /// Only the cluster's own machines reach it.
    pub fn is_hidden(&self) -> bool {
        let first = self.api.first();
        let first = first.and_then(|first| first.parse::<SocketAddr>().ok());
        let overlay = self.overlay.map(IpAddr::V4);
        first.is_some_and(|first| Some(first.ip()) == overlay)
    }
}

/// Asks for new certificates for a key that the cluster knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RenewalRequest {
    /// Certificate request for `node:NAME`, PEM, of the machine's known key.
    pub certificate_request: String,
}
