//! Headers that end at a proxy, and the changes that a route asks for.

use hyper::{
    HeaderMap, Method, Version,
    header::{
        self, CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE,
    },
};

use crate::client::is_about_client;
use kat_types::resource::HeaderChanges;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Whether a header belongs to one connection (RFC 9110 7.6.1). `Trailer` stays: trailers are passed
/// on.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    [
        &CONNECTION,
        &KEEP_ALIVE,
        &PROXY_CONNECTION,
        &HTTP2_SETTINGS,
        &header::PROXY_AUTHENTICATE,
        &header::PROXY_AUTHORIZATION,
        &TE,
        &TRANSFER_ENCODING,
        &UPGRADE,
    ]
    .contains(&name)
}

/// Headers that a `Connection:` may not remove, beside those about the client: without them the
/// program would see another request.
fn is_kept_whatever_connection_says(name: &HeaderName) -> bool {
    is_about_client(name)
        || [
            &HOST,
            &CONTENT_LENGTH,
            &header::AUTHORIZATION,
            &header::COOKIE,
            &header::EXPECT,
            &TRAILER,
        ]
        .contains(&name)
}

/// Removes the headers that belong to the connection, and those that `Connection:` names.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named = words(headers, &CONNECTION);
    let named = named.filter_map(|word| word.parse::<HeaderName>().ok());
    let named: Vec<HeaderName> = named
        .filter(|name| headers.contains_key(name) && !is_kept_whatever_connection_says(name))
        .collect();
    let present = headers.keys().filter(|name| is_hop_by_hop(name));
    let present: Vec<HeaderName> = present.cloned().collect();
    for name in named.iter().chain(&present) {
        headers.remove(name);
    }
}

/// The words of a list header, as they are written.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let lines = headers.get_all(name).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    let words = lines.flat_map(|line| line.split(',')).map(str::trim);
    words.filter(|word| !word.is_empty())
}

/// Whether the client takes trailers.
pub fn takes_trailers(headers: &HeaderMap) -> bool {
    words(headers, &TE).any(|word| {
        let word = word.split(';').next().unwrap_or_default().trim();
        word.eq_ignore_ascii_case("trailers")
    })
}

/// The protocol to which a request asks to switch. A switch to HTTP/2 ends here: it is never passed
/// on.
pub fn requested_upgrade(
    version: Version,
    method: &Method,
    headers: &HeaderMap,
) -> Option<HeaderValue> {
    if version != Version::HTTP_11 || *method != Method::GET {
        return None;
    }
    if !words(headers, &CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade")) {
        return None;
    }
    let mut protocols = headers.get_all(UPGRADE).iter();
    let protocol = protocols.next().filter(|_| protocols.next().is_none())?;
    let word = protocol.to_str().ok()?.trim().to_ascii_lowercase();
    let is_http = word.starts_with("h2") || word.starts_with("http") || word.starts_with("tls");
    (!is_http && !word.is_empty() && !word.contains(',')).then(|| protocol.clone())
}

/// Why the changes of a route are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderChangeError {
    #[error("`{0}` is no header name")]
    Name(String),
    #[error("the value of header `{0}` has characters that no header may have")]
    Value(String),
    #[error("header `{0}` is set by KAT and cannot be changed")]
    Reserved(String),
}

/// Changes of headers, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedChanges {
    set: Vec<(HeaderName, HeaderValue)>,
    remove: Vec<HeaderName>,
}

impl ParsedChanges {
    /// # Errors
    /// A name or value is malformed, or the header is one that KAT sets.
    pub fn parse(changes: &HeaderChanges) -> Result<Self, HeaderChangeError> {
        let name = |text: &String| {
            let malformed = |_| HeaderChangeError::Name(text.clone());
            let name: HeaderName = text.parse().map_err(malformed)?;
            let is_reserved = is_hop_by_hop(&name)
                || is_about_client(&name)
                || [HOST, CONTENT_LENGTH, TRAILER].contains(&name);
            match is_reserved {
                true => Err(HeaderChangeError::Reserved(text.clone())),
                false => Ok(name),
            }
        };
        let set = changes.set.iter().map(|(text, value)| {
            let malformed = |_| HeaderChangeError::Value(text.clone());
            let value = HeaderValue::from_str(value).map_err(malformed)?;
            Ok((name(text)?, value))
        });
        Ok(Self {
            set: set.collect::<Result<_, _>>()?,
            remove: changes.remove.iter().map(name).collect::<Result<_, _>>()?,
        })
    }

    /// Removes first, then sets.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
    }

    /// Whether the changes name the header.
    pub fn name(&self, header: &HeaderName) -> bool {
        self.remove.contains(header) || self.set.iter().any(|(name, _)| name == header)
    }
}

/// Removes what must not be in trailers (RFC 9110 6.5.1): framing, routing, and who the client is.
pub fn clean_trailers(trailers: &mut HeaderMap) {
    let forbidden = trailers.keys().filter(|name| {
        is_hop_by_hop(name)
            || is_about_client(name)
            || [
                HOST,
                CONTENT_LENGTH,
                TRAILER,
                header::AUTHORIZATION,
                header::COOKIE,
                header::SET_COOKIE,
                header::CONTENT_TYPE,
                header::CONTENT_ENCODING,
            ]
            .contains(name)
    });
    let forbidden: Vec<HeaderName> = forbidden.cloned().collect();
    for name in forbidden {
        trailers.remove(name);
    }
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

    #[test]
    fn headers_of_the_connection_end_here() {
        let mut sent = headers(&[
            ("Connection", "keep-alive, X-Own"),
            ("Connection", "x-more"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Authorization", "Basic x"),
            ("Proxy-Connection", "keep-alive"),
            ("TE", "trailers"),
            ("Transfer-Encoding", "chunked"),
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "x"),
            ("X-Own", "1"),
            ("X-More", "2"),
            ("Accept", "*/*"),
            ("Trailer", "x-sum"),
        ]);
        remove_hop_by_hop(&mut sent);
        let names: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["accept", "trailer"]);
    }

    #[test]
    fn a_connection_header_removes_nothing_that_the_program_relies_on() {
        let mut sent = headers(&[
            (
                "Connection",
                "X-Forwarded-For, Forwarded, X-Real-IP, Host, Cookie, Authorization, Content-Length",
            ),
            ("X-Forwarded-For", "192.0.2.7"),
            ("Forwarded", "for=192.0.2.7"),
            ("X-Real-IP", "192.0.2.7"),
            ("Host", "a.example"),
            ("Cookie", "a=b"),
            ("Authorization", "Basic x"),
            ("Content-Length", "3"),
        ]);
        remove_hop_by_hop(&mut sent);
        assert_eq!(sent.len(), 7, "{sent:?}");
    }

    #[test]
    fn a_switch_to_another_protocol_is_found_but_none_to_http2() {
        let asked = |connection: &str, upgrade: &str| {
            let sent = headers(&[("Connection", connection), ("Upgrade", upgrade)]);
            requested_upgrade(Version::HTTP_11, &Method::GET, &sent).is_some()
        };
        assert!(asked("Upgrade", "websocket"));
        assert!(asked("keep-alive, upgrade", "WebSocket"));
        assert!(!asked("keep-alive", "websocket"));
        assert!(!asked("Upgrade, HTTP2-Settings", "h2c"));
        assert!(!asked("Upgrade", "TLS/1.0"));
        assert!(!asked("Upgrade", "websocket, h2c"));
        let sent = headers(&[("Connection", "upgrade"), ("Upgrade", "websocket")]);
        assert!(requested_upgrade(Version::HTTP_10, &Method::GET, &sent).is_none());
        assert!(requested_upgrade(Version::HTTP_11, &Method::POST, &sent).is_none());
    }

    #[test]
    fn a_route_changes_its_own_headers_and_none_of_kat() {
        let changes = |set: &[(&str, &str)], remove: &[&str]| {
            let set = set
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            ParsedChanges::parse(&HeaderChanges {
                set: set.collect(),
                remove: remove.iter().map(|name| (*name).to_owned()).collect(),
            })
        };
        let mut sent = headers(&[("Server", "x"), ("X-Powered-By", "y")]);
        let parsed = changes(&[("X-Frame-Options", "DENY")], &["server", "X-Powered-By"]).unwrap();
        parsed.apply(&mut sent);
        assert_eq!(sent, headers(&[("X-Frame-Options", "DENY")]));
        for reserved in [
            "Host",
            "connection",
            "X-Forwarded-For",
            "Forwarded",
            "Content-Length",
            "TE",
        ] {
            let error = HeaderChangeError::Reserved(reserved.to_owned());
            assert_eq!(changes(&[(reserved, "x")], &[]), Err(error.clone()));
            assert_eq!(changes(&[], &[reserved]), Err(error));
        }
        let value = changes(&[("X-A", "a\r\nX-B: c")], &[]);
        assert_eq!(value, Err(HeaderChangeError::Value("X-A".to_owned())));
        assert!(matches!(
            changes(&[("a b", "c")], &[]),
            Err(HeaderChangeError::Name(_))
        ));
    }

    #[test]
    fn trailers_are_found_in_te_and_cleaned() {
        assert!(takes_trailers(&headers(&[("TE", "gzip, trailers;q=1")])));
        assert!(takes_trailers(&headers(&[
            ("TE", "gzip"),
            ("TE", " Trailers ;q=1")
        ])));
        assert!(!takes_trailers(&headers(&[("TE", "gzip")])));
        let mut trailers = headers(&[
            ("grpc-status", "0"),
            ("content-length", "3"),
            ("x-forwarded-for", "10.0.0.1"),
            ("set-cookie", "a=b"),
        ]);
        clean_trailers(&mut trailers);
        assert_eq!(trailers, headers(&[("grpc-status", "0")]));
    }
}
