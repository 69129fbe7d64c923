//! The objects that the API receives and sends, and that `katcall -o json` prints
//! (docs/internals/api.md). Field names are stable from the first release.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resource::{
    Amounts, JobSpec, NamespaceDefaults, NamespaceIsolation, Protocol, VirtualLoadBalancerSpec,
    WorkloadSpec,
};

mod access;
mod configuration;
mod container;
mod isolation;
mod job;
mod namespace;
pub mod newer;
mod node;
mod observation;
mod outcome;
mod preview;
mod registry;
mod report;
mod rollout;
mod route;
mod secret;
mod time;
mod virtual_address;
mod volume;

pub use crate::api::access::authorities::*;
pub use crate::api::access::join::*;
pub use crate::api::access::login::*;
pub use crate::api::access::membership::*;
pub use crate::api::access::session::*;
pub use crate::api::access::token::*;
pub use crate::api::observation::event::*;
pub use crate::api::observation::gone::*;
pub use crate::api::observation::health::*;
pub use crate::api::observation::measurements::*;
pub use crate::api::observation::metrics::*;
pub use crate::api::observation::overview::*;
pub use crate::api::observation::query::*;
pub use crate::api::observation::usage::*;
pub use configuration::*;
pub use container::*;
pub use isolation::*;
pub use job::*;
pub use namespace::*;
pub use node::*;
pub use outcome::*;
pub use preview::*;
pub use registry::*;
pub use report::{bounds as report_bounds, *};
pub use rollout::*;
pub use route::*;
pub use secret::*;
pub use time::ApiTime;
pub use virtual_address::*;
pub use volume::*;

/// Identity and version of an item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name of the item; for an instance, its id.
    pub name: String,
    /// Namespace of the item; absent for nodes and namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Unique identifier, generated when the item is created and never reused.
    pub uid: String,
    /// Labels, by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Number of the item's version; increases with every change of the specification.
    pub generation: u64,
    /// Version of the whole item, for `If-Match` and watches.
    pub resource_version: String,
    /// When the item was created; RFC 3339, UTC.
    pub creation_timestamp: ApiTime,
}

/// One item: `{kind, metadata, spec, status}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ItemOf{Spec}")]
pub struct Item<Spec, Status> {
    /// `Workload`, `Instance`, `Node`, `Namespace`, `Volume`, `Route`, `Run`, `Secret`.
    pub kind: String,
    /// Identity and version of the item.
    pub metadata: Metadata,
    /// Desired state.
    pub spec: Spec,
    /// Observed state.
    pub status: Status,
}

/// A list: `{"items": [...]}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ListOf{T}")]
pub struct List<T> {
    /// The items.
    pub items: Vec<T>,
    /// The version of the list, from which a watch can continue.
    #[serde(default)]
    pub metadata: ListMetadata,
}

/// Version of a list, or position of a watch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMetadata {
    /// The value for `?watch=true&resourceVersion=`.
    pub resource_version: String,
}

/// A workload.
pub type WorkloadItem = Item<WorkloadView, WorkloadStatus>;
/// An instance.
pub type InstanceItem = Item<InstanceSpec, InstanceStatus>;
/// A machine.
pub type NodeItem = Item<NodeSpec, NodeStatus>;
/// A namespace.
pub type NamespaceItem = Item<NamespaceSpec, NamespaceStatus>;
/// A volume.
pub type VolumeItem = Item<VolumeSpec, VolumeStatus>;
/// A run of a Job.
pub type RunItem = Item<RunView, RunStatus>;
/// A route of a workload.
pub type RouteItem = Item<RouteView, RouteStatus>;
/// A virtual address.
pub type VirtualAddressItem = Item<VirtualAddressView, VirtualAddressStatus>;
/// A secret, without its values.
pub type SecretItem = Item<SecretSpec, SecretStatus>;

/// The specification of a workload. Values of environment variables are replaced by `***`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadView {
    /// The specification in `workload.kat`.
    #[serde(flatten)]
    pub workload: WorkloadSpec,
    /// The specification in `VirtualLoadBalancer.kat`; absent if the workload has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<VirtualLoadBalancerSpec>,
    /// The specification in `job.kat`; absent if the workload is no Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobSpec>,
}

/// Phase of a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkloadPhase {
    /// No instance has been placed yet.
    #[default]
    Pending,
    /// Instances are starting or being replaced.
    Progressing,
    /// All replicas run the current generation and are healthy.
    Running,
    /// Something prevents the desired state, such as a failing instance or a missing machine.
    Degraded,
    /// The rollout has made no progress within `progressDeadlineSeconds`.
    Stalled,
    /// The rollout is paused.
    Paused,
    /// A user stopped the workload, and none of its instances is left.
    Stopped,
    /// The workload is being deleted.
    Deleting,
    /// A Job waits for its schedule.
    Scheduled,
    /// A Job is running.
    Active,
    /// A Job has completed.
    Succeeded,
    /// A Job has failed.
    Failed,
}

/// Observed state of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadStatus {
    /// Phase of the workload. In an object of a newer version, an unknown phase is read as
    /// `Progressing`.
    #[serde(deserialize_with = "newer::word")]
    pub phase: WorkloadPhase,
    /// Desired number of instances.
    pub replicas: u32,
    /// Number of healthy instances.
    pub ready: u32,
    /// Number of instances of the current generation.
    pub updated: u32,
    /// The generation that this status describes.
    pub observed_generation: u64,
    /// Virtual address of a Service with a load balancer. It does not change until the workload is
    /// deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub service_address: Option<Ipv4Addr>,
    /// Host ports that forward to the workload, with the numbers assigned for `auto`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPortStatus>,
    /// Whether the rollout is paused: no further instance is replaced.
    pub paused: bool,
    /// Number of the newest generation of which all instances were healthy at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_good_generation: Option<u64>,
    /// State of a Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobStatus>,
    /// Conditions of the workload, such as `Available`.
    pub conditions: Vec<Condition>,
}

/// A host port: a port of the machine that forwards to a port of the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPortStatus {
    /// Port number on the machine.
    pub port: u16,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port number in the container.
    pub container_port: u16,
}

/// Type of a workload's condition: all replicas run the current generation and are healthy.
pub const AVAILABLE: &str = "Available";
/// Type of a workload's condition: the service needs a virtual address, and none is free.
pub const SERVICE_ADDRESS: &str = "ServiceAddress";
/// Type of an instance's condition: a program on the machine already listens on the host port.
pub const HOST_PORT_IN_USE: &str = "HostPortInUse";
/// Type of an instance's condition: `hostPortsAllow` on the machine does not allow the host port.
pub const HOST_PORT_NOT_ALLOWED: &str = "HostPortNotAllowed";
/// Type of a workload's condition: an instance or a volume cannot leave a machine that is being
/// drained.
pub const DRAIN_BLOCKED: &str = "DrainBlocked";
/// Type of a workload's condition: false if the digest of an image is unknown, so that replicas may
/// run different images.
pub const IMAGE_PINNED: &str = "ImagePinned";

/// Type of a workload's condition: `autoRollback` restored an earlier generation.
pub const ROLLED_BACK: &str = "RolledBack";

/// One statement about an item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type of the condition, such as `Available`, `Progressing` or `LimitsNotEnforced`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether the condition holds.
    pub status: bool,
    /// Reason of the status, one word for programs, such as `ImagePullFailed`.
    pub reason: String,
    /// Reason of the status for users, in a sentence.
    pub message: String,
    /// When the status last changed; RFC 3339, UTC.
    pub since: ApiTime,
}

/// Desired state of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceSpec {
    /// The image: by its digest if that is known, otherwise as written in `workload.kat`.
    pub image: String,
}

/// Phase of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InstancePhase {
    /// The instance has not been placed on a machine yet.
    #[default]
    Pending,
    /// The instance is placed on a machine, whose agent has not started it yet.
    Scheduled,
    /// The image is being pulled.
    Pulling,
    /// The image is being built.
    Building,
    /// The machine has everything that the instance needs to start, and waits for the end of the
    /// instance that it replaces.
    Prepared,
    /// The systemd unit is starting.
    Starting,
    /// The program is running.
    Running,
    /// The program has ended, and systemd will restart it.
    Restarting,
    /// The instance is being stopped.
    Stopping,
    /// The instance is stopped.
    Stopped,
    /// The instance has failed and will not be restarted.
    Failed,
    /// The program has ended successfully.
    Succeeded,
    /// The machine of the instance does not report.
    Unknown,
}

/// Health of an instance (RFC001-KAT 6.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// The health check succeeds.
    Healthy,
    /// The health check fails.
    Unhealthy,
    /// The health check has no result yet.
    PendingCheck,
    /// The workload has no health check.
    #[default]
    NotApplicable,
}

impl Health {
    /// Whether the instance may receive traffic.
    pub fn serves(self) -> bool {
        matches!(self, Self::Healthy | Self::NotApplicable)
    }
}

/// Observed state of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceStatus {
    /// Name of the workload.
    pub workload: String,
    /// Index of the replica, from 0.
    pub slot: u32,
    /// Name of the machine; null while the phase is Pending.
    pub node: Option<String>,
    /// First overlay address of the instance.
    pub ip: Option<Ipv4Addr>,
    /// All overlay addresses of the instance.
    pub ips: Vec<Ipv4Addr>,
    /// Host ports that forward to the instance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPortStatus>,
    /// Phase of the instance. In an object of a newer version, an unknown phase is read as
    /// `Unknown`.
    #[serde(deserialize_with = "newer::word")]
    pub phase: InstancePhase,
    /// Reason of the phase, one word for programs, such as `CrashLoop` or `ImagePullFailed`.
    pub reason: String,
    /// Reason of the phase for users: a sentence, or the last lines of the log.
    pub message: String,
    /// Result of the health check. In an object of a newer version, an unknown result is read as
    /// `pending_check`.
    #[serde(deserialize_with = "newer::word")]
    pub health: Health,
    /// Number of restarts of the program.
    pub restarts: u32,
    /// The image: by its digest if that is known, otherwise as written in `workload.kat`.
    pub image: String,
    /// Digest of the running image, `sha256:...`; null if unknown.
    pub image_digest: Option<String>,
    /// The generation of the workload that the instance runs.
    pub generation: u64,
    /// Name of the user on the machine that runs the instance.
    pub user: String,
    /// Uid of that user.
    pub uid: u32,
    /// Name of the instance's service in that user's systemd manager.
    pub unit: String,
    /// When the instance entered this phase; RFC 3339, UTC.
    pub since: ApiTime,
    /// Exit code with which the program last ended; null if it has not ended.
    pub exit_code: Option<i32>,
    /// Memory in use, bytes; null if not measured.
    pub memory: Option<u64>,
    /// CPU time used since the last start, nanoseconds; null if not measured.
    pub cpu: Option<u64>,
    /// Conditions of the instance, such as `LimitsNotEnforced`.
    pub conditions: Vec<Condition>,
    /// Status of the init containers in their order, then of the sidecars.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerStatus>,
}

/// Settings of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceSpec {
    /// Whether workloads of all other namespaces may reach its workloads. In an object of a newer
    /// version, an unknown word is read as `Private`.
    #[serde(deserialize_with = "newer::word")]
    pub isolation: NamespaceIsolation,
    /// Other namespaces whose workloads may reach its workloads; `*` for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_namespaces: Vec<String>,
    /// Hosts that its routes may have, exact or with `*.` for one label; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_hosts: Option<Vec<String>>,
    /// Quotas of the namespace; a missing amount is not limited.
    #[serde(skip_serializing_if = "Amounts::is_empty")]
    pub quota: Amounts,
    /// Values that new instances get where their workload does not have them.
    #[serde(skip_serializing_if = "NamespaceDefaults::is_empty")]
    pub defaults: NamespaceDefaults,
}

/// Phase of a namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NamespacePhase {
    /// Workloads can be applied to it.
    #[default]
    Active,
    /// It is being deleted with its workloads.
    Deleting,
}

impl newer::ExtensibleEnum for NamespacePhase {
    const NEWER: Self = Self::Active;
}

/// Observed state of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceStatus {
    /// Phase of the namespace. In an object of a newer version, an unknown phase is read as
    /// `Active`.
    #[serde(deserialize_with = "newer::word")]
    pub phase: NamespacePhase,
    /// Number of workloads in the namespace.
    pub workloads: u32,
    /// Current use of the amounts that quotas limit.
    #[serde(skip_serializing_if = "Amounts::is_empty")]
    pub used: Amounts,
}

/// One line of a watch (`?watch=true&resourceVersion=N`): a JSON object and a line feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
#[schemars(rename = "WatchLineOf{T}")]
pub enum WatchLine<T> {
    /// The item was created.
    Added(T),
    /// The item changed.
    Modified(T),
    /// The item was deleted; this is its last version.
    Deleted(T),
    /// All changes up to this `resourceVersion` have been sent. Sent at least every 15 s.
    Bookmark(ListMetadata),
    /// The watch ends with this error. After `Gone`, list the items again.
    Error(ErrorBody),
}

/// One line of a log stream: a JSON object and a line feed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LogLine {
    /// When the line was written; RFC 3339, UTC, in microseconds.
    pub timestamp: ApiTime,
    /// Text of the line, without the line feed.
    pub message: String,
    /// Priority of the line in the journal, from 0 (emergency) to 7 (debug).
    pub priority: u8,
    /// Why the stream ended before the log. Present only in the last line of such a stream, which
    /// has no message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

/// Response of `/version`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerVersion {
    /// Version of the agent that responded.
    pub version: String,
}

/// `error` of an [`ErrorBody`]: the machine concerned cannot be reached, while others can.
pub const MACHINE_AWAY: &str = "MachineAway";

/// Response header: `true` if the machine reaches no leader, so that the response shows the last
/// state that it received.
pub const STALE_HEADER: &str = "kat-stale";

/// Header of the response to a machine's report: milliseconds since the leader last confirmed that
/// it is the only leader; of a report that came after a newer one, at least those since the newer one
/// arrived.
pub const UNSURE_HEADER: &str = "kat-unsure-ms";

/// Body of every error response (RFC001-KAT 8.1).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorBody {
    /// Kind of the error, one word for programs, such as `NotFound`, `Conflict`, `Invalid` or
    /// `NotLeader`.
    pub error: String,
    /// What failed and why, in a sentence for users.
    pub message: String,
    /// The next step to try; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Errors in the submitted files: objects with class, file, line, column, path, message and
    /// hint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<serde_json::Value>,
}

/// Result of an apply, or of another change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplyResult {
    /// Outcome of the request. In an object of a newer version, an unknown outcome is read as
    /// `updated`.
    #[serde(deserialize_with = "newer::word")]
    pub outcome: WriteOutcome,
    /// `Workload`, `Namespace`, `Node`, `Volume` or `Secret`.
    pub kind: String,
    /// Identity of the changed item.
    pub metadata: Metadata,
    /// Result of a dry run; present only with `dryRun=true` for a workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<Box<Preview>>,
    /// What was accepted although it could not be checked, such as an image whose registry did not
    /// answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Connection to a cluster, in `/etc/kat/admin.conf`, in katcall's contexts, and in the response to
/// the creation of a token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// Name of the cluster.
    pub cluster: String,
    /// Uid of the cluster, generated at init; certificates contain it.
    pub cluster_uid: String,
    /// `host:port` of API endpoints, in the order in which they are tried.
    pub endpoints: Vec<String>,
    /// Certificate of the cluster's authority, PEM.
    pub ca: String,
    /// The caller's token.
    pub token: String,
    /// Namespace of commands that name none: that of a `deploy:NAMESPACE` token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Servers must have the name `api.kat.` and the cluster's uid, which only machines with the
    /// store have. Absent in files of version 0.1.0 until such a server has answered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub api_name_required: bool,
}

impl fmt::Debug for Connection {
    /// Leaves the token out.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connection")
            .field("cluster", &self.cluster)
            .field("cluster_uid", &self.cluster_uid)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}
