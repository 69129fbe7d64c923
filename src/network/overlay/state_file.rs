//! The state of the peers for the agent: a file in `/run`, for `katcall describe node`.

use std::time::UNIX_EPOCH;

use super::wireguard::PeerStatus;
use kat_types::machine::network::PeerState;

/// The state of one peer.
pub(crate) fn of(status: &PeerStatus) -> PeerState {
    let since_epoch = |time: std::time::SystemTime| time.duration_since(UNIX_EPOCH).ok();
    PeerState {
        endpoint: status.endpoint,
        last_handshake: status
            .last_handshake
            .and_then(since_epoch)
            .map(|time| time.as_secs()),
        sent: status.sent,
        received: status.received,
        connected: status.is_connected(),
        unanswered_seconds: None,
        via: None,
    }
}
