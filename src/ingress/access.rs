//! The record of one request: counters and, if the cluster wants it, a line in the journal.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use tokio::time::Instant;

use crate::{
    metrics::RouteCounters,
    upstream::body::{BodyError, BodyProgress},
};

/// Longest part of a request's path in the log, bytes.
const LONGEST_PATH: usize = 512;

/// What the log says of a request.
#[derive(Debug, Clone)]
pub(crate) struct LoggedRequest {
    pub route: String,
    /// Set with the answer.
    pub instance: String,
    pub client: IpAddr,
    pub method: String,
    pub host: String,
    /// Without the query, which may hold secrets.
    pub path: String,
    pub version: &'static str,
    pub tls: bool,
    pub user: String,
}

/// Counts a request until its answer has ended, and then logs it.
pub(crate) struct RequestRecord {
    counters: Arc<RouteCounters>,
    began: Instant,
    status: u16,
    sent: u64,
    problem: Option<String>,
    progress: Arc<BodyProgress>,
    /// `None` without access log.
    logged: Option<LoggedRequest>,
}

impl RequestRecord {
    pub(crate) fn new(
        counters: Arc<RouteCounters>,
        began: Instant,
        progress: Arc<BodyProgress>,
        logged: Option<LoggedRequest>,
    ) -> Self {
        counters.active.fetch_add(1, Relaxed);
        Self {
            counters,
            began,
            status: 0,
            sent: 0,
            problem: None,
            progress,
            logged,
        }
    }

    /// The head of the answer is there.
    pub(crate) fn answered(&mut self, status: u16, instance: &str, problem: Option<String>) {
        self.status = status;
        if let Some(logged) = &mut self.logged {
            instance.clone_into(&mut logged.instance);
        }
        self.problem = problem;
        self.counters.answered(status, self.began.elapsed());
    }

    /// The name of the user who signed in.
    pub(crate) fn user(&mut self, name: String) {
        if let Some(logged) = &mut self.logged {
            logged.user = name;
        }
    }

    /// No instance could answer.
    pub(crate) fn upstream_failed(&self) {
        self.counters.upstream_failures.fetch_add(1, Relaxed);
    }

    pub(crate) fn sent(&mut self, length: u64) {
        self.sent = self.sent.saturating_add(length);
    }

    pub(crate) fn broken(&mut self, error: &BodyError) {
        self.problem = Some(error.to_string());
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let received = self.progress.received();
        self.counters.active.fetch_sub(1, Relaxed);
        self.counters.received.fetch_add(received, Relaxed);
        self.counters.sent.fetch_add(self.sent, Relaxed);
        let Some(logged) = &self.logged else { return };
        let path = logged
            .path
            .get(..logged.path.floor_char_boundary(LONGEST_PATH));
        tracing::info!(
            target: "access",
            route = logged.route,
            client = %logged.client,
            method = logged.method,
            host = logged.host,
            path = path.unwrap_or_default(),
            version = logged.version,
            tls = logged.tls,
            user = logged.user,
            status = self.status,
            instance = logged.instance,
            received,
            sent = self.sent,
            milliseconds = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            problem = self.problem.as_deref().unwrap_or_default(),
            "request"
        );
    }
}
