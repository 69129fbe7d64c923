//! Secrets of instances on their machine: opened with its WireGuard key, filled into variables, and
//! written as files for mounts.
//!
//! The files lie in `/var/lib/kat/secrets/UID/INSTANCE/SECRET/KEY`, on the disk, so that a
//! container starts after a boot without the agent. `UID` and `INSTANCE` belong to root and only
//! the workload's own group may enter them; their content belongs to the workload's user, and any
//! user of the container may read it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::worker::unit_state::unit_files::make_folder;
use kat_host::files::{self, FileAccess, FileError, open_plain, sync_folder};
use kat_network::overlay::wireguard::read_private_key;
use kat_pki::delivery::{SealingPurpose, open_assigned};
use kat_render::{RenderSettings, environment_files};
use kat_types::{
    assignment::{Assignment, WorkloadUser},
    machine::{network, root::Root},
    reason::Reason,
    resource::{
        Container,
        secret::{SecretValues, VALUE_LIMIT},
    },
};

/// Mode of a secret's folder. [`FILE_MODE`] is the mode of the files in it.
const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o444;
/// Prefix of a folder that is being made. No secret has such a name.
const UNFINISHED: &str = ".new-";

/// Why an instance can't use its secrets, for its status. The message never contains a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretUseTrouble {
    pub reason: Reason,
    /// A sentence for users.
    pub message: String,
}

impl SecretUseTrouble {
    fn unreadable(error: &dyn std::fmt::Display) -> Self {
        Self {
            reason: Reason::SecretUnreadable,
            message: format!("its secrets can't be opened on this machine: {error}"),
        }
    }

    fn not_written(error: &dyn std::fmt::Display) -> Self {
        Self {
            reason: Reason::SecretNotWritten,
            message: format!("the files of its secrets can't be written: {error}"),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Secrets {
    pub(super) node: String,
    /// `/` on a real machine.
    root: Root,
    pub(super) settings: RenderSettings,
}

impl Secrets {
    /// The secrets of a machine whose files lie below `root`.
    pub fn new(root: &Root, node: &str, settings: &RenderSettings) -> Self {
        Self {
            node: node.to_owned(),
            root: root.clone(),
            settings: settings.clone(),
        }
    }

    /// Writes the secrets that an instance mounts, and returns the instance with the values of its
    /// variables; `None` where it uses no secret. Blocks for as long as the disk does.
    pub fn prepare(&self, assignment: &Assignment) -> Result<Option<Assignment>, SecretUseTrouble> {
        let Some(secrets) = &assignment.secrets else {
            return Ok(None);
        };
        let key = self
            .below(Path::new(network::FOLDER))
            .join(network::PRIVATE_KEY_FILE);
        let key = read_private_key(&key).map_err(|error| SecretUseTrouble::unreadable(&error))?;
        let values = open_assigned(
            secrets,
            SealingPurpose::Secrets,
            key.bytes(),
            &self.node,
            &assignment.instance,
        )
        .map_err(|error| SecretUseTrouble::unreadable(&error))?;
        let filled = with_variables(assignment, &values)?;
        for (name, values) in mounted(assignment, &values) {
            self.write(assignment, name, &values)
                .map_err(|error| SecretUseTrouble::not_written(&error))?;
        }
        Ok(Some(filled))
    }

    /// Removes the files of a user's instances that are not in `kept`.
    pub fn keep_only(&self, user: &WorkloadUser, kept: &BTreeSet<&str>) -> Result<(), FileError> {
        let folder = self.of_user(user);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("list", &folder, error)),
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if !name.to_str().is_some_and(|name| kept.contains(name)) {
                remove_folder(&entry.path())?;
            }
        }
        if kept.is_empty() {
            remove_folder(&folder)?;
            // The folder stays if it has other content.
            let _ = fs::remove_dir(self.below(&self.settings.secrets_folder));
        }
        Ok(())
    }

    /// Writes one secret of an instance unless it is there unchanged. The folder is made beside its
    /// place and moved there when it is complete.
    fn write(
        &self,
        assignment: &Assignment,
        name: &str,
        values: &SecretValues,
    ) -> Result<(), FileError> {
        let uid = assignment.user.uid;
        let instance = self.below(&self.settings.secrets_of(assignment));
        let place = instance.join(name);
        if is_written(&place, uid, values) {
            return Ok(());
        }
        let private = FileAccess::owned(0o750, 0, uid);
        let made = |path: &Path, access| {
            make_folder(path, access)
                .map_err(|error| failed("make", path, std::io::Error::other(error)))
        };
        made(
            &self.below(&self.settings.secrets_folder),
            FileAccess::owned(0o711, 0, 0),
        )?;
        made(&self.of_user(&assignment.user), private)?;
        made(&instance, private)?;
        // The folder belongs to root until it is complete, so that no other user can put files into
        // it.
        let unfinished = instance.join(format!("{UNFINISHED}{name}"));
        remove_folder(&unfinished)?;
        files::ensure_folder(&unfinished, FileAccess::owned(0o700, 0, 0))?;
        for (key, value) in &values.0 {
            let file = unfinished.join(key);
            files::write_atomic(&file, value, FileAccess::owned(FILE_MODE, uid, uid))?;
        }
        files::ensure_folder(&unfinished, FileAccess::owned(FOLDER_MODE, uid, uid))?;
        remove_folder(&place)?;
        fs::rename(&unfinished, &place).map_err(|error| failed("move", &place, error))?;
        sync_folder(&instance)
    }

    fn of_user(&self, user: &WorkloadUser) -> PathBuf {
        let folder = self.below(&self.settings.secrets_folder);
        folder.join(user.uid.to_string())
    }

    pub(super) fn below(&self, path: &Path) -> PathBuf {
        self.root.below(path)
    }
}

fn failed(verb: &'static str, path: &Path, error: std::io::Error) -> FileError {
    FileError::System {
        verb,
        path: path.to_owned(),
        error,
    }
}

/// `remove_dir_all` follows no symbolic link, even if the folder is changed meanwhile.
fn remove_folder(path: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failed("remove", path, error))
        }
        _ => Ok(()),
    }
}

fn with_variables(
    assignment: &Assignment,
    all: &BTreeMap<String, SecretValues>,
) -> Result<Assignment, SecretUseTrouble> {
    let mut filled = assignment.clone();
    let others = filled.init_containers.iter_mut();
    let containers = std::iter::once(&mut filled.container)
        .chain(others)
        .chain(&mut filled.sidecars);
    for container in containers {
        fill(container, all)?;
    }
    Ok(filled)
}

/// Fills in the variables of a container.
fn fill(
    container: &mut Container,
    all: &BTreeMap<String, SecretValues>,
) -> Result<(), SecretUseTrouble> {
    let unusable = |message| SecretUseTrouble {
        reason: Reason::SecretUnusable,
        message,
    };
    for variable in &mut container.env {
        let Some(source) = variable.value_from.take() else {
            continue;
        };
        let (name, key) = (&source.secret.name, &source.secret.key);
        let value = all.get(name).and_then(|values| values.0.get(key));
        let value = value.map(|value| String::from_utf8(value.clone()));
        variable.value = match value {
            Some(Ok(value)) => Some(value),
            Some(Err(_)) => {
                return Err(unusable(format!(
                    "the value of key {key} of secret {name} is no UTF-8 text, which a variable needs"
                )));
            }
            None => {
                return Err(SecretUseTrouble::unreadable(&format!(
                    "key {key} of secret {name} was not sent"
                )));
            }
        };
    }
    // The errors name variables, never values.
    environment_files(&container.env).map_err(|error| unusable(error.to_string()))?;
    Ok(())
}

/// The files to write, by secret: all keys, or those that mounts name.
fn mounted<'a>(
    assignment: &'a Assignment,
    all: &BTreeMap<String, SecretValues>,
) -> BTreeMap<&'a str, SecretValues> {
    let mut found: BTreeMap<&str, SecretValues> = BTreeMap::new();
    for mount in assignment.mounts() {
        let mut volumes = assignment.volumes.iter().map(|volume| &volume.definition);
        let volume = volumes.find(|volume| volume.name == mount.name);
        let Some(secret) = volume.and_then(|volume| volume.secret.as_ref()) else {
            continue;
        };
        let values = all.get(&secret.name).into_iter().flat_map(|all| &all.0);
        let wanted =
            values.filter(|(key, _)| mount.sub_path.as_ref().is_none_or(|one| one == *key));
        let files = found.entry(&secret.name).or_default();
        files
            .0
            .extend(wanted.map(|(key, value)| (key.clone(), value.clone())));
    }
    found
}

/// Whether the folder holds exactly these files, each with the right owner and mode.
fn is_written(folder: &Path, uid: u32, values: &SecretValues) -> bool {
    let is_own = |path: &Path, mode: u32| {
        fs::symlink_metadata(path).is_ok_and(|found| {
            (found.uid(), found.gid(), found.mode() & 0o7777) == (uid, uid, mode)
        })
    };
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    is_own(folder, FOLDER_MODE)
        && entries.flatten().count() == values.0.len()
        && values.0.iter().all(|(key, value)| {
            let path = folder.join(key);
            is_own(&path, FILE_MODE) && open_plain(&path).is_ok_and(|file| has(file, value))
        })
}

fn has(file: File, value: &[u8]) -> bool {
    let mut content = Vec::new();
    let limit = VALUE_LIMIT as u64 + 1;
    file.take(limit).read_to_end(&mut content).is_ok() && content == value
}
