//! The reports of a worker about its instances.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    images::pull as image,
    network::host_ports,
    worker::{
        UserDesired, Worker, WorkerError,
        unit_state::{instance_phase::InstanceVerdict, links},
        users::limits,
    },
};
use kat_systemd::{SystemdError, UnitStatus};
use kat_types::{
    api::{Health, InstancePhase, InstanceReport, MainContainerState},
    assignment::{Assignment, DesiredRun},
    reason::Reason,
};

/// Pause after the connection to a user manager was lost, before the worker starts it again.
const AFTER_LOSS: Duration = Duration::from_millis(200);
/// Message of an instance whose container runs without a network link.
const LINK_MISSING_MEANS: &str =
    "its container runs without its link to the network, so that nobody reaches it";
/// A missing link is reported after this time: while a container ends, its link goes before its
/// unit ends.
const LINK_PATIENCE: Duration = Duration::from_secs(5);

impl Worker {
    /// Forgets the instances that are not in the list, and their reports.
    pub(crate) fn forget_all_but(&mut self, wanted: &BTreeMap<String, Assignment>) {
        let gone: BTreeSet<String> = self
            .reported
            .extract_if(.., |instance| !wanted.contains_key(instance))
            .collect();
        self.statuses
            .retain(|report| !gone.contains(&report.instance_id));
        self.memories
            .retain(|instance, _| wanted.contains_key(instance));
        self.restarts
            .retain(|instance| wanted.contains_key(instance));
        self.notes.retain(|instance| wanted.contains_key(instance));
        self.probes.retain(|instance| wanted.contains_key(instance));
        // An image that no instance uses may be removed meanwhile.
        self.images.retain(|image, _| {
            wanted
                .values()
                .any(|one| one.images().any(|name| name == image))
        });
    }

    pub(crate) fn report_verdict(
        &mut self,
        assignment: &Assignment,
        status: &UnitStatus,
        verdict: &InstanceVerdict,
    ) {
        let memory = self.memories.get(&assignment.instance);
        let mut message = verdict.message.clone();
        let troubled = verdict.reason.is_some();
        if let Some(trouble) = memory
            .map(|memory| memory.trouble.as_str())
            .filter(|text| troubled && !text.is_empty())
        {
            message = if message.is_empty() {
                trouble.to_owned()
            } else {
                format!("{message}; last lines: {trouble}")
            };
        }
        let starting = memory.filter(|_| verdict.phase == InstancePhase::Starting);
        let not_bound = starting.and_then(|memory| memory.not_bound.clone());
        let start_error = starting.and_then(|memory| memory.start_error.clone());
        let (reason, message) = match (not_bound, start_error) {
            (Some(why), _) => (Some(Reason::HostPathNotBound), why),
            (None, Some(error)) if verdict.reason.is_none() => (Some(Reason::StartFailed), error),
            _ => (verdict.reason, message),
        };
        let (health, reason, message) = self.with_health(assignment, verdict, reason, message);
        let (health, reason, message) = match verdict.beside {
            // A degraded instance is unhealthy, whatever its own check says.
            Some(trouble) if verdict.phase == InstancePhase::Running => {
                (Health::Unhealthy, Some(trouble), verdict.message.clone())
            }
            _ => (health, reason, message),
        };
        let unlinked = verdict.phase == InstancePhase::Running && self.is_unlinked(assignment);
        let (health, reason, message) = match unlinked {
            true => (
                Health::Unhealthy,
                Some(Reason::NetworkLinkMissing),
                LINK_MISSING_MEANS.to_owned(),
            ),
            false => (health, reason, message),
        };
        let mut report = self.base_report(assignment, status, verdict.phase, reason, message);
        if verdict.phase == InstancePhase::Running {
            let in_use = host_ports::in_use(assignment, self.tools.listeners.as_ref());
            report.conditions.extend(host_ports::condition(in_use));
            let forbidden = self.tools.options.forbidden_host_port(assignment);
            report.conditions.extend(host_ports::not_allowed(forbidden));
        }
        report.restarts = verdict.restarts;
        report.exit_code = verdict.exit_code;
        report.health_status = health;
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        memory.serves = Some(verdict.phase == InstancePhase::Running && health.serves());
        self.reported.insert(assignment.instance.clone());
        self.statuses.set(report);
    }

    /// Whether a running instance's container has been without its link for longer than
    /// [`LINK_PATIENCE`].
    fn is_unlinked(&mut self, assignment: &Assignment) -> bool {
        let missing = links::is_missing(self.tools.root.path(), assignment);
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        if !missing {
            memory.unlinked = None;
            return false;
        }
        let since = *memory.unlinked.get_or_insert_with(Instant::now);
        // kat-net makes the link again without notifying the worker.
        self.wake = self.wake.min(LINK_PATIENCE);
        since.elapsed() >= LINK_PATIENCE
    }

    pub(crate) fn report(
        &mut self,
        assignment: &Assignment,
        status: &UnitStatus,
        phase: InstancePhase,
        reason: impl Into<Option<Reason>>,
        message: String,
    ) {
        let report = self.base_report(assignment, status, phase, reason, message);
        self.reported.insert(assignment.instance.clone());
        self.statuses.set(report);
    }

    pub(crate) fn base_report(
        &self,
        assignment: &Assignment,
        status: &UnitStatus,
        phase: InstancePhase,
        reason: impl Into<Option<Reason>>,
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
        InstanceReport {
            health_status,
            workload_name: assignment.workload.clone(),
            namespace: assignment.namespace.clone(),
            instance_id: assignment.instance.clone(),
            image_id: image::digest(&self.tools.accounts.home(&self.user), &assignment.image)
                .unwrap_or_default(),
            state,
            phase,
            reason: Reason::word_or_empty(reason.into()).to_owned(),
            message,
            template_hash: assignment.template_hash.clone(),
            memory: status.memory_current,
            cpu: status.cpu_usage,
            conditions: limits::conditions(assignment, self.tools.limits_enforced),
            restarts: self.restarts.own(&assignment.instance),
            containers: self
                .memories
                .get(&assignment.instance)
                .map(|memory| memory.containers.clone())
                .unwrap_or_default(),
            ..InstanceReport::default()
        }
    }

    /// Reports the same error for every instance of the user.
    pub(crate) fn report_trouble(&mut self, desired: &UserDesired, error: &WorkerError) {
        tracing::warn!(user = self.user.name, "a pass was cut short: {error:#}");
        if matches!(
            error,
            WorkerError::Systemd(SystemdError::Unreachable { .. })
        ) {
            // A manager that has just exited may only need a start.
            if std::mem::replace(&mut self.ready, false) {
                self.wake = self.wake.min(AFTER_LOSS);
            }
            self.events = None;
        }
        self.wake = self.wake.min(Duration::from_secs(5));
        let reason = match error {
            WorkerError::User(_) => Reason::UserNotReady,
            WorkerError::Systemd(_) => Reason::SystemdRefused,
            WorkerError::Files(_) | WorkerError::File(_) | WorkerError::Carried(_) => {
                Reason::FilesNotWritten
            }
            WorkerError::Render(_) => Reason::NotRenderable,
        };
        self.trouble = Some((reason, error.to_string()));
        self.repeat_trouble(desired);
    }

    /// Reports the present error for every instance that it may hold up. Reports of the other
    /// instances stay: a file that can't be written does not stop a running program.
    pub(crate) fn repeat_trouble(&mut self, desired: &UserDesired) {
        let Some((reason, message)) = self.trouble.clone() else {
            return;
        };
        let settled: BTreeSet<String> = self
            .statuses
            .all()
            .0
            .into_iter()
            .filter(|report| match report.phase {
                InstancePhase::Running | InstancePhase::Restarting => self.ready,
                InstancePhase::Failed | InstancePhase::Succeeded => true,
                _ => false,
            })
            .map(|report| report.instance_id)
            .collect();
        for assignment in desired
            .to_run()
            .chain(desired.to_prepare())
            .filter(|assignment| !settled.contains(&assignment.instance))
        {
            let status = UnitStatus::default();
            self.report(
                assignment,
                &status,
                phase_before_start(assignment),
                reason,
                message.clone(),
            );
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
