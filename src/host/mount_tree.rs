//! Detached mounts, which get their flags before they are visible.
//!
//! mount_setattr(2) has no safe wrapper in the libraries used: this and
//! `network/containers/namespaces.rs` have all of KAT's `unsafe`.

#![allow(unsafe_code, reason = "mount_setattr(2); see the module's text")]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use nix::libc;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};

const AT_RECURSIVE: libc::c_int = 0x8000;
const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A detached copy of the mounts at and below an open file or folder.
pub(super) struct MountTree(OwnedFd);

impl MountTree {
    /// Copies the mounts at an open file or folder, whatever its name leads to by now; the copy has
    /// neither devices nor set-id bits. Later mounts and unmounts below the original also happen in
    /// the copy, but not the other way round.
    pub(super) fn of(place: &OwnedFd, read_only: bool) -> io::Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::AT_RECURSIVE;
        let tree = rustix::mount::open_tree(place, "", flags)?;
        let read_only = match read_only {
            true => MOUNT_ATTR_RDONLY,
            false => 0,
        };
        let attributes = MountAttributes {
            set: MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | read_only,
            clear: 0,
            propagation: libc::MS_SLAVE,
            user_namespace: 0,
        };
        // SAFETY: the path is a NUL-terminated string, and the kernel reads as many bytes of the
        // structure as its size says.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                tree.as_fd().as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH | AT_RECURSIVE,
                &raw const attributes,
                size_of::<MountAttributes>(),
            )
        };
        match done {
            0 => Ok(Self(tree)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Mounts the copy at a path that only root can change.
    pub(super) fn attach(self, target: &Path) -> io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&self.0, "", rustix::fs::CWD, target, flags)?;
        Ok(())
    }
}

/// Unmounts everything at a path, even if it is in use. A path without a mount is no error.
pub(super) fn detach(target: &Path) -> io::Result<()> {
    loop {
        match rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
