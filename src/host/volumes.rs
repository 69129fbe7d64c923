//! Makes and checks folders and files that containers mount, without following symbolic links.
//!
//! A container may write into its volumes, so their content is not trusted: every name is opened by
//! openat2(2) with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`, relative to a folder that only root
//! can change.

use std::{
    fs::{self, File, Permissions},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Component, Path, PathBuf},
};

use jiff::Timestamp;
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, StatxFlags, Uid},
    io::Errno,
};

use super::bound_paths::FileIdentity;
use kat_types::resource::EnsureType;

/// Why something can't be mounted into a container.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("{}: can't {verb}: {error}", path.display())]
    System {
        /// The operation that failed.
        verb: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    /// The path is missing and must not be made.
    #[error("{}: there is no such file or folder on this machine", .0.display())]
    Missing(PathBuf),
    /// The path, or a parent folder of it, is a symbolic link.
    #[error("{}: it, or a folder above it, is a symbolic link, which is not followed", .0.display())]
    Link(PathBuf),
    /// The path has another kind of file than expected.
    #[error("{}: is {found}, expected {expected}", path.display())]
    Unexpected {
        path: PathBuf,
        /// The kind that was found.
        found: &'static str,
        /// The kind that was expected.
        expected: &'static str,
    },
    /// Users other than root may change what lies at the path.
    #[error(
        "{}: {} above it belongs to uid {uid} and has mode {mode:04o}; what containers mount lies below folders that root alone may change",
        path.display(), above.display()
    )]
    Unprotected {
        /// The path to mount.
        path: PathBuf,
        /// The unprotected parent folder.
        above: PathBuf,
        uid: u32,
        mode: u32,
    },
    /// The path belongs to another user.
    #[error("{}: belongs to uid {uid}, which is not of this workload", path.display())]
    Foreign {
        path: PathBuf,
        /// Uid of the owner.
        uid: u32,
    },
    /// The folder is older than the moment at which a person gave up the data of this name.
    #[error(
        "{}: this folder is of data that was given up on {since:.0}, and KAT neither uses nor removes it; move it away, and copy it back with cp -a if it is to be used",
        path.display()
    )]
    Forgotten {
        path: PathBuf,
        /// When the data was given up.
        since: Timestamp,
    },
}

/// Owner and mode of a new file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOwner {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

/// Whether the file or folder existed or was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnsureResult {
    /// It existed.
    There,
    /// It was made.
    Made,
}

/// An open folder, relative to which names are opened.
pub struct BaseFolder {
    path: PathBuf,
    folder: OwnedFd,
    /// Owner and mode of missing parent folders that have to be made.
    above: FileOwner,
}

impl BaseFolder {
    /// Opens a folder that an administrator named: symbolic links in its own path are followed.
    ///
    /// # Errors
    /// [`VolumeError`] if the folder does not exist.
    pub fn open(path: &Path) -> Result<Self, VolumeError> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| failed("open", path, error))?;
        Ok(Self {
            path: path.to_owned(),
            folder,
            above: FileOwner {
                uid: 0,
                gid: 0,
                mode: 0o755,
            },
        })
    }

    /// Sets the owner of missing parent folders.
    #[must_use]
    pub fn with_above(self, above: FileOwner) -> Self {
        Self { above, ..self }
    }

    /// Opens a folder below this one as a base. Its path must not contain symbolic links.
    pub fn enter(&self, relative: &Path) -> Result<Self, VolumeError> {
        Ok(Self {
            path: self.path.join(relative),
            folder: self.beneath(relative, OFlags::DIRECTORY)?,
            above: self.above,
        })
    }

    /// Makes a folder of KAT's own, or sets owner and mode of an existing one.
    pub fn own_folder(&self, relative: &Path, owner: FileOwner) -> Result<(), VolumeError> {
        let (parent, name) = self.parent_of(relative)?;
        make_folder(&parent, &name, owner, &self.path.join(relative), true)
    }

    /// Ensures that the folder at `relative` exists. An existing one is left as it is; a missing
    /// one is made if `owner` is given.
    pub fn folder(
        &self,
        relative: &Path,
        owner: Option<FileOwner>,
    ) -> Result<EnsureResult, VolumeError> {
        match self.beneath(relative, OFlags::DIRECTORY) {
            Ok(_) => return Ok(EnsureResult::There),
            Err(VolumeError::Missing(_)) if owner.is_some() => {}
            Err(error) => return Err(error),
        }
        let (parent, name) = self.parent_of(relative)?;
        let path = self.path.join(relative);
        if let Some(owner) = owner {
            make_folder(&parent, &name, owner, &path, false)?;
        }
        Ok(EnsureResult::Made)
    }

    /// Ensures that the file at `relative` exists; a missing one is made empty if `owner` is given.
    pub fn file(
        &self,
        relative: &Path,
        owner: Option<FileOwner>,
    ) -> Result<EnsureResult, VolumeError> {
        match self.is_kind(relative, EnsureType::File) {
            Ok(()) => return Ok(EnsureResult::There),
            Err(VolumeError::Missing(_)) if owner.is_some() => {}
            Err(error) => return Err(error),
        }
        let (parent, name) = self.parent_of(relative)?;
        let path = self.path.join(relative);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&parent, &*name, flags | OFlags::CLOEXEC, Mode::from(0o600))
            .map_err(|error| failed("make the file", &path, error))?;
        if let Some(owner) = owner {
            let given = rustix::fs::fchown(&file, Some(uid(owner)), Some(gid(owner)));
            given.map_err(|error| failed("give the file its owner", &path, error))?;
        }
        Ok(EnsureResult::Made)
    }

    /// Checks that `relative` exists and is of this kind.
    pub fn is_kind(&self, relative: &Path, kind: EnsureType) -> Result<(), VolumeError> {
        let file = self.beneath(relative, OFlags::empty())?;
        let path = self.path.join(relative);
        let metadata = File::from(file).metadata();
        let kind_now = metadata
            .map_err(|error| system("look at", &path, error))?
            .file_type();
        let (fits, expected) = match kind {
            EnsureType::Directory | EnsureType::DirectoryOrCreate => {
                (kind_now.is_dir(), "a folder")
            }
            EnsureType::File | EnsureType::FileOrCreate => (kind_now.is_file(), "a file"),
            EnsureType::Socket => (kind_now.is_socket(), "a socket"),
        };
        if fits {
            return Ok(());
        }
        let found = match kind_now {
            kind if kind.is_dir() => "a folder",
            kind if kind.is_file() => "a file",
            kind if kind.is_socket() => "a socket",
            kind if kind.is_block_device() || kind.is_char_device() => "a device",
            _ => "something else",
        };
        Err(VolumeError::Unexpected {
            path,
            found,
            expected,
        })
    }

    /// Checks that `relative` exists.
    pub fn is_there(&self, relative: &Path) -> Result<(), VolumeError> {
        self.beneath(relative, OFlags::empty()).map(drop)
    }

    /// Uid and gid of the owner of `relative`.
    pub fn owner_of(&self, relative: &Path) -> Result<(u32, u32), VolumeError> {
        let file = File::from(self.beneath(relative, OFlags::empty())?);
        let path = self.path.join(relative);
        let metadata = file
            .metadata()
            .map_err(|error| system("look at", &path, error))?;
        Ok((metadata.uid(), metadata.gid()))
    }

    /// When the file or folder at `relative` was made, by the machine's clock: its birth, or its
    /// last change of status on file systems that keep no birth.
    pub fn made_at(&self, relative: &Path) -> Result<Timestamp, VolumeError> {
        let file = self.beneath(relative, OFlags::empty())?;
        let path = self.path.join(relative);
        let wanted = StatxFlags::BTIME | StatxFlags::CTIME;
        let found = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, wanted)
            .map_err(|error| failed("look at", &path, error))?;
        let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let made = match has_birth {
            true => found.stx_btime,
            false => found.stx_ctime,
        };
        let nanoseconds = i32::try_from(made.tv_nsec).unwrap_or(0);
        Timestamp::new(made.tv_sec, nanoseconds)
            .map_err(|error| system("look at", &path, io::Error::other(error.to_string())))
    }

    /// Checks that only root may change each folder from this one down to the parent of `relative`.
    /// Missing folders are skipped.
    ///
    /// # Errors
    /// [`VolumeError::Unprotected`] for the first folder that other users may change.
    pub fn check_above(&self, relative: &Path) -> Result<(), VolumeError> {
        let mut above: Vec<&Path> = relative.ancestors().skip(1).collect();
        above.reverse();
        for part in above {
            let folder = match self.beneath(part, OFlags::DIRECTORY) {
                Ok(folder) => File::from(folder),
                Err(VolumeError::Missing(_)) => return Ok(()),
                Err(error) => return Err(error),
            };
            let shown = self.path.join(part);
            let metadata = folder
                .metadata()
                .map_err(|error| system("look at", &shown, error))?;
            check_protected(&metadata, &shown, &self.path.join(relative))?;
        }
        Ok(())
    }

    /// The real path of `relative`, without symbolic links, and its identity.
    pub fn identify(&self, relative: &Path) -> Result<(PathBuf, FileIdentity), VolumeError> {
        let place = File::from(self.beneath(relative, OFlags::empty())?);
        let path = self.path.join(relative);
        let link = format!("/proc/self/fd/{}", place.as_raw_fd());
        let real = fs::read_link(link).map_err(|error| system("find the path of", &path, error))?;
        let metadata = place
            .metadata()
            .map_err(|error| system("look at", &path, error))?;
        Ok((real, FileIdentity::of(&metadata)))
    }

    /// Opens the folder at `relative` for reading.
    pub fn open_folder(&self, relative: &Path) -> Result<File, VolumeError> {
        let place = self.beneath(relative, OFlags::DIRECTORY)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(place, ".", flags, Mode::empty())
            .map_err(|error| failed("open", &self.path.join(relative), error))?;
        Ok(File::from(folder))
    }

    /// Opens `relative` with `O_PATH`.
    fn beneath(&self, relative: &Path, flags: OFlags) -> Result<OwnedFd, VolumeError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | flags;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let relative = match relative.as_os_str().is_empty() {
            true => Path::new("."),
            false => relative,
        };
        rustix::fs::openat2(&self.folder, relative, flags, Mode::empty(), resolve)
            .map_err(|error| failed("open", &self.path.join(relative), error))
    }

    /// The parent folder of `relative` and its last component. Missing parents are made.
    fn parent_of(&self, relative: &Path) -> Result<(OwnedFd, PathBuf), VolumeError> {
        let mut parts: Vec<_> = relative
            .components()
            .filter(|part| matches!(part, Component::Normal(_)))
            .map(|part| PathBuf::from(part.as_os_str()))
            .collect();
        let Some(last) = parts.pop() else {
            return Err(VolumeError::Missing(self.path.join(relative)));
        };
        let mut so_far = PathBuf::from(".");
        for part in parts {
            let inner = so_far.join(&part);
            if let Err(VolumeError::Missing(_)) = self.beneath(&inner, OFlags::DIRECTORY) {
                let outer = self.beneath(&so_far, OFlags::DIRECTORY)?;
                make_folder(&outer, &part, self.above, &self.path.join(&inner), false)?;
            }
            so_far = inner;
        }
        Ok((self.beneath(&so_far, OFlags::DIRECTORY)?, last))
    }
}

/// Checks that only root may change each folder from `root` down to the parent of `folder`, both in
/// the written path and in the one with resolved links. Missing folders are skipped.
///
/// # Errors
/// [`VolumeError::Unprotected`] for the first folder that other users may change.
pub fn check_ancestors(root: &Path, folder: &Path) -> Result<(), VolumeError> {
    check_chain(root, folder, folder)?;
    match (folder.canonicalize(), root.canonicalize()) {
        (Ok(real), Ok(root)) => check_chain(&root, &real, folder),
        _ => Ok(()),
    }
}

fn check_chain(root: &Path, folder: &Path, shown: &Path) -> Result<(), VolumeError> {
    let is_inside = folder.starts_with(root);
    let mut above: Vec<&Path> = folder
        .ancestors()
        .skip(1)
        .filter(|one| !is_inside || one.starts_with(root))
        .collect();
    above.reverse();
    for part in above {
        match fs::metadata(part) {
            Ok(metadata) => check_protected(&metadata, part, shown)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(system("look at", part, error)),
        }
    }
    Ok(())
}

/// The rights in an access control list show in the group bits.
fn check_protected(metadata: &fs::Metadata, above: &Path, path: &Path) -> Result<(), VolumeError> {
    let mode = metadata.mode() & 0o7777;
    if metadata.uid() == 0 && mode & 0o022 == 0 {
        return Ok(());
    }
    Err(VolumeError::Unprotected {
        path: path.to_owned(),
        above: above.to_owned(),
        uid: metadata.uid(),
        mode,
    })
}

/// Removes a folder with its content; true if it existed. Symbolic links in it are removed and not
/// followed.
pub fn remove_folder(path: &Path) -> Result<bool, VolumeError> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(system("remove", path, error)),
    }
}

/// Makes a folder with owner and mode. A folder that was made by another process meanwhile is left
/// as it is, unless it is KAT's `own`.
fn make_folder(
    parent: &OwnedFd,
    name: &Path,
    owner: FileOwner,
    path: &Path,
    own: bool,
) -> Result<(), VolumeError> {
    let made = |error| failed("make the folder", path, error);
    match rustix::fs::mkdirat(parent, name, Mode::from(0o700)) {
        Ok(()) => {}
        Err(Errno::EXIST) if own => {}
        Err(Errno::EXIST) => return Ok(()),
        Err(error) => return Err(made(error)),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(made)?;
    rustix::fs::fchown(&folder, Some(uid(owner)), Some(gid(owner)))
        .map_err(|error| failed("give the folder its owner", path, error))?;
    // After the owner: changing the owner clears mode bits.
    let folder = File::from(folder);
    folder
        .set_permissions(Permissions::from_mode(owner.mode))
        .and_then(|()| folder.sync_all())
        .map_err(|error| system("give the folder its mode", path, error))
}

fn uid(owner: FileOwner) -> Uid {
    Uid::from_raw(owner.uid)
}

fn gid(owner: FileOwner) -> Gid {
    Gid::from_raw(owner.gid)
}

fn failed(verb: &'static str, path: &Path, error: Errno) -> VolumeError {
    match error {
        Errno::NOENT => VolumeError::Missing(path.to_owned()),
        Errno::LOOP | Errno::XDEV => VolumeError::Link(path.to_owned()),
        Errno::NOTDIR => VolumeError::Unexpected {
            path: path.to_owned(),
            found: "something else",
            expected: "a folder",
        },
        error => system(verb, path, error.into()),
    }
}

fn system(verb: &'static str, path: &Path, error: io::Error) -> VolumeError {
    VolumeError::System {
        verb,
        path: path.to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const OWNER: FileOwner = FileOwner {
        uid: 20_003,
        gid: 20_003,
        mode: 0o2770,
    };

    fn base() -> (tempfile::TempDir, BaseFolder) {
        let folder = tempfile::tempdir().unwrap();
        let base = BaseFolder::open(folder.path()).unwrap();
        (folder, base)
    }

    #[test]
    fn a_folder_is_made_once_and_then_left_alone() {
        let (folder, base) = base();
        let path = Path::new("default/db/data");
        assert!(matches!(
            base.folder(path, None),
            Err(VolumeError::Missing(_))
        ));
        assert_eq!(base.folder(path, Some(OWNER)).unwrap(), EnsureResult::Made);
        let made = fs::metadata(folder.path().join(path)).unwrap();
        assert_eq!((made.uid(), made.gid()), (20_003, 20_003));
        assert_eq!(made.mode() & 0o7777, 0o2770);
        let above = fs::metadata(folder.path().join("default/db")).unwrap();
        assert_eq!((above.uid(), above.mode() & 0o7777), (0, 0o755));
        fs::set_permissions(folder.path().join(path), Permissions::from_mode(0o700)).unwrap();
        assert_eq!(base.folder(path, Some(OWNER)).unwrap(), EnsureResult::There);
        let kept = fs::metadata(folder.path().join(path)).unwrap();
        assert_eq!(kept.mode() & 0o7777, 0o700);
        assert_eq!(base.owner_of(path).unwrap(), (20_003, 20_003));
    }

    #[test]
    fn no_link_is_followed_wherever_it_stands() {
        let (folder, base) = base();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::create_dir(elsewhere.path().join("in")).unwrap();
        symlink(elsewhere.path(), folder.path().join("link")).unwrap();
        symlink("/etc/passwd", folder.path().join("file")).unwrap();
        for path in ["link", "link/in", "link/new", "file"] {
            let path = Path::new(path);
            let error = base.folder(path, Some(OWNER)).unwrap_err();
            assert!(matches!(error, VolumeError::Link(_)), "{error}");
            let error = base.file(path, Some(OWNER)).unwrap_err();
            assert!(matches!(error, VolumeError::Link(_)), "{error}");
            assert!(base.is_there(path).is_err());
        }
        assert!(base.folder(Path::new("../up"), Some(OWNER)).is_err());
        assert!(!elsewhere.path().join("new").exists());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_is_made_and_another_kind_is_told() {
        let (folder, base) = base();
        let path = Path::new("conf/app.ini");
        assert_eq!(base.file(path, Some(OWNER)).unwrap(), EnsureResult::Made);
        assert_eq!(base.file(path, None).unwrap(), EnsureResult::There);
        let made = fs::metadata(folder.path().join(path)).unwrap();
        assert_eq!((made.uid(), made.mode() & 0o7777), (20_003, 0o600));
        let error = base.folder(path, Some(OWNER)).unwrap_err();
        assert!(error.to_string().ends_with("expected a folder"), "{error}");
        let error = base.is_kind(path, EnsureType::Socket).unwrap_err();
        assert!(
            error.to_string().ends_with("is a file, expected a socket"),
            "{error}"
        );
        let error = base.file(Path::new("conf"), Some(OWNER)).unwrap_err();
        assert!(
            error.to_string().ends_with("is a folder, expected a file"),
            "{error}"
        );
    }

    #[test]
    fn what_a_link_in_it_leads_to_is_not_removed_with_a_folder() {
        let (folder, base) = base();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("kept"), "kept").unwrap();
        base.folder(Path::new("data"), Some(OWNER)).unwrap();
        symlink(elsewhere.path(), folder.path().join("data/link")).unwrap();
        assert!(remove_folder(&folder.path().join("data")).unwrap());
        assert!(!remove_folder(&folder.path().join("data")).unwrap());
        assert!(elsewhere.path().join("kept").exists());
    }
}
