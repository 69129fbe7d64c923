//! WireGuard, in the kernel or in userspace, behind one trait.
//!
//! The wanted state is compared with the actual one ([`diff`]), and only the difference is applied:
//! setting a peer again would end its session in the userspace implementation.

mod diff;
mod endpoints;
mod kernel;
mod keys;
mod uapi;
pub mod userspace;

use async_trait::async_trait;

pub use diff::{
    DesiredLink, LinkChanges, PeerChange, PeerStatus, WantedPeer, WireGuardDevice, difference,
};
pub use endpoints::{ClockMoment, EndpointAttempt, EndpointChoice, EndpointTracker, resolve};
pub use kernel::{Kernel, set_messages};
pub use keys::{KeyError, PrivateKey, PublicKey, generate_key, read_private_key};
pub use uapi::{Uapi, parse_device, set_text};

/// Why WireGuard could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum WireGuardError {
    /// The socket can't be opened.
    #[error("{place}: {source}")]
    Socket {
        /// `netlink`, or the path of the socket.
        place: String,
        source: std::io::Error,
    },
    /// WireGuard refused the request.
    #[error("{what}: {source}")]
    Refused {
        /// The request, for messages.
        what: String,
        source: std::io::Error,
    },
    /// The answer is invalid.
    #[error("{what}: {reason}")]
    Answer {
        /// The request, for messages.
        what: String,
        reason: String,
    },
    #[error("{what}: no answer in time")]
    Timeout {
        /// The request, for messages.
        what: String,
    },
}

/// One WireGuard link.
#[async_trait]
pub trait WireGuard: Send + Sync {
    /// Reads the link's keys, port and peers.
    async fn read(&self) -> Result<WireGuardDevice, WireGuardError>;

    /// Applies a change. Not atomic: what failed shows as a difference the next time.
    async fn apply(&self, change: &LinkChanges) -> Result<(), WireGuardError>;

    /// `kernel` or `userspace`.
    fn kind(&self) -> &'static str;
}
