//! Data that a person gave up because its disk is missing.
//!
//! The disk may return with the folder, and a new volume may have the folder's name and user by
//! then. So the machine remembers the name and the time. A folder of that name that was made before
//! that time is the given-up data: it is not used, moved or removed, and what would use it waits
//! with a reason. A folder that was made later is another volume's.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{MadeFolders, Volumes};
use kat_host::{
    files::FileError,
    volumes::{BaseFolder, VolumeError},
};

/// Why the data of a volume could not be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemovalFailure {
    pub kind: RemovalFailureKind,
    /// A sentence for users.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RemovalFailureKind {
    /// The data is not there, and its disk may be missing.
    Missing,
    /// The folder that is there is of data that was given up.
    Forgotten,
    /// Anything else.
    Other,
}

impl RemovalFailureKind {
    pub(super) fn of(error: &VolumeError) -> Self {
        match error {
            VolumeError::Missing(_) => Self::Missing,
            VolumeError::Forgotten { .. } => Self::Forgotten,
            _ => Self::Other,
        }
    }
}

impl From<&VolumeError> for RemovalFailure {
    fn from(error: &VolumeError) -> Self {
        let kind = RemovalFailureKind::of(error);
        let message = match kind {
            RemovalFailureKind::Missing => format!("{error}; its disk may be missing"),
            RemovalFailureKind::Forgotten | RemovalFailureKind::Other => error.to_string(),
        };
        Self { kind, message }
    }
}

impl RemovalFailure {
    /// The removal could not be tried, or did not come to its end.
    pub(super) fn of_work(error: &impl ToString) -> Self {
        Self {
            kind: RemovalFailureKind::Other,
            message: error.to_string(),
        }
    }
}

impl MadeFolders {
    /// Records the mount of a folder that is there now. Returns whether that has changed.
    pub(super) fn set_mount(&mut self, folder: &str, mount: Option<PathBuf>) -> bool {
        if self.mounts.get(folder) == mount.as_ref() {
            return false;
        }
        match mount {
            Some(mount) => self.mounts.insert(folder.to_owned(), mount),
            None => self.mounts.remove(folder),
        };
        true
    }
}

impl Volumes {
    /// Ends a failed removal of data that a person gave up. Returns false where the data is there,
    /// where it is not known whether it is, or where that can't be recorded: the leader does not ask
    /// again after it.
    pub(super) fn forgets(&self, folder: &str, failure: RemovalFailureKind) -> bool {
        match failure {
            RemovalFailureKind::Missing => {}
            // The agent ended before it could report that, and the disk has returned meanwhile.
            RemovalFailureKind::Forgotten => return true,
            RemovalFailureKind::Other => return false,
        }
        let noted = self.note_forgotten(folder);
        if let Err(error) = &noted {
            tracing::error!(folder, "that this data was given up can't be kept: {error}");
        }
        noted.is_ok()
    }

    /// Records that the data of a folder was given up, and that the machine has no such folder.
    fn note_forgotten(&self, folder: &str) -> Result<(), FileError> {
        let mut made = self.made();
        let mut next = made.clone();
        next.folders.remove(folder);
        next.unused.remove(folder);
        next.removing.remove(folder);
        next.mounts.remove(folder);
        next.forgotten.insert(folder.to_owned(), file_time());
        self.try_store(&next)?;
        *made = next;
        self.tell(&made);
        Ok(())
    }

    /// Checks that the folder of a volume, which is there, is not data that was given up.
    ///
    /// # Errors
    /// [`VolumeError::Forgotten`], or another one where the folder can't be looked at.
    pub(super) fn refuse_forgotten(&self, folder: &str) -> Result<(), VolumeError> {
        let Some(since) = self.made().forgotten.get(folder).copied() else {
            return Ok(());
        };
        let path = Path::new(folder);
        let base = BaseFolder::open(&self.below(&self.base))?;
        match base.made_at(path)? < since {
            true => Err(VolumeError::Forgotten {
                path: self.base.join(path),
                since,
            }),
            false => Ok(()),
        }
    }

    /// Whether the file system that had the folder when it was used last is mounted now, or is one
    /// of KAT's own. True where it is unknown.
    pub(super) fn is_on_its_mount(&self, folder: &str) -> bool {
        let mount = self.mount_of_volume(folder);
        let made = self.made();
        let known = made.mounts.get(folder);
        known.is_none_or(|known| Some(known) == mount.as_ref())
    }
}

/// The time as the kernel stamps files.
fn file_time() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let nanoseconds = i32::try_from(now.tv_nsec).unwrap_or(0);
    Timestamp::new(now.tv_sec, nanoseconds).unwrap_or_else(|_| Timestamp::now())
}
