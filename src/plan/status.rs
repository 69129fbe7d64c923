//! The status of a workload: phase, counts and conditions.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::{
    Snapshot,
    jobs::summary::JobSummary,
    rollout::{
        blocked::{DataMove, WorkloadOutcome},
        slot::LiveInstance,
        slots::SlotSet,
    },
    start_order::StartWait,
};
use kat_types::{
    api::{
        AVAILABLE, Condition, DRAIN_BLOCKED, Health, IMAGE_PINNED, InstancePhase, ROLLED_BACK,
        SERVICE_ADDRESS, WorkloadPhase, WorkloadStatus,
    },
    assignment::DesiredRun,
    reason::Reason,
    store::{
        records::{InstanceRecord, Origin, RolloutRecord},
        revisions::WorkloadKey,
        snapshot::WorkloadEntry,
    },
};

/// Most lost machines that a status names.
const MOST_NAMED: usize = 3;

/// A workload's instances, counted.
pub(super) struct InstanceTally {
    replicas: u32,
    ready: u32,
    updated: u32,
    live: u32,
    old: u32,
    /// Instances that a stopped workload still has, but for those that are only to be stopped on a
    /// machine that does not answer.
    to_end: u32,
    trouble: Option<InstanceTrouble>,
    /// The instance whose health check has not succeeded yet, and why.
    unchecked: Option<String>,
    /// Why an instance is not placed.
    not_placed: Option<(Reason, String)>,
    /// The move of its data to another machine.
    data_moves: Option<DataMove>,
    /// What of other workloads its start waits for.
    start_wait: Option<StartWait>,
    /// Why a change of it cannot be written.
    pub(super) not_writable: Option<String>,
    /// Who stopped it, and how it is started; `None` if it is not stopped.
    stopped: Option<String>,
    /// Why a stalled generation is not rolled back by itself.
    not_rolled_back: Option<String>,
    /// What a DaemonService does not count among its instances.
    apart: Option<String>,
    /// What its deletion waits for.
    left: String,
}

/// The trouble of an instance.
pub(super) struct InstanceTrouble {
    reason: String,
    message: String,
    /// The instance is of the wanted version.
    current: bool,
}

impl InstanceTrouble {
    fn of(live: &LiveInstance<'_>) -> Option<Self> {
        let record = live.record?;
        let stops = live.assignment.wanted == DesiredRun::Stopped;
        if stops || live.away || is_unchecked(record) {
            return None;
        }
        let reason = match (record.reason.is_empty(), record.phase) {
            (false, _) => record.reason.clone(),
            (true, InstancePhase::Failed) => Reason::Failed.into(),
            (true, InstancePhase::Restarting) => Reason::Restarting.into(),
            (true, _) => return None,
        };
        Some(Self {
            reason,
            message: format!("{}: {}", live.id, record.message),
            current: live.current,
        })
    }

    /// Reason and message, if this version knows the reason.
    pub(super) fn known(self) -> Option<(Reason, String)> {
        Some((Reason::from_word(&self.reason)?, self.message))
    }

    /// `ImagePullFailed: web-abcde: no such image`
    pub(super) fn sentence(&self) -> String {
        format!("{}: {}", self.reason, self.message)
    }
}

/// The trouble of an instance, preferably of one of the wanted version.
pub(super) fn instance_trouble<'l, 'a: 'l>(
    all: impl IntoIterator<Item = &'l LiveInstance<'a>>,
) -> Option<InstanceTrouble> {
    let troubles = all.into_iter().filter_map(InstanceTrouble::of);
    troubles.max_by_key(|trouble| trouble.current)
}

/// The id of an instance whose health check has not succeeded yet, with the message.
pub(super) fn unchecked(live: &LiveInstance<'_>) -> Option<String> {
    let record = live.record.filter(|record| is_unchecked(record))?;
    (live.is_wanted() && !live.away).then(|| format!("{}: {}", live.id, record.message))
}

fn is_unchecked(record: &InstanceRecord) -> bool {
    record.phase == InstancePhase::Running && record.health == Health::PendingCheck
}

impl InstanceTally {
    /// Counts an instance as ready if it is in `settled`: its health check succeeds, or it has run
    /// long enough.
    pub(super) fn count(
        all: &[LiveInstance<'_>],
        settled: &BTreeSet<&str>,
        entry: &WorkloadEntry,
        outcome: &WorkloadOutcome<'_>,
    ) -> Self {
        let replicas = entry
            .parsed
            .as_ref()
            .ok()
            .and_then(|parsed| parsed.workload.spec.replicas)
            .unwrap_or(0);
        let mut tally = Self {
            replicas,
            ready: 0,
            updated: 0,
            live: 0,
            old: 0,
            to_end: 0,
            trouble: instance_trouble(all),
            unchecked: all.iter().find_map(unchecked),
            not_placed: outcome.not_placed(),
            data_moves: outcome.data_moves.clone(),
            start_wait: outcome.start_wait.clone(),
            not_writable: None,
            stopped: None,
            not_rolled_back: outcome.not_rolled_back.clone(),
            apart: None,
            left: if entry.meta.value.deleting {
                still_there(all, &outcome.has_user)
            } else {
                String::new()
            },
        };
        for live in all {
            let wanted = live.is_wanted();
            tally.live += 1;
            // An instance that is only to be stopped, on a machine that does not answer, blocks
            // nothing.
            tally.old += u32::from((!live.current || !wanted) && (wanted || !live.away));
            tally.to_end += u32::from(wanted || !live.away);
            let ready = wanted && settled.contains(live.id);
            tally.ready += u32::from(ready);
            tally.updated += u32::from(ready && live.current);
        }
        tally
    }

    /// Counts the machines of a DaemonService as its replicas. Lost machines are counted apart.
    pub(super) fn note_machines(&mut self, slots: &SlotSet<'_>, lost: &[String]) {
        let SlotSet::Machines(_) = slots else { return };
        self.replicas = slots.count();
        let machines: Vec<&str> = lost.iter().take(MOST_NAMED).map(String::as_str).collect();
        let more = match lost.len().saturating_sub(MOST_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let machines = machines.join(", ");
        self.apart = match (lost.len(), self.replicas) {
            (0, 0) => Some(
                "no machine matches nodeSelector and tolerations, answers and takes work"
                    .to_owned(),
            ),
            (0, _) => None,
            (1, _) => Some(format!("one more is on {machines}, which does not answer")),
            (count, _) => Some(format!(
                "{count} more are on {machines}{more}, which do not answer"
            )),
        };
    }

    /// Notes that the workload is stopped, unless its files ask for instances.
    pub(super) fn note_stopped(&mut self, stopped: Option<String>) {
        self.stopped = stopped.filter(|_| self.replicas == 0);
    }

    /// Notes why an instance can't be prepared that is to replace another one, which may have a
    /// trouble of its own.
    pub(super) fn note_prepared(&mut self, prepared: &[LiveInstance<'_>]) {
        let next = instance_trouble(prepared.iter().filter(|live| live.current));
        self.trouble = match (next, self.trouble.take()) {
            (Some(next), Some(present)) => Some(InstanceTrouble {
                message: format!("{}; meanwhile {}", next.message, present.sentence()),
                ..next
            }),
            (next, present) => next.or(present),
        };
    }

    /// Notes an instance on a machine that does not answer; `why` says why it is not replaced.
    pub(super) fn is_away(&mut self, live: &LiveInstance<'_>, why: Option<&str>) {
        let waits = live
            .waits
            .then_some("it has data of its own, and waits for its machine");
        let why = why.or(waits);
        let why = why.map_or_else(String::new, |why| format!("; {why}"));
        let LiveInstance { id, node, .. } = live;
        let message = format!("{id}: its machine {node} does not answer{why}");
        let reason = match live.waits {
            true => Reason::WaitsForItsData,
            false => Reason::NodeNotReady,
        };
        self.trouble = Some(InstanceTrouble {
            reason: reason.into(),
            message,
            current: live.current,
        });
    }
}

/// Who stopped the workload, and how it is started again.
pub(super) fn stopped_in_words(
    snapshot: &Snapshot,
    (key, entry): (&WorkloadKey, &WorkloadEntry),
) -> Option<String> {
    let stopped = entry.meta.value.stopped.as_ref()?;
    let token = stopped.by.strip_prefix("token:");
    let token = token.and_then(|id| snapshot.tokens.get(id));
    let name = token.map(|token| token.value.name.as_str());
    let by = name.filter(|name| !name.is_empty()).unwrap_or(&stopped.by);
    Some(format!("stopped by {by}; `katcall start {key}` starts it"))
}

/// What of a workload is left on which machines: its instances, and then its user.
fn still_there(all: &[LiveInstance<'_>], left: &[&str]) -> String {
    if all.is_empty() && left.is_empty() {
        return "its prepared instances are removed".to_owned();
    }
    if all.is_empty() {
        let machines = left.join(", ");
        return format!("its user is still to be confirmed as removed on {machines}");
    }
    let machines: BTreeSet<&str> = all.iter().map(|live| live.node).collect();
    let machines: Vec<&str> = machines.into_iter().collect();
    let machines = machines.join(", ");
    match all.len() {
        1 => format!("one instance is still to be confirmed as stopped on {machines}"),
        count => format!("{count} instances are still to be confirmed as stopped on {machines}"),
    }
}

/// The status that follows from a tally. A condition that stays the same keeps its `since`.
pub(super) fn workload_status(
    tally: &InstanceTally,
    before: &WorkloadStatus,
    entry: &WorkloadEntry,
    rollout: Option<&RolloutRecord>,
    now: Timestamp,
) -> WorkloadStatus {
    let stalled = rollout.is_some_and(|rollout| rollout.stalled);
    let (phase, reason, message) = workload_phase(tally, entry, stalled);
    let available = tally.updated >= tally.replicas
        && tally.stopped.is_none()
        && !entry.meta.value.deleting
        && entry.parsed.is_ok()
        && tally.not_writable.is_none();
    let kind = AVAILABLE.to_owned();
    let since = before
        .conditions
        .iter()
        .find(|condition| {
            condition.kind == kind && condition.status == available && condition.reason == reason
        })
        .map_or(now.into(), |condition| condition.since);
    WorkloadStatus {
        phase,
        replicas: tally.replicas,
        ready: tally.ready,
        updated: tally.updated,
        observed_generation: entry.meta.value.generation,
        paused: entry.meta.value.paused,
        last_good_generation: None,
        conditions: std::iter::once(Condition {
            kind,
            status: available,
            reason,
            message,
            since,
        })
        .chain(rolled_back(entry))
        .chain(unpinned(entry))
        .collect(),
        service_address: None,
        host_ports: Vec::new(),
        job: None,
    }
}

/// The status of a Job, whose phase and reason follow from its runs; `status` is that of a workload
/// without replicas.
pub(super) fn job_status(
    status: WorkloadStatus,
    job: &JobSummary,
    instances: u32,
    before: &WorkloadStatus,
    now: Timestamp,
) -> WorkloadStatus {
    let available = !matches!(
        job.phase,
        WorkloadPhase::Degraded | WorkloadPhase::Failed | WorkloadPhase::Pending
    );
    let reason = String::from(job.reason);
    let mut earlier = before.conditions.iter();
    let earlier = earlier
        .find(|one| one.kind == AVAILABLE && one.status == available && one.reason == reason);
    let mut conditions = status.conditions;
    conditions.retain(|one| one.kind != AVAILABLE);
    conditions.insert(
        0,
        Condition {
            kind: AVAILABLE.to_owned(),
            status: available,
            reason,
            message: job.message.clone(),
            since: earlier.map_or(now.into(), |one| one.since),
        },
    );
    WorkloadStatus {
        phase: job.phase,
        replicas: instances,
        job: Some(job.status.clone()),
        conditions,
        ..status
    }
}

/// The condition of a service that has no service address.
pub(super) fn without_address(before: &WorkloadStatus, why: String, now: Timestamp) -> Condition {
    let mut earlier = before.conditions.iter();
    let since = earlier
        .find(|condition| condition.kind == SERVICE_ADDRESS)
        .map_or(now.into(), |condition| condition.since);
    Condition {
        kind: SERVICE_ADDRESS.to_owned(),
        status: false,
        reason: Reason::NoneFree.into(),
        message: why,
        since,
    }
}

/// Why an instance is not placed, by the status that an earlier plan has written.
pub(super) fn not_placed_before(status: &WorkloadStatus) -> Option<String> {
    const REASONS: [Reason; 5] = [
        Reason::Unschedulable,
        Reason::SecretMissing,
        Reason::SecretUnusable,
        Reason::SecretUnreadable,
        Reason::CredentialsUnreadable,
    ];
    let mut conditions = status.conditions.iter();
    let condition = conditions.find(|condition| {
        condition.kind == AVAILABLE && REASONS.iter().any(|reason| condition.reason == *reason)
    })?;
    // It may be about an instance of another version, and over by now.
    Some(format!(
        "last status: {}: {}",
        condition.reason, condition.message
    ))
}

/// The condition of a generation that an automatic rollback made.
fn rolled_back(entry: &WorkloadEntry) -> Option<Condition> {
    let generation = entry.meta.value.generation;
    let record = entry.archive.get(&generation)?.record.as_ref()?;
    (record.origin == Origin::RolledBackItself).then(|| Condition {
        kind: ROLLED_BACK.to_owned(),
        status: true,
        reason: Reason::AutoRollback.into(),
        message: record.why.clone(),
        since: record.applied.into(),
    })
}

/// The condition of a workload whose replicas may run different images under the same name.
fn unpinned(entry: &WorkloadEntry) -> Option<Condition> {
    let meta = &entry.meta.value;
    let mut images = meta.image.each();
    let image = images.find(|image| !image.problem.is_empty())?;
    Some(Condition {
        kind: IMAGE_PINNED.to_owned(),
        status: false,
        reason: Reason::ImageNotPinned.into(),
        message: format!(
            "image {} was not pinned when it was applied: {}",
            image.reference, image.problem
        ),
        since: meta.updated.into(),
    })
}

/// The condition of a workload with an instance that can't leave a drained machine.
pub(super) fn drain_blocked(
    before: &WorkloadStatus,
    (reason, message): (Reason, String),
    now: Timestamp,
) -> Condition {
    let mut earlier = before.conditions.iter();
    let since = earlier
        .find(|condition| condition.kind == DRAIN_BLOCKED)
        .map_or(now.into(), |condition| condition.since);
    Condition {
        kind: DRAIN_BLOCKED.to_owned(),
        status: true,
        reason: reason.into(),
        message,
        since,
    }
}

fn workload_phase(
    tally: &InstanceTally,
    entry: &WorkloadEntry,
    stalled: bool,
) -> (WorkloadPhase, String, String) {
    if entry.meta.value.deleting {
        return because(
            WorkloadPhase::Deleting,
            Reason::Deleting,
            tally.left.clone(),
        );
    }
    if let Err(reason) = &entry.parsed {
        let message = format!("the stored files can't be read: {reason}");
        return because(WorkloadPhase::Degraded, Reason::Unreadable, message);
    }
    if let Some(why) = &tally.not_writable {
        return because(WorkloadPhase::Degraded, Reason::NotWritable, why.clone());
    }
    if let Some(stopped) = &tally.stopped {
        return stopped_phase(tally, stopped);
    }
    let apart = tally.apart.as_ref();
    let apart = apart.map_or_else(String::new, |apart| format!("; {apart}"));
    if tally.updated >= tally.replicas && tally.old == 0 {
        let message = format!(
            "{} of {} instances are healthy{apart}",
            tally.ready, tally.replicas
        );
        return because(WorkloadPhase::Running, Reason::AllHealthy, message);
    }
    let unchecked = tally.unchecked.as_ref();
    let counts = format!(
        "{} of {} instances of this generation are healthy{}{apart}",
        tally.updated,
        tally.replicas,
        unchecked.map_or_else(String::new, |why| format!("; {why}"))
    );
    if let Some(moving) = &tally.data_moves {
        let phase = match tally.live {
            0 => WorkloadPhase::Pending,
            _ => WorkloadPhase::Degraded,
        };
        return because(phase, moving.reason(), moving.far.clone());
    }
    if let Some(StartWait { reason, message }) = &tally.start_wait {
        let phase = match (tally.live, reason) {
            (0, _) => WorkloadPhase::Pending,
            (_, Reason::WaitsForDependency) => WorkloadPhase::Progressing,
            _ => WorkloadPhase::Degraded,
        };
        return because(phase, *reason, message.clone());
    }
    if stalled {
        let message = stalled_in_words(tally, entry, counts);
        let reason = Reason::ProgressDeadlineExceeded;
        return because(WorkloadPhase::Stalled, reason, message);
    }
    if entry.meta.value.paused && tally.updated < tally.replicas {
        let trouble = tally.trouble.as_ref().map(InstanceTrouble::sentence);
        let trouble = trouble.map_or_else(String::new, |why| format!("; {why}"));
        let message = format!("the rollout is paused: {counts}{trouble}");
        return because(WorkloadPhase::Paused, Reason::Paused, message);
    }
    if let Some((reason, why)) = &tally.not_placed {
        let phase = if tally.live == 0 {
            WorkloadPhase::Pending
        } else {
            WorkloadPhase::Degraded
        };
        return because(phase, *reason, why.clone());
    }
    if let Some(trouble) = &tally.trouble {
        let message = trouble.message.clone();
        return (WorkloadPhase::Degraded, trouble.reason.clone(), message);
    }
    because(WorkloadPhase::Progressing, Reason::Progressing, counts)
}

fn because(
    phase: WorkloadPhase,
    reason: Reason,
    message: String,
) -> (WorkloadPhase, String, String) {
    (phase, reason.into(), message)
}

/// The phase of a stopped workload; `stopped` says who stopped it.
fn stopped_phase(tally: &InstanceTally, stopped: &str) -> (WorkloadPhase, String, String) {
    // An instance on a machine that does not answer stops when the machine is back.
    match tally.to_end {
        0 => because(WorkloadPhase::Stopped, Reason::Stopped, stopped.to_owned()),
        1 => {
            let message = format!("{stopped}; one instance still stops");
            because(WorkloadPhase::Progressing, Reason::Stopped, message)
        }
        count => {
            let message = format!("{stopped}; {count} instances still stop");
            because(WorkloadPhase::Progressing, Reason::Stopped, message)
        }
    }
}

/// Why a rollout makes no progress: the trouble of an instance, or else `counts`.
fn stalled_in_words(tally: &InstanceTally, entry: &WorkloadEntry, counts: String) -> String {
    let trouble = tally.trouble.as_ref().filter(|trouble| trouble.current);
    let not_placed = tally.not_placed.as_ref();
    let why = trouble
        .map(InstanceTrouble::sentence)
        .or_else(|| not_placed.map(|(reason, why)| format!("{reason}: {why}")))
        .unwrap_or(counts);
    let held = tally.not_rolled_back.as_ref();
    format!(
        "no progress for {} s: {why}{}",
        deadline(entry),
        held.map_or_else(String::new, |held| format!("; {held}"))
    )
}

fn deadline(entry: &WorkloadEntry) -> u32 {
    let parsed = entry.parsed.as_ref();
    parsed.map_or(0, |parsed| {
        parsed
            .workload
            .spec
            .update_strategy
            .progress_deadline_seconds
    })
}
