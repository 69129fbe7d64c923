//! Schedules that each machine of a Job with `completions: PerNode` keeps for itself alone.
//!
//! A machine decides the times for itself as long as its assignment exists, and `positions` of the Job's
//! state says until when it has. The leader gathers the parts of a run in one record, whose key is not
//! that of a run of its own: it may have begun the same time on other machines. It decides times only where
//! the machines may not, on those that keep no schedule and have not decided these times.
//! A silent machine keeps its schedule, and is waited for by nothing.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::{
    BoundState, CLOCK_AHEAD, KeeperReport, KeepingEnd, LOST, Withdrawal, attempts, common_rules,
    decided_until, failure, failures, has_open_runs,
};
use crate::{
    draft::Draft,
    jobs::{
        JobPlan, MOST_AT_ONCE, Schedule,
        due::{ON_TIME, without_wrong_clock},
        per_node,
    },
    rollout::{
        blocked::{Blocked, NotPlaced},
        slot::LiveInstance,
        slots::{SlotSet, slot_of_machine},
    },
    service::WorkloadPlanner,
};
use kat_types::{
    api::{BoundReport, BoundRun, NodePhase},
    assignment::{Assignment, BOUND_PER_NODE_SCHEMA, BoundSchedule},
    reason::Reason,
    resource::{CatchUp, Completions, JobSpec, WorkloadSpec},
    store::{
        jobs::{
            AttemptEnd, JobRunRecord, JobStateRecord, MOST_ATTEMPTS, RunCause, RunMachine,
            RunPhase, SkippedRun, run_of_machines,
        },
        keys,
        snapshot::ParsedWorkload,
        transaction::Compare,
    },
};

/// Most machines that get the schedule in one transaction. The next plan goes on with the others.
const MOST_BOUND_AT_ONCE: usize = 8;
/// Most characters of why a machine's part of a run failed.
const LONGEST_WHY: usize = 200;

/// The record of a run that machines began, to be deleted.
pub(in crate::jobs) struct RunToForget {
    pub(in crate::jobs) key: String,
    pub(in crate::jobs) revision: i64,
    pub(in crate::jobs) scheduled: Option<Timestamp>,
}

pub(super) fn is_keeper(live: &LiveInstance<'_>) -> bool {
    let bound = live.assignment.bound.as_ref();
    bound.is_some_and(|bound| bound.per_node)
}

/// Whether a machine that answers keeps its schedule, or has not confirmed the end of that.
pub(in crate::jobs) fn has_present_keeper(all: &[LiveInstance<'_>]) -> bool {
    all.iter().any(|live| is_keeper(live) && !live.away)
}

/// Whether a machine decides the time by itself, or has done so.
pub(in crate::jobs) fn has_decided(job: &JobPlan<'_>, node: &str, time: Timestamp) -> bool {
    let is_until = |position: &Timestamp| *position >= time;
    // Of a clock that was ahead.
    let began = job.runs.get(&run_of_machines(time));
    let mut machines = began.into_iter().flat_map(|run| &run.value.machines);
    job.state.keepers.contains_key(node)
        || job.state.positions.get(node).is_some_and(is_until)
        || machines.any(|all| all.iter().any(|one| one.node == node))
}

/// Whether parts of other machines may still come, as they report at different times, with delays of up to
/// `jitter_seconds`. A machine may report any start of its part, which must not end that of the others; the
/// scheduled time of a run that was made up for is long ago.
pub(in crate::jobs) fn is_fresh(run: &JobRunRecord, jitter_seconds: u32, now: Timestamp) -> bool {
    let delay = SignedDuration::from_secs(i64::from(jitter_seconds));
    let is_within = |time: Option<Timestamp>, longest: SignedDuration| {
        let age = time.map(|time| now.duration_since(time));
        age.is_some_and(|age| (-CLOCK_AHEAD..=longest).contains(&age))
    };
    let is_recent =
        is_within(run.scheduled, ON_TIME.saturating_add(delay)) || is_within(run.started, ON_TIME);
    run.is_by_machines() && is_recent
}

/// Whether each of so many machines may keep its schedule: nothing of a run needs a decision of the leader,
/// also not how many machines run at once.
fn may_be_bound(spec: &JobSpec, workload: &WorkloadSpec, machines: usize) -> bool {
    let at_once = usize::try_from(spec.parallelism).unwrap_or(usize::MAX);
    matches!(spec.completions, Completions::PerNode(_))
        && at_once >= machines
        && common_rules(spec, workload)
}

/// A machine's part of a run as it reports it. `cancelled` is the caller who asked for the run's end.
fn part_of(
    node: &str,
    bound: &BoundSchedule,
    run: &BoundRun,
    cancelled: Option<&str>,
) -> RunMachine {
    let (phase, why) = match (&run.end, cancelled) {
        (None, _) => (RunPhase::Active, None),
        (Some(end), _) if end.succeeded => (RunPhase::Succeeded, None),
        (Some(_), Some(by)) => {
            let why = (Reason::RunCancelled, format!("{by} cancelled it"));
            (RunPhase::Cancelled, Some(why))
        }
        (Some(end), None) if end.reason == Reason::DeadlineExceeded => {
            let why = (Reason::DeadlineExceeded, end.message.clone());
            (RunPhase::Failed, Some(why))
        }
        (Some(end), None) => (RunPhase::Failed, Some(failure(bound, run, end))),
    };
    let last = run.end.as_ref().filter(|end| !end.succeeded);
    let last = last.or(run.failed.last());
    let begun = run.failed.len() + usize::from(!run.paused);
    let (reason, message) = match why {
        Some((reason, message)) => (
            reason.word().to_owned(),
            message.chars().take(LONGEST_WHY).collect(),
        ),
        None => (String::new(), String::new()),
    };
    RunMachine {
        failures: failures(run),
        last_failure: last.map(|end| end.at),
        phase: Some(phase),
        begun: u32::try_from(begun).unwrap_or(u32::MAX),
        reason,
        message,
        ..RunMachine::new(node)
    }
}

/// The record with a machine's part as it reports it; `None` where it has that, or where the part is over:
/// then it stays as it is.
fn with_part(
    live: &LiveInstance<'_>,
    bound: &BoundSchedule,
    run: &BoundRun,
    before: JobRunRecord,
) -> Option<JobRunRecord> {
    let mut record = before;
    let by = record.cancelled.as_ref().map(|asked| asked.by.as_str());
    let part = part_of(live.node, bound, run, by);
    let machines = record.machines.get_or_insert_default();
    let place = machines.iter().position(|one| one.node == live.node);
    let index = place.unwrap_or(machines.len());
    match machines.get_mut(index) {
        Some(known) if !known.is_open() || *known == part => return None,
        Some(known) => *known = part,
        None => machines.push(part),
    }
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    record.attempts.retain(|one| one.index != index);
    let own = attempts(live, run).into_iter();
    record.attempts.extend(own.map(|mut one| {
        one.index = index;
        one
    }));
    let mut surplus = record.attempts.len().saturating_sub(MOST_ATTEMPTS);
    record.attempts.retain(|one| {
        let drop = surplus > 0 && one.end.is_some();
        surplus -= usize::from(drop);
        !drop
    });
    let started = record.started.map_or(run.started, |at| at.min(run.started));
    record.started = Some(started);
    conclude(&mut record);
    Some(record)
}

/// The record with the parts of these machines ended: nothing of their ends is known. `None` where none of
/// them is open.
fn without_ends(
    before: &JobRunRecord,
    is_lost: impl Fn(&str) -> bool,
    is_removed: impl Fn(&str) -> bool,
    now: Timestamp,
) -> Option<JobRunRecord> {
    let mut record = before.clone();
    let machines = record.machines.iter_mut().flatten();
    let mut any = false;
    for (index, machine) in (0_u32..).zip(machines) {
        if !machine.is_open() || !is_lost(&machine.node) {
            continue;
        }
        any = true;
        machine.phase = Some(RunPhase::Failed);
        machine.reason = Reason::Interrupted.into();
        machine.message = LOST.to_owned();
        machine.removed = is_removed(&machine.node);
        let open = record.attempts.iter_mut();
        for attempt in open.filter(|one| one.index == index && one.end.is_none()) {
            machine.failures = machine.failures.saturating_add(1);
            machine.last_failure = Some(now);
            attempt.end = Some(AttemptEnd {
                at: now,
                succeeded: false,
                exit_code: None,
                reason: Reason::Interrupted.into(),
                message: LOST.to_owned(),
            });
        }
    }
    if !any {
        return None;
    }
    conclude(&mut record);
    Some(record)
}

/// Phase, counts and words of a run by the parts of its machines.
fn conclude(record: &mut JobRunRecord) {
    let machines = record.machines.clone().unwrap_or_default();
    let with = |phase: RunPhase| machines.iter().filter(move |one| one.phase == Some(phase));
    record.completions = u32::try_from(machines.len()).unwrap_or(u32::MAX);
    record.parallelism = record.completions;
    let failures = machines.iter().map(|one| one.failures);
    record.failures = failures.fold(0, u32::saturating_add);
    record.last_failure = machines.iter().filter_map(|one| one.last_failure).max();
    let succeeded = (0_u32..).zip(&machines);
    let succeeded = succeeded.filter(|(_, one)| one.phase == Some(RunPhase::Succeeded));
    record.succeeded = succeeded.map(|(index, _)| index).collect();
    let failed: Vec<&RunMachine> = with(RunPhase::Failed).collect();
    let cancelled = with(RunPhase::Cancelled).next();
    let (phase, reason, message) = if with(RunPhase::Active).next().is_some() {
        (RunPhase::Active, String::new(), String::new())
    } else if let Some(cancelled) = cancelled {
        let RunMachine {
            reason, message, ..
        } = cancelled;
        (RunPhase::Cancelled, reason.clone(), message.clone())
    } else if let Some(last) = failed.last() {
        let nodes = failed.iter().map(|one| one.node.as_str());
        let message = format!(
            "{} of {} machines succeeded; failed on {}; the last: {}",
            record.succeeded.len(),
            record.completions,
            per_node::named(nodes),
            last.message
        );
        (RunPhase::Failed, last.reason.clone(), message)
    } else {
        let message = per_node::success_in_words(record);
        let reason = Reason::RunSucceeded.word().to_owned();
        (RunPhase::Succeeded, reason, message)
    };
    let ends = record.attempts.iter().filter_map(|one| one.end.as_ref());
    let finished = ends.map(|end| end.at).max().or(record.started);
    record.finished = finished.filter(|_| phase != RunPhase::Active);
    record.phase = phase;
    record.reason = reason;
    record.message = message;
}

/// A run that its first machine began.
fn new_record(
    number: u64,
    assignment: &Assignment,
    bound: &BoundSchedule,
    run: &BoundRun,
) -> JobRunRecord {
    JobRunRecord {
        schema: 1,
        number,
        workload_uid: assignment.workload_uid.clone(),
        generation: assignment.generation,
        cause: RunCause::Schedule,
        scheduled: Some(run.scheduled),
        created: run.started,
        backoff_limit: bound.backoff_limit,
        machines: Some(Vec::new()),
        bound: true,
        deadline_seconds: bound.deadline_seconds,
        phase: RunPhase::Active,
        ..JobRunRecord::default()
    }
}

impl WorkloadPlanner<'_, '_, '_> {
    /// Takes what the machines that keep their schedules report, and takes back the schedules that they may
    /// not keep.
    pub(super) fn follow_machines(
        &mut self,
        parsed: &ParsedWorkload,
        job: &mut JobPlan<'_>,
        all: &[LiveInstance<'_>],
    ) -> BoundState {
        let mut keepers: Vec<_> = all.iter().filter(|live| is_keeper(live)).collect();
        let is_left = |run: &JobRunRecord| run.is_by_machines() && run.is_active();
        let JobStateRecord {
            keepers: known,
            positions,
            ..
        } = &job.state;
        if keepers.is_empty()
            && known.is_empty()
            && positions.is_empty()
            && !job.runs.values().any(|run| is_left(&run.value))
        {
            return BoundState::Free;
        }
        let before = job.state.clone();
        let mut conditions = Vec::new();
        let may_keep = self.may_keep(parsed, job);
        self.give_up_machines(job, &keepers, &mut conditions);
        // So that a machine which is behind is not left for later in each plan.
        keepers.sort_by_key(|live| {
            let bound = live.assignment.bound.as_ref();
            bound.map(|bound| bound.handled)
        });
        for live in &keepers {
            if Draft::is_full(&self.group) {
                break;
            }
            // What this plan has changed in another way is followed by the next one.
            if !self.draft.changes(live.id) {
                let withdrawal = self.withdrawal_of_machine(parsed, job, live, may_keep);
                self.take_machine(job, live, withdrawal, &mut conditions);
            }
        }
        self.close_left_parts(job, &mut conditions);
        let is_kept = !keepers.is_empty() || !job.state.keepers.is_empty();
        let is_present = keepers.iter().any(|live| !live.away);
        let leads = match (is_kept, may_keep) {
            (false, _) => true,
            (true, true) => false,
            (true, false) => !is_present && self.has_other_machine(parsed, job),
        };
        self.settle_positions(parsed, job, leads, is_kept);
        let is_changed = job.state != before || !self.group.is_empty();
        self.commit_state(job, &before, conditions, "what machines decided");
        match (is_changed, leads, may_keep) {
            // The state is written once in a plan.
            (true, ..) => BoundState::Lost,
            (false, true, _) => BoundState::Free,
            (false, false, true) => BoundState::Shared,
            (false, false, false) => BoundState::Kept { withdraws: true },
        }
    }

    /// Whether the machines of the Job may keep their schedules.
    fn may_keep(&self, parsed: &ParsedWorkload, job: &JobPlan<'_>) -> bool {
        let spec = &parsed.workload.spec;
        let matching = per_node::matching_machines(self.draft.snapshot, spec).count();
        let mut runs = job.runs.values();
        let leads_run = runs.any(|run| run.value.is_active() && !run.value.bound);
        // An earlier version would begin the runs itself where it leads.
        let is_earlier =
            |schema: Option<u32>| schema.is_some_and(|schema| schema < BOUND_PER_NODE_SCHEMA);
        let schedule = job.spec.schedule.as_deref().unwrap_or_default();
        !leads_run
            && job.state.suspended.is_none()
            && may_be_bound(job.spec, spec, matching)
            // A large assignment would not be written together with the state.
            && parsed.carried.is_none()
            && !self.schemas().into_iter().any(is_earlier)
            && Schedule::parse(schedule, &job.spec.time_zone).is_ok()
    }

    /// Whether a machine takes work that keeps no schedule.
    fn has_other_machine(&self, parsed: &ParsedWorkload, job: &JobPlan<'_>) -> bool {
        let is_per_node = matches!(job.spec.completions, Completions::PerNode(_));
        let machines = self.taking_work(parsed);
        let mut others = machines.iter();
        is_per_node && others.any(|one| !job.state.keepers.contains_key(&one.node))
    }

    /// The machines that match and take work now.
    fn taking_work(&self, parsed: &ParsedWorkload) -> Vec<RunMachine> {
        let (snapshot, statuses) = (self.draft.snapshot, self.around.statuses);
        match per_node::machines_at_start(snapshot, statuses, &parsed.workload.spec) {
            per_node::RunMachines::Known { machines, .. } => machines,
            per_node::RunMachines::NoneYet(_) | per_node::RunMachines::NoMatch => Vec::new(),
        }
    }

    /// Whether each machine that a run of this time would begin on decides it by itself, or has done so.
    pub(in crate::jobs) fn is_decided_by_machines(
        &self,
        parsed: &ParsedWorkload,
        job: &JobPlan<'_>,
        time: Timestamp,
    ) -> bool {
        if !matches!(job.spec.completions, Completions::PerNode(_)) {
            // Of files before these, and of a clock that was ahead.
            return job.runs.contains_key(&run_of_machines(time));
        }
        let machines = self.taking_work(parsed);
        let mut nodes = machines.iter();
        !machines.is_empty() && nodes.all(|one| has_decided(job, &one.node, time))
    }

    fn withdrawal_of_machine(
        &self,
        parsed: &ParsedWorkload,
        job: &JobPlan<'_>,
        live: &LiveInstance<'_>,
        may_keep: bool,
    ) -> Withdrawal {
        let mut runs = job.runs.values();
        let is_cancelled =
            runs.any(|run| run.value.cancelled.is_some() && run.value.is_open_on(live.node));
        if live.forced_out || is_cancelled {
            return Withdrawal::Stop;
        }
        let spec = &parsed.workload.spec;
        let mut matching = per_node::matching_machines(self.draft.snapshot, spec);
        let is_drained = live.leaves && !live.away;
        let is_other = live.assignment.generation != self.entry.meta.value.generation;
        let stays = may_keep
            && live.current
            && !is_other
            && !is_drained
            && matching.any(|(name, _)| name == live.node);
        match stays {
            true => Withdrawal::None,
            false => Withdrawal::Close,
        }
    }

    /// Takes the runs of a machine's report, and writes what the machine has to do next. A report that finds
    /// no room in the transaction is taken by the next plan, beginning with the runs that have no record.
    fn take_machine(
        &mut self,
        job: &mut JobPlan<'_>,
        live: &LiveInstance<'_>,
        withdrawal: Withdrawal,
        conditions: &mut Vec<Compare>,
    ) {
        let Some(bound) = &live.assignment.bound else {
            return;
        };
        let (now, node) = (self.draft.now, live.node);
        if live.is_wanted() {
            let keepers = &mut job.state.keepers;
            keepers.insert(node.to_owned(), live.id.to_owned());
            let position = job.state.positions.entry(node.to_owned());
            position.or_insert(bound.handled);
        }
        let keeps = |state: &JobStateRecord| {
            let keeper = state.keepers.get(node);
            keeper.is_some_and(|instance| instance == live.id)
        };
        let has_record = |time| job.runs.contains_key(&run_of_machines(time));
        let report = KeeperReport::read(live, bound, keeps(&job.state), has_record, now);
        let mut next = bound.clone();
        for run in &report.runs {
            if Draft::is_full(&self.group) {
                return;
            }
            self.take_part(job, (live, bound), run, conditions);
        }
        if let Some(taken) = report.taken {
            if taken.handled > bound.handled {
                next.handled = taken.handled;
                self.take_position(job, node, taken);
            }
            // Of runs that are over nothing is known any more.
            let is_until = |run: &JobRunRecord| run.scheduled <= Some(taken.handled);
            self.close_parts(job, is_until, |own| own == node, conditions);
        }
        if report.end == KeepingEnd::Unknown {
            advance(&mut job.state, node, now);
        }
        if report.end != KeepingEnd::None {
            job.state.keepers.remove(node);
        }
        let keeps = keeps(&job.state);
        self.answer_keeper(live, &report, next, withdrawal, keeps);
    }

    /// Writes a machine's part of a run into its record.
    fn take_part(
        &mut self,
        job: &mut JobPlan<'_>,
        (live, bound): (&LiveInstance<'_>, &BoundSchedule),
        run: &BoundRun,
        conditions: &mut Vec<Compare>,
    ) {
        let key = run_of_machines(run.scheduled);
        let stored = job.runs.get(&key).cloned();
        let is_open = |run: &JobRunRecord| run.is_by_machines() && run.is_open_on(live.node);
        let is_known = stored.as_ref().is_some_and(|stored| is_open(&stored.value));
        if run.end.is_none() && !is_known && has_open_runs(job, is_open) {
            return;
        }
        let before = match &stored {
            Some(stored) => JobRunRecord::clone(&stored.value),
            // Its record is beyond the history; another one would take the place of a later run's.
            None if job.state.forgotten >= Some(run.scheduled) => return,
            None => new_record(
                job.state.last_number.saturating_add(1),
                live.assignment,
                bound,
                run,
            ),
        };
        let Some(record) = with_part(live, bound, run, before) else {
            return;
        };
        job.state.last_number = job.state.last_number.max(record.number);
        let revision = stored.map_or(0, |stored| stored.revision);
        self.put_run(job, &key, (record, revision), conditions);
    }

    /// Takes over a machine's times until the report's `handled`.
    fn take_position(&mut self, job: &mut JobPlan<'_>, node: &str, report: &BoundReport) {
        advance(&mut job.state, node, decided_until(report, self.draft.now));
        if let Some(skipped) = &report.skipped {
            let skips = u64::from(report.skips);
            self.note_skipped(job, Some(node), skipped.clone(), skips);
        }
    }

    /// The instances of these machines are gone without their last runs: the machines left the cluster, or
    /// another part of the plan removed them. Times until now get no run there, since they may have had one.
    fn give_up_machines(
        &mut self,
        job: &mut JobPlan<'_>,
        keepers: &[&LiveInstance<'_>],
        conditions: &mut Vec<Compare>,
    ) {
        let now = self.draft.now;
        let present: BTreeSet<&str> = keepers.iter().map(|live| live.id).collect();
        let known = job.state.keepers.iter();
        let gone: Vec<(String, String)> = known
            .filter(|(_, instance)| !present.contains(instance.as_str()))
            .take(MOST_AT_ONCE)
            .map(|(node, instance)| (node.clone(), instance.clone()))
            .collect();
        for (node, instance) in gone {
            let since = job.state.position(&node).unwrap_or(now);
            let message = format!(
                "{instance} kept the schedule and is gone: whether times since {since} had a run is not known"
            );
            let skipped = SkippedRun {
                scheduled: now,
                reason: Reason::RunMissed.into(),
                message,
            };
            self.note_skipped(job, Some(node.as_str()), skipped, 1);
            advance(&mut job.state, &node, now);
            job.state.keepers.remove(&node);
            self.close_parts(job, |_| true, |own| own == node, conditions);
        }
    }

    /// Ends the parts that are open on machines that keep no schedule.
    fn close_left_parts(&mut self, job: &mut JobPlan<'_>, conditions: &mut Vec<Compare>) {
        let keepers: BTreeSet<String> = job.state.keepers.keys().cloned().collect();
        self.close_parts(job, |_| true, |own| !keepers.contains(own), conditions);
    }

    fn close_parts(
        &mut self,
        job: &mut JobPlan<'_>,
        is_meant: impl Fn(&JobRunRecord) -> bool,
        is_lost: impl Fn(&str) -> bool,
        conditions: &mut Vec<Compare>,
    ) {
        let (now, nodes) = (self.draft.now, &self.draft.snapshot.nodes);
        let open = job.runs.iter().filter(|(_, run)| {
            run.value.is_by_machines() && run.value.is_active() && is_meant(&run.value)
        });
        let closed = open.filter_map(|(key, run)| {
            let is_removed = |node: &str| !nodes.contains_key(node);
            let record = without_ends(&run.value, &is_lost, is_removed, now)?;
            Some((key.clone(), record, run.revision))
        });
        let closed: Vec<_> = closed.collect();
        for (key, record, revision) in closed {
            if Draft::is_full(&self.group) {
                // The next plan goes on.
                return;
            }
            self.put_run(job, &key, (record, revision), conditions);
        }
    }

    /// Forgets the positions that say nothing any more. Where the leader decides the times, it begins with
    /// those that a machine which takes work has not decided.
    fn settle_positions(
        &self,
        parsed: &ParsedWorkload,
        job: &mut JobPlan<'_>,
        leads: bool,
        is_kept: bool,
    ) {
        let (now, nodes) = (self.draft.now, &self.draft.snapshot.nodes);
        if job.state.positions.is_empty() {
            return;
        }
        let is_per_node = matches!(job.spec.completions, Completions::PerNode(_));
        // It is told by them which machines it leaves out.
        let mut runs = job.runs.values();
        let is_awaited = runs.any(|run| run.value.is_active() && run.value.lacks_machines());
        let machines = self.taking_work(parsed);
        let JobStateRecord {
            handled,
            keepers,
            positions,
            ..
        } = &mut job.state;
        // One of a leader whose clock was far ahead says nothing; a machine that keeps its schedule has it.
        let is_right = |position: Timestamp| without_wrong_clock(position, now) == position;
        positions.retain(|node, position| {
            nodes.contains_key(node) && (keepers.contains_key(node) || is_right(*position))
        });
        if leads {
            let others = machines.iter();
            let others = others.filter(|one| !keepers.contains_key(&one.node));
            let others: Vec<&RunMachine> = others.collect();
            let positions_there = others.iter();
            let least = positions_there.filter_map(|one| positions.get(&one.node).copied());
            let known = positions.values().copied();
            let known = known.filter(|position| is_right(*position));
            let least = match (is_per_node, others.is_empty()) {
                (true, false) => least.min().or_else(|| known.max()),
                // Each of them may take work later, and make up for times.
                (true, true) => known.min(),
                // Runs that are on any machine begin no time that a machine has decided.
                (false, _) => known.max(),
            };
            *handled = (*handled).max(least);
        }
        if !is_kept
            && !is_awaited
            && positions
                .values()
                .all(|position| Some(*position) <= *handled)
        {
            positions.clear();
        }
    }

    /// Gives the schedule to each machine of the Job that takes work and has no instance. `before` is the
    /// state that is stored: a plan that changes it binds nothing.
    pub(in crate::jobs) fn bind_machines(
        &mut self,
        parsed: &ParsedWorkload,
        job: &mut JobPlan<'_>,
        before: &JobStateRecord,
        (all, blocked): (&[LiveInstance<'_>], &mut Vec<Blocked>),
    ) {
        if job.state != *before || !self.may_keep(parsed, job) {
            return;
        }
        let is_kept = !job.state.keepers.is_empty();
        let may_begin = job.state.is_about(job.spec) && self.all_know(BOUND_PER_NODE_SCHEMA);
        if !is_kept && !may_begin {
            return;
        }
        let now = self.draft.now;
        let machines = self.taking_work(parsed);
        if !job.state.is_about(job.spec) {
            job.state.begin_schedule(job.spec, now);
        }
        let Some(floor) = job.state.handled else {
            return;
        };
        let floor = without_wrong_clock(floor, now);
        job.state.handled = Some(floor);
        if !is_kept {
            // Those that find no room in this transaction begin there as well.
            for one in &machines {
                advance(&mut job.state, &one.node, floor);
            }
        }
        let placed = self.bind_each(parsed, job, &machines, (all, blocked));
        if placed == 0 {
            job.state = before.clone();
            return self.flush_gathered();
        }
        // With the count of the instances made so far.
        let status_key = keys::workload_status(&self.key.namespace, &self.key.name);
        self.group.put(status_key, &self.record);
        self.commit_state(job, before, Vec::new(), "the schedules");
    }

    /// Returns the number of machines that got the schedule.
    fn bind_each(
        &mut self,
        parsed: &ParsedWorkload,
        job: &mut JobPlan<'_>,
        machines: &[RunMachine],
        (all, blocked): (&[LiveInstance<'_>], &mut Vec<Blocked>),
    ) -> usize {
        let snapshot = self.draft.snapshot;
        let slots_before = self.slots.clone();
        let entries = machines.iter();
        let entries = entries.filter_map(|one| snapshot.nodes.get_key_value(&one.node));
        let slots =
            entries.filter_map(|(name, node)| Some((slot_of_machine(snapshot, node)?, &**name)));
        self.slots = SlotSet::Machines(slots.collect());
        let mut placed = 0;
        for (index, one) in (0_u32..).zip(machines) {
            let node = one.node.as_str();
            if all.iter().any(|live| live.node == node) {
                continue;
            }
            if placed == MOST_BOUND_AT_ONCE || Draft::is_half_full(&self.group) {
                // The next plan goes on.
                break;
            }
            let entry = snapshot.nodes.get(node);
            let Some(slot) = entry.and_then(|entry| slot_of_machine(snapshot, entry)) else {
                let why = format!("{node} has no subnet yet");
                blocked.push(Blocked::NotPlaced(NotPlaced::MachineNotReady(why)));
                continue;
            };
            let known = job.state.positions.contains_key(node);
            // One that joined later has had none of the times before.
            let joined = Some(self.draft.now).filter(|_| !known);
            let handled = job.state.position(node).max(joined);
            let Some(bound) = bound_schedule(job.spec, handled) else {
                continue;
            };
            let handled = bound.handled;
            match self.create_bound(parsed, bound, (slot, index)) {
                Ok(instance) => {
                    placed += 1;
                    advance(&mut job.state, node, handled);
                    job.state.keepers.insert(node.to_owned(), instance);
                }
                Err(cause) => blocked.push(Blocked::NotPlaced(cause)),
            }
        }
        self.slots = slots_before;
        placed
    }

    /// The runs that are active on silent machines alone.
    pub(in crate::jobs) fn silent_runs(&self, job: &JobPlan<'_>) -> BTreeSet<String> {
        let is_silent = |node: &str| {
            let status = self.around.statuses.get(node);
            status.is_some_and(|status| status.phase == NodePhase::NotReady)
        };
        let runs = job.runs.iter();
        let silent = runs.filter(|(_, run)| run.value.is_left_to(is_silent));
        silent.map(|(key, _)| key.clone()).collect()
    }

    /// Deletes records of runs that machines began. The state has the newest of their times, so that a
    /// machine that reports one of them later gets no other record for it.
    pub(in crate::jobs) fn forget_runs_of_machines(
        &mut self,
        job: &JobPlan<'_>,
        runs: &[RunToForget],
    ) {
        let stored = self.draft.snapshot.jobs.get(self.key);
        let stored = stored.and_then(|entry| entry.state.as_ref());
        // A plan writes the state once.
        if runs.is_empty() || stored.is_none_or(|stored| stored.value != job.state) {
            return;
        }
        self.flush_gathered();
        let mut state = job.state.clone();
        let state_key = keys::job_state(&self.key.namespace, &self.key.name);
        let mut conditions = vec![Compare::ModRevision(state_key.clone(), job.state_revision)];
        for run in runs.iter().take(MOST_AT_ONCE) {
            let run_key = keys::job_run(&self.key.namespace, &self.key.name, &run.key);
            self.group.delete(run_key.clone());
            conditions.push(Compare::ModRevision(run_key, run.revision));
            // One of a time to come is of a clock that was ahead, and says nothing of those before it.
            let come = run.scheduled.filter(|time| *time <= self.draft.now);
            state.forgotten = state.forgotten.max(come);
        }
        self.group.put(state_key, &state);
        let group = std::mem::take(&mut self.group);
        let reason = format!("runs of {} are beyond the history", self.key);
        self.draft.commit(group, reason, conditions);
    }
}

/// The schedule of a machine that has decided the times until `handled`.
fn bound_schedule(spec: &JobSpec, handled: Option<Timestamp>) -> Option<BoundSchedule> {
    Some(BoundSchedule {
        schedule: spec.schedule.clone()?,
        time_zone: spec.time_zone.clone(),
        jitter_seconds: spec.jitter_seconds,
        starting_deadline_seconds: spec.starting_deadline_seconds,
        deadline_seconds: spec.active_deadline_seconds,
        backoff_limit: spec.backoff_limit,
        catch_up: Some(spec.catch_up).filter(|one| *one != CatchUp::None),
        handled: handled?,
        closed: false,
        per_node: true,
    })
}

/// Notes that a machine has decided the times until this one.
fn advance(state: &mut JobStateRecord, node: &str, until: Timestamp) {
    let position = state.positions.entry(node.to_owned()).or_insert(until);
    *position = (*position).max(until);
}
