//! Safeguards that a run can disable, to verify that the checks find their absence.

use std::sync::Arc;

use kat_plan::ClusterPlan;
use kat_types::{
    assignment::DesiredRun,
    resource::{Container, UpdateStrategyType},
    store::{keys, snapshot::WorkloadEntry, transaction::WriteOperation},
};

/// A safeguard to disable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Without {
    Nothing,
    /// Transactions do not compare the leader's election key.
    Fence,
    /// A new leader does not wait before it calls a machine lost that has not reported to it yet.
    FullTimeout,
    /// An address is released when its instance is asked to stop, not when it has stopped.
    AddressHold,
    /// A machine that is cut off stops nothing.
    Partition,
    /// The planner ignores drains.
    Drain,
    /// Every rollout stops all old instances before any new one starts.
    Surge,
    /// The planner ignores pauses.
    Pause,
    /// Instances that write data count as instances that only read it.
    OneWriter,
    /// The leader believes a machine's claims about instances of other machines.
    OwnInstances,
    /// The planner drops objects that cannot be written.
    Freezing,
    /// A beat counts as if it had been sent when it arrived.
    RequestTime,
    /// A commit confirms as a beat does.
    BeatsAlone,
    /// The fence trusts a list for as long as a beat counts, whatever the age of the server's read.
    SecondHop,
}

pub(crate) fn only_reads(container: &mut Container) {
    for mount in &mut container.volume_mounts {
        mount.read_only = true;
    }
}

pub(crate) fn roll_out_badly(entry: &mut WorkloadEntry, without: Without) {
    if without == Without::Pause {
        entry.meta.value.paused = false;
    } else if let Ok(parsed) = &mut entry.parsed {
        let strategy = &mut Arc::make_mut(parsed).workload.spec.update_strategy;
        strategy.kind = UpdateStrategyType::Simultaneous;
    }
}

/// Releases the address of an instance as soon as the instance is asked to stop.
pub(crate) fn give_back_early(plan: &mut ClusterPlan) {
    for change in &mut plan.changes {
        let stopping = change.operations.iter().filter_map(|operation| {
            let WriteOperation::Put(key, value) = operation else {
                return None;
            };
            key.starts_with(keys::NODE_DESIRED).then_some(())?;
            let assignment: kat_types::assignment::Assignment =
                serde_json::from_slice(value).ok()?;
            (assignment.wanted == DesiredRun::Stopped).then_some(assignment.instance)
        });
        let early: Vec<_> = stopping
            .map(|instance| WriteOperation::Delete(keys::allocation(&instance)))
            .collect();
        change.operations.extend(early);
    }
}
