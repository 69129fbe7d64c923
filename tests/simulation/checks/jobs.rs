//! Jobs, daemons and start order: each scheduled time has at most one run and is decided as the Job's
//! policies say, runs do not overlap, deadlines hold, a machine has one instance of a daemon, and
//! nothing starts before what it waits for.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::{
    checks::kept_schedules::KeptSchedules,
    load::{
        added::live_of,
        daemons::DAEMON,
        jobs::{SCHEDULED, SETUP, ScheduledJob},
        kept::DUMP,
        start_order::{AFTER, BASE, LATE},
        user::NAMESPACE,
    },
    world::{LOST_AFTER, World},
};
use kat_types::{
    reason::Reason,
    resource::CatchUp,
    store::{
        jobs::{JobRunRecord, JobStateRecord, RunPhase},
        keys,
        records::NodeRegistration,
        transaction::WriteOperation,
    },
};

/// A run that is made later than this after its time makes up for a missed one.
const ON_TIME: SignedDuration = SignedDuration::from_secs(120);
/// A leader has decided about a scheduled time this long after it, if nothing is broken.
const DECIDED_WITHIN: SignedDuration = SignedDuration::from_secs(15);
/// How much longer than its start, its time and its stop together an instance is seen.
const MARGIN: Duration = Duration::from_secs(3);

/// A run that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MadeRun {
    number: u64,
    created: Timestamp,
}

/// What was ever written of Jobs.
#[derive(Debug, Default)]
pub(crate) struct JobHistory {
    /// The Jobs whose schedule is known.
    pub followed: Vec<ScheduledJob>,
    /// Names of the Jobs that had a run with success.
    pub succeeded: BTreeSet<String>,
    /// By the workload's identity, and the last part of their keys.
    runs: BTreeMap<(String, String), MadeRun>,
    /// The last state, by the workload's identity.
    states: BTreeMap<String, JobStateRecord>,
    /// What machines ran by themselves.
    pub kept: KeptSchedules,
}

impl JobHistory {
    /// Takes what a transaction wrote; returns why it is wrong.
    pub(crate) fn written(&mut self, operations: &[WriteOperation]) -> Option<String> {
        let mut wrong = None;
        // One transaction may be about several Jobs.
        let mut made: BTreeMap<String, Vec<JobRunRecord>> = BTreeMap::new();
        let mut decided = Vec::new();
        for operation in operations {
            let WriteOperation::Put(key, value) = operation else {
                continue;
            };
            let Some(path) = key.strip_prefix(keys::JOBS) else {
                continue;
            };
            let parts: Vec<&str> = path.split('/').collect();
            match parts.as_slice() {
                [_, workload, "runs", run] => {
                    let record: JobRunRecord = serde_json::from_slice(value).unwrap();
                    if record.phase == RunPhase::Succeeded {
                        self.succeeded.insert((*workload).to_owned());
                    }
                    if let Some(why) = self.kept.written(&record) {
                        wrong = Some(format!("{workload}: {why}"));
                    }
                    match self.make(workload, run, &record) {
                        Ok(true) => made.entry((*workload).to_owned()).or_default().push(record),
                        Ok(false) => {}
                        Err(why) => wrong = Some(why),
                    }
                }
                [_, workload, "state"] => {
                    let state: JobStateRecord = serde_json::from_slice(value).unwrap();
                    decided.push(((*workload).to_owned(), state));
                }
                _ => {}
            }
        }
        for (workload, state) in decided {
            let before = self
                .states
                .insert(state.workload_uid.clone(), state.clone());
            let job = self.followed.iter().find(|job| job.name == workload);
            if wrong.is_none()
                && let (Some(job), Some(before)) = (job, before)
            {
                let made = made.get(&workload).map_or(&[][..], Vec::as_slice);
                wrong = wrongly_decided(job, &before, &state, made);
            }
        }
        wrong
    }

    /// Whether the run is new; why it must not be.
    fn make(&mut self, workload: &str, run: &str, record: &JobRunRecord) -> Result<bool, String> {
        let uid = &record.workload_uid;
        let id = (uid.clone(), run.to_owned());
        let own = MadeRun {
            number: record.number,
            created: record.created,
        };
        if let Some(before) = self.runs.get(&id) {
            return match *before == own {
                true => Ok(false),
                false => Err(format!(
                    "run {run} of {workload} is made twice: {before:?} and {own:?}"
                )),
            };
        }
        let mut others = self.runs.iter().filter(|((of, _), _)| of == uid);
        let other = others.find(|(_, other)| other.number == own.number);
        if let Some(((_, other), _)) = other {
            return Err(format!(
                "run {} of {workload} is made twice: as {other} and as {run}",
                own.number
            ));
        }
        self.runs.insert(id, own);
        Ok(true)
    }
}

/// Number of a schedule's times after one time until another.
fn times_between(from: Timestamp, to: Timestamp, minutes: i64) -> i64 {
    let before = |time: Timestamp| time.as_second().div_euclid(minutes * 60);
    before(to) - before(from)
}

/// Why a transaction decides wrongly about scheduled times. Each time has a run or is counted as
/// skipped, and `catchUp` says which of the missed ones have a run.
fn wrongly_decided(
    job: &ScheduledJob,
    before: &JobStateRecord,
    after: &JobStateRecord,
    made: &[JobRunRecord],
) -> Option<String> {
    let (Some(from), Some(to)) = (before.handled, after.handled) else {
        return None;
    };
    // A new schedule begins with its next time.
    if before.schedule != after.schedule {
        return None;
    }
    let name = job.name;
    if to < from {
        return Some(format!(
            "{name} was decided until {from}, and is until {to}: times are decided again"
        ));
    }
    let scheduled: Vec<(Timestamp, SignedDuration)> = made
        .iter()
        .filter_map(|run| Some((run.scheduled?, run.created.duration_since(run.scheduled?))))
        .collect();
    let skips = i64::try_from(after.skips.saturating_sub(before.skips)).unwrap();
    let runs = i64::try_from(scheduled.len()).unwrap();
    let times = times_between(from, to, job.minutes);
    if times != runs + skips {
        return Some(format!(
            "{name} has {times} times between {from} and {to}, of which {runs} have a run and {skips} are skipped: a time is lost"
        ));
    }
    let late = scheduled.iter().filter(|(_, late)| *late > ON_TIME).count();
    let skipped = after.skipped.as_ref().filter(|_| skips > 0);
    let missed = skipped.filter(|skipped| skipped.reason == Reason::RunMissed.word());
    let newer = missed.is_none_or(|missed| {
        let mut newer = scheduled.iter();
        newer.any(|(time, _)| *time > missed.scheduled)
    });
    let wrong = match job.catch_up {
        CatchUp::None => late > 0,
        CatchUp::Last => late > 1 || !newer,
        // The others wait until the run before is over, or replace it.
        CatchUp::All => skips > 0,
    };
    wrong.then(|| {
        format!(
            "{name} with catchUp {:?} has runs for {scheduled:?} and skips {skips}, the last: {skipped:?}",
            job.catch_up
        )
    })
}

/// What the checks remember of the added load.
#[derive(Default)]
pub(crate) struct AddedChecks {
    /// Since when units of Jobs run or may run.
    since: BTreeMap<String, Instant>,
    /// Units that a leader whose clock was wrong took for ended on a machine that did not answer.
    overlooked: BTreeSet<String>,
    /// An instance of [`BASE`] has run.
    base_ran: bool,
}

impl World {
    /// Checks what must hold of the added load at every moment.
    pub(crate) fn check_added(&mut self, live: &BTreeMap<String, String>) {
        if self.added.is_none() {
            return;
        }
        let jobs = SCHEDULED.into_iter().chain([SETUP]);
        let units: BTreeMap<&str, Vec<(&str, &str)>> =
            jobs.map(|job| (job, live_of(live, job))).collect();
        for (job, units) in &units {
            self.check_runs(job, units);
        }
        let all = units.values().flatten();
        self.check_times(&all.copied().collect::<Vec<_>>());
        self.check_daemons(&live_of(live, DAEMON));
        self.added_checks.base_ran |= !live_of(live, BASE).is_empty();
        if self.monitor.was_placed(AFTER) && !self.added_checks.base_ran {
            self.monitor.violated(format!(
                "{AFTER} starts before {BASE} has run, which it starts after"
            ));
        }
        if self.monitor.was_placed(LATE) && !self.monitor.has_succeeded(SETUP) {
            self.monitor.violated(format!(
                "{LATE} starts before {SETUP} has succeeded, which it starts after"
            ));
        }
    }

    /// Instances of one run alone exist at once, and one for each of its indexes.
    fn check_runs(&mut self, job: &str, units: &[(&str, &str)]) {
        let mut indexes: BTreeMap<(u64, u32), &str> = BTreeMap::new();
        let mut of_runs: BTreeMap<u64, (&str, &str)> = BTreeMap::new();
        for &(unit, machine) in units {
            let known = self.monitor.assigned(unit);
            let Some((run, slot)) = known.and_then(|known| Some((known.run?, known.slot))) else {
                continue;
            };
            if let Some(other) = indexes.insert((run.number, slot), unit) {
                self.monitor.violated(format!(
                    "{unit} on {machine} and {other} are both index {slot} of run {}",
                    run.number
                ));
            }
            if !self.is_overlooked(unit, machine) {
                of_runs.insert(run.number, (unit, machine));
            }
        }
        if of_runs.len() > 1 {
            self.monitor.violated(format!(
                "instances of several runs of {job} run at once: {of_runs:?}"
            ));
        }
    }

    /// Whether the instance is on a machine that does not answer, or was, and a clock has jumped: a
    /// leader whose clock is ahead takes the instance for ended at its deadline.
    fn is_overlooked(&mut self, unit: &str, machine: &str) -> bool {
        let silent = self.monitor.silent(machine).unwrap_or_default();
        let is_silent = silent > Duration::from_secs(LOST_AFTER.into());
        let jumped = self.added.as_ref();
        if is_silent && jumped.is_some_and(|added| added.clock_has_jumped) {
            self.added_checks.overlooked.insert(unit.to_owned());
        }
        self.added_checks.overlooked.contains(unit)
    }

    /// No instance outlives what its run had left when it was placed.
    fn check_times(&mut self, units: &[(&str, &str)]) {
        let mut since = BTreeMap::new();
        for &(unit, machine) in units {
            let known = self.added_checks.since.get(unit);
            let at = known.copied().unwrap_or_else(Instant::now);
            since.insert(unit.to_owned(), at);
            let run = self.monitor.assigned(unit).and_then(|known| known.run);
            let Some(left) = run.and_then(|run| run.seconds_left) else {
                continue;
            };
            let mut machines = self.machines.iter();
            let Some(machine) = machines.find(|one| one.name == machine) else {
                continue;
            };
            let most = Duration::from_secs(left.into()) + machine.longest_start();
            // The fake begins a stop anew that systemd has begun.
            let most = most + machine.pace.stops * 2 + MARGIN;
            if at.elapsed() > most {
                self.monitor.violated(format!(
                    "{unit} had {left} s left, and runs for {:?}",
                    at.elapsed()
                ));
            }
        }
        self.added_checks.since = since;
    }

    /// A machine never has two instances of a daemon.
    fn check_daemons(&self, units: &[(&str, &str)]) {
        let mut machines: BTreeMap<&str, &str> = BTreeMap::new();
        for &(unit, machine) in units {
            if let Some(other) = machines.insert(machine, unit) {
                self.monitor.violated(format!(
                    "{machine} has two instances of a daemon: {unit} and {other}"
                ));
            }
        }
    }

    /// The runs of the added Jobs that are not over, by workload and the last part of their keys.
    pub(crate) fn active_runs(&self) -> BTreeSet<(String, String)> {
        let runs = self.runs_of_all().into_iter();
        runs.filter(|(_, record)| record.is_active())
            .map(|(key, _)| key)
            .collect()
    }

    fn runs_of_all(&self) -> BTreeMap<(String, String), JobRunRecord> {
        let prefix = format!("{}{NAMESPACE}/", keys::JOBS);
        let items = self.store.peek(&prefix).items.into_iter();
        let runs = items.filter_map(|item| {
            let (workload, run) = item.key.strip_prefix(&prefix)?.split_once("/runs/")?;
            let record = serde_json::from_slice(&item.value).unwrap();
            Some(((workload.to_owned(), run.to_owned()), record))
        });
        runs.collect()
    }

    /// What of the added load is not as promised once all is healed; `active` are the runs that have
    /// to be over.
    pub(crate) fn added_missing(&self, active: &BTreeSet<(String, String)>) -> Option<String> {
        let added = self.added.as_ref()?;
        let mut all = added.workloads().into_iter();
        if let Some(absent) = all.find(|one| !self.has_workload(one)) {
            return Some(format!("{absent} is not there"));
        }
        let now = self.true_time();
        if let Some(undecided) = self.undecided(now) {
            return Some(undecided);
        }
        // The machine with its data may be drained, and a machine that is joining may be of an earlier
        // version.
        let join = self.person.join_state();
        let waits = self.is_any_drained() || (join.begun && !join.done);
        let left = self.active_runs();
        let mut left = left.intersection(active);
        if let Some((workload, run)) = left.find(|(one, _)| !waits || one != DUMP) {
            return Some(format!("run {run} of {workload} is not over"));
        }
        if added.kept.is_some() && !waits {
            let missing = self.kept_missing();
            if missing.is_some() {
                return missing;
            }
        }
        let live = self.live();
        self.daemon_missing(&live)
            .or_else(|| self.order_missing(&live))
    }

    /// A scheduled time that no leader has decided about.
    fn undecided(&self, now: Timestamp) -> Option<String> {
        let jobs = self.added.as_ref().map(|added| &added.jobs);
        let mut jobs = jobs.into_iter().flatten();
        jobs.find_map(|job| {
            let state: Option<JobStateRecord> = self.stored(&keys::job_state(NAMESPACE, job.name));
            let handled = state.and_then(|state| state.handled);
            let due = now - DECIDED_WITHIN;
            let behind = handled.is_none_or(|handled| {
                handled < due && times_between(handled, due, job.minutes) > 0
            });
            behind.then(|| format!("{} is decided until {handled:?} at {now}", job.name))
        })
    }

    /// A machine without its instance of the daemon.
    fn daemon_missing(&self, live: &BTreeMap<String, String>) -> Option<String> {
        let units = live_of(live, DAEMON);
        self.joined().find_map(|machine| {
            let key = keys::registration(&machine.name);
            let registration: NodeRegistration = self.stored(&key)?;
            let own = units.iter().filter(|(_, on)| *on == machine.name).count();
            let lacks = !registration.draining && own != 1;
            lacks.then(|| format!("{} has {own} instances of {DAEMON}", machine.name))
        })
    }

    /// A workload with a start order that does not run although nothing holds it back.
    fn order_missing(&self, live: &BTreeMap<String, String>) -> Option<String> {
        let runs = |workload: &str| !live_of(live, workload).is_empty();
        if let Some(down) = [BASE, AFTER].into_iter().find(|one| !runs(one)) {
            return Some(format!("{down} does not run"));
        }
        if self.monitor.has_succeeded(SETUP) {
            return (!runs(LATE)).then(|| format!("{LATE} does not run after {SETUP}"));
        }
        let all = self.runs_of_all();
        let own = all.iter().filter(|((workload, _), _)| workload == SETUP);
        let over = own.clone().any(|(_, record)| !record.is_active());
        (!over).then(|| format!("{SETUP} is not over: {:?}", own.collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use kat_types::{resource::ConcurrencyPolicy, store::jobs::SkippedRun};

    fn job(catch_up: CatchUp) -> ScheduledJob {
        let mut job = ScheduledJob::all(&mut Random::new(1)).remove(0);
        (job.minutes, job.policy, job.catch_up) = (1, ConcurrencyPolicy::Forbid, catch_up);
        job
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn state(handled: i64, skips: u64) -> JobStateRecord {
        let skipped = SkippedRun {
            scheduled: at(handled - 60),
            reason: Reason::RunMissed.into(),
            message: String::new(),
        };
        JobStateRecord {
            handled: Some(at(handled)),
            skips,
            skipped: Some(skipped),
            ..JobStateRecord::default()
        }
    }

    fn run(scheduled: i64, created: i64) -> JobRunRecord {
        JobRunRecord {
            scheduled: Some(at(scheduled)),
            created: at(created),
            ..JobRunRecord::default()
        }
    }

    #[test]
    fn a_time_without_run_and_without_word_is_found() {
        let wrong = |to, skips, runs: &[JobRunRecord]| {
            wrongly_decided(&job(CatchUp::Last), &state(600, 0), &state(to, skips), runs)
        };
        assert_eq!(wrong(660, 0, &[run(660, 661)]), None);
        assert!(wrong(660, 0, &[]).unwrap().contains("a time is lost"));
        assert!(wrong(540, 0, &[]).unwrap().contains("decided again"));
        assert_eq!(wrong(720, 1, &[run(720, 900)]), None);
        // The newest missed time has a run.
        assert!(wrong(720, 2, &[]).unwrap().contains("catchUp Last"));
    }

    #[test]
    fn catch_up_says_which_missed_times_have_a_run() {
        let wrong = |catch_up, skips, runs: &[JobRunRecord]| {
            wrongly_decided(&job(catch_up), &state(600, 0), &state(720, skips), runs)
        };
        assert!(wrong(CatchUp::None, 1, &[run(720, 900)]).is_some());
        assert_eq!(wrong(CatchUp::None, 2, &[]), None);
        let both = [run(660, 900), run(720, 900)];
        assert_eq!(wrong(CatchUp::All, 0, &both), None);
        assert!(wrong(CatchUp::All, 1, &both[1..]).is_some());
        assert!(wrong(CatchUp::Last, 0, &both).is_some());
    }
}
