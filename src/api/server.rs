//! The HTTP server: TLS 1.3 over TCP, and the local socket.
//!
//! One task for each connection, so handshakes do not queue behind one another. Every wait for a
//! client has a deadline, and connections are counted, so that a client can only hold up itself
//! (ARCHITECTURE.md, invariant 8).

pub(crate) mod bind;
pub(crate) mod client_hello;
pub mod limits;
pub(crate) mod open_streams;
pub(crate) mod pools;
pub(crate) mod tcp_proxy;
pub(crate) mod work_permits;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use hyper::{Request, body::Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    time::{Instant, sleep_until, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use super::{
    context::{Api, ApiConfig},
    routes::router,
};
use crate::{
    access::authentication::{ConnectionPeer, ConnectionSource, SocketAccess},
    server::{
        client_hello::ReplayedStream,
        limits::ApiLimits,
        pools::{ConnectionPools, ConnectionSlot, ConnectionStandingHandle},
        tcp_proxy::{LeaderConnection, LeaderSource, SocketLeader, pass, pass_opened, reach},
    },
};
use kat_daemon::{watchdog::LoopPulses, write_timeout::WriteTimeoutStream};
use kat_pki::peer_certificate;
use kat_types::{
    api::{CONNECTION_WINDOW, STREAM_WINDOW},
    backoff::{Backoff, Pauses},
};

/// The TLS configuration for the next connection; it changes when certificates are renewed.
pub type TlsSource = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// A TCP listener with TLS.
pub struct TlsListener {
    /// A bound listener.
    pub listener: TcpListener,
    /// TLS 1.3, with optional client certificates of the cluster's authority.
    pub config: TlsSource,
    /// Where connections are forwarded while another machine leads.
    pub leader: LeaderSource,
    /// This machine answers itself while the leader is out of reach: it holds etcd, and shows its
    /// last known state.
    pub stands_in: bool,
    /// Where connections for the state stream are forwarded; `None` treats them as all others.
    pub state_route: Option<StateRoute>,
    /// Connections that this machine answers itself, whoever leads; `None` treats them as all
    /// others.
    pub own_route: Option<OwnRoute>,
}

/// Connections by which a machine proves that it is up. They end after the handshake.
#[derive(Clone)]
pub struct OwnRoute {
    /// The server name of these connections.
    pub server_name: String,
    /// TLS 1.3, with the machine's own certificate.
    pub config: TlsSource,
}

/// The way to the state stream, which every machine that holds etcd serves itself.
#[derive(Clone)]
pub struct StateRoute {
    /// The server name of connections for the stream.
    pub server_name: String,
    /// Machines that serve it; none if this machine does.
    pub members: LeaderSource,
}

/// A local socket. Its file mode and group decide who may connect.
pub struct SocketListener {
    /// A bound listener.
    pub listener: UnixListener,
    /// Rights of its callers.
    pub access: SocketAccess,
    /// Where callers are forwarded while another machine leads; `None` if this machine always
    /// answers itself.
    pub leader: Option<SocketLeader>,
}

/// The listeners of the API.
#[derive(Default)]
pub struct ApiListeners {
    /// TCP ports.
    pub tls: Vec<TlsListener>,
    /// Local sockets.
    pub sockets: Vec<SocketListener>,
}

/// Pauses after a failed accept, such as for lack of file descriptors.
const ACCEPT_PAUSES: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// Interval at which idle callers are dropped from the rate limits.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum bytes of a request's head.
const MAX_HEAD: u32 = 32 * 1024;
/// Maximum header fields of a request.
const MAX_HEADERS: usize = 64;
/// Maximum concurrent requests on one connection.
const MAX_CONCURRENT: u32 = 64;
/// Interval of pings on an HTTP/2 connection, and time limit of the answer.
const PING: Duration = Duration::from_secs(20);
/// First byte of a TLS handshake record (RFC 8446 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// Answer to a client that speaks plain HTTP on the TLS port.
const PLAIN_ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
content-type: application/json\r\nconnection: close\r\ncontent-length: 106\r\n\r\n\
{\"error\":\"TlsRequired\",\"message\":\"this port speaks TLS 1.3 only\",\"hint\":\"use https:// instead of http://\"}";

/// Serves until `cancel`, then lets open requests end within [`ApiLimits::shutdown_timeout`]; streams
/// end at once.
pub async fn serve(config: ApiConfig, listeners: ApiListeners, cancel: CancellationToken) {
    let (limits, pulses) = (config.limits.clone(), config.pulses.clone());
    let api = Api::new(config, cancel.clone());
    let server = ApiServer::new(
        router(&api),
        "the API's port",
        limits,
        pulses,
        cancel.clone(),
    );
    server.listen(listeners);
    let mut snapshots = api.config.handle.snapshot.clone();
    let mut forget_at = Instant::now() + FORGET_INTERVAL;
    loop {
        tokio::select! {
            () = cancel.cancelled() => break,
            () = sleep_until(forget_at) => {
                api.rates.forget_quiet();
                api.bounded_lines.settle();
                api.history.forget_old();
                forget_at = Instant::now() + FORGET_INTERVAL;
            }
            changed = snapshots.changed() => {
                let newest = snapshots.borrow_and_update().clone();
                if let Some(newest) = newest {
                    api.history.remember(&newest);
                }
                if changed.is_err() {
                    cancel.cancelled().await;
                    break;
                }
            }
        }
    }
    server.end().await;
}

#[derive(Clone)]
pub(super) struct ApiServer {
    router: Router,
    /// Name of the accept loop for the watchdog.
    port: &'static str,
    limits: ApiLimits,
    pools: Arc<ConnectionPools>,
    tracker: TaskTracker,
    pulses: LoopPulses,
    cancel: CancellationToken,
}

impl ApiServer {
    /// Creates a server for this router; it does not listen yet.
    pub(super) fn new(
        router: Router,
        port: &'static str,
        limits: ApiLimits,
        pulses: LoopPulses,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            router,
            port,
            pools: ConnectionPools::new(&limits),
            tracker: TaskTracker::new(),
            limits,
            pulses,
            cancel,
        }
    }

    /// Accepts connections until the server is cancelled.
    pub(super) fn listen(&self, listeners: ApiListeners) {
        for listener in listeners.tls {
            self.tracker.spawn(self.clone().accept_tls(listener));
        }
        for listener in listeners.sockets {
            self.tracker.spawn(self.clone().accept_local(listener));
        }
        self.tracker.close();
    }

    /// Called after the cancellation: waits for open requests to end.
    pub(super) async fn end(&self) {
        let _ = timeout(self.limits.shutdown_timeout, self.tracker.wait()).await;
    }

    async fn accept_tls(self, listener: TlsListener) {
        let TlsListener {
            listener,
            config,
            leader,
            stands_in,
            state_route,
            own_route,
        } = listener;
        let route = ForwardingRoute {
            leader,
            stands_in,
            state_route,
            own_route,
        };
        let mut pauses = ACCEPT_PAUSES.pauses();
        let pulse = self.pulses.watch(self.port);
        loop {
            // There may be no client for a long time.
            let next = self.cancel.run_until_cancelled(listener.accept());
            let Some(accepted) = pulse.wait(next).await else {
                return;
            };
            match accepted {
                Ok((stream, address)) => {
                    pauses.reset();
                    let server = self.clone();
                    let acceptor = TlsAcceptor::from(config());
                    let route = route.clone();
                    self.tracker.spawn(async move {
                        let done = server.accepted(stream, address, acceptor, route);
                        if let Err(error) = done.await {
                            tracing::debug!(%address, "a connection ended early: {error:#}");
                        }
                    });
                }
                Err(error) => self.accept_failed(&error, &mut pauses).await,
            }
        }
    }

    async fn accept_local(self, listener: SocketListener) {
        let SocketListener {
            listener,
            access,
            leader,
        } = listener;
        let mut pauses = ACCEPT_PAUSES.pauses();
        let pulse = self.pulses.watch("API socket");
        loop {
            // There may be no client for a long time.
            let next = self.cancel.run_until_cancelled(listener.accept());
            let Some(accepted) = pulse.wait(next).await else {
                return;
            };
            match accepted {
                Ok((stream, _)) => {
                    pauses.reset();
                    let server = self.clone();
                    let leader = leader.clone();
                    self.tracker.spawn(async move {
                        if let Err(error) = server.accepted_local(stream, access, leader).await {
                            tracing::debug!("a connection on the socket ended early: {error:#}");
                        }
                    });
                }
                Err(error) => self.accept_failed(&error, &mut pauses).await,
            }
        }
    }

    /// Serves a TCP connection to its end.
    async fn accepted(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        acceptor: TlsAcceptor,
        route: ForwardingRoute,
    ) -> io::Result<()> {
        let ended = CancellationToken::new();
        let place = |passed_on| {
            let place = self.pools.of_address(address.ip(), passed_on, &ended);
            place.ok_or_else(|| io::Error::other("too many connections"))
        };
        let expected = !route.leader.endpoints().is_empty();
        let mut held = place(expected)?;
        let work = async {
            let mut stream = ReplayedStream::from(stream);
            let (leader, stands_in) = match route.of(&mut stream, &self.limits).await? {
                ConnectionTarget::Leader { leader, stands_in } => (leader, stands_in),
                ConnectionTarget::ThisMachine(config) => {
                    let _held = held;
                    return self.handshake_alone(stream, config()).await;
                }
            };
            let reached = reach(&*leader, &self.limits, stands_in).await?;
            if reached.is_some() != expected {
                held = place(reached.is_some())?;
            }
            match reached {
                Some(reached) => {
                    let _held = held;
                    self.pass_on(stream, reached, leader).await
                }
                None => {
                    let standing = |peer: &ConnectionPeer| self.standing(held, &ended, peer);
                    self.tls_connection(stream, address, acceptor, standing)
                        .await
                }
            }
        };
        ended.run_until_cancelled(work).await.unwrap_or_else(lost)
    }

    /// Serves a connection on the local socket to its end.
    async fn accepted_local(
        &self,
        stream: UnixStream,
        access: SocketAccess,
        leader: Option<SocketLeader>,
    ) -> io::Result<()> {
        let uid = stream.peer_cred().ok().map(|credentials| credentials.uid());
        let ended = CancellationToken::new();
        let place = self.pools.of_socket(uid, &ended);
        let place = place.ok_or_else(|| io::Error::other("too many connections"))?;
        let work = async {
            let reached = match &leader {
                Some(leader) => leader.reach().await.zip(Some(&leader.leader)),
                None => None,
            };
            if let Some((reached, leader)) = reached {
                let _held = place;
                return self.pass_on_local(stream, reached, leader).await;
            }
            let peer = ConnectionPeer {
                source: ConnectionSource::Socket { uid, access },
                certificate: None,
            };
            let standing = self.standing(place, &ended, &peer);
            self.converse(stream, peer, standing).await;
            Ok(())
        };
        ended.run_until_cancelled(work).await.unwrap_or_else(lost)
    }

    fn standing(
        &self,
        place: ConnectionSlot,
        ended: &CancellationToken,
        peer: &ConnectionPeer,
    ) -> ConnectionStandingHandle {
        // The HTTP version is detected before hyper's own timers start.
        let first_by = Instant::now() + self.limits.header_timeout;
        ConnectionStandingHandle::new(&self.pools, place, ended.clone(), peer, first_by)
    }

    async fn accept_failed(&self, error: &io::Error, pauses: &mut Pauses) {
        tracing::warn!("can't accept a connection: {error:#}");
        let _ = timeout(pauses.next_pause(), self.cancel.cancelled()).await;
    }

    async fn tls_connection(
        &self,
        stream: ReplayedStream,
        address: SocketAddr,
        acceptor: TlsAcceptor,
        standing: impl FnOnce(&ConnectionPeer) -> ConnectionStandingHandle,
    ) -> io::Result<()> {
        stream.socket().set_nodelay(true)?;
        let handshake = timeout(self.limits.handshake_timeout, shake(stream, acceptor));
        let stream = tokio::select! {
            () = self.cancel.cancelled() => return Ok(()),
            stream = handshake => stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??,
        };
        let Some(stream) = stream else { return Ok(()) };
        let (_, connection) = stream.get_ref();
        let certificate = connection
            .peer_certificates()
            .and_then(|chain| chain.first());
        let peer = ConnectionPeer {
            source: ConnectionSource::Network(address),
            // The verifier accepted the certificate; a name that KAT does not issue identifies no
            // caller.
            certificate: certificate.and_then(|certificate| peer_certificate(certificate).ok()),
        };
        let standing = standing(&peer);
        self.converse(stream, peer, standing).await;
        Ok(())
    }

    /// Proves with its certificate that this machine is up, and serves nothing.
    async fn handshake_alone(
        &self,
        stream: ReplayedStream,
        config: Arc<ServerConfig>,
    ) -> io::Result<()> {
        let answer = async {
            match shake(stream, TlsAcceptor::from(config)).await? {
                Some(mut stream) => stream.shutdown().await,
                None => Ok(()),
            }
        };
        let answer = timeout(self.limits.handshake_timeout, answer);
        tokio::select! {
            () = self.cancel.cancelled() => Ok(()),
            answered = answer => {
                answered.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
            }
        }
    }

    async fn pass_on(
        &self,
        stream: ReplayedStream,
        reached: LeaderConnection<TcpStream>,
        leader: LeaderSource,
    ) -> io::Result<()> {
        tokio::select! {
            () = self.cancel.cancelled() => Ok(()),
            passed = pass(stream, reached, &*leader, &self.limits) => passed,
        }
    }

    async fn pass_on_local(
        &self,
        stream: UnixStream,
        reached: LeaderConnection<LeaderStream>,
        leader: &LeaderSource,
    ) -> io::Result<()> {
        tokio::select! {
            () = self.cancel.cancelled() => Ok(()),
            passed = pass_opened(stream, reached, &**leader, &self.limits) => passed,
        }
    }

    /// Serves HTTP/1.1 or HTTP/2 until the client or the server ends the connection.
    async fn converse<S>(&self, stream: S, peer: ConnectionPeer, standing: ConnectionStandingHandle)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let router = self.router.clone();
        let calls = standing.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            calls.active();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(calls.clone());
            let (answer, calls) = (router.clone().oneshot(request), calls.clone());
            async move {
                let answer = answer.await;
                calls.active();
                answer
            }
        });
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_headers(MAX_HEADERS)
            .max_buf_size(usize::try_from(MAX_HEAD).unwrap_or(usize::MAX));
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .max_concurrent_streams(MAX_CONCURRENT)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEAD);
        let stream = TokioIo::new(WriteTimeoutStream::new(stream, self.limits.write_timeout));
        let connection = builder.serve_connection(stream, service);
        let mut connection = std::pin::pin!(connection);
        let mut stopping = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!("a connection ended early: {error:#}");
                    }
                    return;
                }
                () = self.cancel.cancelled(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                // The deadline only moves later; this timer used its earlier value.
                () = sleep_until(standing.deadline()) => {
                    if Instant::now() < standing.deadline() {
                        continue;
                    }
                    tracing::debug!("a connection ended early: no request came");
                    return;
                }
            }
        }
    }
}

/// The error of a connection whose place was given to another one.
fn lost() -> io::Result<()> {
    Err(io::Error::other("its place went to another connection"))
}

type LeaderStream = tokio_rustls::client::TlsStream<TcpStream>;
type TlsStream = tokio_rustls::server::TlsStream<ReplayedStream>;

/// Where the connections of a TLS port are forwarded.
#[derive(Clone)]
struct ForwardingRoute {
    leader: LeaderSource,
    stands_in: bool,
    state_route: Option<StateRoute>,
    own_route: Option<OwnRoute>,
}

/// Who answers a connection of a TLS port.
enum ConnectionTarget {
    /// The leader, or a machine with the state stream; this machine if there is no other.
    Leader {
        leader: LeaderSource,
        /// This machine answers if none of the others can be reached.
        stands_in: bool,
    },
    /// This machine, with its own certificate ([`OwnRoute`]).
    ThisMachine(TlsSource),
}

impl ForwardingRoute {
    /// Who answers a connection. The client's first flight is read only where its name decides.
    async fn of(
        self,
        stream: &mut ReplayedStream,
        limits: &ApiLimits,
    ) -> io::Result<ConnectionTarget> {
        let Self {
            leader,
            stands_in,
            state_route,
            own_route,
        } = self;
        if state_route.is_none() && own_route.is_none() {
            return Ok(ConnectionTarget::Leader { leader, stands_in });
        }
        let named = timeout(limits.handshake_timeout, stream.server_name());
        let name = named
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let is_named = |route: &str| {
            let name = name.as_deref();
            name.is_some_and(|name| name.eq_ignore_ascii_case(route))
        };
        if let Some(route) = own_route.filter(|route| is_named(&route.server_name)) {
            return Ok(ConnectionTarget::ThisMachine(route.config));
        }
        if let Some(route) = state_route.filter(|route| is_named(&route.server_name)) {
            return Ok(ConnectionTarget::Leader {
                leader: route.members,
                stands_in: false,
            });
        }
        Ok(ConnectionTarget::Leader { leader, stands_in })
    }
}

/// The TLS handshake; `None` for a client that does not speak TLS, which gets [`PLAIN_ANSWER`].
async fn shake(mut stream: ReplayedStream, acceptor: TlsAcceptor) -> io::Result<Option<TlsStream>> {
    let Some(first) = stream.first_byte().await? else {
        return Ok(None);
    };
    if first != HANDSHAKE_RECORD {
        // Reads what has arrived, or the reset that a close sends would overtake the answer.
        stream.discard();
        stream.write_all(PLAIN_ANSWER).await?;
        stream.shutdown().await?;
        return Ok(None);
    }
    acceptor.accept(stream).await.map(Some)
}

#[cfg(test)]
mod tests;
