//! WireGuard in userspace, where the kernel has none: the body of `kat-wg.service`.
//!
//! It is a service of its own, so that an upgrade of KAT drops no tunnel. It knows nothing of the
//! cluster: `kat-net` configures it through the UAPI socket. The link is removed when the service
//! ends.
//!
//! The watchdog of the service is fed while the device answers questions. An answer takes the locks of
//! the device and of each peer, as a packet does.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use gotatun::device::{
    self,
    uapi::{UapiClient, UapiServer, command::Get},
};
use nix::net::if_::if_nametoindex;
use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use kat_daemon::watchdog::{LoopPulse, LoopPulses};

/// Folder of the sockets, in which `wg` also looks.
pub(crate) const SOCKET_FOLDER: &str = "/var/run/wireguard";

/// Interval of the checks that the link exists, and that the device answers.
const LOOK: Duration = Duration::from_secs(2);
/// A device without an answer for this time hangs.
pub const STALLED: Duration = Duration::from_secs(8);

#[derive(Debug, thiserror::Error)]
pub enum UserspaceError {
    #[error("{path}: {source}")]
    Socket {
        /// Path of the socket, or of its folder.
        path: PathBuf,
        source: io::Error,
    },
    #[error("can't make link {link}: {reason}; is /dev/net/tun there?")]
    Link {
        link: String,
        /// The error of gotatun.
        reason: String,
    },
    /// The link was removed.
    #[error("link {0} is gone")]
    Gone(String),
    #[error("can't receive signals: {0}")]
    Signal(#[source] io::Error),
}

/// Path of a link's socket.
pub(crate) fn socket_of(interface: &str) -> PathBuf {
    Path::new(SOCKET_FOLDER).join(format!("{interface}.sock"))
}

/// Runs the link until SIGTERM or SIGINT; notifies the service manager when it is ready.
pub async fn run(interface: &str) -> Result<(), UserspaceError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(UserspaceError::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(UserspaceError::Signal)?;
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    let ready = || {
        let status = format!("{interface} is up in userspace");
        let _ = sd_notify::notify(&[
            sd_notify::NotifyState::Ready,
            sd_notify::NotifyState::Status(&status),
        ]);
    };
    let pulses = LoopPulses::stalled_after(STALLED);
    tokio::spawn(feed_watchdog(pulses.clone()));
    serve(interface, &socket_of(interface), &pulses, cancel, ready).await
}

/// Feeds the watchdog of the service, if it has one, while no loop hangs.
async fn feed_watchdog(pulses: LoopPulses) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    let mut ticks = tokio::time::interval((limit / 4).max(Duration::from_millis(100)));
    loop {
        ticks.tick().await;
        match pulses.stalled() {
            None => {
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            }
            Some(name) => tracing::error!("{name} hangs; the watchdog is no longer notified"),
        }
    }
}

/// Updates the pulse with each answer of the device, until the device is gone.
async fn follow_device(device: UapiClient, pulse: LoopPulse) {
    while device.send(Get::default()).await.is_ok() {
        pulse.beat();
        tokio::time::sleep(LOOK).await;
    }
}

/// Like [`run`], with the path of the socket, until cancelled; its loops update `pulses`.
pub async fn serve(
    interface: &str,
    socket: &Path,
    pulses: &LoopPulses,
    cancel: CancellationToken,
    ready: impl FnOnce(),
) -> Result<(), UserspaceError> {
    let link_error = |reason: String| UserspaceError::Link {
        link: interface.to_owned(),
        reason,
    };
    let (client, server) = UapiServer::new();
    let mut device = device::build()
        .with_default_udp()
        .create_tun(interface)
        .map_err(|error| link_error(error.to_string()))?
        .with_uapi(server)
        .build()
        .await
        .map_err(|error| link_error(error.to_string()))?;
    let listener = listen(socket).map_err(|source| UserspaceError::Socket {
        path: socket.to_owned(),
        source,
    })?;
    ready();
    let following = follow_device(client.clone(), pulses.watch("WireGuard"));
    let following = tokio::spawn(following);
    let pulse = pulses.watch("the WireGuard socket");
    let mut look = tokio::time::interval(LOOK);
    let outcome = loop {
        pulse.beat();
        tokio::select! {
            () = cancel.cancelled() => break Ok(()),
            // gotatun does not notice the removal of the link by itself.
            _ = look.tick() => {
                if if_nametoindex(interface).is_err() {
                    break Err(UserspaceError::Gone(interface.to_owned()));
                }
            }
            () = device.wait() => break Err(UserspaceError::Gone(interface.to_owned())),
            accepted = listener.accept() => {
                let stream = accepted.and_then(|(stream, _)| stream.into_std());
                let blocking = stream.and_then(|stream| {
                    stream.set_nonblocking(false)?;
                    Ok(stream)
                });
                match blocking {
                    // gotatun handles the connection on a thread of its own.
                    Ok(stream) => client.clone().wrap_read_write(stream),
                    Err(error) => tracing::warn!("a call was lost: {error}"),
                }
            }
        }
    };
    following.abort();
    device.stop().await;
    let _ = fs::remove_file(socket);
    outcome
}

/// Makes a socket that only root can ever reach: it is made under another name in a folder that
/// only root may enter, and then moved.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let folder = socket
        .parent()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    fs::create_dir_all(folder)?;
    let private = folder.join(format!(".kat-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&private)?;
    let inner = private.join("socket");
    let made = UnixListener::bind(&inner).and_then(|listener| {
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o600))?;
        fs::rename(&inner, socket)?;
        Ok(listener)
    });
    let _ = fs::remove_dir_all(&private);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server of these questions is never polled, like a device whose task or lock hangs.
    #[tokio::test(start_paused = true)]
    async fn a_device_that_answers_nothing_is_found_stalled() {
        let (device, server) = UapiServer::new();
        let pulses = LoopPulses::stalled_after(STALLED);
        let following = tokio::spawn(follow_device(device, pulses.watch("WireGuard")));
        tokio::time::sleep(STALLED - Duration::from_millis(1)).await;
        assert_eq!(pulses.stalled(), None);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(pulses.stalled(), Some("WireGuard"));
        // A device that is gone ends the service by itself.
        drop(server);
        following.await.unwrap();
        assert_eq!(pulses.stalled(), None);
    }
}
