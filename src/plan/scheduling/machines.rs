//! The machines as the scheduler sees them, updated while a plan places instances.

use std::collections::{BTreeMap, BTreeSet};

use super::host_ports;
use crate::{MachineCandidate, draft::Draft, images};
use kat_types::{
    api::{InstancePhase, NodePhase},
    assignment::{Assignment, DesiredRun},
    store::{records::NodeStatusRecord, revisions::WorkloadKey},
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
                has_address: draft.free_address(name).is_some(),
                // Agents of versions that did not report it understand schema 1.
                assignment_schema: status.map_or(1, |status| status.assignment_schema.max(1)),
                data_path: status.map_or(0, |status| status.data_path),
                architecture: &registration.architecture,
                volume_shared: status.is_some_and(|status| status.volume_shared),
                host_network: status.is_some_and(|status| status.host_network),
                // Agents of versions that did not report it count as having crun.
                lacks_crun: status.is_some_and(|status| !matches!(&*status.runtime, "" | "crun")),
                foreign_indexes: status.map_or_else(Vec::new, |one| one.foreign_indexes.clone()),
                disk_pressure: status
                    .is_some_and(|status| images::pressure(&status.conditions).is_some()),
                visible_bytes: draft.snapshot.visible.of(name),
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
            // any more.
            let status = statuses.get(&entry.node);
            let record = status.and_then(|status| status.instances.get(id));
            let ended = record.is_some_and(|record| record.phase == InstancePhase::Stopped);
            if !(ended && entry.assignment.value.wanted == DesiredRun::Stopped) {
                machines.take_ports(&entry.node, &entry.assignment.value);
            }
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

    /// Counts one more instance on this machine, whose assignment has so many bytes.
    pub(crate) fn placed(
        &mut self,
        key: &WorkloadKey,
        node: &str,
        assignment: &Assignment,
        bytes: usize,
        has_address: bool,
    ) {
        self.take_ports(node, assignment);
        if let Some(candidate) = self.find(node) {
            candidate
                .requested
                .add_all(&assignment.together().resources);
            candidate.visible_bytes += bytes;
            candidate.staying += 1;
            candidate.has_address = has_address;
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
        let mut apart: Vec<WorkloadKey> = self.repelling.get(key).cloned().unwrap_or_default();
        apart.extend(
            spec.into_iter()
                .flat_map(|spec| spec.anti_affinity.iter().map(in_namespace)),
        );
        let apart: Vec<_> = apart
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
        }
        for (_, entry) in draft.instances_of(key) {
            if entry.assignment.value.wanted == DesiredRun::Running
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
