//! DNS records of the cluster's zone (RFC001-KAT 7.3): of machines, of instances that serve, of
//! services, and of replicas with data of their own. A service's name answers with the service address,
//! or, if it has none, with the addresses of the instances that serve; its aliases answer alike.

use std::collections::{BTreeMap, BTreeSet};

use super::{aliases::AliasOwners, serving};
use crate::{
    draft::{Draft, OperationGroup},
    services::service_addresses::ServiceAddresses,
};
use kat_types::{
    api::InstancePhase,
    assignment::{Assignment, DesiredRun, replica_name},
    machine::network::node_address,
    services::BackendState,
    store::{keys, records::NodeStatusRecord, revisions::WorkloadKey, snapshot::InstanceEntry},
};

/// Writes DNS records that are missing and deletes those that should not exist.
pub(crate) fn plan_dns(
    draft: &mut Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    services: &ServiceAddresses,
) {
    let snapshot = draft.snapshot;
    let aliases = AliasOwners::of(snapshot);
    let mut wanted = replica_records(draft, statuses);
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
            let address = address.to_string();
            let names = std::iter::once(name.as_str()).chain(aliases.aliases(workload));
            wanted.extend(names.map(|name| keys::dns_record(namespace, name, "A", &address)));
        }
    }
    for (id, entry) in &snapshot.instances {
        if serving::backend_state(draft, statuses, id, entry) != Some(BackendState::Serving) {
            continue;
        }
        let assignment = &entry.assignment.value;
        let (namespace, workload) = (&assignment.namespace, &assignment.workload);
        let address = assignment.address.to_string();
        if !addressed.contains(&(namespace.as_str(), workload.as_str())) {
            let key = WorkloadKey::new(namespace, workload);
            let names = std::iter::once(workload.as_str()).chain(aliases.aliases(&key));
            wanted.extend(names.map(|name| keys::dns_record(namespace, name, "A", &address)));
        }
        let own = format!("{id}={address}");
        wanted.push(keys::dns_record(namespace, workload, "A", &own));
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
        let own = WorkloadKey::new(namespace, name);
        let owner = match snapshot.workloads.contains_key(&own) {
            true => Some(&own),
            false => aliases.owner(namespace, name),
        };
        owner.is_some_and(|owner| draft.keeps(owner))
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

/// The names of replicas with volumes of their own: each answers with the address of the instance that
/// has the replica's data, from the start of its containers until it begins to stop.
///
/// It need not serve: the members of a database find each other by these names before any of them is
/// healthy, and some are healthy only then.
fn replica_records(
    draft: &Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
) -> Vec<String> {
    // The last one of each replica has its name.
    let mut named: BTreeMap<(&str, &str, u32), (ReplicaClaim, &Assignment)> = BTreeMap::new();
    for (id, entry) in &draft.snapshot.instances {
        let assignment = &*entry.assignment.value;
        let Some(claim) = replica_claim(draft, statuses, id, entry) else {
            continue;
        };
        let Assignment {
            namespace,
            workload,
            slot,
            ..
        } = assignment;
        let replica = (namespace.as_str(), workload.as_str(), *slot);
        let before = named.get(&replica);
        if before.is_none_or(|(before, _)| *before < claim) {
            named.insert(replica, (claim, assignment));
        }
    }
    let records = named
        .into_iter()
        .map(|((namespace, workload, slot), (_, one))| {
            let value = format!("{}={}", replica_name(workload, slot), one.address);
            keys::dns_record(namespace, workload, "A", &value)
        });
    records.collect()
}

/// What decides between two instances of a replica, of which one replaces the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ReplicaClaim {
    serves: bool,
    is_reported: bool,
    created_revision: i64,
}

/// `None` for an instance that has no replica's name.
fn replica_claim(
    draft: &Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    id: &str,
    entry: &InstanceEntry,
) -> Option<ReplicaClaim> {
    let assignment = &entry.assignment.value;
    if !assignment.has_replica_name() || assignment.wanted != DesiredRun::Running || draft.stops(id)
    {
        return None;
    }
    let record = statuses.get(&entry.node)?.instances.get(id)?;
    let is_reported = match record.phase {
        InstancePhase::Starting | InstancePhase::Running | InstancePhase::Restarting => true,
        InstancePhase::Unknown => false,
        InstancePhase::Pending
        | InstancePhase::Scheduled
        | InstancePhase::Pulling
        | InstancePhase::Building
        | InstancePhase::Prepared
        | InstancePhase::Stopping
        | InstancePhase::Stopped
        | InstancePhase::Failed
        | InstancePhase::Succeeded => return None,
    };
    let state = serving::backend_state(draft, statuses, id, entry);
    Some(ReplicaClaim {
        serves: state == Some(BackendState::Serving),
        is_reported,
        created_revision: entry.created_revision,
    })
}
