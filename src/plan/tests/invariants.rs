//! Invariants that must hold after each change.

use super::*;
use kat_types::{
    api::Event, assignment::PREPARED_SCHEMA, machine::network::node_address, reason::Reason,
    resource::ConcurrencyPolicy, services::BackendState,
};

/// No two slots have a GPU of a machine. Instances of one slot may: a prepared one starts when the
/// others have ended.
fn check_gpus(snapshot: &Snapshot) {
    let mut slots = BTreeMap::new();
    for (id, entry) in &snapshot.instances {
        let assignment = &entry.assignment.value;
        let status = snapshot.nodes.get(&entry.node);
        let status = status.and_then(|node| node.status.as_ref());
        let record = status.and_then(|status| status.value.instances.get(id));
        let ended = record.is_some_and(|record| record.phase == InstancePhase::Stopped);
        if let Some(gpu) = &assignment.gpu
            && !(ended && assignment.wanted == DesiredRun::Stopped)
        {
            let workload = &assignment.workload;
            let slot = (&assignment.namespace, workload, assignment.slot);
            let first = *slots.entry((&entry.node, gpu)).or_insert(slot);
            assert_eq!(first, slot, "{id} has {gpu} of {} too", entry.node);
        }
    }
}

impl World {
    pub(crate) fn check(&mut self) {
        let snapshot = self.snapshot();
        self.check_lists(&snapshot);
        check_gpus(&snapshot);
        let mut away = left(&snapshot);
        away.extend(self.left.iter().cloned());
        check_instances(&snapshot, &away);
        self.check_writers();
        self.check_users(&snapshot);
        self.check_names(&snapshot);
        assert!(snapshot.events.len() <= LIMIT);
        // A new instance must have an id that no instance has had before.
        for (id, entry) in &snapshot.instances {
            if entry.created_revision == self.revision {
                assert!(self.ids.insert(id.clone()), "{id} is used again");
            }
        }
    }

    /// An instance that a newer version replaces in its slot is stopped once an instance of that
    /// version is prepared there or runs, unless a machine does not know prepared instances or is
    /// drained by force.
    pub(crate) fn check_updates<'o>(
        &self,
        snapshot: &Snapshot,
        operations: impl Iterator<Item = &'o WriteOperation>,
    ) {
        let mut machines = self.machines.values();
        if machines.any(|machine| machine.schema < PREPARED_SCHEMA) {
            return;
        }
        for operation in operations {
            let WriteOperation::Put(key, value) = operation else {
                continue;
            };
            if !key.starts_with(keys::EVENTS) {
                continue;
            }
            let event: Event = serde_json::from_slice(value).unwrap();
            let (words, name) = (&event.message, &event.involved_object.name);
            let Some(stopped) = snapshot.instances.get(name) else {
                continue;
            };
            let by_force = &snapshot.nodes[&stopped.node].registration.value;
            if !words.ends_with("because a newer version takes its place") || by_force.drain_forced
            {
                continue;
            }
            let before = &stopped.assignment.value;
            let key = WorkloadKey::new(&before.namespace, &before.workload);
            let takes_over = snapshot.instances_of(&key).any(|(id, entry)| {
                let other = &entry.assignment.value;
                let heard = self.machines[&entry.node].heard.as_ref();
                let mut reports = heard.iter().flat_map(|report| &report.workload_instances);
                // A new leader has the record of what an earlier one was told.
                let node = snapshot.nodes[&entry.node].status.as_ref();
                let recorded = node.and_then(|status| status.value.instances.get(id));
                let is_prepared = reports.any(|report| {
                    report.instance_id == *id && report.phase == InstancePhase::Prepared
                }) || recorded
                    .is_some_and(|record| record.phase == InstancePhase::Prepared);
                let in_slot = other.slot == before.slot && id != name;
                in_slot
                    && match other.wanted {
                        DesiredRun::Running => true,
                        DesiredRun::Prepared => is_prepared,
                        DesiredRun::Stopped => false,
                    }
            });
            assert!(
                takes_over,
                "{name} is stopped before its successor is prepared"
            );
        }
    }

    /// The count of each list is right, and no machine has more than it can hold. A prepared instance
    /// holds what the instances of its slot do not hold there.
    fn check_lists(&self, snapshot: &Snapshot) {
        for (name, node) in &snapshot.nodes {
            let here = snapshot
                .instances
                .values()
                .filter(|entry| entry.node == *name);
            assert_eq!(
                node.desired.value.count,
                here.clone().count(),
                "{name}: the meta counts the list"
            );
            let mut sum = RequestedResources::default();
            let mut slots: BTreeMap<_, [RequestedResources; 2]> = BTreeMap::new();
            for entry in here {
                let assignment = &entry.assignment.value;
                let slot = (&assignment.namespace, &assignment.workload, assignment.slot);
                let [present, prepared] = slots.entry(slot).or_default();
                let part = match assignment.wanted {
                    DesiredRun::Prepared => prepared,
                    DesiredRun::Running | DesiredRun::Stopped => present,
                };
                part.add(assignment.container.resources.effective_requests());
                let subnet = node.subnet.unwrap();
                assert!(subnet.contains(&assignment.address));
                let is_machines = assignment.address == node_address(subnet);
                assert_eq!(is_machines, assignment.container.host_network);
            }
            for [present, prepared] in slots.into_values() {
                sum.cpu.0 += present.cpu.0.max(prepared.cpu.0);
                sum.memory.0 += present.memory.0.max(prepared.memory.0);
            }
            let resources = self.machines[name].resources;
            assert!(
                sum.cpu <= resources.cpu.unwrap_or_default(),
                "{name}: {sum:?}"
            );
            assert!(
                sum.memory <= resources.memory.unwrap_or_default(),
                "{name}: {sum:?}"
            );
        }
    }

    /// No two running instances on any machines may write to the same data.
    fn check_writers(&self) {
        let mut writers: BTreeMap<String, String> = BTreeMap::new();
        for machine in self.machines.values() {
            for (folder, id) in machine.written() {
                if let Some(other) = writers.insert(folder.clone(), id.clone()) {
                    panic!("{other} and {id} may both write to {folder}");
                }
            }
        }
    }

    /// An account on a machine belongs to the workload that has the account's index, so no index is
    /// reassigned while an account is left. A machine that left the cluster counts as empty.
    fn check_users(&self, snapshot: &Snapshot) {
        for (name, machine) in &self.machines {
            if !snapshot.nodes.contains_key(name) {
                continue;
            }
            for (index, owner) in &machine.accounts {
                let present = snapshot.indexes.get(index);
                let present = present.map(|stored| stored.value.workload_uid.as_str());
                assert_eq!(present, Some(owner.as_str()), "index {index} on {name}");
            }
        }
    }

    /// A wanted instance loses its DNS name only if its machine reports it as not running or
    /// unhealthy, if its machine is NotReady or OverlayDown, or if the same plan stops it, and never
    /// because it is missing in a report. An instance being stopped has lost its name and its
    /// callers before.
    fn check_names(&mut self, snapshot: &Snapshot) {
        let away = not_ready(snapshot);
        let stopped = snapshot.instances.iter().filter_map(|(id, entry)| {
            let assignment = &entry.assignment.value;
            (assignment.wanted == DesiredRun::Stopped).then_some((id, assignment.address))
        });
        for (id, address) in stopped {
            let balances = snapshot.services.values();
            let balances = balances.filter_map(|service| service.balance.as_ref());
            let mut ports = balances.flat_map(|balance| &balance.value.ports);
            let called =
                ports.any(|port| port.instances.get(&address) == Some(&BackendState::Serving));
            assert!(!called, "{id} is to stop, and callers are sent to it");
            let name = format!("{id}={address}");
            let named = snapshot.dns.keys().any(|key| key.ends_with(&name));
            assert!(!named, "{id} is to stop, and has a name");
        }
        let named: BTreeSet<(String, String)> = snapshot
            .dns
            .keys()
            .filter_map(|key| key.rsplit_once('/')?.1.split_once('='))
            .map(|(id, address)| (id.to_owned(), address.to_owned()))
            .collect();
        for (id, address) in self.named.difference(&named) {
            let assigned = snapshot
                .instances
                .get(id)
                .filter(|entry| entry.assignment.value.address.to_string() == *address);
            let Some(entry) = assigned else {
                continue;
            };
            if self.stops.contains(id) || away.contains(&entry.node) {
                continue;
            }
            let status = snapshot.nodes[&entry.node].status.as_ref();
            let mut conditions = status.iter().flat_map(|one| &one.value.conditions);
            if conditions.any(|one| one.reason == Reason::OverlayDown) {
                continue;
            }
            let report = self.machines[&entry.node].heard.as_ref().unwrap();
            let said = report
                .workload_instances
                .iter()
                .find(|one| one.instance_id == *id);
            let ill = said.is_some_and(|said| {
                said.phase != InstancePhase::Running || said.health_status == Health::Unhealthy
            });
            assert!(ill, "{id} lost its name, and its machine says {said:?}");
        }
        self.named = named;
    }
}

/// Machines that their instances must leave, because the machines are NotReady or being drained.
pub(crate) fn left(snapshot: &Snapshot) -> BTreeSet<String> {
    let mut left = not_ready(snapshot);
    let nodes = snapshot.nodes.iter();
    let drained = nodes.filter(|(_, node)| node.registration.value.draining);
    left.extend(drained.map(|(name, _)| name.clone()));
    left
}

/// Machines whose stored phase is NotReady.
fn not_ready(snapshot: &Snapshot) -> BTreeSet<String> {
    let lost = snapshot.nodes.iter().filter(|(_, node)| {
        let status = node.status.as_ref();
        status.is_some_and(|status| status.value.phase == NodePhase::NotReady)
    });
    lost.map(|(name, _)| name.clone()).collect()
}

/// Each address is used once, and each slot has one wanted instance, or two of different versions; runs
/// of a Job that may overlap have slots of their own. Instances on machines in `away`, which their
/// instances must leave, come on top.
fn check_instances(snapshot: &Snapshot, away: &BTreeSet<String>) {
    let mut addresses = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    let mut slots: BTreeMap<(WorkloadKey, u32, &str), Vec<&str>> = BTreeMap::new();
    for (id, entry) in &snapshot.instances {
        let assignment = &entry.assignment.value;
        if assignment.container.host_network {
            // The instance has the machine's own address, and no other instance has its ports on
            // the machine.
            assert!(!snapshot.allocations.contains_key(id), "{id}");
            let holds = assignment.wanted != DesiredRun::Prepared;
            for port in assignment.ports.iter().filter(|_| holds) {
                let is_new = host_ports.insert((&entry.node, port.container_port, port.protocol));
                assert!(is_new, "{} of {}", port.container_port, entry.node);
            }
        } else {
            assert!(
                addresses.insert(assignment.address),
                "{} twice",
                assignment.address
            );
            let allocation = &snapshot.allocations[id].value;
            assert_eq!(
                (allocation.node.as_str(), allocation.address),
                (entry.node.as_str(), assignment.address)
            );
        }
        if assignment.wanted == DesiredRun::Running && !away.contains(&entry.node) {
            let key = WorkloadKey::new(&assignment.namespace, &assignment.workload);
            let parsed = snapshot.workloads.get(&key);
            let parsed = parsed.and_then(|entry| entry.parsed.as_ref().ok());
            let overlap = parsed
                .and_then(|parsed| parsed.job.as_ref())
                .is_some_and(|job| job.concurrency_policy == ConcurrencyPolicy::Allow);
            let run = assignment.run.as_ref().filter(|_| overlap);
            let run = run.map_or("", |run| run.key.as_str());
            slots
                .entry((key, assignment.slot, run))
                .or_default()
                .push(&assignment.template_hash);
        }
    }
    let allocations = snapshot.allocations.values();
    let (released, given): (Vec<_>, Vec<_>) = allocations.partition(|one| one.value.released);
    assert_eq!(given.len(), addresses.len());
    for one in released {
        let again = given
            .iter()
            .find(|other| other.value.address == one.value.address);
        let again = again.map(|other| &other.value.namespace);
        let address = one.value.address;
        assert!(
            again.is_none_or(|namespace| *namespace == one.value.namespace),
            "{address}"
        );
    }
    for ((key, slot, _), hashes) in slots {
        let different: BTreeSet<_> = hashes.iter().collect();
        assert!(
            hashes.len() <= 2,
            "{key} slot {slot} has {} instances",
            hashes.len()
        );
        assert_eq!(different.len(), hashes.len(), "{key} slot {slot}");
    }
}
