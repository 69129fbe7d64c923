//! Logs of this machine's instances, for the API.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures_util::StreamExt;
use jiff::Timestamp;

use crate::{
    api::{self, InstanceLogs, LogStream, LogsError, types::LogLine},
    plan::InstanceEntry,
    systemd::{LogQuery, LogSource},
};

/// Logs of this machine's instances. (Those of others come with the cluster.)
pub struct JournalLogs {
    /// The journal.
    pub journal: Arc<dyn LogSource>,
    /// Name of this machine.
    pub node: String,
}

#[async_trait]
impl InstanceLogs for JournalLogs {
    async fn open(
        &self,
        instance: &InstanceEntry,
        query: api::LogQuery,
    ) -> Result<LogStream, LogsError> {
        if instance.node != self.node {
            return Err(LogsError::Unavailable(format!(
                "the instance runs on {}, not here",
                instance.node
            )));
        }
        let assignment = &instance.assignment.value;
        let since = query.since.map(|since| {
            SystemTime::UNIX_EPOCH
                + Duration::from_micros(u64::try_from(since.as_microsecond()).unwrap_or(0))
        });
        let wanted = LogQuery {
            uid: assignment.user.uid,
            unit: assignment.unit(),
            since,
            this_boot: false,
            tail: query.tail,
            after_cursor: None,
            follow: query.follow,
            program_output_only: true,
        };
        let lines = self.journal.entries(&wanted).filter_map(|entry| {
            std::future::ready(match entry {
                Ok(entry) => Some(Ok(LogLine {
                    timestamp: Timestamp::from_microsecond(
                        i64::try_from(entry.time_us).unwrap_or(0),
                    )
                    .map(|at| at.to_string())
                    .unwrap_or_default(),
                    message: entry.text(),
                    priority: entry.priority,
                    error: None,
                })),
                Err(error) if error.is_passing() => None,
                Err(error) => Some(Err(LogsError::Journal(error.to_string()))),
            })
        });
        Ok(Box::pin(lines))
    }
}
