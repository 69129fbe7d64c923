//! What is sent and read on the LAN of a virtual address: ARP (RFC 826, RFC 5227) and neighbour discovery
//! (RFC 4861), with the number of the leader's decision beside it.
//!
//! Other hosts ignore the number: an ARP packet is shorter than the shortest frame, and the number lies
//! in its padding; in neighbour discovery it is an option for experiments (RFC 4727), which hosts skip.
//! Nothing proves it: any host on the LAN can send each of these packets, as it can send ARP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Hardware address of an Ethernet link.
pub type Mac = [u8; 6];

/// All hosts of an Ethernet.
const BROADCAST: Mac = [0xff; 6];
/// EtherType of ARP.
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
/// Shortest Ethernet frame without its checksum.
const SHORTEST_FRAME: usize = 60;
/// Begin of an ARP packet: Ethernet, IPv4, and the lengths of their addresses.
const ARP_KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];
/// Begin of a claim.
const CLAIM: &[u8; 6] = b"KAT-VA";
/// Option of neighbour discovery for experiments (RFC 4727, section 6.1).
const OPTION_EXPERIMENT: u8 = 253;
/// ICMPv6 types.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options of neighbour discovery with hardware addresses.
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
/// The sender's other addresses are replaced by this one (RFC 4861, section 4.4).
const OVERRIDE: u8 = 0x20;

/// What a host on the LAN says of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeardStatement {
    /// The address.
    pub address: IpAddr,
    pub kind: StatementKind,
    /// Hardware address of the host; zeros where the packet has none.
    pub mac: Mac,
    /// Number of the leader's decision, in packets of `kat-net`.
    pub claim: Option<u64>,
}

/// Whether a host asks for an address or has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatementKind {
    /// It asks whether anybody has the address, to use it.
    Asks,
    /// It has the address.
    Has,
}

/// An Ethernet frame with an ARP packet that asks for or announces an address (RFC 5227, sections 2.1.1
/// and 2.3).
pub fn arp_frame(address: Ipv4Addr, kind: StatementKind, own: Mac, claim: u64) -> Vec<u8> {
    let sender = match kind {
        StatementKind::Asks => Ipv4Addr::UNSPECIFIED,
        StatementKind::Has => address,
    };
    let mut frame = Vec::with_capacity(SHORTEST_FRAME);
    frame.extend(BROADCAST);
    frame.extend(own);
    frame.extend(ETHERTYPE_ARP.to_be_bytes());
    frame.extend(ARP_KIND);
    frame.extend([0, 1]);
    frame.extend(own);
    frame.extend(sender.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame.extend(CLAIM);
    frame.extend(claim.to_be_bytes());
    frame.resize(SHORTEST_FRAME, 0);
    frame
}

/// What an Ethernet frame says; `None` for anything but ARP about an address.
pub fn read_arp(frame: &[u8]) -> Option<HeardStatement> {
    let mut rest = frame.get(12..)?;
    if take::<2>(&mut rest)? != ETHERTYPE_ARP.to_be_bytes() || take::<6>(&mut rest)? != ARP_KIND {
        return None;
    }
    let _operation = take::<2>(&mut rest)?;
    let mac = take::<6>(&mut rest)?;
    let sender = Ipv4Addr::from(take::<4>(&mut rest)?);
    let _target_mac = take::<6>(&mut rest)?;
    let target = Ipv4Addr::from(take::<4>(&mut rest)?);
    let (kind, address) = match sender.is_unspecified() {
        true => (StatementKind::Asks, target),
        false => (StatementKind::Has, sender),
    };
    Some(HeardStatement {
        address: address.into(),
        kind,
        mac,
        claim: read_claim(rest),
    })
}

/// An ICMPv6 message, without its checksum, that asks for or announces an address (RFC 4861, sections
/// 4.3 and 4.4), and the multicast address that it goes to.
pub fn neighbour_message(
    address: Ipv6Addr,
    kind: StatementKind,
    own: Mac,
    claim: u64,
) -> (Vec<u8>, Ipv6Addr) {
    let (kind, flags, option, to) = match kind {
        StatementKind::Asks => (SOLICITATION, 0, OPTION_SOURCE, solicited_node(address)),
        StatementKind::Has => (ADVERTISEMENT, OVERRIDE, OPTION_TARGET, ALL_NODES),
    };
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(address.octets());
    message.extend([option, 1]);
    message.extend(own);
    message.extend([OPTION_EXPERIMENT, 2]);
    message.extend(CLAIM);
    message.extend(claim.to_be_bytes());
    (message, to)
}

/// All nodes of a link (RFC 4291, section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The multicast address that the host with an address listens to (RFC 4291, section 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

/// What an ICMPv6 message says that came with this hop limit; `None` for anything but a message of the
/// same link (RFC 4861, section 7.1) about an address.
pub fn read_neighbour(message: &[u8], hop_limit: i32) -> Option<HeardStatement> {
    if hop_limit != 255 {
        return None;
    }
    let mut rest = message;
    let kind = match take::<2>(&mut rest)? {
        [SOLICITATION, 0] => StatementKind::Asks,
        [ADVERTISEMENT, 0] => StatementKind::Has,
        _ => return None,
    };
    let _checksum_and_flags = take::<6>(&mut rest)?;
    let address = Ipv6Addr::from(take::<16>(&mut rest)?);
    let (mut mac, mut claim) = ([0; 6], None);
    while !rest.is_empty() {
        let [option, eights] = take::<2>(&mut rest)?;
        let length = (usize::from(eights) * 8).checked_sub(2)?;
        let (value, others) = rest.split_at_checked(length)?;
        rest = others;
        match option {
            OPTION_SOURCE | OPTION_TARGET => mac = take::<6>(&mut { value })?,
            OPTION_EXPERIMENT => claim = claim.or(read_claim(value)),
            _ => {}
        }
    }
    // Any host that wants to send to the address asks for it; only `kat-net` asks in order to use it.
    if kind == StatementKind::Asks && claim.is_none() {
        return None;
    }
    Some(HeardStatement {
        address: address.into(),
        kind,
        mac,
        claim,
    })
}

fn read_claim(bytes: &[u8]) -> Option<u64> {
    let mut rest = bytes;
    (&take::<6>(&mut rest)? == CLAIM).then_some(())?;
    Some(u64::from_be_bytes(take::<8>(&mut rest)?))
}

fn take<const LENGTH: usize>(bytes: &mut &[u8]) -> Option<[u8; LENGTH]> {
    let (first, rest) = bytes.split_first_chunk::<LENGTH>()?;
    *bytes = rest;
    Some(*first)
}

/// A hardware address as people write it.
pub(crate) fn mac_text(mac: Mac) -> String {
    match mac {
        [0, 0, 0, 0, 0, 0] => "an unknown hardware address".to_owned(),
        mac => mac.map(|byte| format!("{byte:02x}")).join(":"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    #[test]
    fn a_packet_says_what_was_written_into_it() {
        let four = Ipv4Addr::new(192, 0, 2, 9);
        let six: Ipv6Addr = "2001:db8::12:3456".parse().unwrap();
        for kind in [StatementKind::Asks, StatementKind::Has] {
            let said = |address: IpAddr| HeardStatement {
                address,
                kind,
                mac: MAC,
                claim: Some(7),
            };
            let frame = arp_frame(four, kind, MAC, 7);
            assert_eq!(frame.len(), SHORTEST_FRAME);
            assert_eq!(read_arp(&frame), Some(said(four.into())));
            let (message, to) = neighbour_message(six, kind, MAC, 7);
            assert_eq!(read_neighbour(&message, 255), Some(said(six.into())));
            assert!(to.is_multicast());
            // A router forwarded it: it is from another link.
            assert_eq!(read_neighbour(&message, 254), None);
        }
        let (_, to) = neighbour_message(six, StatementKind::Asks, MAC, 7);
        assert_eq!(to.to_string(), "ff02::1:ff12:3456");
    }

    #[test]
    fn packets_of_other_hosts_have_no_number() {
        let mut frame = arp_frame([192, 0, 2, 9].into(), StatementKind::Has, MAC, 7);
        frame.truncate(42);
        assert_eq!(read_arp(&frame).unwrap().claim, None);
        frame.extend([0; 18]);
        assert_eq!(read_arp(&frame).unwrap().claim, None);
        frame.truncate(41);
        assert_eq!(read_arp(&frame), None);
        // A host asks for the address because it wants to send to it.
        let six: Ipv6Addr = "2001:db8::9".parse().unwrap();
        let (mut message, _) = neighbour_message(six, StatementKind::Asks, MAC, 7);
        message.truncate(32);
        assert_eq!(read_neighbour(&message, 255), None);
        let (mut message, _) = neighbour_message(six, StatementKind::Has, MAC, 7);
        message.truncate(24);
        let heard = read_neighbour(&message, 255).unwrap();
        assert_eq!((heard.mac, heard.claim), ([0; 6], None));
    }

    #[test]
    fn an_option_without_a_length_ends_the_message() {
        let six: Ipv6Addr = "2001:db8::9".parse().unwrap();
        let (mut message, _) = neighbour_message(six, StatementKind::Has, MAC, 7);
        message[25] = 0;
        assert_eq!(read_neighbour(&message, 255), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = read_arp(&bytes);
            let _ = read_neighbour(&bytes, 255);
            let mut arp = arp_frame([192, 0, 2, 9].into(), StatementKind::Has, MAC, 7);
            arp.truncate(22);
            arp.extend(&bytes);
            let _ = read_arp(&arp);
            let mut advertisement = vec![ADVERTISEMENT, 0, 0, 0, 0, 0, 0, 0];
            advertisement.extend(&bytes);
            let _ = read_neighbour(&advertisement, 255);
        }
    }
}
