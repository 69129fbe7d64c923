//! Binding of TCP ports.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use rustix::net::sockopt::{set_ip_freebind, set_ipv6_v6only};
use tokio::net::{TcpListener, TcpSocket};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Binds a TCP port on every address of the machine, of both families, whatever the machine's
/// `net.ipv6.bindv6only` says; of IPv4 alone where there is no IPv6.
///
/// # Errors
/// If the port can't be bound, for example since another program has it.
pub fn bind(port: u16) -> io::Result<TcpListener> {
    let both = TcpSocket::new_v6().and_then(|socket| {
        set_ipv6_v6only(&socket, false)?;
        listen(socket, (Ipv6Addr::UNSPECIFIED, port).into())
    });
    both.or_else(|_| {
        let address = (Ipv4Addr::UNSPECIFIED, port).into();
        listen(TcpSocket::new_v4()?, address)
    })
}

/// Binds a TCP port on one address of this machine, which `kat0` may get later.
///
/// # Errors
/// As [`bind`].
pub fn bind_overlay(address: Ipv4Addr, port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    set_ip_freebind(&socket, true)?;
    listen(socket, (address, port).into())
}

fn listen(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
