//! Writes the state files of `kat-net` (`kat_types::machine::network`) from the store's keys.

use std::{collections::BTreeMap, net::Ipv4Addr, ops::Bound, path::PathBuf};

use ipnet::Ipv4Net;
use serde::{Serialize, de::DeserializeOwned};

use crate::{desired_state::desired::DesiredState, worker::users::machine_options::MachineOptions};
use kat_host::files::{self, FileAccess, FileError};
use kat_store::mirror::MirrorEntries;
use kat_types::{
    api::{JoinPeer, Reach},
    assignment::DesiredRun,
    machine::isolation::{ISOLATION_FILE, IsolationRules},
    machine::network::{
        DNS_FILE, DnsRecords, FencedInstance, HOST_PORTS_FILE, HostPortNetwork, HostPortParts,
        INSTANCES_FILE, InstanceNetwork, Instances, NODE_FILE, NodeNetwork, PEERS_FILE,
        PeerMachine, PeerMachines, RestrictedHostPort, SERVICES_FILE, ServiceNetwork,
        ServicePortBackends, Services, StartGate, Transport,
    },
    resource::{OnPartition, Protocol},
    services::{BackendState, ServiceAddress, ServiceBalance, host_port_statuses},
    store::{keys, transaction::KeyValue},
    virtual_addresses::{AddressGrants, GRANTS_FILE},
};

/// Seconds between two WireGuard keepalive packets; most NAT routers drop a mapping after 30 s or
/// more.
const KEEPALIVE: u16 = 25;

/// Largest list of instances that is read back, in bytes.
const INSTANCES_LIMIT: u64 = 64 << 20;

/// Writes the state files into one folder.
#[derive(Debug, Clone)]
pub struct NetworkFiles {
    folder: PathBuf,
}

impl NetworkFiles {
    /// The folder is made by init.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The path of the file with this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes this machine's own network settings.
    pub fn write_node(&self, node: &NodeNetwork) -> Result<bool, FileError> {
        self.write(NODE_FILE, node)
    }

    /// Writes the list of the other machines.
    pub fn write_peers(&self, peers: &PeerMachines) -> Result<bool, FileError> {
        self.write(PEERS_FILE, peers)
    }

    /// Writes the list of this machine's instances.
    pub fn write_instances(&self, instances: &Instances) -> Result<bool, FileError> {
        self.write(INSTANCES_FILE, instances)
    }

    /// Reads the list of instances that was last written; empty where the file can't be read.
    pub fn written_instances(&self) -> Instances {
        let text = files::read_bounded(&self.path(INSTANCES_FILE), INSTANCES_LIMIT);
        text.ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default()
    }

    /// Writes the cluster's DNS records.
    pub fn write_dns(&self, records: &DnsRecords) -> Result<bool, FileError> {
        self.write(DNS_FILE, records)
    }

    /// Writes the share of this machine's instances in the traffic of its host ports.
    pub fn write_host_ports(&self, parts: &HostPortParts) -> Result<bool, FileError> {
        self.write(HOST_PORTS_FILE, parts)
    }

    /// Writes who may reach whom.
    pub fn write_isolation(&self, rules: &IsolationRules) -> Result<bool, FileError> {
        self.write(ISOLATION_FILE, rules)
    }

    /// Writes which virtual addresses this machine is to hold.
    pub fn write_virtual_addresses(&self, grants: &AddressGrants) -> Result<bool, FileError> {
        self.write(GRANTS_FILE, grants)
    }

    /// Writes the service addresses.
    pub fn write_services(&self, services: &Services) -> Result<bool, FileError> {
        self.write(SERVICES_FILE, services)
    }

    fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<bool, FileError> {
        let path = self.path(name);
        let text = files::json_of(&path, value)?;
        files::write_if_changed(&path, &text, FileAccess::mode(0o600))
    }
}

/// The instances that may request a network, including those that are being stopped, but neither
/// those on the machine's own network nor those that are only prepared. Only host ports that the
/// machine's owner allows are included. `kat-net` is the fence of those with `onPartition: stop`,
/// also of those on the machine's own network.
pub(crate) fn instances(desired: &DesiredState, options: &MachineOptions) -> Instances {
    let started = || {
        let all = desired.assignments.values();
        all.filter(|one| one.wanted != DesiredRun::Prepared)
    };
    let fenced = started().filter(|one| one.on_partition == OnPartition::Stop);
    let fenced = fenced.map(|assignment| {
        let instance = FencedInstance {
            uid: assignment.user.uid,
            units: assignment.units(),
        };
        (assignment.instance.clone(), instance)
    });
    let own = started().filter(|one| !one.container.host_network);
    let entries = own.map(|assignment| {
        let network = InstanceNetwork {
            namespace: assignment.namespace.clone(),
            workload: assignment.workload.clone(),
            uid: assignment.user.uid,
            unit: assignment.asking_unit(),
            address: assignment.address,
            gate: StartGate::Open,
            host_ports: host_port_statuses(&assignment.ports)
                .into_iter()
                .filter(|port| options.allows_host_port(assignment, port.port))
                .map(|port| HostPortNetwork {
                    port: port.port,
                    protocol: transport(port.protocol),
                    container_port: port.container_port,
                    loopback: options.allows_loopback(assignment, port.port),
                })
                .collect(),
            machine_access: options.machine_access(assignment),
        };
        (assignment.instance.clone(), network)
    });
    Instances {
        schema: 1,
        instances: entries.collect(),
        fenced: fenced.collect(),
    }
}

/// The DNS records from the keys below `/kat/dns/`.
pub(crate) fn dns_records(entries: &MirrorEntries, revision: i64) -> DnsRecords {
    let mut records: BTreeMap<String, Vec<Ipv4Addr>> = BTreeMap::new();
    for key in entries.keys() {
        let Some(rest) = key.strip_prefix(keys::DNS) else {
            continue;
        };
        let mut parts = rest.splitn(4, '/');
        let (Some(namespace), Some(workload), Some("A"), Some(value)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (name, address) = match value.split_once('=') {
            Some((instance, address)) => (format!("{instance}.{workload}.{namespace}"), address),
            None if namespace == "node" => (format!("{workload}.node"), value),
            None => (format!("{workload}.{namespace}"), value),
        };
        if let Ok(address) = address.parse() {
            records.entry(name).or_default().push(address);
        }
    }
    DnsRecords {
        schema: 1,
        revision,
        records,
    }
}

/// The service addresses from the keys below `/kat/network/services/`. A value that this version
/// can't read, because a newer version wrote it, is left out.
pub(crate) fn services(entries: &MirrorEntries) -> Services {
    let mut services = BTreeMap::new();
    for (key, entry) in entries_below(entries, keys::SERVICES) {
        let Some(name) = key.strip_suffix("/ip") else {
            continue;
        };
        let Some(ServiceAddress { address, .. }) = read(entry) else {
            continue;
        };
        let balance = format!("{}{name}/balance", keys::SERVICES);
        let balance = entries.get(balance.as_str()).and_then(|entry| read(entry));
        let ServiceBalance { ports, .. } = balance.unwrap_or_default();
        let ports = ports.into_iter().map(|port| ServicePortBackends {
            port: port.port,
            protocol: transport(port.protocol),
            instances: port.instances.into_iter().collect(),
        });
        let ports = ports.collect();
        services.insert(name.to_owned(), ServiceNetwork { address, ports });
    }
    Services {
        schema: 1,
        services,
    }
}

/// The shares of this machine's instances in the traffic of its host ports, and who may use these ports,
/// from the keys below `/kat/network/services/`.
///
/// A machine that reads that it is away has returned, and the leader has not decided by its report
/// yet: its ports stay open meanwhile.
pub(crate) fn host_port_parts(entries: &MirrorEntries, subnet: Ipv4Net) -> HostPortParts {
    let balances =
        entries_below(entries, keys::SERVICES).filter(|(key, _)| key.ends_with("/balance"));
    let mut found = HostPortParts {
        schema: 1,
        ..HostPortParts::default()
    };
    for balance in balances.filter_map(|(_, entry)| read::<ServiceBalance>(entry)) {
        let restricted = balance.sources.into_iter().map(|one| RestrictedHostPort {
            port: one.port,
            protocol: transport(one.protocol),
            allow_sources: one.allow_sources,
        });
        let restricted: Vec<RestrictedHostPort> = restricted.collect();
        let instances = balance.ports.into_iter().flat_map(|port| port.instances);
        for (address, state) in instances.filter(|(address, _)| subnet.contains(address)) {
            let state = match state {
                BackendState::Away => BackendState::Serving,
                BackendState::Serving | BackendState::Leaving | BackendState::Held => state,
            };
            found.parts.insert(address, state);
            if !restricted.is_empty() {
                found.sources.insert(address, restricted.clone());
            }
        }
    }
    found
}

/// The protocol as `kat-net`'s files name it.
pub(crate) fn transport(protocol: Protocol) -> Transport {
    match protocol {
        Protocol::Tcp => Transport::Tcp,
        Protocol::Udp => Transport::Udp,
    }
}

/// The keys below a prefix, each without the prefix.
pub(super) fn entries_below<'a>(
    entries: &'a MirrorEntries,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a str, &'a KeyValue)> {
    entries
        .range::<_, str>((Bound::Included(prefix), Bound::Unbounded))
        .map_while(move |(key, entry)| key.strip_prefix(prefix).map(|rest| (rest, entry.as_ref())))
}

pub(super) fn read<T: DeserializeOwned>(entry: &KeyValue) -> Option<T> {
    let read = serde_json::from_slice(&entry.value);
    read.inspect_err(|error| tracing::error!(key = entry.key, "it can't be read: {error:#}"))
        .ok()
}

/// The other machines from the keys below `/kat/network/nodes/`.
pub(crate) fn peers(entries: &MirrorEntries, own: &str) -> PeerMachines {
    let mut raw: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (key, entry) in entries.iter() {
        let Some((node, field)) = key
            .strip_prefix(keys::NETWORK_NODES)
            .and_then(|rest| rest.split_once('/'))
        else {
            continue;
        };
        let value = String::from_utf8_lossy(&entry.value).into_owned();
        raw.entry(node.to_owned())
            .or_default()
            .insert(field.to_owned(), value);
    }
    let own = raw.remove(own).and_then(|fields| json(&fields, "reach"));
    let others = raw.into_iter().filter_map(|(node, fields)| {
        let other = JoinPeer {
            public_key: fields.get("wg_pubkey")?.clone(),
            endpoints: json(&fields, "wg_endpoints").unwrap_or_default(),
            subnet: fields.get("subnet")?.parse().ok()?,
            reach: json(&fields, "reach").unwrap_or_default(),
        };
        Some((node, other))
    });
    peers_of(&own.unwrap_or_default(), &others.collect())
}

fn json<T: DeserializeOwned>(fields: &BTreeMap<String, String>, name: &str) -> Option<T> {
    serde_json::from_str(fields.get(name)?).ok()
}

/// The other machines as peers of a machine with this reachability. Two machines behind NAT
/// communicate through the first relay: both have to choose the same one.
pub(crate) fn peers_of(own: &Reach, others: &BTreeMap<String, JoinPeer>) -> PeerMachines {
    let relay = others
        .iter()
        .find(|(_, other)| other.reach.relay && !other.reach.behind_nat)
        .map(|(name, _)| name.clone());
    let peers = others.iter().map(|(name, other)| {
        let both_hidden = own.behind_nat && other.reach.behind_nat;
        let peer = PeerMachine {
            public_key: other.public_key.clone(),
            endpoints: other.endpoints.clone(),
            subnet: other.subnet,
            keepalive: if own.behind_nat { KEEPALIVE } else { 0 },
            via: relay.clone().filter(|_| both_hidden),
        };
        (name.clone(), peer)
    });
    PeerMachines {
        schema: 1,
        peers: peers.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn entries(pairs: &[(&str, &str)]) -> MirrorEntries {
        let entry = |key: &str, value: &str| KeyValue {
            key: key.to_owned(),
            value: value.as_bytes().to_vec(),
            mod_revision: 1,
            create_revision: 1,
        };
        pairs
            .iter()
            .map(|(key, value)| (Arc::from(*key), Arc::new(entry(key, value))))
            .collect()
    }

    #[test]
    fn names_workloads_instances_and_machines() {
        let entries = entries(&[
            ("/kat/dns/default/web/A/10.100.0.2", "null"),
            ("/kat/dns/default/web/A/web-abcde=10.100.0.2", "null"),
            ("/kat/dns/node/n1/A/10.100.0.1", "null"),
        ]);
        let records = dns_records(&entries, 7).records;
        let names: Vec<_> = records.keys().map(String::as_str).collect();
        assert_eq!(names, ["n1.node", "web-abcde.web.default", "web.default"]);
    }

    #[test]
    fn services_have_what_can_be_read_of_them() {
        let balance = r#"{"schema":1,"later":0,"ports":[{"port":80,"protocol":"TCP","instances":
            {"10.100.0.2":"serving","10.100.0.3":"leaving","10.100.0.4":"dreaming"}}]}"#;
        let address = r#"{"schema":1,"address":"10.200.0.5"}"#;
        let entries = entries(&[
            ("/kat/network/nodes/n1/subnet", "10.100.0.0/23"),
            ("/kat/network/services/default/broken/ip", "{}"),
            ("/kat/network/services/default/early/ip", address),
            ("/kat/network/services/default/gone/balance", balance),
            ("/kat/network/services/default/web/balance", balance),
            ("/kat/network/services/default/web/ip", address),
        ]);
        let services = services(&entries).services;
        let names: Vec<_> = services.keys().map(String::as_str).collect();
        assert_eq!(names, ["default/early", "default/web"]);
        assert_eq!(services["default/early"].ports, []);
        let web = &services["default/web"];
        assert_eq!(web.address, Ipv4Addr::new(10, 200, 0, 5));
        let parts: Vec<BackendState> = web.ports[0].instances.values().copied().collect();
        assert_eq!(
            parts,
            [
                BackendState::Serving,
                BackendState::Leaving,
                BackendState::Held
            ]
        );
    }

    #[test]
    fn a_machine_that_returns_keeps_its_host_ports_open_until_the_leader_has_decided() {
        let balance = r#"{"schema":1,"ports":[{"port":80,"protocol":"TCP","instances":
            {"10.100.0.2":"away","10.100.0.3":"held","10.100.2.2":"away"}}]}"#;
        let entries = entries(&[("/kat/network/services/default/web/balance", balance)]);

        let parts = host_port_parts(&entries, "10.100.0.0/23".parse().unwrap()).parts;

        let expected = [
            (Ipv4Addr::new(10, 100, 0, 2), BackendState::Serving),
            (Ipv4Addr::new(10, 100, 0, 3), BackendState::Held),
        ];
        assert_eq!(parts, BTreeMap::from(expected));
        // Its containers call the service elsewhere until the leader has decided.
        let address = r#"{"schema":1,"address":"10.200.0.5"}"#;
        let with_address = self::entries(&[
            ("/kat/network/services/default/web/balance", balance),
            ("/kat/network/services/default/web/ip", address),
        ]);
        let ports = &services(&with_address).services["default/web"].ports;
        let own = Ipv4Addr::new(10, 100, 0, 2);
        assert_eq!(ports[0].instances[&own], BackendState::Away);
    }

    #[test]
    fn who_may_use_a_host_port_is_known_of_the_instances_of_this_machine() {
        let closed = r#"{"schema":1,"ports":[{"port":80,"protocol":"TCP","instances":
            {"10.100.0.2":"serving","10.100.2.2":"serving"}}],
            "sources":[{"port":8080,"protocol":"TCP","allowSources":["192.0.2.0/24","192.0.2.9/32"]}]}"#;
        let open = r#"{"schema":1,"ports":[{"port":80,"protocol":"TCP","instances":
            {"10.100.0.3":"serving"}}]}"#;
        let entries = entries(&[
            ("/kat/network/services/default/closed/balance", closed),
            ("/kat/network/services/default/open/balance", open),
        ]);

        let found = host_port_parts(&entries, "10.100.0.0/23".parse().unwrap());

        assert_eq!(found.parts.len(), 2);
        let restricted = RestrictedHostPort {
            port: 8080,
            protocol: Transport::Tcp,
            allow_sources: ["192.0.2.0/24", "192.0.2.9/32"]
                .map(|range| range.parse::<ipnet::IpNet>().unwrap())
                .to_vec(),
        };
        let own = Ipv4Addr::new(10, 100, 0, 2);
        assert_eq!(found.sources, BTreeMap::from([(own, vec![restricted])]));
        // A list that can't be read opens no port: nothing of the service is known then.
        let broken = closed.replace("192.0.2.0/24", "somewhere");
        let entries = self::entries(&[(
            "/kat/network/services/default/closed/balance",
            broken.as_str(),
        )]);
        let found = host_port_parts(&entries, "10.100.0.0/23".parse().unwrap());
        assert_eq!(found.parts, BTreeMap::new());
    }

    #[test]
    fn a_machine_is_no_peer_of_itself() {
        let entries = entries(&[
            ("/kat/network/nodes/n1/subnet", "10.100.0.0/23"),
            ("/kat/network/nodes/n1/wg_pubkey", "a"),
            ("/kat/network/nodes/n2/subnet", "10.100.2.0/23"),
            ("/kat/network/nodes/n2/wg_pubkey", "b"),
            (
                "/kat/network/nodes/n2/wg_endpoints",
                r#"["192.0.2.2:51820"]"#,
            ),
        ]);
        let peers = peers(&entries, "n1").peers;
        assert_eq!(peers.keys().collect::<Vec<_>>(), ["n2"]);
        assert_eq!(peers["n2"].endpoints, ["192.0.2.2:51820"]);
    }

    #[test]
    fn machines_behind_nat_keep_their_ways_open_and_meet_at_the_first_relay() {
        let other = |number: u8, behind_nat, relay| JoinPeer {
            public_key: format!("key {number}"),
            endpoints: Vec::new(),
            subnet: format!("10.100.{number}.0/23").parse().unwrap(),
            reach: Reach {
                behind_nat,
                relay,
                ..Reach::default()
            },
        };
        let mut others = BTreeMap::from([
            ("n1".to_owned(), other(2, false, false)),
            ("n2".to_owned(), other(4, true, false)),
            // A relay that other machines do not reach is ignored.
            ("n3".to_owned(), other(6, true, true)),
            ("n4".to_owned(), other(8, false, true)),
            ("n5".to_owned(), other(10, false, true)),
        ]);
        let of = |reach: &Reach, others: &BTreeMap<String, JoinPeer>| {
            let peers = peers_of(reach, others).peers;
            let each = peers.into_values().map(|peer| (peer.keepalive, peer.via));
            each.collect::<Vec<_>>()
        };
        let hidden = Reach {
            behind_nat: true,
            ..Reach::default()
        };
        let relayed = (25, Some("n4".to_owned()));
        let direct = (25, None);
        let expected = [&direct, &relayed, &relayed, &direct, &direct].map(Clone::clone);
        assert_eq!(of(&hidden, &others), expected);
        assert_eq!(of(&Reach::default(), &others), vec![(0, None); 5]);
        others.retain(|_, other| !other.reach.relay);
        assert_eq!(of(&hidden, &others), vec![direct; 2]);
    }

    /// The values are as older versions wrote them, and as a newer version might.
    #[test]
    fn how_a_machine_is_reached_is_read_from_the_store() {
        let entries = entries(&[
            ("/kat/network/nodes/n1/reach", r#"{"behindNat":true}"#),
            ("/kat/network/nodes/n2/subnet", "10.100.2.0/23"),
            ("/kat/network/nodes/n2/wg_pubkey", "two"),
            (
                "/kat/network/nodes/n2/reach",
                r#"{"behindNat":true,"later":[1]}"#,
            ),
            ("/kat/network/nodes/n3/subnet", "10.100.4.0/23"),
            ("/kat/network/nodes/n3/wg_pubkey", "three"),
            (
                "/kat/network/nodes/n3/wg_endpoints",
                r#"["192.0.2.3:51820"]"#,
            ),
            ("/kat/network/nodes/n3/reach", r#"{"relay":true}"#),
            ("/kat/network/nodes/n4/subnet", "10.100.6.0/23"),
            ("/kat/network/nodes/n4/wg_pubkey", "four"),
        ]);
        let peers = peers(&entries, "n1").peers;
        assert_eq!(peers["n2"].via.as_deref(), Some("n3"));
        assert_eq!(peers["n3"].endpoints, ["192.0.2.3:51820"]);
        let keepalives: Vec<u16> = peers.values().map(|peer| peer.keepalive).collect();
        assert_eq!(keepalives, [25, 25, 25]);
        assert_eq!(peers["n4"].via, None);
    }
}
