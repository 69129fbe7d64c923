//! DNS records of the cluster's zone (RFC001-KAT 7.3): of machines, of instances that serve, and of
//! services. A service's name answers with the service address, or, if it has none, with the
//! addresses of the instances that serve.

use std::collections::{BTreeMap, BTreeSet};

use super::serving;
use crate::{
    draft::{Draft, OperationGroup},
    services::service_addresses::ServiceAddresses,
};
use kat_types::{
    machine::network::node_address,
    services::BackendState,
    store::{keys, records::NodeStatusRecord, revisions::WorkloadKey},
};

/// Writes DNS records that are missing and deletes those that should not exist.
pub(crate) fn plan_dns(
    draft: &mut Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    services: &ServiceAddresses,
) {
    let snapshot = draft.snapshot;
    let mut wanted = Vec::new();
    for (name, node) in &snapshot.nodes {
        if let Some(subnet) = node.subnet {
            wanted.push(keys::dns_record(
                "node",
                name,
                "A",
                &node_address(subnet).to_string(),
            ));
        }
    }
    let mut addressed = BTreeSet::new();
    for (workload, entry) in &snapshot.workloads {
        if let Some(address) = services.named(workload, entry) {
            let WorkloadKey { namespace, name } = workload;
            addressed.insert((namespace.as_str(), name.as_str()));
            wanted.push(keys::dns_record(namespace, name, "A", &address.to_string()));
        }
    }
    for (id, entry) in &snapshot.instances {
        if serving::backend_state(draft, statuses, id, entry) != Some(BackendState::Serving) {
            continue;
        }
        let assignment = &entry.assignment.value;
        let (namespace, workload) = (&assignment.namespace, &assignment.workload);
        let key = |value: &str| keys::dns_record(namespace, workload, "A", value);
        if !addressed.contains(&(namespace.as_str(), workload.as_str())) {
            wanted.push(key(&assignment.address.to_string()));
        }
        wanted.push(key(&format!("{id}={}", assignment.address)));
    }
    let wanted = BTreeSet::from_iter(wanted);
    if wanted.iter().eq(snapshot.dns.keys()) {
        return;
    }
    let kept = |key: &str| {
        let mut parts = key.strip_prefix(keys::DNS).unwrap_or(key).split('/');
        let (Some(namespace), Some(name)) = (parts.next(), parts.next()) else {
            return false;
        };
        snapshot
            .workloads
            .contains_key(&WorkloadKey::new(namespace, name))
            && draft.keeps(&WorkloadKey::new(namespace, name))
    };
    let missing = wanted.iter().filter(|key| !snapshot.dns.contains_key(*key));
    let missing: Vec<&String> = missing.filter(|key| !kept(key)).collect();
    let unwanted = snapshot.dns.keys().filter(|key| !wanted.contains(*key));
    let unwanted: Vec<&String> = unwanted.filter(|key| !kept(key)).collect();
    let mut group = OperationGroup::default();
    for key in missing {
        group.put(key.clone(), &());
        if Draft::is_full(&group) {
            draft.commit(std::mem::take(&mut group), "names".to_owned(), Vec::new());
        }
    }
    for key in unwanted {
        group.delete(key.clone());
        if Draft::is_full(&group) {
            draft.commit(std::mem::take(&mut group), "names".to_owned(), Vec::new());
        }
    }
    draft.commit(group, "names".to_owned(), Vec::new());
}
