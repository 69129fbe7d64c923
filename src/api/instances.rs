//! Instances and their logs.

use std::{pin::Pin, sync::Arc};

use async_trait::async_trait;
use axum::{
    Extension,
    body::{Body, Bytes},
    extract::State,
    response::Response,
};
use futures_util::{Stream, StreamExt};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::{
    sync::{OwnedSemaphorePermit, watch::Receiver},
    time::{Instant, sleep_until},
};

use super::{
    caller::{Caller, still_valid},
    context::Api,
    errors::ApiError,
    extract::{At, Parameters},
    types::LogLine,
    view::View,
    watch::{ListQuery, Select, answer, line, ndjson},
    workloads::{check_namespace_exists, item, missing},
};
use crate::plan::{InstanceEntry, Snapshot, WorkloadKey};

/// What is asked of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Stay and say what is added.
    pub follow: bool,
    /// Nothing that is older.
    pub since: Option<Timestamp>,
    /// Only so many of the last lines, before what is added.
    pub tail: Option<u64>,
}

/// Why a log can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogsError {
    /// Its machine can't be asked now.
    #[error("{0}")]
    Unavailable(String),
    /// The journal can't be read.
    #[error("the journal can't be read: {0}")]
    Journal(String),
}

/// Lines as they come. It ends, unless it follows; an error ends it early.
pub type LogStream = Pin<Box<dyn Stream<Item = Result<LogLine, LogsError>> + Send>>;

/// Opens logs of instances, wherever they run.
#[async_trait]
pub trait InstanceLogs: Send + Sync + 'static {
    /// The log of one instance. The stream is dropped when the reader goes away.
    async fn open(&self, instance: &InstanceEntry, query: LogQuery)
    -> Result<LogStream, LogsError>;
}

/// Those of one workload, one namespace, or all; on some sockets this machine's alone.
fn select(
    api: &Api,
    caller: &Caller,
    namespace: Option<String>,
    workload: Option<String>,
) -> Select<super::types::InstanceItem> {
    let node = caller
        .sees_only_this_machine()
        .then(|| api.config.node_name.clone());
    Arc::new(move |view: &View<'_>| {
        view.instances(|entry| {
            let assignment = &entry.assignment.value;
            namespace
                .as_ref()
                .is_none_or(|namespace| assignment.namespace == *namespace)
                && workload
                    .as_ref()
                    .is_none_or(|workload| assignment.workload == *workload)
                && node.as_ref().is_none_or(|node| entry.node == *node)
        })
    })
}

pub(super) async fn list_all(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Parameters(query): Parameters<ListQuery>,
) -> Result<Response, ApiError> {
    let select = select(&api, &caller, None, None);
    answer(&api, &caller, &query, select).await
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    At(namespace): At<String>,
    Parameters(query): Parameters<ListQuery>,
) -> Result<Response, ApiError> {
    check_namespace_exists(&api, &namespace)?;
    let select = select(&api, &caller, Some(namespace), None);
    answer(&api, &caller, &query, select).await
}

pub(super) async fn list_of_workload(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    At((namespace, workload)): At<(String, String)>,
    Parameters(query): Parameters<ListQuery>,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let key = WorkloadKey::new(&namespace, &workload);
    if !snapshot.workloads.contains_key(&key) {
        return Err(missing(&snapshot, &key));
    }
    let select = select(&api, &caller, Some(namespace), Some(workload));
    answer(&api, &caller, &query, select).await
}

pub(super) async fn get(
    State(api): State<Arc<Api>>,
    At((namespace, id)): At<(String, String)>,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let observed = api.observed();
    let found = api.view(&snapshot, &observed).instance(&namespace, &id);
    let found = found.ok_or_else(|| ApiError::not_found("instance", &id))?;
    Ok(item(&found, &found.metadata.resource_version))
}

/// The query of a log.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct LogParameters {
    follow: bool,
    since: Option<String>,
    tail: Option<u64>,
}

pub(super) async fn logs(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    At((namespace, workload, id)): At<(String, String, String)>,
    Parameters(query): Parameters<LogParameters>,
) -> Result<Response, ApiError> {
    let since = match query.since.as_deref() {
        None => None,
        Some(text) => Some(text.parse().map_err(|error| {
            ApiError::invalid(format!(
                "since: expected a time such as `2026-01-31T12:00:00Z`: {error}"
            ))
        })?),
    };
    let snapshot = api.snapshot()?;
    let entry = snapshot.instances.get(&id).filter(|entry| {
        let assignment = &entry.assignment.value;
        assignment.namespace == namespace && assignment.workload == workload
    });
    let entry = entry.ok_or_else(|| ApiError::not_found("instance", &id))?;
    let permit = Arc::clone(&api.streams)
        .try_acquire_owned()
        .map_err(|_| ApiError::TooManyRequests(5))?;
    let query = LogQuery {
        follow: query.follow,
        since,
        tail: query.tail,
    };
    let lines = match api.config.logs.open(entry, query).await {
        Ok(lines) => lines,
        Err(error) => return Err(ApiError::Unavailable(error.to_string())),
    };
    let reading = Reading {
        checked_at: Instant::now(),
        snapshots: api.config.handle.snapshot.clone(),
        api,
        caller,
        lines: Some(lines),
        _permit: permit,
    };
    let lines = futures_util::stream::unfold(reading, |mut reading| async move {
        let line = reading.next().await?;
        Some((line, reading))
    });
    Ok(ndjson(Body::from_stream(lines)))
}

/// A log that is being read, for as long as its reader may.
struct Reading {
    api: Arc<Api>,
    caller: Caller,
    snapshots: Receiver<Option<Arc<Snapshot>>>,
    checked_at: Instant,
    /// Nothing once it was ended before its time.
    lines: Option<LogStream>,
    _permit: OwnedSemaphorePermit,
}

impl Reading {
    /// An error breaks the connection off, so that a reader never takes it for the end.
    async fn next(&mut self) -> Option<Result<Bytes, LogsError>> {
        let shutdown = self.api.shutdown.clone();
        loop {
            // A token runs out without any change of the state.
            let check_at = self.checked_at + self.api.config.limits.bookmark_interval;
            let lines = self.lines.as_mut()?;
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return None,
                Ok(()) = self.snapshots.changed() => {}
                () = sleep_until(check_at) => {}
                log_line = lines.next() => {
                    return log_line.map(|line_or_error| line_or_error.map(|one| line(&one)));
                }
            }
            self.checked_at = Instant::now();
            let snapshot = self.snapshots.borrow_and_update().clone();
            let now = self.api.now();
            let valid = snapshot.map_or(Ok(()), |one| still_valid(&self.caller, &one, now));
            if let Err(error) = valid {
                self.lines = None;
                return Some(Ok(line(&LogLine {
                    timestamp: now.to_string(),
                    error: Some(error.body()),
                    ..LogLine::default()
                })));
            }
        }
    }
}
