//! Sockets that the service manager passed, sd_listen_fds(3).

#![allow(
    unsafe_code,
    reason = "a descriptor passed by the service manager is a bare number"
)]

use std::os::fd::{FromRawFd, OwnedFd};

/// The passed sockets with their names (`FileDescriptorName=`). A program calls it once, before
/// anything else opens descriptors.
pub fn take() -> Vec<(String, OwnedFd)> {
    let Ok(passed) = sd_notify::listen_fds_with_names() else {
        return Vec::new();
    };
    let own = passed.map(|(number, name)| {
        // SAFETY: sd_listen_fds(3) hands this number to this process for its own use, and the caller
        // takes it once.
        (name, unsafe { OwnedFd::from_raw_fd(number) })
    });
    own.collect()
}
