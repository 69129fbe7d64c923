//! The sockets for probes.
//!
//! Probes are packets of an IP protocol of their own, [`PROTOCOL`], between the machines' overlay
//! addresses. Only a process with CAP_NET_RAW over the machine's network can open a socket for it,
//! so that a container with `hostNetwork` can neither send nor answer probes, nor take a port that
//! `kat-net` needs. The rules of `inet kat` drop those of other containers. Where no `kat-net` runs,
//! the machine's kernel refuses the protocol (ICMP, RFC 792), which shows as well as an answer that
//! the overlay carries packets.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::AsRawFd,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use nix::{
    cmsg_space,
    sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt},
};
use parking_lot::Mutex;
use rustix::net::{
    self as sockets, AddressFamily, Protocol, SocketAddrV4, SocketFlags, SocketType, socket_with,
};
use tokio::{
    io::Interest,
    net::{TcpStream, UdpSocket},
    sync::{mpsc, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::packet::{OpenedProbe, PROBE_SIZE, ProbeBook};
use crate::overlay::wireguard::{PrivateKey, PublicKey};

/// The IP protocol of probes: for experiments (RFC 3692, section 2.1), so that no other program of
/// a machine expects it. The rules in `unit-templates/kat.nft` have the same number.
pub(crate) const PROTOCOL: u8 = 253;
/// Longest wait for an answer outside the overlay; with the tick before, it ends within the patience
/// with a silent peer.
const OUTSIDE_LIMIT: Duration = Duration::from_millis(700);
/// Pause after a failed socket.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Largest header of an IPv4 packet.
const LARGEST_HEADER: usize = 60;
/// Most answers that wait to be judged; further ones are dropped, and the peer is asked again.
const MOST_WAITING: usize = 1024;
/// `SO_EE_ORIGIN_ICMP`.
const ORIGIN_ICMP: u8 = 2;
/// `ICMP_DEST_UNREACH`.
const UNREACHABLE: u8 = 3;
/// `ICMP_PROT_UNREACH`.
const NO_SUCH_PROTOCOL: u8 = 2;

/// Asks peers whether they answer.
#[async_trait]
pub(crate) trait PeerProbes: Send + Sync {
    /// Sets this machine's key and overlay address, and the peers by their overlay addresses.
    fn set(&self, own: &PrivateKey, address: Ipv4Addr, peers: &[(Ipv4Addr, PublicKey)]);

    /// Asks the peer at this overlay address; an answer comes with [`answer`](Self::answer).
    fn ask(&self, address: Ipv4Addr);

    /// Waits for the next answer of any peer.
    async fn answer(&self) -> PublicKey;

    /// Whether a machine answers outside the overlay at one of these addresses, in any way, within
    /// 700 ms.
    async fn reaches_outside(&self, targets: Vec<SocketAddr>) -> bool;
}

/// Probes over a raw socket, and TCP outside the overlay.
pub(crate) struct RawProbes {
    book: Mutex<ProbeBook>,
    socket: Mutex<Option<Arc<UdpSocket>>>,
    /// The address of the socket.
    address: watch::Sender<Option<Ipv4Addr>>,
    answers: mpsc::Sender<PublicKey>,
    waiting: tokio::sync::Mutex<mpsc::Receiver<PublicKey>>,
}

impl Default for RawProbes {
    fn default() -> Self {
        let (answers, waiting) = mpsc::channel(MOST_WAITING);
        Self {
            book: Mutex::default(),
            socket: Mutex::default(),
            address: watch::Sender::default(),
            answers,
            waiting: tokio::sync::Mutex::new(waiting),
        }
    }
}

#[async_trait]
impl PeerProbes for RawProbes {
    fn set(&self, own: &PrivateKey, address: Ipv4Addr, peers: &[(Ipv4Addr, PublicKey)]) {
        self.book.lock().set(own, peers.iter().copied());
        self.address.send_if_modified(|current| {
            let changed = *current != Some(address);
            *current = Some(address);
            changed
        });
    }

    fn ask(&self, address: Ipv4Addr) {
        let socket = self.socket.lock().clone();
        let question = self.book.lock().question(address);
        if let (Some(socket), Some(question)) = (socket, question) {
            send(&socket, &question, address);
        }
    }

    async fn answer(&self) -> PublicKey {
        match self.waiting.lock().await.recv().await {
            Some(peer) => peer,
            None => std::future::pending().await,
        }
    }

    async fn reaches_outside(&self, targets: Vec<SocketAddr>) -> bool {
        let mut attempts: tokio::task::JoinSet<bool> =
            targets.into_iter().map(answers_tcp).collect();
        while let Some(reached) = attempts.join_next().await {
            if reached.unwrap_or(false) {
                return true;
            }
        }
        false
    }
}

impl RawProbes {
    /// Answers the peers' questions and receives their answers, until cancelled.
    pub(crate) async fn serve(self: Arc<Self>, cancel: CancellationToken) {
        let mut address = self.address.subscribe();
        let mut told = false;
        while !cancel.is_cancelled() {
            let at = *address.borrow_and_update();
            let served = async {
                match at {
                    Some(at) => self.receive(at).await,
                    None => std::future::pending().await,
                }
            };
            let error = tokio::select! {
                () = cancel.cancelled() => return,
                changed = address.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                error = served => error,
            };
            *self.socket.lock() = None;
            if !std::mem::replace(&mut told, true) {
                tracing::warn!("peers can't be asked whether they answer: {error}; trying again");
            }
            cancel
                .run_until_cancelled(tokio::time::sleep(AFTER_FAILURE))
                .await;
        }
    }

    /// Receives at the address until the socket fails.
    async fn receive(&self, address: Ipv4Addr) -> io::Error {
        let socket = match open(address) {
            Ok(socket) => Arc::new(socket),
            Err(error) => return error,
        };
        *self.socket.lock() = Some(Arc::clone(&socket));
        loop {
            // Under a flood the socket is always ready; the other tasks get their turn all the same.
            tokio::task::consume_budget().await;
            let interest = Interest::READABLE | Interest::ERROR;
            if let Err(error) = socket.ready(interest).await {
                return error;
            }
            while let Some(refusal) = next_refusal(&socket) {
                tokio::task::consume_budget().await;
                let refused = self.book.lock().refused(refusal.from, &refusal.quoted);
                self.heard(refused);
            }
            let mut buffer = [0; LARGEST_HEADER + PROBE_SIZE + 1];
            match socket.try_recv_from(&mut buffer) {
                Ok((length, from)) => {
                    let packet = buffer.get(..length).unwrap_or_default();
                    if let (IpAddr::V4(from), Some(probe)) = (from.ip(), content(packet)) {
                        self.take(&socket, from, probe);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The error of an earlier packet, which the queue of errors has too.
                Err(error) => tracing::debug!("a probe was not delivered: {error}"),
            }
        }
    }

    fn take(&self, socket: &UdpSocket, from: Ipv4Addr, probe: &[u8]) {
        let opened = self.book.lock().open(from, probe);
        match opened {
            Some(OpenedProbe::Question(answer)) => send(socket, &answer, from),
            Some(OpenedProbe::Answer(peer)) => self.heard(Some(peer)),
            None => {}
        }
    }

    fn heard(&self, peer: Option<PublicKey>) {
        if let Some(peer) = peer {
            let _ = self.answers.try_send(peer);
        }
    }
}

/// A raw socket at the address. It is opened also while the address is not there yet. Its calls are
/// those of a UDP socket, which the type of the runtime stands for.
fn open(address: Ipv4Addr) -> io::Result<UdpSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = std::num::NonZeroU32::from(PROTOCOL_NUMBER);
    let protocol = Some(Protocol::from_raw(protocol));
    let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, protocol)?;
    sockets::sockopt::set_ip_freebind(&socket, true)?;
    setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
    sockets::bind(&socket, &SocketAddrV4::new(address, 0))?;
    UdpSocket::from_std(socket.into())
}

fn send(socket: &UdpSocket, probe: &[u8], to: Ipv4Addr) {
    if let Err(error) = socket.try_send_to(probe, (to, 0).into()) {
        tracing::debug!(%to, "a probe was not sent: {error}");
    }
}

/// The content of an IPv4 packet, which raw sockets deliver with its header (raw(7)).
fn content(packet: &[u8]) -> Option<&[u8]> {
    let words = usize::from(packet.first()? & 0x0f);
    packet.get(words * 4..)
}

/// An ICMP error by which a machine refuses the protocol.
struct ProtocolRefusal {
    from: Ipv4Addr,
    /// What the error quotes of the refused packet, without its IPv4 header.
    quoted: Vec<u8>,
}

/// The next refusal of the protocol; `None` if the queue of errors has no more.
fn next_refusal(socket: &UdpSocket) -> Option<ProtocolRefusal> {
    loop {
        let read = socket.try_io(Interest::ERROR, || next_error(socket));
        match read {
            Ok(Some(refused)) => return Some(refused),
            Ok(None) => {}
            Err(_) => return None,
        }
    }
}

/// The next error, if it refuses the protocol.
fn next_error(socket: &UdpSocket) -> io::Result<Option<ProtocolRefusal>> {
    let mut content = [0; LARGEST_HEADER + PROBE_SIZE];
    let mut parts = [IoSliceMut::new(&mut content)];
    let mut control = cmsg_space!(nix::libc::sock_extended_err, nix::libc::sockaddr_in);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<SockaddrIn>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let length = message.bytes;
    let from = message.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::Ipv4RecvErr(error, Some(sender)) => {
            let kind = (error.ee_origin, error.ee_type, error.ee_code);
            let refused = kind == (ORIGIN_ICMP, UNREACHABLE, NO_SUCH_PROTOCOL);
            refused.then(|| Ipv4Addr::from(u32::from_be(sender.sin_addr.s_addr)))
        }
        _ => None,
    });
    Ok(from.map(|from| ProtocolRefusal {
        from,
        quoted: content.get(..length).unwrap_or_default().to_vec(),
    }))
}

/// Whether the machine accepts or refuses a TCP connection.
async fn answers_tcp(target: SocketAddr) -> bool {
    let began = Instant::now();
    match timeout(OUTSIDE_LIMIT, TcpStream::connect(target)).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => {
            tracing::trace!(%target, elapsed = ?began.elapsed(), "outside the overlay: {error}");
            error.kind() == io::ErrorKind::ConnectionRefused
        }
        Err(_) => false,
    }
}

/// [`PROTOCOL`] as the kernel takes it.
const PROTOCOL_NUMBER: std::num::NonZeroU8 = match std::num::NonZeroU8::new(PROTOCOL) {
    Some(number) => number,
    None => std::num::NonZeroU8::MAX,
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs CAP_NET_RAW.
    #[tokio::test]
    async fn many_questions_at_once_leave_the_other_tasks_their_turn() {
        let [asked, asking] = [3, 2].map(|last| Ipv4Addr::new(127, 0, 0, last));
        let keys = [1, 2].map(|number| PrivateKey::from_bytes([number; 32]));
        let probes = Arc::new(RawProbes::default());
        probes.set(&keys[0], asked, &[(asking, keys[1].public())]);
        let mut book = ProbeBook::default();
        book.set(&keys[1], [(asked, keys[0].public())].into_iter());
        let socket = open(asking).unwrap();
        let cancel = CancellationToken::new();
        let serving = tokio::spawn(Arc::clone(&probes).serve(cancel.clone()));
        while probes.socket.lock().is_none() {
            tokio::task::yield_now().await;
        }
        let mut sent = 0;
        for _ in 0..200 {
            let question = book.question(asked).unwrap();
            sent += u32::from(socket.try_send_to(&question, (asked, 0).into()).is_ok());
        }
        assert!(sent > 150, "{sent}");
        // This task and the one that answers share a thread.
        let mut answered = 0;
        while answered == 0 {
            tokio::task::yield_now().await;
            while socket.try_recv_from(&mut [0; 128]).is_ok() {
                answered += 1;
            }
        }
        assert!(answered < sent, "{answered} of {sent} before anything else");
        cancel.cancel();
        serving.await.unwrap();
    }

    #[test]
    fn a_packet_without_a_whole_header_has_no_content() {
        let mut packet = vec![0x46; 24];
        packet.extend(b"probe");
        assert_eq!(content(&packet), Some(b"probe".as_slice()));
        assert_eq!(content(&packet[..23]), None);
        assert_eq!(content(&[]), None);
    }

    #[test]
    fn the_rules_guard_the_protocol_of_the_probes() {
        let rules = crate::nftables::firewall::TEMPLATE;
        let guards = format!("meta l4proto {PROTOCOL}");
        assert_eq!(rules.matches(&guards).count(), 6, "{rules}");
        // The seventh names the protocol whose connections are answered with a reset.
        assert_eq!(rules.matches("meta l4proto").count(), 7, "{rules}");
        assert_eq!(rules.matches("meta l4proto tcp").count(), 1, "{rules}");
    }

    #[tokio::test]
    async fn a_machine_that_refuses_a_connection_is_there() {
        let probes = RawProbes::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        assert!(probes.reaches_outside(vec![open]).await);
        drop(listener);
        assert!(probes.reaches_outside(vec![open]).await, "refused");
        assert!(!probes.reaches_outside(Vec::new()).await);
    }
}
