//! Logs of instances, for the API: of this machine from its journal, of others from their agents.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;

use super::agents::Agents;
use crate::{
    api::{
        self, InstanceLogs, LogStream, LogsError,
        client::{self, ClientError, JsonLines},
        types::LogLine,
    },
    plan::InstanceEntry,
    systemd::{LogEntry, LogError, LogQuery, LogSource},
};

/// Time to find out which run was the last but one.
const LOOK_BACK: Duration = Duration::from_secs(20);

/// Logs of this machine's instances.
pub struct JournalLogs {
    /// The journal.
    pub journal: Arc<dyn LogSource>,
}

impl JournalLogs {
    /// The container of the last run but one that wrote anything.
    async fn previous_run(&self, query: &LogQuery) -> Result<Option<String>, LogsError> {
        let mut entries = self.journal.entries(&LogQuery {
            newest_first: true,
            since: None,
            tail: None,
            ..query.clone()
        });
        let mut last: Option<String> = None;
        while let Some(entry) = entries.next().await {
            let Some(container) = line_or_error(entry)
                .transpose()?
                .and_then(|one| one.container_id)
            else {
                continue;
            };
            match &last {
                None => last = Some(container),
                Some(last) if *last != container => return Ok(Some(container)),
                Some(_) => {}
            }
        }
        Ok(None)
    }
}

/// Nothing for an entry that is passed over.
fn line_or_error(entry: Result<LogEntry, LogError>) -> Option<Result<LogEntry, LogsError>> {
    match entry {
        Ok(entry) => Some(Ok(entry)),
        Err(error) if error.is_passing() => None,
        Err(error) => Some(Err(LogsError::Journal(error.to_string()))),
    }
}

fn line(entry: &LogEntry) -> LogLine {
    let time = i64::try_from(entry.time_us).unwrap_or(0);
    LogLine {
        timestamp: Timestamp::from_microsecond(time)
            .map(|at| at.to_string())
            .unwrap_or_default(),
        message: entry.text(),
        priority: entry.priority,
        error: None,
    }
}

#[async_trait]
impl InstanceLogs for JournalLogs {
    async fn open(
        &self,
        instance: &InstanceEntry,
        query: api::LogQuery,
    ) -> Result<LogStream, LogsError> {
        let assignment = &instance.assignment.value;
        let since = query.since.map(|since| {
            SystemTime::UNIX_EPOCH
                + Duration::from_micros(u64::try_from(since.as_microsecond()).unwrap_or(0))
        });
        let mut wanted = LogQuery {
            uid: assignment.user.uid,
            unit: assignment.unit(),
            since,
            tail: query.tail,
            follow: query.follow,
            program_output_only: true,
            ..LogQuery::default()
        };
        if query.previous {
            let looking = tokio::time::timeout(LOOK_BACK, self.previous_run(&wanted));
            let found = looking.await.map_err(|_| {
                LogsError::Unavailable(
                    "the present run wrote too much to look back before it".to_owned(),
                )
            })??;
            let Some(container) = found else {
                return Ok(Box::pin(stream::empty()));
            };
            wanted.container = Some(container);
        }
        let lines = self.journal.entries(&wanted).filter_map(|entry| {
            std::future::ready(line_or_error(entry).map(|entry| entry.map(|one| line(&one))))
        });
        Ok(Box::pin(lines))
    }
}

/// Logs of all instances of the cluster.
pub struct ClusterLogs {
    /// Name of this machine.
    pub node: String,
    /// Those of this machine.
    pub here: Arc<dyn InstanceLogs>,
    /// The way to the others.
    pub agents: Agents,
}

#[async_trait]
impl InstanceLogs for ClusterLogs {
    async fn open(
        &self,
        instance: &InstanceEntry,
        query: api::LogQuery,
    ) -> Result<LogStream, LogsError> {
        let node = instance.node.clone();
        if node == self.node {
            return self.here.open(instance, query).await;
        }
        let client = self.agents.client(&node).map_err(LogsError::Away)?;
        let assignment = &instance.assignment.value;
        let query = client::LogQuery {
            follow: query.follow,
            since: query.since.map(|since| since.to_string()),
            tail: query.tail,
            previous: query.previous,
        };
        let lines = client
            .logs(
                &assignment.namespace,
                &assignment.workload,
                &assignment.instance,
                &query,
            )
            .await
            .map_err(|error| refused(&node, &error))?;
        Ok(relayed(node, lines))
    }
}

/// What another machine's agent said instead of a log.
fn refused(node: &str, error: &ClientError) -> LogsError {
    match error {
        ClientError::Refused(_) => {
            LogsError::Unavailable(format!("the machine `{node}` says: {error}"))
        }
        _ => LogsError::Away(super::agents::away(node, error)),
    }
}

/// Passes lines on until the other machine ends the log or goes away.
fn relayed(node: String, lines: JsonLines<LogLine>) -> LogStream {
    Box::pin(stream::unfold(Some(lines), move |lines| {
        let node = node.clone();
        async move {
            let mut lines = lines?;
            match lines.next().await {
                Ok(Some(line)) => Some((Ok(line), Some(lines))),
                Ok(None) => None,
                Err(error) => {
                    let away = LogsError::Away(super::agents::away(&node, &error));
                    Some((Err(away), None))
                }
            }
        }
    }))
}
