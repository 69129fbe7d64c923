//! A worker's slow work: pulls, starts and stops.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{ImageMemory, JOB_MARGIN, Worker, containers, ignore_missing, logins};
use crate::{
    agent::{files::FilesError, image},
    api::types::InstancePhase,
    plan::Assignment,
    resource::ImagePullPolicy,
    systemd::{JobResult, SystemdError, UnitStatus},
};

/// What a job is about; there is at most one of each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobKey {
    Instance(String),
    /// Its stop on a machine that is cut off, which may come on top of its start.
    Fence(String),
    Pull(String),
    /// The start of a container beside the main one, by its unit.
    Other(String),
}

/// How a job ended.
#[derive(Debug)]
pub(super) enum JobOutcome {
    Started(Result<JobResult, SystemdError>),
    Stopped(Result<JobResult, SystemdError>),
    Pulled(Result<(), String>),
}

impl Worker {
    /// Whether the images of all containers are on the machine; begins a pull when one is not.
    pub(super) fn images_ready(&mut self, assignment: &Assignment, status: &UnitStatus) -> bool {
        let each = assignment.each();
        each.iter()
            .all(|one| self.image_ready(one, (assignment, status)))
    }

    /// The same of one container, as if it were the only one; what is told is told of the whole instance.
    fn image_ready(
        &mut self,
        assignment: &Assignment,
        (whole, status): (&Assignment, &UnitStatus),
    ) -> bool {
        let policy = crate::render::pull_policy(assignment);
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
            // Without what its registry wants to see nothing would come of it.
            (Some(why), _) => (logins::UNREADABLE, why.clone()),
            (None, Some(words)) => self.pull_failure(assignment, words),
            (None, None) => ("", String::new()),
        };
        let waits = sealed.is_some();
        self.report(whole, status, InstancePhase::Pulling, reason, message);
        if waits {
            return false;
        }
        if wait.is_none() && !self.busy.contains(&key) {
            self.spawn_pull(assignment);
        }
        false
    }

    pub(super) fn spawn_start(&mut self, assignment: &Assignment, unit: String, uncounted: bool) {
        let manager = Arc::clone(&self.manager);
        let limit = self.start_limit();
        let key = JobKey::Instance(assignment.instance.clone());
        self.busy.insert(key.clone());
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        memory.ended = false;
        if uncounted {
            self.restarts.of(&assignment.instance).begun_anew(false);
        }
        self.jobs.spawn(async move {
            if uncounted && let Err(error) = ignore_missing(manager.reset_failed(&unit).await) {
                return (key, JobOutcome::Started(Err(error)));
            }
            let result = manager.start(&unit, limit).await;
            (key, JobOutcome::Started(result))
        });
    }

    /// Restarts what runs.
    pub(super) fn spawn_restart(&mut self, assignment: &Assignment, unit: String) {
        let manager = Arc::clone(&self.manager);
        let limit = self.start_limit() + stop_limit(Some(assignment));
        let key = JobKey::Instance(assignment.instance.clone());
        self.busy.insert(key.clone());
        self.jobs.spawn(async move {
            let result = manager.restart(&unit, limit).await;
            (key, JobOutcome::Started(result))
        });
    }

    pub(super) fn start_limit(&self) -> Duration {
        Duration::from_secs(u64::from(self.tools.settings.hold_seconds) + 30) + JOB_MARGIN
    }

    pub(super) fn spawn_stop(
        &mut self,
        key: JobKey,
        unit: String,
        assignment: Option<&Assignment>,
    ) -> Result<(), FilesError> {
        let manager = Arc::clone(&self.manager);
        let limit = stop_limit(assignment);
        let others = self.folder.others(&unit)?;
        self.busy.insert(key.clone());
        self.jobs.spawn(async move {
            let main = manager.stop(&unit, limit).await;
            let result = containers::stop(manager.as_ref(), main, others, limit).await;
            (key, JobOutcome::Stopped(result))
        });
        Ok(())
    }

    pub(super) fn spawn_pull(&mut self, assignment: &Assignment) {
        let (renderer, settings) = (&self.tools.renderer, &self.tools.settings);
        let Ok(Some(file)) = renderer.image(assignment, settings, self.has_logins) else {
            return;
        };
        let Some(unit) = file.service() else { return };
        let manager = Arc::clone(&self.manager);
        let logs = Arc::clone(&self.tools.logs);
        let uid = self.user.uid;
        let limit = Duration::from_secs(u64::from(self.tools.settings.pull_seconds)) + JOB_MARGIN;
        let key = JobKey::Pull(assignment.image.clone());
        self.busy.insert(key.clone());
        self.jobs.spawn(async move {
            let result = image::pull(manager.as_ref(), logs.as_ref(), uid, &unit, limit).await;
            (key, JobOutcome::Pulled(result))
        });
    }

    pub(super) fn finish_job(
        &mut self,
        done: Result<(JobKey, JobOutcome), tokio::task::JoinError>,
    ) {
        let (key, outcome) = match done {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(user = self.user.name, %error, "a job of the agent ended early");
                self.busy.clear();
                return;
            }
        };
        self.busy.remove(&key);
        let now = Instant::now();
        match (key, outcome) {
            (JobKey::Instance(instance), JobOutcome::Started(result)) => {
                let memory = self.memories.entry(instance.clone()).or_default();
                if let Ok(JobResult::Done) = result {
                    return;
                }
                // The image may have been taken away by hand: the next start looks on the disk.
                if let Some(assignment) = self.desired.borrow().assignments.get(&instance) {
                    for image in assignment.images() {
                        if let Some(image) = self.images.get_mut(image) {
                            image.present = false;
                        }
                    }
                }
                let delay = memory.starts.failed(now);
                memory.start_error = result.as_ref().err().map(ToString::to_string);
                tracing::warn!(
                    instance,
                    ?result,
                    retry_s = delay.as_secs(),
                    "an instance did not start"
                );
            }
            (JobKey::Instance(instance) | JobKey::Fence(instance), JobOutcome::Stopped(result)) => {
                if !matches!(
                    result,
                    Ok(JobResult::Done) | Err(SystemdError::NoSuchUnit(_))
                ) {
                    tracing::warn!(instance, ?result, "an instance did not stop");
                }
            }
            (JobKey::Pull(reference), JobOutcome::Pulled(result)) => {
                let image = self.images.entry(reference.clone()).or_default();
                match result {
                    Ok(()) => {
                        *image = ImageMemory {
                            present: true,
                            ..ImageMemory::default()
                        };
                        let desired = self.desired.borrow();
                        for assignment in desired
                            .assignments
                            .values()
                            .filter(|one| one.images().any(|image| image == reference))
                        {
                            self.memories
                                .entry(assignment.instance.clone())
                                .or_default()
                                .pulled
                                .insert(reference.clone());
                        }
                    }
                    Err(words) => {
                        let delay = image.attempts.failed(now);
                        tracing::warn!(
                            image = reference,
                            words,
                            retry_s = delay.as_secs(),
                            "a pull failed"
                        );
                        image.failure = Some(words);
                    }
                }
            }
            (JobKey::Other(unit), outcome) => self.other_was_started(&unit, &outcome),
            (key, outcome) => tracing::error!(?key, ?outcome, "a job ended as another kind"),
        }
    }
}

fn stop_limit(assignment: Option<&Assignment>) -> Duration {
    let grace = assignment.map_or(60, Assignment::stop_seconds);
    Duration::from_secs(u64::from(grace) + 10) + JOB_MARGIN
}
