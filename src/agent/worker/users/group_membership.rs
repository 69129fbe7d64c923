//! A worker's memberships in groups of the machine, and the machine options of its instances.
//!
//! A user manager has the groups that its user had when the manager started. So a mark file lies
//! below `/run` from before the user's groups change until its manager was restarted after that. It
//! survives a crash of the agent, but not a boot.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use crate::worker::{
    UserDesired, Worker, WorkerError,
    reports::reporting::phase_before_start,
    running::{
        jobs::{JobKey, StopUrgency},
        stops::InstanceStop,
    },
};
use kat_host::files::{self, FileAccess, FileError};
use kat_systemd::UnitStatus;
use kat_types::{
    assignment::{Assignment, DesiredRun},
    reason::Reason,
    services::host_port_statuses,
};

/// Longest time for the restart of a user manager without instances.
const RESTART_LIMIT: Duration = Duration::from_secs(60);
/// Pause until devices and groups that were not as required are checked again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Message of an instance that is restarted because its user's groups change.
const REGROUPED_MEANS: &str = "started anew: the groups that its user has on this machine change, which its manager takes over at its start";

impl Worker {
    /// Makes the user a member of the groups that its instances ask for and may have, and of no
    /// other group.
    pub(crate) async fn join_groups(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        let all = || desired.assignments.values();
        let runs = |one: &&Assignment| one.wanted == DesiredRun::Running;
        let asks = all().any(|one| !one.together().groups.is_empty());
        // An instance that is being stopped keeps its groups until it has stopped.
        let stopping = all().any(|one| !runs(&one) && self.folder.has(&one.unit()));
        // Where nothing runs, the groups stay: another version may come, or the user is removed.
        let none = !all().any(|one| runs(&one));
        if stopping || none || (!asks && self.has_no_groups) {
            return Ok(());
        }
        let groups = self.tools.accounts.groups(&self.user)?;
        let mut wanted = self.tools.options.groups_of(all().filter(runs), &groups);
        if !desired.confirmed || all().any(|one| one.not_understood.is_some()) {
            // An unconfirmed or partly understood list may name too few groups, so no membership is
            // removed.
            wanted.extend(groups.of_user.iter().cloned());
        }
        self.has_no_groups = wanted.is_empty();
        if groups.of_user == wanted {
            return Ok(());
        }
        if self.tools.sessions.user_runs(self.user.uid).await? {
            let mark = self.mark();
            if let Some(folder) = mark.parent() {
                std::fs::create_dir_all(folder).map_err(|error| FileError::System {
                    verb: "make the folder",
                    path: folder.to_owned(),
                    error,
                })?;
            }
            files::write_atomic(&mark, b"", FileAccess::mode(0o600))?;
        }
        tracing::info!(user = self.user.name, groups = ?wanted, "its groups on this machine change");
        self.tools.accounts.set_groups(&self.user, &wanted).await?;
        Ok(())
    }

    /// Applies the user's groups while its manager runs. False while instances wait for a restart
    /// of the manager.
    pub(crate) async fn settle_groups(
        &mut self,
        desired: &UserDesired,
    ) -> Result<bool, WorkerError> {
        self.join_groups(desired).await?;
        // Without a confirmed list, running instances that are not in it may belong here.
        if !self.mark().exists() || !desired.confirmed {
            return Ok(true);
        }
        let mut live = Vec::new();
        for (unit, instance) in self.folder.instances()? {
            let status = self.manager.status(&unit).await?;
            if !self.folder.is_over(&status) || !self.others_are_over(&unit).await? {
                live.push((unit, instance, status));
            }
        }
        let names: BTreeSet<&str> = live.iter().map(|(_, name, _)| name.as_str()).collect();
        let mut waiting = desired.to_run();
        let needs = waiting
            .any(|one| !one.together().groups.is_empty() && !names.contains(one.instance.as_str()));
        if !live.is_empty() && !needs {
            return Ok(true);
        }
        let busy = |key: &JobKey| !matches!(key, JobKey::Pull(_));
        if self.jobs.keys().any(busy) {
            return Ok(false);
        }
        if live.is_empty() {
            tracing::info!(
                user = self.user.name,
                "its manager starts anew, with other groups"
            );
            let uid = self.user.uid;
            self.events = None;
            self.ready = false;
            self.tools.sessions.restart_user(uid, RESTART_LIMIT).await?;
            files::remove(&self.mark())?;
            self.wake = Duration::ZERO;
            return Ok(false);
        }
        for (unit, instance, status) in live {
            let assignment = desired.assignments.get(&instance);
            if let Some(assignment) = assignment {
                self.report_waiting(
                    assignment,
                    &status,
                    Reason::GroupsChanged,
                    REGROUPED_MEANS.to_owned(),
                );
            }
            self.begin_stop(InstanceStop {
                instance: &instance,
                unit,
                assignment,
                urgency: StopUrgency::InTurn,
                evicted: false,
            })?;
        }
        Ok(false)
    }

    /// Whether the machine allows what the instance asks for, and all of it exists.
    pub(crate) fn options_ready(
        &mut self,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> Result<bool, WorkerError> {
        let asks_owner = !assignment.security_wants().is_empty();
        let asks_owner = asks_owner || !host_port_statuses(&assignment.ports).is_empty();
        if !asks_owner && !assignment.together().has_machine_things() {
            return Ok(true);
        }
        let groups = self.tools.accounts.groups(&self.user)?;
        let Err(trouble) = self.tools.options.check(assignment, &groups) else {
            return Ok(true);
        };
        self.report_waiting(assignment, status, trouble.reason, trouble.message);
        self.wake = self.wake.min(LOOK_AGAIN);
        Ok(false)
    }

    fn report_waiting(
        &mut self,
        assignment: &Assignment,
        status: &UnitStatus,
        reason: Reason,
        message: String,
    ) {
        let phase = phase_before_start(assignment);
        self.report(assignment, status, phase, reason, message);
    }

    /// Removes the mark file of the user's groups.
    pub(crate) fn forget_groups(&self) -> Result<(), WorkerError> {
        Ok(files::remove(&self.mark()).map(drop)?)
    }

    fn mark(&self) -> PathBuf {
        let name = self.user.uid.to_string();
        self.tools.root.below("run/kat/regroup").join(name)
    }
}
