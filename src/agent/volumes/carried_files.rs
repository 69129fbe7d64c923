//! Files from a workload's folder that its containers mount, written to this machine
//! (docs/internals/workload-files.md).
//!
//! They lie in `/var/lib/kat/files/UID/DIGEST`, with the digest of all files: a folder with this
//! name is complete, and its files never change. Only root can change the folders above the mounted
//! ones, and only the workload's own group may enter them. The mounted folders themselves belong to
//! the workload's user, which is root in its containers. While the files are being written, in
//! `.DIGEST`, only root may enter.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::fchown,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, fchmod, mkdirat, openat},
    io::Errno,
};

use crate::{service::paths, worker::unit_state::unit_files::make_folder};
use kat_bundle::{CarriedFile, unpack_carried};
use kat_host::files::FileAccess;
use kat_types::{
    assignment::{Assignment, WorkloadUser},
    machine::root::Root,
};

/// Why the files can't be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarriedError {
    /// The files are not as the leader wrote them.
    #[error("{0}")]
    Damaged(String),
    #[error("{}: can't {verb}: {error}", path.display())]
    System {
        /// The operation that failed.
        verb: &'static str,
        /// The path of the operation.
        path: PathBuf,
        error: io::Error,
    },
    #[error(transparent)]
    Folder(#[from] crate::worker::unit_state::unit_files::FilesError),
}

fn system(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CarriedError {
    let path = path.to_owned();
    move |error| CarriedError::System { verb, path, error }
}

/// Writes the files of an instance unless they exist.
///
/// # Errors
/// [`CarriedError`]; no incomplete folder is left under the mounted name.
pub(crate) fn prepare(root: &Root, assignment: &Assignment) -> Result<(), CarriedError> {
    let (Some(text), Some(digest)) = (&assignment.carried, assignment.carried_digest()) else {
        return Ok(());
    };
    let user = &assignment.user;
    let folder = folder_of(root, user.uid);
    let whole = folder.join(&digest);
    if fs::symlink_metadata(&whole).is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    let carried = unpack_carried(text).map_err(CarriedError::Damaged)?;
    if let Some(above) = folder.parent() {
        make_folder(above, FileAccess::mode(0o711))?;
    }
    make_folder(&folder, FileAccess::owned(0o750, 0, user.uid))?;
    let unfinished = folder.join(format!(".{digest}"));
    remove(&unfinished)?;
    // Only root may enter the folder until it is complete: its sub-folders belong to the user, who
    // could put links into them.
    make_folder(&unfinished, FileAccess::owned(0o700, 0, 0))?;
    let top = open_folder(rustix::fs::CWD, &unfinished, &unfinished)?;
    for file in &carried {
        write(&top, &unfinished, file, user)?;
    }
    rustix::fs::syncfs(&top).map_err(|error| system("write", &unfinished)(error.into()))?;
    set_owner_and_mode(&top, (0, user.uid), 0o750, &unfinished)?;
    fs::rename(&unfinished, &whole).map_err(system("rename to it", &whole))?;
    let opened = File::open(&folder).map_err(system("open", &folder))?;
    opened.sync_all().map_err(system("write", &folder))
}

/// Writes one file below `top`, opening folder by folder; `shown` is the path of `top`, for errors.
fn write(
    top: &OwnedFd,
    shown: &Path,
    file: &CarriedFile,
    user: &WorkloadUser,
) -> Result<(), CarriedError> {
    let owner = (user.uid, user.uid);
    let mut path = shown.to_owned();
    let mut folder: Option<OwnedFd> = None;
    let mut parts = Path::new(&file.path).components().peekable();
    while let Some(part) = parts.next() {
        let parent = folder.as_ref().unwrap_or(top).as_fd();
        path.push(part);
        // The paths were checked before; any other component would lead out of the folder.
        let Component::Normal(name) = part else {
            return Err(CarriedError::Damaged(format!(
                "{} is not a plain path",
                file.path
            )));
        };
        if parts.peek().is_some() {
            let is_new = match mkdirat(parent, name, Mode::from(0o700)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(system("make the folder", &path)(error.into())),
            };
            let inner = open_folder(parent, Path::new(name), &path)?;
            if is_new {
                set_owner_and_mode(&inner, owner, 0o755, &path)?;
            }
            folder = Some(inner);
            continue;
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW;
        let written = openat(parent, name, flags | OFlags::CLOEXEC, Mode::from(0o600))
            .map_err(|error| system("make", &path)(error.into()))?;
        let mut written = File::from(written);
        written
            .write_all(&file.bytes)
            .map_err(system("write", &path))?;
        let mode = if file.executable { 0o755 } else { 0o644 };
        set_owner_and_mode(&written, owner, mode, &path)?;
    }
    Ok(())
}

/// Opens a folder; fails if a symbolic link is in its place.
fn open_folder(parent: impl AsFd, name: &Path, shown: &Path) -> Result<OwnedFd, CarriedError> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
        .map_err(|error| system("open the folder", shown)(error.into()))
}

/// Sets owner and mode of an open file, whatever is at its path by now.
fn set_owner_and_mode(
    open: impl AsFd,
    (uid, gid): (u32, u32),
    mode: u32,
    shown: &Path,
) -> Result<(), CarriedError> {
    fchown(&open, Some(uid), Some(gid)).map_err(system("give away", shown))?;
    // After the owner: changing the owner clears mode bits.
    fchmod(&open, Mode::from(mode)).map_err(|error| system("set the mode of", shown)(error.into()))
}

/// Removes files that no instance of a user uses. A failed removal is retried with the next change.
pub(crate) fn tidy<'a>(root: &Root, uid: u32, instances: impl Iterator<Item = &'a Assignment>) {
    let folder = folder_of(root, uid);
    let Ok(entries) = fs::read_dir(&folder) else {
        return;
    };
    let kept: BTreeSet<String> = instances.filter_map(Assignment::carried_digest).collect();
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| kept.contains(name)) {
            continue;
        }
        if let Err(error) = remove(&entry.path()) {
            tracing::warn!("files that nothing mounts any more stay: {error:#}");
        }
    }
}

/// Removes all files of a user.
pub(crate) fn forget(root: &Root, uid: u32) -> Result<(), CarriedError> {
    remove(&folder_of(root, uid))
}

fn remove(path: &Path) -> Result<(), CarriedError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            fs::remove_file(path).map_err(system("remove", path))
        }
        other => other.map_err(system("remove", path)),
    }
}

fn folder_of(root: &Root, uid: u32) -> PathBuf {
    root.below(paths::FILES).join(uid.to_string())
}
