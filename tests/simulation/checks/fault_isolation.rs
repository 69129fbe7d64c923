//! Checks that a forged report and an object that cannot be written harm nothing else.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::faults::{
    forged_reports::{self, Forger},
    unwritable_workload,
};
use kat_plan::{ClusterPlan, Snapshot, WrittenObject};
use kat_types::{
    api::NodeReport,
    assignment::{Assignment, DesiredRun},
    reason::Reason,
    store::{
        keys, records::NodeStatusRecord, revisions::WorkloadKey, snapshot::ObservedReports,
        transaction::WriteOperation,
    },
    volumes::VolumeKey,
};

/// Why a plan harms anything other than the machine whose report is forged; `None` if it does not.
/// `honest` is the plan for the same state with `honest_report` in place of the forged report.
pub(crate) fn hurts_another(
    snapshot: &Snapshot,
    forged: &ClusterPlan,
    honest: &ClusterPlan,
    honest_report: &NodeReport,
) -> Option<String> {
    let mut own = of_the_forger(snapshot);
    own.extend(with_users_left(snapshot, honest_report));
    own.extend(placed_on_the_forger(honest));
    let judged = judged_by_the_leader(snapshot, [forged, honest]);
    let harm = |plan| harm(snapshot, plan, &own, &judged);
    let (is, would_be) = (harm(forged), harm(honest));
    if let Some(harm) = is.difference(&would_be).next() {
        return Some(format!("because of a forged report {harm}"));
    }
    let frozen = forged.frozen.iter().map(|one| &one.object);
    let mut others = frozen.filter(|object| match object {
        WrittenObject::Machine(name) => name != forged_reports::NAME,
        WrittenObject::Workload(key) => !unwritable_workload::is_large(snapshot, key),
        WrittenObject::Key(_) => true,
    });
    if let Some(object) = others.next() {
        return Some(format!(
            "because of a forged report {object} is left as it is"
        ));
    }
    puts(forged)
        .filter(|(key, _)| **key == keys::node_status(forged_reports::NAME))
        .find_map(|(_, value)| wrong_status(snapshot, value))
}

/// Why the forger's stored status is wrong: it may have only the forger's own instances, and no
/// control characters.
fn wrong_status(snapshot: &Snapshot, value: &[u8]) -> Option<String> {
    let status: NodeStatusRecord = serde_json::from_slice(value).unwrap();
    let foreign = status.instances.keys().find(|id| {
        let entry = snapshot.instances.get(*id);
        entry.is_none_or(|entry| entry.node != forged_reports::NAME)
    });
    if let Some(id) = foreign {
        let name = forged_reports::NAME;
        return Some(format!(
            "{name} is believed to have {id:?}, which is not its own"
        ));
    }
    let value: Value = serde_json::from_slice(value).unwrap();
    let text = obeyed(&value)?;
    Some(format!("{text:?} of a report is stored"))
}

/// The first text with control characters other than line feeds.
fn obeyed(value: &Value) -> Option<&str> {
    let bad = |text: &str| text.chars().any(|one| one.is_control() && one != '\n');
    match value {
        Value::String(text) => bad(text).then_some(text),
        Value::Array(list) => list.iter().find_map(obeyed),
        Value::Object(fields) => fields.values().find_map(obeyed),
        _ => None,
    }
}

/// Workloads that have, or had, an instance or a volume on the forger.
fn of_the_forger(snapshot: &Snapshot) -> BTreeSet<WorkloadKey> {
    let instances = snapshot.instances.values();
    let instances = instances.filter(|entry| entry.node == forged_reports::NAME);
    let mut own: BTreeSet<WorkloadKey> = instances
        .map(|entry| {
            let one = &entry.assignment.value;
            WorkloadKey::new(&one.namespace, &one.workload)
        })
        .collect();
    for (key, stored) in &snapshot.volumes {
        let record = &stored.value;
        let moving = record.moving.as_ref();
        let moves = moving.is_some_and(|moving| {
            [&moving.from, &moving.to].contains(&&forged_reports::NAME.to_owned())
        });
        if record.node.as_deref() == Some(forged_reports::NAME) || moves {
            own.insert(key.workload.clone());
        }
    }
    for lists in [
        snapshot
            .removals
            .get(forged_reports::NAME)
            .map(|all| all.keys().collect::<Vec<_>>()),
        snapshot
            .moves
            .get(forged_reports::NAME)
            .map(|all| all.keys().collect()),
    ] {
        own.extend(lists.into_iter().flatten().map(|key| key.workload.clone()));
    }
    own
}

/// Workloads whose user is left on the forger without an instance there. Only the forger can say
/// whether that user is gone, and the next workload with the same number finds the remains on the
/// forger only.
fn with_users_left<'s>(
    snapshot: &'s Snapshot,
    honest_report: &'s NodeReport,
) -> impl Iterator<Item = WorkloadKey> + 's {
    let indexes = honest_report.user_indexes.iter();
    let records = indexes.filter_map(|index| snapshot.indexes.get(index));
    records.map(|stored| WorkloadKey::new(&stored.value.namespace, &stored.value.workload))
}

/// Workloads of which an instance would be placed on the forger, which may refuse it. In place, the
/// version before is stopped without a look first where the next machine's version knows none.
fn placed_on_the_forger(plan: &ClusterPlan) -> impl Iterator<Item = WorkloadKey> {
    let placed = puts(plan).filter(|(key, _)| {
        let place = key.strip_prefix(keys::NODE_DESIRED);
        let place = place.and_then(|path| path.split_once("/instances/"));
        place.is_some_and(|(node, _)| node == forged_reports::NAME)
    });
    placed.map(|(_, value)| {
        let one: Assignment = serde_json::from_slice(value).unwrap();
        WorkloadKey::new(&one.namespace, &one.workload)
    })
}

/// Changes of the plan that harm machines other than the forger, and workloads without anything on
/// the forger.
fn harm(
    snapshot: &Snapshot,
    plan: &ClusterPlan,
    own: &BTreeSet<WorkloadKey>,
    judged: &BTreeSet<String>,
) -> BTreeSet<String> {
    let operations = plan.changes.iter().flat_map(|change| &change.operations);
    operations
        .filter_map(|operation| harmed(snapshot, operation, own, judged))
        .collect()
}

fn harmed(
    snapshot: &Snapshot,
    operation: &WriteOperation,
    own: &BTreeSet<WorkloadKey>,
    judged: &BTreeSet<String>,
) -> Option<String> {
    let (key, value) = match operation {
        WriteOperation::Put(key, value) => (key, Some(value)),
        WriteOperation::Delete(key) | WriteOperation::DeletePrefix(key) => (key, None),
    };
    let is_own = |namespace: &str, name: &str| own.contains(&WorkloadKey::new(namespace, name));
    let of_workload = |path: &str| {
        let mut parts = path.split('/');
        let (namespace, name) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        !is_own(namespace, name)
    };
    let text = || match value {
        Some(value) => format!("{key} becomes {}", String::from_utf8_lossy(value)),
        None => format!("{key} goes"),
    };
    if let Some(path) = key.strip_prefix(keys::NODE_DESIRED) {
        let (node, id) = path.split_once("/instances/")?;
        let entry = snapshot.instances.get(id)?;
        if node == forged_reports::NAME {
            return None;
        }
        let before = &entry.assignment.value;
        let Some(value) = value else {
            // The forger cannot end an instance on another machine, whatever its workload. One that
            // is only prepared does not run.
            return (before.wanted != DesiredRun::Prepared).then(text);
        };
        let after: Assignment = serde_json::from_slice(value).unwrap();
        let stops = before.wanted == DesiredRun::Running && after.wanted == DesiredRun::Stopped;
        return (stops && !is_own(&before.namespace, &before.workload))
            .then(|| format!("{id} on {node} is stopped"));
    }
    if let Some(node) = key.strip_prefix(keys::NODE_STATUS) {
        if node == forged_reports::NAME {
            return None;
        }
        let before = snapshot.nodes.get(node)?.status.as_ref();
        let before = before.map(|stored| stored.value.clone());
        let after = value.map(|value| serde_json::from_slice(value).unwrap());
        let apart = |status: Option<NodeStatusRecord>| match judged.contains(node) {
            true => status.map(apart_from_the_overlay),
            false => status,
        };
        return (after.is_none() || apart(after) != apart(before)).then(text);
    }
    if let Some(path) = key.strip_prefix(keys::NETWORK_NODES) {
        let begins = format!("{}/", forged_reports::NAME);
        return (!path.starts_with(&begins)).then(text);
    }
    if let Some(node) = key.strip_prefix(keys::REGISTRATIONS) {
        return (node != forged_reports::NAME).then(text);
    }
    if let Some(path) = key.strip_prefix(keys::VOLUMES) {
        // A volume without data may be placed elsewhere, as its instance may; one with data stays
        // where it is.
        let stored = VolumeKey::parse(path).and_then(|key| snapshot.volumes.get(&key));
        let has_data = stored.is_some_and(|stored| stored.value.made);
        return (has_data && of_workload(path)).then(text);
    }
    // New records and services only lead to new instances; existing ones stay.
    if value.is_some() {
        return None;
    }
    if let Some(instance) = key.strip_prefix(keys::ALLOCATIONS) {
        let entry = snapshot.instances.get(instance.trim_end_matches("/ip"))?;
        return (entry.node != forged_reports::NAME).then(text);
    }
    if let Some(path) = key.strip_prefix(keys::DNS)
        && leads_to(snapshot, path, judged)
    {
        return None;
    }
    for prefix in [keys::WORKLOADS, keys::SERVICES, keys::DNS] {
        if let Some(path) = key.strip_prefix(prefix) {
            return of_workload(path).then(text);
        }
    }
    if let Some(index) = key.strip_prefix(keys::INDEXES) {
        let stored = snapshot.indexes.get(&index.parse().ok()?)?;
        let record = &stored.value;
        return (!is_own(&record.namespace, &record.workload)).then(text);
    }
    None
}

/// Machines that are, or become, `OverlayDown` because the leader's own machine and others do not
/// reach them. The forger has a voice there, as every machine, and may be the one that makes a
/// majority: it may move callers to other machines, where any serve, and no more than that.
fn judged_by_the_leader(snapshot: &Snapshot, plans: [&ClusterPlan; 2]) -> BTreeSet<String> {
    let leader = snapshot.leader_name.as_deref().unwrap_or_default();
    let by_the_leader = |status: &NodeStatusRecord| {
        status.conditions.iter().any(|one| {
            let said = one.message.split_once(", say ").map(|(_, rest)| rest);
            let said = said.and_then(|rest| rest.split_once(';'));
            let named = said.is_some_and(|(names, _)| names.split(", ").any(|name| name == leader));
            one.reason == Reason::OverlayDown && named && leader != forged_reports::NAME
        })
    };
    let stored = snapshot.nodes.iter().filter_map(|(name, node)| {
        let status = &node.status.as_ref()?.value;
        by_the_leader(status).then(|| name.clone())
    });
    let written = plans.into_iter().flat_map(puts).filter_map(|(key, value)| {
        let name = key.strip_prefix(keys::NODE_STATUS)?;
        let status: NodeStatusRecord = serde_json::from_slice(value).unwrap();
        by_the_leader(&status).then(|| name.to_owned())
    });
    stored.chain(written).collect()
}

/// A status without the condition that its machine is unreachable over the overlay.
fn apart_from_the_overlay(mut status: NodeStatusRecord) -> NodeStatusRecord {
    status
        .conditions
        .retain(|one| one.reason != Reason::OverlayDown);
    status
}

/// Whether a name leads to an instance on one of these machines; `path` ends with its address.
fn leads_to(snapshot: &Snapshot, path: &str, machines: &BTreeSet<String>) -> bool {
    let address = path.rsplit(['/', '=']).next();
    snapshot.instances.values().any(|entry| {
        let own = entry.assignment.value.address.to_string();
        machines.contains(&entry.node) && address == Some(&own)
    })
}

fn puts(plan: &ClusterPlan) -> impl Iterator<Item = (&String, &Vec<u8>)> {
    let operations = plan.changes.iter().flat_map(|change| &change.operations);
    operations.filter_map(|operation| match operation {
        WriteOperation::Put(key, value) => Some((key, value)),
        WriteOperation::Delete(_) | WriteOperation::DeletePrefix(_) => None,
    })
}

/// The observed state with the forger's unchanged report; `None` without a report of the forger.
pub(crate) fn with_the_honest_report(
    observed: &ObservedReports,
    forger: &Forger,
) -> Option<ObservedReports> {
    let mut honest = observed.clone();
    let reported = honest.reports.get_mut(forged_reports::NAME)?;
    reported.report = forger.honest()?;
    Some(honest)
}

/// Makes the leader believe a machine's claims about instances of others, to verify that the checks
/// find it.
pub(crate) fn believe(observed: &mut ObservedReports, snapshot: &Snapshot) {
    let Some(forged) = observed.reports.get(forged_reports::NAME) else {
        return;
    };
    let claims = forged.report.workload_instances.clone();
    for claim in claims {
        let entry = snapshot.instances.get(&claim.instance_id);
        let Some(entry) = entry.filter(|entry| entry.node != forged_reports::NAME) else {
            continue;
        };
        let Some(reported) = observed.reports.get_mut(&entry.node) else {
            continue;
        };
        let mut report = NodeReport::clone(&reported.report);
        let own = report.workload_instances.iter_mut();
        for instance in own.filter(|own| own.instance_id == claim.instance_id) {
            *instance = claim.clone();
        }
        reported.report = report.into();
    }
}
