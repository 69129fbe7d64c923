//! One connection for each endpoint, and the selection of the one in use.
//!
//! The client library can spread calls over endpoints, but it continues to send some of them to a
//! dead one. So each endpoint has a client of its own here, and one of them is in use. A call that
//! gets no answer from it switches all callers to the next.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::EtcdOptions;
use crate::StoreError;

/// A call that was dropped after this long counts as a failure of its endpoint.
const SUSPICIOUS: Duration = Duration::from_millis(500);

/// Pause before this machine's own endpoint is retried.
const HOME_AFTER: Duration = Duration::from_secs(5);

/// The clients, in the order of their endpoints.
pub(super) struct Connections {
    clients: Vec<Client>,
    current: AtomicUsize,
    /// When the first endpoint last failed; only if it is preferred.
    left: Option<Mutex<Instant>>,
}

impl Connections {
    /// Prepares a client for each endpoint; none of the endpoints needs to answer.
    pub(super) async fn open(options: &EtcdOptions) -> Result<Self, StoreError> {
        let connect = connect_options(options);
        let mut clients = Vec::new();
        for endpoint in &options.endpoints {
            let client = Client::connect([endpoint], Some(connect.clone()))
                .await
                .map_err(|failure| {
                    StoreError::Invalid(format!("the etcd endpoint {endpoint}: {failure}"))
                })?;
            clients.push(client);
        }
        if clients.is_empty() {
            return Err(StoreError::Invalid("no etcd endpoint is named".into()));
        }
        Ok(Self {
            clients,
            current: AtomicUsize::new(0),
            left: options.prefer_first.then(|| Mutex::new(Instant::now())),
        })
    }

    /// Number of endpoints.
    pub(super) fn count(&self) -> usize {
        self.clients.len()
    }

    /// The client in use, for one attempt.
    pub(super) fn attempt(self: &Arc<Self>) -> Option<(Client, EtcdCallAttempt)> {
        self.come_home();
        let index = self.current.load(Ordering::Relaxed) % self.clients.len().max(1);
        let client = self.clients.get(index)?.clone();
        let attempt = EtcdCallAttempt {
            connections: self.clone(),
            index,
            started: Instant::now(),
            answered: false,
        };
        Some((client, attempt))
    }

    /// Switches back to this machine's own endpoint, some time after it failed.
    fn come_home(&self) {
        let Some(left) = &self.left else { return };
        if self.current.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut left = left.lock();
        if left.elapsed() >= HOME_AFTER {
            *left = Instant::now();
            self.current.store(0, Ordering::Relaxed);
        }
    }

    /// Switches to the next endpoint, unless another call has done so.
    fn leave(&self, index: usize) {
        if let Some(left) = self.left.as_ref().filter(|_| index == 0) {
            *left.lock() = Instant::now();
        }
        let next = (index + 1) % self.clients.len().max(1);
        let _ = self
            .current
            .compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// One call on one endpoint. If it is dropped without an answer after a while, it switches to the
/// next endpoint, since the caller's time limit may be shorter than the call's.
pub(super) struct EtcdCallAttempt {
    connections: Arc<Connections>,
    index: usize,
    started: Instant,
    answered: bool,
}

impl EtcdCallAttempt {
    /// Called when the endpoint answered, with any result.
    pub(super) fn answered(mut self) {
        self.answered = true;
    }

    /// Called when the endpoint can't serve; the next attempt uses another one.
    pub(super) fn failed(mut self) {
        self.answered = true;
        self.connections.leave(self.index);
    }
}

impl Drop for EtcdCallAttempt {
    fn drop(&mut self) {
        if !self.answered && self.started.elapsed() >= SUSPICIOUS {
            self.connections.leave(self.index);
        }
    }
}

fn connect_options(options: &EtcdOptions) -> ConnectOptions {
    let second = Duration::from_secs(1);
    // Without the HTTP/2 keepalive a watch on a frozen server hangs forever. There is no time limit
    // for the whole connection, since that would end watches.
    let connect = ConnectOptions::new()
        .with_connect_timeout(2 * second)
        .with_keep_alive(2 * second, 2 * second)
        .with_keep_alive_while_idle(true)
        .with_require_leader(true);
    match &options.tls {
        Some(tls) => connect.with_tls(
            TlsOptions::new()
                .ca_certificate(Certificate::from_pem(&tls.authority))
                .identity(Identity::from_pem(&tls.certificate, &tls.key)),
        ),
        None => connect,
    }
}
