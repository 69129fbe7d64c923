//! Network namespaces and processes, held by descriptors, so that a reused number can't be taken
//! for the old one.
//!
//! This, `daemon/passed_sockets.rs` and `host/mount_tree.rs` have all of KAT's `unsafe`: the two
//! requests of ioctl_nsfs(2) have no safe wrapper in the libraries used.

#![allow(unsafe_code, reason = "ioctl_nsfs(2); see the module's text")]

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::fstat,
    ioctl::{Ioctl, IoctlOutput, Opcode, opcode},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

/// Group of the requests in ioctl_nsfs(2).
const NSFS: u8 = 0xb7;

/// NS_GET_USERNS: the user namespace that owns a namespace, as a new descriptor.
struct GetUserNamespace;

// SAFETY: the request takes no argument and returns a new descriptor that belongs to the caller.
unsafe impl Ioctl for GetUserNamespace {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(NSFS, 1)
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the kernel just made this descriptor for us; nobody else holds it.
        Ok(unsafe { OwnedFd::from_raw_fd(output) })
    }
}

/// NS_GET_OWNER_UID: the uid that made a user namespace, written to a `uid_t`.
struct GetOwnerUid(u32);

// SAFETY: the request writes one `uid_t` (32 bits) to the pointer, which points into this value.
unsafe impl Ioctl for GetOwnerUid {
    type Output = u32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::none(NSFS, 4)
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::from_mut(&mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        _: IoctlOutput,
        pointer: *mut std::ffi::c_void,
    ) -> rustix::io::Result<u32> {
        // SAFETY: `pointer` is what `as_ptr` gave, still alive, and the kernel wrote a `uid_t`.
        Ok(unsafe { pointer.cast::<u32>().read() })
    }
}

/// A network namespace, kept alive by its descriptor.
#[derive(Debug)]
pub struct NetworkNamespace {
    file: File,
    identity: (u64, u64),
}

impl NetworkNamespace {
    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// `/proc` can't be read.
    pub fn own() -> io::Result<Self> {
        Self::open("/proc/thread-self/ns/net")
    }

    /// The namespace of a process. The caller has to check with [`ProcessDescriptor::is_alive`] afterwards
    /// that the number still meant the same process.
    ///
    /// # Errors
    /// The process does not exist, or its namespace may not be read.
    pub fn of(pid: i32) -> io::Result<Self> {
        Self::open(&format!("/proc/{pid}/ns/net"))
    }

    /// The namespace of a file: below `/proc`, or mounted by ip-netns(8).
    ///
    /// # Errors
    /// The file can't be opened.
    pub fn open(path: &str) -> io::Result<Self> {
        let file = File::open(path)?;
        let status = fstat(&file)?;
        Ok(Self {
            file,
            identity: (status.st_dev, status.st_ino),
        })
    }

    /// Whether both are the same namespace.
    pub fn is_same(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// The uid that made the user namespace which owns this namespace, as seen from the caller's
    /// user namespace.
    ///
    /// # Errors
    /// The kernel refuses, for example because that user namespace is not below the caller's.
    pub fn owner(&self) -> io::Result<u32> {
        // SAFETY: the descriptor is a namespace, and the type describes the request.
        let user = unsafe { rustix::ioctl::ioctl(&self.file, GetUserNamespace) }?;
        // SAFETY: the descriptor is a user namespace, and the type describes the request.
        Ok(unsafe { rustix::ioctl::ioctl(&user, GetOwnerUid(u32::MAX)) }?)
    }

    /// Runs `work` on a new thread inside the namespace and waits for it. Sockets that it opens
    /// stay in the namespace.
    ///
    /// # Errors
    /// The thread can't be started or may not enter the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("kat-netns".into())
                .spawn_scoped(scope, || {
                    move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
                    Ok(work())
                })?
                .join()
                .map_err(|_| io::Error::other("the thread in the namespace ended early"))?
        })
    }
}

impl AsFd for NetworkNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[derive(Debug)]
pub(crate) struct ProcessDescriptor {
    descriptor: OwnedFd,
}

impl ProcessDescriptor {
    /// Opens the process that has this number now.
    ///
    /// # Errors
    /// There is no such process.
    pub(crate) fn open(pid: i32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid)
            .filter(|pid| pid.as_raw_nonzero().get() > 0)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(Self {
            descriptor: pidfd_open(pid, PidfdFlags::empty())?,
        })
    }

    /// Whether the process still runs. While it does, its number refers to this process, so
    /// everything that was read from `/proc/PID` before was this process's.
    ///
    /// # Errors
    /// The kernel can't tell.
    pub(crate) fn is_alive(&self) -> io::Result<bool> {
        let mut waiting = [PollFd::new(&self.descriptor, PollFlags::IN)];
        Ok(poll(&mut waiting, Some(&Timespec::default()))? == 0)
    }

    /// Sends SIGKILL to this process, never to one that took over its number.
    ///
    /// # Errors
    /// The process has ended, or the kernel refuses.
    pub(crate) fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.descriptor, Signal::KILL)?)
    }
}
