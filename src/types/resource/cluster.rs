//! `cluster.kat` (RFC001-KAT 3.9).

use ipnet::Ipv4Net;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What `kat-agent init` fixes for a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfiguration {
    /// The cluster's name.
    pub metadata: ClusterMetadata,
    /// Its settings.
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

/// Identity of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterMetadata {
    /// DNS-1123 label of at most 40 characters.
    pub name: String,
}

/// Settings of a cluster. CIDRs, domain and ports stay for good; the rest can change later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSpec {
    /// Addresses of machines and instances.
    #[serde(rename = "clusterCIDR")]
    #[schemars(with = "String")]
    pub cluster_cidr: Ipv4Net,
    /// Addresses of services.
    #[serde(rename = "serviceCIDR")]
    #[schemars(with = "String")]
    pub service_cidr: Ipv4Net,
    /// How much longer a node's prefix is than the cluster's.
    pub node_subnet_bits: u8,
    /// Suffix of every name.
    pub cluster_domain: String,
    /// Port of each agent's read and stream endpoints.
    pub agent_port: u16,
    /// Port of the API.
    pub api_port: u16,
    /// Port between etcd members.
    pub etcd_peer_port: u16,
    /// Port of etcd's clients.
    pub etcd_client_port: u16,
    /// UDP port of WireGuard.
    pub wireguard_port: u16,
    /// Where simple cluster storage lies.
    pub volume_base_path: String,
    /// Where the leader keeps backups.
    pub backup_path: String,
    /// Backups kept.
    pub backup_retention: u32,
    /// Minutes between backups.
    pub backup_interval_minutes: u32,
    /// Seconds between heartbeats.
    pub agent_tick_seconds: u32,
    /// Seconds without a heartbeat after which a node is NotReady.
    pub node_loss_timeout_seconds: u32,
    /// MTU of the overlay.
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
