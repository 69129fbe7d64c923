//! Registry credentials on this machine: opened with its WireGuard key, and written to one file for
//! each workload user, which the user's pulls pass to Podman (containers-auth.json(5)).
//!
//! The files lie in `/run/kat/auth/UID.json`, in memory: only pulls need them, and the agent starts
//! all pulls.

use std::{collections::BTreeMap, fs, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use crate::{
    secrets::Secrets,
    worker::unit_state::unit_files::{FilesError, make_folder},
};
use kat_host::files::{self, FileAccess, FileError};
use kat_network::overlay::wireguard::read_private_key;
use kat_pki::delivery::open_logins;
use kat_types::{
    assignment::{Assignment, WorkloadUser},
    machine::network,
    registry::Credentials,
};

/// Names and passwords, by the key that Podman looks up.
pub(crate) type OpenedLogins = BTreeMap<String, Credentials>;

impl Secrets {
    /// The credentials that an instance's pulls need; may be empty. The error is a sentence without
    /// a value.
    ///
    /// # Errors
    /// The credentials were not sealed for this machine and instance.
    pub fn logins(&self, assignment: &Assignment) -> Result<OpenedLogins, String> {
        let Some(logins) = &assignment.logins else {
            return Ok(OpenedLogins::new());
        };
        let key = self.below(Path::new(network::FOLDER));
        let key = read_private_key(&key.join(network::PRIVATE_KEY_FILE));
        let failed = |error: &dyn std::fmt::Display| {
            format!("its credentials for registries can't be opened on this machine: {error}")
        };
        let key = key.map_err(|error| failed(&error))?;
        open_logins(logins, key.bytes(), &self.node, &assignment.instance)
            .map_err(|error| failed(&error))
    }

    /// Writes a user's file with exactly these credentials. True where that changed it.
    pub(crate) fn write_logins(
        &self,
        user: &WorkloadUser,
        all: &OpenedLogins,
    ) -> Result<bool, FilesError> {
        let folder = self.below(&self.settings.auth_folder);
        make_folder(&folder, FileAccess::owned(0o711, 0, 0))?;
        let file = self.below(&self.settings.auth_file(user.uid));
        let text = rendered(all).to_string();
        let access = FileAccess::owned(0o640, 0, user.uid);
        Ok(files::write_if_changed(&file, text.as_bytes(), access)?)
    }

    /// Whether a user has a credentials file.
    pub fn has_logins(&self, user: &WorkloadUser) -> bool {
        self.below(&self.settings.auth_file(user.uid)).exists()
    }

    /// Removes a user's credentials file.
    pub fn remove_logins(&self, user: &WorkloadUser) -> Result<(), FileError> {
        if files::remove(&self.below(&self.settings.auth_file(user.uid)))? {
            // The folder stays if it has other content.
            let _ = fs::remove_dir(self.below(&self.settings.auth_folder));
        }
        Ok(())
    }
}

fn rendered(all: &OpenedLogins) -> Value {
    let all = all.iter().map(|(key, credentials)| {
        let Credentials { username, password } = credentials;
        let pair = BASE64_STANDARD.encode(format!("{username}:{password}"));
        (key.clone(), json!({"auth": pair}))
    });
    json!({"auths": all.collect::<Map<_, _>>()})
}
