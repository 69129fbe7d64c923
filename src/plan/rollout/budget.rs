//! Counts over the slots of a workload, and whether one more slot may be updated or moved.

use super::{
    Strategy,
    classify::{ClassifiedSlot, RolloutFacts, SlotState},
    slot::LiveInstance,
};

/// How many slots of a workload are disturbed, counted once from their states. A decision charges
/// the slots that it disturbs to its own copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RolloutBudget {
    pub(crate) strategy: Strategy,
    pub(crate) paused: bool,
    pub(crate) held: bool,
    /// A new instance has shown that the version works.
    pub(crate) proven: bool,
    /// Slots whose instance of the new version does not work yet.
    pub(crate) busy: usize,
    /// Slots whose instance moves to another machine.
    pub(crate) moving: usize,
    /// Slots counted in `moving` whose move may never end.
    pub(crate) stuck: usize,
    /// With `stops_first`: slots that are empty and have a place, slots whose next instance is
    /// starting, and slots whose machine does not answer.
    pub(crate) down: usize,
    /// Slots without an instance of the wanted version that may stay, whose best instance is not
    /// healthy. Machines that do not answer are not counted.
    pub(crate) ill: usize,
    /// Slots counted in `ill` whose instance is of the wanted version: it only has to leave its
    /// machine.
    pub(crate) ill_new: usize,
    /// Slots counted in `ill`, slots of the wanted version whose program has ended for good, and
    /// with `stops_first` slots whose instance does not work although nothing of another version is
    /// left, or although the rollout has stalled.
    pub(crate) broken: usize,
}

impl RolloutBudget {
    pub(crate) fn of(slots: &[ClassifiedSlot<'_, '_>], facts: &RolloutFacts<'_>) -> Self {
        let mut budget = Self {
            strategy: facts.strategy,
            paused: facts.paused,
            held: facts.held,
            proven: false,
            busy: 0,
            moving: 0,
            stuck: 0,
            down: 0,
            ill: 0,
            ill_new: 0,
            broken: 0,
        };
        for slot in slots {
            budget.count(slot, facts.rolling);
        }
        budget
    }

    fn count(&mut self, slot: &ClassifiedSlot<'_, '_>, rolling: bool) {
        let stops_first = self.strategy.stops_first;
        if stops_first && slot.begins {
            self.down += 1;
            return;
        }
        match slot.state {
            SlotState::Empty(_) => self.down += usize::from(stops_first && !slot.lacks_place),
            SlotState::Settled => self.proven = true,
            // With nothing to replace, an instance that is starting or unhealthy blocks no other
            // slot.
            SlotState::Unsettled { best } if !rolling && (best.healthy() || !stops_first) => {
                self.proven = true;
            }
            SlotState::Unsettled { best } => self.count_unsettled(best, None, rolling),
            SlotState::Pair { best, before } => self.count_unsettled(best, Some(before), rolling),
            SlotState::Moving { before } => {
                self.moving += 1;
                self.count_predecessor(before);
            }
            SlotState::StuckMove { before, .. } => {
                self.moving += 1;
                self.stuck += 1;
                self.count_predecessor(before);
            }
            SlotState::Unreachable { before }
            | SlotState::Lost { before }
            | SlotState::Ended { before }
            | SlotState::Leaving { before }
            | SlotState::Outdated { before } => self.count_predecessor(before),
        }
    }

    /// A slot whose instance of the wanted version does not work yet.
    fn count_unsettled(
        &mut self,
        best: &LiveInstance<'_>,
        before: Option<&LiveInstance<'_>>,
        rolling: bool,
    ) {
        let stops_first = self.strategy.stops_first;
        if best.away {
            self.down += usize::from(stops_first);
            return;
        }
        let stalled = self.held && !self.paused;
        let alone = before.is_none() && !rolling;
        let ill = stops_first && (stalled || alone);
        self.broken += usize::from(best.has_ended() || ill);
        if before.is_some_and(|before| before.current) {
            self.moving += 1;
        } else {
            self.busy += 1;
        }
    }

    /// A slot without an instance of the wanted version that may stay.
    fn count_predecessor(&mut self, before: &LiveInstance<'_>) {
        self.down += usize::from(self.strategy.stops_first && before.away);
        let ill = !before.away && !before.healthy();
        self.ill += usize::from(ill);
        self.ill_new += usize::from(ill && before.current);
        self.broken += usize::from(ill);
    }

    /// The budget for an update that ends a stuck move: without any of those, as they would wait for each
    /// other.
    pub(crate) fn without_stuck_moves(self) -> Self {
        Self {
            moving: self.moving - self.stuck,
            stuck: 0,
            ..self
        }
    }

    /// The budget without the move of this slot, which an update ends.
    pub(crate) fn without_move_of(self, slot: &ClassifiedSlot<'_, '_>) -> Self {
        let counted = usize::from(!(self.strategy.stops_first && slot.begins)).min(self.stuck);
        Self {
            moving: self.moving - counted,
            stuck: self.stuck - counted,
            ..self
        }
    }

    /// The budget of a slot that waits for no other one.
    pub(crate) fn without_others(self) -> Self {
        Self {
            busy: 0,
            ill_new: 0,
            down: 0,
            moving: 0,
            ..self
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        // With `stops_first` a moving instance is down during its move, so it counts even while the
        // rollout is held.
        let beside = self.held && !self.strategy.stops_first;
        let moving = if beside { 0 } else { self.moving };
        self.busy + self.ill_new + self.down + moving >= self.strategy.at_once
    }

    /// The new version has as many slots as allowed, not counting one empty slot.
    pub(crate) fn is_full_beside_one_down(&self) -> bool {
        self.busy + self.down > self.strategy.at_once
    }

    /// With `stops_first`: how many slots besides this instance's are broken.
    pub(crate) fn broken_beside(&self, live: &LiveInstance<'_>) -> usize {
        if self.strategy.stops_first {
            self.broken - usize::from(!live.healthy()).min(self.broken)
        } else {
            0
        }
    }

    /// Whether one more instance may move; `serves` says that it is healthy.
    ///
    /// A stalled rollout does not block a move. With `stops_first` a paused rollout does: its new
    /// instance may be about to work. With `stops_first` a healthy instance does not move while
    /// another slot is ill, or waits for its new version to work; an unhealthy one may, since
    /// nothing is lost.
    pub(crate) fn may_move(&self, serves: bool) -> bool {
        let apart = match self.strategy.stops_first {
            true => self.held && !self.paused && !serves,
            false => self.held,
        };
        let busy = if apart { 0 } else { self.busy };
        let ill = if self.strategy.stops_first && serves {
            self.ill
        } else {
            0
        };
        self.moving + self.down + busy + ill < self.strategy.at_once
    }
}
