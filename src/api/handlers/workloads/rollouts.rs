//! Rollouts (RFC001-KAT 4.5): generations, rollback, pause, number of replicas, restart.
//!
//! Each of them except the pause writes a new generation of the files, as an apply does, so that
//! the files show what a later apply of the folder would change back.

use std::sync::Arc;

use axum::{extract::State, response::Response};

use crate::{
    apply::{
        ApplyCause, WorkloadWrite, image_pins, preview, put, record, submission,
        submission::Submission,
    },
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{JsonBody, PathParameters, WriteRequest},
    handlers::workloads::{
        jobs,
        workload_objects::{WriteResult, item, missing},
    },
    view::{workload_metadata, workload_version},
};
use kat_bundle as bundle;
use kat_bundle::{DecodeMode, SourceFile, with_image, with_replicas};
use kat_plan::Snapshot;
use kat_types::{
    api::{
        GenerationView, ImageRequest, List, ListMetadata, RestartRequest, RollbackRequest,
        ScaleRequest, WriteOutcome,
    },
    reason::EventReason,
    resource::WorkloadType,
    store::{
        keys,
        records::WorkloadMeta,
        revisions::WorkloadKey,
        snapshot::{ArchivedGeneration, WorkloadEntry},
        transaction::Compare,
    },
};

type WorkloadPath = PathParameters<(String, String)>;

pub(crate) async fn generations(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name)): WorkloadPath,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let key = WorkloadKey::new(&namespace, &name);
    let entry = find(&snapshot, &key)?;
    let version = workload_version(entry).to_string();
    let kept = entry.archive.iter();
    let list = List {
        items: kept
            .map(|(generation, archived)| {
                let view = shown(entry, *generation, archived);
                let by_name = name_of(&snapshot, &view.by);
                GenerationView { by_name, ..view }
            })
            .collect(),
        metadata: ListMetadata {
            resource_version: version.clone(),
        },
    };
    Ok(item(&list, &version))
}

/// The name of the token of a caller `token:ID`; empty for other callers, and for a token that is
/// gone or has no name.
fn name_of(snapshot: &Snapshot, caller: &str) -> String {
    let token = caller.strip_prefix("token:");
    let token = token.and_then(|id| snapshot.tokens.get(id));
    token.map_or_else(String::new, |token| token.value.name.clone())
}

fn shown(entry: &WorkloadEntry, generation: u64, archived: &ArchivedGeneration) -> GenerationView {
    let record = archived.record.as_ref();
    let parsed = bundle::parse(&files_of(archived), DecodeMode::Stored).ok();
    let spec = parsed
        .and_then(|bundle| bundle.workload)
        .map(|workload| workload.spec);
    let image = spec.as_ref().and_then(|spec| spec.source.image.clone());
    let status = entry.status.as_ref();
    GenerationView {
        generation,
        applied: record.map(|record| record.applied).into(),
        by: record.map_or_else(String::new, |record| record.by.clone()),
        by_name: String::new(),
        origin: record.map(|record| record.origin),
        of: record.and_then(|record| record.of),
        why: record.map_or_else(String::new, |record| record.why.clone()),
        image: image.unwrap_or_default(),
        replicas: spec.and_then(|spec| spec.replicas).unwrap_or(0),
        good: status.is_some_and(|status| status.value.good.contains(&generation)),
        current: entry.meta.value.generation == generation,
    }
}

pub(crate) async fn roll_back(
    State(api): State<Arc<Api>>,
    PathParameters(place): WorkloadPath,
    request: WriteRequest,
    JsonBody(RollbackRequest { to }): JsonBody<RollbackRequest>,
) -> Result<Response, ApiError> {
    let change = |_: &Snapshot, key: &WorkloadKey, entry: &WorkloadEntry| {
        let generation = match to {
            Some(to) => to,
            None => last_good(key, entry)?,
        };
        let archived = archived(entry, generation)?;
        let restarted = archived.record.as_ref().and_then(|record| record.restarted);
        let cause = ApplyCause::RolledBack {
            of: generation,
            restarted,
        };
        let files = files_of(archived);
        Ok((submission::of_changed(&files, &files)?, cause))
    };
    write(&api, place, &request, change).await
}

/// The newest generation before the present one that was wholly healthy and has other content.
fn last_good(key: &WorkloadKey, entry: &WorkloadEntry) -> Result<u64, ApiError> {
    let meta = &entry.meta.value;
    let good = entry.status.as_ref().map(|status| &status.value.good);
    let found = good.into_iter().flatten().rev().find(|good| {
        // Some of the generations recorded as good may no longer be archived.
        let kept = entry.archive.get(good);
        let kept = kept.filter(|kept| **good < meta.generation && !kept.files.is_empty());
        kept.is_some_and(|kept| {
            let record = kept.record.as_ref();
            record.is_none_or(|record| record.is_another(meta))
        })
    });
    found.copied().ok_or_else(|| {
        ApiError::conflict(
            format!("`{key}` has no earlier generation that was wholly healthy"),
            &format!(
                "kept are {}; `--to N` goes back to any of them",
                kept_generations(entry)
            ),
        )
    })
}

/// A kept generation with its files.
pub(super) fn archived(
    entry: &WorkloadEntry,
    generation: u64,
) -> Result<&ArchivedGeneration, ApiError> {
    let archived = entry.archive.get(&generation);
    archived
        .filter(|archived| !archived.files.is_empty())
        .ok_or_else(|| ApiError::NoGeneration {
            generation,
            kept: kept_generations(entry),
        })
}

/// The kept generations in words: `3 to 12`, or `1, 4 to 12`.
fn kept_generations(entry: &WorkloadEntry) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for generation in entry.archive.keys() {
        match ranges.last_mut() {
            Some((_, end)) if *end + 1 == *generation => *end = *generation,
            _ => ranges.push((*generation, *generation)),
        }
    }
    let ranges = ranges.iter().map(|(start, end)| match start == end {
        true => start.to_string(),
        false => format!("{start} to {end}"),
    });
    let ranges: Vec<_> = ranges.collect();
    match ranges.is_empty() {
        true => "none".to_owned(),
        false => ranges.join(", "),
    }
}

pub(crate) async fn scale(
    State(api): State<Arc<Api>>,
    PathParameters(place): WorkloadPath,
    request: WriteRequest,
    JsonBody(ScaleRequest { replicas }): JsonBody<ScaleRequest>,
) -> Result<Response, ApiError> {
    let change = |_: &Snapshot, key: &WorkloadKey, entry: &WorkloadEntry| {
        refuse_daemon(key, entry)?;
        let files = with_number(key, entry, replicas)?;
        Ok((
            submission::of_changed(&files, &present(entry))?,
            ApplyCause::Scaled { to: replicas },
        ))
    };
    write(&api, place, &request, change).await
}

/// Writes 0 replicas, and remembers the number of before. A stopped workload stays as it is. A Job is
/// suspended.
pub(crate) async fn stop(
    State(api): State<Arc<Api>>,
    PathParameters(place): WorkloadPath,
    request: WriteRequest,
) -> Result<Response, ApiError> {
    if let Some(key) = job(&api, &place)? {
        return jobs::set_suspended(&api, &key, request, true).await;
    }
    let change = |_: &Snapshot, key: &WorkloadKey, entry: &WorkloadEntry| {
        let before = stoppable(key, entry)?;
        let files = with_number(key, entry, 0)?;
        Ok((
            submission::of_changed(&files, &present(entry))?,
            ApplyCause::Stopped { before },
        ))
    };
    write(&api, place, &request, change).await
}

/// Writes the number of replicas of before the stop. A workload that is not stopped stays as it is.
pub(crate) async fn start(
    State(api): State<Arc<Api>>,
    PathParameters(place): WorkloadPath,
    request: WriteRequest,
) -> Result<Response, ApiError> {
    if let Some(key) = job(&api, &place)? {
        return jobs::set_suspended(&api, &key, request, false).await;
    }
    let change = |_: &Snapshot, key: &WorkloadKey, entry: &WorkloadEntry| {
        let before = stoppable(key, entry)?;
        let stopped = entry.meta.value.stopped.as_ref();
        let replicas = stopped.map_or(before, |stopped| stopped.replicas.max(1));
        let files = match stopped {
            Some(_) => with_number(key, entry, replicas)?,
            None => present(entry),
        };
        Ok((
            submission::of_changed(&files, &present(entry))?,
            ApplyCause::Started { replicas },
        ))
    };
    write(&api, place, &request, change).await
}

/// The workload's key, if it is a Job, which is suspended instead of stopped.
fn job(api: &Api, place: &(String, String)) -> Result<Option<WorkloadKey>, ApiError> {
    let (namespace, name) = place;
    let key = WorkloadKey::new(namespace, name);
    let snapshot = api.snapshot()?;
    let entry = snapshot.workloads.get(&key);
    let parsed = entry.and_then(|entry| entry.parsed.as_ref().ok());
    Ok(parsed
        .is_some_and(|parsed| parsed.job.is_some())
        .then_some(key))
}

/// The number of replicas of a workload that can be stopped and started.
fn stoppable(key: &WorkloadKey, entry: &WorkloadEntry) -> Result<u32, ApiError> {
    let parsed = entry.parsed.as_ref().map_err(|reason| {
        ApiError::conflict(
            format!("the stored files of `{key}` cannot be read: {reason}"),
            "apply its folder again",
        )
    })?;
    let spec = &parsed.workload.spec;
    match spec.kind {
        WorkloadType::Service => Ok(spec.replicas.unwrap_or(1)),
        WorkloadType::DaemonService => Err(is_daemon(key)),
        WorkloadType::Job => Err(ApiError::conflict(
            format!("`{key}` is a Job, which has no instances to stop between its runs"),
            "send the request again: a Job is suspended instead",
        )),
    }
}

fn refuse_daemon(key: &WorkloadKey, entry: &WorkloadEntry) -> Result<(), ApiError> {
    let parsed = entry.parsed.as_ref().ok();
    let kind = parsed.map(|parsed| parsed.workload.spec.kind);
    match kind == Some(WorkloadType::DaemonService) {
        true => Err(is_daemon(key)),
        false => Ok(()),
    }
}

fn is_daemon(key: &WorkloadKey) -> ApiError {
    ApiError::conflict(
        format!("`{key}` is a DaemonService, which has one instance on each machine that matches"),
        "labels of machines and nodeSelector select its machines; `katcall delete` ends all of it",
    )
}

fn with_number(
    key: &WorkloadKey,
    entry: &WorkloadEntry,
    replicas: u32,
) -> Result<Vec<SourceFile>, ApiError> {
    with_replicas(&present(entry), replicas).ok_or_else(|| {
        ApiError::conflict(
            format!("workload.kat of `{key}` has no spec.replicas that could be changed"),
            "apply its folder with another number",
        )
    })
}

pub(crate) async fn set_image(
    State(api): State<Arc<Api>>,
    PathParameters(place): WorkloadPath,
    request: WriteRequest,
    JsonBody(ImageRequest { image }): JsonBody<ImageRequest>,
) -> Result<Response, ApiError> {
    bundle::check_image(&image).map_err(|error| ApiError::invalid(format!("image: {error}")))?;
    let change = |_: &Snapshot, key: &WorkloadKey, entry: &WorkloadEntry| {
        let files = with_image(&present(entry), &image).ok_or_else(|| {
            ApiError::conflict(
                format!("workload.kat of `{key}` has no spec.source.image that could be changed"),
                "apply its folder with another image",
            )
        })?;
        let submission = submission::of_changed(&files, &present(entry))?;
        Ok((submission, ApplyCause::ImageSet))
    };
    write(&api, place, &request, change).await
}

pub(crate) async fn restart(
    State(api): State<Arc<Api>>,
    PathParameters(place): WorkloadPath,
    request: WriteRequest,
    JsonBody(RestartRequest { restarted_at }): JsonBody<RestartRequest>,
) -> Result<Response, ApiError> {
    let at = restarted_at.get().ok_or_else(|| {
        ApiError::invalid("restartedAt: expected a time such as `2026-11-20T10:00:00Z`".to_owned())
    })?;
    let change = |_: &Snapshot, key: &WorkloadKey, entry: &WorkloadEntry| {
        if entry.meta.value.stopped.is_some() {
            return Err(ApiError::conflict(
                format!("`{key}` is stopped, so it has no instances to replace"),
                &format!("`katcall start {key}` starts it"),
            ));
        }
        let files = present(entry);
        let submission = submission::of_changed(&files, &files)?;
        Ok((submission, ApplyCause::Restarted { at }))
    };
    write(&api, place, &request, change).await
}

/// Writes a new generation with the files that `change` derives from the present ones.
async fn write(
    api: &Arc<Api>,
    (namespace, name): (String, String),
    request: &WriteRequest,
    change: impl Fn(
        &Snapshot,
        &WorkloadKey,
        &WorkloadEntry,
    ) -> Result<(Submission, ApplyCause), ApiError>,
) -> Result<Response, ApiError> {
    let key = WorkloadKey::new(&namespace, &name);
    let now = api.now();
    let apply = |snapshot: &Snapshot| -> Result<WorkloadWrite<'_>, ApiError> {
        let entry = find(snapshot, &key)?;
        not_deleting(&key, entry)?;
        let (submission, cause) = change(snapshot, &key, entry)?;
        Ok(WorkloadWrite {
            submission,
            only_create: false,
            precondition: request.precondition,
            caller: &request.caller,
            uid: entry.meta.value.uid.clone(),
            now,
            cause,
            looked: None,
        })
    };
    let looked = image_pins::look_up_images(api, &apply(&*api.snapshot()?)?).await?;
    let apply = |snapshot: &Snapshot| {
        let mut apply = apply(snapshot)?;
        apply.looked.clone_from(&looked);
        Ok::<_, ApiError>(apply)
    };
    if request.query.dry_run {
        let apply = apply(&*api.snapshot()?)?;
        let previewed = preview::of(api, &apply).await?;
        return Ok(previewed.with_image_warnings(looked.as_ref()).answer(None));
    }
    let decide = |snapshot: &Snapshot| apply(snapshot)?.decide(snapshot);
    let _turn = api.growth.take(&key.namespace).await;
    let (written, revision) = api.write(decide).await?;
    Ok(written
        .with_image_warnings(looked.as_ref())
        .answer(revision))
}

pub(crate) async fn pause(
    State(api): State<Arc<Api>>,
    PathParameters(place): WorkloadPath,
    request: WriteRequest,
) -> Result<Response, ApiError> {
    set_paused(&api, place, request, true).await
}

pub(crate) async fn resume(
    State(api): State<Arc<Api>>,
    PathParameters(place): WorkloadPath,
    request: WriteRequest,
) -> Result<Response, ApiError> {
    set_paused(&api, place, request, false).await
}

async fn set_paused(
    api: &Arc<Api>,
    (namespace, name): (String, String),
    request: WriteRequest,
    paused: bool,
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
        precondition.check(Some(entry.meta.revision))?;
        not_deleting(&key, entry)?;
        let changed = entry.meta.value.paused != paused;
        let outcome = WriteResult::of(
            "Workload",
            WriteOutcome::of_change(changed),
            workload_metadata(&key, entry),
        );
        if !changed || query.dry_run {
            return Ok(WriteDecision::Done(outcome));
        }
        let meta = WorkloadMeta {
            paused,
            ..entry.meta.value.clone()
        };
        let (reason, message) = match paused {
            true => (
                EventReason::RolloutPaused,
                format!("{caller} paused its rollouts"),
            ),
            false => (
                EventReason::RolloutResumed,
                format!("{caller} resumed its rollouts"),
            ),
        };
        let mut operations = record(snapshot, now, reason, &key, &meta.uid, message);
        let meta_key = keys::workload_meta(&key.namespace, &key.name);
        operations.push(put(meta_key.clone(), &meta)?);
        Ok(WriteDecision::Write {
            conditions: vec![Compare::ModRevision(meta_key, entry.meta.revision)],
            operations,
            outcome,
        })
    };
    let (written, revision) = api.write(decide).await?;
    Ok(written.answer(revision))
}

pub(super) fn find<'a>(
    snapshot: &'a Snapshot,
    key: &WorkloadKey,
) -> Result<&'a WorkloadEntry, ApiError> {
    let entry = snapshot.workloads.get(key);
    entry
        .map(AsRef::as_ref)
        .ok_or_else(|| missing(snapshot, key))
}

pub(super) fn not_deleting(key: &WorkloadKey, entry: &WorkloadEntry) -> Result<(), ApiError> {
    if !entry.meta.value.deleting {
        return Ok(());
    }
    Err(ApiError::conflict(
        format!("the workload `{key}` is being deleted"),
        "wait until it is gone, then apply it again",
    ))
}

/// The present files of a workload.
pub(super) fn present(entry: &WorkloadEntry) -> Vec<SourceFile> {
    let files = entry.files.iter();
    files
        .map(|(name, stored)| SourceFile {
            name: name.clone(),
            text: stored.value.to_string(),
        })
        .collect()
}

pub(super) fn files_of(archived: &ArchivedGeneration) -> Vec<SourceFile> {
    let files = archived.files.iter();
    files
        .map(|(name, entry)| SourceFile {
            name: name.clone(),
            text: String::from_utf8_lossy(&entry.value).into_owned(),
        })
        .collect()
}
