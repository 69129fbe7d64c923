//! What a machine is: its name, its size, its kernel and programs.

pub mod network;
pub mod parse;

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

pub use self::parse::Version;
use super::commands::Invocation;

/// Time for a program to say its version.
const LIMIT: Duration = Duration::from_secs(10);

/// Why a fact could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// A file of the kernel could not be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// It holds something else than expected.
    #[error("{}: expected {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What should be there.
        expected: &'static str,
    },
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// What was asked.
        what: &'static str,
        /// Why not.
        error: rustix::io::Errno,
    },
}

/// What stays the same until the machine boots again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Name of the host, up to the first dot, in lower case.
    pub hostname: String,
    /// As image platforms write it: `amd64`, `arm64` ...
    pub architecture: String,
    /// The kernel's release.
    pub kernel: String,
    /// Name of this boot.
    pub boot_id: String,
    /// Processors, in thousandths of one.
    pub cpu_milli: u64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// systemd's version.
    pub systemd: Option<Version>,
    /// Podman's version.
    pub podman: Option<Version>,
}

/// What changes all the time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NodeLoad {
    /// Average number of processes that run or wait, over one minute.
    pub load: f64,
    /// Memory that new programs can have, bytes.
    pub memory_available_bytes: u64,
    /// Size of the file system that was asked about, bytes.
    pub disk_bytes: u64,
    /// Its free space for others than root, bytes.
    pub disk_available_bytes: u64,
}

/// Gathers [`NodeFacts`].
pub async fn node_facts() -> Result<NodeFacts, FactsError> {
    let hostname = read("/proc/sys/kernel/hostname")?.trim().to_lowercase();
    let (systemd, podman) = futures_util::join!(
        version_of("systemctl", &["--version"]),
        version_of("podman", &["--version"])
    );
    Ok(NodeFacts {
        hostname: hostname.split('.').next().unwrap_or_default().to_owned(),
        architecture: parse::architecture(std::env::consts::ARCH).to_owned(),
        kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        boot_id: read("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
        cpu_milli: std::thread::available_parallelism()
            .map_or(1000, |number| number.get() as u64 * 1000),
        memory_bytes: memory("MemTotal")?,
        systemd,
        podman,
    })
}

/// Gathers [`NodeLoad`]; `folder` lies on the file system that counts.
pub fn node_load(folder: &Path) -> Result<NodeLoad, FactsError> {
    let path = "/proc/loadavg";
    let load = read(path)?
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| FactsError::Content {
            path: path.into(),
            expected: "a number",
        })?;
    let (disk_bytes, disk_available_bytes) = disk(folder)?;
    Ok(NodeLoad {
        load,
        memory_available_bytes: memory("MemAvailable")?,
        disk_bytes,
        disk_available_bytes,
    })
}

/// Name servers that the machine asks: those behind systemd-resolved's stub where it runs, whose own
/// address would lead back to it, else those of /etc/resolv.conf.
pub fn name_servers() -> Vec<IpAddr> {
    let read = |path: &str| parse::name_servers(&fs::read_to_string(path).unwrap_or_default());
    let found = read("/etc/resolv.conf");
    if found.iter().all(IpAddr::is_loopback) {
        let behind = read("/run/systemd/resolve/resolv.conf");
        if !behind.is_empty() {
            return behind;
        }
    }
    found
}

/// Size and free space of the file system at a path, or at its nearest parent that is there.
pub fn disk(path: &Path) -> Result<(u64, u64), FactsError> {
    let there = path
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("/"));
    let found = rustix::fs::statvfs(there).map_err(|error| FactsError::System {
        what: "statvfs",
        error,
    })?;
    let block = found.f_frsize;
    Ok((found.f_blocks * block, found.f_bavail * block))
}

/// The version that a program says; `None` when it is not there or says none.
pub async fn version_of(program: &str, arguments: &[&str]) -> Option<Version> {
    let output = Invocation::new(program)
        .args(arguments)
        .limit(LIMIT)
        .run()
        .await
        .ok()?;
    Version::find(&output.text())
}

fn memory(field: &str) -> Result<u64, FactsError> {
    let path = "/proc/meminfo";
    parse::meminfo(&read(path)?, field).ok_or_else(|| FactsError::Content {
        path: path.into(),
        expected: "MemTotal and MemAvailable",
    })
}

fn read(path: &str) -> Result<String, FactsError> {
    fs::read_to_string(path).map_err(|error| FactsError::File {
        path: path.into(),
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn this_machine_has_facts() {
        let facts = node_facts().await.unwrap();
        assert!(facts.cpu_milli >= 1000);
        assert!(facts.memory_bytes > 64 << 20);
        assert_eq!(facts.boot_id.len(), 36);
        assert!(!facts.kernel.is_empty() && !facts.hostname.contains('.'));
        let load = node_load(Path::new("/var/lib/kat/not/yet/there")).unwrap();
        assert!(load.memory_available_bytes <= facts.memory_bytes);
        assert!(load.disk_bytes > 0 && load.disk_available_bytes <= load.disk_bytes);
    }
}
