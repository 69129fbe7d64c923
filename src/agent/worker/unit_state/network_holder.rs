//! The root file system of the containers that hold networks (`unit-templates/network.container`):
//! empty files and folders as mount points for Podman, and links into the machine's `/usr`, which
//! is mounted there read-only. It holds no data.

use std::{io, os::unix::fs::symlink};

use crate::{
    service::paths,
    worker::unit_state::unit_files::{FilesError, make_folder},
};
use kat_host::files::{self, FileAccess};
use kat_types::machine::root::Root;

/// Folders that serve as mount points.
const FOLDERS: [&str; 9] = [
    "usr",
    "proc",
    "sys",
    "dev",
    "etc",
    "run",
    "run/secrets",
    "tmp",
    "var",
];
/// Files that serve as mount points.
const FILES: [&str; 5] = [
    "etc/hosts",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/mtab",
    "run/.containerenv",
];
/// Links at the usual paths of programs and libraries.
const LINKS: [(&str, &str); 4] = [
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
];

/// Makes the missing files, folders and links below `root`, which is `/` on a real machine.
///
/// # Errors
/// A file can't be made.
pub(crate) fn prepare(root: &Root) -> Result<(), FilesError> {
    let holder = root.below(paths::HOLDER);
    for folder in FOLDERS {
        let folder = holder.join(folder);
        if !folder.is_dir() {
            make_folder(&folder, FileAccess::mode(0o755))?;
        }
    }
    for file in FILES {
        let file = holder.join(file);
        if !file.exists() {
            files::write_atomic(&file, b"", FileAccess::mode(0o644))?;
        }
    }
    for (name, target) in LINKS {
        let path = holder.join(name);
        match symlink(target, &path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(FilesError::Folder { path, source });
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_is_missing_is_made_and_what_is_there_stays() {
        let root = tempfile::tempdir().unwrap();
        prepare(&Root::new(root.path())).unwrap();
        let holder = root.path().join("var/lib/kat/holder");
        std::fs::remove_file(holder.join("lib")).unwrap();
        std::fs::remove_dir(holder.join("proc")).unwrap();
        prepare(&Root::new(root.path())).unwrap();
        assert!(holder.join("proc").is_dir());
        let lib = std::fs::read_link(holder.join("lib")).unwrap();
        assert_eq!(lib, Path::new("usr/lib"));
    }
}
