//! `job.kat` (RFC001-KAT 3.4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::workload::is_default;

/// Definition of a Job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobDefinition {
    /// Specification of the Job.
    pub spec: JobSpec,
}

/// When and how a Job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    /// Cron expression of five fields. Without one, the Job runs once after the apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Time zone of the schedule, UTC by default.
    #[serde(default = "utc")]
    pub time_zone: String,
    /// What happens when a run is due while another one is active.
    #[serde(default)]
    pub concurrency_policy: ConcurrencyPolicy,
    /// Maximum delay of a run's start, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting_deadline_seconds: Option<u32>,
    /// Whether no further runs start.
    #[serde(default)]
    pub suspend: bool,
    /// Which of the missed runs are made up for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub catch_up: CatchUp,
    /// Longest delay of a run's start, in seconds, derived from the Job and the time.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jitter_seconds: u32,
    /// Number of instances that must succeed, or one on each machine.
    #[serde(default)]
    pub completions: Completions,
    /// Maximum number of concurrent instances.
    #[serde(default = "one")]
    pub parallelism: u32,
    /// Maximum duration of a run, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<u32>,
    /// Number of failed instances after which the Job fails.
    #[serde(default = "three")]
    pub backoff_limit: u32,
    /// Number of successful runs that are kept.
    #[serde(default = "three")]
    pub successful_history: u32,
    /// Number of failed runs that are kept.
    #[serde(default = "one")]
    pub failed_history: u32,
    /// Seconds after its end at which a Job without schedule is deleted; never if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<u32>,
}

/// Number of instances that must succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Completions {
    /// That many.
    Count(u32),
    /// One on each machine.
    PerNode(PerNode),
}

impl Default for Completions {
    fn default() -> Self {
        Self::Count(one())
    }
}

/// The word `PerNode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PerNode {
    /// One instance on each machine.
    PerNode,
}

/// Which of the missed runs are made up for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CatchUp {
    /// None of them.
    None,
    /// The last one.
    #[default]
    Last,
    /// All that are younger than `startingDeadlineSeconds`, at most 100.
    All,
}

fn utc() -> String {
    "UTC".to_owned()
}

fn one() -> u32 {
    1
}

fn three() -> u32 {
    3
}

/// What happens when a run is due while another one is active.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConcurrencyPolicy {
    /// The new run is skipped.
    #[default]
    Forbid,
    /// Both runs continue.
    Allow,
    /// The active run is stopped.
    Replace,
}
