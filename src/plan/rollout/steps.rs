//! Steps of a Service's rollout: one live instance for each slot, its successor beside it or after
//! it, and a growing delay before a failed one is replaced (RFC001-KAT 4.5).

use std::{collections::BTreeMap, time::Duration};

use super::slot::{LiveInstance, Slot};
use crate::{
    rollout::{Strategy, budget::RolloutBudget, in_place, replicas},
    service::WorkloadPlanner,
};
use kat_types::{
    api::InstancePhase, assignment::Assignment, backoff::Backoff, reason::EventReason,
    store::snapshot::ParsedWorkload,
};

/// Delay before a failed instance is replaced.
const DELAYS: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300));
/// After this time without a failure the delay is reset to its first value.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);
/// An instance that its machine has stopped because of its disk is placed on another machine if it
/// has not started again within this time.
const EVICTED_FOR: Duration = Duration::from_secs(300);

impl WorkloadPlanner<'_, '_, '_> {
    pub(crate) fn converge(&mut self, parsed: &ParsedWorkload, all: &[LiveInstance<'_>]) {
        let replicas = replicas(&parsed.workload.spec);
        let mut slots: BTreeMap<u32, Slot<'_, '_>> = BTreeMap::new();
        let mut surplus = Vec::new();
        // An instance whose data moves has been stopped by this plan, and nothing can fill its slot
        // yet.
        let stays = |live: &&LiveInstance<'_>| live.is_wanted() && !self.draft.stops(live.id);
        for live in all.iter().filter(stays) {
            match live.assignment.slot < replicas {
                true => slots.entry(live.assignment.slot).or_default().add(live),
                false => surplus.push(live),
            }
        }
        let spec = &parsed.workload.spec;
        let in_place = in_place(spec) || all.iter().any(|live| live.assignment.stops_first());
        let strategy = Strategy::of(spec, replicas, in_place);
        let simultaneous = strategy.simultaneous;
        // With Simultaneous, new instances wait until all instances of another version have ended,
        // so none of those may stay until a new instance serves.
        let others_end = simultaneous && !self.entry.meta.value.paused;
        self.shrink(replicas, &slots, surplus, others_end);
        self.forgive(all);
        let mut budget = self.budget_of(strategy, replicas, all, &slots);
        let mut waiting = Vec::new();
        for slot in 0..replicas {
            let here = slots.remove(&slot).unwrap_or_default();
            match (here.best(), here.predecessor()) {
                (Some(best), _) => self.converge_slot(parsed, slot, &here, best, &mut budget),
                (None, None) => self.fill(parsed, slot, &mut budget),
                (None, Some(before)) => {
                    if !self.keep_one(&here, before) {
                        waiting.push((before.healthy(), !before.leaves, slot, before));
                    }
                }
            }
        }
        // Slots with the least to lose come first: unhealthy instances, then leaving ones.
        waiting.sort_by_key(|(healthy, stays, slot, _)| (*healthy, *stays, *slot));
        for (.., slot, before) in waiting {
            self.succeed(parsed, slot, before, &mut budget);
        }
    }

    /// Stops instances beyond the wanted number: unhealthy ones first, then older versions, then
    /// the highest slots. A healthy one stays while too few of the remaining slots serve; with
    /// `others_end` only if it is of the wanted version.
    fn shrink(
        &mut self,
        replicas: u32,
        slots: &BTreeMap<u32, Slot<'_, '_>>,
        mut surplus: Vec<&LiveInstance<'_>>,
        others_end: bool,
    ) {
        let serving = slots.values().filter(|slot| slot.serves()).count();
        let mut serving = serving + surplus.iter().filter(|live| live.healthy()).count();
        surplus.sort_by_key(|live| {
            let slot = std::cmp::Reverse(live.assignment.slot);
            (live.healthy(), live.current, slot)
        });
        for live in surplus {
            let wanted = usize::try_from(replicas).unwrap_or(usize::MAX);
            let may_stay = live.current || !others_end;
            if live.healthy() && serving <= wanted && may_stay {
                if live.leaves {
                    self.can_not_leave(live, "it serves in the place of one that does not");
                    serving -= usize::from(self.draft.stops(live.id));
                }
                continue;
            }
            serving -= usize::from(live.healthy());
            self.stop(live, "fewer replicas are wanted");
        }
    }

    fn budget_of<'l>(
        &mut self,
        strategy: Strategy,
        replicas: u32,
        all: &'l [LiveInstance<'_>],
        slots: &BTreeMap<u32, Slot<'l, '_>>,
    ) -> RolloutBudget<'l> {
        let ends = |live: &&LiveInstance<'_>| {
            let phase = live.record.as_ref().map(|record| record.phase);
            let may_run = !live.away || (live.assignment.writes_data() && !live.fenced);
            !live.is_wanted() && may_run && phase != Some(InstancePhase::Stopped)
        };
        let other = |live: &&LiveInstance<'_>| !live.current;
        let mut others: Vec<_> = all.iter().filter(other).collect();
        others.sort_by_key(|live| live.is_wanted());
        let rolling = others.iter().any(|live| live.is_wanted());
        let mut budget = RolloutBudget {
            strategy,
            paused: self.entry.meta.value.paused,
            held: self.is_held(),
            proven: false,
            busy: 0,
            moving: 0,
            down: 0,
            ill: 0,
            ill_new: 0,
            broken: 0,
            ending: all
                .iter()
                .filter(ends)
                .map(|live| live.assignment.slot)
                .collect(),
            ended: all
                .iter()
                .filter(|live| !live.is_wanted() && live.current)
                .map(|live| live.assignment.slot)
                .collect(),
            away: all
                .iter()
                .filter(|live| live.away && ends(live))
                .map(|live| {
                    let LiveInstance { id, node, .. } = live;
                    let why = format!(
                        "{id} may still write to its data on {node}, which does not answer"
                    );
                    (live.assignment.slot, why)
                })
                .collect(),
            other_runs: others.iter().any(|live| live.is_wanted() && !live.away),
            bare: all.is_empty(),
            others: others
                .iter()
                .map(|live| (live.assignment.slot, live.assignment.as_ref()))
                .collect(),
        };
        for slot in 0..replicas {
            let here = slots.get(&slot);
            if strategy.stops_first && here.is_none_or(Slot::begins) {
                budget.down += 1;
                continue;
            }
            let best = here.and_then(|here| Some((here.best()?, here)));
            let Some((best, here)) = best else {
                budget.moving += usize::from(here.is_some_and(Slot::is_moving));
                let before = here.and_then(Slot::predecessor);
                let missing = before.is_none_or(|before| before.away);
                budget.down += usize::from(strategy.stops_first && missing);
                let ill = before.is_some_and(|before| !before.away && !before.healthy());
                budget.ill += usize::from(ill);
                let is_new = before.is_some_and(|before| before.current);
                budget.ill_new += usize::from(ill && is_new);
                budget.broken += usize::from(ill);
                continue;
            };
            let before = here.predecessor();
            // With nothing to replace, an instance that is starting or unhealthy blocks no other
            // slot.
            let settled = match before.is_none() && !rolling {
                true => best.healthy() || !strategy.stops_first,
                false => self.has_taken_over(best, here),
            };
            budget.proven |= settled;
            if settled {
                continue;
            }
            if best.away {
                budget.down += usize::from(strategy.stops_first);
                continue;
            }
            let stalled = budget.held && !budget.paused;
            let alone = before.is_none() && !rolling;
            let ill = strategy.stops_first && (stalled || alone);
            budget.broken += usize::from(best.has_ended() || ill);
            match before.is_some_and(|before| before.current) {
                true => budget.moving += 1,
                false => budget.busy += 1,
            }
        }
        budget
    }

    /// For a slot without an instance of the wanted version that may stay: keeps one of its
    /// instances, and stops those that are not needed. Returns true while an instance of the slot
    /// is being moved to another machine, so that the slot is not updated meanwhile.
    fn keep_one(&mut self, here: &Slot<'_, '_>, before: &LiveInstance<'_>) -> bool {
        let mover = here.mover(before);
        let moves = mover.is_some_and(|mover| !mover.healthy());
        let kept = mover.filter(|mover| mover.healthy()).unwrap_or(before);
        for live in here.outdone(kept) {
            let is_like = live.assignment.template_hash == kept.assignment.template_hash;
            match (is_like, kept.healthy() && !kept.leaves) {
                (true, true) => self.stop(live, "its successor is healthy"),
                (true, false) if is_surplus(live, kept) => {
                    self.stop(live, "its slot has another instance");
                }
                (true, false) => {}
                (false, _) => self.stop(live, "a newer version takes its place"),
            }
        }
        moves || kept.id != before.id
    }

    /// Converges a slot that has an instance of the wanted version on a machine where it may stay.
    fn converge_slot(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        here: &Slot<'_, '_>,
        best: &LiveInstance<'_>,
        budget: &mut RolloutBudget<'_>,
    ) {
        for surplus in here.surplus(best) {
            self.stop(surplus, "its slot has another instance");
        }
        if self.has_taken_over(best, here) {
            for live in here.predecessors() {
                self.stop(live, "its successor is healthy");
            }
        } else if budget.strategy.simultaneous && !budget.paused {
            // New instances of other slots wait for the end of these.
            for live in here.predecessors().filter(|live| !live.current) {
                self.stop(live, "a newer version takes its place");
            }
        } else if let Some(before) = here.predecessor() {
            for live in here.outdone(before) {
                if before.healthy() || is_surplus(live, before) {
                    self.stop(live, "its slot has another instance");
                }
            }
            if budget.held && !before.current {
                self.keep_old(parsed, slot, (best, before), budget);
            }
        }
        if best.has_ended() && !best.away && !self.draft.stops(best.id) && self.may_replace(best) {
            self.stop(best, "its program ended");
            if !budget.strategy.stops_first {
                self.create(parsed, slot);
            }
        } else if best.evicted && self.may_be_elsewhere(parsed, slot, best) {
            self.stop(best, "its machine is short of disk space");
            if !budget.strategy.stops_first {
                self.create(parsed, slot);
            }
        }
    }

    /// The rollout is held, and the old instance beside the new one can't continue where it is:
    /// another instance of the old version takes its place.
    fn keep_old(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        (best, before): (&LiveInstance<'_>, &LiveInstance<'_>),
        budget: &mut RolloutBudget<'_>,
    ) {
        if budget.strategy.stops_first || (before.away && !before.leaves) {
            return;
        }
        if before.away {
            self.replace_lost(parsed, slot, before, Some(before.assignment));
        } else if before.has_ended() {
            if self.may_replace(before) {
                self.stop(before, "its program ended");
                self.create_like(parsed, slot, before.assignment);
            }
        } else if before.leaves && !best.healthy() && budget.may_move(before.healthy()) {
            self.stop(best, "what it was to replace has to move first");
            budget.moving += 1;
            self.move_away(parsed, slot, before, (Some(before.assignment), budget));
        }
    }

    /// Creates an instance for a slot that has none. With in-place replacement it waits for the
    /// slot's old instance to end, and with Simultaneous for all old instances.
    fn fill(&mut self, parsed: &ParsedWorkload, slot: u32, budget: &mut RolloutBudget<'_>) {
        let Strategy {
            stops_first,
            simultaneous,
            ..
        } = budget.strategy;
        let waits = match simultaneous {
            true => (budget.other_runs && !budget.paused) || !budget.ending.is_empty(),
            false => stops_first && budget.ending.contains(&slot),
        };
        if waits {
            if let Some(why) = budget.away.get(&slot) {
                self.unschedulable = Some(why.clone());
            }
            return;
        }
        if let Some(earlier) = self.entry.earlier.as_ref().filter(|_| budget.bare) {
            self.create_earlier(earlier, slot);
            return;
        }
        // With in-place replacement, the old instance was stopped either to make room for the new
        // version or for a move. In a held rollout, this slot tries the new version if no other
        // slot does: otherwise the old version would be started only to be stopped again.
        let again = budget.ended.contains(&slot);
        let old_again = match (simultaneous, stops_first) {
            (true, _) => budget.paused,
            (_, true) => budget.paused || (budget.held && budget.is_full_beside_one_down()),
            _ => budget.held,
        };
        let own = budget.others.get(&slot).filter(|_| old_again && !again);
        let any = budget.others.values().next();
        let any = any.filter(|_| !again && (budget.paused || (budget.held && !stops_first)));
        self.make(parsed, slot, own.or(any).copied());
    }

    /// Places an instance of the version of `like`, or of the wanted version.
    fn make(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        like: Option<&Assignment>,
    ) -> Option<String> {
        match like {
            Some(like) => self.create_like(parsed, slot, like),
            None => self.create(parsed, slot),
        }
    }

    /// Replaces `before`, the instance that [`Self::keep_one`] kept, as far as the rollout's budget
    /// allows: by an instance of the wanted version, or of its own version (see [`Self::version`]).
    /// If its machine is drained or lost, the new instance is placed on another machine.
    fn succeed(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        before: &LiveInstance<'_>,
        budget: &mut RolloutBudget<'_>,
    ) {
        // The machine does not answer, and the instance may still run: it is not lost yet.
        if before.away && !before.leaves {
            return;
        }
        let like = self.version(before, budget);
        let Some(like) = like else { return };
        let like = like.then(|| before.assignment.as_ref());
        if before.away {
            budget.busy += usize::from(like.is_none() && !before.current);
            self.replace_lost(parsed, slot, before, like);
        } else if before.has_ended() && (before.current || like.is_some()) {
            if self.may_replace(before) {
                self.stop(before, "its program ended");
                if !budget.strategy.stops_first {
                    self.make(parsed, slot, like);
                }
            }
        } else if before.current || like.is_some() {
            if budget.may_move(before.healthy()) {
                budget.moving += 1;
                self.move_away(parsed, slot, before, (like, budget));
            } else if budget.strategy.stops_first
                && self.is_forced_out(before)
                && !self.fits(parsed, slot)
            {
                // A forced drain does not wait for other slots, which may have no machine either.
                self.is_stuck(before);
            } else if let others @ 1.. = budget.broken_beside(before) {
                let others = match others {
                    1 => "another replica does".to_owned(),
                    count => format!("{count} other replicas do"),
                };
                let why = format!(
                    "replicas are replaced in place, one after the other, and {others} not work"
                );
                self.can_not_leave(before, &why);
            } else if let Some(moving) = self.moving.as_ref().filter(|_| before.leaves) {
                let LiveInstance { id, node, .. } = before;
                self.stuck = Some(format!("{id} can't leave {node} yet: {moving}"));
            }
        } else {
            budget.busy += 1;
            if budget.strategy.stops_first && !self.has_secrets(parsed) {
                // Without the workload's secrets no successor could start, so the running instance
                // is kept.
                if before.leaves {
                    self.is_stuck(before);
                }
            } else if budget.strategy.stops_first {
                self.stop(before, "a newer version takes its place");
            } else if self.create(parsed, slot).is_none() && before.leaves {
                self.is_stuck(before);
            }
        }
    }

    /// The version that replaces an instance now: its own (`true`), the new one (`false`), or none
    /// yet.
    fn version(&self, before: &LiveInstance<'_>, budget: &RolloutBudget<'_>) -> Option<bool> {
        if before.current {
            return Some(false);
        }
        let dead = before.away || before.has_ended();
        if budget.paused || (budget.held && before.leaves) {
            return (before.leaves || dead).then_some(true);
        }
        if budget.strategy.simultaneous {
            return Some(false);
        }
        match budget.is_full() {
            false => Some(false),
            true if dead => Some(!budget.proven || budget.held),
            true => None,
        }
    }

    fn replace_lost(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        lost: &LiveInstance<'_>,
        like: Option<&Assignment>,
    ) {
        if lost.assignment.writes_data() {
            // The lost instance has ended by now, and must not start again when its machine
            // returns. Its successor is created once this stop is stored.
            if self.fits(parsed, slot) {
                self.stop(lost, "its machine is lost");
            }
            return;
        }
        if let Some(successor) = self.make(parsed, slot, like) {
            let node = lost.node;
            let message = format!("its machine {node} is lost; {successor} takes its place");
            self.instance_event(EventReason::Lost, lost.id, message);
        }
    }

    /// Moves an instance off its drained machine.
    fn move_away(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        before: &LiveInstance<'_>,
        (like, budget): (Option<&Assignment>, &RolloutBudget<'_>),
    ) {
        let stops_first = budget.strategy.stops_first;
        let done = match stops_first {
            true => self.fits(parsed, slot),
            false => self.make(parsed, slot, like).is_some(),
        };
        match done {
            true if stops_first => self.stop(before, "its machine is drained"),
            true => {}
            false => self.is_stuck(before),
        }
    }

    fn is_stuck(&mut self, live: &LiveInstance<'_>) {
        let why = self.unschedulable.as_deref().unwrap_or("no place");
        let why = format!("{why}{}", self.how_it_moves(live));
        self.can_not_leave(live, &why);
    }

    /// Whether an instance that its machine has stopped because of its disk has had [`EVICTED_FOR`]
    /// to start again there, and fits on another machine.
    fn may_be_elsewhere(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        evicted: &LiveInstance<'_>,
    ) -> bool {
        if self.draft.stops(evicted.id) {
            return false;
        }
        let since = evicted.record.as_ref().and_then(|record| record.since);
        let waited = self
            .draft
            .now
            .duration_since(since.unwrap_or(self.draft.now));
        let waited = Duration::try_from(waited).unwrap_or(Duration::ZERO);
        if let Some(left) = EVICTED_FOR
            .checked_sub(waited)
            .filter(|left| !left.is_zero())
        {
            self.draft.wake(left);
            return false;
        }
        // A lack of other machines is not a reason of its own for the workload's status.
        let unschedulable = self.unschedulable.clone();
        let fits = self.fits(parsed, slot);
        self.unschedulable = unschedulable;
        fits
    }

    /// Whether the delay has passed after which an instance whose program ended for good is
    /// replaced. Counts the failure if it has.
    fn may_replace(&mut self, failed: &LiveInstance<'_>) -> bool {
        let since = failed.record.as_ref().and_then(|record| record.since);
        let ended = since.unwrap_or(self.draft.now);
        let delay = DELAYS.after(self.record.failures);
        let waited = self.draft.now.duration_since(ended);
        let waited = Duration::try_from(waited).unwrap_or(Duration::ZERO);
        if waited < delay {
            self.draft.wake(delay - waited);
            return false;
        }
        self.record.failures = self.record.failures.saturating_add(1);
        self.record.last_failure = Some(self.draft.now);
        true
    }

    fn forgive(&mut self, all: &[LiveInstance<'_>]) {
        let Some(last) = self.record.last_failure else {
            return;
        };
        let quiet = self.draft.now.duration_since(last);
        let quiet = Duration::try_from(quiet).unwrap_or(Duration::ZERO);
        let mut wanted = all.iter().filter(|live| live.is_wanted());
        if quiet >= FORGIVEN_AFTER && wanted.all(|live| !live.has_ended()) {
            self.record.failures = 0;
            self.record.last_failure = None;
        }
    }
}

/// Both instances are of one version, `kept` does not leave its machine, and both machines answer:
/// as after the return of a machine whose instance was replaced.
fn is_surplus(live: &LiveInstance<'_>, kept: &LiveInstance<'_>) -> bool {
    let is_like = live.assignment.template_hash == kept.assignment.template_hash;
    is_like && !kept.leaves && !kept.away && !live.away
}
