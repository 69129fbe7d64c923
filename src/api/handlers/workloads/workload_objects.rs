//! Workloads: list, read, apply, delete, and their files as written.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

use crate::{
    access::authentication::Caller,
    apply::{
        ApplyCause, WorkloadWrite, image_pins, preview, removal::WorkloadRemoval, route_claims,
        submission,
    },
    context::Api,
    errors::ApiError,
    extract::{PathParameters, QueryParameters, WriteRequest},
    handlers::workloads::rollouts::{archived, files_of, find, present},
    server::limits::{MAX_ARCHIVE, check_content_type, read_body},
    view::workload_version,
    watch::{ListQuery, answer},
};
use kat_bundle::{CARRIED, unpack_carried};
use kat_types::{
    api::{ApplyResult, List, ListMetadata, Metadata, Preview, WriteOutcome},
    store::{records::ImageRecord, revisions::WorkloadKey, snapshot::WorkloadEntry},
};

/// Content type of a workload's archive.
pub(crate) const GZIP: &str = "application/gzip";

/// Query parameters of deletions.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct DeletionQuery {
    /// Return what would happen, and write nothing.
    dry_run: bool,
    /// Delete the data of its volumes too.
    volumes: bool,
}

/// The result of a write.
pub(crate) struct WriteResult {
    pub(crate) status: StatusCode,
    pub(crate) outcome: WriteOutcome,
    pub(crate) kind: &'static str,
    pub(crate) metadata: Metadata,
    /// The effects of a dry run.
    pub(crate) preview: Option<Box<Preview>>,
    /// What could not be checked.
    pub(crate) warnings: Vec<String>,
}

impl WriteResult {
    /// The result for an existing object, with status 200.
    pub(crate) fn of(kind: &'static str, outcome: WriteOutcome, metadata: Metadata) -> Self {
        Self {
            status: StatusCode::OK,
            outcome,
            kind,
            metadata,
            preview: None,
            warnings: Vec::new(),
        }
    }

    /// The result with a warning for each image whose lookup failed, if the write changes
    /// something.
    pub(crate) fn with_image_warnings(self, looked: Option<&ImageRecord>) -> Self {
        if self.outcome == WriteOutcome::Unchanged {
            return self;
        }
        let failed = looked.into_iter().flat_map(ImageRecord::each);
        let failed = failed.filter(|image| !image.problem.is_empty());
        let warnings = failed.map(|image| format!("image {}: {}", image.reference, image.problem));
        Self {
            warnings: self.warnings.into_iter().chain(warnings).collect(),
            ..self
        }
    }

    /// The result with further warnings.
    pub(crate) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    /// The response; `revision` is that of the write, if something was written.
    pub(crate) fn answer(mut self, revision: Option<i64>) -> Response {
        if let Some(revision) = revision {
            self.metadata.resource_version = revision.to_string();
        }
        let version = self.metadata.resource_version.clone();
        let result = ApplyResult {
            outcome: self.outcome,
            kind: self.kind.to_owned(),
            metadata: self.metadata,
            preview: self.preview,
            warnings: self.warnings,
        };
        with_etag((self.status, Json(result)).into_response(), &version)
    }
}

/// One item with its resourceVersion as `ETag`.
pub(crate) fn item<T: Serialize>(item: &T, version: &str) -> Response {
    with_etag(Json(item).into_response(), version)
}

fn with_etag(mut response: Response, version: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{version}\"")) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}

pub(crate) async fn list_all(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, &caller, &query, Arc::new(|view| view.workloads(None))).await
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(namespace): PathParameters<String>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    check_namespace_exists(&api, &namespace)?;
    let select = Arc::new(move |view: &crate::view::ApiView<'_>| view.workloads(Some(&namespace)));
    answer(&api, &caller, &query, select).await
}

/// Refuses lists of a namespace that does not exist, so that a misspelt name is noticed.
pub(crate) fn check_namespace_exists(api: &Api, namespace: &str) -> Result<(), ApiError> {
    if api.snapshot()?.namespaces.contains_key(namespace) {
        return Ok(());
    }
    Err(ApiError::not_found("namespace", namespace))
}

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name)): PathParameters<(String, String)>,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let observed = api.observed();
    let key = WorkloadKey::new(&namespace, &name);
    match api.view(&snapshot, &observed).workload(&key) {
        Some(found) => Ok(item(&found, &found.metadata.resource_version)),
        None => Err(missing(&snapshot, &key)),
    }
}

/// The error for a missing namespace, or else for a missing workload.
pub(crate) fn missing(snapshot: &kat_plan::Snapshot, key: &WorkloadKey) -> ApiError {
    if snapshot.namespaces.contains_key(&key.namespace) {
        ApiError::not_found("workload", &key.to_string())
    } else {
        ApiError::not_found("namespace", &key.namespace)
    }
}

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    PathParameters(namespace): PathParameters<String>,
    request: WriteRequest,
    files: Request,
) -> Result<Response, ApiError> {
    apply(&api, namespace, None, request, files).await
}

pub(crate) async fn update(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name)): PathParameters<(String, String)>,
    request: WriteRequest,
    files: Request,
) -> Result<Response, ApiError> {
    apply(&api, namespace, Some(name), request, files).await
}

async fn apply(
    api: &Arc<Api>,
    namespace: String,
    name: Option<String>,
    request: WriteRequest,
    files: Request,
) -> Result<Response, ApiError> {
    let WriteRequest {
        caller,
        precondition,
        query,
    } = request;
    let (parts, body) = files.into_parts();
    check_content_type(&parts.headers, GZIP)?;
    // Checked before unpacking: without leadership the call can't be answered.
    api.leadership()?;
    let archive = read_body(
        &parts.headers,
        body,
        MAX_ARCHIVE,
        api.config.limits.body_timeout,
    )
    .await?;
    let submission = submission::read(archive, &caller).await?;
    if submission.namespace != namespace {
        return Err(ApiError::invalid(format!(
            "workload.kat says namespace `{}`, the path says `{namespace}`",
            submission.namespace
        )));
    }
    if let Some(name) = name.as_ref().filter(|name| **name != submission.name) {
        return Err(ApiError::invalid(format!(
            "workload.kat says name `{}`, the path says `{name}`",
            submission.name
        )));
    }
    let mut apply = WorkloadWrite {
        only_create: name.is_none(),
        submission,
        precondition,
        caller: &caller,
        uid: (api.config.new_uid)(),
        now: api.now(),
        cause: ApplyCause::Applied,
        looked: None,
    };
    apply.looked = image_pins::look_up_images(api, &apply).await?;
    let looked = apply.looked.as_ref();
    let snapshot = api.snapshot()?;
    let routes = &apply.submission.routes;
    let of_routes =
        route_claims::warnings(&snapshot, &apply.submission.namespace, routes, apply.now);
    if query.dry_run {
        let previewed = preview::of(api, &apply).await?;
        let previewed = previewed.with_image_warnings(looked);
        return Ok(previewed.with_warnings(of_routes).answer(None));
    }
    let _turn = api.growth.take(&apply.submission.namespace).await;
    let (written, revision) = api.write(|snapshot| apply.decide(snapshot)).await?;
    let written = written.with_image_warnings(looked);
    Ok(written.with_warnings(of_routes).answer(revision))
}

pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name)): PathParameters<(String, String)>,
    request: WriteRequest<DeletionQuery>,
) -> Result<Response, ApiError> {
    let removal = WorkloadRemoval {
        key: WorkloadKey::new(&namespace, &name),
        precondition: request.precondition,
        dry_run: request.query.dry_run,
        volumes: request.query.volumes,
        caller: &request.caller,
        now: api.now(),
    };
    let (written, revision) = api.write(|snapshot| removal.decide(snapshot)).await?;
    Ok(written.answer(revision))
}

/// Query parameters of a workload's source.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct SourceQuery {
    /// A kept generation; the present files without it.
    generation: Option<u64>,
}

/// All files as they were written, as the archive that an apply sends. The `ETag` is good for the
/// `If-Match` of an apply, also with an earlier generation.
pub(crate) async fn source(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters((namespace, name)): PathParameters<(String, String)>,
    QueryParameters(query): QueryParameters<SourceQuery>,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let key = WorkloadKey::new(&namespace, &name);
    let entry = find(&snapshot, &key)?;
    let files = match query.generation {
        None => present(entry),
        Some(generation) => files_of(archived(entry, generation)?),
    };
    let version = workload_version(entry).to_string();
    let packed = submission::pack(files, &caller).await?;
    let headers = [
        (header::CONTENT_TYPE, GZIP),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok(with_etag((headers, packed).into_response(), &version))
}

pub(crate) async fn files(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name)): PathParameters<(String, String)>,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let key = WorkloadKey::new(&namespace, &name);
    let entry = snapshot
        .workloads
        .get(&key)
        .ok_or_else(|| missing(&snapshot, &key))?;
    let version = workload_version(entry).to_string();
    let list = List {
        items: names_of(entry),
        metadata: ListMetadata {
            resource_version: version.clone(),
        },
    };
    Ok(item(&list, &version))
}

/// Names of the `*.kat` files, then paths of the files that volumes mount.
fn names_of(entry: &WorkloadEntry) -> Vec<String> {
    let written = entry.files.keys().filter(|name| *name != CARRIED).cloned();
    let packed = entry.files.get(CARRIED);
    let carried = packed.and_then(|packed| unpack_carried(&packed.value).ok());
    let carried = carried.into_iter().flatten().map(|file| file.path);
    written.chain(carried).collect()
}

pub(crate) async fn file(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name, file)): PathParameters<(String, String, String)>,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let key = WorkloadKey::new(&namespace, &name);
    let entry = snapshot
        .workloads
        .get(&key)
        .ok_or_else(|| missing(&snapshot, &key))?;
    let packed = entry.files.get(CARRIED);
    let (content, kind, revision) = match entry.files.get(&file) {
        Some(stored) if file != CARRIED => {
            let content = stored.value.as_bytes().to_vec();
            (content, "text/plain; charset=utf-8", stored.revision)
        }
        _ => {
            let carried = packed.and_then(|packed| unpack_carried(&packed.value).ok());
            let found = carried.into_iter().flatten().find(|one| one.path == file);
            let found = found.ok_or_else(|| ApiError::not_found("file", &file))?;
            let revision = packed.map_or(0, |packed| packed.revision);
            (found.bytes, "application/octet-stream", revision)
        }
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let response = (headers, content).into_response();
    Ok(with_etag(response, &revision.to_string()))
}
