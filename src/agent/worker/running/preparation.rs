//! The preparation of what an instance mounts of file systems that may hang, in a job.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use crate::volumes::{PreparedMounts, VolumeTrouble};
use kat_host::bound_paths::PathBind;
use kat_types::assignment::Assignment;

/// Age from which a result is not used any more: the file systems may have changed meanwhile.
const LONGEST_USE: Duration = Duration::from_secs(30);

/// What an instance mounts, as a job has prepared it.
#[derive(Debug)]
pub(crate) struct FinishedPreparation {
    assignment: Assignment,
    what: PreparedMounts,
    result: Result<Vec<PathBind>, VolumeTrouble>,
    finished: Instant,
}

impl FinishedPreparation {
    /// A result as of now.
    pub(crate) fn new(
        assignment: Assignment,
        what: PreparedMounts,
        result: Result<Vec<PathBind>, VolumeTrouble>,
    ) -> Self {
        Self {
            assignment,
            what,
            result,
            finished: Instant::now(),
        }
    }

    fn is_for(&self, assignment: &Assignment, what: PreparedMounts) -> bool {
        self.finished.elapsed() <= LONGEST_USE
            && self.what == what
            && self.assignment == *assignment
    }
}

/// The state of an instance's preparation.
#[derive(Debug, Default)]
pub(crate) enum MountPreparation {
    /// None runs, and no result waits for its use.
    #[default]
    Idle,
    /// A job runs; dropping the guard ends it early.
    Running {
        _ends: DropGuard,
    },
    Finished(Box<FinishedPreparation>),
}

impl MountPreparation {
    pub(crate) fn begun(&mut self, ends: DropGuard) {
        *self = Self::Running { _ends: ends };
    }

    /// Records the end of the job; `None` where it was ended early.
    pub(crate) fn ended(&mut self, finished: Option<Box<FinishedPreparation>>) {
        *self = finished.map_or(Self::Idle, Self::Finished);
    }

    /// Whether a job prepares, and its result is still to come.
    pub(crate) const fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    /// Takes the result, if it is for this assignment as it is now and not older than 30 s. Any
    /// other result is dropped; a job continues.
    pub(crate) fn take_result(
        &mut self,
        assignment: &Assignment,
        what: PreparedMounts,
    ) -> Option<Result<Vec<PathBind>, VolumeTrouble>> {
        match std::mem::take(self) {
            Self::Finished(finished) => {
                finished.is_for(assignment, what).then_some(finished.result)
            }
            other => {
                *self = other;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::tests::assignment;

    const WHAT: PreparedMounts = PreparedMounts::All;

    fn finished(assignment: &Assignment) -> MountPreparation {
        let result = FinishedPreparation::new(assignment.clone(), WHAT, Ok(Vec::new()));
        MountPreparation::Finished(Box::new(result))
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_is_used_once_and_not_after_30_s() {
        let db = assignment(0, "db");
        let mut preparation = finished(&db);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(preparation.take_result(&db, WHAT), Some(Ok(Vec::new())));
        assert_eq!(preparation.take_result(&db, WHAT), None);
        let mut preparation = finished(&db);
        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!(preparation.take_result(&db, WHAT), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_is_used_only_for_what_was_prepared_of_the_same_assignment() {
        let db = assignment(0, "db");
        let next = Assignment {
            template_hash: "next".to_owned(),
            ..db.clone()
        };
        assert_eq!(finished(&db).take_result(&next, WHAT), None);
        let other = PreparedMounts::HostPaths;
        assert_eq!(finished(&db).take_result(&db, other), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_ends_with_its_instance_and_not_by_a_look_at_its_result() {
        let db = assignment(0, "db");
        let until = CancellationToken::new();
        let mut preparation = MountPreparation::default();
        preparation.begun(until.clone().drop_guard());
        assert_eq!(preparation.take_result(&db, WHAT), None);
        assert!(!until.is_cancelled());
        assert!(preparation.is_running());
        assert!(!finished(&db).is_running());
        drop(preparation);
        assert!(until.is_cancelled());
    }
}
