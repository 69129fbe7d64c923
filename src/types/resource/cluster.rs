//! `cluster.kat` (RFC001-KAT 3.9).

use ipnet::Ipv4Net;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Configuration of a cluster, set by `kat-agent init`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfiguration {
    /// The cluster's name.
    pub metadata: ClusterMetadata,
    /// Settings of the cluster.
    pub spec: ClusterSpec,
}

impl Default for ClusterConfiguration {
    fn default() -> Self {
        Self {
            metadata: ClusterMetadata {
                name: "kat".to_owned(),
            },
            spec: ClusterSpec::default(),
        }
    }
}

/// Name of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterMetadata {
    /// DNS-1123 label of at most 40 characters.
    pub name: String,
}

/// Settings of a cluster. CIDRs, `nodeSubnetBits`, domain, ports and `volumeBasePath` cannot be
/// changed after init; the others can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSpec {
    /// Range of the overlay addresses of machines and instances.
    #[serde(rename = "clusterCIDR")]
    #[schemars(with = "String")]
    pub cluster_cidr: Ipv4Net,
    /// Range of the virtual addresses of services.
    #[serde(rename = "serviceCIDR")]
    #[schemars(with = "String")]
    pub service_cidr: Ipv4Net,
    /// Difference between the prefix length of a machine's subnet and that of `clusterCIDR`.
    pub node_subnet_bits: u8,
    /// DNS domain of the cluster.
    pub cluster_domain: String,
    /// Port of each agent, to which the leader forwards requests such as logs and sessions.
    pub agent_port: u16,
    /// Port of the API.
    pub api_port: u16,
    /// Port of etcd for its peers.
    pub etcd_peer_port: u16,
    /// Port of etcd for its clients.
    pub etcd_client_port: u16,
    /// UDP port of WireGuard.
    pub wireguard_port: u16,
    /// Folder of simple cluster storage on each machine.
    pub volume_base_path: String,
    /// Folder of the leader's backups.
    pub backup_path: String,
    /// Number of backups that are kept.
    pub backup_retention: u32,
    /// Minutes between backups.
    pub backup_interval_minutes: u32,
    /// Seconds between two reports of an agent.
    pub agent_tick_seconds: u32,
    /// Seconds without a report after which a machine is NotReady.
    pub node_loss_timeout_seconds: u32,
    /// MTU of the overlay interface.
    pub mtu: u32,
}

impl Default for ClusterSpec {
    fn default() -> Self {
        Self {
            cluster_cidr: Ipv4Net::new_assert([10, 100, 0, 0].into(), 16),
            service_cidr: Ipv4Net::new_assert([10, 200, 0, 0].into(), 16),
            node_subnet_bits: 7,
            cluster_domain: "kat.cluster.local".to_owned(),
            agent_port: 9116,
            api_port: 9115,
            etcd_peer_port: 2380,
            etcd_client_port: 2379,
            wireguard_port: 51820,
            volume_base_path: "/var/lib/kat/volumes".to_owned(),
            backup_path: "/var/lib/kat/backups".to_owned(),
            backup_retention: 5,
            backup_interval_minutes: 30,
            agent_tick_seconds: 15,
            node_loss_timeout_seconds: 60,
            mtu: 1420,
        }
    }
}
