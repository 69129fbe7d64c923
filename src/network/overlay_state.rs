//! What the agent is told of the peers: a file in `/run`, for `katcall describe node`.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::UNIX_EPOCH,
};

use super::{
    state::{OverlayState, PeerState},
    wireguard::PeerStatus,
};

/// A peer's part of it.
pub(super) fn of(status: &PeerStatus) -> PeerState {
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
        via: None,
    }
}

/// Replaces the file. It lies in memory and is of no use after a boot, so nothing is synced.
///
/// # Errors
/// What the system said.
pub(super) fn write(path: &Path, state: &OverlayState) -> io::Result<()> {
    let text = serde_json::to_vec(state)?;
    let partial = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&partial)?;
    file.write_all(&text)?;
    fs::rename(&partial, path)
}
