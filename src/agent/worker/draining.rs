//! The time for which an instance that is to stop goes on serving: names and service addresses have
//! lost it, and what was sent to it before ends.

use std::time::Duration;

use super::Worker;
use kat_systemd::{ActiveState, UnitStatus};
use kat_types::{api::InstancePhase, assignment::Assignment, reason::Reason};

impl Worker {
    /// Whether the instance is to run on for a while before it is stopped; says so.
    ///
    /// It counts from when this machine first saw that it is to stop, whichever process of the agent
    /// that was. What nobody was sent to is not waited for.
    pub(super) fn drains(&mut self, assignment: &Assignment, status: &UnitStatus) -> bool {
        let now = (self.tools.monotonic)();
        let note = self.notes.of(&assignment.instance);
        let memory = self.memories.get(&assignment.instance);
        let told = memory.and_then(|memory| memory.serves);
        let serves =
            told.unwrap_or(assignment.health_check.is_none() || note.health.health.serves());
        if status.active_state != ActiveState::Active || !serves {
            return false;
        }
        let since = *note.drains_since.get_or_insert(now);
        let gone = Duration::from_micros(now.saturating_sub(since));
        let drain = assignment.drain();
        let Some(left) = drain.checked_sub(gone).filter(|left| !left.is_zero()) else {
            return false;
        };
        self.wake = self.wake.min(left);
        // The same for as long as it lasts: each other sentence would be a report of its own.
        let message = format!(
            "names and service addresses have lost it; it is stopped {} s after that",
            drain.as_secs()
        );
        self.report(
            assignment,
            status,
            InstancePhase::Stopping,
            Reason::ConnectionDraining,
            message,
        );
        true
    }
}
