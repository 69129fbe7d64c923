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
    volumes::carried_files as carried,
    worker::{
        USER_LIMIT, UserDesired, Worker, WorkerError,
        running::{jobs::JobKey, start_backoff::RetryDelay},
        unit_state::unit_files::FilesError,
    },
};
use kat_systemd::{SystemdError, UnitManager};

/// Shortest time between two looks at the account of a user that is ready. Each pass is an
/// occasion, and there are at most 30 s between two of them.
const ACCOUNT_CHECK: Duration = Duration::from_secs(10);

impl Worker {
    /// Ensures that the user exists, lingers, and has a manager that answers. False while the
    /// manager is not ready.
    pub(crate) async fn make_ready(&mut self, desired: &UserDesired) -> Result<bool, WorkerError> {
        if self.ready && self.has_lost_account() {
            tracing::warn!(
                user = self.user.name,
                "somebody has removed the account of a workload; it is made anew"
            );
            self.ready = false;
        }
        if self.ready {
            // The event stream ends with the connection; a new stream starts with the state of all
            // units.
            if self.events.is_none() {
                self.events = Some(self.manager.events().await?);
            }
            return Ok(true);
        }
        if let Some(wait) = self.readiness.remaining(Instant::now()) {
            self.wake = self.wake.min(wait);
            self.repeat_trouble(desired);
            return Ok(false);
        }
        let made = self.make_user(desired).await;
        match &made {
            Ok(()) => {
                self.ready = true;
                self.readiness = RetryDelay::default();
            }
            Err(_) => {
                self.wake = self.wake.min(self.readiness.failed(Instant::now()));
            }
        }
        made.map(|()| true)
    }

    /// Whether somebody has removed the account (`userdel -f`): without it Podman can neither stop
    /// nor start a container, while running ones continue.
    fn has_lost_account(&mut self) -> bool {
        let now = Instant::now();
        let is_recent = |seen: Instant| now.duration_since(seen) < ACCOUNT_CHECK;
        if self.account_seen.is_some_and(is_recent) {
            return false;
        }
        self.account_seen = Some(now);
        self.tools.accounts.find(self.user.uid).is_none()
    }

    pub(crate) async fn make_user(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        self.tools.accounts.ensure(&self.user).await?;
        self.join_groups(desired).await?;
        if let Some(assignment) = desired.assignments.values().next() {
            let text = self.tools.renderer.user_delegation(assignment)?;
            if self.folder.write_delegation(&self.tools.root, &text)? {
                self.tools.managers.system().reload().await?;
            }
        }
        let sessions = &self.tools.sessions;
        sessions.set_linger(self.user.uid, true).await?;
        // A manager that has ended is not started by lingering alone.
        sessions.start_user(self.user.uid, USER_LIMIT).await?;
        sessions
            .wait_for_user_bus(self.user.uid, USER_LIMIT)
            .await?;
        self.events = Some(self.manager.events().await?);
        // Only once: units that start later are this process's own, and must survive a manager that
        // did not answer.
        if !self.cleared {
            end_what_was_left(&self.manager).await?;
            self.cleared = true;
        }
        Ok(())
    }

    /// Removes everything of the user. Its images and the account that owns them are kept for a
    /// while, since the workload may come back. True when nothing is left.
    pub(crate) async fn leave(&mut self, desired: &UserDesired) -> Result<bool, WorkerError> {
        let home = self.tools.accounts.home(&self.user);
        let care = &self.tools.images;
        if care.keeps_images(&self.user, &home, desired.kept.as_ref()) {
            if !self.parked && self.empty_user().await? {
                self.parked = true;
                self.ready = false;
                self.images.clear();
            }
            return Ok(false);
        }
        if !self.empty_user().await? {
            return Ok(false);
        }
        // The images of a deleted workload are removed with it and are not reported.
        let told = desired.kept.as_ref().and_then(|_| image::list(&home).ok());
        let bytes = image::layer_bytes(&home);
        self.tools.accounts.remove(&self.user).await?;
        self.tools.images.forget(self.user.uid);
        if let Some(images) = told.filter(|images| !images.is_empty()) {
            self.tools.images.note(&self.user, &images, bytes);
        }
        Ok(true)
    }

    /// Removes everything of the user but its account and its home. False while units or jobs have
    /// to end first.
    async fn empty_user(&mut self) -> Result<bool, WorkerError> {
        let units = self.folder.instances()?;
        if !units.is_empty()
            && self
                .tools
                .sessions
                .wait_for_user_bus(self.user.uid, Duration::from_secs(1))
                .await
                .is_ok()
        {
            let none = UserDesired {
                confirmed: true,
                ..UserDesired::default()
            };
            self.stop_unwanted(&none).await?;
            // Pulls need not end first: they end with the user's manager.
            if self
                .jobs
                .keys()
                .any(|key| matches!(key, JobKey::Instance(_)))
            {
                return Ok(false);
            }
        }
        self.forget_all_but(&BTreeMap::new());
        self.events = None;
        // Where the uid belongs to another user, its manager and its sessions do, too.
        if self.tools.accounts.find(self.user.uid).is_some() {
            self.tools.sessions.set_linger(self.user.uid, false).await?;
            self.tools.sessions.terminate_user(self.user.uid).await?;
            self.tools
                .sessions
                .wait_for_user_stopped(self.user.uid, USER_LIMIT)
                .await?;
        }
        self.folder.remove_all()?;
        carried::forget(&self.tools.root, self.user.uid)?;
        self.keep_binds(&BTreeSet::new()).await?;
        let removed = self.tools.secrets.keep_only(&self.user, &BTreeSet::new());
        removed.map_err(FilesError::from)?;
        self.tools.secrets.remove_logins(&self.user)?;
        // The account is removed last: a restarted agent finds the rest by it.
        if self.folder.remove_delegation(&self.tools.root)? {
            self.tools.managers.system().reload().await?;
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
