//! A slot of a workload: which of its instances keeps it, and which have to leave.
//!
//! A slot has one instance. Its successor stands beside it until the successor is healthy: of
//! another version, or because the machine is drained or lost. An instance on a lost machine may
//! still run there and is kept until then: it takes its slot back if its machine returns before.

use std::sync::Arc;

use crate::{nodes::node_loss::LastContact, services::serving};
use kat_types::{
    api::InstancePhase,
    assignment::{Assignment, DesiredRun},
    store::records::InstanceRecord,
};

/// An assignment with the status that its machine last reported.
pub(crate) struct LiveInstance<'a> {
    pub(crate) id: &'a str,
    pub(crate) node: &'a str,
    pub(crate) assignment: &'a Arc<Assignment>,
    pub(crate) record: Option<&'a InstanceRecord>,
    /// Its version is the wanted one.
    pub(crate) current: bool,
    /// Its machine does not answer, so its state is unknown.
    pub(crate) away: bool,
    /// The last contact with its machine.
    pub(crate) heard: Option<LastContact>,
    /// It is to be replaced on another machine: its own is lost or drained.
    pub(crate) leaves: bool,
    /// It leaves, its machine answers, and its drain is forced: the machine is emptied whatever is
    /// lost by that.
    pub(crate) forced_out: bool,
    /// It has data, so it is not replaced on another machine while its own is lost.
    pub(crate) waits: bool,
    /// Its machine is lost, and has stopped the instance by itself.
    pub(crate) fenced: bool,
    /// Its machine has stopped it because its disk ran full, and is still short of disk space; no
    /// data ties the instance to that machine.
    pub(crate) evicted: bool,
}

impl LiveInstance<'_> {
    /// It runs, is not reported unhealthy, and its machine answers.
    pub(crate) fn healthy(&self) -> bool {
        !self.away && self.record.is_some_and(serving::is_healthy)
    }

    /// Its program ended for good.
    pub(crate) fn has_ended(&self) -> bool {
        self.record.is_some_and(|record| {
            matches!(
                record.phase,
                InstancePhase::Failed | InstancePhase::Succeeded
            )
        })
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.assignment.wanted == DesiredRun::Running
    }

    /// Its machine has everything that it needs to start.
    pub(crate) fn is_prepared(&self) -> bool {
        let mut record = self.record.iter();
        !self.away && record.any(|record| record.phase == InstancePhase::Prepared)
    }

    /// It has not run yet, and nothing keeps it from starting so far.
    fn is_on_its_way(&self) -> bool {
        let Some(record) = &self.record else {
            return !self.away;
        };
        let has_run = matches!(
            record.phase,
            InstancePhase::Running | InstancePhase::Restarting
        );
        !self.away && record.reason.is_empty() && !self.has_ended() && !has_run
    }

    /// Its machine answers, and it neither works nor is on its way.
    pub(crate) fn is_in_trouble(&self) -> bool {
        !self.away && !self.healthy() && !self.is_on_its_way()
    }

    fn is_staying(&self) -> bool {
        self.current && !self.leaves
    }
}

/// The wanted instances of one slot.
#[derive(Default)]
pub(crate) struct Slot<'l, 'a> {
    instances: Vec<&'l LiveInstance<'a>>,
    /// The instance of the wanted version that starts once the others have ended.
    pub(crate) successor: Option<&'l LiveInstance<'a>>,
}

impl<'l, 'a> Slot<'l, 'a> {
    pub(crate) fn add(&mut self, live: &'l LiveInstance<'a>) {
        self.instances.push(live);
    }

    /// The instance that keeps the slot: the best one of the wanted version that need not leave its
    /// machine.
    pub(crate) fn best(&self) -> Option<&'l LiveInstance<'a>> {
        best(
            self.instances
                .iter()
                .copied()
                .filter(|live| live.is_staying()),
        )
    }

    /// Other instances of the wanted version beside `kept`. One whose machine does not answer is
    /// left out until `kept` is healthy, since it may have to take over.
    pub(crate) fn surplus(
        &self,
        kept: &LiveInstance<'_>,
    ) -> impl Iterator<Item = &'l LiveInstance<'a>> {
        let (id, healthy) = (kept.id, kept.healthy());
        self.instances
            .iter()
            .copied()
            .filter(move |live| live.is_staying() && live.id != id && (healthy || !live.away))
    }

    /// The best of [`Self::predecessors`].
    pub(crate) fn predecessor(&self) -> Option<&'l LiveInstance<'a>> {
        best(self.predecessors())
    }

    /// Instances that have to leave the slot once their successor is healthy.
    pub(crate) fn predecessors(&self) -> impl Iterator<Item = &'l LiveInstance<'a>> {
        self.instances
            .iter()
            .copied()
            .filter(|live| !live.is_staying())
    }

    /// Predecessors that are not needed, since `kept` serves until the successor is healthy. An
    /// instance of the wanted version whose machine does not answer is left out: it may take over
    /// again.
    pub(crate) fn outdone(
        &self,
        kept: &LiveInstance<'_>,
    ) -> impl Iterator<Item = &'l LiveInstance<'a>> {
        let id = kept.id;
        self.predecessors()
            .filter(move |live| live.id != id && !(live.current && live.away))
    }

    /// The instance of the same version that replaces `leaving` on another machine.
    pub(crate) fn mover(&self, leaving: &LiveInstance<'_>) -> Option<&'l LiveInstance<'a>> {
        let hash = &leaving.assignment.template_hash;
        let like = |live: &&LiveInstance<'_>| {
            live.id != leaving.id && live.assignment.template_hash == *hash && !live.leaves
        };
        best(
            self.predecessors()
                .filter(|live| leaving.leaves && like(live) && !live.has_ended()),
        )
    }

    /// No instance of the slot serves, and one is starting without trouble.
    pub(crate) fn begins(&self) -> bool {
        let mut instances = self.instances.iter();
        !self.serves() && instances.any(|live| live.is_on_its_way())
    }

    /// One of its instances is healthy.
    pub(crate) fn serves(&self) -> bool {
        self.instances.iter().any(|live| live.healthy())
    }
}

/// The healthiest instance; among equals the oldest.
fn best<'l, 'a>(lives: impl Iterator<Item = &'l LiveInstance<'a>>) -> Option<&'l LiveInstance<'a>>
where
    'a: 'l,
{
    lives.min_by_key(|live| {
        (
            !live.healthy(),
            live.away,
            live.has_ended(),
            live.assignment.created,
            live.id,
        )
    })
}
