//! Virtual addresses: two machines hold one on the same LAN for a moment at most, only ingress machines get
//! one, a later decision has a higher number, and one that is given up without a leader is given up before
//! another machine may get it.
//!
//! [`Lan`](crate::machines::lan::Lan) checks the moment itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use crate::world::{LOST_AFTER, World};
use kat_plan::{ClusterPlan, Snapshot};
use kat_types::{
    api::NodePhase,
    machine::node_labels::is_for_ingress,
    store::{
        keys,
        records::{NodeRegistration, NodeStatusRecord},
        transaction::WriteOperation,
    },
    virtual_addresses::VirtualAddressRecord,
};

/// What the checks remember of virtual addresses.
#[derive(Default)]
pub(crate) struct AddressChecks {
    /// Revision of the store at the last check.
    revision: i64,
    /// The last decision for each stored address.
    decisions: BTreeMap<IpAddr, Decision>,
}

/// A decision of a leader. Numbers are compared while the object stays.
struct Decision {
    created: i64,
    holder: Option<String>,
    number: u64,
}

/// The machine that a plan chooses for an address, and must not.
pub(crate) fn wrong_holder(snapshot: &Snapshot, plan: &ClusterPlan) -> Option<String> {
    let nodes = snapshot.nodes.iter();
    let labelled = nodes.filter(|(_, node)| is_for_ingress(&node.registration.value.labels));
    let labelled: BTreeSet<&String> = labelled.map(|(name, _)| name).collect();
    let mut operations = plan.changes.iter().flat_map(|change| &change.operations);
    operations.find_map(|operation| {
        let WriteOperation::Put(key, value) = operation else {
            return None;
        };
        key.strip_prefix(keys::VIRTUAL_ADDRESSES)?;
        let record: VirtualAddressRecord = serde_json::from_slice(value).unwrap();
        let before = snapshot.virtual_addresses.get(&record.address);
        let before = before.and_then(|before| before.value.holder.as_ref());
        let holder = record.holder.as_ref();
        let holder = holder.filter(|holder| Some(*holder) != before)?;
        let may_hold = labelled.is_empty() || labelled.contains(holder);
        (!may_hold).then(|| {
            format!(
                "{holder} gets {}, and is no ingress machine",
                record.address
            )
        })
    })
}

impl World {
    /// Checks what must hold of virtual addresses at every moment.
    pub(crate) fn check_virtual_addresses(&mut self) {
        self.write_address_grants();
        let Some(addresses) = &self.addresses else {
            return;
        };
        addresses.lan.look();
        let lost = Duration::from_secs(LOST_AFTER.into());
        for (machine, address) in addresses.lan.released_on_loss() {
            let silent = self.monitor.silent(&machine);
            if silent.is_none_or(|silent| silent >= lost) {
                self.monitor.violated(format!(
                    "{machine} holds {address}, which it gives up without a leader, and no leader heard of it for {silent:?}"
                ));
            }
        }
        self.check_address_numbers();
    }

    /// Another holder has a higher number, and the same one the same number.
    fn check_address_numbers(&mut self) {
        let revision = self.store.revision();
        if std::mem::replace(&mut self.address_checks.revision, revision) == revision {
            return;
        }
        let mut decisions = BTreeMap::new();
        for item in self.store.peek(keys::VIRTUAL_ADDRESSES).items {
            let record: VirtualAddressRecord = serde_json::from_slice(&item.value).unwrap();
            let before = self.address_checks.decisions.get(&record.address);
            let before = before.filter(|before| before.created == item.create_revision);
            if let Some(before) = before {
                let is_right = match before.holder == record.holder {
                    // It may have moved away and back since.
                    true => record.number >= before.number,
                    false => record.number > before.number,
                };
                if !is_right {
                    self.monitor.violated(format!(
                        "{} was to be held by {:?} with number {}, and is by {:?} with number {}",
                        record.address, before.holder, before.number, record.holder, record.number
                    ));
                }
            }
            let decision = Decision {
                created: item.create_revision,
                holder: record.holder,
                number: record.number,
            };
            decisions.insert(record.address, decision);
        }
        self.address_checks.decisions = decisions;
    }

    /// Which virtual address is not held as promised once all is healed.
    pub(crate) fn addresses_missing(&self) -> Option<String> {
        let lan = &self.addresses.as_ref()?.lan;
        let machines = self.ingress_machines().into_iter();
        let ingress: BTreeSet<&str> = machines
            .filter(|(_, serves)| *serves)
            .map(|(name, _)| name)
            .collect();
        let is_well = |name: &&&str| {
            let registration: Option<NodeRegistration> = self.stored(&keys::registration(name));
            let status: Option<NodeStatusRecord> = self.stored(&keys::node_status(name));
            registration.is_some_and(|registration| !registration.draining)
                && status.is_some_and(|status| status.phase == NodePhase::Ready)
        };
        let well: BTreeSet<&str> = ingress.iter().filter(is_well).copied().collect();
        self.virtual_addresses().into_iter().find_map(|address| {
            let record: Option<VirtualAddressRecord> =
                self.stored(&keys::virtual_address(address));
            let chosen = record.and_then(|record| record.holder);
            let holders = lan.holders(address);
            let alien = holders.iter().find(|one| !ingress.contains(one.as_str()));
            if let Some(alien) = alien {
                return Some(format!(
                    "{address} is held by {alien}, which is no ingress machine"
                ));
            }
            let is_held = match &chosen {
                // Nobody is well.
                None => well.is_empty() && holders.is_empty(),
                Some(chosen) if well.contains(chosen.as_str()) => holders == [chosen.clone()],
                Some(_) => well.is_empty() && holders.len() <= 1,
            };
            (!is_held).then(|| {
                format!(
                    "{address} is to be held by {chosen:?} and is by {holders:?}, and {well:?} are well"
                )
            })
        })
    }

    /// What is left of virtual addresses once the settings have none.
    pub(crate) fn addresses_left(&self) -> Option<String> {
        let lan = &self.addresses.as_ref()?.lan;
        let stored = self.store.peek(keys::VIRTUAL_ADDRESSES).items;
        if let Some(item) = stored.first() {
            return Some(format!("{} is in the store", item.key));
        }
        let held = lan.all_held();
        let (machine, address) = held.first()?;
        Some(format!("{machine} holds {address}"))
    }
}
