//! The three steps of a Service's rollout (RFC001-KAT 4.5): [`classify_all`] reads the state of each
//! slot, [`decide`] chooses what to do in which slot, and [`WorkloadPlanner::apply`] writes it or
//! returns what blocks it.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Strategy,
    blocked::Blocked,
    budget::RolloutBudget,
    classify::{RolloutFacts, WantedSlots, classify_all, may_be_ending, remains},
    decide::{SlotStep, decide, decide_surplus},
    in_place, replicas,
    slot::LiveInstance,
};
use crate::service::WorkloadPlanner;
use kat_types::store::snapshot::ParsedWorkload;

/// After this time without a failure the delay is reset to its first value.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

impl WorkloadPlanner<'_, '_, '_> {
    /// Brings the slots of a Service one step closer to the wanted version and number. `data_moves`
    /// says how far the move of its data is.
    pub(crate) fn converge(
        &mut self,
        parsed: &ParsedWorkload,
        all: &[LiveInstance<'_>],
        data_moves: Option<&str>,
    ) -> Vec<Blocked> {
        self.forgive(all);
        let steps = self.steps(parsed, all, data_moves.is_some());
        let apply = |step| self.apply(parsed, step, data_moves).err();
        steps.into_iter().filter_map(apply).collect()
    }

    fn steps<'l, 'i>(
        &self,
        parsed: &ParsedWorkload,
        all: &'l [LiveInstance<'i>],
        data_moves: bool,
    ) -> Vec<SlotStep<'l, 'i>> {
        let replicas = replicas(&parsed.workload.spec);
        let facts = self.facts(parsed, all, data_moves);
        let stopped = all.iter().filter(|live| self.draft.stops(live.id));
        let stopped: BTreeSet<&str> = stopped.map(|live| live.id).collect();
        let wanted = WantedSlots::of(all, replicas, &stopped);
        let slots = classify_all(all, &wanted, replicas, &facts);
        let budget = RolloutBudget::of(&slots, &facts);
        let mut steps = decide_surplus(&wanted, replicas, &facts);
        steps.extend(decide(&slots, &facts, budget));
        steps
    }

    fn facts<'l>(
        &self,
        parsed: &ParsedWorkload,
        all: &'l [LiveInstance<'_>],
        data_moves: bool,
    ) -> RolloutFacts<'l> {
        let spec = &parsed.workload.spec;
        let in_place = in_place(spec) || all.iter().any(|live| live.assignment.stops_first());
        let others = || all.iter().filter(|live| !live.current && live.is_wanted());
        RolloutFacts {
            strategy: Strategy::of(spec, replicas(spec), in_place),
            now: self.draft.now,
            paused: self.entry.meta.value.paused,
            held: self.is_held(),
            rolling: others().next().is_some(),
            other_runs: others().any(|live| !live.away),
            any_ending: all.iter().any(may_be_ending),
            other: remains(all).values().find_map(|here| here.other),
            starts_earlier: all.is_empty() && self.entry.earlier.is_some(),
            data_moves,
            failures: self.record.failures,
        }
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
