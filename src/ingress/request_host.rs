//! The host that a request is for.

use hyper::{Request, Uri, Version, header::HOST};

use crate::config::routes::is_host_name;

/// The host of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHost {
    /// In lower case, without port and final dot; with brackets for IPv6.
    pub name: String,
    /// As the client wrote it, with the port.
    pub written: String,
}

/// Reads the host from the target and from `Host:`, which must agree.
///
/// # Errors
/// A sentence for the client.
pub fn request_host<B>(request: &Request<B>) -> Result<RequestHost, &'static str> {
    let mut lines = request.headers().get_all(HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err("it has more than one Host header");
    }
    let line = match line {
        Some(line) => Some(line.to_str().map_err(|_| "its Host header is malformed")?),
        None => None,
    };
    let authority = target_authority(request.uri());
    let written = match (authority, line) {
        (Some(authority), Some(line)) if !authority.eq_ignore_ascii_case(line) => {
            return Err("its target and its Host header differ");
        }
        (Some(authority), _) => authority,
        (None, Some(line)) => line,
        (None, None) => return Err("it has no Host header"),
    };
    // HTTP/1.1 needs the header even where the target has the host (RFC 9112 3.2).
    if request.version() == Version::HTTP_11 && line.is_none() {
        return Err("it has no Host header");
    }
    let name = host_name(written).ok_or("its Host header is malformed")?;
    Ok(RequestHost {
        name,
        written: written.to_owned(),
    })
}

fn target_authority(uri: &Uri) -> Option<&str> {
    uri.authority().map(hyper::http::uri::Authority::as_str)
}

/// The name of `HOST[:PORT]`.
fn host_name(written: &str) -> Option<String> {
    let (host, port) = match written.strip_prefix('[') {
        Some(inner) => {
            let (address, rest) = inner.split_once(']')?;
            let address: std::net::Ipv6Addr = address.parse().ok()?;
            let port = match rest {
                "" => None,
                rest => Some(rest.strip_prefix(':')?),
            };
            return is_port(port).then(|| format!("[{address}]"));
        }
        None => match written.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (written, None),
        },
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    (is_host_name(&host) && is_port(port)).then_some(host)
}

fn is_port(port: Option<&str>) -> bool {
    port.is_none_or(|port| {
        port.is_empty()
            || (port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(target: &str, lines: &[&str]) -> Result<String, &'static str> {
        let mut request = Request::builder().uri(target).version(Version::HTTP_11);
        for line in lines {
            request = request.header(HOST, *line);
        }
        request_host(&request.body(()).unwrap()).map(|host| host.name)
    }

    #[test]
    fn a_host_is_read_without_port_case_and_final_dot() {
        assert_eq!(
            host("/", &["Shop.Example.:8443"]),
            Ok("shop.example".to_owned())
        );
        assert_eq!(host("/", &["192.0.2.1"]), Ok("192.0.2.1".to_owned()));
        assert_eq!(
            host("/", &["[2001:db8::1]:80"]),
            Ok("[2001:db8::1]".to_owned())
        );
        let absolute = host("http://a.example/x", &["A.example"]);
        assert_eq!(absolute, Ok("a.example".to_owned()));
    }

    #[test]
    fn a_request_for_two_hosts_or_none_is_refused() {
        for (target, lines) in [
            ("/", &["a.example", "b.example"][..]),
            ("/", &["a.example", "a.example"][..]),
            ("/", &[][..]),
            ("http://a.example/", &["b.example"][..]),
            ("http://a.example/", &[][..]),
            ("http://u@a.example/", &["u@a.example"][..]),
            ("/", &["a.example/x"][..]),
            ("/", &["a.example:80:80"][..]),
            ("/", &["a.example:x"][..]),
            ("/", &["a.example:99999"][..]),
            ("/", &["a..example"][..]),
            ("/", &[""][..]),
            ("/", &["[::1"][..]),
            ("/", &["a.example b.example"][..]),
        ] {
            assert!(host(target, lines).is_err(), "{target} {lines:?}");
        }
    }

    #[test]
    fn in_http2_the_target_is_enough() {
        let request = Request::builder()
            .uri("https://a.example/")
            .version(Version::HTTP_2);
        let host = request_host(&request.body(()).unwrap()).unwrap();
        assert_eq!(host.name, "a.example");
    }
}
