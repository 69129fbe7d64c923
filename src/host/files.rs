//! Atomic writes and bounded reads of files.
//!
//! These calls block for as long as the disk does; async code should call them on a blocking thread
//! where that matters.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: can't {verb}: {error}", path.display())]
    System {
        /// The operation that failed.
        verb: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    #[error("{}: larger than {limit} bytes", path.display())]
    TooLarge {
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// The content is not UTF-8.
    #[error("{}: not UTF-8", path.display())]
    NotText {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another kind of file is at the path.
    #[error("{}: is {found}, expected {expected}", path.display())]
    Unexpected {
        path: PathBuf,
        /// The kind that was found.
        found: String,
        /// The kind that was expected.
        expected: String,
    },
}

impl FileError {
    fn system(verb: &'static str, path: &Path, error: io::Error) -> Self {
        Self::System {
            verb,
            path: path.to_owned(),
            error,
        }
    }

    /// Whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::System { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Mode and owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileAccess {
    pub mode: u32,
    /// Uid and gid; `None` for the writing process's own.
    pub owner: Option<(u32, u32)>,
}

impl FileAccess {
    /// The mode, with the writing process as owner.
    pub fn mode(mode: u32) -> Self {
        Self { mode, owner: None }
    }

    pub fn owned(mode: u32, uid: u32, gid: u32) -> Self {
        Self {
            mode,
            owner: Some((uid, gid)),
        }
    }
}

/// Encodes a file's content as JSON.
///
/// # Errors
/// [`FileError::System`], where the value can't be encoded: no other content is written instead.
pub fn json_of<T: serde::Serialize + ?Sized>(path: &Path, value: &T) -> Result<Vec<u8>, FileError> {
    kat_types::encoding::json::bytes(&path.display().to_string(), value).map_err(|error| {
        FileError::System {
            verb: "write",
            path: path.to_owned(),
            error: error.into(),
        }
    })
}

/// Replaces a file with the JSON of the value, mode 0600; see [`write_atomic`].
pub fn write_json<T: serde::Serialize + ?Sized>(path: &Path, value: &T) -> Result<(), FileError> {
    write_atomic(path, &json_of(path, value)?, FileAccess::mode(0o600))
}

/// Random characters at the end of a temporary file's name.
const RANDOM: usize = 6;

/// Replaces a file atomically: a reader finds the old content or the new one, also after a crash.
///
/// The new content is written to a temporary file beside it, with mode and owner, synced and
/// renamed; then the folder is synced.
pub fn write_atomic(path: &Path, content: &[u8], access: FileAccess) -> Result<(), FileError> {
    let (folder, name) = match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) if folder.as_os_str().is_empty() => (Path::new("."), name),
        (Some(folder), Some(name)) => (folder, name),
        _ => {
            return Err(FileError::Unexpected {
                path: path.to_owned(),
                found: "no name of a file".to_owned(),
                expected: "one".to_owned(),
            });
        }
    };
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    let mut file = tempfile::Builder::new()
        .prefix(&prefix)
        .rand_bytes(RANDOM)
        .tempfile_in(folder)
        .map_err(|error| FileError::system("write beside it", path, error))?;
    file.write_all(content)
        .and_then(|()| match access.owner {
            Some((uid, gid)) => fchown(file.as_file(), Some(uid), Some(gid)),
            None => Ok(()),
        })
        // After the owner: changing the owner clears mode bits.
        .and_then(|()| {
            file.as_file()
                .set_permissions(Permissions::from_mode(access.mode))
        })
        .and_then(|()| file.as_file().sync_all())
        .map_err(|error| FileError::system("write", path, error))?;
    file.persist(path)
        .map_err(|error| FileError::system("replace", path, error.error))?;
    sync_folder(folder)
}

/// Like [`write_atomic`], but leaves a file alone that already has this content, mode and owner.
/// Returns whether it wrote.
pub fn write_if_changed(
    path: &Path,
    content: &[u8],
    access: FileAccess,
) -> Result<bool, FileError> {
    if let Ok(metadata) = fs::symlink_metadata(path)
        && metadata.is_file()
        && metadata.len() == content.len() as u64
        && metadata.mode() & 0o7777 == access.mode
        && access
            .owner
            .is_none_or(|owner| owner == (metadata.uid(), metadata.gid()))
        && fs::read(path).is_ok_and(|found| found == content)
    {
        return Ok(false);
    }
    write_atomic(path, content, access)?;
    Ok(true)
}

/// Reads a file of at most `limit` bytes.
pub fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let mut content = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limit.saturating_add(1)).read_to_end(&mut content))
        .map_err(|error| FileError::system("read", path, error))?;
    if content.len() as u64 > limit {
        return Err(FileError::TooLarge {
            path: path.to_owned(),
            limit,
        });
    }
    Ok(content)
}

/// Opens a file in a folder that a user owns: a symbolic link, a pipe or a device in its place is
/// an error, and none of them blocks the caller.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    Ok(file)
}

/// Reads a text of at most `limit` bytes.
pub fn read_text(path: &Path, limit: u64) -> Result<String, FileError> {
    String::from_utf8(read_bounded(path, limit)?).map_err(|_| FileError::NotText {
        path: path.to_owned(),
    })
}

/// Removes a file; returns whether it existed.
pub fn remove(path: &Path) -> Result<bool, FileError> {
    match fs::remove_file(path) {
        Ok(()) => {
            if let Some(folder) = path.parent() {
                sync_folder(folder)?;
            }
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(FileError::system("remove", path, error)),
    }
}

/// Removes the temporary files of [`write_atomic`] from a folder: a process that was killed, or a
/// power cut, leaves them. Nothing may write in the folder at that time.
pub fn remove_unfinished(folder: &Path) -> Result<(), FileError> {
    let failed = |error| FileError::system("look into", folder, error);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && name.to_str().is_some_and(is_temporary) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Whether it is a name that [`write_atomic`] gives: `.NAME.` and the random characters of tempfile.
fn is_temporary(name: &str) -> bool {
    let parts = name
        .strip_prefix('.')
        .and_then(|rest| rest.rsplit_once('.'));
    parts.is_some_and(|(stem, random)| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric();
        !stem.is_empty() && random.len() == RANDOM && random.bytes().all(plain)
    })
}

/// Makes a folder with this mode and owner, or sets them on an existing one. Its parent must exist.
/// A symbolic link in its place is an error.
pub fn ensure_folder(path: &Path, access: FileAccess) -> Result<(), FileError> {
    match fs::DirBuilder::new().mode(access.mode).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(FileError::system("make the folder", path, error)),
    }
    let flags =
        rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .map(File::from)
        .map_err(|error| match error {
            rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP => FileError::Unexpected {
                path: path.to_owned(),
                found: "something else".to_owned(),
                expected: "a folder".to_owned(),
            },
            error => FileError::system("open the folder", path, error.into()),
        })?;
    let adjust = || {
        if let Some((uid, gid)) = access.owner {
            fchown(&folder, Some(uid), Some(gid))?;
        }
        folder.set_permissions(Permissions::from_mode(access.mode))
    };
    adjust().map_err(|error| FileError::system("give the folder its owner", path, error))
}

/// Syncs a folder's entries to the disk.
pub fn sync_folder(folder: &Path) -> Result<(), FileError> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    File::open(folder)
        .and_then(|open| open.sync_all())
        .map_err(|error| FileError::system("bring to disk", folder, error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn unfinished_writes_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            ".node.json.a1B2c3",
            ".node.json.a1B2c",
            ".profile",
            "node.json",
            "x.a1B2c3",
            "..a1B2c3",
        ] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        fs::create_dir(folder.path().join(".folder.a1B2c3")).unwrap();
        symlink("node.json", folder.path().join(".link.a1B2c3")).unwrap();
        remove_unfinished(folder.path()).unwrap();
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "..a1B2c3",
                ".folder.a1B2c3",
                ".link.a1B2c3",
                ".node.json.a1B2c",
                ".profile",
                "node.json",
                "x.a1B2c3",
            ]
        );
        remove_unfinished(&folder.path().join("none")).unwrap();
    }

    #[test]
    fn replaces_a_file_whole_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write_atomic(&path, b"one", FileAccess::mode(0o640)).unwrap();
        write_atomic(&path, b"two", FileAccess::mode(0o600)).unwrap();
        assert_eq!(read_text(&path, 3).unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1);
    }

    #[test]
    fn replaces_a_link_and_not_what_it_points_to() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        let path = folder.path().join("link");
        fs::write(&target, "kept").unwrap();
        symlink(&target, &path).unwrap();
        assert!(write_if_changed(&path, b"kept", FileAccess::mode(0o644)).unwrap());
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }

    #[test]
    fn writes_only_what_differs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unit");
        let access = FileAccess::mode(0o640);
        assert!(write_if_changed(&path, b"text", access).unwrap());
        let before = fs::metadata(&path).unwrap().ino();
        assert!(!write_if_changed(&path, b"text", access).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().ino(), before);
        assert!(write_if_changed(&path, b"text", FileAccess::mode(0o600)).unwrap());
        assert!(write_if_changed(&path, b"texT", FileAccess::mode(0o600)).unwrap());
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none/file");
        let error = write_atomic(&path, b"", FileAccess::mode(0o600)).unwrap_err();
        assert!(error.to_string().contains("none/file"), "{error}");
        let error = read_bounded(&path, 9).unwrap_err();
        assert!(error.is_not_found() && error.to_string().contains("none/file"));
        let large = folder.path().join("large");
        fs::write(&large, "1234").unwrap();
        assert_eq!(read_bounded(&large, 4).unwrap(), b"1234");
        let error = read_bounded(&large, 3).unwrap_err();
        assert!(matches!(error, FileError::TooLarge { limit: 3, .. }));
        fs::write(&large, [0xff]).unwrap();
        assert!(matches!(
            read_text(&large, 9),
            Err(FileError::NotText { .. })
        ));
        assert!(!remove(&folder.path().join("gone")).unwrap());
    }

    #[test]
    fn makes_folders_but_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        ensure_folder(&path, FileAccess::mode(0o711)).unwrap();
        ensure_folder(&path, FileAccess::mode(0o700)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        let error = ensure_folder(&link, FileAccess::mode(0o755)).unwrap_err();
        assert!(matches!(error, FileError::Unexpected { .. }), "{error}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
    }
}
