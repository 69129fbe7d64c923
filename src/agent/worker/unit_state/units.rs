//! The units of a user's instances: written, stopped and removed.

use std::collections::BTreeSet;

use crate::{
    volumes::{carried_files as carried, host_binds},
    worker::{
        UserDesired, Worker, WorkerError,
        running::{
            jobs::{JobKey, StopUrgency},
            stops::InstanceStop,
        },
        unit_state::{network_holder as holder, unit_files::FilesError},
    },
};
use kat_render::UnitFile;
use kat_systemd::{ActiveState, UnitStatus};
use kat_types::{
    api::InstancePhase,
    assignment::{Assignment, DesiredRun},
    reason::Reason,
    resource::OnPartition,
};

/// Message of an instance that is stopped because its machine is cut off.
const CUT_OFF_MEANS: &str = "stopped, as its file asks: its machine reaches no leader, which may replace it; it starts again when that is over";
/// Message of an instance with data of its own that is not started before the list is confirmed.
const UNCONFIRMED_MEANS: &str =
    "it writes data: since its machine started no leader has confirmed that it belongs there";
const UNCONFIRMED_SCHEDULE_MEANS: &str =
    "it keeps a schedule: since its machine started no leader has confirmed that it belongs there";

impl Worker {
    /// Stops unwanted instances, and removes their files once they have stopped.
    pub(crate) async fn stop_unwanted(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        let mut removed = false;
        for (unit, instance) in self.context.folder.instances()? {
            let assignment = desired
                .assignments
                .values()
                .find(|assignment| assignment.unit() == unit);
            let unwanted = match assignment {
                Some(assignment) => desired.is_to_stop(assignment),
                None => desired.confirmed,
            };
            let urgency = stop_urgency(assignment);
            let is_stopping = self.context.jobs.is_running(&urgency.key(&instance));
            if !unwanted || is_stopping {
                continue;
            }
            self.context.probes.end(&instance);
            // Before the unit: nothing starts it again.
            self.context.remove_timer(&unit).await?;
            let status = self.context.manager.status(&unit).await?;
            let is_over =
                self.context.folder.is_over(&status) && self.context.others_are_over(&unit).await?;
            let (one, context) = self.instance(&instance);
            if is_over && one.outlives(context, &unit, &status).await? {
                // There is nothing that systemd could stop.
                if let Some(assignment) = assignment {
                    one.report_stopping(context, assignment, &status);
                }
                continue;
            }
            if is_over {
                if let Some(assignment) = assignment {
                    one.record_stopped_unit(assignment, &status);
                }
                // A running start job may be about to start the unit: the file stays until the job
                // has ended.
                if !self.context.jobs.is_busy(&instance) {
                    // One that is held back may keep its schedule again.
                    let is_held = |one: &Assignment| one.wanted == DesiredRun::Running;
                    let keeps_table = assignment.is_some_and(is_held);
                    self.context
                        .remove_units(&unit, &status, keeps_table)
                        .await?;
                    removed = true;
                }
                continue;
            }
            if let Some(assignment) = assignment {
                let (one, context) = self.instance(&assignment.instance);
                if !desired.is_held(&instance) && one.drains(context, assignment, &status) {
                    continue;
                }
                one.report_stopping(context, assignment, &status);
                one.record_stop_begin(context.now());
            }
            self.context.begin_stop(InstanceStop {
                instance: &instance,
                unit,
                assignment,
                urgency,
                evicted: desired.evicted.contains_key(&instance),
            })?;
        }
        if removed {
            self.context.reload().await?;
        }
        self.report_stopped(desired);
        Ok(())
    }

    /// Reports the instances that must not run and have no files any more. True when the list has any
    /// other instance.
    pub(crate) fn report_stopped(&mut self, desired: &UserDesired) -> bool {
        let mut more = false;
        for assignment in desired.assignments.values() {
            let is_prepared = assignment.wanted == DesiredRun::Prepared;
            let stops = desired.is_to_stop(assignment) && !is_prepared;
            if !stops || self.context.folder.has(&assignment.unit()) {
                more = true;
                continue;
            }
            let (phase, reason, message) = stopped_state(desired, assignment);
            let (instance, context) = self.instance(&assignment.instance);
            let (reason, message) = match instance.why_killed() {
                Some(why) if phase == InstancePhase::Stopped => {
                    (Some(Reason::KilledAtStop), why.to_owned())
                }
                _ => (reason, message.to_owned()),
            };
            let status = UnitStatus::default();
            context.settle_bound(assignment);
            instance.report(context, assignment, &status, phase, reason, message);
        }
        more
    }

    /// Writes the unit files of all instances to run, and those of the images of instances to prepare;
    /// has the manager know new ones, and reloads it once if any other changed. The units
    /// that are new.
    pub(crate) async fn write_units(
        &mut self,
        desired: &UserDesired,
    ) -> Result<BTreeSet<String>, WorkerError> {
        let mut files: Vec<UnitFile> = Vec::new();
        let mut whole = true;
        for assignment in desired.to_run() {
            let (instance, context) = self.instance(&assignment.instance);
            let Some(rendered) = instance.render(context, assignment)? else {
                // The instance's existing files stay as they are.
                whole = false;
                continue;
            };
            files.extend(rendered);
            files.extend(context.render_images(assignment)?);
            let tools = &context.tools;
            if assignment.network_unit().is_some() {
                holder::prepare(&tools.root)?;
            }
            let resolv = tools.renderer.resolv_conf(
                &assignment.namespace,
                &tools.domain,
                tools.overlay_address,
                tools.cluster_settings.present().name_search,
                &tools.settings,
            )?;
            context.folder.write_resolv(&tools.root, &resolv)?;
        }
        for assignment in desired.to_prepare() {
            // An image that can't be rendered is reported with the instance.
            files.extend(self.context.render_images(assignment).unwrap_or_default());
        }
        // The images of assignments that are not understood are not known.
        let all = desired.assignments.values();
        let tidy =
            desired.confirmed && whole && all.into_iter().all(|one| one.not_understood.is_none());
        let written = self.context.folder.write(&files, tidy);
        let changes = written.inspect_err(|_| self.context.owe_reload())?;
        if changes.others {
            self.context.reload().await?;
        } else if !changes.added.is_empty() {
            self.context.announce(&changes.added).await?;
        } else {
            self.context.reload_where_due().await?;
        }
        if tidy {
            let all = desired.assignments.values();
            carried::tidy(&self.context.tools.root, self.context.user.uid, all);
        }
        Ok(changes.added)
    }

    /// Reports the instances that a newer version assigned and this version does not understand:
    /// running ones continue, and none is started.
    pub(crate) async fn report_not_understood(
        &mut self,
        desired: &UserDesired,
    ) -> Result<(), WorkerError> {
        for assignment in desired.assignments.values() {
            let Some(why) = assignment.not_understood.as_ref() else {
                continue;
            };
            if desired.is_to_stop(assignment) {
                continue;
            }
            let unit = assignment.unit();
            let status = self.context.manager.status(&unit).await?;
            let phase = match status.active_state {
                state if state.is_up() => InstancePhase::Running,
                ActiveState::Activating => InstancePhase::Starting,
                ActiveState::Failed => InstancePhase::Failed,
                _ => InstancePhase::Scheduled,
            };
            let message = format!("this machine's KAT is too old for it: {why}");
            let (instance, context) = self.instance(&assignment.instance);
            instance.read_usage(context, &unit, &status).await?;
            let reason = Reason::NotUnderstood;
            instance.report(context, assignment, &status, phase, reason, message);
        }
        Ok(())
    }

    /// Removes the binds of instances that are no longer here, in a job: the unit that binds them may
    /// hang on its file system.
    pub(crate) fn remove_binds(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        if !desired.confirmed || self.context.jobs.is_running(&JobKey::Binds) {
            return Ok(());
        }
        let units = self.context.folder.instances()?;
        let assigned = desired.assignments.keys();
        let kept: BTreeSet<String> = assigned.chain(units.values()).cloned().collect();
        if host_binds::has_other(&self.context.tools.root, self.context.user.uid, &kept) {
            self.begin_unbind(kept);
        }
        Ok(())
    }

    fn begin_unbind(&mut self, kept: BTreeSet<String>) {
        let system = self.context.tools.managers.system();
        let (root, uid) = (self.context.tools.root.clone(), self.context.user.uid);
        self.context.jobs.begin_unbind(async move {
            let kept = kept.iter().map(String::as_str).collect();
            host_binds::keep_only(system.as_ref(), &root, uid, &kept).await
        });
    }

    /// Removes what units wrote of the runs of instances that are no longer here, and the tables of their
    /// times.
    pub(crate) fn remove_runs(&self, desired: &UserDesired) -> Result<(), WorkerError> {
        if !desired.confirmed {
            return Ok(());
        }
        let units = self.context.folder.instances()?;
        let assigned = desired.assignments.values().map(Assignment::unit);
        let tables: BTreeSet<String> = assigned.chain(units.keys().cloned()).collect();
        self.context.folder.keep_tables(&tables)?;
        let assigned = desired.assignments.keys();
        let kept = assigned.chain(units.values()).map(String::as_str);
        Ok(self.context.folder.keep_runs(&kept.collect())?)
    }

    /// Removes the secret files of instances that are no longer here.
    pub(crate) fn remove_secrets(&self, desired: &UserDesired) -> Result<(), WorkerError> {
        if !desired.confirmed {
            return Ok(());
        }
        let units = self.context.folder.instances()?;
        let assigned = desired.assignments.keys();
        let kept = assigned.chain(units.values()).map(String::as_str);
        let removed = self
            .context
            .tools
            .secrets
            .keep_only(&self.context.user, &kept.collect());
        Ok(removed.map_err(FilesError::from)?)
    }
}

/// A fenced or evicted instance is stopped even while it starts. So is an instance whose start waits
/// for its other containers.
fn stop_urgency(assignment: Option<&Assignment>) -> StopUrgency {
    match assignment {
        Some(one) if one.wanted == DesiredRun::Running || one.has_others() => StopUrgency::Hurried,
        _ => StopUrgency::InTurn,
    }
}

/// The phase, reason and message of an instance that must not run and has stopped.
fn stopped_state<'a>(
    desired: &'a UserDesired,
    assignment: &Assignment,
) -> (InstancePhase, Option<Reason>, &'a str) {
    if assignment.wanted == DesiredRun::Stopped {
        return (InstancePhase::Stopped, None, "");
    }
    // An instance that may start again must not be reported as Stopped: that would release its
    // address.
    let (reason, message) = match desired.evicted.get(&assignment.instance) {
        Some(why) => (Reason::Evicted, why.as_str()),
        None if assignment.on_partition == OnPartition::Keep => {
            let means = match assignment.writes_data() {
                true => UNCONFIRMED_MEANS,
                false => UNCONFIRMED_SCHEDULE_MEANS,
            };
            (Reason::Unconfirmed, means)
        }
        None => (Reason::CutOff, CUT_OFF_MEANS),
    };
    (InstancePhase::Scheduled, Some(reason), message)
}
