//! What goes over the API and what `katcall -o json` prints (ARCHITECTURE.md, The API).
//! Field names are stable from the first release.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resource::{Amounts, Protocol, VirtualLoadBalancerSpec, WorkloadSpec};

mod container;
mod event;
mod health;
mod join;
mod login;
mod membership;
pub mod newer;
mod node;
mod preview;
mod registry;
mod report;
mod rollout;
mod secret;
mod session;
mod time;
mod token;
mod usage;
mod volume;

pub use container::*;
pub use event::*;
pub use health::*;
pub use join::*;
pub use login::*;
pub use membership::*;
pub use node::*;
pub use preview::*;
pub use registry::*;
pub use report::{bounds as report_bounds, *};
pub use rollout::*;
pub use secret::*;
pub use session::*;
pub use time::ApiTime;
pub use token::*;
pub use usage::*;
pub use volume::*;

/// Identity of every item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name; of an instance, its id.
    pub name: String,
    /// Namespace; nothing for nodes and namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Generated once, never used again.
    pub uid: String,
    /// Free labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Counts changes of the specification.
    pub generation: u64,
    /// Changes with every change of the item; for `If-Match` and watches.
    pub resource_version: String,
    /// RFC 3339, UTC.
    pub creation_timestamp: ApiTime,
}

/// One item: `{kind, metadata, spec, status}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ItemOf{Spec}")]
pub struct Item<Spec, Status> {
    /// `Workload`, `Instance`, `Node`, `Namespace`, `Volume`, `Secret`.
    pub kind: String,
    /// Identity.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: Spec,
    /// What is.
    pub status: Status,
}

/// A list: `{"items": [...]}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ListOf{T}")]
pub struct List<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where a watch goes on.
    #[serde(default)]
    pub metadata: ListMetadata,
}

/// What a list says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMetadata {
    /// For `?watch=true&resourceVersion=`.
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
/// A secret, without values.
pub type SecretItem = Item<SecretSpec, SecretStatus>;

/// A workload as it is shown: values of environment variables are replaced by `***`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadView {
    /// `workload.kat`'s specification.
    #[serde(flatten)]
    pub workload: WorkloadSpec,
    /// `VirtualLoadBalancer.kat`'s specification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<VirtualLoadBalancerSpec>,
}

/// Phases of a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkloadPhase {
    /// Nothing is placed yet.
    #[default]
    Pending,
    /// On the way to what is wanted.
    Progressing,
    /// As wanted.
    Running,
    /// Less than wanted.
    Degraded,
    /// A rollout made no progress.
    Stalled,
    /// A rollout was paused.
    Paused,
    /// On the way out.
    Deleting,
    /// A Job waits for its time.
    Scheduled,
    /// A Job runs.
    Active,
    /// A Job is done.
    Succeeded,
    /// A Job failed.
    Failed,
}

/// What became of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadStatus {
    /// In one word.
    #[serde(deserialize_with = "newer::word")]
    pub phase: WorkloadPhase,
    /// Wanted instances.
    pub replicas: u32,
    /// Instances that are healthy.
    pub ready: u32,
    /// Instances of the present generation.
    pub updated: u32,
    /// The generation that this status speaks of.
    pub observed_generation: u64,
    /// The address of a Service with a load balancer: stays until the workload is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub service_address: Option<Ipv4Addr>,
    /// Ports of machines that lead to it, with the numbers that `auto` is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPortStatus>,
    /// Its rollout moves nothing new.
    pub paused: bool,
    /// The newest generation that was wholly healthy once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_good_generation: Option<u64>,
    /// Why, in detail.
    pub conditions: Vec<Condition>,
}

/// A port of the machines that run a workload, which leads to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPortStatus {
    /// Port of the machine.
    pub port: u16,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port of the container.
    pub container_port: u16,
}

/// Kind of a workload's condition: it should have a service address, and none is free.
pub const SERVICE_ADDRESS: &str = "ServiceAddress";
/// Kind of an instance's condition: a program of its machine listens on its host port.
pub const HOST_PORT_IN_USE: &str = "HostPortInUse";
/// Kind of an instance's condition: its machine's owner does not let a host port of its lead to workloads.
pub const HOST_PORT_NOT_ALLOWED: &str = "HostPortNotAllowed";
/// Kind of a workload's condition: something of it can't leave a machine that is drained.
pub const DRAIN_BLOCKED: &str = "DrainBlocked";
/// Kind of a workload's condition: it is known which image all of its replicas run.
pub const IMAGE_PINNED: &str = "ImagePinned";

/// Kind of a workload's condition: it went back to an earlier generation by itself.
pub const ROLLED_BACK: &str = "RolledBack";

/// One statement about an item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Such as `Available`, `Progressing`, `LimitsNotEnforced`.
    #[serde(rename = "type")]
    pub kind: String,
    /// It holds, or not.
    pub status: bool,
    /// One word for programs, such as `ImagePullFailed`.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// RFC 3339, UTC: since when.
    pub since: ApiTime,
}

/// What an instance is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceSpec {
    /// The image as written or pinned.
    pub image: String,
}

/// Phases of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InstancePhase {
    /// No machine was found yet.
    #[default]
    Pending,
    /// A machine was found; its agent has not begun.
    Scheduled,
    /// The image is on its way.
    Pulling,
    /// The image is being built.
    Building,
    /// The unit is starting.
    Starting,
    /// The program runs.
    Running,
    /// The program ended and systemd will start it again.
    Restarting,
    /// It is being stopped.
    Stopping,
    /// It is stopped.
    Stopped,
    /// It gave up.
    Failed,
    /// It ended well.
    Succeeded,
    /// Its machine does not answer.
    Unknown,
}

/// Health of an instance (RFC001-KAT 6.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// The probe says so, or there is no probe and it runs.
    Healthy,
    /// The probe says not.
    Unhealthy,
    /// The probe has not said yet.
    PendingCheck,
    /// There is no probe.
    #[default]
    NotApplicable,
}

impl Health {
    /// Nothing says that it is not to be sent to.
    pub fn serves(self) -> bool {
        matches!(self, Self::Healthy | Self::NotApplicable)
    }
}

/// What became of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceStatus {
    /// Its workload.
    pub workload: String,
    /// Its place among the replicas.
    pub slot: u32,
    /// Its machine; nothing while Pending.
    pub node: Option<String>,
    /// Its first address.
    pub ip: Option<Ipv4Addr>,
    /// All of its addresses.
    pub ips: Vec<Ipv4Addr>,
    /// Ports of its machine that lead to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPortStatus>,
    /// In one word.
    #[serde(deserialize_with = "newer::word")]
    pub phase: InstancePhase,
    /// One word for programs, such as `CrashLoop`, `ImagePullFailed`, `NoSpace`.
    pub reason: String,
    /// A sentence for people, or the last lines of the log.
    pub message: String,
    /// Health.
    #[serde(deserialize_with = "newer::word")]
    pub health: Health,
    /// Times that the program was started again.
    pub restarts: u32,
    /// The image as written or pinned.
    pub image: String,
    /// `sha256:...` of what runs.
    pub image_digest: Option<String>,
    /// Generation of the workload that it came from.
    pub generation: u64,
    /// Host user.
    pub user: String,
    /// Host uid.
    pub uid: u32,
    /// Its service in that user's manager.
    pub unit: String,
    /// RFC 3339, UTC: since when it is in this phase.
    pub since: ApiTime,
    /// Exit code of the program's last end.
    pub exit_code: Option<i32>,
    /// Memory now, bytes.
    pub memory: Option<u64>,
    /// Processor time so far, nanoseconds.
    pub cpu: Option<u64>,
    /// Conditions such as `LimitsNotEnforced`.
    pub conditions: Vec<Condition>,
    /// Its init containers in their order, then its sidecars.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerStatus>,
}

/// What a namespace may have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceSpec {
    /// Its quotas.
    #[serde(skip_serializing_if = "Amounts::is_empty")]
    pub quota: Amounts,
}

/// What a namespace holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceStatus {
    /// `Active` or `Deleting`.
    pub phase: String,
    /// Workloads in it.
    pub workloads: u32,
    /// What quotas count, as it is now.
    #[serde(skip_serializing_if = "Amounts::is_empty")]
    pub used: Amounts,
}

/// One line of a watch (`?watch=true&resourceVersion=N`): a JSON object and a line feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
#[schemars(rename = "WatchLineOf{T}")]
pub enum WatchLine<T> {
    /// The item is new.
    Added(T),
    /// The item changed.
    Modified(T),
    /// The item is gone; this is its last form.
    Deleted(T),
    /// Nothing changed up to this resourceVersion; sent at least every 15 s.
    Bookmark(ListMetadata),
    /// The watch ends; with `Gone`, list again.
    Error(ErrorBody),
}

/// One line of a log stream: a JSON object and a line feed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LogLine {
    /// RFC 3339, UTC, microseconds.
    pub timestamp: ApiTime,
    /// The line, without its line feed.
    pub message: String,
    /// The journal's priority, 0 (worst) to 7.
    pub priority: u8,
    /// Only in the last line of a stream that ends before the log does: why. Such a line has no
    /// message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

/// The answer of `/version`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerVersion {
    /// Version of the agent that answered.
    pub version: String,
}

/// Word of an error: the machine that it is about can't be asked now, others can.
pub const MACHINE_AWAY: &str = "MachineAway";

/// Header of an answer that may be old: `true` where nobody leads whom the machine reaches, so that it
/// shows what it knew last.
pub const STALE_HEADER: &str = "kat-stale";

/// Header of the answer to a machine's report: for how many milliseconds the leader has not been sure
/// that nobody else leads.
pub const UNSURE_HEADER: &str = "kat-unsure-ms";

/// The body of every error (RFC001-KAT 8.1).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorBody {
    /// One word for programs, such as `NotFound`, `Conflict`, `Invalid`, `NotLeader`.
    pub error: String,
    /// A sentence for people.
    pub message: String,
    /// What to try, if anything helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Errors of fields, as `bundle` finds them: objects with class, file, line, column, path,
    /// message and hint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<serde_json::Value>,
}

/// What an apply did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplyResult {
    /// `created`, `updated` or `unchanged`; of what is to go `deleting`, or `forgetting` where KAT only
    /// forgets it.
    pub outcome: String,
    /// `Workload`, `Namespace`, `Node`, `Volume` or `Secret`.
    pub kind: String,
    /// Identity of the workload, namespace, machine, volume or secret.
    pub metadata: Metadata,
    /// Of a workload that was only tried: what would come of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<Box<Preview>>,
}

/// `/etc/kat/admin.conf` and katcall's contexts: how to reach a cluster.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// Name of the cluster.
    pub cluster: String,
    /// Its generated identity; the certificate names it.
    pub cluster_uid: String,
    /// `host:port` of machines to ask, in order.
    pub endpoints: Vec<String>,
    /// The cluster authority's certificate, PEM.
    pub ca: String,
    /// Token of the caller.
    pub token: String,
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
