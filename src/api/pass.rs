//! Machines that do not lead pass connections on to the leader, unopened: TLS is between the caller
//! and the leader, whose certificate names the cluster and not an address.

use std::{io, sync::Arc, time::Duration};

use rustix::net::sockopt;
use tokio::{
    io::copy_bidirectional,
    net::TcpStream,
    time::{error::Elapsed, timeout},
};

use super::{limits::Limits, stalled::Stalled};

/// `host:port` of the leader's API, where this machine does not lead; nothing where it is to answer
/// itself.
pub type LeaderSource = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Silence after which the kernel asks whether a peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Passes bytes both ways until both sides have ended, or one takes nothing for
/// [`Limits::write_timeout`]. How long a connection may be silent is for the leader to say.
pub(super) async fn pass(caller: TcpStream, leader: &str, limits: &Limits) -> io::Result<()> {
    let late = |_: Elapsed| io::Error::from(io::ErrorKind::TimedOut);
    let connecting = timeout(limits.handshake_timeout, TcpStream::connect(leader));
    let leader = connecting.await.map_err(late)??;
    for stream in [&caller, &leader] {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    }
    let mut caller = Stalled::new(caller, limits.write_timeout);
    let mut leader = Stalled::new(leader, limits.write_timeout);
    copy_bidirectional(&mut caller, &mut leader).await?;
    Ok(())
}
