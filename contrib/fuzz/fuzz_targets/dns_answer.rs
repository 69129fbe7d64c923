//! Any packet from an upstream resolver. The first two bytes choose the client and the question.
//! With the highest bit set, the rest is the whole packet; otherwise it is the records, after a
//! matching header and question. A forwarded answer is well formed, small enough, and not valid for
//! longer than the resolver said.
#![no_main]

use std::sync::{Arc, LazyLock};

use hickory_proto::{
    op::{Edns, Message, Query},
    rr::{Name, RecordType},
};
use kat_fuzz::{
    dns::{CLIENTS, check, zone},
    peak_of, survive_overflow,
};
use kat_network::dns::{Zone, fuzz::answer};
use libfuzzer_sys::fuzz_target;

static ZONE: LazyLock<Arc<Zone>> = LazyLock::new(zone);
const KINDS: [RecordType; 8] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::CNAME,
    RecordType::HTTPS,
    RecordType::MX,
    RecordType::SRV,
    RecordType::TXT,
    RecordType::DNSKEY,
];
/// Seconds since the answer came.
const AGE: u32 = 7;

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let [choice, kind, rest @ ..] = bytes else {
        return;
    };
    let question = question(*choice, KINDS[usize::from(*kind) % KINDS.len()]);
    let packet = question.to_vec().expect("a question can be written");
    let upstream = match choice & 0x80 {
        0 => with_records(&question, rest),
        _ => rest.to_vec(),
    };
    let (sent, memory) = peak_of(|| answer(&ZONE, &packet, CLIENTS[0], &upstream, AGE));
    assert!(memory <= 256 * 1024 + 1024 * upstream.len(), "{memory} bytes of memory");
    let sent = sent.expect("a question gets an answer");
    assert!(sent.forwarded);
    let (_, reply) = check(&packet, &sent).expect("a question is understood");
    let Ok(said) = Message::from_vec(&upstream) else {
        assert_eq!(reply.all_sections().count(), 0, "records from nowhere");
        return;
    };
    let most = said.all_sections().map(|record| record.ttl).max().unwrap_or(0);
    assert!(reply.all_sections().count() <= said.all_sections().count());
    for record in reply.all_sections() {
        assert!(record.ttl <= most.saturating_sub(AGE));
    }
});

fn question(choice: u8, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.id = 0x4b41;
    message.metadata.recursion_desired = true;
    let name = Name::from_ascii("www.example.org.").expect("a name");
    message.add_query(Query::query(name, kind));
    if choice & 1 != 0 {
        let mut edns = Edns::new();
        edns.set_max_payload(4096).set_dnssec_ok(choice & 2 != 0);
        message.set_edns(edns);
    }
    message
}

/// A response to the question. The first four bytes of `bytes` are its flags and its record counts.
fn with_records(question: &Message, bytes: &[u8]) -> Vec<u8> {
    let mut plain = question.clone();
    plain.edns = None;
    let mut packet = plain.to_vec().expect("a question can be written");
    let Some(([flags, answers, authorities, additionals], records)) = bytes.split_first_chunk()
    else {
        return packet;
    };
    packet[2] = 0x81;
    packet[3] = *flags;
    (packet[7], packet[9], packet[11]) = (*answers, *authorities, *additionals);
    packet.extend_from_slice(records);
    packet
}
