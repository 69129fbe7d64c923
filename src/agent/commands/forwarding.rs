//! Saves `net.ipv4.ip_forward` before init changes it, and restores it at reset.
//!
//! Only a 0 is restored, and only if no file of sysctl.d(5) other than KAT's own sets another
//! value.

use std::path::Path;

use kat_host::files::{self, FileAccess, FileError};

/// The setting, below the root folder.
const SETTING: &str = "proc/sys/net/ipv4/ip_forward";
/// File with the value from before init, below the root folder.
const KEPT: &str = "var/lib/kat/ip_forward";
/// Folders with settings of the machine (sysctl.d(5)), below the root folder.
const FOLDERS: [&str; 4] = [
    "etc/sysctl.d",
    "run/sysctl.d",
    "usr/local/lib/sysctl.d",
    "usr/lib/sysctl.d",
];
/// A file that some distributions read beside these folders.
const OLD_FILE: &str = "etc/sysctl.conf";
/// KAT's own file.
const OWN_FILE: &str = "60-kat.conf";
/// Names of the setting; the kernel treats both as the same one.
const NAMES: [&str; 2] = ["net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding"];
/// Largest settings file that is read, in bytes.
const LIMIT: u64 = 1 << 20;

/// Saves the present value, unless an earlier init did.
pub(crate) fn remember(root: &Path) -> Result<(), FileError> {
    let kept = root.join(KEPT);
    if kept.exists() {
        return Ok(());
    }
    let value = files::read_text(&root.join(SETTING), LIMIT)?;
    files::write_atomic(&kept, value.as_bytes(), FileAccess::mode(0o644))
}

/// Restores a saved 0 unless another file turns forwarding on, and removes the saved value.
pub(crate) fn restore(root: &Path) -> anyhow::Result<()> {
    let kept = root.join(KEPT);
    match files::read_text(&kept, LIMIT) {
        Ok(value) if value.trim() == "0" && !is_wanted(root) => {
            std::fs::write(root.join(SETTING), "0\n")?;
        }
        Ok(_) => {}
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    files::remove(&kept)?;
    Ok(())
}

/// Whether a file other than KAT's own turns forwarding on.
fn is_wanted(root: &Path) -> bool {
    let in_folders = FOLDERS.iter().flat_map(|folder| {
        let entries = std::fs::read_dir(root.join(folder));
        entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|one| one.path())
    });
    in_folders
        .filter(|path| path.extension().is_some_and(|kind| kind == "conf"))
        .filter(|path| path.file_name().is_some_and(|name| name != OWN_FILE))
        .chain([root.join(OLD_FILE)])
        .filter_map(|path| files::read_text(&path, LIMIT).ok())
        .any(|text| text.lines().any(turns_on))
}

fn turns_on(line: &str) -> bool {
    let Some((name, value)) = line.split_once('=') else {
        return false;
    };
    // A leading dash allows the setting to fail; slashes and dots are both separators.
    let name = name.trim().trim_start_matches('-').replace('/', ".");
    NAMES.contains(&name.as_str()) && value.trim() != "0"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(value: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in [
            "proc/sys/net/ipv4",
            "var/lib/kat",
            "etc/sysctl.d",
            "usr/lib/sysctl.d",
        ] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        std::fs::write(root.path().join(SETTING), value).unwrap();
        let own = root.path().join("etc/sysctl.d").join(OWN_FILE);
        std::fs::write(own, "net.ipv4.ip_forward = 1\n").unwrap();
        root
    }

    /// The settings after init and reset, with `text` in `file` as another settings file.
    fn after_reset(before: &str, file: &str, text: &str) -> String {
        let root = machine(before);
        let root = root.path();
        std::fs::write(root.join(file), text).unwrap();
        remember(root).unwrap();
        std::fs::write(root.join(SETTING), "1\n").unwrap();
        // A second `init` must not take KAT's own value for the original one.
        remember(root).unwrap();
        restore(root).unwrap();
        assert!(!root.join(KEPT).exists());
        std::fs::read_to_string(root.join(SETTING)).unwrap()
    }

    #[test]
    fn what_was_off_is_off_again_unless_somebody_else_wants_it() {
        let etc = "etc/sysctl.d/99-own.conf";
        for (before, file, text, expected) in [
            ("0\n", etc, "vm.swappiness=1\n", "0\n"),
            ("0\n", etc, "# net.ipv4.ip_forward=1\n", "0\n"),
            ("0\n", etc, "net.ipv4.ip_forward=0\n", "0\n"),
            (
                "0\n",
                "etc/sysctl.d/old.conf.bak",
                "net.ipv4.ip_forward=1\n",
                "0\n",
            ),
            ("0\n", etc, "net.ipv4.ip_forward = 1\n", "1\n"),
            ("0\n", etc, "-net/ipv4/conf/all/forwarding=1\n", "1\n"),
            (
                "0\n",
                "usr/lib/sysctl.d/50-router.conf",
                "net.ipv4.ip_forward=1\n",
                "1\n",
            ),
            ("0\n", "etc/sysctl.conf", "net.ipv4.ip_forward=1\n", "1\n"),
            ("1\n", etc, "", "1\n"),
        ] {
            assert_eq!(after_reset(before, file, text), expected, "{file}: {text}");
        }
    }

    #[test]
    fn without_a_kept_value_nothing_is_put_back() {
        let root = machine("1\n");
        restore(root.path()).unwrap();
        let setting = std::fs::read_to_string(root.path().join(SETTING)).unwrap();
        assert_eq!(setting, "1\n");
    }
}
