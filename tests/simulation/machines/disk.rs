//! The disk of a machine, which can have no free space.

use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// Free space of a disk that is not full, far more than a run writes.
const SIZE: &str = "size=256m";

/// A file system of its own below the machine's root folder, so that writes fail as on a real disk
/// without free space: with ENOSPC, where the kernel says so. `/run` is another file system, as on a
/// real machine.
pub(crate) struct Disk {
    root: PathBuf,
}

impl Disk {
    /// Makes the file systems of `root`, which is an empty folder.
    pub(crate) fn new(root: &Path) -> Self {
        let disk = Self {
            root: root.to_owned(),
        };
        for folder in [disk.root.clone(), disk.run()] {
            std::fs::create_dir_all(&folder).unwrap();
            let file_system = Some("tmpfs");
            mount(
                file_system,
                &folder,
                file_system,
                MsFlags::empty(),
                Some(SIZE),
            )
            .expect("a machine's disk is a tmpfs, which root mounts");
        }
        disk
    }

    fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// Takes all free space away, or returns it.
    pub(crate) fn set_full(&self, full: bool) {
        let used = nix::sys::statvfs::statvfs(&self.root).unwrap();
        let blocks = used.blocks() - used.blocks_free();
        let bytes = (blocks * used.fragment_size()).max(4096);
        let size = match full {
            true => format!("size={bytes}"),
            false => SIZE.to_owned(),
        };
        let (nothing, again) = (None::<&str>, MsFlags::MS_REMOUNT);
        mount(nothing, &self.root, nothing, again, Some(&*size)).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for folder in [self.run(), self.root.clone()] {
            let _ = umount2(&folder, MntFlags::MNT_DETACH);
        }
    }
}
