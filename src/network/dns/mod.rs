//! The DNS server for the cluster's names, on this machine's overlay address (RFC001-KAT 7.3).
//!
//! Names of the cluster are answered from a [`Zone`], an immutable snapshot of the files that the
//! agent writes. They are never forwarded, and they are answered while etcd, the leader and the
//! agent are down. All other names are forwarded to the machine's resolvers, with a cache.
//!
//! The server uses hickory-proto's messages, but not hickory-server's loop: that starts a task for
//! every packet, accepts every connection, and has no limits.

mod cache;
mod exchange;
mod forward;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod message;
pub mod resolved;
mod server;
pub(crate) mod source;
pub(crate) mod source_limits;
mod upstream;
mod zone;

use std::{io, net::SocketAddr, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use message::{ClientEdns, DnsRequest, ParseError, parse};
pub use server::{DnsSettings, OpenDnsServer};
pub use zone::{Lookup, Zone};

/// Why the DNS server does not run.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The server can't listen on the address.
    #[error("can't listen on {address} for DNS over {transport}: {source}")]
    Listen {
        address: SocketAddr,
        /// `UDP` or `TCP`.
        transport: &'static str,
        source: io::Error,
    },
    /// A socket failed repeatedly.
    #[error("DNS over {transport} on {address} failed: {source}")]
    Socket {
        address: SocketAddr,
        /// `UDP` or `TCP`.
        transport: &'static str,
        /// The last error.
        source: io::Error,
    },
    /// The cluster's domain is not a valid name.
    #[error("`{domain}` can't be the domain of a cluster: {reason}")]
    Domain {
        /// The domain as configured.
        domain: String,
        reason: String,
    },
}

/// Answers on `address`, over UDP and TCP, with the newest snapshot of `zone`, until cancelled.
///
/// Fails when the server can't listen on the address, or a socket fails permanently.
pub async fn serve(
    address: SocketAddr,
    zone: watch::Receiver<Arc<Zone>>,
    cancel: CancellationToken,
) -> Result<(), DnsError> {
    OpenDnsServer::bind(address, zone, DnsSettings::default())
        .await?
        .run(cancel)
        .await
}

#[cfg(test)]
mod tests;
