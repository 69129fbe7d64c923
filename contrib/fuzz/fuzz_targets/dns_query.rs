//! Any packet from a client: the first byte chooses the client, the rest is the packet. A parsed
//! query survives serialization. Every answer is well formed, small enough, and gives strangers no
//! names of the cluster. Names of the cluster are never forwarded.
#![no_main]

use std::sync::{Arc, LazyLock};

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, ResponseCode},
    rr::Name,
};
use kat_fuzz::{
    dns::{CLIENTS, check, zone},
    peak_of, survive_overflow,
};
use kat_network::dns::{DnsRequest, Zone, fuzz::answer, parse};
use libfuzzer_sys::fuzz_target;

static ZONE: LazyLock<Arc<Zone>> = LazyLock::new(zone);
/// TTL of the cluster's own names, in seconds.
const TTL: u32 = 2;

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let Some((choice, packet)) = bytes.split_first() else {
        return;
    };
    let client = CLIENTS[usize::from(*choice) % CLIENTS.len()];
    let (parsed, memory) = peak_of(|| parse(packet));
    assert!(memory <= 16 * 1024 + 256 * packet.len(), "{memory} bytes of memory");
    if let Ok(request) = &parsed {
        check_request(request);
    }
    let Some(sent) = answer(&ZONE, packet, client, b"", 0) else {
        assert!(packet.len() < 12 || packet[2] & 0x80 != 0, "no answer");
        return;
    };
    let Some((request, reply)) = check(packet, &sent) else {
        return;
    };
    let domain = Name::from_ascii("kat.cluster.local.").expect("a name");
    assert!(!(sent.forwarded && domain.zone_of(request.question.name())));
    assert!(!(sent.forwarded && !ZONE.serves(client)));
    let code = reply.metadata.response_code;
    if sent.forwarded {
        assert_eq!(code, ResponseCode::ServFail, "an empty packet is no answer");
    } else if !ZONE.serves(client) {
        assert_eq!(reply.all_sections().count(), 0, "a stranger was told something");
    }
    for record in &reply.answers {
        assert_eq!(record.ttl, TTL);
        assert!(record.name.eq_case(request.question.name()));
    }
});

/// The name is within the limits of RFC 1035, and the question survives serialization.
fn check_request(request: &DnsRequest) {
    let name = request.question.name();
    let length: usize = name.iter().map(|label| label.len() + 1).sum();
    assert!(length < 255 && name.iter().all(|label| (1..=63).contains(&label.len())));
    let mut message = Message::new(request.metadata.id, MessageType::Query, OpCode::Query);
    message.metadata = request.metadata;
    message.add_query(request.question.clone());
    if let Some(edns) = request.edns {
        let mut written = Edns::new();
        written
            .set_max_payload(edns.payload)
            .set_version(edns.version);
        written.set_dnssec_ok(edns.dnssec_ok);
        message.set_edns(written);
    }
    let written = message.to_vec().expect("a request can be written");
    assert_eq!(parse(&written).as_ref(), Ok(request));
}
