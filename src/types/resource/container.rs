//! A container of `workload.kat` (RFC001-KAT 3.2).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, MilliCpu};

/// `drainSeconds` of a container that does not set it.
pub const DEFAULT_DRAIN_SECONDS: u32 = 5;
/// `terminationGraceSeconds` of a container that does not set it.
pub const DEFAULT_TERMINATION_GRACE_SECONDS: u32 = 10;

/// Specification of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Name of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Image of an init container or a sidecar; the workload's image by default. Absent for the
    /// main container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Replaces the image's CMD.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Arguments appended to `command`; without it they replace the image's CMD.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Replaces the image's ENTRYPOINT.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// Environment variables, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Seconds before the stop signal in which the instance receives no new traffic from DNS and
    /// service addresses.
    #[serde(default = "default_drain_seconds")]
    pub drain_seconds: u32,
    /// Seconds from the stop signal until the container is killed.
    #[serde(default = "default_grace_seconds")]
    pub termination_grace_seconds: u32,
    /// Stop signal; the image's by default, or SIGTERM if the image has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// User of the program: `uid[:gid]`, or names that the image defines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Host name in the container; the name of the instance by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Working directory in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Added capabilities, without `CAP_`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cap_add: Vec<String>,
    /// Dropped capabilities, without `CAP_`, or `ALL`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cap_drop: Vec<String>,
    /// Device nodes of the machine, each `HOST[:CONTAINER[:rwm]]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Groups of the machine that the program joins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Folders in memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tmpfs: Vec<String>,
    /// Size of /dev/shm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm_size: Option<Bytes>,
    /// How early the kernel ends the program when memory runs out; 1000 is first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_score_adjust: Option<u32>,
    /// Whether a small init runs as process 1.
    #[serde(default)]
    pub init: bool,
    /// Whether the root file system is mounted read-only.
    #[serde(default)]
    pub read_only_rootfs: bool,
    /// Whether the container uses the machine's network.
    #[serde(default)]
    pub host_network: bool,
    /// When the image is pulled; by default Always for `:latest`, otherwise IfNotPresent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Keys that are passed through to the quadlet; only certain keys are allowed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quadlet: BTreeMap<String, String>,
    /// Volumes to mount in the container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Requests and limits of the container.
    #[serde(default)]
    pub resources: Resources,
}

fn default_drain_seconds() -> u32 {
    DEFAULT_DRAIN_SECONDS
}

fn default_grace_seconds() -> u32 {
    DEFAULT_TERMINATION_GRACE_SECONDS
}

/// Lowest schema of an assignment that has a field, and whether the field is set.
pub(crate) type FieldSchema<T> = (u32, fn(&T) -> bool);

/// Fields that older agents do not know: such an agent would run the container without the field.
const SCHEMAS: &[FieldSchema<Container>] = &[
    (4, |container| !container.volume_mounts.is_empty()),
    (4, |container| !container.quadlet.is_empty()),
    (5, Container::has_machine_things),
    (10, |container| container.oom_score_adjust.is_some()),
    (12, |container| container.resources.gpu.is_some()),
];

/// The highest schema that any of the fields needs.
pub(crate) const fn highest_schema<T>(mut fields: &[FieldSchema<T>]) -> u32 {
    let mut highest = 1;
    while let [(schema, _), rest @ ..] = fields {
        if *schema > highest {
            highest = *schema;
        }
        fields = rest;
    }
    highest
}

/// The lowest schema that has every field that is set.
pub(crate) fn lowest_schema<T>(fields: &[FieldSchema<T>], value: &T) -> u32 {
    let set = fields.iter().filter(|(_, is_set)| is_set(value));
    set.map(|(schema, _)| *schema).max().unwrap_or(1)
}

/// One environment variable: exactly one of `value` and `valueFrom`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name of the variable.
    pub name: String,
    /// Value of the variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Source of the variable's value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

/// Does not show the value, since it must not appear in logs.
impl std::fmt::Debug for EnvVar {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("EnvVar")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Source of a variable's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVarSource {
    /// A key of a secret.
    pub secret: SecretKeyRef,
}

/// A key of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the secret.
    pub name: String,
    /// Key in the secret.
    pub key: String,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// If the machine does not have the image.
    IfNotPresent,
    /// Before each new instance.
    Always,
    /// Never: the machine must have the image.
    Never,
}

impl Container {
    /// Highest schema of an assignment that any field of a container needs.
    pub const HIGHEST_SCHEMA: u32 = highest_schema(SCHEMAS);

    /// The lowest schema of an assignment whose agents know every field that is set here.
    pub fn needed_schema(&self) -> u32 {
        lowest_schema(SCHEMAS, self)
    }

    /// Whether the container uses the machine's network, devices, groups or a GPU. Two instances
    /// cannot use these at the same time, so such instances are replaced in place (ARCHITECTURE.md,
    /// invariant 11).
    pub fn has_machine_things(&self) -> bool {
        self.has_common_things() || self.resources.gpu.is_some()
    }

    /// Whether the container uses the machine's network, devices or groups, which are the same for
    /// all instances of the workload on a machine.
    pub fn has_common_things(&self) -> bool {
        self.host_network || !self.devices.is_empty() || !self.groups.is_empty()
    }

    /// Whether the container mounts this volume.
    pub fn mounts(&self, volume: &str) -> bool {
        self.volume_mounts.iter().any(|mount| mount.name == volume)
    }

    /// Whether the container may write to this volume.
    pub fn writes_to(&self, volume: &str) -> bool {
        let mut mounts = self.volume_mounts.iter();
        mounts.any(|mount| mount.name == volume && !mount.read_only)
    }
}

/// Mount of a volume in a container.
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
    /// Whether the volume is mounted read-only.
    #[serde(default)]
    pub read_only: bool,
}

/// Requests, limits and GPU of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Amounts that the scheduler counts; the limits by default.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub requests: ResourceList,
    /// Limits that the machine enforces.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub limits: ResourceList,
    /// A GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuRequest>,
}

impl Resources {
    /// The requests; a missing amount is taken from the limits (RFC001-KAT 3.2).
    pub fn effective_requests(&self) -> ResourceList {
        ResourceList {
            cpu: self.requests.cpu.or(self.limits.cpu),
            memory: self.requests.memory.or(self.limits.memory),
            storage: self.requests.storage,
        }
    }

    /// Sets the requests for CPU and memory that have neither a request nor a limit.
    pub fn set_default_requests(&mut self, defaults: ResourceList) {
        let present = self.effective_requests();
        if present.cpu.is_none() {
            self.requests.cpu = defaults.cpu;
        }
        if present.memory.is_none() {
            self.requests.memory = defaults.memory;
        }
    }
}

/// Amounts of CPU, memory and disk space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceList {
    /// CPU, such as `100m` or `1.5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<MilliCpu>,
    /// Memory, such as `64Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Disk space, such as `2Gi`; only in requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Bytes>,
}

impl ResourceList {
    /// Whether no amount is set.
    pub fn is_empty(&self) -> bool {
        let Self {
            cpu,
            memory,
            storage,
        } = self;
        cpu.is_none() && memory.is_none() && storage.is_none()
    }
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuRequest {
    /// Vendor of the GPU, any by default.
    #[serde(default)]
    pub driver: GpuDriver,
    /// Minimum memory of the GPU, in mebibytes.
    #[serde(
        default,
        rename = "minVRAM_MB",
        skip_serializing_if = "Option::is_none"
    )]
    pub min_vram_mb: Option<u32>,
}

impl GpuRequest {
    /// One GPU that suffices for both requests: the largest memory, and the vendor of the one that
    /// names a vendor. `bundle` refuses two requests that name different vendors.
    pub fn with(&self, other: &Self) -> Self {
        Self {
            driver: match self.driver {
                GpuDriver::Any => other.driver,
                named => named,
            },
            min_vram_mb: self.min_vram_mb.max(other.min_vram_mb),
        }
    }

    /// Whether no GPU suffices for both requests, as they name different vendors.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let has_both = self.driver != GpuDriver::Any && other.driver != GpuDriver::Any;
        has_both && self.driver != other.driver
    }
}

/// Vendor of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum GpuDriver {
    /// Any vendor.
    #[default]
    Any,
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
}
