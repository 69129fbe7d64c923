//! A user's unit files: written, linked one by one, removed. What is not marked is not touched.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::service::paths::{SYSTEM_UNITS, UNITS, UserFolders};
use kat_host::files::{self, Access, FileError};
use kat_render::{HostFile, MARK, UnitFile, UnitFileKind, VALUE_SUFFIX};
use kat_systemd::UnitStatus;
use kat_types::{assignment::main_unit, root::Root};

/// Name of the drop-in of `user@UID.service`.
const DELEGATION: &str = "50-kat.conf";
/// A larger file is no quadlet of KAT's.
const QUADLET_LIMIT: u64 = 1 << 20;

/// What could not be done with a file.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A folder's listing.
    #[error("{path}: {source}")]
    Folder {
        /// The folder or link.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The folders of one user.
pub(crate) struct UnitFolder {
    folders: UserFolders,
    uid: u32,
}

impl UnitFolder {
    /// Nothing is made until the first write.
    pub(crate) fn new(folders: UserFolders, uid: u32) -> Self {
        Self { folders, uid }
    }

    /// Main units of instances of which files are here and marked, with the instances' ids: also where only files of
    /// other containers of theirs are left.
    pub(crate) fn instances(&self) -> Result<BTreeMap<String, String>, FilesError> {
        let mut found = BTreeMap::new();
        for name in self.names()? {
            let Some(stem) = name.strip_suffix(".container") else {
                continue;
            };
            let Ok(text) = std::fs::read_to_string(self.folders.units.join(&name)) else {
                continue;
            };
            if let Some(instance) = marked_instance(&text) {
                let unit = format!("{stem}.service");
                found.insert(main_unit(&unit).into_owned(), instance);
            }
        }
        Ok(found)
    }

    /// A quadlet of the instance with this main unit is here.
    pub(crate) fn has(&self, unit: &str) -> bool {
        self.quadlet(unit).is_some_and(|path| path.exists())
            || self.others(unit).is_ok_and(|others| !others.is_empty())
    }

    /// Units of the other containers of an instance, as their files say, in the order in which they are stopped:
    /// sidecars, init containers, and what holds their network.
    pub(crate) fn others(&self, unit: &str) -> Result<Vec<String>, FilesError> {
        let beside = format!("{}_", stem(unit));
        let rank = |name: &String| {
            let what = name.strip_prefix(&beside).unwrap_or_default();
            match what {
                _ if what.starts_with("side-") => 0,
                _ if what.starts_with("init-") => 1,
                _ => 2,
            }
        };
        let mut names = self.names()?;
        names.retain(|name| {
            name.starts_with(&beside) && name.ends_with(".container") && self.is_ours(name)
        });
        names.sort_by_key(rank);
        let units = names.iter().filter_map(|name| {
            let stem = name.strip_suffix(".container")?;
            Some(format!("{stem}.service"))
        });
        Ok(units.collect())
    }

    /// The unit's state says that nothing of it runs and systemd will not start it again.
    pub(crate) fn is_over(&self, status: &UnitStatus) -> bool {
        // A unit whose file is gone is `not-found`, and runs on all the same.
        status.active_state.is_down()
    }

    /// Writes what differs, links it, and, with `tidy`, removes files of images that no instance
    /// needs. True when the manager has to reload.
    pub(crate) fn write(&self, wanted: &[UnitFile], tidy: bool) -> Result<bool, FilesError> {
        let access = Access::owned(0o640, 0, self.uid);
        make_folder(&self.folders.units, Access::owned(0o750, 0, self.uid))?;
        make_folder(&self.folders.links, Access::mode(0o755))?;
        let mut changed = false;
        for file in wanted {
            let path = self.folders.units.join(&file.name);
            let differs = files::write_if_changed(&path, file.text.as_bytes(), access)?;
            if file.kind == UnitFileKind::Quadlet {
                let linked = self.link(&file.name)?;
                changed |= differs || linked;
            }
        }
        if tidy {
            let names: BTreeSet<&str> = wanted.iter().map(|file| file.name.as_str()).collect();
            for name in self.names()?.iter().filter(|name| name.ends_with(".image")) {
                if !names.contains(name.as_str()) && self.is_ours(name) {
                    self.unlink(name)?;
                    changed = true;
                }
            }
        }
        Ok(changed)
    }

    /// Removes the files of one instance, those of its other containers first.
    pub(crate) fn remove(&self, unit: &str) -> Result<(), FilesError> {
        for unit in self.others(unit)?.iter().map(String::as_str).chain([unit]) {
            let stem = stem(unit);
            let beside = format!("{stem}.");
            let is_value =
                |name: &String| name.starts_with(&beside) && name.ends_with(VALUE_SUFFIX);
            for name in self.names()?.iter().filter(|name| is_value(name)) {
                self.unlink(name)?;
            }
            // Its quadlet last: the others are found by it. Earlier versions wrote the second one.
            for suffix in ["env", "manager.env", "container"] {
                self.unlink(&format!("{stem}.{suffix}"))?;
            }
        }
        Ok(())
    }

    /// Whether anything of KAT's is here.
    pub(crate) fn has_any(&self) -> bool {
        self.names()
            .is_ok_and(|names| names.iter().any(|name| self.is_ours(name)))
    }

    /// Removes what is KAT's of both folders, and the folders if that leaves them empty.
    pub(crate) fn remove_all(&self) -> Result<(), FilesError> {
        for name in self.names()?.iter().filter(|name| self.is_ours(name)) {
            self.unlink(name)?;
        }
        for folder in [&self.folders.links, &self.folders.units] {
            match std::fs::remove_dir(folder) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                // Someone else's quadlets lie there.
                Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {}
                Err(source) => {
                    return Err(FilesError::Folder {
                        path: folder.clone(),
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    /// Writes the drop-in that delegates the controllers to the user's manager.
    pub(crate) fn write_delegation(&self, root: &Path, text: &str) -> Result<bool, FilesError> {
        let path = self.delegation(root);
        write_public(&path, text)
    }

    /// Removes that drop-in. True when the system's manager has to reload.
    pub(crate) fn remove_delegation(&self, root: &Path) -> Result<bool, FilesError> {
        let path = self.delegation(root);
        let was_there = path.exists();
        files::remove(&path)?;
        if let Some(folder) = path.parent() {
            // It stays if someone else has a drop-in there.
            let _ = std::fs::remove_dir(folder);
        }
        Ok(was_there)
    }

    /// Writes the resolv.conf of a namespace's containers.
    pub(crate) fn write_resolv(&self, root: &Path, file: &HostFile) -> Result<(), FilesError> {
        write_public(&Root::new(root).below(&file.path), &file.text).map(drop)
    }

    fn delegation(&self, root: &Path) -> PathBuf {
        Root::new(root)
            .below(SYSTEM_UNITS)
            .join(format!("user@{}.service.d", self.uid))
            .join(DELEGATION)
    }

    fn quadlet(&self, unit: &str) -> Option<PathBuf> {
        unit.strip_suffix(".service")
            .map(|stem| self.folders.units.join(format!("{stem}.container")))
    }

    /// Whether a file is one that KAT wrote: a quadlet by its mark; files of variables and what a
    /// write left half made, which can bear none, by their names.
    fn is_ours(&self, name: &str) -> bool {
        let path = self.folders.units.join(name);
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        let marked = || {
            files::read_text(&path, QUADLET_LIMIT)
                .is_ok_and(|text| text.lines().any(|line| line == MARK))
        };
        is_file
            && (name.starts_with(".kat-")
                || (name.starts_with("kat-")
                    && (name.ends_with(".env") || name.ends_with(VALUE_SUFFIX)))
                || ((name.ends_with(".container") || name.ends_with(".image")) && marked()))
    }

    fn names(&self) -> Result<Vec<String>, FilesError> {
        let failed = |source| FilesError::Folder {
            path: self.folders.units.clone(),
            source,
        };
        let entries = match std::fs::read_dir(&self.folders.units) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(
                entry
                    .map_err(failed)?
                    .file_name()
                    .to_string_lossy()
                    .into_owned(),
            );
        }
        names.sort();
        Ok(names)
    }

    /// Makes the link that Podman's generator finds. True when it was not there.
    fn link(&self, name: &str) -> Result<bool, FilesError> {
        let (link, target) = (self.folders.links.join(name), self.folders.units.join(name));
        if std::fs::read_link(&link).is_ok_and(|present| present == target) {
            return Ok(false);
        }
        match std::fs::read_link(&link) {
            // An old link of KAT's.
            Ok(present) if present.starts_with(&self.folders.units) => drop(files::remove(&link)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Ok(_) | Err(_) => {
                let source = std::io::Error::other("it is not KAT's; move it away");
                return Err(FilesError::Folder { path: link, source });
            }
        }
        std::os::unix::fs::symlink(&target, &link)
            .map_err(|source| FilesError::Folder { path: link, source })?;
        Ok(true)
    }

    fn unlink(&self, name: &str) -> Result<(), FilesError> {
        let (link, target) = (self.folders.links.join(name), self.folders.units.join(name));
        if std::fs::read_link(&link).is_ok_and(|present| present == target) {
            files::remove(&link)?;
        }
        files::remove(&target)?;
        Ok(())
    }
}

/// Users who have a folder of unit files below `root`.
pub(crate) fn users(root: &Path) -> Vec<u32> {
    std::fs::read_dir(Root::new(root).below(UNITS))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Removes what is KAT's of every user's unit files, and their folder if that leaves it empty.
pub(crate) fn remove_every_users(root: &Path) -> Result<(), FilesError> {
    for uid in users(root) {
        UnitFolder::new(UserFolders::new(root, uid), uid).remove_all()?;
    }
    // It stays where somebody else keeps something in it.
    let _ = std::fs::remove_dir(Root::new(root).below(UNITS));
    Ok(())
}

fn write_public(path: &Path, text: &str) -> Result<bool, FilesError> {
    if let Some(folder) = path.parent() {
        make_folder(folder, Access::mode(0o755))?;
    }
    Ok(files::write_if_changed(
        path,
        text.as_bytes(),
        Access::mode(0o644),
    )?)
}

/// Makes a folder, and those above it that are missing as 0755.
pub(crate) fn make_folder(path: &Path, access: Access) -> Result<(), FilesError> {
    if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
        make_folder(parent, Access::mode(0o755))?;
    }
    Ok(files::ensure_folder(path, access)?)
}

fn stem(unit: &str) -> &str {
    unit.strip_suffix(".service").unwrap_or(unit)
}

/// The instance that a quadlet with KAT's mark belongs to.
fn marked_instance(text: &str) -> Option<String> {
    let (_, marked) = text.split_once(MARK)?;
    let section = marked.split("\n[").next()?;
    section
        .lines()
        .find_map(|line| {
            let instance = line.strip_prefix("Instance=");
            instance.or_else(|| line.strip_prefix("PartOf="))
        })
        .map(str::to_owned)
}
