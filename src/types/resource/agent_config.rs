//! `/etc/kat/agent.yaml`: settings of one machine.

use std::{borrow::Cow, fmt, net::IpAddr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{Bytes, ResourceList};

/// Groups that give access to one kind of device each, but not to root or to keyboard input. Older
/// versions of KAT, without `groupsAllow`, let every workload join them.
pub const DEVICE_GROUPS: [&str; 8] = [
    "audio", "dialout", "gpio", "i2c", "plugdev", "render", "spi", "video",
];

/// Settings of one machine. They take precedence over the same settings of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentConfig {
    /// Resources that workloads may not use.
    pub reserved: ResourceList,
    /// DNS servers for names outside the cluster; the machine's own resolvers if empty.
    #[serde(rename = "upstreamDNS")]
    pub upstream_dns: Vec<IpAddr>,
    /// Folders below which host paths may be mounted.
    pub host_mount_allow: Vec<String>,
    /// Folders below which KAT may create missing host paths, besides
    /// `/var/lib/kat/host/NAMESPACE`. If absent, none, except for paths of instances from before
    /// the upgrade that introduced this setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_mount_create: Option<Vec<String>>,
    /// Devices, or folders of devices, that containers may use; a block device must be named
    /// itself. If absent, none, except for devices of instances from before the upgrade that
    /// introduced this setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices_allow: Option<Vec<String>>,
    /// Groups of the machine that the users of workloads may join. If absent, none, except for
    /// groups of instances from before the upgrade that introduced this setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups_allow: Option<Vec<String>>,
    /// Whether containers may use the machine's network.
    pub host_network_allow: bool,
    /// What containers may have beyond Podman's default confinement ([`super::security`]). If
    /// absent, nothing, except for instances from before the upgrade that introduced this setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_allow: Option<Vec<String>>,
    /// Ports of the machine that `hostPort` may forward to workloads; [`PortRange::DEFAULT`] if
    /// absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_ports_allow: Option<Vec<PortRange>>,
    /// Whether host ports also forward connections of the machine's own programs to 127.0.0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_port_loopback: Option<bool>,
    /// Whether the volume base path is the same network file system on every machine.
    pub volume_shared: bool,
    /// UDP port of WireGuard on this machine.
    pub wireguard_port: Option<u16>,
    /// `host:port` at which other machines reach this machine's WireGuard.
    pub endpoints: Vec<String>,
    /// How long unused images are kept.
    pub images: KeptImageTimes,
    /// Bytes to keep free on each file system that KAT writes to; a tenth of the file system, at
    /// most 10 GiB, if absent.
    pub disk_free: Option<Bytes>,
    /// What of the machine containers may ask: `api`, `metadata`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machine_access_allow: Vec<String>,
}

/// How long a machine keeps images that no instance uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KeptImageTimes {
    /// Days for which the images of a workload are kept after it has left the machine.
    pub keep_days: u32,
    /// Hours for which an unused image of a version is kept that is neither the current nor the
    /// last good one.
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

/// A range of ports, in text `80` or `30000-32767`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// First port, at least 1.
    pub first: u16,
    /// Last port, included; not below the first.
    pub last: u16,
}

impl PortRange {
    /// Ports of web servers, and ports that programs can bind without root.
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

    /// Parses a port or a range of ports; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse::<u16>().ok()).flatten()
        };
        let (first, last) = (port(first)?, port(last)?);
        (first > 0 && first <= last).then_some(Self { first, last })
    }

    /// Whether the range contains this port.
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
            machine_access_allow: Vec::new(),
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
