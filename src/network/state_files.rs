//! Reads the files that the agent writes, on start and whenever they change.
//!
//! A file that is missing, unreadable or half made keeps the last good state and is logged once.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde::de::DeserializeOwned;
use tokio::{io::AsyncReadExt, net::unix::pipe, sync::watch};
use tokio_util::sync::CancellationToken;

use super::state::{
    DNS_FILE, DnsRecords, HOST_PORTS_FILE, HostPortParts, INSTANCES_FILE, Instances, NODE_FILE,
    NodeNetwork, PEERS_FILE, Peers, SERVICES_FILE, Services,
};

/// A file larger than this is not read.
const MAXIMUM_SIZE: u64 = 64 << 20;
/// Changes within this time are read together.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// While the folder can't be watched, it is read this often.
const WITHOUT_WATCH: Duration = Duration::from_secs(2);

/// Why a file was not taken.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It can't be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{path}: {source}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line, column and what was expected.
        source: serde_json::Error,
    },
    /// It is too large.
    #[error("{path}: larger than {MAXIMUM_SIZE} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

/// What the files say; nothing for one that was never read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// This machine.
    pub node: Option<Arc<NodeNetwork>>,
    /// The other machines.
    pub peers: Option<Arc<Peers>>,
    /// This machine's instances.
    pub instances: Option<Arc<Instances>>,
    /// The cluster's names.
    pub dns: Option<Arc<DnsRecords>>,
    /// Addresses of services.
    pub services: Option<Arc<Services>>,
    /// What this machine's instances are to callers of its ports.
    pub host_ports: Option<Arc<HostPortParts>>,
}

/// Device, inode, size and time of the last change: what tells that a file is another one.
type Stamp = (u64, u64, u64, i64, i64);

#[derive(Debug, Default)]
struct Stamps {
    node: Option<Stamp>,
    peers: Option<Stamp>,
    instances: Option<Stamp>,
    dns: Option<Stamp>,
    services: Option<Stamp>,
    host_ports: Option<Stamp>,
}

/// The files of one folder, and what they last said.
#[derive(Debug)]
pub struct StateFiles {
    folder: PathBuf,
    stamps: Mutex<Stamps>,
    sender: watch::Sender<Arc<Snapshot>>,
}

impl StateFiles {
    /// Reads the files of `folder` once.
    pub fn open(folder: &Path) -> Arc<Self> {
        let files = Self {
            folder: folder.to_owned(),
            stamps: Mutex::default(),
            sender: watch::Sender::default(),
        };
        files.refresh();
        Arc::new(files)
    }

    /// What the files last said.
    pub fn current(&self) -> Arc<Snapshot> {
        self.sender.borrow().clone()
    }

    /// Tells of every change.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.sender.subscribe()
    }

    /// Reads again the files that are not the same as last time. Cheap when none changed.
    pub fn refresh(&self) {
        let mut stamps = self.stamps.lock();
        let mut next = Snapshot::clone(&self.current());
        update(&self.folder, NODE_FILE, &mut stamps.node, &mut next.node);
        update(&self.folder, PEERS_FILE, &mut stamps.peers, &mut next.peers);
        update(
            &self.folder,
            INSTANCES_FILE,
            &mut stamps.instances,
            &mut next.instances,
        );
        update(&self.folder, DNS_FILE, &mut stamps.dns, &mut next.dns);
        update(
            &self.folder,
            SERVICES_FILE,
            &mut stamps.services,
            &mut next.services,
        );
        update(
            &self.folder,
            HOST_PORTS_FILE,
            &mut stamps.host_ports,
            &mut next.host_ports,
        );
        self.sender.send_if_modified(|current| {
            let changed = **current != next;
            if changed {
                *current = Arc::new(next);
            }
            changed
        });
    }

    /// Reads the files whenever the folder changes, until cancelled.
    pub async fn watch(self: Arc<Self>, cancel: CancellationToken) {
        while !cancel.is_cancelled() {
            if let Err(error) = self.watch_folder(&cancel).await {
                tracing::debug!(folder = %self.folder.display(), "can't watch: {error}");
            }
            self.refresh();
            tokio::select! {
                () = cancel.cancelled() => {}
                () = tokio::time::sleep(WITHOUT_WATCH) => {}
            }
        }
    }

    async fn watch_folder(&self, cancel: &CancellationToken) -> io::Result<()> {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        inotify::add_watch(
            &watch,
            &self.folder,
            WatchFlags::CLOSE_WRITE
                | WatchFlags::MOVED_TO
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF
                | WatchFlags::ONLYDIR,
        )?;
        let watched = fs::metadata(&self.folder)?.ino();
        // What changed before the watch was in place.
        self.refresh();
        // Readable as a pipe is; which file it was does not matter, since all are looked at.
        let mut events = pipe::Receiver::from_owned_fd_unchecked(watch)?;
        let mut buffer = [0; 4096];
        loop {
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                read = events.read(&mut buffer) => read?,
            };
            tokio::time::sleep(DEBOUNCE).await;
            while events.try_read(&mut buffer).is_ok() {}
            self.refresh();
            if fs::metadata(&self.folder)?.ino() != watched {
                return Err(io::Error::from(io::ErrorKind::NotFound));
            }
        }
    }
}

fn update<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    stamp: &mut Option<Stamp>,
    value: &mut Option<Arc<T>>,
) {
    let path = folder.join(name);
    let Ok(status) = fs::metadata(&path) else {
        return;
    };
    let now = (
        status.dev(),
        status.ino(),
        status.size(),
        status.mtime(),
        status.mtime_nsec(),
    );
    if *stamp == Some(now) {
        return;
    }
    *stamp = Some(now);
    match read(&path) {
        Ok(read) => *value = Some(Arc::new(read)),
        Err(error) => tracing::warn!("{error}; what it said before still holds"),
    }
}

/// Reads one of the files.
///
/// # Errors
/// See [`FileError`].
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    let unreadable = |source| FileError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAXIMUM_SIZE + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAXIMUM_SIZE {
        return Err(FileError::TooLarge {
            path: path.to_owned(),
        });
    }
    serde_json::from_slice(&bytes).map_err(|source| FileError::Malformed {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, text: &str) {
        let partial = folder.join(format!(".{name}"));
        fs::write(&partial, text).unwrap();
        fs::rename(partial, folder.join(name)).unwrap();
    }

    const ONE: &str = r#"{"schema":1,"revision":7,"records":{"web.default":["10.1.0.2"]}}"#;

    #[test]
    fn a_broken_file_keeps_the_last_good_state() {
        let folder = tempfile::tempdir().unwrap();
        let files = StateFiles::open(folder.path());
        assert_eq!(*files.current(), Snapshot::default());
        write(folder.path(), DNS_FILE, ONE);
        files.refresh();
        assert_eq!(files.current().dns.as_ref().unwrap().revision, 7);
        for broken in ["", "{\"schema\":1,", "[]", "{\"schema\":1}"] {
            write(folder.path(), DNS_FILE, broken);
            files.refresh();
            assert_eq!(files.current().dns.as_ref().unwrap().revision, 7);
        }
        fs::remove_file(folder.path().join(DNS_FILE)).unwrap();
        files.refresh();
        assert_eq!(files.current().dns.as_ref().unwrap().revision, 7);
        write(folder.path(), DNS_FILE, &ONE.replace('7', "8"));
        files.refresh();
        assert_eq!(files.current().dns.as_ref().unwrap().revision, 8);
    }

    #[tokio::test]
    async fn changes_are_seen_also_in_a_folder_that_comes_later() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("network");
        let files = StateFiles::open(&folder);
        let mut changes = files.subscribe();
        let cancel = CancellationToken::new();
        let task = tokio::spawn(Arc::clone(&files).watch(cancel.clone()));
        fs::create_dir(&folder).unwrap();
        for revision in ["7", "8", "9"] {
            write(&folder, DNS_FILE, &ONE.replace('7', revision));
            let seen = changes.wait_for(|snapshot| {
                let dns = snapshot.dns.as_ref();
                dns.is_some_and(|dns| dns.revision.to_string() == revision)
            });
            tokio::time::timeout(Duration::from_secs(10), seen)
                .await
                .unwrap()
                .unwrap();
        }
        cancel.cancel();
        task.await.unwrap();
    }

    #[test]
    fn fields_of_a_newer_version_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let newer = ONE.replace("\"schema\":1", "\"schema\":9,\"extra\":{}");
        write(folder.path(), DNS_FILE, &newer);
        assert_eq!(
            StateFiles::open(folder.path())
                .current()
                .dns
                .as_ref()
                .unwrap()
                .schema,
            9
        );
    }
}
