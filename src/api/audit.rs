//! One line for each call (RFC001-KAT 9.1, API Audit), at the target `audit`, and the counters.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::Response,
};
use tokio::time::Instant;

use super::{
    caller::{Caller, Peer},
    context::Api,
    routes::{Operation, Route},
    types::STALE_HEADER,
};

/// Put into a response by the gate, for the line.
#[derive(Clone)]
pub(super) struct Handled {
    /// The route, if one was found.
    pub(super) route: &'static Route,
    /// Who called, if that is known.
    pub(super) caller: Caller,
}

/// Name of unknown routes among the counters.
const NO_ROUTE: &str = "(none)";
/// Most characters of a path in a line.
const MAX_PATH: usize = 256;

/// Writes the line. The query is left out; the path holds names alone.
pub(super) async fn observe(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let path: String = request.uri().path().chars().take(MAX_PATH).collect();
    let method = request.method().clone();
    let peer = request.extensions().get::<Peer>();
    let source = peer.map_or_else(String::new, |peer| peer.source.to_string());
    let mut response = next.run(request).await;
    let duration = started.elapsed();
    let status = response.status().as_u16();
    let handled = response.extensions_mut().remove::<Handled>();
    let caller = handled
        .as_ref()
        .map_or(&Caller::Anonymous, |handled| &handled.caller);
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let heartbeat = handled
        .as_ref()
        .is_some_and(|handled| handled.route.operation == Operation::ReportNode);
    // A report that is taken comes every few seconds from every machine: it is told only on request.
    if heartbeat && status < 400 {
        tracing::debug!(target: "audit", "{method} {path} {status} by {caller} from {source} in {milliseconds} ms");
    } else {
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
