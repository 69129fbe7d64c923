//! Addresses that KAT adds to the machine's own links: virtual addresses.

use std::{collections::BTreeSet, net::IpAddr};

use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, CacheInfo,
};
use rustix::io::Errno;

use super::{LinkError, Links, ROUTE_PROTOCOL, call};

/// An address of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddress {
    /// Index of the link.
    pub link: u32,
    pub address: IpAddr,
    /// Length of the prefix of its network.
    pub prefix: u8,
    /// Whether KAT added it. Kernels before 5.18 keep no mark.
    pub marked: bool,
}

impl LinkAddress {
    /// Whether it stands for itself alone, as those that KAT adds.
    pub fn is_whole(&self) -> bool {
        self.prefix == whole_prefix(self.address)
    }
}

/// Length of a prefix that is a whole address.
fn whole_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl Links {
    /// The addresses of all links.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub async fn link_addresses(&self) -> Result<Vec<LinkAddress>, LinkError> {
        let messages = self.address_messages().await?;
        Ok(messages.iter().filter_map(describe_address).collect())
    }

    async fn address_messages(&self) -> Result<Vec<AddressMessage>, LinkError> {
        let request = self.handle.address().get();
        self.list("list addresses", || request.execute()).await
    }

    /// Adds an address to a link, for itself alone and with KAT's mark. Programs of the machine do not
    /// send from it, unless they choose it.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub async fn add_marked_address(&self, link: u32, address: IpAddr) -> Result<(), LinkError> {
        let whole = whole_prefix(address);
        let mut request = self.handle.address().add(link, address, whole).replace();
        let attributes = &mut request.message_mut().attributes;
        attributes.push(AddressAttribute::Protocol(AddressProtocol::Other(
            ROUTE_PROTOCOL,
        )));
        if address.is_ipv6() {
            // Whether another host has it was asked before.
            attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            let mut lifetime = CacheInfo::default();
            (lifetime.ifa_preferred, lifetime.ifa_valid) = (0, u32::MAX);
            attributes.push(AddressAttribute::CacheInfo(lifetime));
        }
        call(&format!("add address {address}"), request.execute()).await
    }

    /// Removes an address that stands for itself alone from a link; does nothing if it is gone already.
    /// The same address with a network is not KAT's, and stays.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub async fn remove_address(&self, link: u32, address: IpAddr) -> Result<(), LinkError> {
        for message in self.address_messages().await? {
            let found = describe_address(&message);
            let is_it = found.is_some_and(|found| {
                (found.link, found.address) == (link, address) && found.is_whole()
            });
            if !is_it {
                continue;
            }
            let request = self.handle.address().del(message);
            match call(&format!("remove address {address}"), request.execute()).await {
                Err(error) if !error.is(Errno::ADDRNOTAVAIL) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes every address with KAT's mark, and those of `held` that stand for themselves alone, which
    /// have no mark on kernels before 5.18; returns how many there were.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub async fn remove_marked_addresses(
        &self,
        held: &BTreeSet<IpAddr>,
    ) -> Result<usize, LinkError> {
        let all = self.link_addresses().await?.into_iter();
        let is_own =
            |one: &LinkAddress| one.marked || (one.is_whole() && held.contains(&one.address));
        let marked: Vec<LinkAddress> = all.filter(is_own).collect();
        for one in &marked {
            self.remove_address(one.link, one.address).await?;
        }
        Ok(marked.len())
    }
}

fn describe_address(message: &AddressMessage) -> Option<LinkAddress> {
    let (mut local, mut other, mut marked) = (None, None, false);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => other = Some(*address),
            AddressAttribute::Protocol(protocol) => marked = u8::from(*protocol) == ROUTE_PROTOCOL,
            _ => {}
        }
    }
    Some(LinkAddress {
        link: message.header.index,
        address: local.or(other)?,
        prefix: message.header.prefix_len,
        marked,
    })
}
