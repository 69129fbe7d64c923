//! Machines that do not lead pass connections on to the leader, unopened: TLS is between the caller
//! and the leader, whose certificate names the cluster and not an address. A connection on the local
//! socket of a machine that holds etcd is passed on too, with that machine's right of an
//! administrator.

use std::{io, sync::Arc, time::Duration};

use futures_util::future::select_ok;
use rustix::net::sockopt;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional},
    net::TcpStream,
    time::{error::Elapsed, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{limits::Limits, stalled::Stalled};

/// `host:port` at which the leader's API may be had, where this machine does not lead, the first to
/// be tried first; none where it is to answer itself.
pub type LeaderSource = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// The leader, for callers on the local socket.
#[derive(Clone)]
pub struct TlsLeader {
    /// `host:port` at which its API may be had, at least one.
    pub endpoints: Vec<String>,
    /// With this machine's certificate of an administrator.
    pub config: Arc<ClientConfig>,
}

/// As [`LeaderSource`], for the local socket.
pub type SocketLeader = Arc<dyn Fn() -> Option<TlsLeader> + Send + Sync>;

/// Longest wait for the leader where this machine answers itself after it.
const STAND_IN_AFTER: Duration = Duration::from_secs(2);

/// An endpoint that is there answers sooner; then the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(300);

/// Silence after which the kernel asks whether a peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A connection to the leader. One for whom this machine would stand in is not kept waiting long.
pub(super) async fn reach(
    leader: &[String],
    limits: &Limits,
    stands_in: bool,
) -> io::Result<TcpStream> {
    let late = |_: Elapsed| io::Error::from(io::ErrorKind::TimedOut);
    let limit = if stands_in {
        limits.handshake_timeout.min(STAND_IN_AFTER)
    } else {
        limits.handshake_timeout
    };
    timeout(limit, connect(leader)).await.map_err(late)?
}

/// The first connection to any of these. An overlay that lost its way to the leader takes packets and
/// says nothing: the next endpoint does not wait for its end.
async fn connect(endpoints: &[String]) -> io::Result<TcpStream> {
    if endpoints.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let connecting = endpoints.iter().zip(0..).map(|(endpoint, before)| {
        Box::pin(async move {
            tokio::time::sleep(HEAD_START.saturating_mul(before)).await;
            TcpStream::connect(endpoint).await
        })
    });
    let (stream, _) = select_ok(connecting).await?;
    Ok(stream)
}

/// Passes bytes both ways until both sides have ended, or one takes nothing for
/// [`Limits::write_timeout`]. How long a connection may be silent is for the leader to say.
pub(super) async fn pass(caller: TcpStream, leader: TcpStream, limits: &Limits) -> io::Result<()> {
    for stream in [&caller, &leader] {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    }
    pass_opened(caller, leader, limits).await
}

impl TlsLeader {
    /// A connection to it, within a short time.
    pub(super) async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        // The certificate names the cluster, and the verifier compares that alone.
        let name = ServerName::try_from("kat").map_err(io::Error::other)?;
        let connecting = async {
            let stream = connect(&self.endpoints).await?;
            stream.set_nodelay(true)?;
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
            TlsConnector::from(Arc::clone(&self.config))
                .connect(name, stream)
                .await
        };
        let late = |_: Elapsed| io::Error::from(io::ErrorKind::TimedOut);
        timeout(STAND_IN_AFTER, connecting).await.map_err(late)?
    }
}

/// As [`pass`], between any two.
pub(super) async fn pass_opened<Caller, Leader>(
    caller: Caller,
    leader: Leader,
    limits: &Limits,
) -> io::Result<()>
where
    Caller: AsyncRead + AsyncWrite + Unpin,
    Leader: AsyncRead + AsyncWrite + Unpin,
{
    let mut caller = Stalled::new(caller, limits.write_timeout);
    let mut leader = Stalled::new(leader, limits.write_timeout);
    copy_bidirectional(&mut caller, &mut leader).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[tokio::test]
    async fn an_endpoint_that_does_not_answer_does_not_hold_up_the_next() {
        // Nobody takes callers from it, and more than fit do not even begin.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(0).unwrap();
        let silent = full.local_addr().unwrap();
        let mut waiting = Vec::new();
        let short = Duration::from_millis(200);
        while let Ok(caller) = timeout(short, TcpStream::connect(silent)).await {
            waiting.push(caller.unwrap());
        }
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refusing = closed.local_addr().unwrap();
        drop(closed);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        for first in [silent, refusing] {
            let leader = [first.to_string(), open.to_string()];
            let stream = reach(&leader, &Limits::default(), true).await;
            assert_eq!(stream.unwrap().peer_addr().unwrap(), open);
        }
        let nowhere = [silent.to_string()];
        assert!(reach(&nowhere, &Limits::default(), true).await.is_err());
        assert!(reach(&[], &Limits::default(), true).await.is_err());
    }
}
