//! Workers whose instances all run and need nothing.
//!
//! A pass renders every unit, reads every file and asks systemd for every property. While nothing
//! changes, most of them are left out: a short look compares the states of the units and the stamps
//! of their files, and renews the reports. Whatever differs makes a pass at once, as do the events
//! of the user's manager, a changed list, the end of a job, and a changed health.

use std::time::Duration;

use tokio::time::Instant;

use super::{LONGEST_SLEEP, UserDesired, Worker, WorkerError, unit_state::early_units::ReloadDue};
use kat_daemon::watchdog::LoopPulse;

/// Longest time between two passes.
const LONGEST_REST: Duration = Duration::from_secs(120);

/// What the last pass left, where it left nothing to do.
#[derive(Debug)]
pub(super) struct Rest {
    /// When the pass ended.
    since: Instant,
    /// The stamp of the user's unit files.
    files: u64,
}

impl Worker {
    /// Remembers after a pass whether everything rests.
    pub(super) fn record_rest(&mut self, desired: &UserDesired) {
        let context = &self.context;
        let is_quiet = context.wake == LONGEST_SLEEP
            && context.reload_due == ReloadDue::No
            && context.jobs.keys().next().is_none()
            && self.trouble.is_none()
            && self.account.ready
            && desired.confirmed;
        let rests = |name: &String| self.instances.get(name).is_some_and(|one| one.is_resting());
        if !is_quiet || !desired.assignments.keys().all(rests) {
            return;
        }
        self.rest = context.folder.stamp().map(|files| Rest {
            since: Instant::now(),
            files,
        });
    }

    /// Looks at the instances, and reports them. False where a pass has to follow.
    pub(super) async fn look_at_rest(
        &mut self,
        desired: &UserDesired,
        pulse: &LoopPulse,
    ) -> Result<bool, WorkerError> {
        let Some(rest) = self.rest.take() else {
            return Ok(false);
        };
        if rest.since.elapsed() >= LONGEST_REST
            || self.context.folder.stamp() != Some(rest.files)
            || !self.has_account()
        {
            return Ok(false);
        }
        for assignment in desired.assignments.values() {
            pulse.beat();
            let (instance, context) = self.instance(&assignment.instance);
            if !instance.look_at_rest(context, assignment).await? {
                return Ok(false);
            }
        }
        // A look that wants another one soon wants a pass.
        self.rest = (self.context.wake == LONGEST_SLEEP).then_some(rest);
        Ok(true)
    }
}
