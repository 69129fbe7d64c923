//! Health checks of a worker's instances.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    exec::cgroup::RunningContainer,
    health::{ProbedInstance, probe::ProbeCheck, progress::HealthProgress},
    worker::{
        Worker,
        running::start_backoff::RetryDelay,
        unit_state::{instance_phase::InstanceVerdict, units::window},
    },
};
use kat_systemd::UnitStatus;
use kat_types::{
    api::{Health, InstancePhase},
    assignment::Assignment,
    reason::Reason,
};

impl Worker {
    /// Probes an instance while its container runs.
    pub(crate) fn watch_health(&mut self, assignment: &Assignment, status: &UnitStatus) {
        let instance = &assignment.instance;
        let Some(check) = &assignment.health_check else {
            return;
        };
        let runs = status.active_state.is_up();
        let target = ProbeCheck::of(assignment).ok().filter(|_| runs);
        let Some(target) = target else {
            self.probes.end(instance);
            return;
        };
        let run = status.exec_main_start_monotonic;
        let now = (self.tools.monotonic)();
        let note = self.notes.of(instance);
        let subject = ProbedInstance {
            run,
            up: Duration::from_micros(now.saturating_sub(run)),
            check: check.clone(),
            target,
            inside: RunningContainer::of(assignment, status),
            known: (note.run == run).then(|| note.health.clone()),
        };
        self.probes.begin(instance, subject);
        let Some(progress) = self.probes.of(instance) else {
            return;
        };
        let before = std::mem::replace(&mut note.health, progress.without_counts());
        let changed =
            std::mem::replace(&mut note.run, run) == run && before.health != progress.health;
        if changed {
            let HealthProgress { health, error, .. } = &progress;
            tracing::info!(
                instance,
                ?health,
                error,
                "the health of an instance changed"
            );
        }
        if progress.health == Health::Healthy {
            let memory = self.memories.entry(instance.clone()).or_default();
            memory.heals = RetryDelay::default();
            memory.healed = None;
        }
    }

    /// The instance's health, and its reason and message with the health's added.
    pub(crate) fn with_health(
        &self,
        assignment: &Assignment,
        verdict: &InstanceVerdict,
        reason: Option<Reason>,
        message: String,
    ) -> (Health, Option<Reason>, String) {
        let Some(check) = &assignment.health_check else {
            return (Health::NotApplicable, reason, message);
        };
        let memory = self.memories.get(&assignment.instance);
        let healed = memory.and_then(|memory| memory.healed.clone());
        if verdict.phase != InstancePhase::Running {
            return match healed.filter(|_| reason.is_none()) {
                Some(why) => (Health::PendingCheck, Some(Reason::RestartedUnhealthy), why),
                None => (Health::PendingCheck, reason, message),
            };
        }
        let progress = self.probes.of(&assignment.instance).unwrap_or_default();
        let failed = match (ProbeCheck::of(assignment), progress.error.as_str()) {
            (Ok(_), "") => String::new(),
            (Ok(target), error) => format!("{target}: {error}"),
            (Err(error), _) => error,
        };
        match progress.health {
            Health::Unhealthy => (
                Health::Unhealthy,
                Some(Reason::Unhealthy),
                format!("its health check fails: {failed}"),
            ),
            Health::PendingCheck => {
                let waits = match (failed.as_str(), check.success_threshold) {
                    ("", 1) => "its health check has not been made yet".to_owned(),
                    ("", count) => format!("its health check is to succeed {count} times in a row"),
                    (failed, _) => format!("its health check does not succeed yet: {failed}"),
                };
                let message = match healed {
                    Some(why) => format!("{waits}; {why}"),
                    None => waits,
                };
                (
                    Health::PendingCheck,
                    Some(Reason::HealthCheckPending),
                    message,
                )
            }
            health @ (Health::Healthy | Health::NotApplicable) => (health, reason, message),
        }
    }

    /// Restarts an unhealthy instance where its file sets `restartOnUnhealthy`.
    pub(crate) fn heal(&mut self, assignment: &Assignment, status: &UnitStatus, unit: String) {
        let instance = &assignment.instance;
        let check = assignment.health_check.as_ref();
        if !check.is_some_and(|check| check.restart_on_unhealthy) {
            return;
        }
        let progress = self.probes.of(instance).unwrap_or_default();
        if progress.health != Health::Unhealthy {
            return;
        }
        let memory = self.memories.entry(instance.clone()).or_default();
        if let Some(wait) = memory.heals.remaining(Instant::now()) {
            self.wake = self.wake.min(wait);
            return;
        }
        memory.heals.failed(Instant::now());
        let HealthProgress { error, .. } = progress;
        tracing::warn!(instance, error, "an unhealthy instance is started again");
        memory.healed = Some(format!(
            "it was started again because its health check failed: {error}"
        ));
        let (now, began) = ((self.tools.monotonic)(), status.exec_main_start_monotonic);
        let count = self.restarts.of(instance);
        count.restarted(began, now, window(assignment));
        self.spawn_restart(assignment, unit);
    }
}
