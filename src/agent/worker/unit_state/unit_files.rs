//! A user's unit files: written, linked one by one, removed. Files without KAT's mark are not
//! touched.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    service::paths::{EARLY_UNITS, JOB_RUNS, SYSTEM_UNITS, UNITS, UserFolders},
    worker::{
        running::bound_files::BoundFiles,
        unit_state::early_units::{EarlyUnits, unit_of},
    },
};
use kat_host::files::{self, FileAccess, FileError};
use kat_render::{HostFile, MARK, UnitFile, UnitFileKind, VALUE_SUFFIX};
use kat_systemd::UnitStatus;
use kat_types::{assignment::main_unit, machine::root::Root};

/// Name of the drop-in of `user@UID.service`.
const DELEGATION: &str = "50-kat.conf";
/// Largest file that is read as a quadlet of KAT's, in bytes.
const QUADLET_LIMIT: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path}: {source}")]
    Folder {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// The folders of one user.
pub(crate) struct UnitFolder {
    folders: UserFolders,
    pub early: EarlyUnits,
    uid: u32,
}

/// What changed for the user's manager.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitChanges {
    /// Units of quadlets that were not here before.
    pub added: BTreeSet<String>,
    /// A quadlet was changed or removed.
    pub others: bool,
}

impl UnitFolder {
    /// Makes no folder until the first write.
    pub(crate) fn new(root: &Root, uid: u32) -> Self {
        Self {
            folders: UserFolders::new(root, uid),
            early: EarlyUnits::new(root, uid),
            uid,
        }
    }

    /// Main units of instances with marked files here, with the instances' ids. This includes
    /// instances of which only files of other containers are left.
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

    /// The files about the runs that an instance's machine begins by itself.
    pub(crate) fn bound_files(&self, unit: &str, instance: &str) -> BoundFiles {
        BoundFiles {
            table: self.folders.units.join(format!("{}.times", stem(unit))),
            runs: self.folders.runs.join(instance),
            uid: self.uid,
        }
    }

    /// Removes the files of runs of all instances but these.
    pub(crate) fn keep_runs(&self, kept: &BTreeSet<&str>) -> Result<(), FilesError> {
        let entries = std::fs::read_dir(&self.folders.runs);
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.to_str().is_none_or(|name| !kept.contains(name)) {
                files::remove(&entry.path())?;
            }
        }
        if kept.is_empty() {
            // It stays if there is anything that is not KAT's.
            let _ = std::fs::remove_dir(&self.folders.runs);
        }
        Ok(())
    }

    /// Removes the tables of times of all instances but those with these main units.
    pub(crate) fn keep_tables(&self, units: &BTreeSet<String>) -> Result<(), FilesError> {
        for name in self.names()? {
            let Some(stem) = name.strip_suffix(".times") else {
                continue;
            };
            if self.is_ours(&name) && !units.contains(&format!("{stem}.service")) {
                self.unlink(&name)?;
            }
        }
        Ok(())
    }

    /// Whether a quadlet of the instance with this main unit is here.
    pub(crate) fn has(&self, unit: &str) -> bool {
        self.quadlet(unit).is_some_and(|path| path.exists())
            || self
                .other_units(unit)
                .is_ok_and(|others| !others.is_empty())
    }

    /// Units of the other containers of an instance, found by their files, in the order in which
    /// they are stopped: sidecars, init containers, and the network holder.
    pub(crate) fn other_units(&self, unit: &str) -> Result<Vec<String>, FilesError> {
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

    /// Whether the unit has ended and systemd will not restart it.
    pub(crate) fn is_over(&self, status: &UnitStatus) -> bool {
        // A unit whose file was removed is `not-found`, and may still run.
        status.active_state.is_down()
    }

    /// Writes files that differ, links them, and with `tidy` removes files of images that no
    /// instance needs.
    pub(crate) fn write(&self, wanted: &[UnitFile], tidy: bool) -> Result<UnitChanges, FilesError> {
        let access = FileAccess::owned(0o640, 0, self.uid);
        make_folder(&self.folders.units, FileAccess::owned(0o750, 0, self.uid))?;
        make_folder(&self.folders.links, FileAccess::mode(0o755))?;
        let mut changes = UnitChanges::default();
        for file in wanted {
            let path = self.folders.units.join(&file.name);
            let is_new = !path.exists();
            if is_new && file.kind == UnitFileKind::Quadlet {
                self.early.mark();
                self.early.remove(&unit_of(&file.name))?;
            }
            let differs = files::write_if_changed(&path, file.text.as_bytes(), access)?;
            if file.kind == UnitFileKind::Quadlet {
                let linked = self.link(&file.name)?;
                if is_new && linked {
                    changes.added.insert(unit_of(&file.name));
                } else if differs || linked {
                    self.early.mark();
                    self.early.remove(&unit_of(&file.name))?;
                    changes.others = true;
                }
            }
        }
        if tidy {
            let names: BTreeSet<&str> = wanted.iter().map(|file| file.name.as_str()).collect();
            for name in self.names()?.iter().filter(|name| name.ends_with(".image")) {
                if !names.contains(name.as_str()) && self.is_ours(name) {
                    self.unlink(name)?;
                    changes.others = true;
                }
            }
        }
        Ok(changes)
    }

    /// Removes the files of one instance, those of its other containers first. With `keeps_table` the
    /// table of its times stays: without it the machine makes up for no time that it missed.
    pub(crate) fn remove(&self, unit: &str, keeps_table: bool) -> Result<(), FilesError> {
        for unit in self
            .other_units(unit)?
            .iter()
            .map(String::as_str)
            .chain([unit])
        {
            let stem = stem(unit);
            let beside = format!("{stem}.");
            let is_value =
                |name: &String| name.starts_with(&beside) && name.ends_with(VALUE_SUFFIX);
            for name in self.names()?.iter().filter(|name| is_value(name)) {
                self.unlink(name)?;
            }
            // The quadlet is removed last, since the other files are found by it. Earlier versions
            // wrote `manager.env`.
            for suffix in ["env", "manager.env", "times", "container"] {
                let stays = keeps_table && suffix == "times";
                if !stays {
                    self.unlink(&format!("{stem}.{suffix}"))?;
                }
            }
        }
        Ok(())
    }

    /// A number that changes when any file of the user's units, or a link to one, is made, changed or
    /// removed, by whomever; `None` where the folders can't be read.
    pub(crate) fn stamp(&self) -> Option<u64> {
        let mut stamp = DefaultHasher::new();
        for folder in [&self.folders.units, &self.folders.links] {
            let mut paths = vec![folder.clone()];
            for entry in std::fs::read_dir(folder).ok()? {
                paths.push(entry.ok()?.path());
            }
            paths.sort();
            for path in paths {
                let found = std::fs::symlink_metadata(&path).ok()?;
                let changed = (found.ctime(), found.ctime_nsec());
                (path, found.ino(), found.len(), changed).hash(&mut stamp);
            }
        }
        Some(stamp.finish())
    }

    /// Whether anything of KAT's is here.
    pub(crate) fn has_any(&self) -> bool {
        self.names()
            .is_ok_and(|names| names.iter().any(|name| self.is_ours(name)))
    }

    /// Removes KAT's files from both folders, and the folders if they are empty then; and copies of
    /// units.
    pub(crate) fn remove_all(&self) -> Result<(), FilesError> {
        for name in self.names()?.iter().filter(|name| self.is_ours(name)) {
            self.unlink(name)?;
        }
        self.early.forget()?;
        self.keep_runs(&BTreeSet::new())?;
        for folder in [&self.folders.links, &self.folders.units] {
            match std::fs::remove_dir(folder) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                // The folder also holds quadlets that are not KAT's.
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
    pub(crate) fn write_delegation(&self, root: &Root, text: &str) -> Result<bool, FilesError> {
        let path = self.delegation(root);
        write_public(&path, text)
    }

    /// Removes the drop-in of [`Self::write_delegation`]. True when the system's manager has to
    /// reload.
    pub(crate) fn remove_delegation(&self, root: &Root) -> Result<bool, FilesError> {
        let path = self.delegation(root);
        let was_there = path.exists();
        files::remove(&path)?;
        if let Some(folder) = path.parent() {
            // The folder stays if it holds other drop-ins.
            let _ = std::fs::remove_dir(folder);
        }
        Ok(was_there)
    }

    /// Writes the resolv.conf of a namespace's containers.
    pub(crate) fn write_resolv(&self, root: &Root, file: &HostFile) -> Result<(), FilesError> {
        write_public(&root.below(&file.path), &file.text).map(drop)
    }

    fn delegation(&self, root: &Root) -> PathBuf {
        root.below(SYSTEM_UNITS)
            .join(format!("user@{}.service.d", self.uid))
            .join(DELEGATION)
    }

    fn quadlet(&self, unit: &str) -> Option<PathBuf> {
        unit.strip_suffix(".service")
            .map(|stem| self.folders.units.join(format!("{stem}.container")))
    }

    /// Whether KAT wrote a file: quadlets are recognised by KAT's mark, environment files and
    /// unfinished writes, which can't bear the mark, by their names.
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
                    && (name.ends_with(".env")
                        || name.ends_with(".times")
                        || name.ends_with(VALUE_SUFFIX)))
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

    /// Makes the link that Podman's generator reads. True when it was missing.
    fn link(&self, name: &str) -> Result<bool, FilesError> {
        let (link, target) = (self.folders.links.join(name), self.folders.units.join(name));
        if std::fs::read_link(&link).is_ok_and(|present| present == target) {
            return Ok(false);
        }
        match std::fs::read_link(&link) {
            // An earlier link of KAT's.
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
        if name.ends_with(".container") || name.ends_with(".image") {
            self.early.mark();
            self.early.remove(&unit_of(name))?;
        }
        if std::fs::read_link(&link).is_ok_and(|present| present == target) {
            files::remove(&link)?;
        }
        files::remove(&target)?;
        Ok(())
    }
}

/// Users with a folder of unit files below `root`.
pub(crate) fn users(root: &Root) -> Vec<u32> {
    std::fs::read_dir(root.below(UNITS))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Removes KAT's files of all users, and their folder if it is empty then.
pub(crate) fn remove_every_users(root: &Root) -> Result<(), FilesError> {
    for uid in users(root) {
        UnitFolder::new(root, uid).remove_all()?;
    }
    // The folders stay if they hold files that are not KAT's.
    let _ = std::fs::remove_dir(root.below(JOB_RUNS));
    let _ = std::fs::remove_dir(root.below(UNITS));
    let _ = std::fs::remove_dir(root.below(EARLY_UNITS));
    Ok(())
}

fn write_public(path: &Path, text: &str) -> Result<bool, FilesError> {
    if let Some(folder) = path.parent() {
        make_folder(folder, FileAccess::mode(0o755))?;
    }
    Ok(files::write_if_changed(
        path,
        text.as_bytes(),
        FileAccess::mode(0o644),
    )?)
}

/// Makes a folder, and missing parent folders with mode 0755.
pub(crate) fn make_folder(path: &Path, access: FileAccess) -> Result<(), FilesError> {
    if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
        make_folder(parent, FileAccess::mode(0o755))?;
    }
    Ok(files::ensure_folder(path, access)?)
}

fn stem(unit: &str) -> &str {
    unit.strip_suffix(".service").unwrap_or(unit)
}

/// The instance that a quadlet with KAT's mark names.
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
