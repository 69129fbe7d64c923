//! Volumes of `workload.kat` (RFC001-KAT 3.2, 4.7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A volume: exactly one of its sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Name that the mounts refer to.
    pub name: String,
    /// A folder under the machine's volume base path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simple_cluster_storage: Option<SimpleClusterStorage>,
    /// A path of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_mount: Option<HostMount>,
    /// A folder of the workload's own folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
    /// A secret, as files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolume>,
    /// Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tmpfs: Option<TmpfsVolume>,
    /// One folder for each slot.
    #[serde(default)]
    pub per_replica: bool,
    /// What happens to the data when the workload is deleted.
    #[serde(default)]
    pub reclaim: ReclaimPolicy,
}

impl Volume {
    /// What it holds outlives the instance: a folder below the volume base path, or a file or folder of the
    /// machine.
    pub fn keeps_data(&self) -> bool {
        let host = self.host_mount.as_ref();
        let is_data = |host: &HostMount| host.ensure_type != Some(EnsureType::Socket);
        self.simple_cluster_storage.is_some() || host.is_some_and(is_data)
    }

    /// The folder of [`Self::files`] within the workload's own, without `.` and slashes too many; nothing where it
    /// leads out, or is the workload's own.
    pub fn carried_folder(&self) -> Option<String> {
        normal(self.files.as_deref()?)
    }
}

/// A path below where it begins, without `.` and slashes too many.
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

/// A secret, as files.
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
    /// What it must be; anything unless written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ensure_type: Option<EnsureType>,
}

/// What a host path must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EnsureType {
    /// A folder, made if missing.
    DirectoryOrCreate,
    /// A folder.
    Directory,
    /// A file, made if missing.
    FileOrCreate,
    /// A file.
    File,
    /// A socket.
    Socket,
}

/// What happens to a volume's data when its workload is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimPolicy {
    /// It stays.
    #[default]
    Retain,
    /// It goes.
    Delete,
}
