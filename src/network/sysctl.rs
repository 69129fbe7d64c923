//! Settings of single links under `/proc/sys/net`. `init` makes the settings of the whole machine.

use std::{fs, io, path::PathBuf};

/// Writes `value` to `/proc/sys/net/FAMILY/conf/LINK/KEY`, in the network namespace of the calling
/// thread. Does nothing where the kernel lacks the family.
///
/// # Errors
/// The kernel's error, unless the file does not exist.
pub(super) fn set(family: &str, link: &str, key: &str, value: &str) -> io::Result<()> {
    let path: PathBuf = ["/proc/sys/net", family, "conf", link, key]
        .iter()
        .collect();
    match fs::write(&path, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("{}: {error}", path.display()),
        )),
        Ok(()) => Ok(()),
    }
}
