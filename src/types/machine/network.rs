//! Names that the data path shares with the crates that render units and read the journal.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use super::isolation::MachineAccess;
use crate::services::BackendState;

/// The program that Podman calls as `kat-net hook` for each container.
pub const HOOK_PROGRAM: &str = "/usr/libexec/kat/kat-net";

/// Annotation that names the instance and makes the hook run.
pub const ANNOTATION: &str = "rip.dws.kat.instance";

/// Journal field that marks lines of the hook, so that the agent can distinguish failures of the
/// hook from those of the program.
pub const HOOK_JOURNAL_FIELD: &str = "KAT_HOOK_ERROR";

/// The value of [`HOOK_JOURNAL_FIELD`] in the line in which `kat-net` says that it has killed an
/// instance at its deadline.
pub const FENCED_JOURNAL_VALUE: &str = "fenced";

/// Folder of these files.
pub const FOLDER: &str = "/var/lib/kat/network";
/// This machine's own network: [`NodeNetwork`].
pub const NODE_FILE: &str = "node.json";
/// The other machines: [`PeerMachines`].
pub const PEERS_FILE: &str = "peers.json";
/// This machine's instances: [`Instances`].
pub const INSTANCES_FILE: &str = "instances.json";
/// The cluster's DNS records: [`DnsRecords`].
pub const DNS_FILE: &str = "dns.json";
/// Service addresses: [`Services`].
pub const SERVICES_FILE: &str = "services.json";
/// The parts of this machine's instances behind its host ports: [`HostPortParts`].
pub const HOST_PORTS_FILE: &str = "host-ports.json";
/// The state of the peers: [`OverlayState`]; written by `kat-net` in every round, read by the
/// agent.
pub const OVERLAY_FILE: &str = "/run/kat/overlay.json";
/// Ports on which the machine's own programs listen, or listened recently: [`MachinePorts`].
pub const MACHINE_PORTS_FILE: &str = "/run/kat/machine-ports.json";
/// Machines that do not answer over the overlay, for `kat-ingress`: [`SilentPeers`]; 0644. It lies
/// in memory, so that a machine that has booted has none.
pub const SILENT_PEERS_FILE: &str = "/run/kat/silent-peers.json";
/// Until when the instances of [`Instances::fenced`] may run:
/// [`RunDeadlines`](super::fence::RunDeadlines). It lies in memory, so that a machine that has
/// booted has none.
pub const DEADLINES_FILE: &str = "/run/kat/deadlines.json";
/// WireGuard's private key, base64, 0600.
pub const PRIVATE_KEY_FILE: &str = "wireguard.key";
/// UDP port of the announcements with which machines find each other on a LAN, the same on every
/// machine.
pub const ANNOUNCE_PORT: u16 = 9117;
/// The hook's socket, made by `kat-net.socket`.
pub const HOOK_SOCKET: &str = "/run/kat/net.sock";

/// This machine's own network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeNetwork {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Name of the machine.
    pub node: String,
    /// The overlay's network.
    pub cluster_cidr: Ipv4Net,
    /// The network of service addresses.
    pub service_cidr: Ipv4Net,
    /// This machine's subnet of the overlay.
    pub subnet: Ipv4Net,
    /// This machine's address: the first of its subnet.
    pub address: Ipv4Addr,
    /// Suffix of every DNS name.
    pub cluster_domain: String,
    /// UDP port of WireGuard.
    pub wireguard_port: u16,
    /// MTU of `kat0` and of the veths.
    pub mtu: u32,
    /// Resolvers for other names; empty for the machine's own.
    #[serde(default)]
    pub upstream_dns: Vec<IpAddr>,
    /// TCP ports of the machines' own services, which containers may not reach.
    #[serde(default = "control_ports")]
    pub control_ports: BTreeSet<u16>,
    /// Port of the API, one of `control_ports`: containers with
    /// [`MachineAccess::Api`](super::isolation::MachineAccess::Api) may reach it at `address`. Agents
    /// without this field open it to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_port: Option<u16>,
    /// Longest time the hook holds an unconfirmed start, in seconds.
    pub hold_seconds: u32,
    /// Whether the machine relays packets between two other machines.
    #[serde(default)]
    pub relay: bool,
}

/// The ports of etcd, the API and the agents in a cluster with default ports.
pub fn control_ports() -> BTreeSet<u16> {
    [2379, 2380, 9115, 9116].into()
}

/// The other machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerMachines {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By name.
    pub peers: BTreeMap<String, PeerMachine>,
}

/// Another machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerMachine {
    /// WireGuard's public key, base64.
    pub public_key: String,
    /// `host:port` in the order to try; names are resolved again when a handshake fails.
    pub endpoints: Vec<String>,
    /// Its subnet of the overlay.
    pub subnet: Ipv4Net,
    /// Seconds between keepalives, 0 for none.
    #[serde(default)]
    pub keepalive: u16,
    /// The machine that relays the packets; `None` where the two reach each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
}

/// The state of the peers in WireGuard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OverlayState {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By name.
    pub peers: BTreeMap<String, PeerState>,
}

/// State of a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerState {
    /// Present endpoint in WireGuard.
    pub endpoint: Option<SocketAddr>,
    /// Seconds since the epoch; `None` before the first.
    pub last_handshake: Option<u64>,
    /// Bytes sent to it, by this link.
    pub sent: u64,
    /// Bytes received from it.
    pub received: u64,
    /// Whether there is a session.
    pub connected: bool,
    /// Seconds since it was first asked in vain whether it answers; `None` if it answered the last
    /// question, or was asked none.
    pub unanswered_seconds: Option<u32>,
    /// The relay to this peer; WireGuard then has no state of the peer itself.
    pub via: Option<String>,
}

/// Machines to which `kat-net` sends no new connections, because they do not answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SilentPeers {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Their subnets of the overlay, by name.
    pub subnets: BTreeMap<String, Ipv4Net>,
}

/// This machine's instances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instances {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By instance id.
    pub instances: BTreeMap<String, InstanceNetwork>,
    /// The instances with `onPartition: stop`, by id, those on the machine's own network too: each
    /// runs only before its deadline in [`DEADLINES_FILE`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fenced: BTreeMap<String, FencedInstance>,
}

/// An instance that runs only before its deadline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FencedInstance {
    /// Uid of its user.
    pub uid: u32,
    /// The services of all its containers in that user's manager.
    pub units: Vec<String>,
}

/// One instance of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceNetwork {
    /// Namespace of its workload: short names are looked up there first.
    pub namespace: String,
    /// Its workload.
    pub workload: String,
    /// Host uid that may request its network.
    pub uid: u32,
    /// Name of its service in that user's manager.
    pub unit: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Whether it may start now.
    pub gate: StartGate,
    /// Host ports that are forwarded to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPortNetwork>,
    /// What of the machine it may reach: its `machineAccess`, as far as the machine's owner allows
    /// it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub machine_access: BTreeSet<MachineAccess>,
}

/// A host port that is forwarded to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortNetwork {
    /// Port of the machine.
    pub port: u16,
    /// Its protocol.
    pub protocol: Transport,
    /// Port of the container.
    pub container_port: u16,
    /// The port is also forwarded for the machine's own programs that connect to 127.0.0.1. Agents
    /// without this field forwarded it, so that is the default.
    #[serde(default = "loopback_default")]
    pub loopback: bool,
}

fn loopback_default() -> bool {
    true
}

/// The parts of this machine's instances behind its host ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortParts {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By the instances' addresses.
    pub parts: BTreeMap<Ipv4Addr, BackendState>,
    /// The host ports that only some addresses may use, by the addresses of the instances that have
    /// them. `kat-net` before data path 11 does not know this field, and opens them to all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<Ipv4Addr, Vec<RestrictedHostPort>>,
    /// The host ports that this machine has because it serves routes. `kat-net` before data path 11 does
    /// not know this field, and does not open them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<IngressHostPort>,
}

/// A host port of a machine that serves routes. Its instances may run on other machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressHostPort {
    /// Port of the machine.
    pub port: u16,
    /// Its protocol.
    pub protocol: Transport,
    /// Namespace of its workload.
    pub namespace: String,
    /// Its workload.
    pub workload: String,
    /// The instances behind it, by address.
    pub instances: BTreeMap<Ipv4Addr, IngressBackend>,
    /// The addresses and ranges that may use it, as [`RestrictedHostPort::allow_sources`]; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_sources: Option<Vec<IpNet>>,
}

/// An instance behind a host port of machines that serve routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressBackend {
    /// Port of the container.
    pub port: u16,
    /// Its part in the port's traffic.
    pub state: BackendState,
}

/// A host port that only some addresses may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestrictedHostPort {
    /// Port of the machine.
    pub port: u16,
    /// Its protocol.
    pub protocol: Transport,
    /// Addresses and ranges; nobody if it is empty. Host ports are IPv4, so that those of IPv6 admit
    /// nobody.
    pub allow_sources: Vec<IpNet>,
}

/// Ports on which the machine's own programs listen, or listened recently.
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
pub enum StartGate {
    /// The instance may start.
    Open,
    /// The instance waits until the desired list is confirmed, at most
    /// [`NodeNetwork::hold_seconds`]; then it may start, because no other instance shares its
    /// writable data.
    Hold,
    /// The instance must not start. Also stands for unknown values of newer versions.
    #[serde(other)]
    Closed,
}

/// The cluster's DNS records.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsRecords {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Revision of the store that the records show; part of the SOA's serial.
    pub revision: i64,
    /// Addresses by name, without the cluster's domain and a final dot, in lower case
    /// (`web.default`, `web-ab12c.web.default`, `n1.node`).
    pub records: BTreeMap<String, Vec<Ipv4Addr>>,
}

/// Service addresses, and the instances behind them.
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
    pub ports: Vec<ServicePortBackends>,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePortBackends {
    /// Its number, the same at the service address and in the containers.
    pub port: u16,
    /// Its protocol.
    pub protocol: Transport,
    /// Instances with this port, by address.
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
    /// The name in nft's syntax.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// The hook's request: one line of JSON, sent to [`HOOK_SOCKET`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookRequest {
    /// The instance, from the container's annotation [`ANNOTATION`].
    pub instance: String,
    /// Process id of the container, in the host's pid namespace.
    pub pid: i32,
}

/// The answer to a [`HookRequest`]: one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookAnswer {
    /// Why the network is not in place; `None` when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl HookAnswer {
    /// Longest error in bytes. Even if each byte is escaped to six, it fits the hook's limit.
    const LONGEST: usize = 2048;

    /// The answer for an outcome, with the error cut to the hook's limit.
    pub fn of<T, E: std::fmt::Display>(outcome: &Result<T, E>) -> Self {
        let error = outcome.as_ref().err().map(|reason| {
            let mut reason = reason.to_string();
            reason.truncate(reason.floor_char_boundary(Self::LONGEST));
            reason
        });
        Self { error }
    }
}

/// The machine's own address: the first host of its subnet.
pub fn node_address(subnet: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(subnet.network()).saturating_add(1))
}

/// Subnet number `index` of the overlay, `bits` longer than its prefix; `None` when there is none.
pub fn node_subnet(cluster: Ipv4Net, bits: u8, index: u32) -> Option<Ipv4Net> {
    let prefix = cluster.prefix_len().checked_add(bits)?;
    if prefix > 30 || u64::from(index) >= 1u64 << bits {
        return None;
    }
    let size = 1u32.checked_shl(32 - u32::from(prefix))?;
    let network = u32::from(cluster.network()).checked_add(index.checked_mul(size)?)?;
    Ipv4Net::new(Ipv4Addr::from(network), prefix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn carves_subnets_as_the_specification_does() {
        assert_eq!(
            node_subnet(net("10.100.0.0/16"), 7, 0),
            Some(net("10.100.0.0/23"))
        );
        assert_eq!(
            node_subnet(net("10.100.0.0/16"), 7, 1),
            Some(net("10.100.2.0/23"))
        );
        assert_eq!(
            node_subnet(net("10.100.0.0/16"), 7, 127),
            Some(net("10.100.254.0/23"))
        );
        assert_eq!(node_subnet(net("10.100.0.0/16"), 7, 128), None);
        assert_eq!(
            node_address(net("10.100.2.0/23")),
            Ipv4Addr::new(10, 100, 2, 1)
        );
    }
}
