//! Init containers, sidecars and network holders: their state, starts and stops.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::{
    images::pull as image,
    worker::{
        WorkerError,
        context::UserContext,
        ignore_missing,
        instance::{
            Instance,
            last_run::{ended_by_podman, not_started},
        },
        reports::{log_tail, log_tail::UnitRuns},
        running::{
            jobs::{JobKey, StopUrgency},
            start_backoff::RetryDelay,
            stops::InstanceStop,
        },
        unit_state::{
            instance_phase::{InstanceVerdict, StartAction},
            sidecars::{InstanceSidecars, SidecarContainer},
        },
    },
};
use kat_systemd::{ActiveState, JobResult, SystemdError, UnitManager, UnitStatus};
use kat_types::{
    api::{ContainerStatus, InstancePhase},
    assignment::Assignment,
    resource::OtherKind,
};

/// What is remembered of the containers beside the main one.
#[derive(Debug, Default)]
pub(super) struct SidecarMemory {
    /// The containers as last reported.
    pub reports: Vec<ContainerStatus>,
    /// Last log lines of each container, by unit.
    words: BTreeMap<String, LastLogLines>,
    /// Start backoff of each container, by unit.
    starts: BTreeMap<String, RetryDelay>,
}

/// The log lines of a container before its last end.
#[derive(Debug, Clone, Default)]
struct LastLogLines {
    /// The container's last end, microseconds of the monotonic clock.
    ended: u64,
    text: String,
    /// The text is Podman's error: Podman did not start the container.
    not_started: bool,
    /// A pull of the container's image has been started since.
    pulled: bool,
}

impl Instance {
    /// The state of an instance's containers beside the main one; `None` where there are none.
    pub(super) async fn look_beside(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        main: &UnitStatus,
    ) -> Result<Option<InstanceSidecars>, WorkerError> {
        if !assignment.has_others() {
            return Ok(None);
        }
        let mut beside = InstanceSidecars::default();
        for (kind, container) in assignment.others() {
            let unit = assignment.other_unit(kind, container);
            let status = context.manager.status(&unit).await?;
            let is_well = matches!(
                status.active_state,
                ActiveState::Active | ActiveState::Inactive
            );
            let words = match is_well {
                true => LastLogLines::default(),
                false => self.last_words(context, &unit, &status, false).await,
            };
            beside.others.push(SidecarContainer {
                kind,
                name: container.name.clone().unwrap_or_default(),
                image: container.image.clone().unwrap_or_default(),
                unit,
                status,
                not_started: words.not_started,
                words: words.text,
            });
        }
        if let Some(unit) = assignment.network_unit() {
            let status = context.manager.status(&unit).await?;
            let failed = status.has_failed();
            let words = match failed && main.active_state != ActiveState::Active {
                true => self.last_words(context, &unit, &status, true).await.text,
                false => String::new(),
            };
            beside.network = Some((status, words));
        }
        self.sidecars.reports = beside.others.iter().map(SidecarContainer::report).collect();
        Ok(Some(beside))
    }

    /// The log lines of a container before its last end; the journal is read once for each end.
    async fn last_words(
        &mut self,
        context: &UserContext,
        unit: &str,
        status: &UnitStatus,
        of_hook: bool,
    ) -> LastLogLines {
        let ended = status.exec_main_exit_monotonic;
        if let Some(words) = self.sidecars.words.get(unit)
            && words.ended == ended
        {
            return words.clone();
        }
        let runs = UnitRuns {
            started: status.exec_main_start_monotonic,
            ..UnitRuns::default()
        };
        let uid = context.user.uid;
        let tail = log_tail::read(context.tools.logs.as_ref(), uid, unit, runs).await;
        let refusal = tail.podman_error.filter(|_| ended_by_podman(status));
        let (text, not_started) = match (of_hook, refusal) {
            (true, _) => (tail.hook_error.unwrap_or(tail.lines), false),
            (false, Some(refusal)) => (not_started(&refusal), true),
            (false, None) => (tail.lines, false),
        };
        let words = LastLogLines {
            ended,
            text,
            not_started,
            pulled: false,
        };
        self.sidecars.words.insert(unit.to_owned(), words.clone());
        words
    }

    /// Pulls again the images that containers beside the main one could not start with because they
    /// were missing.
    pub(super) fn pull_lost(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        beside: &InstanceSidecars,
    ) {
        let not_started = beside.others.iter().filter(|one| one.not_started);
        for one in not_started {
            let each = assignment.each();
            let home = context.home();
            let lost = |only: &&Cow<'_, Assignment>| {
                only.image == one.image && image::is_lost(&home, only)
            };
            let Some(only) = each.iter().find(lost) else {
                continue;
            };
            let key = JobKey::Pull(only.image.clone());
            let image = context.images.entry(only.image.clone()).or_default();
            if let Some(wait) = image.attempts.remaining(Instant::now()) {
                context.wake_within(wait);
                continue;
            }
            let words = self.sidecars.words.get_mut(&one.unit);
            // One pull for each end: the list of local images may not be readable.
            let pulled = words.is_none_or(|words| std::mem::replace(&mut words.pulled, true));
            if !pulled && !context.jobs.is_running(&key) {
                image.present = false;
                context.begin_pull(only);
            }
        }
    }

    /// Starts stopped sidecars while the main container runs, and stops the remaining containers
    /// once the main one has ended for good.
    pub(super) fn converge_beside(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        beside: &InstanceSidecars,
        verdict: &InstanceVerdict,
    ) -> Result<(), WorkerError> {
        let over = matches!(
            verdict.phase,
            InstancePhase::Failed | InstancePhase::Succeeded
        );
        if over && verdict.action == StartAction::Leave {
            let network = beside.network.as_ref();
            let lives = network
                .is_some_and(|(status, _)| status.active_state == ActiveState::Active)
                || beside.others.iter().any(|one| !one.is_down());
            if lives {
                context.begin_stop(InstanceStop {
                    instance: &assignment.instance,
                    unit: assignment.unit(),
                    assignment: Some(assignment),
                    urgency: StopUrgency::InTurn,
                    evicted: false,
                })?;
            }
            return Ok(());
        }
        if verdict.phase != InstancePhase::Running {
            return Ok(());
        }
        let down = beside.others.iter();
        let down = down.filter(|one| one.kind == OtherKind::Sidecar && one.is_down());
        for one in down {
            self.start_other(context, &one.unit);
        }
        Ok(())
    }

    fn start_other(&mut self, context: &mut UserContext, unit: &str) {
        let key = JobKey::Sidecar(unit.to_owned());
        if context.jobs.is_running(&key) {
            return;
        }
        let delay = self.sidecars.starts.entry(unit.to_owned()).or_default();
        if let Some(wait) = delay.remaining(Instant::now()) {
            context.wake_within(wait);
            return;
        }
        delay.failed(Instant::now());
        let manager = Arc::clone(&context.manager);
        let limit = context.start_limit();
        let started = unit.to_owned();
        context.jobs.begin_sidecar_start(unit, async move {
            ignore_missing(manager.reset_failed(&started).await)?;
            manager.start(&started, limit).await
        });
    }
}

/// Stops the other containers after the main one, in the order of [`UnitFolder::other_units`]; all
/// sidecars in parallel. Returns the first failure.
///
/// [`UnitFolder::other_units`]: crate::worker::unit_state::unit_files::UnitFolder::other_units
pub(crate) async fn stop(
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
