//! The format of a probe, and its authenticator.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | `KTP` and the version, now 1 |
//! | 1 | 1 for a question, 2 for its answer |
//! | 16 | a random number of the question, repeated in the answer |
//! | 32 | HMAC-SHA256 over all before |
//!
//! The keys are derived from the X25519 secret of the two machines' WireGuard keys, one for each
//! direction. So only the two machines can make a probe, and no answer is valid twice.

use std::{
    collections::{BTreeMap, VecDeque},
    net::Ipv4Addr,
};

use aws_lc_rs::hmac;
use rand::TryRngCore;

use crate::overlay::wireguard::{PrivateKey, PublicKey};

/// Size of a probe in bytes.
pub const PROBE_SIZE: usize = 53;
const MAGIC: [u8; 4] = *b"KTP\x01";
/// Domain separation of the keys, so that they are valid for no other purpose.
const LABEL: &[u8] = b"kat probe 1";
/// Most questions of which the answers are still taken.
const MOST_OPEN: usize = 16;

/// A random number that an answer repeats.
type Nonce = [u8; 16];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeKind {
    Question,
    Answer,
}

impl ProbeKind {
    fn byte(self) -> u8 {
        match self {
            Self::Question => 1,
            Self::Answer => 2,
        }
    }
}

/// The meaning of a valid probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenedProbe {
    /// A peer asks: this is the answer to send back.
    Question(Vec<u8>),
    /// A peer answers a question of this machine.
    Answer(PublicKey),
}

struct ProbedPeer {
    peer: PublicKey,
    out: hmac::Key,
    back: hmac::Key,
    /// Numbers of the questions without an answer, the newest last.
    open: VecDeque<Nonce>,
}

/// This machine's keys with each peer, by the peer's overlay address.
#[derive(Default)]
pub struct ProbeBook {
    own: Option<PrivateKey>,
    peers: BTreeMap<Ipv4Addr, ProbedPeer>,
}

impl ProbeBook {
    /// Sets this machine's key and the peers; what is known of peers that stay is kept.
    pub fn set(&mut self, own: &PrivateKey, peers: impl Iterator<Item = (Ipv4Addr, PublicKey)>) {
        let mut before = std::mem::take(&mut self.peers);
        if self.own.as_ref() != Some(own) {
            before.clear();
            self.own = Some(own.clone());
        }
        for (address, peer) in peers {
            let known = before.remove(&address);
            let probed = known
                .filter(|known| known.peer == peer)
                .or_else(|| probed(own, peer));
            self.peers.extend(probed.map(|probed| (address, probed)));
        }
    }

    /// A question for the peer at this address; `None` if there is no such peer.
    pub fn question(&mut self, address: Ipv4Addr) -> Option<Vec<u8>> {
        let peer = self.peers.get_mut(&address)?;
        let mut nonce = Nonce::default();
        rand::rngs::OsRng.try_fill_bytes(&mut nonce).ok()?;
        if peer.open.len() >= MOST_OPEN {
            peer.open.pop_front();
        }
        peer.open.push_back(nonce);
        Some(sealed(&peer.out, ProbeKind::Question, nonce))
    }

    /// Reads a packet from this address; `None` unless the peer there made it for this machine, and
    /// for an answer to no open question.
    pub fn open(&mut self, from: Ipv4Addr, bytes: &[u8]) -> Option<OpenedProbe> {
        let peer = self.peers.get_mut(&from)?;
        let bytes: &[u8; PROBE_SIZE] = bytes.try_into().ok()?;
        let (body, tag) = bytes.split_at(PROBE_SIZE - 32);
        let (kind, nonce) = kind_and_nonce(body)?;
        if kind == ProbeKind::Question.byte() {
            hmac::verify(&peer.back, body, tag).ok()?;
            let answer = sealed(&peer.out, ProbeKind::Answer, nonce);
            return Some(OpenedProbe::Question(answer));
        }
        if kind != ProbeKind::Answer.byte() || !peer.open.contains(&nonce) {
            return None;
        }
        hmac::verify(&peer.back, body, tag).ok()?;
        peer.open.clear();
        Some(OpenedProbe::Answer(peer.peer))
    }

    /// The peer at this address refuses probes by an ICMP error that quotes one of them; `None`
    /// unless the quoted one is an open question to that peer, which nobody else has seen.
    pub fn refused(&mut self, from: Ipv4Addr, quoted: &[u8]) -> Option<PublicKey> {
        let peer = self.peers.get_mut(&from)?;
        let (kind, nonce) = kind_and_nonce(quoted)?;
        if kind != ProbeKind::Question.byte() || !peer.open.contains(&nonce) {
            return None;
        }
        peer.open.clear();
        Some(peer.peer)
    }
}

/// The first three fields of a probe; `None` without them, and for another format.
fn kind_and_nonce(probe: &[u8]) -> Option<(u8, Nonce)> {
    let (magic, rest) = probe.split_first_chunk()?;
    let ([kind], rest) = rest.split_first_chunk()?;
    let nonce = rest.first_chunk()?;
    (*magic == MAGIC).then_some((*kind, *nonce))
}

fn probed(own: &PrivateKey, peer: PublicKey) -> Option<ProbedPeer> {
    let secret = own.shared_with(&peer)?;
    let secret = hmac::Key::new(hmac::HMAC_SHA256, &secret);
    let own = own.public();
    let derive = |from: &PublicKey, to: &PublicKey| {
        let key = hmac::sign(&secret, &[LABEL, &from.0, &to.0].concat());
        hmac::Key::new(hmac::HMAC_SHA256, key.as_ref())
    };
    Some(ProbedPeer {
        peer,
        out: derive(&own, &peer),
        back: derive(&peer, &own),
        open: VecDeque::new(),
    })
}

fn sealed(key: &hmac::Key, kind: ProbeKind, nonce: Nonce) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.push(kind.byte());
    bytes.extend(nonce);
    let tag = hmac::sign(key, &bytes);
    bytes.extend(tag.as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Ipv4Addr = Ipv4Addr::new(10, 90, 1, 1);
    const TWO: Ipv4Addr = Ipv4Addr::new(10, 90, 2, 1);

    fn key(number: u8) -> PrivateKey {
        PrivateKey::from_bytes([number; 32])
    }

    fn book(own: u8, address: Ipv4Addr, peer: u8) -> ProbeBook {
        let mut book = ProbeBook::default();
        book.set(&key(own), [(address, key(peer).public())].into_iter());
        book
    }

    fn pair() -> (ProbeBook, ProbeBook) {
        (book(1, TWO, 2), book(2, ONE, 1))
    }

    #[test]
    fn a_question_is_answered_once_and_by_the_peer_alone() {
        let (mut one, mut two) = pair();
        let question = one.question(TWO).unwrap();
        let Some(OpenedProbe::Question(answer)) = two.open(ONE, &question) else {
            panic!("not read as a question");
        };
        assert_eq!(one.open(ONE, &answer), None, "from another address");
        assert_eq!(one.open(TWO, &question), None, "its own packet");
        let opened = Some(OpenedProbe::Answer(key(2).public()));
        assert_eq!(one.open(TWO, &answer), opened);
        assert_eq!(one.open(TWO, &answer), None, "a second time");
    }

    #[test]
    fn a_packet_of_another_machine_or_with_another_content_is_dropped() {
        let (mut one, mut two) = pair();
        let question = one.question(TWO).unwrap();
        let mut stranger = book(3, TWO, 2);
        let foreign = stranger.question(TWO).unwrap();
        assert_eq!(two.open(ONE, &foreign), None, "another machine's key");
        assert_eq!(two.open(TWO, &question), None, "no peer has this address");
        for place in 0..question.len() {
            let mut changed = question.clone();
            changed[place] ^= 1;
            assert_eq!(two.open(ONE, &changed), None, "byte {place} changed");
            assert_eq!(two.open(ONE, &question[..place]), None, "{place} bytes");
        }
        assert!(two.open(ONE, &question).is_some(), "the control");
    }

    #[test]
    fn an_answer_without_a_question_is_dropped() {
        let (mut one, mut two) = pair();
        let mut other = book(1, TWO, 2);
        let question = other.question(TWO).unwrap();
        let Some(OpenedProbe::Question(answer)) = two.open(ONE, &question) else {
            panic!("not read as a question");
        };
        assert_eq!(one.open(TWO, &answer), None);
    }

    #[test]
    fn a_refusal_counts_only_if_it_quotes_an_open_question_to_its_sender() {
        let (mut one, _) = pair();
        let foreign = book(1, TWO, 2).question(TWO).unwrap();
        assert_eq!(one.refused(TWO, &foreign), None, "nothing was asked");
        let question = one.question(TWO).unwrap();
        assert_eq!(one.refused(TWO, &foreign), None, "another question");
        assert_eq!(one.refused(TWO, &[]), None, "no quotation");
        assert_eq!(one.refused(TWO, &question[..20]), None, "a part of it");
        assert_eq!(
            one.refused(ONE, &question),
            None,
            "no peer has this address"
        );
        let mut answer = question.clone();
        answer[4] = ProbeKind::Answer.byte();
        assert_eq!(one.refused(TWO, &answer), None, "no question");
        // Routers may quote no more than the beginning.
        let refused = one.refused(TWO, &question[..21]);
        assert_eq!(refused, Some(key(2).public()));
        assert_eq!(one.refused(TWO, &question), None, "a second time");
    }

    #[test]
    fn the_open_questions_are_bounded_and_survive_an_equal_list() {
        let (mut one, mut two) = pair();
        let question = one.question(TWO).unwrap();
        one.set(&key(1), [(TWO, key(2).public())].into_iter());
        let Some(OpenedProbe::Question(answer)) = two.open(ONE, &question) else {
            panic!("not read as a question");
        };
        for _ in 0..MOST_OPEN {
            one.question(TWO).unwrap();
        }
        assert_eq!(one.open(TWO, &answer), None, "pushed out by later ones");
        one.set(&key(1), std::iter::empty());
        assert_eq!(one.question(TWO), None);
    }
}
