//! Files below `/run` with which kat-net reports its state to the agent and to kat-ingress.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use serde::Serialize;

use kat_types::encoding::json;

/// Replaces the file (0600) if its content differs. It lies in memory and is useless after a boot,
/// so it is not synced.
///
/// # Errors
/// The value can't be encoded, or the file can't be written.
pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    write_with_mode(path, value, 0o600)
}

/// As [`write`], with this mode.
///
/// # Errors
/// As [`write`].
pub(super) fn write_with_mode<T: Serialize>(path: &Path, value: &T, mode: u32) -> io::Result<()> {
    let text = json::bytes(&path.display().to_string(), value)?;
    if fs::read(path).is_ok_and(|present| present == text) {
        return Ok(());
    }
    let partial = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&partial)?;
    file.write_all(&text)?;
    fs::rename(&partial, path)
}
