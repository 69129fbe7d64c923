//! Counts over the slots of a workload, and whether one more slot may be updated or moved.

use std::collections::{BTreeMap, BTreeSet};

use super::slot::LiveInstance;
use crate::rollout::Strategy;
use kat_types::assignment::Assignment;

/// State of all slots of a workload, updated while a plan goes through them.
pub(crate) struct RolloutBudget<'l> {
    pub(crate) strategy: Strategy,
    /// The rollout is paused: no new instance replaces one of an older version.
    pub(crate) paused: bool,
    /// The rollout is paused or has stalled: a failed instance is replaced by one of its own
    /// version.
    pub(crate) held: bool,
    /// A new instance has shown that the version works.
    pub(crate) proven: bool,
    /// Slots whose instance of the new version does not work yet.
    pub(crate) busy: usize,
    /// Slots whose instance moves to another machine.
    pub(crate) moving: usize,
    /// With `stops_first`: slots that are empty, slots whose next instance is starting, and slots
    /// whose machine does not answer.
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
    /// Slots in which an instance that is being stopped may not have ended yet.
    pub(crate) ending: BTreeSet<u32>,
    /// Slots of `ending` whose machine does not answer, with the reason why nobody can tell whether
    /// the instance has ended.
    pub(crate) away: BTreeMap<u32, String>,
    /// A wanted instance of another version is on a machine that answers.
    pub(crate) other_runs: bool,
    /// Slots in which an instance of the wanted version is being stopped.
    pub(crate) ended: BTreeSet<u32>,
    /// The workload has no instance of any version.
    pub(crate) bare: bool,
    /// By slot, an assignment of another version: a wanted one, or else one that is being stopped.
    pub(crate) others: BTreeMap<u32, &'l Assignment>,
}

impl RolloutBudget<'_> {
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
        match self.strategy.stops_first {
            true => self.broken - usize::from(!live.healthy()).min(self.broken),
            false => 0,
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
