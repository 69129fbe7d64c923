//! Pulls of the images of a user's instances, which share them.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    images::pull as image,
    worker::{
        JOB_MARGIN,
        context::UserContext,
        running::{jobs::JobKey, start_backoff::RetryDelay},
    },
};
use kat_types::assignment::Assignment;

/// What the worker remembers of an image.
#[derive(Debug, Default)]
pub(crate) struct ImageMemory {
    /// The last pull succeeded, and no start has failed since.
    pub present: bool,
    /// When the last pull that succeeded was seen to end, microseconds of the monotonic clock.
    pub pulled: Option<u64>,
    /// Podman's message about the last pull, if it failed.
    pub failure: Option<String>,
    pub attempts: RetryDelay,
}

impl UserContext {
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

    /// Whether the image was missing at `time`, microseconds of the monotonic clock, since the
    /// machine pulled it then.
    pub(crate) fn was_pulled_at(&self, reference: &str, time: u64) -> bool {
        let image = self.images.get(reference);
        let pulled = image.and_then(|image| image.pulled);
        pulled.is_some_and(|pulled| pulled >= time)
            || self.jobs.is_running(&JobKey::Pull(reference.to_owned()))
    }

    /// Records the end of a pull. True where it succeeded.
    pub(crate) fn record_pull(&mut self, reference: &str, result: Result<(), String>) -> bool {
        let now = self.now();
        let image = self.images.entry(reference.to_owned()).or_default();
        let Err(words) = result else {
            *image = ImageMemory {
                present: true,
                pulled: Some(now),
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
