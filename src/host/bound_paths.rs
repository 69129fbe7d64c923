//! Binds paths of the machine by descriptor, for Podman to mount what the agent judged: the body of `kat-hostpath@.service`.
//!
//! Podman takes a path by its name at each start, and whoever may change a folder above it can have the name lead elsewhere by then. So
//! root walks to it without links, sees that it is what was judged, and binds that to a place which root alone changes: Podman mounts the place.
//! It runs in the machine's own mount namespace, from where the mount comes to that of each user's Podman. The agent and `kat-net` have
//! namespaces of their own, so none of this is ever done there.

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
    root::Root,
};

/// Where the agent writes what is to be bound, a file for each instance.
pub const PLANS: &str = "/run/kat/hostpath-plans";
/// Largest of these files.
const LIMIT: u64 = 1 << 20;
/// A place that its user may enter.
const OPEN: u32 = 0o711;
/// One that nobody may: nothing is bound there.
const CLOSED: u32 = 0o700;

/// What an instance mounts of the machine, as the agent judged it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BindPlan {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The workload's user.
    pub uid: u32,
    /// The instance.
    pub instance: String,
    /// What is bound.
    pub binds: Vec<Bind>,
}

/// One path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bind {
    /// Name of its place.
    pub name: String,
    /// Its path, with no links in it.
    pub path: PathBuf,
    /// What was judged there. The numbers hold until the machine boots, as the plan does.
    pub judged: FileIdentity,
    /// Nobody writes to it.
    pub read_only: bool,
}

/// What a file or folder is, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileIdentity {
    /// Its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Its kind, as in the mode of stat(2).
    pub kind: u32,
}

impl FileIdentity {
    /// Of something whose metadata was read.
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

/// Why paths can't be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The name of the plan is none.
    #[error("`{0}` does not name an instance of this machine")]
    Name(String),
    /// The plan can't be read.
    #[error(transparent)]
    Plan(#[from] files::FileError),
    /// The plan is not for this, or not understood.
    #[error("{}: {why}", path.display())]
    Unusable {
        /// The plan.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The path does not lead to what was judged.
    #[error("{}: it is not any more what it was when the agent looked at it", .0.display())]
    Changed(PathBuf),
    /// A link stands where none was.
    #[error("{}: it, or a folder above it, is a symbolic link by now", .0.display())]
    Link(PathBuf),
    /// The system refused.
    #[error("{}: can't {verb}: {error}", path.display())]
    System {
        /// What was tried.
        verb: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// Binds all that the plan of this name has; nothing where one of them can't be.
///
/// # Errors
/// [`BindError`].
pub fn bind_all(id: &str) -> Result<(), BindError> {
    let path = plan_of(Path::new("/"), id)?;
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

fn bind(plan: &BindPlan, bind: &Bind) -> Result<(), BindError> {
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
    // It opens when the mount is there: never does a container get what lies under it.
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

/// Opens a path without following a link, if it is what was judged.
fn open_judged(bind: &Bind) -> Result<OwnedFd, BindError> {
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

/// Takes away all that is bound for an instance, and the places. What containers have mounted, they keep.
///
/// # Errors
/// [`BindError`]; the other places are gone all the same.
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

/// Nothing in a place is ever removed but what is empty: it may be somebody's data that could not be unmounted.
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

/// Where the plan of this name lies, below `root`.
///
/// # Errors
/// [`BindError::Name`].
pub fn plan_of(root: &Path, id: &str) -> Result<PathBuf, BindError> {
    parts_of(id)?;
    let plans = Root::new(root).below(PLANS);
    Ok(plans.join(format!("{id}.json")))
}

/// Uid and instance.
fn parts_of(id: &str) -> Result<(&str, &str), BindError> {
    let parts = id.split_once('-');
    let fits = |(uid, instance): &(&str, &str)| uid.parse::<u32>().is_ok() && is_plain(instance);
    parts
        .filter(fits)
        .ok_or_else(|| BindError::Name(id.to_owned()))
}

/// One part of a path.
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

    fn judged(path: &Path) -> Bind {
        Bind {
            name: "conf".to_owned(),
            path: path.to_owned(),
            judged: FileIdentity::of(&fs::symlink_metadata(path).unwrap()),
            read_only: false,
        }
    }

    #[test]
    fn what_was_judged_is_opened_and_nothing_that_took_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("outer/data")).unwrap();
        fs::create_dir_all(root.join("outside/data")).unwrap();
        let bind = judged(&root.join("outer/data"));
        // The control.
        open_judged(&bind).unwrap();

        fs::rename(root.join("outer/data"), root.join("outer/old")).unwrap();
        assert!(matches!(open_judged(&bind), Err(BindError::Changed(_))));
        fs::create_dir(root.join("outer/data")).unwrap();
        assert!(matches!(open_judged(&bind), Err(BindError::Changed(_))));
        fs::remove_dir(root.join("outer/data")).unwrap();
        fs::write(root.join("outer/data"), "").unwrap();
        assert!(matches!(open_judged(&bind), Err(BindError::Changed(_))));
        fs::remove_file(root.join("outer/data")).unwrap();
        // Not even a link to what was judged.
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
            assert!(plan_of(Path::new("/"), id).is_err(), "{id}");
        }
        let plan = plan_of(Path::new("/"), "20000-web-ab12c").unwrap();
        assert_eq!(
            plan,
            Path::new("/run/kat/hostpath-plans/20000-web-ab12c.json")
        );
    }
}
