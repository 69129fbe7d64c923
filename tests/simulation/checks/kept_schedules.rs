//! Schedules that machines keep by themselves: no scheduled time runs twice, on machines or by a leader
//! as well, runs go on without a leader, and each run is recorded as it was.
//!
//! What ran is known from the gates of the simulated machines, not from the files that they write.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::{
    checks::invariants::assigned,
    load::{
        kept::{DUMP, KeptForm, MOST_RETRIES, is_volume_of_dump},
        user::NAMESPACE,
    },
    world::World,
};
use kat_types::{
    assignment::{Assignment, DesiredRun},
    machine::bound_runs::{RunTable, file_time},
    reason::Reason,
    store::{
        jobs::{AttemptEnd, JobRunRecord, JobStateRecord, RunPhase},
        keys,
        records::{NodeRegistration, WorkloadMeta},
    },
};

/// Longest attempt, with its start and its stop, in seconds. A run has no further attempt after so long either.
const LONGEST_RUN: i64 = 120;
/// Seconds after which a run has its record, if nothing is broken.
const RECORDED_WITHIN: i64 = 200;
/// The times until so long before the newest one are decided, if nothing is broken: a run is over, or the time
/// was missed.
const DECIDED_WITHIN: SignedDuration = SignedDuration::from_secs(240);
/// Seconds at both ends of a time without a leader in which clocks differ.
const EDGE: i64 = 8;
/// What a leader says of a run of which its machine has nothing.
const LOST: &str = "its machine has nothing of its end";

/// A start of a unit that its gate let begin. Times are those of its machine's clock, in seconds.
#[derive(Debug, Clone)]
pub(crate) struct KeptStart {
    pub machine: String,
    pub scheduled: i64,
    /// It is a further attempt of a run that failed.
    pub is_further: bool,
    pub invocation: String,
    pub began: i64,
}

/// A run that a machine began by itself.
#[derive(Debug, Clone)]
struct KeptRun {
    machine: String,
    /// It began before its time had come: its machine's clock was ahead. A leader may decide about such
    /// a time again.
    is_ahead: bool,
    /// At least one.
    attempts: Vec<KeptAttempt>,
}

#[derive(Debug, Clone)]
struct KeptAttempt {
    invocation: String,
    began: i64,
    end: Option<KeptEnd>,
}

impl KeptRun {
    fn began(&self) -> i64 {
        self.attempts[0].began
    }

    /// Until when scheduled times may be skipped for this run, of a Job with so many retries.
    fn lasts_until(&self, retries: usize) -> i64 {
        let last = &self.attempts[self.attempts.len() - 1];
        let latest = last.began + LONGEST_RUN - 1;
        match last.end {
            None => latest,
            Some(end) if end.succeeded || self.attempts.len() > retries => latest.min(end.at),
            // Its next attempt is awaited.
            Some(end) => latest.min(end.at).max(self.began() + LONGEST_RUN - 1),
        }
    }

    /// Why a further attempt on this machine is wrong.
    fn wrong_attempt(&self, machine: &str) -> Option<String> {
        let last = self.attempts.last().and_then(|one| one.end);
        if self.is_ahead {
            None
        } else if self.machine != machine {
            Some(format!("has a further attempt on {machine}"))
        } else if last.is_some_and(|end| end.succeeded) {
            Some("is tried again after a success".to_owned())
        } else if self.attempts.len() > MOST_RETRIES {
            Some("has an attempt too many".to_owned())
        } else {
            None
        }
    }

    /// Whether the record is of this run. Further attempts may follow.
    fn is_as_recorded(&self, record: &JobRunRecord) -> bool {
        let deadline = record.deadline_seconds.map(i64::from);
        let deadline = deadline.map(|seconds| self.began() + seconds);
        let said = record.attempts.iter().map(|one| one.end.as_ref());
        let mut both = said.zip(&self.attempts).enumerate();
        let is_of_attempt = |number: usize, said: &AttemptEnd, ran: &KeptAttempt| {
            // A further attempt is over at the deadline of its run, whatever its program makes of that.
            let is_late = |at: i64| number > 0 && deadline.is_some_and(|deadline| at >= deadline);
            let was_cut = said.reason == Reason::Interrupted.word();
            match ran.end {
                _ if was_cut && said.message == LOST => true,
                Some(end) => !was_cut && said.succeeded == (end.succeeded && !is_late(end.at)),
                None => was_cut || (is_late(said.at.as_second()) && !said.succeeded),
            }
        };
        let has_begun = self.is_ahead || record.attempts.len() <= self.attempts.len();
        has_begun
            && both.all(|(number, (said, ran))| {
                said.is_none_or(|said| is_of_attempt(number, said, ran))
            })
    }
}

/// Why a record of a run that a machine began contradicts itself.
fn contradiction(record: &JobRunRecord) -> Option<&'static str> {
    let ends = record.attempts.iter().map(|one| one.end.as_ref());
    let failed = ends.clone().flatten().filter(|end| !end.succeeded).count();
    let is_last_success = ends
        .clone()
        .next_back()
        .flatten()
        .is_some_and(|end| end.succeeded);
    let mut earlier = ends.rev().skip(1);
    if record.attempts.len() > 1 + usize::try_from(record.backoff_limit).unwrap() {
        Some("more attempts than backoffLimit has")
    } else if !earlier.all(|end| end.is_some_and(|end| !end.succeeded)) {
        Some("an attempt that follows one that has not failed")
    } else if usize::try_from(record.failures).unwrap() != failed {
        Some("another number of failed attempts")
    } else if (record.phase == RunPhase::Succeeded) != is_last_success {
        Some("a phase that its last attempt does not have")
    } else {
        None
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptEnd {
    pub at: i64,
    pub succeeded: bool,
}

/// The identity of a Job with one instance on each machine, as that of its part on one of them.
pub(crate) fn identity_on(uid: &str, machine: &str) -> String {
    format!("{uid} on {machine}")
}

/// A workload's identity, and a scheduled time in seconds.
type RunKey = (String, i64);

/// What gates let begin, and what leaders wrote of scheduled times.
#[derive(Debug, Default)]
pub(crate) struct KeptSchedules {
    begun: BTreeMap<RunKey, KeptRun>,
    /// Times that a leader made a run of.
    led: BTreeSet<RunKey>,
    /// Times whose record says that a machine ran them; with the number of attempts, where the record is of
    /// a run that is over and of which its machine had the end.
    recorded: BTreeMap<RunKey, Option<usize>>,
}

impl KeptSchedules {
    /// A gate lets an attempt of a run begin; returns why that is wrong.
    pub(crate) fn begins(&mut self, uid: &str, start: KeptStart, is_ahead: bool) -> Option<String> {
        let key = (uid.to_owned(), start.scheduled);
        let time = in_words(start.scheduled);
        let before = self.begun.get_mut(&key);
        let attempt = KeptAttempt {
            invocation: start.invocation.clone(),
            began: start.began,
            end: None,
        };
        if start.is_further {
            let Some(run) = before else {
                return Some(format!("{time} has a further attempt, and never began"));
            };
            let wrong = run.wrong_attempt(&start.machine);
            let wrong = wrong.map(|why| format!("{time} {why}: {run:?}"));
            if run.machine == start.machine {
                run.attempts.push(attempt);
            }
            return wrong;
        }
        let wrong = match before {
            Some(before) if before.is_ahead => None,
            Some(before) => Some(format!("{time} runs twice: as {before:?} and as {start:?}")),
            None if self.led.contains(&key) => Some(format!(
                "{time} has a run on {} and one by a leader",
                start.machine
            )),
            None => None,
        };
        self.begun.entry(key).or_insert(KeptRun {
            machine: start.machine,
            is_ahead,
            attempts: vec![attempt],
        });
        wrong
    }

    /// An attempt has ended, and its gate has written that.
    pub(crate) fn ends(&mut self, machine: &str, invocation: &str, end: KeptEnd) {
        let runs = self.begun.values_mut();
        let own = runs.filter(|run| run.machine == machine);
        let mut attempts = own.flat_map(|run| run.attempts.iter_mut());
        if let Some(attempt) = attempts.find(|one| one.invocation == invocation) {
            attempt.end = Some(end);
        }
    }

    /// Takes the record of a run that was written; returns why it is wrong. Of a run with one instance on
    /// each machine, the part of each machine counts for itself.
    pub(crate) fn written(&mut self, record: &JobRunRecord) -> Option<String> {
        let Some(machines) = &record.machines else {
            return self.written_whole(record);
        };
        let mut wrong = None;
        for (index, machine) in (0_u32..).zip(machines) {
            let own = record.attempts.iter().filter(|one| one.index == index);
            let part = JobRunRecord {
                workload_uid: identity_on(&record.workload_uid, &machine.node),
                phase: machine.phase.unwrap_or(record.phase),
                message: machine.message.clone(),
                failures: machine.failures,
                attempts: own.cloned().collect(),
                machines: None,
                ..record.clone()
            };
            // A leader has not begun it there yet.
            if part.bound || !part.attempts.is_empty() {
                let found = self.written_whole(&part);
                wrong = wrong.or(found);
            }
        }
        wrong
    }

    fn written_whole(&mut self, record: &JobRunRecord) -> Option<String> {
        let scheduled = record.scheduled?.as_second();
        let key = (record.workload_uid.clone(), scheduled);
        let time = in_words(scheduled);
        let run = self.begun.get(&key);
        if !record.bound {
            let is_both = run.is_some_and(|run| !run.is_ahead);
            self.led.insert(key);
            return is_both.then(|| format!("{time} has a run on a machine and one by a leader"));
        }
        let Some(run) = run else {
            return Some(format!("{time} has a record, and no machine ran it"));
        };
        let said = &record.attempts;
        let wrong = if !run.is_as_recorded(record) {
            Some(format!(
                "{time} was {run:?}, and its record says {said:?}: it is not recorded as it was"
            ))
        } else {
            contradiction(record).map(|what| format!("the record of {time} has {what}: {record:?}"))
        };
        let is_known = !record.is_active() && record.message != LOST;
        self.recorded
            .insert(key, is_known.then_some(record.attempts.len()));
        wrong
    }

    /// A run until this time whose record has another number of attempts than there were.
    fn miscounted(&self, uid: &str, until: i64) -> Option<String> {
        let own = self.recorded.iter().filter(|(key, _)| key.0 == uid);
        let mut counts = own.filter_map(|(key, count)| Some((key, (*count)?)));
        let differs = |key: &RunKey, count: usize| {
            let run = self.begun.get(key).filter(|run| !run.is_ahead);
            key.1 < until && run.is_some_and(|run| run.attempts.len() != count)
        };
        let (key, count) = counts.find(|(key, count)| differs(key, *count))?;
        let (time, run) = (in_words(key.1), self.begun.get(key));
        Some(format!(
            "the record of {time} has {count} attempts, and it was {run:?}"
        ))
    }

    /// Whether a run of this Job had several attempts.
    fn has_further(&self, uid: &str) -> bool {
        let mut own = self.begun.iter().filter(|((of, _), _)| of == uid);
        own.any(|(_, run)| run.attempts.len() > 1)
    }

    /// A run until this time that has no record.
    fn unrecorded(&self, uid: &str, until: i64) -> Option<i64> {
        let own = self.begun.keys().filter(|(of, _)| of == uid);
        let mut missing = own.filter(|key| key.1 < until && !self.recorded.contains_key(*key));
        missing.next().map(|(_, scheduled)| *scheduled)
    }

    /// The first time after `since` and until `to` that neither ran nor came during a run.
    fn gap(&self, since: &KeptSince, to: i64) -> Option<i64> {
        let each = since.form.seconds();
        let first = (since.from.div_euclid(each) + 1) * each;
        let own = self.begun.iter();
        let own = own.filter(|((of, _), _)| *of == since.uid);
        let own: BTreeMap<i64, &KeptRun> = own.map(|((_, time), run)| (*time, run)).collect();
        let is_covered = |time: i64| {
            let is_beside = own
                .values()
                .any(|run| run.began() < time && time <= run.lasts_until(since.retries));
            is_beside || own.contains_key(&time)
        };
        let mut time = first;
        while time <= to {
            if !is_covered(time) {
                return Some(time);
            }
            time += each;
        }
        None
    }
}

fn in_words(seconds: i64) -> String {
    file_time(seconds).map_or_else(|| seconds.to_string(), |time| time.to_string())
}

/// From when on a machine keeps the schedule with nothing in its way.
#[derive(Debug, Clone)]
pub(crate) struct KeptSince {
    uid: String,
    machine: String,
    form: KeptForm,
    /// Most further attempts of a run.
    retries: usize,
    from: i64,
}

impl KeptSince {
    pub(crate) fn is_of(&self, machine: &str) -> bool {
        self.machine == machine
    }
}

impl World {
    /// The machines that keep the schedule of [`DUMP`], with their assignments.
    pub(crate) fn keepers(&self) -> Vec<(usize, Assignment)> {
        let all = assigned(self).into_values();
        let kept = all.filter(|(_, one)| one.workload == DUMP && one.bound.is_some());
        let numbered = kept.filter_map(|(node, assignment)| {
            let number = self.machines.iter().position(|one| one.name == node)?;
            Some((number, assignment))
        });
        numbered.collect()
    }

    /// The machine that keeps the whole schedule of [`DUMP`], and the assignment.
    pub(crate) fn keeper(&self) -> Option<(usize, Assignment)> {
        self.keepers().into_iter().next()
    }

    fn dump_state(&self) -> Option<JobStateRecord> {
        self.stored(&keys::job_state(NAMESPACE, DUMP))
    }

    /// Since when its machine begins each run; `None` if it does not, or will not for long.
    pub(crate) fn kept_since(&self) -> Option<KeptSince> {
        let (number, assignment) = self.keeper()?;
        self.kept_since_by(number, &assignment)
    }

    /// The same for each machine that has joined; `None` if one of them does not begin each run.
    pub(crate) fn each_kept_since(&self) -> Option<Vec<KeptSince>> {
        let keepers = self.keepers();
        if keepers.len() != self.joined().count() {
            return None;
        }
        let each = keepers.iter();
        each.map(|(number, assignment)| self.kept_since_by(*number, assignment))
            .collect()
    }

    fn kept_since_by(&self, number: usize, assignment: &Assignment) -> Option<KeptSince> {
        let bound = assignment.bound.as_ref()?;
        let meta: WorkloadMeta = self.stored(&keys::workload_meta(NAMESPACE, DUMP))?;
        let state = self.dump_state()?;
        let is_kept = !bound.closed
            && assignment.wanted == DesiredRun::Running
            && assignment.generation == meta.generation
            && !meta.deleting
            && state.suspended.is_none()
            && !self.is_any_drained()
            && !self.moves_dump()
            && !self.dump_waits();
        let machine = &self.machines[number];
        let unit = assignment.unit();
        let boot = machine.boot.as_ref().filter(|_| is_kept)?;
        let timer = unit.replace(".service", ".timer");
        if !boot.runs(&timer) {
            return None;
        }
        let folder = format!("var/lib/kat/units/{}", assignment.user.uid);
        let table = unit.replace(".service", ".times");
        let table = std::fs::read_to_string(machine.root.join(folder).join(table)).ok()?;
        let table = RunTable::parse(&table).filter(|table| !table.times.is_empty())?;
        let handled = state.position(&machine.name);
        let handled = handled.map_or(0, Timestamp::as_second);
        let now = self.true_time().as_second() + EDGE;
        Some(KeptSince {
            uid: match bound.per_node {
                true => identity_on(&assignment.workload_uid, &machine.name),
                false => assignment.workload_uid.clone(),
            },
            machine: machine.name.clone(),
            form: KeptForm::of_schedule(&bound.schedule),
            retries: usize::try_from(bound.backoff_limit).unwrap(),
            from: now.max(handled).max(table.handled),
        })
    }

    /// Checks that its machine has begun each run since then.
    pub(crate) fn check_kept(&self, since: Option<&KeptSince>) {
        let Some(since) = since else { return };
        let to = self.true_time().as_second() - EDGE;
        let gap = self.monitor.with_kept(|kept| kept.gap(since, to));
        if let Some(time) = gap {
            self.monitor.violated(format!(
                "{} keeps a schedule, and {} has no run: it does not go on by itself",
                since.machine,
                in_words(time)
            ));
        }
    }

    /// Whether a machine has begun the run of this time.
    pub(crate) fn has_begun(&self, since: &KeptSince, time: i64) -> bool {
        let key = (since.uid.clone(), time);
        self.monitor.with_kept(|kept| kept.begun.contains_key(&key))
    }

    /// Whether a run of [`DUMP`] had several attempts.
    pub(crate) fn was_tried_again(&self) -> bool {
        let uid = self.dump_state().map(|state| state.workload_uid);
        uid.is_some_and(|uid| self.monitor.with_kept(|kept| kept.has_further(&uid)))
    }

    pub(crate) fn is_any_drained(&self) -> bool {
        self.joined().any(|machine| {
            let key = keys::registration(&machine.name);
            let registration: Option<NodeRegistration> = self.stored(&key);
            registration.is_some_and(|registration| registration.draining)
        })
    }

    fn moves_dump(&self) -> bool {
        let mut volumes = self.volumes().into_iter();
        volumes.any(|(volume, record)| is_volume_of_dump(&volume) && record.moving.is_some())
    }

    /// A run by hand waits for the schedule to be given back.
    fn dump_waits(&self) -> bool {
        let prefix = format!("{}{NAMESPACE}/{DUMP}/runs/", keys::JOBS);
        let mut runs = self.store.peek(&prefix).items.into_iter();
        runs.any(|item| {
            let run: JobRunRecord = serde_json::from_slice(&item.value).unwrap();
            run.is_active() && !run.bound
        })
    }

    /// What of the schedule is not as promised once all is healed.
    pub(crate) fn kept_missing(&self) -> Option<String> {
        let Some(state) = self.dump_state() else {
            return Some(format!("{DUMP} has not begun"));
        };
        let now = self.true_time();
        let bound = self.keeper().and_then(|(_, assignment)| assignment.bound);
        let form = bound.map_or(KeptForm::Once, |bound| {
            KeptForm::of_schedule(&bound.schedule)
        });
        let newest = now - SignedDuration::from_secs(form.seconds());
        if state
            .handled
            .is_none_or(|handled| handled < newest - DECIDED_WITHIN)
        {
            let handled = state.handled;
            return Some(format!("{DUMP} is decided until {handled:?} at {now}"));
        }
        let uid = state.workload_uid;
        let until = now.as_second() - RECORDED_WITHIN;
        let unrecorded = self.monitor.with_kept(|kept| kept.unrecorded(&uid, until));
        if let Some(time) = unrecorded {
            return Some(format!(
                "the run of {DUMP} at {} has no record",
                in_words(time)
            ));
        }
        let miscounted = self.monitor.with_kept(|kept| kept.miscounted(&uid, until));
        if miscounted.is_some() {
            return miscounted;
        }
        let kept = self.kept_since();
        kept.is_none()
            .then(|| format!("no machine keeps the schedule of {DUMP}"))
    }

    /// What of the schedule that each machine keeps is not as promised once all is healed.
    pub(crate) fn each_missing(&self) -> Option<String> {
        let Some(state) = self.dump_state() else {
            return Some(format!("{DUMP} has not begun"));
        };
        let now = self.true_time();
        let newest = now - SignedDuration::from_secs(KeptForm::Each.seconds());
        let until = now.as_second() - RECORDED_WITHIN;
        for (number, _) in self.keepers() {
            let name = &self.machines[number].name;
            let decided = state.position(name);
            if decided.is_none_or(|decided| decided < newest - DECIDED_WITHIN) {
                return Some(format!(
                    "{DUMP} is decided on {name} until {decided:?} at {now}"
                ));
            }
            let uid = identity_on(&state.workload_uid, name);
            let unrecorded = self.monitor.with_kept(|kept| kept.unrecorded(&uid, until));
            if let Some(time) = unrecorded {
                let time = in_words(time);
                return Some(format!(
                    "the run of {DUMP} on {name} at {time} has no record"
                ));
            }
            let miscounted = self.monitor.with_kept(|kept| kept.miscounted(&uid, until));
            if miscounted.is_some() {
                return miscounted;
            }
        }
        let kept = self.each_kept_since();
        kept.is_none()
            .then(|| format!("a machine does not keep the schedule of {DUMP}"))
    }

    /// Whether each of these machines has begun this time.
    pub(crate) fn have_begun(&self, each: &[KeptSince], time: i64) -> bool {
        each.iter().all(|since| self.has_begun(since, time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::store::jobs::{RunAttempt, RunMachine};

    /// A start of the unit whose invocation is its time.
    fn start(scheduled: i64, began: i64) -> KeptStart {
        KeptStart {
            machine: "n1".to_owned(),
            scheduled,
            is_further: false,
            invocation: began.to_string(),
            began,
        }
    }

    fn begins(kept: &mut KeptSchedules, scheduled: i64, began: i64) -> Option<String> {
        kept.begins("u", start(scheduled, began), false)
    }

    fn again(kept: &mut KeptSchedules, scheduled: i64, began: i64) -> Option<String> {
        let further = KeptStart {
            is_further: true,
            ..start(scheduled, began)
        };
        kept.begins("u", further, false)
    }

    fn ended(kept: &mut KeptSchedules, began: i64, at: i64, succeeded: bool) {
        kept.ends("n1", &began.to_string(), KeptEnd { at, succeeded });
    }

    fn record(scheduled: i64, bound: bool, ends: &[Option<(bool, &str)>]) -> JobRunRecord {
        let end = |(succeeded, reason): (bool, &str)| AttemptEnd {
            at: Timestamp::UNIX_EPOCH,
            succeeded,
            exit_code: None,
            reason: reason.to_owned(),
            message: String::new(),
        };
        let attempts = ends.iter().map(|one| RunAttempt {
            instance: "dump-aaaaa".to_owned(),
            node: "n1".to_owned(),
            index: 0,
            end: one.map(end),
        });
        let failed = ends.iter().flatten().filter(|(succeeded, _)| !succeeded);
        JobRunRecord {
            workload_uid: "u".to_owned(),
            scheduled: Timestamp::from_second(scheduled).ok(),
            bound,
            backoff_limit: 2,
            phase: match ends.last() {
                None | Some(None) => RunPhase::Active,
                Some(Some((true, _))) => RunPhase::Succeeded,
                Some(Some((false, _))) => RunPhase::Failed,
            },
            failures: u32::try_from(failed.count()).unwrap(),
            attempts: attempts.collect(),
            ..JobRunRecord::default()
        }
    }

    #[test]
    fn a_time_with_two_runs_is_found() {
        let mut kept = KeptSchedules::default();
        assert_eq!(begins(&mut kept, 60, 60), None);
        assert!(begins(&mut kept, 60, 61).unwrap().contains("twice"));
        let both = kept.written(&record(60, false, &[None]));
        assert!(both.unwrap().contains("by a leader"));
        assert_eq!(kept.written(&record(120, false, &[None])), None);
        let both = begins(&mut kept, 120, 120);
        assert!(both.unwrap().contains("by a leader"));
    }

    #[test]
    fn machines_may_run_the_same_time_each_for_itself_and_none_twice() {
        let mut kept = KeptSchedules::default();
        let on = |machine: &str| KeptStart {
            machine: machine.to_owned(),
            ..start(60, 60)
        };
        let mut begins_on =
            |machine: &str| kept.begins(&identity_on("u", machine), on(machine), false);
        assert_eq!(begins_on("n1"), None);
        assert_eq!(begins_on("n2"), None);
        assert!(begins_on("n2").unwrap().contains("runs twice"));
        let led = |nodes: &[&str]| {
            let attempts = (0_u32..).zip(nodes).map(|(index, node)| RunAttempt {
                instance: "dump-bbbbb".to_owned(),
                node: (*node).to_owned(),
                index,
                end: None,
            });
            JobRunRecord {
                machines: Some(nodes.iter().map(|node| RunMachine::new(node)).collect()),
                attempts: attempts.collect(),
                ..record(60, false, &[])
            }
        };
        assert_eq!(kept.written(&led(&["n3"])), None);
        let both = kept.written(&led(&["n3", "n1"]));
        assert!(both.unwrap().contains("by a leader"));
        let part = RunMachine {
            phase: Some(RunPhase::Active),
            ..RunMachine::new("n1")
        };
        let own = JobRunRecord {
            machines: Some(vec![part]),
            ..record(60, true, &[None])
        };
        assert_eq!(kept.written(&own), None);
        let of_nobody = JobRunRecord {
            machines: Some(vec![RunMachine::new("n4")]),
            ..own
        };
        let wrong = kept.written(&of_nobody);
        assert!(wrong.unwrap().contains("no machine ran it"));
    }

    #[test]
    fn a_record_that_differs_from_what_ran_is_found() {
        let mut kept = KeptSchedules::default();
        let wrong = |kept: &mut KeptSchedules, scheduled, end| {
            kept.written(&record(scheduled, true, &[end])).is_some()
        };
        assert!(wrong(&mut kept, 60, None));
        begins(&mut kept, 60, 60);
        ended(&mut kept, 60, 65, false);
        assert!(!wrong(&mut kept, 60, None));
        assert!(!wrong(&mut kept, 60, Some((false, "ProgramFailed"))));
        assert!(wrong(&mut kept, 60, Some((true, ""))));
        assert!(wrong(&mut kept, 60, Some((false, "Interrupted"))));
        begins(&mut kept, 120, 120);
        assert_eq!(kept.unrecorded("u", 200), Some(120));
        assert!(!wrong(&mut kept, 120, Some((false, "Interrupted"))));
        assert!(wrong(&mut kept, 120, Some((true, ""))));
        assert_eq!(kept.unrecorded("u", 200), None);
    }

    #[test]
    fn an_attempt_after_a_success_one_too_many_and_one_of_no_run_are_found() {
        let mut kept = KeptSchedules::default();
        assert!(again(&mut kept, 60, 60).unwrap().contains("never began"));
        begins(&mut kept, 60, 60);
        ended(&mut kept, 60, 62, false);
        let elsewhere = KeptStart {
            machine: "n2".to_owned(),
            is_further: true,
            ..start(60, 70)
        };
        let elsewhere = kept.begins("u", elsewhere, false);
        assert!(elsewhere.unwrap().contains("on n2"));
        assert_eq!(again(&mut kept, 60, 72), None);
        assert_eq!(again(&mut kept, 60, 92), None);
        ended(&mut kept, 92, 93, false);
        assert!(again(&mut kept, 60, 133).unwrap().contains("too many"));
        begins(&mut kept, 240, 240);
        ended(&mut kept, 240, 242, true);
        assert!(again(&mut kept, 240, 252).unwrap().contains("success"));
    }

    #[test]
    fn a_record_with_other_attempts_than_there_were_is_found() {
        let mut kept = KeptSchedules::default();
        let (failed, done) = (Some((false, "ProgramFailed")), Some((true, "")));
        begins(&mut kept, 60, 60);
        ended(&mut kept, 60, 62, false);
        assert!(kept.written(&record(60, true, &[failed, None])).is_some());
        again(&mut kept, 60, 72);
        assert_eq!(kept.written(&record(60, true, &[failed])), None);
        let early = kept.miscounted("u", 200);
        assert!(early.unwrap().contains("1 attempts"));
        assert_eq!(kept.written(&record(60, true, &[failed, None])), None);
        assert_eq!(kept.miscounted("u", 200), None);
        ended(&mut kept, 72, 75, true);
        assert!(kept.written(&record(60, true, &[failed, failed])).is_some());
        assert!(kept.written(&record(60, true, &[done, done])).is_some());
        assert_eq!(kept.written(&record(60, true, &[failed, done])), None);
        assert_eq!(kept.miscounted("u", 200), None);
        assert!(kept.has_further("u") && !kept.has_further("other"));
        let miscounted = JobRunRecord {
            failures: 2,
            ..record(60, true, &[failed, done])
        };
        assert!(kept.written(&miscounted).unwrap().contains("number"));
        let unlimited = JobRunRecord {
            backoff_limit: 0,
            ..record(60, true, &[failed, done])
        };
        assert!(kept.written(&unlimited).unwrap().contains("backoffLimit"));
        let late = JobRunRecord {
            deadline_seconds: Some(15),
            ..record(60, true, &[failed, done])
        };
        assert!(kept.written(&late).is_some());
    }

    #[test]
    fn a_time_that_neither_ran_nor_came_during_a_run_is_found() {
        let mut kept = KeptSchedules::default();
        begins(&mut kept, 60, 60);
        ended(&mut kept, 60, 130, true);
        begins(&mut kept, 180, 180);
        ended(&mut kept, 180, 190, true);
        let since = |uid: &str, retries| KeptSince {
            uid: uid.to_owned(),
            machine: "n1".to_owned(),
            form: KeptForm::Once,
            retries,
            from: 10,
        };
        assert_eq!(kept.gap(&since("u", 0), 239), None);
        assert_eq!(kept.gap(&since("u", 0), 240), Some(240));
        assert_eq!(kept.gap(&since("other", 0), 60), Some(60));
        // A run that failed is awaited, if it may be tried again.
        begins(&mut kept, 240, 240);
        ended(&mut kept, 240, 250, false);
        assert_eq!(kept.gap(&since("u", 0), 300), Some(300));
        assert_eq!(kept.gap(&since("u", 1), 300), None);
        again(&mut kept, 240, 300);
        ended(&mut kept, 300, 370, false);
        assert_eq!(kept.gap(&since("u", 1), 419), None);
        assert_eq!(kept.gap(&since("u", 1), 420), Some(420));
    }
}
