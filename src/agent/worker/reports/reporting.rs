//! What a worker reports of its instances as a whole: that they are gone, and that a pass was cut
//! short.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::worker::{UserDesired, Worker, WorkerError, instance::Instance};
use kat_systemd::{SystemdError, UnitStatus};
use kat_types::{api::InstancePhase, assignment::Assignment, reason::Reason};

/// Pause after the connection to a user manager was lost, before the worker starts it again.
const AFTER_LOSS: Duration = Duration::from_millis(200);

impl Worker {
    /// Forgets the instances that are not in the list, and their reports.
    pub(crate) fn forget_all_but(&mut self, wanted: &BTreeMap<String, Assignment>) {
        let is_gone = |instance: &String, _: &mut Instance| !wanted.contains_key(instance);
        let gone: BTreeSet<String> = self
            .instances
            .extract_if(.., is_gone)
            .filter(|(_, instance)| instance.is_reported())
            .map(|(name, _)| name)
            .collect();
        let context = &mut self.context;
        context
            .statuses
            .retain(|report| !gone.contains(&report.instance_id));
        let stays = |instance: &str| wanted.contains_key(instance);
        context.restarts.retain(stays);
        context.notes.retain(stays);
        context.begun.retain(stays);
        context.probes.retain(stays);
        // An image that no instance uses may be removed meanwhile.
        context.images.retain(|image, _| {
            wanted
                .values()
                .any(|one| one.images().any(|name| name == image))
        });
    }

    /// Reports the same error for every instance of the user.
    pub(crate) fn report_trouble(&mut self, desired: &UserDesired, error: &WorkerError) {
        tracing::warn!(
            user = self.context.user.name,
            "a pass was cut short: {error:#}"
        );
        if matches!(
            error,
            WorkerError::Systemd(SystemdError::Unreachable { .. })
        ) {
            // A manager that has just exited may only need a start.
            if std::mem::replace(&mut self.account.ready, false) {
                self.context.wake_within(AFTER_LOSS);
            }
            self.events = None;
        }
        self.context.wake_within(Duration::from_secs(5));
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
            .context
            .statuses
            .all()
            .0
            .into_iter()
            .filter(|report| match report.phase {
                InstancePhase::Running | InstancePhase::Restarting => self.account.ready,
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
            let (instance, context) = self.instance(&assignment.instance);
            instance.report_waiting(context, assignment, &status, reason, message.clone());
        }
    }
}
