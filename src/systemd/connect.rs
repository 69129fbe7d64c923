//! Connections to the system bus and to users' buses.

use std::{
    fs, io,
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use rustix::{process::geteuid, thread::set_thread_res_uid};
use tokio::{sync::oneshot, time::timeout};
use zbus::{Connection, connection::Builder};

/// Longest time to connect.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Longest wait for one answer. Reload answers when all generators have run, which takes long where
/// a manager has many quadlets.
pub const CALL_LIMIT: Duration = Duration::from_secs(60);

/// Identity of a socket file, to tell a new socket from the one that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketIdentity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

/// Connects to a bus.
#[async_trait]
pub trait Connector: Send + Sync {
    /// Name of the bus: `the system` or `user UID`.
    fn name(&self) -> String;

    /// Makes a new connection; the error is a sentence.
    async fn connect(&self) -> Result<Connection, String>;

    /// Identity of the present socket; `None` when it does not exist.
    fn identity(&self) -> Option<SocketIdentity> {
        None
    }
}

/// The system bus, at its well-known address.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemBus;

#[async_trait]
impl Connector for SystemBus {
    fn name(&self) -> String {
        "the system".to_owned()
    }

    async fn connect(&self) -> Result<Connection, String> {
        bounded(Builder::system().method_timeout(CALL_LIMIT)).await
    }

    fn identity(&self) -> Option<SocketIdentity> {
        identity(Path::new("/run/dbus/system_bus_socket"))
    }
}

/// The bus of one user.
///
/// The bus accepts only its owner, and checks the uid of the process at the time of `connect(2)`.
/// So a thread of its own takes the user's effective uid, connects and ends; all other threads keep
/// their uid. (`nix::unistd::seteuid` would change all of them: glibc applies the call to every
/// thread.) This needs CAP_SETUID and a seccomp filter that allows `setresuid(2)`. The kernel also
/// clears the process's dumpable flag, so that a core dump and `/proc/PID` belong to root, as they
/// do anyway for an agent that runs as root.
#[derive(Debug, Clone)]
pub struct UserBus {
    uid: u32,
    socket: PathBuf,
}

impl UserBus {
    /// The bus of `uid` below `/run/user`.
    pub fn new(uid: u32) -> Self {
        Self::at(uid, PathBuf::from(format!("/run/user/{uid}/bus")))
    }

    /// A bus of `uid` at another path.
    pub fn at(uid: u32, socket: PathBuf) -> Self {
        Self { uid, socket }
    }
}

#[async_trait]
impl Connector for UserBus {
    fn name(&self) -> String {
        format!("user {}", self.uid)
    }

    async fn connect(&self) -> Result<Connection, String> {
        let (answer, stream) = oneshot::channel();
        let (uid, socket) = (self.uid, self.socket.clone());
        std::thread::Builder::new()
            .name(format!("bus of {uid}"))
            .stack_size(64 * 1024)
            .spawn(move || {
                // Fails when the caller's time limit is over; the result is dropped then.
                let _ = answer.send(connect_as(uid, &socket));
            })
            .map_err(|error| format!("no thread to connect from: {error}"))?;
        let stream = timeout(CONNECT_LIMIT, stream)
            .await
            .map_err(|_| format!("{}: no connection in time", self.socket.display()))?
            .map_err(|_| "the connecting thread ended early".to_owned())?
            .map_err(|error| format!("{}: {error}", self.socket.display()))?;
        bounded(
            Builder::unix_stream(stream)
                .user_id(uid)
                .method_timeout(CALL_LIMIT),
        )
        .await
    }

    fn identity(&self) -> Option<SocketIdentity> {
        identity(&self.socket)
    }
}

fn connect_as(uid: u32, socket: &Path) -> io::Result<UnixStream> {
    if geteuid().as_raw() != uid {
        set_thread_res_uid(None, Some(rustix::process::Uid::from_raw(uid)), None)?;
    }
    UnixStream::connect(socket)
}

async fn bounded(builder: Builder<'_>) -> Result<Connection, String> {
    match timeout(CONNECT_LIMIT, builder.build()).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the bus did not answer in time".to_owned()),
    }
}

fn identity(path: &Path) -> Option<SocketIdentity> {
    let metadata = fs::metadata(path).ok()?;
    Some(SocketIdentity {
        device: metadata.dev(),
        inode: metadata.ino(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}
