//! Jobs (RFC001-KAT 4.8): when a run is due, what its instances are, and when it is over.
//!
//! A run exists once: its record is written in a transaction of its own, which compares the Job's
//! state, before an instance of it is placed. The next plan reads it and places them. So a leader that
//! is lost between both leaves a run that its successor continues, and no two leaders begin the run of
//! one scheduled time.
//!
//! The machine with the Job's data may begin the runs by itself ([`bound`]), and so may each machine of a
//! Job with one instance on each: then the leader decides no time, and takes the machines' runs from their
//! reports.
//!
//! [`due`] chooses the scheduled times that get a run, [`attempts`] the next step of a run, and
//! [`per_node`] the machines of a run with one instance on each; all are pure.

mod attempts;
mod bound;
mod due;
mod per_node;
mod schedule;
pub(crate) mod summary;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use self::{
    attempts::{AttemptState, LiveAttempt, RunStep, RunSurroundings},
    bound::{
        BoundState, ScheduleKeepers,
        machines::{RunToForget, has_decided, has_present_keeper, is_fresh},
    },
    due::{DueRules, DueTimes},
    per_node::{MachineState, RunMachines},
    summary::JobSummary,
};
use crate::{
    draft::{Draft, OperationGroup},
    nodes::node_loss::LastContact,
    rollout::{
        blocked::{Blocked, LeaveObstacle, NotPlaced, WorkloadOutcome},
        runs_alone,
        slot::LiveInstance,
        slots::{SlotSet, slot_of_machine},
    },
    scheduling::schedule::is_tolerated,
    service::WorkloadPlanner,
    start_order::StartWait,
    status::{InstanceTrouble, instance_trouble},
};
use kat_types::{
    api::{EventKind, InstancePhase, NodePhase, ObjectKind},
    machine::fence::{JOB_START_CONTACT, START_MARGIN_SECONDS},
    reason::{EventReason, Reason},
    resource::{
        CatchUp, Completions, ConcurrencyPolicy, JobSpec, OnNodeLoss, RestartCondition,
        WorkloadSpec,
    },
    store::{
        jobs::{
            AttemptEnd, JobRunRecord, JobStateRecord, MOST_OVERLAPPING_RUNS, RunCause, RunMachine,
            RunPhase, SkippedRun, generation_run, scheduled_run,
        },
        keys,
        records::WorkloadMeta,
        revisions::{Stored, WorkloadKey},
        snapshot::{JobEntry, ParsedWorkload},
        transaction::Compare,
    },
};

pub use due::{ON_TIME, start_of_run};
pub use schedule::{Schedule, ScheduleError};

/// Most characters of the message of an instance that a run's record keeps.
const LONGEST_MESSAGE: usize = 500;
/// Most instances that are stopped, and most runs that are made, together with their records in one
/// transaction. The next plan goes on with the others.
const MOST_AT_ONCE: usize = 20;
/// Seconds that a stop may take beyond the grace of its container, with some for a late report.
const STOP_MARGIN_SECONDS: i64 = 30;
/// Most records of runs of times to come that are kept beside the history.
const MOST_KEPT_AHEAD: usize = 100;
/// Longest time until theirs: a machine that gives a schedule back reports those of a day.
const LONGEST_AHEAD: SignedDuration = SignedDuration::from_hours(25);
/// Most records of the latest runs of machines that are kept beside the history: as many missed times are
/// made up for at once.
const MOST_KEPT_FRESH: usize = 100;
/// The longest sleep until a scheduled time, so that a clock that is changed is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// A run for a Job as it is now, that nothing has been done for.
pub fn new_run(
    spec: &JobSpec,
    meta: &WorkloadMeta,
    cause: RunCause,
    now: Timestamp,
) -> JobRunRecord {
    let (completions, machines) = match spec.completions {
        Completions::Count(count) => (count, None),
        // Its machines are known when it begins.
        Completions::PerNode(_) => (0, Some(Vec::new())),
    };
    JobRunRecord {
        schema: 1,
        workload_uid: meta.uid.clone(),
        generation: meta.generation,
        cause,
        created: now,
        completions,
        machines,
        parallelism: spec.parallelism.max(1),
        backoff_limit: spec.backoff_limit,
        deadline_seconds: spec.active_deadline_seconds,
        phase: RunPhase::Active,
        ..JobRunRecord::default()
    }
}

/// A Job while it is planned.
struct JobPlan<'p> {
    spec: &'p JobSpec,
    state: JobStateRecord,
    state_revision: i64,
    /// By the last part of their keys.
    runs: BTreeMap<String, Stored<Arc<JobRunRecord>>>,
    /// Keys of the runs that are active on silent machines alone: they are in the way of no other run.
    silent: BTreeSet<String>,
}

impl JobPlan<'_> {
    /// The runs in the order of their numbers.
    fn in_order(&self) -> Vec<(&String, &Stored<Arc<JobRunRecord>>)> {
        let mut runs: Vec<_> = self.runs.iter().collect();
        runs.sort_by_key(|(_, run)| run.value.number);
        runs
    }

    /// The active runs that may be in the way of another one.
    fn active(&self) -> impl Iterator<Item = &JobRunRecord> {
        let runs = self.runs.iter();
        let active =
            runs.filter(move |(key, run)| run.value.is_active() && !self.silent.contains(*key));
        active.map(|(_, run)| &*run.value)
    }
}

/// Whether a run begins in this plan.
enum RunStart {
    /// It has begun, is over, or another run or its data is in its way.
    NotNow,
    /// No other workload holds it back.
    Free,
    /// What of other workloads it waits for.
    Waits(StartWait),
}

/// The next step of a run, and what is to be said of it in the workload's status.
struct PlannedStep {
    step: RunStep,
    start: RunStart,
    /// Instances that cannot leave their drained machines.
    blocked: Vec<Blocked>,
}

/// A new run, with its key.
struct NewRun {
    key: String,
    record: JobRunRecord,
    message: String,
}

impl WorkloadPlanner<'_, '_, '_> {
    /// Brings the runs of a Job one step further, and returns `outcome` with what that leaves to be
    /// said.
    pub(crate) fn plan_job<'o>(
        &mut self,
        parsed: &ParsedWorkload,
        all: &[LiveInstance<'_>],
        mut outcome: WorkloadOutcome<'o>,
    ) -> WorkloadOutcome<'o> {
        let Some(spec) = &parsed.job else {
            return outcome;
        };
        let data_moves = outcome.data_moves.is_some();
        self.flush_gathered();
        // Of the time before it became a Job.
        self.record.rollout = None;
        let uid = &self.entry.meta.value.uid;
        let stored = self.draft.snapshot.jobs.get(self.key);
        let mut job = job_plan(spec, stored, uid);
        let bound = self.follow_bound(parsed, &mut job, all);
        job.silent = self.silent_runs(&job);
        let in_order = job.in_order().into_iter();
        let in_order: Vec<_> = in_order
            .map(|(key, run)| (key.clone(), run.clone()))
            .collect();
        let mut is_first = all.is_empty();
        for (key, stored) in in_order {
            // Its machine decides about it.
            if stored.value.bound {
                continue;
            }
            let run = (key.as_str(), &*stored.value);
            let is_held = data_moves || outcome.start_wait.is_some();
            let planned = self.step_of(parsed, &job, run, (all, is_first), is_held);
            let PlannedStep {
                step,
                start,
                blocked,
            } = planned;
            outcome.blocked.extend(blocked);
            match start {
                RunStart::NotNow => {}
                RunStart::Free => outcome.start_wait = None,
                RunStart::Waits(wait) => outcome.start_wait = Some(wait),
            }
            self.write_step(&key, &stored, &step, all);
            if let Some(wake) = step.wake {
                self.draft.wake(wake);
            }
            if !data_moves && self.create_attempts(parsed, &key, &step, &mut outcome.blocked) {
                is_first = false;
            }
            let revision = stored.revision;
            let value = Arc::new(step.record);
            job.runs.insert(key, Stored { revision, value });
        }
        if outcome.start_wait.is_none() {
            self.record.start = None;
        }
        let next = match bound {
            BoundState::Free => {
                let before = job.state.clone();
                let next = self.begin_runs(parsed, &mut job);
                let is_held = data_moves || outcome.start_wait.is_some();
                if !is_held {
                    self.bind(parsed, &mut job, &before, all);
                    let blocked = &mut outcome.blocked;
                    self.bind_machines(parsed, &mut job, &before, (all, blocked));
                }
                next
            }
            BoundState::Shared => {
                let before = job.state.clone();
                if !data_moves {
                    let blocked = &mut outcome.blocked;
                    self.bind_machines(parsed, &mut job, &before, (all, blocked));
                }
                self.next_time(&job)
            }
            BoundState::Kept { .. } | BoundState::Lost => self.next_time(&job),
        };
        self.forget_runs(&job, all);
        self.delete_when_over(&job, all);
        let withdraws = bound == BoundState::Kept { withdraws: true };
        let keepers = bound::keepers(all, withdraws, self.draft.now);
        outcome.job = Some(self.summary_of(&job, (next, keepers), all, &outcome));
        outcome
    }

    /// The next step of one run. `is_held` says that it may not begin: the data of the Job's volumes is
    /// on its way, or a run before it waits for other workloads.
    fn step_of(
        &mut self,
        parsed: &ParsedWorkload,
        job: &JobPlan<'_>,
        (key, run): (&str, &JobRunRecord),
        (all, is_first): (&[LiveInstance<'_>], bool),
        is_held: bool,
    ) -> PlannedStep {
        let now = self.draft.now;
        let spec = &parsed.workload.spec;
        let moves = spec.on_node_loss == Some(OnNodeLoss::Move);
        // One that its own machine has stopped for certain is in nobody's way.
        let own = all
            .iter()
            .filter(|live| run_key(live) == Some(key) && (live.is_wanted() || !live.fenced));
        let mut blocked = Vec::new();
        let live: Vec<LiveAttempt> = own
            .map(|live| {
                if live.leaves && !live.away && !live.forced_out && live.is_wanted() {
                    let obstacle = LeaveObstacle::RunsToItsEnd;
                    blocked.push(Blocked::cannot_leave(live, obstacle));
                }
                LiveAttempt {
                    instance: live.id.to_owned(),
                    node: live.node.to_owned(),
                    index: index_in(run, live),
                    state: attempt_state(live, now, moves),
                }
            })
            .collect();
        let alone = runs_alone(spec);
        let overlaps = job.spec.concurrency_policy == ConcurrencyPolicy::Allow && !alone;
        let may_overlap = overlaps
            || match run.machines {
                // On a machine with an instance of another run it waits for that one alone.
                Some(_) => !earlier_is_active(job, run),
                None => !is_in_the_way(job, (key, run), all, now),
            };
        // The machines that answer give their schedules back first.
        let is_free = may_overlap && !(run.lacks_machines() && has_present_keeper(all));
        let superseded = job.runs.values().any(|other| {
            let other = &other.value;
            other.is_active()
                && !other.bound
                && other.number > run.number
                && supersedes(job.spec, run, other)
        });
        let may_begin = is_free && !is_held;
        let begins = may_begin && run.is_active() && run.started.is_none();
        let start = if begins && !superseded && run.cancelled.is_none() {
            let wait = self.run_wait(parsed, key);
            wait.map_or(RunStart::Free, RunStart::Waits)
        } else {
            RunStart::NotNow
        };
        let mut may_begin = may_begin && !matches!(start, RunStart::Waits(_));
        let begun = match start {
            RunStart::Free if run.lacks_machines() => self.on_machines(parsed, job, run),
            RunStart::Free | RunStart::NotNow | RunStart::Waits(_) => Ok(run.clone()),
        };
        let run = begun.unwrap_or_else(|cause| {
            blocked.push(Blocked::NotPlaced(cause));
            may_begin = false;
            run.clone()
        });
        let machines = self.machine_states(job, (key, &run), all, (spec, overlaps));
        let surroundings = RunSurroundings {
            now,
            may_begin,
            alone,
            any_instance: !is_first,
            machines: &machines,
        };
        let mut step = attempts::step(&run, &live, surroundings);
        if superseded && step.record.is_active() {
            let mut over = step.record.clone();
            // It may have been about to begin.
            over.started = run.started;
            over.phase = RunPhase::Cancelled;
            over.reason = Reason::RunReplaced.into();
            over.message = "another run has taken its place".to_owned();
            over.finished = Some(now);
            step = attempts::step(&over, &live, surroundings);
        }
        if step.record.is_active() {
            let obstacle = per_node::obstacle(&step.record, &machines);
            blocked.extend(obstacle.map(|why| Blocked::NotPlaced(NotPlaced::MachineNotReady(why))));
        }
        PlannedStep {
            step,
            start,
            blocked,
        }
    }

    /// A run that begins now with one instance on each machine: with its machines, or failed because no
    /// machine matches. An error says why it cannot begin yet. Machines that keep their schedules are left
    /// out, and so are those that have decided its time by themselves.
    fn on_machines(
        &self,
        parsed: &ParsedWorkload,
        job: &JobPlan<'_>,
        run: &JobRunRecord,
    ) -> Result<JobRunRecord, NotPlaced> {
        let (snapshot, statuses) = (self.draft.snapshot, self.around.statuses);
        let mut run = run.clone();
        match per_node::machines_at_start(snapshot, statuses, &parsed.workload.spec) {
            RunMachines::Known {
                machines,
                mut left_out,
            } => {
                let keeps = |one: &RunMachine| job.state.keepers.contains_key(&one.node);
                let (kept, mut machines): (Vec<_>, Vec<_>) = machines.into_iter().partition(keeps);
                if machines.is_empty() {
                    let why = "each machine that takes work keeps the schedule by itself";
                    return Err(NotPlaced::MachineNotReady(why.to_owned()));
                }
                left_out.extend(kept.into_iter().map(|one| one.node));
                if let Some(time) = run.scheduled {
                    machines.retain(|one| !has_decided(job, &one.node, time));
                }
                if machines.is_empty() {
                    run.phase = RunPhase::Cancelled;
                    run.reason = Reason::RunCancelled.into();
                    run.message = "each machine has decided its time by itself".to_owned();
                    run.finished = Some(self.draft.now);
                    return Ok(run);
                }
                run.completions = u32::try_from(machines.len()).unwrap_or(u32::MAX);
                run.machines = Some(machines);
                run.left_out = left_out;
            }
            RunMachines::NoneYet(why) => return Err(NotPlaced::MachineNotReady(why)),
            RunMachines::NoMatch => {
                run.phase = RunPhase::Failed;
                run.reason = Reason::NoMatchingMachine.into();
                run.message = "no machine matches nodeSelector and tolerations".to_owned();
                run.finished = Some(self.draft.now);
            }
        }
        Ok(run)
    }

    /// The machines of a run as they are now, by index. `overlaps` says that instances of several runs
    /// may be on one machine.
    fn machine_states(
        &self,
        job: &JobPlan<'_>,
        (key, run): (&str, &JobRunRecord),
        all: &[LiveInstance<'_>],
        (spec, overlaps): (&WorkloadSpec, bool),
    ) -> Vec<MachineState> {
        let machines = run.machines.iter().flatten();
        let states = machines.map(|machine| {
            let node = &machine.node;
            let Some(entry) = self.draft.snapshot.nodes.get(node) else {
                return MachineState::Removed;
            };
            let phase = self.around.statuses.get(node).map(|status| status.phase);
            match phase {
                Some(NodePhase::Ready | NodePhase::Draining | NodePhase::Drained) => {}
                Some(NodePhase::Joining | NodePhase::NotReady | NodePhase::Detached) | None => {
                    return MachineState::Away;
                }
            }
            if !is_tolerated(spec, &entry.registration.value.taints) {
                return MachineState::Tainted;
            }
            let here = all.iter().filter(|live| live.node == node);
            let mut others = here.filter(|live| run_key(live) != Some(key));
            match !overlaps && others.any(|live| may_run(job, live, self.draft.now)) {
                true => MachineState::Occupied,
                false => MachineState::Open,
            }
        });
        states.collect()
    }

    /// Places the next instances of a run, and returns whether there was any place.
    fn create_attempts(
        &mut self,
        parsed: &ParsedWorkload,
        key: &str,
        step: &RunStep,
        blocked: &mut Vec<Blocked>,
    ) -> bool {
        let record = &step.record;
        let before = self.slots.clone();
        if let Some(machines) = &record.machines {
            let snapshot = self.draft.snapshot;
            let nodes = machines.iter();
            let nodes = nodes.filter_map(|one| snapshot.nodes.get_key_value(&one.node));
            let slots =
                nodes.filter_map(|(name, node)| Some((slot_of_machine(snapshot, node)?, &**name)));
            self.slots = SlotSet::Machines(slots.collect());
        }
        let mut places = step.places;
        for index in &step.create {
            if places == 0 {
                break;
            }
            match self.create_attempt(parsed, *index, key, record) {
                Ok(_) => places -= 1,
                Err(cause) => {
                    blocked.push(Blocked::NotPlaced(cause));
                    // Another machine may have room for its own instance.
                    if record.machines.is_none() {
                        break;
                    }
                }
            }
        }
        self.slots = before;
        self.flush_gathered();
        places < step.places
    }

    /// Writes the record of a run where it changed, together with the stops of its instances.
    fn write_step(
        &mut self,
        key: &str,
        stored: &Stored<Arc<JobRunRecord>>,
        step: &RunStep,
        all: &[LiveInstance<'_>],
    ) {
        let mut stopped = 0;
        for live in all.iter().filter(|live| live.is_wanted()) {
            let stop = step.stop.iter().find(|(id, _)| id == live.id);
            if let Some((_, why)) = stop.filter(|_| !self.draft.stops(live.id)) {
                if stopped == MOST_AT_ONCE || Draft::is_full(&self.group) {
                    break;
                }
                stopped += 1;
                self.stop_attempt(live, why);
            }
        }
        if *stored.value == step.record {
            return self.flush_gathered();
        }
        let record = &step.record;
        if stored.value.is_active() && !record.is_active() {
            let (kind, reason) = match record.phase {
                RunPhase::Succeeded => (EventKind::Normal, EventReason::RunSucceeded),
                RunPhase::Failed => (EventKind::Warning, EventReason::RunFailed),
                RunPhase::Active | RunPhase::Cancelled => {
                    (EventKind::Normal, EventReason::RunCancelled)
                }
            };
            let message = format!("run {}: {}", record.number, record.message);
            self.workload_event(kind, reason, message);
        }
        let run_key = keys::job_run(&self.key.namespace, &self.key.name, key);
        self.group.put(run_key.clone(), record);
        let unchanged = Compare::ModRevision(run_key, stored.revision);
        self.commit_gathered(format!("run {} of {}", record.number, self.key), unchanged);
    }

    /// The next time of a schedule that a machine keeps.
    fn next_time(&self, job: &JobPlan<'_>) -> Option<Timestamp> {
        let expression = job.spec.schedule.as_ref()?;
        let schedule = Schedule::parse(expression, &job.spec.time_zone).ok()?;
        schedule.after(self.draft.now)
    }

    /// Makes the runs that are due, and returns when the next scheduled time is.
    fn begin_runs(&mut self, parsed: &ParsedWorkload, job: &mut JobPlan<'_>) -> Option<Timestamp> {
        let suspended = job.spec.suspend || job.state.suspended.is_some();
        let before = job.state.clone();
        let now = self.draft.now;
        let meta = &self.entry.meta.value;
        let mut new: Vec<NewRun> = Vec::new();
        let mut next = None;
        match &job.spec.schedule {
            None => {
                if !suspended && job.state.generation < meta.generation {
                    job.state.generation = meta.generation;
                    let record = new_run(job.spec, meta, RunCause::Apply, now);
                    new.push(NewRun {
                        key: generation_run(meta.generation),
                        message: format!("generation {} was applied", meta.generation),
                        record,
                    });
                }
            }
            Some(expression) => {
                let unreadable = Reason::ScheduleUnreadable.word();
                job.state.skipped.take_if(|one| one.reason == unreadable);
                match Schedule::parse(expression, &job.spec.time_zone) {
                    Ok(schedule) => {
                        next = self.scheduled(parsed, job, (&schedule, suspended), &mut new);
                    }
                    Err(error) => {
                        // Files of another version: the status says why nothing runs.
                        job.state.skipped = Some(SkippedRun {
                            scheduled: meta.updated,
                            reason: Reason::ScheduleUnreadable.into(),
                            message: error.to_string(),
                        });
                    }
                }
            }
        }
        if job.state == before && new.is_empty() {
            return next;
        }
        for run in &mut new {
            job.state.last_number += 1;
            run.record.number = job.state.last_number;
        }
        let mut group = OperationGroup::default();
        let WorkloadKey { namespace, name } = self.key;
        let state_key = keys::job_state(namespace, name);
        let mut conditions = vec![Compare::ModRevision(state_key.clone(), job.state_revision)];
        if let Some(skipped) = job
            .state
            .skipped
            .clone()
            .filter(|_| job.state.skips > before.skips)
        {
            let object = self.object(ObjectKind::Workload, name.clone());
            let reason = match skipped.reason == Reason::RunOverlapped {
                true => EventReason::RunSkipped,
                false => EventReason::RunMissed,
            };
            let message = format!("{}: {}", skipped.scheduled, skipped.message);
            self.draft
                .event(&mut group, EventKind::Warning, reason, object, message);
        }
        for run in &new {
            let run_key = keys::job_run(namespace, name, &run.key);
            conditions.push(Compare::ModRevision(run_key.clone(), 0));
            group.put(run_key, &run.record);
            let object = self.object(ObjectKind::Workload, name.clone());
            let message = format!("run {}: {}", run.record.number, run.message);
            self.draft.event(
                &mut group,
                EventKind::Normal,
                EventReason::RunCreated,
                object,
                message,
            );
        }
        group.put(state_key, &job.state);
        self.draft
            .commit(group, format!("runs of {}", self.key), conditions);
        for run in new {
            let value = Arc::new(run.record);
            job.runs.insert(run.key, Stored { revision: 0, value });
        }
        next
    }

    /// Decides on the scheduled times until now; returns the next one that gets a run.
    fn scheduled(
        &mut self,
        parsed: &ParsedWorkload,
        job: &mut JobPlan<'_>,
        (schedule, suspended): (&Schedule, bool),
        new: &mut Vec<NewRun>,
    ) -> Option<Timestamp> {
        let now = self.draft.now;
        let meta = &self.entry.meta.value;
        if suspended {
            // The schedule begins anew when the Job is resumed. Until then no time changes the state,
            // which would be written at each of them.
            job.state.schedule.clear();
            return None;
        }
        if !job.state.is_about(job.spec) {
            job.state.begin_schedule(job.spec, now);
        }
        let handled = due::without_wrong_clock(job.state.handled.unwrap_or(now), now);
        // Each plan would begin at its own time otherwise, and no time would ever be due.
        job.state.handled = Some(handled);
        let rules = DueRules {
            schedule,
            catch_up: job.spec.catch_up,
            starting_deadline: job.spec.starting_deadline_seconds,
            jitter_seconds: job.spec.jitter_seconds,
            uid: &meta.uid,
        };
        let due = rules.due(handled, now);
        if let Some((_, start)) = due.next {
            let left = Duration::try_from(start.duration_since(now)).unwrap_or_default();
            self.draft.wake(left.min(LONGEST_SLEEP));
        }
        let next = due.next.map(|(time, _)| time);
        self.take_due(parsed, job, due, new);
        next
    }

    /// Turns due times into runs, as far as the Job's concurrency policy allows.
    fn take_due(
        &self,
        parsed: &ParsedWorkload,
        job: &mut JobPlan<'_>,
        due: DueTimes,
        new: &mut Vec<NewRun>,
    ) {
        let now = self.draft.now;
        let meta = &self.entry.meta.value;
        let policy = job.spec.concurrency_policy;
        let waits = job.spec.catch_up == CatchUp::All && policy != ConcurrencyPolicy::Replace;
        let active: Vec<u64> = job.active().map(|run| run.number).collect();
        if let Some(missed) = due.missed {
            job.state.skips = job.state.skips.saturating_add(due.misses);
            job.state.skipped = Some(SkippedRun {
                scheduled: missed,
                reason: Reason::RunMissed.into(),
                message: missed_in_words(job.spec, due.misses),
            });
            // Those that are made up for are later than those that are not, or on time.
            job.state.handled = job.state.handled.max(Some(missed));
        }
        for time in due.runs {
            if new.len() == MOST_AT_ONCE {
                // The next plan goes on.
                break;
            }
            let key = scheduled_run(time);
            if job.runs.contains_key(&key) || self.is_decided_by_machines(parsed, job, time) {
                job.state.handled = job.state.handled.max(Some(time));
                continue;
            }
            let count = active.len() + new.len();
            let overlap = match policy {
                ConcurrencyPolicy::Forbid if count > 0 => {
                    let by = active.first().copied();
                    let by = by.unwrap_or(job.state.last_number + 1);
                    Some(format!(
                        "run {by} was active, and concurrencyPolicy is Forbid"
                    ))
                }
                ConcurrencyPolicy::Allow if count >= MOST_OVERLAPPING_RUNS => Some(format!(
                    "{count} runs were active, which is the most under concurrencyPolicy Allow"
                )),
                ConcurrencyPolicy::Forbid
                | ConcurrencyPolicy::Allow
                | ConcurrencyPolicy::Replace => None,
            };
            if let Some(message) = overlap {
                if waits {
                    // Decided when a run before it is over.
                    break;
                }
                job.state.skips = job.state.skips.saturating_add(1);
                job.state.skipped = Some(SkippedRun {
                    scheduled: time,
                    reason: Reason::RunOverlapped.into(),
                    message,
                });
                job.state.handled = job.state.handled.max(Some(time));
                continue;
            }
            let mut record = new_run(job.spec, meta, RunCause::Schedule, now);
            record.scheduled = Some(time);
            new.push(NewRun {
                key,
                record,
                message: format!("its time {time} has come"),
            });
            job.state.handled = job.state.handled.max(Some(time));
        }
    }

    /// Deletes the records of runs beyond the history that is kept.
    fn forget_runs(&mut self, job: &JobPlan<'_>, all: &[LiveInstance<'_>]) {
        let mut kept = [job.spec.successful_history, job.spec.failed_history];
        let mut kept_ahead = MOST_KEPT_AHEAD;
        let mut kept_fresh = MOST_KEPT_FRESH;
        let now = self.draft.now;
        let runs = job.in_order();
        let last = runs.last().map(|(key, _)| (*key).clone());
        let mut of_machines = Vec::new();
        for (key, run) in runs.into_iter().rev() {
            // Its time would get another run.
            if kept_ahead > 0 && is_of_time_to_come(&run.value, job.spec.jitter_seconds, now) {
                kept_ahead -= 1;
                continue;
            }
            if kept_fresh > 0 && is_fresh(&run.value, job.spec.jitter_seconds, now) {
                kept_fresh -= 1;
                continue;
            }
            let left = match run.value.phase {
                RunPhase::Active => continue,
                RunPhase::Succeeded => &mut kept[0],
                RunPhase::Failed | RunPhase::Cancelled => &mut kept[1],
            };
            if *left > 0 {
                *left -= 1;
                continue;
            }
            // Without schedule its last run says what became of it.
            let is_last = job.spec.schedule.is_none() && last.as_ref() == Some(key);
            let has_instances = all.iter().any(|live| run_key(live) == Some(key.as_str()));
            // One that this plan changes is deleted by the next one.
            let stored = self.draft.snapshot.jobs.get(self.key);
            let stored = stored.and_then(|entry| entry.runs.get(key));
            let is_settled = stored.is_some_and(|stored| stored.value == run.value);
            if is_last || has_instances || !is_settled {
                continue;
            }
            if run.value.is_by_machines() {
                of_machines.push(RunToForget {
                    key: key.clone(),
                    revision: run.revision,
                    scheduled: run.value.scheduled,
                });
                continue;
            }
            let run_key = keys::job_run(&self.key.namespace, &self.key.name, key);
            let mut group = OperationGroup::default();
            group.delete(run_key.clone());
            let unchanged = Compare::ModRevision(run_key, run.revision);
            let number = run.value.number;
            let reason = format!("run {number} of {} is beyond the history", self.key);
            self.draft.commit(group, reason, vec![unchanged]);
        }
        self.forget_runs_of_machines(job, &of_machines);
    }

    /// Asks for the deletion of a Job without schedule some time after its last run.
    fn delete_when_over(&mut self, job: &JobPlan<'_>, all: &[LiveInstance<'_>]) {
        let Some(seconds) = job.spec.ttl_seconds_after_finished else {
            return;
        };
        let meta = &self.entry.meta;
        if job.spec.schedule.is_some()
            || !all.is_empty()
            || job.state.generation != meta.value.generation
            || job.runs.values().any(|run| run.value.is_active())
        {
            return;
        }
        let ends = job.runs.values().filter_map(|run| run.value.finished);
        let Some(end) = ends.max() else { return };
        let ttl = SignedDuration::from_secs(i64::from(seconds));
        let left = ttl.saturating_sub(self.draft.now.duration_since(end));
        if left > SignedDuration::ZERO {
            let left = Duration::try_from(left).unwrap_or_default();
            return self.draft.wake(left);
        }
        let deleting = WorkloadMeta {
            deleting: true,
            ..meta.value.clone()
        };
        let meta_key = keys::workload_meta(&self.key.namespace, &self.key.name);
        let message = format!("its last run ended {seconds} s ago: ttlSecondsAfterFinished");
        self.workload_event(EventKind::Normal, EventReason::Deleting, message);
        self.group.put(meta_key.clone(), &deleting);
        let unchanged = Compare::ModRevision(meta_key, meta.revision);
        self.commit_gathered(format!("{} is over", self.key), unchanged);
    }

    fn summary_of(
        &self,
        job: &JobPlan<'_>,
        (next, keepers): (Option<Timestamp>, Option<ScheduleKeepers>),
        all: &[LiveInstance<'_>],
        outcome: &WorkloadOutcome<'_>,
    ) -> JobSummary {
        let runs = job.in_order();
        let runs: Vec<&JobRunRecord> = runs.iter().map(|(_, run)| &*run.value).collect();
        let is_active = runs.iter().any(|run| run.is_active());
        let unreadable = job.state.skipped.as_ref();
        let unreadable = unreadable.filter(|skipped| skipped.reason == Reason::ScheduleUnreadable);
        let trouble = if let Some(moving) = &outcome.data_moves {
            Some((moving.reason(), moving.far.clone()))
        } else if let Some(StartWait { reason, message }) = &outcome.start_wait {
            Some((*reason, message.clone()))
        } else if let Some(not_placed) = outcome
            .not_placed()
            .filter(|_| is_active || keepers.is_some())
        {
            Some(not_placed)
        } else if let Some(waits) = keepers.as_ref().and_then(|all| all.wait(is_active)) {
            Some((Reason::NodeNotReady, waits))
        } else if let Some(unreadable) = unreadable {
            Some((Reason::ScheduleUnreadable, unreadable.message.clone()))
        } else {
            // A program that failed is no trouble of the machine's: the run's record has it.
            let going = all.iter().filter(|live| !live.has_ended());
            instance_trouble(going).and_then(InstanceTrouble::known)
        };
        summary::summary(
            job.spec,
            &job.state,
            &runs,
            (next, keepers.as_ref()),
            trouble,
        )
    }
}

fn job_plan<'p>(spec: &'p JobSpec, stored: Option<&JobEntry>, uid: &str) -> JobPlan<'p> {
    let state = stored.and_then(|entry| entry.state.as_ref());
    let state_revision = state.map_or(0, |state| state.revision);
    // What is left of an earlier workload of this name counts for nothing.
    let own = state.filter(|state| state.value.workload_uid == uid);
    let state = own.map_or_else(
        || JobStateRecord {
            schema: 1,
            workload_uid: uid.to_owned(),
            ..JobStateRecord::default()
        },
        |state| state.value.clone(),
    );
    let runs = stored.into_iter().flat_map(|entry| &entry.runs);
    let runs = runs.filter(|(_, run)| run.value.workload_uid == uid);
    JobPlan {
        spec,
        state,
        state_revision,
        runs: runs.map(|(key, run)| (key.clone(), run.clone())).collect(),
        silent: BTreeSet::new(),
    }
}

/// Whether it is of a time to come: the clock of the machine that began it was ahead. With a delay of up to
/// `jitter_seconds`, the leader decides a time so much later.
fn is_of_time_to_come(run: &JobRunRecord, jitter_seconds: u32, now: Timestamp) -> bool {
    let delay = SignedDuration::from_secs(i64::from(jitter_seconds));
    let is_to_come = |time: Timestamp| {
        let age = now.duration_since(time);
        age < delay && age >= -LONGEST_AHEAD
    };
    run.bound && run.scheduled.is_some_and(is_to_come)
}

/// Whether a later run ends an earlier one.
fn supersedes(spec: &JobSpec, earlier: &JobRunRecord, later: &JobRunRecord) -> bool {
    match spec.concurrency_policy {
        ConcurrencyPolicy::Replace => true,
        ConcurrencyPolicy::Forbid => spec.schedule.is_none(),
        // Changed files end a run that has none of a schedule; a run by hand does not.
        ConcurrencyPolicy::Allow => {
            spec.schedule.is_none() && later.generation > earlier.generation
        }
    }
}

/// The index of an instance in its run: its slot, or the place of its machine.
fn index_in(run: &JobRunRecord, live: &LiveInstance<'_>) -> u32 {
    let Some(machines) = &run.machines else {
        return live.assignment.slot;
    };
    let place = machines.iter().position(|one| one.node == live.node);
    let place = place.and_then(|place| u32::try_from(place).ok());
    place.unwrap_or(u32::MAX)
}

/// The last part of the key of an instance's run.
fn run_key<'l>(live: &LiveInstance<'l>) -> Option<&'l str> {
    live.assignment.run.as_ref().map(|run| run.key.as_str())
}

fn earlier_is_active(job: &JobPlan<'_>, run: &JobRunRecord) -> bool {
    let mut active = job.active();
    active.any(|other| other.number < run.number)
}

/// Whether an earlier run is active, or an instance of another run may still run.
fn is_in_the_way(
    job: &JobPlan<'_>,
    (key, run): (&str, &JobRunRecord),
    all: &[LiveInstance<'_>],
    now: Timestamp,
) -> bool {
    let mut others = all.iter().filter(|live| run_key(live) != Some(key));
    earlier_is_active(job, run) || others.any(|live| may_run(job, live, now))
}

/// Whether an instance may still run: on a machine that does not answer until its run's deadline, or
/// until the machine has stopped it by itself.
fn may_run(job: &JobPlan<'_>, live: &LiveInstance<'_>, now: Timestamp) -> bool {
    let of = run_key(live).and_then(|key| job.runs.get(key));
    let deadline = of.and_then(|run| run.value.deadline());
    let is_over = deadline.is_some_and(|deadline| deadline <= now)
        && ended_by_systemd(live).is_some_and(|end| end <= now);
    !(live.away && (is_over || live.fenced))
}

/// When systemd has ended an instance on a machine that does not answer. Its time counts from its
/// start there, not from its placement, and anew for each start. A machine may have started what is
/// not known to run until [`JOB_START_CONTACT`] after it was last heard.
fn ended_by_systemd(live: &LiveInstance<'_>) -> Option<Timestamp> {
    let assignment = live.assignment;
    let left = i64::from(assignment.run.as_ref()?.seconds_left?);
    let stop = i64::from(assignment.container.termination_grace_seconds) + STOP_MARGIN_SECONDS;
    let seen = live.record.and_then(|record| record.since);
    let seen = seen.or(assignment.created)?;
    let policy = &assignment.restart_policy;
    let starts = match policy.condition {
        RestartCondition::MaxCount => i64::from(policy.max_restarts).saturating_add(1),
        RestartCondition::Never | RestartCondition::Always => 1,
    };
    let runs = live
        .record
        .is_some_and(|record| record.phase == InstancePhase::Running);
    if runs && policy.condition == RestartCondition::Never {
        // It is not started again.
        let after = SignedDuration::from_secs(left.saturating_add(stop));
        return seen.checked_add(after).ok();
    }
    let LastContact { at, loss_timeout } = live.heard?;
    let contact = SignedDuration::try_from(JOB_START_CONTACT).ok()?;
    let since = at.checked_add(contact).ok()?.max(seen);
    let held = i64::try_from(loss_timeout.as_secs()).ok()?;
    let start = held.saturating_add(START_MARGIN_SECONDS.into());
    let each = start.saturating_add(left).saturating_add(stop);
    let after = SignedDuration::from_secs(each.saturating_mul(starts));
    since.checked_add(after).ok()
}

fn attempt_state(live: &LiveInstance<'_>, now: Timestamp, moves: bool) -> AttemptState {
    if !live.is_wanted() {
        return AttemptState::Stopping;
    }
    let failed = |reason: Reason, message: String| {
        AttemptState::Ended(AttemptEnd {
            at: now,
            succeeded: false,
            exit_code: None,
            reason: reason.into(),
            message,
        })
    };
    if let Some(record) = live.record.filter(|_| live.has_ended()) {
        return AttemptState::Ended(AttemptEnd {
            at: now,
            succeeded: record.phase == InstancePhase::Succeeded,
            exit_code: record.exit_code,
            reason: match record.phase {
                InstancePhase::Succeeded => String::new(),
                _ => record.reason.clone(),
            },
            message: match record.phase {
                InstancePhase::Succeeded => String::new(),
                // Last lines of its log may be long.
                _ => record.message.chars().take(LONGEST_MESSAGE).collect(),
            },
        });
    }
    let node = live.node;
    if live.forced_out {
        return failed(
            Reason::Interrupted,
            format!("its machine {node} is drained by force"),
        );
    }
    if live.fenced && moves {
        return failed(
            Reason::Interrupted,
            format!("its machine {node} does not answer, and has stopped it"),
        );
    }
    AttemptState::Going
}

fn missed_in_words(spec: &JobSpec, misses: u64) -> String {
    let times = match misses {
        1 => "one scheduled time".to_owned(),
        count => format!("{count} scheduled times"),
    };
    let rule = match spec.starting_deadline_seconds {
        Some(seconds) => format!("startingDeadlineSeconds is {seconds}, and "),
        None => String::new(),
    };
    format!(
        "no leader planned at {times}; {rule}catchUp is {:?}",
        spec.catch_up
    )
}
