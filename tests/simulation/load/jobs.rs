//! Jobs: their schedules and policies, which the seed decides, and their programs, which end after a
//! time with an exit code, or never.

use std::time::Duration;

use serde_json::json;

use crate::{
    load::added::{self, workload_file},
    random::Random,
};
use kat_bundle::SourceFile;
use kat_types::resource::{CatchUp, ConcurrencyPolicy};

/// Its runs may be long, and its missed times are made up for by one run or by none.
const REPORT: &str = "report";
/// All of its missed times are made up for, so its programs are short.
const LEDGER: &str = "ledger";
/// A run takes the place of the one before.
const SWEEP: &str = "sweep";
/// A Job without schedule.
pub(crate) const SETUP: &str = "setup";
/// The Jobs that have a schedule.
pub(crate) const SCHEDULED: [&str; 3] = [REPORT, LEDGER, SWEEP];

/// A Job with a schedule.
#[derive(Debug, Clone)]
pub(crate) struct ScheduledJob {
    pub name: &'static str,
    /// Minutes between its times, a divisor of 60.
    pub minutes: i64,
    pub policy: ConcurrencyPolicy,
    pub catch_up: CatchUp,
    completions: u64,
    parallelism: u64,
    deadline: Option<u64>,
    backoff_limit: u64,
}

impl ScheduledJob {
    /// The Jobs of a seed.
    pub(crate) fn all(random: &mut Random) -> Vec<Self> {
        let jobs = SCHEDULED.map(|name| Self::drawn(name, random));
        Vec::from(jobs)
    }

    fn drawn(name: &'static str, random: &mut Random) -> Self {
        let is_ledger = name == LEDGER;
        let minutes = if random.chance(60) { 1 } else { 2 };
        let deadline = 20 + random.below(70);
        let has_deadline = random.chance(70);
        let completions = 1 + random.below(if is_ledger { 2 } else { 3 });
        let last = random.chance(60);
        Self {
            name,
            minutes,
            policy: match name {
                SWEEP => ConcurrencyPolicy::Replace,
                _ => ConcurrencyPolicy::Forbid,
            },
            catch_up: match (is_ledger, last) {
                (true, _) => CatchUp::All,
                (false, true) => CatchUp::Last,
                (false, false) => CatchUp::None,
            },
            completions,
            parallelism: 1 + random.below(completions),
            deadline: has_deadline.then_some(deadline),
            backoff_limit: random.below(3),
        }
    }

    pub(crate) fn files(&self) -> Vec<SourceFile> {
        let minutes = match self.minutes {
            1 => "*".to_owned(),
            minutes => format!("*/{minutes}"),
        };
        let mut spec = json!({
            "schedule": format!("{minutes} * * * *"),
            "concurrencyPolicy": self.policy,
            "catchUp": self.catch_up,
            "completions": self.completions,
            "parallelism": self.parallelism,
            "backoffLimit": self.backoff_limit,
        });
        if let Some(deadline) = self.deadline {
            spec["activeDeadlineSeconds"] = json!(deadline);
        }
        job_files(self.name, &spec)
    }
}

/// The files of [`SETUP`].
pub(crate) fn setup_files() -> Vec<SourceFile> {
    job_files(SETUP, &json!({"backoffLimit": 5}))
}

fn job_files(name: &str, spec: &serde_json::Value) -> Vec<SourceFile> {
    let definition = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "JobDefinition",
        "spec": spec,
    });
    let definition = SourceFile {
        name: "job.kat".to_owned(),
        text: definition.to_string(),
    };
    vec![workload_file(name, "Job", 1, &json!({})), definition]
}

/// What the program of an instance does, which its name decides. Names of instances differ between
/// seeds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// `None` if it never ends by itself.
    pub lasts: Option<Duration>,
    /// Its exit code.
    pub code: i32,
}

impl Program {
    /// The program of a unit. Only a program that is ended at its deadline may last for ever.
    pub(crate) fn of_unit(unit: &str, has_deadline: bool) -> Self {
        let mut random = of_name(unit);
        let short = random.milliseconds(200, 12_000);
        let long = random.milliseconds(20_000, 100_000);
        let kind = random.below(100);
        let code = match random.below(100) {
            0..82 => 0,
            82..90 => 1,
            _ => 3,
        };
        let mut short_ones = [LEDGER, SETUP].into_iter();
        let is_short = short_ones.any(|one| added::is_of(unit, one));
        let lasts = match kind {
            0..35 if !is_short => Some(long),
            35..50 if !is_short && has_deadline => None,
            _ => Some(short),
        };
        Self { lasts, code }
    }

    /// The program of one attempt of a run that its machine tries again: it fails more often than not.
    pub(crate) fn of_attempt(name: &str) -> Self {
        let mut random = of_name(name);
        let short = random.milliseconds(200, 12_000);
        let long = random.milliseconds(20_000, 100_000);
        let is_long = random.chance(20);
        Self {
            lasts: Some(if is_long { long } else { short }),
            code: if random.chance(60) { 3 } else { 0 },
        }
    }
}

fn of_name(name: &str) -> Random {
    let bytes = name.bytes();
    let seed = bytes.fold(0_u64, |sum, byte| {
        sum.wrapping_mul(257).wrapping_add(u64::from(byte))
    });
    Random::new(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_end_in_different_ways_and_only_with_a_deadline_never() {
        let unit = |job: &str, number: u32| format!("kat-default-{job}-{number}.service");
        let of = |job: &str, has_deadline: bool| -> Vec<Program> {
            let units = (0..200).map(|number| unit(job, number));
            units
                .map(|unit| Program::of_unit(&unit, has_deadline))
                .collect()
        };
        let never = |all: &[Program]| all.iter().any(|one| one.lasts.is_none());
        let reports = of(REPORT, true);
        assert!(never(&reports));
        assert!(reports.iter().any(|one| one.code == 0));
        assert!(reports.iter().any(|one| one.code != 0));
        assert!(!never(&of(REPORT, false)));
        assert!(!never(&of(LEDGER, true)));
    }

    #[test]
    fn attempts_of_a_run_that_is_tried_again_fail_at_times() {
        let names = (0..200).map(|number| format!("kat-default-dump-a.service{number}"));
        let attempts: Vec<Program> = names.map(|name| Program::of_attempt(&name)).collect();
        assert!(attempts.iter().any(|one| one.code == 0));
        assert!(attempts.iter().any(|one| one.code != 0));
        assert!(attempts.iter().all(|one| one.lasts.is_some()));
    }
}
