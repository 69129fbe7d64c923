//! The machines as the scheduler sees them, updated while a plan places instances.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use super::{gpus, host_ports, ingress_ports::IngressPortOwners};
use crate::{MachineCandidate, draft::Draft, images, nodes::overlay_down};
use kat_types::{
    api::{
        Condition, DATA_PATH_RUNS, FILES_WRITTEN, InstancePhase, NodePhase, STORE_EPOCH_REFUSED,
    },
    assignment::{Assignment, DesiredRun},
    store::{records::NodeStatusRecord, revisions::WorkloadKey, snapshot::InstanceEntry},
};

/// Every machine as a candidate, made once for a plan. A placement changes one of them.
pub(crate) struct Machines<'a> {
    /// In the order of their names.
    candidates: Vec<MachineCandidate<'a>>,
    /// The workload that the candidates' counts are for.
    workload: Option<WorkloadKey>,
    /// Machines on which this plan has placed instances of a workload.
    placed: BTreeMap<WorkloadKey, Vec<String>>,
    /// Workloads named in an `antiAffinity`, with the workloads that name them.
    repelling: BTreeMap<WorkloadKey, Vec<WorkloadKey>>,
}

impl<'a> Machines<'a> {
    pub(crate) fn new(draft: &Draft<'a>, statuses: &BTreeMap<String, NodeStatusRecord>) -> Self {
        let nodes = draft.snapshot.nodes.iter();
        // A machine whose status cannot be written is left out, since nothing new is known of it.
        let nodes = nodes.filter(|(name, _)| draft.frozen.machine(name).is_none());
        let candidates = nodes.map(|(name, node)| {
            let registration = &node.registration.value;
            let status = statuses.get(name);
            MachineCandidate {
                name,
                phase: status.map_or(NodePhase::Joining, |status| status.phase),
                draining: registration.draining,
                labels: &registration.labels,
                taints: &registration.taints,
                allocatable: status.map(|status| status.allocatable).unwrap_or_default(),
                requested: draft.requested(name),
                host_ports: BTreeMap::new(),
                staying: 0,
                repelled: false,
                lonely: false,
                // For a namespace of its own: `turn_to` knows the workload's.
                has_address: draft.free_address(name, "").is_some(),
                // Agents of versions that did not report it understand schema 1.
                assignment_schema: status.map_or(1, |status| status.assignment_schema.max(1)),
                data_path: status.map_or(0, |status| status.data_path),
                architecture: &registration.architecture,
                volume_shared: status.is_some_and(|status| status.volume_shared),
                host_network: status.is_some_and(|status| status.host_network),
                // Agents of versions that did not report it count as having crun.
                lacks_crun: status.is_some_and(|status| !matches!(&*status.runtime, "" | "crun")),
                foreign_indexes: status.map_or_else(Vec::new, |one| one.foreign_indexes.clone()),
                unreachable: status.is_some_and(overlay_down::is_down),
                cannot_start: status.is_some_and(|status| cannot_start(&status.conditions)),
                disk_pressure: status
                    .is_some_and(|status| images::pressure(&status.conditions).is_some()),
                visible_bytes: draft.snapshot.visible.of(name),
                gpus: status.map_or_else(Vec::new, |status| status.gpus.clone()),
                gpu_holders: BTreeMap::new(),
            }
        });
        let mut machines = Self {
            candidates: candidates.collect(),
            workload: None,
            placed: BTreeMap::new(),
            repelling: repelling(draft),
        };
        for (id, entry) in &draft.snapshot.instances {
            // An instance that has ended, and whose assignment this plan deletes, has no host port
            // and no GPU any more.
            let status = statuses.get(&entry.node);
            let record = status.and_then(|status| status.instances.get(id));
            let ended = record.is_some_and(|record| record.phase == InstancePhase::Stopped);
            if !(ended && entry.assignment.value.wanted == DesiredRun::Stopped) {
                machines.take_ports(&entry.node, &entry.assignment.value);
                machines.take_gpu(&entry.node, &entry.assignment.value);
            }
        }
        let owners = IngressPortOwners::of(draft.snapshot);
        for candidate in &mut machines.candidates {
            owners.add_to(candidate.name, &mut candidate.host_ports);
        }
        machines
    }

    /// The candidates for an instance of this workload.
    pub(crate) fn candidates(
        &mut self,
        key: &WorkloadKey,
        draft: &Draft<'a>,
    ) -> &[MachineCandidate<'a>] {
        if self.workload.as_ref() != Some(key) {
            self.workload = Some(key.clone());
            self.turn_to(key, draft);
        }
        &self.candidates
    }

    /// The candidates for an instance that starts now in this slot: without what the slot's prepared
    /// instance is to use, as it does not start beside the new one, and without what the instances used
    /// whose end their machine has confirmed. With `only`, that machine alone.
    pub(crate) fn candidates_now(
        &mut self,
        key: &WorkloadKey,
        draft: &Draft<'a>,
        slot: u32,
        only: Option<&str>,
    ) -> Cow<'_, [MachineCandidate<'a>]> {
        let own = draft.instances_in_slot(key, slot).iter();
        let free: Vec<_> = own
            .filter(|(id, entry)| {
                let wanted = entry.assignment.value.wanted;
                wanted == DesiredRun::Prepared || draft.removes(id)
            })
            .collect();
        let candidates = self.candidates(key, draft);
        if free.is_empty() && only.is_none() {
            return Cow::Borrowed(candidates);
        }
        let mut candidates = copies(candidates, only);
        for (_, entry) in free {
            let found = candidates.iter_mut().find(|one| one.name == entry.node);
            if let Some(candidate) = found {
                let freed = draft.requests_of(&entry.node, &entry.assignment.value);
                candidate.requested = candidate.requested.beyond(freed);
                gpus::release(candidate, &entry.assignment.value);
            }
        }
        Cow::Owned(candidates)
    }

    /// The candidates for an instance that starts when all others of its slot have ended: without
    /// what these use of their machines. With `only`, that machine alone.
    pub(crate) fn candidates_after(
        &mut self,
        key: &WorkloadKey,
        draft: &Draft<'a>,
        slot: u32,
        only: Option<&str>,
    ) -> Vec<MachineCandidate<'a>> {
        let mut candidates = copies(self.candidates(key, draft), only);
        let ends = |other: &WorkloadKey, entry: &InstanceEntry| {
            other == key && entry.assignment.value.slot == slot
        };
        let apart = self.apart_from(key, draft);
        for (_, entry) in draft.instances_in_slot(key, slot) {
            let node = &entry.node;
            let repels = |other: &WorkloadKey| {
                let mut stored = draft.instances_of(other).iter();
                let mut placed = self.placed.get(other).into_iter().flatten();
                stored.any(|(_, one)| one.node == *node && !ends(other, one))
                    || placed.any(|one| one == node)
            };
            if let Some(candidate) = candidates.iter_mut().find(|one| one.name == node) {
                let freed = draft.requests_of(node, &entry.assignment.value);
                candidate.requested = candidate.requested.beyond(freed);
                gpus::release(candidate, &entry.assignment.value);
                candidate.repelled = apart.iter().any(repels);
            }
        }
        candidates
    }

    /// Counts one more instance on this machine, whose assignment has so many bytes.
    pub(crate) fn placed(
        &mut self,
        key: &WorkloadKey,
        draft: &Draft<'a>,
        node: &str,
        assignment: &Assignment,
        bytes: usize,
    ) {
        self.take_ports(node, assignment);
        self.take_gpu(node, assignment);
        if let Some(candidate) = self.find(node) {
            let requests = draft.requests_of(node, assignment);
            candidate.requested = candidate.requested.plus(requests);
            candidate.visible_bytes += bytes;
            candidate.staying += 1;
            candidate.has_address = draft.free_address(node, &key.namespace).is_some();
        }
        if assignment.wanted == DesiredRun::Prepared {
            // It stays in the place of these.
            for replaced in draft.staying_in_slot_of(assignment) {
                if let Some(candidate) = self.find(&replaced.node) {
                    candidate.staying = candidate.staying.saturating_sub(1);
                }
            }
        }
        match self.placed.get_mut(key) {
            Some(machines) => machines.push(node.to_owned()),
            None => drop(self.placed.insert(key.clone(), vec![node.to_owned()])),
        }
        if self.repelling.contains_key(key) {
            // The workload may exclude itself from the machine on which it was just placed.
            self.workload = None;
        }
    }

    /// Whether the machine is drained or being drained.
    pub(crate) fn is_drained(&self, node: &str) -> bool {
        self.index_of(node)
            .and_then(|place| self.candidates.get(place))
            .is_some_and(|candidate| candidate.draining)
    }

    /// Recomputes the candidates' counts for another workload.
    fn turn_to(&mut self, key: &WorkloadKey, draft: &Draft<'a>) {
        let spec = draft.snapshot.workloads.get(key);
        let spec = spec.and_then(|entry| entry.parsed.as_ref().ok());
        let spec = spec.map(|parsed| &parsed.workload.spec);
        let in_namespace = |name: &String| WorkloadKey::new(&key.namespace, name);
        let apart: Vec<_> = self
            .apart_from(key, draft)
            .iter()
            .map(|key| self.machines_of(key, draft, true))
            .collect();
        let together = spec
            .into_iter()
            .flat_map(|spec| spec.affinity.iter().map(in_namespace));
        let together: Vec<_> = together
            .filter(|other| other != key)
            .map(|key| self.machines_of(&key, draft, false))
            .collect();
        for candidate in &mut self.candidates {
            candidate.staying = 0;
            candidate.repelled = apart.iter().any(|some| some.contains(candidate.name));
            candidate.lonely = !together.iter().all(|some| some.contains(candidate.name));
            if draft.has_released() {
                let address = draft.free_address(candidate.name, &key.namespace);
                candidate.has_address = address.is_some();
            }
        }
        for (_, entry) in draft.instances_of(key) {
            if draft.stays(&entry.assignment.value)
                && let Some(candidate) = self.find(&entry.node)
            {
                candidate.staying += 1;
            }
        }
        for node in self.placed.get(key).cloned().unwrap_or_default() {
            if let Some(candidate) = self.find(&node) {
                candidate.staying += 1;
            }
        }
    }

    /// Workloads that must not share a machine with this one.
    fn apart_from(&self, key: &WorkloadKey, draft: &Draft<'_>) -> Vec<WorkloadKey> {
        let entry = draft.snapshot.workloads.get(key);
        let parsed = entry.and_then(|entry| entry.parsed.as_ref().ok());
        let own = parsed.map_or(&[][..], |parsed| &parsed.workload.spec.anti_affinity);
        let own = own
            .iter()
            .map(|name| WorkloadKey::new(&key.namespace, name));
        let repelling = self.repelling.get(key).into_iter().flatten();
        repelling.cloned().chain(own).collect()
    }

    /// Machines that have an instance of a workload; with `leaving` also instances being stopped.
    fn machines_of(&self, key: &WorkloadKey, draft: &Draft<'a>, leaving: bool) -> BTreeSet<String> {
        let stored = draft.instances_of(key).iter();
        let stored = stored
            .filter(|(_, entry)| leaving || entry.assignment.value.wanted == DesiredRun::Running)
            .map(|(_, entry)| entry.node.clone());
        let placed = self.placed.get(key).into_iter().flatten().cloned();
        stored.chain(placed).collect()
    }

    fn take_ports(&mut self, node: &str, assignment: &Assignment) {
        let on_host = assignment.container.host_network;
        let mut taken = host_ports::held(&assignment.ports, on_host).peekable();
        if taken.peek().is_some()
            && let Some(candidate) = self.find(node)
        {
            let owner = WorkloadKey::new(&assignment.namespace, &assignment.workload);
            for port in taken {
                candidate
                    .host_ports
                    .entry(port)
                    .or_insert_with(|| owner.clone());
            }
        }
    }

    fn take_gpu(&mut self, node: &str, assignment: &Assignment) {
        if assignment.gpu.is_some()
            && let Some(candidate) = self.find(node)
        {
            gpus::take(candidate, assignment);
        }
    }

    fn index_of(&self, node: &str) -> Option<usize> {
        self.candidates
            .binary_search_by(|candidate| candidate.name.cmp(node))
            .ok()
    }

    fn find(&mut self, node: &str) -> Option<&mut MachineCandidate<'a>> {
        let place = self.index_of(node)?;
        self.candidates.get_mut(place)
    }
}

/// Copies of the candidates, or of the one of this name.
fn copies<'a>(
    candidates: &[MachineCandidate<'a>],
    only: Option<&str>,
) -> Vec<MachineCandidate<'a>> {
    let Some(name) = only else {
        return candidates.to_vec();
    };
    // They are in the order of their names.
    let found = candidates.binary_search_by(|candidate| candidate.name.cmp(name));
    let found = found.ok().and_then(|place| candidates.get(place));
    found.into_iter().cloned().collect()
}

/// Whether a machine's own report says that what is placed there does not start: no container starts
/// without its data path, and the agent acts on no change that it cannot write or does not follow.
fn cannot_start(conditions: &[Condition]) -> bool {
    conditions.iter().any(|one| match one.kind.as_str() {
        DATA_PATH_RUNS | FILES_WRITTEN => !one.status,
        STORE_EPOCH_REFUSED => one.status,
        _ => false,
    })
}

/// Workloads that others name in their `antiAffinity`: it applies in both directions.
fn repelling(draft: &Draft<'_>) -> BTreeMap<WorkloadKey, Vec<WorkloadKey>> {
    let mut repelling: BTreeMap<WorkloadKey, Vec<WorkloadKey>> = BTreeMap::new();
    for (key, entry) in &draft.snapshot.workloads {
        let Ok(parsed) = &entry.parsed else { continue };
        for name in &parsed.workload.spec.anti_affinity {
            let other = WorkloadKey::new(&key.namespace, name);
            repelling.entry(other).or_default().push(key.clone());
        }
    }
    repelling
}
