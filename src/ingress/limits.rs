//! Limits on clients: connections, rates, heads, slowness.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;

use crate::metrics::Limited;

/// Limits of one `kat-ingress`.
#[derive(Debug, Clone)]
pub struct IngressLimits {
    /// Client connections at once.
    pub connections: usize,
    /// Client connections at once from one address; trusted proxies and senders of PROXY headers
    /// have no such limit.
    pub connections_of_address: usize,
    /// Requests in a second from one address, over some time; trusted proxies have no such limit.
    pub requests: NonZeroU32,
    /// Requests at once above that rate.
    pub request_burst: NonZeroU32,
    /// Requests under way of one client, until their answers have ended; trusted proxies have no such
    /// limit.
    pub requests_under_way: usize,
    /// For the PROXY header and for the TLS handshake.
    pub handshake: Duration,
    /// For the head of a request, and between two requests of HTTP/1.1.
    pub head: Duration,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Header lines of a request.
    pub headers: usize,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// Requests that one HTTP/2 connection may break off before their answer, if they are more than
    /// half of all.
    pub resets: u32,
    /// PING and SETTINGS at once on one HTTP/2 connection, above 100 in a second and those that what is
    /// sent to the client pays for.
    pub control_frames: u32,
    /// For an HTTP/2 connection without a request.
    pub idle: Duration,
    /// For a client that takes nothing of what is sent.
    pub write: Duration,
    /// At the end of the program: how long unused HTTP/1.1 connections still take a request, which
    /// is answered with `Connection: close`.
    pub linger: Duration,
    /// At the end of the program: for requests and tunnels that are under way.
    pub drain: Duration,
}

impl Default for IngressLimits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            connections_of_address: 512,
            requests: NonZeroU32::new(1000).unwrap_or(NonZeroU32::MAX),
            request_burst: NonZeroU32::new(2000).unwrap_or(NonZeroU32::MAX),
            requests_under_way: 512,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            head_bytes: 32 * 1024,
            headers: 100,
            streams: 128,
            resets: 100,
            control_frames: 1000,
            idle: Duration::from_secs(120),
            write: Duration::from_secs(60),
            linger: Duration::from_secs(10),
            drain: Duration::from_secs(90),
        }
    }
}

/// What counts as one client: an IPv4 address, or a network of 64 bits.
pub fn client_block(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & (u128::MAX << 64);
            Ipv6Addr::from(network).into()
        }
        address => address,
    }
}

/// Counts the connections of clients.
#[derive(Debug, Default)]
pub struct ConnectionCounts(Arc<Mutex<OpenConnections>>);

#[derive(Debug, Default)]
struct OpenConnections {
    all: usize,
    by_client: BTreeMap<IpAddr, usize>,
}

/// One connection, until it is dropped.
#[derive(Debug)]
pub struct ConnectionPlace {
    counts: Arc<Mutex<OpenConnections>>,
    client: Option<IpAddr>,
}

impl ConnectionCounts {
    /// Counts one more. `exempt` clients have no limit of their own.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn admit(
        &self,
        address: IpAddr,
        exempt: bool,
        limits: &IngressLimits,
    ) -> Result<ConnectionPlace, Limited> {
        let client = (!exempt).then(|| client_block(address));
        let mut open = self.0.lock();
        if open.all >= limits.connections {
            return Err(Limited::Connections);
        }
        if let Some(client) = client {
            let count = open.by_client.entry(client).or_default();
            if *count >= limits.connections_of_address {
                return Err(Limited::ConnectionsOfAddress);
            }
            *count += 1;
        }
        open.all += 1;
        Ok(ConnectionPlace {
            counts: Arc::clone(&self.0),
            client,
        })
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut open = self.counts.lock();
        open.all = open.all.saturating_sub(1);
        let Some(client) = self.client else { return };
        if let Some(count) = open.by_client.get_mut(&client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.by_client.remove(&client);
            }
        }
    }
}

/// Counts the requests of clients that are under way. Each holds a connection to an instance.
#[derive(Debug, Default)]
pub struct RequestsUnderWay(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One request, until it is dropped.
#[derive(Debug)]
pub struct RequestPlace {
    counts: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
    client: IpAddr,
}

impl RequestsUnderWay {
    /// Counts one more; `None` if the client has too many.
    pub fn begin(&self, address: IpAddr, limits: &IngressLimits) -> Option<RequestPlace> {
        let client = client_block(address);
        let mut counts = self.0.lock();
        let count = counts.entry(client).or_default();
        if *count >= limits.requests_under_way {
            return None;
        }
        *count += 1;
        Some(RequestPlace {
            counts: Arc::clone(&self.0),
            client,
        })
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

/// Counts the requests of clients.
pub struct RequestRates(DefaultKeyedRateLimiter<IpAddr>);

impl RequestRates {
    pub fn new(limits: &IngressLimits) -> Self {
        let quota = Quota::per_second(limits.requests).allow_burst(limits.request_burst);
        Self(RateLimiter::keyed(quota))
    }

    /// Counts a request; false if there were too many.
    pub fn allow(&self, address: IpAddr) -> bool {
        self.0.check_key(&client_block(address)).is_ok()
    }

    /// Forgets clients that have been quiet.
    pub fn forget_quiet(&self) {
        self.0.retain_recent();
        self.0.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_cannot_take_all_connections() {
        let limits = IngressLimits {
            connections: 4,
            connections_of_address: 2,
            ..IngressLimits::default()
        };
        let counts = ConnectionCounts::default();
        let admit = |address: &str, exempt| counts.admit(address.parse().unwrap(), exempt, &limits);
        let first = admit("192.0.2.1", false).unwrap();
        let _second = admit("::ffff:192.0.2.1", false).unwrap();
        let refused = admit("192.0.2.1", false).unwrap_err();
        assert_eq!(refused, Limited::ConnectionsOfAddress);
        let _six = admit("2001:db8::1", false).unwrap();
        drop(first);
        let _again = admit("192.0.2.1", false).unwrap();
        let _proxy = admit("192.0.2.1", true).unwrap();
        assert_eq!(admit("192.0.2.9", true).unwrap_err(), Limited::Connections);
    }

    #[test]
    fn one_client_has_so_many_requests_under_way() {
        let limits = IngressLimits {
            requests_under_way: 2,
            ..IngressLimits::default()
        };
        let requests = RequestsUnderWay::default();
        let begin = |address: &str| requests.begin(address.parse().unwrap(), &limits);
        let first = begin("192.0.2.1").unwrap();
        let second = begin("192.0.2.1").unwrap();
        assert!(begin("192.0.2.1").is_none());
        let _other = begin("192.0.2.2").unwrap();
        drop(first);
        let third = begin("192.0.2.1").unwrap();
        assert!(begin("192.0.2.1").is_none());
        drop((second, third));
        assert_eq!(requests.0.lock().len(), 1, "the quiet client is forgotten");
    }

    #[test]
    fn a_client_of_ipv6_is_its_network() {
        let block = |text: &str| client_block(text.parse().unwrap());
        assert_eq!(block("2001:db8:1:2:3::4"), block("2001:db8:1:2:ffff::"));
        assert_ne!(block("2001:db8:1:2::"), block("2001:db8:1:3::"));
        assert_eq!(block("::ffff:192.0.2.1"), block("192.0.2.1"));
    }

    #[test]
    fn a_burst_is_allowed_and_more_is_not() {
        let limits = IngressLimits {
            requests: NonZeroU32::MIN,
            request_burst: NonZeroU32::new(3).unwrap(),
            ..IngressLimits::default()
        };
        let rates = RequestRates::new(&limits);
        let address = "192.0.2.1".parse().unwrap();
        let allowed = (0..10).filter(|_| rates.allow(address)).count();
        assert_eq!(allowed, 3);
        assert!(rates.allow("192.0.2.2".parse().unwrap()));
    }
}
