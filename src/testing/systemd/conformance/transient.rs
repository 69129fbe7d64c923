//! Transient units whose result counts.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{ConformanceResult, ConformanceSuite, LIMIT, PROBE, equal, unlike};
use kat_systemd::{JobResult, LoadState, SystemdError, TransientUnit};

impl ConformanceSuite<'_> {
    pub(super) async fn runs_transient_units(&self) -> ConformanceResult {
        let unit = |command: &[&str]| TransientUnit {
            name: PROBE.to_owned(),
            description: "Conformance probe".to_owned(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            limit: Duration::from_millis(300),
            ..TransientUnit::default()
        };
        for (command, expected, status) in [
            (&["/bin/true"][..], JobResult::Done, None),
            (&["/bin/false"], JobResult::Failed, Some(1)),
            (&["/bin/sleep", "1000"], JobResult::Failed, None),
        ] {
            let ended = self.manager.run_transient(&unit(command), LIMIT).await;
            let exit_status = ended.as_ref().map(|ended| ended.exit_status);
            equal("its exit status", &Ok(status), &exit_status.map_err(drop))?;
            self.job(
                &command.join(" "),
                ended.map(|ended| ended.result),
                expected,
            )?;
            self.is_forgotten("a transient unit that ended").await?;
        }
        let sleeping = unit(&["/bin/sleep", "1000"]);
        let short = Duration::from_millis(100);
        let ended = self.manager.run_transient(&sleeping, short).await;
        if !matches!(&ended, Err(SystemdError::JobTimeout { .. })) {
            return Err(unlike("a slow transient unit", "JobTimeout", &ended));
        }
        self.is_forgotten("a transient unit that took too long")
            .await?;
        let running = self.manager.run_transient(&sleeping, LIMIT);
        if let Ok(ended) = timeout(short, running).await {
            return Err(unlike("a transient unit", "no end yet", &ended));
        }
        self.is_forgotten("a transient unit that nobody waits for")
            .await
    }

    async fn is_forgotten(&self, step: &str) -> ConformanceResult {
        let deadline = Instant::now() + LIMIT;
        while self.status(PROBE).await?.load_state != LoadState::NotFound {
            if Instant::now() >= deadline {
                return Err(unlike(step, "no unit", &PROBE));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}
