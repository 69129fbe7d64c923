//! Links KAT's unit files into the folder that Podman's generator reads.
//!
//! The unit files of a user lie in `/var/lib/kat/units/UID` and are linked one by one into the real
//! folder `/etc/containers/systemd/users/UID`. The folder itself is never a link: Podman 5.4 would
//! load its files for every user.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Folder of KAT's unit files, below the root folder.
const KEPT: &str = "var/lib/kat/units";
/// Folder that Podman's generator reads, below the root folder.
const READ: &str = "etc/containers/systemd/users";
/// File suffixes that the generator reads (podman-systemd.unit(5)).
const KINDS: [&str; 7] = [
    "container",
    "volume",
    "network",
    "kube",
    "image",
    "build",
    "pod",
];

#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub(crate) struct LinkFilesError {
    /// The file or folder.
    pub path: PathBuf,
    pub source: io::Error,
}

/// The result of a rebuild.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RebuiltLinks {
    pub made: Vec<PathBuf>,
    /// Dangling links of KAT's that were removed.
    pub removed: Vec<PathBuf>,
    /// Files in the place of a link that are not KAT's; they were left alone.
    pub conflicts: Vec<PathBuf>,
}

/// Makes missing links and removes dangling links of KAT's. `root` is `/` except in tests.
/// Blocking, and quick.
///
/// # Errors
/// The first file or folder that can't be read or changed.
pub(crate) fn rebuild(root: &Path) -> Result<RebuiltLinks, LinkFilesError> {
    let mut rebuilt = RebuiltLinks::default();
    let (kept, read) = (root.join(KEPT), root.join(READ));
    let mut users = users_in(&kept)?;
    users.extend(users_in(&read)?);
    for user in users {
        rebuild_user(root, &user, &mut rebuilt)?;
    }
    Ok(rebuilt)
}

fn rebuild_user(root: &Path, user: &str, rebuilt: &mut RebuiltLinks) -> Result<(), LinkFilesError> {
    let folder = root.join(READ).join(user);
    if fs::symlink_metadata(&folder).is_ok_and(|found| !found.is_dir()) {
        rebuilt.conflicts.push(folder);
        return Ok(());
    }
    let files = unit_files_in(&root.join(KEPT).join(user))?;
    if !files.is_empty() {
        fs::create_dir_all(&folder).map_err(at(&folder))?;
    }
    for name in &files {
        let link = folder.join(name);
        let target = Path::new("/").join(KEPT).join(user).join(name);
        match fs::symlink_metadata(&link) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                symlink(&target, &link).map_err(at(&link))?;
                rebuilt.made.push(link);
            }
            Err(error) => return Err(at(&link)(error)),
            Ok(_) if fs::read_link(&link).is_ok_and(|found| found == target) => {}
            Ok(_) => rebuilt.conflicts.push(link),
        }
    }
    remove_dangling(root, &folder, rebuilt)
}

/// Removes links into KAT's folder whose file is gone, and the folder when it is empty then.
fn remove_dangling(
    root: &Path,
    folder: &Path,
    rebuilt: &mut RebuiltLinks,
) -> Result<(), LinkFilesError> {
    let mut removed = false;
    for link in entries(folder)? {
        let path = folder.join(link);
        let Ok(target) = fs::read_link(&path) else {
            continue;
        };
        let Ok(inside) = target.strip_prefix("/") else {
            continue;
        };
        let ours = inside.starts_with(KEPT)
            && !inside
                .components()
                .any(|part| part == std::path::Component::ParentDir);
        let real = root.join(inside);
        let gone =
            fs::symlink_metadata(&real).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if ours && gone {
            fs::remove_file(&path).map_err(at(&path))?;
            rebuilt.removed.push(path);
            removed = true;
        }
    }
    if removed {
        // A folder that is not empty stays.
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}

fn users_in(folder: &Path) -> Result<BTreeSet<String>, LinkFilesError> {
    Ok(entries(folder)?
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|name| {
            name.parse::<u32>()
                .is_ok_and(|uid| uid.to_string() == *name)
        })
        .collect())
}

fn unit_files_in(folder: &Path) -> Result<Vec<OsString>, LinkFilesError> {
    let mut files = entries(folder)?;
    files.retain(|name| {
        let path = folder.join(name);
        let kind = path.extension().and_then(|kind| kind.to_str());
        kind.is_some_and(|kind| KINDS.contains(&kind))
            && fs::symlink_metadata(&path).is_ok_and(|found| found.is_file())
    });
    Ok(files)
}

/// The sorted names in a folder; empty if the folder does not exist.
fn entries(folder: &Path) -> Result<Vec<OsString>, LinkFilesError> {
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(at(folder))?,
    };
    let mut names = Vec::new();
    for entry in listed {
        names.push(entry.map_err(at(folder))?.file_name());
    }
    names.sort();
    Ok(names)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> LinkFilesError {
    let path = path.to_owned();
    move |source| LinkFilesError { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str) -> PathBuf {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "[Container]\n").unwrap();
        path
    }

    #[test]
    fn links_are_made_one_by_one_and_only_once() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        put(
            root,
            "var/lib/kat/units/20001/kat-default-web-ab12c.container",
        );
        put(root, "var/lib/kat/units/20001/web.image");
        put(root, "var/lib/kat/units/20001/note.txt");
        put(root, "var/lib/kat/units/notes/web.container");
        let rebuilt = rebuild(root).unwrap();
        assert_eq!(rebuilt.made.len(), 2);
        assert!(rebuilt.conflicts.is_empty());
        let folder = root.join("etc/containers/systemd/users/20001");
        assert!(fs::symlink_metadata(&folder).unwrap().is_dir());
        assert_eq!(
            fs::read_link(folder.join("web.image")).unwrap(),
            Path::new("/var/lib/kat/units/20001/web.image")
        );
        assert_eq!(rebuild(root).unwrap(), RebuiltLinks::default());
    }

    #[test]
    fn only_dangling_links_of_kat_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let kept = put(root, "var/lib/kat/units/20001/web.container");
        rebuild(root).unwrap();
        let folder = root.join("etc/containers/systemd/users/20001");
        symlink("/opt/gone.container", folder.join("theirs.container")).unwrap();
        symlink(
            "/var/lib/kat/units/../../../opt/x",
            folder.join("odd.container"),
        )
        .unwrap();
        fs::remove_file(kept).unwrap();
        let rebuilt = rebuild(root).unwrap();
        assert_eq!(rebuilt.removed, [folder.join("web.container")]);
        assert!(fs::symlink_metadata(folder.join("theirs.container")).is_ok());
        assert!(fs::symlink_metadata(folder.join("odd.container")).is_ok());
    }

    #[test]
    fn a_user_that_is_gone_leaves_no_folder() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        put(root, "var/lib/kat/units/20001/web.container");
        rebuild(root).unwrap();
        fs::remove_dir_all(root.join("var/lib/kat/units/20001")).unwrap();
        assert_eq!(rebuild(root).unwrap().removed.len(), 1);
        assert!(!root.join("etc/containers/systemd/users/20001").exists());
    }

    #[test]
    fn what_is_in_the_way_is_told_and_left() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        put(root, "var/lib/kat/units/20001/web.container");
        put(root, "var/lib/kat/units/20002/web.container");
        let own = put(root, "etc/containers/systemd/users/20001/web.container");
        let users = root.join("etc/containers/systemd/users");
        symlink(root.join("var/lib/kat/units/20002"), users.join("20002")).unwrap();
        let rebuilt = rebuild(root).unwrap();
        assert_eq!(rebuilt.conflicts, [own.clone(), users.join("20002")]);
        assert!(rebuilt.made.is_empty());
        assert!(fs::symlink_metadata(own).unwrap().is_file());
    }
}
