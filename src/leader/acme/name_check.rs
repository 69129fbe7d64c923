//! The leader's own check of a name before an order: whether port 80 of each address that it has is
//! answered by an ingress machine of this cluster.
//!
//! A tenant names the host, so this is a request that a tenant makes the leader send. It goes to port 80
//! alone, with a fixed path, follows no redirection, reads 64 bytes, and its answer is compared and never
//! kept or shown. Addresses that only the leader reaches are not asked.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use futures_util::future::join_all;
use ipnet::Ipv4Net;
use tokio::time::timeout;

use kat_plan::CheckedName;

/// Longest wait for the resolver.
const RESOLVE: Duration = Duration::from_secs(5);
/// Longest request.
const FETCH: Duration = Duration::from_secs(5);
/// Most bytes of an answer that are read.
const MOST_BYTES: usize = 64;
/// Most addresses that are asked.
const MOST_ADDRESSES: usize = 16;

/// Resolves the host and asks its addresses. A name that is not resolved has none.
pub(super) async fn check(host: &str, token: &str, answer: &str, own: &[Ipv4Net]) -> CheckedName {
    let resolved = timeout(RESOLVE, tokio::net::lookup_host((host, 80))).await;
    let found: BTreeSet<IpAddr> = match resolved {
        Ok(Ok(addresses)) => addresses.map(|one| one.ip().to_canonical()).collect(),
        Ok(Err(_)) | Err(_) => BTreeSet::new(),
    };
    let mut checked = CheckedName::default();
    let (asked, unasked): (Vec<_>, Vec<_>) = found
        .into_iter()
        .take(MOST_ADDRESSES)
        .partition(|address| is_asked(*address, own));
    checked.unasked = unasked;
    let answers = asked.iter().map(|address| {
        let at = SocketAddr::new(*address, 80);
        timeout(FETCH, fetch(host, at, token, answer))
    });
    for (address, found) in asked.iter().zip(join_all(answers).await) {
        let list = match found {
            Ok(Some(true)) => &mut checked.right,
            Ok(Some(false)) => &mut checked.wrong,
            Ok(None) | Err(_) => &mut checked.silent,
        };
        list.push(*address);
    }
    checked
}

/// Whether the answer of an address is the right one; `None` without an answer of HTTP.
async fn fetch(host: &str, at: SocketAddr, token: &str, answer: &str) -> Option<bool> {
    let client = reqwest::Client::builder()
        .user_agent(concat!("kat/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .timeout(FETCH)
        .resolve(host, at)
        .http1_only()
        .no_proxy()
        .build()
        .ok()?;
    // The port of a URL wins over that of a resolved address.
    let port = match at.port() {
        80 => String::new(),
        port => format!(":{port}"),
    };
    let url = format!("http://{host}{port}/.well-known/acme-challenge/{token}");
    let mut response = client.get(url).send().await.ok()?;
    if response.status() != reqwest::StatusCode::OK {
        return Some(false);
    }
    let mut body = Vec::new();
    while let Ok(Some(part)) = response.chunk().await {
        let rest = MOST_BYTES.saturating_sub(body.len());
        if part.len() > rest {
            return Some(false);
        }
        body.extend_from_slice(&part);
    }
    Some(body.trim_ascii() == answer.as_bytes())
}

/// Whether an address may be one that strangers reach. Addresses of private networks may: a router leads
/// to them, or the server is inside too.
pub(super) fn is_asked(address: IpAddr, own: &[Ipv4Net]) -> bool {
    match address {
        IpAddr::V4(address) => is_asked_v4(address, own),
        IpAddr::V6(address) => {
            let embedded = embedded(address);
            let is_refused = address.is_loopback()
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_unicast_link_local();
            !is_refused && embedded.is_none_or(|address| is_asked_v4(address, own))
        }
    }
}

fn is_asked_v4(address: Ipv4Addr, own: &[Ipv4Net]) -> bool {
    let is_refused = address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || address.is_broadcast()
        || address.is_link_local();
    !is_refused && !own.iter().any(|network| network.contains(&address))
}

/// The IPv4 address that an address of a translator stands for (RFC 6052, 4291, 3056).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bytes = address.octets();
    let (head, tail) = bytes.split_at(12);
    let last = <[u8; 4]>::try_from(tail).ok()?;
    let is_translated = head == [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
    let is_compatible = head.iter().all(|byte| *byte == 0);
    if is_translated || is_compatible || address.to_ipv4_mapped().is_some() {
        return Some(last.into());
    }
    let [a, b, first, second, third, fourth, ..] = bytes;
    ([a, b] == [0x20, 0x02]).then(|| Ipv4Addr::new(first, second, third, fourth))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn addresses_that_only_the_leader_reaches_are_not_asked() {
        let own = [
            "10.100.0.0/16".parse().unwrap(),
            "10.200.0.0/16".parse().unwrap(),
        ];
        for refused in [
            "127.0.0.1",
            "127.0.1.1",
            "0.0.0.0",
            "169.254.169.254",
            "255.255.255.255",
            "224.0.0.1",
            "10.100.3.4",
            "10.200.0.1",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.100.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "::7f00:1",
        ] {
            assert!(!is_asked(refused.parse().unwrap(), &own), "{refused}");
        }
        for asked in [
            "192.0.2.1",
            "192.168.1.9",
            "10.1.2.3",
            "2001:db8::1",
            "fd00::1",
        ] {
            assert!(is_asked(asked.parse().unwrap(), &own), "{asked}");
        }
    }

    /// Answers one request with this text. Returns its address and what it was asked.
    async fn server(answer: String) -> (SocketAddr, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 2048];
            let read = stream.read(&mut head).await.unwrap();
            // The other side may close before it has read all of it.
            let _ = stream.write_all(answer.as_bytes()).await;
            String::from_utf8_lossy(&head[..read]).into_owned()
        });
        (at, task)
    }

    #[tokio::test]
    async fn an_answer_is_compared_and_neither_followed_nor_read_to_its_end() {
        let ok = |body: &str| format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}");
        let cases = [
            (ok("expected"), Some(true)),
            (ok("expected\n"), Some(true)),
            (ok("other"), Some(false)),
            (ok(&"expected".repeat(100_000)), Some(false)),
            (
                "HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
                    .to_owned(),
                Some(false),
            ),
            (
                "HTTP/1.1 404 Not Found\r\nContent-Length: 8\r\n\r\nexpected".to_owned(),
                Some(false),
            ),
            ("no HTTP\r\n\r\n".to_owned(), None),
        ];
        for (answer, expected) in cases {
            let (at, asked) = server(answer.clone()).await;
            let shown: String = answer.chars().take(80).collect();
            let found = fetch("shop.example.org", at, "nonce", "expected").await;
            assert_eq!(found, expected, "{shown}");
            let asked = asked.await.unwrap();
            let line = "GET /.well-known/acme-challenge/nonce HTTP/1.1\r\n";
            assert!(asked.starts_with(line), "{asked}");
            assert!(
                asked.to_lowercase().contains("host: shop.example.org"),
                "{asked}"
            );
        }
        // Nobody listens.
        let closed = TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        assert_eq!(fetch("shop.example.org", closed, "nonce", "x").await, None);
    }
}
