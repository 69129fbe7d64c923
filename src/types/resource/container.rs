//! A container of `workload.kat` (RFC001-KAT 3.2).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, MilliCpu};

/// One container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Informational.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its image, where it is not the workload's; never of the main container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Replaces the image's CMD.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Appended to the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Replaces the image's ENTRYPOINT.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// Environment variables, in the order written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Seconds out of DNS and service addresses before the stop signal.
    #[serde(default = "default_drain_seconds")]
    pub drain_seconds: u32,
    /// Seconds from the stop signal to the kill.
    #[serde(default = "default_grace_seconds")]
    pub termination_grace_seconds: u32,
    /// Stop signal; the image's, or SIGTERM, unless written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// `uid[:gid]` or names of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working folder in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Capabilities added, without `CAP_`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cap_add: Vec<String>,
    /// Capabilities dropped, or ALL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cap_drop: Vec<String>,
    /// Device nodes passed through, each `HOST[:CONTAINER[:rwm]]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Groups of the host that the program joins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Folders held in memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tmpfs: Vec<String>,
    /// Size of /dev/shm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm_size: Option<Bytes>,
    /// Run a small init as process 1.
    #[serde(default)]
    pub init: bool,
    /// Mount the root read-only.
    #[serde(default)]
    pub read_only_rootfs: bool,
    /// Share the machine's network.
    #[serde(default)]
    pub host_network: bool,
    /// When the image is pulled; Always for `:latest` and IfNotPresent otherwise unless written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Allow-listed quadlet keys, passed through.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quadlet: BTreeMap<String, String>,
    /// Where volumes are mounted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
    /// What it asks for and what it may use at most.
    #[serde(default)]
    pub resources: Resources,
}

fn default_drain_seconds() -> u32 {
    5
}

fn default_grace_seconds() -> u32 {
    10
}

/// One environment variable: exactly one of `value` and `valueFrom`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name of the variable.
    pub name: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Where its value comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

/// The value is left out: it must reach no log.
impl std::fmt::Debug for EnvVar {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("EnvVar")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Where a variable's value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVarSource {
    /// One key of a secret.
    pub secret: SecretKeyRef,
}

/// One key of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the secret.
    pub name: String,
    /// Key in it.
    pub key: String,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// When it is not there yet.
    IfNotPresent,
    /// Before each new instance.
    Always,
    /// Never: it must be there.
    Never,
}

impl Container {
    /// It has something of its machine that two can't have at once: its instances are replaced in place
    /// (ARCHITECTURE.md, invariant 11).
    pub fn has_machine_things(&self) -> bool {
        self.host_network || !self.devices.is_empty() || !self.groups.is_empty()
    }

    /// It has a place for this volume.
    pub fn mounts(&self, volume: &str) -> bool {
        self.volume_mounts.iter().any(|mount| mount.name == volume)
    }

    /// It may write to this volume.
    pub fn writes_to(&self, volume: &str) -> bool {
        let mut mounts = self.volume_mounts.iter();
        mounts.any(|mount| mount.name == volume && !mount.read_only)
    }
}

/// A volume's place in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// Name of a volume of the workload.
    pub name: String,
    /// Absolute path in the container.
    pub mount_path: String,
    /// Folder within the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// Mount it read-only.
    #[serde(default)]
    pub read_only: bool,
}

/// Requests, limits and GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What the scheduler counts; the limits unless written.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub requests: ResourceList,
    /// What the machine enforces.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub limits: ResourceList,
    /// A graphics processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuRequest>,
}

impl Resources {
    /// The requests, each filled in from the limits where it is missing (RFC001-KAT 3.2).
    pub fn effective_requests(&self) -> ResourceList {
        ResourceList {
            cpu: self.requests.cpu.or(self.limits.cpu),
            memory: self.requests.memory.or(self.limits.memory),
            storage: self.requests.storage,
        }
    }
}

/// Amounts of processor, memory and disk space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceList {
    /// Processor time, such as `100m` or `1.5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<MilliCpu>,
    /// Memory, such as `64Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Disk space, such as `2Gi`; of requests alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Bytes>,
}

impl ResourceList {
    /// Nothing is named.
    pub fn is_empty(&self) -> bool {
        let Self {
            cpu,
            memory,
            storage,
        } = self;
        cpu.is_none() && memory.is_none() && storage.is_none()
    }
}

/// A graphics processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuRequest {
    /// Any unless written.
    #[serde(default)]
    pub driver: GpuDriver,
    /// Least memory of the device, in mebibytes.
    #[serde(
        default,
        rename = "minVRAM_MB",
        skip_serializing_if = "Option::is_none"
    )]
    pub min_vram_mb: Option<u32>,
}

/// Maker of a graphics processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum GpuDriver {
    /// Whichever.
    #[default]
    Any,
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
}
