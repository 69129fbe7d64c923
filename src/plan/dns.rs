//! Records of the cluster's zone (RFC001-KAT 7.3): instances that are healthy and not on their way out, on
//! machines that answer.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    NodeStatusRecord, Wanted,
    draft::{Draft, Group},
    node_address,
};
use crate::{
    api::types::{Health, InstancePhase, NodePhase},
    store::keys,
};

/// Writes the records that are missing and deletes those that should not be.
pub(super) fn plan_dns(draft: &mut Draft<'_>, statuses: &BTreeMap<String, NodeStatusRecord>) {
    let snapshot = draft.snapshot;
    let mut wanted = BTreeSet::new();
    for (name, node) in &snapshot.nodes {
        if let Some(subnet) = node.subnet {
            wanted.insert(keys::dns_record(
                "node",
                name,
                "A",
                &node_address(subnet).to_string(),
            ));
        }
    }
    for (id, entry) in &snapshot.instances {
        let assignment = &entry.assignment.value;
        let record = statuses
            .get(&entry.node)
            .filter(|status| status.phase != NodePhase::NotReady)
            .and_then(|status| status.instances.get(id));
        let answers = record.is_some_and(|record| {
            record.phase == InstancePhase::Running
                && matches!(record.health, Health::Healthy | Health::NotApplicable)
        });
        // The name goes with the stop, not after it.
        if answers && assignment.wanted == Wanted::Running && !draft.stops(id) {
            let key = |value: &str| {
                keys::dns_record(&assignment.namespace, &assignment.workload, "A", value)
            };
            wanted.insert(key(&assignment.address.to_string()));
            wanted.insert(key(&format!("{id}={}", assignment.address)));
        }
    }
    let mut group = Group::default();
    for key in wanted.iter().filter(|key| !snapshot.dns.contains_key(*key)) {
        group.put(key.clone(), &());
        if Draft::is_full(&group) {
            draft.commit(std::mem::take(&mut group), "names".to_owned(), Vec::new());
        }
    }
    for key in snapshot.dns.keys().filter(|key| !wanted.contains(*key)) {
        group.delete(key.clone());
        if Draft::is_full(&group) {
            draft.commit(std::mem::take(&mut group), "names".to_owned(), Vec::new());
        }
    }
    draft.commit(group, "names".to_owned(), Vec::new());
}
