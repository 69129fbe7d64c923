//! `/etc/kat/agent.yaml`: what belongs to one machine.

use std::{borrow::Cow, fmt, net::IpAddr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{Bytes, ResourceList};

/// Groups that open single kinds of devices, and nothing that leads to root or to what others type: what versions let workloads join before
/// the owner was asked.
pub const DEVICE_GROUPS: [&str; 8] = [
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
    /// Folders below which paths may be made that are missing, beside KAT's own of each namespace. Where it is not written none
    /// but what was made before the owner was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_mount_create: Option<Vec<String>>,
    /// Devices that containers may have, or folders of them; a block device only where it is named itself. Where it is
    /// not written none but what instances had before the owner was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices_allow: Option<Vec<String>>,
    /// Groups of the machine that the users of workloads may join; the same holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups_allow: Option<Vec<String>>,
    /// Containers may share the machine's network.
    pub host_network_allow: bool,
    /// What containers may have beyond Podman's own confinement ([`super::security`]). Where it is not written nothing
    /// but what instances had before the owner was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_allow: Option<Vec<String>>,
    /// Ports of the machine that `hostPort` may lead to workloads; [`PortRange::DEFAULT`] where it is not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_ports_allow: Option<Vec<PortRange>>,
    /// They lead there for the machine's own programs that call 127.0.0.1, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_port_loopback: Option<bool>,
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

/// Ports from `first` to `last`, written `80` or `30000-32767`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// From 1.
    pub first: u16,
    /// Not below the first.
    pub last: u16,
}

impl PortRange {
    /// Those of web servers, and what no program of the machine needs root for.
    pub const DEFAULT: [Self; 3] = [
        Self {
            first: 80,
            last: 80,
        },
        Self {
            first: 443,
            last: 443,
        },
        Self {
            first: 1024,
            last: 65_535,
        },
    ];

    /// Nothing where it is no port and no range of ports.
    pub fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse::<u16>().ok()).flatten()
        };
        let (first, last) = (port(first)?, port(last)?);
        (first > 0 && first <= last).then_some(Self { first, last })
    }

    /// Has this port.
    pub fn has(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(formatter, "{}", self.first),
            false => write!(formatter, "{}-{}", self.first, self.last),
        }
    }
}

impl Serialize for PortRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let range = Self::parse(&text);
        range.ok_or_else(|| D::Error::custom(format!("`{text}` is no port and no range of ports")))
    }
}

impl JsonSchema for PortRange {
    fn schema_name() -> Cow<'static, str> {
        "PortRange".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "integer"]})
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
            host_mount_create: None,
            devices_allow: None,
            groups_allow: None,
            host_network_allow: false,
            security_allow: None,
            host_ports_allow: None,
            host_port_loopback: None,
            volume_shared: false,
            wireguard_port: None,
            endpoints: Vec::new(),
            images: KeptImageTimes::default(),
            disk_free: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ports_are_written_as_they_are_read() {
        for (text, ports) in [("80", (80, 80)), ("30000-32767", (30_000, 32_767))] {
            let range = PortRange::parse(text).unwrap();
            assert_eq!((range.first, range.last), ports);
            assert_eq!(range.to_string(), text);
        }
        for text in [
            "", "0", "-", "80-", "-80", "90-80", "65536", "+80", "80-90-95", "http",
        ] {
            assert_eq!(PortRange::parse(text), None, "{text}");
        }
        let has = |port| PortRange::DEFAULT.iter().any(|range| range.has(port));
        assert!(has(80) && has(443) && has(1024) && has(30_000));
        assert!(!has(22) && !has(53) && !has(81) && !has(1023));
    }
}
