//! Pulls of the images of a user's instances, which share them.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    images::pull as image,
    worker::{
        JOB_MARGIN, Worker,
        running::{jobs::JobKey, start_backoff::RetryDelay},
    },
};
use kat_systemd::UnitStatus;
use kat_types::{
    api::{InstancePhase, other_image_message},
    assignment::Assignment,
    reason::Reason,
    resource::ImagePullPolicy,
};

/// What the worker remembers of an image.
#[derive(Debug, Default)]
pub(crate) struct ImageMemory {
    /// The last pull succeeded, and no start has failed since.
    pub present: bool,
    /// Podman's message about the last pull, if it failed.
    pub failure: Option<String>,
    pub attempts: RetryDelay,
}

impl Worker {
    /// Whether the images of all containers are on the machine; starts a pull of a missing one.
    pub(crate) fn images_ready(&mut self, assignment: &Assignment, status: &UnitStatus) -> bool {
        let each = assignment.each();
        each.iter()
            .all(|one| self.image_ready(one, (assignment, status)))
    }

    /// Whether one container's image is on the machine. `assignment` has this container only;
    /// reports are made for the `whole` instance.
    fn image_ready(
        &mut self,
        assignment: &Assignment,
        (whole, status): (&Assignment, &UnitStatus),
    ) -> bool {
        let policy = kat_render::pull_policy(assignment);
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        let pulled = memory.pulled.contains(&assignment.image);
        let image = self.images.entry(assignment.image.clone()).or_default();
        let known = image.present
            || image::is_present(&self.tools.accounts.home(&self.user), &assignment.image);
        let ready = match policy {
            ImagePullPolicy::Never => true,
            ImagePullPolicy::IfNotPresent => known,
            ImagePullPolicy::Always => pulled && known,
        };
        if ready {
            return true;
        }
        let key = JobKey::Pull(assignment.image.clone());
        let failure = image.failure.clone();
        let wait = image.attempts.remaining(Instant::now());
        if let Some(wait) = wait {
            self.wake = self.wake.min(wait);
        }
        let sealed = self.sealed_logins.get(&assignment.instance);
        let (reason, message) = match (sealed, &failure) {
            // Without its credentials the pull would fail.
            (Some(why), _) => (Some(Reason::CredentialsUnreadable), why.clone()),
            (None, Some(words)) => {
                let (reason, message) = self.pull_failure(assignment, words);
                (Some(reason), message)
            }
            (None, None) => (None, String::new()),
        };
        let message = of_container(whole, assignment, message);
        let waits = sealed.is_some();
        self.report(whole, status, InstancePhase::Pulling, reason, message);
        if waits {
            return false;
        }
        if wait.is_none() && !self.jobs.is_running(&key) {
            self.begin_pull(assignment);
        }
        false
    }

    /// Begins a pull of the image of the assignment's main container.
    pub(crate) fn begin_pull(&mut self, assignment: &Assignment) {
        let (renderer, settings) = (&self.tools.renderer, &self.tools.settings);
        let Ok(Some(file)) = renderer.image(assignment, settings, self.has_logins) else {
            return;
        };
        let Some(unit) = file.service() else { return };
        let manager = Arc::clone(&self.manager);
        let logs = Arc::clone(&self.tools.logs);
        let uid = self.user.uid;
        let limit = Duration::from_secs(u64::from(self.tools.settings.pull_seconds)) + JOB_MARGIN;
        self.jobs.begin_pull(&assignment.image, async move {
            image::pull(manager.as_ref(), logs.as_ref(), uid, &unit, limit).await
        });
    }

    /// Records the end of a pull. True where it succeeded.
    pub(crate) fn record_pull(&mut self, reference: &str, result: Result<(), String>) -> bool {
        let image = self.images.entry(reference.to_owned()).or_default();
        let Err(words) = result else {
            *image = ImageMemory {
                present: true,
                ..ImageMemory::default()
            };
            return true;
        };
        let delay = image.attempts.failed(Instant::now());
        tracing::warn!(
            image = reference,
            words,
            retry_s = delay.as_secs(),
            "a pull failed"
        );
        image.failure = Some(words);
        false
    }
}

/// The message about an image; it names the container where that is not the main one's.
fn of_container(whole: &Assignment, only: &Assignment, message: String) -> String {
    if message.is_empty() || only.image == whole.image {
        return message;
    }
    let mut others = whole.others();
    match others.find(|(_, one)| one.image.as_deref() == Some(&only.image)) {
        Some((kind, one)) => {
            let name = one.name.as_deref().unwrap_or_default();
            other_image_message(kind, name, &only.image, &message)
        }
        None => message,
    }
}
