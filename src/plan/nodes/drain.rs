//! Instances that can't leave a drained machine. Such an instance continues to serve and its
//! workload's status says why, or, if the drain is forced, it is stopped. Its slot then waits for a
//! place like any other; its data may hold it until the machine takes work again.

use crate::{
    Snapshot,
    rollout::{
        blocked::{Blocked, LeaveObstacle},
        slot::LiveInstance,
    },
    service::WorkloadPlanner,
};

impl WorkloadPlanner<'_, '_, '_> {
    /// Nothing can replace this instance now. If the drain is forced, stops it unless its data
    /// moves, and returns what prevents its successor, if anything does. Otherwise returns why it
    /// cannot leave.
    pub(crate) fn keep_on_machine(
        &mut self,
        live: &LiveInstance<'_>,
        obstacle: LeaveObstacle,
    ) -> Result<(), Blocked> {
        let is_moving = matches!(obstacle, LeaveObstacle::DataMoves(_));
        if !live.forced_out || is_moving {
            return Err(Blocked::cannot_leave(live, obstacle));
        }
        let node = live.node;
        let reason = format!(
            "its machine {node} is drained by force and nothing takes its place: {obstacle}"
        );
        self.stop(live, &reason);
        match obstacle {
            LeaveObstacle::NotPlaced { cause, .. } => Err(cause.into()),
            _ => Ok(()),
        }
    }
}

/// Whether the machine is drained by force.
pub(crate) fn is_drained_by_force(snapshot: &Snapshot, node: &str) -> bool {
    let entry = snapshot.nodes.get(node);
    entry.is_some_and(|entry| {
        let registration = &entry.registration.value;
        registration.draining && registration.drain_forced
    })
}
