//! Any frame of the LAN as ARP, and any ICMPv6 message as neighbour discovery: what is read of a packet
//! is what `kat-net` writes to say the same. The first byte chooses the protocol.
#![no_main]

use std::net::IpAddr;

use kat_fuzz::survive_overflow;
use kat_network::virtual_addresses::packet::{
    HeardStatement, StatementKind, arp_frame, neighbour_message, read_arp, read_neighbour,
};
use libfuzzer_sys::fuzz_target;

/// Hop limit of a message that no router has forwarded.
const SAME_LINK: i32 = 255;

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let Some((protocol, packet)) = bytes.split_first() else { return };
    let heard = match protocol & 1 {
        0 => read_arp(packet),
        _ => {
            assert_eq!(read_neighbour(packet, SAME_LINK - 1), None, "another link");
            read_neighbour(packet, SAME_LINK)
        }
    };
    let Some(heard) = heard else { return };
    let HeardStatement { address, kind, mac, claim } = heard;
    let number = claim.unwrap_or(0);
    let read = match address {
        IpAddr::V4(address) => {
            assert_eq!(protocol & 1, 0);
            // The zero address is no sender's.
            assert!(kind == StatementKind::Asks || !address.is_unspecified());
            read_arp(&arp_frame(address, kind, mac, number))
        }
        IpAddr::V6(address) => {
            assert_eq!(protocol & 1, 1);
            // Only kat-net asks for an address to use it.
            assert!(kind == StatementKind::Has || claim.is_some());
            let (message, to) = neighbour_message(address, kind, mac, number);
            assert!(to.is_multicast());
            read_neighbour(&message, SAME_LINK)
        }
    };
    let expected = HeardStatement { claim: Some(number), ..heard };
    assert_eq!(read, Some(expected));
});
