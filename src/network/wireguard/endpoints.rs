//! Which of a peer's endpoints to try.
//!
//! A peer with a recent handshake is left alone, wherever it is: WireGuard follows a peer that
//! moves. Otherwise the endpoints are tried in their order, fifteen seconds each, as long as
//! something is sent; names are resolved again for each try.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{PeerStatus, PublicKey};

/// Time that an endpoint has for a handshake.
const PATIENCE: Duration = Duration::from_secs(15);
/// A session ends this long after its handshake (the protocol's Reject-After-Time).
const SESSION: Duration = Duration::from_secs(180);
const RESOLVE_LIMIT: Duration = Duration::from_secs(3);

/// An endpoint to try now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// `host:port`.
    pub endpoint: String,
    /// How many times endpoints of this peer were tried before; picks among a name's addresses.
    pub round: usize,
}

#[derive(Debug)]
struct State {
    endpoints: Vec<String>,
    index: usize,
    round: usize,
    since: Instant,
    sent: u64,
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

    /// The endpoint to try now; nothing leaves the peer as it is. `status` is nothing for a peer
    /// that is not on the link yet.
    pub fn choose(
        &mut self,
        key: PublicKey,
        endpoints: &[String],
        status: Option<&PeerStatus>,
        now: Instant,
    ) -> Option<Attempt> {
        let sent = status.map_or(0, |status| status.sent);
        let connected = status.is_some_and(is_connected);
        let known = self
            .peers
            .get_mut(&key)
            .filter(|state| state.endpoints == endpoints && status.is_some());
        let Some(state) = known else {
            let state = State {
                endpoints: endpoints.to_vec(),
                index: 0,
                round: 0,
                since: now,
                sent,
            };
            self.peers.insert(key, state);
            let first = endpoints.first().filter(|_| !connected)?;
            return Some(Attempt {
                endpoint: first.clone(),
                round: 0,
            });
        };
        if connected {
            state.since = now;
            state.sent = sent;
            return None;
        }
        let keepalive = status.is_some_and(|status| status.keepalive > 0);
        let tried = keepalive || sent > state.sent;
        if !tried || now.duration_since(state.since) < PATIENCE {
            return None;
        }
        state.index = (state.index + 1) % state.endpoints.len().max(1);
        state.round += usize::from(state.index == 0);
        state.since = now;
        state.sent = sent;
        let endpoint = state.endpoints.get(state.index)?.clone();
        Some(Attempt {
            endpoint,
            round: state.round,
        })
    }
}

/// Whether a peer has a session.
fn is_connected(status: &PeerStatus) -> bool {
    status.last_handshake.is_some_and(|time| {
        // A clock that was set back makes the age unknown: then it counts as recent.
        SystemTime::now()
            .duration_since(time)
            .map_or(true, |age| age < SESSION)
    })
}

impl PeerStatus {
    /// Whether there is a session with the peer.
    pub fn is_connected(&self) -> bool {
        is_connected(self)
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
mod tests {
    use super::*;

    const KEY: PublicKey = PublicKey([1; 32]);

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn silent(sent: u64) -> PeerStatus {
        PeerStatus {
            sent,
            ..PeerStatus::default()
        }
    }

    fn connected() -> PeerStatus {
        PeerStatus {
            last_handshake: Some(SystemTime::now()),
            ..PeerStatus::default()
        }
    }

    fn endpoint(attempt: Option<Attempt>) -> Option<String> {
        attempt.map(|attempt| attempt.endpoint)
    }

    #[test]
    fn endpoints_are_tried_in_turn_while_nothing_answers() {
        let mut tracker = Tracker::default();
        let names = list(&["a:1", "b:1"]);
        let begin = Instant::now();
        let mut at = |seconds: u64, status: Option<&PeerStatus>| {
            endpoint(tracker.choose(KEY, &names, status, begin + Duration::from_secs(seconds)))
        };
        assert_eq!(at(0, None).as_deref(), Some("a:1"));
        assert_eq!(at(10, Some(&silent(148))), None);
        assert_eq!(at(15, Some(&silent(148))).as_deref(), Some("b:1"));
        assert_eq!(at(20, Some(&silent(296))), None);
        assert_eq!(at(31, Some(&silent(296))).as_deref(), Some("a:1"));
        assert_eq!(
            at(60, Some(&silent(296))),
            None,
            "nothing was sent meanwhile"
        );
        assert_eq!(at(61, Some(&connected())), None);
        assert_eq!(at(300, Some(&connected())), None);
    }

    #[test]
    fn a_connected_peer_is_left_alone_also_when_its_list_changes() {
        let mut tracker = Tracker::default();
        let now = Instant::now();
        let status = connected();
        assert_eq!(
            tracker.choose(KEY, &list(&["a:1"]), Some(&status), now),
            None
        );
        assert_eq!(
            tracker.choose(KEY, &list(&["b:1"]), Some(&status), now),
            None
        );
        let quiet = silent(0);
        let changed = tracker.choose(KEY, &list(&["c:1"]), Some(&quiet), now);
        assert_eq!(endpoint(changed).as_deref(), Some("c:1"));
    }

    #[test]
    fn a_peer_without_endpoints_waits_to_be_called() {
        let mut tracker = Tracker::default();
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(tracker.choose(KEY, &[], None, Instant::now()), None);
        assert_eq!(tracker.choose(KEY, &[], Some(&silent(500)), later), None);
    }

    #[tokio::test]
    async fn addresses_need_no_resolver() {
        let attempt = |text: &str| Attempt {
            endpoint: text.into(),
            round: 3,
        };
        let six = resolve(&attempt("[2001:db8::1]:51820")).await;
        assert_eq!(six, "[2001:db8::1]:51820".parse().ok());
        assert_eq!(resolve(&attempt("no port")).await, None);
    }
}
