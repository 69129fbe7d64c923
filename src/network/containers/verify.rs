//! Verifies that a container which the hook names belongs to the instance that it claims.
//!
//! The caller's uid alone is too weak: another process of any uid could name a victim's pid. So the
//! process must run in the control group of the instance's unit under that user's manager, and in a
//! network namespace that is not the machine's and that this user made. It must also be the same
//! live process from the first check to the last.

use std::{fs, io, sync::Arc};

use super::namespaces::{NetworkNamespace, ProcessDescriptor};

/// Returns a process's control group, from the root that systemd sees, such as
/// `/user.slice/user-20001.slice/user@20001.service/app.slice/kat-default-web-ab12c.service`.
pub type CgroupReader = Arc<dyn Fn(i32) -> io::Result<String> + Send + Sync>;

/// Why a process is not the claimed container.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The process does not exist or can't be read.
    #[error("process {pid} can't be looked at: {source}")]
    Process {
        /// Process id that the hook named.
        pid: i32,
        source: io::Error,
    },
    /// The process ended while it was checked.
    #[error("process {0} ended before its network was ready")]
    Ended(i32),
    /// The process is in another control group.
    #[error("process {pid} is in control group {found}, not in unit {unit} of user {uid}")]
    Cgroup {
        pid: i32,
        /// The control group that was found.
        found: String,
        /// The expected unit.
        unit: String,
        /// Uid of the unit's user manager.
        uid: u32,
    },
    /// The process has no network namespace of its own.
    #[error("process {0} is in the machine's network namespace")]
    HostNamespace(i32),
    /// Another user made its network namespace.
    #[error("the network namespace of process {pid} belongs to uid {found}, not to {uid}")]
    Owner {
        pid: i32,
        /// Uid of the user who made it.
        found: u32,
        /// Uid of the expected user.
        uid: u32,
    },
}

/// A verified container.
#[derive(Debug)]
pub struct VerifiedContainer {
    pid: i32,
    process: ProcessDescriptor,
    pub namespace: NetworkNamespace,
}

impl VerifiedContainer {
    /// Checks that the process still lives. Has to be the last check before acting on the
    /// container.
    pub(crate) fn still_alive(&self) -> Result<(), VerifyError> {
        match self.process.is_alive() {
            Ok(true) => Ok(()),
            Ok(false) => Err(VerifyError::Ended(self.pid)),
            Err(source) => Err(VerifyError::Process {
                pid: self.pid,
                source,
            }),
        }
    }
}

/// Holds process `pid`, which must be in the control group of `unit`, a service of the manager of
/// user `uid`. The caller has to check afterwards that it still lives.
fn hold(
    pid: i32,
    uid: u32,
    unit: &str,
    cgroups: &CgroupReader,
) -> Result<ProcessDescriptor, VerifyError> {
    let unreadable = |source| VerifyError::Process { pid, source };
    let process = ProcessDescriptor::open(pid).map_err(unreadable)?;
    let found = cgroups(pid).map_err(unreadable)?;
    match is_within(&found, uid, unit) {
        true => Ok(process),
        false => Err(VerifyError::Cgroup {
            pid,
            found,
            unit: unit.to_owned(),
            uid,
        }),
    }
}

/// Kills process `pid` of `unit`, a service of the manager of user `uid`. A process that took over
/// the number, or is in another unit, is not touched.
pub(crate) fn kill(
    pid: i32,
    uid: u32,
    unit: &str,
    cgroups: &CgroupReader,
) -> Result<(), VerifyError> {
    let unreadable = |source| VerifyError::Process { pid, source };
    let process = hold(pid, uid, unit, cgroups)?;
    // Only while it lives, its control group was read and not a successor's.
    match process.is_alive().map_err(unreadable)? {
        true => process.kill().map_err(unreadable),
        false => Err(VerifyError::Ended(pid)),
    }
}

/// Verifies that `pid` is a container of `unit`, a service of the manager of user `uid`.
pub fn verify(
    pid: i32,
    uid: u32,
    unit: &str,
    cgroups: &CgroupReader,
) -> Result<VerifiedContainer, VerifyError> {
    let unreadable = |source| VerifyError::Process { pid, source };
    let process = hold(pid, uid, unit, cgroups)?;
    let namespace = NetworkNamespace::of(pid).map_err(unreadable)?;
    let own = NetworkNamespace::own().map_err(unreadable)?;
    if namespace.is_same(&own) {
        return Err(VerifyError::HostNamespace(pid));
    }
    let owner = namespace.owner().map_err(unreadable)?;
    if owner != uid {
        return Err(VerifyError::Owner {
            pid,
            found: owner,
            uid,
        });
    }
    let container = VerifiedContainer {
        pid,
        process,
        namespace,
    };
    container.still_alive()?;
    Ok(container)
}

/// Whether a control group is that of `unit` of user `uid`'s manager, or lies below it. Only slices
/// may be between manager and unit.
pub(crate) fn is_within(cgroup: &str, uid: u32, unit: &str) -> bool {
    let (slice, manager) = (format!("user-{uid}.slice"), format!("user@{uid}.service"));
    let mut parts = cgroup.split('/');
    if parts.next() != Some("")
        || parts.next() != Some("user.slice")
        || parts.next() != Some(slice.as_str())
        || parts.next() != Some(manager.as_str())
    {
        return false;
    }
    parts.find(|part| !part.ends_with(".slice")) == Some(unit)
}

/// Reads control groups from `/proc`. Where this service itself runs below a prefix (a lab
/// container without a control group namespace), the prefix is removed.
pub(crate) fn proc_cgroups() -> CgroupReader {
    let prefix = own_prefix();
    Arc::new(move |pid| {
        let prefix = known(&prefix)?;
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let path = unified_path(&text)
            .and_then(|path| path.strip_prefix(prefix))
            .ok_or_else(|| io::Error::other("no control group of version 2"))?;
        Ok(path.to_owned())
    })
}

/// The prefix below which this service runs; empty without one.
///
/// # Errors
/// The service's own control group can't be read.
pub(crate) fn own_prefix() -> io::Result<String> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let prefix = unified_path(&own).and_then(|path| path.split_once("/system.slice/"));
    Ok(prefix.map_or_else(String::new, |(prefix, _)| prefix.to_owned()))
}

/// The prefix that was read once, or a copy of the error.
pub(crate) fn known(prefix: &io::Result<String>) -> io::Result<&str> {
    prefix.as_deref().map_err(|error| {
        let told = format!("the service's own control group is not known: {error}");
        io::Error::new(error.kind(), told)
    })
}

/// The path in the unified hierarchy (cgroups(7)): the line that begins with `0::`.
fn unified_path(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = "kat-default-web-ab12c.service";

    #[test]
    fn the_units_own_groups_match() {
        for below in ["", "/libpod-payload-0a1b", "/runtime"] {
            let path =
                format!("/user.slice/user-20001.slice/user@20001.service/app.slice/{UNIT}{below}");
            assert!(is_within(&path, 20001, UNIT), "{path}");
        }
        let path = format!(
            "/user.slice/user-20001.slice/user@20001.service/app.slice/app-kat.slice/{UNIT}"
        );
        assert!(is_within(&path, 20001, UNIT));
    }

    #[test]
    fn look_alikes_do_not_match() {
        let manager = "/user.slice/user-20001.slice/user@20001.service";
        let mine = "/user.slice/user-30000.slice/user@30000.service";
        for path in [
            String::new(),
            "/".to_owned(),
            format!("{manager}/app.slice/kat-default-web-zzzzz.service"),
            format!("{manager}/app.slice/{UNIT}x"),
            format!("{manager}/app.slice/evil.service/{UNIT}"),
            format!("{manager}/app.slice"),
            format!("{mine}/app.slice/{UNIT}"),
            format!("{mine}/app.slice{manager}/app.slice/{UNIT}"),
            format!("/system.slice{manager}/app.slice/{UNIT}"),
            format!("/user.slice/user-20001.slice/session-3.scope/{UNIT}"),
        ] {
            assert!(!is_within(&path, 20001, UNIT), "{path}");
        }
    }

    #[test]
    fn the_unified_line_is_found_beside_old_hierarchies() {
        let text = "9:name=systemd:/old\n8:pids:/\n0::/user.slice/a:b\n";
        assert_eq!(unified_path(text), Some("/user.slice/a:b"));
        assert_eq!(unified_path("8:pids:/\n"), None);
    }
}
