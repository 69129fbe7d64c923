//! `workload.kat` (RFC001-KAT 3.2).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Container, Port, Volume};

/// A workload: its identity and its specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// Name, namespace and labels.
    pub metadata: WorkloadMetadata,
    /// Desired state.
    pub spec: WorkloadSpec,
}

/// Name, namespace and labels of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadMetadata {
    /// DNS-1123 label of at most 40 characters.
    pub name: String,
    /// Namespace of the workload; `default` if absent.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// Labels, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// The namespace of a workload without `metadata.namespace`.
pub fn default_namespace() -> String {
    "default".to_owned()
}

/// Specification of a workload: the desired state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSpec {
    /// Service, Job or DaemonService.
    #[serde(rename = "type")]
    pub kind: WorkloadType,
    /// Where the image comes from.
    pub source: Source,
    /// Number of instances of a Service; ignored for other types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// How instances are replaced.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,
    /// What systemd does when the program ends.
    pub restart_policy: RestartPolicy,
    /// What happens to an instance whose machine is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_node_loss: Option<OnNodeLoss>,
    /// What a machine that reaches no leader does with a running instance.
    #[serde(default)]
    pub on_partition: OnPartition,
    /// Spreading of instances over the values of a machine label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// Workloads that must not share a machine with this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anti_affinity: Vec<String>,
    /// Workloads that must share a machine with this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affinity: Vec<String>,
    /// Labels that a machine must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the workload tolerates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// The main container.
    pub container: Container,
    /// Containers that run to completion, in this order, before the main container starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    /// Containers that run beside the main container and share its network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sidecars: Vec<Container>,
    /// Volumes that the containers mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Ports of the main container, if `workload.kat` has them and not `VirtualLoadBalancer.kat`.
    /// They are moved there when the files are read, so that this list is empty afterwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// Workloads that have to be there before this one starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start_after: Vec<StartAfter>,
    /// What of the machine the containers may ask: `api`, `metadata`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machine_access: Vec<String>,
}

/// The three kinds of workload (RFC001-KAT 1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkloadType {
    /// Runs continuously, with `replicas` instances.
    Service,
    /// Runs to completion.
    Job,
    /// Runs once on every eligible machine.
    DaemonService,
}

/// Source of the image: exactly one of `image` and `git`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// An image reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// A git repository from which the image is built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSource>,
    /// An image that is tried before a build; only with `git`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_image: Option<String>,
}

/// A git repository with the version to check out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitSource {
    /// URL of the repository.
    pub repository: String,
    /// Branch; the repository's default branch by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Tag; takes precedence over `branch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Commit; takes precedence over `tag`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// How a changed workload replaces its instances (RFC001-KAT 4.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// Rolling by default.
    #[serde(rename = "type", default)]
    pub kind: UpdateStrategyType,
    /// Settings of a rolling update.
    #[serde(default)]
    pub rolling: RollingUpdate,
    /// Seconds without progress after which a rollout is Stalled.
    #[serde(default = "default_progress_deadline")]
    pub progress_deadline_seconds: u32,
    /// Whether a stalled rollout is rolled back to the last good generation.
    #[serde(default)]
    pub auto_rollback: bool,
}

/// Whether a value is what an absent field means.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn default_progress_deadline() -> u32 {
    600
}

impl Default for UpdateStrategy {
    fn default() -> Self {
        Self {
            kind: UpdateStrategyType::default(),
            rolling: RollingUpdate::default(),
            progress_deadline_seconds: default_progress_deadline(),
            auto_rollback: false,
        }
    }
}

/// How instances are replaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategyType {
    /// A few at a time; a new instance is healthy before it replaces an old one, unless instances
    /// are replaced in place.
    #[default]
    Rolling,
    /// All old ones are stopped before new ones start.
    Simultaneous,
}

/// Settings of a rolling update.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// Number of instances beyond `replicas` during an update; 0 replaces instances in place.
    #[serde(default)]
    pub max_surge: MaxSurge,
    /// Number of machines on which a DaemonService's instance may be replaced at once; a percentage
    /// is rounded down, and is at least 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_unavailable: MaxSurge,
}

/// A number of instances, or a percentage of the replicas, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum MaxSurge {
    /// Number of instances.
    Count(u32),
    /// Percentage of the replicas, such as `"25%"`.
    #[serde(with = "percent")]
    #[schemars(with = "String")]
    Percent(u32),
}

impl Default for MaxSurge {
    fn default() -> Self {
        Self::Count(1)
    }
}

mod percent {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value}%"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.strip_suffix('%')
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| D::Error::custom(format!("`{text}` is not a percentage such as `25%`")))
    }
}

/// What happens when the program ends (RFC001-KAT 4.6.4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartPolicy {
    /// Never, MaxCount or Always.
    pub condition: RestartCondition,
    /// Restarts within `resetSeconds` before giving up; MaxCount only.
    #[serde(default = "default_max_restarts")]
    pub max_restarts: u32,
    /// Length of the window in which restarts are counted, in seconds; MaxCount only.
    #[serde(default = "default_reset_seconds")]
    pub reset_seconds: u32,
}

impl RestartPolicy {
    /// The policy with this condition and the other fields' defaults.
    pub fn new(condition: RestartCondition) -> Self {
        Self {
            condition,
            max_restarts: default_max_restarts(),
            reset_seconds: default_reset_seconds(),
        }
    }
}

fn default_max_restarts() -> u32 {
    5
}

fn default_reset_seconds() -> u32 {
    3600
}

/// When systemd restarts the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartCondition {
    /// Not at all.
    Never,
    /// After a failure, at most `maxRestarts` times within `resetSeconds`.
    MaxCount,
    /// Always, with a growing delay.
    Always,
}

/// What happens to an instance whose machine is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnNodeLoss {
    /// The instance is replaced on another machine.
    Move,
    /// The instance waits for its machine.
    Keep,
}

/// What a machine that reaches no leader does with a running instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnPartition {
    /// The instance keeps running.
    #[default]
    Keep,
    /// The instance is stopped before the leader may replace it.
    Stop,
}

/// Spreading of instances over the values of a machine label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Spread {
    /// Label of the machines over whose values instances are spread.
    pub topology_key: String,
    /// Whether a machine that would make the spread uneven is refused.
    #[serde(default)]
    pub required: bool,
    /// Number of instances that one value of the label has at most; machines without the label get
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_per_domain: Option<u32>,
}

/// Another workload of the namespace that has to be there before this one starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartAfter {
    /// Name of the other workload.
    pub workload: String,
    /// What the other workload has to have reached.
    #[serde(default)]
    pub condition: StartCondition,
    /// Seconds after which `onTimeout` applies.
    #[serde(default = "default_start_timeout")]
    pub timeout_seconds: u32,
    /// What happens after the timeout.
    #[serde(default)]
    pub on_timeout: OnStartTimeout,
}

fn default_start_timeout() -> u32 {
    600
}

/// What a workload has to have reached before another one starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StartCondition {
    /// An instance runs.
    Started,
    /// An instance is healthy.
    #[default]
    Healthy,
    /// The Job's present generation succeeded.
    Completed,
}

/// What a workload does when another one did not become ready in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnStartTimeout {
    /// It continues to wait.
    #[default]
    Wait,
    /// It starts.
    Start,
}

/// A taint that a workload tolerates (RFC001-KAT 3.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Key of the taint.
    pub key: String,
    /// Comparison of the taint's value, Exists by default.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// Value of the taint; required with Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Effect of the taint; every effect if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// How a toleration compares a taint's value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// Any value matches.
    #[default]
    Exists,
    /// Only the same value matches.
    Equal,
}

/// What a taint does to workloads that do not tolerate it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum TaintEffect {
    /// No new instance is placed on the machine.
    NoSchedule,
    /// An instance is placed on the machine only if no other machine fits.
    PreferNoSchedule,
}
