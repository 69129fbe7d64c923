//! Forwards questions about names outside the cluster: with a cache, one request at a time for each
//! name, and the resolvers in turn.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hickory_proto::op::{Message, Query, ResponseCode};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    cache::{Cache, QuestionKey},
    exchange::{ExchangeError, Flags, exchange},
    upstream::Upstreams,
    zone::Zone,
};

/// Longest try at one resolver, for UDP and for TCP each.
const TRY: Duration = Duration::from_millis(1500);
/// Longest time for a question.
const WHOLE: Duration = Duration::from_secs(5);
/// Times that every resolver is tried.
const ROUNDS: usize = 2;

/// The answer to a forwarded question; the error when no resolver answered.
pub(super) type ForwardResult = Result<Arc<Message>, Arc<str>>;

#[derive(Debug)]
pub(super) struct Forwarder {
    upstreams: Upstreams,
    cache: Mutex<Cache>,
    flights: Mutex<BTreeMap<QuestionKey, watch::Receiver<Option<ForwardResult>>>>,
    /// Index of the resolver that answered last, which is asked first.
    preferred: AtomicUsize,
    failing: AtomicBool,
}

impl Forwarder {
    /// A forwarder with an empty cache of this largest weight.
    pub(super) fn new(upstreams: Upstreams, cache_weight: usize) -> Self {
        Self {
            upstreams,
            cache: Mutex::new(Cache::new(cache_weight)),
            flights: Mutex::default(),
            preferred: AtomicUsize::new(0),
            failing: AtomicBool::new(false),
        }
    }

    /// A cached answer, and its age in seconds.
    pub(super) fn cached(&self, key: &QuestionKey) -> Option<(Arc<Message>, u32)> {
        self.cache.lock().get(key, Instant::now())
    }

    /// Forwards a question, or waits for the same question in progress. Ends within [`WHOLE`].
    pub(super) async fn ask(
        self: &Arc<Self>,
        zone: &Arc<Zone>,
        question: &Query,
        key: QuestionKey,
    ) -> ForwardResult {
        let mut flight = self.flight(zone, question, key);
        match flight.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            _ => Err("the question was given up".into()),
        }
    }

    /// Starts the request on a task of its own: it continues when its client has disconnected,
    /// since others may wait for it.
    fn flight(
        self: &Arc<Self>,
        zone: &Arc<Zone>,
        question: &Query,
        key: QuestionKey,
    ) -> watch::Receiver<Option<ForwardResult>> {
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get(&key) {
            return flight.clone();
        }
        let (sender, receiver) = watch::channel(None);
        flights.insert(key.clone(), receiver.clone());
        let landing = QuestionGuard {
            forwarder: self.clone(),
            key,
        };
        let (zone, question) = (zone.clone(), question.clone());
        tokio::spawn(async move {
            let QuestionGuard { forwarder, key } = &landing;
            let asked = timeout(WHOLE, forwarder.ask_all(&zone, &question, key)).await;
            let outcome = asked.unwrap_or_else(|_| Err("no resolver answered in time".into()));
            forwarder.note(&outcome);
            if let Ok(answer) = &outcome {
                forwarder
                    .cache
                    .lock()
                    .insert(key.clone(), answer.clone(), Instant::now());
            }
            drop(landing);
            let _ = sender.send(Some(outcome));
        });
        receiver
    }

    /// Asks the resolvers in turn, beginning with the one that answered last.
    async fn ask_all(&self, zone: &Zone, question: &Query, key: &QuestionKey) -> ForwardResult {
        let servers = self.upstreams.servers(zone);
        if servers.is_empty() {
            return Err("this machine has no resolver to ask".into());
        }
        let flags = Flags {
            dnssec_ok: key.dnssec_ok,
            checking_disabled: key.checking_disabled,
        };
        let first = self.preferred.load(Ordering::Relaxed) % servers.len();
        let turns = (0..servers.len() * ROUNDS).map(|turn| (first + turn) % servers.len());
        let mut reasons = BTreeMap::new();
        for turn in turns {
            let Some(server) = servers.get(turn) else {
                continue;
            };
            match ask_one(*server, question, flags).await {
                Ok(answer) => {
                    self.preferred.store(turn, Ordering::Relaxed);
                    return Ok(Arc::new(answer));
                }
                Err(reason) => {
                    tracing::debug!(%server, "a resolver did not answer: {reason:#}");
                    reasons.insert(*server, reason);
                }
            }
        }
        let reasons: Vec<String> = reasons
            .iter()
            .map(|(server, reason)| format!("{}: {reason}", server.ip()))
            .collect();
        Err(reasons.join("; ").into())
    }

    /// Logs once when forwarding begins to fail, and once when it works again.
    fn note(&self, outcome: &ForwardResult) {
        let failing = outcome.is_err();
        if self.failing.swap(failing, Ordering::Relaxed) == failing {
            return;
        }
        match outcome {
            Ok(_) => tracing::info!("names outside the cluster are answered again"),
            Err(reason) => {
                tracing::warn!("names outside the cluster are not answered: {reason:#}");
            }
        }
    }
}

/// Asks one resolver. An answer that says nothing about the name is an error, so that the caller
/// asks the next resolver.
async fn ask_one(server: SocketAddr, question: &Query, flags: Flags) -> Result<Message, String> {
    let answer = exchange(server, question, flags, TRY)
        .await
        .map_err(|error: ExchangeError| error.to_string())?;
    match answer.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(answer),
        code => Err(format!("it says {code}")),
    }
}

/// Removes a question in progress from the list, also when its task ends early.
struct QuestionGuard {
    forwarder: Arc<Forwarder>,
    key: QuestionKey,
}

impl Drop for QuestionGuard {
    fn drop(&mut self) {
        self.forwarder.flights.lock().remove(&self.key);
    }
}
