//! Schedules that a machine keeps by itself: which Jobs have one, what the leader takes of the machine's
//! reports, and how it takes the schedule back.
//!
//! Each scheduled time is decided by the holder of `handled`: the machine as long as the assignment
//! exists, else the leader. The leader takes runs and `handled` of a report in one transaction, which
//! compares the Job's state, so that no report counts twice.

pub(super) mod machines;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{JobPlan, LONGEST_AHEAD, Schedule, is_of_time_to_come, per_node, scheduled_run};
use crate::{
    rollout::{in_place, slot::LiveInstance},
    service::WorkloadPlanner,
    volumes,
};
use kat_types::{
    api::{BoundReport, BoundRun, EventKind, InstancePhase, MOST_BOUND_RUNS, NodePhase},
    assignment::{Assignment, BOUND_SCHEMA, BoundSchedule, DesiredRun},
    backoff::RUN_PAUSES,
    machine::bound_runs::MOST_BOUND_RETRIES,
    reason::{EventReason, Reason},
    resource::{
        CatchUp, Completions, ConcurrencyPolicy, JobSpec, OnNodeLoss, OnPartition,
        RestartCondition, WorkloadSpec,
    },
    store::{
        jobs::{
            AttemptEnd, JobRunRecord, JobStateRecord, RunAttempt, RunCause, RunPhase, SkippedRun,
        },
        keys,
        revisions::Stored,
        snapshot::ParsedWorkload,
        transaction::Compare,
    },
};

/// Longest `jitterSeconds`: a timer has a line for each time that may still begin.
const MOST_JITTER: u32 = 600;
/// Shortest `startingDeadlineSeconds`: systemd may start a unit some seconds after its time.
const SHORTEST_DEADLINE: u32 = 10;
/// What is said of a run of which its machine has nothing.
const LOST: &str = "its machine has nothing of its end";
/// A machine whose clock is further ahead than this has decided times that are still to come.
const CLOCK_AHEAD: SignedDuration = SignedDuration::from_secs(60);
/// Most runs of a machine that are open at once. It begins one at a time; one that it knows nothing of any
/// more is open until its time is decided.
const MOST_OPEN_RUNS: usize = 4;

/// The machine that keeps the schedule of a Job, as its status has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScheduleKeeper {
    pub(crate) node: String,
    /// It does not answer.
    pub(crate) away: bool,
    /// The leader takes the schedule back.
    pub(crate) closing: bool,
    /// The leader can't use its report of the runs.
    pub(crate) unusable: bool,
}

impl ScheduleKeeper {
    /// What is waited for, if the schedule can't be taken back now.
    pub(super) fn wait(&self) -> Option<String> {
        let node = &self.node;
        match (self.closing, self.away, self.unusable) {
            (false, ..) | (true, false, false) => None,
            (true, true, _) => Some(format!(
                "machine {node} keeps the schedule and does not answer: what was asked for waits until it does"
            )),
            (true, false, true) => Some(format!(
                "machine {node} keeps the schedule, and its report of the runs contradicts the schedule: a forced drain takes the schedule back without them"
            )),
        }
    }

    /// Such as `on n2, by its own timer`.
    pub(super) fn in_words(&self) -> String {
        let node = &self.node;
        match (self.closing, self.away) {
            (true, _) => format!("on {node}, which gives the schedule back"),
            (false, false) => format!("on {node}, by its own timer"),
            (false, true) => {
                format!("on {node}, by its own timer; the machine does not answer now")
            }
        }
    }
}

/// The machines that keep the schedule of a Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScheduleKeepers {
    /// One keeps it as a whole.
    One(ScheduleKeeper),
    /// Each of them keeps it for itself alone; in the order of their names.
    Each(Vec<ScheduleKeeper>),
}

impl ScheduleKeepers {
    /// The machine that keeps the whole schedule.
    pub(super) fn one(&self) -> Option<&str> {
        match self {
            Self::One(one) => Some(&one.node),
            Self::Each(_) => None,
        }
    }

    /// The machines that keep it for themselves.
    pub(super) fn each(&self) -> Vec<String> {
        match self {
            Self::One(_) => Vec::new(),
            Self::Each(each) => each.iter().map(|one| one.node.clone()).collect(),
        }
    }

    /// What is waited for, if the schedule can't be taken back now. Nothing else waits for one of several
    /// machines: `is_active` says that a run is of more interest.
    pub(super) fn wait(&self, is_active: bool) -> Option<String> {
        let each = match self {
            Self::One(one) => return one.wait(),
            Self::Each(_) if is_active => return None,
            Self::Each(each) => each,
        };
        let closing = each.iter().filter(|one| one.closing);
        let (away, present): (Vec<_>, Vec<_>) = closing.partition(|one| one.away);
        if let Some(unusable) = present.iter().find(|one| one.unusable) {
            return unusable.wait();
        }
        let names = per_node::named(away.iter().map(|one| one.node.as_str()));
        match away.len() {
            0 => None,
            1 => Some(format!(
                "machine {names} keeps its schedule and does not answer: what was asked for concerns it when it does"
            )),
            _ => Some(format!(
                "machines {names} keep their schedules and do not answer: what was asked for concerns them when they do"
            )),
        }
    }

    /// Such as `on n1, n2 and n3, by their own timers; n3 does not answer now`.
    pub(super) fn in_words(&self) -> String {
        let each = match self {
            Self::One(one) => return one.in_words(),
            Self::Each(each) => each,
        };
        let all = named(each, |_| true).unwrap_or_default();
        let mut text = match each.len() {
            1 => format!("on {all}, by its own timer"),
            _ => format!("on {all}, by their own timers"),
        };
        if let Some(away) = named(each, |one| one.away) {
            text.push_str(&format!("; without an answer now: {away}"));
        }
        if let Some(closing) = named(each, |one| one.closing && !one.away) {
            text.push_str(&format!("; the schedule is taken back from {closing}"));
        }
        text
    }
}

/// The names of the machines that are meant, if there are any.
fn named(each: &[ScheduleKeeper], is_meant: fn(&ScheduleKeeper) -> bool) -> Option<String> {
    let meant = each.iter().filter(|one| is_meant(one));
    let nodes: Vec<&str> = meant.map(|one| one.node.as_str()).collect();
    (!nodes.is_empty()).then(|| per_node::named(nodes.into_iter()))
}

/// How the leader takes a schedule back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Withdrawal {
    None,
    /// A run that is active ends by itself.
    Close,
    /// A run that is active is stopped.
    Stop,
}

/// Whether the machine with the Job's data may keep its schedule: nobody else may run it, and nothing of
/// a run needs a decision of the leader.
pub(super) fn may_be_bound(spec: &JobSpec, workload: &WorkloadSpec) -> bool {
    spec.completions == Completions::Count(1) && in_place(workload) && common_rules(spec, workload)
}

/// Whether a machine may begin the runs of a Job by itself, as far as its other fields say.
fn common_rules(spec: &JobSpec, workload: &WorkloadSpec) -> bool {
    let mut volumes = workload.volumes.iter();
    let deadline = spec.starting_deadline_seconds;
    let is_long = deadline.is_none_or(|seconds| seconds >= SHORTEST_DEADLINE);
    spec.schedule.is_some()
        && !spec.suspend
        && spec.concurrency_policy == ConcurrencyPolicy::Forbid
        && may_retry(spec.backoff_limit)
        && spec.jitter_seconds <= MOST_JITTER
        && is_long
        && workload.restart_policy.condition == RestartCondition::Never
        && workload.on_partition == OnPartition::Keep
        && workload.on_node_loss != Some(OnNodeLoss::Move)
        && workload.start_after.is_empty()
        && workload.init_containers.is_empty()
        && workload.sidecars.is_empty()
        && !workload.container.host_network
        && workload.gpu().is_none()
        && !volumes.any(|volume| volume.host_mount.is_some() || volume.files.is_some())
}

/// Whether a machine tries a run so often again.
fn may_retry(backoff_limit: u32) -> bool {
    usize::try_from(backoff_limit).is_ok_and(|limit| limit <= MOST_BOUND_RETRIES)
}

/// Whether a report is about the assignment as it is. An earlier report is followed by a later one.
fn is_about(report: &BoundReport, bound: &BoundSchedule) -> bool {
    report.from == bound.handled
}

/// Whether a report about the assignment as it is can be taken. Times to come are not, unless the schedule
/// is taken back: a machine whose clock is ahead could never give it back otherwise.
fn is_usable(
    report: &BoundReport,
    live: &LiveInstance<'_>,
    bound: &BoundSchedule,
    now: Timestamp,
) -> bool {
    let latest = match is_withdrawn(live, bound) {
        true => Timestamp::MAX,
        false => latest_decided(now),
    };
    let is_later = |run: &BoundRun| run.scheduled > report.from && run.scheduled <= latest;
    report.handled >= report.from
        && report.handled <= latest
        && report.runs.len() <= MOST_BOUND_RUNS
        && report.runs.iter().all(is_later)
        && report
            .runs
            .iter()
            .all(|run| run.failed.len() <= MOST_BOUND_RETRIES)
}

/// The latest time that a machine may have decided.
fn latest_decided(now: Timestamp) -> Timestamp {
    now.checked_add(CLOCK_AHEAD).unwrap_or(now)
}

/// Until when the leader takes the times of a report as decided. A machine whose clock is a little ahead has
/// begun times to come, which the next instance would begin again. Later ones are not decided, whatever its
/// clock is: those with a record have had their run.
fn decided_until(report: &BoundReport, now: Timestamp) -> Timestamp {
    report.handled.min(latest_decided(now))
}

/// Whether the machine's own assignment says that it gives the schedule back.
fn is_withdrawn(live: &LiveInstance<'_>, bound: &BoundSchedule) -> bool {
    bound.closed || !live.is_wanted()
}

fn report_of<'l>(live: &'l LiveInstance<'_>) -> Option<&'l BoundReport> {
    live.record.and_then(|record| record.bound.as_ref())
}

/// Whether nothing follows a report, if its schedule is taken back.
fn is_last(report: &BoundReport) -> bool {
    report.idle && report.runs.iter().all(|run| run.end.is_some())
}

/// The runs of a report that get a record, in the order of their times. A machine can report any time:
/// one that its schedule does not have gets none, nor one more than a day to come. A run that is over is
/// taken with the decision about its time, after which no report has it again. The report that gives the
/// schedule back (`takes_all`) is the last one: runs that a clock that was ahead began decide nothing.
/// `has_record` says whether there is a record for a time.
fn runs_to_take<'r>(
    report: &'r BoundReport,
    bound: &BoundSchedule,
    takes_all: bool,
    has_record: impl Fn(Timestamp) -> bool,
    now: Timestamp,
) -> Vec<&'r BoundRun> {
    let latest = now.checked_add(LONGEST_AHEAD).unwrap_or(Timestamp::MAX);
    let is_meant = |run: &&BoundRun| {
        let is_settled = takes_all || run.end.is_none() || run.scheduled <= report.handled;
        is_settled && run.scheduled <= latest
    };
    let mut runs: Vec<&BoundRun> = report.runs.iter().filter(is_meant).collect();
    runs.sort_by_key(|run| run.scheduled);
    // No agent reports a time twice: each plan would write both, one over the other.
    runs.dedup_by_key(|run| run.scheduled);
    // A run that is active is reported for long, and in each plan a schedule would be read for it.
    if runs.iter().all(|run| has_record(run.scheduled)) {
        return runs;
    }
    // That of the assignment: the Job may have got another one meanwhile.
    match Schedule::parse(&bound.schedule, &bound.time_zone) {
        Ok(schedule) => schedule.with_times(runs, |run| Some(run.scheduled)),
        // Which times it has is not known: an earlier version could read it.
        Err(_) => runs,
    }
}

/// Whether as many runs of a machine are open as there may be. No agent reports more: such records would
/// never be deleted.
fn has_open_runs(job: &JobPlan<'_>, is_open: impl Fn(&JobRunRecord) -> bool) -> bool {
    let open = job.runs.values().filter(|run| is_open(&run.value));
    open.count() >= MOST_OPEN_RUNS
}

/// What a report says of the end of a machine's schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeepingEnd {
    /// The machine keeps it.
    None,
    /// It is given back, and the report has its last runs.
    GivenBack,
    /// The instance has stopped, and nothing can be known of its last runs: times until now may have had one.
    Unknown,
}

/// What the leader takes of the report of a machine that keeps a schedule.
struct KeeperReport<'l> {
    /// The report, if it is about the assignment as it is and can be taken.
    taken: Option<&'l BoundReport>,
    /// Those of its runs that get a record.
    runs: Vec<&'l BoundRun>,
    /// The machine has stopped the instance.
    is_stopped: bool,
    end: KeepingEnd,
}

impl<'l> KeeperReport<'l> {
    /// `is_own` says that the Job's state has the instance as the keeper.
    fn read(
        live: &'l LiveInstance<'_>,
        bound: &BoundSchedule,
        is_own: bool,
        has_record: impl Fn(Timestamp) -> bool,
        now: Timestamp,
    ) -> Self {
        let stated = report_of(live).filter(|report| is_about(report, bound));
        let taken = stated.filter(|report| is_own && is_usable(report, live, bound, now));
        let stopped = live
            .record
            .filter(|record| !live.is_wanted() && record.phase == InstancePhase::Stopped);
        let says_nothing = stopped.is_some_and(|record| record.bound.is_none());
        let is_unusable = stopped.is_some() && stated.is_some() && taken.is_none();
        let end = if is_own && (says_nothing || is_unusable) {
            KeepingEnd::Unknown
        } else if is_withdrawn(live, bound) && taken.is_some_and(is_last) {
            KeepingEnd::GivenBack
        } else {
            KeepingEnd::None
        };
        let takes_all = end == KeepingEnd::GivenBack;
        let runs = taken.map(|report| runs_to_take(report, bound, takes_all, has_record, now));
        Self {
            taken,
            runs: runs.unwrap_or_default(),
            is_stopped: stopped.is_some(),
            end,
        }
    }
}

/// The record of a run that a machine began.
fn record_of(
    live: &LiveInstance<'_>,
    bound: &BoundSchedule,
    run: &BoundRun,
    before: JobRunRecord,
) -> JobRunRecord {
    let assignment = live.assignment;
    let cancelled = before.cancelled.as_ref();
    let (phase, reason, message) = match (&run.end, cancelled) {
        (None, _) => (RunPhase::Active, None, String::new()),
        (Some(end), _) if end.succeeded => (
            RunPhase::Succeeded,
            Some(Reason::RunSucceeded),
            "its instance succeeded".to_owned(),
        ),
        (Some(_), Some(asked)) => (
            RunPhase::Cancelled,
            Some(Reason::RunCancelled),
            format!("{} cancelled it", asked.by),
        ),
        (Some(end), None) if end.reason == Reason::DeadlineExceeded => (
            RunPhase::Failed,
            Some(Reason::DeadlineExceeded),
            end.message.clone(),
        ),
        (Some(end), None) => {
            let (reason, message) = failure(bound, run, end);
            (RunPhase::Failed, Some(reason), message)
        }
    };
    let last = run.end.as_ref().filter(|end| !end.succeeded);
    let last_failure = last.or(run.failed.last());
    JobRunRecord {
        schema: 1,
        workload_uid: assignment.workload_uid.clone(),
        generation: assignment.generation,
        cause: RunCause::Schedule,
        scheduled: Some(run.scheduled),
        created: run.started,
        completions: 1,
        parallelism: 1,
        backoff_limit: bound.backoff_limit,
        bound: true,
        deadline_seconds: bound.deadline_seconds,
        phase,
        reason: Reason::word_or_empty(reason).to_owned(),
        message,
        started: Some(run.started),
        finished: run.end.as_ref().map(|end| end.at),
        succeeded: match phase {
            RunPhase::Succeeded => [0].into(),
            RunPhase::Active | RunPhase::Failed | RunPhase::Cancelled => [].into(),
        },
        failures: failures(run),
        last_failure: last_failure.map(|end| end.at),
        attempts: attempts(live, run),
        ..before
    }
}

/// Why a run has failed whose last attempt ended so.
fn failure(bound: &BoundSchedule, run: &BoundRun, end: &AttemptEnd) -> (Reason, String) {
    let count = failures(run);
    let failed = match count {
        1 => "one instance failed".to_owned(),
        count => format!("{count} instances failed"),
    };
    let last = &end.message;
    let limit = bound.backoff_limit;
    if count > limit {
        let message = format!("{failed}, and backoffLimit is {limit}; the last: {last}");
        return (Reason::BackoffLimitExceeded, message);
    }
    let next = end
        .at
        .checked_add(RUN_PAUSES.after(count.saturating_sub(1)));
    let deadline = bound.deadline_seconds.and_then(|seconds| {
        let seconds = SignedDuration::from_secs(i64::from(seconds));
        run.started.checked_add(seconds).ok()
    });
    match (next, deadline) {
        (Ok(next), Some(deadline)) if next >= deadline => {
            let message = format!(
                "{failed}, and the next one would have begun after the deadline, {deadline}; the last: {last}"
            );
            (Reason::DeadlineExceeded, message)
        }
        _ => {
            let message = format!(
                "{failed}, and its machine began no further one before the deadline, a later run or the end of its schedule; the last: {last}"
            );
            let reason = match Reason::from_word(&end.reason) {
                Some(Reason::ProgramFailed) => Reason::ProgramFailed,
                _ => Reason::Interrupted,
            };
            (reason, message)
        }
    }
}

/// Number of the attempts of a run that failed.
fn failures(run: &BoundRun) -> u32 {
    let last = run.end.as_ref().filter(|end| !end.succeeded);
    let earlier = u32::try_from(run.failed.len()).unwrap_or(u32::MAX);
    earlier.saturating_add(u32::from(last.is_some()))
}

/// The attempts of a run, all of them by one instance. Between two, none is open.
fn attempts(live: &LiveInstance<'_>, run: &BoundRun) -> Vec<RunAttempt> {
    let ends = run.failed.iter().cloned().map(Some);
    let last = (!run.paused).then(|| run.end.clone());
    let attempt = |end| RunAttempt {
        instance: live.id.to_owned(),
        node: live.node.to_owned(),
        index: 0,
        end,
    };
    ends.chain(last).map(attempt).collect()
}

/// A run of which its machine has nothing any more.
fn lost(before: &JobRunRecord, now: Timestamp) -> JobRunRecord {
    let mut record = before.clone();
    record.phase = RunPhase::Failed;
    record.reason = Reason::Interrupted.into();
    record.message = LOST.to_owned();
    record.finished = Some(now);
    for attempt in record.attempts.iter_mut().filter(|one| one.end.is_none()) {
        record.failures = record.failures.saturating_add(1);
        record.last_failure = Some(now);
        attempt.end = Some(AttemptEnd {
            at: now,
            succeeded: false,
            exit_code: None,
            reason: Reason::Interrupted.into(),
            message: LOST.to_owned(),
        });
    }
    record
}

/// The instance whose machine keeps the whole schedule, or has kept it until it has stopped.
fn bound_instance<'l, 'i>(all: &'l [LiveInstance<'i>]) -> Option<&'l LiveInstance<'i>> {
    let mut all = all.iter();
    all.find(|live| live.assignment.bound.is_some() && !machines::is_keeper(live))
}

pub(super) fn keepers(
    all: &[LiveInstance<'_>],
    withdraws: bool,
    now: Timestamp,
) -> Option<ScheduleKeepers> {
    let keeper = |live: &LiveInstance<'_>| {
        let bound = live.assignment.bound.as_ref()?;
        let report = report_of(live).filter(|report| is_about(report, bound));
        Some(ScheduleKeeper {
            node: live.node.to_owned(),
            away: live.away,
            closing: withdraws || is_withdrawn(live, bound),
            unusable: report.is_some_and(|report| !is_usable(report, live, bound, now)),
        })
    };
    if let Some(one) = bound_instance(all).and_then(keeper) {
        return Some(ScheduleKeepers::One(one));
    }
    let each = all.iter().filter(|live| machines::is_keeper(live));
    let mut each: Vec<ScheduleKeeper> = each.filter_map(keeper).collect();
    each.sort_by(|one, other| one.node.cmp(&other.node));
    (!each.is_empty()).then_some(ScheduleKeepers::Each(each))
}

/// What becomes of a schedule that a machine keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BoundState {
    /// No machine keeps it.
    Free,
    /// A machine decides the times; whether the leader takes them back.
    Kept { withdraws: bool },
    /// Machines decide the times, each for itself, and further ones may as well.
    Shared,
    /// What a machine decided is lost. The next plan goes on.
    Lost,
}

impl WorkloadPlanner<'_, '_, '_> {
    /// Takes what the machines that keep the schedule report, or takes the schedule back.
    pub(super) fn follow_bound(
        &mut self,
        parsed: &ParsedWorkload,
        job: &mut JobPlan<'_>,
        all: &[LiveInstance<'_>],
    ) -> BoundState {
        match self.follow_one(parsed, job, all) {
            BoundState::Free => self.follow_machines(parsed, job, all),
            other => other,
        }
    }

    /// The same for a schedule that one machine keeps as a whole.
    fn follow_one(
        &mut self,
        parsed: &ParsedWorkload,
        job: &mut JobPlan<'_>,
        all: &[LiveInstance<'_>],
    ) -> BoundState {
        let Some(live) = bound_instance(all) else {
            return match job.state.bound.take() {
                Some(instance) => self.give_up_bound(job, &instance),
                None => self.end_left_runs(job),
            };
        };
        let withdrawal = self.withdrawal(parsed, job, live);
        // What this plan has changed in another way is followed by the next one.
        if !self.draft.changes(live.id) {
            self.take_report(job, live, withdrawal);
        }
        BoundState::Kept {
            withdraws: withdrawal != Withdrawal::None,
        }
    }

    fn withdrawal(
        &self,
        parsed: &ParsedWorkload,
        job: &JobPlan<'_>,
        live: &LiveInstance<'_>,
    ) -> Withdrawal {
        let active = || job.runs.values().filter(|run| run.value.is_active());
        let is_cancelled = active().any(|run| run.value.bound && run.value.cancelled.is_some());
        if live.forced_out || is_cancelled {
            return Withdrawal::Stop;
        }
        let is_other = live.assignment.generation != self.entry.meta.value.generation;
        let waits = active().any(|run| !run.value.bound);
        let schemas = self.schemas();
        let bound = live.assignment.bound.as_ref();
        let needed = bound.map_or(BOUND_SCHEMA, BoundSchedule::schema);
        // It would begin the runs itself where it leads.
        let is_earlier = |schema: Option<u32>| schema.is_some_and(|schema| schema < needed);
        let is_withdrawn = job.state.suspended.is_some()
            || is_other
            || !live.current
            || waits
            || live.leaves
            || schemas.into_iter().any(is_earlier)
            || !may_be_bound(job.spec, &parsed.workload.spec);
        match is_withdrawn {
            true => Withdrawal::Close,
            false => Withdrawal::None,
        }
    }

    /// Takes the runs of a report, and writes what the machine has to do next.
    fn take_report(
        &mut self,
        job: &mut JobPlan<'_>,
        live: &LiveInstance<'_>,
        withdrawal: Withdrawal,
    ) {
        let Some(bound) = &live.assignment.bound else {
            return;
        };
        let now = self.draft.now;
        let before = job.state.clone();
        if live.is_wanted() {
            job.state.bound = Some(live.id.to_owned());
        }
        let keeps = |state: &JobStateRecord| state.bound.as_deref() == Some(live.id);
        let has_record = |time| job.runs.contains_key(&scheduled_run(time));
        let report = KeeperReport::read(live, bound, keeps(&job.state), has_record, now);
        let mut next = bound.clone();
        let mut conditions = Vec::new();
        for run in &report.runs {
            self.take_run(job, (live, bound), run, &mut conditions);
        }
        if let Some(taken) = report.taken.filter(|taken| taken.handled > bound.handled) {
            next.handled = taken.handled;
            self.take_handled(job, taken, &mut conditions);
        }
        if report.end == KeepingEnd::Unknown {
            job.state.handled = job.state.handled.max(Some(now));
        }
        if report.end != KeepingEnd::None {
            job.state.bound = None;
            self.close_lost(job, None, &mut conditions);
        }
        let keeps = keeps(&job.state);
        self.answer_keeper(live, &report, next, withdrawal, keeps);
        self.commit_state(job, &before, conditions, "what a machine decided");
    }

    /// Writes what a machine has to do next, or removes its instance once that has stopped and `keeps` no
    /// schedule any more.
    fn answer_keeper(
        &mut self,
        live: &LiveInstance<'_>,
        report: &KeeperReport<'_>,
        mut next: BoundSchedule,
        withdrawal: Withdrawal,
        keeps: bool,
    ) {
        next.closed |= withdrawal != Withdrawal::None;
        let is_over = report.end == KeepingEnd::GivenBack || withdrawal == Withdrawal::Stop;
        let stops = live.is_wanted() && is_over;
        if report.is_stopped && !keeps {
            self.draft.remove(&mut self.group, live.node, live.id);
        } else if stops || live.assignment.bound.as_ref() != Some(&next) {
            let assignment = Assignment {
                wanted: match stops {
                    true => DesiredRun::Stopped,
                    false => live.assignment.wanted,
                },
                bound: Some(next),
                ..Assignment::clone(live.assignment)
            };
            self.draft.update(&mut self.group, live.node, &assignment);
        }
        if stops {
            let message = "stopped because the leader takes its schedule back".to_owned();
            self.instance_event(EventReason::Stopping, live.id, message);
        }
    }

    /// Writes the record of a run that a machine began.
    fn take_run(
        &mut self,
        job: &mut JobPlan<'_>,
        (live, bound): (&LiveInstance<'_>, &BoundSchedule),
        run: &BoundRun,
        conditions: &mut Vec<Compare>,
    ) {
        let key = scheduled_run(run.scheduled);
        let stored = job.runs.get(&key).cloned();
        // One that is over stays as it is, and the leader's are the leader's.
        let is_open =
            |stored: &Stored<Arc<JobRunRecord>>| stored.value.bound && stored.value.is_active();
        if stored.as_ref().is_some_and(|stored| !is_open(stored)) {
            return;
        }
        let is_open = |run: &JobRunRecord| run.bound && !run.is_by_machines() && run.is_active();
        if run.end.is_none() && stored.is_none() && has_open_runs(job, is_open) {
            return;
        }
        let before = match &stored {
            Some(stored) => JobRunRecord::clone(&stored.value),
            None => {
                job.state.last_number += 1;
                JobRunRecord {
                    number: job.state.last_number,
                    ..JobRunRecord::default()
                }
            }
        };
        let record = record_of(live, bound, run, before);
        let is_same = |stored: &Stored<Arc<JobRunRecord>>| *stored.value == record;
        if stored.as_ref().is_some_and(is_same) {
            return;
        }
        let revision = stored.map_or(0, |stored| stored.revision);
        self.put_run(job, &key, (record, revision), conditions);
    }

    fn put_run(
        &mut self,
        job: &mut JobPlan<'_>,
        key: &str,
        (record, revision): (JobRunRecord, i64),
        conditions: &mut Vec<Compare>,
    ) {
        let number = record.number;
        let (kind, reason, message) = match record.phase {
            RunPhase::Active => (
                EventKind::Normal,
                EventReason::RunCreated,
                "its machine has begun it by its own timer",
            ),
            RunPhase::Succeeded => (
                EventKind::Normal,
                EventReason::RunSucceeded,
                record.message.as_str(),
            ),
            RunPhase::Failed => (
                EventKind::Warning,
                EventReason::RunFailed,
                record.message.as_str(),
            ),
            RunPhase::Cancelled => (
                EventKind::Normal,
                EventReason::RunCancelled,
                record.message.as_str(),
            ),
        };
        let before = job.runs.get(key).map(|stored| stored.value.phase);
        // A further attempt of an active run is no news, nor one more machine of the same end.
        let is_news = before.is_none_or(|before| before != record.phase && !record.is_active());
        if is_news {
            let message = format!("run {number}: {message}");
            self.workload_event(kind, reason, message);
        }
        let run_key = keys::job_run(&self.key.namespace, &self.key.name, key);
        let unchanged = Compare::ModRevision(run_key.clone(), revision);
        if !conditions.contains(&unchanged) {
            conditions.push(unchanged);
        }
        // Many machines have parts of one run: each of them would count for the transaction.
        self.group.replace(run_key, &record);
        let value = Arc::new(record);
        job.runs.insert(key.to_owned(), Stored { revision, value });
    }

    /// Takes over all times until the report's `handled`.
    fn take_handled(
        &mut self,
        job: &mut JobPlan<'_>,
        report: &BoundReport,
        conditions: &mut Vec<Compare>,
    ) {
        let decided = decided_until(report, self.draft.now);
        job.state.handled = job.state.handled.max(Some(decided));
        if let Some(skipped) = &report.skipped {
            self.note_skipped(job, None, skipped.clone(), u64::from(report.skips));
        }
        self.close_lost(job, Some(report.handled), conditions);
    }

    /// Notes times that a machine has left without a run. `node` is the machine where others have the same
    /// times.
    fn note_skipped(
        &mut self,
        job: &mut JobPlan<'_>,
        node: Option<&str>,
        mut skipped: SkippedRun,
        skips: u64,
    ) {
        let reason = match skipped.reason == Reason::RunOverlapped {
            true => EventReason::RunSkipped,
            false => EventReason::RunMissed,
        };
        let message = match node {
            Some(node) => {
                skipped.message = format!("on {node}: {}", skipped.message);
                format!("{} {}", skipped.scheduled, skipped.message)
            }
            None => format!("{}: {}", skipped.scheduled, skipped.message),
        };
        self.workload_event(EventKind::Warning, reason, message);
        job.state.skips = job.state.skips.saturating_add(skips);
        job.state.skipped = Some(skipped);
    }

    /// Ends the runs of machines that are active although no machine keeps the schedule.
    fn end_left_runs(&mut self, job: &mut JobPlan<'_>) -> BoundState {
        let before = job.state.clone();
        let mut conditions = Vec::new();
        self.close_lost(job, None, &mut conditions);
        if conditions.is_empty() {
            return BoundState::Free;
        }
        self.commit_state(job, &before, conditions, "what a machine decided is lost");
        BoundState::Lost
    }

    /// Ends the runs until a time, or all, of which no machine has anything any more.
    fn close_lost(
        &mut self,
        job: &mut JobPlan<'_>,
        until: Option<Timestamp>,
        conditions: &mut Vec<Compare>,
    ) {
        let now = self.draft.now;
        let is_lost = |run: &JobRunRecord| {
            let is_until = until.is_none_or(|until| run.scheduled <= Some(until));
            run.bound && !run.is_by_machines() && run.is_active() && is_until
        };
        let open = job.runs.iter().filter(|(_, run)| is_lost(&run.value));
        let open: Vec<_> = open
            .map(|(key, run)| (key.clone(), lost(&run.value, now), run.revision))
            .collect();
        for (key, record, revision) in open {
            self.put_run(job, &key, (record, revision), conditions);
        }
    }

    /// The instance is gone without its last runs: its machine left the cluster, or another part of the
    /// plan removed it. Times until now get no run, since they may have had one.
    fn give_up_bound(&mut self, job: &mut JobPlan<'_>, instance: &str) -> BoundState {
        let now = self.draft.now;
        let mut before = job.state.clone();
        before.bound = Some(instance.to_owned());
        let since = job.state.handled.unwrap_or(now);
        job.state.handled = Some(since.max(now));
        job.state.skips = job.state.skips.saturating_add(1);
        let message = format!(
            "the machine of {instance} kept the schedule and is gone: whether times since {since} had a run is not known"
        );
        self.workload_event(EventKind::Warning, EventReason::RunMissed, message.clone());
        job.state.skipped = Some(SkippedRun {
            scheduled: now,
            reason: Reason::RunMissed.into(),
            message,
        });
        let mut conditions = Vec::new();
        self.close_lost(job, None, &mut conditions);
        self.commit_state(job, &before, conditions, "what a machine decided is lost");
        BoundState::Lost
    }

    /// Commits what was gathered, with the Job's state.
    fn commit_state(
        &mut self,
        job: &JobPlan<'_>,
        before: &JobStateRecord,
        mut conditions: Vec<Compare>,
        what: &str,
    ) {
        let state_key = keys::job_state(&self.key.namespace, &self.key.name);
        if job.state != *before {
            self.group.put(state_key.clone(), &job.state);
        }
        if self.group.is_empty() {
            return;
        }
        conditions.push(Compare::ModRevision(state_key, job.state_revision));
        let group = std::mem::take(&mut self.group);
        let reason = format!("{what} of {}", self.key);
        self.draft.commit(group, reason, conditions);
    }

    /// Gives the schedule to the machine with the Job's data, where nothing is against it. `before` is
    /// the state that is stored: a plan that changes it binds nothing.
    pub(super) fn bind(
        &mut self,
        parsed: &ParsedWorkload,
        job: &mut JobPlan<'_>,
        before: &JobStateRecord,
        all: &[LiveInstance<'_>],
    ) {
        let spec = &parsed.workload.spec;
        let is_busy = !all.is_empty() || job.runs.values().any(|run| run.value.is_active());
        if is_busy || job.state != *before || job.state.suspended.is_some() {
            return;
        }
        let Some(handled) = job.state.handled else {
            return;
        };
        // A machine knows one time until which all are decided. It would begin those again that a clock which
        // was further ahead has begun: the leader finds their records.
        let now = self.draft.now;
        let jitter = job.spec.jitter_seconds;
        let is_ahead = |run: &JobRunRecord| {
            is_of_time_to_come(run, jitter, now) && run.scheduled > Some(handled)
        };
        if job.runs.values().any(|run| is_ahead(&run.value)) {
            return;
        }
        let Some(schedule) = job.spec.schedule.clone() else {
            return;
        };
        let readable = Schedule::parse(&schedule, &job.spec.time_zone).is_ok();
        if !readable
            || !job.state.is_about(job.spec)
            || !may_be_bound(job.spec, spec)
            // A large assignment would not be written together with the state.
            || parsed.carried.is_some()
        {
            return;
        }
        let statuses = self.around.statuses;
        let node = volumes::pinned_machine(self.draft, self.key, spec, statuses);
        let Some(node) = node.filter(|node| !self.machines.is_drained(node)) else {
            return;
        };
        if statuses.get(&node).map(|status| status.phase) != Some(NodePhase::Ready) {
            return;
        }
        let bound = BoundSchedule {
            schedule,
            time_zone: job.spec.time_zone.clone(),
            jitter_seconds: job.spec.jitter_seconds,
            starting_deadline_seconds: job.spec.starting_deadline_seconds,
            deadline_seconds: job.spec.active_deadline_seconds,
            backoff_limit: job.spec.backoff_limit,
            catch_up: Some(job.spec.catch_up).filter(|one| *one != CatchUp::None),
            handled,
            closed: false,
            per_node: false,
        };
        if !self.all_know(bound.schema()) {
            return;
        }
        // Without a place the leader begins the runs, and says what keeps them from one.
        let Ok(instance) = self.create_bound(parsed, bound, (0, 0)) else {
            return self.flush_gathered();
        };
        job.state.bound = Some(instance);
        // With the count of the instances made so far.
        let status_key = keys::workload_status(&self.key.namespace, &self.key.name);
        self.group.put(status_key, &self.record);
        self.commit_state(job, before, Vec::new(), "the schedule");
    }

    /// Whether each machine knows assignments of this schema: an earlier leader would begin the runs itself.
    fn all_know(&self, needed: u32) -> bool {
        let mut schemas = self.schemas().into_iter();
        schemas.all(|schema| schema.is_some_and(|schema| schema >= needed))
    }

    /// The highest schema of an assignment that each machine knows; `None` for one that has not reported
    /// yet.
    fn schemas(&self) -> Vec<Option<u32>> {
        let nodes = self.draft.snapshot.nodes.keys();
        let schemas = nodes.map(|node| {
            let status = self.around.statuses.get(node);
            let status = status.filter(|status| status.phase != NodePhase::Joining);
            // 0 where there was no report, and of a version that runs no Job and so leads no store with one.
            let schema = status.map(|status| status.assignment_schema);
            schema.filter(|schema| *schema > 0)
        });
        schemas.collect()
    }
}
