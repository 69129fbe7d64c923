//! Rollouts (RFC001-KAT 4.5): how many instances are replaced at once, when a new version counts as
//! working, how far a rollout is, and when it has stalled.
//!
//! A *pair* is a slot in which a successor stands beside its predecessor. With `maxSurge` of 1 and
//! more there are as many pairs at most. With 0 one slot after the other is emptied and filled
//! again. Simultaneous empties all slots first. A slot whose instance of the new version does not
//! work counts as a pair for as long, so that a failing version reaches a limited number of slots.
//!
//! A plan takes three steps, which [`converge`] joins: [`classify`] gives each slot a state,
//! [`decide`] chooses steps from the states and a [`budget`], and [`apply`] writes a step or returns
//! why it is [`blocked`]. The first two are pure.

pub(crate) mod apply;
pub(crate) mod blocked;
pub(crate) mod budget;
pub(crate) mod classify;
pub(crate) mod converge;
pub(crate) mod decide;
pub(crate) mod kept_generations;
pub(crate) mod rollback;
pub(crate) mod slot;
pub(crate) mod slots;

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;

use super::{service::WorkloadPlanner, volumes::writes_data};
use crate::{
    nodes::node_loss as loss,
    rollout::{blocked::WorkloadOutcome, rollback::Rollback, slot::LiveInstance},
    services::serving,
};
use kat_types::{
    api::{EventKind, Health, ObjectKind, WorkloadPhase},
    reason::EventReason,
    resource::{MaxSurge, UpdateStrategyType, WorkloadSpec, WorkloadType},
    store::{
        records::{InstanceRecord, RolloutRecord, WorkloadStatusRecord},
        snapshot::ParsedWorkload,
    },
};

/// An instance without a health check counts as working once its program has run for this long:
/// most programs that fail do so at their start.
pub(super) const SETTLED: Duration = Duration::from_secs(3);

/// Whether a program that began at `since` has run for [`SETTLED`] at `now`.
pub(super) fn has_run(since: Timestamp, now: Timestamp) -> bool {
    time_from(since, now) >= SETTLED
}

pub(crate) fn time_from(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// Whether an instance counts as working.
enum Settling {
    Settled,
    /// It is healthy, has no health check, and has to run for this much longer.
    After(Duration),
    NotHealthy,
}

fn settling(live: &LiveInstance<'_>, now: Timestamp) -> Settling {
    let record = live.record.filter(|_| live.healthy());
    match record.and_then(|record| settles_in(record, now)) {
        None => Settling::NotHealthy,
        Some(Duration::ZERO) => Settling::Settled,
        Some(left) => Settling::After(left),
    }
}

/// The time until an instance counts as working, zero if it does; `None` if it is not healthy.
pub(crate) fn settles_in(record: &InstanceRecord, now: Timestamp) -> Option<Duration> {
    if !serving::is_healthy(record) {
        return None;
    }
    let (Health::NotApplicable, Some(since)) = (record.health, record.since) else {
        return Some(Duration::ZERO);
    };
    Some(SETTLED.saturating_sub(time_from(since, now)))
}

/// The instance is healthy and, without a health check, has run for [`SETTLED`].
pub(super) fn is_settled(live: &LiveInstance<'_>, now: Timestamp) -> bool {
    matches!(settling(live, now), Settling::Settled)
}

/// The effect of `spec.updateStrategy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strategy {
    /// Maximum number of pairs at once; with `stops_first`, of slots that are empty at once.
    pub(super) at_once: usize,
    /// The old instance of a slot ends before the new one starts.
    pub(super) stops_first: bool,
    /// Every old instance ends before any new one starts.
    pub(super) simultaneous: bool,
}

impl Strategy {
    /// For a workload with `slots` slots. `in_place` says that an instance, or its predecessor, uses
    /// something that two instances can't have at once.
    pub(super) fn of(spec: &WorkloadSpec, slots: u32, in_place: bool) -> Self {
        let rolling = &spec.update_strategy.rolling;
        let share = |percent: u32| u64::from(slots) * u64::from(percent);
        let surge = match rolling.max_surge {
            MaxSurge::Count(count) => u64::from(count),
            MaxSurge::Percent(percent) => share(percent).div_ceil(100),
        };
        let at_once = match (spec.kind, rolling.max_unavailable) {
            (WorkloadType::DaemonService, MaxSurge::Count(count)) => u64::from(count),
            (WorkloadType::DaemonService, MaxSurge::Percent(percent)) => share(percent) / 100,
            (WorkloadType::Service | WorkloadType::Job, _) => surge,
        };
        let simultaneous = spec.update_strategy.kind == UpdateStrategyType::Simultaneous;
        Self {
            at_once: usize::try_from(at_once.max(1)).unwrap_or(usize::MAX),
            stops_first: simultaneous || surge == 0 || in_place,
            simultaneous,
        }
    }
}

/// Whether an instance of this workload may change data that outlives it, or uses something of its
/// machine that two instances can't have at once.
pub(super) fn in_place(spec: &WorkloadSpec) -> bool {
    writes_data(spec) || spec.together().has_machine_things()
}

/// Whether a run of this Job has one instance at a time: as [`in_place`], but each instance has a GPU
/// of its own.
pub(super) fn runs_alone(spec: &WorkloadSpec) -> bool {
    writes_data(spec) || spec.together().has_common_things()
}

/// The update strategy in words: `at most 1 at a time, each stops when its successor is healthy`.
/// `too_old` are the machines of new instances whose version prepares no instance.
pub fn in_words(spec: &WorkloadSpec, too_old: &BTreeSet<&str>) -> String {
    let Strategy {
        at_once,
        stops_first,
        simultaneous,
    } = Strategy::of(spec, replicas(spec), in_place(spec));
    let how = match (simultaneous, stops_first) {
        (false, _) if spec.kind == WorkloadType::DaemonService => {
            let machines = match spec.update_strategy.rolling.max_unavailable {
                MaxSurge::Count(1) => "one machine".to_owned(),
                MaxSurge::Count(count) => format!("at most {count} machines"),
                MaxSurge::Percent(percent) => format!("at most {percent}% of the machines"),
            };
            let order = match stops_first {
                true => "stops before its successor starts",
                false => "stops when its successor is healthy",
            };
            format!("{machines} at a time, where the old one {order}")
        }
        (true, _) => "all old ones stop before any new one starts".to_owned(),
        (_, true) => "one after the other, each stops before its successor starts".to_owned(),
        _ => format!("at most {at_once} at a time, each stops when its successor is healthy"),
    };
    let how = match stops_first && !too_old.is_empty() {
        true => {
            let machines: Vec<&str> = too_old.iter().copied().collect();
            let machines = machines.join(", ");
            format!("{how}; the KAT of {machines} is too old to prepare a successor before that")
        }
        false => how,
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

/// Wanted number of instances of a Service. Those of a Job follow from its runs, and those of a
/// DaemonService from the machines ([`slots`]).
pub(super) fn replicas(spec: &WorkloadSpec) -> u32 {
    match spec.kind {
        WorkloadType::Service => spec.replicas.unwrap_or(1),
        WorkloadType::Job | WorkloadType::DaemonService => 0,
    }
}

impl WorkloadPlanner<'_, '_, '_> {
    /// Schedules a new plan for when the instance may have settled.
    pub(super) fn wake_when_settled(&mut self, live: &LiveInstance<'_>) {
        if let Settling::After(left) = settling(live, self.draft.now) {
            self.draft.wake(left);
        }
    }

    /// The rollout starts nothing new: it is paused or has stalled.
    pub(super) fn is_held(&self) -> bool {
        let stalled = self.record.rollout.as_ref().is_some_and(|one| one.stalled);
        self.entry.meta.value.paused || stalled
    }

    /// Updates the rollout record of the present generation, and rolls a stalled one back where the
    /// workload asks for that. After [`Rollback::Written`] the caller does nothing else with this
    /// snapshot.
    pub(super) fn follow(
        &mut self,
        parsed: &ParsedWorkload,
        (all, prepared): (&[LiveInstance<'_>], &[LiveInstance<'_>]),
        outcome: &WorkloadOutcome<'_>,
    ) -> Rollback {
        let now = self.draft.now;
        let meta = &self.entry.meta.value;
        let replicas = self.slots.count();
        let waits = outcome.data_moves.is_some() || outcome.start_wait.is_some();
        let mut whole = BTreeSet::new();
        let mut healthy = BTreeSet::new();
        let mut old = 0;
        for live in all.iter().filter(|live| live.is_wanted()) {
            self.wake_when_settled(live);
            if !live.current {
                old += 1;
            } else if self.slots.holds(live) && live.healthy() {
                healthy.insert(live.assignment.slot);
                if is_settled(live, now) {
                    whole.insert(live.assignment.slot);
                }
            }
        }
        let updated = u32::try_from(healthy.len()).unwrap_or(u32::MAX);
        let before = self.record.rollout.take();
        let mut before = before.filter(|one| one.generation == meta.generation);
        if let Some(progressed) = before.as_mut().and_then(|one| one.progressed.as_mut()) {
            // The leader that wrote the time may have a clock that is ahead of this one's.
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
            let stopping = all.iter().any(|live| !live.is_wanted() && !live.away);
            // Without an instance of another version, machines without a place have none at all.
            let without = u32::try_from(outcome.without_place.len()).unwrap_or(u32::MAX);
            let placed = replicas.saturating_sub(without);
            let is_whole = old == 0
                && whole.len() == usize::try_from(placed).unwrap_or(0)
                && (placed > 0 || replicas == 0);
            if is_whole && !stopping {
                self.finish(&mut rollout, placed);
            } else if meta.paused || is_whole || waits {
                // The deadline does not run while the rollout is paused or waits, or when only the
                // end of old instances is missing.
                (rollout.progressed, rollout.stalled) = (None, false);
            } else if progress || rollout.progressed.is_none() {
                (rollout.progressed, rollout.stalled) = (Some(now), false);
            }
        }
        if let Some(since) = rollout.progressed.filter(|_| !rollout.done && !meta.paused) {
            let spec = &parsed.workload.spec.update_strategy;
            let deadline = Duration::from_secs(u64::from(spec.progress_deadline_seconds));
            let left = deadline.saturating_sub(time_from(since, now));
            // For one node loss timeout a new leader may not have heard of the progress that its
            // machines have made meanwhile.
            let unheard =
                loss::timeout(self.draft.snapshot).saturating_sub(self.around.leading_for);
            match left.max(unheard) {
                Duration::ZERO => rollout.stalled = true,
                wait if !rollout.stalled => self.draft.wake(wait),
                _ => {}
            }
        }
        // Without replicas there is nothing that a rollback could mend: a user wants no instance.
        let stalled = rollout.stalled && replicas > 0;
        self.record.rollout = Some(rollout);
        if stalled && parsed.workload.spec.update_strategy.auto_rollback {
            self.go_back(all, prepared)
        } else {
            Rollback::None
        }
    }

    /// Records that all instances of the generation are healthy, so that a rollback may return to
    /// it.
    fn finish(&mut self, rollout: &mut RolloutRecord, replicas: u32) {
        (rollout.done, rollout.stalled) = (true, false);
        let generation = rollout.generation;
        if rollout.replaces > 0 {
            let message = format!("generation {generation} runs, and nothing of another version");
            self.workload_event(EventKind::Normal, EventReason::RolloutCompleted, message);
        }
        if replicas == 0 {
            // Without replicas nothing has shown that the generation works.
            return;
        }
        let kept = &self.entry.archive;
        self.record
            .good
            .retain(|good| kept.contains_key(good) && *good != generation);
        self.record.good.push(generation);
    }

    /// Writes an event when the workload becomes Stalled, once.
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
        let object = self.object(ObjectKind::Workload, self.key.name.clone());
        self.draft
            .event(&mut self.group, kind, reason, object, message);
    }
}
