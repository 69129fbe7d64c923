//! The sockets over which `kat-net` asks for, announces and hears virtual addresses.

use std::{
    collections::BTreeSet,
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv6Addr, SocketAddrV6},
    num::NonZeroU32,
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
};

use nix::{
    cmsg_space,
    ifaddrs::getifaddrs,
    sys::socket::{
        ControlMessageOwned, LinkAddr, MsgFlags, SockaddrIn6, bind, recvmsg, setsockopt, sockopt,
    },
};
use parking_lot::RwLock;
use rustix::net::{
    self as sockets, AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType,
    ipproto::ICMPV6, socket_with, sockopt::set_ipv6_multicast_hops,
};
use tokio::{io::Interest, net::UdpSocket, sync::mpsc};

use super::packet::{
    ETHERTYPE_ARP, HeardStatement, Mac, StatementKind, arp_frame, neighbour_message, read_arp,
    read_neighbour,
};

/// Longest packet that is read; longer ones are cut, and nothing that is read is longer.
const LONGEST: usize = 1600;

/// A statement and the index of the link that it came over.
pub(crate) type HeardOnLink = (u32, HeardStatement);

/// Addresses of which statements are passed on.
pub(crate) type WatchedAddresses = Arc<RwLock<BTreeSet<IpAddr>>>;

/// ARP on one link. The calls of a socket for packets are those of a UDP socket, which the type of the
/// runtime stands for.
pub(crate) struct ArpSocket {
    socket: Arc<UdpSocket>,
    receiving: tokio::task::AbortHandle,
}

impl ArpSocket {
    /// Opens a socket on a link, and passes on what is heard of the watched addresses.
    ///
    /// # Errors
    /// The link is gone, or the caller has no CAP_NET_RAW.
    pub(crate) fn open(
        name: &str,
        index: u32,
        watched: &WatchedAddresses,
        heard: &mpsc::Sender<HeardOnLink>,
    ) -> io::Result<Self> {
        let protocol = NonZeroU32::new(u32::from(ETHERTYPE_ARP.to_be())).map(Protocol::from_raw);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, protocol)?;
        bind(socket.as_raw_fd(), &link_address(name)?)?;
        let socket = Arc::new(UdpSocket::from_std(socket.into())?);
        let task = receive_arp(
            Arc::clone(&socket),
            index,
            Arc::clone(watched),
            heard.clone(),
        );
        let receiving = tokio::spawn(task).abort_handle();
        Ok(Self { socket, receiving })
    }

    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        sockets::send(&self.socket, frame, SendFlags::empty())?;
        Ok(())
    }
}

impl Drop for ArpSocket {
    fn drop(&mut self) {
        self.receiving.abort();
    }
}

/// The address of a link for a socket of packets (packet(7)).
fn link_address(name: &str) -> io::Result<LinkAddr> {
    let all = getifaddrs()?;
    let mut links = all.filter(|entry| entry.interface_name == name);
    let found = links.find_map(|entry| entry.address?.as_link_addr().copied());
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no link {name}")))
}

async fn receive_arp(
    socket: Arc<UdpSocket>,
    index: u32,
    watched: WatchedAddresses,
    heard: mpsc::Sender<HeardOnLink>,
) {
    let mut buffer = [0; 128];
    loop {
        // Under a flood the socket is always ready; the other tasks get their turn all the same.
        tokio::task::consume_budget().await;
        if socket.readable().await.is_err() {
            return;
        }
        let received = socket.try_io(Interest::READABLE, || {
            let (length, _) = sockets::recv(&socket, &mut buffer, RecvFlags::empty())?;
            Ok(length)
        });
        match received {
            Ok(length) => {
                let frame = buffer.get(..length).unwrap_or_default();
                pass_on(read_arp(frame), index, &watched, &heard);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The link is down; it may come up again.
            Err(error) => tracing::debug!(link = index, "ARP is not heard: {error}"),
        }
    }
}

/// Neighbour discovery on all links.
pub(crate) struct NeighbourSocket {
    socket: Arc<UdpSocket>,
    receiving: tokio::task::AbortHandle,
}

impl NeighbourSocket {
    /// Opens a socket, and passes on what is heard of the watched addresses.
    ///
    /// # Errors
    /// The machine has no IPv6, or the caller has no CAP_NET_RAW.
    pub(crate) fn open(
        watched: &WatchedAddresses,
        heard: &mpsc::Sender<HeardOnLink>,
    ) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::INET6, SocketType::RAW, flags, Some(ICMPV6))?;
        set_ipv6_multicast_hops(&socket, 255)?;
        setsockopt(&socket, sockopt::Ipv6RecvHopLimit, &true)?;
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        let socket = Arc::new(UdpSocket::from_std(socket.into())?);
        let task = receive_neighbours(Arc::clone(&socket), Arc::clone(watched), heard.clone());
        let receiving = tokio::spawn(task).abort_handle();
        Ok(Self { socket, receiving })
    }

    pub(crate) fn send(&self, message: &[u8], to: Ipv6Addr, index: u32) -> io::Result<()> {
        let to = SocketAddrV6::new(to, 0, 0, index);
        sockets::sendto(&self.socket, message, SendFlags::empty(), &to)?;
        Ok(())
    }
}

impl Drop for NeighbourSocket {
    fn drop(&mut self) {
        self.receiving.abort();
    }
}

async fn receive_neighbours(
    socket: Arc<UdpSocket>,
    watched: WatchedAddresses,
    heard: mpsc::Sender<HeardOnLink>,
) {
    let mut buffer = [0; LONGEST];
    loop {
        tokio::task::consume_budget().await;
        if socket.readable().await.is_err() {
            return;
        }
        let next = || next_message(socket.as_raw_fd(), &mut buffer);
        match socket.try_io(Interest::READABLE, next) {
            Ok((length, link, hop_limit)) => {
                let message = buffer.get(..length).unwrap_or_default();
                pass_on(read_neighbour(message, hop_limit), link, &watched, &heard);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => tracing::debug!("neighbours are not heard: {error}"),
        }
    }
}

/// Length, link and hop limit of the next message.
fn next_message(socket: RawFd, buffer: &mut [u8]) -> io::Result<(usize, u32, i32)> {
    let mut parts = [IoSliceMut::new(buffer)];
    let mut control = cmsg_space!(nix::libc::in6_pktinfo, i32);
    let message = recvmsg::<SockaddrIn6>(
        socket,
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    // Not by the sender's address: that is often the very address, which has no link in it.
    let (mut link, mut hop_limit) = (0, 0);
    for part in message.cmsgs()? {
        match part {
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                link = info.ipi6_ifindex;
            }
            ControlMessageOwned::Ipv6HopLimit(limit) => hop_limit = limit,
            _ => {}
        }
    }
    Ok((message.bytes, link, hop_limit))
}

fn pass_on(
    statement: Option<HeardStatement>,
    link: u32,
    watched: &WatchedAddresses,
    heard: &mpsc::Sender<HeardOnLink>,
) {
    if let Some(statement) = statement
        && watched.read().contains(&statement.address)
    {
        // A flood is cut off here: what the machine decides does not depend on single packets.
        let _ = heard.try_send((link, statement));
    }
}

/// Sends what a host says of its address over the sockets of a link.
pub(crate) fn say(
    (arp, neighbours): (Option<&ArpSocket>, Option<&NeighbourSocket>),
    (address, kind): (IpAddr, StatementKind),
    (link, own): (u32, Mac),
    claim: u64,
) -> io::Result<()> {
    let missing = || io::Error::from(io::ErrorKind::NotConnected);
    match address {
        IpAddr::V4(address) => {
            let frame = arp_frame(address, kind, own, claim);
            arp.ok_or_else(missing)?.send(&frame)
        }
        IpAddr::V6(address) => {
            let (message, to) = neighbour_message(address, kind, own, claim);
            neighbours.ok_or_else(missing)?.send(&message, to, link)
        }
    }
}
