//! The resource usage of an instance's main container, for its reports.

use std::time::Duration;

use tokio::time::Instant;

use crate::worker::{WorkerError, context::UserContext, instance::Instance};
use kat_systemd::{SystemdError, UnitStatus, UnitUsage};

/// Least time between two reads of the usage. An event reads the state of a unit only; a machine at
/// rest makes a pass every [`LONGEST_SLEEP`](crate::worker::LONGEST_SLEEP).
const INTERVAL: Duration = Duration::from_secs(10);

/// The usage of one run of the main container.
#[derive(Debug)]
pub(super) struct UsageReading {
    usage: UnitUsage,
    read: Instant,
    /// The run's start, microseconds of the monotonic clock.
    run: u64,
}

impl Instance {
    /// Reads the usage of a container that runs, unless it was read less than [`INTERVAL`] ago.
    pub(crate) async fn read_usage(
        &mut self,
        context: &UserContext,
        unit: &str,
        status: &UnitStatus,
    ) -> Result<(), WorkerError> {
        let run = status.exec_main_start_monotonic;
        let is_recent = |last: &UsageReading| last.run == run && last.read.elapsed() < INTERVAL;
        if !status.active_state.is_up() || self.usage.as_ref().is_some_and(is_recent) {
            return Ok(());
        }
        let usage = match context.manager.usage(unit).await {
            Ok(usage) => usage,
            Err(error @ SystemdError::Unreachable { .. }) => return Err(error.into()),
            // Nothing is decided by these numbers.
            Err(error) => {
                tracing::debug!(unit, "the usage is not known: {error:#}");
                return Ok(());
            }
        };
        let read = Instant::now();
        self.usage = Some(UsageReading { usage, read, run });
        Ok(())
    }

    /// The usage to report with this state; unknown for a container that does not run.
    pub(super) fn reported_usage(&self, status: &UnitStatus) -> UnitUsage {
        let run = status.exec_main_start_monotonic;
        let reading = self.usage.as_ref();
        let reading = reading.filter(|last| status.active_state.is_up() && last.run == run);
        reading.map(|last| last.usage).unwrap_or_default()
    }
}
