//! Second step of a rollout: what to do in which slot, and in which order. Pure.
//!
//! A step is charged to the budget when it is decided. One that then cannot be applied keeps its
//! share until the next plan, so that no decision depends on the outcome of another one.

use std::{cmp::Reverse, time::Duration};

use super::{
    Strategy,
    budget::RolloutBudget,
    classify::{ClassifiedSlot, RolloutFacts, SlotRemains, SlotState, StopReason, WantedSlots},
    slot::{LiveInstance, Slot},
    slots::SlotSet,
    time_from,
};
use kat_types::{assignment::Assignment, backoff::Backoff};

/// Delay before a failed instance is replaced.
const DELAYS: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300));
/// An instance that its machine has stopped because of its disk is placed on another machine if it
/// has not started again within this time.
const EVICTED_FOR: Duration = Duration::from_secs(300);

/// The version of a new instance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum NextVersion<'l> {
    /// The wanted one.
    Wanted,
    /// The version of this assignment, whose files may be gone.
    Like(&'l Assignment),
    /// An earlier one, of which only its files are left.
    Earlier,
}

/// One step in one slot.
#[derive(Clone, Copy)]
pub(crate) struct SlotStep<'l, 'a> {
    pub(crate) slot: u32,
    pub(crate) action: SlotAction<'l, 'a>,
}

#[derive(Clone, Copy)]
pub(crate) enum SlotAction<'l, 'a> {
    Stop(&'l LiveInstance<'a>, StopReason),
    Create(NextVersion<'l>),
    /// Starts the prepared successor of an instance that has ended.
    Start(&'l LiveInstance<'a>),
    /// Creates the successor of an instance, which its machine prepares and does not start: the
    /// instance is of another version, or has to leave its machine. Where the machine's version does
    /// not know that, the instance is stopped first.
    Prepare(&'l LiveInstance<'a>),
    /// An instance that has to leave its machine waits until its successor, the second one, is
    /// prepared.
    AwaitSuccessor(&'l LiveInstance<'a>, &'l LiveInstance<'a>),
    /// Stops an instance of another version. Its successor starts when it has ended.
    UpdateInPlace(&'l LiveInstance<'a>),
    /// Creates an instance of the wanted version beside one of another version.
    UpdateBeside(&'l LiveInstance<'a>),
    /// Stops an instance that has to leave its machine, if its successor would find a place. The
    /// successor is created when the instance has ended.
    MoveInPlace(&'l LiveInstance<'a>),
    /// Stops an instance that has to leave its machine. Its prepared successor starts when it has
    /// ended.
    MoveToSuccessor(&'l LiveInstance<'a>),
    /// Creates the successor of an instance that has to leave its machine.
    MoveBeside(&'l LiveInstance<'a>, NextVersion<'l>),
    /// On a machine that is drained by force, without budget for a move: stops the instance if it
    /// has no other place or other replicas are broken; otherwise it waits.
    ForceOut(&'l LiveInstance<'a>, Option<Waiting>),
    /// Replaces an instance on a lost machine.
    ReplaceLost(&'l LiveInstance<'a>, NextVersion<'l>),
    /// Stops an instance whose program has ended for good, and counts that failure. Without a
    /// version, its successor is created when its machine has confirmed the end.
    ReplaceEnded(&'l LiveInstance<'a>, Option<NextVersion<'l>>),
    /// Replaces an instance that its machine has stopped because of its disk, if there is another
    /// place. Without a version, the successor is created when its end is confirmed.
    ReplaceEvicted(&'l LiveInstance<'a>, Option<NextVersion<'l>>),
    /// The slot waits for the end of this instance, whose machine does not answer.
    AwaitEnd(&'l LiveInstance<'a>),
    /// Reports why an instance cannot leave its machine; a forced drain stops it unless its data
    /// moves.
    CannotLeave(&'l LiveInstance<'a>, Waiting),
    /// Plans again after this time.
    Wait(Duration),
}

/// What an instance that has to leave its machine waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Another instance does not serve.
    ServesForAnother,
    /// With in-place replacement: this many other replicas do not work.
    OthersBroken(usize),
    /// The data of the workload is being moved.
    DataMoves,
}

/// The steps of all slots, in the order in which they are applied.
pub(crate) fn decide<'l, 'a>(
    slots: &[ClassifiedSlot<'l, 'a>],
    facts: &RolloutFacts<'l>,
    budget: RolloutBudget,
) -> Vec<SlotStep<'l, 'a>> {
    let mut decision = Decision {
        facts,
        budget,
        failures: facts.failures,
        all_prepared: slots.iter().all(|slot| !awaits_successor(slot)),
        steps: Vec::new(),
    };
    let mut waiting = Vec::new();
    for slot in slots {
        let number = slot.number;
        for (live, reason) in &slot.unneeded {
            decision.step(number, SlotAction::Stop(live, *reason));
        }
        match slot.state {
            SlotState::Empty(remains) => decision.fill(slot, remains),
            SlotState::Unsettled { best } => decision.replace_broken(number, best),
            SlotState::Pair { best, before } => decision.keep_pair(number, best, before),
            SlotState::Settled | SlotState::Moving { .. } | SlotState::Unreachable { .. } => {}
            SlotState::Lost { before }
            | SlotState::Ended { before }
            | SlotState::Leaving { before }
            | SlotState::StuckMove { before, .. }
            | SlotState::Outdated { before } => waiting.push((slot, before)),
        }
    }
    // Slots with the least to lose come first: unhealthy instances, then leaving ones.
    waiting.sort_by_key(|(slot, before)| (before.healthy(), !before.leaves, slot.number));
    for (slot, before) in waiting {
        decision.succeed(slot, before);
    }
    decision.steps
}

/// An instance of another version is to be replaced, or has ended, and its successor is not prepared
/// yet.
fn awaits_successor(slot: &ClassifiedSlot<'_, '_>) -> bool {
    let prepared = slot.successor.is_some_and(LiveInstance::is_prepared);
    match slot.state {
        SlotState::Ended { before }
        | SlotState::Leaving { before }
        | SlotState::StuckMove { before, .. }
        | SlotState::Outdated { before } => !before.current && !before.forced_out && !prepared,
        SlotState::Empty(_) => slot.is_preparing(),
        _ => false,
    }
}

/// How an instance moves off its drained machine that ends before its successor starts. One that
/// serves waits until its successor is prepared, unless the drain is forced. Only an instance of the
/// wanted version has a successor to prepare, since no other one is ever prepared.
fn move_in_place<'l, 'a>(
    here: &ClassifiedSlot<'l, 'a>,
    before: &'l LiveInstance<'a>,
) -> SlotAction<'l, 'a> {
    let waits = before.current && before.healthy() && !before.forced_out;
    match here.successor {
        Some(successor) if before.current && successor.is_prepared() => {
            SlotAction::MoveToSuccessor(before)
        }
        None if waits => SlotAction::Prepare(before),
        Some(successor) if waits => SlotAction::AwaitSuccessor(before, successor),
        _ => SlotAction::MoveInPlace(before),
    }
}

/// Stops instances beyond the wanted number: unhealthy ones first, then older versions, then the
/// highest slots. A healthy one stays while too few of the remaining slots serve; of two of one version
/// in one slot, as after the return of a lost machine, one. An instance on a machine that a
/// DaemonService does not want serves for no other machine.
pub(crate) fn decide_surplus<'l, 'a>(
    wanted: &WantedSlots<'l, 'a>,
    slots: &SlotSet<'_>,
    facts: &RolloutFacts<'_>,
) -> Vec<SlotStep<'l, 'a>> {
    let needed = match slots {
        SlotSet::Replicas(count) => *count,
        SlotSet::Machines(_) => 0,
    };
    let reason = |live: &LiveInstance<'_>| match slots {
        SlotSet::Replicas(_) => StopReason::FewerReplicas,
        SlotSet::Machines(_) if live.leaves => StopReason::MachineIsDrained,
        SlotSet::Machines(_) => StopReason::MachineDoesNotMatch,
    };
    let needed = usize::try_from(needed).unwrap_or(usize::MAX);
    // With Simultaneous, new instances wait until all instances of another version have ended, so
    // none of those may stay until a new instance serves.
    let others_end = facts.strategy.simultaneous && !facts.paused;
    let mut surplus = wanted.surplus.clone();
    surplus.sort_by_key(|live| {
        let one = live.assignment;
        let version = (Reverse(one.slot), one.template_hash.as_str());
        let best_last = (!live.leaves, Reverse((one.created, live.id)));
        (live.healthy(), live.current, version, best_last)
    });
    let serving = wanted.slots.values().filter(|slot| Slot::serves(slot));
    let mut serving = serving.count() + surplus.iter().filter(|live| live.healthy()).count();
    let mut steps = Vec::new();
    let mut surplus = surplus.into_iter().peekable();
    while let Some(live) = surplus.next() {
        let slot = live.assignment.slot;
        let may_stay = live.current || !others_end;
        let doubled = live.healthy()
            && surplus.peek().is_some_and(|next| {
                next.assignment.slot == slot
                    && next.assignment.template_hash == live.assignment.template_hash
            });
        let stays = live.healthy() && serving <= needed && may_stay && !doubled;
        // A forced drain stops it although it is needed.
        if !stays || live.forced_out {
            serving -= usize::from(live.healthy());
        }
        let action = match (stays, live.leaves) {
            (true, false) => continue,
            (true, true) => SlotAction::CannotLeave(live, Waiting::ServesForAnother),
            (false, _) if doubled => SlotAction::Stop(live, StopReason::SlotIsTaken),
            (false, _) => SlotAction::Stop(live, reason(live)),
        };
        steps.push(SlotStep { slot, action });
    }
    steps
}

struct Decision<'f, 'l, 'a> {
    facts: &'f RolloutFacts<'l>,
    budget: RolloutBudget,
    failures: u32,
    /// Every instance that the wanted version replaces in its slot has a prepared successor.
    all_prepared: bool,
    steps: Vec<SlotStep<'l, 'a>>,
}

impl<'l, 'a> Decision<'_, 'l, 'a> {
    fn step(&mut self, slot: u32, action: SlotAction<'l, 'a>) {
        self.steps.push(SlotStep { slot, action });
    }

    /// Creates an instance for a slot that has none. With in-place replacement it waits for the
    /// slot's old instance to end, and with Simultaneous for all old instances.
    ///
    /// While the slot's next instance cannot be prepared, one of the old version takes its place
    /// again: the old program had ended by itself.
    fn fill(&mut self, here: &ClassifiedSlot<'l, 'a>, remains: SlotRemains<'l, 'a>) {
        let slot = here.number;
        let Strategy {
            stops_first,
            simultaneous,
            ..
        } = self.facts.strategy;
        // With Simultaneous no slot gets its next instance while that of another cannot be prepared.
        let waits_for_others = simultaneous && !self.all_prepared && here.successor.is_some();
        let again = remains
            .other
            .filter(|_| (here.is_preparing() || waits_for_others) && !remains.was_current);
        let waits = match simultaneous && again.is_none() {
            true => (self.facts.other_runs && !self.facts.paused) || self.facts.any_ending,
            false => stops_first && remains.ending,
        };
        match remains.unknown {
            Some(unknown) if waits => self.step(slot, SlotAction::AwaitEnd(unknown)),
            None if waits => {}
            _ if self.facts.starts_earlier => {
                self.step(slot, SlotAction::Create(NextVersion::Earlier));
            }
            _ => {
                let like = again.or_else(|| self.like_for_empty(remains));
                let action = match (like, here.successor) {
                    (Some(like), _) => SlotAction::Create(NextVersion::Like(like)),
                    (None, Some(successor)) => SlotAction::Start(successor),
                    (None, None) => SlotAction::Create(NextVersion::Wanted),
                };
                self.step(slot, action);
            }
        }
    }

    /// The assignment of another version that an empty slot gets again.
    fn like_for_empty(&self, remains: SlotRemains<'l, 'a>) -> Option<&'l Assignment> {
        if remains.was_current {
            return None;
        }
        let RolloutFacts { paused, held, .. } = *self.facts;
        let Strategy {
            stops_first,
            simultaneous,
            ..
        } = self.facts.strategy;
        // With in-place replacement, the old instance was stopped either to make room for the new
        // version or for a move. In a held rollout, this slot tries the new version if no other
        // slot does: otherwise the old version would be started only to be stopped again.
        let own_again = match (simultaneous, stops_first) {
            (true, _) => paused,
            (_, true) => paused || (held && self.budget.is_full_beside_one_down()),
            _ => held,
        };
        let any_again = paused || (held && !stops_first);
        let own = remains.other.filter(|_| own_again);
        own.or(self.facts.other.filter(|_| any_again))
    }

    /// The rollout may be held, and the old instance beside the new one unable to continue where it
    /// is: another instance of the old version takes its place.
    fn keep_pair(&mut self, slot: u32, best: &'l LiveInstance<'a>, before: &'l LiveInstance<'a>) {
        let RolloutFacts { strategy, held, .. } = *self.facts;
        let keeps_old = held && !before.current && !strategy.stops_first;
        let like = NextVersion::Like(before.assignment);
        match SlotState::of_predecessor(before) {
            SlotState::Lost { .. } if keeps_old => {
                self.step(slot, SlotAction::ReplaceLost(before, like));
            }
            SlotState::Ended { .. } if keeps_old => self.replace_ended(slot, before, Some(like)),
            SlotState::Leaving { .. }
                if keeps_old && !best.healthy() && self.budget.may_move(before.healthy()) =>
            {
                self.budget.moving += 1;
                self.step(
                    slot,
                    SlotAction::Stop(best, StopReason::PredecessorMovesFirst),
                );
                self.step(slot, SlotAction::MoveBeside(before, like));
                return;
            }
            _ => {}
        }
        self.replace_broken(slot, best);
    }

    /// Replaces an instance of the wanted version that has failed, or that its machine has stopped.
    fn replace_broken(&mut self, slot: u32, best: &'l LiveInstance<'a>) {
        let beside = !self.facts.strategy.stops_first;
        let next = beside.then_some(NextVersion::Wanted);
        if best.has_ended() && !best.away {
            self.replace_ended(slot, best, next);
        } else if best.evicted {
            let now = self.facts.now;
            let since = best.record.and_then(|record| record.since);
            let waited = time_from(since.unwrap_or(now), now);
            match EVICTED_FOR.saturating_sub(waited) {
                Duration::ZERO => self.step(slot, SlotAction::ReplaceEvicted(best, next)),
                left => self.step(slot, SlotAction::Wait(left)),
            }
        }
    }

    /// Replaces `before` as far as the budget allows: by an instance of the wanted version, or of
    /// its own version (see [`Self::version`]). If its machine is drained or lost, the new instance
    /// is placed on another machine.
    fn succeed(&mut self, here: &ClassifiedSlot<'l, 'a>, before: &'l LiveInstance<'a>) {
        let slot = here.number;
        if let SlotState::StuckMove { mover, .. } = here.state {
            return self.give_up_move(here, before, mover);
        }
        let Some(next) = self.version(here, before) else {
            return;
        };
        let stops_first = self.facts.strategy.stops_first;
        let updates = !before.current && next == NextVersion::Wanted;
        match here.state {
            SlotState::Lost { .. } => {
                self.budget.busy += usize::from(updates);
                self.step(slot, SlotAction::ReplaceLost(before, next));
            }
            _ if updates => {
                self.budget.busy += usize::from(!here.lacks_place);
                match stops_first {
                    true => self.update_in_place(here, before),
                    false => self.step(slot, SlotAction::UpdateBeside(before)),
                }
            }
            SlotState::Ended { .. } => {
                self.replace_ended(slot, before, (!stops_first).then_some(next));
            }
            _ => self.move_away(here, before, next),
        }
    }

    /// An instance of the wanted version takes the place of one that was to replace `before` on
    /// another machine and does not work.
    fn give_up_move(
        &mut self,
        here: &ClassifiedSlot<'l, 'a>,
        before: &'l LiveInstance<'a>,
        mover: &'l LiveInstance<'a>,
    ) {
        let budget = self.budget.without_stuck_moves();
        if self.version_within(&budget, before) != Some(NextVersion::Wanted) {
            return;
        }
        self.budget = self.budget.without_move_of(here);
        self.budget.busy += 1;
        let slot = here.number;
        self.step(slot, SlotAction::Stop(mover, StopReason::NewerVersion));
        match self.facts.strategy.stops_first {
            true => self.update_in_place(here, before),
            false => self.step(slot, SlotAction::UpdateBeside(before)),
        }
    }

    /// Has the successor of an instance prepared, and then stops the instance; with Simultaneous once
    /// every successor is prepared. A forced drain waits for no successor.
    fn update_in_place(&mut self, here: &ClassifiedSlot<'l, 'a>, before: &'l LiveInstance<'a>) {
        let slot = here.number;
        let waits_for_others = self.facts.strategy.simultaneous && !self.all_prepared;
        match (here.state, here.successor) {
            _ if before.forced_out => self.step(slot, SlotAction::UpdateInPlace(before)),
            (_, None) => self.step(slot, SlotAction::Prepare(before)),
            (_, Some(successor)) if successor.is_prepared() && !waits_for_others => {
                self.step(slot, SlotAction::UpdateInPlace(before));
            }
            (SlotState::Ended { .. }, Some(_)) => self.replace_ended(slot, before, None),
            (_, Some(_)) => {}
        }
    }

    /// Moves an instance off its drained machine, or says what it waits for.
    fn move_away(
        &mut self,
        here: &ClassifiedSlot<'l, 'a>,
        before: &'l LiveInstance<'a>,
        next: NextVersion<'l>,
    ) {
        let slot = here.number;
        let stops_first = self.facts.strategy.stops_first;
        if self.budget.may_move(before.healthy()) {
            self.budget.moving += 1;
            let action = match stops_first {
                true => move_in_place(here, before),
                false => SlotAction::MoveBeside(before, next),
            };
            return self.step(slot, action);
        }
        let waiting = match self.budget.broken_beside(before) {
            0 => self.facts.data_moves.then_some(Waiting::DataMoves),
            others => Some(Waiting::OthersBroken(others)),
        };
        if stops_first && before.forced_out {
            // A forced drain does not wait for other slots, which may have no machine either.
            self.step(slot, SlotAction::ForceOut(before, waiting));
        } else if let Some(waiting) = waiting {
            self.step(slot, SlotAction::CannotLeave(before, waiting));
        }
    }

    fn version(
        &self,
        here: &ClassifiedSlot<'l, 'a>,
        before: &'l LiveInstance<'a>,
    ) -> Option<NextVersion<'l>> {
        // The step of a slot without a place only says why: it waits for no other slot.
        let budget = match here.lacks_place && !before.has_ended() {
            true => self.budget.without_others(),
            false => self.budget,
        };
        self.version_within(&budget, before)
    }

    /// The version that replaces an instance now: its own, the wanted one, or none yet.
    fn version_within(
        &self,
        budget: &RolloutBudget,
        before: &'l LiveInstance<'a>,
    ) -> Option<NextVersion<'l>> {
        let wanted = NextVersion::Wanted;
        let own = NextVersion::Like(before.assignment);
        if before.current {
            return Some(wanted);
        }
        let dead = before.away || before.has_ended();
        if budget.paused || (budget.held && before.leaves) {
            return (before.leaves || dead).then_some(own);
        }
        if budget.strategy.simultaneous {
            return Some(wanted);
        }
        match budget.is_full() {
            false => Some(wanted),
            true if dead && (!budget.proven || budget.held) => Some(own),
            true if dead => Some(wanted),
            true => None,
        }
    }

    /// Replaces an instance whose program ended for good, once the delay has passed. That counts the
    /// failure, which makes the next delay longer.
    fn replace_ended(
        &mut self,
        slot: u32,
        failed: &'l LiveInstance<'a>,
        next: Option<NextVersion<'l>>,
    ) {
        let now = self.facts.now;
        let since = failed.record.and_then(|record| record.since);
        let waited = time_from(since.unwrap_or(now), now);
        let delay = DELAYS.after(self.failures);
        if waited < delay {
            return self.step(slot, SlotAction::Wait(delay - waited));
        }
        self.failures = self.failures.saturating_add(1);
        self.step(slot, SlotAction::ReplaceEnded(failed, next));
    }
}

#[cfg(test)]
mod tests;
