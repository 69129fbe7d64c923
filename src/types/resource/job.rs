//! `job.kat` (RFC001-KAT 3.4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a Job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobDefinition {
    /// What is wanted.
    pub spec: JobSpec,
}

/// How a Job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    /// Cron expression of five fields; runs once at apply without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Time zone of the schedule.
    #[serde(default = "utc")]
    pub time_zone: String,
    /// What happens when a run is due while one is active.
    #[serde(default)]
    pub concurrency_policy: ConcurrencyPolicy,
    /// How late a run may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting_deadline_seconds: Option<u32>,
    /// Start no runs.
    #[serde(default)]
    pub suspend: bool,
    /// Instances that must succeed.
    #[serde(default = "one")]
    pub completions: u32,
    /// Instances at once.
    #[serde(default = "one")]
    pub parallelism: u32,
    /// Longest time of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<u32>,
    /// Failed instances before the Job fails.
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

/// What happens when a run is due while one is active.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConcurrencyPolicy {
    /// The new one is skipped.
    #[default]
    Forbid,
    /// Both run.
    Allow,
    /// The old one is stopped.
    Replace,
}
