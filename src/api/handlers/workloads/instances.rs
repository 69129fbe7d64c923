//! Instances and their logs.

use std::{pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Extension,
    body::{Body, Bytes},
    extract::State,
    response::Response,
};
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use tokio::{
    sync::watch::Receiver,
    time::{Instant, sleep_until},
};

use crate::{
    access::authentication::{Caller, still_valid},
    context::Api,
    errors::ApiError,
    extract::{PathParameters, QueryParameters},
    handlers::workloads::{
        gone_instances,
        workload_objects::{check_namespace_exists, item, missing},
    },
    server::open_streams::OpenStreamPermit,
    view::ApiView,
    watch::{ListQuery, SelectItems, answer, line, ndjson},
};
use kat_plan::Snapshot;
use kat_types::{
    api::{GoneInstances, LogLine, LogQuery},
    assignment::Assignment,
    store::{revisions::WorkloadKey, snapshot::InstanceEntry},
};

/// Silence after which the log of a removed instance is complete, where its machine does not end the
/// log: it has left the list meanwhile, or its `kat-agent` is of an older version.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Why a log can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogsError {
    /// The log can't be read now.
    #[error("{0}")]
    Unavailable(String),
    /// The instance's machine can't be reached now.
    #[error("{0}")]
    Away(String),
    /// The journal can't be read.
    #[error("the journal can't be read: {0}")]
    Journal(String),
}

impl From<LogsError> for ApiError {
    fn from(error: LogsError) -> Self {
        match error {
            LogsError::Away(reason) => Self::MachineAway(reason),
            LogsError::Unavailable(_) | LogsError::Journal(_) => {
                Self::Unavailable(error.to_string())
            }
        }
    }
}

/// Lines as they arrive. The stream ends unless `follow` is set; an error ends it early.
pub type LogStream = Pin<Box<dyn Stream<Item = Result<LogLine, LogsError>> + Send>>;

/// A workload, by its names and its identity: one that was deleted and created again has another
/// uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedWorkload {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Opens logs of instances on any machine.
#[async_trait]
pub trait InstanceLogs: Send + Sync + 'static {
    /// Opens the log of one instance. The stream is dropped when the reader disconnects.
    async fn open(&self, instance: &InstanceEntry, query: LogQuery)
    -> Result<LogStream, LogsError>;

    /// The instances of the workload that these machines had and have no more. Machines that do not
    /// answer in time are named.
    async fn gone(&self, workload: &LoggedWorkload, nodes: &[String]) -> GoneInstances;

    /// Opens the log of an instance of the workload that `node` had; `None` where that does not
    /// remember it. The stream ends by itself.
    async fn open_gone(
        &self,
        workload: &LoggedWorkload,
        node: &str,
        instance: &str,
        query: LogQuery,
    ) -> Result<Option<LogStream>, LogsError>;
}

/// Selects the instances of one workload, one namespace, or all; on a socket with limited rights
/// only this machine's.
fn select(
    api: &Api,
    caller: &Caller,
    namespace: Option<String>,
    workload: Option<String>,
) -> SelectItems<kat_types::api::InstanceItem> {
    let node = caller
        .sees_only_this_machine()
        .then(|| api.config.node_name.clone());
    Arc::new(move |view: &ApiView<'_>| {
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

pub(crate) async fn list_all(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    let select = select(&api, &caller, None, None);
    answer(&api, &caller, &query, select).await
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(namespace): PathParameters<String>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    check_namespace_exists(&api, &namespace)?;
    let select = select(&api, &caller, Some(namespace), None);
    answer(&api, &caller, &query, select).await
}

pub(crate) async fn list_of_workload(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters((namespace, workload)): PathParameters<(String, String)>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let key = WorkloadKey::new(&namespace, &workload);
    if !snapshot.workloads.contains_key(&key) {
        return Err(missing(&snapshot, &key));
    }
    let select = select(&api, &caller, Some(namespace), Some(workload));
    answer(&api, &caller, &query, select).await
}

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, id)): PathParameters<(String, String)>,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let observed = api.observed();
    let found = api.view(&snapshot, &observed).instance(&namespace, &id);
    let found = found.ok_or_else(|| ApiError::not_found("instance", &id))?;
    Ok(item(&found, &found.metadata.resource_version))
}

/// Query parameters of a log.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct LogParameters {
    follow: bool,
    since: Option<String>,
    tail: Option<u64>,
    previous: bool,
    container: Option<String>,
    node: Option<String>,
    gone_of: Option<String>,
}

impl LogParameters {
    pub(crate) fn query(self) -> Result<LogQuery, ApiError> {
        let since = match self.since.as_deref() {
            None => None,
            Some(text) => Some(text.parse().map_err(|error| {
                ApiError::invalid(format!(
                    "since: expected a time such as `2026-01-31T12:00:00Z`: {error}"
                ))
            })?),
        };
        if self.previous && self.follow {
            return Err(ApiError::invalid(
                "`previous` and `follow` can't be asked for together: a run that ended says nothing more",
            ));
        }
        Ok(LogQuery {
            follow: self.follow,
            since,
            tail: self.tail,
            previous: self.previous,
            container: self.container,
            node: self.node,
            gone_of: self.gone_of,
        })
    }
}

pub(crate) async fn logs(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters((namespace, workload, id)): PathParameters<(String, String, String)>,
    QueryParameters(query): QueryParameters<LogParameters>,
) -> Result<Response, ApiError> {
    let query = query.query()?;
    let snapshot = api.snapshot()?;
    let entry = snapshot.instances.get(&id).filter(|entry| {
        let assignment = &entry.assignment.value;
        assignment.namespace == namespace && assignment.workload == workload
    });
    let held = api.stream(&caller)?;
    let follows = (query.follow && entry.is_some()).then(|| id.clone());
    let lines = match (entry, query.node.clone()) {
        (Some(entry), _) => {
            if let Some(name) = &query.container {
                let assignment = &entry.assignment.value;
                if assignment.unit_of(name).is_none() {
                    return Err(no_container(assignment, name));
                }
            }
            // A caller names the machine of an instance that may leave before it is asked for.
            let query = LogQuery {
                node: None,
                ..query
            };
            api.config.logs.open(entry, query).await?
        }
        (None, Some(node)) => {
            let named = (namespace.as_str(), workload.as_str(), id.as_str());
            gone_instances::open(&api, &snapshot, named, &node, query).await?
        }
        (None, None) => return Err(ApiError::not_found("instance", &id)),
    };
    let reading = GuardedLog {
        checked_at: Instant::now(),
        follows,
        ends_at: None,
        snapshots: api.config.handle.snapshot.clone(),
        api,
        caller,
        lines: Some(lines),
        _held: held,
    };
    let lines = futures_util::stream::unfold(reading, |mut reading| async move {
        let line = reading.next().await?;
        Some((line, reading))
    });
    Ok(ndjson(Body::from_stream(lines)))
}

/// The error for a container that the instance does not have.
fn no_container(assignment: &Assignment, name: &str) -> ApiError {
    let names = assignment.container_names().join(", ");
    let id = &assignment.instance;
    ApiError::invalid(match names.is_empty() {
        true => format!("container: `{id}` has one container, and that has no name"),
        false => format!("container: `{id}` has no container `{name}`; its containers are {names}"),
    })
}

/// A log being read, for as long as its reader is valid.
struct GuardedLog {
    api: Arc<Api>,
    caller: Caller,
    snapshots: Receiver<Option<Arc<Snapshot>>>,
    checked_at: Instant,
    /// The instance whose removal ends this log, since the journal does not show it.
    follows: Option<String>,
    /// When the log ends unless a line comes before, since the instance was removed.
    ends_at: Option<Instant>,
    /// `None` once the log was ended early.
    lines: Option<LogStream>,
    _held: OpenStreamPermit,
}

impl GuardedLog {
    /// An error breaks off the connection, so that a reader never takes it for the end of the log.
    async fn next(&mut self) -> Option<Result<Bytes, LogsError>> {
        let shutdown = self.api.shutdown.clone();
        loop {
            // A token expires without any change of the state.
            let check_at = self.checked_at + self.api.config.limits.bookmark_interval;
            let ends_at = self.ends_at;
            let over = async {
                match ends_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let lines = self.lines.as_mut()?;
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return None,
                Ok(()) = self.snapshots.changed() => {}
                () = sleep_until(check_at) => {}
                () = over => return None,
                log_line = lines.next() => return match log_line? {
                    Ok(one) => {
                        self.ends_at = self.ends_at.map(|_| Instant::now() + LAST_LINES);
                        Some(Ok(line(&one)))
                    }
                    Err(error @ LogsError::Away(_)) => {
                        self.lines = None;
                        Some(Ok(self.last_line(&error.into())))
                    }
                    Err(error) => Some(Err(error)),
                },
            }
            self.checked_at = Instant::now();
            let snapshot = self.snapshots.borrow_and_update().clone();
            let now = self.api.now();
            let Some(snapshot) = snapshot else { continue };
            if let Err(error) = still_valid(&self.caller, &snapshot, now) {
                self.lines = None;
                return Some(Ok(self.last_line(&error)));
            }
            let gone = |id: &String| !snapshot.instances.contains_key(id);
            if self.ends_at.is_none() && self.follows.as_ref().is_some_and(gone) {
                self.ends_at = Some(Instant::now() + LAST_LINES);
            }
        }
    }

    /// The last line of a log that ends early, with the reason.
    fn last_line(&self, error: &ApiError) -> Bytes {
        line(&LogLine {
            timestamp: self.api.now().into(),
            error: Some(error.body()),
            ..LogLine::default()
        })
    }
}
