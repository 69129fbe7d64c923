//! Removes a user's home with everything that the user left in it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::mount::{UnmountFlags, unmount};

use crate::{files::FileError, mounts::unescape};

/// Removes a home and everything in it; does nothing if it does not exist.
///
/// The parent folder is root's, so that no user can replace the home. Inside the home its owner may
/// have made symbolic links (these are removed and not followed: the standard library opens folder
/// by folder) and, with a set-uid helper, mounts (these are detached first).
pub(super) fn remove(home: &Path) -> Result<(), FileError> {
    let failed = |verb: &'static str, error: io::Error| FileError::System {
        verb,
        path: home.to_owned(),
        error,
    };
    match fs::symlink_metadata(home) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", error)),
        Ok(metadata) if !metadata.is_dir() => {
            return Err(FileError::Unexpected {
                path: home.to_owned(),
                found: "something else".to_owned(),
                expected: "a folder".to_owned(),
            });
        }
        Ok(_) => {}
    }
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    for mount in mounts_below(&mounts, home) {
        unmount(&mount, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
            .map_err(|error| failed("take a mount off", error.into()))?;
    }
    match fs::remove_dir_all(home) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("remove the home", error)),
        Ok(()) => Ok(()),
    }
}

/// Mount points strictly below a folder, the latest mount first (proc_pid_mountinfo(5)).
fn mounts_below(mountinfo: &[u8], folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(unescape)
        .filter(|mount| mount.starts_with(folder) && mount != folder)
        .collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn finds_mounts_below_only() {
        let info = b"1 2 0:1 / /var/lib/kat/users/a rw - ext4 x rw\n\
            1 2 0:1 / /var/lib/kat/users/a/m\\040n rw - fuse x rw\n\
            1 2 0:1 / /var/lib/kat/users/a/m\\040n/o rw - fuse x rw\n\
            1 2 0:1 / /var/lib/kat/users/ab/m rw - fuse x rw\n";
        assert_eq!(
            mounts_below(info, Path::new("/var/lib/kat/users/a")),
            [
                PathBuf::from("/var/lib/kat/users/a/m n/o"),
                PathBuf::from("/var/lib/kat/users/a/m n"),
            ]
        );
    }

    #[test]
    fn removes_links_and_not_what_they_point_to() {
        let folder = tempfile::tempdir().unwrap();
        let precious = folder.path().join("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("file"), "kept").unwrap();
        let home = folder.path().join("home");
        fs::create_dir_all(home.join("deep/er")).unwrap();
        symlink(&precious, home.join("deep/link")).unwrap();
        remove(&home).unwrap();
        remove(&home).unwrap();
        assert!(!home.exists());
        assert!(precious.join("file").exists());
        symlink(&precious, &home).unwrap();
        remove(&home).unwrap_err();
        assert!(precious.join("file").exists());
    }
}
