//! First step of a rollout: the state of each slot. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{
    Strategy, is_settled,
    slot::{LiveInstance, Slot},
    slots::SlotSet,
};
use kat_types::{api::InstancePhase, assignment::Assignment};

/// What holds for all slots of a workload.
pub(crate) struct RolloutFacts<'l> {
    pub(crate) strategy: Strategy,
    pub(crate) now: Timestamp,
    /// The rollout is paused: no new instance replaces one of an older version.
    pub(crate) paused: bool,
    /// The rollout is paused or has stalled: a failed instance is replaced by one of its own
    /// version.
    pub(crate) held: bool,
    /// Another version is wanted somewhere.
    pub(crate) rolling: bool,
    /// A wanted instance of another version is on a machine that answers.
    pub(crate) other_runs: bool,
    /// An instance that is being stopped may not have ended yet, in whichever slot.
    pub(crate) any_ending: bool,
    /// The assignment of another version in the lowest slot that has one.
    pub(crate) other: Option<&'l Assignment>,
    /// The workload has no instance, and is to start an earlier version.
    pub(crate) starts_earlier: bool,
    /// Data of the workload is being moved to another machine.
    pub(crate) data_moves: bool,
    /// Slots whose machines have no room for the wanted version, or cannot run it.
    pub(crate) without_place: BTreeSet<u32>,
    /// Failed instances that were replaced lately.
    pub(crate) failures: u32,
}

/// The state of a slot: its instances, and whether they have to be replaced.
///
/// `best` is an instance of the wanted version that may stay, `before` one that has to leave the
/// slot: it is of another version, or its machine is drained or lost.
#[derive(Clone, Copy)]
pub(crate) enum SlotState<'l, 'a> {
    /// No instance is wanted here.
    Empty(SlotRemains<'l, 'a>),
    /// `best` works.
    Settled,
    /// `best` does not work: it is starting, unhealthy, has ended, or its machine does not answer.
    Unsettled { best: &'l LiveInstance<'a> },
    /// `best` does not work yet; `before` stays until it does.
    Pair {
        best: &'l LiveInstance<'a>,
        before: &'l LiveInstance<'a>,
    },
    /// An instance of the version of `before` takes its place on another machine.
    Moving { before: &'l LiveInstance<'a> },
    /// Such an instance, `mover`, does not work and may never: its image cannot be pulled, for one.
    StuckMove {
        before: &'l LiveInstance<'a>,
        mover: &'l LiveInstance<'a>,
    },
    /// The machine of `before` does not answer, and the instance is not to be replaced elsewhere.
    Unreachable { before: &'l LiveInstance<'a> },
    /// The machine of `before` is lost.
    Lost { before: &'l LiveInstance<'a> },
    /// The program of `before` has ended for good.
    Ended { before: &'l LiveInstance<'a> },
    /// The machine of `before` is drained.
    Leaving { before: &'l LiveInstance<'a> },
    /// `before` is of another version, and may stay until it is replaced.
    Outdated { before: &'l LiveInstance<'a> },
}

impl<'l, 'a> SlotState<'l, 'a> {
    fn of(here: &Slot<'l, 'a>, remains: SlotRemains<'l, 'a>, now: Timestamp) -> Self {
        match (here.best(), here.predecessor()) {
            (None, None) => Self::Empty(remains),
            (Some(best), _) if has_taken_over(best, here, now) => Self::Settled,
            (Some(best), None) => Self::Unsettled { best },
            (Some(best), Some(before)) => Self::Pair { best, before },
            (None, Some(before)) => match here.mover(before) {
                Some(mover) if mover.is_in_trouble() => Self::StuckMove { before, mover },
                Some(_) => Self::Moving { before },
                None => Self::of_predecessor(before),
            },
        }
    }

    pub(crate) fn of_predecessor(before: &'l LiveInstance<'a>) -> Self {
        if before.away && !before.leaves {
            Self::Unreachable { before }
        } else if before.away {
            Self::Lost { before }
        } else if before.has_ended() {
            Self::Ended { before }
        } else if before.leaves {
            Self::Leaving { before }
        } else {
            Self::Outdated { before }
        }
    }
}

/// What is left in a slot without a wanted instance.
#[derive(Clone, Copy, Default)]
pub(crate) struct SlotRemains<'l, 'a> {
    /// An instance that is being stopped may not have ended yet.
    pub(crate) ending: bool,
    /// Such an instance whose machine does not answer: nobody can tell whether it has ended.
    pub(crate) unknown: Option<&'l LiveInstance<'a>>,
    /// An instance of the wanted version is being stopped.
    pub(crate) was_current: bool,
    /// An assignment of another version: a wanted one, or else one that is being stopped.
    pub(crate) other: Option<&'l Assignment>,
}

/// What is left in each slot.
pub(crate) fn remains<'l, 'a>(
    all: &'l [LiveInstance<'a>],
    slots: &SlotSet<'_>,
) -> BTreeMap<u32, SlotRemains<'l, 'a>> {
    let mut remains: BTreeMap<u32, SlotRemains<'l, 'a>> = BTreeMap::new();
    for live in all.iter().filter(|live| !live.is_wanted()) {
        let ends = may_be_ending(live);
        let here = remains.entry(slots.slot_of(live)).or_default();
        here.ending |= ends;
        here.was_current |= live.current;
        if live.away && ends {
            here.unknown = Some(live);
        }
    }
    let mut others: Vec<_> = all.iter().filter(|live| !live.current).collect();
    others.sort_by_key(|live| live.is_wanted());
    for live in others {
        remains.entry(slots.slot_of(live)).or_default().other = Some(live.assignment);
    }
    remains
}

/// The instance is being stopped, and may not have ended yet.
pub(crate) fn may_be_ending(live: &LiveInstance<'_>) -> bool {
    let phase = live.record.map(|record| record.phase);
    let may_run = !live.away || (live.assignment.writes_data() && !live.fenced);
    !live.is_wanted() && may_run && phase != Some(InstancePhase::Stopped)
}

/// A slot with its state, and with results that do not depend on other slots.
pub(crate) struct ClassifiedSlot<'l, 'a> {
    pub(crate) number: u32,
    pub(crate) state: SlotState<'l, 'a>,
    /// No instance of the slot serves, and one is starting without trouble.
    pub(crate) begins: bool,
    /// Instances that the slot does not need, with the reason why each is stopped.
    pub(crate) unneeded: Vec<(&'l LiveInstance<'a>, StopReason)>,
    /// An instance of the wanted version that its machine prepares or has prepared.
    pub(crate) successor: Option<&'l LiveInstance<'a>>,
    /// Its machine has no room for the wanted version, or cannot run it.
    pub(crate) lacks_place: bool,
}

impl ClassifiedSlot<'_, '_> {
    /// The machine of its successor has not prepared it yet, or cannot.
    pub(crate) fn is_preparing(&self) -> bool {
        self.successor.is_some_and(|live| !live.is_prepared())
    }
}

/// Why an instance is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    FewerReplicas,
    MachineDoesNotMatch,
    SlotIsTaken,
    SuccessorIsHealthy,
    NewerVersion,
    ProgramEnded,
    DiskIsShort,
    PredecessorMovesFirst,
    MachineIsDrained,
    MachineIsLost,
}

impl StopReason {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::FewerReplicas => "fewer replicas are wanted",
            Self::MachineDoesNotMatch => "its machine does not match the workload any more",
            Self::SlotIsTaken => "its slot has another instance",
            Self::SuccessorIsHealthy => "its successor is healthy",
            Self::NewerVersion => "a newer version takes its place",
            Self::ProgramEnded => "its program ended",
            Self::DiskIsShort => "its machine is short of disk space",
            Self::PredecessorMovesFirst => "what it was to replace has to move first",
            Self::MachineIsDrained => "its machine is drained",
            Self::MachineIsLost => "its machine is lost",
        }
    }
}

/// The state of a slot, and which of its instances it does not need.
pub(crate) fn classify<'l, 'a>(
    number: u32,
    here: &Slot<'l, 'a>,
    remains: SlotRemains<'l, 'a>,
    facts: &RolloutFacts<'_>,
) -> ClassifiedSlot<'l, 'a> {
    let state = SlotState::of(here, remains, facts.now);
    let unneeded = match (here.best(), here.predecessor()) {
        (Some(best), _) => unneeded_beside(best, here, state, facts),
        (None, Some(before)) => unneeded_predecessors(before, here),
        (None, None) => Vec::new(),
    };
    ClassifiedSlot {
        number,
        state,
        begins: here.begins(),
        unneeded,
        successor: here.successor,
        lacks_place: facts.without_place.contains(&number),
    }
}

/// For a slot that `best` keeps.
fn unneeded_beside<'l, 'a>(
    best: &'l LiveInstance<'a>,
    here: &Slot<'l, 'a>,
    state: SlotState<'l, 'a>,
    facts: &RolloutFacts<'_>,
) -> Vec<(&'l LiveInstance<'a>, StopReason)> {
    let because = |reason| move |live| (live, reason);
    let surplus = here.surplus(best).map(because(StopReason::SlotIsTaken));
    let mut unneeded: Vec<_> = surplus.collect();
    match state {
        SlotState::Settled => {
            let over = here.predecessors();
            unneeded.extend(over.map(because(StopReason::SuccessorIsHealthy)));
        }
        // New instances of other slots wait for the end of these.
        _ if facts.strategy.simultaneous && !facts.paused => {
            let other = here.predecessors().filter(|live| !live.current);
            unneeded.extend(other.map(because(StopReason::NewerVersion)));
        }
        SlotState::Pair { before, .. } => {
            let outdone = here.outdone(before);
            let outdone = outdone.filter(|live| before.healthy() || is_surplus(live, before));
            unneeded.extend(outdone.map(because(StopReason::SlotIsTaken)));
        }
        _ => {}
    }
    unneeded
}

/// For a slot without an instance of the wanted version that may stay: one of its instances is
/// kept, `before` or the healthy one that has replaced it on another machine.
fn unneeded_predecessors<'l, 'a>(
    before: &'l LiveInstance<'a>,
    here: &Slot<'l, 'a>,
) -> Vec<(&'l LiveInstance<'a>, StopReason)> {
    let mover = here.mover(before).filter(|mover| mover.healthy());
    let kept = mover.unwrap_or(before);
    let reason = |live: &LiveInstance<'_>| {
        let is_like = live.assignment.template_hash == kept.assignment.template_hash;
        match (is_like, kept.healthy() && !kept.leaves) {
            (false, _) => Some(StopReason::NewerVersion),
            (true, true) => Some(StopReason::SuccessorIsHealthy),
            (true, false) => is_surplus(live, kept).then_some(StopReason::SlotIsTaken),
        }
    };
    let outdone = here.outdone(kept);
    outdone
        .filter_map(|live| Some((live, reason(live)?)))
        .collect()
}

/// Whether the instance that keeps a slot makes its predecessors unnecessary. If all of them are of
/// the wanted version, it is a move: the version has shown elsewhere that it works, and being
/// healthy is enough.
fn has_taken_over(best: &LiveInstance<'_>, here: &Slot<'_, '_>, now: Timestamp) -> bool {
    let moved = here.predecessor().is_some() && here.predecessors().all(|live| live.current);
    if moved {
        best.healthy()
    } else {
        is_settled(best, now)
    }
}

/// Both instances are of one version, `kept` does not leave its machine, and both machines answer:
/// as after the return of a machine whose instance was replaced.
fn is_surplus(live: &LiveInstance<'_>, kept: &LiveInstance<'_>) -> bool {
    let is_like = live.assignment.template_hash == kept.assignment.template_hash;
    is_like && !kept.leaves && !kept.away && !live.away
}

/// The wanted instances of a workload by slot, and those that have none of its slots.
pub(crate) struct WantedSlots<'l, 'a> {
    pub(crate) slots: BTreeMap<u32, Slot<'l, 'a>>,
    pub(crate) surplus: Vec<&'l LiveInstance<'a>>,
}

impl<'l, 'a> WantedSlots<'l, 'a> {
    /// Without instances that the plan has `stopped` already: their data moves, and nothing can fill
    /// their slots yet. `successors` are instances that are prepared, at most one for each slot.
    pub(crate) fn of(
        all: &'l [LiveInstance<'a>],
        successors: &[&'l LiveInstance<'a>],
        slots: &SlotSet<'_>,
        stopped: &BTreeSet<&str>,
    ) -> Self {
        let mut wanted = Self {
            slots: BTreeMap::new(),
            surplus: Vec::new(),
        };
        let stays = |live: &&LiveInstance<'_>| live.is_wanted() && !stopped.contains(live.id);
        for live in all.iter().filter(stays) {
            if slots.holds(live) {
                let here = wanted.slots.entry(live.assignment.slot).or_default();
                here.add(live);
            } else {
                wanted.surplus.push(live);
            }
        }
        for successor in successors {
            let here = wanted.slots.entry(successor.assignment.slot).or_default();
            here.successor = Some(successor);
        }
        wanted
    }
}

/// The state of each slot, in their order.
pub(crate) fn classify_all<'l, 'a>(
    all: &'l [LiveInstance<'a>],
    wanted: &WantedSlots<'l, 'a>,
    slots: &SlotSet<'_>,
    facts: &RolloutFacts<'_>,
) -> Vec<ClassifiedSlot<'l, 'a>> {
    let remains = remains(all, slots);
    let none = Slot::default();
    let numbers = slots.numbers().into_iter();
    numbers
        .map(|number| {
            let here = wanted.slots.get(&number).unwrap_or(&none);
            let left = remains.get(&number).copied().unwrap_or_default();
            classify(number, here, left, facts)
        })
        .collect()
}
