//! A slot of a workload: which of its instances keeps it, and which have to go.
//!
//! A slot has one instance. Its successor stands beside it until it is healthy: of another version,
//! or because the machine is drained or lost. What is on a lost machine may still run there, and is
//! kept until then: it takes its slot back if its machine returns before.

use std::sync::Arc;

use super::{Assignment, InstanceRecord, Wanted, serving};
use crate::api::types::InstancePhase;

/// An assignment with what its machine says of it.
pub(super) struct Live<'a> {
    pub(super) id: &'a str,
    pub(super) node: &'a str,
    pub(super) assignment: &'a Arc<Assignment>,
    pub(super) record: Option<InstanceRecord>,
    /// It is of the version that is wanted.
    pub(super) current: bool,
    /// Its machine does not answer: nothing is known of it.
    pub(super) away: bool,
    /// It is to be replaced on another machine: its own is lost, or being drained.
    pub(super) leaves: bool,
    /// It has data, and is replaced nowhere else while its machine is lost.
    pub(super) waits: bool,
    /// Its machine is lost, and has stopped it by itself.
    pub(super) fenced: bool,
    /// Its machine has stopped it because its disk ran full, and is short of disk space still; no data ties it to that
    /// machine.
    pub(super) evicted: bool,
}

impl Live<'_> {
    /// It runs and nothing says that it is ill.
    pub(super) fn healthy(&self) -> bool {
        !self.away && self.record.as_ref().is_some_and(serving::is_healthy)
    }

    /// Its program ended for good.
    pub(super) fn over(&self) -> bool {
        self.record.as_ref().is_some_and(|record| {
            matches!(
                record.phase,
                InstancePhase::Failed | InstancePhase::Succeeded
            )
        })
    }

    pub(super) fn wanted(&self) -> bool {
        self.assignment.wanted == Wanted::Running
    }

    fn stays(&self) -> bool {
        self.current && !self.leaves
    }
}

/// The wanted instances of one slot.
#[derive(Default)]
pub(super) struct Slot<'l, 'a> {
    instances: Vec<&'l Live<'a>>,
}

impl<'l, 'a> Slot<'l, 'a> {
    pub(super) fn add(&mut self, live: &'l Live<'a>) {
        self.instances.push(live);
    }

    /// The instance that keeps the slot: the best of those of the wanted version that need not go.
    pub(super) fn best(&self) -> Option<&'l Live<'a>> {
        best(self.instances.iter().copied().filter(|live| live.stays()))
    }

    /// The others like the best one. One whose machine is away is kept while it may still have to
    /// take over.
    pub(super) fn surplus(&self, kept: &Live<'_>) -> impl Iterator<Item = &'l Live<'a>> {
        let (id, healthy) = (kept.id, kept.healthy());
        self.instances
            .iter()
            .copied()
            .filter(move |live| live.stays() && live.id != id && (healthy || !live.away))
    }

    /// The best of those that have to go.
    pub(super) fn predecessor(&self) -> Option<&'l Live<'a>> {
        best(self.predecessors())
    }

    /// Those that have to go once their successor is healthy.
    pub(super) fn predecessors(&self) -> impl Iterator<Item = &'l Live<'a>> {
        self.instances.iter().copied().filter(|live| !live.stays())
    }

    /// Those of them that nobody needs: another serves until the successor is there. What is away
    /// may take over again.
    pub(super) fn outdone(&self, kept: &Live<'_>) -> impl Iterator<Item = &'l Live<'a>> {
        let id = kept.id;
        self.predecessors()
            .filter(move |live| live.id != id && !(live.current && live.away))
    }

    /// The one of the same version that takes the place of one that leaves its machine.
    pub(super) fn mover(&self, leaving: &Live<'_>) -> Option<&'l Live<'a>> {
        let hash = &leaving.assignment.template_hash;
        let like = |live: &&Live<'_>| {
            live.id != leaving.id && live.assignment.template_hash == *hash && !live.leaves
        };
        best(
            self.predecessors()
                .filter(|live| leaving.leaves && like(live) && !live.over()),
        )
    }

    /// An instance of an earlier version is on its way to another machine.
    pub(super) fn is_moving(&self) -> bool {
        let before = self.predecessor();
        before.is_some_and(|before| self.mover(before).is_some())
    }

    /// Nothing of it serves, and something is on its way without trouble.
    pub(super) fn begins(&self) -> bool {
        let on_its_way = |live: &&Live<'_>| {
            let record = live.record.as_ref();
            !live.away
                && record.is_none_or(|record| {
                    record.reason.is_empty()
                        && !live.over()
                        && !matches!(
                            record.phase,
                            InstancePhase::Running | InstancePhase::Restarting
                        )
                })
        };
        !self.serves() && self.instances.iter().any(on_its_way)
    }

    /// One of its instances is healthy.
    pub(super) fn serves(&self) -> bool {
        self.instances.iter().any(|live| live.healthy())
    }
}

/// The healthiest; among the same, the one that has been there the longest.
fn best<'l, 'a>(lives: impl Iterator<Item = &'l Live<'a>>) -> Option<&'l Live<'a>>
where
    'a: 'l,
{
    lives.min_by_key(|live| {
        (
            !live.healthy(),
            live.away,
            live.over(),
            live.assignment.created,
            live.id,
        )
    })
}
