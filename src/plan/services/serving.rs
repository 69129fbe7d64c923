//! Which instances serve: DNS records and service addresses are both derived from this.

use std::collections::BTreeMap;

use crate::{draft::Draft, nodes::overlay_down, rollout::has_run};
use kat_types::{
    api::{Health, InstancePhase, NodePhase},
    assignment::DesiredRun,
    services::BackendState,
    store::{
        keys,
        records::{InstanceRecord, NodeStatusRecord},
        revisions::WorkloadKey,
        snapshot::InstanceEntry,
    },
};

/// It runs, and is not reported unhealthy.
pub(crate) fn is_healthy(record: &InstanceRecord) -> bool {
    record.phase == InstancePhase::Running
        && matches!(record.health, Health::Healthy | Health::NotApplicable)
}

/// The role of an instance for callers now; `None` if no caller can have reached it yet, or can
/// reach it any more.
///
/// An instance that this plan stops is `Leaving`: its DNS record is deleted with the stop, not
/// after it.
///
/// An instance on a machine that is unreachable over the overlay is `Held` while another one
/// serves: the last one may still be reached from its own machine.
pub(crate) fn backend_state(
    draft: &Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    instance: &str,
    entry: &InstanceEntry,
) -> Option<BackendState> {
    let state = reachable_state(draft, statuses, instance, entry)?;
    let is_reachable = |entry: &InstanceEntry| {
        let status = statuses.get(&entry.node);
        !status.is_some_and(overlay_down::is_down)
    };
    if state != BackendState::Serving || is_reachable(entry) {
        return Some(state);
    }
    let assignment = &entry.assignment.value;
    let workload = WorkloadKey::new(&assignment.namespace, &assignment.workload);
    let another_serves = draft.instances_of(&workload).iter().any(|(id, other)| {
        is_reachable(other)
            && reachable_state(draft, statuses, id, other) == Some(BackendState::Serving)
    });
    Some(if another_serves {
        BackendState::Held
    } else {
        state
    })
}

/// The role of an instance if its machine can be reached.
fn reachable_state(
    draft: &Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    instance: &str,
    entry: &InstanceEntry,
) -> Option<BackendState> {
    let status = statuses.get(&entry.node)?;
    let record = status.instances.get(instance)?;
    let away = status.phase == NodePhase::NotReady;
    let stops = entry.assignment.value.wanted == DesiredRun::Stopped || draft.stops(instance);
    match record.phase {
        InstancePhase::Pending
        | InstancePhase::Scheduled
        | InstancePhase::Pulling
        | InstancePhase::Building
        | InstancePhase::Prepared
        | InstancePhase::Starting
        | InstancePhase::Stopped
        | InstancePhase::Failed
        | InstancePhase::Succeeded => None,
        InstancePhase::Running if record.health == Health::PendingCheck && !stops => None,
        InstancePhase::Running if away && is_healthy(record) && !stops => Some(BackendState::Away),
        InstancePhase::Running | InstancePhase::Stopping if away => Some(BackendState::Held),
        InstancePhase::Running if is_on_trial(draft, statuses, instance, entry) => {
            Some(BackendState::Held)
        }
        InstancePhase::Running if is_healthy(record) && !stops => Some(BackendState::Serving),
        InstancePhase::Stopping => Some(BackendState::Leaving),
        InstancePhase::Running if stops => Some(BackendState::Leaving),
        InstancePhase::Running | InstancePhase::Restarting | InstancePhase::Unknown => {
            Some(BackendState::Held)
        }
    }
}

/// Callers are not sent to this instance while others serve: it has just started, nothing checks
/// its health, and no other instance of its version has shown that the version works. Most versions
/// that fail do so at their start.
fn is_on_trial(
    draft: &Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    instance: &str,
    entry: &InstanceEntry,
) -> bool {
    let record = |id: &str, entry: &InstanceEntry| {
        let status = statuses.get(&entry.node)?;
        let answers = status.phase != NodePhase::NotReady;
        status.instances.get(id).filter(|_| answers).cloned()
    };
    let Some(own) = record(instance, entry).filter(|own| own.health == Health::NotApplicable)
    else {
        return false;
    };
    let Some(began) = own.since.filter(|since| !has_run(*since, draft.now)) else {
        return false;
    };
    let assignment = &entry.assignment.value;
    let workload = WorkloadKey::new(&assignment.namespace, &assignment.workload);
    // An instance that has begun to serve continues, also when the instance ends that had shown
    // that the version works.
    let WorkloadKey { namespace, name } = &workload;
    let named = format!("{instance}={}", assignment.address);
    let named = keys::dns_record(namespace, name, "A", &named);
    let stored = draft.snapshot.nodes.get(&entry.node);
    let stored = stored.and_then(|node| node.status.as_ref()?.value.instances.get(instance));
    let since = stored.and_then(|record| Some(record.since?.min(draft.now)));
    if since == Some(began) && draft.snapshot.dns.contains_key(&named) {
        return false;
    }
    // Instances that had run long enough when this one began: so no instance loses a name because
    // time passes.
    let serving = draft.instances_of(&workload).iter().filter(|(id, other)| {
        let wanted = other.assignment.value.wanted == DesiredRun::Running && !draft.stops(id);
        let record = record(id, other).filter(is_healthy);
        let since = record.and_then(|record| record.since);
        wanted && since.is_some_and(|since| has_run(since, began))
    });
    let mut others = serving
        .map(|(_, other)| other.assignment.value.template_hash == assignment.template_hash)
        .peekable();
    others.peek().is_some() && !others.any(|same| same)
}
