//! Requests and responses of a join and of a certificate renewal (RFC001-KAT 4.1.2, 10.6).

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use ipnet::Ipv4Net;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{api::MemberKeys, resource::ClusterConfiguration};

/// Request of a machine to join the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    /// Name of the machine.
    pub name: String,
    /// Certificate request for `node:NAME`, PEM. The key of the request is the machine's identity.
    pub certificate_request: String,
    /// The machine's public WireGuard key, base64.
    pub wireguard_key: String,
    /// `host:port` of the machine's WireGuard, in the order in which they are tried.
    pub endpoints: Vec<String>,
    /// Addresses outside the overlay at which other machines reach the machine.
    #[schemars(with = "Vec<String>")]
    pub advertise: Vec<IpAddr>,
    /// Architecture of the machine: `amd64`, `arm64` ...
    pub architecture: String,
    /// The machine must never hold etcd.
    #[serde(default)]
    pub no_etcd: bool,
    /// The machine asks to hold etcd, and is preferred to other candidates.
    #[serde(default)]
    pub etcd_peer: bool,
    /// How other machines reach the machine.
    #[serde(default)]
    pub reach: Reach,
    /// Hashes of the keys of the certificates that the machine uses while it holds the store.
    #[serde(default, skip_serializing_if = "MemberKeys::is_empty")]
    pub member_keys: MemberKeys,
    /// The machine reads the state stream, so it needs neither a certificate nor a user of etcd. Not
    /// part of the statement: who changes it on the way gives nobody else a right.
    #[serde(default)]
    pub state_stream: bool,
}

impl JoinRequest {
    /// The values that the machine signs with its key, in its certificate request: a machine that
    /// forwards the request to the leader cannot change them unnoticed. Another list of values
    /// needs another name in the certificate request.
    pub fn statement(&self) -> String {
        let (reach, keys) = (&self.reach, &self.member_keys);
        let mut member_keys = vec![&keys.leader, &keys.admin];
        member_keys.extend(Some(&keys.api).filter(|hash| !hash.is_empty()));
        serde_json::json!([
            self.name,
            self.wireguard_key,
            self.endpoints,
            self.advertise,
            self.architecture,
            [self.no_etcd, self.etcd_peer],
            reach.names,
            [reach.behind_nat, reach.relay],
            member_keys,
        ])
        .to_string()
    }
}

/// How other machines reach a machine, in addition to its addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Reach {
    /// Host names of the machine, tried before its addresses.
    pub names: Vec<String>,
    /// The machine is behind NAT: others can only respond to it, so it sends keepalives to them.
    pub behind_nat: bool,
    /// The machine relays traffic between machines behind NAT.
    pub relay: bool,
}

/// Response to an accepted join. It contains no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinAnswer {
    /// Uid of the machine.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Uid of the cluster.
    #[serde(rename = "clusterUID")]
    pub cluster_uid: String,
    /// The cluster's configuration.
    pub cluster: ClusterConfiguration,
    /// The machine's subnet of the overlay.
    #[schemars(with = "String")]
    pub subnet: Ipv4Net,
    /// The machine was already in the cluster.
    pub known: bool,
    /// Certificates for the machine's key.
    pub certificates: Certificates,
    /// The other machines, by name.
    pub peers: BTreeMap<String, JoinPeer>,
    /// Endpoints of the machines, by name.
    pub machines: BTreeMap<String, MachineEndpoints>,
    /// Certificate of the authority that is to replace the cluster's, PEM; empty without one. The
    /// machine trusts both.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next_cluster_authority: String,
}

/// Certificates for a machine's key, and the authorities that signed them; PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Certificates {
    /// Certificate of the machine for the API.
    pub node: String,
    /// Certificate of the machine as a client of etcd; empty for a machine that reads the state
    /// stream.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub etcd: String,
    /// Certificate of the cluster's authority.
    pub cluster_authority: String,
    /// Certificate of the authority of etcd's clients and servers.
    pub etcd_authority: String,
}

/// Another machine of the overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinPeer {
    /// The machine's public WireGuard key, base64.
    pub public_key: String,
    /// `host:port` of the machine's WireGuard, in the order in which they are tried.
    pub endpoints: Vec<String>,
    /// The machine's subnet of the overlay.
    #[schemars(with = "String")]
    pub subnet: Ipv4Net,
    /// How other machines reach the machine.
    #[serde(default)]
    pub reach: Reach,
}

/// Endpoints of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineEndpoints {
    /// `host:port` of the machine's API, outside the overlay; for a machine behind NAT, the
    /// endpoint on the overlay comes first.
    pub api: Vec<String>,
    /// Overlay address of the machine.
    #[schemars(with = "Option<String>")]
    pub overlay: Option<Ipv4Addr>,
    /// The machine holds etcd.
    pub etcd: bool,
    /// SHA-256 of the public key of the machine's certificate `node:NAME`; empty if a leader of
    /// version 0.1.0 wrote the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_key: String,
    /// SHA-256 of the public key of the machine's certificate `leader:NAME`; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub leader_key: String,
    /// SHA-256 of the public key of the machine's certificate `api:NAME`; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_key: String,
}

impl MachineEndpoints {
    /// Whether the machine is reached over the overlay first, so that only machines of the cluster
    /// can reach it.
    pub fn is_hidden(&self) -> bool {
        let first = self.api.first();
        let first = first.and_then(|first| first.parse::<SocketAddr>().ok());
        let overlay = self.overlay.map(IpAddr::V4);
        first.is_some_and(|first| Some(first.ip()) == overlay)
    }
}

/// Request for new certificates for a key that the cluster knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RenewalRequest {
    /// Certificate request for `node:NAME` with the machine's known key, PEM.
    pub certificate_request: String,
    /// The machine reads the state stream, and needs no certificate of etcd.
    #[serde(default)]
    pub state_stream: bool,
}
