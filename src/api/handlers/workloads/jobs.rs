//! Runs of Jobs: list, run by hand, cancel; and whether a Job is suspended.
//!
//! A run by hand is a record that the leader then begins, as one of the schedule. Its number is taken
//! from the Job's state, which the same transaction compares and writes.

use std::sync::Arc;

use crate::{
    access::authentication::Caller,
    apply::{put, record},
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{JsonBody, PathParameters, QueryParameters, WriteRequest},
    handlers::workloads::{
        rollouts::{find, not_deleting},
        workload_objects::{WriteResult, check_namespace_exists, item},
    },
    view::{ApiView, run_item, workload_metadata},
    watch::{ListQuery, answer},
};
use axum::{Extension, extract::State, response::Response};
use kat_plan::{Snapshot, new_run};
use kat_types::{
    api::{NodePhase, RunRequest, WriteOutcome},
    reason::EventReason,
    resource::{ConcurrencyPolicy, JobSpec},
    store::{
        jobs::{
            JobRunRecord, JobStateRecord, JobSuspension, MOST_OVERLAPPING_RUNS, RunCause,
            manual_run,
        },
        keys,
        revisions::{Stored, WorkloadKey},
        snapshot::WorkloadEntry,
        transaction::Compare,
    },
};

/// Maximum number of arguments of a run by hand, and of their bytes.
const MOST_ARGUMENTS: usize = 1000;
const MOST_ARGUMENT_BYTES: usize = 64 << 10;
/// Most runs of a Job that are not over.
const MOST_ACTIVE: usize = 100;

type WorkloadPath = PathParameters<(String, String)>;

pub(crate) async fn list_all(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, &caller, &query, Arc::new(|view| view.runs(None))).await
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(namespace): PathParameters<String>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    check_namespace_exists(&api, &namespace)?;
    let select = Arc::new(move |view: &ApiView<'_>| view.runs(Some(&namespace)));
    answer(&api, &caller, &query, select).await
}

/// Makes a run by hand, and answers with it.
pub(crate) async fn run(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name)): WorkloadPath,
    request: WriteRequest,
    JsonBody(RunRequest { args }): JsonBody<RunRequest>,
) -> Result<Response, ApiError> {
    check_arguments(args.as_deref().unwrap_or_default())?;
    let WriteRequest {
        caller,
        precondition,
        query,
    } = request;
    let key = WorkloadKey::new(&namespace, &name);
    let now = api.now();
    let decide = |snapshot: &Snapshot| {
        let entry = find(snapshot, &key)?;
        precondition.check(Some(entry.meta.revision))?;
        not_deleting(&key, entry)?;
        let spec = spec_of(&key, entry)?;
        let (mut state, revision) = state_of(snapshot, &key, entry);
        may_run(snapshot, &key, entry, spec)?;
        state.last_number += 1;
        let mut made = new_run(spec, &entry.meta.value, RunCause::Manual, now);
        made.number = state.last_number;
        made.by = caller.to_string();
        made.args.clone_from(&args);
        if spec.schedule.is_none() && state.generation < entry.meta.value.generation {
            // The run of the files themselves is due as well, and this one is it.
            state.generation = entry.meta.value.generation;
        }
        let outcome = run_item(&key, &made, 0);
        if query.dry_run {
            return Ok(WriteDecision::Done(outcome));
        }
        let message = match &made.args {
            Some(args) => format!(
                "run {}: {caller} asked for it, with {} arguments of its own",
                made.number,
                args.len()
            ),
            None => format!("run {}: {caller} asked for it", made.number),
        };
        let uid = &entry.meta.value.uid;
        let mut operations = record(snapshot, now, EventReason::RunCreated, &key, uid, message);
        let run_key = keys::job_run(&key.namespace, &key.name, &manual_run(made.number));
        let state_key = keys::job_state(&key.namespace, &key.name);
        operations.push(put(run_key.clone(), &made)?);
        operations.push(put(state_key.clone(), &state)?);
        let meta_key = keys::workload_meta(&key.namespace, &key.name);
        Ok(WriteDecision::Write {
            conditions: vec![
                Compare::ModRevision(meta_key, entry.meta.revision),
                Compare::ModRevision(state_key, revision),
                Compare::ModRevision(run_key, 0),
            ],
            operations,
            outcome,
        })
    };
    let (made, revision) = api.write(decide).await?;
    Ok(item(&made, &revision.unwrap_or_default().to_string()))
}

/// Asks for the end of a run; one that is over stays as it is.
pub(crate) async fn cancel(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name, number)): PathParameters<(String, String, u64)>,
    request: WriteRequest,
) -> Result<Response, ApiError> {
    let WriteRequest {
        caller,
        precondition,
        query,
    } = request;
    let key = WorkloadKey::new(&namespace, &name);
    let now = api.now();
    let decide = |snapshot: &Snapshot| {
        let entry = find(snapshot, &key)?;
        let (run, stored) = run_of(snapshot, &key, entry, number)?;
        precondition.check(Some(stored.revision))?;
        let changes = stored.value.is_active() && stored.value.cancelled.is_none();
        let mut shown = run_item(&key, &stored.value, stored.revision).metadata;
        shown.resource_version = stored.revision.to_string();
        let outcome = WriteResult::of("Run", WriteOutcome::of_change(changes), shown);
        if !changes || query.dry_run {
            return Ok(WriteDecision::Done(outcome));
        }
        let cancelled = JobRunRecord {
            cancelled: Some(JobSuspension {
                by: caller.to_string(),
                at: now,
            }),
            ..JobRunRecord::clone(&stored.value)
        };
        let run_key = keys::job_run(&key.namespace, &key.name, run);
        Ok(WriteDecision::Write {
            conditions: vec![Compare::ModRevision(run_key.clone(), stored.revision)],
            operations: vec![put(run_key, &cancelled)?],
            outcome,
        })
    };
    let (written, revision) = api.write(decide).await?;
    Ok(written.answer(revision))
}

/// Suspends a Job or resumes it, which `stop` and `start` of a Job do.
pub(crate) async fn set_suspended(
    api: &Arc<Api>,
    key: &WorkloadKey,
    request: WriteRequest,
    suspend: bool,
) -> Result<Response, ApiError> {
    let WriteRequest {
        caller,
        precondition,
        query,
    } = request;
    let now = api.now();
    let decide = |snapshot: &Snapshot| {
        let entry = find(snapshot, key)?;
        precondition.check(Some(entry.meta.revision))?;
        not_deleting(key, entry)?;
        let spec = spec_of(key, entry)?;
        if !suspend && spec.suspend {
            return Err(ApiError::conflict(
                format!("job.kat of `{key}` has `suspend: true`"),
                "apply its folder with `suspend: false`",
            ));
        }
        let (mut state, revision) = state_of(snapshot, key, entry);
        let changes = state.suspended.is_some() != suspend;
        let shown = workload_metadata(key, entry);
        let outcome = WriteResult::of("Workload", WriteOutcome::of_change(changes), shown);
        if !changes || query.dry_run {
            return Ok(WriteDecision::Done(outcome));
        }
        state.suspended = suspend.then(|| JobSuspension {
            by: caller.to_string(),
            at: now,
        });
        if !suspend && spec.schedule.is_some() {
            state.begin_schedule(spec, now);
        }
        let (reason, message) = match suspend {
            true => (EventReason::JobSuspended, format!("{caller} suspended it")),
            false => (EventReason::JobResumed, format!("{caller} resumed it")),
        };
        let uid = &entry.meta.value.uid;
        let mut operations = record(snapshot, now, reason, key, uid, message);
        let state_key = keys::job_state(&key.namespace, &key.name);
        operations.push(put(state_key.clone(), &state)?);
        let meta_key = keys::workload_meta(&key.namespace, &key.name);
        Ok(WriteDecision::Write {
            conditions: vec![
                Compare::ModRevision(meta_key, entry.meta.revision),
                Compare::ModRevision(state_key, revision),
            ],
            operations,
            outcome,
        })
    };
    let (written, revision) = api.write(decide).await?;
    Ok(written.answer(revision))
}

fn check_arguments(args: &[String]) -> Result<(), ApiError> {
    let bytes: usize = args.iter().map(String::len).sum();
    if args.len() > MOST_ARGUMENTS || bytes > MOST_ARGUMENT_BYTES {
        return Err(ApiError::invalid(format!(
            "args: found {} arguments with {bytes} bytes, expected at most {MOST_ARGUMENTS} with {MOST_ARGUMENT_BYTES} bytes",
            args.len()
        )));
    }
    let wrong = args
        .iter()
        .find_map(|arg| kat_bundle::check_argument(arg).err());
    match wrong {
        Some(error) => Err(ApiError::invalid(format!("args: {error}"))),
        None => Ok(()),
    }
}

/// `spec` of the Job's `job.kat`.
fn spec_of<'e>(key: &WorkloadKey, entry: &'e WorkloadEntry) -> Result<&'e JobSpec, ApiError> {
    let parsed = entry.parsed.as_ref().map_err(|reason| {
        ApiError::conflict(
            format!("the stored files of `{key}` cannot be read: {reason}"),
            "apply its folder again",
        )
    })?;
    parsed.job.as_ref().ok_or_else(|| {
        ApiError::conflict(
            format!("`{key}` is no Job, so it has no runs"),
            &format!("`katcall restart {key}` replaces the instances of a Service"),
        )
    })
}

/// The Job's state and its revision.
fn state_of(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    entry: &WorkloadEntry,
) -> (JobStateRecord, i64) {
    let uid = &entry.meta.value.uid;
    let stored = snapshot.jobs.get(key).and_then(|job| job.state.as_ref());
    let revision = stored.map_or(0, |stored| stored.revision);
    let own = stored.filter(|stored| stored.value.workload_uid == *uid);
    let state = own.map_or_else(
        || JobStateRecord {
            schema: 1,
            workload_uid: uid.clone(),
            ..JobStateRecord::default()
        },
        |stored| stored.value.clone(),
    );
    (state, revision)
}

/// The runs of this very workload, with the last parts of their keys.
fn own_runs<'s>(
    snapshot: &'s Snapshot,
    key: &WorkloadKey,
    entry: &'s WorkloadEntry,
) -> impl Iterator<Item = (&'s String, &'s Stored<Arc<JobRunRecord>>)> {
    let uid = &entry.meta.value.uid;
    let runs = snapshot.jobs.get(key).into_iter();
    let runs = runs.flat_map(|job| &job.runs);
    runs.filter(move |(_, run)| run.value.workload_uid == *uid)
}

/// Refuses a run that the Job's concurrency policy does not allow now.
fn may_run(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    entry: &WorkloadEntry,
    spec: &JobSpec,
) -> Result<(), ApiError> {
    let is_silent = |node: &str| {
        let status = snapshot
            .nodes
            .get(node)
            .and_then(|node| node.status.as_ref());
        status.is_some_and(|status| status.value.phase == NodePhase::NotReady)
    };
    // A silent machine is waited for by nothing.
    let active = own_runs(snapshot, key, entry)
        .filter(|(_, run)| run.value.is_active() && !run.value.is_left_to(is_silent));
    let numbers: Vec<u64> = active.map(|(_, run)| run.value.number).collect();
    let name = &key.name;
    let most = match spec.concurrency_policy {
        ConcurrencyPolicy::Allow => MOST_OVERLAPPING_RUNS,
        ConcurrencyPolicy::Forbid | ConcurrencyPolicy::Replace => MOST_ACTIVE,
    };
    match (numbers.first(), spec.concurrency_policy) {
        (Some(number), ConcurrencyPolicy::Forbid) => Err(ApiError::conflict(
            format!("run `{name}-{number}` is active, and concurrencyPolicy is Forbid"),
            &format!(
                "wait until it has ended, or `katcall job cancel run/{}/{name}-{number}`",
                key.namespace
            ),
        )),
        _ if numbers.len() >= most => Err(ApiError::conflict(
            format!(
                "`{key}` has {} active runs, which is the most",
                numbers.len()
            ),
            "wait until some have ended",
        )),
        _ => Ok(()),
    }
}

fn run_of<'s>(
    snapshot: &'s Snapshot,
    key: &WorkloadKey,
    entry: &'s WorkloadEntry,
    number: u64,
) -> Result<(&'s String, &'s Stored<Arc<JobRunRecord>>), ApiError> {
    let mut runs = own_runs(snapshot, key, entry);
    let found = runs.find(|(_, run)| run.value.number == number);
    found.ok_or_else(|| ApiError::not_found("run", &format!("{}-{number}", key.name)))
}
