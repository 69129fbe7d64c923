//! Chooses the resolvers to which questions are forwarded.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::zone::Zone;

/// Addresses of systemd-resolved's stub.
const STUBS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)),
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 54)),
];
/// Interval of the checks for changed files.
const LOOK: Duration = Duration::from_secs(2);
/// Most resolvers that are used.
const SERVERS: usize = 4;
/// Largest resolv.conf that is read, in bytes.
const FILE: u64 = 65_536;

/// The machine's resolvers, read again when their file changes.
#[derive(Debug)]
pub(super) struct Upstreams {
    host: PathBuf,
    /// systemd-resolved's list of its own resolvers.
    resolved: PathBuf,
    port: u16,
    known: Mutex<KnownUpstreams>,
}

#[derive(Debug, Default)]
struct KnownUpstreams {
    looked: Option<Instant>,
    stamp: Vec<Option<(SystemTime, u64)>>,
    servers: Vec<SocketAddr>,
}

impl Upstreams {
    /// `port` is 53 except in tests.
    pub(super) fn new(host: PathBuf, resolved: PathBuf, port: u16) -> Self {
        Self {
            host,
            resolved,
            port,
            known: Mutex::default(),
        }
    }

    /// The zone's resolvers, or otherwise the machine's; never one that would forward back to this
    /// server.
    pub(super) fn servers(&self, zone: &Zone) -> Vec<SocketAddr> {
        let servers = match zone.upstreams() {
            [] => self.machine(),
            configured => configured
                .iter()
                .map(|address| SocketAddr::new(*address, self.port))
                .collect(),
        };
        servers
            .into_iter()
            .filter(|server| !zone.would_loop(server.ip()))
            .take(SERVERS)
            .collect()
    }

    fn machine(&self) -> Vec<SocketAddr> {
        let mut known = self.known.lock();
        let now = Instant::now();
        let fresh = known
            .looked
            .is_some_and(|looked| now.saturating_duration_since(looked) < LOOK);
        if !fresh {
            known.looked = Some(now);
            let stamp = vec![stamp(&self.host), stamp(&self.resolved)];
            if stamp != known.stamp {
                known.stamp = stamp;
                known.servers = self.read();
                tracing::debug!(servers = ?known.servers, "read the machine's resolvers");
            }
        }
        known.servers.clone()
    }

    /// systemd-resolved's stub would ask this server for names of links, so its list of resolvers
    /// is read instead.
    fn read(&self) -> Vec<SocketAddr> {
        let host = read_servers(&self.host, self.port);
        let stub = |server: &SocketAddr| STUBS.contains(&server.ip());
        if host.iter().any(stub) {
            return read_servers(&self.resolved, self.port);
        }
        host
    }
}

fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn read_servers(path: &Path, port: u16) -> Vec<SocketAddr> {
    let readable = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() <= FILE);
    let text = match readable.then(|| std::fs::read_to_string(path)) {
        Some(Ok(text)) => text,
        _ => {
            tracing::warn!(path = %path.display(), "the machine's resolvers can't be read");
            return Vec::new();
        }
    };
    parse_servers(&text, port)
}

/// The `nameserver` lines of a resolv.conf(5).
fn parse_servers(text: &str, port: u16) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            (words.next() == Some("nameserver")).then(|| words.next())?
        })
        .filter_map(|word| server(word, port))
        .collect()
}

/// Parses an address; a link-local one may have its link's name or index behind a `%`.
fn server(word: &str, port: u16) -> Option<SocketAddr> {
    let Some((address, link)) = word.split_once('%') else {
        return Some(SocketAddr::new(word.parse().ok()?, port));
    };
    let scope = link
        .parse()
        .ok()
        .or_else(|| nix::net::if_::if_nametoindex(link).ok())?;
    Some(SocketAddrV6::new(address.parse().ok()?, port, 0, scope).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::tests::node;
    use kat_types::machine::network::{DnsRecords, Instances, NodeNetwork};

    fn zone(upstreams: &[&str]) -> Zone {
        let node = NodeNetwork {
            upstream_dns: upstreams.iter().map(|text| text.parse().unwrap()).collect(),
            ..node()
        };
        Zone::new(&node, &Instances::default(), &DnsRecords::default()).unwrap()
    }

    fn ips(servers: &[SocketAddr]) -> Vec<String> {
        servers
            .iter()
            .map(|server| server.ip().to_string())
            .collect()
    }

    #[test]
    fn reads_what_resolvers_write() {
        let text = "# c\nsearch a b\nnameserver 192.0.2.1\n nameserver\t2001:db8::1 x\nnameserver\nnameserver fe80::1%lo\nnameserver nonsense\noptions edns0\n";
        let servers = parse_servers(text, 53);
        assert_eq!(ips(&servers), ["192.0.2.1", "2001:db8::1", "fe80::1"]);
        assert!(matches!(servers[2], SocketAddr::V6(address) if address.scope_id() == 1));
    }

    #[test]
    fn never_asks_what_would_ask_here() {
        let upstreams = Upstreams::new("/nonexistent".into(), "/nonexistent".into(), 53);
        let zone = zone(&[
            "10.100.0.1",
            "0.0.0.0",
            "10.100.2.1",
            "10.200.0.9",
            "::",
            "192.0.2.1",
        ]);
        assert_eq!(ips(&upstreams.servers(&zone)), ["192.0.2.1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn follows_the_machines_files() {
        let folder = tempfile::tempdir().unwrap();
        let (host, resolved) = (folder.path().join("host"), folder.path().join("resolved"));
        let upstreams = Upstreams::new(host.clone(), resolved.clone(), 53);
        assert!(upstreams.servers(&zone(&[])).is_empty());

        tokio::time::advance(LOOK).await;
        std::fs::write(&host, "nameserver 192.0.2.1\n").unwrap();
        assert_eq!(ips(&upstreams.servers(&zone(&[]))), ["192.0.2.1"]);
        assert_eq!(
            ips(&upstreams.servers(&zone(&["192.0.2.9"]))),
            ["192.0.2.9"]
        );

        std::fs::write(&host, "nameserver 127.0.0.53\noptions edns0\n").unwrap();
        std::fs::write(
            &resolved,
            "nameserver 10.100.0.1\nnameserver 198.51.100.1\n",
        )
        .unwrap();
        assert_eq!(
            ips(&upstreams.servers(&zone(&[]))),
            ["192.0.2.1"],
            "looked too soon"
        );
        tokio::time::advance(LOOK).await;
        assert_eq!(ips(&upstreams.servers(&zone(&[]))), ["198.51.100.1"]);
        let local = "127.0.0.1".parse::<Ipv4Addr>().unwrap();
        assert!(
            !zone(&[]).would_loop(local.into()),
            "a resolver of the machine's own"
        );
    }
}
