//! Jobs and their runs, in the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiTime, newer};
use crate::store::jobs::{RunAttempt, RunCause, RunMachine, RunPhase, SkippedRun};

/// A run of a Job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunView {
    /// Name of the workload.
    pub workload: String,
    /// Counts the runs of a Job up from 1.
    pub number: u64,
    /// Why it exists.
    #[serde(deserialize_with = "newer::word")]
    pub cause: RunCause,
    /// The scheduled time; unknown for a run without one.
    pub scheduled: ApiTime,
    /// The caller who asked for it; empty for the schedule.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Instances that must succeed. With one on each machine, the number of the machines, 0 until the
    /// run begins.
    pub completions: u32,
    /// Instances that may run at once.
    pub parallelism: u32,
    /// Instances that may fail; with one on each machine, on each of them.
    pub backoff_limit: u32,
    /// Seconds after its start at which it is ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<u32>,
}

/// Observed state of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunStatus {
    /// How far it is.
    #[serde(deserialize_with = "newer::word")]
    pub phase: RunPhase,
    /// Why it is in its phase, one word for programs.
    pub reason: String,
    /// Why it is in its phase, a sentence for users.
    pub message: String,
    /// When its first instance could start.
    pub started: ApiTime,
    /// When it ended.
    pub finished: ApiTime,
    /// Instances that succeeded.
    pub succeeded: u32,
    /// Instances that failed.
    pub failed: u32,
    /// Exit code of the program of its last instance that ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Its last instances, oldest first.
    pub attempts: Vec<RunAttempt>,
    /// The machines of a run with one instance on each, by index; empty for any other run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<RunMachine>,
}

/// Observed state of a Job, in the status of its workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// Whether no run starts by the schedule.
    pub suspended: bool,
    /// Number of runs that are not over.
    pub active: u32,
    /// The next scheduled time; unknown without schedule, and while the Job is suspended.
    pub next: ApiTime,
    /// Number of the last run; 0 before the first.
    pub last_number: u64,
    /// Phase of the last run.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "newer::known_phase"
    )]
    pub last_phase: Option<RunPhase>,
    /// When the last run ended.
    pub last_finished: ApiTime,
    /// The last scheduled time that had no run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<SkippedRun>,
    /// The machine that begins the runs by its own timer, also while it reaches no leader; absent where
    /// the leader begins them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The machines that begin the runs by timers of their own, each its own part, in the order of their
    /// names; empty where the leader begins them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<String>,
}

/// A request for a run by hand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RunRequest {
    /// Arguments of the program in place of those of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
}
