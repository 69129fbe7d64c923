//! The machine's own addresses outside the overlay.

use std::net::{IpAddr, Ipv4Addr};

use nix::{ifaddrs, net::if_::InterfaceFlags};

use crate::virtual_addresses;

/// An address of this machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalAddress {
    pub link: String,
    pub address: IpAddr,
    /// Broadcast address of the link; IPv4 only.
    pub broadcast: Option<Ipv4Addr>,
}

/// All addresses in order, except those of the loopback link and of KAT's links, IPv6 link-local ones,
/// and virtual addresses.
pub fn addresses() -> Vec<LocalAddress> {
    let shared = virtual_addresses::held();
    let Ok(list) = ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    let mut found: Vec<LocalAddress> = list
        .filter(|entry| {
            !entry.flags.contains(InterfaceFlags::IFF_LOOPBACK)
                && !entry.interface_name.starts_with("kat")
        })
        .filter_map(|entry| {
            let storage = entry.address?;
            let four = storage.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
            let six = || storage.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip()));
            let broadcast = entry
                .broadcast
                .and_then(|storage| storage.as_sockaddr_in().map(|it| it.ip()))
                .filter(|_| entry.flags.contains(InterfaceFlags::IFF_BROADCAST));
            let address = four.or_else(six).filter(is_meaningful)?;
            if shared.contains(&address) {
                return None;
            }
            Some(LocalAddress {
                link: entry.interface_name,
                address,
                broadcast: broadcast.filter(|_| address.is_ipv4()),
            })
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Whether the address identifies this machine to others: a link-local one does not without a link.
pub(crate) fn is_meaningful(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(link_local || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}
