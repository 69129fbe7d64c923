//! WireGuard in userspace, where the kernel has none: the body of `kat-wg.service`.
//!
//! It is a service of its own, so that an upgrade of KAT drops no tunnel. It knows nothing of the
//! cluster: `kat-net` configures it through the UAPI socket. The link is removed when the service
//! ends.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use gotatun::device::{self, uapi::UapiServer};
use nix::net::if_::if_nametoindex;
use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

/// Folder of the sockets, in which `wg` also looks.
pub(crate) const SOCKET_FOLDER: &str = "/var/run/wireguard";

/// Interval of the checks that the link exists.
const LOOK: std::time::Duration = std::time::Duration::from_secs(2);

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
    serve(interface, &socket_of(interface), cancel, ready).await
}

/// Like [`run`], with the path of the socket, until cancelled.
pub async fn serve(
    interface: &str,
    socket: &Path,
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
    let mut look = tokio::time::interval(LOOK);
    let outcome = loop {
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
