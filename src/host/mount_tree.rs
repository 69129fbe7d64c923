//! Mounts that are made by descriptor, and get their flags before anybody sees them.
//!
//! mount_setattr(2) has no safe wrapper in the libraries used: with `network/containers/namespaces.rs` this is all of KAT's `unsafe`.

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

/// A copy of what is mounted at an open file or folder and below it, which is mounted nowhere yet.
pub(super) struct MountTree(OwnedFd);

impl MountTree {
    /// What is open, however its name leads somewhere else by now: without devices and set-id bits. What is mounted below it later, or
    /// taken away, is so in the copy too, and nothing that happens to the copy comes back.
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
        // SAFETY: the path is a string with its end, and the kernel reads as many bytes of the structure as it has.
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

    /// Mounts it where root alone changes anything.
    pub(super) fn attach(self, target: &Path) -> io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&self.0, "", rustix::fs::CWD, target, flags)?;
        Ok(())
    }
}

/// Takes all away that is mounted at a path, however it is in use. Not an error where nothing is.
pub(super) fn detach(target: &Path) -> io::Result<()> {
    loop {
        match rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
