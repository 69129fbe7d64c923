//! WireGuard, in the kernel or beside it, behind one trait.
//!
//! What should be is compared with what is ([`diff`]), and only the difference is applied: a peer
//! that is set again loses its session in the userspace implementation.

mod diff;
mod endpoints;
mod kernel;
mod keys;
mod uapi;
pub mod userspace;

use async_trait::async_trait;

pub use diff::{Change, Device, PeerChange, PeerStatus, Wanted, WantedPeer, difference};
pub use endpoints::{Attempt, Choice, Moment, Tracker, resolve};
pub use kernel::{Kernel, set_messages};
pub use keys::{KeyError, PrivateKey, PublicKey, generate_key, read_private_key};
pub use uapi::{Uapi, parse_device, set_text};

/// Why WireGuard could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum WireGuardError {
    /// No socket to speak through.
    #[error("{place}: {source}")]
    Socket {
        /// Netlink, or the path of the socket.
        place: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It refused.
    #[error("{what}: {source}")]
    Refused {
        /// What was asked.
        what: String,
        /// Its answer.
        source: std::io::Error,
    },
    /// Its answer makes no sense.
    #[error("{what}: {reason}")]
    Answer {
        /// What was asked.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// No answer.
    #[error("{what}: no answer in time")]
    Timeout {
        /// What was asked.
        what: String,
    },
}

/// One WireGuard link.
#[async_trait]
pub trait WireGuard: Send + Sync {
    /// Its keys, port and peers as they are.
    async fn read(&self) -> Result<Device, WireGuardError>;

    /// Changes it. Not atomic: what failed half way shows as a difference the next time.
    async fn apply(&self, change: &Change) -> Result<(), WireGuardError>;

    /// `kernel` or `userspace`.
    fn kind(&self) -> &'static str;
}
