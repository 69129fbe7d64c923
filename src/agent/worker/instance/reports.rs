//! The reports about an instance.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    images::pull as image,
    network::host_ports,
    worker::{
        context::UserContext,
        instance::{Instance, bound_schedule::bound_report},
        unit_state::{instance_phase::InstanceVerdict, links},
        users::limits,
    },
};
use kat_systemd::UnitStatus;
use kat_types::{
    api::{Health, InstancePhase, InstanceReport, MainContainerState},
    assignment::{Assignment, DesiredRun},
    reason::Reason,
};

/// Message of an instance whose container runs without a network link.
const LINK_MISSING_MEANS: &str =
    "its container runs without its link to the network, so that nobody reaches it";
/// A missing link is reported after this time: while a container ends, its link goes before its
/// unit ends.
const LINK_PATIENCE: Duration = Duration::from_secs(5);

/// The part of a report that the checks of a running instance change.
pub(super) struct ReportedHealth {
    pub health: Health,
    pub reason: Option<Reason>,
    pub message: String,
}

impl Instance {
    pub(crate) fn report(
        &mut self,
        context: &UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
        phase: InstancePhase,
        reason: impl Into<Option<Reason>>,
        message: String,
    ) {
        let report = self.base_report(context, assignment, status, phase, reason.into(), message);
        self.reported = true;
        context.statuses.set(report);
    }

    /// Reports why an instance does not start yet.
    pub(crate) fn report_waiting(
        &mut self,
        context: &UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
        reason: impl Into<Option<Reason>>,
        message: String,
    ) {
        let phase = phase_before_start(assignment);
        self.report(context, assignment, status, phase, reason, message);
    }

    pub(super) fn report_verdict(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
        verdict: &InstanceVerdict,
    ) {
        let runs = verdict.phase == InstancePhase::Running;
        let (reason, message) = self.explain(verdict);
        let mut said = self.with_health(context, assignment, verdict, reason, message);
        // A degraded instance is unhealthy, whatever its own check says.
        if runs && let Some(trouble) = verdict.beside {
            said = ReportedHealth {
                health: Health::Unhealthy,
                reason: Some(trouble),
                message: verdict.message.clone(),
            };
        }
        if !runs {
            // The link of a container goes with it: each run has its own time.
            self.unlinked = None;
        } else if self.is_unlinked(context, assignment) {
            said = ReportedHealth {
                health: Health::Unhealthy,
                reason: Some(Reason::NetworkLinkMissing),
                message: LINK_MISSING_MEANS.to_owned(),
            };
        }
        let ReportedHealth {
            health,
            reason,
            message,
        } = said;
        let mut report =
            self.base_report(context, assignment, status, verdict.phase, reason, message);
        if runs {
            let in_use = host_ports::in_use(assignment, context.tools.listeners.as_ref());
            report.conditions.extend(host_ports::condition(in_use));
            let forbidden = context.tools.options.forbidden_host_port(assignment);
            report.conditions.extend(host_ports::not_allowed(forbidden));
        }
        report.restarts = verdict.restarts;
        report.exit_code = verdict.exit_code;
        report.health_status = health;
        self.serves = Some(runs && health.serves());
        self.reported = true;
        context.statuses.set(report);
    }

    /// The reason and the message of a verdict, with what is known of the last run and of the last
    /// start.
    fn explain(&self, verdict: &InstanceVerdict) -> (Option<Reason>, String) {
        if verdict.phase == InstancePhase::Starting {
            if let Some(why) = &self.start.not_bound {
                return (Some(Reason::HostPathNotBound), why.clone());
            }
            if let Some(error) = &self.start.error
                && verdict.reason.is_none()
            {
                return (Some(Reason::StartFailed), error.clone());
            }
        }
        let trouble = self.last_run.trouble.as_str();
        let message = match verdict.message.as_str() {
            message if verdict.reason.is_none() || trouble.is_empty() => message.to_owned(),
            "" => trouble.to_owned(),
            message => format!("{message}; last lines: {trouble}"),
        };
        (verdict.reason, message)
    }

    /// Whether a running instance's container has been without its link for longer than
    /// [`LINK_PATIENCE`].
    fn is_unlinked(&mut self, context: &mut UserContext, assignment: &Assignment) -> bool {
        if !links::is_missing(context.tools.root.path(), assignment) {
            self.unlinked = None;
            return false;
        }
        let since = *self.unlinked.get_or_insert_with(Instant::now);
        // kat-net makes the link again without notifying the worker.
        context.wake_within(LINK_PATIENCE);
        since.elapsed() >= LINK_PATIENCE
    }

    fn base_report(
        &self,
        context: &UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
        phase: InstancePhase,
        reason: Option<Reason>,
        message: String,
    ) -> InstanceReport {
        let state = match phase {
            InstancePhase::Running => MainContainerState::Running,
            InstancePhase::Failed | InstancePhase::Succeeded | InstancePhase::Stopped => {
                MainContainerState::Exited
            }
            _ => MainContainerState::Unknown,
        };
        let health_status = match assignment.health_check {
            Some(_) => Health::PendingCheck,
            None => Health::NotApplicable,
        };
        let usage = self.reported_usage(status);
        InstanceReport {
            health_status,
            workload_name: assignment.workload.clone(),
            namespace: assignment.namespace.clone(),
            instance_id: assignment.instance.clone(),
            image_id: image::digest(&context.home(), &assignment.image).unwrap_or_default(),
            state,
            phase,
            reason: Reason::word_or_empty(reason).to_owned(),
            message,
            template_hash: assignment.template_hash.clone(),
            memory: usage.memory,
            cpu: usage.cpu,
            conditions: limits::conditions(assignment, context.tools.limits_enforced),
            restarts: context.restarts.own(&assignment.instance),
            containers: self.sidecars.reports.clone(),
            bound: bound_report(context, assignment, status),
            ..InstanceReport::default()
        }
    }
}

/// The phase of an instance whose start has not been tried, and that is not ready for it.
pub(crate) fn phase_before_start(assignment: &Assignment) -> InstancePhase {
    match assignment.wanted {
        DesiredRun::Running | DesiredRun::Stopped => InstancePhase::Starting,
        DesiredRun::Prepared => InstancePhase::Scheduled,
    }
}
