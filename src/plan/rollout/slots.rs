//! The slots that a workload wants. A slot of a Service may be on any machine; a slot of a
//! DaemonService is bound to one, and the machines that match the workload decide which slots there
//! are.
//!
//! The number of a machine's slot follows from the machine's subnet, so that nothing has to be
//! stored. It is above the slots of Services and Jobs: after a change of the workload's type no slot
//! finds the data of another one.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::Ipv4Net;

use super::slot::LiveInstance;
use crate::{
    Snapshot,
    nodes::node_loss::LostMachines,
    scheduling::schedule::{has_labels, is_tolerated},
};
use kat_types::{
    api::NodePhase,
    assignment::{DesiredRun, FIRST_MACHINE_SLOT},
    resource::{ClusterSpec, WorkloadSpec, WorkloadType},
    store::{records::NodeStatusRecord, revisions::WorkloadKey, snapshot::NodeEntry},
};

/// The slot of a machine; `None` without a subnet.
pub(crate) fn slot_of_machine(snapshot: &Snapshot, node: &NodeEntry) -> Option<u32> {
    Some(slot_of_subnet(&snapshot.cluster.spec, node.subnet?))
}

/// The slot of the machine that has this subnet.
fn slot_of_subnet(cluster: &ClusterSpec, subnet: Ipv4Net) -> u32 {
    let first = u32::from(cluster.cluster_cidr.network());
    let beyond = u32::from(subnet.network()).saturating_sub(first);
    let size = 32_u32.saturating_sub(u32::from(subnet.prefix_len()));
    let index = beyond.checked_shr(size).unwrap_or(0);
    FIRST_MACHINE_SLOT.saturating_add(index)
}

/// The wanted slots of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SlotSet<'a> {
    /// The slots below this number, each on any machine.
    Replicas(u32),
    /// Each slot with its machine.
    Machines(BTreeMap<u32, &'a str>),
}

impl<'a> SlotSet<'a> {
    pub(crate) fn count(&self) -> u32 {
        match self {
            Self::Replicas(count) => *count,
            Self::Machines(machines) => u32::try_from(machines.len()).unwrap_or(u32::MAX),
        }
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        match self {
            Self::Replicas(count) => slot < *count,
            Self::Machines(machines) => machines.contains_key(&slot),
        }
    }

    /// In their order.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        match self {
            Self::Replicas(count) => (0..*count).collect(),
            Self::Machines(machines) => machines.keys().copied().collect(),
        }
    }

    /// The machine that a slot is bound to.
    pub(crate) fn machine_of(&self, slot: u32) -> Option<&'a str> {
        match self {
            Self::Replicas(_) => None,
            Self::Machines(machines) => machines.get(&slot).copied(),
        }
    }

    /// The instance has a wanted slot, and is on the machine of the slot.
    pub(crate) fn holds(&self, live: &LiveInstance<'_>) -> bool {
        let slot = live.assignment.slot;
        let machine = self.machine_of(slot);
        self.contains(slot) && machine.is_none_or(|node| node == live.node)
    }

    /// [`Self::slot_of`] of several instances.
    pub(crate) fn slots_of<'l, 'm: 'l>(
        &self,
        all: impl Iterator<Item = &'l LiveInstance<'m>>,
    ) -> BTreeSet<u32> {
        let by_machine: BTreeMap<&str, u32> = match self {
            Self::Replicas(_) => BTreeMap::new(),
            Self::Machines(machines) => {
                machines.iter().map(|(slot, node)| (*node, *slot)).collect()
            }
        };
        let slot_of = |live: &LiveInstance<'_>| {
            let own = live.assignment.slot;
            match self.holds(live) {
                true => own,
                false => by_machine.get(live.node).copied().unwrap_or(own),
            }
        };
        all.map(slot_of).collect()
    }

    /// The slot that waits for the end of an instance: its own, or that of its machine.
    pub(crate) fn slot_of(&self, live: &LiveInstance<'_>) -> u32 {
        let own = live.assignment.slot;
        match self {
            Self::Machines(machines) if !self.holds(live) => {
                let mut all = machines.iter();
                all.find(|(_, node)| **node == live.node)
                    .map_or(own, |(slot, _)| *slot)
            }
            _ => own,
        }
    }
}

/// What a DaemonService wants of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MachineClaim {
    /// One instance.
    Instance,
    /// The instance there is neither replaced nor stopped, and is not counted.
    LeftAlone(Apart),
    /// No instance.
    Nothing,
}

/// Why an instance of a DaemonService is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Apart {
    /// Its machine is lost.
    Lost,
    /// Its machine is drained, and other instances have not left it yet.
    LeavesLast,
}

/// The machines as a DaemonService sees them.
#[derive(Clone, Copy)]
pub(crate) struct DaemonView<'v, 'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) statuses: &'v BTreeMap<String, NodeStatusRecord>,
    pub(crate) losses: &'v LostMachines,
    pub(crate) spec: &'v WorkloadSpec,
    /// The machines with an instance of the DaemonService, also a prepared one; true for those with one
    /// that is wanted.
    pub(crate) own: &'v BTreeMap<&'v str, bool>,
}

/// [`DaemonView::own`] by the instances of the workload, among which may be those of another type of it.
pub(crate) fn machines_with_daemon<'l>(all: &[LiveInstance<'l>]) -> BTreeMap<&'l str, bool> {
    let mut own = BTreeMap::new();
    let daemons = all
        .iter()
        .filter(|live| live.assignment.workload_type == WorkloadType::DaemonService);
    for live in daemons {
        *own.entry(live.node).or_default() |= live.is_wanted();
    }
    own
}

impl<'a> DaemonView<'_, 'a> {
    /// The slots of all machines that get an instance or have one.
    pub(crate) fn slots(&self) -> SlotSet<'a> {
        let machines = self.snapshot.nodes.iter();
        let wanted =
            machines.filter(|(name, node)| self.claim(name, node) == MachineClaim::Instance);
        let numbered = wanted.filter_map(|(name, node)| {
            Some((slot_of_machine(self.snapshot, node)?, name.as_str()))
        });
        SlotSet::Machines(numbered.collect())
    }

    /// Why an instance is not counted, if it is left alone.
    pub(crate) fn apart(&self, live: &LiveInstance<'_>) -> Option<Apart> {
        let node = self.snapshot.nodes.get(live.node)?;
        match self.claim(live.node, node) {
            MachineClaim::LeftAlone(apart) if live.is_wanted() => Some(apart),
            _ => None,
        }
    }

    fn claim(&self, name: &str, node: &NodeEntry) -> MachineClaim {
        let registration = &node.registration.value;
        if !has_labels(self.spec, &registration.labels) {
            return MachineClaim::Nothing;
        }
        let own = self.own.get(name).copied();
        let runs = own == Some(true);
        let phase = self.statuses.get(name).map(|status| status.phase);
        let away = phase.is_none_or(|phase| phase == NodePhase::NotReady);
        if runs && away {
            return match self.losses.is_replaced(name) {
                true => MachineClaim::LeftAlone(Apart::Lost),
                false => MachineClaim::Instance,
            };
        }
        if registration.draining {
            return match runs && has_others(self.snapshot, name) {
                true => MachineClaim::LeftAlone(Apart::LeavesLast),
                false => MachineClaim::Nothing,
            };
        }
        // A later taint keeps new instances away, and those that run stay, as for a Service.
        let is_open = own.is_some() || is_tolerated(self.spec, &registration.taints);
        // Until a machine has reported to a new leader, its phase is from before: the end of a drain
        // is not in it yet.
        let is_ready = runs || phase == Some(NodePhase::Ready);
        match is_ready && is_open {
            true => MachineClaim::Instance,
            false => MachineClaim::Nothing,
        }
    }
}

/// Whether a machine has an instance that is of no DaemonService, or may have it still.
fn has_others(snapshot: &Snapshot, node: &str) -> bool {
    let mut here = snapshot.instances.values();
    here.any(|entry| {
        let assignment = &entry.assignment.value;
        entry.node == node
            && assignment.workload_type != WorkloadType::DaemonService
            && assignment.wanted != DesiredRun::Prepared
    })
}

/// Wanted instances of a DaemonService on machines whose taints it does not tolerate: they came before
/// the taint, or before the files that tolerate it no more, and stay.
pub(crate) fn beside_matching(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    spec: &WorkloadSpec,
) -> usize {
    let all = snapshot.instances_of(key);
    let stay = all.filter(|(_, entry)| {
        let assignment = &entry.assignment.value;
        let node = snapshot.nodes.get(&entry.node);
        assignment.workload_type == WorkloadType::DaemonService
            && assignment.wanted == DesiredRun::Running
            && node.is_some_and(|node| {
                let registration = &node.registration.value;
                has_labels(spec, &registration.labels) && !is_tolerated(spec, &registration.taints)
            })
    });
    stay.count()
}

/// A machine that matches the selector and the tolerations of a DaemonService.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DaemonMachine<'a> {
    /// Name of the machine.
    pub name: &'a str,
    /// Slot of the instance there.
    pub slot: u32,
    /// What the machine has to do before it gets an instance: `when it ...`.
    pub waits: Option<&'static str>,
}

/// The machines that have an instance of a DaemonService, or get one.
pub fn machines_of_daemon<'a>(
    snapshot: &'a Snapshot,
    spec: &WorkloadSpec,
) -> Vec<DaemonMachine<'a>> {
    let matching = snapshot.nodes.iter().filter(|(_, node)| {
        let registration = &node.registration.value;
        has_labels(spec, &registration.labels) && is_tolerated(spec, &registration.taints)
    });
    let machines = matching.filter_map(|(name, node)| {
        let status = node.status.as_ref().map(|status| status.value.phase);
        let waits = match status {
            _ if node.registration.value.draining => Some("takes work again"),
            Some(NodePhase::NotReady) => Some("answers again"),
            Some(NodePhase::Ready) => None,
            _ => Some("joins"),
        };
        let slot = slot_of_machine(snapshot, node)?;
        Some(DaemonMachine { name, slot, waits })
    });
    machines.collect()
}
