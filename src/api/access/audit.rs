//! The audit log: one line for each call (RFC001-KAT 9.1, API Audit), at the target `audit`, and
//! the counters of calls.
//!
//! Anybody can call, as often as the network allows. So the number of lines is bounded: for the
//! calls of anonymous callers and those above a caller's rate together, in each second; for the
//! refused calls of each known caller, in each ten seconds. Further calls are counted, and the
//! count is a line of its own.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::Response,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    access::authentication::{Caller, ConnectionPeer},
    context::Api,
    routes::{ApiOperation, ApiRoute},
};
use kat_types::api::STALE_HEADER;

/// Added to a response by the gate, for the audit line.
#[derive(Clone)]
pub(crate) struct HandledRequest {
    pub(crate) route: &'static ApiRoute,
    /// The caller; anonymous if unknown.
    pub(crate) caller: Caller,
}

/// Name of unknown routes in the counters.
const NO_ROUTE: &str = "(none)";
/// Maximum characters of a path in a line.
const MAX_PATH: usize = 256;

/// Maximum lines of bounded calls in one period.
const BOUNDED_LINES: u32 = 20;
/// Period for calls that anybody can cause.
const WHILE: Duration = Duration::from_secs(1);
/// Period for the refused calls of one known caller: a program that calls in a loop must not push
/// older lines out.
const WHILE_REFUSED: Duration = Duration::from_secs(10);

/// The callers whose lines are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AuditedCaller {
    /// Anybody who can reach the port.
    Anybody,
    /// One caller, in the form of [`Caller`]'s `Display`, whose calls are refused.
    Refused(String),
}

impl AuditedCaller {
    fn time(&self) -> Duration {
        match self {
            Self::Anybody => WHILE,
            Self::Refused(_) => WHILE_REFUSED,
        }
    }
}

/// Number of bounded lines written in the current periods.
#[derive(Debug, Default)]
pub(crate) struct BoundedLines(Mutex<BTreeMap<AuditedCaller, SpentAuditLines>>);

#[derive(Debug)]
struct SpentAuditLines {
    since: Instant,
    lines: u32,
    held_back: u64,
}

impl BoundedLines {
    /// Whether one more line may be written. First writes the counts of periods that have ended.
    pub(crate) fn take(&self, whose: AuditedCaller) -> bool {
        self.settle();
        let mut all = self.0.lock();
        let spent = all.entry(whose).or_insert_with(|| SpentAuditLines {
            since: Instant::now(),
            lines: 0,
            held_back: 0,
        });
        if spent.lines >= BOUNDED_LINES {
            spent.held_back = spent.held_back.saturating_add(1);
            return false;
        }
        spent.lines += 1;
        true
    }

    /// Writes the counts of held back lines of periods that have ended.
    pub(crate) fn settle(&self) {
        for (whose, more) in self.expired() {
            match whose {
                AuditedCaller::Anybody => {
                    tracing::info!(target: "audit", "{more} more calls, of anonymous callers or above a caller's rate or refused by an agent's port");
                }
                AuditedCaller::Refused(caller) => {
                    tracing::info!(target: "audit", "{more} more calls by {caller} that were refused");
                }
            }
        }
    }

    /// Numbers of held back lines of periods that have ended; these start anew.
    fn expired(&self) -> Vec<(AuditedCaller, u64)> {
        let mut all = self.0.lock();
        let over = all.extract_if(.., |whose, spent| spent.since.elapsed() >= whose.time());
        let held_back = over.map(|(whose, spent)| (whose, spent.held_back));
        held_back.filter(|(_, more)| *more > 0).collect()
    }
}

/// The group in which the line of this call is counted; `None` if every such call has a line.
fn bounded(caller: &Caller, status: u16) -> Option<AuditedCaller> {
    if *caller == Caller::Anonymous || status == 429 {
        return Some(AuditedCaller::Anybody);
    }
    (status >= 400).then(|| AuditedCaller::Refused(caller.to_string()))
}

/// Whether programs make such calls every few seconds: each machine reports, and Prometheus scrapes
/// each. These have a line at the debug level alone, unless they are refused.
fn is_periodic(operation: ApiOperation) -> bool {
    matches!(
        operation,
        ApiOperation::ReportNode
            | ApiOperation::Metrics
            | ApiOperation::GetNodeMetrics
            | ApiOperation::ListMetricsTargets
    )
}

/// Writes the audit line. The query is left out; the path contains only names.
pub(crate) async fn observe(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let path: String = request.uri().path().chars().take(MAX_PATH).collect();
    let method = request.method().clone();
    let peer = request.extensions().get::<ConnectionPeer>();
    let source = peer.map_or_else(String::new, |peer| peer.source.to_string());
    let mut response = next.run(request).await;
    let duration = started.elapsed();
    let status = response.status().as_u16();
    let handled = response.extensions_mut().remove::<HandledRequest>();
    let caller = handled
        .as_ref()
        .map_or(&Caller::Anonymous, |handled| &handled.caller);
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    api.bounded_lines.settle();
    let periodic = handled
        .as_ref()
        .is_some_and(|handled| is_periodic(handled.route.operation));
    if periodic && status < 400 {
        tracing::debug!(target: "audit", "{method} {path} {status} by {caller} from {source} in {milliseconds} ms");
    } else if bounded(caller, status).is_none_or(|whose| api.bounded_lines.take(whose)) {
        tracing::info!(target: "audit", "{method} {path} {status} by {caller} from {source} in {milliseconds} ms");
    }
    let route = handled
        .as_ref()
        .map(|handled| (handled.route.verb.as_str(), handled.route.path));
    let (verb, route) = route.unwrap_or(("(any)", NO_ROUTE));
    api.counters.count(verb, route, status, duration);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if api.is_stale() {
        headers.insert(STALE_HEADER, HeaderValue::from_static("true"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn strangers_calls_have_twenty_lines_a_second_and_the_rest_is_counted() {
        let lines = BoundedLines::default();
        let written = (0..1000)
            .filter(|_| lines.take(AuditedCaller::Anybody))
            .count();
        assert_eq!(written, 20);
        assert_eq!(lines.expired(), [], "its time is not over");
        tokio::time::advance(WHILE).await;
        assert_eq!(lines.expired(), [(AuditedCaller::Anybody, 980)]);
        assert_eq!(lines.expired(), [], "it was told");
        assert!(lines.take(AuditedCaller::Anybody));
    }

    #[tokio::test(start_paused = true)]
    async fn refused_calls_of_one_caller_are_counted_apart_from_others() {
        let lines = BoundedLines::default();
        let caller = |id: &str| AuditedCaller::Refused(format!("token:{id}"));
        let written = (0..100).filter(|_| lines.take(caller("a"))).count();
        assert_eq!(written, 20);
        assert!(lines.take(caller("b")) && lines.take(AuditedCaller::Anybody));
        tokio::time::advance(WHILE).await;
        assert_eq!(lines.expired(), []);
        assert!(!lines.take(caller("a")), "ten seconds are not over");
        tokio::time::advance(WHILE_REFUSED).await;
        assert_eq!(lines.expired(), [(caller("a"), 81)]);
        assert!(lines.0.lock().is_empty());
    }

    #[test]
    fn calls_of_known_callers_have_their_line_unless_they_are_refused() {
        let admin = Caller::Admin(crate::access::authentication::CertifiedMachine {
            name: "n1".to_owned(),
            key_hash: "key".to_owned(),
        });
        for status in [200, 201] {
            assert_eq!(bounded(&admin, status), None, "{status}");
            assert_eq!(
                bounded(&Caller::Anonymous, status),
                Some(AuditedCaller::Anybody),
                "{status}"
            );
        }
        for status in [403, 404, 500] {
            let refused = Some(AuditedCaller::Refused("admin:n1".to_owned()));
            assert_eq!(bounded(&admin, status), refused, "{status}");
        }
        assert_eq!(bounded(&admin, 429), Some(AuditedCaller::Anybody));
    }
}
