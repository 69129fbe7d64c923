//! Names outside the cluster: the cache, one asking at a time for each name, and the resolvers in
//! turn.

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
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    cache::{Cache, Key},
    exchange::{ExchangeError, Flags, exchange},
    upstream::Upstreams,
    zone::Zone,
};

/// Time for one try at one resolver, for UDP and for TCP each.
const TRY: Duration = Duration::from_millis(1500);
/// Time for a question as a whole.
const WHOLE: Duration = Duration::from_secs(5);
/// Times that every resolver is tried.
const ROUNDS: usize = 2;

/// What became of a question; the reason when nobody answered it.
pub(super) type Outcome = Result<Arc<Message>, Arc<str>>;

/// Asks other resolvers.
#[derive(Debug)]
pub(super) struct Forwarder {
    upstreams: Upstreams,
    cache: Mutex<Cache>,
    flights: Mutex<BTreeMap<Key, watch::Receiver<Option<Outcome>>>>,
    /// Which resolver answered last: it is asked first.
    preferred: AtomicUsize,
    failing: AtomicBool,
}

impl Forwarder {
    /// A forwarder with an empty cache of at most this weight.
    pub(super) fn new(upstreams: Upstreams, cache_weight: usize) -> Self {
        Self {
            upstreams,
            cache: Mutex::new(Cache::new(cache_weight)),
            flights: Mutex::default(),
            preferred: AtomicUsize::new(0),
            failing: AtomicBool::new(false),
        }
    }

    /// An answer that is kept already, and its age in seconds.
    pub(super) fn cached(&self, key: &Key) -> Option<(Arc<Message>, u32)> {
        lock(&self.cache).get(key, Instant::now())
    }

    /// Asks, or waits for the same question that is under way. Ends within [`WHOLE`].
    pub(super) async fn ask(
        self: &Arc<Self>,
        zone: &Arc<Zone>,
        question: &Query,
        key: Key,
    ) -> Outcome {
        let mut flight = self.flight(zone, question, key);
        match flight.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            _ => Err("the question was given up".into()),
        }
    }

    /// The asking goes on when the client that began it has gone: others may wait for it.
    fn flight(
        self: &Arc<Self>,
        zone: &Arc<Zone>,
        question: &Query,
        key: Key,
    ) -> watch::Receiver<Option<Outcome>> {
        let mut flights = lock(&self.flights);
        if let Some(flight) = flights.get(&key) {
            return flight.clone();
        }
        let (sender, receiver) = watch::channel(None);
        flights.insert(key.clone(), receiver.clone());
        let landing = Landing {
            forwarder: self.clone(),
            key,
        };
        let (zone, question) = (zone.clone(), question.clone());
        tokio::spawn(async move {
            let Landing { forwarder, key } = &landing;
            let asked = timeout(WHOLE, forwarder.ask_all(&zone, &question, key)).await;
            let outcome = asked.unwrap_or_else(|_| Err("no resolver answered in time".into()));
            forwarder.note(&outcome);
            if let Ok(answer) = &outcome {
                lock(&forwarder.cache).insert(key.clone(), answer.clone(), Instant::now());
            }
            drop(landing);
            let _ = sender.send(Some(outcome));
        });
        receiver
    }

    /// The resolvers in turn, beginning with the one that answered last.
    async fn ask_all(&self, zone: &Zone, question: &Query, key: &Key) -> Outcome {
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

    /// One line when it begins to fail, one when it works again.
    fn note(&self, outcome: &Outcome) {
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

/// An answer that says something about the name; another resolver may know better otherwise.
async fn ask_one(server: SocketAddr, question: &Query, flags: Flags) -> Result<Message, String> {
    let answer = exchange(server, question, flags, TRY)
        .await
        .map_err(|error: ExchangeError| error.to_string())?;
    match answer.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(answer),
        code => Err(format!("it says {code}")),
    }
}

/// Takes a question off the list of those under way, also when its task ends early.
struct Landing {
    forwarder: Arc<Forwarder>,
    key: Key,
}

impl Drop for Landing {
    fn drop(&mut self) {
        lock(&self.forwarder.flights).remove(&self.key);
    }
}

/// The data is whole between any two statements: a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
