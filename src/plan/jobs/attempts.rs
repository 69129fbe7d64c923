//! One run of a Job: which of its instances ended how, whether it is over, and which instances are
//! made next. Pure.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;

use super::per_node::{self, MachineState};
use kat_types::{
    backoff::RUN_PAUSES,
    reason::Reason,
    store::jobs::{AttemptEnd, JobRunRecord, MOST_ATTEMPTS, RunAttempt, RunPhase},
};

/// An instance of a run as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LiveAttempt {
    pub(super) instance: String,
    pub(super) node: String,
    /// Its index among the completions, or that of its machine in the run's record.
    pub(super) index: u32,
    pub(super) state: AttemptState,
}

/// How far an instance of a run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AttemptState {
    /// It may run.
    Going,
    /// It ended, or is given up.
    Ended(AttemptEnd),
    /// It is being stopped; its machine has not confirmed that.
    Stopping,
}

/// What surrounds a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunSurroundings<'m> {
    pub(super) now: Timestamp,
    /// Instances of the run may be made: no other run is in its way.
    pub(super) may_begin: bool,
    /// Only one instance of the workload may exist: it writes data, or uses something of its machine.
    pub(super) alone: bool,
    /// An instance of the workload exists, of any run.
    pub(super) any_instance: bool,
    /// The machines of a run with one instance on each, by index; empty for any other run.
    pub(super) machines: &'m [MachineState],
}

/// The next step of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunStep {
    pub(super) record: JobRunRecord,
    /// Instances to stop, each with the reason in words.
    pub(super) stop: Vec<(String, String)>,
    /// Indexes that may get an instance.
    pub(super) create: Vec<u32>,
    /// How many of them get one at most: an instance may find no place on its machine.
    pub(super) places: usize,
    /// Look again after this time.
    pub(super) wake: Option<Duration>,
}

/// The next step of the run with these instances.
pub(super) fn step(
    before: &JobRunRecord,
    live: &[LiveAttempt],
    surroundings: RunSurroundings<'_>,
) -> RunStep {
    let now = surroundings.now;
    let mut step = RunStep {
        record: before.clone(),
        stop: Vec::new(),
        create: Vec::new(),
        places: 0,
        wake: None,
    };
    if !before.is_active() {
        step.stop_all(live, "its run is over");
        step.close_open(now, "its run is over");
        return step;
    }
    step.take_ends(live, now);
    per_node::note_removed(&mut step.record, surroundings.machines);
    if let Some(asked) = &before.cancelled {
        let message = format!("{} cancelled it", asked.by);
        step.finish(RunPhase::Cancelled, Reason::RunCancelled, message, now);
    } else if step.has_succeeded() {
        let message = match (&before.machines, before.completions) {
            (Some(_), _) => per_node::success_in_words(&step.record),
            (None, 1) => "its instance succeeded".to_owned(),
            (None, count) => format!("{count} instances succeeded"),
        };
        step.finish(RunPhase::Succeeded, Reason::RunSucceeded, message, now);
    } else if let Some(deadline) = before.deadline().filter(|deadline| *deadline <= now) {
        let message = format!("it was not done at its deadline, {deadline}");
        step.finish(RunPhase::Failed, Reason::DeadlineExceeded, message, now);
    } else if let Some((reason, message)) = step.failure() {
        step.finish(RunPhase::Failed, reason, message, now);
    }
    if !step.record.is_active() {
        let why = step.record.message.clone();
        step.stop_all(live, &why);
        step.close_open(now, &why);
        return step;
    }
    if surroundings.may_begin {
        step.record.started.get_or_insert(now);
        step.begin(live, surroundings);
    }
    if let Some(deadline) = step.record.deadline() {
        step.wake_at(deadline, now);
    }
    step
}

impl RunStep {
    /// As many instances succeeded as the run needs.
    fn has_succeeded(&self) -> bool {
        let succeeded = u32::try_from(self.record.succeeded.len()).unwrap_or(u32::MAX);
        !self.record.lacks_machines() && succeeded >= self.record.completions
    }

    /// Why the run has failed, if too many of its instances have.
    fn failure(&self) -> Option<(Reason, String)> {
        let record = &self.record;
        if record.machines.is_some() {
            return per_node::failure(record);
        }
        if record.failures <= record.backoff_limit {
            return None;
        }
        let failures = match record.failures {
            1 => "one instance failed".to_owned(),
            count => format!("{count} instances failed"),
        };
        let message = format!(
            "{failures}, and backoffLimit is {}{}",
            record.backoff_limit,
            last_failure_in_words(record)
        );
        Some((Reason::BackoffLimitExceeded, message))
    }

    /// Notes the instances that are new, that ended, and that are gone.
    fn take_ends(&mut self, live: &[LiveAttempt], now: Timestamp) {
        for one in live {
            let known = self.attempt(&one.instance).is_some();
            if !known && one.state != AttemptState::Stopping {
                self.record.attempts.push(RunAttempt {
                    instance: one.instance.clone(),
                    node: one.node.clone(),
                    index: one.index,
                    end: None,
                });
            }
            let AttemptState::Ended(end) = &one.state else {
                continue;
            };
            self.end(&one.instance, end.clone());
            let why = match end.succeeded {
                true => "its program has ended with success".to_owned(),
                false => format!("its attempt is over: {}", end.message),
            };
            self.stop.push((one.instance.clone(), why));
        }
        let going: BTreeSet<&str> = live
            .iter()
            .filter(|one| one.state != AttemptState::Stopping)
            .map(|one| one.instance.as_str())
            .collect();
        let lost: Vec<String> = self
            .record
            .attempts
            .iter()
            .filter(|one| one.end.is_none() && !going.contains(one.instance.as_str()))
            .map(|one| one.instance.clone())
            .collect();
        for instance in lost {
            self.end(&instance, gone(now, "it was stopped before it ended"));
        }
        let surplus = self.record.attempts.len().saturating_sub(MOST_ATTEMPTS);
        let mut left = surplus;
        // One that may run, or whose end would be taken again, is kept.
        self.record.attempts.retain(|one| {
            let is_told = going.contains(one.instance.as_str());
            let drop = left > 0 && one.end.is_some() && !is_told;
            left -= usize::from(drop);
            !drop
        });
    }

    fn attempt(&mut self, instance: &str) -> Option<&mut RunAttempt> {
        let mut attempts = self.record.attempts.iter_mut();
        attempts.find(|one| one.instance == instance)
    }

    /// Counts the end of an instance once.
    fn end(&mut self, instance: &str, end: AttemptEnd) {
        let Some(attempt) = self.attempt(instance).filter(|one| one.end.is_none()) else {
            return;
        };
        let (index, succeeded, at) = (attempt.index, end.succeeded, end.at);
        attempt.end = Some(end);
        if succeeded {
            self.record.succeeded.insert(index);
        } else {
            self.record.failures = self.record.failures.saturating_add(1);
            self.record.last_failure = Some(at);
            per_node::note_failure(&mut self.record, index, at);
        }
    }

    fn finish(&mut self, phase: RunPhase, reason: Reason, message: String, now: Timestamp) {
        self.record.phase = phase;
        self.record.reason = reason.into();
        self.record.message = message;
        self.record.finished = Some(now);
    }

    /// Ends, in the record, what may still run: the run is over.
    fn close_open(&mut self, now: Timestamp, why: &str) {
        for attempt in self
            .record
            .attempts
            .iter_mut()
            .filter(|one| one.end.is_none())
        {
            attempt.end = Some(gone(now, why));
        }
    }

    fn stop_all(&mut self, live: &[LiveAttempt], why: &str) {
        for one in live
            .iter()
            .filter(|one| one.state != AttemptState::Stopping)
        {
            if !self
                .stop
                .iter()
                .any(|(stopped, _)| *stopped == one.instance)
            {
                self.stop.push((one.instance.clone(), why.to_owned()));
            }
        }
    }

    /// Chooses the indexes that get an instance now.
    fn begin(&mut self, live: &[LiveAttempt], surroundings: RunSurroundings<'_>) {
        let RunSurroundings { now, .. } = surroundings;
        // One that is being stopped may still do its part.
        let busy: BTreeSet<u32> = live.iter().map(|one| one.index).collect();
        let parallelism = usize::try_from(self.record.parallelism).unwrap_or(usize::MAX);
        if self.record.machines.is_some() {
            let next = per_node::next(&self.record, &busy, surroundings.machines, now);
            self.create = next.indexes;
            self.places = parallelism.saturating_sub(next.held);
            if let Some(until) = next.pause {
                self.wake_at(until, now);
            }
            return;
        }
        let record = &self.record;
        if let Some(until) = pause_until(record.failures, record.last_failure, now) {
            return self.wake_at(until, now);
        }
        if surroundings.alone && surroundings.any_instance {
            return;
        }
        let most = match surroundings.alone {
            true => 1,
            false => parallelism,
        };
        let free = (0..self.record.completions)
            .filter(|index| !self.record.succeeded.contains(index) && !busy.contains(index));
        self.create = free.take(most.saturating_sub(busy.len())).collect();
        self.places = self.create.len();
    }

    fn wake_at(&mut self, at: Timestamp, now: Timestamp) {
        let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        self.wake = Some(self.wake.map_or(left, |present| present.min(left)));
    }
}

/// Until when no instance is made after the last of so many failures; `None` if none is waited for.
pub(super) fn pause_until(
    failures: u32,
    last: Option<Timestamp>,
    now: Timestamp,
) -> Option<Timestamp> {
    let last = last?;
    let pause = RUN_PAUSES.after(failures.saturating_sub(1));
    let until = last.checked_add(pause).unwrap_or(last);
    // The clock of the leader that noted the failure may have been ahead.
    let waits = until.duration_since(now).unsigned_abs() <= pause && until > now;
    waits.then_some(until)
}

/// Such as `; the last: the program ended with exit code 3`; empty if nothing is known.
pub(super) fn last_failure_in_words(record: &JobRunRecord) -> String {
    let ends = record.attempts.iter().rev();
    let mut ends = ends.filter_map(|attempt| attempt.end.as_ref());
    let last = ends.find(|end| !end.succeeded && !end.message.is_empty());
    last.map_or_else(String::new, |end| format!("; the last: {}", end.message))
}

fn gone(now: Timestamp, why: &str) -> AttemptEnd {
    AttemptEnd {
        at: now,
        succeeded: false,
        exit_code: None,
        reason: Reason::Interrupted.into(),
        message: why.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    pub(in crate::jobs) fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn run(completions: u32, parallelism: u32, backoff_limit: u32) -> JobRunRecord {
        JobRunRecord {
            schema: 1,
            number: 1,
            completions,
            parallelism,
            backoff_limit,
            phase: RunPhase::Active,
            ..JobRunRecord::default()
        }
    }

    fn surroundings(now: Timestamp) -> RunSurroundings<'static> {
        RunSurroundings {
            now,
            may_begin: true,
            alone: false,
            any_instance: false,
            machines: &[],
        }
    }

    /// The machine of index 0 is n1.
    pub(in crate::jobs) fn live(instance: &str, index: u32, state: AttemptState) -> LiveAttempt {
        LiveAttempt {
            instance: instance.to_owned(),
            node: format!("n{}", index + 1),
            index,
            state,
        }
    }

    pub(in crate::jobs) fn ended(now: Timestamp, code: i32) -> AttemptState {
        AttemptState::Ended(AttemptEnd {
            at: now,
            succeeded: code == 0,
            exit_code: Some(code),
            reason: String::new(),
            message: format!("the program ended with exit code {code}"),
        })
    }

    #[test]
    fn a_run_makes_as_many_instances_at_once_as_it_may_and_no_index_twice() {
        let first = step(&run(5, 2, 3), &[], surroundings(NOW));
        assert_eq!(first.create, [0, 1]);
        let attempts = [
            live("a", 0, ended(NOW, 0)),
            live("b", 1, AttemptState::Going),
        ];
        let second = step(&first.record, &attempts, surroundings(NOW));
        assert_eq!(second.record.succeeded, BTreeSet::from([0]));
        assert_eq!(second.stop.len(), 1);
        // The ended one still has its place until its machine confirms its end.
        assert!(second.create.is_empty());
        let third = step(&second.record, &attempts[1..], surroundings(NOW));
        assert_eq!(third.create, [2]);
    }

    #[test]
    fn a_run_that_has_what_it_needs_has_succeeded() {
        let done = step(
            &run(1, 1, 0),
            &[live("a", 0, ended(at(5), 0))],
            surroundings(at(5)),
        );
        assert_eq!(done.record.phase, RunPhase::Succeeded);
        assert_eq!(done.record.finished, Some(at(5)));
        assert!(done.create.is_empty());
        // The same again changes nothing.
        let again = step(&done.record, &[], surroundings(at(6)));
        assert_eq!(again.record, done.record);
    }

    #[test]
    fn instances_that_fail_are_replaced_after_growing_pauses_until_there_are_too_many() {
        let mut record = run(1, 1, 2);
        let mut now = 0;
        for (number, pause) in [(1, 10), (2, 20)] {
            let attempts = [live(&format!("a{number}"), 0, ended(at(now), 3))];
            let failed = step(&record, &attempts, surroundings(at(now)));
            assert_eq!(failed.record.failures, number);
            assert!(failed.record.is_active());
            let waits = step(&failed.record, &[], surroundings(at(now + pause - 1)));
            assert!(waits.create.is_empty());
            assert_eq!(waits.wake, Some(Duration::from_secs(1)));
            now += pause;
            let next = step(&failed.record, &[], surroundings(at(now)));
            assert_eq!(next.create, [0]);
            record = next.record;
        }
        let attempts = [live("a3", 0, ended(at(now), 3))];
        let over = step(&record, &attempts, surroundings(at(now)));
        assert_eq!(over.record.phase, RunPhase::Failed);
        assert_eq!(over.record.reason, "BackoffLimitExceeded");
        assert_eq!(
            over.record.message,
            "3 instances failed, and backoffLimit is 2; the last: the program ended with exit code 3"
        );
    }

    #[test]
    fn a_deadline_ends_the_whole_run_with_all_of_its_instances() {
        let record = JobRunRecord {
            deadline_seconds: Some(60),
            ..run(2, 2, 3)
        };
        let begun = step(&record, &[], surroundings(NOW));
        assert_eq!(begun.record.started, Some(NOW));
        assert_eq!(begun.wake, Some(Duration::from_secs(60)));
        let attempts = [
            live("a", 0, AttemptState::Going),
            live("b", 1, AttemptState::Going),
        ];
        let early = step(&begun.record, &attempts, surroundings(at(59)));
        assert!(early.record.is_active() && early.stop.is_empty());
        let late = step(&early.record, &attempts, surroundings(at(60)));
        assert_eq!(late.record.reason, "DeadlineExceeded");
        assert_eq!(late.stop.len(), 2);
        assert!(late.record.attempts.iter().all(|one| one.end.is_some()));
    }

    #[test]
    fn an_instance_that_vanished_counts_as_failed_once() {
        let begun = step(&run(1, 1, 3), &[], surroundings(NOW));
        let seen = step(
            &begun.record,
            &[live("a", 0, AttemptState::Going)],
            surroundings(NOW),
        );
        let lost = step(&seen.record, &[], surroundings(NOW));
        assert_eq!(lost.record.failures, 1);
        assert_eq!(
            step(&lost.record, &[], surroundings(NOW)).record.failures,
            1
        );
    }

    #[test]
    fn a_run_that_writes_data_has_one_instance_at_a_time() {
        let alone = RunSurroundings {
            alone: true,
            ..surroundings(NOW)
        };
        let begun = step(&run(3, 3, 3), &[], alone);
        assert_eq!(begun.create, [0]);
        let waits = RunSurroundings {
            any_instance: true,
            ..alone
        };
        assert!(step(&begun.record, &[], waits).create.is_empty());
    }

    #[test]
    fn a_run_in_whose_way_another_one_is_has_not_started() {
        let waits = RunSurroundings {
            may_begin: false,
            ..surroundings(NOW)
        };
        let waiting = step(&run(1, 1, 3), &[], waits);
        assert_eq!((waiting.create, waiting.record.started), (vec![], None));
    }

    #[test]
    fn a_cancelled_run_stops_its_instances_and_makes_no_others() {
        let record = JobRunRecord {
            cancelled: Some(kat_types::store::jobs::JobSuspension {
                by: "token:a".to_owned(),
                at: NOW,
            }),
            ..run(2, 2, 3)
        };
        let over = step(
            &record,
            &[live("a", 0, AttemptState::Going)],
            surroundings(NOW),
        );
        assert_eq!(over.record.phase, RunPhase::Cancelled);
        assert_eq!(over.stop.len(), 1);
        assert!(over.create.is_empty());
    }
}
