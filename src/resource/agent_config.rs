//! `/etc/kat/agent.yaml`: what belongs to one machine.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, ResourceList};

/// Groups that open single kinds of devices, and nothing that leads to root or to what others type.
const GROUPS: [&str; 8] = [
    "audio", "dialout", "gpio", "i2c", "plugdev", "render", "spi", "video",
];

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
    /// Devices that containers may have, or folders of them; a block device only where it is named itself.
    pub devices_allow: Vec<String>,
    /// Groups of the machine that the users of workloads may join.
    pub groups_allow: Vec<String>,
    /// Containers may share the machine's network.
    pub host_network_allow: bool,
    /// The volume base path is the same network file system on every machine.
    pub volume_shared: bool,
    /// UDP port of WireGuard on this machine.
    pub wireguard_port: Option<u16>,
    /// `host:port` at which other machines reach this one's WireGuard.
    pub endpoints: Vec<String>,
    /// How long images stay that nothing uses.
    pub images: KeptImageTimes,
    /// Bytes that are to be free on each of its file systems that KAT writes to; a tenth of it, and at most
    /// 10 GiB, where this is not written.
    pub disk_free: Option<Bytes>,
}

/// How long images stay on a machine that no instance there uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KeptImageTimes {
    /// Days that those of a workload stay that has left the machine.
    pub keep_days: u32,
    /// Hours that one stays of a version that is neither wanted nor gone back to.
    pub old_hours: u32,
}

impl Default for KeptImageTimes {
    fn default() -> Self {
        Self {
            keep_days: 7,
            old_hours: 24,
        }
    }
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
            devices_allow: vec!["/dev".to_owned()],
            groups_allow: GROUPS.map(str::to_owned).to_vec(),
            host_network_allow: false,
            volume_shared: false,
            wireguard_port: None,
            endpoints: Vec::new(),
            images: KeptImageTimes::default(),
            disk_free: None,
        }
    }
}
