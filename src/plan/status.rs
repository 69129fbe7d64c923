//! What users see of a workload: phase, counts and conditions.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{WorkloadEntry, slot::Live};
use crate::api::types::{
    Condition, DRAIN_BLOCKED, Health, InstancePhase, SERVICE_ADDRESS, WorkloadPhase, WorkloadStatus,
};

/// A workload's instances, counted.
pub(super) struct Tally {
    replicas: u32,
    ready: u32,
    updated: u32,
    live: u32,
    old: u32,
    trouble: Option<(String, String)>,
    /// Whose health check has not succeeded yet, and why.
    unchecked: Option<String>,
    unschedulable: Option<String>,
    /// What a deletion waits for.
    left: String,
}

impl Tally {
    pub(super) fn count(
        all: &[Live<'_>],
        entry: &WorkloadEntry,
        unschedulable: Option<&str>,
        left: &[&str],
    ) -> Self {
        let replicas = entry
            .parsed
            .as_ref()
            .ok()
            .and_then(|parsed| parsed.workload.spec.replicas)
            .unwrap_or(0);
        let mut tally = Self {
            replicas,
            ready: 0,
            updated: 0,
            live: 0,
            old: 0,
            trouble: None,
            unchecked: None,
            unschedulable: unschedulable.map(str::to_owned),
            left: if entry.meta.value.deleting {
                still_there(all, left)
            } else {
                String::new()
            },
        };
        for live in all {
            let wanted = live.assignment.wanted == super::Wanted::Running;
            tally.live += 1;
            // What is only to be stopped, on a machine that is away, holds nobody up.
            tally.old += u32::from((!live.current || !wanted) && (wanted || !live.away));
            tally.ready += u32::from(wanted && live.healthy());
            tally.updated += u32::from(wanted && live.current && live.healthy());
            let Some(record) = live.record.as_ref().filter(|_| wanted && !live.away) else {
                continue;
            };
            if record.phase == InstancePhase::Running && record.health == Health::PendingCheck {
                tally.unchecked = Some(format!("; {}: {}", live.id, record.message));
                continue;
            }
            let final_phase = matches!(
                record.phase,
                InstancePhase::Failed | InstancePhase::Restarting
            );
            if final_phase || !record.reason.is_empty() {
                let reason = if record.reason.is_empty() {
                    format!("{:?}", record.phase)
                } else {
                    record.reason.clone()
                };
                tally.trouble = Some((reason, format!("{}: {}", live.id, record.message)));
            }
        }
        tally
    }

    /// An instance is on a machine that is away; `why` nothing is moved from there.
    pub(super) fn is_away(&mut self, live: &Live<'_>, why: Option<&str>) {
        let why = why.map_or_else(String::new, |why| format!("; {why}"));
        let Live { id, node, .. } = live;
        let message = format!("{id}: its machine {node} does not answer{why}");
        self.trouble = Some(("NodeNotReady".to_owned(), message));
    }
}

/// What of a workload is still on which machines: its instances, and then its user.
fn still_there(all: &[Live<'_>], left: &[&str]) -> String {
    if all.is_empty() {
        let machines = left.join(", ");
        return format!("its user is still to be confirmed as removed on {machines}");
    }
    let machines: BTreeSet<&str> = all.iter().map(|live| live.node).collect();
    let machines: Vec<&str> = machines.into_iter().collect();
    let machines = machines.join(", ");
    match all.len() {
        1 => format!("one instance is still to be confirmed as stopped on {machines}"),
        count => format!("{count} instances are still to be confirmed as stopped on {machines}"),
    }
}

/// The status that follows from a tally; `since` is kept where a condition stays as it was.
pub(super) fn workload_status(
    tally: &Tally,
    before: &WorkloadStatus,
    entry: &WorkloadEntry,
    now: Timestamp,
) -> WorkloadStatus {
    let (phase, reason, message) = judge(tally, entry);
    let available =
        tally.updated >= tally.replicas && !entry.meta.value.deleting && entry.parsed.is_ok();
    let kind = "Available".to_owned();
    let since = before
        .conditions
        .iter()
        .find(|condition| {
            condition.kind == kind && condition.status == available && condition.reason == reason
        })
        .map_or_else(|| now.to_string(), |condition| condition.since.clone());
    WorkloadStatus {
        phase,
        replicas: tally.replicas,
        ready: tally.ready,
        updated: tally.updated,
        observed_generation: entry.meta.value.generation,
        conditions: vec![Condition {
            kind,
            status: available,
            reason,
            message,
            since,
        }],
        service_address: None,
    }
}

/// Says that a service has no address of its own.
pub(super) fn without_address(before: &WorkloadStatus, why: String, now: Timestamp) -> Condition {
    let mut earlier = before.conditions.iter();
    let since = earlier
        .find(|condition| condition.kind == SERVICE_ADDRESS)
        .map_or_else(|| now.to_string(), |condition| condition.since.clone());
    Condition {
        kind: SERVICE_ADDRESS.to_owned(),
        status: false,
        reason: "NoneFree".to_owned(),
        message: why,
        since,
    }
}

/// Says that something can't leave a machine that is drained.
pub(super) fn drain_blocked(before: &WorkloadStatus, why: &str, now: Timestamp) -> Condition {
    let mut earlier = before.conditions.iter();
    let since = earlier
        .find(|condition| condition.kind == DRAIN_BLOCKED)
        .map_or_else(|| now.to_string(), |condition| condition.since.clone());
    Condition {
        kind: DRAIN_BLOCKED.to_owned(),
        status: true,
        reason: "Unschedulable".to_owned(),
        message: why.to_owned(),
        since,
    }
}

fn judge(tally: &Tally, entry: &WorkloadEntry) -> (WorkloadPhase, String, String) {
    let because = |phase, reason: &str, message: String| (phase, reason.to_owned(), message);
    if entry.meta.value.deleting {
        return because(WorkloadPhase::Deleting, "Deleting", tally.left.clone());
    }
    if let Err(reason) = &entry.parsed {
        let message = format!("the stored files can't be read: {reason}");
        return because(WorkloadPhase::Degraded, "Unreadable", message);
    }
    if tally.updated >= tally.replicas && tally.old == 0 {
        let message = format!(
            "{} of {} instances are healthy",
            tally.ready, tally.replicas
        );
        return because(WorkloadPhase::Running, "AllHealthy", message);
    }
    if let Some(reason) = &tally.unschedulable {
        let phase = if tally.live == 0 {
            WorkloadPhase::Pending
        } else {
            WorkloadPhase::Degraded
        };
        return because(phase, "Unschedulable", reason.clone());
    }
    if let Some((reason, message)) = &tally.trouble {
        return because(WorkloadPhase::Degraded, reason, message.clone());
    }
    let message = format!(
        "{} of {} instances of this generation are healthy{}",
        tally.updated,
        tally.replicas,
        tally.unchecked.as_deref().unwrap_or_default()
    );
    because(WorkloadPhase::Progressing, "Progressing", message)
}
