//! Host ports (`hostPort`): the number assigned for `auto`, and the workload that has a number on a
//! machine.
//!
//! A number belongs to a workload, not to an instance: the instances of a workload on one machine
//! share it, so that a new version takes over behind it as it does behind a service address. The
//! number for `auto` stays with the workload until the workload is deleted, and is the same on
//! every machine. The search for a free number starts at a place that follows from the workload's
//! name.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use crate::{
    InstanceDemand, MachineCandidate,
    draft::{Draft, OperationGroup},
};
use kat_types::{
    assignment::Assignment,
    encoding::digest::sha256_u32,
    machine::network::ANNOUNCE_PORT,
    resource::{ClusterSpec, HostPort, HostPortOn, Port, Protocol},
    services::{HostPortNumber, HostPortNumbers, HostPortSources},
    store::{
        keys,
        revisions::WorkloadKey,
        snapshot::{ParsedWorkload, WorkloadEntry},
    },
};

/// Version of the data path (`packaging/data-path`) from which on `kat-net` opens host ports.
pub const HOST_PORT_DATA_PATH: u32 = 4;
/// Version of the data path from which on `kat-net` opens a host port to some addresses alone
/// (`allowSources`); an earlier one opens it to all.
pub const SOURCES_DATA_PATH: u32 = 11;
/// Schema of an assignment with a host port.
const SCHEMA: u32 = 5;
/// Range of the numbers assigned for `hostPort: auto`.
const AUTO_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// Ports that KAT itself uses on machines, each with its use.
pub fn reserved_ports(spec: &ClusterSpec) -> [(u16, Protocol, &'static str); 6] {
    [
        (spec.api_port, Protocol::Tcp, "KAT's API"),
        (spec.agent_port, Protocol::Tcp, "KAT's agents"),
        (spec.etcd_client_port, Protocol::Tcp, "etcd's clients"),
        (spec.etcd_peer_port, Protocol::Tcp, "etcd's peers"),
        (
            spec.wireguard_port,
            Protocol::Udp,
            "the overlay's WireGuard",
        ),
        (
            ANNOUNCE_PORT,
            Protocol::Udp,
            "machines that look for each other",
        ),
    ]
}

/// The schema that an assignment with these ports needs at least.
pub(crate) fn schema_of(ports: &[Port]) -> u32 {
    match has_host_ports(ports) {
        true => SCHEMA,
        false => 0,
    }
}

pub(crate) fn has_host_ports(ports: &[Port]) -> bool {
    ports.iter().any(|port| port.host_port.is_some())
}

/// Whether a host port is for some addresses alone.
pub fn has_allowed_sources(ports: &[Port]) -> bool {
    let mut restricted = ports.iter().filter(|port| !port.allow_sources.is_empty());
    restricted.any(|port| port.host_port.is_some() && port.host_port_on == HostPortOn::Instances)
}

/// The ports as an instance has them: without the host ports that the machines have that serve routes.
pub(crate) fn of_instance(mut ports: Vec<Port>) -> Vec<Port> {
    let on_ingress = ports.iter_mut();
    for port in on_ingress.filter(|port| port.host_port_on == HostPortOn::Ingress) {
        port.host_port = None;
        port.host_port_on = HostPortOn::Instances;
        port.allow_sources.clear();
    }
    ports
}

/// The numbers of host ports; an `auto` without a number is left out.
pub(crate) fn numbers(ports: &[Port]) -> impl Iterator<Item = (u16, Protocol)> {
    ports.iter().filter_map(|port| match port.host_port {
        Some(HostPort::Number(number)) => Some((number, port.protocol)),
        Some(HostPort::Auto(_)) | None => None,
    })
}

/// Ports of its machine that an instance uses: its host ports, or on the machine's network its own
/// ports.
pub(crate) fn held(ports: &[Port], on_host: bool) -> impl Iterator<Item = (u16, Protocol)> {
    let own = ports.iter().filter(move |_| on_host);
    let own = own.map(|port| (port.container_port, port.protocol));
    numbers(ports).filter(move |_| !on_host).chain(own)
}

/// `host port 80/TCP is taken by default/web` if another workload has a port of the demand on that
/// machine.
pub(crate) fn taken(
    demand: InstanceDemand<'_>,
    candidate: &MachineCandidate<'_>,
) -> Option<String> {
    let on_host = demand.spec.container.host_network;
    held(demand.ports, on_host).find_map(|(number, protocol)| {
        let owner = candidate.host_ports.get(&(number, protocol))?;
        let word = protocol.word();
        (Some(owner) != demand.workload)
            .then(|| format!("host port {number}/{word} is taken by {owner}"))
    })
}

/// The numbers assigned for `auto`, as this plan leaves them.
#[derive(Debug, Default)]
pub(crate) struct HostPorts {
    given: BTreeMap<WorkloadKey, BTreeMap<(u16, Protocol), u16>>,
}

impl HostPorts {
    /// The addresses that may use the host ports of a workload, if these are not all: those that its
    /// present files list, also for instances of earlier versions. For a host port that only instances
    /// of earlier versions have, those of the newest of them.
    pub(crate) fn sources<'a>(
        &self,
        key: &WorkloadKey,
        written: &[Port],
        instances: impl Iterator<Item = &'a Assignment>,
    ) -> Vec<HostPortSources> {
        let with_ports = instances.filter(|one| has_host_ports(&one.ports));
        let mut instances: Vec<&Assignment> = with_ports.collect();
        instances.sort_by_key(|assignment| assignment.generation);
        let had = instances.into_iter().flat_map(|one| &one.ports);
        let mut sources = BTreeMap::new();
        // The later ones take the places of the earlier ones.
        for port in had.chain(written) {
            if let Some(number) = self.number(key, port) {
                sources.insert((number, port.protocol), port.allowed_sources());
            }
        }
        let restricted = sources
            .into_iter()
            .filter_map(|((port, protocol), allowed)| {
                Some(HostPortSources {
                    port,
                    protocol,
                    allow_sources: allowed?,
                })
            });
        restricted.collect()
    }

    /// The number of a host port; `None` without one, and for an `auto` that has none yet.
    fn number(&self, key: &WorkloadKey, port: &Port) -> Option<u16> {
        match port.host_port? {
            HostPort::Number(number) => Some(number),
            HostPort::Auto(_) => {
                let given = self.given.get(key)?;
                given.get(&(port.container_port, port.protocol)).copied()
            }
        }
    }

    /// The ports of a workload, each with its number; `None` if an `auto` has no number since all
    /// are taken.
    pub(crate) fn numbered(&self, key: &WorkloadKey, ports: &[Port]) -> Option<Vec<Port>> {
        let given = self.given.get(key);
        let numbered = ports.iter().map(|port| {
            let mut port = port.clone();
            if let Some(HostPort::Auto(_)) = port.host_port {
                let number = given?.get(&(port.container_port, port.protocol))?;
                port.host_port = Some(HostPort::Number(*number));
            }
            Some(port)
        });
        numbered.collect()
    }
}

/// Why an instance waits whose `auto` port has no number.
pub(crate) fn none_free() -> String {
    let (first, last) = (AUTO_PORTS.start(), AUTO_PORTS.end());
    format!("no host port of {first} to {last} is free for hostPort auto")
}

/// Assigns to each `auto` without a number one that no workload has on any machine.
pub(crate) fn give_numbers(draft: &mut Draft<'_>) -> HostPorts {
    let snapshot = draft.snapshot;
    let mut ports = HostPorts::default();
    let mut wanting: Vec<(&WorkloadKey, Vec<(u16, Protocol)>)> = Vec::new();
    for (key, service) in &snapshot.services {
        let stored = service.numbers.iter();
        for port in stored.flat_map(|stored| &stored.value.ports) {
            let given = ports.given.entry(key.clone()).or_default();
            given.insert((port.container_port, port.protocol), port.number);
        }
    }
    for (key, entry) in &snapshot.workloads {
        let mut lacking = automatic(entry);
        if let Some(given) = ports.given.get(key) {
            lacking.retain(|port| !given.contains_key(port));
        }
        if !lacking.is_empty() && !entry.meta.value.deleting && !draft.keeps(key) {
            wanting.push((key, lacking));
        }
    }
    if wanting.is_empty() {
        return ports;
    }
    let mut taken = known_numbers(draft, &ports);
    let mut group = OperationGroup::default();
    for (key, lacking) in wanting {
        let given = ports.given.entry(key.clone()).or_default();
        let before = given.len();
        for (container_port, protocol) in lacking {
            let name = format!("{key} {container_port} {}", protocol.word());
            let free = free_number(&name, |number| taken.contains(&(number, protocol)));
            let Some(number) = free else { continue };
            taken.insert((number, protocol));
            given.insert((container_port, protocol), number);
        }
        if given.len() == before {
            continue;
        }
        let given = given.iter();
        let given = given.map(|((container_port, protocol), number)| HostPortNumber {
            container_port: *container_port,
            protocol: *protocol,
            number: *number,
        });
        let record = HostPortNumbers {
            schema: 1,
            ports: given.collect(),
        };
        let stored_at = keys::host_ports(&key.namespace, &key.name);
        draft.put_in_turn(&mut group, stored_at, &record, "host ports");
    }
    draft.commit(group, "host ports".to_owned(), Vec::new());
    ports
}

/// Ports with `auto` of a workload's versions that may be placed.
fn automatic(entry: &WorkloadEntry) -> Vec<(u16, Protocol)> {
    let present = entry.parsed.iter();
    let earlier = entry.earlier.iter().map(|earlier| &earlier.parsed);
    let ports = present.chain(earlier).flat_map(|parsed| ports_of(parsed));
    let automatic = ports.filter(|port| matches!(port.host_port, Some(HostPort::Auto(_))));
    let mut found: Vec<_> = automatic
        .map(|port| (port.container_port, port.protocol))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The ports that a version of a workload declares.
pub(crate) fn ports_of(parsed: &ParsedWorkload) -> &[Port] {
    let balancer = parsed.load_balancer.as_ref();
    balancer.map_or(&[], |balancer| balancer.spec.ports.as_slice())
}

/// Every number that is assigned for `auto`, written in a manifest, used by an instance, or KAT's
/// own.
fn known_numbers(draft: &Draft<'_>, ports: &HostPorts) -> BTreeSet<(u16, Protocol)> {
    let snapshot = draft.snapshot;
    let given = ports.given.values().flatten();
    let given = given.map(|((_, protocol), number)| (*number, *protocol));
    let parsed = snapshot.workloads.values();
    let parsed = parsed.filter_map(|entry| entry.parsed.as_ref().ok());
    let written = parsed.flat_map(|parsed| numbers(ports_of(parsed)));
    let instances = snapshot.instances.values();
    let had = instances.flat_map(|entry| numbers(&entry.assignment.value.ports));
    let own = reserved_ports(&snapshot.cluster.spec);
    let own = own.map(|(number, protocol, _)| (number, protocol));
    given.chain(written).chain(had).chain(own).collect()
}

/// The first free number from the one that a name points to, wrapping around once.
fn free_number(name: &str, is_taken: impl Fn(u16) -> bool) -> Option<u16> {
    let number = sha256_u32(name.as_bytes());
    let (first, last) = (*AUTO_PORTS.start(), *AUTO_PORTS.end());
    let count = u32::from(last - first) + 1;
    let start = u16::try_from(number.checked_rem(count)?).ok()? + first;
    (start..=last)
        .chain(first..start)
        .find(|number| !is_taken(*number))
}
