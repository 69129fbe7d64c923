//! Host ports with `hostPortOn: ingress`: ports of the machines that serve routes, wherever the instances
//! behind them run.
//!
//! A workload has such a port on all these machines. Instances with the same host port of another workload
//! are not placed there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use super::host_ports::ports_of;
use crate::{Snapshot, ingress::machines_for_ingress};
use kat_types::{
    assignment::Assignment,
    resource::{HostPort, HostPortOn, Port, Protocol},
    services::{IngressPort, IngressPorts},
    store::{revisions::WorkloadKey, snapshot::WorkloadEntry},
};

/// Who has which port of the machines that serve routes.
#[derive(Debug, Default)]
pub(crate) struct IngressPortOwners<'a> {
    machines: BTreeSet<&'a str>,
    owners: BTreeMap<(u16, Protocol), &'a WorkloadKey>,
}

impl<'a> IngressPortOwners<'a> {
    /// The owners of a snapshot. An apply that takes a port of another workload is refused; if two have a
    /// port all the same, it is of the one that was created first.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let mut claims = Vec::new();
        for (key, entry) in &snapshot.workloads {
            for port in stored_numbers(snapshot, key, entry) {
                claims.push((entry.meta.value.created, key, port));
            }
        }
        if claims.is_empty() {
            return Self::default();
        }
        claims.sort_unstable();
        let mut owners = BTreeMap::new();
        for (_, key, port) in claims {
            owners.entry(port).or_insert(key);
        }
        Self {
            machines: machines_for_ingress(snapshot).into_iter().collect(),
            owners,
        }
    }

    /// Adds the owners of the ports that a machine has to those of its other host ports.
    pub(crate) fn add_to(&self, machine: &str, ports: &mut BTreeMap<(u16, Protocol), WorkloadKey>) {
        if !self.machines.contains(machine) {
            return;
        }
        for (port, owner) in &self.owners {
            ports.entry(*port).or_insert_with(|| (*owner).clone());
        }
    }

    /// What machines have to know of the ports of a workload; `None` if it has none. `stored` is what they
    /// know now.
    pub(crate) fn of_workload(
        &self,
        snapshot: &Snapshot,
        (key, entry): (&WorkloadKey, &WorkloadEntry),
        instances: &[&Assignment],
        stored: Option<&IngressPorts>,
    ) -> Option<IngressPorts> {
        let stored = stored.map_or(&[][..], |stored| stored.ports.as_slice());
        let before = |number: u16, protocol: Protocol| {
            let mut stored = stored.iter();
            stored.find(|one| (one.port, one.protocol) == (number, protocol))
        };
        let wanted: Vec<(u16, Protocol, u16)> = match &entry.parsed {
            Ok(parsed) => {
                let ports = on_ingress(ports_of(parsed));
                let ports = ports.filter_map(|port| {
                    let number = number_of(snapshot, key, port)?;
                    Some((number, port.protocol, port.container_port))
                });
                ports.collect()
            }
            // With a manifest that can't be read, the stored ports stay.
            Err(_) => {
                let ports = stored.iter();
                let ports = ports.map(|one| (one.port, one.protocol, one.container_port));
                ports.collect()
            }
        };
        let own = wanted.into_iter().filter(|(number, protocol, _)| {
            let owner = self.owners.get(&(*number, *protocol));
            owner.is_some_and(|owner| *owner == key)
        });
        let ports = own.map(|(port, protocol, container_port)| {
            let of_instance = |one: &&Assignment| {
                let at = (port, protocol);
                let other = earlier_port(snapshot, (key, entry), one, at, before(port, protocol))?;
                (other != container_port).then_some((one.address, other))
            };
            let earlier: BTreeMap<Ipv4Addr, u16> =
                instances.iter().filter_map(of_instance).collect();
            IngressPort {
                port,
                protocol,
                container_port,
                earlier,
            }
        });
        let ports: Vec<IngressPort> = ports.collect();
        (!ports.is_empty()).then(|| IngressPorts {
            machines: self.machines.iter().map(|&name| name.to_owned()).collect(),
            ports,
        })
    }
}

/// The container port that a host port led to in the version of an instance, which is not the present one.
fn earlier_port(
    snapshot: &Snapshot,
    (key, entry): (&WorkloadKey, &WorkloadEntry),
    instance: &Assignment,
    (number, protocol): (u16, Protocol),
    stored: Option<&IngressPort>,
) -> Option<u16> {
    if instance.template_hash == entry.meta.value.template_hash {
        return None;
    }
    // It had the host port on its own machine.
    let on_its_machine = || {
        let mut ports = instance.ports.iter();
        let port = ports.find(|port| {
            port.protocol == protocol && port.host_port == Some(HostPort::Number(number))
        })?;
        Some(port.container_port)
    };
    let of_version = || {
        let earlier = entry.earlier.as_ref();
        let earlier = earlier.filter(|one| one.template_hash == instance.template_hash)?;
        let mut ports = on_ingress(ports_of(&earlier.parsed));
        let port = ports.find(|port| {
            port.protocol == protocol && number_of(snapshot, key, port) == Some(number)
        })?;
        Some(port.container_port)
    };
    let known = || {
        let stored = stored?;
        let earlier = stored.earlier.get(&instance.address);
        Some(earlier.copied().unwrap_or(stored.container_port))
    };
    let found = on_its_machine().or_else(of_version).or_else(known)?;
    let mut ports = instance.ports.iter();
    ports
        .any(|port| (port.container_port, port.protocol) == (found, protocol))
        .then_some(found)
}

/// The numbers of a workload's host ports of the machines that serve routes; an `auto` without a number is
/// left out. For files that this version can't read those that machines know.
pub(crate) fn stored_numbers(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    entry: &WorkloadEntry,
) -> Vec<(u16, Protocol)> {
    match &entry.parsed {
        Ok(parsed) => {
            let ports = on_ingress(ports_of(parsed));
            let numbers =
                ports.filter_map(|port| Some((number_of(snapshot, key, port)?, port.protocol)));
            numbers.collect()
        }
        Err(_) => {
            let service = snapshot.services.get(key);
            let balance = service.and_then(|service| service.balance.as_ref());
            let known = balance.and_then(|stored| stored.value.ingress.as_ref());
            let ports = known.map_or(&[][..], |known| known.ports.as_slice());
            ports.iter().map(|one| (one.port, one.protocol)).collect()
        }
    }
}

/// The host ports of the machines that serve routes.
pub(crate) fn on_ingress(ports: &[Port]) -> impl Iterator<Item = &Port> {
    let host_ports = ports.iter().filter(|port| port.host_port.is_some());
    host_ports.filter(|port| port.host_port_on == HostPortOn::Ingress)
}

/// The number of a host port; `None` for an `auto` that has none yet.
fn number_of(snapshot: &Snapshot, key: &WorkloadKey, port: &Port) -> Option<u16> {
    match port.host_port? {
        HostPort::Number(number) => Some(number),
        HostPort::Auto(_) => {
            let given = snapshot.services.get(key)?.numbers.as_ref()?;
            let mut given = given.value.ports.iter();
            let found = given.find(|one| {
                (one.container_port, one.protocol) == (port.container_port, port.protocol)
            });
            found.map(|one| one.number)
        }
    }
}
