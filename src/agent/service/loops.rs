//! The agent's loops, and the supervisor that ends the agent when one of them ends early.

use std::{collections::BTreeMap, future::Future, time::Duration};

use tokio::task::{self, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::{blocking::may_block, status_line::ServiceStatus};
use kat_daemon::watchdog::LoopPulses;

/// Longest wait for all loops at the end.
const END: Duration = Duration::from_secs(8);

/// The table of the agent's loops. Each runs until [`AgentLoops::cancel`]; an agent without one of
/// them must not look healthy, so it ends with the first that ends early, and systemd starts it
/// anew.
pub(crate) struct AgentLoops {
    tasks: JoinSet<()>,
    names: BTreeMap<task::Id, &'static str>,
    /// Essential loops report their liveness here. The service's watchdog is fed while none of them
    /// hangs.
    pub pulses: LoopPulses,
    /// Ends all loops, and leaves the workloads running.
    pub cancel: CancellationToken,
    /// The service's status line.
    pub status: ServiceStatus,
}

impl AgentLoops {
    /// Starts the watchdog, and reports readiness to systemd.
    pub(crate) fn start() -> Self {
        let (pulses, cancel) = (LoopPulses::default(), CancellationToken::new());
        let (status, watchdog) = ServiceStatus::start(&pulses);
        let mut loops = Self {
            tasks: JoinSet::new(),
            names: BTreeMap::new(),
            pulses,
            cancel: cancel.clone(),
            status,
        };
        loops.add("watchdog", async move {
            cancel.run_until_cancelled(watchdog).await;
        });
        loops
    }

    /// Runs a loop that never blocks.
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        run: impl Future<Output = ()> + Send + 'static,
    ) {
        let started = self.tasks.spawn(run);
        self.names.insert(started.id(), name);
    }

    /// Runs a loop that reads and writes files between its waits.
    pub(crate) fn add_blocking(
        &mut self,
        name: &'static str,
        run: impl Future<Output = ()> + Send + 'static,
    ) {
        self.add(name, may_block(run));
    }

    /// Waits for `end` while every loop runs. It is an error if one ends before.
    pub(crate) async fn supervise(
        &mut self,
        end: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        tokio::select! {
            ended = end => ended,
            Some(ended) = self.tasks.join_next_with_id() => {
                let (id, why) = match ended {
                    Ok((id, ())) => (id, String::new()),
                    Err(error) => (error.id(), format!(": {error}")),
                };
                let name = self.names.remove(&id).unwrap_or("unknown");
                anyhow::bail!("the agent's loop `{name}` ended early{why}")
            }
        }
    }

    /// Ends all loops.
    pub(crate) async fn end(mut self) {
        tracing::info!("stopping; workloads run on");
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        self.cancel.cancel();
        let all = async {
            while let Some(ended) = self.tasks.join_next_with_id().await {
                let id = ended.map_or_else(|error: JoinError| error.id(), |(id, ())| id);
                self.names.remove(&id);
            }
        };
        if tokio::time::timeout(END, all).await.is_err() {
            let left: Vec<_> = self.names.into_values().collect();
            tracing::warn!("some loops did not end in time: {}", left.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn the_agent_ends_with_any_of_its_loops() {
        let mut loops = AgentLoops::start();
        loops.add("first", pending());
        loops.supervise(ready(Ok(()))).await.unwrap();
        loops.add("second", async {});
        let early = loops.supervise(pending()).await.unwrap_err();
        assert_eq!(early.to_string(), "the agent's loop `second` ended early");
        loops.add_blocking("third", async { panic!("as a loop may") });
        let panicked = loops.supervise(pending()).await.unwrap_err();
        let text = panicked.to_string();
        assert!(text.contains("`third` ended early: "), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn loops_end_with_the_cancellation_and_one_that_does_not_is_left() {
        let mut loops = AgentLoops::start();
        let (cancel, (ended, mut seen)) = (loops.cancel.clone(), tokio::sync::oneshot::channel());
        loops.add("first", async move {
            cancel.cancelled().await;
            let _ = ended.send(());
        });
        loops.add("second", pending());
        let began = tokio::time::Instant::now();
        loops.end().await;
        assert_eq!(began.elapsed(), END);
        assert_eq!(seen.try_recv(), Ok(()));
    }
}
