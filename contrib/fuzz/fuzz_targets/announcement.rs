//! Any bytes as an announcement: only a peer's is accepted, a parsed one is serialized to the same
//! bytes, and a genuine one is accepted once.
#![no_main]

use std::{
    net::IpAddr,
    sync::{LazyLock, Mutex},
    time::{Duration, UNIX_EPOCH},
};

use kat_fuzz::survive_overflow;
use kat_network::overlay::announce::known_peers::AnnouncementBook;
use kat_network::overlay::{
    announce::packet::{MAX_ENDPOINTS, MAX_PACKET, MAX_TAGS, Packet},
    wireguard::PrivateKey,
};
use libfuzzer_sys::fuzz_target;

/// Two machines that know each other. Generating keys takes longer than everything else, so they
/// are made once.
static BOOKS: LazyLock<Mutex<(AnnouncementBook, AnnouncementBook)>> = LazyLock::new(|| {
    let keys = [1, 2].map(|number| PrivateKey::from_bytes([number; 32]));
    let book = |own: usize, peer: usize| {
        let mut book = AnnouncementBook::new(keys[own].clone());
        book.set_peers([keys[peer].public()].into_iter());
        book
    };
    Mutex::new((book(0, 1), book(1, 0)))
});

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let mut books = BOOKS.lock().expect("nothing panics while it is held");
    let (sender, receiver) = &mut *books;
    assert!(!receiver.open(bytes), "a stranger is believed");
    let Some(packet) = Packet::parse(bytes) else { return };
    assert!(bytes.len() <= MAX_PACKET);
    assert!((1..=MAX_ENDPOINTS).contains(&packet.body.endpoints.len()));
    assert!((1..=MAX_TAGS).contains(&packet.tags.len()));
    assert_eq!(packet.to_bytes(), bytes);
    for endpoint in &packet.body.endpoints {
        let nowhere = match endpoint.ip() {
            IpAddr::V4(address) => address.is_broadcast(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        assert!(endpoint.port() != 0 && !nowhere && !endpoint.ip().is_multicast());
    }
    let peer = PrivateKey::from_bytes([2; 32]).public();
    let at = UNIX_EPOCH + Duration::from_secs(1);
    let said = sender.write(&packet.body.endpoints, [peer].into_iter(), at);
    assert_eq!(said.len(), 1);
    receiver.open(&said[0]);
    let own = PrivateKey::from_bytes([1; 32]).public();
    assert_eq!(receiver.endpoints_heard_from(&own), packet.body.endpoints);
    assert!(!receiver.open(&said[0]), "it is said again");
});
