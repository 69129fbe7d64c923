//! A worker's memberships in groups of the machine.
//!
//! A user manager has the groups that its user had when the manager started. So a mark file lies
//! below `/run` from before the user's groups change until its manager was restarted after that. It
//! survives a crash of the agent, but not a boot.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use crate::worker::{
    UserDesired, Worker, WorkerError,
    context::UserContext,
    running::{
        jobs::{JobKey, StopUrgency},
        stops::InstanceStop,
    },
};
use kat_host::files::{self, FileAccess, FileError};
use kat_types::{
    assignment::{Assignment, DesiredRun},
    reason::Reason,
};

/// Longest time for the restart of a user manager without instances.
const RESTART_LIMIT: Duration = Duration::from_secs(60);
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
        let stopping = all().any(|one| !runs(&one) && self.context.folder.has(&one.unit()));
        // Where nothing runs, the groups stay: another version may come, or the user is removed.
        let none = !all().any(|one| runs(&one));
        if stopping || none || (!asks && self.account.has_no_groups) {
            return Ok(());
        }
        let UserContext { tools, user, .. } = &self.context;
        let groups = tools.accounts.groups(user)?;
        let mut wanted = tools.options.groups_of(all().filter(runs), &groups);
        if !desired.confirmed || all().any(|one| one.not_understood.is_some()) {
            // An unconfirmed or partly understood list may name too few groups, so no membership is
            // removed.
            wanted.extend(groups.of_user.iter().cloned());
        }
        self.account.has_no_groups = wanted.is_empty();
        if groups.of_user == wanted {
            return Ok(());
        }
        if tools.sessions.user_runs(user.uid).await? {
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
        tracing::info!(user = user.name, groups = ?wanted, "its groups on this machine change");
        tools.accounts.set_groups(user, &wanted).await?;
        Ok(())
    }

    /// Applies the user's groups while its manager runs. False while instances wait for a restart
    /// of the manager.
    pub(crate) async fn settle_groups(
        &mut self,
        desired: &UserDesired,
    ) -> Result<bool, WorkerError> {
        self.join_groups(desired).await?;
        if !self.mark().exists() {
            return Ok(true);
        }
        let mut live = Vec::new();
        let context = &self.context;
        for (unit, instance) in context.folder.instances()? {
            let status = context.manager.status(&unit).await?;
            if !context.folder.is_over(&status) || !context.others_are_over(&unit).await? {
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
        // Without a confirmed list, running instances that are not in it may belong here. What needs a group
        // waits, since it would start without it.
        if !live.is_empty() && !desired.confirmed {
            return Ok(false);
        }
        // The others do not use the user's manager, or are begun again; a disk that hangs never ends its
        // preparation.
        let uses_manager = |key: &JobKey| match key {
            JobKey::Instance(_) | JobKey::Fence(_) | JobKey::Sidecar(_) => true,
            JobKey::Pull(_) | JobKey::Prepare(_) | JobKey::Binds => false,
        };
        if context.jobs.keys().any(uses_manager) {
            return Ok(false);
        }
        if live.is_empty() {
            let UserContext { tools, user, .. } = context;
            tracing::info!(
                user = user.name,
                "its manager starts anew, with other groups"
            );
            self.events = None;
            self.account.ready = false;
            tools.sessions.restart_user(user.uid, RESTART_LIMIT).await?;
            files::remove(&self.mark())?;
            self.context.wake = Duration::ZERO;
            return Ok(false);
        }
        for (unit, instance, status) in live {
            let assignment = desired.assignments.get(&instance);
            if let Some(assignment) = assignment {
                let (one, context) = self.instance(&assignment.instance);
                let (reason, message) = (Reason::GroupsChanged, REGROUPED_MEANS.to_owned());
                one.report_waiting(context, assignment, &status, reason, message);
            }
            self.context.begin_stop(InstanceStop {
                instance: &instance,
                unit,
                assignment,
                urgency: StopUrgency::InTurn,
                evicted: false,
            })?;
        }
        Ok(false)
    }

    /// Removes the mark file of the user's groups.
    pub(crate) fn forget_groups(&self) -> Result<(), WorkerError> {
        Ok(files::remove(&self.mark()).map(drop)?)
    }

    fn mark(&self) -> PathBuf {
        let name = self.context.user.uid.to_string();
        self.context.tools.root.below("run/kat/regroup").join(name)
    }
}
