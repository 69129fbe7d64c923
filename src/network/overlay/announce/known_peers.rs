//! The peers that may announce to this machine, and their last announcements.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{SystemTime, UNIX_EPOCH},
};

use aws_lc_rs::hmac;
use sha2::{Digest, Sha256};

use super::packet::{
    AnnouncementBody, AnnouncementTag, AnnouncerId, MAX_ENDPOINTS, MAX_TAGS, Packet,
};
use crate::overlay::wireguard::{PrivateKey, PublicKey};

/// Domain separation of hashes and keys, so that they are valid for no other purpose.
const LABEL: &[u8] = b"kat announcement 1";

/// This machine's keys with each peer, and the peers' announcements.
pub struct AnnouncementBook {
    own: PrivateKey,
    id: AnnouncerId,
    pairs: BTreeMap<AnnouncerId, AnnouncingPeer>,
    last_stamp: u64,
}

struct AnnouncingPeer {
    peer: PublicKey,
    /// Separate keys for each direction: a packet is not valid in the other one.
    out: hmac::Key,
    back: hmac::Key,
    heard: Option<AnnouncementBody>,
}

impl AnnouncementBook {
    pub fn new(own: PrivateKey) -> Self {
        let id = id_of(&own.public());
        Self {
            own,
            id,
            pairs: BTreeMap::new(),
            last_stamp: 0,
        }
    }

    /// Whether the book was made with this key.
    pub fn is_of(&self, own: &PrivateKey) -> bool {
        self.own == *own
    }

    /// Sets the peers; announcements of peers that stay are kept.
    pub fn set_peers(&mut self, peers: impl Iterator<Item = PublicKey>) {
        let mut before = std::mem::take(&mut self.pairs);
        for peer in peers {
            let id = id_of(&peer);
            let pair = before
                .remove(&id)
                .filter(|pair| pair.peer == peer)
                .or_else(|| self.pair(peer));
            self.pairs.extend(pair.map(|pair| (id, pair)));
        }
    }

    fn pair(&self, peer: PublicKey) -> Option<AnnouncingPeer> {
        let secret = self.own.shared_with(&peer)?;
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let own = self.own.public();
        let derive = |from: &PublicKey, to: &PublicKey| {
            let key = hmac::sign(&secret, &[LABEL, &from.0, &to.0].concat());
            hmac::Key::new(hmac::HMAC_SHA256, key.as_ref())
        };
        Some(AnnouncingPeer {
            peer,
            out: derive(&own, &peer),
            back: derive(&peer, &own),
            heard: None,
        })
    }

    /// The packets that announce this machine's endpoints to these peers.
    pub fn write(
        &mut self,
        endpoints: &[SocketAddr],
        peers: impl Iterator<Item = PublicKey>,
        now: SystemTime,
    ) -> Vec<Vec<u8>> {
        let milliseconds = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let milliseconds = u64::try_from(milliseconds.as_millis()).unwrap_or(u64::MAX);
        // Increases even if the clock stands still or was set back a little.
        self.last_stamp = milliseconds.max(self.last_stamp.saturating_add(1));
        let body = AnnouncementBody {
            sender: self.id,
            stamp: self.last_stamp,
            endpoints: endpoints.iter().copied().take(MAX_ENDPOINTS).collect(),
        };
        if body.endpoints.is_empty() {
            return Vec::new();
        }
        let bytes = body.to_bytes();
        let tags: Vec<(AnnouncerId, AnnouncementTag)> = peers
            .filter_map(|peer| {
                let id = id_of(&peer);
                let pair = self.pairs.get(&id)?;
                let tag = hmac::sign(&pair.out, &bytes);
                Some((id, tag.as_ref().try_into().ok()?))
            })
            .collect();
        tags.chunks(MAX_TAGS)
            .map(|tags| {
                let packet = Packet {
                    body: body.clone(),
                    tags: tags.to_vec(),
                };
                packet.to_bytes()
            })
            .collect()
    }

    /// Reads a packet. True if a peer announces new endpoints with it.
    ///
    /// A packet is valid if it is addressed to this machine, its authenticator is right, and it is
    /// later than the last one. A packet from before this machine's start can be replayed: then an
    /// earlier endpoint of that peer is tried in vain.
    pub fn open(&mut self, bytes: &[u8]) -> bool {
        let Some(packet) = Packet::parse(bytes) else {
            return false;
        };
        let Some(pair) = self.pairs.get_mut(&packet.body.sender) else {
            return false;
        };
        let later = |heard: &AnnouncementBody| packet.body.stamp > heard.stamp;
        let meant = packet.tags.iter().find(|(id, _)| *id == self.id);
        let Some((_, tag)) = meant.filter(|_| pair.heard.as_ref().is_none_or(later)) else {
            return false;
        };
        if hmac::verify(&pair.back, &packet.body.to_bytes(), tag).is_err() {
            return false;
        }
        let before = pair.heard.replace(packet.body.clone());
        before.is_none_or(|before| before.endpoints != packet.body.endpoints)
    }

    /// The endpoints that a peer last announced.
    pub fn endpoints_heard_from(&self, peer: &PublicKey) -> &[SocketAddr] {
        let pair = self.pairs.get(&id_of(peer));
        let heard = pair.and_then(|pair| pair.heard.as_ref());
        heard.map_or(&[], |body| &body.endpoints)
    }
}

/// Stands for a key in packets, so that the key is not revealed to the whole link.
fn id_of(key: &PublicKey) -> AnnouncerId {
    let hash = Sha256::digest([LABEL, &key.0].concat());
    let first = hash.first_chunk();
    first.copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(number: u8) -> PrivateKey {
        PrivateKey::from_bytes([number; 32])
    }

    /// The book of the machine `number`, with `others` as its peers.
    fn book(number: u8, others: &[u8]) -> AnnouncementBook {
        let mut book = AnnouncementBook::new(key(number));
        book.set_peers(others.iter().map(|other| key(*other).public()));
        book
    }

    fn endpoints(text: &str) -> Vec<SocketAddr> {
        vec![text.parse().unwrap()]
    }

    fn second(number: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(number)
    }

    /// The announcement of one machine for another, as a single packet.
    fn said(from: &mut AnnouncementBook, to: u8, address: &str, at: u64) -> Vec<u8> {
        let peers = [key(to).public()].into_iter();
        let mut packets = from.write(&endpoints(address), peers, second(at));
        assert_eq!(packets.len(), 1);
        packets.remove(0)
    }

    #[test]
    fn a_peer_is_heard_and_nobody_else() {
        let (mut one, mut two) = (book(1, &[2, 3]), book(2, &[1, 3]));
        let packet = said(&mut one, 2, "192.0.2.1:51820", 1000);
        assert!(two.open(&packet));
        assert_eq!(
            two.endpoints_heard_from(&key(1).public()),
            endpoints("192.0.2.1:51820")
        );
        // The packet is refused by a machine that is not the addressee, by one for which the sender
        // is not a peer, and by the sender itself.
        assert!(!book(3, &[1, 2]).open(&packet));
        assert!(!book(2, &[3]).open(&packet));
        assert!(!one.open(&packet));
        // A stranger that knows all public keys uses the id of the first machine.
        let mut stranger = book(9, &[2]);
        stranger.id = id_of(&key(1).public());
        let forged = said(&mut stranger, 2, "198.51.100.66:51820", 2000);
        assert!(!two.open(&forged));
        assert_eq!(
            two.endpoints_heard_from(&key(1).public()),
            endpoints("192.0.2.1:51820")
        );
    }

    #[test]
    fn no_bit_of_it_can_be_changed() {
        let mut one = book(1, &[2]);
        let packet = said(&mut one, 2, "192.0.2.1:51820", 1000);
        for place in 0..packet.len() {
            for bit in 0..8 {
                let mut changed = packet.clone();
                changed[place] ^= 1 << bit;
                assert!(!book(2, &[1]).open(&changed), "byte {place}, bit {bit}");
            }
        }
        assert!(book(2, &[1]).open(&packet));
    }

    #[test]
    fn what_was_said_before_can_not_be_said_again() {
        let (mut one, mut two) = (book(1, &[2]), book(2, &[1]));
        let old = said(&mut one, 2, "192.0.2.1:51820", 1000);
        let new = said(&mut one, 2, "192.0.2.99:51820", 2000);
        assert!(two.open(&new));
        assert!(!two.open(&old));
        assert!(!two.open(&new));
        assert_eq!(
            two.endpoints_heard_from(&key(1).public()),
            endpoints("192.0.2.99:51820")
        );
        // A later announcement of the same endpoints counts, but is not news.
        let same = said(&mut one, 2, "192.0.2.99:51820", 3000);
        assert!(!two.open(&same));
        // The sender's clock was set back.
        let back = said(&mut one, 2, "192.0.2.5:51820", 10);
        assert!(two.open(&back));
        two.set_peers([key(3).public()].into_iter());
        assert!(two.endpoints_heard_from(&key(1).public()).is_empty());
    }

    #[test]
    fn many_peers_need_many_packets() {
        let others: Vec<u8> = (2..=100).collect();
        let mut one = book(1, &others);
        let peers = others.iter().map(|other| key(*other).public());
        let packets = one.write(&endpoints("192.0.2.1:1"), peers, second(1));
        assert_eq!(packets.len(), others.len().div_ceil(MAX_TAGS));
        let heard = |other: u8| {
            let mut book = book(other, &[1]);
            packets.iter().filter(|packet| book.open(packet)).count()
        };
        for other in [2, 50, 100] {
            assert_eq!(heard(other), 1, "machine {other}");
        }
        assert!(
            one.write(&[], [key(2).public()].into_iter(), second(2))
                .is_empty()
        );
        assert!(
            one.write(&endpoints("192.0.2.1:1"), [].into_iter(), second(2))
                .is_empty()
        );
    }
}
