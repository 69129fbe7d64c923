//! Probes that run a command in the container.
//!
//! Each is a transient unit of the workload's user, in which crun enters the container with the
//! user, variables and capabilities that the container was made with. crun has to run in the user
//! namespace that Podman made for the user, in which the unit's main process runs. `podman exec`
//! would do the same with three times the processor time (docs/internals/health.md).

use std::{path::Path, time::Duration};

use tokio::time::Instant;

use crate::exec::cgroup::RunningContainer;
use kat_systemd::{JobResult, SystemdError, TransientEnd, TransientUnit, UnitManager};

/// Prefix of the units' names.
pub(crate) const PREFIX: &str = "health-";

/// Time that the agent waits beyond the command's own time limit.
const MARGIN: Duration = Duration::from_secs(5);

impl RunningContainer {
    /// Runs the command; an error is a sentence, unless the command exits with 0 in its time limit.
    /// None of its processes is left then.
    pub(super) async fn probe(
        &self,
        manager: &dyn UnitManager,
        root: &Path,
        command: &[String],
        (number, limit): (u64, Duration),
    ) -> Result<(), String> {
        let name = format!("{PREFIX}{}-{number}.service", self.stem);
        let group = self.group(root, &name);
        let group = group.map_err(|error| format!("cannot find its container: {error}"))?;
        let unit = TransientUnit {
            name,
            description: format!("Health check of {}", self.stem),
            command: group.probe(command),
            afterwards: group.end(),
            limit,
            ..TransientUnit::default()
        };
        let began = Instant::now();
        let ended = manager.run_transient(&unit, limit + MARGIN).await;
        probe_result(ended, began.elapsed() >= limit, limit)
    }
}

fn probe_result(
    ended: Result<TransientEnd, SystemdError>,
    took_all: bool,
    limit: Duration,
) -> Result<(), String> {
    match ended {
        Ok(TransientEnd {
            result: JobResult::Done,
            ..
        }) => Ok(()),
        Ok(TransientEnd {
            exit_status: Some(status),
            ..
        }) if !took_all => Err(format!("exit code {status}")),
        Ok(_) | Err(SystemdError::JobTimeout { .. }) if took_all => Err(super::timed_out(limit)),
        Ok(_) => Err("the command was ended by a signal".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_end_is_told_in_words() {
        let limit = Duration::from_secs(2);
        let ended = |result, exit_status| {
            Ok(TransientEnd {
                result,
                exit_status,
            })
        };
        for (end, took_all, expected) in [
            (ended(JobResult::Done, None), false, Ok(())),
            (ended(JobResult::Failed, Some(3)), false, Err("exit code 3")),
            (
                ended(JobResult::Failed, None),
                false,
                Err("the command was ended by a signal"),
            ),
            // crun forwards the signal and exits with the command's code.
            (
                ended(JobResult::Failed, Some(143)),
                true,
                Err("timeout after 2 s"),
            ),
            (
                ended(JobResult::Failed, None),
                true,
                Err("timeout after 2 s"),
            ),
            (
                Err(SystemdError::JobTimeout {
                    unit: "u".to_owned(),
                    limit,
                }),
                true,
                Err("timeout after 2 s"),
            ),
        ] {
            let words = expected.map_err(str::to_owned);
            assert_eq!(probe_result(end, took_all, limit), words);
        }
    }
}
