//! How far the slots of a workload are, while a plan goes through them: what may begin beside it.

use std::collections::{BTreeMap, BTreeSet};

use super::slot::LiveInstance;
use crate::rollout::Strategy;
use kat_types::assignment::Assignment;

/// What is known while the slots of a workload are gone through.
pub(crate) struct RolloutBudget<'l> {
    pub(crate) strategy: Strategy,
    /// Nothing new is to take the place of an older version.
    pub(crate) paused: bool,
    /// The same, or the new version goes nowhere: what fails is replaced by its own version.
    pub(crate) held: bool,
    /// A new instance has shown that the version works.
    pub(crate) proven: bool,
    /// Slots whose instance of the new version does not work yet.
    pub(crate) busy: usize,
    /// Slots whose instance moves to another machine.
    pub(crate) moving: usize,
    /// Where what is replaced stops first: slots that have been emptied, and whose next instance is on its
    /// way, or whose machine is away.
    pub(crate) down: usize,
    /// Slots that have nothing but an instance that is to go, of an earlier version or from its machine, and does
    /// not serve.
    pub(crate) ill: usize,
    /// Those of them whose instance is of the wanted version: it is to go from its machine.
    pub(crate) ill_new: usize,
    /// Slots that are ill, and slots of the wanted version whose program has ended for good.
    pub(crate) broken: usize,
    /// Slots in which something is still to end.
    pub(crate) ending: BTreeSet<u32>,
    /// Of those, why nobody can tell whether it has.
    pub(crate) away: BTreeMap<u32, String>,
    /// An instance of another version runs where its machine answers.
    pub(crate) other_runs: bool,
    /// Slots in which an instance of the wanted version ends.
    pub(crate) ended: BTreeSet<u32>,
    /// Nothing is left of any version.
    pub(crate) bare: bool,
    /// By slot, an instance of another version, also one that has just ended.
    pub(crate) others: BTreeMap<u32, &'l Assignment>,
}

impl RolloutBudget<'_> {
    pub(crate) fn is_full(&self) -> bool {
        // Where what moves stops first, it is away for that while.
        let beside = self.held && !self.strategy.stops_first;
        let moving = if beside { 0 } else { self.moving };
        self.busy + self.ill_new + self.down + moving >= self.strategy.at_once
    }

    /// As many slots as may are busy with the new version, beside one that is empty.
    pub(crate) fn is_full_beside_one_down(&self) -> bool {
        self.busy + self.down > self.strategy.at_once
    }

    /// Where what is replaced stops first, how many slots beside this one's are broken.
    pub(crate) fn broken_beside(&self, live: &LiveInstance<'_>) -> usize {
        match self.strategy.stops_first {
            true => self.broken - usize::from(!live.healthy()).min(self.broken),
            false => 0,
        }
    }

    /// A version that goes nowhere keeps nothing from moving. Where what moves stops first, that it does
    /// has to be certain: while a rollout is only paused, its new instance may be about to work. What serves is
    /// needed there, while another slot is ill; nothing is lost with what does not.
    pub(crate) fn may_move(&self, serves: bool) -> bool {
        let apart = match self.strategy.stops_first {
            true => self.held && !self.paused,
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
