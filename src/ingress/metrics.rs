//! Counters, which the agent reads from a file.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;

use kat_types::ingress::{IngressMetrics, RouteMetrics};

/// Counters of one route.
#[derive(Debug, Default)]
pub struct RouteCounters {
    /// By the first digit of the status code, from 1.
    responses: [AtomicU64; 5],
    pub(crate) upstream_failures: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) active: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    head_milliseconds: AtomicU64,
}

impl RouteCounters {
    /// Counts an answer, at the time of its head.
    pub(crate) fn answered(&self, status: u16, took: Duration) {
        let class = usize::from(status / 100).checked_sub(1);
        if let Some(counter) = class.and_then(|class| self.responses.get(class)) {
            counter.fetch_add(1, Relaxed);
        }
        let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.head_milliseconds.fetch_add(took, Relaxed);
    }

    fn read(&self) -> RouteMetrics {
        let classes = (1..).zip(&self.responses);
        let classes = classes.map(|(class, counter)| (class, counter.load(Relaxed)));
        RouteMetrics {
            responses: classes.filter(|(_, count)| *count > 0).collect(),
            upstream_failures: self.upstream_failures.load(Relaxed),
            retries: self.retries.load(Relaxed),
            active: self.active.load(Relaxed),
            received: self.received.load(Relaxed),
            sent: self.sent.load(Relaxed),
            head_milliseconds: self.head_milliseconds.load(Relaxed),
        }
    }
}

/// A limit at which a client was refused or cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limited {
    /// Too many connections at once.
    Connections,
    /// Too many connections from one address.
    ConnectionsOfAddress,
    /// The PROXY header was missing, late or malformed.
    ProxyHeader,
    /// The TLS handshake was late or failed.
    Handshake,
    /// Too many requests from one address.
    Requests,
    /// Too many requests under way from one address.
    RequestsUnderWay,
    /// An answer of which the client took nothing.
    NotTaken,
    /// Too many passwords of one client, or of one route at once.
    Passwords,
    /// Too many or too large headers.
    Headers,
    /// Too many reset streams.
    Resets,
    /// Too many PING and SETTINGS of HTTP/2.
    ControlFrames,
    /// No request for too long.
    Idle,
}

impl Limited {
    fn word(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionsOfAddress => "connectionsOfAddress",
            Self::ProxyHeader => "proxyHeader",
            Self::Handshake => "handshake",
            Self::Requests => "requests",
            Self::RequestsUnderWay => "requestsUnderWay",
            Self::NotTaken => "notTaken",
            Self::Passwords => "passwords",
            Self::Headers => "headers",
            Self::Resets => "resets",
            Self::ControlFrames => "controlFrames",
            Self::Idle => "idle",
        }
    }
}

/// All counters.
#[derive(Debug, Default)]
pub struct Metrics {
    pub(crate) connections: AtomicU64,
    pub(crate) accepted: AtomicU64,
    limited: Mutex<BTreeMap<Limited, u64>>,
    routes: Mutex<BTreeMap<String, Arc<RouteCounters>>>,
}

impl Metrics {
    /// The counters of a route; the empty name is for requests without one.
    pub fn route(&self, name: &str) -> Arc<RouteCounters> {
        let mut routes = self.routes.lock();
        if let Some(counters) = routes.get(name) {
            return Arc::clone(counters);
        }
        let counters = Arc::<RouteCounters>::default();
        routes.insert(name.to_owned(), Arc::clone(&counters));
        counters
    }

    /// Forgets routes that are gone.
    pub(crate) fn keep_routes(&self, keep: impl Fn(&str) -> bool) {
        let mut routes = self.routes.lock();
        routes.retain(|name, _| name.is_empty() || keep(name));
    }

    pub(crate) fn limited(&self, limit: Limited) {
        *self.limited.lock().entry(limit).or_default() += 1;
    }

    /// The present values.
    pub fn read(&self) -> IngressMetrics {
        let routes = self.routes.lock();
        let routes = routes
            .iter()
            .map(|(name, counters)| (name.clone(), counters.read()));
        let limited = self.limited.lock();
        let limited = limited
            .iter()
            .map(|(limit, count)| (limit.word().to_owned(), *count));
        IngressMetrics {
            schema: 1,
            connections: self.connections.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            limited: limited.collect(),
            routes: routes.collect(),
        }
    }
}
