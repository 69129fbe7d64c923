//! What can't leave a machine that is drained: it serves on, and its workload says why; or, where the drain is
//! forced, it is stopped. Its slot then waits for a place like any other, which its data may be until the machine takes
//! work again.

use crate::{rollout::slot::LiveInstance, service::WorkloadPlanner};

impl WorkloadPlanner<'_, '_, '_> {
    /// Nothing takes the place of this instance, because of `why`.
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

    /// Its machine answers, and is to be empty whatever is lost by that.
    pub(crate) fn is_forced_out(&self, live: &LiveInstance<'_>) -> bool {
        let entry = self.draft.snapshot.nodes.get(live.node);
        let forced = entry.is_some_and(|entry| {
            let registration = &entry.registration.value;
            registration.draining && registration.drain_forced
        });
        forced && live.leaves && !live.away
    }
}
