//! Draining: an instance that is to be stopped keeps running for a while after names and service
//! addresses have dropped it, so that open connections can end.

use std::time::Duration;

use crate::worker::{context::UserContext, instance::Instance};
use kat_systemd::{ActiveState, UnitStatus};
use kat_types::{api::InstancePhase, assignment::Assignment, reason::Reason};

impl Instance {
    /// Whether the instance has to run on for its drain time before it is stopped; reports that.
    ///
    /// The drain time counts from when this machine first saw that the instance is to be stopped,
    /// also across restarts of the agent. An instance that is not active, or
    /// was last reported as not serving, is not drained.
    pub(crate) fn drains(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> bool {
        let now = context.now();
        let note = context.notes.of(&assignment.instance);
        let serves = self
            .serves
            .unwrap_or(assignment.health_check.is_none() || note.health.health.serves());
        if status.active_state != ActiveState::Active || !serves {
            return false;
        }
        let since = *note.drains_since.get_or_insert(now);
        let gone = Duration::from_micros(now.saturating_sub(since));
        let drain = assignment.drain();
        let Some(left) = drain.checked_sub(gone).filter(|left| !left.is_zero()) else {
            return false;
        };
        context.wake_within(left);
        // The message stays the same during the whole drain: each change would be a report of its
        // own.
        let message = format!(
            "names and service addresses have lost it; it is stopped {} s after that",
            drain.as_secs()
        );
        self.report(
            context,
            assignment,
            status,
            InstancePhase::Stopping,
            Reason::ConnectionDraining,
            message,
        );
        true
    }
}
