//! Connections to instances, kept for the next request.
//!
//! HTTP/1.1: one request at a time on each, the most recently used first. HTTP/2 without TLS: many
//! requests on each, and a further connection when all have [`STREAMS`]. Connections that a route
//! begins with a PROXY header are not kept.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, timeout},
};

use super::body::RequestBody;
use kat_types::resource::UpstreamProtocol;

/// Time for which an unused connection is kept. Servers close theirs after some time, too: it is
/// shorter than the usual ones.
const KEPT: Duration = Duration::from_secs(15);
/// Most unused connections to one instance.
const MOST_KEPT: usize = 128;
/// Most requests at once on one HTTP/2 connection.
const STREAMS: usize = 100;
/// Longest wait until a connection whose answer was read is ready for the next request.
const READY_PATIENCE: Duration = Duration::from_secs(5);
/// Most headers of a response.
const MOST_HEADERS: usize = 200;
/// Flow control windows of HTTP/2, in bytes: what one stream and one connection may hold in memory.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Interval of pings on HTTP/2 connections with requests, and time limit of the answer.
const PING: Duration = Duration::from_secs(20);

/// Where a request goes, and how.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub address: SocketAddr,
    pub protocol: UpstreamProtocol,
    /// Longest wait for a connection.
    pub connect: Duration,
    /// PROXY header that the connection begins with; empty for none.
    pub header: Vec<u8>,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error("no connection: {0}")]
    Connect(#[source] io::Error),
    #[error("no connection in time")]
    ConnectTimeout,
    #[error("no answer: {0}")]
    Lost(#[source] hyper::Error),
}

/// A failure, with the request if nothing of it was sent.
pub(crate) struct SendFailure {
    pub error: SendError,
    pub request: Option<Request<RequestBody>>,
}

/// An answer, with the connection that it came on.
pub(crate) struct Answered {
    pub response: Response<Incoming>,
    pub connection: Option<ReturnedConnection>,
}

struct KeptConnection {
    sender: http1::SendRequest<RequestBody>,
    since: Instant,
}

/// One HTTP/2 connection.
struct SharedConnection {
    sender: http2::SendRequest<RequestBody>,
    streams: Arc<AtomicUsize>,
    last_used: Instant,
}

/// HTTP/2 connections to one instance.
#[derive(Default)]
struct SharedConnections {
    connections: Mutex<Vec<SharedConnection>>,
    /// Held while a further connection is made, so that many requests at once make one.
    connecting: tokio::sync::Mutex<()>,
}

/// A stream of an HTTP/2 connection, until it is dropped.
pub(crate) struct StreamSlot(Arc<AtomicUsize>);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Connections to all instances.
#[derive(Default)]
pub(crate) struct ConnectionPool {
    kept: Mutex<BTreeMap<SocketAddr, Vec<KeptConnection>>>,
    shared: Mutex<BTreeMap<SocketAddr, Arc<SharedConnections>>>,
}

/// A connection with an answer that is being read.
pub(crate) enum ReturnedConnection {
    Http1 {
        sender: http1::SendRequest<RequestBody>,
        address: SocketAddr,
        pool: Weak<ConnectionPool>,
    },
    Http2 {
        _sender: http2::SendRequest<RequestBody>,
        _slot: StreamSlot,
    },
}

impl ReturnedConnection {
    /// Called when the answer was read to its end.
    pub(crate) fn give_back(self) {
        let Self::Http1 {
            mut sender,
            address,
            pool,
        } = self
        else {
            return;
        };
        // Mostly the connection saw the end of the answer before its reader.
        if sender.is_ready() {
            if let Some(pool) = pool.upgrade() {
                pool.keep(address, sender);
            }
            return;
        }
        tokio::spawn(async move {
            let ready = timeout(READY_PATIENCE, sender.ready()).await;
            if matches!(ready, Ok(Ok(())))
                && let Some(pool) = pool.upgrade()
            {
                pool.keep(address, sender);
            }
        });
    }
}

impl ConnectionPool {
    /// Sends a request, and returns the head of the answer.
    pub(crate) async fn send(
        self: &Arc<Self>,
        target: &Target,
        request: Request<RequestBody>,
    ) -> Result<Answered, SendFailure> {
        match target.protocol {
            UpstreamProtocol::Http => self.send_http1(target, request).await,
            UpstreamProtocol::H2c => self.send_http2(target, request).await,
        }
    }

    async fn send_http1(
        self: &Arc<Self>,
        target: &Target,
        mut request: Request<RequestBody>,
    ) -> Result<Answered, SendFailure> {
        let is_kept = target.header.is_empty();
        while is_kept && let Some(mut sender) = self.take(target.address) {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.answered(target, sender, response)),
                // The instance had closed it meanwhile.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(lost(error)),
                },
            }
        }
        let stream = match connect(target).await {
            Ok(stream) => stream,
            Err(error) => {
                return Err(SendFailure {
                    error,
                    request: Some(request),
                });
            }
        };
        let mut builder = http1::Builder::new();
        builder.max_headers(MOST_HEADERS);
        let (mut sender, connection) = match builder.handshake(TokioIo::new(stream)).await {
            Ok(made) => made,
            Err(error) => {
                return Err(SendFailure {
                    error: SendError::Lost(error),
                    request: Some(request),
                });
            }
        };
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to an instance ended");
            }
        });
        match sender.try_send_request(request).await {
            Ok(response) => Ok(self.answered(target, sender, response)),
            Err(error) => Err(lost(error)),
        }
    }

    fn answered(
        self: &Arc<Self>,
        target: &Target,
        sender: http1::SendRequest<RequestBody>,
        response: Response<Incoming>,
    ) -> Answered {
        let connection = target.header.is_empty().then(|| ReturnedConnection::Http1 {
            sender,
            address: target.address,
            pool: Arc::downgrade(self),
        });
        Answered {
            response,
            connection,
        }
    }

    fn take(&self, address: SocketAddr) -> Option<http1::SendRequest<RequestBody>> {
        let mut kept = self.kept.lock();
        let connections = kept.get_mut(&address)?;
        while let Some(connection) = connections.pop() {
            if connection.since.elapsed() < KEPT && connection.sender.is_ready() {
                return Some(connection.sender);
            }
        }
        None
    }

    fn keep(&self, address: SocketAddr, sender: http1::SendRequest<RequestBody>) {
        let mut kept = self.kept.lock();
        let connections = kept.entry(address).or_default();
        if connections.len() < MOST_KEPT {
            connections.push(KeptConnection {
                sender,
                since: Instant::now(),
            });
        }
    }

    async fn send_http2(
        self: &Arc<Self>,
        target: &Target,
        request: Request<RequestBody>,
    ) -> Result<Answered, SendFailure> {
        let connection = match target.header.is_empty() {
            true => self.shared_connection(target).await,
            false => connect_http2(target)
                .await
                .map(|connection| connection.open()),
        };
        let (mut sender, slot) = match connection {
            Ok(connection) => connection,
            Err(error) => {
                return Err(SendFailure {
                    error,
                    request: Some(request),
                });
            }
        };
        match sender.try_send_request(request).await {
            Ok(response) => Ok(Answered {
                response,
                connection: Some(ReturnedConnection::Http2 {
                    _sender: sender,
                    _slot: slot,
                }),
            }),
            Err(error) => Err(lost(error)),
        }
    }

    async fn shared_connection(
        &self,
        target: &Target,
    ) -> Result<(http2::SendRequest<RequestBody>, StreamSlot), SendError> {
        let shared = {
            let mut all = self.shared.lock();
            Arc::clone(all.entry(target.address).or_default())
        };
        if let Some(connection) = shared.least_used() {
            return Ok(connection);
        }
        let _connecting = shared.connecting.lock().await;
        // Another request may have made one meanwhile.
        if let Some(connection) = shared.least_used() {
            return Ok(connection);
        }
        let connection = connect_http2(target).await?;
        let opened = connection.open();
        shared.connections.lock().push(connection);
        Ok(opened)
    }

    /// Drops connections that were not used for some time.
    pub(crate) fn forget_unused(&self) {
        self.kept.lock().retain(|_, connections| {
            connections.retain(|connection| {
                connection.since.elapsed() < KEPT && !connection.sender.is_closed()
            });
            !connections.is_empty()
        });
        self.shared.lock().retain(|_, shared| {
            let mut connections = shared.connections.lock();
            connections.retain(|connection| {
                let is_used = connection.streams.load(Relaxed) > 0;
                !connection.sender.is_closed() && (is_used || connection.last_used.elapsed() < KEPT)
            });
            // One that is being made is held by its maker.
            !connections.is_empty() || Arc::strong_count(shared) > 1
        });
    }
}

impl SharedConnections {
    fn least_used(&self) -> Option<(http2::SendRequest<RequestBody>, StreamSlot)> {
        let mut connections = self.connections.lock();
        connections.retain(|connection| !connection.sender.is_closed());
        let free = connections.iter_mut();
        let free = free.filter(|connection| connection.streams.load(Relaxed) < STREAMS);
        let connection = free.min_by_key(|connection| connection.streams.load(Relaxed))?;
        connection.last_used = Instant::now();
        Some(connection.open())
    }
}

impl SharedConnection {
    fn open(&self) -> (http2::SendRequest<RequestBody>, StreamSlot) {
        self.streams.fetch_add(1, Relaxed);
        (self.sender.clone(), StreamSlot(Arc::clone(&self.streams)))
    }
}

fn lost(mut error: TrySendError<Request<RequestBody>>) -> SendFailure {
    SendFailure {
        request: error.take_message(),
        error: SendError::Lost(error.into_error()),
    }
}

/// Connects, and sends the PROXY header.
pub(crate) async fn connect(target: &Target) -> Result<TcpStream, SendError> {
    let connecting = async {
        let mut stream = TcpStream::connect(target.address).await?;
        stream.set_nodelay(true)?;
        if !target.header.is_empty() {
            stream.write_all(&target.header).await?;
        }
        Ok(stream)
    };
    match timeout(target.connect, connecting).await {
        Ok(connected) => connected.map_err(SendError::Connect),
        Err(_) => Err(SendError::ConnectTimeout),
    }
}

async fn connect_http2(target: &Target) -> Result<SharedConnection, SendError> {
    let stream = connect(target).await?;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    let handshake = builder.handshake(TokioIo::new(stream));
    let (sender, connection) = match timeout(target.connect, handshake).await {
        Ok(made) => made.map_err(SendError::Lost)?,
        Err(_) => return Err(SendError::ConnectTimeout),
    };
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to an instance ended");
        }
    });
    Ok(SharedConnection {
        sender,
        streams: Arc::default(),
        last_used: Instant::now(),
    })
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn a_connection_is_kept_as_soon_as_its_answer_has_been_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target {
            address: listener.local_addr().unwrap(),
            protocol: UpstreamProtocol::Http,
            connect: Duration::from_secs(10),
            header: Vec::new(),
        };
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.write_all(answer).await.unwrap();
            // Open until the other end closes.
            let _ = stream.read_buf(&mut request).await;
        });
        let pool = Arc::<ConnectionPool>::default();
        let mut request = Request::new(RequestBody::empty());
        *request.uri_mut() = "/".parse().unwrap();
        let answered = pool.send(&target, request).await;
        let Ok(Answered {
            response,
            connection: Some(connection),
        }) = answered
        else {
            panic!("no answer, or no connection to keep");
        };
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes(), "ok");
        // No other task runs in between.
        connection.give_back();
        assert!(pool.take(target.address).is_some());
    }
}
