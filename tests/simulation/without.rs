//! Safeguards that are taken out, to see that their absence is found.

use std::sync::Arc;

use kat_plan::Plan;
use kat_types::{
    assignment::Wanted,
    keys,
    resource::{Container, UpdateStrategyType},
    snapshot::WorkloadEntry,
    transaction::Operation,
};

/// A safeguard that is taken out, to see that its absence is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Without {
    Nothing,
    /// Transactions do not compare the leader's election key.
    Fence,
    /// A new leader takes a machine for lost that has not reported to it yet.
    FullTimeout,
    /// An address is given back when an instance is to stop, not when it has.
    AddressHold,
    /// A machine that is cut off stops nothing.
    Partition,
    /// Nobody looks at whether a machine is drained.
    Drain,
    /// Every rollout stops all old instances before any new one starts.
    Surge,
    /// Nobody looks at whether a rollout is paused.
    Pause,
    /// What writes data counts as what only reads it.
    OneWriter,
    /// What a machine says of others' instances counts as if these said it.
    OwnInstances,
    /// What cannot be written is dropped.
    Freezing,
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

/// An instance that is to stop loses its address at once.
pub(crate) fn give_back_early(plan: &mut Plan) {
    for change in &mut plan.changes {
        let stopping = change.operations.iter().filter_map(|operation| {
            let Operation::Put(key, value) = operation else {
                return None;
            };
            key.starts_with(keys::NODE_DESIRED).then_some(())?;
            let assignment: kat_types::assignment::Assignment =
                serde_json::from_slice(value).ok()?;
            (assignment.wanted == Wanted::Stopped).then_some(assignment.instance)
        });
        let early: Vec<_> = stopping
            .map(|instance| Operation::Delete(keys::allocation(&instance)))
            .collect();
        change.operations.extend(early);
    }
}
