//! `job.kat` (RFC001-KAT 3.4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Number of instances that must succeed.
    #[serde(default = "one")]
    pub completions: u32,
    /// Maximum number of concurrent instances.
    #[serde(default = "one")]
    pub parallelism: u32,
    /// Maximum duration of a run, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<u32>,
    /// Number of failed instances after which the Job fails.
    #[serde(default = "three")]
    pub backoff_limit: u32,
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
