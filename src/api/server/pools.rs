//! Pools of connections. Each connection has a place in one pool, so that a caller who opens many
//! of them takes places only from others of its kind, and first from itself
//! (docs/internals/api.md, Connections).
//!
//! A TCP connection starts in the pool of unproved ones, and moves to the pool of its certificate
//! or token with the first call that proves one. In a full pool, the oldest connection of the
//! caller with the most connections ends for a new connection of a caller with fewer.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::limits::{ApiLimits, ConnectionLimits, address_group};
use crate::access::authentication::{Caller, ConnectionPeer, ConnectionSource};

/// What happens to a new connection of a caller whose share is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShareUsedUp {
    /// It gets no place.
    Refuse,
    /// It gets the place of the caller's oldest connection, so that idle connections never keep out
    /// a handshake.
    ReplaceOldest,
}

/// Connections of one kind.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    share: ConnectionLimits,
    used_up: ShareUsedUp,
    places: Mutex<ConnectionSlots>,
}

#[derive(Debug, Default)]
struct ConnectionSlots {
    next: u64,
    count: usize,
    /// By key, oldest first; no key is empty.
    held: BTreeMap<String, BTreeMap<u64, CancellationToken>>,
}

/// The place of a connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    pool: Arc<ConnectionPool>,
    key: String,
    number: u64,
}

impl ConnectionPool {
    fn new(share: ConnectionLimits, used_up: ShareUsedUp) -> Arc<Self> {
        Arc::new(Self {
            share,
            used_up,
            places: Mutex::default(),
        })
    }

    fn locked(&self) -> MutexGuard<'_, ConnectionSlots> {
        self.places.lock()
    }

    /// Takes a place for one more connection of this key; `None` if there is none. `ended` is
    /// cancelled when the place is given to another connection.
    pub(crate) fn take(
        self: &Arc<Self>,
        key: String,
        ended: &CancellationToken,
    ) -> Option<ConnectionSlot> {
        let mut places = self.locked();
        let own = places.held.get(&key).map_or(0, BTreeMap::len);
        if own >= self.share.each {
            if self.used_up == ShareUsedUp::Refuse || own == 0 {
                return None;
            }
            places.end_oldest_of(&key);
        } else if places.count >= self.share.all {
            let most = places.held.iter().max_by_key(|(_, held)| held.len());
            let (greediest, _) = most.filter(|(_, held)| held.len() > own)?;
            let greediest = greediest.clone();
            places.end_oldest_of(&greediest);
        }
        let number = places.next;
        places.next += 1;
        places.count += 1;
        let held = places.held.entry(key.clone()).or_default();
        held.insert(number, ended.clone());
        drop(places);
        Some(ConnectionSlot {
            pool: Arc::clone(self),
            key,
            number,
        })
    }
}

impl ConnectionSlots {
    fn end_oldest_of(&mut self, key: &str) {
        let oldest = self.held.get(key).and_then(|held| held.keys().next());
        if let Some(ended) = oldest.copied().and_then(|oldest| self.remove(key, oldest)) {
            ended.cancel();
        }
    }

    fn remove(&mut self, key: &str, number: u64) -> Option<CancellationToken> {
        let held = self.held.get_mut(key)?;
        let removed = held.remove(&number)?;
        if held.is_empty() {
            self.held.remove(key);
        }
        self.count = self.count.saturating_sub(1);
        Some(removed)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.pool.locked().remove(&self.key, self.number);
    }
}

/// All pools of a server.
#[derive(Debug)]
pub(crate) struct ConnectionPools {
    /// Connections forwarded to the leader, by address.
    passed_on: Arc<ConnectionPool>,
    /// Connections whose caller has proved nothing yet, by address.
    unproved: Arc<ConnectionPool>,
    certificates: Arc<ConnectionPool>,
    tokens: Arc<ConnectionPool>,
    /// Connections of root on the local socket.
    root: Arc<ConnectionPool>,
    /// Connections of other users on the local socket, by uid.
    others: Arc<ConnectionPool>,
    anonymous_idle: Duration,
}

impl ConnectionPools {
    pub(crate) fn new(limits: &ApiLimits) -> Arc<Self> {
        use ShareUsedUp::{Refuse, ReplaceOldest};
        Arc::new(Self {
            passed_on: ConnectionPool::new(limits.passed_on, Refuse),
            unproved: ConnectionPool::new(limits.unproved, ReplaceOldest),
            certificates: ConnectionPool::new(limits.by_certificate, Refuse),
            tokens: ConnectionPool::new(limits.by_token, Refuse),
            root: ConnectionPool::new(limits.root_on_socket, Refuse),
            others: ConnectionPool::new(limits.others_on_socket, Refuse),
            anonymous_idle: limits.anonymous_idle,
        })
    }

    /// Takes a place for a connection from this address; `passed_on` if it is forwarded to the
    /// leader.
    pub(crate) fn of_address(
        &self,
        address: IpAddr,
        passed_on: bool,
        ended: &CancellationToken,
    ) -> Option<ConnectionSlot> {
        let pool = if passed_on {
            &self.passed_on
        } else {
            &self.unproved
        };
        pool.take(address_group(address).to_string(), ended)
    }

    /// Takes a place for a connection on the local socket.
    pub(crate) fn of_socket(
        &self,
        uid: Option<u32>,
        ended: &CancellationToken,
    ) -> Option<ConnectionSlot> {
        match uid {
            Some(0) => self.root.take(String::new(), ended),
            Some(uid) => self.others.take(uid.to_string(), ended),
            None => self.others.take(String::new(), ended),
        }
    }
}

/// What the caller of a connection has proved, and how long the connection may stay silent.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionStandingHandle(Arc<Mutex<ConnectionStanding>>);

#[derive(Debug)]
struct ConnectionStanding {
    pools: Arc<ConnectionPools>,
    ended: CancellationToken,
    /// Held while the connection is open.
    place: ConnectionSlot,
    proved: bool,
    /// When the connection ends unless a request comes before.
    deadline: Instant,
}

impl ConnectionStandingHandle {
    /// The state of a new connection, whose first request has to come by `first_by`.
    pub(crate) fn new(
        pools: &Arc<ConnectionPools>,
        place: ConnectionSlot,
        ended: CancellationToken,
        peer: &ConnectionPeer,
        first_by: Instant,
    ) -> Self {
        Self(Arc::new(Mutex::new(ConnectionStanding {
            pools: Arc::clone(pools),
            ended,
            place,
            // The kernel identifies the caller on the socket.
            proved: matches!(peer.source, ConnectionSource::Socket { .. }),
            deadline: first_by,
        })))
    }

    fn locked(&self) -> MutexGuard<'_, ConnectionStanding> {
        self.0.lock()
    }

    /// Called when a request begins or was answered.
    pub(crate) fn active(&self) {
        let mut state = self.locked();
        state.deadline = if state.proved {
            // Pings and the pool's size bound such a connection.
            Instant::now() + Duration::from_secs(365 * 86_400)
        } else {
            Instant::now() + state.pools.anonymous_idle
        };
    }

    /// Moves the connection to the pool of its proved caller. If that pool has no place left, the
    /// connection stays in the pool of unproved ones.
    pub(crate) fn prove(&self, caller: &Caller) {
        let mut state = self.locked();
        if state.proved {
            return;
        }
        let pool = match caller {
            Caller::Anonymous | Caller::Socket { .. } => return,
            Caller::Token { .. } => &state.pools.tokens,
            Caller::Node(_) | Caller::Leader(_) | Caller::Admin(_) => &state.pools.certificates,
        };
        if let Some(place) = pool.take(caller.to_string(), &state.ended) {
            state.place = place;
            state.proved = true;
            drop(state);
            self.active();
        }
    }

    /// When the connection ends unless a request comes before.
    pub(crate) fn deadline(&self) -> Instant {
        self.locked().deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(each: usize, all: usize, used_up: ShareUsedUp) -> Arc<ConnectionPool> {
        ConnectionPool::new(ConnectionLimits { each, all }, used_up)
    }

    /// A place in the pool, and the token that is cancelled when the place goes to another
    /// connection.
    fn take(pool: &Arc<ConnectionPool>, key: &str) -> Option<(ConnectionSlot, CancellationToken)> {
        let ended = CancellationToken::new();
        let place = pool.take(key.to_owned(), &ended)?;
        Some((place, ended))
    }

    #[test]
    fn an_address_at_its_limit_is_refused_and_others_are_not() {
        let pool = pool(2, 5, ShareUsedUp::Refuse);
        let held = [take(&pool, "a"), take(&pool, "a")];
        assert!(held.iter().all(Option::is_some));
        assert!(take(&pool, "a").is_none());
        assert!(take(&pool, "b").is_some());
        drop(held);
        assert!(take(&pool, "a").is_some());
        assert_eq!(pool.locked().count, 0);
        assert!(pool.locked().held.is_empty());
    }

    #[test]
    fn an_unproved_newcomer_replaces_the_oldest_connection_of_its_own_address() {
        let pool = pool(2, 5, ShareUsedUp::ReplaceOldest);
        let [oldest, newer] = [(); 2].map(|()| take(&pool, "a").unwrap());
        let other = take(&pool, "b").unwrap();
        let newest = take(&pool, "a").unwrap();
        assert!(oldest.1.is_cancelled());
        for (_, ended) in [&newer, &newest, &other] {
            assert!(!ended.is_cancelled());
        }
        // The place already belongs to another connection.
        drop(oldest);
        assert_eq!(pool.locked().count, 3);
    }

    #[test]
    fn a_full_pool_takes_from_whoever_has_most() {
        let pool = pool(3, 5, ShareUsedUp::Refuse);
        let many = [(); 3].map(|()| take(&pool, "a").unwrap());
        let few = [(); 2].map(|()| take(&pool, "b").unwrap());
        let newcomer = take(&pool, "c").unwrap();
        let cancelled = many.iter().filter(|(_, ended)| ended.is_cancelled());
        assert_eq!(cancelled.count(), 1);
        assert!(!few.iter().any(|(_, ended)| ended.is_cancelled()));
        // Every key has at most as many places as the newcomer, so none gives up a place.
        let second = take(&pool, "c").unwrap();
        assert!(take(&pool, "c").is_none());
        drop((newcomer, second));
        assert!(take(&super::tests::pool(3, 0, ShareUsedUp::ReplaceOldest), "a").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_proved_connection_leaves_its_place_to_strangers_and_has_no_idle_limit() {
        let limits = ApiLimits {
            unproved: ConnectionLimits { each: 1, all: 1 },
            by_certificate: ConnectionLimits { each: 1, all: 1 },
            ..ApiLimits::default()
        };
        let pools = ConnectionPools::new(&limits);
        let address: IpAddr = [192, 0, 2, 1].into();
        let peer = ConnectionPeer {
            source: ConnectionSource::Network((address, 1000).into()),
            certificate: None,
        };
        let open = || {
            let ended = CancellationToken::new();
            let place = pools.of_address(address, false, &ended).unwrap();
            let first_by = Instant::now() + limits.header_timeout;
            let standing =
                ConnectionStandingHandle::new(&pools, place, ended.clone(), &peer, first_by);
            (standing, ended)
        };
        let (machine, machine_ended) = open();
        assert_eq!(machine.deadline(), Instant::now() + limits.header_timeout);
        machine.active();
        assert_eq!(machine.deadline(), Instant::now() + limits.anonymous_idle);
        let n1 = Caller::Node(crate::access::authentication::CertifiedMachine {
            name: "n1".to_owned(),
            key_hash: "key".to_owned(),
        });
        machine.prove(&n1);
        assert!(machine.deadline() > Instant::now() + Duration::from_secs(86_400));
        // Unauthenticated connections displace each other from the only place.
        let strangers = [(); 3].map(|()| open());
        let ended = strangers.each_ref().map(|(_, ended)| ended.is_cancelled());
        assert_eq!(ended, [true, true, false]);
        assert!(!machine_ended.is_cancelled());
        // The machine's certificate has no place for a second connection, which keeps its place by
        // address and its idle limit.
        let (second, second_ended) = open();
        second.prove(&n1);
        second.active();
        assert_eq!(second.deadline(), Instant::now() + limits.anonymous_idle);
        assert!(!second_ended.is_cancelled() && !machine_ended.is_cancelled());
    }

    #[test]
    fn root_on_the_socket_has_places_that_nobody_else_takes() {
        let limits = ApiLimits {
            root_on_socket: ConnectionLimits { each: 1, all: 1 },
            others_on_socket: ConnectionLimits { each: 2, all: 2 },
            ..ApiLimits::default()
        };
        let pools = ConnectionPools::new(&limits);
        let ended = CancellationToken::new();
        let others = [1000, 1000].map(|uid| pools.of_socket(Some(uid), &ended));
        assert!(others.iter().all(Option::is_some));
        assert!(pools.of_socket(Some(1000), &ended).is_none());
        let root = pools.of_socket(Some(0), &ended);
        assert!(root.is_some());
        assert!(pools.of_socket(Some(0), &ended).is_none());
        assert!(pools.of_socket(Some(1001), &ended).is_some());
    }
}
