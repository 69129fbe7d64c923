//! The state of a Job in the status of its workload.

use jiff::Timestamp;

use super::{bound::ScheduleKeepers, per_node};
use kat_types::{
    api::{JobStatus, WorkloadPhase},
    reason::Reason,
    resource::JobSpec,
    store::jobs::{JobRunRecord, JobStateRecord, RunPhase},
};

/// Phase, reason and counts of a Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobSummary {
    pub(crate) phase: WorkloadPhase,
    pub(crate) reason: Reason,
    pub(crate) message: String,
    pub(crate) status: JobStatus,
}

/// What there is to say of a Job: its runs in the order of their numbers, and when it is due next.
pub(super) fn summary(
    spec: &JobSpec,
    state: &JobStateRecord,
    runs: &[&JobRunRecord],
    (next, keepers): (Option<Timestamp>, Option<&ScheduleKeepers>),
    trouble: Option<(Reason, String)>,
) -> JobSummary {
    let active: Vec<_> = runs.iter().filter(|run| run.is_active()).collect();
    let last = runs.last();
    let suspended = spec.suspend || state.suspended.is_some();
    let status = JobStatus {
        suspended,
        active: u32::try_from(active.len()).unwrap_or(u32::MAX),
        next: next.filter(|_| !suspended).into(),
        last_number: state.last_number,
        last_phase: last.map(|run| run.phase),
        last_finished: last.and_then(|run| run.finished).into(),
        skipped: state.skipped.clone(),
        machine: keepers.and_then(|keepers| keepers.one().map(str::to_owned)),
        machines: keepers.map_or_else(Vec::new, ScheduleKeepers::each),
    };
    let (phase, reason, message) = match (trouble, active.last(), last) {
        (Some((reason @ Reason::WaitsForDependency, why)), ..) => {
            (WorkloadPhase::Pending, reason, why)
        }
        (Some((reason, why)), ..) => (WorkloadPhase::Degraded, reason, why),
        (None, Some(run), _) => {
            let (phase, reason) = match run.started {
                Some(_) => (WorkloadPhase::Active, Reason::RunActive),
                None => (WorkloadPhase::Active, Reason::RunWaits),
            };
            let message = active_in_words(run);
            let message = match active.len().saturating_sub(1) {
                0 => message,
                1 => format!("{message}; one other run is active"),
                others => format!("{message}; {others} other runs are active"),
            };
            (phase, reason, message)
        }
        (None, None, _) if suspended => {
            let by = state.suspended.as_ref().map(|one| one.by.as_str());
            let message = match by {
                Some(by) => format!("suspended by {by}"),
                None => "`suspend: true` in job.kat".to_owned(),
            };
            (WorkloadPhase::Stopped, Reason::JobSuspended, message)
        }
        (None, None, Some(run)) if run.phase == RunPhase::Failed => {
            let reason = Reason::from_word(&run.reason).unwrap_or(Reason::RunCancelled);
            let message = format!("run {}: {}", run.number, run.message);
            (WorkloadPhase::Failed, reason, message)
        }
        (None, None, last) if spec.schedule.is_some() => {
            let next = next.map_or_else(String::new, |next| format!("the next run is at {next}"));
            let next = match keepers {
                Some(keepers) => format!("{next}, {}", keepers.in_words()),
                None => next,
            };
            let last = last.map_or_else(String::new, |run| {
                format!("; run {}: {}", run.number, run.phase.word())
            });
            (
                WorkloadPhase::Scheduled,
                Reason::AwaitsSchedule,
                format!("{next}{last}"),
            )
        }
        (None, None, Some(run)) => {
            let (phase, reason) = match run.phase {
                RunPhase::Succeeded => (WorkloadPhase::Succeeded, Reason::RunSucceeded),
                RunPhase::Active | RunPhase::Failed | RunPhase::Cancelled => {
                    (WorkloadPhase::Failed, Reason::RunCancelled)
                }
            };
            (
                phase,
                reason,
                format!("run {}: {}", run.number, run.message),
            )
        }
        (None, None, None) => (
            WorkloadPhase::Pending,
            Reason::RunWaits,
            "it has had no run yet".to_owned(),
        ),
    };
    JobSummary {
        phase,
        reason,
        message,
        status,
    }
}

/// Such as `run 3: 2 of 5 instances succeeded, one failed`.
fn active_in_words(run: &JobRunRecord) -> String {
    if run.machines.is_some() {
        return per_node::active_in_words(run);
    }
    let failed = match run.failures {
        0 => String::new(),
        1 => ", one failed".to_owned(),
        count => format!(", {count} failed"),
    };
    let waits = match run.started {
        Some(_) => "",
        None => " waits until the run before it has ended:",
    };
    format!(
        "run {}:{waits} {} of {} instances succeeded{failed}",
        run.number,
        run.succeeded.len(),
        run.completions
    )
}
