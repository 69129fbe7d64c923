//! Reads the agent's state files at the start and whenever they change.
//!
//! For a file that is missing, unreadable or incomplete the last valid state is kept, and the error
//! is logged once. A file of isolation that was never valid allows nothing.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use kat_daemon::folder_watch;
use kat_types::{
    machine::{
        isolation::{ISOLATION_FILE, IsolationMode, IsolationRules},
        network::{
            DNS_FILE, DnsRecords, HOST_PORTS_FILE, HostPortParts, INSTANCES_FILE, Instances,
            NODE_FILE, NodeNetwork, PEERS_FILE, PeerMachines, SERVICES_FILE, Services,
        },
    },
    virtual_addresses::{AddressGrants, GRANTS_FILE},
};

/// Largest file in bytes.
const MAXIMUM_SIZE: u64 = 64 << 20;

/// Why a file was rejected.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    #[error("{path}: {source}")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        source: io::Error,
    },
    #[error("{path}: {source}")]
    Malformed {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{path}: larger than {MAXIMUM_SIZE} bytes")]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
    },
}

/// The content of the files; `None` for a file that was never read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateFilesSnapshot {
    pub node: Option<Arc<NodeNetwork>>,
    pub peers: Option<Arc<PeerMachines>>,
    pub instances: Option<Arc<Instances>>,
    pub dns: Option<Arc<DnsRecords>>,
    pub services: Option<Arc<Services>>,
    pub host_ports: Option<Arc<HostPortParts>>,
    pub isolation: Option<Arc<IsolationRules>>,
    pub virtual_addresses: Option<Arc<AddressGrants>>,
}

/// Device, inode, size and time of the last change: identifies a version of a file.
type FileStamp = (u64, u64, u64, i64, i64);

#[derive(Debug, Default)]
struct StateFileStamps {
    node: Option<FileStamp>,
    peers: Option<FileStamp>,
    instances: Option<FileStamp>,
    dns: Option<FileStamp>,
    services: Option<FileStamp>,
    host_ports: Option<FileStamp>,
    isolation: Option<FileStamp>,
    virtual_addresses: Option<FileStamp>,
}

/// The files of one folder, with their last valid content.
#[derive(Debug)]
pub struct StateFiles {
    folder: PathBuf,
    stamps: Mutex<StateFileStamps>,
    sender: watch::Sender<Arc<StateFilesSnapshot>>,
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

    /// The last valid content.
    pub fn current(&self) -> Arc<StateFilesSnapshot> {
        self.sender.borrow().clone()
    }

    /// A channel with every change.
    pub fn subscribe(&self) -> watch::Receiver<Arc<StateFilesSnapshot>> {
        self.sender.subscribe()
    }

    /// Reads the files that have changed since the last call. Cheap when there are none.
    pub(crate) fn refresh(&self) {
        let mut stamps = self.stamps.lock();
        let mut next = StateFilesSnapshot::clone(&self.current());
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
        update(
            &self.folder,
            ISOLATION_FILE,
            &mut stamps.isolation,
            &mut next.isolation,
        );
        update(
            &self.folder,
            GRANTS_FILE,
            &mut stamps.virtual_addresses,
            &mut next.virtual_addresses,
        );
        // Whether the cluster isolates, and by which rules, is not known until the agent has written
        // it again.
        if next.isolation.is_none() && stamps.isolation.is_some() {
            tracing::warn!(
                "{ISOLATION_FILE} can't be read: containers reach their own machine's of the same namespace alone"
            );
            next.isolation = Some(Arc::new(IsolationRules {
                schema: 1,
                mode: IsolationMode::Namespaces,
                ..IsolationRules::default()
            }));
        }
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
        folder_watch::follow(&self.folder, || self.refresh(), cancel).await;
    }
}

fn update<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    stamp: &mut Option<FileStamp>,
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

/// Reads and decodes one of the files.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, StateFileError> {
    let unreadable = |source| StateFileError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAXIMUM_SIZE + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAXIMUM_SIZE {
        return Err(StateFileError::TooLarge {
            path: path.to_owned(),
        });
    }
    serde_json::from_slice(&bytes).map_err(|source| StateFileError::Malformed {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        assert_eq!(*files.current(), StateFilesSnapshot::default());
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

    #[test]
    fn a_file_of_isolation_that_was_never_readable_allows_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let files = StateFiles::open(folder.path());
        assert_eq!(files.current().isolation, None, "there is none");
        write(folder.path(), ISOLATION_FILE, "{\"schema\":1,");
        for files in [&files, &StateFiles::open(folder.path())] {
            files.refresh();
            let rules = files.current().isolation.clone().unwrap();
            assert_eq!(rules.mode, IsolationMode::Namespaces);
            assert!(rules.namespaces.is_empty());
        }
        let open = r#"{"schema":1,"mode":"none","revision":3}"#;
        write(folder.path(), ISOLATION_FILE, open);
        files.refresh();
        let mode = || files.current().isolation.as_ref().unwrap().mode;
        assert_eq!(mode(), IsolationMode::None);
        write(folder.path(), ISOLATION_FILE, "");
        files.refresh();
        assert_eq!(mode(), IsolationMode::None, "the last good state");
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
