//! One connection for each endpoint, and the selection of the one in use.
//!
//! The client library can spread calls over endpoints, but it continues to send some of them to a
//! dead one. So each endpoint has a client of its own here, and one of them is in use. A call that
//! gets no answer from it switches all callers to the next. Callers return to this machine's own
//! endpoint when it has answered a probe in the background: a call that tried it would wait for its
//! whole time limit while that endpoint hangs.

use std::{sync::Arc, time::Duration};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{
    EtcdOptions,
    error::{self, RetryVerdict},
};
use crate::StoreError;
use kat_types::{
    backoff::{Backoff, Pauses},
    store::keys,
};

/// A call that was dropped after this long counts as a failure of its endpoint.
const SUSPICIOUS: Duration = Duration::from_millis(500);

/// Pauses before the probes of this machine's own endpoint, after it failed.
const PROBE_PAUSES: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(30));

/// Longest wait for the answer to a probe; below the shortest of [`PROBE_PAUSES`], so one probe runs
/// at a time.
const PROBE_LIMIT: Duration = Duration::from_millis(1500);

/// The clients, in the order of their endpoints.
pub(super) struct Connections {
    clients: Vec<Client>,
    choice: Mutex<EndpointChoice>,
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
        let choice = EndpointChoice::new(clients.len(), options.prefer_first);
        Ok(Self {
            clients,
            choice: Mutex::new(choice),
        })
    }

    /// Number of endpoints.
    pub(super) fn count(&self) -> usize {
        self.clients.len()
    }

    /// The client in use, for one attempt.
    pub(super) fn attempt(self: &Arc<Self>) -> Option<(Client, EtcdCallAttempt)> {
        let now = Instant::now();
        let (index, probe) = {
            let mut choice = self.choice.lock();
            (choice.current, choice.take_due_probe(now))
        };
        if probe {
            self.probe_home();
        }
        let client = self.clients.get(index)?.clone();
        let attempt = EtcdCallAttempt {
            connections: self.clone(),
            index,
            started: now,
            answered: false,
        };
        Some((client, attempt))
    }

    /// Asks this machine's own endpoint in the background, and switches to it if it answers.
    fn probe_home(self: &Arc<Self>) {
        let Some(client) = self.clients.first().cloned() else {
            return;
        };
        let connections = Arc::clone(self);
        tokio::spawn(async move {
            if answers(client).await {
                connections.choice.lock().home_answered(Instant::now());
            }
        });
    }

    /// Switches to the next endpoint, unless another call has done so.
    fn leave(&self, index: usize) {
        self.choice.lock().leave(index, Instant::now());
    }
}

/// Whether an endpoint serves a read that needs a quorum. A member whose disk hangs still answers
/// questions about itself.
async fn answers(client: Client) -> bool {
    let read = async {
        let mut reader = client.kv_client();
        reader.get(keys::CLUSTER_UID, None).await
    };
    match timeout(PROBE_LIMIT, read).await {
        Ok(Ok(_)) => true,
        // A refusal is no answer: a member that was removed, or that has no vote yet, refuses every call.
        Ok(Err(failure)) => matches!(error::verdict(&failure), RetryVerdict::AuthChanged),
        Err(_) => false,
    }
}

/// Which endpoint is in use, and when this machine's own one is probed.
struct EndpointChoice {
    endpoints: usize,
    current: usize,
    /// State of the first endpoint; only if it is preferred.
    home: Option<HomeEndpoint>,
}

/// State of this machine's own endpoint.
enum HomeEndpoint {
    /// It is in use since its start.
    First,
    /// It is in use again since this time; the pauses are those of the failure before.
    Returned { since: Instant, pauses: Pauses },
    /// It failed.
    Left { probe_at: Instant, pauses: Pauses },
}

impl EndpointChoice {
    fn new(endpoints: usize, prefer_first: bool) -> Self {
        Self {
            endpoints,
            current: 0,
            home: prefer_first.then_some(HomeEndpoint::First),
        }
    }

    /// Switches to the next endpoint, unless another call has done so.
    fn leave(&mut self, index: usize, now: Instant) {
        if self.current != index {
            return;
        }
        self.current = (index + 1) % self.endpoints.max(1);
        let Some(home) = &mut self.home else { return };
        if index == 0 {
            home.failed(now);
        }
        if self.current == 0 {
            home.returned(now);
        }
    }

    /// Whether the caller has to probe the first endpoint now. The next probe is due after a longer
    /// pause.
    fn take_due_probe(&mut self, now: Instant) -> bool {
        match &mut self.home {
            Some(HomeEndpoint::Left { probe_at, pauses }) if now >= *probe_at => {
                *probe_at = now + pauses.next_pause();
                true
            }
            _ => false,
        }
    }

    /// Switches back to the first endpoint, which has answered a probe.
    fn home_answered(&mut self, now: Instant) {
        if let Some(home) = &mut self.home {
            home.returned(now);
            self.current = 0;
        }
    }
}

impl HomeEndpoint {
    /// Begins the pauses anew, unless the endpoint has only just returned: one that answers probes
    /// and fails calls must not get a call every few seconds.
    fn failed(&mut self, now: Instant) {
        let mut pauses = match *self {
            Self::First => PROBE_PAUSES.pauses(),
            Self::Returned { since, pauses }
                if now.saturating_duration_since(since) < PROBE_PAUSES.most =>
            {
                pauses
            }
            Self::Returned { .. } => PROBE_PAUSES.pauses(),
            Self::Left { .. } => return,
        };
        let probe_at = now + pauses.next_pause();
        *self = Self::Left { probe_at, pauses };
    }

    /// Called when the endpoint is in use again.
    fn returned(&mut self, now: Instant) {
        if let Self::Left { pauses, .. } = *self {
            *self = Self::Returned { since: now, pauses };
        }
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn at(start: Instant, second: u64) -> Instant {
        start + Duration::from_secs(second)
    }

    /// The seconds below `end` at which probes are due, if none is answered.
    fn probes(choice: &mut EndpointChoice, start: Instant, end: u64) -> Vec<u64> {
        (0..end)
            .filter(|second| choice.take_due_probe(at(start, *second)))
            .collect()
    }

    #[test]
    fn the_machines_own_endpoint_gets_no_calls_until_it_has_answered_a_probe() {
        let start = Instant::now();
        let mut choice = EndpointChoice::new(3, true);
        choice.leave(0, start);

        assert_eq!(probes(&mut choice, start, 100), [5, 15, 35, 65, 95]);
        assert_eq!(choice.current, 1);
        choice.home_answered(at(start, 100));

        assert_eq!(choice.current, 0);
        assert!(!choice.take_due_probe(at(start, 200)));
    }

    #[test]
    fn an_endpoint_that_fails_again_soon_after_its_return_is_probed_later() {
        let start = Instant::now();
        let mut choice = EndpointChoice::new(2, true);
        choice.leave(0, start);
        assert!(choice.take_due_probe(at(start, 5)));
        choice.home_answered(at(start, 5));

        choice.leave(0, at(start, 6));
        assert_eq!(probes(&mut choice, start, 40), [26]);
        choice.home_answered(at(start, 40));

        choice.leave(0, at(start, 90));
        assert_eq!(probes(&mut choice, start, 100), [95]);
    }

    #[test]
    fn calls_that_fail_on_every_endpoint_come_around_to_the_own_one_without_a_probe() {
        let start = Instant::now();
        let mut choice = EndpointChoice::new(3, true);
        for endpoint in 0..3 {
            choice.leave(endpoint, start);
            // A later failure of a call on the same endpoint switches nothing.
            choice.leave(endpoint, start);
        }

        assert_eq!(choice.current, 0);
        assert!(!choice.take_due_probe(at(start, 60)));
    }

    #[test]
    fn without_a_preferred_endpoint_nothing_is_probed() {
        let start = Instant::now();
        let mut choice = EndpointChoice::new(2, false);
        choice.leave(0, start);

        assert_eq!(probes(&mut choice, start, 100), [0_u64; 0]);
        assert_eq!(choice.current, 1);
    }

    #[tokio::test]
    async fn an_endpoint_that_accepts_connections_and_hangs_answers_no_probe() {
        // The kernel accepts connections that nobody serves.
        let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = hanging.local_addr().unwrap();
        let options = EtcdOptions::new(vec![format!("http://{address}")], None);
        let connections = Connections::open(&options).await.unwrap();

        let client = connections.clients.first().unwrap().clone();

        assert!(!answers(client).await);
    }
}
