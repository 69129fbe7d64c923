//! Ends commands that did not end by themselves.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::RunningCommand;
use kat_systemd::{JobResult, ProcessEnd, SystemdError};

/// Longest wait for a command to end after its caller has disconnected.
const STOP: Duration = Duration::from_secs(20);
/// Interval between two tries to stop a command.
const STOP_AGAIN: Duration = Duration::from_secs(1);

impl RunningCommand {
    /// Stops the command after its caller has disconnected. The unit may not have been started yet:
    /// until then the manager does not know it.
    pub(super) async fn stop(
        &self,
        running: impl Future<Output = Result<ProcessEnd, SystemdError>>,
    ) {
        let running = async {
            let ended = running.await;
            self.over.cancel();
            ended.is_ok()
        };
        let stopping = async {
            while !self.over.is_cancelled() {
                if let Err(error) = self.manager.stop(&self.unit.name, STOP).await {
                    tracing::debug!(
                        unit = self.unit.name,
                        "a command without a caller is not stopped yet: {error:#}"
                    );
                }
                let _ = timeout(STOP_AGAIN, self.over.cancelled()).await;
            }
        };
        let stopped = timeout(STOP, async { tokio::join!(running, stopping) }).await;
        if let Ok((false, ())) = stopped {
            self.stop_lost().await;
        }
    }

    /// Stops the command where its end was not reported: the connection to its manager ended first,
    /// and the command may still run.
    pub(super) async fn stop_lost(&self) {
        let stopping = async {
            loop {
                match self.manager.stop(&self.unit.name, STOP).await {
                    Ok(JobResult::Done) | Err(SystemdError::NoSuchUnit(_)) => return,
                    stopped => {
                        tracing::debug!(
                            unit = self.unit.name,
                            ?stopped,
                            "a command is not stopped yet"
                        );
                    }
                }
                sleep(STOP_AGAIN).await;
            }
        };
        if timeout(STOP, stopping).await.is_err() {
            tracing::warn!(
                unit = self.unit.name,
                "a command may run on: the manager of its user does not answer"
            );
        }
    }
}
