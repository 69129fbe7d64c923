//! Who sent a request, and the headers that tell the program so.
//!
//! `X-Forwarded-*`, `Forwarded` and `X-Real-IP` from strangers are removed first, whatever a
//! `Connection:` header says of them, and set anew. From a peer in `trustedProxies` those for the
//! client, the scheme and the host are kept and extended.

use std::{
    fmt::{self, Write},
    net::{IpAddr, SocketAddr},
};

use hyper::{
    HeaderMap,
    header::{FORWARDED, HeaderName, HeaderValue},
};
use ipnet::IpNet;

pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(crate) const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(crate) const X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
pub(crate) const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// Most proxies whose entries are read from the right.
const MOST_HOPS: usize = 32;
/// Bytes of an element of `Forwarded` beside the peer and the host, and of what parts it from others.
const FORWARDED_REST: usize = 40;

/// The two ends of a client's connection, after its PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientConnection {
    /// The connected client or proxy.
    pub peer: SocketAddr,
    /// The address that it connected to.
    pub local: SocketAddr,
    /// Whether the connection has TLS that ends here.
    pub tls: bool,
}

/// The scheme of the URL that the client used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn word(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// The client of a request, as far as trusted proxies say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestClient {
    /// Address of the client.
    pub address: IpAddr,
    /// Scheme of the client's URL.
    pub scheme: Scheme,
    /// Whether the peer is a trusted proxy.
    pub by_proxy: bool,
}

/// Whether an address is in one of the networks; an IPv4 address in IPv6 form counts as IPv4.
pub fn is_in(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address))
}

/// Finds the client of a request.
pub fn request_client(
    headers: &HeaderMap,
    connection: &ClientConnection,
    trusted: &[IpNet],
) -> RequestClient {
    let peer = connection.peer.ip().to_canonical();
    let own_scheme = if connection.tls {
        Scheme::Https
    } else {
        Scheme::Http
    };
    if !is_in(trusted, peer) {
        return RequestClient {
            address: peer,
            scheme: own_scheme,
            by_proxy: false,
        };
    }
    let mut address = peer;
    for entry in entries_from_the_right(headers) {
        let Some(entry) = entry else { break };
        address = entry;
        if !is_in(trusted, entry) {
            break;
        }
    }
    let claimed = headers.get(X_FORWARDED_PROTO).map(HeaderValue::as_bytes);
    let scheme = match claimed {
        Some(b"https") => Scheme::Https,
        Some(b"http") => Scheme::Http,
        _ => own_scheme,
    };
    RequestClient {
        address,
        scheme,
        by_proxy: true,
    }
}

/// The addresses of `X-Forwarded-For`, the nearest first; `None` for one that is no address.
fn entries_from_the_right(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines: Vec<&HeaderValue> = headers.get_all(X_FORWARDED_FOR).iter().collect();
    let entries = lines.into_iter().rev().flat_map(|line| {
        let text = line.to_str().unwrap_or("unreadable");
        text.rsplit(',').map(forwarded_address)
    });
    entries.take(MOST_HOPS)
}

/// An address, perhaps with a port or brackets.
fn forwarded_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let plain = text.parse::<IpAddr>().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address = plain.or_else(with_port).or_else(in_brackets)?;
    Some(address.to_canonical())
}

/// Whether a header tells a program about the client. Programs behind CGI or WSGI read an underscore
/// as a dash.
pub fn is_about_client(name: &HeaderName) -> bool {
    const PREFIX: &str = "x-forwarded-";
    let name = name.as_str().as_bytes();
    let start = name.get(..PREFIX.len());
    start.is_some_and(|start| reads_as(start, PREFIX))
        || reads_as(name, "forwarded")
        || reads_as(name, "x-real-ip")
}

/// Whether bytes are a name where an underscore reads as a dash.
fn reads_as(bytes: &[u8], name: &str) -> bool {
    let dashed = bytes.iter().map(|byte| match byte {
        b'_' => b'-',
        byte => *byte,
    });
    dashed.eq(name.bytes())
}

/// Replaces the headers about the client. `host` is the requested host with its port, if it has
/// one.
pub fn set_forwarded(
    headers: &mut HeaderMap,
    connection: &ClientConnection,
    client: &RequestClient,
    host: &str,
) {
    let peer = connection.peer.ip().to_canonical();
    let kept = |name: &HeaderName| {
        let lines = headers.get_all(name).iter().filter(|_| client.by_proxy);
        let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
        lines.join(", ")
    };
    let peer_text = peer.to_string();
    let mut chain = kept(&X_FORWARDED_FOR);
    add_entry(&mut chain, format_args!("{peer_text}"));
    let quotes = match peer {
        IpAddr::V4(_) => ["", ""],
        IpAddr::V6(_) => ["\"[", "]\""],
    };
    let own_scheme = if connection.tls {
        Scheme::Https
    } else {
        Scheme::Http
    };
    let [before, after] = quotes;
    let scheme = own_scheme.word();
    let mut forwarded = kept(&FORWARDED);
    forwarded.reserve(peer_text.len() + host.len() + FORWARDED_REST);
    add_entry(
        &mut forwarded,
        format_args!("for={before}{peer_text}{after};host=\"{host}\";proto={scheme}"),
    );
    let real = if client.address == peer {
        peer_text
    } else {
        client.address.to_string()
    };
    let shown_host = headers
        .get(X_FORWARDED_HOST)
        .filter(|_| client.by_proxy)
        .cloned()
        .or_else(|| HeaderValue::from_str(host).ok());
    let names: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_about_client(name))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
    let set = [
        (X_FORWARDED_FOR, HeaderValue::try_from(chain).ok()),
        (
            X_FORWARDED_PROTO,
            Some(HeaderValue::from_static(client.scheme.word())),
        ),
        (X_FORWARDED_HOST, shown_host),
        (X_REAL_IP, HeaderValue::try_from(real).ok()),
        (FORWARDED, HeaderValue::try_from(forwarded).ok()),
    ];
    for (name, value) in set {
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
}

/// Adds an entry to the value of a list header.
fn add_entry(list: &mut String, entry: fmt::Arguments<'_>) {
    if !list.is_empty() {
        list.push_str(", ");
    }
    // A text takes everything.
    let _ = list.write_fmt(entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn connection(peer: &str, tls: bool) -> ClientConnection {
        ClientConnection {
            peer: peer.parse().unwrap(),
            local: "198.51.100.1:443".parse().unwrap(),
            tls,
        }
    }

    fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
        headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    #[test]
    fn what_a_stranger_claims_is_replaced() {
        let connection = connection("[::ffff:192.0.2.7]:40000", true);
        let mut sent = headers(&[
            ("X-Forwarded-For", "10.0.0.1"),
            ("X-Forwarded-For", "10.0.0.2"),
            ("X_Forwarded_For", "10.0.0.3"),
            ("X-Forwarded-Proto", "http"),
            ("X-Forwarded-Host", "evil.example"),
            ("X-Forwarded-Port", "1"),
            ("X-Forwarded-Ssl", "off"),
            ("X-Real-IP", "10.0.0.4"),
            ("Forwarded", "for=10.0.0.5"),
            ("Accept", "*/*"),
        ]);
        let client = request_client(&sent, &connection, &[]);
        assert_eq!(client.address.to_string(), "192.0.2.7");
        set_forwarded(&mut sent, &connection, &client, "shop.example:8443");
        assert_eq!(text(&sent, "x-forwarded-for"), "192.0.2.7");
        assert_eq!(text(&sent, "x-forwarded-proto"), "https");
        assert_eq!(text(&sent, "x-forwarded-host"), "shop.example:8443");
        assert_eq!(text(&sent, "x-real-ip"), "192.0.2.7");
        assert_eq!(
            text(&sent, "forwarded"),
            "for=192.0.2.7;host=\"shop.example:8443\";proto=https"
        );
        assert_eq!(sent.len(), 6, "{sent:?}");
    }

    #[test]
    fn a_trusted_proxy_is_believed_up_to_the_first_stranger() {
        let trusted = [
            "198.51.100.0/24".parse().unwrap(),
            "2001:db8::/32".parse().unwrap(),
        ];
        let connection = connection("198.51.100.9:1", false);
        let mut sent = headers(&[
            ("X-Forwarded-For", "10.9.9.9, 192.0.2.7:4000"),
            ("X-Forwarded-For", "[2001:db8::1]"),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-Host", "shop.example"),
            ("X-Forwarded-Port", "1"),
        ]);
        let client = request_client(&sent, &connection, &trusted);
        assert_eq!(client.address.to_string(), "192.0.2.7");
        assert_eq!(client.scheme, Scheme::Https);
        set_forwarded(&mut sent, &connection, &client, "inner.example");
        assert_eq!(
            text(&sent, "x-forwarded-for"),
            "10.9.9.9, 192.0.2.7:4000, [2001:db8::1], 198.51.100.9"
        );
        assert_eq!(text(&sent, "x-forwarded-proto"), "https");
        assert_eq!(text(&sent, "x-forwarded-host"), "shop.example");
        assert_eq!(text(&sent, "x-real-ip"), "192.0.2.7");
        assert_eq!(text(&sent, "x-forwarded-port"), "");
    }

    #[test]
    fn a_header_about_the_client_is_known_with_underscores_too() {
        for (name, expected) in [
            ("X-Forwarded-For", true),
            ("x_forwarded-whatever", true),
            ("X_Real_IP", true),
            ("Forwarded", true),
            ("X-Forwarded", false),
            ("X-Real-IP2", false),
            ("Forwarded-Of", false),
            ("Forward", false),
            ("Accept", false),
        ] {
            let parsed: HeaderName = name.parse().unwrap();
            assert_eq!(is_about_client(&parsed), expected, "{name}");
        }
    }

    #[test]
    fn a_client_of_ipv6_is_quoted_where_forwarded_needs_it() {
        let connection = connection("[2001:db8::7]:40000", false);
        let mut sent = headers(&[]);
        let client = request_client(&sent, &connection, &[]);
        set_forwarded(&mut sent, &connection, &client, "shop.example");
        assert_eq!(text(&sent, "x-forwarded-for"), "2001:db8::7");
        assert_eq!(text(&sent, "x-real-ip"), "2001:db8::7");
        assert_eq!(
            text(&sent, "forwarded"),
            "for=\"[2001:db8::7]\";host=\"shop.example\";proto=http"
        );
    }

    #[test]
    fn an_entry_that_is_no_address_ends_the_chain() {
        let trusted = ["198.51.100.0/24".parse().unwrap()];
        let connection = connection("198.51.100.9:1", false);
        for (sent, expected) in [
            ("192.0.2.7, unknown, 198.51.100.8", "198.51.100.8"),
            ("", "198.51.100.9"),
            ("198.51.100.7, 198.51.100.8", "198.51.100.7"),
        ] {
            let sent = headers(&[("X-Forwarded-For", sent)]);
            let client = request_client(&sent, &connection, &trusted);
            assert_eq!(client.address.to_string(), expected);
        }
        let scheme = headers(&[("X-Forwarded-Proto", "javascript")]);
        assert_eq!(
            request_client(&scheme, &connection, &trusted).scheme,
            Scheme::Http
        );
    }
}
