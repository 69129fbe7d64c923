//! Preview of an apply: the same decision as for a real apply, the leader's own plan on a copy of
//! the store, and the difference between before and after.

mod fields;
mod files;
mod instances;
mod units;

use std::sync::{Arc, LazyLock};

use axum::http::StatusCode;

use crate::{
    apply::WorkloadWrite,
    context::{Api, WriteDecision},
    errors::ApiError,
    handlers::workloads::workload_objects::WriteResult,
    server::work_permits::SharedTurns,
    view::ApiView,
};
use jiff::Timestamp;
use kat_leader::{Rehearsal, RehearsalResult};
use kat_plan::{Snapshot, default_requests, rollout_in_words};
use kat_types::{
    api::Preview,
    encoding::json::NotEncoded,
    resource::name::check_new_namespace,
    store::{
        keys, records::NamespaceRecord, revisions::WorkloadKey, snapshot::ObservedReports,
        transaction::WriteOperation,
    },
};

/// Maximum number of concurrent previews: each copies and plans the whole cluster. Callers take
/// turns.
const AT_ONCE: usize = 1;

static PREVIEWS: LazyLock<SharedTurns> = LazyLock::new(|| SharedTurns::new(1, AT_ONCE));

/// The response to a dry run of an apply; nothing is written.
pub(crate) async fn of(api: &Arc<Api>, apply: &WorkloadWrite<'_>) -> Result<WriteResult, ApiError> {
    let _turn = PREVIEWS.take(&apply.caller.to_string()).await;
    api.leadership()?;
    // Read from the store, complete and at one revision: the leader's snapshot no longer contains
    // the keys.
    let listing = api.config.handle.store.list(keys::ROOT).await?;
    let mut rehearsal = Rehearsal::new(listing);
    let mut before = rehearsal.snapshot();
    let namespace = &apply.submission.namespace;
    if apply.submission.makes_namespace && !before.namespaces.contains_key(namespace) {
        check_new_namespace(namespace)
            .map_err(|error| ApiError::invalid(format!("metadata.name: {error}")))?;
        rehearsal.write(&[namespace_to_come(apply)?]);
        before = rehearsal.snapshot();
    }
    let (operations, outcome) = match apply.decide(&before)? {
        WriteDecision::Done(outcome) => return Ok(outcome),
        WriteDecision::Write {
            operations,
            outcome,
            ..
        } => (operations, outcome),
    };
    let key = WorkloadKey::new(namespace, &apply.submission.name);
    let (observed, now) = (api.observed(), apply.now);
    let played = tokio::task::spawn_blocking(move || {
        rehearsal.write(&operations);
        let rehearsed = rehearsal.play(observed.clone(), now);
        preview(&key, &before, &rehearsed, &observed, now)
    });
    let preview = played
        .await
        .map_err(|error| ApiError::Internal(format!("the preview ended early: {error}")))?;
    let preview = preview.map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok(WriteResult {
        status: StatusCode::OK,
        preview: Some(Box::new(preview)),
        ..outcome
    })
}

/// The write of the namespace that an apply of the same folder creates first.
fn namespace_to_come(apply: &WorkloadWrite<'_>) -> Result<WriteOperation, ApiError> {
    let settings = apply.submission.namespace_settings.as_ref();
    let record = NamespaceRecord {
        schema: 1,
        uid: String::new(),
        labels: Default::default(),
        created: apply.now,
        deleting: false,
        quota: settings.and_then(|spec| spec.quota).unwrap_or_default(),
        access: Default::default(),
        ingress_hosts: None,
        defaults: settings.and_then(|spec| spec.defaults).unwrap_or_default(),
    };
    crate::apply::put(keys::namespace(&apply.submission.namespace), &record)
}

/// The part of the difference between before and after that concerns this workload.
fn preview(
    key: &WorkloadKey,
    before: &Snapshot,
    rehearsed: &RehearsalResult,
    observed: &ObservedReports,
    now: Timestamp,
) -> Result<Preview, NotEncoded> {
    let after = &rehearsed.snapshot;
    let (old, new) = (before.workloads.get(key), after.workloads.get(key));
    let template = |entry: &Arc<kat_types::store::snapshot::WorkloadEntry>| {
        entry.meta.value.template_hash.clone()
    };
    let template_changed = old.is_some() && old.map(template) != new.map(template);
    let fates = instances::InstanceFates::of(key, before, rehearsed, observed);
    let rollout = new.filter(|_| template_changed && fates.replaces());
    let too_old = fates.too_old_to_prepare();
    let rollout = rollout.and_then(|entry| {
        let spec = &entry.parsed.as_ref().ok()?.workload.spec;
        Some(rollout_in_words(spec, &too_old))
    });
    let lacks_requests = new.is_some_and(|entry| {
        let parsed = entry.parsed.as_ref();
        parsed.is_ok_and(|parsed| parsed.workload.spec.lacks_requests())
    });
    let defaults = default_requests(after, &key.namespace);
    let default_requests = Some(defaults).filter(|list| lacks_requests && !list.is_empty());
    Ok(Preview {
        default_requests,
        rollout: rollout.unwrap_or_default(),
        present_generation: old.map(|entry| entry.meta.value.generation),
        template_changed,
        fields: fields::changes(old.map(AsRef::as_ref), new.map(AsRef::as_ref))?,
        files: files::changes(old.map(AsRef::as_ref), new.map(AsRef::as_ref)),
        units: units::changes(&fates, &before.cluster),
        routes: ApiView {
            snapshot: after,
            observed,
            leader: None,
            store: None,
            now,
        }
        .routes_of(key),
        blocked: fates.blocked.clone(),
        instances: fates.changes(old.is_none()),
        complete: rehearsed.complete,
    })
}
