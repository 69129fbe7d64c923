//! Random packets: each is read or refused without a panic.

use proptest::prelude::*;

use super::*;
use crate::dns::{fuzz, message, server};

#[test]
fn the_fuzz_targets_reach_zone_and_resolvers() {
    let zone = Arc::new(zone());
    let container = Ipv4Addr::new(10, 100, 0, 7).into();
    let sent = |text: &str, upstream: &Message| {
        let mut packet = question(text, RecordType::A);
        packet.metadata.id = upstream.metadata.id;
        let upstream = upstream.to_vec().unwrap();
        let sent = fuzz::answer(&zone, &packet.to_vec().unwrap(), container, &upstream, 7).unwrap();
        assert_eq!(sent.udp, sent.tcp);
        (sent.forwarded, Message::from_vec(&sent.udp).unwrap())
    };
    let asked = question("www.example.org.", RecordType::A);
    let (forwarded, answer) = sent("www.example.org.", &one_address(&asked)[0]);
    assert!(forwarded);
    assert_eq!(answer.answers[0].ttl, 293);

    let (forwarded, answer) = sent("www.example.com.", &one_address(&asked)[0]);
    assert!(forwarded);
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);

    let (forwarded, answer) = sent("db.foo.kat.cluster.local.", &one_address(&asked)[0]);
    assert!(!forwarded);
    assert_eq!(answer.answers[0].ttl, 2);
}

proptest! {
    #[test]
    fn any_packet_is_read_or_refused(packet in proptest::collection::vec(any::<u8>(), 0..600)) {
        if let Err(error) = parse(&packet) {
            let reply = message::refusal(&packet, &error);
            prop_assert!(reply.is_none_or(|reply| reply.len() == 12));
        }
    }

    #[test]
    fn any_change_to_a_question_is_read_or_refused(place in 0usize..60, byte: u8) {
        let asked = question("web.default.kat.cluster.local.", RecordType::A);
        let mut packet = with_edns(asked, 1232);
        if let Some(old) = packet.get_mut(place) {
            *old = byte;
        }
        if let Ok(request) = parse(&packet) {
            let reply = message::DnsReply::failure(&request, &"why ".repeat(99));
            prop_assert!(reply.to_udp().len() <= 512);
        }
    }

    #[test]
    fn any_answer_of_a_resolver_can_be_passed_on(
        changes in proptest::collection::vec((0usize..200, any::<u8>()), 0..4),
        records in 0u8..80,
    ) {
        let asked = question("www.example.org.", RecordType::A);
        let request = parse(&with_edns(asked.clone(), 4096)).unwrap();
        let mut answer = answer_to(&asked);
        answer.add_answers((0..records).map(|last| address_record(&asked, last)));
        let zone = name("org.");
        let authority = SOA::new(zone.clone(), zone.clone(), 1, 1, 1, 1, 30);
        answer.add_authority(Record::from_rdata(zone, 30, RData::SOA(authority)));
        let mut packet = answer.to_vec().unwrap();
        for (place, byte) in changes {
            if let Some(old) = packet.get_mut(place) {
                *old = byte;
            }
        }
        if let Ok(answer) = Message::from_vec(&packet) {
            let reply = server::relay(&request, &answer, 7);
            let udp = reply.to_udp();
            prop_assert!(udp.len() <= 1232);
            prop_assert!(Message::from_vec(&udp).is_ok(), "not readable");
            prop_assert!(Message::from_vec(&reply.to_tcp()).is_ok(), "not readable");
        }
    }
}
