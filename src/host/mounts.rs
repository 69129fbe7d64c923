//! The mounts of the machine, and which of them a path lies on.
//!
//! A network file system whose server is gone, a FUSE file system whose program hangs or a broken
//! disk blocks every call on it, stat(2) included, for as long as that lasts. [`MountTable::foreign`]
//! finds such a mount on the way to a path without a call on it: the mounts are read from
//! `/proc/self/mountinfo`, and a path is followed name by name up to the first mount that is not
//! one of KAT's own.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

/// Where the kernel lists the mounts of this process.
const MOUNTS: &str = "/proc/self/mountinfo";
/// File systems in memory, which always answer.
const IN_MEMORY: [&str; 7] = [
    "cgroup2", "devpts", "devtmpfs", "proc", "ramfs", "sysfs", "tmpfs",
];
/// Most symbolic links on the way to a path, as for the kernel (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// The mounts of the machine, as this process sees them.
#[derive(Debug, Clone, Default)]
pub struct MountTable {
    /// By mount point: device number and type of the file system mounted there last.
    mounts: BTreeMap<PathBuf, MountedFileSystem>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct MountedFileSystem {
    device: String,
    kind: String,
}

impl MountTable {
    /// The kernel's text of the present mounts; empty where `/proc` can't be read.
    pub fn text() -> Vec<u8> {
        fs::read(MOUNTS).unwrap_or_default()
    }

    /// Reads the text of proc_pid_mountinfo(5). Lines that are not understood are skipped.
    pub fn parse(mountinfo: &[u8]) -> Self {
        let mut mounts = BTreeMap::new();
        for line in mountinfo.split(|byte| *byte == b'\n') {
            let mut fields = line.split(|byte| *byte == b' ');
            let (Some(device), Some(point)) = (fields.nth(2), fields.nth(1)) else {
                continue;
            };
            // Optional fields end with a single hyphen; the type follows.
            let kind = fields.skip_while(|field| *field != b"-").nth(1);
            let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
            let mounted = MountedFileSystem {
                device: text(device),
                kind: text(kind.unwrap_or_default()),
            };
            // A later mount on the same point hides the earlier one.
            mounts.insert(unescape(point), mounted);
        }
        Self { mounts }
    }

    /// The first mount point on the way to `path` whose file system is neither in memory nor one of
    /// those that contain the paths of `own`. Nothing at or below that mount point is touched.
    pub fn foreign(&self, own: &[PathBuf], path: &Path) -> Option<PathBuf> {
        let own: BTreeSet<&str> = own
            .iter()
            .chain([&PathBuf::from("/")])
            .filter_map(|path| self.containing(path))
            .map(|mounted| mounted.device.as_str())
            .collect();
        let is_foreign = |point: &Path| {
            let mounted = self.mounts.get(point);
            mounted.is_some_and(|mounted| {
                !own.contains(mounted.device.as_str())
                    && !IN_MEMORY.contains(&mounted.kind.as_str())
            })
        };
        let mut rest = names(path);
        let mut at = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name == OsStr::new("..") {
                at.pop();
                continue;
            }
            at.push(&name);
            if is_foreign(&at) {
                return Some(at);
            }
            // What is no link, and what does not exist, is passed over.
            let Ok(target) = fs::read_link(&at) else {
                continue;
            };
            links += 1;
            if links > MOST_LINKS {
                return None;
            }
            at.pop();
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            for name in names(&target).into_iter().rev() {
                rest.push_front(name);
            }
        }
        None
    }

    /// The file system that contains a path without symbolic links.
    fn containing(&self, path: &Path) -> Option<&MountedFileSystem> {
        path.ancestors().find_map(|above| self.mounts.get(above))
    }
}

fn names(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    });
    names.collect()
}

/// Decodes a mount point: the kernel writes blank, tab, line break and backslash as `\` and three
/// octal digits.
pub(crate) fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn table(folder: &Path) -> MountTable {
        let folder = folder.display();
        let text = format!(
            "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
             22 21 0:5 / /run rw - tmpfs tmpfs rw\n\
             23 21 8:1 /srv /srv rw - ext4 /dev/sda1 rw\n\
             24 21 8:2 / /var/lib/kat rw - xfs /dev/sdb1 rw\n\
             25 21 0:50 / /mnt/n\\040as rw shared:2 master:1 - nfs4 nas:/x rw\n\
             26 21 0:51 / {folder}/nas rw - fuse x rw\n\
             27 21 8:2 / {folder}/state rw - xfs /dev/sdb1 rw\n\
             not a mount\n"
        );
        MountTable::parse(text.as_bytes())
    }

    #[test]
    fn only_mounts_of_other_file_systems_are_foreign() {
        let folder = tempfile::tempdir().unwrap();
        let table = table(folder.path());
        let own = [PathBuf::from("/var/lib/kat/volumes")];
        let foreign = |path: &str| table.foreign(&own, Path::new(path));
        for path in ["/", "/srv/x", "/run/x", "/var/lib/kat/volumes/a", "/mnt"] {
            assert_eq!(foreign(path), None, "{path}");
        }
        let nas = Some(PathBuf::from("/mnt/n as"));
        assert_eq!(foreign("/mnt/n as"), nas);
        assert_eq!(foreign("/mnt/n as/a/b"), nas);
        // Without KAT's own disk, that one is foreign too.
        let state = table.foreign(&[], Path::new("/var/lib/kat/volumes"));
        assert_eq!(state, Some(PathBuf::from("/var/lib/kat")));
    }

    #[test]
    fn links_that_lead_to_a_foreign_mount_are_followed_and_circles_end() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let table = table(&folder);
        std::fs::create_dir_all(folder.join("in/er")).unwrap();
        symlink(folder.join("nas/data"), folder.join("absolute")).unwrap();
        symlink("../../nas", folder.join("in/er/relative")).unwrap();
        symlink("circle", folder.join("circle")).unwrap();
        let own = [folder.join("state")];
        let foreign = |path: &str| table.foreign(&own, &folder.join(path));
        let nas = Some(folder.join("nas"));
        assert_eq!(foreign("absolute/x"), nas);
        assert_eq!(foreign("in/er/relative/x"), nas);
        assert_eq!(foreign("in/er/../../nas"), nas);
        assert_eq!(foreign("circle/x"), None);
        assert_eq!(foreign("state/x"), None);
        assert_eq!(foreign("missing/nas"), None);
    }

    #[test]
    fn the_machine_has_mounts() {
        let table = MountTable::parse(&MountTable::text());
        assert!(table.containing(Path::new("/")).is_some());
    }
}
