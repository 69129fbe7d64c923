//! Statuses of machines and of their instances, from what the agents report.

use std::collections::{BTreeMap, BTreeSet};

use super::{assignment_lag, closed_ingress_ports, endpoints, isolation, overlay_down};
use crate::{
    EventWord,
    draft::{Draft, OperationGroup},
    images,
    nodes::node_loss::{LastReport, LostMachines},
    services::virtual_addresses,
    volumes::moves,
};
use kat_types::{
    api::{
        Condition, EventKind, Health, InstancePhase, NodePhase, ObjectKind, ObjectReference,
        ROUTES_SERVED,
        report_bounds::{InstanceTexts, shorten_words},
    },
    reason::{EventReason, Reason},
    store::{keys, records::NodeStatusRecord, snapshot::NodeEntry},
};

/// Maximum bytes that are kept of the texts that a machine reports of its instances.
const STATUS_WORDS: usize = 256 * 1024;

/// The current status of every machine; writes the statuses whose meaning changed.
pub(crate) fn plan_nodes(
    draft: &mut Draft<'_>,
    all_heard: &BTreeMap<&str, LastReport<'_>>,
    losses: &LostMachines,
) -> BTreeMap<String, NodeStatusRecord> {
    let mut unreachable = overlay_down::conditions(draft, all_heard);
    let mut statuses = BTreeMap::new();
    for (name, node) in &draft.snapshot.nodes {
        let Some(heard) = all_heard.get(name.as_str()) else {
            continue;
        };
        let before = node
            .status
            .as_ref()
            .map(|stored| stored.value.clone())
            .unwrap_or_default();
        let frozen = draft.frozen.machine(name).cloned();
        let mut status = match heard.report.filter(|_| frozen.is_none()) {
            Some(report) => {
                let status = before.after_report(report, draft.now);
                keep_unsaid(draft, name, &before, status)
            }
            None => NodeStatusRecord {
                schema: 1,
                ..before.clone()
            },
        };
        keep_assigned(draft, name, &mut status);
        if heard.report.is_some() {
            let taken = endpoints::address_condition(draft.snapshot, all_heard, name);
            status.conditions.extend(taken);
            overlay_down::set_condition(&mut status, unreachable.remove(name));
            let lag = assignment_lag::condition(heard, &node.desired.value, &before, draft.now);
            assignment_lag::set_condition(&mut status, lag);
            let open = isolation::condition(draft, heard, &before);
            isolation::set_condition(&mut status, open);
            let closed = closed_ingress_ports::condition(draft, name, heard, &before);
            closed_ingress_ports::set_condition(&mut status, closed);
        }
        let (phase, mut reason, mut message) = phase(draft, name, node, &before, heard, losses);
        if let Some(frozen) = &frozen
            && phase != NodePhase::NotReady
            && (heard.report.is_some() || !before.is_unheard())
        {
            reason = Reason::NotWritable.into();
            message = frozen.to_string();
        }
        status.since = if before.phase == phase {
            before.since.or(Some(draft.now))
        } else {
            Some(draft.now)
        };
        (status.phase, status.reason, status.message) = (phase, reason, message);
        if node.status.is_none() || status != before {
            let mut group = OperationGroup::default();
            node_events(draft, &mut group, name, node, &before, &status);
            endpoints::address_event(draft, &mut group, name, (&before, &status));
            overlay_down::event(draft, &mut group, name, (&before, &status));
            let uid = node.registration.value.uid.as_str();
            isolation::event(draft, &mut group, (name, uid), (&before, &status));
            virtual_addresses::event(draft, &mut group, (name, uid), (&before, &status));
            routes_event(draft, &mut group, (name, uid), (&before, &status));
            images::care_events(draft, &mut group, (name, uid), &before, &status);
            instance_events(draft, &mut group, name, &before, &status);
            moves::move_events(draft, &mut group, name, (&before, &status));
            group.put(keys::node_status(name), &status);
            draft.commit(group, format!("status of machine {name}"), Vec::new());
        }
        statuses.insert(name.clone(), status);
    }
    statuses
}

/// The event of a machine that stops to serve its routes, or serves them again.
fn routes_event(
    draft: &mut Draft<'_>,
    group: &mut OperationGroup,
    (name, uid): (&str, &str),
    (before, status): (&NodeStatusRecord, &NodeStatusRecord),
) {
    let open = |status: &NodeStatusRecord| {
        let mut conditions = status.conditions.iter();
        let found = conditions.find(|condition| condition.kind == ROUTES_SERVED);
        found.filter(|condition| !condition.status).cloned()
    };
    let (kind, reason, message) = match (open(before), open(status)) {
        (
            None,
            Some(Condition {
                reason, message, ..
            }),
        ) => (
            EventKind::Warning,
            EventReason::RoutesNotServed,
            format!("{reason}: {message}"),
        ),
        (Some(_), None) if status.phase == NodePhase::Ready => (
            EventKind::Normal,
            EventReason::RoutesServed,
            format!("machine {name} serves the routes that it was given"),
        ),
        _ => return,
    };
    let object = ObjectReference {
        kind: ObjectKind::Node,
        name: name.to_owned(),
        namespace: String::new(),
        uid: uid.to_owned(),
    };
    draft.event(group, kind, reason, object, message);
}

/// Phase, reason and message of a machine.
fn phase(
    draft: &mut Draft<'_>,
    name: &str,
    node: &NodeEntry,
    before: &NodeStatusRecord,
    heard: &LastReport<'_>,
    losses: &LostMachines,
) -> (NodePhase, String, String) {
    let timeout = heard.timeout(draft.snapshot);
    if heard.silent >= timeout {
        let silent = format!(
            "machine {name} has not reported for {} s",
            timeout.as_secs()
        );
        return match losses.why_not(name) {
            Some(why) => (
                NodePhase::NotReady,
                Reason::MostMachinesLost.into(),
                format!("{silent}; {why}"),
            ),
            None => (NodePhase::NotReady, Reason::NoHeartbeat.into(), silent),
        };
    }
    draft.wake(timeout.saturating_sub(heard.silent));
    if heard.report.is_none() {
        return (before.phase, before.reason.clone(), before.message.clone());
    }
    let (phase, reason, message) = match (
        node.registration.value.draining,
        draft.has_instances(name),
    ) {
        (true, false) => (
            NodePhase::Drained,
            Some(Reason::Drained),
            "nothing is left on the machine".to_owned(),
        ),
        (true, true) => (
            NodePhase::Draining,
            Some(Reason::Draining),
            format!(
                "its instances are to move elsewhere; `katcall why node {name}` names those that cannot"
            ),
        ),
        (false, _) => (NodePhase::Ready, None, String::new()),
    };
    let reason = Reason::word_or_empty(reason).to_owned();
    (phase, reason, message)
}

/// Keeps what a report leaves out.
///
/// A report may contain less than there is: workers that have not looked yet report nothing of
/// their instances, and an agent that has not confirmed a list yet (its revision is 0) does not
/// know of users from before its start. So an instance's last status holds until another one is
/// reported or the instance is no longer assigned to the machine, and a user is gone when an agent
/// that has confirmed a list says so.
fn keep_unsaid(
    draft: &Draft<'_>,
    name: &str,
    before: &NodeStatusRecord,
    mut status: NodeStatusRecord,
) -> NodeStatusRecord {
    for (id, earlier) in &before.instances {
        let assigned = draft.snapshot.instances.get(id);
        if !status.instances.contains_key(id) && assigned.is_some_and(|entry| entry.node == name) {
            status.instances.insert(id.clone(), earlier.clone());
        }
    }
    keep_assigned(draft, name, &mut status);
    let (mut users, unexplained): (BTreeSet<u32>, BTreeSet<u32>) = status
        .user_indexes
        .iter()
        .partition(|index| has_had(draft, name, before, **index));
    if status.desired_revision == 0 {
        users.extend(&before.user_indexes);
    }
    status.user_indexes = users.into_iter().collect();
    status.unexplained_indexes = unexplained.into_iter().collect();
    let words = status.instances.values_mut().map(|record| InstanceTexts {
        message: &mut record.message,
        conditions: &mut record.conditions,
        containers: &mut record.containers,
    });
    shorten_words(words.collect(), STATUS_WORDS);
    status
}

/// Drops statuses of instances that are not assigned to the machine: a machine reports its own
/// instances only, and the status of a silent machine loses removed instances.
fn keep_assigned(draft: &Draft<'_>, name: &str, status: &mut NodeStatusRecord) {
    status.instances.retain(|id, _| {
        let assigned = draft.snapshot.instances.get(id);
        assigned.is_some_and(|entry| entry.node == name)
    });
}

/// The machine has or had an instance or data of the user.
fn has_had(draft: &Draft<'_>, name: &str, before: &NodeStatusRecord, index: u32) -> bool {
    let snapshot = draft.snapshot;
    let removals = snapshot.removals.get(name);
    let moves = snapshot.moves.get(name);
    before.user_indexes.contains(&index)
        || draft.has_user(name, index)
        || removals.is_some_and(|all| all.values().any(|one| one.index == index))
        || moves.is_some_and(|all| all.values().any(|one| one.index == index))
}

fn node_events(
    draft: &mut Draft<'_>,
    group: &mut OperationGroup,
    name: &str,
    node: &NodeEntry,
    before: &NodeStatusRecord,
    status: &NodeStatusRecord,
) {
    let now = (status.phase, status.reason.as_str());
    if (before.phase, before.reason.as_str()) == now {
        return;
    }
    let object = ObjectReference {
        kind: ObjectKind::Node,
        name: name.to_owned(),
        namespace: String::new(),
        uid: node.registration.value.uid.clone(),
    };
    let message = || status.message.clone();
    let (kind, reason, message) = match (status.phase, Reason::from_word(&status.reason)) {
        (_, Some(Reason::NotWritable)) => (EventKind::Warning, EventReason::NotWritable, message()),
        (NodePhase::NotReady, Some(Reason::MostMachinesLost)) => {
            (EventKind::Warning, EventReason::MostMachinesLost, message())
        }
        _ if before.phase == status.phase => return,
        (NodePhase::NotReady, _) => (EventKind::Warning, EventReason::NodeNotReady, message()),
        (NodePhase::Ready, _) => (
            EventKind::Normal,
            EventReason::NodeReady,
            format!("machine {name} is ready"),
        ),
        (NodePhase::Drained, _) => (
            EventKind::Normal,
            EventReason::NodeDrained,
            format!("nothing is left on machine {name}"),
        ),
        _ => return,
    };
    draft.event(group, kind, reason, object, message);
}

fn instance_events(
    draft: &mut Draft<'_>,
    group: &mut OperationGroup,
    name: &str,
    before: &NodeStatusRecord,
    status: &NodeStatusRecord,
) {
    for (id, record) in &status.instances {
        let earlier = before.instances.get(id);
        let same = earlier.is_some_and(|earlier| {
            (earlier.phase, &earlier.reason, earlier.health)
                == (record.phase, &record.reason, record.health)
        });
        let Some(entry) = draft.snapshot.instances.get(id) else {
            continue;
        };
        if entry.node != name {
            continue;
        }
        if same {
            continue;
        }
        let assignment = &entry.assignment.value;
        let object = ObjectReference {
            kind: ObjectKind::Instance,
            name: id.clone(),
            namespace: assignment.namespace.clone(),
            uid: assignment.workload_uid.clone(),
        };
        let node = &entry.node;
        let (kind, reason, message): (_, EventWord<'_>, _) = match record.phase {
            InstancePhase::Running => {
                let ran = earlier.is_some_and(|one| one.phase == InstancePhase::Running);
                match record.health {
                    Health::Unhealthy => (
                        EventKind::Warning,
                        EventReason::Unhealthy.into(),
                        record.message.clone(),
                    ),
                    Health::Healthy if ran => (
                        EventKind::Normal,
                        EventReason::Healthy.into(),
                        "its health check succeeds".to_owned(),
                    ),
                    Health::NotApplicable if ran && !record.containers.is_empty() => (
                        EventKind::Normal,
                        EventReason::Healthy.into(),
                        "its sidecars run".to_owned(),
                    ),
                    _ if ran && record.health == Health::PendingCheck => continue,
                    _ => (
                        EventKind::Normal,
                        EventReason::Started.into(),
                        format!("started on {node}"),
                    ),
                }
            }
            // The leader's own event of the stop says why.
            InstancePhase::Stopping => continue,
            InstancePhase::Stopped if !record.reason.is_empty() => (
                EventKind::Warning,
                EventWord::Reported(&record.reason),
                record.message.clone(),
            ),
            InstancePhase::Stopped => (
                EventKind::Normal,
                EventReason::Stopped.into(),
                format!("stopped on {node}"),
            ),
            InstancePhase::Succeeded => (
                EventKind::Normal,
                EventReason::Succeeded.into(),
                format!("ended well on {node}"),
            ),
            // An init container that runs is no trouble.
            _ if record.reason == Reason::InitContainerRunning => continue,
            _ if !record.reason.is_empty() => (
                EventKind::Warning,
                EventWord::Reported(&record.reason),
                record.message.clone(),
            ),
            _ => continue,
        };
        draft.event(group, kind, reason, object, message);
        // Events may be stored before their status: repeated ones are counted as repeats.
        if Draft::is_full(group) {
            let full = std::mem::take(group);
            draft.commit(full, format!("events of machine {name}"), Vec::new());
        }
    }
}
