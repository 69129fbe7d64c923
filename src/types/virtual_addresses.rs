//! Virtual addresses: which machine holds an address of the LAN that machines share, in the store, in
//! the files between the agent and `kat-net`, and on the wire.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::IpNet;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::newer,
    machine::fence::BootTime,
    resource::{OnLeaderLoss, VirtualAddress},
};

/// Most virtual addresses of a cluster: each is announced about once in a second.
pub const MOST_ADDRESSES: usize = 16;
/// `interface` of an address whose machines go by the network of the address.
pub const AUTO_INTERFACE: &str = "auto";

/// The virtual addresses of this cluster, by the agent: [`AddressGrants`]; below
/// [`FOLDER`](crate::machine::network::FOLDER).
pub const GRANTS_FILE: &str = "virtual-addresses.json";
/// Which of them this machine holds, by `kat-net`: [`AddressStates`]. It lies in memory.
pub const STATES_FILE: &str = "/run/kat/virtual-addresses.json";
/// Until when addresses with `onLeaderLoss: release` may be held, by the agent: [`ReleaseDeadline`]. It
/// lies in memory, so that a machine that has booted holds none of them.
pub const RELEASE_FILE: &str = "/run/kat/virtual-addresses-until.json";

/// `/kat/network/virtual/{address}`: which machine is to hold a virtual address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualAddressRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of the prefix of its network.
    pub prefix: u8,
    /// The machines' interface, or [`AUTO_INTERFACE`].
    pub interface: String,
    /// What the holder does while there is no leader. An unknown word of a newer version is read as
    /// `keep`.
    #[serde(default, deserialize_with = "newer::word")]
    pub on_leader_loss: OnLeaderLoss,
    /// Name of the machine that is to hold it; `None` while none can.
    #[serde(default)]
    pub holder: Option<String>,
    /// Number of the decision for this holder. A later decision has a higher number: of two machines
    /// that hold the address, the one with the lower number gives it up.
    pub number: u64,
    /// When the holder was chosen.
    #[serde(default)]
    pub since: Option<Timestamp>,
}

/// The address and the network of the text of `virtualAddresses[].address`; `None` for what the reader of
/// files refuses.
pub fn address_and_prefix(wanted: &VirtualAddress) -> Option<(IpAddr, u8)> {
    let net: IpNet = wanted.address.parse().ok()?;
    Some((net.addr(), net.prefix_len()))
}

/// The virtual addresses of the cluster, as `kat-net` has to know them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressGrants {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By address.
    pub addresses: BTreeMap<IpAddr, AddressGrant>,
}

/// One virtual address, and whether this machine is to hold it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressGrant {
    /// Length of the prefix of its network.
    pub prefix: u8,
    /// This machine's interface, or [`AUTO_INTERFACE`].
    pub interface: String,
    /// What this machine does while there is no leader.
    #[serde(default)]
    pub on_leader_loss: OnLeaderLoss,
    /// Number of the leader's decision, if it is for this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

/// Until when addresses with `onLeaderLoss: release` may be held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseDeadline {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By the clock of [`BootTime`].
    pub until: BootTime,
}

/// What `kat-net` says of the virtual addresses on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AddressStates {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By address.
    pub addresses: BTreeMap<IpAddr, AddressState>,
}

/// A virtual address on one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AddressState {
    /// What the machine does with it.
    pub word: AddressStateWord,
    /// The interface that the address is or would be on; empty if there is none.
    pub interface: String,
    /// More about it, in a sentence; empty where the word says all.
    pub message: String,
}

/// What a machine does with a virtual address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AddressStateWord {
    /// Nothing is known of it.
    #[default]
    Unknown,
    /// It could hold the address, and another machine is to.
    Ready,
    /// It asks on the LAN whether anybody has the address.
    Probing,
    /// It holds the address.
    Held,
    /// It is to hold the address, which another host on the LAN answers for.
    Taken,
    /// It held the address and gave it up, because another host announced it.
    Conflict,
    /// It gave the address up to another machine of the cluster, which the leader chose later.
    Superseded,
    /// It gave the address up, because it reaches no leader.
    Released,
    /// It has no interface for the address.
    NoInterface,
    /// Its interface for the address has no carrier.
    NoCarrier,
    /// The kernel refuses the address.
    Refused,
}

impl newer::ExtensibleEnum for AddressStateWord {
    const NEWER: Self = Self::Unknown;
}

impl newer::ExtensibleEnum for OnLeaderLoss {
    const NEWER: Self = Self::Keep;
}

impl AddressStateWord {
    /// Whether a machine that says this could not hold the address.
    pub fn is_unable(self) -> bool {
        matches!(self, Self::NoInterface | Self::NoCarrier)
    }

    /// Whether a machine that says this could hold the address.
    pub fn is_able(self) -> bool {
        !self.is_unable() && self != Self::Unknown
    }
}

/// Whether an address of a host can be one that machines share.
pub fn can_be_shared(address: IpAddr) -> bool {
    let own = match address {
        IpAddr::V4(address) => address.is_link_local() || address == Ipv4Addr::BROADCAST,
        IpAddr::V6(address) => {
            address.is_unicast_link_local() || address.to_ipv4_mapped().is_some()
        }
    };
    !(own || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_one_host_or_of_many_can_not_be_shared() {
        for text in ["192.168.1.9", "10.0.0.1", "2001:db8::9", "fd00::9"] {
            assert!(can_be_shared(text.parse().unwrap()), "{text}");
        }
        for text in [
            "127.0.0.1",
            "0.0.0.0",
            "169.254.1.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:192.168.1.9",
        ] {
            assert!(!can_be_shared(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_record_of_a_newer_version_is_read() {
        let record: VirtualAddressRecord = serde_json::from_value(serde_json::json!({
            "schema": 2, "address": "192.0.2.9", "prefix": 24, "interface": "auto",
            "onLeaderLoss": "vote", "holder": "n1", "number": 7, "fromLater": [],
        }))
        .unwrap();
        assert_eq!(record.on_leader_loss, OnLeaderLoss::Keep);
        assert_eq!(record.holder.as_deref(), Some("n1"));
        let states: AddressState =
            serde_json::from_value(serde_json::json!({"word": "Held"})).unwrap();
        assert!(states.word.is_able());
    }
}
