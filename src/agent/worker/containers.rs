//! A worker's containers beside the main ones: looked at, started, stopped.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    Worker, WorkerError, ignore_missing,
    jobs::{JobKey, JobOutcome},
};
use crate::{
    agent::{
        beside::{Beside, Other},
        judge::{Action, Verdict},
        log_tail::{self, Runs},
    },
    api::types::InstancePhase,
    plan::Assignment,
    resource::OtherKind,
    systemd::{JobResult, SystemdError, UnitManager, UnitStatus},
};

impl Worker {
    /// What stands beside an instance's main container; nothing where nothing does.
    pub(super) async fn look_beside(
        &mut self,
        assignment: &Assignment,
        main: &UnitStatus,
    ) -> Result<Option<Beside>, WorkerError> {
        if !assignment.has_others() {
            return Ok(None);
        }
        let mut beside = Beside::default();
        for (kind, container) in assignment.others() {
            let unit = assignment.other_unit(kind, container);
            let status = self.manager.status(&unit).await?;
            let is_well = matches!(status.active_state.as_str(), "active" | "inactive");
            let words = match is_well {
                true => String::new(),
                false => self.last_words(assignment, &unit, &status, false).await,
            };
            beside.others.push(Other {
                kind,
                name: container.name.clone().unwrap_or_default(),
                image: container.image.clone().unwrap_or_default(),
                unit,
                status,
                words,
            });
        }
        if let Some(unit) = assignment.network_unit() {
            let status = self.manager.status(&unit).await?;
            let failed = !matches!(status.result.as_str(), "" | "success");
            let words = match failed && main.active_state != "active" {
                true => self.last_words(assignment, &unit, &status, true).await,
                false => String::new(),
            };
            beside.network = Some((status, words));
        }
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        memory.containers = beside.others.iter().map(Other::report).collect();
        Ok(Some(beside))
    }

    /// What a container said before its last end: read once for each end.
    async fn last_words(
        &mut self,
        assignment: &Assignment,
        unit: &str,
        status: &UnitStatus,
        of_hook: bool,
    ) -> String {
        let ended = status.exec_main_exit_monotonic;
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        if let Some((known, words)) = memory.words.get(unit)
            && *known == ended
        {
            return words.clone();
        }
        let runs = Runs {
            started: status.exec_main_start_monotonic,
            judged: 0,
            missed: 0,
        };
        let uid = self.user.uid;
        let tail = log_tail::read(self.tools.logs.as_ref(), uid, unit, runs).await;
        let words = match of_hook {
            true => tail.hook_error.unwrap_or(tail.lines),
            false => tail.lines,
        };
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        memory.words.insert(unit.to_owned(), (ended, words.clone()));
        words
    }

    /// Starts sidecars that are down beside a main container that runs, and ends what is left beside one that has ended
    /// for good.
    pub(super) fn converge_beside(
        &mut self,
        assignment: &Assignment,
        beside: &Beside,
        verdict: &Verdict,
    ) -> Result<(), WorkerError> {
        let over = matches!(
            verdict.phase,
            InstancePhase::Failed | InstancePhase::Succeeded
        );
        if over && verdict.action == Action::Leave {
            let network = beside.network.as_ref();
            let lives = network.is_some_and(|(status, _)| status.active_state == "active")
                || beside.others.iter().any(|one| !one.is_down());
            if lives {
                let key = JobKey::Instance(assignment.instance.clone());
                self.spawn_stop(key, assignment.unit(), Some(assignment))?;
            }
            return Ok(());
        }
        if verdict.phase != InstancePhase::Running {
            return Ok(());
        }
        let down = beside.others.iter();
        let down = down.filter(|one| one.kind == OtherKind::Sidecar && one.is_down());
        for one in down {
            self.start_other(assignment, &one.unit);
        }
        Ok(())
    }

    fn start_other(&mut self, assignment: &Assignment, unit: &str) {
        let key = JobKey::Other(unit.to_owned());
        if self.busy.contains(&key) {
            return;
        }
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        let backoff = memory.others.entry(unit.to_owned()).or_default();
        if let Some(wait) = backoff.remaining(Instant::now()) {
            self.wake = self.wake.min(wait);
            return;
        }
        backoff.failed(Instant::now());
        let manager = std::sync::Arc::clone(&self.manager);
        let limit = self.start_limit();
        let unit = unit.to_owned();
        self.busy.insert(key.clone());
        self.jobs.spawn(async move {
            if let Err(error) = ignore_missing(manager.reset_failed(&unit).await) {
                return (key, JobOutcome::Started(Err(error)));
            }
            let result = manager.start(&unit, limit).await;
            (key, JobOutcome::Started(result))
        });
    }

    /// A start of a container beside the main one has ended.
    pub(super) fn other_was_started(&mut self, unit: &str, outcome: &JobOutcome) {
        if !matches!(outcome, JobOutcome::Started(Ok(JobResult::Done))) {
            tracing::warn!(unit, ?outcome, "a sidecar did not start");
        }
    }

    /// Nothing runs of the other containers of the instance with this main unit.
    pub(super) async fn others_are_over(&mut self, unit: &str) -> Result<bool, WorkerError> {
        for other in self.folder.others(unit)? {
            let status = self.manager.status(&other).await?;
            if !self.folder.is_over(&status) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Stops the other containers after the main one, as [`UnitFolder::others`] has them: all sidecars at once, so that none
/// has to wait for another. The first failure is told.
///
/// [`UnitFolder::others`]: crate::agent::files::UnitFolder::others
pub(super) async fn stop(
    manager: &dyn UnitManager,
    main: Result<JobResult, SystemdError>,
    others: Vec<String>,
    limit: Duration,
) -> Result<JobResult, SystemdError> {
    let stopped = |result: &Result<JobResult, SystemdError>| {
        matches!(
            result,
            Ok(JobResult::Done) | Err(SystemdError::NoSuchUnit(_))
        )
    };
    if others.is_empty() || !stopped(&main) {
        return main;
    }
    let (sidecars, rest): (Vec<_>, Vec<_>) =
        others.iter().partition(|unit| unit.contains("_side-"));
    let mut results = join_all(sidecars.iter().map(|unit| manager.stop(unit, limit))).await;
    for unit in rest {
        results.push(manager.stop(unit, limit).await);
    }
    let failed = results.into_iter().find(|result| !stopped(result));
    failed.unwrap_or(main)
}
