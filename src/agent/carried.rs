//! Files of a workload's folder that its containers mount, laid out on this machine (ARCHITECTURE.md, Files).
//!
//! They lie in `/var/lib/kat/files/UID/DIGEST`, where the digest is that of the whole: a folder of this name is complete,
//! and its files never change. Only root changes what is above the mounted folders, and only the workload's own
//! group passes; the mounted folders themselves are the workload's user's, which is root in its containers.

use std::{
    collections::BTreeSet,
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use super::{files::make_folder, paths};
use crate::{
    bundle::{CarriedFile, unpack_carried},
    host::files::Access,
    plan::{Assignment, WorkloadUser},
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
    Folder(#[from] super::files::FilesError),
}

fn system(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CarriedError {
    let path = path.to_owned();
    move |error| CarriedError::System { verb, path, error }
}

/// Lays out what an instance carries, where that is not there yet.
///
/// # Errors
/// [`CarriedError`]; nothing half-done stays under the name that is mounted.
pub fn prepare(root: &Path, assignment: &Assignment) -> Result<(), CarriedError> {
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
    make_folder(&unfinished, Access::owned(0o750, 0, user.uid))?;
    for file in &carried {
        write(&unfinished, file, user)?;
    }
    let opened = File::open(&unfinished).map_err(system("open", &unfinished))?;
    rustix::fs::syncfs(&opened).map_err(|error| system("write", &unfinished)(error.into()))?;
    fs::rename(&unfinished, &whole).map_err(system("rename to it", &whole))?;
    let opened = File::open(&folder).map_err(system("open", &folder))?;
    opened.sync_all().map_err(system("write", &folder))
}

/// Paths were checked: they lead nowhere but below `top`, which nobody else can change yet.
fn write(top: &Path, file: &CarriedFile, user: &WorkloadUser) -> Result<(), CarriedError> {
    let path = top.join(&file.path);
    let mut above: Vec<&Path> = Path::new(&file.path).ancestors().skip(1).collect();
    above.reverse();
    for folder in above.into_iter().filter(|one| *one != Path::new("")) {
        let folder = top.join(folder);
        if !folder.is_dir() {
            fs::create_dir(&folder).map_err(system("make the folder", &folder))?;
            own(&folder, 0o755, user)?;
        }
    }
    let mut written = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(system("make", &path))?;
    written
        .write_all(&file.bytes)
        .map_err(system("write", &path))?;
    own(&path, if file.executable { 0o755 } else { 0o644 }, user)
}

fn own(path: &Path, mode: u32, user: &WorkloadUser) -> Result<(), CarriedError> {
    chown(path, Some(user.uid), Some(user.uid)).map_err(system("give away", path))?;
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(system("set the mode of", path))
}

/// Removes what no instance of a user carries any more. What can't be removed is tried again with the next change.
pub fn tidy<'a>(root: &Path, uid: u32, instances: impl Iterator<Item = &'a Assignment>) {
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
            tracing::warn!(%error, "files that nothing mounts any more stay");
        }
    }
}

/// Removes all that was laid out for a user.
///
/// # Errors
/// [`CarriedError::System`].
pub fn forget(root: &Path, uid: u32) -> Result<(), CarriedError> {
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
    root.join(paths::FILES.trim_start_matches('/'))
        .join(uid.to_string())
}
