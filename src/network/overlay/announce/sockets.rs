//! The sockets for announcements.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket as StdSocket},
    sync::Arc,
    time::{Duration, SystemTime},
};

use ipnet::Ipv4Net;
use nix::net::if_::if_nametoindex;
use parking_lot::{Mutex, MutexGuard};
use rustix::net::{
    self as sockets, AddressFamily, SocketFlags, SocketType, socket_with, sockopt::set_ipv6_v6only,
};
use tokio::{net::UdpSocket, sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::packet::MAX_PACKET;
use crate::overlay::{
    announce::known_peers::AnnouncementBook,
    local_addresses::LocalAddress,
    wireguard::{PrivateKey, PublicKey},
};
use kat_types::machine::network::{ANNOUNCE_PORT, NodeNetwork};

/// The multicast address of all nodes of a link (RFC 4291, section 2.7.1): every switch forwards
/// it.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Most packets that are read per second; further ones are discarded unread.
const PER_SECOND: u32 = 200;
/// Pause after a failed socket.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// Sends and receives announcements.
#[derive(Default)]
pub(crate) struct Announcer {
    state: Mutex<AnnouncerState>,
    arrived: Notify,
}

#[derive(Default)]
struct AnnouncerState {
    book: Option<AnnouncementBook>,
    overlay: Option<Ipv4Net>,
}

impl Announcer {
    /// Sets this machine's key and the peers.
    pub(crate) fn set(
        &self,
        own: &PrivateKey,
        node: &NodeNetwork,
        peers: impl Iterator<Item = PublicKey>,
    ) {
        let mut state = self.state();
        state.overlay = Some(node.cluster_cidr);
        if !state.book.as_ref().is_some_and(|book| book.is_of(own)) {
            state.book = Some(AnnouncementBook::new(own.clone()));
        }
        if let Some(book) = &mut state.book {
            book.set_peers(peers);
        }
    }

    /// `host:port` that a peer last announced.
    pub(crate) fn endpoints_heard_from(&self, peer: &PublicKey) -> Vec<String> {
        let state = self.state();
        let heard = state
            .book
            .as_ref()
            .map(|book| book.endpoints_heard_from(peer));
        let heard = heard.unwrap_or_default().iter();
        heard.map(ToString::to_string).collect()
    }

    /// Waits until a peer announces a new endpoint.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Announces to these peers, on each link, the machine's addresses on that link.
    pub(crate) fn send(&self, port: u16, locals: &[LocalAddress], peers: &[PublicKey]) {
        let four = StdSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.set_broadcast(true)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        let six = StdSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        for of_link in locals.chunk_by(|one, next| one.link == next.link) {
            let endpoints: Vec<SocketAddr> = of_link
                .iter()
                .map(|local| SocketAddr::new(local.address, port))
                .collect();
            let packets = match &mut self.state().book {
                Some(book) => book.write(&endpoints, peers.iter().copied(), SystemTime::now()),
                None => return,
            };
            for packet in &packets {
                for target in targets(of_link) {
                    let socket = if target.is_ipv4() { &four } else { &six };
                    // Sending fails on a link that is down or without IPv6; the other links are
                    // still used.
                    let sent = socket.as_ref().map(|socket| socket.send_to(packet, target));
                    if let Ok(Err(error)) = sent {
                        tracing::debug!(%target, "not announced: {error}");
                    }
                }
            }
        }
    }

    /// Receives announcements until cancelled.
    pub(crate) async fn listen(self: Arc<Self>, cancel: CancellationToken) {
        let mut told = false;
        while !cancel.is_cancelled() {
            if let Err(error) = self.receive_announcements(&cancel).await
                && !told
            {
                told = true;
                tracing::warn!(
                    port = ANNOUNCE_PORT,
                    "announcements of peers on the LAN are not heard: {error}"
                );
            }
            let pause = tokio::time::sleep(AFTER_FAILURE);
            cancel.run_until_cancelled(pause).await;
        }
    }

    async fn receive_announcements(&self, cancel: &CancellationToken) -> io::Result<()> {
        let four = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ANNOUNCE_PORT)).await?;
        let six = match bind_six() {
            Ok(socket) => Some(UdpSocket::from_std(socket)?),
            Err(error) => {
                tracing::debug!("announcements are not heard over IPv6: {error}");
                None
            }
        };
        let (mut of_four, mut of_six) = ([0; MAX_PACKET + 1], [0; MAX_PACKET + 1]);
        let mut measure = PacketRate::new();
        loop {
            let over_six = async {
                match &six {
                    Some(socket) => socket.recv_from(&mut of_six).await,
                    None => std::future::pending().await,
                }
            };
            let (bytes, length, from) = tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                received = four.recv_from(&mut of_four) => {
                    let (length, from) = received?;
                    (&of_four, length, from)
                }
                received = over_six => {
                    let (length, from) = received?;
                    (&of_six, length, from)
                }
            };
            let packet = bytes.get(..length).unwrap_or_default();
            if self.is_of_overlay(from.ip()) || !measure.take(Instant::now()) {
                continue;
            }
            let new = match &mut self.state().book {
                Some(book) => book.open(packet),
                None => false,
            };
            if new {
                tracing::debug!(%from, "a peer announced where it is");
                self.arrived.notify_one();
            }
        }
    }

    /// Whether a sender is a container: their packets are ignored, and do not count for the limit.
    fn is_of_overlay(&self, from: IpAddr) -> bool {
        match (from, self.state().overlay) {
            (IpAddr::V4(from), Some(overlay)) => overlay.contains(&from),
            _ => false,
        }
    }

    fn state(&self) -> MutexGuard<'_, AnnouncerState> {
        self.state.lock()
    }
}

/// Broadcast and multicast addresses of a link.
fn targets(of_link: &[LocalAddress]) -> Vec<SocketAddr> {
    let mut targets: Vec<SocketAddr> = of_link
        .iter()
        .filter_map(|local| local.broadcast)
        .map(|address| SocketAddr::from((address, ANNOUNCE_PORT)))
        .collect();
    let index = of_link
        .first()
        .and_then(|local| if_nametoindex(local.link.as_str()).ok());
    let six = index.map(|index| SocketAddrV6::new(ALL_NODES, ANNOUNCE_PORT, 0, index));
    targets.extend(six.map(SocketAddr::from));
    targets.sort();
    targets.dedup();
    targets
}

/// Only IPv6: IPv4 has a socket of its own.
fn bind_six() -> io::Result<StdSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None)?;
    set_ipv6_v6only(&socket, true)?;
    let address = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, ANNOUNCE_PORT, 0, 0);
    sockets::bind(&socket, &address)?;
    Ok(socket.into())
}

/// Number of packets read in the present second.
struct PacketRate {
    since: Instant,
    taken: u32,
}

impl PacketRate {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            taken: 0,
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.taken) = (now, 0);
        }
        self.taken = self.taken.saturating_add(1);
        self.taken <= PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_thrown_away_and_ends() {
        let mut measure = PacketRate::new();
        let taken = (0..10 * PER_SECOND).filter(|_| measure.take(Instant::now()));
        assert_eq!(taken.count(), usize::try_from(PER_SECOND).unwrap());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(measure.take(Instant::now()));
    }

    #[test]
    fn a_link_is_told_once() {
        let local = |address: &str, broadcast: Option<&str>| LocalAddress {
            link: "lo".to_owned(),
            address: address.parse().unwrap(),
            broadcast: broadcast.map(|text| text.parse().unwrap()),
        };
        let of_link = [
            local("192.0.2.7", Some("192.0.2.255")),
            local("192.0.2.8", Some("192.0.2.255")),
            local("2001:db8::7", None),
        ];
        let found: Vec<String> = targets(&of_link).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.255:9117", "[ff02::1%1]:9117"]);
    }
}
