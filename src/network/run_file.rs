//! Files below `/run` by which kat-net tells the agent what it has seen.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use serde::Serialize;

use kat_types::json;

/// Replaces the file, 0600, where it holds something else. It lies in memory and is of no use after a boot, so nothing
/// is synced.
///
/// # Errors
/// The value has no JSON, or what the system said.
pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let text = json::bytes(&path.display().to_string(), value)?;
    if fs::read(path).is_ok_and(|present| present == text) {
        return Ok(());
    }
    let partial = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&partial)?;
    file.write_all(&text)?;
    fs::rename(&partial, path)
}
