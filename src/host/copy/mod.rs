//! Copies a folder with all that is in it to another machine, as a stream of frames, and compares both ends.
//!
//! What is copied was written by a workload's program, and what arrives comes from a machine that may have been taken
//! over: no link is followed, names are taken one by one from folders that are open, nothing of another file system is
//! entered, and set-user-id bits stay with what the workload's own users own.

mod digest;
mod frames;
mod receive;
mod send;
#[cfg(test)]
mod tests;
mod walk;

use std::{
    io,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

pub use digest::digest;
pub use frames::CHUNK;
pub use receive::receive;
pub use send::{refuse, send};

/// Folders within folders.
const MOST_DEEP: usize = 200;
/// Names that are held at once: of a folder and those above it.
const MOST_NAMES: usize = 2_000_000;
/// Files with more than one name.
const MOST_LINKED: usize = 1_000_000;
/// Bytes of the names that are held at once, and of the paths of files with more than one.
const MOST_HELD: usize = 64 << 20;
/// Bytes of the extended attributes of one file, names and values.
const MOST_ATTRIBUTES: usize = 128 << 10;
/// What is read, sent and compared at once; what of it is all zero is a hole.
const BLOCK: usize = 128 << 10;

/// Why a folder could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The system refused.
    #[error("{}: can't {verb}: {error}", path.display())]
    System {
        /// What was tried.
        verb: &'static str,
        /// What it was tried with, within the folder.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It changed while it was read.
    #[error("{}: has changed while it was copied", .0.display())]
    Changed(PathBuf),
    /// Another file system is mounted in it.
    #[error("{}: another file system is mounted there, which is not copied", .0.display())]
    Mounted(PathBuf),
    /// A bound is passed.
    #[error("{}: {what}", path.display())]
    TooMuch {
        /// Where.
        path: PathBuf,
        /// Which.
        what: &'static str,
    },
    /// The folder itself belongs to nobody of the workload.
    #[error("it belongs to uid {0}, which is not of this workload")]
    Foreign(u32),
    /// The stream can't be understood.
    #[error("the copy's stream is broken: {0}")]
    Stream(String),
    /// The other machine gave up.
    #[error("{0}")]
    Other(String),
    /// There is not enough room.
    #[error("it takes {} MiB, and {} MiB are free", needed.div_ceil(1 << 20), free >> 20)]
    NoRoom {
        /// What it takes, with what is to stay free.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// Both ends are not alike.
    #[error("what arrived is not what was sent: digest {found}, expected {expected}")]
    Differs {
        /// Of what was sent.
        expected: String,
        /// Of what lies on the disk.
        found: String,
    },
    /// It is not wanted any more, or the other side is gone.
    #[error("the copy was broken off")]
    Ended,
}

/// The users whose files these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owners {
    /// The workload's user, and its group of the same number.
    pub uid: u32,
    /// First of its subordinate ids.
    pub subordinate_start: u32,
    /// How many there are.
    pub subordinate_count: u32,
}

impl Owners {
    fn has(&self, id: u32) -> bool {
        let first = self.subordinate_start;
        id == self.uid || (id >= first && id - first < self.subordinate_count)
    }
}

/// What a copy comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Everything but folders.
    pub files: u64,
    /// Bytes of contents, without holes.
    pub bytes: u64,
    /// Sockets and devices, which are not copied.
    pub skipped: u64,
    /// SHA-256 over all names, attributes and contents, hexadecimal.
    pub digest: String,
}

/// How far a copy is, for others to look at, and whether it is still wanted.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    bytes: AtomicU64,
    total_files: AtomicU64,
    total_bytes: AtomicU64,
    verifying: AtomicBool,
    ended: AtomicBool,
}

/// A look at a [`Progress`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// What has arrived, or was compared: everything but folders.
    pub files: u64,
    /// Its bytes.
    pub bytes: u64,
    /// All there is; 0 while that is not known.
    pub total_files: u64,
    /// Its bytes.
    pub total_bytes: u64,
    /// All has arrived, and is compared.
    pub verifying: bool,
}

impl Progress {
    /// How far it is.
    pub fn look(&self) -> Look {
        Look {
            files: self.files.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            total_files: self.total_files.load(Ordering::Relaxed),
            total_bytes: self.total_bytes.load(Ordering::Relaxed),
            verifying: self.verifying.load(Ordering::Relaxed),
        }
    }

    /// It is not wanted any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), CopyError> {
        match self.ended.load(Ordering::Relaxed) {
            true => Err(CopyError::Ended),
            false => Ok(()),
        }
    }

    fn expect(&self, files: u64, bytes: u64) {
        self.total_files.store(files, Ordering::Relaxed);
        self.total_bytes.store(bytes, Ordering::Relaxed);
    }

    fn verify(&self) {
        self.files.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.verifying.store(true, Ordering::Relaxed);
    }

    fn add(&self, files: u64, bytes: u64) {
        self.files.fetch_add(files, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// One thing in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// Its name in its folder; empty for the copied folder itself.
    name: Vec<u8>,
    kind: Kind,
    attributes: Attributes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// What is in it follows, and then its end.
    Folder,
    /// With its size. Its blocks follow, and then its end.
    File(u64),
    /// Another name of a file that came before: its path from the copied folder on.
    Link(Vec<u8>),
    /// Where it leads.
    Symlink(Vec<u8>),
    Fifo,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Attributes {
    /// Permissions with the set-id and sticky bits.
    mode: u32,
    uid: u32,
    gid: u32,
    seconds: i64,
    nanoseconds: u32,
    /// Of files and folders: `user.*`, and access control lists.
    extended: Extended,
}

/// Names and values.
type Extended = Vec<(Vec<u8>, Vec<u8>)>;

/// Extended attributes that are copied: those of users, and access control lists. Others belong to the machine.
fn is_copied(attribute: &[u8]) -> bool {
    attribute.starts_with(b"user.")
        || attribute == b"system.posix_acl_access"
        || attribute == b"system.posix_acl_default"
}

/// A program that gains rights when it is run keeps that only where its owner is of the workload.
fn allowed_mode(owners: &Owners, kind: &Kind, mode: u32, uid: u32, gid: u32) -> u32 {
    const SET_UID: u32 = 0o4000;
    const SET_GID: u32 = 0o2000;
    let mut allowed = mode & 0o7777;
    if !matches!(kind, Kind::Folder) {
        if !owners.has(uid) {
            allowed &= !SET_UID;
        }
        if !owners.has(gid) {
            allowed &= !SET_GID;
        }
    }
    allowed
}

fn system(verb: &'static str, path: &std::path::Path, error: rustix::io::Errno) -> CopyError {
    CopyError::System {
        verb,
        path: match path.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => path.to_owned(),
        },
        error: error.into(),
    }
}
