//! Health checks of an instance.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    exec::cgroup::RunningContainer,
    health::{ProbedInstance, probe::ProbeCheck, progress::HealthProgress},
    worker::{
        context::UserContext,
        instance::{Instance, last_run::window, reports::ReportedHealth, starting::begin_restart},
        running::start_backoff::RetryDelay,
        unit_state::instance_phase::InstanceVerdict,
    },
};
use kat_systemd::UnitStatus;
use kat_types::{
    api::{Health, InstancePhase},
    assignment::Assignment,
    reason::Reason,
};

/// Restarts because of failed health checks, until the instance is healthy.
#[derive(Debug, Default)]
pub(super) struct Healing {
    backoff: RetryDelay,
    /// Message of the last such restart.
    message: Option<String>,
}

impl Instance {
    /// Probes an instance while its container runs.
    pub(super) fn watch_health(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) {
        let instance = &assignment.instance;
        let Some(check) = &assignment.health_check else {
            return;
        };
        let runs = status.active_state.is_up();
        let target = ProbeCheck::of(assignment).ok().filter(|_| runs);
        let Some(target) = target else {
            context.probes.end(instance);
            return;
        };
        let run = status.exec_main_start_monotonic;
        let now = context.now();
        let note = context.notes.of(instance);
        let subject = ProbedInstance {
            run,
            up: Duration::from_micros(now.saturating_sub(run)),
            check: check.clone(),
            target,
            inside: RunningContainer::of(assignment, status),
            known: (note.run == run).then(|| note.health.clone()),
        };
        context.probes.begin(instance, subject);
        let Some(progress) = context.probes.of(instance) else {
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
            self.healing = Healing::default();
        }
    }

    /// The instance's health, and its reason and message with the health's added.
    pub(super) fn with_health(
        &self,
        context: &UserContext,
        assignment: &Assignment,
        verdict: &InstanceVerdict,
        reason: Option<Reason>,
        message: String,
    ) -> ReportedHealth {
        let said = |health, reason, message| ReportedHealth {
            health,
            reason,
            message,
        };
        let Some(check) = &assignment.health_check else {
            return said(Health::NotApplicable, reason, message);
        };
        let healed = self.healing.message.clone();
        if verdict.phase != InstancePhase::Running {
            return match healed.filter(|_| reason.is_none()) {
                Some(why) => said(Health::PendingCheck, Some(Reason::RestartedUnhealthy), why),
                None => said(Health::PendingCheck, reason, message),
            };
        }
        let progress = context.probes.of(&assignment.instance).unwrap_or_default();
        let failed = match (ProbeCheck::of(assignment), progress.error.as_str()) {
            (Ok(_), "") => String::new(),
            (Ok(target), error) => format!("{target}: {error}"),
            (Err(error), _) => error,
        };
        match progress.health {
            Health::Unhealthy => said(
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
                let reason = Some(Reason::HealthCheckPending);
                said(Health::PendingCheck, reason, message)
            }
            health @ (Health::Healthy | Health::NotApplicable) => said(health, reason, message),
        }
    }

    /// Restarts an unhealthy instance where its file sets `restartOnUnhealthy`.
    pub(super) fn heal(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) {
        let instance = &assignment.instance;
        let check = assignment.health_check.as_ref();
        if !check.is_some_and(|check| check.restart_on_unhealthy) {
            return;
        }
        let progress = context.probes.of(instance).unwrap_or_default();
        if progress.health != Health::Unhealthy {
            return;
        }
        if let Some(wait) = self.healing.backoff.remaining(Instant::now()) {
            context.wake_within(wait);
            return;
        }
        self.healing.backoff.failed(Instant::now());
        let HealthProgress { error, .. } = progress;
        tracing::warn!(instance, error, "an unhealthy instance is started again");
        self.healing.message = Some(format!(
            "it was started again because its health check failed: {error}"
        ));
        let (now, began) = (context.now(), status.exec_main_start_monotonic);
        let count = context.restarts.of(instance);
        count.restarted(began, now, window(assignment));
        begin_restart(context, assignment);
    }
}
