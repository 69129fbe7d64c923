//! The three steps of a rollout (RFC001-KAT 4.5): [`classify_all`] reads the state of each
//! slot, [`decide`] chooses what to do in which slot, and [`WorkloadPlanner::apply`] writes it or
//! returns what blocks it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Strategy,
    blocked::{Blocked, WorkloadOutcome},
    budget::RolloutBudget,
    classify::{RolloutFacts, WantedSlots, classify_all, may_be_ending, remains},
    decide::{NextVersion, SlotAction, SlotStep, decide, decide_surplus},
    in_place,
    slot::LiveInstance,
    slots::SlotSet,
};
use crate::{instances::create::StartTime, service::WorkloadPlanner};
use kat_types::{resource::WorkloadSpec, store::snapshot::ParsedWorkload};

/// After this time without a failure the delay is reset to its first value.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

impl WorkloadPlanner<'_, '_, '_> {
    /// Brings the slots of a workload one step closer to the wanted version and number. Instances of
    /// `prepared` that can't become successors are removed.
    pub(crate) fn converge(
        &mut self,
        parsed: &ParsedWorkload,
        (all, prepared): (&[LiveInstance<'_>], &[LiveInstance<'_>]),
        outcome: &WorkloadOutcome<'_>,
    ) -> Vec<Blocked> {
        self.forgive(all);
        let successors = self.successors(parsed, all, prepared);
        let steps = self.steps(parsed, all, &successors, outcome);
        let data_moves = outcome.data_moves.as_ref();
        let data_moves = data_moves.map(|moving| moving.far.as_str());
        let apply = |step| self.apply(parsed, step, data_moves).err();
        steps.into_iter().filter_map(apply).collect()
    }

    fn steps<'l, 'i>(
        &self,
        parsed: &ParsedWorkload,
        all: &'l [LiveInstance<'i>],
        successors: &[&'l LiveInstance<'i>],
        outcome: &WorkloadOutcome<'_>,
    ) -> Vec<SlotStep<'l, 'i>> {
        let facts = self.facts(parsed, all, outcome);
        let stopped = all.iter().filter(|live| self.draft.stops(live.id));
        let stopped: BTreeSet<&str> = stopped.map(|live| live.id).collect();
        let wanted = WantedSlots::of(all, successors, &self.slots, &stopped);
        let slots = classify_all(all, &wanted, &self.slots, &facts);
        let budget = RolloutBudget::of(&slots, &facts);
        let mut steps = decide_surplus(&wanted, &self.slots, &facts);
        steps.extend(decide(&slots, &facts, budget));
        if outcome.start_wait.is_some() {
            steps.retain(|step| !starts_next_version(step.action));
        }
        steps
    }

    /// The instances of `prepared` that can start in their slots; removes the others.
    fn successors<'l, 'i>(
        &mut self,
        parsed: &ParsedWorkload,
        all: &[LiveInstance<'_>],
        prepared: &'l [LiveInstance<'i>],
    ) -> Vec<&'l LiveInstance<'i>> {
        let mut successors: BTreeMap<u32, &LiveInstance<'_>> = BTreeMap::new();
        for live in prepared {
            let slot = live.assignment.slot;
            let has_slot = self.slots.holds(live)
                && !successors.contains_key(&slot)
                && !all.iter().any(|other| takes(other, slot));
            if has_slot && self.may_start(parsed, live) {
                successors.insert(slot, live);
            } else {
                self.remove_prepared(live);
            }
        }
        successors.into_values().collect()
    }

    fn facts<'l>(
        &self,
        parsed: &ParsedWorkload,
        all: &'l [LiveInstance<'_>],
        outcome: &WorkloadOutcome<'_>,
    ) -> RolloutFacts<'l> {
        let spec = &parsed.workload.spec;
        // A version that starts after another workload replaces nothing until then.
        let waits = outcome.start_wait.is_some();
        let others = || all.iter().filter(|live| !live.current && live.is_wanted());
        RolloutFacts {
            strategy: self.strategy(spec, all),
            now: self.draft.now,
            paused: self.entry.meta.value.paused || waits,
            held: self.is_held() || waits,
            rolling: others().next().is_some(),
            other_runs: others().any(|live| !live.away),
            any_ending: all.iter().any(may_be_ending),
            other: remains(all, &self.slots)
                .values()
                .find_map(|here| here.other),
            starts_earlier: all.is_empty() && self.entry.earlier.is_some(),
            data_moves: outcome.data_moves.is_some(),
            without_place: outcome.without_place.clone(),
            failures: self.record.failures,
        }
    }

    fn strategy(&self, spec: &WorkloadSpec, all: &[LiveInstance<'_>]) -> Strategy {
        let in_place = in_place(spec) || all.iter().any(|live| live.assignment.stops_first());
        Strategy::of(spec, self.slots.count(), in_place)
    }

    /// The slots of a DaemonService whose machines have no room for the present version, or cannot run
    /// it. A slot that has an instance of it, or in which an instance is still ending, is not among
    /// them; nor is any with Simultaneous, where all machines wait for each other.
    pub(crate) fn slots_without_place(
        &mut self,
        parsed: &ParsedWorkload,
        (all, prepared): (&[LiveInstance<'_>], &[LiveInstance<'_>]),
    ) -> BTreeSet<u32> {
        let strategy = self.strategy(&parsed.workload.spec, all);
        let SlotSet::Machines(machines) = &self.slots else {
            return BTreeSet::new();
        };
        let is_known = |live: &&LiveInstance<'_>| live.current || live.away || may_be_ending(live);
        let known = all.iter().chain(prepared).filter(is_known);
        let known = self.slots.slots_of(known);
        let served = all.iter().filter(|live| live.is_wanted());
        let served = self.slots.slots_of(served);
        let machines = machines.iter().map(|(slot, node)| (*slot, *node));
        let open: Vec<(u32, &str)> = machines
            .filter(|(slot, _)| !strategy.simultaneous && !known.contains(slot))
            .collect();
        let lacks_place = |(slot, node): (u32, &str)| {
            let beside = !strategy.stops_first && served.contains(&slot);
            let start = match beside {
                true => StartTime::Now,
                false => StartTime::AfterSlot,
            };
            (!self.has_place(parsed, (slot, node), start)).then_some(slot)
        };
        open.into_iter().filter_map(lacks_place).collect()
    }

    fn forgive(&mut self, all: &[LiveInstance<'_>]) {
        let Some(last) = self.record.last_failure else {
            return;
        };
        let quiet = super::time_from(last, self.draft.now);
        let mut wanted = all.iter().filter(|live| live.is_wanted());
        if quiet >= FORGIVEN_AFTER && wanted.all(|live| !live.has_ended()) {
            self.record.failures = 0;
            self.record.last_failure = None;
        }
    }
}

/// The step fills an empty slot with an instance of another version than one that runs.
fn starts_next_version(action: SlotAction<'_, '_>) -> bool {
    matches!(
        action,
        SlotAction::Create(NextVersion::Wanted | NextVersion::Earlier) | SlotAction::Start(_)
    )
}

/// The instance keeps the slot, as one of the wanted version that may stay.
fn takes(live: &LiveInstance<'_>, slot: u32) -> bool {
    live.is_wanted() && live.current && !live.leaves && live.assignment.slot == slot
}
