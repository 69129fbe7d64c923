//! How a command is ended that did not end by itself.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::Command;
use kat_systemd::{Ended, JobResult, SystemdError};

/// For a command to end after its caller has gone.
const STOP: Duration = Duration::from_secs(20);
/// From one try to end it to the next.
const STOP_AGAIN: Duration = Duration::from_secs(1);

impl Command {
    /// Nobody waits for it any more. It may not have begun yet: then it is not known for a while.
    pub(super) async fn stop(&self, running: impl Future<Output = Result<Ended, SystemdError>>) {
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

    /// Nothing told its end: the connection to its manager ended first, and it may run on.
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
