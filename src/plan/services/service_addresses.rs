//! Service addresses: the address of each service, and the instances behind it.
//!
//! A service with ports has one address of `serviceCIDR` from its first plan until its workload is
//! deleted, whatever is applied meanwhile: clients resolve once. The search for a free address
//! starts at a place that follows from the workload's name. So a workload that is deleted and
//! created again mostly has the same address, and another one seldom has the address of a workload
//! that was just deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use ipnet::Ipv4Net;

use super::serving;
use crate::{
    Snapshot,
    draft::{Draft, OperationGroup},
    scheduling::{
        host_ports::{HostPorts, has_host_ports, ports_of},
        ingress_ports::IngressPortOwners,
    },
};
use kat_types::{
    api::NodePhase,
    assignment::Assignment,
    encoding::digest::sha256_u32,
    resource::Protocol,
    services::{Backends, ServiceAddress, ServiceBalance, ServicePort},
    store::{
        keys, records::NodeStatusRecord, revisions::WorkloadKey, snapshot::WorkloadEntry,
        transaction::Compare,
    },
};

/// Number of `packaging/data-path` from which on `kat-net` balances service addresses.
pub const BALANCING_DATA_PATH: u32 = 3;

/// The service addresses as this plan leaves them.
#[derive(Debug, Default)]
pub(crate) struct ServiceAddresses {
    given: BTreeMap<WorkloadKey, Ipv4Addr>,
    /// Services that have no address because none is left, and how many addresses there are.
    without: BTreeMap<WorkloadKey, u32>,
    /// Names answer with service addresses, see [`balances_everywhere`].
    everywhere: bool,
}

impl ServiceAddresses {
    pub(crate) fn of(&self, key: &WorkloadKey) -> Option<Ipv4Addr> {
        self.given.get(key).copied()
    }

    /// Why a service that should have an address has none.
    pub(crate) fn why_none(&self, key: &WorkloadKey, snapshot: &Snapshot) -> Option<String> {
        let count = self.without.get(key)?;
        let network = snapshot.cluster.spec.service_cidr;
        Some(format!(
            "no address of serviceCIDR {network} is free, other services have all {count}; its name answers with its instances' addresses"
        ))
    }

    /// The address that the service's name answers with; `None` if it answers with those of the
    /// instances.
    pub(crate) fn named(&self, key: &WorkloadKey, entry: &WorkloadEntry) -> Option<Ipv4Addr> {
        let parsed = entry.parsed.as_ref().ok();
        let balancer = parsed.and_then(|parsed| parsed.load_balancer.as_ref());
        let balanced = match (parsed, balancer) {
            // A manifest that can't be read changes nothing.
            (None, _) => true,
            (Some(_), Some(balancer)) => !balancer.spec.headless && !balancer.spec.ports.is_empty(),
            (Some(_), None) => false,
        };
        (balanced && self.everywhere && !entry.meta.value.deleting)
            .then(|| self.of(key))
            .flatten()
    }
}

/// Assigns an address to each service that needs one, and releases those of deleted workloads.
pub(crate) fn give_addresses(
    draft: &mut Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
) -> ServiceAddresses {
    let snapshot = draft.snapshot;
    let network = snapshot.cluster.spec.service_cidr;
    let mut addresses = ServiceAddresses {
        everywhere: balances_everywhere(snapshot, statuses),
        ..ServiceAddresses::default()
    };
    let mut taken = BTreeSet::new();
    for (key, service) in &snapshot.services {
        let Some(stored) = &service.address else {
            continue;
        };
        taken.insert(stored.value.address);
        addresses.given.insert(key.clone(), stored.value.address);
    }
    let mut group = OperationGroup::default();
    for (key, entry) in &snapshot.workloads {
        if addresses.given.contains_key(key) || !needs_address(entry) || draft.keeps(key) {
            continue;
        }
        let Some(address) = free_address(network, &taken, key) else {
            addresses.without.insert(key.clone(), hosts(network));
            continue;
        };
        taken.insert(address);
        addresses.given.insert(key.clone(), address);
        let given = ServiceAddress { schema: 1, address };
        group.put(keys::service_address(&key.namespace, &key.name), &given);
        if Draft::is_full(&group) {
            let full = std::mem::take(&mut group);
            draft.commit(full, "service addresses".to_owned(), Vec::new());
        }
    }
    draft.commit(group, "service addresses".to_owned(), Vec::new());
    for key in snapshot.services.keys() {
        if snapshot.workloads.contains_key(key) {
            continue;
        }
        let WorkloadKey { namespace, name } = key;
        let mut group = OperationGroup::default();
        group.delete_prefix(keys::service(namespace, name));
        let gone = Compare::ModRevision(keys::workload_meta(namespace, name), 0);
        let reason = format!("workload {key} is gone, and its service address free");
        draft.commit(group, reason, vec![gone]);
    }
    addresses
}

/// Writes the instances behind each address, and the host ports of machines, where they changed.
pub(crate) fn plan_balance(
    draft: &mut Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    addresses: &ServiceAddresses,
    host_ports: &HostPorts,
) {
    let snapshot = draft.snapshot;
    let owners = IngressPortOwners::of(snapshot);
    let mut group = OperationGroup::default();
    for (key, entry) in &snapshot.workloads {
        let stored_at = keys::service_balance(&key.namespace, &key.name);
        if draft.keeps(key) || draft.is_not_writable(key, &stored_at) {
            continue;
        }
        let stored = snapshot.services.get(key);
        let stored = stored.and_then(|service| service.balance.as_ref());
        let stored = stored.map(|stored| &stored.value);
        let instances = draft.instances_of(key).iter();
        let instances: Vec<&Assignment> = instances
            .map(|(_, entry)| &*entry.assignment.value)
            .collect();
        let known = stored.and_then(|stored| stored.ingress.as_ref());
        let ingress = owners.of_workload(snapshot, (key, entry), &instances, known);
        let is_from_machines = ingress.is_some() || leads_from_machines(draft, key);
        if addresses.of(key).is_none() && stored.is_none() && !is_from_machines {
            continue;
        }
        let mut balance = balance(draft, statuses, key, entry, stored);
        balance.ingress = ingress;
        balance.sources = match &entry.parsed {
            Ok(parsed) => host_ports.sources(key, ports_of(parsed), instances.iter().copied()),
            // With a manifest that can't be read, the stored ones stay.
            Err(_) => stored.map_or_else(Vec::new, |stored| stored.sources.clone()),
        };
        if stored != Some(&balance) {
            draft.put_in_turn(&mut group, stored_at, &balance, "who serves");
        }
    }
    draft.commit(group, "who serves".to_owned(), Vec::new());
}

fn balance(
    draft: &Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    key: &WorkloadKey,
    entry: &WorkloadEntry,
    stored: Option<&ServiceBalance>,
) -> ServiceBalance {
    let mut ports: BTreeMap<(u16, Protocol), Backends> = BTreeMap::new();
    match &entry.parsed {
        Ok(parsed) => {
            let balancer = parsed.load_balancer.iter();
            for port in balancer.flat_map(|balancer| &balancer.spec.ports) {
                ports.insert((port.container_port, port.protocol), Backends::new());
            }
        }
        // With a manifest that can't be read, the stored ports stay.
        Err(_) => {
            for port in stored.iter().flat_map(|stored| &stored.ports) {
                ports.insert((port.port, port.protocol), Backends::new());
            }
        }
    }
    for (id, instance) in draft.instances_of(key) {
        let Some(part) = serving::backend_state(draft, statuses, id, instance) else {
            continue;
        };
        let assignment = &instance.assignment.value;
        for port in &assignment.ports {
            let parts = ports.entry((port.container_port, port.protocol));
            parts.or_default().insert(assignment.address, part);
        }
    }
    let ports = ports
        .into_iter()
        .map(|((port, protocol), instances)| ServicePort {
            port,
            protocol,
            instances,
        });
    ServiceBalance {
        schema: 1,
        ports: ports.collect(),
        sources: Vec::new(),
        ingress: None,
    }
}

/// An instance of the workload has a host port.
fn leads_from_machines(draft: &Draft<'_>, key: &WorkloadKey) -> bool {
    let mut instances = draft.instances_of(key).iter();
    instances.any(|(_, entry)| has_host_ports(&entry.assignment.value.ports))
}

fn needs_address(entry: &WorkloadEntry) -> bool {
    let parsed = entry.parsed.as_ref().ok();
    let balancer = parsed.and_then(|parsed| parsed.load_balancer.as_ref());
    !entry.meta.value.deleting
        && balancer
            .is_some_and(|balancer| !balancer.spec.ports.is_empty() && !balancer.spec.headless)
}

/// Whether names answer with service addresses: once most machines balance them, and always from
/// then on. On a machine of an earlier version then only its own containers can't reach them.
fn balances_everywhere(snapshot: &Snapshot, statuses: &BTreeMap<String, NodeStatusRecord>) -> bool {
    let named = snapshot.services.iter().any(|(key, service)| {
        let WorkloadKey { namespace, name } = key;
        let stored = service.address.as_ref();
        stored.is_some_and(|stored| {
            let address = stored.value.address.to_string();
            let record = keys::dns_record(namespace, name, "A", &address);
            snapshot.dns.contains_key(&record)
        })
    });
    let known = snapshot.nodes.keys().filter_map(|name| statuses.get(name));
    let known = known.filter(|status| status.phase != NodePhase::Joining);
    let (count, balancing) = known.fold((0, 0), |(count, balancing), status| {
        let balances = status.data_path >= BALANCING_DATA_PATH;
        (count + 1, balancing + usize::from(balances))
    });
    named || balancing * 2 > count || count == 0
}

/// Number of addresses of a network that services may have: all but the first and the last.
fn hosts(network: Ipv4Net) -> u32 {
    let size = 1u32.checked_shl(32 - u32::from(network.prefix_len()));
    size.unwrap_or(u32::MAX).saturating_sub(2)
}

/// The first free address from the one that the workload's name points to, wrapping around once.
fn free_address(
    network: Ipv4Net,
    taken: &BTreeSet<Ipv4Addr>,
    key: &WorkloadKey,
) -> Option<Ipv4Addr> {
    let hosts = hosts(network);
    let start = sha256_u32(key.to_string().as_bytes()).checked_rem(hosts)?;
    let first = u32::from(network.network()).checked_add(1)?;
    (start..hosts)
        .chain(0..start)
        .map(|offset| Ipv4Addr::from(first + offset))
        .find(|address| !taken.contains(address))
}
