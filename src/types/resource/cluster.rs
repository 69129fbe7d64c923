//! `cluster.kat` (RFC001-KAT 3.9).

use ipnet::Ipv4Net;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::workload::is_default;

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
    /// Whether workloads reach those of other namespaces.
    #[serde(skip_serializing_if = "is_default")]
    pub isolation: Isolation,
    /// Settings of the ingress.
    #[serde(skip_serializing_if = "is_default")]
    pub ingress: IngressSettings,
    /// Certificates by ACME.
    #[serde(skip_serializing_if = "is_default")]
    pub acme: AcmeSettings,
    /// Addresses that one of the machines has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub virtual_addresses: Vec<VirtualAddress>,
}

/// Whether workloads reach those of other namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Isolation {
    /// They do.
    #[default]
    None,
    /// They do, and connections that `Namespaces` would refuse are listed.
    Audit,
    /// They do not, unless their namespace is allowed.
    Namespaces,
}

/// Settings of the ingress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressSettings {
    /// Whether machines serve routes.
    pub enabled: bool,
    /// Addresses whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<String>,
    /// Addresses that have to send a PROXY header.
    pub proxy_protocol_from: Vec<String>,
    /// Domains whose certificates KAT's own authority issues; its default if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_domains: Option<Vec<String>>,
    /// Whether each request is logged.
    pub access_log: bool,
}

impl Default for IngressSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            trusted_proxies: Vec::new(),
            proxy_protocol_from: Vec::new(),
            internal_domains: None,
            access_log: false,
        }
    }
}

/// Certificates by ACME (RFC 8555).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AcmeSettings {
    /// URL of the server's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Address for the server's messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Whether the server's terms are agreed to.
    pub agree_to_terms: bool,
    /// An account of the server's operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eab: Option<AcmeAccount>,
    /// Profile of the certificates.
    pub profile: String,
    /// How names are proved by DNS.
    pub dns: Vec<AcmeZone>,
}

/// An account of the operator of an ACME server (external account binding).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AcmeAccount {
    /// Name of a secret of the namespace `kat-core`.
    pub secret: String,
}

/// How the names of a zone are proved by DNS: exactly one of `rfc2136` and `hook`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AcmeZone {
    /// The zone.
    pub zone: String,
    /// By updates of the zone's server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rfc2136: Option<DnsUpdate>,
    /// By a program of `/etc/kat/dns-hooks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
}

/// A server of DNS that takes updates (RFC 2136).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DnsUpdate {
    /// Host of the server, with or without a port.
    pub server: String,
    /// The key of updates (TSIG).
    pub tsig: TsigKey,
}

/// The key of updates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TsigKey {
    /// Name of a secret of the namespace `kat-core`.
    pub secret: String,
}

/// An address that one of the machines has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualAddress {
    /// The address with the prefix of its network.
    pub address: String,
    /// The machines' interface, or `auto`.
    #[serde(default = "auto")]
    pub interface: String,
    /// What its holder does while there is no leader.
    #[serde(default)]
    pub on_leader_loss: OnLeaderLoss,
}

fn auto() -> String {
    "auto".to_owned()
}

/// What the holder of a virtual address does while there is no leader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnLeaderLoss {
    /// It keeps the address.
    #[default]
    Keep,
    /// It gives the address up.
    Release,
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
            isolation: Isolation::default(),
            ingress: IngressSettings::default(),
            acme: AcmeSettings::default(),
            virtual_addresses: Vec::new(),
        }
    }
}
