//! A backup: one file, sealed with the recovery key, with the authorities, who the machine is, and a
//! copy of all that etcd holds ([`kat_pki::stream`] is how it is sealed).
//!
//! The header is JSON that anyone who has the file may read. The first record is JSON too, all
//! others are etcd's snapshot with the hash at its end.

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

use crate::cluster::identity::Identity;
use kat_host::files;
use kat_pki::recovery_key::RecoveryKey;
use kat_pki::stream::{SealedReader, SealedWriter, StreamError};
use kat_types::{api::AuthorityKeys, json};

/// The schema that is written, and the newest that is read.
const SCHEMA: u32 = 1;
/// What unfinished files begin with.
pub(super) const UNFINISHED: &str = ".kat-backup-";

/// What anyone may read of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackupHeader {
    /// Version of what is sealed, now 1.
    pub schema: u32,
    /// The cluster's name.
    pub cluster: String,
    /// Its identity.
    pub cluster_uid: String,
    /// The machine that made it.
    pub node: String,
    /// When.
    pub created: Timestamp,
    /// KAT's version.
    pub version: String,
    /// Tells whether a recovery key is the one ([`RecoveryKey::fingerprint`]).
    pub recovery_key: String,
}

/// What a machine needs, beside etcd's data, to take the place of the one that made the backup.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackupFacts {
    /// Who it was.
    pub identity: Identity,
    /// The authorities with their keys, by name.
    pub authorities: BTreeMap<String, AuthorityKeys>,
    /// The key by which the cluster knows the machine, PEM.
    pub node_key: String,
    /// WireGuard's private key, base64.
    pub wireguard_key: String,
}

/// Why a backup is not made or read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArchiveError {
    /// It is there already.
    #[error("{}: it exists already; name another file", .0.display())]
    Exists(PathBuf),
    /// The disk.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is not what it should be.
    #[error("{}: {error}", path.display())]
    Stream {
        /// The file.
        path: PathBuf,
        /// Why.
        error: StreamError,
    },
    /// What is in it is of a version to come.
    #[error("{}: it was made by KAT {version}, whose backups this version ({}) can't read", path.display(), kat_types::VERSION)]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version that made it.
        version: String,
    },
    /// Header or facts can't be understood.
    #[error("{}: it is damaged: {error}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// Another recovery key.
    #[error("{}: it is sealed with another recovery key: that of the cluster `{cluster}` when machine {node} made it", path.display())]
    WrongKey {
        /// The file.
        path: PathBuf,
        /// Whose key it is.
        cluster: String,
        /// Which machine had it.
        node: String,
    },
    /// Who gives etcd's data stopped.
    #[error("{}: etcd's data did not come whole", .0.display())]
    NotWhole(PathBuf),
}

/// Writes a backup beside its place (0600), and puts it there when it is whole and on the disk.
/// `pieces` are etcd's snapshot; when they end, `whole` says that they were all. Blocks. Gives back
/// the bytes written.
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

/// The header of a backup that is root's; nothing for any other file. Others may be able to make files in its folder.
pub(super) fn header_of_own(path: &Path) -> Option<BackupHeader> {
    let file = files::open_plain(path).ok()?;
    let is_own = file.metadata().is_ok_and(|found| found.uid() == 0);
    let opened = is_own.then(|| Archive::read(path, file))?.ok()?;
    Some(opened.header)
}

/// The folder that a file lies in.
pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A backup that is being read.
pub(super) struct Archive {
    path: PathBuf,
    header: BackupHeader,
    reader: SealedReader<BufReader<File>>,
}

impl Archive {
    /// Reads the header.
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
        /// What every version's header has.
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
            #[serde(default)]
            version: String,
        }
        let damaged = |error: serde_json::Error| ArchiveError::Damaged {
            path: path.clone(),
            error: error.to_string(),
        };
        let Version { schema, version } =
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

    /// What it is a backup of.
    pub(super) fn header(&self) -> &BackupHeader {
        &self.header
    }

    /// Opens it: the facts, and etcd's snapshot into `snapshot`, which must not exist (0600).
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
