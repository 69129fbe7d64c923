//! The HTTP server: TLS 1.3 over TCP, and the local socket.
//!
//! One task for each connection; handshakes never queue behind one another. Everything that waits
//! for a client has a deadline, and connections are counted, so that a client can hold up nobody
//! but itself (ARCHITECTURE.md, invariant 8).

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

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
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use super::{
    caller::{Peer, SocketAccess, Source},
    context::{Api, ApiConfig},
    limits::{CONNECTION_WINDOW, Limits, STREAM_WINDOW, address_group},
    pass::{LeaderSource, Reached, SocketLeader, pass, pass_opened, reach},
    routes::router,
    stalled::Stalled,
};
use crate::{pki::peer_identity, pulse::Pulses};

/// The TLS configuration for the next connection; it changes when certificates are renewed.
pub type TlsSource = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// A TCP port.
pub struct TlsListener {
    /// Bound already.
    pub listener: TcpListener,
    /// TLS 1.3, with optional client certificates of the cluster's authority.
    pub config: TlsSource,
    /// Where connections go that are not for this machine.
    pub leader: LeaderSource,
    /// This machine answers itself while the leader is out of reach: it holds the store, and shows
    /// what it knew last.
    pub stands_in: bool,
}

/// A local socket. Its mode and group say who may connect.
pub struct SocketListener {
    /// Bound already.
    pub listener: UnixListener,
    /// What its callers may do.
    pub access: SocketAccess,
    /// Where they are passed on to while another machine leads; nothing where this machine always
    /// answers itself.
    pub leader: Option<SocketLeader>,
}

/// Where the API answers.
#[derive(Default)]
pub struct Listeners {
    /// TCP ports.
    pub tls: Vec<TlsListener>,
    /// Local sockets.
    pub sockets: Vec<SocketListener>,
}

/// First pause after an accept that failed, such as for want of file descriptors; it doubles.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause after an accept that failed.
const ACCEPT_PAUSE_LIMIT: Duration = Duration::from_secs(1);
/// Between two rounds of forgetting quiet callers.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);
/// Bytes for the head of a request.
const MAX_HEAD: u32 = 32 * 1024;
/// Header fields of a request.
const MAX_HEADERS: usize = 64;
/// Requests at once on one connection.
const MAX_CONCURRENT: u32 = 64;
/// Between two pings of an HTTP/2 connection, and for the answer.
const PING: Duration = Duration::from_secs(20);
/// First byte of a TLS handshake record (RFC 8446 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// What a client gets that speaks plain HTTP to the TLS port.
const PLAIN_ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
content-type: application/json\r\nconnection: close\r\ncontent-length: 106\r\n\r\n\
{\"error\":\"TlsRequired\",\"message\":\"this port speaks TLS 1.3 only\",\"hint\":\"use https:// instead of http://\"}";

/// Answers until `cancel`, then lets requests under way end within
/// [`Limits::shutdown_timeout`]; streams end at once.
pub async fn serve(config: ApiConfig, listeners: Listeners, cancel: CancellationToken) {
    let (limits, pulses) = (config.limits.clone(), config.pulses.clone());
    let api = Api::new(config, cancel.clone());
    let server = Server::new(
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
pub(super) struct Server {
    router: Router,
    /// How the watchdog calls the loop of its TCP ports.
    port: &'static str,
    limits: Limits,
    open: Arc<Semaphore>,
    by_address: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
    tracker: TaskTracker,
    pulses: Pulses,
    cancel: CancellationToken,
}

/// Counts a connection against its address for as long as it lives.
struct AddressSlot {
    by_address: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut counts = self
            .by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

impl Server {
    /// Answers with this router; nothing listens yet.
    pub(super) fn new(
        router: Router,
        port: &'static str,
        limits: Limits,
        pulses: Pulses,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            router,
            port,
            open: Arc::new(Semaphore::new(limits.connections)),
            by_address: Arc::default(),
            tracker: TaskTracker::new(),
            limits,
            pulses,
            cancel,
        }
    }

    /// Takes connections until the server is cancelled.
    pub(super) fn listen(&self, listeners: Listeners) {
        for listener in listeners.tls {
            self.tracker.spawn(self.clone().accept_tls(listener));
        }
        for listener in listeners.sockets {
            self.tracker.spawn(self.clone().accept_local(listener));
        }
        self.tracker.close();
    }

    /// After it was cancelled: lets requests under way end.
    pub(super) async fn end(&self) {
        let _ = timeout(self.limits.shutdown_timeout, self.tracker.wait()).await;
        self.open.close();
    }

    async fn accept_tls(self, listener: TlsListener) {
        let TlsListener {
            listener,
            config,
            leader,
            stands_in,
        } = listener;
        let mut pause = ACCEPT_PAUSE;
        let pulse = self.pulses.watch(self.port);
        loop {
            // There may be no caller, or no room for one more, for a long time.
            let next = async {
                let permit = self.permit().await?;
                let accepted = self.cancel.run_until_cancelled(listener.accept()).await?;
                Some((permit, accepted))
            };
            let Some((permit, accepted)) = pulse.wait(next).await else {
                return;
            };
            match accepted {
                Ok((stream, address)) => {
                    pause = ACCEPT_PAUSE;
                    let Some(slot) = self.slot(address.ip()) else {
                        tracing::debug!(%address, "too many connections from one address");
                        continue;
                    };
                    let server = self.clone();
                    let acceptor = TlsAcceptor::from(config());
                    let leader = Arc::clone(&leader);
                    self.tracker.spawn(async move {
                        let _held = (permit, slot);
                        let reached = reach(&*leader, &server.limits, stands_in).await;
                        let done = match reached {
                            Ok(Some(reached)) => server.pass_on(stream, reached, leader).await,
                            Ok(None) => server.tls_connection(stream, address, acceptor).await,
                            Err(error) => Err(error),
                        };
                        if let Err(error) = done {
                            tracing::debug!(%address, %error, "a connection ended early");
                        }
                    });
                }
                Err(error) => self.accept_failed(&error, &mut pause).await,
            }
        }
    }

    async fn accept_local(self, listener: SocketListener) {
        let SocketListener {
            listener,
            access,
            leader,
        } = listener;
        let mut pause = ACCEPT_PAUSE;
        let pulse = self.pulses.watch("the API's socket");
        loop {
            // There may be no caller, or no room for one more, for a long time.
            let next = async {
                let permit = self.permit().await?;
                let accepted = self.cancel.run_until_cancelled(listener.accept()).await?;
                Some((permit, accepted))
            };
            let Some((permit, accepted)) = pulse.wait(next).await else {
                return;
            };
            match accepted {
                Ok((stream, _)) => {
                    pause = ACCEPT_PAUSE;
                    let server = self.clone();
                    let leader = leader.clone();
                    self.tracker.spawn(async move {
                        let _held = permit;
                        let reached = match &leader {
                            Some(leader) => leader.reach().await.zip(Some(&leader.leader)),
                            None => None,
                        };
                        match reached {
                            Some((reached, leader)) => {
                                server.pass_on_local(stream, reached, leader).await;
                            }
                            None => server.local_connection(stream, access).await,
                        }
                    });
                }
                Err(error) => self.accept_failed(&error, &mut pause).await,
            }
        }
    }

    /// Waits for room for one more connection; nothing when the server stops.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            () = self.cancel.cancelled() => None,
            permit = Arc::clone(&self.open).acquire_owned() => permit.ok(),
        }
    }

    fn slot(&self, address: IpAddr) -> Option<AddressSlot> {
        let address = address_group(address);
        let mut counts = self
            .by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= self.limits.connections_from_one_address {
            return None;
        }
        *count += 1;
        Some(AddressSlot {
            by_address: Arc::clone(&self.by_address),
            address,
        })
    }

    async fn accept_failed(&self, error: &io::Error, pause: &mut Duration) {
        tracing::warn!(%error, "can't accept a connection");
        let _ = timeout(*pause, self.cancel.cancelled()).await;
        *pause = (*pause * 2).min(ACCEPT_PAUSE_LIMIT);
    }

    async fn tls_connection(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        acceptor: TlsAcceptor,
    ) -> io::Result<()> {
        stream.set_nodelay(true)?;
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
        let peer = Peer {
            source: Source::Network(address),
            // The verifier let it through; a name that is none of KAT's is nobody.
            identity: certificate.and_then(|certificate| peer_identity(certificate).ok()),
        };
        self.converse(stream, peer).await;
        Ok(())
    }

    async fn pass_on(
        &self,
        stream: TcpStream,
        reached: Reached<TcpStream>,
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
        reached: Reached<LeaderStream>,
        leader: &LeaderSource,
    ) {
        let passed = tokio::select! {
            () = self.cancel.cancelled() => return,
            passed = pass_opened(stream, reached, &**leader, &self.limits) => passed,
        };
        if let Err(error) = passed {
            tracing::debug!(%error, "a connection on the socket ended early");
        }
    }

    async fn local_connection(&self, stream: UnixStream, access: SocketAccess) {
        let uid = stream.peer_cred().ok().map(|credentials| credentials.uid());
        let peer = Peer {
            source: Source::Socket { uid, access },
            identity: None,
        };
        self.converse(stream, peer).await;
    }

    /// HTTP/1.1 or HTTP/2 until the client or the server has enough.
    async fn converse<S>(&self, stream: S, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let first_request = CancellationToken::new();
        let seen = first_request.clone();
        let router = self.router.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            seen.cancel();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            router.clone().oneshot(request)
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
        let stream = TokioIo::new(Stalled::new(stream, self.limits.write_timeout));
        let connection = builder.serve_connection(stream, service);
        let mut connection = std::pin::pin!(connection);
        // The version of HTTP is found out before hyper's own timers start.
        let first_by = Instant::now() + self.limits.header_timeout;
        let mut stopping = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection ended early");
                    }
                    return;
                }
                () = self.cancel.cancelled(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = sleep_until(first_by), if !first_request.is_cancelled() => {
                    // The condition above is of when the wait began; a request may have come since.
                    if first_request.is_cancelled() {
                        continue;
                    }
                    tracing::debug!("a connection ended early: no request came");
                    return;
                }
            }
        }
    }
}

type LeaderStream = tokio_rustls::client::TlsStream<TcpStream>;
type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

/// The handshake; nothing for a client that does not speak TLS, which is told so.
async fn shake(mut stream: TcpStream, acceptor: TlsAcceptor) -> io::Result<Option<TlsStream>> {
    let mut first = [0u8; 1];
    if stream.peek(&mut first).await? == 0 {
        return Ok(None);
    }
    if first != [HANDSHAKE_RECORD] {
        // Read what is there, or the reset that a close sends would overtake the answer.
        let mut rest = [0u8; 4096];
        let _ = stream.try_read(&mut rest);
        stream.write_all(PLAIN_ANSWER).await?;
        stream.shutdown().await?;
        return Ok(None);
    }
    acceptor.accept(stream).await.map(Some)
}

#[cfg(test)]
mod tests;
