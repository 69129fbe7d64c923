//! State about one user's instances that a process of the agent saves for the next one.
//!
//! It lies below `/run` and lasts until the next boot, like systemd's state of the units. What has to
//! last longer lies below `/var/lib/kat`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    health::progress::HealthProgress,
    worker::unit_state::unit_files::{FilesError, make_folder},
};
use kat_host::files::{self, FileAccess};

/// Largest file in bytes.
const LIMIT: u64 = 4 << 20;

/// What the next process of the agent needs to know of an instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct InstanceNote {
    /// Since when the instance is to be stopped, microseconds of the monotonic clock.
    pub drains_since: Option<u64>,
    /// Start of the container that `health` belongs to, microseconds of the monotonic clock.
    pub run: u64,
    pub health: HealthProgress,
}

/// That an instance of a Job has begun. It lasts over a boot: what was begun before is not begun again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct BegunNote {
    /// Its unit was told to start.
    pub begun: bool,
}

/// One note for each instance, with their file.
#[derive(Debug)]
pub(crate) struct SavedNotes<T> {
    path: PathBuf,
    notes: BTreeMap<String, T>,
    stored: BTreeMap<String, T>,
}

impl<T: Clone + Default + PartialEq + Serialize + DeserializeOwned> SavedNotes<T> {
    /// Reads the notes of earlier processes from `run/kat/FOLDER/UID.json` below the root folder;
    /// empty where the file can't be read.
    pub(crate) fn read(root: &Path, folder: &str, uid: u32) -> Self {
        Self::read_at(root.join("run/kat").join(folder), uid)
    }

    /// As [`Self::read`], from `var/lib/kat/FOLDER/UID.json`.
    pub(crate) fn read_lasting(root: &Path, folder: &str, uid: u32) -> Self {
        Self::read_at(root.join("var/lib/kat").join(folder), uid)
    }

    fn read_at(folder: PathBuf, uid: u32) -> Self {
        let path = folder.join(format!("{uid}.json"));
        let notes: BTreeMap<String, T> = match files::read_text(&path, LIMIT) {
            Ok(text) => serde_json::from_str(&text).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), "earlier notes can't be read: {error:#}");
                BTreeMap::new()
            }),
            Err(error) if error.is_not_found() => BTreeMap::new(),
            Err(error) => {
                tracing::warn!("earlier notes can't be read: {error:#}");
                BTreeMap::new()
            }
        };
        Self {
            path,
            stored: notes.clone(),
            notes,
        }
    }

    /// The note of an instance; a default one is made where there is none.
    pub(crate) fn of(&mut self, instance: &str) -> &mut T {
        self.notes.entry(instance.to_owned()).or_default()
    }

    pub(crate) fn get(&self, instance: &str) -> Option<&T> {
        self.notes.get(instance)
    }

    /// Drops the notes of instances that `keep` does not accept.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.notes.retain(|instance, _| keep(instance));
    }

    /// Writes the file if a note changed; removes it when there are no notes.
    pub(crate) fn store(&mut self) -> Result<(), FilesError> {
        if self.notes == self.stored {
            return Ok(());
        }
        if self.notes.is_empty() {
            files::remove(&self.path)?;
        } else {
            if let Some(folder) = self.path.parent() {
                make_folder(folder, FileAccess::mode(0o755))?;
            }
            files::write_json(&self.path, &self.notes)?;
        }
        self.stored.clone_from(&self.notes);
        Ok(())
    }
}
