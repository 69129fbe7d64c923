//! The server's sockets. Every wait, count and size is limited.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::Record,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    DnsError,
    cache::QuestionKey,
    forward::Forwarder,
    message::{DnsReply, DnsRequest, parse, refusal},
    upstream::Upstreams,
    zone::{Lookup, Zone},
};
use crate::dns::source_limits::SourceShares;

/// Largest question over UDP in bytes; a larger one is cut and then rejected as malformed.
const UDP_QUESTION: usize = 4096;
/// Number of consecutive failures after which a socket counts as broken.
const FAILURES: u32 = 50;
/// Pause after a failure of a socket, which may be caused by a lack of memory or descriptors.
const FAILURE_PAUSE: Duration = Duration::from_millis(50);

/// Settings of a server that differ mostly in tests.
#[derive(Debug, Clone)]
pub struct DnsSettings {
    pub resolv_conf: PathBuf,
    /// systemd-resolved's list of resolvers, read when the machine's resolv.conf names its stub.
    pub(crate) resolved_conf: PathBuf,
    pub(crate) upstream_port: u16,
    /// Largest weight of the cache: cached answers and their records together.
    pub(crate) cache_weight: usize,
    /// Most questions that wait for other resolvers; further ones get SERVFAIL.
    pub forwards: usize,
    /// Most such questions of one source address; further ones get SERVFAIL.
    pub(crate) forwards_of_one: usize,
    /// Most TCP connections; further ones are closed.
    pub connections: usize,
    /// Most TCP connections of one source address; further ones are closed.
    pub(crate) connections_of_one: usize,
    /// Longest silence on a connection, and longest time for one question or answer on it.
    pub(crate) connection_timeout: Duration,
}

impl Default for DnsSettings {
    fn default() -> Self {
        Self {
            resolv_conf: "/etc/resolv.conf".into(),
            resolved_conf: "/run/systemd/resolve/resolv.conf".into(),
            upstream_port: 53,
            cache_weight: 8192,
            forwards: 256,
            forwards_of_one: 32,
            connections: 64,
            connections_of_one: 8,
            connection_timeout: Duration::from_secs(10),
        }
    }
}

/// A server with open sockets.
#[derive(Debug)]
pub struct OpenDnsServer {
    address: SocketAddr,
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    answerer: Arc<DnsAnswerer>,
    connections: Arc<Semaphore>,
    connections_of_each: Arc<SourceShares>,
    connection_timeout: Duration,
}

/// Answers packets.
#[derive(Debug)]
pub(super) struct DnsAnswerer {
    zone: watch::Receiver<Arc<Zone>>,
    forwarder: Arc<Forwarder>,
    forwards: Semaphore,
    forwards_of_each: Arc<SourceShares>,
}

/// A question that is to be forwarded.
#[derive(Debug)]
pub(super) struct ForwardedQuestion {
    zone: Arc<Zone>,
    pub(super) request: DnsRequest,
    pub(super) key: QuestionKey,
    /// The answer if the resolvers know no such name.
    otherwise: Option<DnsReply>,
}

/// How to handle a packet.
#[derive(Debug)]
pub(super) enum PacketAction {
    /// Ignore it.
    Drop,
    Send(Vec<u8>),
    Reply(Box<DnsReply>),
    /// Forward the question first.
    Forward(Box<ForwardedQuestion>),
}

impl OpenDnsServer {
    /// Opens both sockets on `address`; with port 0, on the same free port.
    pub async fn bind(
        address: SocketAddr,
        zone: watch::Receiver<Arc<Zone>>,
        settings: DnsSettings,
    ) -> Result<Self, DnsError> {
        let fail = |transport, address| {
            move |source| DnsError::Listen {
                address,
                transport,
                source,
            }
        };
        let udp = UdpSocket::bind(address)
            .await
            .map_err(fail("UDP", address))?;
        let address = udp.local_addr().map_err(fail("UDP", address))?;
        let tcp = TcpListener::bind(address)
            .await
            .map_err(fail("TCP", address))?;
        let DnsSettings {
            resolv_conf,
            resolved_conf,
            upstream_port,
            cache_weight,
            forwards,
            forwards_of_one,
            connections,
            connections_of_one,
            connection_timeout,
        } = settings;
        let upstreams = Upstreams::new(resolv_conf, resolved_conf, upstream_port);
        Ok(Self {
            address,
            udp: Arc::new(udp),
            tcp,
            answerer: Arc::new(DnsAnswerer::new(
                zone,
                Forwarder::new(upstreams, cache_weight),
                forwards,
                forwards_of_one,
            )),
            connections: Arc::new(Semaphore::new(connections)),
            connections_of_each: SourceShares::new(connections_of_one),
            connection_timeout,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until cancelled, or until a socket is broken.
    pub async fn run(self, cancel: CancellationToken) -> Result<(), DnsError> {
        let address = self.address;
        let fail = |transport| {
            move |source| DnsError::Socket {
                address,
                transport,
                source,
            }
        };
        tokio::select! {
            () = cancel.cancelled() => Ok(()),
            source = self.run_udp() => Err(source).map_err(fail("UDP")),
            source = self.run_tcp() => Err(source).map_err(fail("TCP")),
        }
    }

    async fn run_udp(&self) -> io::Error {
        let mut tasks = JoinSet::new();
        let mut failures = 0;
        let mut buffer = vec![0; UDP_QUESTION];
        loop {
            let (length, client) = match self.udp.recv_from(&mut buffer).await {
                Ok(received) => received,
                Err(error) if failures >= FAILURES => return error,
                Err(error) => {
                    tracing::debug!("DNS over UDP: {error:#}");
                    failures += 1;
                    sleep(FAILURE_PAUSE).await;
                    continue;
                }
            };
            failures = 0;
            while tasks.try_join_next().is_some() {}
            let packet = buffer.get(..length).unwrap_or_default();
            let reply = match self.answerer.step(packet, client.ip()) {
                PacketAction::Drop => continue,
                PacketAction::Send(bytes) => bytes,
                PacketAction::Reply(reply) => reply.to_udp(),
                PacketAction::Forward(forwarding) => {
                    let (answerer, udp) = (self.answerer.clone(), self.udp.clone());
                    // Each task holds a permit or ends at once.
                    tasks.spawn(async move {
                        let reply = answerer.forward(*forwarding, client.ip()).await;
                        send(&udp, &reply.to_udp(), client).await;
                    });
                    continue;
                }
            };
            send(&self.udp, &reply, client).await;
        }
    }

    async fn run_tcp(&self) -> io::Error {
        let mut tasks = JoinSet::new();
        let mut failures = 0;
        loop {
            let (stream, client) = match self.tcp.accept().await {
                Ok(accepted) => accepted,
                Err(error) if failures >= FAILURES => return error,
                Err(error) => {
                    tracing::debug!("DNS over TCP: {error:#}");
                    failures += 1;
                    sleep(FAILURE_PAUSE).await;
                    continue;
                }
            };
            failures = 0;
            while tasks.try_join_next().is_some() {}
            let share = self.connections_of_each.take(client.ip());
            let permit = self.connections.clone().try_acquire_owned();
            let (Some(share), Ok(permit)) = (share, permit) else {
                tracing::debug!(%client, "too many DNS connections");
                continue;
            };
            let answerer = self.answerer.clone();
            let limit = self.connection_timeout;
            tasks.spawn(async move {
                let _held = (share, permit);
                if let Err(error) = converse(&answerer, stream, client.ip(), limit).await {
                    tracing::debug!(%client, "DNS over TCP: {error:#}");
                }
            });
        }
    }
}

async fn send(socket: &UdpSocket, packet: &[u8], client: SocketAddr) {
    if let Err(error) = socket.send_to(packet, client).await {
        tracing::debug!(%client, "an answer was not sent: {error:#}");
    }
}

/// Serves one connection: consecutive questions, each preceded by its length (RFC 1035, 4.2.2).
async fn converse(
    answerer: &DnsAnswerer,
    mut stream: TcpStream,
    client: IpAddr,
    limit: Duration,
) -> io::Result<()> {
    loop {
        let length = match timeout(limit, stream.read_u16()).await? {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut packet = vec![0; length.into()];
        timeout(limit, stream.read_exact(&mut packet)).await??;
        let reply = match answerer.step(&packet, client) {
            PacketAction::Drop => return Ok(()),
            PacketAction::Send(bytes) => bytes,
            PacketAction::Reply(reply) => reply.to_tcp(),
            PacketAction::Forward(forwarding) => {
                answerer.forward(*forwarding, client).await.to_tcp()
            }
        };
        let length = u16::try_from(reply.len()).map_err(io::Error::other)?;
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(&reply);
        timeout(limit, stream.write_all(&framed)).await??;
    }
}

impl DnsAnswerer {
    /// Answers from `zone` and forwards with `forwarder`, with limits on the concurrent questions
    /// in total and from one source.
    pub(super) fn new(
        zone: watch::Receiver<Arc<Zone>>,
        forwarder: Forwarder,
        forwards: usize,
        forwards_of_one: usize,
    ) -> Self {
        Self {
            zone,
            forwarder: Arc::new(forwarder),
            forwards: Semaphore::new(forwards),
            forwards_of_each: SourceShares::new(forwards_of_one),
        }
    }

    /// Handles a packet as far as that needs no waiting.
    pub(super) fn step(&self, packet: &[u8], client: IpAddr) -> PacketAction {
        let request = match parse(packet) {
            Ok(request) => request,
            Err(error) => {
                return refusal(packet, &error).map_or(PacketAction::Drop, PacketAction::Send);
            }
        };
        let zone = self.zone.borrow().clone();
        let simple = |code| PacketAction::Reply(Box::new(DnsReply::new(&request, code)));
        if request.edns.is_some_and(|edns| edns.version > 0) {
            return simple(ResponseCode::BADVERS);
        }
        match zone.lookup(client, &request.question) {
            Lookup::Refused => simple(ResponseCode::Refused),
            Lookup::Forward => self.forward_step(zone, request, None),
            Lookup::ForwardFirst(found) => {
                let otherwise = own_reply(&request, *found);
                self.forward_step(zone, request, otherwise)
            }
            found => own_reply(&request, found).map_or(PacketAction::Drop, |reply| {
                PacketAction::Reply(Box::new(reply))
            }),
        }
    }

    fn forward_step(
        &self,
        zone: Arc<Zone>,
        request: DnsRequest,
        otherwise: Option<DnsReply>,
    ) -> PacketAction {
        if !request.metadata.recursion_desired {
            return PacketAction::Reply(Box::new(DnsReply::new(&request, ResponseCode::Refused)));
        }
        let dnssec_ok = request.edns.is_some_and(|edns| edns.dnssec_ok);
        let key = QuestionKey::new(
            &request.question,
            dnssec_ok,
            request.metadata.checking_disabled,
        );
        match self.forwarder.cached(&key) {
            Some((answer, age)) => {
                PacketAction::Reply(Box::new(relay_or(&request, &answer, age, otherwise)))
            }
            None => PacketAction::Forward(Box::new(ForwardedQuestion {
                zone,
                request,
                key,
                otherwise,
            })),
        }
    }

    /// Forwards a question, unless too many questions of the client or of all clients wait already.
    async fn forward(&self, forwarding: ForwardedQuestion, client: IpAddr) -> DnsReply {
        let ForwardedQuestion {
            zone,
            request,
            key,
            otherwise,
        } = forwarding;
        let share = self.forwards_of_each.take(client);
        let (Some(_share), Ok(_permit)) = (share, self.forwards.try_acquire()) else {
            return DnsReply::failure(&request, "too many questions wait for other resolvers");
        };
        match self.forwarder.ask(&zone, &request.question, key).await {
            Ok(answer) => relay_or(&request, &answer, 0, otherwise),
            Err(reason) => DnsReply::failure(&request, &reason),
        }
    }
}

/// The zone's own answer; `None` where it has none.
fn own_reply(request: &DnsRequest, found: Lookup) -> Option<DnsReply> {
    let (code, answers, authority) = match found {
        Lookup::Answer(records) => (ResponseCode::NoError, records, None),
        Lookup::NoData(authority) => (ResponseCode::NoError, Vec::new(), Some(authority)),
        Lookup::NoName(authority) => (ResponseCode::NXDomain, Vec::new(), Some(authority)),
        Lookup::Refused | Lookup::Forward | Lookup::ForwardFirst(_) => return None,
    };
    let mut reply = DnsReply::new(request, code);
    reply.metadata.authoritative = true;
    reply.answers = answers;
    reply.authorities.extend(authority.map(|record| *record));
    Some(reply)
}

/// The resolver's answer; `otherwise` if the resolver knows no such name.
fn relay_or(
    request: &DnsRequest,
    answer: &Message,
    age: u32,
    otherwise: Option<DnsReply>,
) -> DnsReply {
    let unknown = answer.metadata.response_code == ResponseCode::NXDomain;
    otherwise
        .filter(|_| unknown)
        .unwrap_or_else(|| relay(request, answer, age))
}

/// Another resolver's answer for this client, with its times to live reduced by `age` seconds.
pub(super) fn relay(request: &DnsRequest, answer: &Message, age: u32) -> DnsReply {
    let mut reply = DnsReply::new(request, answer.metadata.response_code);
    reply.metadata.authentic_data = answer.metadata.authentic_data;
    let aged = |records: &[Record]| -> Vec<Record> {
        let mut records = records.to_vec();
        for record in &mut records {
            record.decrement_ttl(age);
        }
        records
    };
    reply.answers = aged(&answer.answers);
    reply.authorities = aged(&answer.authorities);
    reply.additionals = aged(&answer.additionals);
    reply
}
