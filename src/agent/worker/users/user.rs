//! A worker's user: created with its manager, and removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    exec, health,
    images::pull as image,
    volumes::{carried_files as carried, host_binds},
    worker::{
        USER_LIMIT, UserDesired, Worker, WorkerError,
        context::UserContext,
        instance::stopping::user_group_with_processes,
        running::{jobs::JobKey, start_backoff::RetryDelay},
        unit_state::unit_files::FilesError,
    },
};
use kat_systemd::{SystemdError, UnitManager};

/// Shortest time between two looks at the account of a user that is ready. Each pass is an
/// occasion, and there are at most 30 s between two of them.
const ACCOUNT_CHECK: Duration = Duration::from_secs(10);

/// Pause between two looks at the processes that outlive a user's manager.
const OUTLIVING: Duration = Duration::from_secs(5);

/// Longest removal of one user in `kat-agent reset`.
pub(crate) const REMOVAL_LIMIT: Duration = Duration::from_secs(120);

/// For how long processes have to outlive a user's manager before that is logged. `kat-agent reset`
/// prints what is logged, and gives up before with a message of its own.
const OUTLIVING_LOGGED: Duration = REMOVAL_LIMIT.saturating_add(OUTLIVING);

/// Processes of the user that outlive its manager.
#[derive(Debug, Clone, Copy, Default)]
enum OutlivingProcesses {
    #[default]
    None,
    Since(Instant),
    Logged,
}

impl OutlivingProcesses {
    /// Records that there are some at this time. True when that is to be logged, which is once.
    fn seen(&mut self, now: Instant) -> bool {
        let (next, is_due) = match *self {
            Self::None => (Self::Since(now), false),
            Self::Since(since) if now.duration_since(since) >= OUTLIVING_LOGGED => {
                (Self::Logged, true)
            }
            Self::Since(_) | Self::Logged => (*self, false),
        };
        *self = next;
        is_due
    }
}

/// What the worker knows of the account of its user.
#[derive(Debug, Default)]
pub(crate) struct AccountState {
    /// The account exists, and its manager answers.
    pub ready: bool,
    /// Backoff of tries to make the account ready.
    backoff: RetryDelay,
    /// The user's workload has left; only its account and its images remain.
    pub parked: bool,
    /// Commands and probes that an earlier process of the agent left have been told to stop.
    cleared: bool,
    /// When the account was last seen after it was made.
    seen: Option<Instant>,
    outliving: OutlivingProcesses,
    /// The user was seen to be a member of no group but its own, as desired.
    pub has_no_groups: bool,
}

impl Worker {
    /// Ensures that the user exists, lingers, and has a manager that answers. False while the
    /// manager is not ready.
    pub(crate) async fn make_ready(&mut self, desired: &UserDesired) -> Result<bool, WorkerError> {
        if self.account.ready && self.has_lost_account() {
            tracing::warn!(
                user = self.context.user.name,
                "somebody has removed the account of a workload; it is made anew"
            );
            self.account.ready = false;
        }
        if self.account.ready {
            // The event stream ends with the connection; a new stream starts with the state of all
            // units.
            if self.events.is_none() {
                self.events = Some(self.context.manager.events().await?);
            }
            return Ok(true);
        }
        if let Some(wait) = self.account.backoff.remaining(Instant::now()) {
            self.context.wake_within(wait);
            self.repeat_trouble(desired);
            return Ok(false);
        }
        let made = self.make_user(desired).await;
        match &made {
            Ok(()) => {
                self.account.ready = true;
                self.account.backoff = RetryDelay::default();
                self.account.outliving = OutlivingProcesses::None;
            }
            Err(_) => {
                let pause = self.account.backoff.failed(Instant::now());
                self.context.wake_within(pause);
            }
        }
        made.map(|()| true)
    }

    /// Whether the account is there now. If it is not, the next pass looks again.
    pub(crate) fn has_account(&mut self) -> bool {
        self.account.seen = None;
        let is_lost = self.has_lost_account();
        if is_lost {
            self.account.seen = None;
        }
        !is_lost
    }

    /// Whether somebody has removed the account (`userdel -f`): without it Podman can neither stop
    /// nor start a container, while running ones continue.
    fn has_lost_account(&mut self) -> bool {
        let now = Instant::now();
        let is_recent = |seen: Instant| now.duration_since(seen) < ACCOUNT_CHECK;
        if self.account.seen.is_some_and(is_recent) {
            return false;
        }
        self.account.seen = Some(now);
        self.context
            .tools
            .accounts
            .find(self.context.user.uid)
            .is_none()
    }

    pub(crate) async fn make_user(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        self.context
            .tools
            .accounts
            .ensure(&self.context.user)
            .await?;
        self.join_groups(desired).await?;
        if let Some(assignment) = desired.assignments.values().next() {
            let text = self.context.tools.renderer.user_delegation(assignment)?;
            if self
                .context
                .folder
                .write_delegation(&self.context.tools.root, &text)?
            {
                self.context.tools.managers.system().reload().await?;
            }
        }
        let (sessions, uid) = (&self.context.tools.sessions, self.context.user.uid);
        sessions.set_linger(uid, true).await?;
        // A manager that has ended is not started by lingering alone.
        sessions.start_user(uid, USER_LIMIT).await?;
        sessions.wait_for_user_bus(uid, USER_LIMIT).await?;
        self.events = Some(self.context.manager.events().await?);
        // Only once: units that start later are this process's own, and must survive a manager that
        // did not answer.
        if !self.account.cleared {
            end_what_was_left(&self.context.manager).await?;
            self.account.cleared = true;
        }
        Ok(())
    }

    /// Removes everything of the user. Its images and the account that owns them are kept for a
    /// while, since the workload may come back. True when nothing is left.
    pub(crate) async fn leave(&mut self, desired: &UserDesired) -> Result<bool, WorkerError> {
        let home = self.context.home();
        let care = &self.context.tools.images;
        if care.keeps_images(&self.context.user, &home, desired.kept.as_ref()) {
            if !self.account.parked && self.empty_user().await? {
                self.account.parked = true;
                self.account.ready = false;
                self.context.images.clear();
                // Nothing calls the manager, which has ended, until the workload returns.
                self.context
                    .tools
                    .managers
                    .close_user(self.context.user.uid);
            }
            return Ok(false);
        }
        if !self.empty_user().await? {
            return Ok(false);
        }
        // The images of a deleted workload are removed with it and are not reported.
        let told = desired.kept.as_ref().and_then(|_| image::list(&home).ok());
        let bytes = image::layer_bytes(&home);
        let UserContext { tools, user, .. } = &self.context;
        tools.accounts.remove(user).await?;
        tools.images.forget(user.uid);
        if let Some(images) = told.filter(|images| !images.is_empty()) {
            tools.images.note(user, &images, bytes);
        }
        Ok(true)
    }

    /// Removes everything of the user but its account and its home. False while units, jobs or
    /// processes have to end first.
    async fn empty_user(&mut self) -> Result<bool, WorkerError> {
        let units = self.context.folder.instances()?;
        let (sessions, uid) = (&self.context.tools.sessions, self.context.user.uid);
        if !units.is_empty()
            && sessions
                .wait_for_user_bus(uid, Duration::from_secs(1))
                .await
                .is_ok()
        {
            let none = UserDesired {
                confirmed: true,
                ..UserDesired::default()
            };
            self.stop_unwanted(&none).await?;
            // Pulls need not end first: they end with the user's manager.
            let mut jobs = self.context.jobs.keys();
            if jobs.any(|key| matches!(key, JobKey::Instance(_))) {
                return Ok(false);
            }
        }
        self.forget_all_but(&BTreeMap::new());
        self.events = None;
        let UserContext {
            tools,
            user,
            folder,
            ..
        } = &self.context;
        // Where the uid belongs to another user, its manager and its sessions do, too. An account that
        // somebody has removed leaves its manager behind.
        if !tools.accounts.is_foreign(uid)? {
            let sessions = &tools.sessions;
            sessions.set_linger(uid, false).await?;
            sessions.terminate_user(uid).await?;
            sessions.wait_for_user_stopped(uid, USER_LIMIT).await?;
            // The manager's unit has ended although a process in a call that hangs is still there. The
            // next user with this uid must not have such a process.
            if let Some(group) = user_group_with_processes(&tools.root, uid) {
                if self.account.outliving.seen(Instant::now()) {
                    tracing::warn!(
                        user = user.name,
                        "processes of a workload's user have not ended, so it is kept; `systemd-cgls {group}` shows them"
                    );
                }
                self.context.wake_within(OUTLIVING);
                return Ok(false);
            }
            self.account.outliving = OutlivingProcesses::None;
        }
        folder.remove_all()?;
        carried::forget(&tools.root, uid)?;
        let system = tools.managers.system();
        host_binds::keep_only(system.as_ref(), &tools.root, uid, &BTreeSet::new()).await?;
        let removed = tools.secrets.keep_only(user, &BTreeSet::new());
        removed.map_err(FilesError::from)?;
        tools.secrets.remove_logins(user)?;
        // The account is removed last: a restarted agent finds the rest by it.
        if folder.remove_delegation(&tools.root)? {
            system.reload().await?;
        }
        self.forget_groups()?;
        Ok(true)
    }
}

/// Stops commands and probes in containers that an earlier process of the agent started: their
/// callers are gone.
async fn end_what_was_left(manager: &Arc<dyn UnitManager>) -> Result<(), SystemdError> {
    let commands = manager.list(&format!("{}*", exec::PREFIX)).await?;
    let probes = format!("{}kat-*", health::exec::PREFIX);
    let probes = manager.list(&probes).await?;
    for unit in exec::without_caller(commands).chain(probes) {
        let manager = Arc::clone(manager);
        // The stops run in the background, since the programs may use their whole stop time.
        tokio::spawn(async move {
            if let Err(error) = manager.stop(&unit, USER_LIMIT).await {
                tracing::debug!(unit, "it ended by itself: {error:#}");
            }
            let _ = manager.reset_failed(&unit).await;
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn processes_that_outlive_a_manager_are_logged_once_and_after_a_reset_has_given_up() {
        let mut outliving = OutlivingProcesses::None;
        let began = Instant::now();
        let mut logged = Vec::new();
        for look in 0..100 {
            let after = OUTLIVING * look;
            if outliving.seen(began + after) {
                logged.push(after);
            }
        }
        assert_eq!(logged, [OUTLIVING_LOGGED]);
        assert!(logged[0] > REMOVAL_LIMIT);
    }
}
