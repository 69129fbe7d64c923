//! Limits of calls: rate, size and time (ARCHITECTURE.md, invariant 8).

use std::{net::IpAddr, num::NonZeroU32, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
};
use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::{
    access::authentication::{Caller, ConnectionPeer, ConnectionSource},
    errors::ApiError,
};

/// Maximum bytes of a workload's archive.
pub const MAX_ARCHIVE: usize = 1024 * 1024;
/// Maximum bytes of a JSON body other than a report.
pub const MAX_JSON: usize = 64 * 1024;
/// Maximum bytes of a machine's report.
pub const MAX_REPORT: usize = 4 * 1024 * 1024;

/// Maximum numbers of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Of one address, certificate, token or uid.
    pub each: usize,
    /// In all.
    pub all: usize,
}

/// Limits of the API. The defaults suit a hundred machines.
#[derive(Debug, Clone)]
pub struct ApiLimits {
    /// Time limit of a TLS handshake.
    pub handshake_timeout: Duration,
    /// Time limit of a request's head, and from the handshake to the first request.
    pub header_timeout: Duration,
    /// Time limit of a request's body.
    pub body_timeout: Duration,
    /// Time limit of a response's head; a stream after it has no limit.
    pub request_timeout: Duration,
    /// Time limit of a pending write: a client that accepts nothing for this long is dropped.
    pub write_timeout: Duration,
    /// Time limit of open requests when the server stops.
    pub shutdown_timeout: Duration,
    /// Interval of a watch's bookmarks.
    pub bookmark_interval: Duration,
    /// Time from the last request of an anonymous caller to the end of its connection, whatever
    /// pings it answers.
    pub anonymous_idle: Duration,
    /// Connections forwarded to the leader, by address: the leader sees all of them under this
    /// machine's address.
    pub passed_on: ConnectionLimits,
    /// Connections whose caller has proved nothing, by address: as many as one machine forwards.
    pub unproved: ConnectionLimits,
    /// Connections by proved certificate.
    pub by_certificate: ConnectionLimits,
    /// Connections by token.
    pub by_token: ConnectionLimits,
    /// Connections of root on the local socket.
    pub root_on_socket: ConnectionLimits,
    /// Connections of other users on the local socket, by uid.
    pub others_on_socket: ConnectionLimits,
    /// Maximum number of watches, logs and sessions.
    pub streams: usize,
    /// Maximum number of them for one caller: enough for the logs of a workload on a hundred
    /// machines.
    pub streams_of_one_caller: usize,
    /// Calls per second of one known caller, on average.
    pub calls_per_second: NonZeroU32,
    /// Burst of calls of one known caller.
    pub call_burst: NonZeroU32,
    /// Calls per second of unknown callers from one address, on average.
    pub unknown_calls_per_second: NonZeroU32,
    /// Burst of calls of unknown callers from one address.
    pub unknown_call_burst: NonZeroU32,
}

impl Default for ApiLimits {
    fn default() -> Self {
        let number = |value| NonZeroU32::new(value).unwrap_or(NonZeroU32::MIN);
        let share = |each, all| ConnectionLimits { each, all };
        Self {
            handshake_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(20),
            request_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(5),
            bookmark_interval: Duration::from_secs(10),
            anonymous_idle: Duration::from_secs(30),
            passed_on: share(16, 128),
            unproved: share(128, 512),
            by_certificate: share(256, 512),
            by_token: share(256, 512),
            // Each log that is followed over the socket has a connection of its own.
            root_on_socket: share(192, 192),
            others_on_socket: share(160, 256),
            streams: 512,
            streams_of_one_caller: 128,
            calls_per_second: number(100),
            call_burst: number(500),
            unknown_calls_per_second: number(10),
            unknown_call_burst: number(50),
        }
    }
}

/// Rate limits by caller.
pub(crate) struct RateLimits {
    known: DefaultKeyedRateLimiter<String>,
    unknown: DefaultKeyedRateLimiter<String>,
    clock: DefaultClock,
}

impl RateLimits {
    pub(crate) fn new(limits: &ApiLimits) -> Self {
        let known = Quota::per_second(limits.calls_per_second).allow_burst(limits.call_burst);
        let unknown = Quota::per_second(limits.unknown_calls_per_second)
            .allow_burst(limits.unknown_call_burst);
        Self {
            known: RateLimiter::keyed(known),
            unknown: RateLimiter::keyed(unknown),
            clock: DefaultClock::default(),
        }
    }

    /// Counts one call; for an unknown or refused caller, by its address.
    pub(crate) fn check(
        &self,
        peer: &ConnectionPeer,
        caller: Option<&Caller>,
    ) -> Result<(), ApiError> {
        let refused = match caller {
            Some(caller) if *caller != Caller::Anonymous => {
                self.known.check_key(&caller.to_string()).err()
            }
            _ => self.unknown.check_key(&address_key(&peer.source)).err(),
        };
        match refused {
            None => Ok(()),
            Some(until) => {
                let wait = until.wait_time_from(self.clock.now());
                Err(ApiError::TooManyRequests(wait.as_secs().saturating_add(1)))
            }
        }
    }

    /// Drops idle callers; called periodically.
    pub(crate) fn forget_quiet(&self) {
        for limiter in [&self.known, &self.unknown] {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    }
}

/// The group of addresses that count as one, since one person can take any of them: the first half
/// of an IPv6 address.
pub(crate) fn address_group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let kept = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(kept.into())
        }
        address => address,
    }
}

fn address_key(source: &ConnectionSource) -> String {
    match source {
        ConnectionSource::Network(address) => address_group(address.ip()).to_string(),
        ConnectionSource::Socket { .. } => source.to_string(),
    }
}

/// Reads a whole body of at most `limit` bytes within `timeout`.
///
/// # Errors
/// [`ApiError::TooLarge`], [`ApiError::Timeout`], and [`ApiError::Invalid`] for a body that ends
/// before it is whole.
pub(crate) async fn read_body(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    timeout: Duration,
) -> Result<Bytes, ApiError> {
    let too_large = ApiError::TooLarge {
        what: "the body",
        limit,
    };
    let announced = headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > u64::try_from(limit).unwrap_or(u64::MAX)) {
        return Err(too_large);
    }
    match tokio::time::timeout(timeout, Limited::new(body, limit).collect()).await {
        Err(_) => Err(ApiError::Timeout(timeout.as_secs())),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large),
        Ok(Err(_)) => Err(ApiError::invalid("the body ended before it was whole")),
    }
}

/// Checks the content type; parameters such as `charset` do not matter.
pub(crate) fn check_content_type(
    headers: &HeaderMap,
    expected: &'static str,
) -> Result<(), ApiError> {
    let found = headers.get(header::CONTENT_TYPE);
    let found = found
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let kind = found.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    Err(ApiError::UnsupportedMediaType {
        found: found.chars().take(100).collect(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::api::Scope;

    fn peer(address: &str) -> ConnectionPeer {
        ConnectionPeer {
            source: ConnectionSource::Network(address.parse().unwrap()),
            certificate: None,
        }
    }

    fn token(id: &str) -> Caller {
        Caller::Token {
            id: id.to_owned(),
            name: String::new(),
            scope: Scope::Read,
        }
    }

    #[test]
    fn one_caller_does_not_use_up_anothers_calls() {
        let limits = RateLimits::new(&ApiLimits {
            call_burst: NonZeroU32::new(3).unwrap(),
            unknown_call_burst: NonZeroU32::new(2).unwrap(),
            calls_per_second: NonZeroU32::MIN,
            unknown_calls_per_second: NonZeroU32::MIN,
            ..ApiLimits::default()
        });
        let here = peer("192.0.2.1:1000");
        for _ in 0..3 {
            assert_eq!(limits.check(&here, Some(&token("a"))), Ok(()));
        }
        let refused = limits.check(&here, Some(&token("a")));
        assert!(
            matches!(refused, Err(ApiError::TooManyRequests(1..=2))),
            "{refused:?}"
        );
        assert_eq!(limits.check(&here, Some(&token("b"))), Ok(()));
        // Requests are counted by address, not by port.
        assert_eq!(limits.check(&here, None), Ok(()));
        assert_eq!(limits.check(&peer("192.0.2.1:1001"), None), Ok(()));
        assert!(
            limits
                .check(&peer("192.0.2.1:1002"), Some(&Caller::Anonymous))
                .is_err()
        );
        assert_eq!(limits.check(&peer("192.0.2.2:1000"), None), Ok(()));
    }

    #[test]
    fn ipv6_addresses_of_one_network_count_together() {
        let key = |text: &str| address_group(text.parse().unwrap());
        assert_eq!(key("2001:db8:0:1::5"), key("2001:db8:0:1:ffff::9"));
        assert_ne!(key("2001:db8:0:1::5"), key("2001:db8:0:2::5"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_are_bounded_in_size_and_time() {
        let headers = HeaderMap::new();
        let whole = read_body(&headers, Body::from("1234"), 4, Duration::from_secs(1)).await;
        assert_eq!(whole, Ok(Bytes::from_static(b"1234")));
        let large = read_body(&headers, Body::from("12345"), 4, Duration::from_secs(1)).await;
        assert!(matches!(large, Err(ApiError::TooLarge { limit: 4, .. })));
        let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        let slow = read_body(
            &headers,
            Body::from_stream(never),
            4,
            Duration::from_secs(1),
        )
        .await;
        assert_eq!(slow, Err(ApiError::Timeout(1)));
    }
}
