//! Chooses which of a peer's endpoints to try.
//!
//! A peer that answers is left alone, whatever its endpoint is: WireGuard follows a peer whose
//! address changes. For a peer without a session, or one that has not answered for a while, the
//! endpoints are tried in their order, each for a time that increases from round to round; names
//! are resolved again for each try. Nothing is tried while there is nothing to send.
//!
//! Whether an answer is due is derived from the counters alone. WireGuard answers data within 10 s,
//! with a keepalive where the other side has no data, and sends handshakes for 90 s to a peer that
//! does not answer. A keepalive itself is not answered, so as many keepalives as WireGuard may have
//! sent by itself do not count. The userspace WireGuard does not count the keepalives that it
//! receives either: so a peer that seems to owe an answer is first sent a packet that it answers
//! with data.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{PeerStatus, PublicKey};
use kat_types::backoff::Backoff;

/// Time for a handshake with an endpoint in the first round: WireGuard tries twice within it. The
/// time doubles from round to round.
const PATIENCE: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(80));
/// Time without an answer after which the endpoints of a peer with a session are tried. WireGuard
/// answers within 10 s even where the other side has no data (its whitepaper, section 6.5).
const SILENCE: Duration = Duration::from_secs(20);
/// How long a session lasts after its handshake (the protocol's Reject-After-Time).
const SESSION: Duration = Duration::from_secs(180);
/// Bytes of a keepalive; the smallest packet makes a message of 64.
const KEEPALIVE: u64 = 32;
/// Most keepalives after the last received packet, without a configured keepalive: the kernel sends
/// a second one for a packet that came while the first was due.
const IN_ANSWER: u64 = 2;
/// Two handshakes are further apart than this; the userspace WireGuard reports the time of one
/// handshake slightly differently each time.
const SAME_HANDSHAKE: Duration = Duration::from_secs(1);
const RESOLVE_LIMIT: Duration = Duration::from_secs(3);

/// One moment by both clocks: WireGuard reports times of the wall clock, while waits use the
/// monotonic one.
#[derive(Debug, Clone, Copy)]
pub struct ClockMoment {
    /// For waits.
    pub now: Instant,
    /// For the age of a handshake.
    pub wall: SystemTime,
}

impl ClockMoment {
    pub fn now() -> Self {
        Self {
            now: Instant::now(),
            wall: SystemTime::now(),
        }
    }
}

/// What to do with a peer now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointChoice {
    /// The endpoint to set; `None` leaves it as it is.
    pub attempt: Option<EndpointAttempt>,
    /// The peer has to be sent a packet that it answers with data.
    pub ask: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointAttempt {
    /// `host:port`.
    pub endpoint: String,
    /// Number of completed rounds through this peer's endpoints; selects among the addresses of a
    /// name.
    pub round: usize,
}

/// State of one peer.
#[derive(Debug)]
struct PeerEndpoints {
    endpoints: Vec<String>,
    /// Index of the next endpoint to try.
    next: usize,
    round: usize,
    /// An endpoint was set, and no packet has come from the peer since.
    trying: bool,
    /// When the present endpoint was set or the peer last answered, and the bytes sent until then.
    since: Instant,
    sent: u64,
    /// The name of the present endpoint could not be resolved: the next one is tried at once.
    unresolved: bool,
    heard: PeerCounters,
}

/// The counters when the last packet came from a peer.
#[derive(Debug)]
struct PeerCounters {
    received: u64,
    sent: u64,
    handshake: Option<SystemTime>,
    at: Instant,
    /// When the last handshake was first seen; `None` for one from before.
    shook: Option<Instant>,
    /// Since when a sent packet has been known to need an answer.
    unanswered: Option<Instant>,
}

/// Remembers the tried endpoints.
#[derive(Debug, Default)]
pub struct EndpointTracker {
    peers: BTreeMap<PublicKey, PeerEndpoints>,
}

impl EndpointTracker {
    /// Drops peers that `keep` rejects.
    pub(crate) fn retain_peers(&mut self, keep: impl Fn(&PublicKey) -> bool) {
        self.peers.retain(|key, _| keep(key));
    }

    /// Decides about a peer. `status` is `None` for a peer that is not on the link yet.
    pub fn choose(
        &mut self,
        key: PublicKey,
        endpoints: &[String],
        status: Option<&PeerStatus>,
        moment: ClockMoment,
    ) -> EndpointChoice {
        let now = moment.now;
        let Some((state, status)) = self.peers.get_mut(&key).zip(status) else {
            let mut state = PeerEndpoints::new(endpoints, status, now);
            let connected = status.is_some_and(|status| has_session(status, moment.wall));
            let attempt = (!connected).then(|| state.attempt(status)).flatten();
            self.peers.insert(key, state);
            return EndpointChoice::trying(attempt, 0);
        };
        let changed = state.endpoints != endpoints;
        if changed {
            state.endpoints = endpoints.to_vec();
            (state.next, state.round) = (0, 0);
        }
        state.heard.record_counters(status, now);
        let silent = state.heard.is_unanswered_for(SILENCE, now);
        if state.heard.has_session(status, moment) && !silent {
            state.answered(status, now);
            return EndpointChoice {
                attempt: None,
                // A peer with new endpoints may not be able to send from there.
                ask: changed || state.heard.unanswered.is_some(),
            };
        }
        // Without an endpoint WireGuard drops packets and counts nothing.
        let stuck = state.unresolved && status.endpoint.is_none();
        let by_itself = keepalives(status.keepalive, now.duration_since(state.since));
        let sent = status.sent.saturating_sub(state.sent) > by_itself
            || stuck
            || (state.trying && status.keepalive > 0);
        let waited = now.duration_since(state.since) >= state.patience()
            // Only within a round: a list of unresolvable names is not tried more often than
            // others.
            || (state.unresolved && state.next > 0);
        if changed || (silent && !state.trying) || (sent && waited) {
            (state.since, state.sent) = (now, status.sent);
            return EndpointChoice::trying(state.attempt(Some(status)), status.keepalive);
        }
        EndpointChoice::default()
    }

    /// Records that the name of the chosen endpoint could not be resolved: the next endpoint is
    /// tried at once.
    pub(crate) fn not_resolved(&mut self, key: &PublicKey) {
        if let Some(state) = self.peers.get_mut(key) {
            state.unresolved = true;
        }
    }

    /// The peers whose endpoints are being tried.
    pub fn missing(&self) -> impl Iterator<Item = PublicKey> {
        let missing = self.peers.iter().filter(|(_, state)| state.trying);
        missing.map(|(key, _)| *key)
    }

    /// Whether no endpoint is being tried and no answer is due. Otherwise the next check should
    /// come soon.
    pub fn is_settled(&self) -> bool {
        let waits = |state: &PeerEndpoints| state.trying || state.heard.unanswered.is_some();
        !self.peers.values().any(waits)
    }
}

impl EndpointChoice {
    /// Makes WireGuard send a handshake at once when an endpoint is tried for the first time,
    /// without waiting for a packet. With a keepalive this is done in every round: the userspace
    /// WireGuard stops sending keepalives after 90 s without an answer.
    fn trying(attempt: Option<EndpointAttempt>, keepalive: u16) -> Self {
        let ask = attempt
            .as_ref()
            .is_some_and(|attempt| attempt.round == 0 || keepalive > 0);
        Self { attempt, ask }
    }
}

impl PeerEndpoints {
    fn new(endpoints: &[String], status: Option<&PeerStatus>, now: Instant) -> Self {
        let status = status.cloned().unwrap_or_default();
        Self {
            endpoints: endpoints.to_vec(),
            next: 0,
            round: 0,
            trying: false,
            since: now,
            sent: status.sent,
            unresolved: false,
            heard: PeerCounters::new(&status, now),
        }
    }

    fn answered(&mut self, status: &PeerStatus, now: Instant) {
        (self.next, self.round, self.trying) = (0, 0, false);
        (self.since, self.sent, self.unresolved) = (now, status.sent, false);
    }

    fn patience(&self) -> Duration {
        PATIENCE.after(u32::try_from(self.round).unwrap_or(u32::MAX))
    }

    /// Takes the next endpoint in turn. After a loss the last used endpoint is skipped at first.
    fn attempt(&mut self, status: Option<&PeerStatus>) -> Option<EndpointAttempt> {
        let lost_at = status
            .and_then(|status| status.endpoint)
            .filter(|_| !self.trying && self.endpoints.len() > 1)
            .map(|address| address.to_string());
        if lost_at.is_some() && self.endpoints.get(self.next) == lost_at.as_ref() {
            self.next += 1;
        }
        let endpoint = self.endpoints.get(self.next)?.clone();
        let round = self.round;
        (self.trying, self.unresolved) = (true, false);
        self.next += 1;
        if self.next >= self.endpoints.len() {
            self.next = 0;
            self.round += 1;
        }
        Some(EndpointAttempt { endpoint, round })
    }
}

impl PeerCounters {
    fn new(status: &PeerStatus, now: Instant) -> Self {
        Self {
            received: status.received,
            sent: status.sent,
            handshake: status.last_handshake,
            at: now,
            shook: None,
            unanswered: None,
        }
    }

    fn record_counters(&mut self, status: &PeerStatus, now: Instant) {
        let shook_hands =
            status.last_handshake.is_some() && !is_same(status.last_handshake, self.handshake);
        let by_itself = keepalives(status.keepalive, now.duration_since(self.at));
        if status.received != self.received || shook_hands {
            let shook = shook_hands.then_some(now).or(self.shook);
            *self = Self {
                shook,
                ..Self::new(status, now)
            };
        } else if status.sent.saturating_sub(self.sent) > by_itself && self.unanswered.is_none() {
            self.unanswered = Some(now);
        }
    }

    /// Whether there is a session, even if the wall clock was set since it began.
    fn has_session(&self, status: &PeerStatus, moment: ClockMoment) -> bool {
        match self.shook.filter(|_| status.last_handshake.is_some()) {
            Some(shook) => moment.now.duration_since(shook) < SESSION,
            None => has_session(status, moment.wall),
        }
    }

    fn is_unanswered_for(&self, limit: Duration, now: Instant) -> bool {
        self.unanswered
            .is_some_and(|since| now.duration_since(since) >= limit)
    }
}

/// Most bytes that WireGuard sends in this time by itself, without data and without an answer due;
/// `every` is the seconds between keepalives, 0 for none.
fn keepalives(every: u16, time: Duration) -> u64 {
    let kept = match every {
        0 => 0,
        every => time.as_secs() / u64::from(every) + 1,
    };
    KEEPALIVE * (IN_ANSWER + kept)
}

fn is_same(one: Option<SystemTime>, other: Option<SystemTime>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => {
            let apart = one.duration_since(other);
            apart.unwrap_or_else(|error| error.duration()) < SAME_HANDSHAKE
        }
        (one, other) => one == other,
    }
}

/// Whether a peer has a session, by the wall clock.
fn has_session(status: &PeerStatus, wall: SystemTime) -> bool {
    status.last_handshake.is_some_and(|time| {
        // After the clock was set back the age is unknown: then the handshake counts as recent.
        wall.duration_since(time).map_or(true, |age| age < SESSION)
    })
}

impl PeerStatus {
    pub(crate) fn is_connected(&self) -> bool {
        has_session(self, SystemTime::now())
    }
}

/// Resolves `host:port` within three seconds; `None` if the name can't be resolved.
pub async fn resolve(attempt: &EndpointAttempt) -> Option<SocketAddr> {
    if let Ok(address) = attempt.endpoint.parse() {
        return Some(address);
    }
    let look_up = tokio::net::lookup_host(attempt.endpoint.as_str());
    match tokio::time::timeout(RESOLVE_LIMIT, look_up).await {
        Ok(Ok(found)) => {
            let found: Vec<SocketAddr> = found.collect();
            let count = found.len().max(1);
            found.get(attempt.round % count).copied()
        }
        Ok(Err(error)) => {
            tracing::warn!(endpoint = attempt.endpoint, "can't resolve: {error}");
            None
        }
        Err(_) => {
            tracing::warn!(endpoint = attempt.endpoint, "can't resolve within 3 s");
            None
        }
    }
}

#[cfg(test)]
mod tests;
