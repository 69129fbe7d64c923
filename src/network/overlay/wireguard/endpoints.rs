//! Which of a peer's endpoints to try.
//!
//! A peer that answers is left alone, wherever it is: WireGuard follows a peer that moves. One that
//! has no session, or has not answered for a while what was sent to it, has its endpoints tried in
//! their order, each for a while that gets longer from round to round; names are resolved again
//! for each try. Nothing is tried while there is nothing to send.
//!
//! What needs an answer is known from the counters alone. WireGuard answers data within 10 s, with a
//! keepalive where the other side has nothing to say, and sends handshakes for 90 s to one that does
//! not answer. A keepalive itself is not answered, so as many as WireGuard may have sent by itself
//! do not count. The one in a program does not count the keepalives that it receives either: a peer
//! that seems to owe an answer is asked something that it answers with data, before it is looked for.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{PeerStatus, PublicKey};

/// Time that an endpoint has for a handshake in the first round: WireGuard asks twice in it. It
/// doubles from round to round.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it doubles at most: 80 s.
const DOUBLINGS: u32 = 3;
/// A peer with a session that has not answered for so long is looked for. WireGuard answers within
/// 10 s also where the other side has nothing to say (its whitepaper, section 6.5).
const SILENCE: Duration = Duration::from_secs(20);
/// A session ends this long after its handshake (the protocol's Reject-After-Time).
const SESSION: Duration = Duration::from_secs(180);
/// Bytes of a keepalive; the smallest packet makes a message of 64.
const KEEPALIVE: u64 = 32;
/// Most keepalives after the last that was received, without being told to keep a way open: the
/// kernel sends a second one for what came while the first was due.
const IN_ANSWER: u64 = 2;
/// Handshakes are further apart than this; the one in a program tells the time of the same one
/// each time a little differently.
const SAME_HANDSHAKE: Duration = Duration::from_secs(1);
const RESOLVE_LIMIT: Duration = Duration::from_secs(3);

/// One moment by both clocks: WireGuard tells times of the wall clock, waits are measured by the
/// other.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// For waits.
    pub now: Instant,
    /// For the age of a handshake.
    pub wall: SystemTime,
}

impl Moment {
    /// This one.
    pub fn now() -> Self {
        Self {
            now: Instant::now(),
            wall: SystemTime::now(),
        }
    }
}

/// What is to be done about a peer now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Nothing leaves it where it is.
    pub attempt: Option<Attempt>,
    /// It is to be sent something that it answers with data.
    pub ask: bool,
}

/// An endpoint to try now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// `host:port`.
    pub endpoint: String,
    /// How often all endpoints of this peer were tried before; picks among a name's addresses.
    pub round: usize,
}

/// What is remembered of one peer.
#[derive(Debug)]
struct State {
    endpoints: Vec<String>,
    /// The one to try next.
    next: usize,
    round: usize,
    /// It is looked for: an endpoint was set, and nothing has come from it since.
    trying: bool,
    /// When the present endpoint was set or the peer last answered, and what was sent by then.
    since: Instant,
    sent: u64,
    /// The name of the present endpoint is not known now: its time is over.
    unresolved: bool,
    heard: Heard,
}

/// The counters when something last came from a peer.
#[derive(Debug)]
struct Heard {
    received: u64,
    sent: u64,
    handshake: Option<SystemTime>,
    at: Instant,
    /// When the last handshake was seen first; nothing for one from before.
    shook: Option<Instant>,
    /// Since when it is known that something was sent that needs an answer.
    unanswered: Option<Instant>,
}

/// Remembers what was tried.
#[derive(Debug, Default)]
pub struct Tracker {
    peers: BTreeMap<PublicKey, State>,
}

impl Tracker {
    /// Forgets peers that are not in the list any more.
    pub fn keep(&mut self, keep: impl Fn(&PublicKey) -> bool) {
        self.peers.retain(|key, _| keep(key));
    }

    /// What to do about a peer. `status` is nothing for one that is not on the link yet.
    pub fn choose(
        &mut self,
        key: PublicKey,
        endpoints: &[String],
        status: Option<&PeerStatus>,
        moment: Moment,
    ) -> Choice {
        let now = moment.now;
        let Some((state, status)) = self.peers.get_mut(&key).zip(status) else {
            let mut state = State::new(endpoints, status, now);
            let connected = status.is_some_and(|status| has_session(status, moment.wall));
            let attempt = (!connected).then(|| state.attempt(status)).flatten();
            self.peers.insert(key, state);
            return Choice::trying(attempt, 0);
        };
        let changed = state.endpoints != endpoints;
        if changed {
            state.endpoints = endpoints.to_vec();
            (state.next, state.round) = (0, 0);
        }
        state.heard.look(status, now);
        let silent = state.heard.is_unanswered_for(SILENCE, now);
        if state.heard.has_session(status, moment) && !silent {
            state.answered(status, now);
            return Choice {
                attempt: None,
                // One that is said to be elsewhere may not be able to call from there.
                ask: changed || state.heard.unanswered.is_some(),
            };
        }
        // Without an endpoint WireGuard drops what is to be sent, and counts nothing.
        let stuck = state.unresolved && status.endpoint.is_none();
        let by_itself = keepalives(status.keepalive, now.duration_since(state.since));
        let sent = status.sent.saturating_sub(state.sent) > by_itself
            || stuck
            || (state.trying && status.keepalive > 0);
        let waited = now.duration_since(state.since) >= state.patience()
            // Within a round: a list of nothing but unknown names is asked no more often than others.
            || (state.unresolved && state.next > 0);
        if changed || (silent && !state.trying) || (sent && waited) {
            (state.since, state.sent) = (now, status.sent);
            return Choice::trying(state.attempt(Some(status)), status.keepalive);
        }
        Choice::default()
    }

    /// The name of the endpoint that was chosen last is not known now: the next one's turn comes
    /// at once.
    pub fn not_resolved(&mut self, key: &PublicKey) {
        if let Some(state) = self.peers.get_mut(key) {
            state.unresolved = true;
        }
    }

    /// The peers that are looked for.
    pub fn missing(&self) -> impl Iterator<Item = PublicKey> {
        let missing = self.peers.iter().filter(|(_, state)| state.trying);
        missing.map(|(key, _)| *key)
    }

    /// Whether a peer is looked for, or has not answered yet: it is worth looking again soon.
    pub fn is_settled(&self) -> bool {
        let waits = |state: &State| state.trying || state.heard.unanswered.is_some();
        !self.peers.values().any(waits)
    }
}

impl Choice {
    /// Where an endpoint is tried for the first time, WireGuard is made to ask there without waiting
    /// for somebody's packet. One that keeps a way open is made to each time: the WireGuard in a
    /// program sends no keepalive any more when nobody has answered for 90 s.
    fn trying(attempt: Option<Attempt>, keepalive: u16) -> Self {
        let ask = attempt
            .as_ref()
            .is_some_and(|attempt| attempt.round == 0 || keepalive > 0);
        Self { attempt, ask }
    }
}

impl State {
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
            heard: Heard::new(&status, now),
        }
    }

    fn answered(&mut self, status: &PeerStatus, now: Instant) {
        (self.next, self.round, self.trying) = (0, 0, false);
        (self.since, self.sent, self.unresolved) = (now, status.sent, false);
    }

    fn patience(&self) -> Duration {
        let doublings = u32::try_from(self.round).unwrap_or(u32::MAX).min(DOUBLINGS);
        PATIENCE.saturating_mul(1 << doublings)
    }

    /// The next endpoint in turn. A lost peer's search does not begin where it was lost.
    fn attempt(&mut self, status: Option<&PeerStatus>) -> Option<Attempt> {
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
        Some(Attempt { endpoint, round })
    }
}

impl Heard {
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

    fn look(&mut self, status: &PeerStatus, now: Instant) {
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

    /// Whether there is a session, also where the wall clock was set since it began.
    fn has_session(&self, status: &PeerStatus, moment: Moment) -> bool {
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

/// Most bytes that WireGuard sends in this time where nobody asks it to and no answer is due;
/// `every` is the seconds between two keepalives, 0 for none.
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
        // A clock that was set back makes the age unknown: then it counts as recent.
        wall.duration_since(time).map_or(true, |age| age < SESSION)
    })
}

impl PeerStatus {
    /// Whether there is a session with the peer.
    pub fn is_connected(&self) -> bool {
        has_session(self, SystemTime::now())
    }
}

/// Turns `host:port` into an address, within three seconds; nothing if the name is not known now.
pub async fn resolve(attempt: &Attempt) -> Option<SocketAddr> {
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
