//! Copies a folder to another machine as a stream of frames, and compares both ends.
//!
//! The content was written by a workload's program, and the stream may come from a compromised
//! machine. So no link is followed, every name is opened relative to its open folder, other file
//! systems are not entered, and set-user-id bits are kept only for files of the workload's own
//! users.

mod digest;
mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
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

/// Deepest nesting of folders.
const MOST_DEEP: usize = 200;
/// Most names in memory: those of a folder and of its parents.
const MOST_NAMES: usize = 2_000_000;
/// Most files with several names (hard links).
const MOST_LINKED: usize = 1_000_000;
/// Most bytes of names in memory, including the paths of files with several names.
const MOST_HELD: usize = 64 << 20;
/// Most bytes of the extended attributes of one file, names and values.
const MOST_ATTRIBUTES: usize = 128 << 10;
/// Size of a block in bytes; a block of zeros is treated as a hole.
const BLOCK: usize = 128 << 10;

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("{}: can't {verb}: {error}", path.display())]
    System {
        /// The operation that failed.
        verb: &'static str,
        /// Its path within the folder.
        path: PathBuf,
        error: io::Error,
    },
    /// A file changed while it was read.
    #[error("{}: has changed while it was copied", .0.display())]
    Changed(PathBuf),
    /// Another file system is mounted in the folder.
    #[error("{}: another file system is mounted there, which is not copied", .0.display())]
    Mounted(PathBuf),
    /// A limit was exceeded.
    #[error("{}: {what}", path.display())]
    TooMuch {
        path: PathBuf,
        /// The limit.
        what: &'static str,
    },
    /// The folder belongs to a user that is not the workload's.
    #[error("it belongs to uid {0}, which is not of this workload")]
    Foreign(u32),
    /// The stream can't be decoded.
    #[error("the copy's stream is broken: {0}")]
    Stream(String),
    /// The other machine reported a failure.
    #[error("{0}")]
    Other(String),
    /// There is not enough disk space.
    #[error("it takes {} MiB, and {} MiB are free", needed.div_ceil(1 << 20), free >> 20)]
    NoRoom {
        /// Bytes that are needed, including those that have to stay free.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// The digests of both ends differ.
    #[error("what arrived is not what was sent: digest {found}, expected {expected}")]
    Differs {
        /// Digest of the sent content.
        expected: String,
        /// Digest of the content on the disk.
        found: String,
    },
    /// The copy was cancelled, or the other end disconnected.
    #[error("the copy was interrupted")]
    Ended,
}

/// The users that the files may belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owners {
    /// The workload's user, and its group with the same id.
    pub uid: u32,
    /// First of its subordinate ids.
    pub subordinate_start: u32,
    /// Number of its subordinate ids.
    pub subordinate_count: u32,
}

impl Owners {
    fn has(&self, id: u32) -> bool {
        let first = self.subordinate_start;
        id == self.uid || (id >= first && id - first < self.subordinate_count)
    }
}

/// Totals of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of entries except folders.
    pub files: u64,
    /// Bytes of content, without holes.
    pub bytes: u64,
    /// Number of sockets and devices, which are not copied.
    pub skipped: u64,
    /// SHA-256 over all names, attributes and content, hexadecimal.
    pub digest: String,
}

/// Shared progress of a copy, which also carries its cancellation.
#[derive(Debug, Default)]
pub struct CopyProgress {
    files: AtomicU64,
    bytes: AtomicU64,
    total_files: AtomicU64,
    total_bytes: AtomicU64,
    verifying: AtomicBool,
    ended: AtomicBool,
}

/// A snapshot of a [`CopyProgress`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyProgressSnapshot {
    /// Entries except folders that have arrived, or were compared.
    pub files: u64,
    /// Bytes that have arrived, or were compared.
    pub bytes: u64,
    /// All entries except folders; 0 while that is not known.
    pub total_files: u64,
    /// All bytes; 0 while that is not known.
    pub total_bytes: u64,
    /// Everything has arrived and is being compared.
    pub verifying: bool,
}

impl CopyProgress {
    /// Reads the counts as they are now.
    pub fn read_counts(&self) -> CopyProgressSnapshot {
        CopyProgressSnapshot {
            files: self.files.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            total_files: self.total_files.load(Ordering::Relaxed),
            total_bytes: self.total_bytes.load(Ordering::Relaxed),
            verifying: self.verifying.load(Ordering::Relaxed),
        }
    }

    /// Cancels the copy.
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

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CopyEntry {
    /// Its name; empty for the copied folder itself.
    name: Vec<u8>,
    kind: EntryKind,
    attributes: Attributes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum EntryKind {
    /// A folder; its entries follow, and then its end.
    Folder,
    /// A file with its size; its blocks follow, and then its end.
    File(u64),
    /// Another name of an earlier file: that file's path from the copied folder on.
    Link(Vec<u8>),
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    Fifo,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Attributes {
    /// Permission bits with the set-id and sticky bits.
    mode: u32,
    uid: u32,
    gid: u32,
    seconds: i64,
    nanoseconds: u32,
    /// Extended attributes of files and folders: `user.*`, and access control lists.
    extended: ExtendedAttributes,
}

/// Names and values.
type ExtendedAttributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Whether an extended attribute is copied: those of users, and access control lists. Others belong
/// to the machine.
fn is_copied(attribute: &[u8]) -> bool {
    attribute.starts_with(b"user.")
        || attribute == b"system.posix_acl_access"
        || attribute == b"system.posix_acl_default"
}

/// Removes a set-id bit unless the owner is one of the workload's users.
fn allowed_mode(owners: &Owners, kind: &EntryKind, mode: u32, uid: u32, gid: u32) -> u32 {
    const SET_UID: u32 = 0o4000;
    const SET_GID: u32 = 0o2000;
    let mut allowed = mode & 0o7777;
    if !matches!(kind, EntryKind::Folder) {
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
