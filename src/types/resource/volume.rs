//! Volumes of `workload.kat` (RFC001-KAT 3.2, 4.7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A volume with exactly one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Name of the volume, to which mounts refer.
    pub name: String,
    /// A folder under the machine's volume base path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simple_cluster_storage: Option<SimpleClusterStorage>,
    /// A path of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_mount: Option<HostMount>,
    /// A folder within the workload's own folder, whose files are mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
    /// A secret, mounted as one file for each key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolume>,
    /// A folder in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tmpfs: Option<TmpfsVolume>,
    /// Whether each replica has its own folder.
    #[serde(default)]
    pub per_replica: bool,
    /// What happens to the data when the workload is deleted.
    #[serde(default)]
    pub reclaim: ReclaimPolicy,
}

impl Volume {
    /// Whether the data outlives the instance: simple cluster storage, or a host path other than a
    /// socket.
    pub fn keeps_data(&self) -> bool {
        let host = self.host_mount.as_ref();
        let is_data = |host: &HostMount| host.ensure_type != Some(EnsureType::Socket);
        self.simple_cluster_storage.is_some() || host.is_some_and(is_data)
    }

    /// The path of [`Self::files`] within the workload's folder, normalised; `None` if it is
    /// outside that folder, or is that folder.
    pub fn carried_folder(&self) -> Option<String> {
        normal(self.files.as_deref()?)
    }
}

/// A relative path without `.` parts and superfluous slashes; `None` if it is absolute, empty, or
/// contains `..`.
pub fn normal(written: &str) -> Option<String> {
    let parts: Vec<&str> = written
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    let fits = !written.starts_with('/') && !parts.is_empty() && !parts.contains(&"..");
    fits.then(|| parts.join("/"))
}

/// A folder under the machine's volume base path; it has no settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SimpleClusterStorage {}

/// A volume in memory; it has no settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TmpfsVolume {}

/// A secret, mounted as one file for each key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretVolume {
    /// Name of the secret.
    pub name: String,
}

/// A path of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostMount {
    /// Absolute path.
    pub host_path: String,
    /// Required type of the path; any type if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ensure_type: Option<EnsureType>,
}

/// Required type of a host path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EnsureType {
    /// A folder, created if missing.
    DirectoryOrCreate,
    /// A folder.
    Directory,
    /// A file, created if missing.
    FileOrCreate,
    /// A file.
    File,
    /// A socket.
    Socket,
}

/// What happens to a volume's data when its workload is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimPolicy {
    /// The data is kept.
    #[default]
    Retain,
    /// The data is deleted.
    Delete,
}
