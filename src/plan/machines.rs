//! The machines as the scheduler sees them, carried on while a plan places instances.

use std::collections::BTreeMap;

use super::{Candidate, NodeStatusRecord, WorkloadKey, draft::Draft};
use crate::{api::types::NodePhase, resource::ResourceList};

/// Every machine as a candidate, made once for a plan. A placement changes one of them.
pub(super) struct Machines<'a> {
    /// In the order of their names.
    candidates: Vec<Candidate<'a>>,
    /// Whose instances `same_workload` counts.
    workload: Option<WorkloadKey>,
}

impl<'a> Machines<'a> {
    pub(super) fn new(draft: &Draft<'a>, statuses: &BTreeMap<String, NodeStatusRecord>) -> Self {
        let nodes = draft.snapshot.nodes.iter();
        let candidates = nodes.map(|(name, node)| {
            let registration = &node.registration.value;
            let status = statuses.get(name);
            Candidate {
                name,
                phase: status.map_or(NodePhase::Joining, |status| status.phase),
                draining: registration.draining,
                labels: &registration.labels,
                taints: &registration.taints,
                allocatable: status.map(|status| status.allocatable).unwrap_or_default(),
                requested: draft.requested(name),
                same_workload: 0,
                has_address: draft.free_address(name).is_some(),
            }
        });
        Self {
            candidates: candidates.collect(),
            workload: None,
        }
    }

    /// The candidates for an instance of this workload.
    pub(super) fn candidates(&mut self, key: &WorkloadKey, draft: &Draft<'a>) -> &[Candidate<'a>] {
        if self.workload.as_ref() != Some(key) {
            self.workload = Some(key.clone());
            for candidate in &mut self.candidates {
                candidate.same_workload = 0;
            }
            for (_, entry) in draft.instances_of(key) {
                if let Some(candidate) = self.find(&entry.node) {
                    candidate.same_workload += 1;
                }
            }
        }
        &self.candidates
    }

    /// One more instance of the workload that was asked for last is on this machine.
    pub(super) fn placed(&mut self, node: &str, requests: ResourceList, has_address: bool) {
        if let Some(candidate) = self.find(node) {
            candidate.requested.add(requests);
            candidate.same_workload += 1;
            candidate.has_address = has_address;
        }
    }

    /// It is being drained, or was.
    pub(super) fn is_drained(&self, node: &str) -> bool {
        self.candidates
            .binary_search_by(|candidate| candidate.name.cmp(node))
            .ok()
            .and_then(|place| self.candidates.get(place))
            .is_some_and(|candidate| candidate.draining)
    }

    fn find(&mut self, node: &str) -> Option<&mut Candidate<'a>> {
        let place = self
            .candidates
            .binary_search_by(|candidate| candidate.name.cmp(node))
            .ok()?;
        self.candidates.get_mut(place)
    }
}
