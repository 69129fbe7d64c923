//! Virtual addresses as users see them.

use super::ApiView;
use kat_plan::address_holding_machines;
use kat_types::{
    api::{
        Item, Metadata, VirtualAddressItem, VirtualAddressMachine, VirtualAddressStatus,
        VirtualAddressView,
    },
    reason::Reason,
    resource::{OnLeaderLoss, VirtualAddress},
    virtual_addresses::{AddressStateWord, address_and_prefix},
};

impl ApiView<'_> {
    /// The virtual addresses of the cluster's settings.
    pub(crate) fn virtual_addresses(&self) -> Vec<VirtualAddressItem> {
        let wanted = &self.snapshot.wanted_cluster().spec.virtual_addresses;
        let items = wanted.iter();
        items.filter_map(|one| self.virtual_address(one)).collect()
    }

    fn virtual_address(&self, wanted: &VirtualAddress) -> Option<VirtualAddressItem> {
        let (address, _) = address_and_prefix(wanted)?;
        let stored = self.snapshot.virtual_addresses.get(&address);
        let holder = stored.and_then(|stored| stored.value.holder.clone());
        let since = stored.and_then(|stored| stored.value.since);
        let mut machines: Vec<VirtualAddressMachine> = address_holding_machines(self.snapshot)
            .into_iter()
            .map(|node| {
                let reported = self.observed.reports.get(node);
                let said = reported.and_then(|reported| {
                    let mut said = reported.report.virtual_addresses.iter();
                    said.find(|one| one.address == address)
                });
                said.map_or_else(
                    || VirtualAddressMachine {
                        node: node.to_owned(),
                        ..VirtualAddressMachine::default()
                    },
                    |said| VirtualAddressMachine {
                        node: node.to_owned(),
                        state: said.state,
                        interface: said.interface.clone(),
                        message: said.message.clone(),
                    },
                )
            })
            .collect();
        machines.sort_by(|one, other| one.node.cmp(&other.node));
        let own = machines
            .iter()
            .find(|machine| Some(&machine.node) == holder.as_ref());
        let state = own.map_or(AddressStateWord::Unknown, |own| own.state);
        let said = own.map_or("", |own| own.message.as_str());
        let name = holder.as_deref().unwrap_or_default();
        let (reason, message) = match (&holder, state) {
            (None, _) => (
                Some(Reason::NoAddressHolder),
                "no machine can hold it".to_owned(),
            ),
            (_, AddressStateWord::Taken | AddressStateWord::Conflict) => {
                (Some(Reason::VirtualAddressTaken), format!("{name}: {said}"))
            }
            (_, AddressStateWord::Refused) => (
                Some(Reason::VirtualAddressRefused),
                format!("{name}: {said}"),
            ),
            (_, AddressStateWord::NoInterface | AddressStateWord::NoCarrier) => {
                (Some(Reason::NoAddressHolder), format!("{name}: {said}"))
            }
            _ if !self.is_ready(name) => (
                Some(Reason::NodeNotReady),
                format!("{name} does not report, and no other machine can hold it"),
            ),
            _ => (None, String::new()),
        };
        Some(Item {
            kind: "VirtualAddress".to_owned(),
            metadata: Metadata {
                name: address.to_string(),
                resource_version: stored.map_or(0, |stored| stored.revision).to_string(),
                ..Metadata::default()
            },
            spec: VirtualAddressView {
                address: wanted.address.clone(),
                interface: wanted.interface.clone(),
                on_leader_loss: match wanted.on_leader_loss {
                    OnLeaderLoss::Keep => "keep".to_owned(),
                    OnLeaderLoss::Release => "release".to_owned(),
                },
            },
            status: VirtualAddressStatus {
                held: state == AddressStateWord::Held,
                since: super::time(since),
                holder,
                reason: Reason::word_or_empty(reason).to_owned(),
                message,
                machines,
            },
        })
    }
}
