//! The files that the agent writes for `kat-net`, under `/var/lib/kat/network`.
//!
//! `kat-net` runs from these files alone: it comes up before etcd and without anyone. Each file is
//! replaced atomically, is JSON, and its readers ignore fields that they do not know.

use kat_types::services::BackendState;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

/// Folder of these files.
pub const FOLDER: &str = "/var/lib/kat/network";
/// This machine: [`NodeNetwork`].
pub const NODE_FILE: &str = "node.json";
/// The other machines: [`Peers`].
pub const PEERS_FILE: &str = "peers.json";
/// This machine's instances: [`Instances`].
pub const INSTANCES_FILE: &str = "instances.json";
/// The cluster's names: [`DnsRecords`].
pub const DNS_FILE: &str = "dns.json";
/// Addresses of services: [`Services`].
pub const SERVICES_FILE: &str = "services.json";
/// What this machine's instances are to callers of its ports: [`HostPortParts`].
pub const HOST_PORTS_FILE: &str = "host-ports.json";
/// How the peers are: [`OverlayState`]; written by `kat-net` with every round, read by the agent.
pub const OVERLAY_FILE: &str = "/run/kat/overlay.json";
/// Ports that programs of the machine have, or had a moment ago: [`MachinePorts`].
pub const MACHINE_PORTS_FILE: &str = "/run/kat/machine-ports.json";
/// WireGuard's private key, base64, 0600.
pub const PRIVATE_KEY_FILE: &str = "wireguard.key";
/// The hook's socket, made by `kat-net.socket`.
pub const HOOK_SOCKET: &str = "/run/kat/net.sock";

/// What this machine is on the overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeNetwork {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Name of the machine.
    pub node: String,
    /// The whole overlay.
    pub cluster_cidr: Ipv4Net,
    /// Addresses of services.
    pub service_cidr: Ipv4Net,
    /// This machine's part of the overlay.
    pub subnet: Ipv4Net,
    /// This machine's address: the first of its subnet.
    pub address: Ipv4Addr,
    /// Suffix of every name.
    pub cluster_domain: String,
    /// UDP port of WireGuard.
    pub wireguard_port: u16,
    /// MTU of `kat0` and of the veths.
    pub mtu: u32,
    /// Where other names are asked; the machine's own resolvers when empty.
    #[serde(default)]
    pub upstream_dns: Vec<IpAddr>,
    /// TCP ports of the machines themselves, which containers do not reach.
    #[serde(default = "control_ports")]
    pub control_ports: BTreeSet<u16>,
    /// Longest time the hook holds an unconfirmed start, in seconds.
    pub hold_seconds: u32,
    /// It passes on what is between two other machines.
    #[serde(default)]
    pub relay: bool,
}

/// Those of etcd, the API and the agents as every cluster has them that was not given others.
pub fn control_ports() -> BTreeSet<u16> {
    [2379, 2380, 9115, 9116].into()
}

/// The other machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peers {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By name.
    pub peers: BTreeMap<String, Peer>,
}

/// Another machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// WireGuard's public key, base64.
    pub public_key: String,
    /// `host:port` in the order to try; names are resolved again when a handshake fails.
    pub endpoints: Vec<String>,
    /// Its part of the overlay.
    pub subnet: Ipv4Net,
    /// Seconds between keepalives, 0 for none.
    #[serde(default)]
    pub keepalive: u16,
    /// The machine that passes on what is between the two; nothing where they reach each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
}

/// How the peers are, as WireGuard has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OverlayState {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By name.
    pub peers: BTreeMap<String, PeerState>,
}

/// How a peer is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerState {
    /// Where it was seen last, or is looked for.
    pub endpoint: Option<SocketAddr>,
    /// Seconds since the epoch; nothing before the first.
    pub last_handshake: Option<u64>,
    /// Bytes sent to it, by this link.
    pub sent: u64,
    /// Bytes received from it.
    pub received: u64,
    /// There is a session.
    pub connected: bool,
    /// It is reached through this machine, and WireGuard has nothing of it.
    pub via: Option<String>,
}

/// This machine's instances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instances {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By instance id.
    pub instances: BTreeMap<String, InstanceNetwork>,
}

/// One instance of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceNetwork {
    /// Namespace of its workload: short names are looked up there first.
    pub namespace: String,
    /// Its workload.
    pub workload: String,
    /// Host uid that may ask for it.
    pub uid: u32,
    /// Name of its service in that user's manager.
    pub unit: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Whether it may start now.
    pub gate: Gate,
    /// Ports of the machine that lead to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPortNetwork>,
}

/// A port of the machine that leads to an instance on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortNetwork {
    /// Port of the machine.
    pub port: u16,
    /// Its transport.
    pub protocol: Transport,
    /// Port of the container.
    pub container_port: u16,
    /// It leads there for the machine's own programs that call 127.0.0.1, too; an agent of before this was said means so.
    #[serde(default = "led_always")]
    pub loopback: bool,
}

fn led_always() -> bool {
    true
}

/// What this machine's instances are to those who call its ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortParts {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By their addresses.
    pub parts: BTreeMap<Ipv4Addr, BackendState>,
}

/// Ports of the machine that its own programs have, or had not long ago.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachinePorts {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// TCP ports.
    pub tcp: BTreeSet<u16>,
    /// UDP ports.
    pub udp: BTreeSet<u16>,
}

/// Whether the hook lets an instance start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Gate {
    /// It may start.
    Open,
    /// It waits until the desired list is confirmed, at most [`NodeNetwork::hold_seconds`]; then
    /// it may start, because nothing writable of it is shared.
    Hold,
    /// It must not start; nor where a newer version says something else.
    #[serde(other)]
    Closed,
}

/// The cluster's zone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsRecords {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Revision of the store that this shows; goes into the SOA's serial.
    pub revision: i64,
    /// Names without the cluster's domain and without a final dot, in lower case
    /// (`web.default`, `web-ab12c.web.default`, `n1.node`), to addresses.
    pub records: BTreeMap<String, Vec<Ipv4Addr>>,
}

/// Addresses of services, and who is behind them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Services {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By `namespace/workload`.
    pub services: BTreeMap<String, ServiceNetwork>,
}

/// One service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceNetwork {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its ports.
    pub ports: Vec<ServicePort>,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Its number, the same at the service's address and in the containers.
    pub port: u16,
    /// Its transport.
    pub protocol: Transport,
    /// Instances that have it, by their addresses.
    pub instances: BTreeMap<Ipv4Addr, BackendState>,
}

/// Transport protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// As nft writes it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// One line of JSON that the hook sends to [`HOOK_SOCKET`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookRequest {
    /// The instance, from the container's annotation [`ANNOTATION`].
    pub instance: String,
    /// Process id of the container, in the host's pid namespace.
    pub pid: i32,
}

/// One line of JSON that answers a [`HookRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookAnswer {
    /// Nothing when the network is in place, else why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl HookAnswer {
    /// Longest reason, bytes. Six times as long when each is escaped, it still fits what the hook
    /// reads.
    const LONGEST: usize = 2048;

    /// The network is in place, or why it is not, cut to what the hook reads.
    pub fn of<T, E: std::fmt::Display>(outcome: &Result<T, E>) -> Self {
        let error = outcome.as_ref().err().map(|reason| {
            let mut reason = reason.to_string();
            reason.truncate(reason.floor_char_boundary(Self::LONGEST));
            reason
        });
        Self { error }
    }
}
