//! The file format of a backup: one file, sealed with the recovery key, with the authorities, the
//! machine's identity, and a copy of all of etcd's data ([`kat_pki::stream`] has the sealing).
//!
//! The header is JSON that everybody with the file can read. The first sealed record is JSON, too;
//! all others are etcd's snapshot, with its hash at the end.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufReader, BufWriter, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::cluster::identity::MachineIdentity;
use kat_host::files;
use kat_pki::{
    recovery_key::RecoveryKey,
    stream::{SealedReader, SealedWriter, StreamError},
};
use kat_types::{api::AuthorityKeys, encoding::json};

/// The schema version that is written, and the newest that can be read.
const SCHEMA: u32 = 1;
/// Prefix of unfinished files.
pub(super) const UNFINISHED: &str = ".kat-backup-";

/// The header of a backup, which is not sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackupHeader {
    /// Version of the sealed content, now 1.
    pub schema: u32,
    pub cluster: String,
    pub cluster_uid: String,
    /// The machine that made the backup.
    pub node: String,
    pub created: Timestamp,
    pub version: String,
    /// Identifies the recovery key ([`RecoveryKey::fingerprint`]).
    pub recovery_key: String,
}

/// What a machine needs, beside etcd's data, to replace the one that made the backup.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackupFacts {
    /// Identity of the machine that made the backup.
    pub identity: MachineIdentity,
    /// The authorities with their keys, by name.
    pub authorities: BTreeMap<String, AuthorityKeys>,
    /// The machine's identity key, PEM.
    pub node_key: String,
    /// The key of its certificate of the API, PEM; empty where the machine had none, as in version
    /// 0.1.0.
    #[serde(default)]
    pub api_key: String,
    /// WireGuard's private key, base64.
    pub wireguard_key: String,
    /// The other recovery keys of the machine, in their printed form, while the recovery key was
    /// replaced: etcd's data may need one of them. Earlier versions wrote none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_recovery_keys: Vec<String>,
}

/// Why a backup could not be written or read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArchiveError {
    /// The file exists already.
    #[error("{}: it exists already; name another file", .0.display())]
    Exists(PathBuf),
    #[error("{}: {error}", path.display())]
    Io {
        /// The file that could not be read or written.
        path: PathBuf,
        error: io::Error,
    },
    /// The file is not a complete backup, or was changed.
    #[error("{}: {error}", path.display())]
    Stream {
        /// The backup's file.
        path: PathBuf,
        error: StreamError,
    },
    /// The content has a schema of a newer version.
    #[error("{}: it was made by KAT {version}, whose backups this version ({}) can't read", path.display(), kat_types::VERSION)]
    Newer {
        path: PathBuf,
        /// The version that made the backup.
        version: String,
    },
    /// The header or the facts can't be decoded.
    #[error("{}: it is damaged: {error}", path.display())]
    Damaged {
        path: PathBuf,
        /// What could not be decoded.
        error: String,
    },
    /// The recovery key is not the backup's.
    #[error("{}: it is sealed with another recovery key: that of the cluster `{cluster}` when machine {node} made it", path.display())]
    WrongKey {
        path: PathBuf,
        /// Cluster of the backup's key.
        cluster: String,
        /// Machine that made the backup.
        node: String,
    },
    /// The source of etcd's data ended early.
    #[error("{}: etcd's data did not come whole", .0.display())]
    NotWhole(PathBuf),
}

/// Writes a backup to an unfinished file (0600), and renames it when it is complete and on the
/// disk. `pieces` are etcd's snapshot; after their end `whole` confirms that they were complete.
/// Blocks. Returns the number of bytes written.
pub(super) fn write(
    path: &Path,
    key: &RecoveryKey,
    (header, facts): (&BackupHeader, &BackupFacts),
    mut pieces: mpsc::Receiver<Vec<u8>>,
    whole: oneshot::Receiver<()>,
) -> Result<u64, ArchiveError> {
    let io = |error| ArchiveError::Io {
        path: path.to_owned(),
        error,
    };
    let stream = |error| ArchiveError::Stream {
        path: path.to_owned(),
        error,
    };
    if fs::symlink_metadata(path).is_ok() {
        return Err(ArchiveError::Exists(path.to_owned()));
    }
    let folder = folder_of(path);
    let file = tempfile::Builder::new()
        .prefix(UNFINISHED)
        .tempfile_in(folder)
        .map_err(io)?;
    let header =
        json::bytes("the header of the backup", header).map_err(|error| io(error.into()))?;
    let facts = json::bytes("the facts of the backup", facts).map_err(|error| io(error.into()))?;
    let out = BufWriter::with_capacity(1 << 18, file);
    let mut writer = SealedWriter::begin(out, key, &header).map_err(stream)?;
    writer.add(&facts).map_err(stream)?;
    while let Some(piece) = pieces.blocking_recv() {
        writer.add(&piece).map_err(stream)?;
    }
    if whole.blocking_recv().is_err() {
        return Err(ArchiveError::NotWhole(path.to_owned()));
    }
    let mut out = writer.finish().map_err(stream)?;
    out.flush().map_err(io)?;
    let file = out.into_inner().map_err(|error| io(error.into_error()))?;
    file.as_file().sync_all().map_err(io)?;
    let bytes = file.as_file().metadata().map_err(io)?.len();
    file.persist_noclobber(path)
        .map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => ArchiveError::Exists(path.to_owned()),
            _ => io(error.error),
        })?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(io)?;
    Ok(bytes)
}

/// The header of a backup that root owns; `None` for any other file, since other users may be able
/// to write to the folder.
pub(super) fn header_of_own(path: &Path) -> Option<BackupHeader> {
    let file = files::open_plain(path).ok()?;
    let is_own = file.metadata().is_ok_and(|found| found.uid() == 0);
    let opened = is_own.then(|| Archive::read(path, file))?.ok()?;
    Some(opened.header)
}

/// The folder of a file.
pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A backup that is open for reading.
pub(super) struct Archive {
    path: PathBuf,
    header: BackupHeader,
    reader: SealedReader<BufReader<File>>,
}

impl Archive {
    /// Opens a backup and reads its header.
    pub(super) fn open(path: &Path) -> Result<Self, ArchiveError> {
        match File::open(path) {
            Ok(file) => Self::read(path, file),
            Err(error) => Err(ArchiveError::Io {
                path: path.to_owned(),
                error,
            }),
        }
    }

    fn read(path: &Path, file: File) -> Result<Self, ArchiveError> {
        let path = path.to_owned();
        let file = BufReader::with_capacity(1 << 18, file);
        let reader = match SealedReader::begin(file) {
            Ok(reader) => reader,
            Err(error) => return Err(ArchiveError::Stream { path, error }),
        };
        /// The part of the header that every version has.
        #[derive(Deserialize)]
        struct ArchiveVersion {
            schema: u32,
            #[serde(default)]
            version: String,
        }
        let damaged = |error: serde_json::Error| ArchiveError::Damaged {
            path: path.clone(),
            error: error.to_string(),
        };
        let ArchiveVersion { schema, version } =
            serde_json::from_slice(reader.header()).map_err(damaged)?;
        if schema > SCHEMA {
            return Err(ArchiveError::Newer { path, version });
        }
        let header = serde_json::from_slice(reader.header()).map_err(damaged)?;
        Ok(Self {
            path,
            header,
            reader,
        })
    }

    /// The backup's header.
    pub(super) fn header(&self) -> &BackupHeader {
        &self.header
    }

    /// Unseals the backup: returns the facts, and writes etcd's snapshot to `snapshot` (0600),
    /// which must not exist.
    pub(super) fn unpack(
        mut self,
        key: &RecoveryKey,
        snapshot: &Path,
    ) -> Result<BackupFacts, ArchiveError> {
        if key.fingerprint() != self.header.recovery_key {
            return Err(ArchiveError::WrongKey {
                path: self.path,
                cluster: self.header.cluster,
                node: self.header.node,
            });
        }
        let first = self.next(key)?.unwrap_or_default();
        let facts = serde_json::from_slice(&first).map_err(|error| ArchiveError::Damaged {
            path: self.path.clone(),
            error: error.to_string(),
        })?;
        let io = |error| ArchiveError::Io {
            path: snapshot.to_owned(),
            error,
        };
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut out = BufWriter::new(options.open(snapshot).map_err(io)?);
        while let Some(piece) = self.next(key)? {
            out.write_all(&piece).map_err(io)?;
        }
        let file = out.into_inner().map_err(|error| io(error.into_error()))?;
        file.sync_all().map_err(io)?;
        Ok(facts)
    }

    fn next(&mut self, key: &RecoveryKey) -> Result<Option<Vec<u8>>, ArchiveError> {
        self.reader.next(key).map_err(|error| ArchiveError::Stream {
            path: self.path.clone(),
            error,
        })
    }
}

#[cfg(test)]
mod tests;
