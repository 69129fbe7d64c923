//! Virtual addresses: addresses of the LAN that one machine of the cluster has at a time.
//!
//! The agent writes for which addresses the leader has chosen this machine ([`AddressGrants`]). The rest
//! is `kat-net`'s: it goes on without the agent. [`holder`] decides, [`keeper`] acts, and [`packet`] and
//! `sockets` are what is said on the LAN.
//!
//! [`AddressGrants`]: kat_types::virtual_addresses::AddressGrants

pub mod holder;
pub mod keeper;
pub mod packet;
mod sockets;

use std::{collections::BTreeSet, net::IpAddr, path::Path};

use crate::state_files;
use kat_types::virtual_addresses::{AddressStateWord, AddressStates, STATES_FILE};

/// The virtual addresses that this machine holds, by the report of `kat-net`. They say where the cluster
/// is, and not where this machine is.
pub fn held() -> BTreeSet<IpAddr> {
    let read = state_files::read::<AddressStates>(Path::new(STATES_FILE));
    let addresses = read.map(|states| states.addresses).unwrap_or_default();
    let held = addresses
        .into_iter()
        .filter(|(_, state)| may_be_held(state.word));
    held.map(|(address, _)| address).collect()
}

/// Whether an address of this word may be on this machine's link by KAT. Without a carrier it is, or is not.
fn may_be_held(word: AddressStateWord) -> bool {
    matches!(word, AddressStateWord::Held | AddressStateWord::NoCarrier)
}
