//! WireGuard beside the kernel, where the kernel has none: the body of `kat-wg.service`.
//!
//! A service of its own, so that an upgrade of KAT drops no tunnel. It knows nothing of the
//! cluster: `kat-net` sets it up through the UAPI socket. The link goes with the service.

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

/// Folder of the sockets, the one that `wg` looks in too.
pub const SOCKET_FOLDER: &str = "/var/run/wireguard";

/// How often the link is looked for.
const LOOK: std::time::Duration = std::time::Duration::from_secs(2);

/// Why the service ended.
#[derive(Debug, thiserror::Error)]
pub enum UserspaceError {
    /// The socket can't be made.
    #[error("{path}: {source}")]
    Socket {
        /// The socket or its folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The link can't be made.
    #[error("can't make link {link}: {reason}; is /dev/net/tun there?")]
    Link {
        /// The link.
        link: String,
        /// What gotatun said.
        reason: String,
    },
    /// The link was taken away.
    #[error("link {0} is gone")]
    Gone(String),
    /// Signals can't be received.
    #[error("can't receive signals: {0}")]
    Signal(#[source] io::Error),
}

/// Where a link's socket is.
pub fn socket_of(interface: &str) -> PathBuf {
    Path::new(SOCKET_FOLDER).join(format!("{interface}.sock"))
}

/// Runs the link until SIGTERM or SIGINT; tells the service manager when it is ready.
///
/// # Errors
/// See [`UserspaceError`].
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

/// As [`run`], at a socket of the caller's choice, until cancelled.
///
/// # Errors
/// See [`UserspaceError`].
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
            // gotatun does not notice by itself when somebody removes the link.
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
                    // gotatun reads and answers on a thread of its own.
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

/// Makes the socket so that nobody but root ever reaches it: it is set up under another name in a
/// folder that only root enters, and then moved.
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
