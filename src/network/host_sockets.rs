//! Ports on which programs of the machine itself listen (proc_net(5)).

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use ipnet::Ipv4Net;

use kat_types::machine::network::Transport;

/// The socket files of the calling thread's network namespace, with the state of listening sockets
/// in them: TCP_LISTEN, and TCP_CLOSE for unconnected UDP sockets.
const FILES: [(&str, Transport, &str); 4] = [
    ("/proc/thread-self/net/tcp", Transport::Tcp, "0A"),
    ("/proc/thread-self/net/tcp6", Transport::Tcp, "0A"),
    ("/proc/thread-self/net/udp", Transport::Udp, "07"),
    ("/proc/thread-self/net/udp6", Transport::Udp, "07"),
];

/// Ports on which a program of the machine listens and whose connections a host port would
/// intercept: at every address, at 127.0.0.1, or at an address of the machine outside the overlay.
/// A file that can't be read counts as empty.
pub(crate) fn in_the_way(overlay: Ipv4Net) -> BTreeSet<(Transport, u16)> {
    let mut found = BTreeSet::new();
    for (path, transport, state) in FILES {
        let Ok(file) = File::open(path) else { continue };
        let lines = BufReader::new(file).lines().skip(1).map_while(Result::ok);
        let sockets = lines.filter_map(|line| socket(&line, state));
        let ports = sockets
            .filter(|(address, _)| takes(*address, overlay))
            .map(|(_, port)| (transport, port));
        found.extend(ports);
    }
    found
}

/// The range of ephemeral ports (ip(7), `ip_local_port_range`).
pub(crate) fn passing_ports() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let text = text.unwrap_or_default();
    let mut ends = text.split_whitespace().map(str::parse);
    match (ends.next(), ends.next()) {
        (Some(Ok(first)), Some(Ok(last))) => first..=last,
        _ => 32_768..=60_999,
    }
}

/// Whether a host port would intercept connections to a socket at this address.
pub fn takes(address: IpAddr, overlay: Ipv4Net) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) if address.is_loopback() => address == Ipv4Addr::LOCALHOST,
        IpAddr::V4(address) => !overlay.contains(&address),
        // A socket for IPv6 only looks the same.
        IpAddr::V6(address) => address.is_unspecified(),
    }
}

/// Address and port in a line with this state.
fn socket(line: &str, wanted: &str) -> Option<(IpAddr, u16)> {
    let mut fields = line.split_whitespace().skip(1);
    let (address, port) = fields.next()?.split_once(':')?;
    let state = fields.nth(1)?;
    if state != wanted {
        return None;
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((self::address(address)?, port))
}

/// An address in groups of four bytes, each in the machine's byte order.
fn address(text: &str) -> Option<IpAddr> {
    let word = |place: usize| {
        let word = u32::from_str_radix(text.get(place * 8..place * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn who_listens_is_found_where_it_loses_callers() {
        let overlay = "10.90.0.0/16".parse().unwrap();
        for (address, lost) in [
            ("0.0.0.0", true),
            ("127.0.0.1", true),
            ("127.0.0.53", false),
            ("192.0.2.1", true),
            ("10.90.1.1", false),
            ("::", true),
            ("::1", false),
            ("::ffff:192.0.2.1", true),
            ("::ffff:10.90.1.1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(takes(address.parse().unwrap(), overlay), lost, "{address}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("[::]:0").unwrap();
        let elsewhere = TcpListener::bind("127.0.0.2:0").unwrap();
        let found = in_the_way(overlay);
        let tcp = |listener: &TcpListener| (Transport::Tcp, listener.local_addr().unwrap().port());
        assert!(found.contains(&tcp(&listener)));
        assert!(found.contains(&(Transport::Udp, socket.local_addr().unwrap().port())));
        assert!(!found.contains(&tcp(&elsewhere)));
        let freed = tcp(&listener);
        drop(listener);
        assert!(!in_the_way(overlay).contains(&freed));
    }

    #[test]
    fn a_line_that_is_none_is_left_out() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000";
        assert_eq!(socket(line, "0A"), Some((Ipv4Addr::LOCALHOST.into(), 8080)));
        assert_eq!(socket(line, "07"), None);
        for length in 0..line.find(" 0A").unwrap_or_default() {
            assert_eq!(socket(&line[..length], "0A"), None, "{length}");
        }
        assert_eq!(socket("0: 0100007:1F90 0:0 0A", "0A"), None);
        assert_eq!(socket("0: zz00007F:1F90 0:0 0A", "0A"), None);
    }
}
