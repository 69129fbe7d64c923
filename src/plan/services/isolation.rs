//! Who may reach whom: what every machine knows of namespaces and of the addresses in them.
//!
//! An address of a namespace is given to another one only when no machine counts it to the first any
//! more. While the cluster isolates namespaces, the allocation of an instance that is gone stays,
//! `released`, until every machine has in force what the store said after it. A machine that does not
//! isolate, or that no other machine reaches over the overlay and the leader does not hear, is not
//! waited for.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    Snapshot,
    draft::{Draft, OperationGroup},
    nodes::node_loss::LastReport,
};
use kat_types::{
    api::NodeReport,
    machine::isolation::ENFORCING_DATA_PATH,
    resource::{Isolation, NamespaceIsolation},
    services::{NamespaceNetwork, ServiceAccess},
    store::{
        keys,
        records::{Allocation, NodeStatusRecord},
        revisions::Stored,
        snapshot::WorkloadEntry,
    },
};

/// A machine that has not answered another one for this long does not reach it.
const UNANSWERED: Duration = Duration::from_secs(15);
const REASON: &str = "who may reach whom";

/// Whether workloads of a namespace may reach a workload of another one that allows `allowed` besides
/// those of its own namespace.
pub(crate) fn may_reach(snapshot: &Snapshot, from: &str, to: &str, allowed: &[String]) -> bool {
    if snapshot.wanted_cluster().spec.isolation != Isolation::Namespaces {
        return true;
    }
    let access = snapshot
        .namespaces
        .get(to)
        .map(|stored| &stored.value.access);
    let is_shared = access.is_some_and(|access| access.isolation == NamespaceIsolation::Shared);
    let of_namespace = access.map_or(&[][..], |access| access.allow_namespaces.as_slice());
    let mut names = of_namespace.iter().chain(allowed);
    is_shared || names.any(|name| name == "*" || name == from)
}

/// What becomes of the allocation of an instance that is removed; `None` if it is deleted.
pub(crate) fn released(snapshot: &Snapshot, stored: &Stored<Allocation>) -> Option<Allocation> {
    let allocation = &stored.value;
    let isolates = snapshot.cluster.spec.isolation == Isolation::Namespaces;
    (isolates && !allocation.namespace.is_empty()).then(|| Allocation {
        released: true,
        ..allocation.clone()
    })
}

/// Deletes the allocations of instances that are gone, where no machine counts their addresses to
/// their namespaces any more.
pub(crate) fn plan_released(draft: &mut Draft<'_>, confirmed: Option<&ConfirmedRules>) {
    let snapshot = draft.snapshot;
    let mut group = OperationGroup::default();
    for (instance, stored) in &snapshot.allocations {
        let is_known = confirmed.is_none_or(|rules| rules.revision >= stored.revision);
        if stored.value.released && is_known {
            group.delete(keys::allocation(instance));
            if Draft::is_full(&group) {
                let full = std::mem::take(&mut group);
                draft.commit(full, "free addresses".to_owned(), Vec::new());
            }
        }
    }
    draft.commit(group, "free addresses".to_owned(), Vec::new());
}

/// What a workload without a machine waits for: addresses of other namespaces that are not free yet.
pub(crate) fn waiting_addresses(
    snapshot: &Snapshot,
    confirmed: Option<&ConfirmedRules>,
    namespace: &str,
) -> Option<String> {
    let ConfirmedRules { revision, machine } = confirmed?;
    let allocations = snapshot.allocations.values();
    let waiting = allocations.filter(|stored| {
        let allocation = &stored.value;
        allocation.released && allocation.namespace != namespace && stored.revision > *revision
    });
    let addresses = match waiting.count() {
        0 => return None,
        1 => "an address of another namespace waits".to_owned(),
        count => format!("{count} addresses of other namespaces wait"),
    };
    Some(format!(
        "{addresses} until {machine} confirms that their instances are gone"
    ))
}

/// The rules that every machine has in force that isolates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConfirmedRules {
    /// Their revision.
    revision: i64,
    /// A machine that has none of a later revision in force.
    machine: String,
}

/// The rules that every machine has in force that isolates; `None` if there is no such machine, or
/// nothing is isolated.
pub(crate) fn confirmed_rules(
    snapshot: &Snapshot,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    heard: &BTreeMap<&str, LastReport<'_>>,
) -> Option<ConfirmedRules> {
    if snapshot.cluster.spec.isolation != Isolation::Namespaces {
        return None;
    }
    let isolating = snapshot.nodes.keys().filter(|name| {
        let status = statuses.get(*name);
        status.is_some_and(|status| status.data_path >= ENFORCING_DATA_PATH)
            && !is_out_of_overlay(snapshot, heard, name)
    });
    let rules = isolating.map(|name| {
        let report = heard.get(name.as_str()).and_then(|heard| heard.report);
        let revision = report.map(NodeReport::isolation_revision);
        ConfirmedRules {
            // A later one than the store has is of the store before a restore.
            revision: revision
                .filter(|revision| *revision <= snapshot.revision)
                .unwrap_or_default(),
            machine: name.clone(),
        }
    });
    rules.min()
}

/// Whether the machine is lost for the leader, and no machine that the leader hears reaches it over
/// the overlay: it owes an answer, or it was asked none, because it serves nothing, and has no session.
///
/// A machine that lives all the same keeps to rules in which the addresses have their former owners.
/// That opens nothing: an address belongs to one machine, which has confirmed its new owner, and
/// that machine judges what comes to the address and what goes from it.
fn is_out_of_overlay(
    snapshot: &Snapshot,
    heard: &BTreeMap<&str, LastReport<'_>>,
    name: &str,
) -> bool {
    let is_silent = |heard: &LastReport<'_>| heard.silent >= heard.timeout(snapshot);
    if !heard.get(name).is_some_and(is_silent) {
        return false;
    }
    let others = heard
        .iter()
        .filter(|(other, last)| **other != name && !is_silent(last));
    let mut reports = others.filter_map(|(_, last)| last.report);
    reports.all(|report| {
        let mut peers = report.overlay_network.peers.iter();
        let peer = peers.find(|peer| peer.name == name);
        peer.is_some_and(|peer| match peer.unanswered_seconds {
            Some(seconds) => u64::from(seconds) >= UNANSWERED.as_secs(),
            None => !peer.connected,
        })
    })
}

/// Writes what machines know of namespaces and workloads, and the namespaces of addresses that an
/// earlier version gave, where they changed.
pub(crate) fn plan_access(draft: &mut Draft<'_>) {
    let snapshot = draft.snapshot;
    let mut group = OperationGroup::default();
    for (name, stored) in &snapshot.namespaces {
        let known = snapshot.network_namespaces.get(name);
        let wanted = NamespaceNetwork {
            schema: 1,
            access: stored.value.access.clone(),
        };
        let key = keys::network_namespace(name);
        match known {
            Some(known) if known.value == wanted => {}
            None if wanted.access.is_closed() => {}
            Some(_) if wanted.access.is_closed() => group.delete(key),
            _ => draft.put_in_turn(&mut group, key, &wanted, REASON),
        }
    }
    for name in snapshot.network_namespaces.keys() {
        if !snapshot.namespaces.contains_key(name) {
            group.delete(keys::network_namespace(name));
        }
    }
    for (key, entry) in &snapshot.workloads {
        let stored_at = keys::service_access(&key.namespace, &key.name);
        if draft.keeps(key) || draft.is_not_writable(key, &stored_at) {
            continue;
        }
        let stored = snapshot.services.get(key);
        let stored = stored.and_then(|service| service.access.as_ref());
        let Some(allowed) = allowed_namespaces(entry) else {
            continue;
        };
        match stored {
            Some(stored) if stored.value.allow_namespaces == allowed => {}
            None if allowed.is_empty() => {}
            Some(_) if allowed.is_empty() => group.delete(stored_at),
            _ => {
                let access = ServiceAccess {
                    schema: 1,
                    allow_namespaces: allowed.to_vec(),
                };
                draft.put_in_turn(&mut group, stored_at, &access, REASON);
            }
        }
        if Draft::is_full(&group) {
            draft.commit(std::mem::take(&mut group), REASON.to_owned(), Vec::new());
        }
    }
    name_namespaces(draft, &mut group);
    draft.commit(group, REASON.to_owned(), Vec::new());
}

/// The other namespaces that may reach the workload; `None` if its files can't be read.
fn allowed_namespaces(entry: &WorkloadEntry) -> Option<&[String]> {
    let parsed = entry.parsed.as_ref().ok()?;
    let balancer = parsed.load_balancer.as_ref();
    Some(balancer.map_or(&[][..], |balancer| &balancer.spec.allow_namespaces))
}

/// Adds namespace and workload to the allocations of earlier versions.
fn name_namespaces(draft: &mut Draft<'_>, group: &mut OperationGroup) {
    let snapshot = draft.snapshot;
    for (instance, stored) in &snapshot.allocations {
        let allocation = &stored.value;
        if !allocation.namespace.is_empty() || draft.removes(instance) {
            continue;
        }
        let Some(entry) = snapshot.instances.get(instance) else {
            continue;
        };
        let assignment = &entry.assignment.value;
        let named = Allocation {
            namespace: assignment.namespace.clone(),
            workload: assignment.workload.clone(),
            ..allocation.clone()
        };
        draft.put_in_turn(group, keys::allocation(instance), &named, REASON);
    }
}
