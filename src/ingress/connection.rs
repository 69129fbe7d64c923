//! A client's connection from its first byte: PROXY header, TLS, HTTP/1.1 or HTTP/2.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use hyper::{
    Request, Response,
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::server::Acceptor;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream},
    task::yield_now,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_rustls::LazyConfigAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{ClientConnection, is_in},
    config::routes::{ParsedAction, Route},
    control_frames::CountedFrames,
    metrics::Limited,
    proxy::{Connected, Ingress},
    proxy_header::{self, HeaderProgress, ProxiedPeer, ProxyHeaderError},
    tunnel::tunnel,
    upstream::{
        body::{ResponseBody, WatchedDelivery},
        pool::{Target, connect},
    },
};
use kat_daemon::{watchdog::LoopPulse, write_timeout::WriteTimeoutStream};
use kat_types::{backoff::Backoff, resource::UpstreamProtocol};

/// Pauses after a failed accept, such as for lack of file descriptors.
const ACCEPT_PAUSES: Backoff = Backoff::new(
    std::time::Duration::from_millis(20),
    std::time::Duration::from_secs(1),
);
/// Flow control windows of HTTP/2, in bytes: what one stream and one connection may hold in memory.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 512 * 1024;
/// Bytes of answers that one stream of HTTP/2 may hold in memory.
const SEND_BUFFER: usize = 256 * 1024;
/// Interval of pings on an HTTP/2 connection, and time limit of the answer.
const PING: std::time::Duration = std::time::Duration::from_secs(20);
/// Most streams that a client may reset before hyper has handed them on, and most that hyper resets
/// for errors of the client.
const PENDING_RESETS: usize = 20;
const ERROR_RESETS: usize = 64;

/// Shortest time between two looks at an HTTP/2 connection that may be idle or stuck.
const SHORTEST_LOOK: std::time::Duration = std::time::Duration::from_millis(10);

/// What a port speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortKind {
    /// HTTP/1.1.
    Plain,
    /// TLS.
    Tls,
}

/// A stream that keeps what was read from it, until told otherwise.
struct RecordedStream {
    stream: TcpStream,
    read: Option<Vec<u8>>,
}

impl AsyncRead for RecordedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let this = &mut *self;
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        if let Some(read) = &mut this.read {
            read.extend_from_slice(buffer.filled().get(before..).unwrap_or_default());
        }
        polled
    }
}

impl AsyncWrite for RecordedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    // rustls passes several records at once: without this each would be a system call and a packet.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Counts the requests of one connection.
struct RequestCounts {
    all: AtomicU32,
    broken_off: AtomicU32,
    active: AtomicU64,
    /// When the last request ended.
    last: Mutex<Instant>,
    /// Answers that the client is getting, by number of the request.
    answers: Mutex<BTreeMap<u32, WatchedDelivery>>,
    /// Ends the connection.
    ended: CancellationToken,
}

impl Default for RequestCounts {
    fn default() -> Self {
        Self {
            all: AtomicU32::new(0),
            broken_off: AtomicU32::new(0),
            active: AtomicU64::new(0),
            last: Mutex::new(Instant::now()),
            answers: Mutex::default(),
            ended: CancellationToken::new(),
        }
    }
}

impl RequestCounts {
    /// Cuts off answers of which the client took nothing for this time. Returns their number, and
    /// whether the connection has nothing else.
    fn cut_not_taken(&self, limit: std::time::Duration) -> (usize, bool) {
        let answers = self.answers.lock();
        let (mut cut, mut new) = (0, 0);
        for answer in answers.values() {
            if answer.is_cut() {
                cut += 1;
            } else if answer.cut_if_not_taken(limit) {
                cut += 1;
                new += 1;
            }
        }
        (new, cut > 0 && self.active.load(Relaxed) == cut)
    }
}

/// One request, until its answer has ended or the client breaks it off.
struct CountedRequest {
    counts: Arc<RequestCounts>,
    ingress: Arc<Ingress>,
    number: u32,
    is_answered: bool,
}

impl CountedRequest {
    fn begin(counts: &Arc<RequestCounts>, ingress: &Arc<Ingress>) -> Self {
        let number = counts.all.fetch_add(1, Relaxed);
        counts.active.fetch_add(1, Relaxed);
        Self {
            counts: Arc::clone(counts),
            ingress: Arc::clone(ingress),
            number,
            is_answered: false,
        }
    }

    /// The head of the answer is there; the request ends with the body.
    fn answered(mut self, answer: &mut Response<ResponseBody>) {
        self.is_answered = true;
        let body = answer.body_mut();
        let mut answers = self.counts.answers.lock();
        answers.insert(self.number, body.watched());
        drop(answers);
        body.hold(self);
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.counts.answers.lock().remove(&self.number);
        self.counts.active.fetch_sub(1, Relaxed);
        *self.counts.last.lock() = Instant::now();
        if self.is_answered {
            return;
        }
        let broken_off = self.counts.broken_off.fetch_add(1, Relaxed) + 1;
        let is_most = broken_off.saturating_mul(2) > self.counts.all.load(Relaxed);
        if broken_off > self.ingress.limits.resets && is_most && !self.counts.ended.is_cancelled() {
            self.ingress.metrics.limited(Limited::Resets);
            self.counts.ended.cancel();
        }
    }
}

impl Ingress {
    /// Accepts connections until the drain begins.
    pub(crate) async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        kind: PortKind,
        pulse: LoopPulse,
    ) {
        let mut pauses = ACCEPT_PAUSES.pauses();
        loop {
            let next = self.drain.draining.run_until_cancelled(listener.accept());
            let Some(accepted) = pulse.wait(next).await else {
                return;
            };
            match accepted {
                Ok((stream, peer)) => {
                    pauses.reset();
                    self.metrics.accepted.fetch_add(1, Relaxed);
                    let ingress = Arc::clone(&self);
                    self.tracker.spawn(async move {
                        ingress.metrics.connections.fetch_add(1, Relaxed);
                        let end = ingress.drain.end.clone();
                        let served =
                            end.run_until_cancelled(ingress.connection(stream, peer, kind));
                        if let Some(Err(error)) = served.await {
                            tracing::debug!(%peer, %error, "a connection ended early");
                        }
                        ingress.metrics.connections.fetch_sub(1, Relaxed);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "can't accept a connection");
                    let pause = tokio::time::sleep(pauses.next_pause());
                    self.drain.draining.run_until_cancelled(pause).await;
                }
            }
        }
    }

    async fn connection(
        self: &Arc<Self>,
        mut stream: TcpStream,
        peer: SocketAddr,
        kind: PortKind,
    ) -> io::Result<()> {
        let config = self.config.load_full();
        let has_header = is_in(&config.proxy_protocol_from, peer.ip());
        let is_exempt = has_header || is_in(&config.trusted_proxies, peer.ip());
        let admitted = self.counts.admit(peer.ip(), is_exempt, &self.limits);
        let _place = admitted.map_err(|limit| self.limited(limit))?;
        stream.set_nodelay(true)?;
        let local = stream.local_addr()?;
        let mut ends = ClientConnection {
            peer,
            local,
            tls: kind == PortKind::Tls,
        };
        // The address that the connection is counted for after a PROXY header.
        let mut _client_place = None;
        if has_header {
            let header = timeout(self.limits.handshake, read_header(&mut stream)).await;
            let header = header.map_err(|_| io::Error::from(io::ErrorKind::TimedOut));
            match header.and_then(|header| header) {
                Ok(ProxiedPeer::Client {
                    source,
                    destination,
                }) => {
                    let is_exempt = is_in(&config.trusted_proxies, source.ip());
                    let place = self.counts.admit(source.ip(), is_exempt, &self.limits);
                    _client_place = Some(place.map_err(|limit| self.limited(limit))?);
                    ends.peer = source;
                    ends.local = destination;
                }
                Ok(ProxiedPeer::Proxy) => {}
                Err(error) => {
                    self.metrics.limited(Limited::ProxyHeader);
                    return Err(error);
                }
            }
        }
        drop(config);
        match kind {
            PortKind::Plain => {
                let connected = Connected {
                    ends,
                    server_name: None,
                };
                self.serve_http1(stream, connected).await
            }
            PortKind::Tls => self.tls(stream, ends).await,
        }
    }

    fn limited(&self, limit: Limited) -> io::Error {
        self.metrics.limited(limit);
        io::Error::other("a limit on connections is reached")
    }

    async fn tls(self: &Arc<Self>, stream: TcpStream, ends: ClientConnection) -> io::Result<()> {
        let until = Instant::now() + self.limits.handshake;
        let recorded = RecordedStream {
            stream,
            read: Some(Vec::new()),
        };
        let hello = LazyConfigAcceptor::new(Acceptor::default(), recorded);
        let failed = |error: io::Error| {
            self.metrics.limited(Limited::Handshake);
            error
        };
        let late = || failed(io::ErrorKind::TimedOut.into());
        let hello = tokio::time::timeout_at(until, hello).await;
        let mut hello = hello.map_err(|_| late())?.map_err(failed)?;
        let server_name = hello
            .client_hello()
            .server_name()
            .map(str::to_ascii_lowercase);
        let config = self.config.load_full();
        if let Some(name) = &server_name
            && let Some(route) = config.table.passthrough(name)
        {
            let route = Arc::clone(route);
            drop(config);
            let RecordedStream { stream, read } = hello.io;
            return self
                .pass_through(stream, &read.unwrap_or_default(), ends, &route)
                .await;
        }
        drop(config);
        hello.io.read = None;
        let stream = hello.into_stream(Arc::clone(&self.tls));
        let stream = tokio::time::timeout_at(until, stream).await;
        let stream = stream.map_err(|_| late())?.map_err(failed)?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let connected = Connected { ends, server_name };
        match is_http2 {
            true => self.serve_http2(stream, connected).await,
            false => self.serve_http1(stream, connected).await,
        }
    }

    /// Passes a TLS connection on whole.
    async fn pass_through(
        &self,
        client: TcpStream,
        read: &[u8],
        ends: ClientConnection,
        route: &Route,
    ) -> io::Result<()> {
        if let Some(sources) = &route.allow_sources
            && !is_in(sources, ends.peer.ip())
        {
            return Ok(());
        }
        let ParsedAction::Service(upstream) = &route.action else {
            return Ok(());
        };
        let mut tried = None;
        let (mut instance, _active) = loop {
            let config = self.config.load_full();
            let upstream = config.upstreams.get(upstream);
            let picked = upstream.and_then(|upstream| upstream.pick(None, tried).ok());
            let Some(instance) = picked else {
                route.counters.upstream_failures.fetch_add(1, Relaxed);
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            let target = Target {
                address: instance.address,
                protocol: UpstreamProtocol::Http,
                connect: route.timeouts.connect,
                header: proxy_header::encode(route.proxy_protocol, ends.peer, ends.local),
            };
            let active = instance.live.begin();
            match connect(&target).await {
                Ok(stream) => {
                    instance.live.succeeded();
                    break (stream, active);
                }
                Err(error) => {
                    tracing::debug!(instance = instance.name, %error, "no connection");
                    instance.live.failed();
                    if tried.replace(instance.address).is_some() {
                        route.counters.upstream_failures.fetch_add(1, Relaxed);
                        return Err(io::Error::other(error));
                    }
                }
            }
        };
        instance.write_all(read).await?;
        let (received, sent) = tunnel(client, instance, route.timeouts.idle).await?;
        route.counters.received.fetch_add(received, Relaxed);
        route.counters.sent.fetch_add(sent, Relaxed);
        Ok(())
    }

    async fn serve_http1<S>(self: &Arc<Self>, stream: S, connected: Connected) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head)
            .max_headers(self.limits.headers)
            .max_header_size(self.limits.head_bytes)
            .max_buf_size(self.limits.head_bytes.max(8192) + 64 * 1024);
        let io = TokioIo::new(WriteTimeoutStream::new(stream, self.limits.write));
        let ingress = Arc::clone(self);
        let connected = Arc::new(connected);
        let service = service_fn(move |request: Request<Incoming>| {
            let ingress = Arc::clone(&ingress);
            let connected = Arc::clone(&connected);
            async move { Ok::<_, Infallible>(ingress.answer(&connected, request).await) }
        });
        let mut connection = pin!(builder.serve_connection(io, service).with_upgrades());
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = self.drain.lingered.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        served.map_err(|error| {
            if error.is_timeout() {
                self.metrics.limited(Limited::Idle);
            } else if error.is_parse_too_large() {
                self.metrics.limited(Limited::Headers);
            }
            io::Error::other(error)
        })
    }

    async fn serve_http2<S>(self: &Arc<Self>, stream: S, connected: Connected) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let head_bytes = u32::try_from(self.limits.head_bytes).unwrap_or(u32::MAX);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.limits.streams)
            .max_header_list_size(head_bytes)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_pending_accept_reset_streams(PENDING_RESETS)
            .max_local_error_reset_streams(ERROR_RESETS)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING);
        let stream = WriteTimeoutStream::new(stream, self.limits.write);
        let io = TokioIo::new(CountedFrames::new(stream, Arc::clone(self)));
        let counts = Arc::<RequestCounts>::default();
        let ingress = Arc::clone(self);
        let counted = Arc::clone(&counts);
        let connected = Arc::new(connected);
        let service = service_fn(move |request: Request<Incoming>| {
            let ingress = Arc::clone(&ingress);
            let connected = Arc::clone(&connected);
            let request_count = CountedRequest::begin(&counted, &ingress);
            async move {
                let mut answer = ingress.answer(&connected, request).await;
                request_count.answered(&mut answer);
                Ok::<_, Infallible>(answer)
            }
        });
        let mut connection = pin!(builder.serve_connection(io, service));
        let mut is_closing = false;
        let shortest = self.limits.idle.min(self.limits.write);
        let mut looks = interval((shortest / 4).max(SHORTEST_LOOK));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                served = after_ready_tasks(connection.as_mut(), &counts) => {
                    return served.map_err(io::Error::other);
                }
                () = counts.ended.cancelled() => return Ok(()),
                () = self.drain.draining.cancelled(), if !is_closing => {
                    is_closing = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = looks.tick() => {
                    let (cut, is_all) = counts.cut_not_taken(self.limits.write);
                    for _ in 0..cut {
                        self.metrics.limited(Limited::NotTaken);
                    }
                    if is_all {
                        return Ok(());
                    }
                    let is_idle = counts.active.load(Relaxed) == 0
                        && counts.last.lock().elapsed() >= self.limits.idle;
                    if is_idle && !is_closing {
                        self.metrics.limited(Limited::Idle);
                        is_closing = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
        }
    }
}

/// Polls a connection that has several requests after the tasks that are ready: what their answers send
/// leaves in one record and one write. The runtime bounds how many tasks come before it.
fn after_ready_tasks<F: Future>(
    mut connection: Pin<&mut F>,
    counts: &RequestCounts,
) -> impl Future<Output = F::Output> {
    let mut has_waited = false;
    poll_fn(move |context| {
        has_waited = !has_waited && counts.active.load(Relaxed) > 1;
        // The first poll is pending, and the runtime wakes this task after the others.
        if has_waited && pin!(yield_now()).poll(context).is_pending() {
            return Poll::Pending;
        }
        connection.as_mut().poll(context)
    })
}

async fn read_header(stream: &mut TcpStream) -> io::Result<ProxiedPeer> {
    let invalid = |error: ProxyHeaderError| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut header = Vec::with_capacity(64);
    loop {
        match proxy_header::parse(&header).map_err(invalid)? {
            HeaderProgress::Complete(peer, _) => return Ok(peer),
            HeaderProgress::Needs(more) => {
                let mut taken = (&mut *stream).take(u64::try_from(more).unwrap_or(1));
                if taken.read_buf(&mut header).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is polled first: an answer's task that is ready, or the connection.
    async fn polled_first(requests: u64) -> &'static str {
        let counts = RequestCounts::default();
        counts.active.store(requests, Relaxed);
        let polled = Arc::<Mutex<Vec<&'static str>>>::default();
        let answering = Arc::clone(&polled);
        let answer = tokio::spawn(async move { answering.lock().push("answer") });
        let connection = pin!(async { polled.lock().push("connection") });
        after_ready_tasks(connection, &counts).await;
        answer.await.unwrap();
        let polled = polled.lock();
        assert_eq!(polled.len(), 2);
        polled[0]
    }

    #[tokio::test]
    async fn a_connection_sends_after_the_answers_that_are_ready() {
        assert_eq!(polled_first(2).await, "answer");
        assert_eq!(polled_first(1).await, "connection");
    }

    #[tokio::test]
    async fn several_records_of_tls_leave_in_one_write() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await;
        let mut recorded = RecordedStream {
            stream: stream.unwrap(),
            read: None,
        };
        assert!(recorded.is_write_vectored());
        let records = [b"first", b"other"].map(|record| io::IoSlice::new(record));
        let written = recorded.write_vectored(&records).await.unwrap();
        assert_eq!(written, 10);
    }
}
