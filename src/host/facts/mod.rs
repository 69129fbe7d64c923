//! Facts about a machine: its name, size, kernel and programs.

pub mod network;
pub mod parse;
pub mod runtime;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::commands::Invocation;

pub use kat_types::machine::program_version::ProgramVersion;

/// Longest run of a program that prints its version.
const LIMIT: Duration = Duration::from_secs(10);

/// Why a fact could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// A file of the kernel could not be read.
    #[error("{}: {error}", path.display())]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    /// The content is not as expected.
    #[error("{}: expected {expected}", path.display())]
    Content {
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
    },
    #[error("{what}: {error}")]
    System {
        what: &'static str,
        error: rustix::io::Errno,
    },
}

/// Facts that stay the same until the next boot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Host name up to the first dot, in lower case.
    pub hostname: String,
    /// As in image platforms, such as `amd64` or `arm64`.
    pub architecture: String,
    /// The kernel's release.
    pub kernel: String,
    /// Id of this boot.
    pub(crate) boot_id: String,
    /// Processors, in thousandths of a processor.
    pub cpu_milli: u64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// systemd's version.
    pub systemd: Option<ProgramVersion>,
    /// Podman's version.
    pub podman: Option<ProgramVersion>,
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
        boot_id: boot_id()?,
        cpu_milli: std::thread::available_parallelism()
            .map_or(1000, |number| number.get() as u64 * 1000),
        memory_bytes: memory("MemTotal")?,
        systemd,
        podman,
    })
}

/// The kernel's id of this boot.
pub fn boot_id() -> Result<String, FactsError> {
    let text = read("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

/// All memory of the machine, and the memory that programs can still get without swapping, bytes.
pub fn memory_now() -> Result<(u64, u64), FactsError> {
    Ok((memory("MemTotal")?, memory("MemAvailable")?))
}

/// Mean number of processes that run or wait for the disk, over 1, 5 and 15 minutes.
pub fn load_now() -> Result<[f64; 3], FactsError> {
    let path = "/proc/loadavg";
    parse::loadavg(&read(path)?).ok_or_else(|| FactsError::Content {
        path: path.into(),
        expected: "three numbers",
    })
}

/// Resident memory of this process, bytes.
pub fn own_resident_memory() -> Result<u64, FactsError> {
    let path = "/proc/self/status";
    parse::meminfo(&read(path)?, "VmRSS").ok_or_else(|| FactsError::Content {
        path: path.into(),
        expected: "VmRSS",
    })
}

/// Size and free space of the file system at a path, or at its nearest existing parent.
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

/// The version that a program prints; `None` when the program is missing or prints none.
pub(crate) async fn version_of(program: &str, arguments: &[&str]) -> Option<ProgramVersion> {
    let output = Invocation::new(program)
        .args(arguments)
        .limit(LIMIT)
        .run()
        .await
        .ok()?;
    ProgramVersion::find(&output.text())
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
        let (all, available) = memory_now().unwrap();
        assert!(all == facts.memory_bytes && available <= all);
        assert!(load_now().unwrap().iter().all(|load| *load >= 0.0));
        let resident = own_resident_memory().unwrap();
        assert!(resident > 0 && resident < all);
        let (size, free) = disk(Path::new("/var/lib/kat/not/yet/there")).unwrap();
        assert!(size > 0 && free <= size);
    }
}
