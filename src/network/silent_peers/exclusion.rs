//! Takes the instances of excluded peers out of the agent's files, as `kat-net` uses them.

use std::{collections::BTreeMap, net::Ipv4Addr, path::PathBuf, sync::Arc};

use ipnet::Ipv4Net;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{run_file, state_files::StateFilesSnapshot};
use kat_types::{
    machine::network::{
        DnsRecords, HostPortParts, IngressBackend, PeerMachines, Services, SilentPeers,
    },
    services::BackendState,
};

/// Subnets of the excluded peers, by name of the peer.
pub type Excluded = BTreeMap<String, Ipv4Net>;

fn is_of_any(excluded: &Excluded, address: Ipv4Addr) -> bool {
    excluded.values().any(|subnet| subnet.contains(&address))
}

/// Holds the serving instances of excluded peers, on each port that another instance serves.
pub fn services_without(services: &Services, excluded: &Excluded) -> Services {
    let mut services = services.clone();
    let ports = services.services.values_mut();
    for port in ports.flat_map(|service| &mut service.ports) {
        let serves = |(_, state): &(&Ipv4Addr, &mut BackendState)| **state == BackendState::Serving;
        let serving = port.instances.iter_mut().filter(serves);
        let (silent, others): (Vec<_>, Vec<_>) =
            serving.partition(|(address, _)| is_of_any(excluded, **address));
        if others.is_empty() {
            continue;
        }
        for (_, state) in silent {
            *state = BackendState::Held;
        }
    }
    services
}

/// The same for the host ports that this machine has because it serves routes.
pub fn host_ports_without(parts: &HostPortParts, excluded: &Excluded) -> HostPortParts {
    let mut parts = parts.clone();
    for port in &mut parts.ingress {
        let serves = |(_, backend): &(&Ipv4Addr, &mut IngressBackend)| {
            backend.state == BackendState::Serving
        };
        let serving = port.instances.iter_mut().filter(serves);
        let (silent, others): (Vec<_>, Vec<_>) =
            serving.partition(|(address, _)| is_of_any(excluded, **address));
        if others.is_empty() {
            continue;
        }
        for (_, backend) in silent {
            backend.state = BackendState::Held;
        }
    }
    parts
}

/// Removes the addresses of excluded peers from each name that has others.
pub fn records_without(records: &DnsRecords, excluded: &Excluded) -> DnsRecords {
    let mut records = records.clone();
    for addresses in records.records.values_mut() {
        let is_silent = |address: &Ipv4Addr| is_of_any(excluded, *address);
        if !addresses.iter().all(is_silent) {
            addresses.retain(|address| !is_silent(address));
        }
    }
    records
}

/// The peers with an instance that serves behind a service address or a host port of this machine, or has a
/// name. The name of a machine does not count.
pub(crate) fn in_use<'a>(
    snapshot: &'a StateFilesSnapshot,
    peers: &'a PeerMachines,
) -> impl Iterator<Item = &'a str> {
    let services = snapshot
        .services
        .iter()
        .flat_map(|all| all.services.values());
    let ports = services.flat_map(|service| &service.ports);
    let serving = ports.flat_map(|port| &port.instances);
    let serving = serving.filter(|(_, state)| **state == BackendState::Serving);
    let ports = snapshot.host_ports.iter().flat_map(|all| &all.ingress);
    let behind_ports = ports.flat_map(|port| &port.instances);
    let behind_ports = behind_ports.filter(|(_, backend)| backend.state == BackendState::Serving);
    let behind_ports = behind_ports.map(|(address, _)| address);
    let named = snapshot.dns.iter().flat_map(|all| &all.records);
    let named = named.filter(|(name, _)| !name.ends_with(".node"));
    let named = named.flat_map(|(_, addresses)| addresses);
    let addresses = serving.map(|(address, _)| address);
    let addresses = addresses.chain(behind_ports).chain(named);
    let addresses: std::collections::BTreeSet<u32> =
        addresses.map(|address| u32::from(*address)).collect();
    peers.peers.iter().filter_map(move |(name, peer)| {
        let first = u32::from(peer.subnet.network());
        let last = u32::from(peer.subnet.broadcast());
        addresses.range(first..=last).next().map(|_| name.as_str())
    })
}

/// The files with the excluded peers taken out. Files that are not changed keep their `Arc`, by
/// which their readers recognise them.
#[derive(Debug, Default)]
struct FilteredFiles {
    services: Option<(Arc<Services>, Excluded, Arc<Services>)>,
    host_ports: Option<(Arc<HostPortParts>, Excluded, Arc<HostPortParts>)>,
    dns: Option<(Arc<DnsRecords>, Excluded, Arc<DnsRecords>)>,
}

impl FilteredFiles {
    fn filter(&mut self, snapshot: &StateFilesSnapshot, excluded: &Excluded) -> StateFilesSnapshot {
        let mut filtered = snapshot.clone();
        if excluded.is_empty() {
            return filtered;
        }
        filtered.services = snapshot
            .services
            .as_ref()
            .map(|services| remembered(&mut self.services, services, excluded, services_without));
        let known = &mut self.host_ports;
        let ports = snapshot.host_ports.as_ref();
        filtered.host_ports =
            ports.map(|ports| remembered(known, ports, excluded, host_ports_without));
        filtered.dns = snapshot
            .dns
            .as_ref()
            .map(|records| remembered(&mut self.dns, records, excluded, records_without));
        filtered
    }
}

fn remembered<T>(
    memory: &mut Option<(Arc<T>, Excluded, Arc<T>)>,
    input: &Arc<T>,
    excluded: &Excluded,
    filter: fn(&T, &Excluded) -> T,
) -> Arc<T> {
    if let Some((known, without, output)) = memory
        && Arc::ptr_eq(known, input)
        && without == excluded
    {
        return Arc::clone(output);
    }
    let output = Arc::new(filter(input, excluded));
    *memory = Some((Arc::clone(input), excluded.clone(), Arc::clone(&output)));
    output
}

/// Sends the files without the excluded peers to `filtered`, at every change of either, until
/// cancelled.
pub(crate) async fn filter_files(
    mut files: watch::Receiver<Arc<StateFilesSnapshot>>,
    mut excluded: watch::Receiver<Excluded>,
    filtered: watch::Sender<Arc<StateFilesSnapshot>>,
    cancel: CancellationToken,
) {
    let mut memory = FilteredFiles::default();
    loop {
        let snapshot = files.borrow_and_update().clone();
        let without = excluded.borrow_and_update().clone();
        let next = match without.is_empty() {
            true => snapshot,
            false => Arc::new(memory.filter(&snapshot, &without)),
        };
        filtered.send_replace(next);
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = files.changed() => if changed.is_err() { return },
            // Without its sender nothing is excluded any more.
            changed = excluded.changed() => if changed.is_err() { return },
        }
    }
}

/// Writes the excluded peers to a file that `kat-ingress` reads, at each change, until cancelled.
pub(crate) async fn publish(
    mut excluded: watch::Receiver<Excluded>,
    path: PathBuf,
    cancel: CancellationToken,
) {
    loop {
        let peers = SilentPeers {
            schema: 1,
            subnets: excluded.borrow_and_update().clone(),
        };
        // The file is small and in memory.
        if let Err(error) = run_file::write_with_mode(&path, &peers, 0o644) {
            tracing::warn!(file = %path.display(), %error, "can't be written");
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = excluded.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests;
