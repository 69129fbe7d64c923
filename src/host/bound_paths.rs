//! Binds host paths by descriptor, so that Podman mounts exactly the files that the agent checked.
//! This is the body of `kat-hostpath@.service`.
//!
//! Podman opens a path by name at each start, and a user who can change a parent folder could have
//! made the name lead elsewhere by then. So root walks to the path without following links,
//! compares the file's identity with the checked one, and binds it to a place that only root can
//! change: Podman mounts that place. The unit runs in the machine's own mount namespace, from which
//! the mount propagates to the namespaces of each user's Podman. The agent and `kat-net` have mount
//! namespaces of their own, so they never bind paths themselves.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};

use super::{
    files,
    mount_tree::{MountTree, detach},
};
use kat_types::{
    assignment::{BOUND_FOLDER, bound_place},
    machine::root::Root,
};

/// Folder of the agent's bind plans, one file for each instance.
pub const PLANS: &str = "/run/kat/hostpath-plans";
/// Largest plan in bytes.
const LIMIT: u64 = 1 << 20;
/// Mode of a place that the workload's user may enter.
const OPEN: u32 = 0o711;
/// Mode of a place that no user may enter: nothing is bound there yet.
const CLOSED: u32 = 0o700;

/// The host paths that an instance mounts, as the agent checked them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BindPlan {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Uid of the workload's user.
    pub uid: u32,
    pub instance: String,
    pub binds: Vec<PathBind>,
}

/// One path to bind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathBind {
    /// Name of its place below the instance's folder.
    pub name: String,
    /// The path, without symbolic links.
    pub path: PathBuf,
    /// Identity of the checked file. It is valid until the next boot, as the plan is.
    pub judged: FileIdentity,
    /// Whether the mount is read-only.
    pub read_only: bool,
}

/// Identity of a file or folder, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileIdentity {
    /// Device number of its file system.
    pub device: u64,
    pub inode: u64,
    /// Its type, as in the mode of stat(2).
    pub kind: u32,
}

impl FileIdentity {
    pub fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            kind: metadata.mode() & 0o170_000,
        }
    }

    fn is_folder(self) -> bool {
        self.kind == 0o040_000
    }
}

/// Why paths could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The name is not that of a plan.
    #[error("`{0}` does not name an instance of this machine")]
    Name(String),
    #[error(transparent)]
    Plan(#[from] files::FileError),
    /// The plan is for another instance, or can't be decoded.
    #[error("{}: {why}", path.display())]
    Unusable {
        /// Path of the plan.
        path: PathBuf,
        why: String,
    },
    /// The path does not lead to the checked file.
    #[error("{}: it is not any more what it was when the agent looked at it", .0.display())]
    Changed(PathBuf),
    /// A part of the path is now a symbolic link.
    #[error("{}: it, or a folder above it, is a symbolic link by now", .0.display())]
    Link(PathBuf),
    #[error("{}: can't {verb}: {error}", path.display())]
    System {
        /// The operation that failed.
        verb: &'static str,
        path: PathBuf,
        error: io::Error,
    },
}

/// Binds all paths of a plan; none if one of them can't be bound.
pub fn bind_all(id: &str) -> Result<(), BindError> {
    let path = plan_of(&Root::new("/"), id)?;
    let text = files::read_bounded(&path, LIMIT)?;
    let unusable = |why: String| BindError::Unusable {
        path: path.clone(),
        why,
    };
    let plan: BindPlan =
        serde_json::from_slice(&text).map_err(|error| unusable(error.to_string()))?;
    if plan.schema != 1 || format!("{}-{}", plan.uid, plan.instance) != id {
        return Err(unusable("it is of another instance or version".to_owned()));
    }
    unbind_all(id)?;
    let bound = plan.binds.iter().try_for_each(|one| bind(&plan, one));
    if bound.is_err() {
        unbind_all(id)?;
    }
    bound
}

fn bind(plan: &BindPlan, bind: &PathBind) -> Result<(), BindError> {
    if !is_plain(&bind.name) {
        return Err(BindError::Name(bind.name.clone()));
    }
    let source = open_judged(bind)?;
    let tree = MountTree::of(&source, bind.read_only)
        .map_err(|error| system("copy the mount of", &bind.path, error))?;
    let place = bound_place(plan.uid, &plan.instance, &bind.name);
    let target = Path::new(BOUND_FOLDER).join(place);
    let made = |error| system("make the place for a mount", &target, error);
    let folder = target
        .parent()
        .ok_or_else(|| made(io::ErrorKind::InvalidInput.into()))?;
    if let Some(of_instance) = folder.parent() {
        make_folder(of_instance, OPEN).map_err(made)?;
    }
    // The folder is opened after the mount, so that no container ever sees what lies below the
    // mount point.
    make_folder(folder, CLOSED).map_err(made)?;
    match bind.judged.is_folder() {
        true => DirBuilder::new().mode(0o000).create(&target),
        false => {
            let mut options = File::options();
            let options = options.write(true).create_new(true).mode(0o000);
            options.open(&target).map(drop)
        }
    }
    .map_err(made)?;
    let attached = tree.attach(&target);
    attached.map_err(|error| system("mount it at its place", &bind.path, error))?;
    fs::set_permissions(folder, Permissions::from_mode(OPEN)).map_err(made)
}

/// Opens a path without following a link; fails unless it is the checked file.
fn open_judged(bind: &PathBind) -> Result<OwnedFd, BindError> {
    if !bind.path.is_absolute() {
        return Err(BindError::Changed(bind.path.clone()));
    }
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(rustix::fs::CWD, &bind.path, flags, Mode::empty(), resolve);
    let opened = File::from(opened.map_err(|error| match error {
        rustix::io::Errno::LOOP => BindError::Link(bind.path.clone()),
        rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => {
            BindError::Changed(bind.path.clone())
        }
        error => system("open", &bind.path, error.into()),
    })?);
    let metadata = opened
        .metadata()
        .map_err(|error| system("look at", &bind.path, error))?;
    match FileIdentity::of(&metadata) == bind.judged {
        true => Ok(opened.into()),
        false => Err(BindError::Changed(bind.path.clone())),
    }
}

/// Removes all binds of an instance, and their places. Mounts inside running containers stay.
///
/// # Errors
/// [`BindError`]; the other places are removed nevertheless.
pub fn unbind_all(id: &str) -> Result<(), BindError> {
    let (uid, instance) = parts_of(id)?;
    let folder = Path::new(BOUND_FOLDER).join(uid).join(instance);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("list", &folder, error)),
    };
    let mut failed = Ok(());
    for entry in entries.flatten() {
        let unbound = unbind(&entry.path());
        failed = failed.and(unbound.map_err(|error| system("unmount", &entry.path(), error)));
    }
    failed?;
    match fs::remove_dir(&folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(system("remove", &folder, error)),
    }
}

/// Only empty files and folders are removed: other content may be data that could not be unmounted.
fn unbind(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(CLOSED))?;
    for entry in fs::read_dir(folder)? {
        let target = entry?.path();
        detach(&target)?;
        match fs::symlink_metadata(&target)?.is_dir() {
            true => fs::remove_dir(&target)?,
            false => fs::remove_file(&target)?,
        }
    }
    fs::remove_dir(folder)
}

/// Path of the plan with this name, below `root`.
pub fn plan_of(root: &Root, id: &str) -> Result<PathBuf, BindError> {
    parts_of(id)?;
    let plans = root.below(PLANS);
    Ok(plans.join(format!("{id}.json")))
}

/// Splits a plan's name into uid and instance.
fn parts_of(id: &str) -> Result<(&str, &str), BindError> {
    let parts = id.split_once('-');
    let fits = |(uid, instance): &(&str, &str)| uid.parse::<u32>().is_ok() && is_plain(instance);
    parts
        .filter(fits)
        .ok_or_else(|| BindError::Name(id.to_owned()))
}

/// Whether the name is a single part of a path.
fn is_plain(name: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !name.is_empty() && !name.starts_with('.') && name.bytes().all(allowed)
}

fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn system(verb: &'static str, path: &Path, error: io::Error) -> BindError {
    BindError::System {
        verb,
        path: path.to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn judged(path: &Path) -> PathBind {
        PathBind {
            name: "conf".to_owned(),
            path: path.to_owned(),
            judged: FileIdentity::of(&fs::symlink_metadata(path).unwrap()),
            read_only: false,
        }
    }

    #[test]
    fn a_bound_path_is_opened_only_if_it_is_still_the_checked_one() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("outer/data")).unwrap();
        fs::create_dir_all(root.join("outside/data")).unwrap();
        let bind = judged(&root.join("outer/data"));
        // Control: the unchanged path can be opened.
        open_judged(&bind).unwrap();

        fs::rename(root.join("outer/data"), root.join("outer/old")).unwrap();
        assert!(matches!(open_judged(&bind), Err(BindError::Changed(_))));
        fs::create_dir(root.join("outer/data")).unwrap();
        assert!(matches!(open_judged(&bind), Err(BindError::Changed(_))));
        fs::remove_dir(root.join("outer/data")).unwrap();
        fs::write(root.join("outer/data"), "").unwrap();
        assert!(matches!(open_judged(&bind), Err(BindError::Changed(_))));
        fs::remove_file(root.join("outer/data")).unwrap();
        // A link is refused even if its target is the folder that was checked.
        symlink("old", root.join("outer/data")).unwrap();
        assert!(matches!(open_judged(&bind), Err(BindError::Link(_))));
        fs::remove_file(root.join("outer/data")).unwrap();
        fs::rename(root.join("outer/old"), root.join("outer/data")).unwrap();
        open_judged(&bind).unwrap();

        fs::rename(root.join("outer"), root.join("moved")).unwrap();
        symlink("moved", root.join("outer")).unwrap();
        assert!(matches!(open_judged(&bind), Err(BindError::Link(_))));
        fs::remove_file(root.join("outer")).unwrap();
        symlink("outside", root.join("outer")).unwrap();
        assert!(matches!(open_judged(&bind), Err(BindError::Link(_))));
    }

    #[test]
    fn a_plan_of_no_instance_is_refused() {
        for id in [
            "",
            "web",
            "-web",
            "20000",
            "20000-",
            "20000-../x",
            "x-web",
            "20000-a/b",
        ] {
            assert!(plan_of(&Root::new("/"), id).is_err(), "{id}");
        }
        let plan = plan_of(&Root::new("/"), "20000-web-ab12c").unwrap();
        assert_eq!(
            plan,
            Path::new("/run/kat/hostpath-plans/20000-web-ab12c.json")
        );
    }
}
