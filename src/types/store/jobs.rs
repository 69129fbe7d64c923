//! Stored objects of Jobs: how far the schedule of a Job is, and its runs.
//!
//! The record of a run is written before anything of the run starts, and its key follows from its
//! cause, so that no second leader starts the same run again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{api::newer, resource::JobSpec};

/// Most attempts that the record of a run keeps, the newest ones.
pub const MOST_ATTEMPTS: usize = 100;
/// Most runs of a Job that are active at once under `concurrencyPolicy: Allow`.
pub const MOST_OVERLAPPING_RUNS: usize = 20;

/// `/kat/jobs/{ns}/{workload}/state`: what of a Job's schedule is decided. It is compared and written
/// with each new run, so that numbers count up and no time is decided twice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStateRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Identity of the workload.
    pub workload_uid: String,
    /// Number of the last run.
    pub last_number: u64,
    /// Generation that had its run, of a Job without schedule.
    pub generation: u64,
    /// Schedule and time zone that `handled` is about; empty while the Job is suspended.
    pub schedule: String,
    /// Scheduled times until this one have had their run, or were skipped.
    pub handled: Option<Timestamp>,
    /// A user suspended the Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspended: Option<JobSuspension>,
    /// The last scheduled time that had no run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<SkippedRun>,
    /// Number of scheduled times that had no run.
    pub skips: u64,
    /// The instance whose machine decides the scheduled times, until the leader has all its runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<String>,
    /// The instances whose machines decide the scheduled times, each for itself alone, by machine.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub keepers: BTreeMap<String, String>,
    /// Until when machines have decided the scheduled times by themselves, where that is after `handled`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub positions: BTreeMap<String, Timestamp>,
    /// The newest scheduled time whose record of the machines' runs was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forgotten: Option<Timestamp>,
}

impl JobStateRecord {
    /// Whether `handled` is about the schedule of these files.
    pub fn is_about(&self, spec: &JobSpec) -> bool {
        self.schedule == schedule_in_zone(spec)
    }

    /// Until when the scheduled times are decided for a machine.
    pub fn position(&self, node: &str) -> Option<Timestamp> {
        self.positions.get(node).copied().max(self.handled)
    }

    /// Begins a new schedule, or the one of a Job that is resumed: times until `now` get no run.
    pub fn begin_schedule(&mut self, spec: &JobSpec, now: Timestamp) {
        let schedule = schedule_in_zone(spec);
        let is_other = !self.schedule.is_empty() && self.schedule != schedule;
        let decided = self.handled.filter(|_| !is_other);
        self.schedule = schedule;
        self.handled = decided.max(Some(now));
    }
}

fn schedule_in_zone(spec: &JobSpec) -> String {
    let expression = spec.schedule.as_deref().unwrap_or_default();
    format!("{expression} {}", spec.time_zone)
}

/// That a user suspended a Job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSuspension {
    /// The caller who suspended it.
    pub by: String,
    /// When it was suspended.
    pub at: Timestamp,
}

/// A scheduled time that had no run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SkippedRun {
    /// The scheduled time.
    #[schemars(with = "String")]
    pub scheduled: Timestamp,
    /// One word for programs.
    pub reason: String,
    /// A sentence for users.
    pub message: String,
}

/// Phase of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RunPhase {
    /// It waits to begin, or its instances run.
    Active,
    /// As many instances succeeded as it needs.
    Succeeded,
    /// Too many instances failed, or its time was over.
    Failed,
    /// A user ended it, or another run took its place. An unknown word of a newer version is read as
    /// this: nothing is started for it.
    #[default]
    Cancelled,
}

impl RunPhase {
    /// The word as it is stored and sent.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "Active",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
        }
    }
}

/// Why a run exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RunCause {
    /// A scheduled time came.
    Schedule,
    /// A user asked for it.
    #[default]
    Manual,
    /// The files of a Job without schedule were applied.
    Apply,
}

/// `/kat/jobs/{ns}/{workload}/runs/{run}`: a run of a Job. The key's last part is the scheduled time,
/// followed by `-machines` where machines with one instance on each began it by themselves,
/// `manual-NUMBER` for a run by hand, or `generation-NUMBER` for a Job without schedule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobRunRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Counts the runs of a Job up from 1.
    pub number: u64,
    /// Identity of the workload.
    pub workload_uid: String,
    /// Generation of the files when it was made.
    pub generation: u64,
    /// Why it exists.
    #[serde(deserialize_with = "newer::word")]
    pub cause: RunCause,
    /// The scheduled time, without the delay of `jitterSeconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Timestamp>,
    /// When it was made.
    pub created: Timestamp,
    /// The caller who asked for it; empty for the schedule.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Arguments of the program in place of those of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Instances that must succeed. With one on each machine, the number of the machines, 0 until the
    /// run begins.
    pub completions: u32,
    /// Instances that may run at once.
    pub parallelism: u32,
    /// Instances that may fail; with one on each machine, on each of them.
    pub backoff_limit: u32,
    /// The machines of a run with one instance on each, by index; empty until the run begins. `None` for
    /// a run whose instances may be on any machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<Vec<RunMachine>>,
    /// Its machine began it by a timer of its own, and says how it ends: no instance is made for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bound: bool,
    /// Machines that matched as well when the run began, and took no work then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Seconds from `started` after which it is ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u32>,
    /// How far it is.
    #[serde(deserialize_with = "newer::word")]
    pub phase: RunPhase,
    /// Why it is in its phase, one word for programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why it is in its phase, a sentence for users.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When its first instance could start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// When it left [`RunPhase::Active`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// A user asked for its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<JobSuspension>,
    /// Indexes of the instances that succeeded, from 0.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub succeeded: BTreeSet<u32>,
    /// Number of instances that failed.
    pub failures: u32,
    /// When the last one failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Timestamp>,
    /// Its instances, the newest [`MOST_ATTEMPTS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<RunAttempt>,
}

impl JobRunRecord {
    /// Whether instances may be made for it.
    pub fn is_active(&self) -> bool {
        self.phase == RunPhase::Active
    }

    /// Whether it has one instance on each machine, and has not begun: its machines are not known yet.
    pub fn lacks_machines(&self) -> bool {
        self.machines.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether machines began it by timers of their own, each a part of it.
    pub fn is_by_machines(&self) -> bool {
        self.bound && self.machines.is_some()
    }

    /// Whether its part on a machine that began it by a timer of its own may run.
    pub fn is_open_on(&self, node: &str) -> bool {
        let mut machines = self.machines.iter().flatten();
        self.bound && machines.any(|one| one.node == node && one.is_open())
    }

    /// Whether it is active on silent machines alone: then it is in the way of no other run.
    pub fn is_left_to(&self, is_silent: impl Fn(&str) -> bool) -> bool {
        let machines = self.machines.iter().flatten();
        let mut open = machines.filter(|one| one.is_open());
        self.is_by_machines() && self.is_active() && open.all(|one| is_silent(&one.node))
    }

    /// When it is ended at the latest, if it has begun and has a deadline.
    pub fn deadline(&self) -> Option<Timestamp> {
        let seconds = i64::from(self.deadline_seconds?);
        let after = jiff::SignedDuration::from_secs(seconds);
        self.started?.checked_add(after).ok()
    }
}

/// A machine of a run with one instance on each machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunMachine {
    /// Name of the machine.
    pub node: String,
    /// Number of instances that failed there.
    pub failures: u32,
    /// When the last one failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_failure: Option<Timestamp>,
    /// It left the cluster before an instance had succeeded there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// How far its part is, of a run that it began by a timer of its own.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "newer::known_phase"
    )]
    pub phase: Option<RunPhase>,
    /// Number of attempts that it began by a timer of its own.
    #[serde(skip_serializing_if = "is_zero")]
    pub begun: u32,
    /// Why its part failed, one word for programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why its part failed, a sentence for users.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl RunMachine {
    /// The machine `node`, where nothing has failed.
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            ..Self::default()
        }
    }

    /// Whether its part of a run that it began by a timer of its own may run.
    pub fn is_open(&self) -> bool {
        self.phase == Some(RunPhase::Active)
    }
}

/// An instance of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunAttempt {
    /// Id of the instance.
    pub instance: String,
    /// Its machine.
    pub node: String,
    /// Its index among the completions.
    pub index: u32,
    /// How it ended; `None` while it may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<AttemptEnd>,
}

/// How an instance of a run ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AttemptEnd {
    /// When the leader noted it.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// It did its part of the run.
    pub succeeded: bool,
    /// Exit code of the program, if it ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it failed, one word for programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why it failed, a sentence for users.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The last part of the key of a run by hand.
pub fn manual_run(number: u64) -> String {
    format!("manual-{number}")
}

/// The last part of the key of the run of a generation, of a Job without schedule.
pub fn generation_run(generation: u64) -> String {
    format!("generation-{generation}")
}

/// The last part of the key of the run for a scheduled time.
pub fn scheduled_run(scheduled: Timestamp) -> String {
    scheduled.to_string()
}

/// The last part of the key of the run for a scheduled time that machines began by timers of their own.
/// A leader may have begun the run of the same time on other machines.
pub fn run_of_machines(scheduled: Timestamp) -> String {
    format!("{scheduled}-machines")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(parts: &[(&str, RunPhase)]) -> JobRunRecord {
        let machines = parts.iter().map(|(node, phase)| RunMachine {
            phase: Some(*phase),
            ..RunMachine::new(node)
        });
        JobRunRecord {
            bound: true,
            phase: RunPhase::Active,
            machines: Some(machines.collect()),
            ..JobRunRecord::default()
        }
    }

    #[test]
    fn a_run_is_left_to_silent_machines_if_no_other_machine_may_run_it() {
        let is_silent = |node: &str| node == "n3";
        let parts = [("n1", RunPhase::Succeeded), ("n3", RunPhase::Active)];
        let silent = run(&parts);
        assert!(silent.is_left_to(is_silent) && silent.is_open_on("n3"));
        assert!(!silent.is_open_on("n1"));
        let both = run(&[("n1", RunPhase::Active), ("n3", RunPhase::Active)]);
        assert!(!both.is_left_to(is_silent));
        // The leader's runs wait for their machines.
        let led = JobRunRecord {
            bound: false,
            ..run(&parts)
        };
        assert!(!led.is_left_to(is_silent) && !led.is_open_on("n3"));
    }

    #[test]
    fn a_machines_position_is_not_earlier_than_what_the_leader_has_decided() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let state = JobStateRecord {
            handled: Some(at(100)),
            positions: BTreeMap::from([("n1".to_owned(), at(50)), ("n2".to_owned(), at(200))]),
            ..JobStateRecord::default()
        };
        let positions = ["n1", "n2", "n3"].map(|node| state.position(node));
        assert_eq!(positions, [100, 200, 100].map(|seconds| Some(at(seconds))));
    }

    #[test]
    fn a_part_with_a_phase_of_a_newer_version_is_over() {
        let text = r#"{"node": "n1", "failures": 0, "phase": "Pondering"}"#;
        let read: RunMachine = serde_json::from_str(text).unwrap();
        assert_eq!(read.phase, Some(RunPhase::Cancelled));
        let plain: RunMachine = serde_json::from_str(r#"{"node": "n1"}"#).unwrap();
        assert_eq!(plain, RunMachine::new("n1"));
    }
}
