//! The folders of volumes during a move: the source, and the copy at the destination.
//!
//! A copy lies in `.kat-moves/ID-VOLUME/data` below the volume base path, which only root can
//! enter, until the leader has declared it the volume's data. So the volume's own folder never has
//! a partial copy, and data that an instance has used is never overwritten.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Component, Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags};
use serde::{Deserialize, Serialize};

use crate::volumes::{Volumes, is_of};
use kat_host::{
    copy::{Owners, Summary},
    files,
    volumes::{BaseFolder, FileOwner, VolumeError, remove_folder},
};
use kat_types::{assignment::WorkloadUser, volumes::MoveRecord};

/// Folder of copies below the volume base path. No namespace can have this name.
const FOLDER: &str = ".kat-moves";
/// Largest `done` file in bytes.
const LIMIT: u64 = 64 << 10;

/// Why a volume can't be moved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveError {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("{}: can't {verb}: {error}", path.display())]
    System {
        /// The operation that failed.
        verb: &'static str,
        /// The path of the operation.
        path: PathBuf,
        error: io::Error,
    },
    /// A volume name or move id that can't be used as a path.
    #[error("`{0}` is not the name of a volume that can move")]
    Name(String),
    /// A folder of unknown origin lies at the destination.
    #[error(
        "{}: a folder is there already, which KAT has not kept from an earlier move; move it away", .0.display()
    )]
    Taken(PathBuf),
    /// The copy that is to be placed is missing.
    #[error("{}: the copy that is to go there is gone", .0.display())]
    Lost(PathBuf),
}

/// The file `done` beside a copy that is complete and on the disk.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CopyDoneFile {
    /// Version of this object's schema, now 1.
    schema: u32,
    files: u64,
    bytes: u64,
    skipped: u64,
    digest: String,
}

/// The name of a copy's folder.
pub(crate) fn copy_name(volume: &str, id: &str) -> Result<String, MoveError> {
    let plain = |text: &str| {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        !text.is_empty() && text.len() <= 100 && text.bytes().all(fine)
    };
    let last = volume.rsplit('/').next().unwrap_or_default();
    let whole = path_of(volume)?.components().count() == 3;
    match whole && plain(id) && plain(last) && !id.starts_with('.') {
        true => Ok(format!("{id}-{last}")),
        false => Err(MoveError::Name(format!("{volume} {id}"))),
    }
}

fn path_of(volume: &str) -> Result<&Path, MoveError> {
    let path = Path::new(volume);
    let normal = |part: Component<'_>| matches!(part, Component::Normal(_));
    match path.components().count() == 3 && path.components().all(normal) {
        true => Ok(path),
        false => Err(MoveError::Name(volume.to_owned())),
    }
}

/// The user and the owners of files of the workload with this index.
///
/// # Errors
/// [`MoveError::Name`] where no workload can have the index.
pub(crate) fn owners_of(index: u32) -> Result<(WorkloadUser, Owners), MoveError> {
    let user = WorkloadUser::from_index(index, "", "");
    let user = user.ok_or_else(|| MoveError::Name(format!("index {index}")))?;
    let owners = Owners {
        uid: user.uid,
        subordinate_start: user.subordinate_start,
        subordinate_count: user.subordinate_count,
    };
    Ok((user, owners))
}

impl Volumes {
    /// Opens the folder of a volume for reading.
    pub(crate) fn open_volume(&self, volume: &str) -> Result<File, MoveError> {
        let base = BaseFolder::open(&self.below(&self.base))?;
        let folder = base.open_folder(path_of(volume)?)?;
        self.refuse_forgotten(volume)?;
        Ok(folder)
    }

    fn copies(&self) -> PathBuf {
        self.below(&self.base).join(FOLDER)
    }

    /// Makes an empty folder for a copy; the remains of an earlier try are removed.
    pub(crate) fn begin_copy(&self, name: &str) -> Result<File, MoveError> {
        let base = self.below(&self.base);
        fs::create_dir_all(&base).map_err(|error| system("make the folder", &base, error))?;
        let copies = self.copies();
        let own = DirBuilder::new().mode(0o700).create(&copies);
        if let Err(error) = own
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(system("make the folder", &copies, error));
        }
        let passage = FileOwner {
            uid: 0,
            gid: 0,
            mode: 0o700,
        };
        BaseFolder::open(&base)?.own_folder(Path::new(FOLDER), passage)?;
        let folder = copies.join(name);
        remove_folder(&folder)?;
        let data = folder.join("data");
        for folder in [&folder, &data] {
            let made = DirBuilder::new().mode(0o700).create(folder);
            made.map_err(|error| system("make the folder", folder, error))?;
        }
        File::open(&data).map_err(|error| system("open", &data, error))
    }

    /// Records that a copy is complete; its data is on the disk already.
    pub(crate) fn end_copy(&self, name: &str, summary: &Summary) -> Result<(), MoveError> {
        let done = CopyDoneFile {
            schema: 1,
            files: summary.files,
            bytes: summary.bytes,
            skipped: summary.skipped,
            digest: summary.digest.clone(),
        };
        let path = self.copies().join(name).join("done");
        files::write_json(&path, &done)
            .map_err(|error| system("write", &path, io::Error::other(error.to_string())))
    }

    /// The summary of a complete copy; `None` where the copy is not complete.
    pub(crate) fn whole_copy(&self, name: &str) -> Option<Summary> {
        let path = self.copies().join(name).join("done");
        let done: CopyDoneFile =
            serde_json::from_slice(&files::read_bounded(&path, LIMIT).ok()?).ok()?;
        Some(Summary {
            files: done.files,
            bytes: done.bytes,
            skipped: done.skipped,
            digest: done.digest,
        })
    }

    /// Moves a complete copy to the volume's folder, also after an interrupted try. A folder that
    /// lies there is moved away only if the move record allows it or no instance has used it.
    pub(crate) fn place_copy(
        &self,
        volume: &str,
        desired: &MoveRecord,
        name: &str,
    ) -> Result<Summary, MoveError> {
        let path = path_of(volume)?;
        let base = self.below(&self.base);
        let (place, folder) = (base.join(path), self.copies().join(name));
        let summary = self.whole_copy(name);
        let summary = summary.ok_or_else(|| MoveError::Lost(self.base.join(path)))?;
        let (user, _) = owners_of(desired.index)?;
        let open = BaseFolder::open(&base)?;
        let there = owner_in(&open, path)?;
        if there.is_some() {
            self.refuse_forgotten(volume)?;
        }
        let data = folder.join("data");
        let copied = match fs::symlink_metadata(&data) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(system("look at", &data, error)),
        };
        match (copied, there) {
            // An earlier try has moved the copy.
            (false, Some(uid)) if is_of(&user, uid) => {
                self.note_placed(volume);
                return Ok(summary);
            }
            (false, _) => return Err(MoveError::Lost(self.base.join(path))),
            (true, Some(uid)) if self.may_go(volume, desired) && is_of(&user, uid) => {
                rename(&place, &folder.join("old"))?;
            }
            (true, Some(_)) => return Err(MoveError::Taken(self.base.join(path))),
            (true, None) => {}
        }
        self.make_passage(&open, path, &user)?;
        rename(&data, &place)?;
        for changed in [place.parent(), Some(folder.as_path())]
            .into_iter()
            .flatten()
        {
            let synced = File::open(changed).and_then(|folder| folder.sync_all());
            synced.map_err(|error| system("bring to the disk", changed, error))?;
        }
        self.note_placed(volume);
        Ok(summary)
    }

    /// Checks whether a copy could be moved to the volume's folder.
    pub(crate) fn check_place(&self, volume: &str, desired: &MoveRecord) -> Result<(), MoveError> {
        let path = path_of(volume)?;
        let base = self.below(&self.base);
        if fs::symlink_metadata(&base).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(());
        }
        let (user, _) = owners_of(desired.index)?;
        let there = owner_in(&BaseFolder::open(&base)?, path)?;
        if there.is_some() {
            self.refuse_forgotten(volume)?;
        }
        match there {
            Some(uid) if !(self.may_go(volume, desired) && is_of(&user, uid)) => {
                Err(MoveError::Taken(self.base.join(path)))
            }
            _ => Ok(()),
        }
    }

    /// Whether the folder at the destination is a dispensable copy: one that the move record
    /// replaces, or one that no instance has used.
    fn may_go(&self, volume: &str, desired: &MoveRecord) -> bool {
        desired.replaces || self.is_unused(volume)
    }

    /// Removes copies that are not wanted: copies that did not become the data, and folders that a
    /// placed copy has replaced. Returns the errors.
    pub(crate) fn forget_copies(&self, wanted: &BTreeSet<String>) -> Vec<String> {
        let copies = self.copies();
        let Ok(listing) = fs::read_dir(&copies) else {
            return Vec::new();
        };
        let mut failures = Vec::new();
        for found in listing.flatten() {
            let name = found.file_name();
            if name.to_str().is_some_and(|name| wanted.contains(name)) {
                continue;
            }
            match remove_folder(&copies.join(&name)) {
                Ok(_) => tracing::info!(copy = ?name, "removed a copy that is not wanted any more"),
                Err(error) => failures.push(error.to_string()),
            }
        }
        if wanted.is_empty() {
            // The next move makes the folder again.
            let _ = fs::remove_dir(&copies);
        }
        failures
    }
}

/// The owner of a folder; `None` where it does not exist.
fn owner_in(base: &BaseFolder, path: &Path) -> Result<Option<u32>, VolumeError> {
    match base.owner_of(path) {
        Ok((uid, _)) => Ok(Some(uid)),
        Err(VolumeError::Missing(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Renames without replacing an existing file or folder.
fn rename(from: &Path, to: &Path) -> Result<(), MoveError> {
    rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
        .map_err(|error| system("give its name to", to, error.into()))
}

fn system(verb: &'static str, path: &Path, error: io::Error) -> MoveError {
    MoveError::System {
        verb,
        path: path.to_owned(),
        error,
    }
}
