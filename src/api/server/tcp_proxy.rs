//! Machines that do not lead forward connections to the leader without decrypting them: TLS is
//! between the caller and the leader, whose certificate names the cluster and not an address. A
//! connection on the local socket of a machine that holds etcd is forwarded too, with that
//! machine's administrator certificate.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::{BoxFuture, select_ok};
use rustix::net::sockopt;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional},
    net::TcpStream,
    time::{error::Elapsed, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::limits::ApiLimits;
use crate::server::client_hello::ReplayedStream;
use kat_daemon::write_timeout::WriteTimeoutStream;

/// The leader, as this machine knows it.
pub trait LeaderLocator: Send + Sync {
    /// `host:port` at which the leader's API may be reached if another machine leads, in the order
    /// of attempts; empty if this machine has to answer itself.
    fn endpoints(&self) -> Vec<String>;

    /// Completes when the endpoints may differ from those at the time of the call.
    fn changed(&self) -> BoxFuture<'static, ()>;
}

/// A fixed leader.
impl LeaderLocator for Vec<String> {
    fn endpoints(&self) -> Vec<String> {
        self.clone()
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// The leader, shared by all connections that are forwarded.
pub type LeaderSource = Arc<dyn LeaderLocator>;

/// The leader, for callers on the local socket.
#[derive(Clone)]
pub struct SocketLeader {
    pub leader: LeaderSource,
    /// A client configuration with this machine's administrator certificate; `None` if that can't
    /// be read.
    pub config: Arc<dyn Fn() -> Option<Arc<ClientConfig>> + Send + Sync>,
}

/// Longest wait for the leader if this machine answers itself after it.
const STAND_IN_AFTER: Duration = Duration::from_secs(2);

/// Head start of an endpoint before the next one is tried as well; one that is present answers
/// sooner.
const HEAD_START: Duration = Duration::from_millis(300);

/// Wait for the leader's first bytes beyond [`ApiLimits::handshake_timeout`], after which a leader
/// that is merely slow ends the connection itself. A machine whose kernel takes the connection and
/// whose agent says nothing for longer is stopped or hangs.
const BEYOND_HANDSHAKE: Duration = Duration::from_secs(1);

/// Silence after which the kernel probes whether a peer is still present.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A connection to the leader.
pub(crate) struct LeaderConnection<Stream> {
    stream: Stream,
    /// The endpoint that it is connected to.
    endpoint: String,
}

/// Connects to the present leader. `None` if this machine has to answer itself, also because the
/// leader is out of reach and this machine stands in for it; with `stands_in` the time limit is
/// short.
pub(crate) async fn reach(
    leader: &dyn LeaderLocator,
    limits: &ApiLimits,
    stands_in: bool,
) -> io::Result<Option<LeaderConnection<TcpStream>>> {
    let limit = if stands_in {
        limits.handshake_timeout.min(STAND_IN_AFTER)
    } else {
        limits.handshake_timeout
    };
    let late = |_: Elapsed| io::Error::from(io::ErrorKind::TimedOut);
    let reached = timeout(limit, follow(leader, |stream| async { Ok(stream) })).await;
    match reached.map_err(late).flatten() {
        Err(_) if stands_in => Ok(None),
        reached => reached,
    }
}

/// Connects to the leader, and to its successor if the leader changes meanwhile: a leader that is
/// gone answers nothing, and its successor is known before the connection times out.
async fn follow<Stream, Opening>(
    leader: &dyn LeaderLocator,
    open: impl Fn(TcpStream) -> Opening,
) -> io::Result<Option<LeaderConnection<Stream>>>
where
    Opening: Future<Output = io::Result<Stream>>,
{
    loop {
        let endpoints = leader.endpoints();
        if endpoints.is_empty() {
            return Ok(None);
        }
        let connecting = async {
            let (stream, endpoint) = connect(&endpoints).await?;
            let stream = open(stream).await?;
            Ok(Some(LeaderConnection { stream, endpoint }))
        };
        tokio::select! {
            biased;
            reached = connecting => return reached,
            () = until(leader, |now| now != endpoints) => {}
        }
    }
}

/// Waits until `is_so` is true of the endpoints.
async fn until(leader: &dyn LeaderLocator, is_so: impl Fn(&[String]) -> bool) {
    loop {
        let changed = leader.changed();
        if is_so(&leader.endpoints()) {
            return;
        }
        changed.await;
    }
}

/// The first connection to any of these endpoints. An overlay without a route to the leader takes
/// packets and answers nothing, so the next endpoint does not wait for the failure of the one
/// before.
async fn connect(endpoints: &[String]) -> io::Result<(TcpStream, String)> {
    let connecting = endpoints.iter().zip(0..).map(|(endpoint, before)| {
        Box::pin(async move {
            tokio::time::sleep(HEAD_START.saturating_mul(before)).await;
            let stream = TcpStream::connect(endpoint).await?;
            io::Result::Ok((stream, endpoint.clone()))
        })
    });
    let (connected, _) = select_ok(connecting).await?;
    Ok(connected)
}

/// Copies bytes both ways until both sides have ended, one side accepts nothing for
/// [`ApiLimits::write_timeout`], another machine leads, since no answer comes from one that is gone,
/// or the leader does not answer the caller's first bytes within the time of a handshake and
/// [`BEYOND_HANDSHAKE`]. After that the leader decides how long a connection may be silent.
pub(crate) async fn pass(
    caller: ReplayedStream,
    reached: LeaderConnection<TcpStream>,
    leader: &dyn LeaderLocator,
    limits: &ApiLimits,
) -> io::Result<()> {
    keep_alive(caller.socket())?;
    keep_alive(&reached.stream)?;
    let LeaderConnection { stream, endpoint } = reached;
    let answered = Arc::new(AtomicBool::new(false));
    let stream = NotingStream {
        stream,
        answered: Arc::clone(&answered),
    };
    let late = format!("{endpoint} does not answer");
    let silence = async {
        tokio::time::sleep(first_answer(limits)).await;
        if answered.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    let reached = LeaderConnection { stream, endpoint };
    tokio::select! {
        biased;
        passed = pass_opened(caller, reached, leader, limits) => passed,
        () = silence => Err(io::Error::new(io::ErrorKind::TimedOut, late)),
    }
}

/// Longest wait for the leader's first bytes.
fn first_answer(limits: &ApiLimits) -> Duration {
    limits.handshake_timeout.saturating_add(BEYOND_HANDSHAKE)
}

/// A stream that notes whether bytes have come.
struct NotingStream {
    stream: TcpStream,
    answered: Arc<AtomicBool>,
}

impl AsyncRead for NotingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let progress = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.answered.store(true, Ordering::Relaxed);
        }
        progress
    }
}

impl AsyncWrite for NotingStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    Ok(())
}

impl SocketLeader {
    /// Connects to the leader within a short time; `None` if this machine has to answer itself.
    pub(crate) async fn reach(&self) -> Option<LeaderConnection<TlsStream<TcpStream>>> {
        // The certificate names the cluster, and the verifier compares only that name.
        let name = ServerName::try_from("kat").ok()?;
        let open = |stream: TcpStream| {
            let name = name.clone();
            async move {
                keep_alive(&stream)?;
                let config = (self.config)().ok_or(io::ErrorKind::PermissionDenied)?;
                TlsConnector::from(config).connect(name, stream).await
            }
        };
        let reached = timeout(STAND_IN_AFTER, follow(&*self.leader, open)).await;
        reached.ok()?.ok()?
    }
}

/// As [`pass`], between any two streams.
pub(crate) async fn pass_opened<Caller, Stream>(
    caller: Caller,
    reached: LeaderConnection<Stream>,
    leader: &dyn LeaderLocator,
    limits: &ApiLimits,
) -> io::Result<()>
where
    Caller: AsyncRead + AsyncWrite + Unpin,
    Stream: AsyncRead + AsyncWrite + Unpin,
{
    let LeaderConnection { stream, endpoint } = reached;
    let mut caller = WriteTimeoutStream::new(caller, limits.write_timeout);
    let mut stream = WriteTimeoutStream::new(stream, limits.write_timeout);
    tokio::select! {
        biased;
        passed = copy_bidirectional(&mut caller, &mut stream) => passed.map(drop),
        () = until(leader, |now| !now.contains(&endpoint)) => {
            Err(io::Error::other(format!("{endpoint} leads no more")))
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpSocket},
        sync::watch,
    };

    use super::*;

    /// A leader with a settable address.
    struct Moving(watch::Receiver<Vec<String>>);

    impl LeaderLocator for Moving {
        fn endpoints(&self) -> Vec<String> {
            self.0.borrow().clone()
        }

        fn changed(&self) -> BoxFuture<'static, ()> {
            let mut now = self.0.clone();
            now.mark_unchanged();
            Box::pin(async move {
                if now.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
        }
    }

    /// An endpoint that neither accepts nor refuses a connection, like that of a lost machine.
    struct Silent {
        _full: TcpListener,
        _waiting: Vec<TcpStream>,
        endpoint: String,
    }

    async fn silent() -> Silent {
        // Nothing accepts the connections of this listener, and its backlog is full.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(0).unwrap();
        let address = full.local_addr().unwrap();
        let mut waiting = Vec::new();
        let short = Duration::from_millis(200);
        while let Ok(caller) = timeout(short, TcpStream::connect(address)).await {
            waiting.push(caller.unwrap());
        }
        Silent {
            _full: full,
            _waiting: waiting,
            endpoint: address.to_string(),
        }
    }

    async fn open() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        (listener, endpoint)
    }

    const DEADLINE: Duration = Duration::from_secs(30);

    /// Limits with a short time for a handshake.
    fn hasty() -> ApiLimits {
        ApiLimits {
            handshake_timeout: Duration::from_millis(200),
            ..ApiLimits::default()
        }
    }

    #[tokio::test]
    async fn an_endpoint_that_does_not_answer_does_not_hold_up_the_next() {
        let silent = silent().await;
        let (closed, refusing) = open().await;
        drop(closed);
        let (_listener, open) = open().await;
        let limits = ApiLimits::default();
        for first in [&silent.endpoint, &refusing] {
            let leader = vec![first.clone(), open.clone()];
            let reached = reach(&leader, &limits, true).await.unwrap().unwrap();
            assert_eq!(reached.endpoint, open);
        }
        let nowhere = vec![silent.endpoint.clone()];
        let reached = reach(&nowhere, &limits, true).await;
        assert!(reached.unwrap().is_none(), "it stands in");
        let refused = vec![refusing];
        assert!(reach(&refused, &limits, false).await.is_err());
        let itself = Vec::new();
        assert!(reach(&itself, &limits, false).await.unwrap().is_none());
    }

    /// Without a successor the proxy would answer in the leader's place, or fail, after 2 s. The
    /// successor comes before that.
    #[tokio::test(start_paused = true)]
    async fn a_caller_that_waits_for_a_lost_leader_is_connected_to_its_successor() {
        tokio::time::resume();
        let silent = silent().await;
        let (_listener, open) = open().await;
        tokio::time::pause();
        for (successor, stands_in) in [
            (vec![open.clone()], true),
            (vec![open.clone()], false),
            // This machine is the new leader.
            (Vec::new(), false),
        ] {
            let (place, leader) = watch::channel(vec![silent.endpoint.clone()]);
            let leader = Moving(leader);
            let limits = ApiLimits {
                handshake_timeout: Duration::MAX,
                ..ApiLimits::default()
            };
            let mut reaching = Box::pin(reach(&leader, &limits, stands_in));
            let soon = timeout(Duration::from_secs(1), &mut reaching).await;
            assert!(soon.is_err(), "nobody is there");
            // An unchanged address does not restart the attempt.
            place.send_modify(|_| {});
            let soon = timeout(Duration::from_millis(500), &mut reaching).await;
            assert!(soon.is_err(), "nobody is there");
            place.send_replace(successor.clone());
            tokio::time::resume();
            let reached = timeout(DEADLINE, reaching).await.unwrap().unwrap();
            tokio::time::pause();
            let reached = reached.map(|reached| reached.endpoint);
            assert_eq!(reached, successor.first().cloned());
        }
    }

    /// The kernel of a machine takes connections while its agent is stopped. The caller learns that
    /// within a moment, and asks another machine.
    #[tokio::test]
    async fn a_caller_of_a_leader_that_takes_connections_and_never_answers_is_let_go() {
        let (stopped, endpoint) = open().await;
        let (port, outer) = open().await;
        let limits = hasty();
        let leader = Arc::new(vec![endpoint]);
        let reached = reach(&*leader, &limits, false).await.unwrap().unwrap();
        let (mut at_leader, _) = stopped.accept().await.unwrap();
        let mut caller = TcpStream::connect(&outer).await.unwrap();
        let (taken, _) = port.accept().await.unwrap();
        let limit = first_answer(&limits);
        let begun = tokio::time::Instant::now();
        let passing = tokio::spawn({
            let leader = Arc::clone(&leader);
            async move { pass(taken.into(), reached, &*leader, &limits).await }
        });
        caller.write_all(b"hello").await.unwrap();
        let mut bytes = [0; 5];
        at_leader.read_exact(&mut bytes).await.unwrap();
        let ended = timeout(DEADLINE, caller.read(&mut bytes)).await.unwrap();
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        let took = begun.elapsed();
        assert!((limit..limit * 2).contains(&took), "{took:?}");
        let error = timeout(DEADLINE, passing).await.unwrap().unwrap();
        assert!(error.unwrap_err().to_string().ends_with("does not answer"));
    }

    /// One that has answered once may be silent for as long as it likes, such as a followed log.
    #[tokio::test]
    async fn a_leader_that_has_answered_once_may_be_silent() {
        let (inner, endpoint) = open().await;
        let (port, outer) = open().await;
        let limits = hasty();
        let limit = first_answer(&limits);
        let leader = Arc::new(vec![endpoint]);
        let reached = reach(&*leader, &limits, false).await.unwrap().unwrap();
        let (mut at_leader, _) = inner.accept().await.unwrap();
        let mut caller = TcpStream::connect(&outer).await.unwrap();
        let (taken, _) = port.accept().await.unwrap();
        let passing = tokio::spawn({
            let leader = Arc::clone(&leader);
            async move { pass(taken.into(), reached, &*leader, &limits).await }
        });
        let mut bytes = [0; 5];
        at_leader.write_all(b"hello").await.unwrap();
        caller.read_exact(&mut bytes).await.unwrap();
        let soon = timeout(limit + HEAD_START, caller.read(&mut bytes)).await;
        assert!(soon.is_err(), "{soon:?}");
        at_leader.write_all(b"again").await.unwrap();
        caller.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"again");
        passing.abort();
    }

    /// The time of a handshake is the leader's to decide.
    #[tokio::test]
    async fn a_leader_that_is_slow_in_the_handshake_is_waited_for() {
        let (inner, endpoint) = open().await;
        let (port, outer) = open().await;
        let limits = ApiLimits::default();
        let slow = limits.handshake_timeout - Duration::from_secs(1);
        let leader = Arc::new(vec![endpoint]);
        let reached = reach(&*leader, &limits, false).await.unwrap().unwrap();
        let (mut at_leader, _) = inner.accept().await.unwrap();
        let mut caller = TcpStream::connect(&outer).await.unwrap();
        let (taken, _) = port.accept().await.unwrap();
        let passing = tokio::spawn({
            let leader = Arc::clone(&leader);
            async move { pass(taken.into(), reached, &*leader, &limits).await }
        });
        tokio::time::sleep(slow).await;
        at_leader.write_all(b"hello").await.unwrap();
        let mut bytes = [0; 5];
        caller.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"hello");
        passing.abort();
    }

    #[tokio::test]
    async fn a_connection_to_a_leader_that_leads_no_more_ends() {
        let (listener, first) = open().await;
        let (_other, second) = open().await;
        let (inner, outer) = (&listener, open().await);
        let (place, leader) = watch::channel(vec![first.clone()]);
        let leader = Arc::new(Moving(leader));
        let limits = ApiLimits::default();
        let reached = reach(&*leader, &limits, false).await.unwrap().unwrap();
        let (mut at_leader, _) = inner.accept().await.unwrap();
        let mut caller = TcpStream::connect(&outer.1).await.unwrap();
        let (taken, _) = outer.0.accept().await.unwrap();
        let passing = tokio::spawn({
            let leader = Arc::clone(&leader);
            async move { pass(taken.into(), reached, &*leader, &limits).await }
        });
        caller.write_all(b"ask").await.unwrap();
        let mut asked = [0; 3];
        at_leader.read_exact(&mut asked).await.unwrap();
        // The leader gets one more address.
        place.send_replace(vec![second.clone(), first]);
        at_leader.write_all(b"say").await.unwrap();
        caller.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"say");
        place.send_replace(vec![second]);
        let ended = timeout(DEADLINE, caller.read(&mut asked)).await.unwrap();
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        let error = timeout(DEADLINE, passing).await.unwrap().unwrap();
        assert!(error.unwrap_err().to_string().ends_with("leads no more"));
    }
}
