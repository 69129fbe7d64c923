//! Machines that do not lead pass connections on to the leader, unopened: TLS is between the caller
//! and the leader, whose certificate names the cluster and not an address. A connection on the local
//! socket of a machine that holds etcd is passed on too, with that machine's right of an
//! administrator.

use std::{io, sync::Arc, time::Duration};

use rustix::net::sockopt;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional},
    net::TcpStream,
    time::{error::Elapsed, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{limits::Limits, stalled::Stalled};

/// `host:port` of the leader's API, where this machine does not lead; nothing where it is to answer
/// itself.
pub type LeaderSource = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The leader, for callers on the local socket.
#[derive(Clone)]
pub struct TlsLeader {
    /// `host:port` of its API.
    pub endpoint: String,
    /// With this machine's certificate of an administrator.
    pub config: Arc<ClientConfig>,
}

/// As [`LeaderSource`], for the local socket.
pub type SocketLeader = Arc<dyn Fn() -> Option<TlsLeader> + Send + Sync>;

/// Longest wait for the leader where this machine answers itself after it.
const STAND_IN_AFTER: Duration = Duration::from_secs(2);

/// Silence after which the kernel asks whether a peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A connection to the leader. One for whom this machine would stand in is not kept waiting long.
pub(super) async fn reach(leader: &str, limits: &Limits, stands_in: bool) -> io::Result<TcpStream> {
    let late = |_: Elapsed| io::Error::from(io::ErrorKind::TimedOut);
    let limit = if stands_in {
        limits.handshake_timeout.min(STAND_IN_AFTER)
    } else {
        limits.handshake_timeout
    };
    timeout(limit, TcpStream::connect(leader))
        .await
        .map_err(late)?
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
            let stream = TcpStream::connect(&self.endpoint).await?;
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
