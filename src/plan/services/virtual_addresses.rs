//! Which machine is to hold each virtual address.
//!
//! The holder is an ingress machine that reports, is not being drained and can hold the address, and stays
//! it while that is so. A holder that none can follow stays it too: an address is not data, and its
//! machine may still serve. Each decision has a higher number than those before, also than those of a
//! store that was restored since: machines that hear each other on the LAN keep to the highest.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::{
    Snapshot,
    draft::{Draft, OperationGroup},
    nodes::node_loss::LastReport,
};
use kat_types::{
    api::{
        Condition, EventKind, IngressState, NodePhase, ObjectKind, ObjectReference,
        VIRTUAL_ADDRESSES_HELD,
    },
    machine::node_labels::is_for_ingress,
    reason::EventReason,
    store::{keys, records::NodeStatusRecord},
    virtual_addresses::{
        AddressStateWord, MOST_ADDRESSES, VirtualAddressRecord, address_and_prefix,
    },
};

const REASON: &str = "virtual addresses";

/// How well a machine could hold an address, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HolderFitness {
    /// It is well.
    Well,
    /// It is well, and does not serve its routes.
    ServesNoRoutes,
    /// It is being drained, or drained.
    Leaves,
    /// It has not reported for too long.
    Silent,
    /// It has no interface for the address, or one without a carrier.
    Unable,
    /// It has not said whether it can hold the address.
    Unknown,
}

impl HolderFitness {
    /// Whether a machine is chosen that is no better.
    fn is_chosen(self) -> bool {
        self <= Self::Leaves
    }

    /// Why an address leaves a machine, in words.
    fn why(self) -> &'static str {
        match self {
            Self::Well => "it is well",
            Self::ServesNoRoutes => "it does not serve its routes",
            Self::Leaves => "it is being drained",
            Self::Silent => "it does not report",
            Self::Unable => "its interface for the address is missing or has no carrier",
            Self::Unknown => "it has not said whether it can hold the address",
        }
    }
}

/// The machine that is to hold an address: the present one while no other is better, else the best one
/// with the fewest addresses. `None` if no machine can hold it and the present one is gone.
pub fn choose_holder<'m>(
    present: Option<&str>,
    machines: &BTreeMap<&'m str, HolderFitness>,
    held: &BTreeMap<&str, usize>,
) -> Option<&'m str> {
    let chosen = machines.iter().filter(|(_, fitness)| fitness.is_chosen());
    let best = chosen.min_by_key(|(name, fitness)| {
        let others = held.get(**name).copied().unwrap_or_default();
        (**fitness, others, **name)
    });
    let present = present.and_then(|present| machines.get_key_value(present));
    match (present, best) {
        (Some((present, own)), Some((_, best))) if own <= best => Some(present),
        (Some((present, _)), None) => Some(present),
        (_, best) => best.map(|(name, _)| *name),
    }
}

/// The machines that may hold virtual addresses: those that serve routes, or would if there were any.
pub fn address_holding_machines(snapshot: &Snapshot) -> Vec<&str> {
    let labelled = |name: &&str| {
        let node = snapshot.nodes.get(*name);
        node.is_some_and(|node| is_for_ingress(&node.registration.value.labels))
    };
    let all: Vec<&str> = snapshot.nodes.keys().map(String::as_str).collect();
    let own: Vec<&str> = all.iter().copied().filter(|name| labelled(name)).collect();
    if own.is_empty() { all } else { own }
}

/// How well each machine that may hold virtual addresses could hold this one.
pub(crate) fn fitness_of<'a>(
    snapshot: &'a Snapshot,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    heard: &BTreeMap<&str, LastReport<'_>>,
    (address, holder): (IpAddr, Option<&str>),
) -> BTreeMap<&'a str, HolderFitness> {
    let machines = address_holding_machines(snapshot).into_iter();
    let judged = machines.map(|name| {
        let phase = statuses.get(name).map(|status| status.phase);
        let report = heard.get(name).and_then(|heard| heard.report);
        let said = report.and_then(|report| {
            let mut said = report.virtual_addresses.iter();
            said.find(|one| one.address == address)
        });
        let word = said.map_or(AddressStateWord::Unknown, |said| said.state);
        // A new leader has not heard of all machines yet.
        let is_able = word.is_able() || (holder == Some(name) && !word.is_unable());
        let ingress = report.and_then(|report| report.ingress.as_ref());
        let serves_no_routes = ingress.is_some_and(|ingress| {
            matches!(
                ingress.state,
                IngressState::PortInUse | IngressState::Failed
            )
        });
        let fitness = match phase {
            Some(NodePhase::Ready | NodePhase::Draining | NodePhase::Drained) if !is_able => {
                match word.is_unable() {
                    true => HolderFitness::Unable,
                    false => HolderFitness::Unknown,
                }
            }
            Some(NodePhase::Ready) if serves_no_routes => HolderFitness::ServesNoRoutes,
            Some(NodePhase::Ready) => HolderFitness::Well,
            Some(NodePhase::Draining | NodePhase::Drained) => HolderFitness::Leaves,
            Some(NodePhase::NotReady | NodePhase::Joining | NodePhase::Detached) | None => {
                HolderFitness::Silent
            }
        };
        (name, fitness)
    });
    judged.collect()
}

/// Writes which machine is to hold each address, where that changed.
pub(crate) fn plan_virtual_addresses(
    draft: &mut Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    heard: &BTreeMap<&str, LastReport<'_>>,
) {
    let snapshot = draft.snapshot;
    let spec = &snapshot.wanted_cluster().spec;
    if spec.virtual_addresses.is_empty() && snapshot.virtual_addresses.is_empty() {
        return;
    }
    let mut group = OperationGroup::default();
    let mut wanted = BTreeSet::new();
    let mut held: BTreeMap<&str, usize> = BTreeMap::new();
    for stored in snapshot.virtual_addresses.values() {
        if let Some(holder) = stored.value.holder.as_deref() {
            *held.entry(holder).or_default() += 1;
        }
    }
    for one in spec.virtual_addresses.iter().take(MOST_ADDRESSES) {
        let Some((address, prefix)) = address_and_prefix(one) else {
            continue;
        };
        wanted.insert(address);
        let stored = snapshot.virtual_addresses.get(&address);
        let before = stored.and_then(|stored| stored.value.holder.as_deref());
        let machines = fitness_of(snapshot, statuses, heard, (address, before));
        let holder = choose_holder(before, &machines, &held);
        let is_moved = holder != before;
        let number = stored.map_or(0, |stored| stored.value.number);
        let record = VirtualAddressRecord {
            schema: 1,
            address,
            prefix,
            interface: one.interface.clone(),
            on_leader_loss: one.on_leader_loss,
            holder: holder.map(str::to_owned),
            number: match is_moved {
                true => next_number(number, draft.now),
                false => number,
            },
            since: match is_moved {
                true => Some(draft.now),
                false => stored.and_then(|stored| stored.value.since),
            },
        };
        if is_moved {
            if let Some(count) = before.and_then(|before| held.get_mut(before)) {
                *count = count.saturating_sub(1);
            }
            if let Some(holder) = holder {
                *held.entry(holder).or_default() += 1;
            }
            let left = before.map(|before| (before, machines.get(before).copied()));
            tell_move(draft, &mut group, address, (left, holder));
        }
        if stored.is_none_or(|stored| stored.value != record) {
            draft.put_in_turn(&mut group, keys::virtual_address(address), &record, REASON);
        }
    }
    for address in snapshot.virtual_addresses.keys() {
        if !wanted.contains(address) {
            group.delete(keys::virtual_address(*address));
        }
    }
    draft.commit(group, REASON.to_owned(), Vec::new());
}

/// A number after `last`, and after every number of a leader before a restore of the store.
fn next_number(last: u64, now: jiff::Timestamp) -> u64 {
    let time = u64::try_from(now.as_millisecond()).unwrap_or_default();
    last.saturating_add(1).max(time)
}

/// The event of a new holder. Of one that was left it says why.
fn tell_move(
    draft: &mut Draft<'_>,
    group: &mut OperationGroup,
    address: IpAddr,
    (left, holder): (Option<(&str, Option<HolderFitness>)>, Option<&str>),
) {
    let why = |(name, fitness): (&str, Option<HolderFitness>)| match fitness {
        Some(fitness) => format!("{name}: {}", fitness.why()),
        None => format!("{name}: it is no ingress machine"),
    };
    let (kind, name, message) = match (left, holder) {
        (None, Some(holder)) => (
            EventKind::Normal,
            holder,
            format!("machine {holder} gets the virtual address {address}"),
        ),
        (Some(left), Some(holder)) => (
            EventKind::Normal,
            holder,
            format!(
                "machine {holder} gets the virtual address {address} instead of {}",
                why(left)
            ),
        ),
        (Some(left), None) => (
            EventKind::Warning,
            left.0,
            format!(
                "no machine can hold the virtual address {address} instead of {}",
                why(left)
            ),
        ),
        (None, None) => return,
    };
    let uid = draft.snapshot.nodes.get(name);
    let object = ObjectReference {
        kind: ObjectKind::Node,
        name: name.to_owned(),
        namespace: String::new(),
        uid: uid.map_or_else(String::new, |node| node.registration.value.uid.clone()),
    };
    draft.event(
        group,
        kind,
        EventReason::VirtualAddressMoved,
        object,
        message,
    );
}

/// Says that a machine can't hold an address that it is to hold, or does again.
pub(crate) fn event(
    draft: &mut Draft<'_>,
    group: &mut OperationGroup,
    (name, uid): (&str, &str),
    (before, status): (&NodeStatusRecord, &NodeStatusRecord),
) {
    let judged = |status: &NodeStatusRecord| -> Option<Condition> {
        let mut conditions = status.conditions.iter();
        let found = conditions.find(|one| one.kind == VIRTUAL_ADDRESSES_HELD && !one.status);
        found.cloned()
    };
    let (kind, reason, message) = match (judged(before), judged(status)) {
        (None, Some(condition)) => (
            EventKind::Warning,
            EventReason::VirtualAddressNotHeld,
            condition.message,
        ),
        (Some(_), None) => (
            EventKind::Normal,
            EventReason::VirtualAddressHeld,
            format!("nothing is in the way of the virtual addresses of machine {name} any more"),
        ),
        _ => return,
    };
    let object = ObjectReference {
        kind: ObjectKind::Node,
        name: name.to_owned(),
        namespace: String::new(),
        uid: uid.to_owned(),
    };
    draft.event(group, kind, reason, object, message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use HolderFitness::{Leaves, ServesNoRoutes, Silent, Unable, Unknown, Well};

    fn chosen(present: Option<&str>, machines: &[(&str, HolderFitness)]) -> Option<String> {
        let machines = machines.iter().copied().collect();
        choose_holder(present, &machines, &BTreeMap::new()).map(str::to_owned)
    }

    #[test]
    fn a_holder_that_is_well_stays_and_one_that_is_not_is_followed_by_a_better_one() {
        let some = |name: &str| Some(name.to_owned());
        for (present, machines, expected) in [
            (None, &[("n1", Well), ("n2", Well)][..], some("n1")),
            (Some("n2"), &[("n1", Well), ("n2", Well)], some("n2")),
            (Some("n1"), &[("n1", Leaves), ("n2", Well)], some("n2")),
            (
                Some("n1"),
                &[("n1", Leaves), ("n2", ServesNoRoutes)],
                some("n2"),
            ),
            (Some("n1"), &[("n1", Silent), ("n2", Leaves)], some("n2")),
            (Some("n1"), &[("n1", Unable), ("n2", Well)], some("n2")),
            // Nobody is better.
            (Some("n1"), &[("n1", Silent), ("n2", Unable)], some("n1")),
            (Some("n1"), &[("n1", Leaves), ("n2", Unknown)], some("n1")),
            (Some("n1"), &[("n1", Unable), ("n2", Silent)], some("n1")),
            // The holder is no ingress machine any more.
            (Some("n3"), &[("n1", Silent), ("n2", Unknown)], None),
            (Some("n3"), &[("n1", Silent), ("n2", Leaves)], some("n2")),
            (None, &[("n1", Unknown)], None),
        ] {
            assert_eq!(
                chosen(present, machines),
                expected,
                "{present:?} {machines:?}"
            );
        }
    }

    #[test]
    fn addresses_are_spread_over_machines() {
        let machines = BTreeMap::from([("n1", Well), ("n2", Well)]);
        let held = BTreeMap::from([("n1", 2), ("n2", 1)]);
        assert_eq!(choose_holder(None, &machines, &held), Some("n2"));
        let held = BTreeMap::from([("n1", 1), ("n2", 1)]);
        assert_eq!(choose_holder(None, &machines, &held), Some("n1"));
    }

    #[test]
    fn a_number_is_higher_than_all_before_also_after_a_restore() {
        let now = jiff::Timestamp::from_millisecond(1_800_000_000_000).unwrap();
        assert_eq!(next_number(0, now), 1_800_000_000_000);
        assert_eq!(next_number(1_900_000_000_000, now), 1_900_000_000_001);
    }
}
