//! How a new version takes the place of another (RFC001-KAT 4.5): how many at once, when one has
//! shown that it works, how far it is, and when it has stalled.
//!
//! A *pair* is a slot in which a successor stands beside what it replaces. With `maxSurge` of 1 and
//! more there are as many pairs at most; with 0 a slot is emptied and filled again, one after the
//! other; Simultaneous empties all of them first. A slot whose instance of the new version does not
//! work counts as a pair for as long, so that a version that fails reaches so many slots and no more.

pub(crate) mod budget;
pub(crate) mod rollback;
pub(crate) mod slot;
pub(crate) mod steps;

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;

use super::{EventKind, ParsedWorkload, service::WorkloadPlanner, volumes::writes_data};
use crate::{
    nodes::node_loss as loss,
    rollout::slot::{LiveInstance, Slot},
};
use kat_types::records::{RolloutRecord, WorkloadStatusRecord};
use kat_types::{
    api::{Health, WorkloadPhase},
    reason::EventReason,
    resource::{MaxSurge, UpdateStrategyType, WorkloadSpec, WorkloadType},
};

/// An instance without a health check has shown that it works when its program has run for so long:
/// most that fail do so at their start.
pub(super) const SETTLED: Duration = Duration::from_secs(3);

/// What began then had run for long enough at this time.
pub(super) fn has_run(since: Timestamp, now: Timestamp) -> bool {
    time_from(since, now) >= SETTLED
}

fn time_from(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// What `spec.updateStrategy` comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strategy {
    /// Most pairs at once; with `stops_first` most slots that are empty at once.
    pub(super) at_once: usize,
    /// The old instance of a slot ends before the new one starts.
    pub(super) stops_first: bool,
    /// Every old instance ends before any new one starts.
    pub(super) simultaneous: bool,
}

impl Strategy {
    /// `in_place` says that an instance, or what it is to replace, has what two can't have at once.
    pub(super) fn of(spec: &WorkloadSpec, replicas: u32, in_place: bool) -> Self {
        let surge = match spec.update_strategy.rolling.max_surge {
            MaxSurge::Count(count) => u64::from(count),
            MaxSurge::Percent(percent) => (u64::from(replicas) * u64::from(percent)).div_ceil(100),
        };
        let simultaneous = spec.update_strategy.kind == UpdateStrategyType::Simultaneous;
        Self {
            at_once: usize::try_from(surge.max(1)).unwrap_or(usize::MAX),
            stops_first: simultaneous || surge == 0 || in_place,
            simultaneous,
        }
    }
}

/// An instance of this workload may change data that outlives it, or has something of its machine that two can't
/// have at once.
pub(super) fn in_place(spec: &WorkloadSpec) -> bool {
    writes_data(spec) || spec.together().has_machine_things()
}

/// How instances of a workload take each other's place, in words: `at most 1 at a time, each stops when its
/// successor is healthy`.
pub fn in_words(spec: &WorkloadSpec) -> String {
    let Strategy {
        at_once,
        stops_first,
        simultaneous,
    } = Strategy::of(spec, replicas(spec), in_place(spec));
    let how = match (simultaneous, stops_first) {
        (true, _) => "all old ones stop before any new one starts".to_owned(),
        (_, true) => "one after the other, each stops before its successor starts".to_owned(),
        _ => format!("at most {at_once} at a time, each stops when its successor is healthy"),
    };
    let strategy = &spec.update_strategy;
    match strategy.auto_rollback {
        false => how,
        true => format!(
            "{how}; after {} s without progress the last good generation is taken again",
            strategy.progress_deadline_seconds
        ),
    }
}

/// Wanted instances.
pub(super) fn replicas(spec: &WorkloadSpec) -> u32 {
    match spec.kind {
        WorkloadType::Service => spec.replicas.unwrap_or(1),
        WorkloadType::Job | WorkloadType::DaemonService => 0,
    }
}

impl WorkloadPlanner<'_, '_, '_> {
    /// It is healthy, and where no health check says so, it has been running for a while.
    pub(super) fn is_settled(&mut self, live: &LiveInstance<'_>) -> bool {
        if !live.healthy() {
            return false;
        }
        let Some(record) = live.record.as_ref() else {
            return false;
        };
        let (Health::NotApplicable, Some(since)) = (record.health, record.since) else {
            return true;
        };
        let left = SETTLED.saturating_sub(time_from(since, self.draft.now));
        if left.is_zero() {
            return true;
        }
        self.draft.wake(left);
        false
    }

    /// The instance that keeps a slot needs its predecessors no more. One of the same version has
    /// shown elsewhere that it works.
    pub(super) fn has_taken_over(&mut self, best: &LiveInstance<'_>, here: &Slot<'_, '_>) -> bool {
        let moved = here.predecessor().is_some() && here.predecessors().all(|live| live.current);
        if moved {
            best.healthy()
        } else {
            self.is_settled(best)
        }
    }

    /// A rollout starts nothing new: it was paused, or goes nowhere.
    pub(super) fn is_held(&self) -> bool {
        let stalled = self.record.rollout.as_ref().is_some_and(|one| one.stalled);
        self.entry.meta.value.paused || stalled
    }

    /// Notes how far the present generation is; true where the workload went back to another one,
    /// and nothing else is to be done on this snapshot.
    pub(super) fn follow(&mut self, parsed: &ParsedWorkload, all: &[LiveInstance<'_>]) -> bool {
        let now = self.draft.now;
        let meta = &self.entry.meta.value;
        let replicas = replicas(&parsed.workload.spec);
        let mut whole = BTreeSet::new();
        let mut healthy = BTreeSet::new();
        let mut old = 0;
        for live in all.iter().filter(|live| live.wanted()) {
            // Of each, for it is looked at again when it has.
            let settled = self.is_settled(live);
            if !live.current {
                old += 1;
            } else if live.assignment.slot < replicas && live.healthy() {
                healthy.insert(live.assignment.slot);
                if settled {
                    whole.insert(live.assignment.slot);
                }
            }
        }
        let updated = u32::try_from(healthy.len()).unwrap_or(u32::MAX);
        let before = self.record.rollout.take();
        let mut before = before.filter(|one| one.generation == meta.generation);
        if let Some(progressed) = before.as_mut().and_then(|one| one.progressed.as_mut()) {
            // The clock of another leader may be ahead.
            *progressed = now.min(*progressed);
        }
        let is_new = before.is_none();
        let mut rollout = before.unwrap_or_else(|| RolloutRecord {
            generation: meta.generation,
            started: Some(now),
            progressed: Some(now),
            replaces: old,
            updated,
            old,
            ..RolloutRecord::default()
        });
        if is_new && old > 0 {
            let instances = match old {
                1 => "one instance".to_owned(),
                count => format!("{count} instances"),
            };
            let message = format!(
                "generation {} takes the place of {instances} of another version",
                meta.generation
            );
            self.workload_event(EventKind::Normal, EventReason::RolloutStarted, message);
        }
        let progress = updated > rollout.updated || old < rollout.old;
        rollout.updated = rollout.updated.max(updated);
        rollout.old = rollout.old.min(old);
        if !rollout.done {
            let stopping = all.iter().any(|live| !live.wanted() && !live.away);
            let is_whole = old == 0 && whole.len() == usize::try_from(replicas).unwrap_or(0);
            if is_whole && !stopping {
                self.finish(&mut rollout, replicas);
            } else if meta.paused || is_whole || self.moving.is_some() {
                // Where nothing but the end of the old ones is missing, they may take their time.
                (rollout.progressed, rollout.stalled) = (None, false);
            } else if progress || rollout.progressed.is_none() {
                (rollout.progressed, rollout.stalled) = (Some(now), false);
            }
        }
        if let Some(since) = rollout.progressed.filter(|_| !rollout.done && !meta.paused) {
            let spec = &parsed.workload.spec.update_strategy;
            let deadline = Duration::from_secs(u64::from(spec.progress_deadline_seconds));
            let left = deadline.saturating_sub(time_from(since, now));
            // A leader that has just begun does not know yet what its machines have done meanwhile.
            let unheard =
                loss::timeout(self.draft.snapshot).saturating_sub(self.around.leading_for);
            match left.max(unheard) {
                Duration::ZERO => rollout.stalled = true,
                wait if !rollout.stalled => self.draft.wake(wait),
                _ => {}
            }
        }
        let stalled = rollout.stalled;
        self.record.rollout = Some(rollout);
        stalled && parsed.workload.spec.update_strategy.auto_rollback && self.go_back(all)
    }

    /// The generation is wholly healthy: from now on it is one to go back to.
    fn finish(&mut self, rollout: &mut RolloutRecord, replicas: u32) {
        (rollout.done, rollout.stalled) = (true, false);
        let generation = rollout.generation;
        if rollout.replaces > 0 {
            let message = format!("generation {generation} runs, and nothing of another version");
            self.workload_event(EventKind::Normal, EventReason::RolloutCompleted, message);
        }
        if replicas == 0 {
            // Nothing has shown that it works.
            return;
        }
        let kept = &self.entry.archive;
        self.record
            .good
            .retain(|good| kept.contains_key(good) && *good != generation);
        self.record.good.push(generation);
    }

    /// An event says that it has stalled, once.
    pub(super) fn tell_stalled(&mut self, before: &WorkloadStatusRecord) {
        let status = &self.record.status;
        if status.phase != WorkloadPhase::Stalled || before.status.phase == WorkloadPhase::Stalled {
            return;
        }
        let message = status.conditions.first().map(|one| one.message.clone());
        self.workload_event(
            EventKind::Warning,
            EventReason::Stalled,
            message.unwrap_or_default(),
        );
    }

    pub(super) fn workload_event(&mut self, kind: EventKind, reason: EventReason, message: String) {
        let object = self.object("Workload", self.key.name.clone());
        self.draft
            .event(&mut self.group, kind, reason, object, message);
    }
}
