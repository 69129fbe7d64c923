//! The recovery key's file on a machine that holds etcd: `recovery.key`, 0600, with the key's
//! printed form.

use std::path::{Path, PathBuf};

use super::{PkiError, files};
use crate::recovery_key::RecoveryKey;

/// Path of the file in the folder of keys (`/var/lib/kat/pki`).
pub fn recovery_key_file(folder: &Path) -> PathBuf {
    folder.join("recovery.key")
}

/// Reads the recovery key.
///
/// # Errors
/// [`PkiError::File`], also when there is none; [`PkiError::Key`].
pub fn load_recovery_key(folder: &Path) -> Result<RecoveryKey, PkiError> {
    let path = recovery_key_file(folder);
    let text = files::read(&path)?;
    RecoveryKey::parse(&text).map_err(|error| PkiError::Key(format!("{}: {error}", path.display())))
}

/// Writes the recovery key, into a folder whose mode becomes 0700.
///
/// # Errors
/// [`PkiError::File`].
pub fn store_recovery_key(folder: &Path, key: &RecoveryKey) -> Result<(), PkiError> {
    files::make_folder(folder)?;
    let text = format!("{}\n", key.reveal());
    files::write_secret(&recovery_key_file(folder), text.as_bytes())
}
