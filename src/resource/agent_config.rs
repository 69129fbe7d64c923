//! `/etc/kat/agent.yaml`: what belongs to one machine.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ResourceList;

/// Settings of one machine. Where the cluster's settings name the same thing, these win here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentConfig {
    /// Kept back from workloads.
    pub reserved: ResourceList,
    /// Where names outside the cluster are asked; the machine's own resolvers when empty.
    #[serde(rename = "upstreamDNS")]
    pub upstream_dns: Vec<IpAddr>,
    /// Folders below which host paths may be mounted.
    pub host_mount_allow: Vec<String>,
    /// The volume base path is the same network file system on every machine.
    pub volume_shared: bool,
    /// UDP port of WireGuard on this machine.
    pub wireguard_port: Option<u16>,
    /// `host:port` at which other machines reach this one's WireGuard.
    pub endpoints: Vec<String>,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            reserved: ResourceList::default(),
            upstream_dns: Vec::new(),
            host_mount_allow: vec![
                "/srv".to_owned(),
                "/mnt".to_owned(),
                "/var/lib/kat/host".to_owned(),
            ],
            volume_shared: false,
            wireguard_port: None,
            endpoints: Vec::new(),
        }
    }
}
