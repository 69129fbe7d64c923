//! Measures how much of a file system instances use, by walking as root through folders that
//! programs write to.
//!
//! The content of these folders is not trusted. Every name is opened relative to the open folder
//! that contains it (openat2(2)), no symbolic link is followed and no mount is crossed. Entries,
//! depth and time are limited, and a measurement that reaches a limit is unfinished.

use std::{
    collections::HashSet,
    ffi::{CStr, OsStr},
    fs::File,
    io::Read,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use serde::Deserialize;

use super::decide::MeasuredSize;
use crate::{disk::foreign_disks::ForeignDisks, service::paths};
use kat_types::{
    assignment::Assignment,
    resource::{EnsureType, HostMount},
};

/// Deepest nesting of folders; every folder on the way stays open.
const DEEPEST: usize = 256;
/// Most files and folders of one instance.
const MOST_ENTRIES: u64 = 400_000;
/// Most hard-linked files that are counted once; further ones count for each name.
const MOST_LINKED: usize = 100_000;
/// Longest measurement of one instance.
const LONGEST: Duration = Duration::from_secs(1);
/// Podman's storage in a user's home (containers-storage(1)).
const STORAGE: &str = ".local/share/containers/storage";
/// Podman's lists of containers; the second one has those with `--rm`.
const LISTS: [&str; 2] = [
    "overlay-containers/containers.json",
    "overlay-containers/volatile-containers.json",
];
/// Largest list that is read, in bytes.
const LARGEST_LIST: u64 = 16 << 20;

/// The places that an instance writes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InstanceFolders {
    pub instance: String,
    /// Its storage request in bytes.
    pub request: u64,
    /// Home of its user; only root can write to the home's parent folder.
    home: PathBuf,
    /// Podman's names of its containers.
    containers: Vec<String>,
    /// Data that stays after its stop.
    data: Vec<DataLocation>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum DataLocation {
    /// A folder of simple cluster storage below the volume base path.
    Volume { base: PathBuf, folder: PathBuf },
    /// A host path that KAT may have made.
    Host { root: PathBuf, path: PathBuf },
}

impl DataLocation {
    fn path(&self) -> PathBuf {
        match self {
            Self::Volume { base, folder } => base.join(folder),
            Self::Host { root, path } => root.join(path),
        }
    }
}

/// Shared by all instances.
#[derive(Debug, Clone)]
pub(super) struct MachineFolders {
    /// `/` on a real machine.
    pub root: PathBuf,
    /// The volume base path below `root`; `None` where that is shared with other machines.
    pub volumes: Option<PathBuf>,
    /// File systems that may hang. Eviction frees no space of them, and does not look at them.
    pub disks: ForeignDisks,
}

impl InstanceFolders {
    /// The places of an instance whose user has this home.
    pub(super) fn of(machine: &MachineFolders, home: PathBuf, assignment: &Assignment) -> Self {
        let others = assignment.others();
        let others = others.map(|(kind, one)| assignment.other_unit(kind, one));
        let units = std::iter::once(assignment.unit()).chain(others);
        let containers = units.map(|unit| unit.trim_end_matches(".service").to_owned());
        let together = assignment.together();
        let written = assignment
            .volumes
            .iter()
            .filter(|volume| together.writes_to(&volume.definition.name));
        let data = written.filter_map(|volume| {
            if let Some(folder) = &volume.folder {
                return Some(DataLocation::Volume {
                    base: machine.volumes.clone()?,
                    folder: folder.into(),
                });
            }
            let host = volume.definition.host_mount.as_ref()?;
            is_made(host).then(|| DataLocation::Host {
                root: machine.root.clone(),
                path: host.host_path.trim_start_matches('/').into(),
            })
        });
        let requests = together.resources.effective_requests();
        Self {
            instance: assignment.instance.clone(),
            request: requests.storage.map_or(0, |storage| storage.0),
            home,
            containers: containers.collect(),
            data: data
                .filter(|data| machine.disks.mount_of(&data.path()).is_none())
                .collect(),
        }
    }

    /// The data on this file system that is removed with the containers. Unnamed volumes of a user
    /// count for each of its instances: the lists do not say which container has which volume.
    pub(super) fn layers(&self, device: u64) -> MeasuredSize {
        let mut walk = UsageWalk::new(device);
        let Some(storage) = self.storage() else {
            return MeasuredSize::NONE;
        };
        for list in LISTS {
            let Some(found) = containers(&storage, list) else {
                walk.taken.whole = false;
                continue;
            };
            for one in found {
                if one.names.iter().any(|name| self.containers.contains(name)) {
                    walk.add_folder(&storage, &Path::new("overlay").join(&one.layer));
                    walk.add_folder(&storage, &Path::new("overlay-containers").join(&one.id));
                }
            }
        }
        walk.add_folder(&storage, Path::new("volumes"));
        walk.taken
    }

    /// The data on this file system that stays after the instance's stop.
    pub(super) fn data(&self, device: u64) -> MeasuredSize {
        let mut walk = UsageWalk::new(device);
        for data in &self.data {
            match data {
                // Only the machine's owner may have put symbolic links on the way to the base path.
                DataLocation::Volume { base, folder } => {
                    if let Some(base) = open(base) {
                        walk.add_folder(&base, folder);
                    }
                }
                DataLocation::Host { root, path } => {
                    if let Some(root) = open(root) {
                        walk.add_folder_across_mounts(&root, path);
                    }
                }
            }
        }
        walk.taken
    }

    fn storage(&self) -> Option<OwnedFd> {
        let homes = open(self.home.parent()?)?;
        let home = Path::new(self.home.file_name()?);
        enter(&homes, home.join(STORAGE), ResolveFlags::BENEATH).ok()
    }
}

/// Whether KAT makes the host path if it is missing: then its content is most likely the instance's
/// own.
fn is_made(host: &HostMount) -> bool {
    let made = matches!(
        host.ensure_type,
        Some(EnsureType::DirectoryOrCreate | EnsureType::FileOrCreate)
    );
    made || Path::new(&host.host_path).starts_with(paths::HOST)
}

#[derive(Deserialize)]
struct StoredContainer {
    #[serde(default)]
    id: String,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    layer: String,
}

/// The containers of a list; empty where there is no list, `None` where it can't be read.
fn containers(storage: &OwnedFd, list: &str) -> Option<Vec<StoredContainer>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(storage, list, flags, Mode::empty(), closed());
    let file = match opened {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Some(Vec::new()),
        Err(_) => return None,
    };
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(LARGEST_LIST).read_to_end(&mut text).ok()?;
    let mut found: Vec<StoredContainer> = serde_json::from_slice(&text).ok()?;
    found.retain(|one| is_id(&one.id) && is_id(&one.layer));
    Some(found)
}

/// Whether the text is a container id. This also ensures that it is a single path component.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn closed() -> ResolveFlags {
    ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV
}

/// Opens a folder whose parent folders only root can change.
fn open(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}

/// Opens a folder below another one without following symbolic links.
fn enter(
    folder: &OwnedFd,
    path: impl rustix::path::Arg,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = resolve | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(folder, path, flags, Mode::empty(), resolve)
}

struct UsageWalk {
    device: u64,
    taken: MeasuredSize,
    until: Instant,
    entries: u64,
    linked: HashSet<u64>,
}

impl UsageWalk {
    fn new(device: u64) -> Self {
        Self {
            device,
            taken: MeasuredSize::NONE,
            until: Instant::now() + LONGEST,
            entries: MOST_ENTRIES,
            linked: HashSet::new(),
        }
    }

    /// Adds a folder with its content; a missing one counts as nothing.
    fn add_folder(&mut self, base: &OwnedFd, path: &Path) {
        self.found(enter(base, path, closed()));
    }

    /// Like [`Self::add_folder`], but mounts on the way to the folder may be crossed.
    fn add_folder_across_mounts(&mut self, base: &OwnedFd, path: &Path) {
        self.found(enter(base, path, ResolveFlags::BENEATH));
    }

    fn found(&mut self, folder: rustix::io::Result<OwnedFd>) {
        match folder {
            Ok(folder) => self.folder(&folder),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {}
            Err(_) => self.taken.whole = false,
        }
    }

    fn folder(&mut self, folder: &OwnedFd) {
        let Ok(stat) = rustix::fs::fstat(folder) else {
            self.taken.whole = false;
            return;
        };
        if stat.st_dev != self.device {
            return;
        }
        self.count(&stat);
        let Ok(listing) = Dir::read_from(folder) else {
            self.taken.whole = false;
            return;
        };
        let mut open = vec![listing];
        while let Some(listing) = open.last_mut() {
            if self.entries == 0 || Instant::now() >= self.until {
                self.taken.whole = false;
                return;
            }
            let entry = match listing.read() {
                None => {
                    open.pop();
                    continue;
                }
                Some(Err(_)) => {
                    self.taken.whole = false;
                    open.pop();
                    continue;
                }
                Some(Ok(entry)) => entry,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let deep = open.len() >= DEEPEST;
            if let Some(inner) = open
                .last()
                .and_then(|outer| self.count_entry(outer, name, deep))
            {
                open.push(inner);
            }
        }
    }

    /// Counts the entry with this name; returns it if it is a folder to walk through.
    fn count_entry(&mut self, folder: &Dir, name: &CStr, deep: bool) -> Option<Dir> {
        let place = folder.fd().ok()?;
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let name = OsStr::from_bytes(name.to_bytes());
        // An entry that disappears meanwhile counts as nothing.
        let stat = rustix::fs::statat(place, name, flags).ok()?;
        if stat.st_dev != self.device {
            return None;
        }
        self.count(&stat);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return None;
        }
        if deep {
            self.taken.whole = false;
            return None;
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let inner = rustix::fs::openat2(place, name, flags, Mode::empty(), closed());
        // Opening fails at a mount, or at a link that has replaced the folder.
        Dir::new(inner.ok()?).ok()
    }

    fn count(&mut self, stat: &Stat) {
        self.entries = self.entries.saturating_sub(1);
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_folder && stat.st_nlink > 1 && self.linked.len() < MOST_LINKED {
            let is_new = self.linked.insert(stat.st_ino);
            if !is_new {
                return;
            }
        }
        let bytes = u64::try_from(stat.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512);
        self.taken.bytes = self.taken.bytes.saturating_add(bytes);
        self.taken.files = self.taken.files.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use super::*;
    use kat_types::machine::root::Root;

    const MIB: usize = 1 << 20;

    fn device(path: &Path) -> u64 {
        fs::metadata(path).unwrap().dev()
    }

    fn measure(folder: &Path) -> MeasuredSize {
        let mut walk = UsageWalk::new(device(folder));
        walk.add_folder(&open(folder).unwrap(), Path::new("."));
        walk.taken
    }

    #[test]
    fn a_folder_weighs_what_its_files_take_and_one_with_two_names_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), vec![1; MIB]).unwrap();
        fs::hard_link(inner.join("file"), folder.path().join("again")).unwrap();
        // A sparse file takes no space.
        let hole = File::create(folder.path().join("hole")).unwrap();
        hole.set_len(1 << 40).unwrap();
        let taken = measure(folder.path());
        let mib = u64::try_from(MIB).unwrap();
        assert!(taken.whole);
        assert!(
            (mib..2 * mib).contains(&taken.bytes),
            "{} bytes",
            taken.bytes
        );
        // The five are the folder itself, two folders in it, the file, and the sparse file.
        assert_eq!(taken.files, 5);
    }

    #[test]
    fn no_link_is_followed_and_no_pipe_opened() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("large"), vec![1; 8 * MIB]).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("link")).unwrap();
        let file = elsewhere.path().join("large");
        std::os::unix::fs::symlink(file, folder.path().join("file")).unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let taken = measure(folder.path());
        assert!(taken.whole && taken.bytes < 1 << 20, "{taken:?}");
        assert_eq!(taken.files, 4);
        // A link at the start of the walk is not followed either.
        let mut walk = UsageWalk::new(device(folder.path()));
        walk.add_folder(&open(folder.path()).unwrap(), Path::new("link"));
        assert_eq!((walk.taken.bytes, walk.taken.whole), (0, false));
    }

    #[test]
    fn what_is_mounted_is_not_entered() {
        let mut walk = UsageWalk::new(device(Path::new("/")));
        walk.entries = 10_000;
        walk.add_folder(&open(Path::new("/")).unwrap(), Path::new("proc"));
        assert_eq!(walk.taken.files, 0);
    }

    #[test]
    fn folders_too_deep_too_many_files_and_too_much_time_leave_a_measure_unfinished() {
        let folder = tempfile::tempdir().unwrap();
        let mut deep = folder.path().to_owned();
        for _ in 0..DEEPEST + 10 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("hidden"), vec![1; MIB]).unwrap();
        let taken = measure(folder.path());
        assert!(!taken.whole);
        assert_eq!(taken.files, u64::try_from(DEEPEST).unwrap() + 1);

        let many = tempfile::tempdir().unwrap();
        for number in 0..100 {
            fs::write(many.path().join(number.to_string()), "x").unwrap();
        }
        let mut walk = UsageWalk::new(device(many.path()));
        walk.entries = 50;
        walk.add_folder(&open(many.path()).unwrap(), Path::new("."));
        assert_eq!((walk.taken.files, walk.taken.whole), (50, false));
        let mut walk = UsageWalk::new(device(many.path()));
        walk.until = Instant::now();
        walk.add_folder(&open(many.path()).unwrap(), Path::new("."));
        assert!(!walk.taken.whole);
    }

    /// A home as Podman leaves it. Each of the named containers has a layer of the given size in
    /// bytes.
    fn home(root: &Path, containers: &[(&str, usize)]) -> PathBuf {
        let home = root.join("users/kat-default-web");
        let storage = home.join(STORAGE);
        let mut list = Vec::new();
        for (number, (name, bytes)) in containers.iter().enumerate() {
            let id = format!("{number:064x}");
            let layer = format!("{:064x}", number + 100);
            let diff = storage.join("overlay").join(&layer).join("diff/tmp");
            fs::create_dir_all(&diff).unwrap();
            fs::write(diff.join("fill"), vec![1; *bytes]).unwrap();
            list.push(serde_json::json!({"id": id, "names": [name], "layer": layer, "image": "i"}));
        }
        // A layer of an image does not count.
        let image = storage.join("overlay").join(format!("{:064x}", 500));
        fs::create_dir_all(&image).unwrap();
        fs::write(image.join("large"), vec![1; 16 * MIB]).unwrap();
        fs::create_dir_all(storage.join("overlay-containers")).unwrap();
        let text = serde_json::to_vec(&list).unwrap();
        fs::write(storage.join(LISTS[1]), text).unwrap();
        home
    }

    #[test]
    fn an_instance_uses_the_layers_of_its_containers_and_no_image() {
        let root = tempfile::tempdir().unwrap();
        let assignment = crate::tests::assignment(0, "web");
        let own = "kat-default-web-aaaaa";
        let home = home(
            root.path(),
            &[(own, 2 * MIB), ("kat-default-web-bbbbb", 8 * MIB)],
        );
        let machine = MachineFolders {
            root: root.path().to_owned(),
            volumes: None,
            disks: ForeignDisks::new(&Root::new("/")),
        };
        let places = InstanceFolders::of(&machine, home.clone(), &assignment);
        let taken = places.layers(device(root.path()));
        let mib = u64::try_from(MIB).unwrap();
        assert!(
            taken.whole && (2 * mib..3 * mib).contains(&taken.bytes),
            "{taken:?}"
        );
        // Nothing in the home lies on another file system.
        assert_eq!(places.layers(device(Path::new("/proc"))).bytes, 0);
        // If a list is not a regular file, the measurement is incomplete.
        let list = home.join(STORAGE).join(LISTS[1]);
        fs::remove_file(&list).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &list).unwrap();
        assert!(!places.layers(device(root.path())).whole);
    }

    #[test]
    fn an_id_in_a_list_leads_nowhere_else() {
        assert!(is_id(&"a".repeat(64)));
        for text in ["", "..", "../../../etc", &"a".repeat(63), &"/".repeat(64)] {
            assert!(!is_id(text), "{text}");
        }
    }
}
