//! The cluster's names, on this machine's overlay address (RFC001-KAT 7.3).
//!
//! Names of the cluster are answered from a [`Zone`], an immutable snapshot of the files that the
//! agent writes; they are never asked elsewhere, and they are answered with etcd, leader and agent
//! away. All other names are forwarded to the machine's resolvers, with a cache.
//!
//! Built on hickory-proto's messages. hickory-server's own loop is not used: it starts a task for
//! every packet and takes every connection, and nothing in it can be given a bound.

mod cache;
mod exchange;
mod forward;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod message;
pub mod resolved;
mod server;
mod shares;
pub(crate) mod source;
mod upstream;
mod zone;

use std::{io, net::SocketAddr, sync::Arc};

pub use message::{ClientEdns, ParseError, Request, parse};
pub use server::{Server, Settings};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
pub use zone::{Lookup, Zone};

/// Why names are not answered.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The address can't be listened on.
    #[error("can't listen on {address} for DNS over {transport}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// `UDP` or `TCP`.
        transport: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A socket failed again and again.
    #[error("DNS over {transport} on {address} failed: {source}")]
    Socket {
        /// The address.
        address: SocketAddr,
        /// `UDP` or `TCP`.
        transport: &'static str,
        /// The last failure.
        source: io::Error,
    },
    /// The cluster's domain is not a name.
    #[error("`{domain}` can't be the domain of a cluster: {reason}")]
    Domain {
        /// As it is configured.
        domain: String,
        /// What is wrong.
        reason: String,
    },
}

/// Answers on `address`, over UDP and TCP, with the newest snapshot of `zone`, until cancelled.
///
/// Fails when the address can't be listened on, or a socket fails for good.
pub async fn serve(
    address: SocketAddr,
    zone: watch::Receiver<Arc<Zone>>,
    cancel: CancellationToken,
) -> Result<(), DnsError> {
    Server::bind(address, zone, Settings::default())
        .await?
        .run(cancel)
        .await
}

#[cfg(test)]
mod tests;
