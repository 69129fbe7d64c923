//! Files of a workload's folder that its containers mount, laid out on this machine (ARCHITECTURE.md, Files).
//!
//! They lie in `/var/lib/kat/files/UID/DIGEST`, where the digest is that of the whole: a folder of this name is complete,
//! and its files never change. Only root changes what is above the mounted folders, and only the workload's own
//! group passes; the mounted folders themselves are the workload's user's, which is root in its containers. While they are
//! laid out, in `.DIGEST`, root alone passes.

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

use crate::{service::paths, worker::unit_files::make_folder};
use kat_bundle::{CarriedFile, unpack_carried};
use kat_host::files::Access;
use kat_types::{
    assignment::{Assignment, WorkloadUser},
    root::Root,
};

/// Why files can't be laid out.
#[derive(Debug, thiserror::Error)]
pub enum CarriedError {
    /// They can't be read as the leader wrote them.
    #[error("{0}")]
    Damaged(String),
    /// The system refused.
    #[error("{}: can't {verb}: {error}", path.display())]
    System {
        /// What was tried.
        verb: &'static str,
        /// What it was tried with.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A folder can't be made.
    #[error(transparent)]
    Folder(#[from] crate::worker::unit_files::FilesError),
}

fn system(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CarriedError {
    let path = path.to_owned();
    move |error| CarriedError::System { verb, path, error }
}

/// Lays out what an instance carries, where that is not there yet.
///
/// # Errors
/// [`CarriedError`]; nothing half-done stays under the name that is mounted.
pub(crate) fn prepare(root: &Path, assignment: &Assignment) -> Result<(), CarriedError> {
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
        make_folder(above, Access::mode(0o711))?;
    }
    make_folder(&folder, Access::owned(0o750, 0, user.uid))?;
    let unfinished = folder.join(format!(".{digest}"));
    remove(&unfinished)?;
    // Root alone enters it until it is whole: the folders in it are the user's, who could put links there.
    make_folder(&unfinished, Access::owned(0o700, 0, 0))?;
    let top = open_folder(rustix::fs::CWD, &unfinished, &unfinished)?;
    for file in &carried {
        write(&top, &unfinished, file, user)?;
    }
    rustix::fs::syncfs(&top).map_err(|error| system("write", &unfinished)(error.into()))?;
    give(&top, (0, user.uid), 0o750, &unfinished)?;
    fs::rename(&unfinished, &whole).map_err(system("rename to it", &whole))?;
    let opened = File::open(&folder).map_err(system("open", &folder))?;
    opened.sync_all().map_err(system("write", &folder))
}

/// Writes one file below `top`, from one open folder to the next; `shown` is the path of `top`, for errors.
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
        // Paths were checked; anything else would leave the folder.
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
                give(&inner, owner, 0o755, &path)?;
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
        give(&written, owner, mode, &path)?;
    }
    Ok(())
}

/// Opens a folder; a link in its place is an error.
fn open_folder(parent: impl AsFd, name: &Path, shown: &Path) -> Result<OwnedFd, CarriedError> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
        .map_err(|error| system("open the folder", shown)(error.into()))
}

/// Gives what is open its owner and mode, whatever stands at its path by now.
fn give(
    open: impl AsFd,
    (uid, gid): (u32, u32),
    mode: u32,
    shown: &Path,
) -> Result<(), CarriedError> {
    fchown(&open, Some(uid), Some(gid)).map_err(system("give away", shown))?;
    // After the owner: a change of owner clears bits.
    fchmod(&open, Mode::from(mode)).map_err(|error| system("set the mode of", shown)(error.into()))
}

/// Removes what no instance of a user carries any more. What can't be removed is tried again with the next change.
pub(crate) fn tidy<'a>(root: &Path, uid: u32, instances: impl Iterator<Item = &'a Assignment>) {
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

/// Removes all that was laid out for a user.
///
/// # Errors
/// [`CarriedError::System`].
pub(crate) fn forget(root: &Path, uid: u32) -> Result<(), CarriedError> {
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

fn folder_of(root: &Path, uid: u32) -> PathBuf {
    Root::new(root).below(paths::FILES).join(uid.to_string())
}
