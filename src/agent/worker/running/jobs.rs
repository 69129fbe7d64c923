//! The jobs of a worker: its slow operations, which run beside its passes.
//!
//! [`Jobs`] knows what runs, and keeps the rule that at most one job runs for each [`JobKey`]. Each
//! function that begins a job makes both its key and its [`FinishedJob`], so that they always
//! belong together.

use std::collections::BTreeMap;

use tokio::task::{Id, JoinError, JoinSet};

use crate::worker::running::preparation::FinishedPreparation;
use kat_systemd::{JobResult, SystemdError};

/// The subject of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JobKey {
    /// A start, restart, bind or stop of an instance.
    Instance(String),
    /// A stop that may run beside the instance's start: that of a fenced or evicted instance, or of
    /// one with several containers.
    Fence(String),
    /// A pull, by image.
    Pull(String),
    /// The preparation of what an instance mounts of file systems that may hang. It delays no stop.
    Prepare(String),
    /// The removal of binds of instances that are gone.
    Binds,
    /// The start of a sidecar, by its unit.
    Sidecar(String),
}

/// The urgency of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopUrgency {
    /// The stop waits for the instance's other job.
    InTurn,
    /// The stop runs beside the instance's start.
    Hurried,
}

impl StopUrgency {
    pub(crate) fn key(self, instance: &str) -> JobKey {
        let instance = instance.to_owned();
        match self {
            Self::InTurn => JobKey::Instance(instance),
            Self::Hurried => JobKey::Fence(instance),
        }
    }
}

/// A job that has ended: its subject and its result.
#[derive(Debug)]
pub(crate) enum FinishedJob {
    Instance {
        instance: String,
        outcome: InstanceOutcome,
    },
    Pulled {
        image: String,
        result: Result<(), String>,
    },
    /// `None` where the preparation was ended early.
    Prepared {
        instance: String,
        preparation: Option<Box<FinishedPreparation>>,
    },
    /// Binds that nothing needs were removed.
    Unbound(Result<(), SystemdError>),
    SidecarStarted {
        unit: String,
        result: Result<JobResult, SystemdError>,
    },
}

/// The end of a job of an instance.
#[derive(Debug)]
pub(crate) enum InstanceOutcome {
    /// The end of a start or of a restart.
    Started(Result<JobResult, SystemdError>),
    /// The host paths that the instance mounts were bound, or why binding failed; the instance was
    /// not started.
    Bound(Result<(), String>),
    Stopped(Result<JobResult, SystemdError>),
}

/// A job that panicked.
#[derive(Debug)]
pub(crate) struct FailedJob {
    pub key: Option<JobKey>,
    pub error: JoinError,
}

/// The running jobs of one worker.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    tasks: JoinSet<FinishedJob>,
    running: BTreeMap<JobKey, Id>,
}

impl Jobs {
    pub(crate) fn is_running(&self, key: &JobKey) -> bool {
        self.running.contains_key(key)
    }

    /// Whether a start, restart, bind or stop of the instance runs. Hurried stops do not count.
    pub(crate) fn is_busy(&self, instance: &str) -> bool {
        self.is_running(&JobKey::Instance(instance.to_owned()))
    }

    /// Whether a job of any instance runs that may be its start.
    pub(crate) fn is_starting(&self) -> bool {
        self.keys().any(|key| matches!(key, JobKey::Instance(_)))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &JobKey> {
        self.running.keys()
    }

    pub(crate) fn begin_for_instance(
        &mut self,
        instance: &str,
        job: impl Future<Output = InstanceOutcome> + Send + 'static,
    ) {
        let instance = instance.to_owned();
        self.begin(JobKey::Instance(instance.clone()), async move {
            let outcome = job.await;
            FinishedJob::Instance { instance, outcome }
        });
    }

    pub(crate) fn begin_stop(
        &mut self,
        instance: &str,
        urgency: StopUrgency,
        stop: impl Future<Output = Result<JobResult, SystemdError>> + Send + 'static,
    ) {
        let key = urgency.key(instance);
        let instance = instance.to_owned();
        self.begin(key, async move {
            let outcome = InstanceOutcome::Stopped(stop.await);
            FinishedJob::Instance { instance, outcome }
        });
    }

    pub(crate) fn begin_pull(
        &mut self,
        image: &str,
        pull: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        let image = image.to_owned();
        self.begin(JobKey::Pull(image.clone()), async move {
            let result = pull.await;
            FinishedJob::Pulled { image, result }
        });
    }

    pub(crate) fn begin_preparation(
        &mut self,
        instance: &str,
        job: impl Future<Output = Option<FinishedPreparation>> + Send + 'static,
    ) {
        let instance = instance.to_owned();
        self.begin(JobKey::Prepare(instance.clone()), async move {
            let preparation = job.await.map(Box::new);
            FinishedJob::Prepared {
                instance,
                preparation,
            }
        });
    }

    /// Begins the removal of binds that nothing needs.
    pub(crate) fn begin_unbind(
        &mut self,
        unbind: impl Future<Output = Result<(), SystemdError>> + Send + 'static,
    ) {
        self.begin(
            JobKey::Binds,
            async move { FinishedJob::Unbound(unbind.await) },
        );
    }

    pub(crate) fn begin_sidecar_start(
        &mut self,
        unit: &str,
        start: impl Future<Output = Result<JobResult, SystemdError>> + Send + 'static,
    ) {
        let unit = unit.to_owned();
        self.begin(JobKey::Sidecar(unit.clone()), async move {
            let result = start.await;
            FinishedJob::SidecarStarted { unit, result }
        });
    }

    /// The callers do not begin a job whose key is taken; one that does is a bug, and its job is
    /// dropped.
    fn begin(&mut self, key: JobKey, job: impl Future<Output = FinishedJob> + Send + 'static) {
        if self.is_running(&key) {
            tracing::error!(?key, "a second job of the same kind was not begun");
            return;
        }
        let task = self.tasks.spawn(job);
        self.running.insert(key, task.id());
    }

    /// Waits for the next end of a job; `None` where no job runs. No end is lost when the future is
    /// dropped.
    pub(crate) async fn next(&mut self) -> Option<Result<FinishedJob, FailedJob>> {
        let ended = self.tasks.join_next_with_id().await?;
        Some(self.freed(ended))
    }

    /// As [`Self::next`], for jobs that have already ended.
    pub(crate) fn try_next(&mut self) -> Option<Result<FinishedJob, FailedJob>> {
        let ended = self.tasks.try_join_next_with_id()?;
        Some(self.freed(ended))
    }

    /// Frees the key of a job that has ended.
    fn freed(
        &mut self,
        ended: Result<(Id, FinishedJob), JoinError>,
    ) -> Result<FinishedJob, FailedJob> {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let is_it = |_: &JobKey, task: &mut Id| *task == id;
        let key = self.running.extract_if(.., is_it).next();
        match ended {
            Ok((_, finished)) => Ok(finished),
            Err(error) => Err(FailedJob {
                key: key.map(|(key, _)| key),
                error,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped() -> InstanceOutcome {
        InstanceOutcome::Stopped(Ok(JobResult::Done))
    }

    #[tokio::test]
    async fn a_job_that_panics_frees_its_own_key_only() {
        let mut jobs = Jobs::default();
        jobs.begin_for_instance("web-a", std::future::pending());
        jobs.begin_for_instance("web-b", async { panic!("a bug") });
        let failed = jobs.next().await.unwrap().unwrap_err();
        assert_eq!(failed.key, Some(JobKey::Instance("web-b".to_owned())));
        assert!(failed.error.to_string().contains("a bug"));
        assert!(jobs.is_busy("web-a") && !jobs.is_busy("web-b"));
    }

    #[tokio::test]
    async fn an_instance_has_one_job_and_beside_it_one_hurried_stop() {
        let mut jobs = Jobs::default();
        jobs.begin_for_instance("web-a", async { stopped() });
        jobs.begin_for_instance("web-a", async { panic!("a second job") });
        for _ in 0..2 {
            let stop = async { Ok(JobResult::Done) };
            jobs.begin_stop("web-a", StopUrgency::Hurried, stop);
        }
        for _ in 0..2 {
            let finished = jobs.next().await.unwrap().unwrap();
            assert!(
                matches!(&finished, FinishedJob::Instance { instance, .. } if instance == "web-a"),
                "{finished:?}"
            );
        }
        assert!(jobs.next().await.is_none());
        assert_eq!(jobs.keys().count(), 0);
    }

    #[tokio::test]
    async fn what_an_instance_mounts_is_not_prepared_twice_at_once_and_delays_no_stop() {
        let mut jobs = Jobs::default();
        jobs.begin_preparation("db-a", async { None });
        jobs.begin_preparation("db-a", async { panic!("a second preparation") });
        assert!(!jobs.is_busy("db-a"));
        jobs.begin_stop("db-a", StopUrgency::InTurn, std::future::pending());
        assert!(jobs.is_busy("db-a"));
        let finished = jobs.next().await.unwrap().unwrap();
        assert!(
            matches!(&finished, FinishedJob::Prepared { instance, preparation: None } if instance == "db-a"),
            "{finished:?}"
        );
        assert!(!jobs.is_running(&JobKey::Prepare("db-a".to_owned())));
    }
}
