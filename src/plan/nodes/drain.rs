//! Instances that can't leave a drained machine. Such an instance continues to serve and its
//! workload's status says why, or, if the drain is forced, it is stopped. Its slot then waits for a
//! place like any other; its data may hold it until the machine takes work again.

use crate::{rollout::slot::LiveInstance, service::WorkloadPlanner};

impl WorkloadPlanner<'_, '_, '_> {
    /// Nothing can replace this instance, because of `why`: stops it if the drain is forced, or
    /// notes the reason for the workload's status.
    pub(crate) fn can_not_leave(&mut self, live: &LiveInstance<'_>, why: &str) {
        let LiveInstance { id, node, .. } = live;
        if self.is_forced_out(live) {
            let reason = format!(
                "its machine {node} is drained by force and nothing takes its place: {why}"
            );
            self.stop(live, &reason);
        } else {
            self.stuck = Some(format!("{id} can't leave {node}: {why}"));
        }
    }

    /// The instance's machine answers, and its drain is forced: it is emptied whatever is lost by
    /// that.
    pub(crate) fn is_forced_out(&self, live: &LiveInstance<'_>) -> bool {
        let entry = self.draft.snapshot.nodes.get(live.node);
        let forced = entry.is_some_and(|entry| {
            let registration = &entry.registration.value;
            registration.draining && registration.drain_forced
        });
        forced && live.leaves && !live.away
    }
}
