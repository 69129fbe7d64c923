//! Starts, restarts and binds of instances, and what their ends mean.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    service::blocking::may_block,
    volumes::{PreparedMounts, host_binds},
    worker::{
        JOB_MARGIN, Worker, ignore_missing,
        running::{jobs::InstanceOutcome, preparation::FinishedPreparation, stops::stop_limit},
    },
};
use kat_systemd::{JobResult, SystemdError};
use kat_types::assignment::Assignment;

impl Worker {
    /// Starts an instance. Where it mounts host paths, the unit that binds them runs first.
    pub(crate) fn spawn_start(
        &mut self,
        assignment: &Assignment,
        unit: String,
        uncounted: bool,
        binding: Option<String>,
    ) {
        let manager = Arc::clone(&self.manager);
        let system = self.tools.managers.system();
        let limit = self.start_limit();
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        memory.ended = false;
        if uncounted {
            self.restarts.of(&assignment.instance).begun_anew(false);
        }
        self.jobs
            .begin_for_instance(&assignment.instance, async move {
                if let Some(binding) = binding
                    && let Err(why) = host_binds::bind(system.as_ref(), &binding).await
                {
                    return InstanceOutcome::Bound(Err(why));
                }
                if uncounted && let Err(error) = ignore_missing(manager.reset_failed(&unit).await) {
                    return InstanceOutcome::Started(Err(error));
                }
                InstanceOutcome::Started(manager.start(&unit, limit).await)
            });
    }

    /// Binds again the host paths that an instance mounts; its next start uses them.
    pub(crate) fn spawn_bind(&mut self, assignment: &Assignment, binding: String) {
        let system = self.tools.managers.system();
        self.jobs
            .begin_for_instance(&assignment.instance, async move {
                InstanceOutcome::Bound(host_binds::bind(system.as_ref(), &binding).await)
            });
    }

    /// Prepares what an instance mounts where some of it lies on a file system that may hang.
    pub(crate) fn spawn_prepare(&mut self, assignment: &Assignment, what: PreparedMounts) {
        let volumes = Arc::clone(&self.tools.volumes);
        let until = CancellationToken::new();
        let memory = self
            .memories
            .entry(assignment.instance.clone())
            .or_default();
        memory.preparation.begun(until.clone().drop_guard());
        let assignment = assignment.clone();
        let instance = assignment.instance.clone();
        self.jobs.begin_preparation(&instance, async move {
            let prepared = may_block(volumes.prepare_apart(&assignment, what));
            let result = until.run_until_cancelled(prepared).await?;
            Some(FinishedPreparation::new(assignment, what, result))
        });
    }

    /// Restarts a running unit.
    pub(crate) fn spawn_restart(&mut self, assignment: &Assignment, unit: String) {
        let manager = Arc::clone(&self.manager);
        let limit = self.start_limit() + stop_limit(Some(assignment));
        self.jobs
            .begin_for_instance(&assignment.instance, async move {
                InstanceOutcome::Started(manager.restart(&unit, limit).await)
            });
    }

    pub(crate) fn start_limit(&self) -> Duration {
        Duration::from_secs(u64::from(self.tools.settings.hold_seconds) + 30) + JOB_MARGIN
    }

    /// Records the end of an instance's job.
    pub(crate) fn record_outcome(&mut self, instance: &str, outcome: InstanceOutcome) {
        match outcome {
            InstanceOutcome::Started(Ok(JobResult::Done)) => {}
            InstanceOutcome::Started(result) => {
                // The image may have been removed by hand: the next start looks for it on the disk.
                if let Some(assignment) = self.desired.borrow().assignments.get(instance) {
                    for image in assignment.images() {
                        if let Some(image) = self.images.get_mut(image) {
                            image.present = false;
                        }
                    }
                }
                let memory = self.memories.entry(instance.to_owned()).or_default();
                let delay = memory.starts.failed(Instant::now());
                memory.start_error = result.as_ref().err().map(ToString::to_string);
                tracing::warn!(
                    instance,
                    ?result,
                    retry_s = delay.as_secs(),
                    "an instance did not start"
                );
            }
            InstanceOutcome::Bound(bound) => {
                let memory = self.memories.entry(instance.to_owned()).or_default();
                let Err(why) = bound else {
                    memory.not_bound = None;
                    return;
                };
                let delay = memory.starts.failed(Instant::now());
                tracing::warn!(
                    instance,
                    why,
                    retry_s = delay.as_secs(),
                    "host paths are not bound"
                );
                memory.not_bound = Some(why);
            }
            InstanceOutcome::Stopped(Ok(JobResult::Done) | Err(SystemdError::NoSuchUnit(_))) => {}
            InstanceOutcome::Stopped(result) => {
                tracing::warn!(instance, ?result, "an instance did not stop");
            }
        }
    }
}
