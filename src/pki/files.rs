//! Keys and certificates on the disk: written atomically, and never readable for other users
//! meanwhile.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use super::PkiError;

/// Largest file that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// Writes or replaces a file that only its owner may read (0600).
///
/// # Errors
/// [`PkiError::File`].
pub fn write_secret(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    write(path, content, 0o600).map_err(|source| failed(path, source))
}

/// Writes or replaces a file that every user may read (0644).
///
/// # Errors
/// [`PkiError::File`].
pub fn write_public(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    write(path, content, 0o644).map_err(|source| failed(path, source))
}

/// Reads a text.
pub(super) fn read(path: &Path) -> Result<String, PkiError> {
    String::from_utf8(read_bytes(path)?)
        .map_err(|_| failed(path, io::Error::other("it is not text")))
}

/// Reads a small file.
pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, PkiError> {
    let read = || -> io::Result<Vec<u8>> {
        let size = fs::metadata(path)?.len();
        if size > MOST_BYTES {
            return Err(io::Error::other(format!(
                "{size} bytes, at most {MOST_BYTES} are expected"
            )));
        }
        fs::read(path)
    };
    read().map_err(|source| failed(path, source))
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> Result<(), PkiError> {
    #[cfg(test)]
    faults::before_change(path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path, error)),
        _ => Ok(()),
    }
}

/// Lets one change of several files in a folder come after another, also of other processes. The
/// change lasts as long as the returned file is open, and must not begin another one. A folder that
/// is not there has nothing to change.
pub(super) fn begin_change(folder: &Path) -> Result<Option<fs::File>, PkiError> {
    let opened = match fs::File::open(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|source| failed(folder, source))?,
    };
    opened.lock().map_err(|source| failed(folder, source))?;
    Ok(Some(opened))
}

/// Makes the folder of keys, 0700.
pub(super) fn make_folder(path: &Path) -> Result<(), PkiError> {
    let make = || -> io::Result<()> {
        fs::create_dir_all(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
    };
    make().map_err(|source| failed(path, source))
}

fn failed(path: &Path, source: io::Error) -> PkiError {
    PkiError::File {
        path: path.to_owned(),
        source,
    }
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    #[cfg(test)]
    faults::before_change(path).map_err(io::Error::other)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    // The temporary file is made with 0600, so that no other user can open it before its mode is
    // set.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(content)?;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    fs::File::open(folder)?.sync_all()
}

/// Lets tests interrupt a sequence of writes and removals at any point.
#[cfg(test)]
pub(super) mod faults {
    use std::{cell::Cell, io, path::Path};

    use super::{PkiError, failed};

    thread_local! {
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Lets this thread change so many files, and no more; `None` is no limit.
    pub(crate) fn allow(changes: Option<usize>) {
        LEFT.set(changes);
    }

    pub(super) fn before_change(path: &Path) -> Result<(), PkiError> {
        match LEFT.get() {
            Some(0) => Err(failed(path, io::Error::other("interrupted"))),
            left => {
                LEFT.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }
}
