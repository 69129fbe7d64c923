//! The PROXY protocol, versions 1 and 2
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>).
//!
//! The header is read from peers of `proxyProtocolFrom` alone, which must send it, and is written to
//! instances whose route asks for it. A header is at most [`LONGEST`] bytes, and a byte is read only
//! when the bytes before it need it, so that nothing of what follows is lost.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use kat_types::resource::ProxyProtocol;

/// Longest header of either version: longer ones of version 2 are refused, although the protocol
/// allows 64 KiB of further fields.
pub const LONGEST: usize = 536;
/// Longest header of version 1, with its line's end.
const LONGEST_V1: usize = 107;
const V1: &[u8] = b"PROXY ";
const V2: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before the addresses.
const V2_HEAD: usize = 16;

/// Why a header was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProxyHeaderError {
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    #[error("the PROXY header is malformed")]
    Malformed,
    #[error("the PROXY header is longer than {LONGEST} bytes")]
    TooLong,
}

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxiedPeer {
    /// The connection comes from this client.
    Client {
        /// Address of the client.
        source: SocketAddr,
        /// Address that it connected to.
        destination: SocketAddr,
    },
    /// The proxy itself connected, such as for a health check, or does not know the client.
    Proxy,
}

/// Reads as much as the bytes allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderProgress {
    /// At most this many further bytes belong to the header; at least one.
    Needs(usize),
    /// The header, and its length in bytes.
    Complete(ProxiedPeer, usize),
}

/// Parses the beginning of a connection.
///
/// # Errors
/// No further bytes could make it a valid header.
pub fn parse(bytes: &[u8]) -> Result<HeaderProgress, ProxyHeaderError> {
    let is_start_of = |signature: &[u8]| {
        let common = bytes.len().min(signature.len());
        bytes.get(..common) == signature.get(..common)
    };
    if bytes.is_empty() {
        return Ok(HeaderProgress::Needs(1));
    }
    if is_start_of(V2) {
        return parse_v2(bytes);
    }
    if is_start_of(V1) {
        return parse_v1(bytes);
    }
    Err(ProxyHeaderError::Missing)
}

fn parse_v1(bytes: &[u8]) -> Result<HeaderProgress, ProxyHeaderError> {
    let window = bytes.get(..LONGEST_V1).unwrap_or(bytes);
    let Some(end) = window.iter().position(|byte| *byte == b'\n') else {
        if window.len() >= LONGEST_V1 {
            return Err(ProxyHeaderError::TooLong);
        }
        // One at a time: what follows the line's end belongs to the connection.
        return Ok(HeaderProgress::Needs(1));
    };
    let malformed = ProxyHeaderError::Malformed;
    let line = window.get(..end).ok_or(malformed)?;
    let line = line.strip_suffix(b"\r").ok_or(malformed)?;
    let line = std::str::from_utf8(line).map_err(|_| malformed)?;
    let mut words = line.split(' ');
    let (_, family) = (words.next(), words.next());
    let peer = match family {
        // What follows is to be ignored.
        Some("UNKNOWN") => ProxiedPeer::Proxy,
        Some(family @ ("TCP4" | "TCP6")) => {
            let words: Vec<&str> = words.collect();
            let [source, destination, source_port, destination_port] = words.as_slice() else {
                return Err(malformed);
            };
            let address = |text: &str| match family {
                "TCP4" => text.parse::<Ipv4Addr>().map(IpAddr::from).ok(),
                _ => text.parse::<Ipv6Addr>().map(IpAddr::from).ok(),
            };
            let source = address(source).zip(port(source_port));
            let destination = address(destination).zip(port(destination_port));
            let (source, destination) = source.zip(destination).ok_or(malformed)?;
            client(source.into(), destination.into())
        }
        _ => return Err(malformed),
    };
    Ok(HeaderProgress::Complete(peer, end + 1))
}

/// A decimal number without sign and leading zeros.
fn port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = text == "0" || !text.starts_with('0');
    text.parse().ok().filter(|_| is_number && is_short)
}

fn client(source: SocketAddr, destination: SocketAddr) -> ProxiedPeer {
    let canonical =
        |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    ProxiedPeer::Client {
        source: canonical(source),
        destination: canonical(destination),
    }
}

fn parse_v2(bytes: &[u8]) -> Result<HeaderProgress, ProxyHeaderError> {
    let malformed = ProxyHeaderError::Malformed;
    let Some(head) = bytes.first_chunk::<V2_HEAD>() else {
        return Ok(HeaderProgress::Needs(
            V2_HEAD - bytes.len().min(V2_HEAD - 1),
        ));
    };
    let [.., command, family, high, low] = *head;
    let length = V2_HEAD + usize::from(u16::from_be_bytes([high, low]));
    if length > LONGEST {
        return Err(ProxyHeaderError::TooLong);
    }
    if command >> 4 != 2 {
        return Err(malformed);
    }
    let Some(fields) = bytes.get(V2_HEAD..length) else {
        return Ok(HeaderProgress::Needs(length - bytes.len()));
    };
    let peer = match (command & 0x0f, family) {
        (0, _) => ProxiedPeer::Proxy,
        (1, 0x11) => {
            let ([source, destination], ports) = v2_addresses::<4>(fields).ok_or(malformed)?;
            client(
                (Ipv4Addr::from(source), ports.0).into(),
                (Ipv4Addr::from(destination), ports.1).into(),
            )
        }
        (1, 0x21) => {
            let ([source, destination], ports) = v2_addresses::<16>(fields).ok_or(malformed)?;
            client(
                (Ipv6Addr::from(source), ports.0).into(),
                (Ipv6Addr::from(destination), ports.1).into(),
            )
        }
        // Families without an address that could be used, such as a local socket.
        (1, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => ProxiedPeer::Proxy,
        _ => return Err(malformed),
    };
    Ok(HeaderProgress::Complete(peer, length))
}

/// Source and destination, and their ports.
type RawAddresses<const N: usize> = ([[u8; N]; 2], (u16, u16));

fn v2_addresses<const N: usize>(fields: &[u8]) -> Option<RawAddresses<N>> {
    let (source, fields) = fields.split_first_chunk::<N>()?;
    let (destination, fields) = fields.split_first_chunk::<N>()?;
    let (source_port, fields) = fields.split_first_chunk::<2>()?;
    let (destination_port, _) = fields.split_first_chunk::<2>()?;
    let ports = (
        u16::from_be_bytes(*source_port),
        u16::from_be_bytes(*destination_port),
    );
    Some(([*source, *destination], ports))
}

/// The header for an instance; empty for [`ProxyProtocol::None`].
pub fn encode(version: ProxyProtocol, source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let (source_ip, destination_ip) = same_family(source.ip(), destination.ip());
    match version {
        ProxyProtocol::None => Vec::new(),
        ProxyProtocol::V1 => {
            let family = if source_ip.is_ipv4() { "TCP4" } else { "TCP6" };
            format!(
                "PROXY {family} {source_ip} {destination_ip} {} {}\r\n",
                source.port(),
                destination.port()
            )
            .into_bytes()
        }
        ProxyProtocol::V2 => {
            let mut header = V2.to_vec();
            match (source_ip, destination_ip) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    header.extend([0x21, 0x11, 0, 12]);
                    header.extend(source.octets());
                    header.extend(destination.octets());
                }
                (source, destination) => {
                    header.extend([0x21, 0x21, 0, 36]);
                    header.extend(as_ipv6(source).octets());
                    header.extend(as_ipv6(destination).octets());
                }
            }
            header.extend(source.port().to_be_bytes());
            header.extend(destination.port().to_be_bytes());
            header
        }
    }
}

fn same_family(one: IpAddr, other: IpAddr) -> (IpAddr, IpAddr) {
    let (one, other) = (one.to_canonical(), other.to_canonical());
    match one.is_ipv4() == other.is_ipv4() {
        true => (one, other),
        false => (as_ipv6(one).into(), as_ipv6(other).into()),
    }
}

fn as_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn complete(bytes: &[u8]) -> (ProxiedPeer, usize) {
        match parse(bytes).unwrap() {
            HeaderProgress::Complete(peer, length) => (peer, length),
            HeaderProgress::Needs(more) => panic!("needs {more}"),
        }
    }

    #[test]
    fn a_text_header_names_the_client_and_leaves_what_follows() {
        let text = b"PROXY TCP4 192.0.2.7 198.51.100.1 41000 443\r\nGET / HTTP/1.1\r\n";
        let (peer, length) = complete(text);
        let expected = ProxiedPeer::Client {
            source: "192.0.2.7:41000".parse().unwrap(),
            destination: "198.51.100.1:443".parse().unwrap(),
        };
        assert_eq!(peer, expected);
        assert!(text[length..].starts_with(b"GET "));
        let six = b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n";
        let ProxiedPeer::Client { source, .. } = complete(six).0 else {
            panic!("no client");
        };
        assert_eq!(source, "[2001:db8::1]:1".parse().unwrap());
        assert_eq!(complete(b"PROXY UNKNOWN\r\n").0, ProxiedPeer::Proxy);
        assert_eq!(complete(b"PROXY UNKNOWN a b c\r\n").0, ProxiedPeer::Proxy);
    }

    #[test]
    fn malformed_text_headers_are_refused() {
        for (text, error) in [
            ("GET / HTTP/1.1\r\n", ProxyHeaderError::Missing),
            (
                "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n",
                ProxyHeaderError::Malformed,
            ),
            (
                "PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
                ProxyHeaderError::Malformed,
            ),
            (
                "PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
                ProxyHeaderError::Malformed,
            ),
            (
                "PROXY TCP4 1.2.3.4  1.2.3.4 1 2\r\n",
                ProxyHeaderError::Malformed,
            ),
            (
                "PROXY TCP4 1.2.3.4 1.2.3.4 1 70000\r\n",
                ProxyHeaderError::Malformed,
            ),
            (
                "PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n",
                ProxyHeaderError::Malformed,
            ),
            (
                "PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
                ProxyHeaderError::Malformed,
            ),
            ("PROXY TCP4 ::1 ::1 1 2\r\n", ProxyHeaderError::Malformed),
            (
                "PROXY TCP6 1.2.3.4 ::1 1 2\r\n",
                ProxyHeaderError::Malformed,
            ),
            (
                "PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
                ProxyHeaderError::Malformed,
            ),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(error), "{text}");
        }
        let endless = format!("PROXY UNKNOWN {}", "x".repeat(200));
        assert_eq!(parse(endless.as_bytes()), Err(ProxyHeaderError::TooLong));
    }

    #[test]
    fn a_binary_header_with_further_fields_is_read_whole() {
        let source = "192.0.2.7:41000".parse().unwrap();
        let destination = "198.51.100.1:443".parse().unwrap();
        let mut header = encode(ProxyProtocol::V2, source, destination);
        header[15] += 4;
        header.extend(b"\x04\0\x01\0rest");
        let expected = ProxiedPeer::Client {
            source,
            destination,
        };
        assert_eq!(complete(&header), (expected, header.len() - 4));
        // LOCAL: the proxy's own check.
        header[12] = 0x20;
        assert_eq!(complete(&header).0, ProxiedPeer::Proxy);
        header[12] = 0x22;
        assert_eq!(parse(&header), Err(ProxyHeaderError::Malformed));
        header[12] = 0x31;
        assert_eq!(parse(&header), Err(ProxyHeaderError::Malformed));
        header[12] = 0x21;
        header[14] = 0xff;
        assert_eq!(parse(&header), Err(ProxyHeaderError::TooLong));
        let short = [&V2[..], &[0x21, 0x11, 0, 4, 1, 2, 3, 4]].concat();
        assert_eq!(parse(&short), Err(ProxyHeaderError::Malformed));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_however_it_is_cut(
            source: SocketAddr, destination: SocketAddr, text: bool, rest in "[ -~]{0,20}",
        ) {
            let version = if text { ProxyProtocol::V1 } else { ProxyProtocol::V2 };
            let header = encode(version, source, destination);
            let whole = [&header[..], rest.as_bytes()].concat();
            let mut read = 0;
            let (peer, length) = loop {
                match parse(&whole[..read]).unwrap() {
                    HeaderProgress::Needs(more) => {
                        prop_assert!(more > 0 && read + more <= header.len());
                        read += more;
                    }
                    HeaderProgress::Complete(peer, length) => break (peer, length),
                }
            };
            prop_assert_eq!(length, header.len());
            prop_assert_eq!(read, length);
            let ProxiedPeer::Client { source: read, .. } = peer else { panic!("no client") };
            prop_assert_eq!(read.ip(), source.ip().to_canonical());
            prop_assert_eq!(read.port(), source.port());
        }

        #[test]
        fn any_bytes_are_refused_or_bounded(bytes: Vec<u8>) {
            match parse(&bytes) {
                Ok(HeaderProgress::Complete(_, length)) => prop_assert!(length <= bytes.len()),
                Ok(HeaderProgress::Needs(more)) => prop_assert!(bytes.len() + more <= LONGEST),
                Err(_) => {}
            }
        }
    }
}
